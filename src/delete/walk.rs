//! Removes one name with all that is below it.
//!
//! No symlink is followed and nothing mounted there is entered. A stack of
//! names, not of calls or descriptors: trees may be deeper than either allows,
//! so on the way back up a directory is opened again, and has to be the same.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use nix::dir::Type;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::keeps::Stays;
use super::{Does, Mirror, Told};
use crate::backup::Old;
use crate::error::{Failure, Op};
use crate::plan::Kind;
use crate::sys::metadata::Stat;
use crate::sys::{beneath, special};

/// A name of the destination.
pub(super) struct Entry {
    pub(super) name: Box<[u8]>,
    pub(super) is_dir: bool,
}

/// A directory on the way down.
struct Frame {
    /// The length of its path.
    len: usize,
    stat: Stat,
    /// Directories in it that are still to be entered.
    dirs: Vec<Box<[u8]>>,
    /// Something in it stays, and so does it.
    keeps: bool,
    /// Its mode before it was opened up for its user.
    mode_before: Option<u32>,
}

/// Everything in an opened directory.
pub(super) fn names(dir: &impl AsFd) -> io::Result<Vec<Entry>> {
    // A descriptor of its own: reading moves the position.
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut listed = nix::dir::Dir::openat(dir, ".", flags, Mode::empty())?;
    let mut entries = Vec::new();
    for entry in listed.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let is_dir = match entry.file_type() {
            Some(kind) => kind == Type::Directory,
            None => Stat::at(dir, name)?.kind() == Kind::Dir,
        };
        entries.push(Entry {
            name: name.into(),
            is_dir,
        });
    }
    Ok(entries)
}

/// The path of a name.
pub(super) fn below(dir: &[u8], name: &[u8]) -> Vec<u8> {
    beneath::join([dir, name])
}

/// Removes, or only tells, one name of the directory `fd` at `dir` below the
/// destination's root.
pub(super) fn take(
    mirror: &Mirror<'_>,
    fd: &OwnedFd,
    dir: &[u8],
    entry: &Entry,
    told: &mut dyn FnMut(Told),
) {
    let path = below(dir, &entry.name);
    let mut walk = Walk { mirror, path, told };
    if entry.is_dir {
        walk.tree(fd, dir.len(), &entry.name);
    } else {
        walk.unlink(fd.as_fd(), &entry.name, UnlinkatFlags::NoRemoveDir);
    }
}

struct Walk<'a, 'm> {
    mirror: &'a Mirror<'m>,
    /// Of what is at hand, below the destination's root.
    path: Vec<u8>,
    told: &'a mut dyn FnMut(Told),
}

impl Walk<'_, '_> {
    fn fail(&mut self, e: io::Error) {
        let path = beneath::append(&self.mirror.dest.path, &self.path);
        (self.told)(Told::Failed(Failure::new(Op::Remove, path, e)));
    }

    fn tree(&mut self, parent: &OwnedFd, parent_len: usize, name: &[u8]) {
        let mut stack = Vec::new();
        let Some((frame, fd)) = self.enter(parent.as_fd(), name) else {
            return;
        };
        let mut at = fd;
        stack.push(frame);
        while let Some(top) = stack.last_mut() {
            if self.mirror.stop.load(Relaxed) {
                return;
            }
            if let Some(name) = top.dirs.pop() {
                self.path.truncate(top.len);
                self.path = below(&self.path, &name);
                match self.enter(at.as_fd(), &name) {
                    Some((frame, fd)) => {
                        at = fd;
                        stack.push(frame);
                    }
                    None => top.keeps = true,
                }
                continue;
            }
            let Some(done) = stack.pop() else { return };
            self.path.truncate(done.len);
            let up = match stack.last() {
                None => None,
                Some(above) => match self.back_in(above) {
                    Ok(fd) => Some(fd),
                    // Whatever that is now, it is not what was listed.
                    Err(e) => return self.fail(e),
                },
            };
            let from = up.as_ref().unwrap_or(parent);
            let above = stack.last().map_or(parent_len, |above| above.len);
            let kept = self.leave(from.as_fd(), &at, &done, above);
            if let Some(above) = stack.last_mut() {
                above.keeps |= kept;
            }
            match up {
                Some(fd) => at = fd,
                None => return,
            }
        }
    }

