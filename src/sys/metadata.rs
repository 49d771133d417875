//! Metadata of an entry: asked once, kept in a small struct, and set in the
//! only order that works: owner (which clears setuid bits and capabilities),
//! extended attributes, times, and mode last.

use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, Mode, SFlag, UtimensatFlags};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid};

use crate::plan::Kind;

/// Seconds and nanoseconds since the epoch, as the kernel has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub s: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub ns: u32,
}

impl Time {
    /// The time of the clock.
    pub(crate) fn now() -> Time {
        let now = std::time::SystemTime::now();
        let since = now
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        Time {
            s: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            ns: since.subsec_nanos(),
        }
    }

    /// Whether two times lie at most this many seconds apart; with 0, never.
    pub(crate) fn is_within(self, window_s: u64, other: Time) -> bool {
        let ns = |t: Time| i128::from(t.s) * 1_000_000_000 + i128::from(t.ns);
        window_s > 0 && ns(self).abs_diff(ns(other)) <= u128::from(window_s) * 1_000_000_000
    }

    /// Whether this time is later than another by more than the window.
    pub(crate) fn is_after(self, window_s: u64, other: Time) -> bool {
        self > other && !self.is_within(window_s, other)
    }

    fn spec(self) -> TimeSpec {
        TimeSpec::new(self.s, i64::from(self.ns))
    }
}

/// The sticky bit. On Linux it means nothing on a regular file, so it is the
/// mark of one that is not finished: part of the mode that a file is created
/// with, at no cost, and gone with the last thing that is set.
pub(crate) const UNFINISHED: u32 = 0o1000;

/// What stat(2) says of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Device that holds it.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Type and permission bits.
    pub mode: u32,
    /// Hard links.
    pub links: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// For a device node: which device.
    pub rdev: u64,
    /// Apparent size in bytes.
    pub size: u64,
    /// Allocated bytes.
    pub allocated: u64,
    /// Preferred block size in bytes.
    pub block: u32,
    /// Last access.
    pub atime: Time,
    /// Last modification of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
}

impl Stat {
    /// Asks an open file.
    pub(crate) fn of(fd: impl AsFd) -> io::Result<Stat> {
        Ok(Stat::from(nix::sys::stat::fstat(fd)?))
    }

    /// Asks for a name in an open directory, following nothing.
    pub(crate) fn at(dir: impl AsFd, name: &[u8]) -> io::Result<Stat> {
        let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
        Ok(Stat::from(nix::sys::stat::fstatat(dir, name, flags)?))
    }

    /// What kind of entry it is.
    pub fn kind(&self) -> Kind {
        match SFlag::from_bits_truncate(self.mode) & SFlag::S_IFMT {
            SFlag::S_IFDIR => Kind::Dir,
            SFlag::S_IFLNK => Kind::Symlink,
            SFlag::S_IFIFO => Kind::Fifo,
            SFlag::S_IFSOCK => Kind::Socket,
            SFlag::S_IFCHR => Kind::CharDevice,
            SFlag::S_IFBLK => Kind::BlockDevice,
            _ => Kind::File,
        }
    }

    /// Permission bits with setuid, setgid and sticky.
    pub fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }

    /// Whether it is a file that a run has left unfinished, where the file it
    /// should be is `source`.
    pub(crate) fn is_unfinished(&self, source: &Stat) -> bool {
        self.kind() == Kind::File && self.mode & UNFINISHED != 0 && source.mode & UNFINISHED == 0
    }

    /// Whether it is as a file is created here, before it gets its own mode.
    pub(crate) fn is_part(&self) -> bool {
        self.kind() == Kind::File && self.permissions() == 0o600 | UNFINISHED
    }

    /// Whether both are one and the same inode.
    pub(crate) fn is_same_inode(&self, other: &Stat) -> bool {
        (self.dev, self.ino) == (other.dev, other.ino)
    }

    /// Whether the content may have changed between the two looks.
    pub(crate) fn held_still(&self, later: &Stat) -> bool {
        (self.size, self.mtime, self.ctime) == (later.size, later.mtime, later.ctime)
    }
}

// The kernel's counts are never negative and device numbers fit.
#[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation)]
impl From<FileStat> for Stat {
    fn from(s: FileStat) -> Stat {
        let time = |s, ns| Time { s, ns: ns as u32 };
        Stat {
            dev: s.st_dev,
            ino: s.st_ino,
            mode: s.st_mode,
            links: s.st_nlink,
            uid: s.st_uid,
            gid: s.st_gid,
            rdev: s.st_rdev,
            size: s.st_size as u64,
            allocated: s.st_blocks as u64 * 512,
            block: s.st_blksize as u32,
            atime: time(s.st_atime, s.st_atime_nsec),
            mtime: time(s.st_mtime, s.st_mtime_nsec),
            ctime: time(s.st_ctime, s.st_ctime_nsec),
        }
    }
}

