//! Files that an earlier copy has unchanged (`--link-dest`) become one more
//! name of it. Whatever does not fit at the second look is copied.

use std::sync::atomic::Ordering::Relaxed;

use super::keep::{self, Now};
use super::run::Run;
use super::spot::Spot;
use super::write::Near;
use crate::dedup::join::{self, Bytes};
use crate::dest::compare::is_up_to_date;
use crate::error::{During, Failure, Op};
use crate::plan::{Kind, Listing};
use crate::report::Outcome;
use crate::sys::beneath::{self, Root};
use crate::sys::metadata::Stat;
use crate::sys::xattrs::Place;

/// Links one entry of a listing to an earlier copy, or copies it.
pub(crate) fn refer(run: &Run<'_>, listing: &Listing, index: u32, near: &mut Near) {
    let entry = &listing.entries[index as usize];
    let (dir, name) = (listing.dir(entry), listing.name(entry));
    let mut stat = Stat::default();
    let linked = keep::at_source(dir, name).and_then(|found| {
        stat = found.stat;
        let fd = near.open(run, dir, name)?;
        let spot = Spot {
            run,
            dir: dir.clone(),
            fd,
            name: dir.dest_name(name),
        };
        for root in run.dest.references.iter() {
            if let Some(failures) = link(&spot, root, &found, name)? {
                return Ok(Some(failures));
            }
        }
        Ok(None)
    });
    match linked {
        Ok(Some(failures)) => {
            run.mark(index);
            run.finished(dir, name, Outcome::Unchanged, failures);
            run.led(&stat, dir, name, true);
        }
        Ok(None) => super::read::copy_one(run, listing, index),
        Err(failure) => {
            run.mark(index);
            run.entry_failed(failure);
            run.led(&stat, dir, name, false);
        }
    }
}

/// Links one file to one earlier copy; none where that has no such file.
fn link(
    spot: &Spot<'_>,
    root: &Root,
    now: &Now,
    name: &[u8],
) -> Result<Option<Vec<Failure>>, Failure> {
    let (run, stat) = (spot.run, &now.stat);
    let path = beneath::join([&spot.dir.relative_dest()[..], spot.name]);
    // What cannot be looked at there is copied, and needs no other word.
    let Ok(file) = root.file(&path) else {
        return Ok(None);
    };
    let (Ok(there), Ok(have)) = (Stat::of(&file), Place::Open(&file).read()) else {
        return Ok(None);
    };
    if stat.kind() != Kind::File
        || !run.dest.is_unchanged(stat, &there)
        || !is_up_to_date(run.dest, stat, &now.xattrs, &there, &have)
    {
        return Ok(None);
    }
    if run.options.checksum {
        let relative = beneath::join([&spot.dir.relative()[..], name]);
        let source = spot.dir.source.root.file(&relative);
        let source = source.during_at(Op::Open, || spot.dir.path_of(name))?;
        let same = join::holds(&file, Bytes::File(&source, stat.size));
        // Whatever this look could not see, the copy will.
        if !same.unwrap_or(false) || !Stat::of(&source).is_ok_and(|s| stat.held_still(&s)) {
            return Ok(None);
        }
    }
    if Stat::at(spot.fd, spot.name).is_ok_and(|have| have.is_same_inode(&there)) {
        return Ok(Some(Vec::new()));
    }
    if !run.stands_for(&spot.dir, &there, stat) {
        return Ok(None);
    }
    spot.replaceable(stat)?;
    match spot.adopt(&file, false) {
        Ok(()) => {}
        Err(e) if join::is_no_more_links(&e) => return Ok(None),
        Err(e) => return Err(Failure::new(Op::Link, spot.path(), e)),
    }
    run.counters.link_dest_files.fetch_add(1, Relaxed);
    let made = Stat::at(spot.fd, spot.name).during_at(Op::Compare, || spot.path())?;
    spot.take(&made);
    let mut failures = Vec::new();
    if !made.is_same_inode(&there) {
        let why = "it is not the link that was made";
        failures.push(Failure::because(Op::Compare, spot.path(), why));
    }
    Ok(Some(failures))
}
