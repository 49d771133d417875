//! Which filesystem an open file lies on, in a way that outlives a mount.
//!
//! Device numbers are given anew at each mount; what is asked for here is the
//! UUID that lies on the disk (tmpfs: of this mount). Where a filesystem has
//! none, or its inode numbers and ctimes are not its own (NFS, FUSE, vfat,
//! overlayfs), there is no answer.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::libc;
use nix::sys::stat::Mode;

/// `_IOR(0x15, 0, struct fsuuid2)`, linux/fs.h; since Linux 6.9.
const FS_IOC_GETFSUUID: libc::Ioctl = 0x8011_1500_u32 as libc::Ioctl;
/// `_IOR('X', 100, struct xfs_fsop_geom_v1)`, `xfs_fs.h`.
const XFS_IOC_FSGEOMETRY_V1: libc::Ioctl = 0x8070_5864_u32 as libc::Ioctl;

#[repr(C)]
#[derive(Default)]
struct FsUuid {
    len: u8,
    uuid: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct XfsGeometry {
    words: [u32; 8],
    blocks: [u64; 4],
    uuid: [u8; 16],
    others: [u32; 7],
}

/// A filesystem; on btrfs a subvolume of it, since those number their inodes
/// each from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// `ext4`, `tmpfs`.
    pub(crate) kind: &'static str,
    /// The UUID, and what tells subvolumes apart.
    pub(crate) uuid: Vec<u8>,
}

impl Identity {
    /// Whether a change after a look at ctime always changes ctime: multigrain
    /// timestamps, in these filesystems since Linux 6.13
    /// (Documentation/filesystems/multigrain-ts.rst). `dev` is its `st_dev`.
    pub(crate) fn tells_changes_apart(&self, dev: u64) -> bool {
        is_kernel_multigrain()
            && match self.kind {
                // ext2 and ext3 have the magic number and the driver of ext4,
                // and a coarse clock. Who is not in the list is taken for one.
                "ext4" => super::mounts::mounts().is_ok_and(|mounts| {
                    let mut mounts = mounts.iter().filter(|m| m.dev == dev);
                    mounts.next().is_some_and(|m| m.fstype == "ext4")
                }),
                kind => matches!(kind, "xfs" | "btrfs" | "tmpfs"),
            }
    }
}

fn is_kernel_multigrain() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        // A release that cannot be read is taken for an old one.
        fs::read_to_string("/proc/sys/kernel/osrelease").is_ok_and(|text| is_multigrain(&text))
    })
}

fn is_multigrain(release: &str) -> bool {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|digits| digits.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(13))
}

/// The identity of the filesystem of an open file or directory; none where it
/// has none to go by.
pub(crate) fn identity(fd: impl AsFd) -> io::Result<Option<Identity>> {
    let fd = fd.as_fd();
    let answer = nix::sys::statfs::fstatfs(fd)?;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let kind = match answer.filesystem_type().0 as u32 {
        0xEF53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0x0102_1994 => "tmpfs",
        0xF2F5_2010 => "f2fs",
        _ => return Ok(None),
    };
    // SAFETY: fsid_t is two integers in every libc, and all bits are valid.
    let fsid: [u8; 8] = unsafe { std::mem::transmute(answer.filesystem_id()) };
    let uuid = match uuid(fd) {
        // O_PATH descriptors answer no ioctl; a directory can be opened anew.
        Err(Errno::EBADF) => {
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            let dir = openat(fd, ".", flags, Mode::empty())?;
            uuid(&dir)?.or(older(&dir, kind, fsid))
        }
        other => other?.or(older(fd, kind, fsid)),
    };
    Ok(uuid.map(|mut uuid| {
        if kind == "btrfs" {
            // It has the number of the subvolume folded in (`btrfs_statfs`).
            uuid.extend_from_slice(&fsid);
        }
        Identity { kind, uuid }
    }))
}

fn uuid(fd: impl AsFd) -> Result<Option<Vec<u8>>, Errno> {
    let mut answer = FsUuid::default();
    // SAFETY: the kernel writes one struct fsuuid2, for which there is room.
    let code = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), FS_IOC_GETFSUUID, &raw mut answer) };
    match Errno::result(code) {
        Ok(_) => {
            let uuid = &answer.uuid[..usize::from(answer.len).min(16)];
            Ok(uuid.iter().any(|&b| b != 0).then(|| uuid.to_vec()))
        }
        Err(Errno::ENOTTY | Errno::EOPNOTSUPP | Errno::EINVAL | Errno::ENOSYS) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Before Linux 6.9: ext4, btrfs and tmpfs make the `f_fsid` of statfs(2) from
/// the UUID; that of XFS and f2fs is only the device's number.
fn older(fd: impl AsFd, kind: &str, fsid: [u8; 8]) -> Option<Vec<u8>> {
    match kind {
        "xfs" => {
            let mut answer = XfsGeometry::default();
            let fd = fd.as_fd().as_raw_fd();
            // SAFETY: the kernel writes one struct xfs_fsop_geom_v1 (112 bytes).
            let code = unsafe { libc::ioctl(fd, XFS_IOC_FSGEOMETRY_V1, &raw mut answer) };
            (code == 0).then(|| answer.uuid.to_vec())
        }
        "f2fs" => None,
        _ => (fsid != [0; 8]).then(|| fsid.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_structs_have_its_sizes() {
        assert_eq!(size_of::<FsUuid>(), 0x11);
        assert_eq!(size_of::<XfsGeometry>(), 0x70);
    }

    #[test]
    fn procfs_has_no_identity() {
        let file = fs::File::open("/proc/self/status").unwrap();
        assert_eq!(identity(file).unwrap(), None);
    }

    #[test]
    fn a_directory_and_its_o_path_descriptor_agree() {
        let dir = tempfile::tempdir().unwrap();
        let open = fs::File::open(dir.path()).unwrap();
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let path = openat(nix::fcntl::AT_FDCWD, dir.path(), flags, Mode::empty()).unwrap();
        assert_eq!(identity(&open).unwrap(), identity(&path).unwrap());
    }

    #[test]
    fn multigrain_begins_with_6_13() {
        for (release, want) in [
            ("6.18.44-fc", true),
            ("6.13", true),
            ("7.0.1", true),
            ("6.12.9", false),
            ("5.15.0-91-generic", false),
            ("", false),
        ] {
            assert_eq!(is_multigrain(release), want, "{release}");
        }
    }
}
