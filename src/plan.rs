//! What will be copied, from where, in which order: a value that can be
//! printed, inspected and executed.
//!
//! `scan` lists the sources and compares them with the destination, `order`
//! sorts the reads of each disk by their place on it, `bundle` groups small
//! neighbours. The last two are pure. Nothing here writes.

pub(crate) mod bundle;
pub(crate) mod choose;
pub(crate) mod order;
pub(crate) mod preflight;
pub(crate) mod scan;
pub mod summary;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use crate::error::Failure;
use crate::report::DiskChoice;
use crate::sys::beneath::{self, Root};
use crate::sys::metadata::{Stat, Time};
use crate::sys::xattrs::Xattrs;

pub use crate::sys::fiemap::Extent;

/// Files above this travel alone, in chunks; up to it, in bundles. At 180 MB/s
/// a MiB passes in 6 ms, less than a seek costs: below it order matters, above
/// it less and less.
pub(crate) const LARGE_BYTES: u64 = 1 << 20;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A Unix socket's name.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// What will happen to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Made at the destination, or replaced there.
    Copy,
    /// Equal in kind, size and mtime: only other metadata is looked after.
    Keep,
    /// One more name of the group's first entry.
    Link,
    /// Could not be looked at: its failure is in the plan.
    Fail,
}

/// A directory of a source, or (for a source that is not a directory) the
/// directory that holds it.
#[derive(Debug)]
pub struct Dir {
    /// The directory that holds it; none at a source's root.
    pub parent: Option<Arc<Dir>>,
    /// Its name in its parent; empty at a source's root.
    pub name: Box<[u8]>,
    /// The source argument that it belongs to.
    pub source: Arc<Source>,
    /// Its metadata, as found by the scan.
    pub stat: Stat,
    /// Its extended attributes.
    pub(crate) xattrs: Xattrs,
    /// What the destination holds under its name.
    pub there: There,
    /// Its listing failed: not all of it can be copied.
    pub(crate) is_incomplete: bool,
    /// What became of it at the destination, once something was to be made
    /// in it.
    pub(crate) made: OnceLock<Result<Made, i32>>,
}

/// A directory at the destination.
#[derive(Debug)]
pub(crate) struct Made {
    /// Made by this run: whatever is in it is ours.
    pub(crate) fresh: bool,
    /// The mode that it had before it was opened up for the user to write to.
    pub(crate) mode_before: Option<u32>,
    /// Gives an ACL to what is made in it.
    pub(crate) hands_down_acl: bool,
    /// Where two entries could get one name (names that differ in case are one,
    /// or several sources meet here): the inodes that this run has made or kept
    /// here, so that no entry takes another's place.
    pub(crate) taken: Option<Taken>,
}

/// Inode numbers, shared by the directories of several sources that are one at
/// the destination.
pub(crate) type Taken = Arc<Mutex<HashSet<u64>>>;

/// What the destination held under a directory's name at the scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum There {
    /// Nothing, or no destination is known.
    Nothing,
    /// A directory.
    Dir,
    /// Something else: nothing below can be copied.
    Blocked,
}

/// One source argument, opened.
#[derive(Debug)]
pub struct Source {
    /// The source directory (for `a/` and `a`) or the directory that holds it
    /// (where `a` is not a directory).
    pub(crate) root: Root,
    /// The path of `root` as given, for messages.
    pub path: PathBuf,
    /// Where `root` lies below the destination: empty, or one name.
    pub below: Box<[u8]>,
    /// For a source that is not a directory: `root` only holds it, and is
    /// neither made nor changed at the destination.
    pub holds_one: bool,
    /// The name that a single file gets at the destination, if another.
    pub rename: Option<Box<[u8]>>,
}

impl Drop for Dir {
    /// Lets go of the ancestors in a loop: a chain of some thousand would
    /// overflow the stack by dropping one inside the other.
    fn drop(&mut self) {
        let mut next = self.parent.take();
        while let Some(parent) = next {
            next = Arc::into_inner(parent).and_then(|mut dir| dir.parent.take());
        }
    }
}

impl Dir {
    /// The path below the source's root, as the kernel takes it; empty for the
    /// root itself.
    pub(crate) fn relative(&self) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = self;
        while let Some(parent) = &at.parent {
            names.push(&at.name);
            at = parent;
        }
        beneath::join(names.into_iter().rev().map(|name| &name[..]))
    }

    /// The path below the destination's root; empty for the root itself.
    pub(crate) fn relative_dest(&self) -> Vec<u8> {
        beneath::join([&self.source.below[..], &self.relative()])
    }

    /// The path of an entry for messages.
    pub fn path_of(&self, name: &[u8]) -> PathBuf {
        beneath::append(
            &self.source.path,
            &beneath::join([&self.relative()[..], name]),
        )
    }

    /// The path of an entry at the destination, for messages.
    pub(crate) fn dest_path_of(&self, dest: &Path, name: &[u8]) -> PathBuf {
        beneath::append(dest, &beneath::join([&self.relative_dest()[..], name]))
    }

    /// The name that an entry of this directory gets at the destination.
    pub(crate) fn dest_name<'a>(&'a self, name: &'a [u8]) -> &'a [u8] {
        self.source.rename.as_deref().unwrap_or(name)
    }

    /// Whether this directory is itself an entry of the tree.
    pub fn is_entry(&self) -> bool {
        !self.source.holds_one
    }
}

/// An entry of a source that is not a directory: 96 bytes, and its name in the
/// listing's arena, because a tree may have millions of them.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Index of its directory in [`Listing::dirs`].
    pub dir: u32,
    /// Its place in the order of listing.
    pub listed: u32,
    name_at: u32,
    name_len: u8,
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

/// One read of a sweep: a whole file, or one extent of a fragmented one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Index of the file in [`Listing::entries`].
    pub entry: u32,
    /// Index of the extent in [`Plan::extents`], or [`WHOLE`].
    pub part: u32,
}

/// The [`Read::part`] of a file that is read in one go.
pub const WHOLE: u32 = u32::MAX;

/// What is read from one disk, in this order.
#[derive(Debug)]
pub struct Sweep {
    /// The disk, its order and why.
    pub choice: DiskChoice,
    /// The reads.
    pub reads: Vec<Read>,
    /// Bytes that the head would travel in the order of the directories.
    pub travel_listed: u64,
    /// Bytes that the head travels in the order of `reads`.
    pub travel: u64,
}

/// What a job will do.
#[derive(Debug, Default)]
pub struct Plan {
    /// Every entry of the sources.
    pub listing: Listing,
    /// Where the files lie that have more than one extent, by entry.
    pub extents: Extents,
    /// For each entry with the action `Link`: (it, the first of its group).
    pub links: Vec<(u32, u32)>,
    /// Reads of regular files, one sweep a disk.
    pub sweeps: Vec<Sweep>,
    /// What could not be looked at.
    pub failures: Vec<Failure>,
}

impl Plan {
    /// Whether any file's content has to be copied.
    pub(crate) fn has_content(&self) -> bool {
        let mut entries = self.listing.entries.iter();
        entries.any(|entry| entry.is_to_read() && entry.size > 0)
    }
}

/// Extents in logical order, by index in [`Listing::entries`].
pub type Extents = HashMap<u32, Box<[Extent]>>;
