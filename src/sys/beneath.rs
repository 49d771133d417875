//! Opening what lies below a directory, and nothing else.
//!
//! Paths are bytes relative to an opened root. No symlink is followed below
//! it, so a hostile or racing tree cannot lead out (openat2(2),
//! RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS; where the kernel or a sandbox
//! refuses that call, one O_NOFOLLOW step a component). Paths longer than
//! PATH_MAX are walked in pieces.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::Mode;

/// The kernel takes paths of up to 4,096 bytes with their NUL.
const PIECE_BYTES: usize = 4000;

/// Set once openat2 has answered ENOSYS (kernels before 5.6) or EPERM
/// (seccomp profiles that do not know it).
static NO_OPENAT2: AtomicBool = AtomicBool::new(false);

/// An opened directory below which everything happens.
#[derive(Debug)]
pub(crate) struct Root(OwnedFd);

impl Root {
    /// Opens the directory that a person named: here symlinks are followed.
    pub(crate) fn open(path: &Path) -> io::Result<Root> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        match openat(nix::fcntl::AT_FDCWD, path, flags, Mode::empty()) {
            Ok(fd) => Ok(Root(fd)),
            // Entering needs only the x bit; listing it will say what is wrong.
            Err(Errno::EACCES) => {
                let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
                Ok(Root(openat(
                    nix::fcntl::AT_FDCWD,
                    path,
                    flags,
                    Mode::empty(),
                )?))
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Takes an opened directory for a root.
    pub(crate) fn of(dir: OwnedFd) -> Root {
        Root(dir)
    }

    /// Opens `path` below this root; the root itself where it is empty.
    pub(crate) fn at(&self, path: &[u8], flags: OFlag) -> io::Result<OwnedFd> {
        let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        if path.is_empty() {
            return Ok(openat(&self.0, ".", flags, Mode::empty())?);
        }
        if path.len() <= PIECE_BYTES {
            return open_piece(self.0.as_fd(), path, flags);
        }
        let (first, rest) = cut(path);
        let mut dir = open_piece(
            self.0.as_fd(),
            first,
            OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        )?;
        let mut rest = rest;
        while rest.len() > PIECE_BYTES {
            let (piece, behind) = cut(rest);
            dir = open_piece(
                dir.as_fd(),
                piece,
                OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            )?;
            rest = behind;
        }
        open_piece(dir.as_fd(), rest, flags)
    }

    /// Opens a directory for `*at` calls only; needs no right to list it.
    pub(crate) fn dir(&self, path: &[u8]) -> io::Result<OwnedFd> {
        self.at(path, OFlag::O_PATH | OFlag::O_DIRECTORY)
    }

    /// Opens a regular file for reading, leaving its access time alone where
    /// that is allowed (O_NOATIME is for the owner and root). O_NONBLOCK: a
    /// FIFO that took the file's place must not hold the reader.
    pub(crate) fn file(&self, path: &[u8]) -> io::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        match self.at(path, flags | OFlag::O_NOATIME) {
            Err(e) if e.raw_os_error() == Some(Errno::EPERM as i32) => self.at(path, flags),
            other => other,
        }
        .map(File::from)
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Opens a file in an opened directory; see [`Root::file`].
pub(crate) fn open_file(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<File> {
    let flags = OFlag::O_RDONLY
        | OFlag::O_NONBLOCK
        | OFlag::O_NOCTTY
        | OFlag::O_NOFOLLOW
        | OFlag::O_CLOEXEC;
    match openat(dir, name, flags | OFlag::O_NOATIME, Mode::empty()) {
        Err(Errno::EPERM) => Ok(openat(dir, name, flags, Mode::empty())?.into()),
        other => Ok(other?.into()),
    }
}

/// Opens a directory in an opened one for listing. What is mounted there is
/// another tree, also where it is a part of the same filesystem: EXDEV.
pub(crate) fn open_dir_here(dir: BorrowedFd<'_>, name: &[u8], flags: OFlag) -> io::Result<OwnedFd> {
    let flags = flags | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    if !NO_OPENAT2.load(Relaxed) {
        let resolve = ResolveFlag::RESOLVE_BENEATH
            | ResolveFlag::RESOLVE_NO_SYMLINKS
            | ResolveFlag::RESOLVE_NO_XDEV;
        match openat2(dir, name, OpenHow::new().flags(flags).resolve(resolve)) {
            Err(Errno::ENOSYS) => NO_OPENAT2.store(true, Relaxed),
            Err(Errno::EPERM) => {}
            other => return Ok(other?),
        }
    }
    Ok(openat(dir, name, flags, Mode::empty())?)
}

/// Splits a long path at a slash: (at most `PIECE_BYTES`, the rest).
fn cut(path: &[u8]) -> (&[u8], &[u8]) {
    let slash = path[..PIECE_BYTES].iter().rposition(|&b| b == b'/');
    // A component has at most 255 bytes, so there is a slash.
    let at = slash.unwrap_or(PIECE_BYTES);
    (&path[..at], path.get(at + 1..).unwrap_or_default())
}

fn open_piece(dir: BorrowedFd<'_>, path: &[u8], flags: OFlag) -> io::Result<OwnedFd> {
    if !NO_OPENAT2.load(Relaxed) {
        let how = OpenHow::new().flags(flags).resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_MAGICLINKS,
        );
        match openat2(dir, path, how) {
            Err(Errno::ENOSYS) => NO_OPENAT2.store(true, Relaxed),
            // EPERM is also O_NOATIME's answer to those who do not own the file.
            Err(Errno::EPERM) if !flags.contains(OFlag::O_NOATIME) => {
                return open_steps(dir, path, flags);
            }
            other => return Ok(other?),
        }
    }
    open_steps(dir, path, flags)
}

fn open_steps(dir: BorrowedFd<'_>, path: &[u8], flags: OFlag) -> io::Result<OwnedFd> {
    let through = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut at: Option<OwnedFd> = None;
    let mut names = path.split(|&b| b == b'/').peekable();
    while let Some(name) = names.next() {
        let last = names.peek().is_none();
        let from = at.as_ref().map_or(dir, |fd| fd.as_fd());
        at = Some(openat(
            from,
            name,
            if last { flags } else { through },
            Mode::empty(),
        )?);
    }
    at.ok_or_else(|| Errno::ENOENT.into())
}

/// Joins path pieces with slashes, leaving out empty ones.
pub(crate) fn join<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut path = Vec::new();
    for piece in pieces {
        if piece.is_empty() {
            continue;
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(piece);
    }
    path
}

/// `base/below`, or `base` where `below` is empty.
pub(crate) fn append(base: &Path, below: &[u8]) -> PathBuf {
    if below.is_empty() {
        base.to_path_buf()
    } else {
        base.join(OsStr::from_bytes(below))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_are_cut_at_slashes() {
        let path = vec![b"name".as_slice(); 2000].join(&b'/');
        let (first, rest) = cut(&path);
        assert!(
            first.len() <= PIECE_BYTES && first.ends_with(b"name") && rest.starts_with(b"name")
        );
        assert_eq!([first, rest].join(&b'/'), path);
    }

    #[test]
    fn no_symlink_is_followed_by_either_way() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/f"), "x").unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("l")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        for open in [open_piece, open_steps] {
            assert!(open(root.as_fd(), b"a/b/f", flags).is_ok());
            for path in ["l/b/f", "l", "a/../a/b/none", "none/f"] {
                assert!(
                    open(root.as_fd(), path.as_bytes(), flags).is_err(),
                    "{path}"
                );
            }
        }
    }
}