/// How much of an owner could be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: bool,
    pub(crate) gid: bool,
}

impl Owner {
    pub(crate) const KEPT: Owner = Owner {
        uid: true,
        gid: true,
    };

    pub(crate) fn is_kept(self) -> bool {
        self.uid && self.gid
    }

    /// The mode that may be set: setuid and setgid bits speak for an owner,
    /// and are dropped where that owner is not the file's.
    pub(crate) fn permissions(self, stat: &Stat) -> u32 {
        let mut mode = stat.permissions();
        if !self.uid {
            mode &= !0o4000;
        }
        // On a directory it says whose group new files get: another's now.
        if !self.gid {
            mode &= !0o2000;
        }
        mode
    }
}

/// Something to set metadata on: an open file, or a name in an open directory
/// (for what must not or cannot be opened). Names are never followed.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a, Fd: AsFd> {
    Open(&'a Fd),
    Name(&'a Fd, &'a [u8]),
}

impl<Fd: AsFd> Target<'_, Fd> {
    pub(crate) fn stat(&self) -> io::Result<Stat> {
        match self {
            Target::Open(fd) => Stat::of(fd),
            Target::Name(dir, name) => Stat::at(dir, name),
        }
    }

    /// Gives the owner of `want` to what is owned as `have` says. An ordinary
    /// user who may not is answered by what could be kept, not by an error.
    pub(crate) fn set_owner(&self, want: &Stat, have: &Stat) -> io::Result<Owner> {
        let (uid, gid) = (want.uid != have.uid, want.gid != have.gid);
        if !uid && !gid {
            return Ok(Owner::KEPT);
        }
        match self.chown(uid.then_some(want.uid), gid.then_some(want.gid)) {
            // EINVAL: an id that the user namespace does not map.
            Err(Errno::EPERM | Errno::EINVAL) => {}
            other => return other.map(|()| Owner::KEPT).map_err(io::Error::from),
        }
        // A user may still give a file to another of the groups they are in.
        if uid && gid {
            match self.chown(None, Some(want.gid)) {
                Ok(()) => {
                    return Ok(Owner {
                        uid: false,
                        gid: true,
                    });
                }
                Err(Errno::EPERM | Errno::EINVAL) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(Owner {
            uid: !uid,
            gid: !gid,
        })
    }

    fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> nix::Result<()> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        match self {
            Target::Open(fd) => nix::unistd::fchown(fd, uid, gid),
            Target::Name(dir, name) => {
                nix::unistd::fchownat(dir, *name, uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW)
            }
        }
    }

    /// Sets permission bits; not for symlinks, which have none.
    pub(crate) fn set_permissions(&self, mode: u32) -> io::Result<()> {
        let bits = Mode::from_bits_truncate(mode);
        match self {
            Target::Open(fd) => Ok(nix::sys::stat::fchmod(fd, bits)?),
            // fchmodat follows symlinks, and its flag against that is newer
            // than many kernels (6.6): an O_PATH descriptor pins the inode,
            // and its /proc name leads to that inode and nowhere else.
            Target::Name(dir, name) => {
                let pinned = super::special::pin(dir, name)?;
                let path = super::special::proc_path(&pinned);
                Ok(nix::sys::stat::fchmodat(
                    nix::fcntl::AT_FDCWD,
                    path.as_path(),
                    bits,
                    nix::sys::stat::FchmodatFlags::FollowSymlink,
                )?)
            }
        }
    }

    pub(crate) fn set_times(&self, atime: Time, mtime: Time) -> io::Result<()> {
        let (atime, mtime) = (atime.spec(), mtime.spec());
        match self {
            Target::Open(fd) => Ok(nix::sys::stat::futimens(fd, &atime, &mtime)?),
            Target::Name(dir, name) => {
                let flag = UtimensatFlags::NoFollowSymlink;
                Ok(nix::sys::stat::utimensat(dir, *name, &atime, &mtime, flag)?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_that_speak_for_an_owner_go_with_the_owner() {
        let file = Stat {
            mode: 0o106_755,
            ..Stat::default()
        };
        let dir = Stat {
            mode: 0o042_755,
            ..Stat::default()
        };
        let lost = Owner {
            uid: false,
            gid: false,
        };
        assert_eq!(Owner::KEPT.permissions(&file), 0o6755);
        assert_eq!(lost.permissions(&file), 0o755);
        assert_eq!(
            Owner {
                uid: true,
                gid: false
            }
            .permissions(&file),
            0o4755
        );
        assert_eq!(lost.permissions(&dir), 0o755);
    }
}
