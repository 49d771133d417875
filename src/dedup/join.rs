//! Makes one of two: compares a candidate byte for byte with the content that
//! is to be stored, then gives its inode one more name, or lends its extents.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

use nix::errno::Errno;

use super::{Claim, Content, Likeness, Table, Twin};
use crate::dest::compare::is_right_for;
use crate::error::{During, Failure, Op};
use crate::job::{Dedup, DedupIgnore, Verify};
use crate::plan::Kind;
use crate::report::Outcome;
use crate::sys::beneath;
use crate::sys::metadata::Stat;
use crate::sys::transfer::{self, Shared};
use crate::sys::xattrs::{Place, Xattrs};
use crate::verify::digest::Digest;
use crate::verify::file as check;
use crate::work::part::Part;
use crate::work::run::{Copied, lock};
use crate::work::spot::Spot;

/// The content that is to be stored: in memory, or in a file of the
/// destination.
#[derive(Clone, Copy)]
pub(crate) enum Bytes<'a> {
    Memory(&'a [u8]),
    File(&'a File, u64),
}

impl Bytes<'_> {
    pub(crate) fn len(self) -> u64 {
        match self {
            Bytes::Memory(bytes) => bytes.len() as u64,
            Bytes::File(_, size) => size,
        }
    }
}

/// A file that is to be stored: what it holds and how it shall look.
pub(crate) struct Wanted<'a> {
    pub(crate) bytes: Bytes<'a>,
    pub(crate) digest: u128,
    pub(crate) stat: &'a Stat,
    pub(crate) xattrs: &'a Xattrs,
    /// Whether joining it saves the room that the twin takes.
    pub(crate) saves: bool,
}

impl Wanted<'_> {
    pub(crate) fn content(&self) -> Content {
        (self.bytes.len(), self.digest)
    }
}

/// What is under the name that a link shall get.
#[derive(Clone, Copy)]
pub(crate) enum Under<'a> {
    /// Nothing, or what the entry replaces if it may.
    Other,
    /// This file, which holds the content already, or what it will replace.
    Part(&'a Part),
    /// The file itself, complete.
    Itself,
}

/// What came of asking for a twin.
pub(crate) enum Asked {
    /// Nothing is left to be written.
    Joined(Outcome, Vec<Failure>),
    /// The caller writes it, then says how that ended ([`Ticket::settle`]). The
    /// file, if any, has the same bytes and can lend its extents.
    Write(Ticket, Option<File>),
}

/// The right to write a content first, and the duty to say how it ended.
#[must_use]
pub(crate) struct Ticket {
    content: Content,
    like: Likeness,
}

impl Ticket {
    /// Tells those who wait whether the file has arrived as `spot`.
    pub(crate) fn settle(self, table: &Table, spot: &Spot<'_>, arrived: bool) {
        let twin = arrived.then(|| Twin {
            dir: spot.dir.clone(),
            name: spot.name.into(),
        });
        table.settle(self.content, self.like, twin);
    }
}

/// Looks for a twin of what is wanted at `spot`, and joins them if it can.
pub(crate) fn ask(
    spot: &Spot<'_>,
    table: &Table,
    wanted: &Wanted<'_>,
    under: Under<'_>,
) -> Result<Asked, Failure> {
    let like = Likeness::new(spot.run.options, wanted.stat, wanted.xattrs);
    let content = wanted.content();
    let mut claim = table.claim(content, like);
    loop {
        let ticket = Ticket { content, like };
        let twin = match claim {
            Claim::First(_) if is_merged(spot, wanted) => {
                ticket.settle(table, spot, true);
                discard(spot, under)?;
                return Ok(Asked::Joined(Outcome::Unchanged, Vec::new()));
            }
            Claim::First(other) => {
                let lender = other.and_then(|other| lender(spot, table, &other, wanted));
                return Ok(Asked::Write(ticket, lender));
            }
            Claim::Twin(twin) => twin,
        };
        if spot.run.options.dedup == Dedup::Reflink {
            // Each stays a file of its own; nobody has to wait for this one.
            let lender = lender(spot, table, &twin, wanted);
            return Ok(Asked::Write(ticket, lender));
        }
        match link(spot, &twin, wanted, under)? {
            Some((outcome, failures)) => return Ok(Asked::Joined(outcome, failures)),
            None => claim = table.replace(content, like, &twin),
        }
    }
}

