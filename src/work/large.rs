//! Files above [`LARGE_BYTES`](crate::plan::LARGE_BYTES): pieces that any
//! writer may write, a digest over them in order, and an end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

use xxhash_rust::xxh3::Xxh3;

use super::budget::Budget;
use super::checkpoint::{self, Adopted, Checkpoints};
use super::delta::{self, Delta};
use super::part::Part;
use super::run::{Run, lock};
use super::spot::Spot;
use crate::error::{During, Failure, Op};
use crate::plan::Dir;
use crate::sys::metadata::Stat;
use crate::sys::transfer;
use crate::sys::xattrs::Xattrs;
use crate::verify::digest::{Digest, Piece, hash_gap};

mod end;

/// A large file on its way.
#[derive(Debug)]
pub(crate) struct Large {
    pub(crate) dir: Arc<Dir>,
    pub(crate) name: Box<[u8]>,
    pub(crate) stat: Stat,
    pub(crate) xattrs: Xattrs,
    /// The ranges that are data; the rest are holes.
    pub(crate) ranges: Vec<Range<u64>>,
    fd: OwnedFd,
    part: Part,
    /// An older state of it, of which not all has to be written again.
    delta: Option<Delta>,
    /// Of a file that a later run could go on with.
    checkpoints: Option<Checkpoints>,
    /// What an earlier run left is before this; to be read is the rest.
    pub(crate) from: u64,
    /// Its pieces come in the order of the disk, each with a digest of its own.
    by_extent: bool,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// None where nothing will be compared with it.
    hasher: Option<Box<Xxh3>>,
    hashed_to: u64,
    /// End of the last piece that was handed out.
    handed_to: u64,
    /// Written, but some piece before is not yet hashed: by the end of the
    /// piece before, its own offset and bytes. What lies between is a hole.
    early: BTreeMap<u64, (u64, Vec<u8>)>,
    /// Handed out and not yet done.
    under_way: usize,
    failure: Option<Failure>,
    verdict: Option<Verdict>,
    is_over: Option<Over>,
    /// Of a file that comes by extent: its pieces, by offset.
    pieces: BTreeMap<u64, Piece>,
}

/// What became of a file at its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    /// It is counted.
    Counted,
    /// It is thrown away, to be read again.
    Again,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("hashed_to", &self.hashed_to)
            .finish_non_exhaustive()
    }
}

/// How the reading ended.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Everything was read and the file held still.
    Whole,
    /// It grew: what was read is a state that it had, but not its last.
    Prefix(Failure),
    /// It could not be read.
    Failed(Failure),
    /// The job was stopped.
    NotReached,
    /// It changed, to this; what was read is thrown away and read again.
    Again(Stat),
}

/// A piece of a large file; the last is empty and brings the verdict.
pub(crate) struct Chunk {
    large: Arc<Large>,
    /// Where the piece before ends.
    after: u64,
    offset: u64,
    bytes: Vec<u8>,
    verdict: Option<Verdict>,
}

/// What is to be written.
pub(crate) struct Source {
    pub(crate) stat: Stat,
    pub(crate) xattrs: Xattrs,
    /// The ranges that are data; the rest are holes.
    pub(crate) ranges: Vec<Range<u64>>,
}

/// How it will be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mode {
    /// What an earlier run left may be gone on with.
    pub(crate) may_resume: bool,
    /// The pieces come in the order of the disk; a later run cannot go on with
    /// what is there of them.
    pub(crate) by_extent: bool,
    /// The bytes come as pieces, not by the kernel.
    pub(crate) is_seen: bool,
}

/// What a file is begun with.
struct Begun {
    part: Part,
    delta: Option<Delta>,
    adopted: Option<(u64, Box<Xxh3>)>,
    checkpoints: Option<Checkpoints>,
}

