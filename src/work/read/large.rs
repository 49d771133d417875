//! Files that travel in pieces.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use xxhash_rust::xxh3::Xxh3;

use super::small::{ATTEMPTS, read_at, will_not_hold_still};
use super::{Reader, Work, holes};
use crate::error::{During, Failure, Op};
use crate::plan::Kind;
use crate::plan::bundle::BUNDLE_BYTES;
use crate::sys::metadata::Stat;
use crate::sys::xattrs::Place;
use crate::sys::{advise, beneath, transfer};
use crate::verify::digest::{digest_of_ranges, hash_gap};
use crate::work::ahead::Asked;
use crate::work::keep;
use crate::work::known::both_digests;
use crate::work::large::{Large, Mode, Source, Verdict};
use crate::work::spot::Spot;
use crate::work::write::settle;

/// Bytes in one piece.
const CHUNK_BYTES: usize = BUNDLE_BYTES;

impl Reader<'_, '_> {
    /// Reads a large file in pieces, again if it changes meanwhile.
    pub(super) fn large(
        &mut self,
        entry: u32,
        file: &Arc<File>,
        first: Stat,
        asked: Asked,
    ) -> Result<(), Failure> {
        if self.run.options.checksum && self.is_kept(entry, file, &first)? {
            return Ok(());
        }
        let mut stat = first;
        for attempt in 1..=ATTEMPTS {
            let mode = Mode {
                may_resume: attempt == 1,
                by_extent: false,
                // Only the last attempt needs to know what exactly it has read.
                is_seen: !self.is_unseen() || attempt == ATTEMPTS,
            };
            let large = self.begin(entry, file, stat, mode)?;
            self.run.mark(entry);
            let verdict = self.attempt(entry, file, &large, asked.clone(), attempt == ATTEMPTS);
            let changed = match &verdict {
                Verdict::Again(now) => Some(*now),
                _ => None,
            };
            self.end(&large, verdict);
            match changed {
                // Its name must be free before it is made again.
                Some(now) if large.wait() => stat = now,
                _ => return Ok(()),
            }
        }
        unreachable!("the last attempt has another verdict")
    }

    /// Reads it once, and judges what was read.
    fn attempt(
        &mut self,
        entry: u32,
        file: &File,
        large: &Arc<Large>,
        asked: Asked,
        last: bool,
    ) -> Verdict {
        let path = self.path(entry);
        let mut seen = last.then(Xxh3::new);
        let whole = match self.pieces(&path, file, large, asked, seen.as_mut()) {
            Ok(Pieces::All) => true,
            Ok(Pieces::Short) => false,
            Ok(Pieces::Stopped) => return Verdict::NotReached,
            Err(failure) => return Verdict::Failed(failure),
        };
        let stat = &large.stat;
        let now = match Stat::of(file).during(Op::Stat, &path) {
            Ok(now) => now,
            Err(failure) => return Verdict::Failed(failure),
        };
        if stat.held_still(&now) {
            if whole {
                return Verdict::Whole;
            }
            let e = io::Error::new(io::ErrorKind::UnexpectedEof, "it ends before its size says");
            return Verdict::Failed(Failure::new(Op::Read, path, e));
        }
        let Some(seen) = seen else {
            return Verdict::Again(now);
        };
        let grew = whole && now.size >= stat.size;
        let again = || digest_of_ranges(file, stat.size, &large.ranges, &mut Vec::new());
        match grew.then(again) {
            Some(Ok(digest)) if digest == seen.digest128() => {
                Verdict::Prefix(Failure::because(Op::Read, path, will_not_hold_still(true)))
            }
            Some(Err(e)) if e.kind() != io::ErrorKind::UnexpectedEof => {
                Verdict::Failed(Failure::new(Op::Read, path, e))
            }
            _ => Verdict::Failed(Failure::because(Op::Read, path, will_not_hold_still(false))),
        }
    }

    /// With --checksum: whether the destination has this very content, and may
    /// keep it; if so, it is counted.
    pub(super) fn is_kept(
        &mut self,
        entry: u32,
        file: &File,
        stat: &Stat,
    ) -> Result<bool, Failure> {
        let run = self.run;
        let it = &self.listing.entries[entry as usize];
        let (dir, name) = (self.listing.dir(it), self.listing.name(it));
        let fd = run.dest.dir_for(dir, name)?;
        let spot = Spot {
            run,
            dir: dir.clone(),
            fd: &fd,
            name: dir.dest_name(name),
        };
        // Whatever goes wrong in this look, the file is simply copied.
        let Ok(there) = Stat::at(&fd, spot.name) else {
            return Ok(false);
        };
        if there.kind() != Kind::File || there.is_same_inode(stat) || stat.size != there.size {
            return Ok(false);
        }
        let path = self.path(entry);
        let Ok(copy) = beneath::open_file(fd.as_fd(), spot.name) else {
            return Ok(false);
        };
        let same = both_digests(&spot, (file, stat), (&copy, &there));
        let (ours, theirs) = same.during(Op::Read, &path)?;
        let now = Stat::of(file).during(Op::Stat, &path)?;
        if !stat.held_still(&now) || ours != theirs {
            return Ok(false);
        }
        let xattrs = Place::Open(file).read().during(Op::Read, &path)?;
        let Some(kept) = keep::keep_file(&spot, stat, &xattrs)? else {
            return Ok(false);
        };
        run.mark(entry);
        settle(run, dir, name, stat, Ok(kept), None);
        Ok(true)
    }

    pub(super) fn end(&mut self, large: &Arc<Large>, verdict: Verdict) {
        (self.sink)(Work::Chunk(large.end(verdict)));
    }

