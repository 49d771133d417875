//! Entries that are there already: their content stays, their other metadata
//! is brought up to date.
//!
//! An inode with names outside this tree is never changed: where its metadata
//! differs, the entry becomes a new file instead.

use std::os::fd::AsFd;

use super::checkpoint;
use super::run::Run;
use super::spot::Spot;
use super::write::Near;
use crate::dedup::join::{self, Bytes};
use crate::dest::compare::is_up_to_date;
use crate::error::{During, Failure, Op};
use crate::plan::{Dir, Kind, Listing};
use crate::report::Outcome;
use crate::sys::beneath;
use crate::sys::metadata::{Stat, Target};
use crate::sys::special;
use crate::sys::xattrs::{Place, Xattrs};

/// What to do with an entry that is there.
enum Kept {
    /// Nothing more.
    Done(Vec<Failure>),
    /// It must become an inode of its own.
    Anew,
}

/// Looks after one entry of a listing.
pub(crate) fn keep(run: &Run<'_>, listing: &Listing, index: u32, near: &mut Near) {
    let entry = &listing.entries[index as usize];
    let (dir, name) = (listing.dir(entry), listing.name(entry));
    let mut stat = Stat::default();
    let kept = at_source(dir, name).and_then(|found| {
        stat = found.stat;
        let fd = near.open(run, dir, name)?;
        let spot = Spot {
            run,
            dir: dir.clone(),
            fd,
            name: dir.dest_name(name),
        };
        update(&spot, &found, name)
    });
    match kept {
        Ok(Kept::Done(failures)) => {
            run.mark(index);
            run.finished(dir, name, Outcome::Unchanged, failures);
            run.led(&stat, dir, name, true);
        }
        Ok(Kept::Anew) if stat.kind() == Kind::File => super::read::copy_one(run, listing, index),
        Ok(Kept::Anew) => super::write::make_special(run, listing, index, near),
        Err(failure) => {
            run.mark(index);
            run.entry_failed(failure);
            run.led(&stat, dir, name, false);
        }
    }
}

/// A source entry as it is now, without its content.
pub(crate) struct Now {
    pub(crate) stat: Stat,
    pub(crate) xattrs: Xattrs,
    /// Of a symlink.
    pub(crate) text: Option<Vec<u8>>,
    /// The content was compared, so that size and mtime say nothing more.
    is_compared: bool,
}

/// Looks at a source entry without opening it.
pub(crate) fn at_source(dir: &Dir, name: &[u8]) -> Result<Now, Failure> {
    let path = dir.path_of(name);
    let fd = dir
        .source
        .root
        .dir(&dir.relative())
        .during(Op::Stat, &path)?;
    let stat = Stat::at(&fd, name).during(Op::Stat, &path)?;
    let text = match stat.kind() {
        Kind::Symlink => Some(special::read_link(&fd, name).during(Op::Read, &path)?),
        _ => None,
    };
    let xattrs = Place::name(&fd, name).read().during(Op::Read, &path)?;
    Ok(Now {
        stat,
        xattrs,
        text,
        is_compared: false,
    })
}

/// Keeps a file whose content was just found equal; `None` where it has to be
/// made anew.
pub(crate) fn keep_file(
    spot: &Spot<'_>,
    stat: &Stat,
    xattrs: &Xattrs,
) -> Result<Option<(Outcome, Vec<Failure>)>, Failure> {
    let now = Now {
        stat: *stat,
        xattrs: xattrs.clone(),
        text: None,
        is_compared: true,
    };
    match update(spot, &now, spot.name)? {
        Kept::Done(failures) => Ok(Some((Outcome::Unchanged, failures))),
        Kept::Anew => Ok(None),
    }
}

