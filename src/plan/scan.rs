//! Lists the sources and looks at every entry once.
//!
//! On a disk that seeks, metadata is read like any other data: directories in
//! an elevator by inode number, then every entry in ascending inode order, with
//! several requests in flight so that the drive's own queue can sort them. One
//! openat of a file serves fstat, FIEMAP and the listing of attributes. Where a
//! destination is known, each entry is compared with what is there.

mod inodes;
pub(crate) mod list;
mod look;
mod select;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::choose::Choices;
use super::{Action, Entry, Extents, Kind, Listing, Source};
use crate::cache::Cache;
use crate::dest::Dest;
use crate::dest::compare::Sides;
use crate::error::Failure;
use crate::filter::Filter;
use crate::report::Counters;

/// A source argument, and the one entry that it is if it is not a directory.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) source: Arc<Source>,
    pub(crate) only: Option<Box<[u8]>>,
}

/// What a scan needs to know and to tell.
pub(crate) struct Scan<'a> {
    pub(crate) dest: Option<&'a Dest>,
    pub(crate) choices: &'a Choices,
    pub(crate) cache: Option<&'a Cache>,
    pub(crate) filter: &'a Filter,
    /// A listed path that is not there is a failure.
    pub(crate) expects_all: bool,
    pub(crate) one_file_system: bool,
    /// Directories have to remember their names.
    pub(crate) keep_names: bool,
    pub(crate) threads: usize,
    pub(crate) counters: &'a Counters,
    pub(crate) stop: &'a AtomicBool,
}

/// What a scan found.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    pub(crate) listing: Listing,
    pub(crate) extents: Extents,
    pub(crate) links: Vec<(u32, u32)>,
    pub(crate) failures: Vec<Failure>,
}

/// Entries handed to a thread at a time: few, so that what is in flight stays
/// close together on the disk.
const CHUNK_ENTRIES: usize = 4;

impl Scan<'_> {
    /// Lists, looks, and finds the hard links.
    pub(crate) fn run(&self, starts: &[Start]) -> Scanned {
        let (mut listing, mut failures) = list::list(self, starts);
        let dirs = &listing.dirs;
        listing
            .entries
            .sort_unstable_by_key(|e| (dirs[e.dir as usize].stat.dev, e.ino, e.listed()));
        let extents = self.look_at_all(&mut listing, &mut failures);
        let links = find_links(&mut listing);
        Scanned {
            listing,
            extents,
            links,
            failures,
        }
    }

    /// With `--checksum`, what is left as it is without having been read is what
    /// the cache knows.
    pub(crate) fn count_hit(&self, kind: Kind, action: Action) {
        let checks = self.dest.is_some_and(|dest| dest.rules.checksum);
        if checks && kind == Kind::File && matches!(action, Action::Keep | Action::Same) {
            self.counters.cache_hits.fetch_add(1, Relaxed);
        }
    }

    fn look_at_all(&self, listing: &mut Listing, failures: &mut Vec<Failure>) -> Extents {
        let mut entries = std::mem::take(&mut listing.entries);
        let found = Mutex::new((Extents::new(), Vec::new(), std::mem::take(failures)));
        let devices = Mutex::new(std::mem::take(&mut listing.devices));
        let chunks = Mutex::new(entries.chunks_mut(CHUNK_ENTRIES).enumerate());
        std::thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(|| {
                    let mut mine = Vec::new();
                    let mut failed = Vec::new();
                    let mut sides = Sides::default();
                    let mut devices = look::Devices::new(&devices);
                    loop {
                        // The lock ends with the statement: others go on.
                        let next = lock(&chunks).next();
                        let Some((at, chunk)) = next else { break };
                        if self.stop.load(Relaxed) {
                            break;
                        }
                        for (i, entry) in chunk.iter_mut().enumerate() {
                            let index = at * CHUNK_ENTRIES + i;
                            match look::look(self, listing, entry, &mut devices, &mut sides) {
                                Ok(extents) if extents.len() > 1 => mine.push((index, extents)),
                                Ok(_) => {}
                                Err(failure) => {
                                    entry.action = Action::Fail;
                                    failed.push(failure);
                                }
                            }
                        }
                    }
                    let mut found = lock(&found);
                    found.1.append(&mut mine);
                    found.2.append(&mut failed);
                });
            }
        });
        let (mut extents, placed, failed) = found.into_inner().unwrap_or_else(|e| e.into_inner());
        for (index, list) in placed {
            // `push` has refused more entries than an u32 counts.
            extents.insert(
                u32::try_from(index).unwrap_or(u32::MAX),
                list.into_boxed_slice(),
            );
        }
        *failures = failed;
        listing.entries = entries;
        listing.devices = devices.into_inner().unwrap_or_else(|e| e.into_inner());
        extents
    }
}

/// Gives all but the first entry of each inode the action `Link`. The first is
/// the one that the sweep meets first, and copies.
fn find_links(listing: &mut Listing) -> Vec<(u32, u32)> {
    let mut first: HashMap<(u16, u64), u32> = HashMap::new();
    let mut links = Vec::new();
    for (i, entry) in (0..).zip(&mut listing.entries) {
        let is_shared = entry.links > 1 && entry.kind != Kind::Dir;
        if !is_shared || matches!(entry.action, Action::Fail | Action::Skip) {
            continue;
        }
        match first.entry((entry.device, entry.ino)) {
            std::collections::hash_map::Entry::Occupied(leader) => {
                entry.action = Action::Link;
                links.push((i, *leader.get()));
            }
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(i);
            }
        }
    }
    links
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Entry {
    /// Whether its bytes have to be read.
    pub(crate) fn is_to_read(&self) -> bool {
        self.kind == Kind::File && self.action == Action::Copy
    }
}
