//! One entry beside what the destination has under its name: one stat on each
//! side says what is to be done.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use nix::fcntl::OFlag;

use super::Dest;
use crate::cache::Cache;
use crate::job::{Dedup, DedupIgnore, Options};
use crate::plan::{Action, Dir, Kind, There};
use crate::sys::metadata::Owner;
use crate::sys::metadata::Stat;
use crate::sys::xattrs::{self, Place, Xattrs};
use crate::sys::{special, transfer};
use crate::work::checkpoint::Parts;

/// What is to be done with what is there already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) checksum: bool,
    pub(crate) update: bool,
    pub(crate) ignore_existing: bool,
    pub(crate) existing: bool,
    min_size: Option<u64>,
    max_size: Option<u64>,
    /// Nobody has to look again at what is found equal in everything.
    pub(crate) settle: bool,
}

impl Rules {
    /// Whether a file may have to be left although there is nothing in its place.
    pub(crate) fn may_skip_new(&self) -> bool {
        self.existing || self.min_size.is_some() || self.max_size.is_some()
    }

    pub(super) fn new(options: &Options) -> Rules {
        Rules {
            checksum: options.checksum,
            update: options.update,
            ignore_existing: options.ignore_existing,
            existing: options.existing,
            min_size: options.filter.min_size,
            max_size: options.filter.max_size,
            settle: options.dedup == Dedup::None,
        }
    }
}

/// What the destination has under an entry's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compared {
    pub(crate) exists: bool,
    /// Bytes that replacing it frees.
    pub(crate) frees_bytes: u64,
    pub(crate) action: Action,
}

/// The directories that hold an entry, kept open for its neighbours.
#[derive(Debug, Default)]
pub(crate) struct Sides(Option<Open>);

#[derive(Debug)]
struct Open {
    dir: Arc<Dir>,
    source: OwnedFd,
    /// None where the destination has no such directory.
    dest: Option<OwnedFd>,
}

impl Sides {
    fn open(&mut self, dest: Option<&Dest>, dir: &Arc<Dir>) -> io::Result<&Open> {
        let open = match self.0.take() {
            Some(open) if Arc::ptr_eq(&open.dir, dir) => open,
            _ => Open {
                dir: dir.clone(),
                source: dir.source.root.dir(&dir.relative())?,
                // What cannot be opened is found out when something is made in it.
                dest: dest
                    .filter(|_| dir.there == There::Dir)
                    .and_then(|dest| open_dest(dest, dir)),
            },
        };
        Ok(self.0.insert(open))
    }

    /// The source's directory.
    pub(crate) fn source(&mut self, dest: Option<&Dest>, dir: &Arc<Dir>) -> io::Result<&OwnedFd> {
        Ok(&self.open(dest, dir)?.source)
    }
}

/// Opened for reading where that is allowed, so that its flags can be asked.
fn open_dest(dest: &Dest, dir: &Dir) -> Option<OwnedFd> {
    let path = dir.relative_dest();
    let readable = dest.root.at(&path, OFlag::O_RDONLY | OFlag::O_DIRECTORY);
    readable.or_else(|_| dest.root.dir(&path)).ok()
}

impl Dest {
    /// Says what is to be done with an entry of a directory.
    pub(crate) fn compare(
        &self,
        sides: &mut Sides,
        dir: &Arc<Dir>,
        name: &[u8],
        stat: &Stat,
        cache: Option<&Cache>,
    ) -> Compared {
        let mut compared = self.compare_there(sides, dir, name, stat, cache);
        if stat.kind() == Kind::File && !self.takes_size(stat.size) {
            compared.action = Action::Skip;
        }
        if compared.action != Action::Copy || !self.is_referenced(dir, name, stat) {
            return compared;
        }
        Compared {
            action: Action::Refer,
            ..compared
        }
    }

    fn takes_size(&self, bytes: u64) -> bool {
        self.rules.min_size.is_none_or(|least| bytes >= least)
            && self.rules.max_size.is_none_or(|most| bytes <= most)
    }

