//! Going on inside a large file that an earlier run did not finish.
//!
//! In: how far a part is written without a gap. Out: a record of that in an
//! attribute of the part, written only after the bytes are on the medium, by a
//! thread of its own (`saver`) so that no writer waits. A later run that finds
//! a part with a record of the very same source reads its beginning back, and
//! goes on from there if the digest is the record's: the record is not
//! believed, it only says what to look for.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::part::Part;
use super::run::{Run, lock};
use super::spot::Spot;
use crate::dest::Dest;
use crate::error::{During, Failure, Op};
use crate::sys::metadata::Stat;
use crate::sys::xattrs::Place;
use crate::verify::digest::hash_prefix;

pub(crate) mod saver;

use saver::Saved;

/// The attribute that holds the record.
const ATTRIBUTE: &str = "user.haul.part";

/// Bytes between two records, at least.
const INTERVAL_BYTES: u64 = 128 << 20;

/// Time between two records, at least: what is copied faster than this is
/// copied again as fast, and a flush would only slow it down.
const INTERVAL: Duration = Duration::from_secs(1);

/// Files of fewer intervals are not worth it: they are written again at once.
const LEAST_INTERVALS: u64 = 2;

/// A killed run's last flush may take a minute on a slow disk.
const LOCK_ATTEMPTS: u32 = 600;
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// What is known of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    /// Of the source: inode, size, mtime and ctime. Device numbers change with
    /// the next boot.
    source: String,
    offset: u64,
    /// Of the bytes before the offset, see [`hash_prefix`].
    digest: u128,
}

impl Record {
    fn text(&self) -> String {
        let body = format!("1 {} {} {:032x}", self.source, self.offset, self.digest);
        format!("{body} {:016x}", xxh3_64(body.as_bytes()))
    }

    /// `None` for anything but what [`Record::text`] wrote.
    fn parse(text: &[u8]) -> Option<Record> {
        let (body, sum) = std::str::from_utf8(text).ok()?.rsplit_once(' ')?;
        if u64::from_str_radix(sum, 16).ok()? != xxh3_64(body.as_bytes()) {
            return None;
        }
        let (rest, digest) = body.strip_prefix("1 ")?.rsplit_once(' ')?;
        let (source, offset) = rest.rsplit_once(' ')?;
        Some(Record {
            source: source.to_owned(),
            offset: offset.parse().ok()?,
            digest: u128::from_str_radix(digest, 16).ok()?,
        })
    }

    fn write(&self, file: &File) -> io::Result<()> {
        Place::Open(file).set(OsStr::new(ATTRIBUTE), self.text().as_bytes())
    }

    /// What cannot be read is no record.
    fn read(file: &File) -> Option<Record> {
        let text = Place::Open(file).get(OsStr::new(ATTRIBUTE)).ok()??;
        Record::parse(&text)
    }
}

fn identity(stat: &Stat) -> String {
    let (m, c) = (stat.mtime, stat.ctime);
    format!(
        "{} {} {}.{} {}.{}",
        stat.ino, stat.size, m.s, m.ns, c.s, c.ns
    )
}

/// A name that a later run finds, short whatever the file's name.
fn part_name(name: &[u8]) -> String {
    format!(".haul-part-{:016x}", xxh3_64(name))
}

/// Bytes between two records, as asked or by default.
pub(crate) fn interval(asked: Option<u64>) -> u64 {
    asked.unwrap_or(INTERVAL_BYTES).max(1)
}

/// Whether a file is large enough to be gone on with.
fn is_wanted(dest: &Dest, stat: &Stat) -> bool {
    stat.size >= dest.checkpoint_bytes.saturating_mul(LEAST_INTERVALS)
}

/// What killed runs have left of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parts {
    /// The room that it takes: under the file's name, and beside it.
    pub(crate) bytes: u64,
    /// Whether there is one beside.
    pub(crate) is_beside: bool,
}

impl Parts {
    /// Looks for them. `there` is what has the file's name.
    pub(crate) fn of(
        dest: &Dest,
        parent: &impl AsFd,
        name: &[u8],
        source: &Stat,
        there: Option<&Stat>,
    ) -> Parts {
        let is_ours = |stat: &&Stat| stat.is_part() && stat.links == 1 && dest.is_own(stat);
        let named = there.filter(is_ours).map_or(0, |stat| stat.allocated);
        let look = || Stat::at(parent, part_name(name).as_bytes()).ok();
        let beside = is_wanted(dest, source).then(look).flatten();
        let beside = beside.as_ref().filter(is_ours);
        Parts {
            bytes: named + beside.map_or(0, |stat| stat.allocated),
            is_beside: beside.is_some(),
        }
    }
}