    /// Opens a directory and removes what is in it but directories; none where
    /// it stays as it is.
    fn enter(&mut self, parent: BorrowedFd<'_>, name: &[u8]) -> Option<(Frame, OwnedFd)> {
        let opened = self.open(parent, name).and_then(|(fd, mode_before)| {
            let stat = Stat::of(&fd)?;
            if stat.dev != Stat::of(parent)?.dev {
                return Err(Errno::EXDEV.into());
            }
            Ok((fd, stat, mode_before))
        });
        let (fd, stat, mode_before) = match opened {
            Ok(opened) => opened,
            Err(e) if e.raw_os_error() == Some(Errno::EXDEV as i32) => {
                let why = "something is mounted there, and stays";
                self.fail(io::Error::other(why));
                return None;
            }
            Err(e) => {
                self.fail(e);
                return None;
            }
        };
        match self.mirror.keeps.dir(&stat) {
            Some(Stays::Quietly) => return None,
            Some(Stays::IsSource) => {
                self.fail(io::Error::other("it is a source of this very copy"));
                return None;
            }
            None => {}
        }
        let entries = match names(&fd) {
            Ok(entries) => entries,
            Err(e) => {
                self.fail(e);
                return None;
            }
        };
        let mut frame = Frame {
            len: self.path.len(),
            stat,
            dirs: Vec::new(),
            keeps: false,
            mode_before,
        };
        for entry in entries {
            self.path.truncate(frame.len);
            self.path = below(&self.path, &entry.name);
            if self.mirror.keeps.name(&self.path, entry.is_dir) {
                frame.keeps = true;
            } else if entry.is_dir {
                frame.dirs.push(entry.name);
            } else {
                // A backup beside it keeps the directory.
                frame.keeps |= !self.unlink(fd.as_fd(), &entry.name, UnlinkatFlags::NoRemoveDir)
                    || self.mirror.keeps.backups_beside();
            }
        }
        self.path.truncate(frame.len);
        Some((frame, fd))
    }

    /// Opens a directory for listing. An ordinary user's own one may have to be
    /// opened up first.
    fn open(&self, parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<(OwnedFd, Option<u32>)> {
        let pinned = beneath::open_dir_here(parent, name, OFlag::O_PATH)?;
        let mut mode_before = None;
        if self.mirror.does == Does::Remove && self.mirror.dest.is_user() {
            let stat = Stat::of(&pinned)?;
            if stat.mode & 0o700 != 0o700 && self.mirror.dest.is_own(&stat) {
                set_mode(&pinned, stat.permissions() | 0o700)?;
                mode_before = Some(stat.permissions());
            }
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok((openat(&pinned, ".", flags, Mode::empty())?, mode_before))
    }

    /// Opens a directory of the stack again.
    fn back_in(&self, frame: &Frame) -> io::Result<OwnedFd> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let fd = self.mirror.dest.root.at(&self.path[..frame.len], flags)?;
        if Stat::of(&fd)?.is_same_inode(&frame.stat) {
            Ok(fd)
        } else {
            Err(io::Error::other("its directory was moved meanwhile"))
        }
    }

    /// Removes a directory once it is empty; tells whether it stays.
    fn leave(&mut self, from: BorrowedFd<'_>, at: &OwnedFd, done: &Frame, above: usize) -> bool {
        if done.keeps {
            if let Some(Err(e)) = done.mode_before.map(|mode| set_mode(at, mode)) {
                self.fail(e);
            }
            return true;
        }
        let start = if above == 0 { 0 } else { above + 1 };
        let name = self.path[start..].to_vec();
        !self.unlink(from, &name, UnlinkatFlags::RemoveDir)
    }

    /// Removes one name, or only tells it; `false` where it stays.
    fn unlink(&mut self, dir: BorrowedFd<'_>, name: &[u8], how: UnlinkatFlags) -> bool {
        let mut old = Old::Nothing;
        if self.mirror.does == Does::Remove && matches!(how, UnlinkatFlags::NoRemoveDir) {
            match self.back_up(&dir, name) {
                Ok(kept) => old = kept,
                Err(e) => {
                    self.fail(e);
                    return false;
                }
            }
        }
        if self.mirror.does == Does::Remove && old != Old::Moved {
            match unlinkat(dir, name, how) {
                Ok(()) => {}
                // Somebody else was quicker.
                Err(Errno::ENOENT) => return true,
                Err(errno) => {
                    self.fail(errno.into());
                    return false;
                }
            }
        }
        let path = beneath::append(&self.mirror.dest.path, &self.path);
        (self.told)(Told::Gone(path));
        true
    }
}

impl Walk<'_, '_> {
    fn back_up(&self, dir: &BorrowedFd<'_>, name: &[u8]) -> io::Result<Old> {
        let Some(backups) = &self.mirror.dest.backups else {
            return Ok(Old::Nothing);
        };
        let above = self.path.len().saturating_sub(name.len() + 1);
        backups.keep(&self.mirror.dest.root, dir, &self.path[..above], name)
    }
}

fn set_mode(dir: &impl AsFd, mode: u32) -> io::Result<()> {
    let mode = Mode::from_bits_truncate(mode);
    let path = special::proc_path(dir);
    Ok(fchmodat(
        AT_FDCWD,
        path.as_path(),
        mode,
        FchmodatFlags::FollowSymlink,
    )?)
}
