//! Will it fit? Asked before the first write, so that a copy that cannot end
//! well does not begin.
//!
//! [`need`] is the plan's arithmetic and pure; [`room`] asks the destination's
//! filesystem; [`check`] compares them. [`fits_surely`] answers from the
//! filesystems' own totals, so that a copy from a disk that does not seek need
//! not wait for the end of a scan. All are estimates: what they miss ends as
//! ENOSPC, which a job survives. So where they cannot be exact they rather let
//! a copy begin than refuse one that fits.

mod surely;

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{self, FsType, fstatfs};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::geteuid;

pub(crate) use self::surely::fits_surely;
use super::{Action, Entry, Kind, Plan, There};

/// What a directory spends on an entry besides its name: ext4 takes 8 bytes and
/// rounds up to 4, XFS takes 12 and 8 more in its index; both leave blocks a
/// quarter to a half empty when names come in no order.
const NAME_BYTES: u64 = 24;

/// A symlink's target up to this lies in the inode (ext4: 59 bytes and a NUL).
const INLINE_TARGET_BYTES: u64 = 60;

/// The largest reserve for what the plan does not know; see [`need`].
const RESERVE_BYTES: u64 = 1 << 20;

/// What a destination lacks. Its `Display` is the message for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// The destination, as given.
    pub dest: PathBuf,
    /// Bytes that the copy takes.
    pub need_bytes: u64,
    /// Bytes that are free for this user.
    pub free_bytes: u64,
    /// Inodes that the copy takes.
    pub need_inodes: u64,
    /// Inodes that are free; `u64::MAX` where they are made as needed.
    pub free_inodes: u64,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" has too little room: ", self.dest.display())?;
        let lacks_bytes = self.need_bytes > self.free_bytes;
        let lacks_inodes = self.need_inodes > self.free_inodes;
        if lacks_bytes {
            let (need, free) = (Bytes(self.need_bytes), Bytes(self.free_bytes));
            let missing = Bytes(self.need_bytes - self.free_bytes);
            write!(
                f,
                "the copy needs {need} of space and {free} are free, {missing} short"
            )?;
        }
        if lacks_bytes && lacks_inodes {
            f.write_str("; ")?;
        }
        if lacks_inodes {
            let (need, free) = (self.need_inodes, self.free_inodes);
            let missing = need - free;
            write!(
                f,
                "the copy needs {need} inodes and {free} are free, {missing} short"
            )?;
        }
        f.write_str(
            ". Nothing was written. Free some, choose another destination, \
             or go on regardless with --force",
        )
    }
}

/// Bytes as people read them, and exactly: `1.5 GiB (1610612736 bytes)`.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut unit = "bytes";
        let mut whole = self.0;
        let mut tenths = 0;
        for larger in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
            if whole < 1024 {
                break;
            }
            tenths = whole % 1024 * 10 / 1024;
            whole /= 1024;
            unit = larger;
        }
        if unit == "bytes" {
            return write!(f, "{whole} bytes");
        }
        write!(f, "{whole}.{tenths} {unit} ({} bytes)", self.0)
    }
}

/// What a plan takes at the destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

/// Adds up what a plan takes on a filesystem with blocks of `block_bytes`.
///
/// - A file takes its allocated bytes, but never more than its size (space
///   allocated beyond the end is not copied), in whole blocks; nothing where
///   its extents are shared with the source.
/// - A new directory takes a block; each new name takes room in one.
/// - A replaced file's old blocks come free when its new content is complete,
///   so at the peak the largest of them is there beside the new one, and one
///   inode more. That files which shrink may come last is left out.
/// - Extended attributes, ACLs and extent trees are not in the plan: 1 % is
///   added for them, and 1 MiB, or a sixteenth where that is less, lest a small
///   copy be refused for the reserve's sake. Nothing to write needs nothing.
/// - Where duplicates become one (`twins`), files of the same size and mtime may
///   all be: only the first is counted, since nothing has been read yet.
pub(crate) fn need(plan: &Plan, block_bytes: u64, reflinked: bool, twins: bool) -> Need {
    let mut sum = Sum::new(block_bytes, reflinked);
    sum.seen = twins.then(HashSet::new);
    for dir in &plan.listing.dirs {
        if dir.is_entry() && dir.there == There::Nothing {
            sum.add_dir(dir.name.len());
        }
    }
    for entry in &plan.listing.entries {
        sum.add(entry, plan.listing.name(entry).len());
    }
    sum.need()
}