/// Removes the part beside a file that needs no copy any more.
pub(crate) fn remove_beside(spot: &Spot<'_>, stat: &Stat) -> Result<(), Failure> {
    if !is_wanted(spot.run.dest, stat) || spot.meets() {
        return Ok(());
    }
    let name = part_name(spot.name);
    match found(spot, name.as_bytes()) {
        Some((file, _)) => Part::temporary(file, name).discard(spot),
        None => Ok(()),
    }
}

/// A part whose beginning is there already.
pub(crate) struct Adopted {
    pub(crate) part: Part,
    /// Where it ends.
    pub(crate) offset: u64,
    /// Over the bytes before the offset.
    pub(crate) hasher: Box<Xxh3>,
}

/// Looks for a part that an earlier run left of this very source. `ranges` are
/// the source's data.
pub(crate) fn adopt(
    spot: &Spot<'_>,
    stat: &Stat,
    ranges: &[Range<u64>],
) -> Result<Option<Adopted>, Failure> {
    // Where entries meet, it may be what this very run is writing.
    if !is_wanted(spot.run.dest, stat) || spot.meets() {
        return Ok(None);
    }
    // Under its own name it must be one that may be replaced, too. What is
    // refused is told by who makes the file.
    if let Ok(Some(_)) = spot.replaceable(stat)
        && let Some((file, Some(record))) = found(spot, spot.name)
        && let Some((offset, hasher)) = verified(spot.run, &file, &record, stat, ranges)
    {
        return cut(spot, Part::named(file), offset, hasher).map(Some);
    }
    let name = part_name(spot.name);
    let Some((file, record)) = found(spot, name.as_bytes()) else {
        return Ok(None);
    };
    let good = record.and_then(|record| verified(spot.run, &file, &record, stat, ranges));
    let part = Part::temporary(file, name);
    match good {
        Some((offset, hasher)) => {
            if let Some(there) = spot.replaceable(stat)? {
                spot.forget(&there);
            }
            cut(spot, part, offset, hasher).map(Some)
        }
        None if spot.run.is_stopped() => Ok(None),
        // Of another source, damaged, or without a record: stale, and ours.
        None => part.discard(spot).map(|()| None),
    }
}

/// Takes off what is behind the verified beginning.
fn cut(spot: &Spot<'_>, part: Part, offset: u64, hasher: Box<Xxh3>) -> Result<Adopted, Failure> {
    part.file
        .set_len(offset)
        .during_at(Op::Write, || spot.path())?;
    Ok(Adopted {
        part,
        offset,
        hasher,
    })
}

/// A part of ours under a name, locked so that no other run takes it as well,
/// and its record if it has one.
fn found(spot: &Spot<'_>, name: &[u8]) -> Option<(File, Option<Record>)> {
    let is_ours = |stat: &Stat| stat.is_part() && spot.run.dest.is_own(stat) && stat.links == 1;
    // Whatever goes wrong in this look, the file is begun anew.
    let there = Stat::at(spot.fd, name).ok().filter(is_ours)?;
    let file = spot.open_to_write(name).ok()?;
    is_free(spot.run, &file).then_some(())?;
    // Whoever held it may have finished it before: look again.
    let now = Stat::of(&file).ok().filter(is_ours)?;
    let named = Stat::at(spot.fd, name).ok()?;
    let is_still_it = there.is_same_inode(&now) && named.is_same_inode(&now);
    let record = Record::read(&file);
    is_still_it.then_some((file, record))
}

/// Locks a part that is there; `false` where another run is writing it. A run
/// that was just killed holds it until its last flush is done.
pub(crate) fn is_free(run: &Run<'_>, part: &File) -> bool {
    let is_for_tests = run.options.checkpoint.is_some();
    let mut attempts = if is_for_tests { 1 } else { LOCK_ATTEMPTS };
    loop {
        match part.try_lock() {
            Err(TryLockError::WouldBlock) => {}
            // Without locks nobody can hold one.
            Ok(()) | Err(TryLockError::Error(_)) => return true,
        }
        attempts -= 1;
        if attempts == 0 || run.is_stopped() {
            return false;
        }
        std::thread::sleep(LOCK_PAUSE);
    }
}

/// Reads the beginning back: its end and the digest so far, if it is what the
/// record says, of this source.
fn verified(
    run: &Run<'_>,
    file: &File,
    record: &Record,
    stat: &Stat,
    ranges: &[Range<u64>],
) -> Option<(u64, Box<Xxh3>)> {
    if record.source != identity(stat) || record.offset == 0 || record.offset > stat.size {
        return None;
    }
    let mut hasher = Xxh3::new();
    let to = 0..record.offset;
    let is_all = hash_prefix(&mut hasher, file, ranges, to, || !run.is_stopped()).ok()?;
    (is_all && hasher.digest128() == record.digest).then(|| (record.offset, Box::new(hasher)))
}

