//! Files that travel in pieces.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use nix::errno::Errno;
use xxhash_rust::xxh3::Xxh3;

use super::small::{ATTEMPTS, read_at, will_not_hold_still};
use super::{Reader, WINDOW_BYTES, Work};
use crate::error::{During, Failure, Op};
use crate::plan::Kind;
use crate::plan::bundle::BUNDLE_BYTES;
use crate::sys::metadata::Stat;
use crate::sys::xattrs::Place;
use crate::sys::{advise, beneath, transfer};
use crate::verify::file::read_digest;
use crate::work::keep;
use crate::work::large::{Large, Verdict, hash_zeros};
use crate::work::write::Near;

/// Bytes in one piece.
const CHUNK_BYTES: usize = BUNDLE_BYTES;

impl Reader<'_, '_> {
    /// Reads a large file in pieces, again if it changes meanwhile.
    pub(super) fn large(
        &mut self,
        entry: u32,
        file: &Arc<File>,
        first: Stat,
    ) -> Result<(), Failure> {
        if self.run.options.checksum && self.is_there_already(entry, file, &first)? {
            keep::keep(self.run, self.listing, entry, &mut Near::default());
            return Ok(());
        }
        let mut stat = first;
        for attempt in 1..=ATTEMPTS {
            let large = self.begin(entry, file, stat)?;
            self.run.mark(entry);
            let verdict = self.attempt(entry, file, &large, attempt == ATTEMPTS);
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
    fn attempt(&mut self, entry: u32, file: &File, large: &Arc<Large>, last: bool) -> Verdict {
        let path = self.path(entry);
        // Only the last attempt needs to know what exactly it has read.
        let mut seen = last.then(Xxh3::new);
        let whole = match self.pieces(&path, file, large, seen.as_mut()) {
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
        match grew.then(|| begins_with(file, stat.size, seen.digest128())) {
            Some(Ok(true)) => {
                Verdict::Prefix(Failure::because(Op::Read, path, will_not_hold_still(true)))
            }
            Some(Err(e)) => Verdict::Failed(Failure::new(Op::Read, path, e)),
            Some(Ok(false)) | None => {
                Verdict::Failed(Failure::because(Op::Read, path, will_not_hold_still(false)))
            }
        }
    }

    /// With --checksum: whether the destination has this very content.
    fn is_there_already(&self, entry: u32, file: &File, stat: &Stat) -> Result<bool, Failure> {
        let it = &self.listing.entries[entry as usize];
        let (dir, name) = (self.listing.dir(it), self.listing.name(it));
        let fd = self.run.dest.dir(dir)?;
        let name = dir.dest_name(name);
        // Whatever goes wrong in this look, the file is simply copied.
        let Ok(there) = Stat::at(&fd, name) else {
            return Ok(false);
        };
        if there.kind() != Kind::File
            || there.is_same_inode(stat)
            || !self.run.dest.is_same_content_by_stat(stat, &there)
        {
            return Ok(false);
        }
        let mut scratch = Vec::new();
        let ours =
            read_digest(file, stat.size, &mut scratch).during(Op::Read, &self.path(entry))?;
        let theirs = beneath::open_file(fd.as_fd(), name)
            .and_then(|there| read_digest(&there, stat.size, &mut scratch));
        Ok(theirs.is_ok_and(|theirs| theirs == ours))
    }

    /// Hands on a large file that is in memory already.
    pub(super) fn large_from(
        &mut self,
        entry: u32,
        file: &Arc<File>,
        stat: Stat,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        let now = Stat::of(file).during(Op::Stat, &self.path(entry))?;
        if !stat.held_still(&now) {
            return self.large(entry, file, now);
        }
        let large = self.begin(entry, file, stat)?;
        for range in large.ranges.clone() {
            #[allow(clippy::cast_possible_truncation)]
            let data = &bytes[range.start as usize..range.end as usize];
            for (i, piece) in (0u64..).zip(data.chunks(CHUNK_BYTES)) {
                let mut buffer = self.budget.take();
                buffer.extend_from_slice(piece);
                let chunk = large.chunk(range.start + i * CHUNK_BYTES as u64, buffer);
                (self.sink)(Work::Chunk(chunk));
            }
        }
        self.run.mark(entry);
        self.end(&large, Verdict::Whole);
        Ok(())
    }

    fn end(&mut self, large: &Arc<Large>, verdict: Verdict) {
        (self.sink)(Work::Chunk(large.end(verdict)));
    }

    fn begin(&self, entry: u32, file: &File, stat: Stat) -> Result<Arc<Large>, Failure> {
        let it = &self.listing.entries[entry as usize];
        let path = self.path(entry);
        let xattrs = Place::Open(file).read().during(Op::Read, &path)?;
        let ranges = ranges(file, &stat).during(Op::Read, &path)?;
        let (dir, name) = (self.listing.dir(it), self.listing.name(it));
        Large::begin(self.run, dir, name, stat, xattrs, ranges).map(Arc::new)
    }

    /// Reads all data ranges and hands them on.
    fn pieces(
        &mut self,
        path: &Path,
        file: &File,
        large: &Arc<Large>,
        mut seen: Option<&mut Xxh3>,
    ) -> Result<Pieces, Failure> {
        let unseen = self.budget.in_kernel && !self.run.is_verified() && seen.is_none();
        if unseen && let Some(pieces) = self.in_kernel(file, large)? {
            return Ok(pieces);
        }
        let mut hashed_to = 0;
        for range in large.ranges.clone() {
            let mut at = range.start;
            while at < range.end {
                if self.run.is_stopped() || large.has_failed() {
                    return Ok(Pieces::Stopped);
                }
                #[allow(clippy::cast_possible_truncation)]
                let want = (range.end - at).min(CHUNK_BYTES as u64) as usize;
                advise::will_need(file, at + want as u64, WINDOW_BYTES.min(range.end - at));
                let mut buffer = self.budget.take();
                buffer.resize(want, 0);
                let read = read_exact(file, &mut buffer, at);
                if !matches!(read, Ok(true)) {
                    self.budget.give(buffer);
                    return read.map(|_| Pieces::Short).during(Op::Read, path);
                }
                self.run.counters.read_bytes.fetch_add(want as u64, Relaxed);
                if let Some(seen) = &mut seen {
                    hash_zeros(seen, at - hashed_to);
                    seen.update(&buffer);
                    hashed_to = at + want as u64;
                }
                if self.budget.drop_behind {
                    advise::drop_cached(file, at, want as u64);
                }
                (self.sink)(Work::Chunk(large.chunk(at, buffer)));
                at += want as u64;
            }
        }
        if let Some(seen) = seen {
            hash_zeros(seen, large.stat.size - hashed_to);
        }
        Ok(Pieces::All)
    }

    /// Lets the kernel copy all data ranges (copy_file_range(2)); `None` where
    /// it cannot between these two files.
    fn in_kernel(&self, file: &File, large: &Large) -> Result<Option<Pieces>, Failure> {
        for range in &large.ranges {
            let mut at = range.start;
            while at < range.end {
                if self.run.is_stopped() {
                    return Ok(Some(Pieces::Stopped));
                }
                let want = (range.end - at).min(WINDOW_BYTES);
                match transfer::copy_range(file, large.file(), at, want) {
                    Ok(None) => return Ok(None),
                    Ok(Some(0)) => return Ok(Some(Pieces::Short)),
                    Ok(Some(n)) => {
                        self.run.counters.read_bytes.fetch_add(n, Relaxed);
                        self.run.counters.written_bytes.fetch_add(n, Relaxed);
                        at += n;
                    }
                    // One call does both: the plain way tells which end it is.
                    Err(e) if e.raw_os_error() == Some(Errno::EIO as i32) => return Ok(None),
                    Err(e) => return Err(Failure::new(Op::Write, large.path(self.run), e)),
                }
            }
        }
        Ok(Some(Pieces::All))
    }
}

/// How far the reading of a large file came.
enum Pieces {
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

/// The ranges to read as data. What the kernel calls a hole is believed where
/// the allocated blocks agree: no more of them than the data needs. Where
/// there are more (blocks reserved and never written, or a filesystem that
/// says hole and means data), the holes are read as well, and only zeros in
/// whole blocks are left out.
fn ranges(file: &File, stat: &Stat) -> io::Result<Vec<Range<u64>>> {
    let said = transfer::data_ranges(file, stat.size)?;
    let block = u64::from(stat.block.max(4096));
    let data: u64 = said
        .iter()
        .map(|r| (r.end - r.start).next_multiple_of(block))
        .sum();
    let is_whole = said == [0..stat.size];
    // Extent trees and attribute blocks count as allocated too.
    if is_whole || stat.allocated <= data + data / 64 + (64 << 10) {
        return Ok(said);
    }
    let mut believed: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    for range in said
        .into_iter()
        .chain(std::iter::once(stat.size..stat.size))
    {
        not_zero(file, at..range.start, &mut believed)?;
        push(&mut believed, range.clone());
        at = range.end;
    }
    Ok(believed)
}

/// Adds the blocks of a supposed hole that are not zeros after all.
fn not_zero(file: &File, hole: Range<u64>, out: &mut Vec<Range<u64>>) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = hole.start;
    while at < hole.end {
        #[allow(clippy::cast_possible_truncation)]
        let want = (hole.end - at).min(buffer.len() as u64) as usize;
        let n = read_at(file, &mut buffer[..want], at)?;
        if n == 0 {
            return Ok(());
        }
        for (i, block) in (0u64..).zip(buffer[..n].chunks(4096)) {
            if block.iter().any(|&b| b != 0) {
                let from = at + i * 4096;
                push(out, from..from + block.len() as u64);
            }
        }
        at += n as u64;
    }
    Ok(())
}

fn push(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ if range.is_empty() => {}
        _ => ranges.push(range),
    }
}

/// Whether the file's first `len` bytes have this digest.
fn begins_with(file: &File, len: u64, digest: u128) -> io::Result<bool> {
    let mut hasher = Xxh3::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut at = 0;
    while at < len {
        #[allow(clippy::cast_possible_truncation)]
        let want = (len - at).min(buffer.len() as u64) as usize;
        match read_at(file, &mut buffer[..want], at)? {
            0 => return Ok(false),
            n => {
                hasher.update(&buffer[..n]);
                at += n as u64;
            }
        }
    }
    Ok(hasher.digest128() == digest)
}
