//! A name of the destination: what is there, whether it may be replaced, whose
//! it is, and how it becomes one more name of an inode.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, renameat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::run::Run;
use crate::delete;
use crate::dest::made;
use crate::error::{During, Failure, Op};
use crate::plan::{Dir, Kind};
use crate::sys::metadata::{Stat, Target};
use crate::sys::special;
use crate::sys::xattrs::{Place, Xattrs};

/// A name in an opened directory of the destination.
pub(crate) struct Spot<'a> {
    pub(crate) run: &'a Run<'a>,
    pub(crate) dir: Arc<Dir>,
    pub(crate) fd: &'a OwnedFd,
    pub(crate) name: &'a [u8],
}

pub(crate) const TAKEN: &str =
    "another entry has this name here already (two sources, or a destination that ignores case)";

static TEMPORARIES: AtomicU64 = AtomicU64::new(0);

/// A name of our own, short whatever the file's name, in a directory where it
/// is created exclusively: a file that happens to be called so is never taken
/// for ours.
pub(crate) fn temporary_name() -> String {
    format!(
        ".haul-{}-{}",
        std::process::id(),
        TEMPORARIES.fetch_add(1, Relaxed)
    )
}

impl Spot<'_> {
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.dest_path_of(&self.run.dest.path, self.name)
    }

    fn is_fresh(&self) -> bool {
        made(&self.dir).is_some_and(|made| made.fresh)
    }

    /// Whether what is made here may have got attributes from its directory.
    pub(super) fn hands_down_acl(&self) -> bool {
        made(&self.dir).is_some_and(|made| made.hands_down_acl)
    }

    /// Looks at what may be replaced by an entry like `stat`; tells what must
    /// not be: a directory, the source itself, another entry of this tree.
    pub(crate) fn replaceable(&self, stat: &Stat) -> Result<Option<Stat>, Failure> {
        let there = match Stat::at(self.fd, self.name) {
            Ok(there) => there,
            Err(e) if e.raw_os_error() == Some(Errno::ENOENT as i32) => return Ok(None),
            Err(e) => return Err(Failure::new(Op::Create, self.path(), e)),
        };
        let refuse = |why: &str| Err(Failure::because(Op::Create, self.path(), why));
        if there.kind() == Kind::Dir {
            if self.may_clear() && delete::clear(self)? {
                return Ok(None);
            }
            return Err(Failure::new(Op::Create, self.path(), Errno::EISDIR.into()));
        }
        // Another name of the source's inode may be replaced: the source keeps
        // its own.
        if there.is_same_inode(stat) && self.is_source_itself()? {
            return refuse("it is the source itself: the same file");
        }
        if self.is_fresh() || self.is_taken(&there) {
            return refuse(TAKEN);
        }
        Ok(Some(there))
    }

    /// Whether a directory that is here already may be one that no source has.
    fn may_clear(&self) -> bool {
        let made = made(&self.dir);
        self.run.options.delete && made.is_some_and(|made| !made.fresh && made.taken.is_none())
    }

    /// Keeps what is here already, and is about to be replaced, as a backup.
    pub(super) fn back_up(&self) -> Result<(), Failure> {
        let Some(backups) = &self.run.dest.backups else {
            return Ok(());
        };
        // What a killed run has left of a new file is no state worth keeping.
        if Stat::at(self.fd, self.name).is_ok_and(|there| there.is_part()) {
            return Ok(());
        }
        let dest = &self.run.dest.root;
        let beside = backups.name_beside(self.name);
        let is_entry = |name: &Vec<u8>| {
            let there = || Stat::at(self.fd, name).ok();
            self.dir.has_name(name) || self.meets() && there().is_some_and(|t| self.has(&t, name))
        };
        if beside.as_ref().is_some_and(is_entry) {
            let why = "the source has an entry with the name of its backup";
            return Err(Failure::because(Op::Rename, self.path(), why));
        }
        backups
            .keep(dest, self.fd, &self.dir.relative_dest(), self.name)
            .map(|_| ())
            .during_at(Op::Rename, || self.path())
            .map_err(|failure| failure.detail("to its backup"))
    }

    fn is_source_itself(&self) -> Result<bool, Failure> {
        let here = Stat::of(self.fd).during_at(Op::Create, || self.path())?;
        Ok(here.is_same_inode(&self.dir.stat))
    }

    fn is_taken(&self, there: &Stat) -> bool {
        self.has(there, self.name)
    }

    /// Whether an inode is another entry's under a name.
    fn has(&self, there: &Stat, name: &[u8]) -> bool {
        made(&self.dir)
            .and_then(|made| made.taken.as_ref())
            .is_some_and(|taken| taken.has(there.ino, name))
    }

    /// Whether entries of several directories may get a name here.
    pub(super) fn meets(&self) -> bool {
        made(&self.dir).is_some_and(|made| made.taken.is_some())
    }

    /// Remembers, where two entries could get one name, that this inode is an
    /// entry's; `false` where it is another's already.
    pub(crate) fn claim(&self, stat: &Stat) -> bool {
        let taken = made(&self.dir).and_then(|made| made.taken.as_ref());
        taken.is_none_or(|taken| taken.claim(stat.ino, self.name))
    }

    /// Takes a claim back: the entry will get another inode.
    pub(crate) fn unclaim(&self, stat: &Stat) {
        if let Some(taken) = made(&self.dir).and_then(|made| made.taken.as_ref()) {
            taken.unclaim(stat.ino, self.name);
        }
    }

    /// Remembers what was just made here.
    pub(crate) fn take(&self, stat: &Stat) {
        self.claim(stat);
    }

    /// The same without having looked at it.
    pub(crate) fn take_new(&self) {
        if made(&self.dir).is_some_and(|made| made.taken.is_some())
            && let Ok(stat) = Stat::at(self.fd, self.name)
        {
            self.take(&stat);
        }
    }

    /// Makes something that is not a regular file by `make`, under a temporary
    /// name where the name is taken; then gives it metadata and its name.
    pub(crate) fn make(
        &self,
        stat: &Stat,
        xattrs: &Xattrs,
        make: impl Fn(&[u8]) -> io::Result<()>,
    ) -> Result<Vec<Failure>, Failure> {
        match make(self.name) {
            Ok(()) => return self.dress_name(self.name, stat, xattrs),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Failure::new(Op::Create, self.path(), e)),
        }
        self.replaceable(stat)?;
        let name = loop {
            let name = temporary_name();
            match make(name.as_bytes()) {
                Ok(()) => break name,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Failure::new(Op::Create, self.path(), e)),
            }
        };
        let dressed = self
            .dress_name(name.as_bytes(), stat, xattrs)
            .and_then(|failures| {
                self.back_up()?;
                renameat(self.fd, name.as_str(), self.fd, self.name)
                    .during_at(Op::Rename, || self.path())?;
                Ok(failures)
            });
        if dressed.is_err() {
            self.remove(&name)?;
        }
        dressed
    }

    fn dress_name(
        &self,
        name: &[u8],
        stat: &Stat,
        xattrs: &Xattrs,
    ) -> Result<Vec<Failure>, Failure> {
        let place = Place::name(self.fd, name);
        let clean = !self.hands_down_acl();
        self.dress(&Target::Name(self.fd, name), &place, stat, xattrs, clean)
    }

    /// Makes a hard link to `leader` under this name, in place of what is
    /// there.
    pub(crate) fn link(&self, leader: impl AsFd, leader_name: &[u8]) -> io::Result<()> {
        match linkat(&leader, leader_name, self.fd, self.name, AtFlags::empty()) {
            Err(Errno::EEXIST) => {}
            other => return Ok(other?),
        }
        self.back_up().map_err(|failure| failure.source)?;
        self.relink(leader, leader_name)
    }

    /// The same over a name that this run has made.
    pub(crate) fn relink(&self, leader: impl AsFd, leader_name: &[u8]) -> io::Result<()> {
        loop {
            let name = temporary_name();
            match linkat(
                &leader,
                leader_name,
                self.fd,
                name.as_str(),
                AtFlags::empty(),
            ) {
                Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno.into()),
                Ok(()) => {
                    if let Err(errno) = renameat(self.fd, name.as_str(), self.fd, self.name) {
                        unlinkat(self.fd, name.as_str(), UnlinkatFlags::NoRemoveDir)?;
                        return Err(errno.into());
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Makes this name one more of an opened file's inode, in place of what is
    /// there: `ours` if this run has made it.
    pub(crate) fn adopt(&self, file: &File, ours: bool) -> io::Result<()> {
        let from = special::proc_path(file);
        let link = |name: &[u8]| {
            let flags = AtFlags::AT_SYMLINK_FOLLOW;
            linkat(AT_FDCWD, from.as_path(), self.fd, name, flags)
        };
        match link(self.name) {
            Err(Errno::EEXIST) => {}
            other => return Ok(other?),
        }
        if !ours {
            self.back_up().map_err(|failure| failure.source)?;
        }
        let name = loop {
            let name = temporary_name();
            match link(name.as_bytes()) {
                Ok(()) => break name,
                Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        };
        if let Err(errno) = renameat(self.fd, name.as_str(), self.fd, self.name) {
            unlinkat(self.fd, name.as_str(), UnlinkatFlags::NoRemoveDir)?;
            return Err(errno.into());
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), Failure> {
        unlinkat(self.fd, name, UnlinkatFlags::NoRemoveDir).during_at(Op::Remove, || self.path())
    }
}
