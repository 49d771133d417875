//! Which times a filesystem can hold: 128-byte ext4 inodes end in 2038, FAT
//! counts in two seconds from 1980. The kernel clamps and truncates in silence
//! (Documentation/filesystems/vfs.rst, s_time_min, s_time_max, s_time_gran), so
//! it is tried out on a file without a name.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::metadata::{Stat, Target, Time};

/// The first and last second, and the nanoseconds that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    first_s: i64,
    last_s: i64,
    /// The step of what is kept, in nanoseconds (2,000,000,000 on FAT).
    step_ns: u64,
}

impl Limits {
    /// Tries out the filesystem of an open directory.
    pub(crate) fn probe(dir: impl AsFd) -> io::Result<Limits> {
        let file = scratch(&dir)?;
        let target = Target::Open(&file);
        let kept = |time: Time| -> io::Result<Time> {
            target.set_times(time, time)?;
            Ok(Stat::of(&file)?.mtime)
        };
        let first_s = kept(Time {
            s: i64::MIN / 4,
            ns: 0,
        })?
        .s;
        let last_s = kept(Time {
            s: i64::MAX / 4,
            ns: 0,
        })?
        .s;
        let odd = kept(Time {
            s: 1_000_000_001,
            ns: 999_999_999,
        })?;
        let step_ns = match odd {
            Time {
                s: 1_000_000_000, ..
            } => 2_000_000_000,
            Time {
                ns: 999_999_999, ..
            } => 1,
            Time { ns: 0, .. } => 1_000_000_000,
            Time { ns, .. } => u64::from(1_000_000_000 - ns),
        };
        Ok(Limits {
            first_s,
            last_s,
            step_ns,
        })
    }

    /// What the filesystem makes of a time.
    pub(crate) fn clamp(&self, time: Time) -> Time {
        if time.s < self.first_s {
            return Time {
                s: self.first_s,
                ns: 0,
            };
        }
        if time.s > self.last_s || (time.s == self.last_s && self.step_ns > 1) {
            return Time {
                s: self.last_s,
                ns: 0,
            };
        }
        match self.step_ns {
            0 | 1 => time,
            2_000_000_000 => Time {
                s: time.s - time.s.rem_euclid(2),
                ns: 0,
            },
            step => Time {
                s: time.s,
                ns: time.ns - time.ns % u32::try_from(step).unwrap_or(1),
            },
        }
    }
}

/// An empty file that nobody sees; where the filesystem has no O_TMPFILE, one
/// whose name is gone before anything else happens.
fn scratch(dir: impl AsFd) -> io::Result<File> {
    let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC;
    let private = Mode::S_IRUSR | Mode::S_IWUSR;
    match openat(&dir, ".", flags | OFlag::O_TMPFILE, private) {
        Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::EINVAL | Errno::ENOENT) => {}
        other => return Ok(other?.into()),
    }
    let name = format!(".haul-{}-times", std::process::id());
    let exclusive = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
    let file = openat(&dir, name.as_str(), flags | exclusive, private)?;
    unlinkat(&dir, name.as_str(), UnlinkatFlags::NoRemoveDir)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_cut_to_what_can_be_held() {
        let t = |s, ns| Time { s, ns };
        let fat = Limits {
            first_s: 10,
            last_s: 99,
            step_ns: 2_000_000_000,
        };
        assert_eq!(fat.clamp(t(13, 5)), t(12, 0));
        assert_eq!(fat.clamp(t(3, 5)), t(10, 0));
        assert_eq!(fat.clamp(t(300, 5)), t(99, 0));
        let ext4 = Limits {
            first_s: -100,
            last_s: 100,
            step_ns: 1,
        };
        assert_eq!(ext4.clamp(t(-5, 7)), t(-5, 7));
        let ntfs = Limits {
            first_s: -100,
            last_s: 100,
            step_ns: 100,
        };
        assert_eq!(ntfs.clamp(t(5, 12345)), t(5, 12300));
    }
}
