//! One look at one entry: its metadata, where it lies, and what the
//! destination has in its place.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use nix::fcntl::OFlag;

use super::{Scan, lock};
use crate::error::{During, Failure, Op};
use crate::plan::{Action, Dir, Entry, Extent, Kind, Listing, There};
use crate::sys::metadata::Stat;
use crate::sys::xattrs::Place;
use crate::sys::{beneath, fiemap};

/// Extents kept of one file: beyond this it is read in one go.
const MAX_EXTENTS: usize = 4096;

/// Looks at an entry and fills it in; gives its extents where it lies in more
/// than one piece.
pub(super) fn look(
    scan: &Scan<'_>,
    listing: &Listing,
    entry: &mut Entry,
    devices: &Mutex<Vec<u64>>,
) -> Result<Vec<Extent>, Failure> {
    let dir = listing.dir(entry).clone();
    let name = listing.name(entry);
    let relative = beneath::join([&dir.relative()[..], name]);
    let path = || dir.path_of(name);
    let mut file = None;
    let stat = if entry.kind == Kind::File {
        match dir.source.root.file(&relative) {
            Ok(opened) => {
                let stat = Stat::of(&opened).during(Op::Stat, &path())?;
                file = Some(opened);
                stat
            }
            Err(e) => {
                // What cannot be read still counts for what it is.
                if let Ok(stat) = pinned(&dir, &relative) {
                    fill_in(entry, &stat, devices);
                }
                return Err(Failure::new(Op::Open, path(), e));
            }
        }
    } else {
        pinned(&dir, &relative).during(Op::Stat, &path())?
    };
    fill_in(entry, &stat, devices);
    if entry.kind == Kind::Dir {
        return Err(Failure::because(
            Op::Stat,
            path(),
            "became a directory after it was listed",
        ));
    }
    if dir.there == There::Dir
        && let Some(dest) = scan.dest
    {
        let wanted = dest.compare(&dir, name, &stat, scan.checksum);
        (entry.exists, entry.replaces) = (wanted.exists, wanted.frees_bytes);
        if wanted.is_equal {
            entry.action = Action::Keep;
        }
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
        Some(file) if entry.is_to_read() => Ok(places(scan, entry, &stat, &file)),
        _ => Ok(Vec::new()),
    }
}

fn pinned(dir: &Dir, relative: &[u8]) -> std::io::Result<Stat> {
    Stat::of(dir.source.root.at(relative, OFlag::O_PATH)?)
}

fn fill_in(entry: &mut Entry, stat: &Stat, devices: &Mutex<Vec<u64>>) {
    let mut devices = lock(devices);
    let at = devices
        .iter()
        .position(|&d| d == stat.dev)
        .unwrap_or_else(|| {
            devices.push(stat.dev);
            devices.len() - 1
        });
    entry.fill(stat, u16::try_from(at).unwrap_or(u16::MAX));
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
