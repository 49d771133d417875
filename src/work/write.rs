//! Writers: take what a reader filled and make files of it.
//!
//! Small files of a bundle are written directory by directory (making a name
//! takes the directory's lock), given their metadata, read back, and counted.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use xxhash_rust::xxh3::xxh3_128;

use super::budget::Budget;
use super::part::Part;
use super::run::{Copied, Run, lock};
use super::spot::Spot;
use super::{Work, keep, large};
use crate::dedup::Table;
use crate::dedup::join::{self, Asked, Bytes, Under, Wanted};
use crate::error::{During, Failure, Op};
use crate::job::Verify;
use crate::plan::bundle::{Bundle, Member};
use crate::plan::{Action, Dir, Kind, Listing};
use crate::report::Outcome;
use crate::sys::metadata::{Stat, Time, UNFINISHED};
use crate::sys::special;
use crate::verify::digest::Digest;
use crate::verify::file as check;

/// Does one piece of work.
pub(crate) fn work(run: &Run<'_>, listing: &Listing, budget: &Budget, work: Work) {
    match work {
        Work::Bundle(bundle) => write_bundle(run, listing, budget, bundle),
        Work::Chunk(chunk) => large::write_chunk(run, budget, chunk),
        Work::Entries(entries) => write_entries(run, listing, &entries),
    }
}

/// The directory that was written to last, kept open.
#[derive(Default)]
pub(crate) struct Near(Option<(*const Dir, OwnedFd)>);

impl Near {
    /// Opens a directory of the destination, unless it is the last one.
    pub(crate) fn open(
        &mut self,
        run: &Run<'_>,
        dir: &Arc<Dir>,
        name: &[u8],
    ) -> Result<&OwnedFd, Failure> {
        let key = Arc::as_ptr(dir);
        let fd = match self.0.take() {
            Some((last, fd)) if last == key => fd,
            _ => run.dest.dir_for(dir, name)?,
        };
        Ok(&self.0.insert((key, fd)).1)
    }
}

/// Writes every file of a bundle.
pub(crate) fn write_bundle(run: &Run<'_>, listing: &Listing, budget: &Budget, bundle: Bundle) {
    let Bundle { bytes, mut members } = bundle;
    members.sort_by_key(|m| listing.entries[m.entry as usize].dir);
    let mut near = Near::default();
    let mut scratch = Vec::new();
    for member in members {
        let entry = &listing.entries[member.entry as usize];
        let dir = listing.dir(entry);
        let name = listing.name(entry);
        run.mark(member.entry);
        if run.is_full() {
            run.not_reached(dir, name);
            continue;
        }
        let written = near.open(run, dir, name).and_then(|fd| {
            let spot = Spot {
                run,
                dir: dir.clone(),
                fd,
                name: dir.dest_name(name),
            };
            write_member(&spot, &member, &bytes[member.data.clone()], &mut scratch)
        });
        settle(run, dir, name, &member.stat, written, member.flaw);
    }
    budget.give(bytes);
}

/// Counts how a file ended.
pub(crate) fn settle(
    run: &Run<'_>,
    dir: &Arc<Dir>,
    name: &[u8],
    stat: &Stat,
    written: Result<(Outcome, Vec<Failure>), Failure>,
    flaw: Option<Failure>,
) {
    let (outcome, mut failures) =
        written.unwrap_or_else(|failure| (Outcome::Failed, vec![failure]));
    failures.extend(flaw);
    let arrived = outcome != Outcome::Failed;
    let is_new = outcome == Outcome::Copied;
    if run.finished(dir, name, outcome, failures) == Outcome::Copied {
        run.counters.copied_files.fetch_add(1, Relaxed);
    }
    if is_new {
        run.counters.copied_bytes.fetch_add(stat.size, Relaxed);
    }
    run.led(stat, dir, name, arrived);
}

fn write_member(
    spot: &Spot<'_>,
    member: &Member,
    data: &[u8],
    scratch: &mut Vec<u8>,
) -> Result<(Outcome, Vec<Failure>), Failure> {
    let run = spot.run;
    let stat = &member.stat;
    if run.options.checksum && is_there_already(spot, stat, data, scratch) {
        // Its metadata may still call for an inode of its own.
        if let Some(kept) = keep::keep_file(spot, stat, &member.xattrs)? {
            return Ok(kept);
        }
    }
    if run.cache.is_some() && member.flaw.is_none() && data.len() as u64 == stat.size {
        run.learn_source(&spot.dir, stat, xxh3_128(data));
    }
    match run.twins() {
        // A flawed copy is nobody's twin, and emptiness is not worth a link.
        Some(table) if member.flaw.is_none() && !data.is_empty() => {
            write_unless_twin(spot, table, member, data, scratch)
        }
        _ => write_new(spot, member, data, None, scratch),
    }
}

