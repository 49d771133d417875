//! A file of the destination while it is being written.
//!
//! A new name is created exclusively, private, and marked as unfinished; its
//! mtime and mode come when it is complete, so that a killed run leaves nothing
//! that a later one takes for finished, or for newer. An existing name keeps its
//! old content until the new file, which has no name until then (O_TMPFILE), is
//! renamed over it: never is an existing inode written to, for other names may
//! share it.

use std::fs::File;
use std::io;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::checkpoint;
use super::spot::{Spot, temporary_name};
use crate::error::{During, Failure, Op};
use crate::plan::LARGE_BYTES;
use crate::sys::metadata::{Stat, Target};
use crate::sys::special;
use crate::sys::xattrs::{Place, Xattrs};

/// How a part gets its name.
#[derive(Debug)]
enum Naming {
    /// It has it already.
    Named,
    /// It has none yet, and replaces what is there.
    Nameless,
    /// It has a temporary one, and replaces what is there.
    Temporary(String),
    /// It is the file that is there (`--inplace`).
    InPlace,
}

/// A file under way.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) file: File,
    naming: Naming,
}

impl Spot<'_> {
    /// Begins a file. A name that is there already stays as it is for now.
    pub(crate) fn create(&self, stat: &Stat) -> Result<Part, Failure> {
        match self.create_new(stat)? {
            Some(part) => Ok(part),
            None => self.create_beside(),
        }
    }

    /// The same, but where the name is taken under one that a later run finds.
    pub(crate) fn create_findable(&self, stat: &Stat, name: String) -> Result<Part, Failure> {
        if let Some(part) = self.create_new(stat)? {
            return Ok(part);
        }
        match self.create_named(name.as_bytes()) {
            Ok(file) => Ok(Part::temporary(file, name)),
            // Another run's, or a stranger's.
            Err(Errno::EEXIST) => self.create_beside(),
            Err(errno) => Err(Failure::new(Op::Create, self.path(), errno.into())),
        }
    }

    /// Begins a file under its own name; `None` where that is taken by what may
    /// be replaced.
    fn create_new(&self, stat: &Stat) -> Result<Option<Part>, Failure> {
        match self.create_named(self.name) {
            Ok(file) => return Ok(Some(Part::named(file))),
            Err(Errno::EEXIST) => {}
            Err(errno) => return Err(Failure::new(Op::Create, self.path(), errno.into())),
        }
        if let Some(there) = self.replaceable(stat)? {
            self.forget(&there);
            if !there.is_part() || !self.remove_part(&there)? {
                return Ok(None);
            }
        }
        // It went away in between, or is what a killed run left.
        let file = self
            .create_named(self.name)
            .during_at(Op::Create, || self.path())?;
        Ok(Some(Part::named(file)))
    }

    /// Removes what a killed run has left of a file, so that its room is free;
    /// `false` where it may have another name that means something, or be what
    /// this very run is writing.
    fn remove_part(&self, there: &Stat) -> Result<bool, Failure> {
        // A small one takes little room, and is not locked by who writes it.
        let is_small = there.allocated <= LARGE_BYTES;
        if is_small || self.meets() || there.links != 1 || !self.run.dest.is_own(there) {
            return Ok(false);
        }
        let opened = self.open_to_write(self.name);
        if opened.is_ok_and(|file| !checkpoint::is_free(self.run, &file)) {
            let why = "another run is writing it";
            return Err(Failure::because(Op::Create, self.path(), why));
        }
        unlinkat(self.fd, self.name, UnlinkatFlags::NoRemoveDir)
            .during_at(Op::Remove, || self.path())?;
        Ok(true)
    }

    /// Begins a file without a name, or with one of our own.
    fn create_beside(&self) -> Result<Part, Failure> {
        let flags = OFlag::O_RDWR | OFlag::O_TMPFILE | OFlag::O_CLOEXEC;
        match openat(self.fd, ".", flags, PRIVATE) {
            Ok(fd) => {
                return Ok(Part {
                    file: fd.into(),
                    naming: Naming::Nameless,
                });
            }
            Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::EINVAL | Errno::ENOENT) => {}
            Err(errno) => return Err(Failure::new(Op::Create, self.path(), errno.into())),
        }
        loop {
            let name = temporary_name();
            match self.create_named(name.as_bytes()) {
                Ok(file) => return Ok(Part::temporary(file, name)),
                Err(Errno::EEXIST) => {}
                Err(errno) => return Err(Failure::new(Op::Create, self.path(), errno.into())),
            }
        }
    }

    /// Opens a file that is there, without waiting for whatever else it is.
    pub(crate) fn open_to_write(&self, name: &[u8]) -> nix::Result<File> {
        let flags = OFlag::O_RDWR
            | OFlag::O_NOFOLLOW
            | OFlag::O_NONBLOCK
            | OFlag::O_NOCTTY
            | OFlag::O_CLOEXEC;
        openat(self.fd, name, flags, Mode::empty()).map(File::from)
    }

    fn create_named(&self, name: &[u8]) -> nix::Result<File> {
        let flags =
            OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        match openat(self.fd, name, flags, MARKED) {
            Ok(fd) => Ok(fd.into()),
            Err(errno @ (Errno::EEXIST | Errno::ENOENT | Errno::ENOSPC)) => Err(errno),
            // Other systems, behind a network, may know no such mark.
            Err(errno) => openat(self.fd, name, flags, PRIVATE)
                .map(File::from)
                .map_err(|_| errno),
        }
    }
}

