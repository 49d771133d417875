//! Files in many extents, read as the head passes them: small ones are put
//! together in memory, large ones written piece by piece, in any order.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Reader;
use super::large::Pieces;
use super::window::Ahead;
use crate::error::{During, Failure, Op};
use crate::plan::{Extent, Extents, Kind, LARGE_BYTES};
use crate::sys::metadata::Stat;
use crate::work::ahead::Asked;
use crate::work::large::{Large, Mode, Verdict};

/// Files of which some extents are still to come, by entry.
#[derive(Default)]
pub(super) struct Halves(HashMap<u32, Half>);

/// A fragmented file of which some extents are still to come.
struct Half {
    left: usize,
    state: State,
}

enum State {
    /// Put together in memory.
    Small(Small),
    /// Written as it comes.
    Large(Arc<Large>, Option<Verdict>),
    /// Read whole when its first extent came.
    Done,
    /// Could not be begun.
    Failed(Failure),
}

struct Small {
    first: io::Result<Stat>,
    bytes: Vec<u8>,
    failed: Option<io::Error>,
}

impl Reader<'_, '_> {
    /// Reads one extent of a file, and ends the file with its last one.
    pub(super) fn part(&mut self, halves: &mut Halves, ahead: Ahead, extents: &Extents) {
        let entry = ahead.read.entry;
        let of_file = &extents[&entry];
        let extent = of_file[ahead.read.part as usize];
        let file = ahead.file.map(Arc::new);
        let half = halves.0.entry(entry).or_insert_with(|| Half {
            left: of_file.len(),
            state: self.begin_half(entry, &file),
        });
        half.left -= 1;
        match &mut half.state {
            State::Small(small) => small.take(file.as_deref(), extent),
            State::Large(large, verdict @ None) => {
                let size = large.stat.size;
                let range = extent.logical.min(size)..(extent.logical + extent.len).min(size);
                *verdict = self.large_part(entry, &file, large, range, ahead.asked);
            }
            State::Large(..) | State::Done | State::Failed(_) => {}
        }
        if half.left == 0
            && let Some(half) = halves.0.remove(&entry)
        {
            match half.state {
                State::Small(small) => self.assembled(entry, small, file),
                State::Large(large, verdict) => {
                    self.end_large(entry, &file, &large, verdict, of_file);
                }
                State::Failed(failure) => self.fail(entry, failure),
                State::Done => {}
            }
        }
    }

    /// Ends what is half-read where the job was stopped.
    pub(super) fn abandon(&mut self, halves: Halves) {
        for half in halves.0.into_values() {
            if let State::Large(large, verdict) = half.state {
                self.end(&large, verdict.unwrap_or(Verdict::NotReached));
            }
        }
    }

    fn begin_half(&mut self, entry: u32, file: &io::Result<Arc<File>>) -> State {
        let size = self.listing.entries[entry as usize].size;
        let options = self.run.options;
        if size <= LARGE_BYTES && !self.run.dest.must_share() {
            return State::Small(Small {
                first: file.as_ref().map_err(copy_error).and_then(Stat::of),
                bytes: vec![0; usize::try_from(size).unwrap_or(0)],
                failed: None,
            });
        }
        let opened = file.as_ref().map_err(copy_error);
        let begun = opened
            .and_then(|file| Ok((Stat::of(file)?, file)))
            .during_at(Op::Open, || self.path(entry))
            .and_then(|(stat, file)| {
                let as_planned = stat.kind() == Kind::File && stat.size == size;
                // These look at whole files, in their own order.
                let whole = options.checksum || options.delta || self.run.dest.must_share();
                if whole || !as_planned {
                    self.file(entry, Ok(file.clone()), Asked::nothing(0..stat.size));
                    return Ok(None);
                }
                let mode = Mode {
                    may_resume: false,
                    by_extent: true,
                    is_seen: true,
                };
                self.begin(entry, file, stat, mode).map(Some)
            });
        match begun {
            Ok(None) => State::Done,
            Ok(Some(large)) => {
                self.run.mark(entry);
                State::Large(large, None)
            }
            Err(failure) => State::Failed(failure),
        }
    }

    /// Reads what of a large file lies in a range; says how it ended where that
    /// is known already.
    fn large_part(
        &mut self,
        entry: u32,
        file: &io::Result<Arc<File>>,
        large: &Arc<Large>,
        range: Range<u64>,
        mut asked: Asked,
    ) -> Option<Verdict> {
        let path = self.path(entry);
        let file = match file.as_ref().map_err(copy_error).during(Op::Open, &path) {
            Ok(file) => file.clone(),
            Err(failure) => return Some(Verdict::Failed(failure)),
        };
        // Another file that has taken the name meanwhile must not be mixed in.
        let changed = self.changed(entry, Ok(&file), large);
        if changed.is_some() {
            return changed;
        }
        for data in large.ranges.clone() {
            let both = data.start.max(range.start)..data.end.min(range.end);
            match self.range(&path, &file, large, both, &mut asked, |_, _| {}) {
                Ok(Pieces::All) => {}
                Ok(Pieces::Short) => {
                    let why = "it ends before its size says";
                    let e = io::Error::new(io::ErrorKind::UnexpectedEof, why);
                    let failed = Verdict::Failed(Failure::new(Op::Read, path.clone(), e));
                    return self.changed(entry, Ok(&file), large).or(Some(failed));
                }
                Ok(Pieces::Stopped) => return Some(Verdict::NotReached),
                Err(failure) => return Some(Verdict::Failed(failure)),
            }
        }
        None
    }

