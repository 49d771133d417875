//! What a scan has found: many entries, so each is small, and what they share
//! is kept once.

use std::path::PathBuf;
use std::sync::Arc;

use super::{Action, Dir, Kind};
use crate::sys::metadata::{Stat, Time};

/// An entry of a source that is not a directory: 96 bytes, and its name in the
/// listing's arena, because a tree may have millions of them.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Index of its directory in [`Listing::dirs`].
    pub dir: u32,
    /// Its place in the order of listing.
    pub listed: u32,
    pub(super) name_at: u32,
    pub(super) name_len: u8,
    /// What it is.
    pub kind: Kind,
    /// What will happen to it.
    pub action: Action,
    /// Hard links to it.
    pub links: u32,
    /// Its device, as an index in [`Listing::devices`].
    pub device: u16,
    /// Inode number.
    pub ino: u64,
    /// Apparent size in bytes.
    pub size: u64,
    /// Allocated bytes.
    pub allocated: u64,
    /// Bytes that replacing it will free at the destination.
    pub replaces: u64,
    /// Whether the destination has something under its name.
    pub exists: bool,
    /// Modification time.
    pub mtime: Time,
    /// Physical offset in bytes of its first extent; `u64::MAX` where unknown.
    pub physical: u64,
}

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
        self.mtime = stat.mtime;
        self.device = device;
    }
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
        let name_at = self.names.len();
        self.names.extend_from_slice(name);
        let fits = "a listing holds at most 4 GiB of names";
        self.entries.push(Entry {
            dir,
            listed: u32::try_from(self.entries.len()).expect(fits),
            name_at: u32::try_from(name_at).expect(fits),
            name_len: u8::try_from(name.len()).expect("a name has at most 255 bytes"),
            kind,
            action: Action::Copy,
            links: 1,
            device: 0,
            ino,
            size: 0,
            allocated: 0,
            replaces: 0,
            exists: false,
            mtime: Time::default(),
            physical: u64::MAX,
        });
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
        &self.names[at..at + usize::from(entry.name_len)]
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