struct Sum {
    /// Sizes and stamps of the mtimes of the files so far, where one may stand for all.
    seen: Option<HashSet<(u64, u32)>>,
    block_bytes: u64,
    reflinked: bool,
    inodes: u64,
    /// Of data and directories, whole blocks.
    blocks_bytes: u64,
    names_bytes: u64,
    /// What replacing frees, and its largest single case.
    freed_bytes: u64,
    largest_freed_bytes: u64,
    /// The largest single file that takes another's place.
    largest_replacing_bytes: u64,
    replaces_any: bool,
}

impl Sum {
    fn new(block_bytes: u64, reflinked: bool) -> Sum {
        Sum {
            seen: None,
            block_bytes: block_bytes.max(1),
            reflinked,
            inodes: 0,
            blocks_bytes: 0,
            names_bytes: 0,
            freed_bytes: 0,
            largest_freed_bytes: 0,
            largest_replacing_bytes: 0,
            replaces_any: false,
        }
    }

    fn add_dir(&mut self, name_len: usize) {
        self.inodes += 1;
        self.blocks_bytes = self.blocks_bytes.saturating_add(self.block_bytes);
        self.add_name(name_len);
    }

    fn add(&mut self, entry: &Entry, name_len: usize) {
        match entry.action {
            Action::Copy => self.add_copy(entry, name_len),
            Action::Link | Action::Refer => self.add_name(name_len),
            Action::Keep | Action::Same | Action::Skip | Action::Fail => {}
        }
    }

    fn add_copy(&mut self, entry: &Entry, name_len: usize) {
        let is_file = entry.kind == Kind::File && entry.size > 0;
        let seen = self.seen.as_mut().filter(|_| is_file);
        if seen.is_some_and(|seen| !seen.insert((entry.size, entry.stamp()))) {
            return self.add_name(name_len);
        }
        let bytes = match entry.kind {
            Kind::File if self.reflinked => 0,
            Kind::File => self.in_blocks(entry.allocated.min(entry.size)),
            Kind::Symlink if entry.size >= INLINE_TARGET_BYTES => self.in_blocks(entry.size),
            _ => 0,
        };
        self.blocks_bytes = self.blocks_bytes.saturating_add(bytes);
        if entry.exists() {
            self.replaces_any = true;
            self.freed_bytes = self.freed_bytes.saturating_add(entry.replaces());
            self.largest_freed_bytes = self.largest_freed_bytes.max(entry.replaces());
            self.largest_replacing_bytes = self.largest_replacing_bytes.max(bytes);
        } else {
            self.inodes += 1;
            self.add_name(name_len);
        }
    }

    fn add_name(&mut self, len: usize) {
        self.names_bytes += NAME_BYTES + len as u64;
    }

    fn in_blocks(&self, bytes: u64) -> u64 {
        // Sizes go up to i64::MAX: rounding up cannot wrap.
        bytes
            .div_ceil(self.block_bytes)
            .saturating_mul(self.block_bytes)
    }

    fn need(&self) -> Need {
        let taken = self
            .blocks_bytes
            .saturating_add(self.in_blocks(self.names_bytes));
        let at_peak = taken
            .saturating_add(self.largest_freed_bytes)
            .saturating_sub(self.freed_bytes)
            .max(self.largest_replacing_bytes);
        let reserve = at_peak / 100 + RESERVE_BYTES.min(at_peak / 16);
        Need {
            bytes: at_peak.saturating_add(reserve),
            inodes: self.inodes + u64::from(self.replaces_any),
        }
    }
}