const PRIVATE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// See [`UNFINISHED`](crate::sys::metadata::UNFINISHED).
const MARKED: Mode = PRIVATE.union(Mode::S_ISVTX);

impl Part {
    /// The file that is there already, to be written into.
    pub(crate) fn in_place(file: File) -> Part {
        Part {
            file,
            naming: Naming::InPlace,
        }
    }

    /// A file that has its name.
    pub(crate) fn named(file: File) -> Part {
        let naming = Naming::Named;
        Part { file, naming }
    }

    /// A file that has another name for now.
    pub(crate) fn temporary(file: File, name: String) -> Part {
        let naming = Naming::Temporary(name);
        Part { file, naming }
    }

    /// Whether it took a name that was free.
    pub(crate) fn is_named(&self) -> bool {
        matches!(self.naming, Naming::Named)
    }

    /// Whether a later run could find it.
    pub(crate) fn can_be_found(&self) -> bool {
        matches!(self.naming, Naming::Named | Naming::Temporary(_))
    }

    /// Gives a complete file its metadata and its name.
    pub(crate) fn finish(
        &self,
        spot: &Spot<'_>,
        stat: &Stat,
        xattrs: &Xattrs,
    ) -> Result<Vec<Failure>, Failure> {
        let dressed = spot.dress(
            &Target::Open(&self.file),
            &Place::Open(&self.file),
            stat,
            xattrs,
            !spot.hands_down_acl() && !matches!(self.naming, Naming::InPlace),
        );
        let named = dressed.and_then(|failures| self.publish(spot).map(|()| failures));
        if named.is_err() {
            self.discard(spot)?;
        }
        named
    }

    fn publish(&self, spot: &Spot<'_>) -> Result<(), Failure> {
        let rename = |name: &str| {
            spot.back_up()?;
            renameat(spot.fd, name, spot.fd, spot.name).during_at(Op::Rename, || spot.path())
        };
        match &self.naming {
            Naming::Named | Naming::InPlace => Ok(()),
            Naming::Temporary(name) => rename(name),
            Naming::Nameless => {
                let name = self.name_it(spot).during_at(Op::Create, || spot.path())?;
                rename(&name).inspect_err(|_| {
                    // The rename's failure is what is told; a second one of
                    // the same directory would add nothing.
                    unlinkat(spot.fd, name.as_str(), UnlinkatFlags::NoRemoveDir)
                        .unwrap_or_default();
                })
            }
        }
    }

    fn name_it(&self, spot: &Spot<'_>) -> io::Result<String> {
        let from = special::proc_path(&self.file);
        loop {
            let name = temporary_name();
            let flags = AtFlags::AT_SYMLINK_FOLLOW;
            match linkat(AT_FDCWD, from.as_path(), spot.fd, name.as_str(), flags) {
                Ok(()) => return Ok(name),
                Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Removes what was not finished. A name that meanwhile means something
    /// else is left alone.
    pub(crate) fn discard(&self, spot: &Spot<'_>) -> Result<(), Failure> {
        let name = match &self.naming {
            // What is written in place stays, marked as unfinished by its mtime.
            Naming::Nameless | Naming::InPlace => return Ok(()),
            Naming::Named => spot.name,
            Naming::Temporary(name) => name.as_bytes(),
        };
        let ours = Stat::of(&self.file).during_at(Op::Remove, || spot.path())?;
        match Stat::at(spot.fd, name) {
            Ok(there) if there.is_same_inode(&ours) => {
                unlinkat(spot.fd, name, UnlinkatFlags::NoRemoveDir)
                    .during_at(Op::Remove, || spot.path())
            }
            _ => Ok(()),
        }
    }
}