    fn compare_there(
        &self,
        sides: &mut Sides,
        dir: &Arc<Dir>,
        name: &[u8],
        stat: &Stat,
        cache: Option<&Cache>,
    ) -> Compared {
        let make = Compared {
            exists: false,
            frees_bytes: 0,
            action: Action::Copy,
        };
        let skip = Compared {
            action: Action::Skip,
            ..make
        };
        let missing = if self.rules.existing { skip } else { make };
        if self.is_new_in(dir) {
            return missing;
        }
        // What cannot be looked at is found out when it is made.
        let Ok(open) = sides.open(Some(self), dir) else {
            return make;
        };
        let Some(parent) = &open.dest else {
            return make;
        };
        let looked = Stat::at(parent, dir.dest_name(name));
        let mut parts = Parts::default();
        if stat.kind() == Kind::File {
            let there = looked.as_ref().ok();
            parts = Parts::of(self, parent, dir.dest_name(name), stat, there);
            self.parts_bytes.fetch_add(parts.bytes, Relaxed);
        }
        match looked {
            Ok(there) => Compared {
                exists: !there.is_part(),
                frees_bytes: if there.links == 1 && !there.is_part() {
                    there.allocated
                } else {
                    0
                },
                action: match self.action(open, parent, name, (stat, &there), cache) {
                    // Who keeps it clears up beside it.
                    Action::Same if parts.is_beside => Action::Keep,
                    action => action,
                },
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => missing,
            Err(_) => make,
        }
    }

    fn action(
        &self,
        open: &Open,
        parent: &OwnedFd,
        name: &[u8],
        (stat, there): (&Stat, &Stat),
        cache: Option<&Cache>,
    ) -> Action {
        let name_there = open.dir.dest_name(name);
        let both_files = stat.kind() == Kind::File && there.kind() == Kind::File;
        let is_newer = there.mtime.is_after(self.modify_window, stat.mtime);
        // What a killed run has left is nobody's newer file.
        if both_files && there.is_unfinished(stat) {
            return Action::Copy;
        }
        if self.rules.ignore_existing || (self.rules.update && both_files && is_newer) {
            return Action::Skip;
        }
        let is_equal = there.kind() == stat.kind()
            && !there.is_same_inode(stat)
            && match stat.kind() {
                Kind::File if self.rules.checksum => {
                    stat.size == there.size
                        && cache.is_some_and(|cache| {
                            let ours = cache.known(&open.source, stat);
                            ours.is_some() && ours == cache.known(parent, there)
                        })
                }
                Kind::File => self.is_same_content_by_stat(stat, there),
                Kind::Symlink => is_same_link(&open.source, name, parent, name_there),
                Kind::CharDevice | Kind::BlockDevice => stat.rdev == there.rdev,
                Kind::Dir | Kind::Fifo | Kind::Socket => true,
            };
        if !is_equal {
            return Action::Copy;
        }
        let alone = stat.links == 1 && there.links == 1 && !self.meet;
        let settles = self.rules.settle && alone && !open.folds_case();
        if settles && self.is_same(open, parent, name, stat, there) {
            return Action::Same;
        }
        Action::Keep
    }

    /// Whether all other metadata is equal as well, with nothing to be said.
    fn is_same(
        &self,
        open: &Open,
        parent: &OwnedFd,
        name: &[u8],
        stat: &Stat,
        there: &Stat,
    ) -> bool {
        let exact = (stat.uid, stat.gid) == (there.uid, there.gid) && stat.mtime == there.mtime;
        if !exact && self.modify_window == 0 {
            return false;
        }
        // What goes wrong in reading them is told by who looks again.
        let xattrs = |dir: &OwnedFd, name: &[u8]| Place::name(dir, name).read().ok();
        let (Some(want), Some(have)) = (
            xattrs(&open.source, name),
            xattrs(parent, open.dir.dest_name(name)),
        ) else {
            return false;
        };
        is_right_for(self, (stat, &want), (there, &have), DedupIgnore::default())
    }
}

impl Open {
    fn folds_case(&self) -> bool {
        let ask = || self.dest.as_ref().is_some_and(transfer::folds_case);
        *self.dir.folds_case.get_or_init(ask)
    }
}

fn is_same_link(from: &impl AsFd, name: &[u8], parent: &impl AsFd, name_there: &[u8]) -> bool {
    match (
        special::read_link(from, name),
        special::read_link(parent, name_there),
    ) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

/// Whether an entry's metadata is what it should be, as far as it can be.
pub(crate) fn is_up_to_date(
    dest: &Dest,
    stat: &Stat,
    xattrs: &Xattrs,
    there: &Stat,
    have: &Xattrs,
) -> bool {
    is_right_for(dest, (stat, xattrs), (there, have), DedupIgnore::default())
}

/// The same, but for what may differ between names of one content.
pub(crate) fn is_right_for(
    dest: &Dest,
    (stat, xattrs): (&Stat, &Xattrs),
    (there, have): (&Stat, &Xattrs),
    ignore: DedupIgnore,
) -> bool {
    let owner = Owner {
        uid: there.uid == stat.uid,
        gid: there.gid == stat.gid,
    };
    let is_user = dest.is_user();
    let counts = |name: &std::ffi::OsStr| {
        !(xattrs::is_local(name) || is_user && xattrs::is_privileged(name))
    };
    let want = xattrs.iter().filter(|(name, _)| counts(name));
    let have = have.iter().filter(|(name, _)| counts(name));
    (owner.is_kept() || is_user || ignore.owner)
        && (stat.kind() == Kind::Symlink
            || ignore.mode
            || there.permissions() == owner.permissions(stat))
        && (ignore.time || dest.is_near_time(stat.mtime, there.mtime))
        && (ignore.xattr || want.eq(have))
}