/// What a filesystem has left for this user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) free_bytes: u64,
    /// None where inodes are made as needed (btrfs, NFS, FAT).
    pub(crate) free_inodes: Option<u64>,
    /// Files take multiples of this.
    pub(crate) block_bytes: u64,
    /// Bytes of the free space that an inode takes; 0 where they lie ready.
    pub(crate) inode_bytes: u64,
}

/// Asks the filesystem that an open file lies on.
pub(crate) fn room(dest: BorrowedFd<'_>) -> io::Result<Room> {
    let stat = fstatvfs(dest)?;
    let fstype = fstatfs(dest)?.filesystem_type();
    // ext2/3/4 keep some 5 % for root. Elsewhere f_bfree may count what nobody
    // can have (on btrfs, space of other profiles), so f_bavail stands.
    let is_ext = fstype == statfs::EXT4_SUPER_MAGIC; // one number for all three
    let blocks = if is_ext && geteuid().is_root() {
        stat.blocks_free()
    } else {
        stat.blocks_available()
    };
    // A filesystem that counts no blocks (ramfs) does not say what is free.
    let is_counted = stat.blocks() > 0;
    let blocks = if is_counted { blocks } else { u64::MAX };
    Ok(Room {
        free_bytes: blocks.saturating_mul(stat.fragment_size()),
        free_inodes: (stat.files() > 0).then(|| stat.files_available()),
        block_bytes: allocation_unit(stat.fragment_size(), fstype),
        inode_bytes: inode_bytes(fstype),
    })
}

/// What a file's size is rounded up to. f_frsize is that on local filesystems,
/// whose blocks are at most 64 KiB, and on exFAT, whose clusters may be larger.
/// Network filesystems put their transfer size there (NFS 1 MiB, Ceph 4 MiB),
/// which would make a small file look huge.
fn allocation_unit(fragment_size: u64, fstype: FsType) -> u64 {
    const EXFAT: FsType = FsType(0x2011_BAB0);
    if fragment_size <= 64 << 10 || fstype == EXFAT {
        fragment_size
    } else {
        4096
    }
}

/// XFS makes inodes of 512 bytes from free space. On btrfs an inode with its
/// reference and two directory items takes some 400 bytes, twice on one disk
/// (metadata is duplicated). Elsewhere the table exists since mkfs.
fn inode_bytes(fstype: FsType) -> u64 {
    match fstype {
        statfs::XFS_SUPER_MAGIC => 512,
        statfs::BTRFS_SUPER_MAGIC => 800,
        _ => 0,
    }
}

/// Compares a plan with the room at `dest`.
pub(crate) fn check(
    plan: &Plan,
    dest: &Path,
    room: &Room,
    reflinked: bool,
    twins: bool,
) -> Result<(), Shortfall> {
    let need = need(plan, room.block_bytes, reflinked, twins);
    compare(need, dest, room)
}

