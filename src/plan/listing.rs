//! What a scan has found: many entries, so each is small, and what they share
//! is kept once.

use std::path::PathBuf;
use std::sync::Arc;

use super::{Action, Dir, Kind};
use crate::sys::metadata::{Stat, Time};

/// An entry of a source that is not a directory: 56 bytes, and its name in the
/// listing's arena, because a tree may have millions of them.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Inode number.
    pub ino: u64,
    /// Apparent size in bytes.
    pub size: u64,
    /// Allocated bytes.
    pub allocated: u64,
    /// Physical offset in bytes of its first extent; `u64::MAX` where unknown.
    pub physical: u64,
    /// Index of its directory in [`Listing::dirs`].
    pub dir: u32,
    /// Where its name begins, after a byte with its length.
    name_at: u32,
    /// Hard links to it.
    pub links: u32,
    /// What the destination has under its name, in units of [`BLOCK_BYTES`].
    there: u32,
    /// Stands for its modification time.
    stamp: u32,
    /// Its device, as an index in [`Listing::devices`].
    pub device: u16,
    /// What it is.
    pub kind: Kind,
    /// What will happen to it.
    pub action: Action,
}

/// What st_blocks counts.
const BLOCK_BYTES: u64 = 512;

/// The [`Entry::there`] of a name that the destination does not have.
const NOTHING: u32 = u32::MAX;

impl Entry {
    /// Fills in what a look at it found.
    pub(crate) fn fill(&mut self, stat: &Stat, device: u16) {
        self.kind = stat.kind();
        self.ino = stat.ino;
        self.size = if self.kind == Kind::File {
            stat.size
        } else {
            0
        };
        self.allocated = stat.allocated;
        self.links = u32::try_from(stat.links).unwrap_or(u32::MAX);
        self.stamp = stamp_of(stat.mtime);
        self.device = device;
    }

    /// Notes whether the destination has something under its name, and how many
    /// bytes replacing that frees. From 2 TiB on, all is 2 TiB: what a replaced
    /// file frees may be told too low.
    pub(crate) fn set_there(&mut self, exists: bool, frees_bytes: u64) {
        self.there = match u32::try_from(frees_bytes / BLOCK_BYTES) {
            _ if !exists => NOTHING,
            Ok(blocks) => blocks.min(NOTHING - 1),
            Err(_) => NOTHING - 1,
        };
    }

    /// Whether the destination has something under its name.
    pub fn exists(&self) -> bool {
        self.there != NOTHING
    }

    /// Bytes that replacing it will free at the destination, up to 2 TiB.
    pub fn replaces(&self) -> u64 {
        if self.exists() {
            u64::from(self.there) * BLOCK_BYTES
        } else {
            0
        }
    }

    /// Stands for its modification time: equal times have equal stamps, and
    /// different ones seldom.
    pub(crate) fn stamp(&self) -> u32 {
        self.stamp
    }

    /// Whether its modification time has a fraction of a second.
    pub(crate) fn has_fraction(&self) -> bool {
        self.stamp & 1 == 1
    }

    /// Its place in the order of listing. Directories are numbered in that
    /// order, and names are added one after the other.
    pub fn listed(&self) -> (u32, u32) {
        (self.dir, self.name_at)
    }
}

/// A digest of a time; its lowest bit says whether there is a fraction.
fn stamp_of(mtime: Time) -> u32 {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&mtime.s.to_le_bytes());
    bytes[8..].copy_from_slice(&mtime.ns.to_le_bytes());
    let [a, b, c, d, ..] = xxhash_rust::xxh3::xxh3_64(&bytes).to_le_bytes();
    u32::from_le_bytes([a, b, c, d]) & !1 | u32::from(mtime.ns != 0)
}

/// Entries with what they share.
#[derive(Debug, Default)]
pub struct Listing {
    /// Directories, parents before children.
    pub dirs: Vec<Arc<Dir>>,
    /// Everything else, in the order of listing.
    pub entries: Vec<Entry>,
    /// `st_dev` of each device that was met.
    pub devices: Vec<u64>,
    names: Vec<u8>,
}

