//! On XFS each directory is made in another part of the disk, so a walk that
//! asks for one inode after the other keeps the head travelling. Where most of a
//! filesystem is to be copied, all of its inodes are read first, in one
//! ascending pass. (To open directories ahead of their turn, so that the kernel
//! begins to read them, was tried: a queue that is full of requests from all over
//! the disk is served in the order of their age.)
//!
//! What the pass reads is only wanted in the kernel's cache: where it cannot be
//! had (another filesystem, no root) everything goes on without it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{RwLock, RwLockReadGuard};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::{Scan, Start};
use crate::plan::Source;
use crate::sys::metadata::Stat;
use crate::sys::{beneath, xfs};

/// The pass pays where at least one in so many inodes will be asked for: it
/// costs half of what it saves for each of them.
const SHARE: u64 = 3;

/// The filesystems whose inodes may be worth a pass.
pub(super) struct Inodes<'a> {
    scan: &'a Scan<'a>,
    filesystems: Vec<Filesystem<'a>>,
    /// Held by whoever lists; taken whole by the pass, for the head cannot be
    /// in two places.
    listing: RwLock<()>,
}

struct Filesystem<'a> {
    dev: u64,
    source: &'a Source,
    used: u64,
    found: AtomicU64,
    asked: AtomicBool,
}

impl<'a> Inodes<'a> {
    pub(super) fn new(scan: &'a Scan<'a>, starts: &'a [Start]) -> Inodes<'a> {
        let mut filesystems: Vec<Filesystem<'a>> = Vec::new();
        // A list names few files of many.
        let starts = starts.iter().filter(|_| scan.filter.files.is_none());
        for start in starts.filter(|start| start.only.is_none()) {
            // Whatever goes wrong here, only a saving is lost.
            let Ok(stat) = Stat::of(&start.source.root) else {
                continue;
            };
            let is_known = filesystems.iter().any(|known| known.dev == stat.dev);
            if !is_known
                && let Ok(Some(used)) = xfs::used_inodes(&start.source.root)
                && scan.choices.of(stat.dev).wants_places()
            {
                filesystems.push(Filesystem {
                    dev: stat.dev,
                    source: &start.source,
                    used,
                    found: AtomicU64::new(0),
                    asked: AtomicBool::new(false),
                });
            }
        }
        let inodes = Inodes {
            scan,
            filesystems,
            listing: RwLock::default(),
        };
        for filesystem in &inodes.filesystems {
            if is_all_there_is(&filesystem.source.root).unwrap_or(false) {
                inodes.read(filesystem);
            }
        }
        inodes
    }

    /// Keeps the pass from beginning.
    pub(super) fn listing(&self) -> RwLockReadGuard<'_, ()> {
        self.listing.read().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes that names were found on a device; so many that reading all inodes
    /// pays, and it is done here.
    pub(super) fn found(&self, dev: u64, names: usize) {
        let Some(filesystem) = self.on(dev) else {
            return;
        };
        let found = filesystem.found.fetch_add(names as u64, Relaxed) + names as u64;
        if found.saturating_mul(SHARE) >= filesystem.used {
            self.read(filesystem);
        }
    }

    fn read(&self, filesystem: &Filesystem<'_>) {
        if filesystem.asked.swap(true, Relaxed) {
            return;
        }
        let _alone = self.listing.write().unwrap_or_else(|e| e.into_inner());
        let goes_on = || !self.scan.stop.load(Relaxed);
        // Only root may ask; whoever may not does without.
        xfs::read_inodes(&filesystem.source.root, goes_on).unwrap_or_default();
    }

    fn on(&self, dev: u64) -> Option<&Filesystem<'a>> {
        self.filesystems.iter().find(|known| known.dev == dev)
    }
}

/// How many bits of an inode number say where within its allocation group it
/// lies; 64 where the filesystem of the first source has no such groups.
pub(super) fn group_bits(starts: &[Start]) -> u32 {
    let first = starts.first();
    let bits = first.and_then(|start| xfs::group_bits(&start.source.root).ok().flatten());
    bits.unwrap_or(u64::BITS)
}

/// Whether the directories above hold nothing else, up to the filesystem's root.
fn is_all_there_is(root: &beneath::Root) -> io::Result<bool> {
    let mut below = Stat::of(root)?;
    let mut dir = parent_of(root)?;
    loop {
        let stat = Stat::of(&dir)?;
        // "/" is its own parent.
        if stat.dev != below.dev || stat.ino == below.ino {
            return Ok(true);
        }
        let above = parent_of(&dir)?;
        let mut listed = nix::dir::Dir::from_fd(dir)?;
        for entry in listed.iter() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if entry.ino() != below.ino && name != b"." && name != b".." {
                return Ok(false);
            }
        }
        (below, dir) = (stat, above);
    }
}

fn parent_of(dir: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(openat(dir, "..", flags, Mode::empty())?)
}