    /// Whether nobody asks for the bytes themselves.
    fn is_unseen(&self) -> bool {
        self.budget.in_kernel && !self.run.needs_digests()
    }

    pub(super) fn begin(
        &self,
        entry: u32,
        file: &File,
        stat: Stat,
        mode: Mode,
    ) -> Result<Arc<Large>, Failure> {
        let it = &self.listing.entries[entry as usize];
        let path = self.path(entry);
        let xattrs = Place::Open(file).read().during(Op::Read, &path)?;
        let ranges = holes::of_file(file, &stat).during(Op::Read, &path)?;
        let (dir, name) = (self.listing.dir(it), self.listing.name(it));
        let source = Source {
            stat,
            xattrs,
            ranges,
        };
        Large::begin(self.run, dir, name, source, mode).map(Arc::new)
    }

    /// Reads all data ranges and hands them on.
    fn pieces(
        &mut self,
        path: &Path,
        file: &File,
        large: &Arc<Large>,
        mut asked: Asked,
        mut seen: Option<&mut Xxh3>,
    ) -> Result<Pieces, Failure> {
        if self.is_unseen() && seen.is_none() && !large.is_compared() {
            return self.unseen(path, file, large);
        }
        let mut hashed_to = 0;
        for range in large.ranges.clone() {
            let rest = range.start.max(large.from)..range.end;
            let end = self.range(path, file, large, rest, &mut asked, |at, bytes| {
                if let Some(seen) = &mut seen {
                    hash_gap(seen, hashed_to, at);
                    seen.update(bytes);
                    hashed_to = at + bytes.len() as u64;
                }
            })?;
            if end != Pieces::All {
                return Ok(end);
            }
        }
        if let Some(seen) = seen {
            hash_gap(seen, hashed_to, large.stat.size);
        }
        Ok(Pieces::All)
    }

    /// Reads a range in pieces and hands them on; shows each to `see` first.
    pub(super) fn range(
        &mut self,
        path: &Path,
        file: &File,
        large: &Arc<Large>,
        range: Range<u64>,
        asked: &mut Asked,
        mut see: impl FnMut(u64, &[u8]),
    ) -> Result<Pieces, Failure> {
        let mut at = range.start;
        while at < range.end {
            if self.run.is_stopped() || large.has_failed() {
                return Ok(Pieces::Stopped);
            }
            #[allow(clippy::cast_possible_truncation)]
            let want = (range.end - at).min(CHUNK_BYTES as u64) as usize;
            asked.keep_ahead(file, at);
            if let Some(window) = &mut self.window {
                window.top_up(range.end - at);
            }
            let mut buffer = self.budget.take_len(want);
            let read = read_exact(file, &mut buffer, at);
            if !matches!(read, Ok(true)) {
                self.budget.give(buffer);
                return read.map(|_| Pieces::Short).during(Op::Read, path);
            }
            self.run.counters.read_bytes.fetch_add(want as u64, Relaxed);
            see(at, &buffer);
            if self.budget.drop_behind {
                advise::drop_cached(file, at, want as u64);
            }
            (self.sink)(Work::Chunk(large.chunk(at, buffer)));
            at += want as u64;
            if let Some(turns) = self.turns {
                turns.read(self.run, want as u64);
            }
        }
        Ok(Pieces::All)
    }

    /// Copies all data ranges right here where nobody has to see the bytes: by
    /// the kernel (copy_file_range(2)), or, where it cannot between these two
    /// files, through a buffer that stays in the processor's cache.
    fn unseen(&self, path: &Path, file: &File, large: &Large) -> Result<Pieces, Failure> {
        let mut by_kernel = true;
        let mut buffer = Vec::new();
        for range in &large.ranges {
            let mut at = range.start.max(large.from);
            while at < range.end {
                if self.run.is_stopped() {
                    return Ok(Pieces::Stopped);
                }
                let want = (range.end - at).min(UNSEEN_BYTES);
                let copied = match by_kernel {
                    true => transfer::copy_range(file, large.file(), at, want),
                    false => Ok(None),
                };
                let n = match copied {
                    Ok(Some(n)) => n,
                    // One call does both: the plain way tells which end failed.
                    Ok(None) | Err(_) => {
                        by_kernel = false;
                        buffer.resize(UNSEEN_BUFFER_BYTES, 0);
                        let len =
                            usize::try_from(want).map_or(buffer.len(), |n| n.min(buffer.len()));
                        let n = read_at(file, &mut buffer[..len], at).during(Op::Read, path)?;
                        let written = large.file().write_all_at(&buffer[..n], at);
                        written.during_at(Op::Write, || large.path(self.run))?;
                        n as u64
                    }
                };
                if n == 0 {
                    return Ok(Pieces::Short);
                }
                self.run.counters.read_bytes.fetch_add(n, Relaxed);
                self.run.wrote(n);
                at += n;
                large.reached(self.run, at);
            }
        }
        Ok(Pieces::All)
    }
}

/// Copied by the kernel in one call: it does not stop in between.
const UNSEEN_BYTES: u64 = 16 << 20;

/// As GNU cp has it; with 4 MiB three files of 1 GB took half as long again.
const UNSEEN_BUFFER_BYTES: usize = 256 << 10;

/// How far the reading of a large file came.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pieces {
    /// To its end.
    All,
    /// It ended before its size.
    Short,
    /// The job was stopped, or writing it failed.
    Stopped,
}

/// Fills the buffer; `false` where the file ends before.
fn read_exact(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
    let mut done = 0;
    while done < buffer.len() {
        match read_at(file, &mut buffer[done..], offset + done as u64)? {
            0 => return Ok(false),
            n => done += n,
        }
    }
    Ok(true)
}
