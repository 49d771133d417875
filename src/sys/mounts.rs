//! What is mounted where, from `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
//!
//! Three questions are answered from it: which mount a path lies in, where
//! inside its filesystem a path lies (two names of one directory, reached
//! through bind mounts, have the same place), and what is mounted below a
//! path. Paths must be canonical: nothing here follows symlinks.
//!
//! `dev` is the superblock's number. On btrfs it is never the `st_dev` of a
//! file, since each subvolume shows a number of its own: compare numbers from
//! here only with numbers from here.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::makedev;

/// One line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The superblock's device number, as `st_dev` encodes it.
    pub(crate) dev: u64,
    /// The directory of the filesystem that is seen at `point`: `/`, or the
    /// root of a bind mount or of a btrfs subvolume.
    pub(crate) fs_root: PathBuf,
    /// Where it is seen.
    pub(crate) point: PathBuf,
    /// `ext4`, `tmpfs`, `fuse.sshfs`.
    pub(crate) fstype: String,
    /// What was mounted: a device's path, or whatever the filesystem calls it.
    pub(crate) source: PathBuf,
    id: u64,
    parent: u64,
}

/// Every mount that this process can see.
pub(crate) fn mounts() -> io::Result<Vec<Mount>> {
    parse(&fs::read("/proc/self/mountinfo")?)
}

/// Reads the text of a mountinfo file. A line that does not have the documented
/// shape is an error: a forgotten mount could make a copy run into itself.
pub(crate) fn parse(text: &[u8]) -> io::Result<Vec<Mount>> {
    let lines = text.split(|&b| b == b'\n').filter(|line| !line.is_empty());
    let strange = |line| {
        let line = String::from_utf8_lossy(line);
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("mountinfo has a line of unknown shape: {line}"),
        )
    };
    lines
        .map(|line| parse_line(line).ok_or_else(|| strange(line)))
        .collect()
}

/// `36 35 98:0 /root /point options optional... - type source superoptions`
fn parse_line(line: &[u8]) -> Option<Mount> {
    // The kernel writes exactly one space between fields, and an empty field
    // (the source of a mount may be "") leaves two in a row: no collapsing.
    let mut fields = line.split(|&b| b == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let mut dev = fields.next()?.split(|&b| b == b':');
    let dev = makedev(number(dev.next()?)?, number(dev.next()?)?);
    let fs_root = path(fields.next()?);
    let point = path(fields.next()?);
    // Options, then any number of optional fields, end at a lone hyphen.
    fields.find(|&field| field == b"-")?;
    let fstype = String::from_utf8_lossy(&unescape(fields.next()?)).into_owned();
    let source = path(fields.next()?);
    Some(Mount {
        dev,
        fs_root,
        point,
        fstype,
        source,
        id,
        parent,
    })
}

fn number(digits: &[u8]) -> Option<u64> {
    str::from_utf8(digits).ok()?.parse().ok()
}

fn path(field: &[u8]) -> PathBuf {
    OsString::from_vec(unescape(field)).into()
}

/// Space, tab, newline, backslash and `#` are written as `\` and three octal
/// digits (`mangle` in the kernel's fs/proc_namespace.c).
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        match rest {
            [
                b'\\',
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                plain.push(first);
                rest = after;
            }
        }
    }
    plain
}

/// The mount in which a canonical path lies; none where the process cannot see
/// it, as in a chroot that is no mount point itself.
///
/// This walks down the tree of mounts as path resolution does, because the
/// longest mount point alone is not the answer: what was mounted at `/a/b`
/// before something was mounted over `/a` is out of reach.
pub(crate) fn mount_of<'a>(mounts: &'a [Mount], canonical: &Path) -> Option<&'a Mount> {
    let is_top = |mount: &Mount| {
        !mounts
            .iter()
            .any(|m| m.id == mount.parent && m.id != mount.id)
    };
    let mut at: Option<&Mount> = None;
    loop {
        let is_next = |mount: &Mount| match at {
            None => is_top(mount),
            Some(at) => mount.parent == at.id && mount.id != at.id,
        };
        let on_the_way = mounts.iter().filter(|m| canonical.starts_with(&m.point));
        // The nearest comes first on the way down; of equals the last mounted
        // covers the others.
        let next = on_the_way
            .filter(|m| is_next(m))
            .rev()
            .min_by_key(|m| m.point.as_os_str().len());
        match next {
            Some(next) => at = Some(next),
            None => return at,
        }
    }
}

/// The filesystem's device number and the path inside it: equal for two names
/// of one directory, and a prefix where one lies inside the other, whatever
/// bind mounts lie between.
pub(crate) fn place(mounts: &[Mount], canonical: &Path) -> Option<(u64, PathBuf)> {
    let mount = mount_of(mounts, canonical)?;
    let below = canonical.strip_prefix(&mount.point).ok()?;
    // `join` with an empty path would add a slash, which compares equal but
    // prints badly.
    let in_fs = if below.as_os_str().is_empty() {
        mount.fs_root.clone()
    } else {
        mount.fs_root.join(below)
    };
    Some((mount.dev, in_fs))
}

/// The mounts at or below a canonical path that can be reached by it: those
/// covered by another mount are left out.
pub(crate) fn below<'a>(
    mounts: &'a [Mount],
    canonical: &Path,
) -> impl Iterator<Item = &'a Mount> + use<'a> {
    let canonical = canonical.to_path_buf();
    mounts
        .iter()
        .filter(move |m| m.point.starts_with(&canonical))
        .filter(move |m| mount_of(mounts, &m.point).is_some_and(|top| top.id == m.id))
}

