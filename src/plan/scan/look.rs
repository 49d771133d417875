//! One look at one entry: its metadata, where it lies, and what the
//! destination has in its place.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use super::{Scan, lock};
use crate::dest::compare::Sides;
use crate::error::{During, Failure, Op};
use crate::plan::{Action, Entry, Extent, Kind, Listing};
use crate::sys::metadata::Stat;
use crate::sys::xattrs::Place;
use crate::sys::{beneath, fiemap};

/// Extents kept of one file: beyond this it is read in one go.
const MAX_EXTENTS: usize = 4096;

/// Devices by their place in the listing. Neighbours lie on the same one: it is
/// remembered, so that the shared list is seldom asked.
pub(super) struct Devices<'a> {
    all: &'a Mutex<Vec<u64>>,
    last: Option<(u64, u16)>,
}

impl Devices<'_> {
    pub(super) fn new(all: &Mutex<Vec<u64>>) -> Devices<'_> {
        Devices { all, last: None }
    }

    fn index(&mut self, dev: u64) -> u16 {
        if let Some((_, index)) = self.last.filter(|last| last.0 == dev) {
            return index;
        }
        let mut all = lock(self.all);
        let at = all.iter().position(|&d| d == dev).unwrap_or_else(|| {
            all.push(dev);
            all.len() - 1
        });
        let index = u16::try_from(at).unwrap_or(u16::MAX);
        self.last = Some((dev, index));
        index
    }
}

/// Looks at an entry and fills it in; gives its extents where it lies in more
/// than one piece.
///
/// What the destination may have already is compared first, by name: a file
/// that is unchanged need not be opened.
pub(super) fn look(
    scan: &Scan<'_>,
    listing: &Listing,
    entry: &mut Entry,
    devices: &mut Devices<'_>,
    sides: &mut Sides,
) -> Result<Vec<Extent>, Failure> {
    let dir = listing.dir(entry);
    let name = listing.name(entry);
    let path = || dir.path_of(name);
    if let Some(dest) = scan.dest {
        let fd = sides.source(scan.dest, dir).during_at(Op::Stat, path)?;
        let stat = Stat::at(fd, name).during_at(Op::Stat, path)?;
        fill_in(entry, &stat, devices);
        let compared = dest.compare(sides, dir, name, &stat, scan.cache);
        entry.set_there(compared.exists, compared.frees_bytes);
        entry.action = compared.action;
        scan.count_hit(entry.kind, entry.action);
    }
    let mut file = None;
    if entry.kind == Kind::File && entry.action == Action::Copy {
        let fd = sides.source(scan.dest, dir).during_at(Op::Open, path)?;
        let opened = beneath::open_file(fd.as_fd(), name);
        if opened.is_err()
            // What cannot be read still counts for what it is.
            && let Ok(stat) = Stat::at(fd, name)
        {
            fill_in(entry, &stat, devices);
        }
        let opened = opened.during_at(Op::Open, path)?;
        let stat = Stat::of(&opened).during_at(Op::Stat, path)?;
        fill_in(entry, &stat, devices);
        if scan.filter.takes_size(stat.size) {
            file = Some((opened, stat));
        } else {
            entry.action = Action::Skip;
        }
    } else if scan.dest.is_none() {
        let fd = sides.source(scan.dest, dir).during_at(Op::Stat, path)?;
        let stat = Stat::at(fd, name).during_at(Op::Stat, path)?;
        fill_in(entry, &stat, devices);
    }
    if entry.kind == Kind::Dir {
        let why = "became a directory after it was listed";
        return Err(Failure::because(Op::Stat, path(), why));
    }
    if entry.kind == Kind::File {
        scan.counters.found_files.fetch_add(1, Relaxed);
        if entry.action == Action::Copy {
            scan.counters
                .found_bytes
                .fetch_add(entry.size.min(entry.allocated), Relaxed);
        }
    }
    match file {
        Some((file, stat)) if entry.is_to_read() => Ok(places(scan, entry, &stat, &file)),
        _ => Ok(Vec::new()),
    }
}

fn fill_in(entry: &mut Entry, stat: &Stat, devices: &mut Devices<'_>) {
    entry.fill(stat, devices.index(stat.dev));
}

/// Where the file lies, if its disk is read in physical order.
fn places(scan: &Scan<'_>, entry: &mut Entry, stat: &Stat, file: &File) -> Vec<Extent> {
    if stat.size == 0 || !scan.choices.of(stat.dev).wants_places() {
        return Vec::new();
    }
    // Attributes in a block of their own are read now, in the metadata's
    // order, instead of between the data later. What they are does not matter
    // here, and whoever reads them later reports what went wrong.
    drop(Place::Open(file).read());
    // Places only order the reads: where the call fails, the file is read
    // without one, and the read says whether anything is wrong.
    let Ok(Some(mut map)) = fiemap::map(file.as_fd(), MAX_EXTENTS, false) else {
        return Vec::new();
    };
    if map.unplaced {
        let synced = fiemap::map(file.as_fd(), MAX_EXTENTS, true);
        map = synced.ok().flatten().unwrap_or_default();
    }
    if let Some(first) = map.extents.first() {
        entry.physical = first.physical;
    }
    // More than could be kept: one read from its first extent on.
    if map.extents.len() >= MAX_EXTENTS {
        map.extents.clear();
    }
    map.extents
}
