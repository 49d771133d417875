//! The end of a large file: it gets its metadata and its name, or goes.

use std::fs::File;
use std::io;

use super::{Large, Over, Verdict, is_sparse};
use crate::dedup::Table;
use crate::dedup::join::{self, Asked, Bytes, Under, Wanted};
use crate::error::{During, Failure, Op};
use crate::report::Outcome;
use crate::sys::metadata::Stat;
use crate::verify::digest::Digest;
use crate::verify::file as check;
use crate::work::checkpoint;
use crate::work::run::Run;
use crate::work::spot::Spot;
use crate::work::write::{after_writing, has_arrived, settle};

/// Ends a file as its reader judged it, unless writing it failed.
pub(super) fn end(
    run: &Run<'_>,
    large: &Large,
    (verdict, failure): (Option<Verdict>, Option<Failure>),
    digest: Option<Digest>,
) -> Over {
    let spot = large.spot(run);
    let discard = || large.part.discard(&spot);
    let is_complete = matches!(verdict, Some(Verdict::Whole | Verdict::Prefix(_)));
    let closed = close(large, is_complete).during_at(Op::Write, || spot.path());
    let written = match (verdict, failure.or(closed.err())) {
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
        (Some(Verdict::NotReached) | None, None) => match keep_or_discard(&spot, large) {
            Ok(()) => {
                run.not_reached(&large.dir, &large.name);
                return Over::Counted;
            }
            Err(failure) => Err(failure),
        },
    };
    if large.from > 0 && matches!(written, Ok((Outcome::Copied, _))) {
        checkpoint::count(run, large.from);
    }
    settle(run, &large.dir, &large.name, &large.stat, written, None);
    Over::Counted
}

/// Ends its checkpoints, which go before it gets its mode.
fn close(large: &Large, is_complete: bool) -> io::Result<()> {
    let Some(checkpoints) = &large.checkpoints else {
        return Ok(());
    };
    checkpoints.close()?;
    if is_complete {
        checkpoints.forget(&large.part)?;
    }
    Ok(())
}

/// A part that the next run can go on with stays after a signal; where there is
/// no room, none does.
fn keep_or_discard(spot: &Spot<'_>, large: &Large) -> Result<(), Failure> {
    let is_kept = spot.run.is_interrupted() && !spot.run.is_full();
    match &large.checkpoints {
        Some(checkpoints) if is_kept && checkpoints.is_worth_keeping() => Ok(()),
        _ => large.part.discard(spot),
    }
}

fn complete(
    spot: &Spot<'_>,
    large: &Large,
    digest: Option<Digest>,
) -> Result<(Outcome, Vec<Failure>), Failure> {
    // The digest of a file with holes counts them, and that of one that came by
    // extent its pieces: they find no twins. `rest` looks for those at the end.
    let is_dense = !is_sparse(&large.ranges, large.stat.size);
    let plain = digest.as_ref().and_then(Digest::plain).filter(|_| is_dense);
    if let Some(digest) = plain {
        spot.run.learn_source(&spot.dir, &large.stat, digest);
    }
    let (Some(table), Some(digest)) = (spot.run.twins(), plain) else {
        let completed = publish(spot, large, digest, false);
        if let (Some(table), true) = (spot.run.twins(), has_arrived(&completed)) {
            let there = Stat::of(&large.part.file).during_at(Op::Stat, || spot.path())?;
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
                .and_then(|is_shared| publish(spot, large, Some(Digest::Plain(digest)), is_shared));
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
    shared
        .during_at(Op::Write, || spot.path())
        .or_else(|failure| {
            large.part.discard(spot)?;
            Err(failure)
        })
}

fn publish(
    spot: &Spot<'_>,
    large: &Large,
    digest: Option<Digest>,
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