/// What was written under another name is not needed any more.
fn discard(spot: &Spot<'_>, under: Under<'_>) -> Result<(), Failure> {
    match under {
        Under::Part(part) => part.discard(spot),
        Under::Other | Under::Itself => Ok(()),
    }
}

/// Whether an earlier run has merged this very file with others: it shares an
/// inode that differs only in what is ignored.
fn is_merged(spot: &Spot<'_>, wanted: &Wanted<'_>) -> bool {
    let ignore = spot.run.options.dedup_ignore;
    let twin = Twin {
        dir: spot.dir.clone(),
        name: spot.name.into(),
    };
    if ignore == DedupIgnore::default()
        || !Stat::at(spot.fd, spot.name).is_ok_and(|there| there.links > 1)
    {
        return false;
    }
    let Some((file, stat)) = open_twin(spot, &twin, wanted.bytes) else {
        return false;
    };
    // Whatever this look could not see, the copy will.
    Place::Open(&file).read().is_ok_and(|have| {
        let (want, have) = ((wanted.stat, wanted.xattrs), (&stat, &have));
        is_right_for(spot.run.dest, want, have, ignore) && spot.claim(&stat)
    })
}

/// Opens a twin whose content is what is wanted, byte for byte. `None` where it
/// is gone or something else: then it is no twin.
fn open_twin(spot: &Spot<'_>, twin: &Twin, bytes: Bytes<'_>) -> Option<(File, Stat)> {
    let dir = spot.run.dest.root.dir(&twin.dir.relative_dest()).ok()?;
    let file = beneath::open_file(dir.as_fd(), &twin.name).ok()?;
    let before = Stat::of(&file).ok()?;
    if before.kind() != Kind::File || before.size != bytes.len() {
        return None;
    }
    let same = holds(&file, bytes).ok()?;
    let after = Stat::of(&file).ok()?;
    // Not the ctime: others who link to it at this moment change that.
    let still = (before.size, before.mtime) == (after.size, after.mtime);
    (same && still).then_some((file, after))
}

/// A twin with other metadata, if extents can be shared with it.
fn lender(spot: &Spot<'_>, table: &Table, twin: &Twin, wanted: &Wanted<'_>) -> Option<File> {
    if !table.can_share() {
        return None;
    }
    open_twin(spot, twin, wanted.bytes).map(|(file, _)| file)
}

/// Gives `part` the extents of `lender`, which has the same bytes. `false`
/// where these cannot be shared: then nothing is changed.
pub(crate) fn share(table: &Table, lender: &File, part: &File) -> io::Result<bool> {
    match transfer::share(lender, part)? {
        Shared::Yes => Ok(true),
        Shared::NotThis => Ok(false),
        Shared::NotHere => {
            table.no_sharing();
            Ok(false)
        }
    }
}

/// Counts a file that shares its extents with a twin.
pub(crate) fn count_shared(spot: &Spot<'_>, size: u64, blocks: u64) {
    let counters = spot.run.counters;
    counters.dedup_reflinked.fetch_add(1, Relaxed);
    counters.dedup_bytes.fetch_add(size, Relaxed);
    counters.dedup_saved_bytes.fetch_add(blocks, Relaxed);
}

/// Makes `spot` one more name of a twin. `None` where that one is not (or no
/// longer) fit for it, or has as many names as it can have.
pub(crate) fn link(
    spot: &Spot<'_>,
    twin: &Twin,
    wanted: &Wanted<'_>,
    under: Under<'_>,
) -> Result<Option<(Outcome, Vec<Failure>)>, Failure> {
    let run = spot.run;
    let Some((file, stat)) = open_twin(spot, twin, wanted.bytes) else {
        return Ok(None);
    };
    let have = Place::Open(&file)
        .read()
        .during_at(Op::Compare, || spot.path())?;
    let ignore = run.options.dedup_ignore;
    if !is_right_for(
        run.dest,
        (wanted.stat, wanted.xattrs),
        (&stat, &have),
        ignore,
    ) {
        return Ok(None);
    }
    let there = Stat::at(spot.fd, spot.name).ok();
    if there.is_some_and(|there| there.is_same_inode(&stat)) {
        if !spot.claim(&stat) {
            return Ok(None);
        }
        return Ok(Some((Outcome::Unchanged, Vec::new())));
    }
    if matches!(under, Under::Other) {
        spot.replaceable(wanted.stat)?;
    }
    // A part that has its name replaces nothing; neither does who joins files
    // that are there already, since both have this content.
    let is_own = match under {
        Under::Other => false,
        Under::Part(part) => part.is_named(),
        Under::Itself => true,
    };
    match spot.adopt(&file, is_own) {
        Ok(()) => discard(spot, under)?,
        Err(e) if is_no_more_links(&e) => return Ok(None),
        Err(e) => return Err(Failure::new(Op::Link, spot.path(), e)),
    }
    count_linked(spot, wanted, &stat);
    Ok(Some((Outcome::Copied, proof(spot, wanted, &stat))))
}

