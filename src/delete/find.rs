//! Which names are to go: those of a destination's directory that none of the
//! source directories has that are copied there.
//!
//! Source directories are remembered by the digests of their names. Where one of
//! their names is not there as it is written, the destination may call it by
//! another (case, normal forms): then the kernel is asked which of its names
//! are meant.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::walk::{self, Entry};
use super::{Does, Mirror, Told};
use crate::dest::DirRef;
use crate::error::{Failure, Op};
use crate::plan::Dir;
use crate::plan::scan::list::digest_of;
use crate::sys::metadata::Stat;

/// The source directories of each directory of the destination.
#[derive(Default)]
struct Groups<'a> {
    /// The first, by the destination's inode: most often the only one.
    first: HashMap<(u64, u64), &'a DirRef>,
    more: HashMap<(u64, u64), Vec<&'a DirRef>>,
    order: Vec<(u64, u64)>,
}

impl<'a> Groups<'a> {
    fn add(&mut self, inode: (u64, u64), dir: &'a DirRef) {
        match self.first.entry(inode) {
            MapEntry::Occupied(_) => self.more.entry(inode).or_default().push(dir),
            MapEntry::Vacant(place) => {
                place.insert(dir);
                self.order.push(inode);
            }
        }
    }

    fn of(&self, inode: (u64, u64)) -> Vec<&'a DirRef> {
        let more = self.more.get(&inode).into_iter().flatten();
        self.first
            .get(&inode)
            .into_iter()
            .chain(more)
            .copied()
            .collect()
    }
}

/// Finds every name that is to go, and does with it what the mirror says.
pub(super) fn find(mirror: &Mirror<'_>, dirs: &[DirRef], told: &mut dyn FnMut(Told)) {
    let mut groups = Groups::default();
    for dir in dirs {
        // What is not there, or is no directory, holds nothing to remove.
        let looked = mirror
            .dest
            .root
            .dir(&dir.relative_dest())
            .and_then(Stat::of);
        if let Ok(stat) = looked {
            groups.add((stat.dev, stat.ino), dir);
        }
    }
    let root = Stat::of(&mirror.dest.root).map(|stat| (stat.dev, stat.ino));
    for &inode in &groups.order {
        if mirror.stop.load(Relaxed) {
            return;
        }
        let group = groups.of(inode);
        let mut known = Known::default();
        // A source `a` has the name "a" in the destination's root.
        if root.as_ref().is_ok_and(|root| *root == inode) {
            let roots = dirs.iter().filter(|dir| dir.parent.is_none());
            known.roots = roots
                .map(|dir| &dir.source.below[..])
                .filter(|below| !below.is_empty())
                .collect();
        }
        if known.add(&group) {
            clean(mirror, &group, &known, told);
        }
    }
}

/// The names of a group.
#[derive(Default)]
struct Known<'a> {
    digests: Vec<&'a [u64]>,
    roots: Vec<&'a [u8]>,
}