    /// Reads what FIEMAP did not name, and ends a large file; one that changed
    /// meanwhile is read again as a whole.
    fn end_large(
        &mut self,
        entry: u32,
        file: &io::Result<Arc<File>>,
        large: &Arc<Large>,
        verdict: Option<Verdict>,
        extents: &[Extent],
    ) {
        let verdict = verdict
            .or_else(|| self.rest(entry, file, large, extents))
            .unwrap_or(Verdict::Whole);
        let changed = matches!(verdict, Verdict::Again(_));
        self.end(large, verdict);
        if changed && large.wait() {
            let file = file.as_ref().map_err(copy_error).cloned();
            self.file(entry, file, Asked::nothing(0..large.stat.size));
        }
    }

    fn rest(
        &mut self,
        entry: u32,
        file: &io::Result<Arc<File>>,
        large: &Arc<Large>,
        extents: &[Extent],
    ) -> Option<Verdict> {
        for gap in gaps(extents, large.stat.size) {
            let asked = Asked::nothing(gap.clone());
            let ended = self.large_part(entry, file, large, gap, asked);
            if ended.is_some() {
                return ended;
            }
        }
        self.changed(entry, file.as_deref(), large)
    }

    /// What is to be said of a file that is no longer what it was.
    fn changed(
        &self,
        entry: u32,
        file: Result<&File, &io::Error>,
        large: &Large,
    ) -> Option<Verdict> {
        let now = file.map_err(copy_error).and_then(Stat::of);
        match now.during_at(Op::Stat, || self.path(entry)) {
            Ok(now) if large.stat.held_still(&now) => None,
            Ok(now) => Some(Verdict::Again(now)),
            Err(failure) => Some(Verdict::Failed(failure)),
        }
    }

    /// A small file whose extents were read in the disk's order.
    fn assembled(&mut self, entry: u32, small: Small, file: io::Result<Arc<File>>) {
        let whole = || -> Result<(), Failure> {
            let path = self.path(entry);
            if let Some(e) = small.failed {
                return Err(Failure::new(Op::Read, path, e));
            }
            let first = small.first.during(Op::Open, &path)?;
            let file = file.during(Op::Open, &path)?;
            if first.size != small.bytes.len() as u64 {
                return self.read(entry, &file, first, Asked::nothing(0..first.size));
            }
            self.run.counters.read_bytes.fetch_add(first.size, Relaxed);
            self.small(entry, &file, first, Some(&small.bytes))
        };
        if let Err(failure) = whole() {
            self.fail(entry, failure);
        }
    }
}

impl Small {
    fn take(&mut self, file: Result<&File, &io::Error>, extent: Extent) {
        let read = file.map_err(copy_error).and_then(|file| {
            let size = self.bytes.len() as u64;
            let end = (extent.logical + extent.len).min(size);
            let (from, to) = (index(extent.logical.min(end)), index(end));
            file.read_exact_at(&mut self.bytes[from..to], extent.logical.min(end))
        });
        match read {
            // Shorter than it was: found out when it is looked at as a whole.
            Err(e) if e.kind() != io::ErrorKind::UnexpectedEof => {
                self.failed.get_or_insert(e);
            }
            _ => {}
        }
    }
}

// Offsets in a file that is in memory.
#[allow(clippy::cast_possible_truncation)]
fn index(offset: u64) -> usize {
    offset as usize
}

/// What lies between the extents, which are in logical order.
fn gaps(extents: &[Extent], size: u64) -> Vec<Range<u64>> {
    let mut at = 0;
    let mut gaps = Vec::new();
    for extent in extents {
        if extent.logical.min(size) > at {
            gaps.push(at..extent.logical.min(size));
        }
        at = at.max(extent.logical + extent.len);
    }
    if at < size {
        gaps.push(at..size);
    }
    gaps
}

/// `io::Error` is not `Clone`; errors of system calls are their errno.
fn copy_error(e: &io::Error) -> io::Error {
    e.raw_os_error().map_or_else(
        || io::Error::new(e.kind(), e.to_string()),
        io::Error::from_raw_os_error,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_extent_covers_is_read_last() {
        let extent = |logical, len| Extent {
            logical,
            physical: 0,
            len,
        };
        assert_eq!(gaps(&[], 5), [0..5]);
        assert_eq!(gaps(&[extent(0, 5)], 5), []);
        assert_eq!(gaps(&[extent(2, 2), extent(6, 9)], 9), [0..2, 4..6]);
        assert_eq!(gaps(&[extent(0, 2), extent(20, 9)], 9), [2..9]);
    }
}