impl Listing {
    /// Adds an entry of which only the directory listing's words are known.
    pub(crate) fn push(&mut self, dir: u32, name: &[u8], ino: u64, kind: Kind) {
        let fits = "a listing holds at most 4 GiB of names";
        let name_at = u32::try_from(self.names.len()).expect(fits);
        grow(&mut self.names, 1 + name.len());
        let len = u8::try_from(name.len()).expect("a name has at most 255 bytes");
        self.names.push(len);
        self.names.extend_from_slice(name);
        grow(&mut self.entries, 1);
        self.entries.push(Entry {
            ino,
            size: 0,
            allocated: 0,
            physical: u64::MAX,
            dir,
            name_at,
            links: 1,
            there: NOTHING,
            stamp: stamp_of(Time::default()),
            device: 0,
            kind,
            action: Action::Copy,
        });
    }

    /// Gives back what was allocated ahead.
    pub(crate) fn shrink(&mut self) {
        self.dirs.shrink_to_fit();
        self.entries.shrink_to_fit();
        self.names.shrink_to_fit();
    }

    /// Fills in what a look at an entry found.
    pub(crate) fn fill(&mut self, index: u32, stat: &Stat) {
        let device = self.device(stat.dev);
        self.entries[index as usize].fill(stat, device);
    }

    /// The index of a device, added if it is new.
    pub(crate) fn device(&mut self, dev: u64) -> u16 {
        let known = self.devices.iter().position(|&d| d == dev);
        let at = known.unwrap_or_else(|| {
            self.devices.push(dev);
            self.devices.len() - 1
        });
        u16::try_from(at).expect("a tree has fewer than 65,536 devices")
    }

    /// An entry's name.
    pub fn name(&self, entry: &Entry) -> &[u8] {
        let at = entry.name_at as usize;
        let len = usize::from(self.names[at]);
        &self.names[at + 1..=at + len]
    }

    /// An entry's directory.
    pub fn dir(&self, entry: &Entry) -> &Arc<Dir> {
        &self.dirs[entry.dir as usize]
    }

    /// The path of an entry, for messages.
    pub fn path(&self, entry: &Entry) -> PathBuf {
        self.dir(entry).path_of(self.name(entry))
    }
}

/// Makes room for `more` items. Doubling would allocate up to twice what
/// millions of entries need; an eighth more is moved seldom enough.
fn grow<T>(list: &mut Vec<T>, more: usize) {
    if list.capacity() - list.len() < more {
        list.reserve_exact(more.max(list.len() / 8).max(16));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(names: &[&[u8]]) -> Listing {
        let mut listing = Listing::default();
        for name in names {
            listing.push(0, name, 1, Kind::File);
        }
        listing
    }

    #[test]
    fn an_entry_has_56_bytes() {
        assert!(size_of::<Entry>() <= 56, "{}", size_of::<Entry>());
    }

    #[test]
    fn names_come_back_as_they_were_and_in_the_order_of_listing() {
        let long = [b'x'; 255];
        let listing = listing(&[b"a", &long, b"", b"bc"]);
        let entries = listing.entries.iter();
        let names: Vec<&[u8]> = entries.map(|entry| listing.name(entry)).collect();
        assert_eq!(names, [&b"a"[..], &long, b"", b"bc"]);
        assert!(listing.entries.is_sorted_by(|a, b| a.listed() < b.listed()));
    }

    #[test]
    fn what_replacing_frees_is_never_told_too_high() {
        let mut entry = listing(&[b"a"]).entries[0];
        assert_eq!((entry.exists(), entry.replaces()), (false, 0));
        for (frees, told) in [
            (0, 0),
            (4096, 4096),
            (4097, 4096),
            (1 << 41, (u64::from(NOTHING) - 1) * BLOCK_BYTES),
            (u64::MAX, (u64::from(NOTHING) - 1) * BLOCK_BYTES),
        ] {
            entry.set_there(true, frees);
            assert_eq!((entry.exists(), entry.replaces()), (true, told));
        }
    }

    #[test]
    fn a_stamp_tells_times_apart_and_knows_a_fraction() {
        let stamped = |s, ns| {
            let mut entry = listing(&[b"a"]).entries[0];
            entry.stamp = stamp_of(Time { s, ns });
            entry
        };
        let (whole, next, parts) = (stamped(1, 0), stamped(2, 0), stamped(1, 5));
        assert_eq!(whole.stamp(), stamped(1, 0).stamp());
        assert_ne!(whole.stamp(), next.stamp());
        assert!(!whole.has_fraction() && !next.has_fraction() && parts.has_fraction());
    }
}
