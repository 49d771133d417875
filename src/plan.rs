//! What will be copied, from where, in which order: a value that can be
//! printed, inspected and executed.
//!
//! `scan` lists the sources and compares them with the destination, `order`
//! sorts the reads of each disk by their place on it, `bundle` groups small
//! neighbours. The last two are pure. Nothing here writes.

pub(crate) mod bundle;
pub(crate) mod choose;
mod listing;
pub(crate) mod order;
pub(crate) mod preflight;
pub(crate) mod scan;
pub mod summary;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use crate::error::Failure;
use crate::report::{DiskChoice, Note};
use crate::sys::beneath::{self, Root};
use crate::sys::metadata::Stat;
use crate::sys::xattrs::Xattrs;

pub use crate::sys::fiemap::Extent;
pub use listing::{Entry, Listing};

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
    /// Equal in everything: nothing more is done.
    Same,
    /// One more name of a file that an earlier copy has unchanged.
    Refer,
    /// One more name of the group's first entry.
    Link,
    /// Left as it is, or not made, because an option says so.
    Skip,
    /// Could not be looked at: its failure is in the plan.
    Fail,
}

/// Why a directory is in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It is an entry of the tree.
    Entry,
    /// It is on the way to what is to be copied (`--files-from`), and made only
    /// if something is made in it.
    Way,
    /// It only holds entries.
    Holder,
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
    /// The digests of all its names, sorted, where somebody asks for them
    /// (--delete, --backup); none where it was not listed to its end.
    pub(crate) names: Option<Box<[u64]>>,
    /// Whether it is itself an entry.
    pub(crate) role: Role,
    /// Its listing failed: not all of it can be copied.
    pub(crate) is_incomplete: bool,
    /// What became of it at the destination, once something was to be made
    /// in it.
    pub(crate) made: OnceLock<Result<Made, i32>>,
    /// Whether the destination's takes names that differ in case for one.
    pub(crate) folds_case: OnceLock<bool>,
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
    /// or several sources meet here): what this run has made or kept here, so
    /// that no entry takes another's place.
    pub(crate) taken: Option<Taken>,
}

/// What this run has made or kept in a directory of the destination, shared by
/// the directories of several sources that are one there.
pub(crate) type Taken = Arc<Claims>;

/// Names by inode number. Where the directory takes names that differ in case
/// for one, an inode is one entry's; elsewhere a second name is a hard link.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    pub(crate) folds_case: bool,
    names: Mutex<HashMap<u64, Vec<Box<[u8]>>>>,
}

impl Claims {
    pub(crate) fn new(folds_case: bool) -> Claims {
        Claims {
            folds_case,
            names: Mutex::default(),
        }
    }

    /// Whether replacing this name would take another entry's place.
    pub(crate) fn has(&self, ino: u64, name: &[u8]) -> bool {
        let names = self.names.lock().unwrap_or_else(|e| e.into_inner());
        let names = names.get(&ino);
        names.is_some_and(|names| self.folds_case || names.iter().any(|n| **n == *name))
    }

    /// Takes a name for an entry; `false` where it is another's already.
    pub(crate) fn claim(&self, ino: u64, name: &[u8]) -> bool {
        let mut names = self.names.lock().unwrap_or_else(|e| e.into_inner());
        let names = names.entry(ino).or_default();
        if !names.is_empty() && (self.folds_case || names.iter().any(|n| **n == *name)) {
            return false;
        }
        names.push(name.into());
        true
    }

    /// Takes a claim back.
    pub(crate) fn unclaim(&self, ino: u64, name: &[u8]) {
        let mut names = self.names.lock().unwrap_or_else(|e| e.into_inner());
        if let std::collections::hash_map::Entry::Occupied(mut entry) = names.entry(ino) {
            entry.get_mut().retain(|n| **n != *name);
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }
}

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

    /// Whether it has a name, where these are remembered.
    pub(crate) fn has_name(&self, name: &[u8]) -> bool {
        let digest = scan::list::digest_of(name);
        let names = self.names.as_ref();
        names.is_some_and(|names| names.binary_search(&digest).is_ok())
    }

    /// Whether this directory is itself an entry of the tree.
    pub fn is_entry(&self) -> bool {
        self.role != Role::Holder
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
    /// A number that only sweeps of the same disk have.
    pub key: u64,
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
    /// What would be removed from the destination.
    pub deletions: Vec<PathBuf>,
    /// What is worth knowing besides.
    pub notes: Vec<Note>,
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

/// A directory for tests.
#[cfg(test)]
pub(crate) fn sample_dir() -> Arc<Dir> {
    let source = Source {
        root: Root::open(Path::new("/")).expect("there is a root"),
        path: "/".into(),
        below: Box::default(),
        holds_one: false,
        rename: None,
    };
    Arc::new(Dir {
        parent: None,
        name: Box::default(),
        source: Arc::new(source),
        stat: Stat::default(),
        xattrs: Xattrs::new(),
        there: There::Nothing,
        names: None,
        role: Role::Entry,
        is_incomplete: false,
        made: OnceLock::new(),
        folds_case: OnceLock::new(),
    })
}