fn update(spot: &Spot<'_>, now: &Now, name: &[u8]) -> Result<Kept, Failure> {
    let run = spot.run;
    let (stat, xattrs) = (&now.stat, &now.xattrs);
    let there = Stat::at(spot.fd, spot.name).during_at(Op::Compare, || spot.path())?;
    // The times that are set here must be those of the content that is here:
    // what changed since the scan is copied after all.
    if !is_still_equal(spot, now, &there)? {
        return Ok(Kept::Anew);
    }
    if !run.stands_for(&spot.dir, &there, stat) && !is_twin(spot, now, name)? {
        return Ok(Kept::Anew);
    }
    if !spot.claim(&there) {
        return Err(Failure::because(
            Op::Create,
            spot.path(),
            super::spot::TAKEN,
        ));
    }
    if stat.kind() == Kind::File {
        checkpoint::remove_beside(spot, stat)?;
    }
    let place = Place::name(spot.fd, spot.name);
    let have = place.read().during_at(Op::Compare, || spot.path())?;
    if is_up_to_date(run.dest, stat, xattrs, &there, &have) {
        note_what_is_not_kept(spot, stat, &there);
        remember(spot, now, &there);
        return Ok(Kept::Done(Vec::new()));
    }
    // Its other names may be outside this tree.
    if there.links > 1 {
        spot.unclaim(&there);
        return Ok(Kept::Anew);
    }
    let target = Target::Name(spot.fd, spot.name);
    let failures = spot.dress(&target, &place, stat, xattrs, false)?;
    if failures.is_empty() {
        remember(spot, now, &there);
    }
    Ok(Kept::Done(failures))
}

/// Takes note of a kept file that may be another's twin.
fn remember(spot: &Spot<'_>, now: &Now, there: &Stat) {
    if let (Some(table), Kind::File) = (spot.run.twins(), now.stat.kind()) {
        let digest = spot.run.known_source(&spot.dir, &now.stat);
        if digest.is_some() {
            spot.run.count_hit();
        }
        table.keep(spot, &now.stat, &now.xattrs, there.ino, digest);
    }
}

/// Whether an inode that stands for another file already may stand for this one
/// too: duplicates are to be one, and its content is this very content.
fn is_twin(spot: &Spot<'_>, now: &Now, name: &[u8]) -> Result<bool, Failure> {
    if spot.run.twins().is_none() || now.stat.kind() != Kind::File {
        return Ok(false);
    }
    if now.is_compared {
        return Ok(true);
    }
    let path = spot.dir.path_of(name);
    let relative = beneath::join([&spot.dir.relative()[..], name]);
    let source = spot.dir.source.root.file(&relative);
    let source = source.during(Op::Open, &path)?;
    let there = beneath::open_file(spot.fd.as_fd(), spot.name);
    let there = there.during_at(Op::Compare, || spot.path())?;
    let same = join::holds(&there, Bytes::File(&source, now.stat.size));
    // Whatever this look could not see, the copy will.
    Ok(same.unwrap_or(false) && Stat::of(&source).is_ok_and(|s| now.stat.held_still(&s)))
}

fn is_still_equal(spot: &Spot<'_>, now: &Now, there: &Stat) -> Result<bool, Failure> {
    let stat = &now.stat;
    Ok(there.kind() == stat.kind()
        && match stat.kind() {
            Kind::File if now.is_compared => stat.size == there.size,
            Kind::File if spot.run.options.checksum => {
                // Only what the cache knows of both sides comes here.
                let ours = spot.run.known_source(&spot.dir, stat);
                ours.is_some() && ours == spot.known(there)
            }
            Kind::File => spot.run.dest.is_same_content_by_stat(stat, there),
            Kind::CharDevice | Kind::BlockDevice => stat.rdev == there.rdev,
            Kind::Symlink => {
                let text = special::read_link(spot.fd, spot.name);
                now.text.as_deref() == Some(&text.during_at(Op::Compare, || spot.path())?[..])
            }
            Kind::Dir | Kind::Fifo | Kind::Socket => true,
        })
}

fn note_what_is_not_kept(spot: &Spot<'_>, stat: &Stat, there: &Stat) {
    if (there.uid, there.gid) != (stat.uid, stat.gid) {
        spot.run.note_owner(|| spot.path());
    }
    if stat.mtime != there.mtime {
        spot.run.note_time(|| spot.path());
    }
}