impl Large {
    /// Makes the file at the destination.
    pub(crate) fn begin(
        run: &Run<'_>,
        dir: &Arc<Dir>,
        name: &[u8],
        source: Source,
        mode: Mode,
    ) -> Result<Large, Failure> {
        let fd = run.dest.dir_for(dir, name)?;
        let spot = Spot {
            run,
            dir: dir.clone(),
            fd: &fd,
            name: dir.dest_name(name),
        };
        let begun = begin(&spot, &source, mode)?;
        let is_recorded = begun.checkpoints.is_some() && mode.is_seen;
        let is_hashed = (run.needs_digests() || is_recorded) && !mode.by_extent;
        let (from, hasher) = match begun.adopted {
            Some((from, hasher)) => (from, Some(hasher)),
            None => (0, is_hashed.then(|| Box::new(Xxh3::new()))),
        };
        let state = State {
            hasher: hasher.filter(|_| is_hashed),
            hashed_to: from,
            handed_to: from,
            ..State::default()
        };
        Ok(Large {
            dir: dir.clone(),
            name: name.into(),
            stat: source.stat,
            xattrs: source.xattrs,
            ranges: source.ranges,
            fd,
            part: begun.part,
            delta: begun.delta,
            checkpoints: begun.checkpoints,
            from,
            by_extent: mode.by_extent,
            state: Mutex::new(state),
            ended: Condvar::new(),
        })
    }

    /// Notes that everything before an offset is written, where the bytes come
    /// by the kernel.
    pub(crate) fn reached(&self, run: &Run<'_>, offset: u64) {
        if let Some(checkpoints) = &self.checkpoints {
            checkpoints.reached(run, offset, None);
        }
    }

    /// Writes a piece; the bytes that had to be written.
    fn put(&self, bytes: &[u8], offset: u64) -> io::Result<u64> {
        if let Some(delta) = &self.delta {
            return delta.write(&self.part.file, bytes, offset);
        }
        self.part.file.write_all_at(bytes, offset)?;
        Ok(bytes.len() as u64)
    }

    /// The file being written, for copies inside the kernel.
    pub(crate) fn file(&self) -> &std::fs::File {
        &self.part.file
    }

    /// Whether its bytes have to be seen, because an older state is compared.
    pub(crate) fn is_compared(&self) -> bool {
        self.delta.is_some()
    }

    /// Hands out a piece.
    pub(crate) fn chunk(self: &Arc<Self>, offset: u64, bytes: Vec<u8>) -> Chunk {
        let mut state = lock(&self.state);
        state.under_way += 1;
        let after = state.handed_to;
        state.handed_to = offset + bytes.len() as u64;
        drop(state);
        Chunk {
            large: self.clone(),
            after,
            offset,
            bytes,
            verdict: None,
        }
    }

    /// Hands out the end.
    pub(crate) fn end(self: &Arc<Self>, verdict: Verdict) -> Chunk {
        lock(&self.state).under_way += 1;
        Chunk {
            large: self.clone(),
            after: 0,
            offset: 0,
            bytes: Vec::new(),
            verdict: Some(verdict),
        }
    }

    /// Waits until what was read is thrown away; `false` where that ended in a
    /// failure, which is counted.
    pub(crate) fn wait(&self) -> bool {
        let mut state = lock(&self.state);
        while state.is_over.is_none() {
            state = self.ended.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        state.is_over == Some(Over::Again)
    }

    /// Its path at the destination.
    pub(crate) fn path(&self, run: &Run<'_>) -> PathBuf {
        self.spot(run).path()
    }

    /// Whether writing it has failed already: reading on would be for nothing.
    pub(crate) fn has_failed(&self) -> bool {
        lock(&self.state).failure.is_some()
    }

    fn spot<'a>(&'a self, run: &'a Run<'a>) -> Spot<'a> {
        Spot {
            run,
            dir: self.dir.clone(),
            fd: &self.fd,
            name: self.dir.dest_name(&self.name),
        }
    }
}