/// Holds a part for as long as it is written, where there are locks: no other
/// run takes it for one that was left.
pub(crate) fn hold(part: &Part) {
    match part.file.try_lock() {
        // Who looks at it right now will find that it is no leftover.
        Ok(()) | Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
    }
}

/// Begins a file: one that replaces another gets a name that a later run
/// finds, if it is large enough.
pub(crate) fn create(spot: &Spot<'_>, stat: &Stat) -> Result<Part, Failure> {
    match is_wanted(spot.run.dest, stat) {
        true => spot.create_findable(stat, part_name(spot.name)),
        false => spot.create(stat),
    }
}

/// The records of one part.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    saved: Arc<Saved>,
    source: String,
    interval: u64,
    /// None where only bytes count.
    pause: Option<Duration>,
    next: Mutex<(u64, Instant)>,
}

impl Checkpoints {
    /// Starts keeping records of a part; `None` where it is too small or there
    /// is no way to. `adopted` is what is there already, and its digest.
    pub(crate) fn start(
        spot: &Spot<'_>,
        part: &Part,
        stat: &Stat,
        ranges: &[Range<u64>],
        adopted: Option<(u64, &Xxh3)>,
    ) -> Option<Checkpoints> {
        let run = spot.run;
        if !is_wanted(run.dest, stat) || !part.can_be_found() {
            return None;
        }
        let source = identity(stat);
        if adopted.is_none() {
            // On a filesystem without attributes it is copied all the same.
            let nothing = Record {
                source: source.clone(),
                offset: 0,
                digest: 0,
            };
            nothing.write(&part.file).ok()?;
        }
        let file = part.file.try_clone().ok()?;
        let (offset, hasher) = match adopted {
            Some((offset, hasher)) => (offset, hasher.clone()),
            None => (0, Xxh3::new()),
        };
        let interval = run.dest.checkpoint_bytes;
        let is_for_tests = run.options.checkpoint.is_some();
        Some(Checkpoints {
            saved: Arc::new(Saved::new(file, spot.path(), ranges, offset, hasher)),
            source,
            interval,
            pause: (!is_for_tests).then_some(INTERVAL),
            next: Mutex::new((offset + interval, Instant::now())),
        })
    }

    /// Has it recorded that everything before `offset` is written, if it is
    /// time to. Without the digest of that, it is taken from the part.
    pub(crate) fn reached(&self, run: &Run<'_>, offset: u64, hasher: Option<&Xxh3>) {
        let mut next = lock(&self.next);
        if offset < next.0 || self.pause.is_some_and(|pause| next.1.elapsed() < pause) {
            return;
        }
        *next = (offset + self.interval, Instant::now());
        run.saver.save(saver::Order {
            saved: self.saved.clone(),
            source: self.source.clone(),
            offset,
            digest: hasher.map(Xxh3::digest128),
        });
    }

    /// Ends the records; what is under way is not recorded any more.
    pub(crate) fn close(&self) -> io::Result<()> {
        self.saved.close()
    }

    /// Takes the record from a part that is complete.
    pub(crate) fn forget(&self, part: &Part) -> io::Result<()> {
        match Place::Open(&part.file).remove(OsStr::new(ATTRIBUTE)) {
            Err(e) if e.raw_os_error() == Some(Errno::ENODATA as i32) => Ok(()),
            other => other,
        }
    }

    /// Whether a later run can go on from something.
    pub(crate) fn is_worth_keeping(&self) -> bool {
        self.saved.offset() > 0
    }
}

/// Counts a file that went on from a record.
pub(crate) fn count(run: &Run<'_>, offset: u64) {
    run.counters.resumed_files.fetch_add(1, Relaxed);
    run.counters.resumed_bytes.fetch_add(offset, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_not_otherwise() {
        let record = Record {
            source: identity(&Stat::default()),
            offset: 1 << 40,
            digest: u128::MAX - 5,
        };
        let text = record.text();
        assert_eq!(Record::parse(text.as_bytes()), Some(record));
        for at in 0..text.len() {
            let mut wrong = text.clone().into_bytes();
            wrong[at] ^= 1;
            assert_eq!(Record::parse(&wrong), None, "byte {at}");
            assert_eq!(Record::parse(&text.as_bytes()[..at]), None);
        }
    }
}
