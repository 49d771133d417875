//! Answers "does it fit?" without a scan, from the totals of the filesystems
//! that hold the sources: all that is in use there is at least what a copy of a
//! part of it takes, if the filesystem counts honestly. Which do, and how
//! honestly, is the table in [`trust`].

use std::path::PathBuf;

use nix::sys::statvfs::{Statvfs, statvfs};

use super::{Need, Room};
use crate::sys::mounts::{self, Mount};

/// Whether everything on every filesystem at or below the (canonical) sources
/// fits, so that no scan is needed to say so. `false` only means "not sure".
pub(crate) fn fits_surely(sources: &[PathBuf], room: &Room, mounts: &[Mount]) -> bool {
    let Some(all) = filesystems(sources, mounts) else {
        return false;
    };
    // The types first: statvfs on a dead network mount may never return.
    if all.iter().any(|mount| trust(&mount.fstype) == Trust::Never) {
        return false;
    }
    let mut bytes = 64u64 << 20;
    let mut inodes = 0u64;
    for mount in all {
        // An error means not sure; the scan meets it again and names it.
        let used = statvfs(&mount.point).ok().and_then(|stat| Used::of(&stat));
        let Some(used) = used else { return false };
        let Some(most) = at_most(used, trust(&mount.fstype), room) else {
            return false;
        };
        bytes = bytes.saturating_add(most.bytes);
        inodes = inodes.saturating_add(most.inodes);
    }
    bytes <= room.free_bytes && room.free_inodes.is_none_or(|free| inodes <= free)
}

/// The filesystems that a copy of the sources may read: those that hold them,
/// each once, and what is mounted below, each as often as it is. None where a
/// source cannot be placed or lies inside another: it would be copied twice.
fn filesystems<'a>(sources: &[PathBuf], mounts: &'a [Mount]) -> Option<Vec<&'a Mount>> {
    let places: Option<Vec<_>> = sources.iter().map(|s| mounts::place(mounts, s)).collect();
    let mut places = places?;
    // Paths sort by component, so what lies inside a source comes right after
    // it.
    places.sort();
    let is_inside = |pair: &[(u64, PathBuf)]| {
        let (outer, inner) = (&pair[0], &pair[1]);
        outer.0 == inner.0 && inner.1.starts_with(&outer.1)
    };
    if places.windows(2).any(is_inside) {
        return None;
    }
    let mut holding: Vec<&Mount> = Vec::new();
    let mut below: Vec<&Mount> = Vec::new();
    for source in sources {
        let holder = mounts::mount_of(mounts, source)?;
        if !holding.iter().any(|m| m.dev == holder.dev) {
            holding.push(holder);
        }
        below.extend(mounts::below(mounts, source).filter(|m| m.point != *source));
    }
    holding.extend(below);
    Some(holding)
}

/// What the totals of a filesystem say about a copy of its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// Every byte of content is a byte in use.
    Exact,
    /// Content may share or compress blocks, or inodes are not counted, but
    /// rarely by much.
    Roughly,
    /// No relation.
    Never,
}

fn trust(fstype: &str) -> Trust {
    match fstype {
        // Nothing is compressed or shared, and inodes are counted. (ext4's
        // inline data needs no blocks, but each inode is allowed one.)
        "tmpfs" | "ext2" | "ext3" | "ext4" => Trust::Exact,
        // XFS: files may share extents. btrfs: that, compression and
        // snapshots. f2fs: compression. FAT and NTFS: inodes are not counted.
        "xfs" | "btrfs" | "f2fs" | "vfat" | "exfat" | "ntfs3" => Trust::Roughly,
        // zfs and bcachefs: compression, snapshots, many filesystems in one
        // pool. overlay: the totals are of the upper layer. squashfs, erofs:
        // compressed. nfs, cifs, fuse: whatever the server says, perhaps never.
        // proc, sysfs, cgroup: contents that occupy nothing.
        _ => Trust::Never,
    }
}

/// What is in use on a filesystem.
#[derive(Clone, Copy, Debug)]
struct Used {
    bytes: u64,
    /// None where inodes are not counted.
    inodes: Option<u64>,
}