/// Begins a file: with what an earlier run left of it, with an older state of
/// it, or empty.
fn begin(spot: &Spot<'_>, source: &Source, mode: Mode) -> Result<Begun, Failure> {
    let Source { stat, ranges, .. } = source;
    let adopted = match mode.may_resume {
        true => checkpoint::adopt(spot, stat, ranges)?,
        false => None,
    };
    let (part, delta, adopted) = match adopted {
        Some(Adopted {
            part,
            offset,
            hasher,
        }) => (part, None, Some((offset, hasher))),
        None => {
            let (part, delta) = delta::begin(spot, stat, ranges)?;
            checkpoint::hold(&part);
            (part, delta, None)
        }
    };
    let is_whole = delta.as_ref().is_none_or(Delta::is_whole);
    let prepared = match is_whole {
        true => make_room(&part.file, ranges, stat.size),
        false => Ok(()),
    };
    if let Err(failure) = prepared.during_at(Op::Write, || spot.path()) {
        part.discard(spot)?;
        return Err(failure);
    }
    let there = adopted.as_ref().map(|(at, hasher)| (*at, &**hasher));
    let checkpoints = match is_whole && !mode.by_extent {
        true => Checkpoints::start(spot, &part, stat, ranges, there),
        false => None,
    };
    Ok(Begun {
        part,
        delta,
        adopted,
        checkpoints,
    })
}

/// Writes a piece; whoever does the last one finishes the file.
pub(crate) fn write_chunk(run: &Run<'_>, budget: &Budget, chunk: Chunk) {
    let Chunk {
        large,
        after,
        offset,
        bytes,
        verdict,
    } = chunk;
    let written = if bytes.is_empty() || large.has_failed() {
        Ok(0)
    } else {
        large.put(&bytes, offset)
    };
    let written = written.map(|written| run.wrote(written));
    let is_piece = large.by_extent && run.needs_digests() && !bytes.is_empty();
    let piece = is_piece.then(|| Piece::of(offset, &bytes));
    let mut state = lock(&large.state);
    state.pieces.extend(piece.map(|piece| (offset, piece)));
    match written.during_at(Op::Write, || large.spot(run).path()) {
        Ok(()) if bytes.is_empty() => {}
        Ok(()) => {
            hash(&mut state, budget, after, (offset, bytes));
            if let (Some(checkpoints), Some(hasher)) = (&large.checkpoints, &state.hasher) {
                checkpoints.reached(run, state.hashed_to, Some(hasher));
            }
        }
        Err(failure) => {
            budget.give(bytes);
            state.failure.get_or_insert(failure);
        }
    }
    state.verdict = verdict.or(state.verdict.take());
    state.under_way -= 1;
    if state.under_way > 0 || state.verdict.is_none() {
        return;
    }
    let ended = (state.verdict.take(), state.failure.take());
    let pieces: Vec<Piece> = std::mem::take(&mut state.pieces).into_values().collect();
    let digest = match state.hasher.take() {
        Some(mut hasher) => {
            hash_gap(&mut hasher, state.hashed_to, large.stat.size);
            Some(Digest::Plain(hasher.digest128()))
        }
        None => (large.by_extent && run.needs_digests()).then(|| Digest::Pieces(pieces.into())),
    };
    for (_, (_, bytes)) in std::mem::take(&mut state.early) {
        budget.give(bytes);
    }
    drop(state);
    let over = end::end(run, &large, ended, digest);
    lock(&large.state).is_over = Some(over);
    large.ended.notify_all();
}

/// Takes a written piece into the digest when its turn comes.
fn hash(state: &mut State, budget: &Budget, after: u64, piece: (u64, Vec<u8>)) {
    let Some(hasher) = &mut state.hasher else {
        budget.give(piece.1);
        return;
    };
    state.early.insert(after, piece);
    while let Some((offset, bytes)) = state.early.remove(&state.hashed_to) {
        hash_gap(hasher, state.hashed_to, offset);
        hasher.update(&bytes);
        state.hashed_to = offset + bytes.len() as u64;
        budget.give(bytes);
    }
}

/// Gives a new file its room.
fn make_room(file: &File, ranges: &[Range<u64>], size: u64) -> io::Result<()> {
    // With holes the size comes first: XFS reserves room behind what it takes
    // for the end of a growing file, and the holes would get it.
    if is_sparse(ranges, size) {
        file.set_len(size)?;
    }
    ranges
        .iter()
        .try_for_each(|range| transfer::reserve(file, range).map(drop))
}

fn is_sparse(ranges: &[Range<u64>], size: u64) -> bool {
    ranges.iter().map(|r| r.end - r.start).sum::<u64>() < size
}
