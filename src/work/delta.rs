//! `--delta`: of a large file that is there in an older state, only the blocks
//! that differ are written.
//!
//! Both sides are read. The new file begins as a reflink of the old one, whose
//! name it takes at the end: the old content stays until then. Where the
//! filesystem cannot share extents, the new file is written whole from memory:
//! the bytes are there already, while copy_file_range(2) would read the old
//! file once more, and it could have changed since it was compared. Or, if
//! asked (`--inplace`), the old file itself is written to.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nix::errno::Errno;

use super::checkpoint;
use super::part::Part;
use super::spot::Spot;
use crate::error::{During, Failure, Op};
use crate::plan::{Kind, LARGE_BYTES};
use crate::sys::beneath;
use crate::sys::metadata::{Stat, Target, Time, UNFINISHED};
use crate::sys::transfer::{self, Shared};

/// What is compared at a time: a disk's smallest sector.
const BLOCK: usize = 512;

/// No filesystem here has larger ones.
const LARGEST_BLOCK: u64 = 64 << 10;

/// How the new state comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// In a reflink of the old file.
    Clone,
    /// In a new file, written whole.
    Whole,
    /// In the old file itself.
    InPlace,
}

/// An older state of a file that is being written.
#[derive(Debug)]
pub(crate) struct Delta {
    old: File,
    old_size: u64,
    /// Where the old file has no holes.
    old_data: Vec<Range<u64>>,
    way: Way,
    literal_bytes: AtomicU64,
    matched_bytes: AtomicU64,
}

/// Opens the older state, if there is one that is worth it.
fn older(spot: &Spot<'_>, stat: &Stat) -> Option<(File, Stat)> {
    // Whatever goes wrong in this look, the file is simply copied.
    let old = beneath::open_file(spot.fd.as_fd(), spot.name).ok()?;
    let there = Stat::of(&old).ok()?;
    let fits = there.kind() == Kind::File && there.size >= LARGE_BYTES;
    (fits && !there.is_same_inode(stat)).then_some((old, there))
}

/// Begins a file at `spot`: with its older state, if `--delta` finds one.
/// `ranges` are the data of the source.
pub(crate) fn begin(
    spot: &Spot<'_>,
    stat: &Stat,
    ranges: &[Range<u64>],
) -> Result<(Part, Option<Delta>), Failure> {
    let options = spot.run.options;
    let Some((old, there)) = options.delta.then(|| older(spot, stat)).flatten() else {
        return Ok((checkpoint::create(spot, stat)?, None));
    };
    let part = spot.create(stat)?;
    if part.is_named() {
        return Ok((part, None));
    }
    let old_data = transfer::data_ranges(&old, there.size).during_at(Op::Read, || spot.path())?;
    let delta = |old, way| Delta {
        old,
        old_size: there.size,
        old_data,
        way,
        literal_bytes: AtomicU64::new(0),
        matched_bytes: AtomicU64::new(0),
    };
    let step = |e| Failure::new(Op::Write, spot.path(), e);
    if transfer::share(&old, &part.file).map_err(step)? == Shared::Yes {
        shape(&part.file, stat, ranges).map_err(step)?;
        return Ok((part, Some(delta(old, Way::Clone))));
    }
    part.discard(spot)?;
    // A backup would be one more name of what is written to.
    let may_write_into = options.inplace && options.backup.is_none();
    if may_write_into && let Some(part) = in_place(spot, &there).map_err(step)? {
        shape(&part.file, stat, ranges).map_err(step)?;
        return Ok((part, Some(delta(old, Way::InPlace))));
    }
    let part = checkpoint::create(spot, stat)?;
    Ok((part, Some(delta(old, Way::Whole))))
}

/// Opens the old file itself; `None` where it may not be written to. From now
/// on it is private, its mtime is that of no source, and it is marked, so that
/// nobody takes it for finished.
fn in_place(spot: &Spot<'_>, there: &Stat) -> io::Result<Option<Part>> {
    let Ok(file) = spot.open_to_write(spot.name) else {
        return Ok(None);
    };
    let now = Stat::of(&file)?;
    if !now.is_same_inode(there) || now.links != 1 {
        return Ok(None);
    }
    let target: Target<'_, File> = Target::Open(&file);
    match target.set_permissions(0o600 | UNFINISHED) {
        // Of a stranger's file, which one may write to, the mode stays.
        Err(e) if e.raw_os_error() == Some(Errno::EPERM as i32) => return Ok(None),
        other => other?,
    }
    target.set_times(there.atime, Time::now())?;
    // On the medium before any change is.
    file.sync_all()?;
    Ok(Some(Part::in_place(file)))
}

