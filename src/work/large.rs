//! Files above [`LARGE_BYTES`](crate::plan::LARGE_BYTES): pieces that any
//! writer may write, a digest over them in order, and an end.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex};

use xxhash_rust::xxh3::Xxh3;

use super::budget::Budget;
use super::delta::{self, Delta};
use super::part::{Part, Spot};
use super::run::{Run, lock};
use super::write::{after_writing, has_arrived, settle};
use crate::dedup::Table;
use crate::dedup::join::{self, Asked, Bytes, Under, Wanted};
use crate::error::{During, Failure, Op};
use crate::plan::Dir;
use crate::report::Outcome;
use crate::sys::metadata::Stat;
use crate::sys::transfer;
use crate::sys::xattrs::Xattrs;
use crate::verify::digest::hash_gap;
use crate::verify::file as check;

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

impl Large {
    /// Makes the file at the destination.
    pub(crate) fn begin(
        run: &Run<'_>,
        dir: &Arc<Dir>,
        name: &[u8],
        stat: Stat,
        xattrs: Xattrs,
        ranges: Vec<Range<u64>>,
    ) -> Result<Large, Failure> {
        let fd = run.dest.dir_for(dir, name)?;
        let (part, delta) = {
            let spot = Spot {
                run,
                dir: dir.clone(),
                fd: &fd,
                name: dir.dest_name(name),
            };
            let (part, delta) = delta::begin(&spot, &stat, &ranges)?;
            // With holes the size comes first: XFS reserves room behind what it
            // takes for the end of a growing file, and the holes would get it.
            let prepare = || {
                if is_sparse(&ranges, stat.size) {
                    part.file.set_len(stat.size)?;
                }
                let mut ranges = ranges.iter();
                ranges.try_for_each(|range| transfer::reserve(&part.file, range).map(drop))
            };
            let is_whole = delta.as_ref().is_none_or(Delta::is_whole);
            let prepared = if is_whole { prepare() } else { Ok(()) };
            if let Err(failure) = prepared.during(Op::Write, &spot.path()) {
                part.discard(&spot)?;
                return Err(failure);
            }
            (part, delta)
        };
        let hasher = run.needs_digests().then(|| Box::new(Xxh3::new()));
        let state = State {
            hasher,
            ..State::default()
        };
        Ok(Large {
            dir: dir.clone(),
            name: name.into(),
            stat,
            xattrs,
            ranges,
            fd,
            part,
            delta,
            state: Mutex::new(state),
            ended: Condvar::new(),
        })
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

/// Writes a piece; whoever does the last one finishes the file.
pub(crate) fn write_chunk(run: &Run<'_>, budget: &Budget, chunk: Chunk) {
    let Chunk {
        large,
        after,
        offset,
        bytes,
        verdict,
    } = chunk;
    let written = match &large.delta {
        _ if bytes.is_empty() || large.has_failed() => Ok(0),
        Some(delta) => delta.write(&large.part.file, &bytes, offset),
        None => {
            let written = large.part.file.write_all_at(&bytes, offset);
            written.map(|()| bytes.len() as u64)
        }
    };
    let written = written.map(|written| {
        run.counters.written_bytes.fetch_add(written, Relaxed);
    });
    let mut state = lock(&large.state);
    match written.during(Op::Write, &large.spot(run).path()) {
        Ok(()) if bytes.is_empty() => {}
        Ok(()) => hash(&mut state, budget, after, (offset, bytes)),
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
    let digest = state.hasher.take().map(|mut hasher| {
        hash_gap(&mut hasher, state.hashed_to, large.stat.size);
        hasher.digest128()
    });
    for (_, (_, bytes)) in std::mem::take(&mut state.early) {
        budget.give(bytes);
    }
    drop(state);
    let over = finish(run, &large, ended, digest);
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

/// Ends a file as its reader judged it, unless writing it failed.
fn finish(
    run: &Run<'_>,
    large: &Large,
    ended: (Option<Verdict>, Option<Failure>),
    digest: Option<u128>,
) -> Over {
    let spot = large.spot(run);
    let discard = || large.part.discard(&spot);
    let written = match ended {
        (_, Some(failure)) | (Some(Verdict::Failed(failure)), None) => discard().and(Err(failure)),
        (Some(Verdict::Whole), None) => complete(&spot, large, digest),
        (Some(Verdict::Prefix(flaw)), None) => {
            complete(&spot, large, digest).map(|(outcome, mut failures)| {
                failures.push(flaw);
                (outcome, failures)
            })
        }
        (Some(Verdict::Again(_)), None) => match discard() {
            Ok(()) => return Over::Again,
            Err(failure) => Err(failure),
        },
        (Some(Verdict::NotReached) | None, None) => match discard() {
            Ok(()) => {
                run.not_reached(&large.dir, &large.name);
                return Over::Counted;
            }
            Err(failure) => Err(failure),
        },
    };
    settle(run, &large.dir, &large.name, &large.stat, written, None);
    Over::Counted
}

fn is_sparse(ranges: &[Range<u64>], size: u64) -> bool {
    ranges.iter().map(|r| r.end - r.start).sum::<u64>() < size
}

fn complete(
    spot: &Spot<'_>,
    large: &Large,
    digest: Option<u128>,
) -> Result<(Outcome, Vec<Failure>), Failure> {
    // The digest of a file with holes counts them: it finds no twins. `rest`
    // looks for those at the end.
    let plain = digest.filter(|_| !is_sparse(&large.ranges, large.stat.size));
    if let Some(digest) = plain {
        spot.run.learn_source(&spot.dir, &large.stat, digest);
    }
    let (Some(table), Some(digest)) = (spot.run.twins(), plain) else {
        let completed = publish(spot, large, digest, false);
        if let (Some(table), true) = (spot.run.twins(), has_arrived(&completed)) {
            let there = Stat::of(&large.part.file).during(Op::Stat, &spot.path())?;
            table.keep(spot, &large.stat, &large.xattrs, there.ino, None);
        }
        return completed;
    };
    let wanted = Wanted {
        bytes: Bytes::File(&large.part.file, large.stat.size),
        digest,
        stat: &large.stat,
        xattrs: &large.xattrs,
        saves: true,
    };
    match join::ask(spot, table, &wanted, Under::Part(&large.part)) {
        Ok(Asked::Joined(outcome, failures)) => Ok((outcome, failures)),
        Ok(Asked::Write(ticket, lender)) => {
            let completed = share(spot, table, large, lender.as_ref())
                .and_then(|is_shared| publish(spot, large, Some(digest), is_shared));
            ticket.settle(table, spot, has_arrived(&completed));
            completed
        }
        Err(failure) => {
            large.part.discard(spot)?;
            Err(failure)
        }
    }
}

/// Exchanges what was written for the extents of a file with the same bytes.
fn share(
    spot: &Spot<'_>,
    table: &Table,
    large: &Large,
    lender: Option<&File>,
) -> Result<bool, Failure> {
    let Some(lender) = lender else {
        return Ok(false);
    };
    let part = &large.part.file;
    let shared = Stat::of(part).and_then(|stat| {
        let shared = join::share(table, lender, part)?;
        if shared {
            join::count_shared(spot, 0, stat.allocated);
        }
        Ok(shared)
    });
    shared.during(Op::Write, &spot.path()).or_else(|failure| {
        large.part.discard(spot)?;
        Err(failure)
    })
}

fn publish(
    spot: &Spot<'_>,
    large: &Large,
    digest: Option<u128>,
    is_shared: bool,
) -> Result<(Outcome, Vec<Failure>), Failure> {
    let size = large.stat.size;
    let is_sparse = is_sparse(&large.ranges, size) && !is_shared;
    let failures = large.part.finish(spot, &large.stat, &large.xattrs)?;
    let expect = check::Expect {
        stat: &large.stat,
        xattrs: &large.xattrs,
        size,
        digest,
        ranges: is_sparse.then_some(&large.ranges),
        file: Some(&large.part.file),
    };
    if let Some(delta) = &large.delta {
        delta.count(spot);
    }
    after_writing(spot, &expect, failures, &mut Vec::new())
}