fn compare(need: Need, dest: &Path, room: &Room) -> Result<(), Shortfall> {
    let for_inodes = need.inodes.saturating_mul(room.inode_bytes);
    let need_bytes = need.bytes.saturating_add(for_inodes);
    let free_inodes = room.free_inodes.unwrap_or(u64::MAX);
    if need_bytes <= room.free_bytes && need.inodes <= free_inodes {
        return Ok(());
    }
    Err(Shortfall {
        dest: dest.to_path_buf(),
        need_bytes,
        free_bytes: room.free_bytes,
        need_inodes: need.inodes,
        free_inodes,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;
    use crate::plan::Listing;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// A listing whose names are all the one that `entry` has.
    fn one_name() -> Listing {
        let mut listing = Listing::default();
        listing.push(0, b"8 bytes!", 1, Kind::File);
        listing
    }

    fn entry(kind: Kind, action: Action, size: u64, allocated: u64, replaces: u64) -> Entry {
        let mut entry = one_name().entries[0];
        (entry.kind, entry.action) = (kind, action);
        (entry.size, entry.allocated) = (size, allocated);
        entry.set_there(replaces > 0, replaces);
        entry
    }

    fn file(size: u64, allocated: u64) -> Entry {
        entry(Kind::File, Action::Copy, size, allocated, 0)
    }

    fn needed(entries: &[Entry], reflinked: bool) -> Need {
        let mut plan = Plan {
            listing: one_name(),
            ..Plan::default()
        };
        plan.listing.entries = entries.to_vec();
        need(&plan, 4096, reflinked, false)
    }

    /// The sum without the reserve, in blocks of 4 KiB.
    fn blocks(entries: &[Entry]) -> u64 {
        let mut sum = Sum::new(4096, false);
        entries.iter().for_each(|e| sum.add(e, 8));
        sum.blocks_bytes / 4096
    }

    fn some_room(free_bytes: u64, free_inodes: Option<u64>) -> Room {
        Room {
            free_bytes,
            free_inodes,
            block_bytes: 4096,
            inode_bytes: 0,
        }
    }

    #[test]
    fn files_take_whole_blocks_of_what_is_allocated_but_not_more_than_their_size() {
        assert_eq!(blocks(&[file(1, 4096)]), 1);
        assert_eq!(blocks(&[file(4097, 8192)]), 2);
        assert_eq!(blocks(&[file(0, 0)]), 0);
        assert_eq!(blocks(&[file(1 << 40, 8192)]), 2, "sparse");
        assert_eq!(blocks(&[file(100, MIB)]), 1, "preallocated beyond the end");
        let most = i64::MAX.unsigned_abs();
        assert!(needed(&[file(most, most), file(most, most)], false).bytes > most);
    }

    #[test]
    fn only_long_symlinks_take_a_block_and_every_kind_an_inode() {
        let symlink = |len| entry(Kind::Symlink, Action::Copy, len, 0, 0);
        assert_eq!(blocks(&[symlink(59)]), 0);
        assert_eq!(blocks(&[symlink(60)]), 1);
        let fifo = entry(Kind::Fifo, Action::Copy, 0, 0, 0);
        assert_eq!(needed(&[symlink(5), symlink(99), fifo], false).inodes, 3);
    }

    #[test]
    fn what_is_kept_linked_or_failed_takes_no_data() {
        let with = |action| entry(Kind::File, action, MIB, MIB, 0);
        assert_eq!(
            needed(&[with(Action::Keep), with(Action::Fail)], false),
            Need::default()
        );
        let link = needed(&[with(Action::Link)], false);
        assert_eq!(link.inodes, 0);
        assert_eq!(
            link.bytes,
            4096 + 4096 / 100 + 4096 / 16,
            "room for its name"
        );
    }

    #[test]
    fn shared_extents_take_inodes_and_names_only() {
        let need = needed(&[file(MIB, MIB), file(MIB, MIB)], true);
        assert_eq!(need.inodes, 2);
        assert!(need.bytes < 8 * KIB);
    }

    #[test]
    fn where_duplicates_become_one_a_size_and_a_time_count_once() {
        let mut plan = Plan {
            listing: one_name(),
            ..Plan::default()
        };
        plan.listing.entries = vec![file(MIB, MIB), file(MIB, MIB), file(5, 4096)];
        let one = need(&plan, 4096, false, true);
        assert_eq!(one.inodes, 2);
        assert!((MIB..2 * MIB).contains(&one.bytes));
        assert!(need(&plan, 4096, false, false).bytes > 2 * MIB);
    }

    #[test]
    fn a_new_directory_takes_a_block_and_room_for_names() {
        let mut sum = Sum::new(4096, false);
        sum.add_dir(200);
        (0..1000).for_each(|_| sum.add(&file(0, 0), 8));
        assert_eq!((sum.inodes, sum.blocks_bytes), (1001, 4096));
        assert_eq!(sum.names_bytes, 224 + 1000 * 32);
    }

    #[test]
    fn replacing_counts_what_it_frees_but_not_before_it_is_free() {
        let replace = |size, old| entry(Kind::File, Action::Copy, size, size, old);
        let peak = |entries: &[Entry]| {
            let mut sum = Sum::new(4096, false);
            entries.iter().for_each(|e| sum.add(e, 8));
            let all = sum.need();
            // The reserve is known: take it off again for round figures.
            (all.inodes, all.bytes / (MIB / 16) * (MIB / 16) / MIB)
        };
        assert_eq!(
            peak(&[replace(64 * MIB, 64 * MIB)]),
            (1, 65),
            "both are there for a while"
        );
        let two = [replace(64 * MIB, 64 * MIB), replace(32 * MIB, 32 * MIB)];
        assert_eq!(peak(&two), (1, 65));
        assert_eq!(
            peak(&[replace(16 * MIB, 1024 * MIB)]),
            (1, 17),
            "it shrinks"
        );
        assert_eq!(peak(&[replace(64 * MIB, 4096)]), (1, 65), "it grows");
    }

    #[test]
    fn the_reserve_is_small_for_small_copies_and_nothing_for_none() {
        assert_eq!(needed(&[], false), Need::default());
        assert_eq!(
            needed(&[file(16 * KIB, 16 * KIB)], false).bytes,
            20 * KIB + 204 + 1280
        );
        let large = needed(&[file(1000 * MIB, 1000 * MIB)], false).bytes;
        assert_eq!(large, 1000 * MIB + 4096 + (1000 * MIB + 4096) / 100 + MIB);
    }

    #[test]
    fn a_shortfall_says_what_is_short_with_figures_and_a_way_out() {
        let short = |bytes, inodes, room: &Room| {
            let need = Need { bytes, inodes };
            compare(need, Path::new("/mnt/d"), room)
                .unwrap_err()
                .to_string()
        };
        let room = some_room(1 << 30, Some(100));
        let bytes = short(3 << 29, 5, &room);
        assert!(bytes.contains("1.5 GiB (1610612736 bytes)"), "{bytes}");
        assert!(bytes.contains("1.0 GiB (1073741824 bytes)"), "{bytes}");
        assert!(
            bytes.contains("512.0 MiB (536870912 bytes) short"),
            "{bytes}"
        );
        assert!(
            bytes.contains("\"/mnt/d\"") && bytes.contains("--force"),
            "{bytes}"
        );
        assert!(!bytes.contains("inodes"), "{bytes}");
        let inodes = short(5, 101, &room);
        assert!(
            inodes.contains("101 inodes and 100 are free, 1 short"),
            "{inodes}"
        );
        assert!(!inodes.contains("space"), "{inodes}");
        let both = short(u64::MAX, 101, &room);
        assert!(
            both.contains("inodes") && both.contains("15.9 EiB"),
            "{both}"
        );
    }

    #[test]
    fn what_just_fits_is_not_refused() {
        let need = Need {
            bytes: 1000,
            inodes: 10,
        };
        let check = |room: Room| compare(need, Path::new("d"), &room).is_ok();
        assert!(check(some_room(1000, Some(10))));
        assert!(!check(some_room(999, Some(10))));
        assert!(!check(some_room(1000, Some(9))));
        assert!(check(some_room(1000, None)));
        let inodes_cost = Room {
            inode_bytes: 1,
            ..some_room(1009, None)
        };
        assert!(!check(inodes_cost));
    }

    #[test]
    fn a_network_transfer_size_is_no_block_size() {
        assert_eq!(allocation_unit(4096, statfs::XFS_SUPER_MAGIC), 4096);
        assert_eq!(allocation_unit(1 << 20, statfs::NFS_SUPER_MAGIC), 4096);
        assert_eq!(allocation_unit(1 << 17, FsType(0x2011_BAB0)), 1 << 17);
    }

    #[test]
    fn this_machine_has_room() {
        let tmp = tempfile::tempdir().unwrap();
        let room = room(File::open(tmp.path()).unwrap().as_fd()).unwrap();
        assert!(room.free_bytes > 0 && room.block_bytes >= 512, "{room:?}");
    }
}