/// Gives the old content the new size and the source's holes.
fn shape(file: &File, stat: &Stat, ranges: &[Range<u64>]) -> io::Result<()> {
    file.set_len(stat.size)?;
    let mut at = 0;
    for range in ranges
        .iter()
        .chain(std::iter::once(&(stat.size..stat.size)))
    {
        if range.start > at {
            // A block that the file's end lies in is freed as a whole only.
            let ends = range.start == stat.size;
            let end = if ends {
                range.start.next_multiple_of(LARGEST_BLOCK)
            } else {
                range.start
            };
            transfer::clear(file, &(at..end), stat.size)?;
        }
        at = range.end;
    }
    Ok(())
}

impl Delta {
    /// Whether the new file begins empty.
    pub(crate) fn is_whole(&self) -> bool {
        self.way == Way::Whole
    }

    /// Writes the blocks of a piece that differ; gives how many bytes were
    /// written.
    pub(crate) fn write(&self, part: &File, bytes: &[u8], offset: u64) -> io::Result<u64> {
        let old = self.read_old(bytes.len(), offset)?;
        let mut differing = differing(bytes, &old);
        let literal: usize = differing.iter().map(Range::len).sum();
        let matched = bytes.len() - literal;
        self.literal_bytes.fetch_add(literal as u64, Relaxed);
        self.matched_bytes.fetch_add(matched as u64, Relaxed);
        if self.way == Way::Whole {
            part.write_all_at(bytes, offset)?;
            return Ok(bytes.len() as u64);
        }
        let written = literal as u64;
        // Zeros that are data here and a hole there read the same.
        differing.extend(self.old_holes(offset..offset + old.len() as u64));
        for range in differing {
            part.write_all_at(&bytes[range.clone()], offset + range.start as u64)?;
        }
        Ok(written)
    }

    /// The holes of the old file within a piece, as ranges of its bytes.
    fn old_holes(&self, piece: Range<u64>) -> Vec<Range<usize>> {
        let mut holes = Vec::new();
        let mut at = piece.start;
        let end = piece.end..piece.end;
        for data in self.old_data.iter().chain(std::iter::once(&end)) {
            let (from, to) = (at, data.start.min(piece.end));
            if let (true, Ok(start), Ok(len)) = (
                from < to,
                usize::try_from(from - piece.start),
                usize::try_from(to.saturating_sub(from)),
            ) {
                holes.push(start..start + len);
            }
            at = at.max(data.end);
        }
        holes
    }

    /// The old bytes in the place of a piece; fewer where the old file ends.
    fn read_old(&self, len: usize, offset: u64) -> io::Result<Vec<u8>> {
        let left = self.old_size.saturating_sub(offset);
        let len = usize::try_from(left).map_or(len, |left| left.min(len));
        let mut old = vec![0; len];
        let mut done = 0;
        while done < len {
            match self.old.read_at(&mut old[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        old.truncate(done);
        Ok(old)
    }

    /// Counts a file that has arrived.
    pub(crate) fn count(&self, spot: &Spot<'_>) {
        let counters = spot.run.counters;
        counters.delta_files.fetch_add(1, Relaxed);
        let add = |to: &AtomicU64, from: &AtomicU64| to.fetch_add(from.load(Relaxed), Relaxed);
        add(&counters.literal_bytes, &self.literal_bytes);
        add(&counters.matched_bytes, &self.matched_bytes);
    }
}

/// The ranges of `new` whose blocks are not those of `old`, neighbours as one.
fn differing(new: &[u8], old: &[u8]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (i, block) in new.chunks(BLOCK).enumerate() {
        let (from, to) = (i * BLOCK, i * BLOCK + block.len());
        if old.get(from..to) == Some(block) {
            continue;
        }
        match ranges.last_mut() {
            Some(last) if last.end == from => last.end = to,
            _ => ranges.push(from..to),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_that_differ_are_written() {
        let old = vec![7; 4000];
        assert!(differing(&old, &old).is_empty());
        let mut new = old.clone();
        new[600] = 8;
        new[1030] = 8;
        new[3999] = 8;
        assert_eq!(differing(&new, &old), [512..1536, 3584..4000]);
        assert_eq!(differing(&old, &old[..3000]), [2560..4000], "it grew");
        assert_eq!(differing(&old[..100], &old), Vec::<Range<usize>>::new());
        assert_eq!(differing(&old, &[]), [0..4000]);
    }
}