/// EMLINK: all the names that the filesystem allows. The others: no links here,
/// or none for this user (protected_hardlinks).
pub(crate) fn is_no_more_links(e: &io::Error) -> bool {
    let codes = [
        Errno::EMLINK,
        Errno::EPERM,
        Errno::EOPNOTSUPP,
        Errno::EXDEV,
        Errno::ENOENT,
    ];
    codes
        .iter()
        .any(|&code| e.raw_os_error() == Some(code as i32))
}

fn count_linked(spot: &Spot<'_>, wanted: &Wanted<'_>, twin: &Stat) {
    let counters = spot.run.counters;
    counters.dedup_linked.fetch_add(1, Relaxed);
    if wanted.saves {
        counters
            .dedup_saved_bytes
            .fetch_add(twin.allocated, Relaxed);
    }
    if let Bytes::Memory(bytes) = wanted.bytes {
        counters.dedup_bytes.fetch_add(bytes.len() as u64, Relaxed);
    }
    let merged = wanted.stat.mtime != twin.mtime
        || wanted.stat.permissions() != twin.permissions()
        || (wanted.stat.uid, wanted.stat.gid) != (twin.uid, twin.gid);
    if merged && spot.run.options.dedup_ignore != DedupIgnore::default() {
        spot.run.note_merged(|| spot.path());
    }
}

/// The name must be the twin's now. Its content was compared just before; with
/// durable verification it is read again from the medium.
fn proof(spot: &Spot<'_>, wanted: &Wanted<'_>, twin: &Stat) -> Vec<Failure> {
    let run = spot.run;
    let mut failures = Vec::new();
    if !run.is_verified() {
        spot.take_new();
        return failures;
    }
    match Stat::at(spot.fd, spot.name) {
        Ok(have) if have.is_same_inode(twin) => spot.take(&have),
        Ok(_) => failures.push(Failure::because(
            Op::Compare,
            spot.path(),
            "it is not the link that was made",
        )),
        Err(e) => failures.push(Failure::new(Op::Compare, spot.path(), e)),
    }
    if !failures.is_empty() {
        return failures;
    }
    if run.options.verify == Verify::Durable {
        lock(&run.copied).push(Copied {
            dir: spot.dir.clone(),
            name: spot.name.into(),
            size: wanted.bytes.len(),
            digest: Some(Digest::Plain(wanted.digest)),
            ranges: None,
        });
    } else {
        check::count_verified(run, wanted.bytes.len());
        // The link has changed its ctime.
        if let Ok(have) = Stat::at(spot.fd, spot.name) {
            spot.learn(&have, wanted.digest);
        }
    }
    failures
}

/// Whether a file holds these bytes and no others.
pub(crate) fn holds(file: &File, bytes: Bytes<'_>) -> io::Result<bool> {
    const PIECE: usize = 256 << 10;
    let len = bytes.len();
    let piece = usize::try_from(len).map_or(PIECE, |len| len.min(PIECE));
    let (mut theirs, mut ours) = (vec![0; piece], Vec::new());
    let mut at = 0;
    while at < len {
        let n = usize::try_from(len - at).map_or(PIECE, |left| left.min(PIECE));
        file.read_exact_at(&mut theirs[..n], at)?;
        let same = match bytes {
            Bytes::Memory(bytes) => {
                let from = usize::try_from(at).map_err(io::Error::other)?;
                bytes[from..from + n] == theirs[..n]
            }
            Bytes::File(other, _) => {
                ours.resize(piece, 0);
                other.read_exact_at(&mut ours[..n], at)?;
                ours[..n] == theirs[..n]
            }
        };
        if !same {
            return Ok(false);
        }
        at += n as u64;
    }
    Ok(true)
}