/// With `--dedup`: a content that is at the destination already is not written.
fn write_unless_twin(
    spot: &Spot<'_>,
    table: &Table,
    member: &Member,
    data: &[u8],
    scratch: &mut Vec<u8>,
) -> Result<(Outcome, Vec<Failure>), Failure> {
    let wanted = Wanted {
        bytes: Bytes::Memory(data),
        digest: xxh3_128(data),
        stat: &member.stat,
        xattrs: &member.xattrs,
        saves: true,
    };
    match join::ask(spot, table, &wanted, Under::Other)? {
        Asked::Joined(outcome, failures) => Ok((outcome, failures)),
        Asked::Write(ticket, lender) => {
            let written = write_new(spot, member, data, lender.as_ref(), scratch);
            ticket.settle(table, spot, has_arrived(&written));
            written
        }
    }
}

/// Whether a file is as it should be, so that others can be joined with it.
pub(crate) fn has_arrived(written: &Result<(Outcome, Vec<Failure>), Failure>) -> bool {
    matches!(written, Ok((_, failures)) if failures.is_empty())
}

/// Writes a file. `lender`, if any, has the same bytes and lends its extents.
fn write_new(
    spot: &Spot<'_>,
    member: &Member,
    data: &[u8],
    lender: Option<&File>,
    scratch: &mut Vec<u8>,
) -> Result<(Outcome, Vec<Failure>), Failure> {
    let run = spot.run;
    let stat = &member.stat;
    let part = spot.create(stat)?;
    let filled = fill(spot, &part, member, data, lender).during_at(Op::Write, || spot.path());
    let is_shared = match filled {
        Ok(is_shared) => is_shared,
        Err(failure) => {
            part.discard(spot)?;
            return Err(failure);
        }
    };
    // A copy that is known to be wrong keeps the mtime of now, and a mark, so
    // that no later run takes it for finished.
    let stat_to_set = if member.flaw.is_some() {
        &Stat {
            mtime: Time::now(),
            mode: stat.mode | UNFINISHED,
            ..*stat
        }
    } else {
        stat
    };
    let failures = part.finish(spot, stat_to_set, &member.xattrs)?;
    let digest = if run.needs_digests() {
        xxh3_128(data)
    } else {
        0
    };
    let expect = check::Expect {
        stat: stat_to_set,
        xattrs: &member.xattrs,
        size: data.len() as u64,
        digest: Some(Digest::Plain(digest)),
        // A lender's holes are its own.
        ranges: member.ranges.as_deref().filter(|_| !is_shared),
        file: Some(&part.file),
    };
    after_writing(spot, &expect, failures, scratch)
}

/// Puts the content into a part; whether by sharing the lender's extents.
fn fill(
    spot: &Spot<'_>,
    part: &Part,
    member: &Member,
    data: &[u8],
    lender: Option<&File>,
) -> io::Result<bool> {
    if let (Some(lender), Some(table)) = (lender, spot.run.twins())
        && join::share(table, lender, &part.file)?
    {
        let size = data.len() as u64;
        join::count_shared(spot, size, Stat::of(lender)?.allocated);
        return Ok(true);
    }
    let all = [0..data.len() as u64];
    let ranges = member.ranges.as_deref().unwrap_or(&all);
    write_ranges(part, data, ranges)?;
    let written: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    spot.run.wrote(written);
    Ok(false)
}

fn is_there_already(spot: &Spot<'_>, stat: &Stat, data: &[u8], scratch: &mut Vec<u8>) -> bool {
    // Whatever goes wrong in this look, the file is simply copied.
    let Ok(there) = Stat::at(spot.fd, spot.name) else {
        return false;
    };
    if there.kind() != Kind::File || there.is_same_inode(stat) || stat.size != there.size {
        return false;
    }
    let digest = xxh3_128(data);
    if let Some(known) = spot.known(&there) {
        spot.run.count_hit();
        return known == digest;
    }
    let same = check::digest_at(spot, scratch).is_ok_and(|found| found == digest);
    if same && Stat::at(spot.fd, spot.name).is_ok_and(|now| there.held_still(&now)) {
        spot.run.learn_source(&spot.dir, stat, digest);
        spot.learn(&there, digest);
    }
    same
}