#[cfg(test)]
impl Mount {
    /// A mount directly below the root mount, or (at `/`) that one itself.
    pub(crate) fn fake(dev: u64, fs_root: &str, point: &str, fstype: &str, source: &str) -> Mount {
        let (id, parent) = if point == "/" {
            (1, 0)
        } else {
            (1000 + dev, 1)
        };
        Mount {
            dev,
            fs_root: fs_root.into(),
            point: point.into(),
            fstype: fstype.into(),
            source: source.into(),
            id,
            parent,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    const TEXT: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:1 / / rw,relatime shared:1 master:7 - ext4 /dev/vda1 rw,discard
30 27 0:40 /home /home rw - btrfs /dev/mapper/a\\040b rw,subvol=/home
31 30 8:17 / /home/usb\\040stick\\134x rw - vfat /dev/sdb1 rw
32 27 254:1 /srv/data /mnt/bind rw - ext4 /dev/vda1 rw
33 27 0:50 / /old/deep rw - tmpfs  rw
34 27 0:51 / /old rw - tmpfs tmpfs rw
35 34 0:52 / /old rw - tmpfs top rw
";

    fn parsed() -> Vec<Mount> {
        parse(TEXT.as_bytes()).unwrap()
    }

    fn point_of(path: &str) -> (u64, PathBuf) {
        let mounts = parsed();
        let mount = mount_of(&mounts, Path::new(path)).unwrap();
        (mount.id, mount.point.clone())
    }

    #[test]
    fn fields_are_read_with_and_without_optional_ones() {
        let mounts = parsed();
        assert_eq!(mounts.len(), 8);
        assert_eq!(mounts[1].dev, makedev(254, 1));
        assert_eq!(mounts[1].source, Path::new("/dev/vda1"));
        assert_eq!(mounts[2].fs_root, Path::new("/home"));
        assert_eq!(mounts[2].source, Path::new("/dev/mapper/a b"));
        assert_eq!(mounts[3].point, Path::new("/home/usb stick\\x"));
        assert_eq!(mounts[5].source, Path::new(""));
        assert_eq!(mounts[5].fstype, "tmpfs");
    }

    #[test]
    fn names_are_bytes_and_only_three_octal_digits_are_an_escape() {
        assert_eq!(
            unescape(b"a\\011b\\012\\\\134\\04\\x"),
            b"a\tb\n\\\\\\04\\x"
        );
        let line = b"1 0 8:1 / /\xff\\377 rw - ext4 /dev/sda1 rw";
        let mounts = parse(line).unwrap();
        assert_eq!(mounts[0].point.as_os_str().as_bytes(), b"/\xff\xff");
    }

    #[test]
    fn a_line_of_unknown_shape_is_an_error() {
        for line in [
            "1 0 8:1 /",
            "x 0 8:1 / / rw - ext4 a rw",
            "1 0 8 / / rw - ext4 a rw",
        ] {
            assert!(parse(line.as_bytes()).is_err(), "{line}");
        }
        assert!(parse(b"").unwrap().is_empty());
    }

    #[test]
    fn a_path_lies_in_the_mount_that_its_resolution_ends_in() {
        assert_eq!(point_of("/usr").1, Path::new("/"));
        assert_eq!(
            point_of("/homes").1,
            Path::new("/"),
            "whole components only"
        );
        assert_eq!(point_of("/home/me").1, Path::new("/home"));
        assert_eq!(point_of("/home/usb stick\\x/f").0, 31);
        assert_eq!(point_of("/old/x").0, 35, "the upper of two at one point");
        assert_eq!(
            point_of("/old/deep/x").0,
            35,
            "not the one that was covered"
        );
    }

    #[test]
    fn a_path_outside_every_visible_mount_has_no_mount() {
        let mounts = parse(b"40 7 0:21 / /proc rw - proc proc rw\n").unwrap();
        assert_eq!(mount_of(&mounts, Path::new("/usr")), None);
        assert_eq!(mount_of(&mounts, Path::new("/proc/1")).unwrap().id, 40);
        let itself = parse(b"1 1 0:2 / / rw - rootfs rootfs rw\n").unwrap();
        assert_eq!(mount_of(&itself, Path::new("/usr")).unwrap().id, 1);
    }

    #[test]
    fn bind_mounts_of_one_directory_have_one_place() {
        let mounts = parsed();
        let direct = place(&mounts, Path::new("/srv/data/x")).unwrap();
        let bound = place(&mounts, Path::new("/mnt/bind/x")).unwrap();
        assert_eq!(direct, bound);
        let (dev, in_fs) = place(&mounts, Path::new("/home")).unwrap();
        assert_eq!(
            (dev, in_fs.as_os_str().as_bytes()),
            (makedev(0, 40), &b"/home"[..])
        );
    }

    #[test]
    fn below_lists_what_can_be_reached() {
        let mounts = parsed();
        let ids = |path| {
            let found = below(&mounts, Path::new(path)).map(|m| m.id);
            found.collect::<Vec<_>>()
        };
        assert_eq!(ids("/home"), [30, 31]);
        assert_eq!(ids("/home/me"), [0u64; 0]);
        assert_eq!(ids("/old"), [35]);
        assert_eq!(ids("/"), [22, 27, 30, 31, 32, 35]);
    }

    #[test]
    fn this_machine_is_understood() {
        let mounts = mounts().unwrap();
        assert!(mount_of(&mounts, Path::new("/proc/self")).is_some_and(|m| m.fstype == "proc"));
    }
}
