//! Entries without content: symlinks, FIFOs, sockets' names and device nodes;
//! and the /proc names by which an inode is reached that is not opened.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, SFlag, mknodat};

use super::metadata::Stat;

/// Pins an inode without opening it: no read of a device, no wait for a FIFO's
/// other end.
pub(crate) fn pin(dir: impl AsFd, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(openat(dir, name, flags, Mode::empty())?)
}

/// A path that leads to the inode behind a descriptor.
pub(crate) fn proc_path(fd: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// A path to a name in an open directory.
pub(crate) fn proc_name(dir: impl AsFd, name: &[u8]) -> PathBuf {
    proc_path(dir).join(OsStr::from_bytes(name))
}

/// The text of a symlink.
pub(crate) fn read_link(dir: impl AsFd, name: &[u8]) -> io::Result<Vec<u8>> {
    use std::os::unix::ffi::OsStringExt;
    Ok(nix::fcntl::readlinkat(dir, name)?.into_vec())
}

/// Makes a symlink; a name that exists is an error.
pub(crate) fn make_link(text: &[u8], dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    Ok(nix::unistd::symlinkat(text, dir, name)?)
}

/// Makes a FIFO, socket or device node like `stat`, private until its owner
/// and mode are set. Devices are made from `rdev`, the node's own number.
pub(crate) fn make_node(stat: &Stat, dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    let kind = SFlag::from_bits_truncate(stat.mode) & SFlag::S_IFMT;
    Ok(mknodat(
        dir,
        name,
        kind,
        Mode::from_bits_truncate(0o600),
        stat.rdev,
    )?)
}