impl Used {
    /// None for a filesystem without totals (a tmpfs without a limit).
    fn of(stat: &Statvfs) -> Option<Used> {
        let blocks = stat.blocks().checked_sub(stat.blocks_free())?;
        (stat.blocks() > 0).then(|| Used {
            bytes: blocks.saturating_mul(stat.fragment_size()),
            inodes: (stat.files() > 0).then(|| stat.files().saturating_sub(stat.files_free())),
        })
    }
}

/// A generous bound for a copy of all that is in use.
fn at_most(used: Used, trust: Trust, room: &Room) -> Option<Need> {
    // Where inodes are not counted, each takes at least some 400 bytes of
    // metadata (btrfs, content inside) or a whole cluster (FAT).
    let inodes = match (used.inodes, trust) {
        (Some(inodes), _) => inodes,
        (None, Trust::Roughly) => used.bytes / 400,
        (None, _) => return None,
    };
    let each = room.block_bytes.saturating_add(room.inode_bytes);
    let exact = used.bytes.saturating_add(used.bytes / 10);
    let exact = exact.saturating_add(inodes.saturating_mul(each));
    let bytes = match trust {
        Trust::Exact => exact,
        Trust::Roughly => exact.max(used.bytes.saturating_mul(4)),
        Trust::Never => return None,
    };
    Some(Need { bytes, inodes })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn some_room(free_bytes: u64) -> Room {
        Room {
            free_bytes,
            free_inodes: None,
            block_bytes: 4096,
            inode_bytes: 0,
        }
    }

    #[test]
    fn the_bound_is_generous_and_refuses_what_it_cannot_know() {
        let room = some_room(0);
        let used = Used {
            bytes: 1000 * KIB,
            inodes: Some(10),
        };
        let exact = at_most(used, Trust::Exact, &room).unwrap();
        assert_eq!(
            exact,
            Need {
                bytes: 1100 * KIB + 40 * KIB,
                inodes: 10
            }
        );
        assert_eq!(
            at_most(used, Trust::Roughly, &room).unwrap().bytes,
            4000 * KIB
        );
        assert_eq!(at_most(used, Trust::Never, &room), None);
        let uncounted = Used {
            bytes: 400 * KIB,
            inodes: None,
        };
        assert_eq!(at_most(uncounted, Trust::Exact, &room), None);
        assert_eq!(
            at_most(uncounted, Trust::Roughly, &room).unwrap().inodes,
            KIB
        );
    }

    #[test]
    fn sources_on_one_filesystem_count_it_once_and_mounts_below_add_theirs() {
        let text = b"1 0 0:1 / / rw - ext4 /dev/a rw\n\
            2 1 0:2 / /data rw - ext4 /dev/b rw\n\
            3 2 0:3 / /data/x/net rw - nfs4 h:/ rw\n\
            4 1 0:4 /sub /bind rw - ext4 /dev/c rw\n";
        let mounts = mounts::parse(text).unwrap();
        let devs = |sources: &[&str]| {
            let sources: Vec<PathBuf> = sources.iter().map(PathBuf::from).collect();
            let found = filesystems(&sources, &mounts)?;
            Some(found.iter().map(|m| m.dev).collect::<Vec<_>>())
        };
        assert_eq!(devs(&["/usr", "/etc"]), Some(vec![1]));
        assert_eq!(devs(&["/data"]), Some(vec![2, 3]));
        assert_eq!(devs(&["/data/y", "/bind/f"]), Some(vec![2, 4]));
        assert_eq!(devs(&["/"]), Some(vec![1, 2, 3, 4]));
        assert_eq!(devs(&["/usr/lib", "/usr-x", "/usr"]), None, "copied twice");
        assert_eq!(devs(&["/usr", "/usr"]), None);
    }

    #[test]
    fn what_is_not_counted_is_never_sure() {
        let mounts = mounts::mounts().unwrap();
        let plenty = some_room(u64::MAX);
        assert!(!fits_surely(&["/proc".into()], &plenty, &mounts));
    }
}