impl<'a> Known<'a> {
    /// Takes the names of all; `false` where they are not known in full, or
    /// where nothing in this directory is to go.
    fn add(&mut self, group: &[&'a DirRef]) -> bool {
        for dir in group {
            let Some(names) = &dir.names else {
                return false;
            };
            self.digests.push(names);
        }
        group.iter().any(|dir| dir.is_entry())
    }

    fn has(&self, name: &[u8]) -> bool {
        let digest = digest_of(name);
        self.digests
            .iter()
            .any(|d| d.binary_search(&digest).is_ok())
            || self.roots.contains(&name)
    }

    /// The most names that could be at the destination.
    fn len(&self) -> usize {
        let mut all: Vec<u64> = self
            .digests
            .iter()
            .flat_map(|d| d.iter().copied())
            .collect();
        all.extend(self.roots.iter().map(|name| digest_of(name)));
        all.sort_unstable();
        all.dedup();
        all.len()
    }
}

/// Removes from one directory of the destination what its group does not have.
fn clean(mirror: &Mirror<'_>, group: &[&DirRef], known: &Known<'_>, told: &mut dyn FnMut(Told)) {
    let dir: &Dir = group[0];
    let below = dir.relative_dest();
    let path = || dir.dest_path_of(&mirror.dest.path, b"");
    let listed = open(mirror, dir, &below).and_then(|fd| Ok((walk::names(&fd)?, fd)));
    let (names, fd) = match listed {
        Ok(listed) => listed,
        // It went away meanwhile.
        Err(e) if e.raw_os_error() == Some(Errno::ENOENT as i32) => return,
        Err(e) => return told(Told::Failed(Failure::new(Op::Remove, path(), e))),
    };
    let all = names.len();
    let mut doomed: Vec<Entry> = names.into_iter().filter(|e| !known.has(&e.name)).collect();
    if doomed.is_empty() {
        return;
    }
    if all - doomed.len() < known.len() {
        match meant(group, known, &fd) {
            Ok(meant) => doomed.retain(|entry| !is_meant(&fd, &entry.name, &meant)),
            Err(e) => return told(Told::Failed(Failure::new(Op::Remove, path(), e))),
        }
    }
    doomed.retain(|entry| {
        !mirror
            .keeps
            .name(&walk::below(&below, &entry.name), entry.is_dir)
    });
    if doomed.is_empty() {
        return;
    }
    let backups = mirror.dest.backups.as_ref();
    let mut in_the_way = Vec::new();
    doomed.retain(|entry| {
        let name = backups.and_then(|backups| backups.name_beside(&entry.name));
        let is_free = entry.is_dir || name.is_none_or(|name| !known.has(&name));
        if !is_free {
            in_the_way.push(dir.dest_path_of(&mirror.dest.path, &entry.name));
        }
        is_free
    });
    for path in in_the_way {
        let why = "a source has an entry with the name of its backup";
        told(Told::Failed(Failure::because(Op::Remove, path, why)));
    }
    // Opened up for its user where need be; its own mode and times come later.
    if mirror.does == Does::Remove
        && let Err(failure) = mirror.dest.dir(dir)
    {
        return told(Told::Failed(failure));
    }
    for entry in doomed {
        if mirror.stop.load(Relaxed) {
            return;
        }
        walk::take(mirror, &fd, &below, &entry, told);
    }
}

fn open(mirror: &Mirror<'_>, dir: &Dir, below: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let opened = mirror.dest.root.at(below, flags);
    match &opened {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && mirror.does == Does::Remove => {
            mirror.dest.dir(dir).map_err(|failure| failure.source)?;
            mirror.dest.root.at(below, flags)
        }
        _ => opened,
    }
}

/// The inodes that the destination gives for the sources' names, which are
/// listed once more.
fn meant(group: &[&DirRef], known: &Known<'_>, fd: &impl AsFd) -> io::Result<HashSet<(u64, u64)>> {
    let mut inodes = HashSet::new();
    let mut look = |name: &[u8]| match Stat::at(fd, name) {
        Ok(stat) => {
            inodes.insert((stat.dev, stat.ino));
            Ok(())
        }
        Err(e) if e.raw_os_error() == Some(Errno::ENOENT as i32) => Ok(()),
        Err(e) => Err(e),
    };
    for dir in group.iter().filter(|dir| dir.is_entry()) {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let source = dir.source.root.at(&dir.relative(), flags)?;
        for entry in walk::names(&source)? {
            look(&entry.name)?;
        }
    }
    for name in &known.roots {
        look(name)?;
    }
    Ok(inodes)
}

fn is_meant(fd: &impl AsFd, name: &[u8], meant: &HashSet<(u64, u64)>) -> bool {
    // What cannot be looked at stays.
    Stat::at(fd, name).map_or(true, |stat| meant.contains(&(stat.dev, stat.ino)))
}