/// Reads back what was just written, or leaves that for the end.
pub(crate) fn after_writing(
    spot: &Spot<'_>,
    expect: &check::Expect<'_>,
    mut failures: Vec<Failure>,
    scratch: &mut Vec<u8>,
) -> Result<(Outcome, Vec<Failure>), Failure> {
    let run = spot.run;
    // What is already known to be wrong would only be said twice.
    if failures.is_empty() {
        match run.options.verify {
            Verify::None => spot.take_new(),
            Verify::Read => {
                check::read_back(spot, expect, scratch, &mut failures);
                if failures.iter().any(|f| f.op == Op::Verify) {
                    spot.disown(expect.stat, &mut failures);
                }
            }
            Verify::Durable => {
                check::look(spot, expect, &mut failures);
                lock(&run.copied).push(Copied {
                    dir: spot.dir.clone(),
                    name: spot.name.into(),
                    size: expect.size,
                    digest: expect.digest.clone(),
                    ranges: expect.ranges.map(Into::into),
                });
            }
        }
    }
    Ok((Outcome::Copied, failures))
}

fn write_ranges(part: &Part, data: &[u8], ranges: &[Range<u64>]) -> io::Result<()> {
    // With holes the size comes first: XFS reserves room behind what it takes
    // for the end of a growing file, and the holes would get it.
    if ranges != [0..data.len() as u64] {
        part.file.set_len(data.len() as u64)?;
    }
    for range in ranges {
        let (from, to) = (index(range.start), index(range.end));
        part.file.write_all_at(&data[from..to], range.start)?;
    }
    Ok(())
}

// Offsets in a file that is in memory.
#[allow(clippy::cast_possible_truncation)]
fn index(offset: u64) -> usize {
    offset as usize
}

/// Makes what has no content to read: links, FIFOs, sockets, devices; brings
/// what is there already up to date; shares extents.
fn write_entries(run: &Run<'_>, listing: &Listing, entries: &[u32]) {
    let mut near = Near::default();
    for &index in entries {
        if run.is_stopped() {
            return;
        }
        let entry = &listing.entries[index as usize];
        match (entry.action, entry.kind) {
            (Action::Keep, _) => keep::keep(run, listing, index, &mut near),
            (Action::Refer, _) => super::refer::refer(run, listing, index, &mut near),
            (Action::Copy, Kind::File) => super::read::copy_one(run, listing, index),
            (Action::Copy, _) => make_special(run, listing, index, &mut near),
            (Action::Same, _) => settled(run, listing, index, Outcome::Unchanged),
            (Action::Skip, _) => settled(run, listing, index, Outcome::Skipped),
            (Action::Link | Action::Fail, _) => {}
        }
    }
}

/// Counts an entry for which nothing is left to be done.
pub(crate) fn settled(run: &Run<'_>, listing: &Listing, index: u32, outcome: Outcome) {
    let entry = &listing.entries[index as usize];
    run.mark(index);
    run.counters.count(outcome, || listing.path(entry));
}

/// Makes one entry that is neither file nor directory.
pub(crate) fn make_special(run: &Run<'_>, listing: &Listing, index: u32, near: &mut Near) {
    let entry = &listing.entries[index as usize];
    let (dir, name) = (listing.dir(entry), listing.name(entry));
    run.mark(index);
    let mut stat = Stat::default();
    let made = keep::at_source(dir, name).and_then(|found| {
        stat = found.stat;
        if matches!(stat.kind(), Kind::File | Kind::Dir) {
            let why = "changed its kind after it was listed";
            return Err(Failure::because(Op::Stat, dir.path_of(name), why));
        }
        let fd = near.open(run, dir, name)?;
        let spot = Spot {
            run,
            dir: dir.clone(),
            fd,
            name: dir.dest_name(name),
        };
        let mut failures = spot.make(&stat, &found.xattrs, |name| match &found.text {
            Some(text) => special::make_link(text, fd, name),
            None => special::make_node(&stat, fd, name),
        })?;
        if failures.is_empty() && run.is_verified() {
            check::look(
                &spot,
                &check::Expect::metadata(&stat, &found.xattrs),
                &mut failures,
            );
            if let Some(text) = &found.text {
                check::link_text(&spot, text, &mut failures);
            }
        }
        Ok((Outcome::Copied, failures))
    });
    let (outcome, failures) = made.unwrap_or_else(|failure| (Outcome::Failed, vec![failure]));
    let arrived = outcome != Outcome::Failed;
    run.finished(dir, name, outcome, failures);
    run.led(&stat, dir, name, arrived);
}
