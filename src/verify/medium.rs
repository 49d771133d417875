//! Reads many files from their medium, not from the page cache, each disk in
//! the order in which it holds them, and gives their digests.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::plan::choose::Choices;
use crate::sys::metadata::Stat;
use crate::sys::{advise, fiemap, memory};
use crate::work::ahead::WINDOW_BYTES;

/// What was found of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// As it was after it was read.
    pub(crate) stat: Stat,
    pub(crate) size: u64,
    pub(crate) digest: u128,
}

/// Requests for places in flight, so that the disk's queue can sort them.
const LOOKERS: u64 = 16;

/// Of the descriptors that there may be: two trees, each on some disks, look
/// and read at once.
fn share_of_files(most: u64) -> usize {
    let files = memory::open_files_limit().saturating_sub(32) / 8;
    usize::try_from(files.clamp(1, most)).unwrap_or(1)
}

/// Opened ahead of the reader.
const WINDOW_FILES: u64 = 512;

/// Threads that read from a disk that does not seek.
const READERS: u64 = 4;

/// Takes a file's digest; see [`Files::digest`].
type Digest<'a> = dyn Fn(usize, &File, u64, &mut Vec<u8>) -> io::Result<u128> + Sync + 'a;

/// Files that are known by a number, and what to do with them.
pub(crate) struct Files<'a> {
    /// There are files 0 to `count`.
    pub(crate) count: usize,
    pub(crate) open: &'a (dyn Fn(usize) -> io::Result<File> + Sync),
    /// Where each lies (its device, and the physical offset if that is known),
    /// or none if that is still to be found out.
    pub(crate) places: Option<&'a (dyn Fn(usize) -> (u64, u64) + Sync)>,
    /// The digest of a file of this size; the vector is scratch memory.
    pub(crate) digest: &'a Digest<'a>,
    /// Is told of every file, in any order.
    pub(crate) each: &'a (dyn Fn(usize, io::Result<Found>) + Sync),
    pub(crate) is_stopped: &'a (dyn Fn() -> bool + Sync),
    /// Whether the page cache may not answer.
    pub(crate) drop_cached: bool,
}

/// Reads all of them.
pub(crate) fn read(files: &Files<'_>, choices: &Choices) {
    let mut disks: HashMap<u64, Vec<(u64, usize)>> = HashMap::new();
    for (i, dev, physical) in files.all_places(choices) {
        let choice = choices.of(dev);
        let at = match choice.wants_places() {
            true => physical,
            false => NO_PLACE,
        };
        disks.entry(choice.key).or_default().push((at, i));
    }
    std::thread::scope(|scope| {
        for mut places in disks.into_values() {
            places.sort_unstable();
            scope.spawn(move || {
                let seeks = places.first().is_some_and(|(at, _)| *at != NO_PLACE);
                let order: Vec<usize> = places.into_iter().map(|(_, i)| i).collect();
                if seeks {
                    sweep(files, &order);
                } else {
                    side_by_side(files, &order);
                }
            });
        }
    });
}

/// Of files on disks that do not seek.
const NO_PLACE: u64 = u64::MAX;

/// One ascending sweep, with files opened and asked for ahead of the reader.
fn sweep(files: &Files<'_>, order: &[usize]) {
    let window_files = share_of_files(WINDOW_FILES);
    let mut rest = order.iter();
    let mut ahead: VecDeque<(usize, io::Result<(File, u64)>)> = VecDeque::new();
    let mut ahead_bytes = 0;
    let mut scratch = Vec::new();
    loop {
        if ahead.len() <= window_files / 2 && ahead_bytes <= WINDOW_BYTES / 2 {
            while ahead.is_empty() || (ahead.len() < window_files && ahead_bytes < WINDOW_BYTES) {
                let Some(&i) = rest.next() else { break };
                let opened = files.open_cold(i).inspect(|(file, size)| {
                    let room = WINDOW_BYTES.saturating_sub(ahead_bytes);
                    advise::will_need(file, 0, room.min(*size));
                    // All of it: what follows a large file is not asked for
                    // before that is read.
                    ahead_bytes += size;
                });
                ahead.push_back((i, opened));
            }
        }
        let Some((i, opened)) = ahead.pop_front() else {
            return;
        };
        if (files.is_stopped)() {
            return;
        }
        let found = opened.and_then(|(file, size)| {
            ahead_bytes -= size;
            files.found(i, &file, size, &mut scratch)
        });
        (files.each)(i, found);
    }
}

/// Several at once.
fn side_by_side(files: &Files<'_>, order: &[usize]) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..share_of_files(READERS).min(order.len()) {
            scope.spawn(|| {
                let mut scratch = Vec::new();
                while !(files.is_stopped)() {
                    let Some(&i) = order.get(next.fetch_add(1, Relaxed)) else {
                        break;
                    };
                    let found = files
                        .open_cold(i)
                        .and_then(|(file, size)| files.found(i, &file, size, &mut scratch));
                    (files.each)(i, found);
                }
            });
        }
    });
}

impl Files<'_> {
    /// Every file's number, device, and physical offset.
    fn all_places(&self, choices: &Choices) -> Vec<(usize, u64, u64)> {
        if let Some(place) = self.places {
            let known = (0..self.count).map(|i| (i, place(i)));
            return known
                .map(|(i, (dev, physical))| (i, dev, physical))
                .collect();
        }
        let next = AtomicUsize::new(0);
        let places = Mutex::new(Vec::with_capacity(self.count));
        std::thread::scope(|scope| {
            for _ in 0..share_of_files(LOOKERS).min(self.count) {
                scope.spawn(|| {
                    while !(self.is_stopped)() {
                        let i = next.fetch_add(1, Relaxed);
                        if i >= self.count {
                            break;
                        }
                        match (self.open)(i).and_then(|file| place(&file, choices)) {
                            Ok((dev, physical)) => {
                                let mut places = places.lock().unwrap_or_else(|e| e.into_inner());
                                places.push((i, dev, physical));
                            }
                            Err(e) => (self.each)(i, Err(e)),
                        }
                    }
                });
            }
        });
        places.into_inner().unwrap_or_else(|e| e.into_inner())
    }

    /// Opens a file and drops its cached pages; gives its size as well.
    fn open_cold(&self, i: usize) -> io::Result<(File, u64)> {
        let file = (self.open)(i)?;
        if self.drop_cached {
            advise::drop_cached(&file, 0, 0);
        }
        let size = Stat::of(&file)?.size;
        Ok((file, size))
    }

    fn found(&self, i: usize, file: &File, size: u64, scratch: &mut Vec<u8>) -> io::Result<Found> {
        let digest = (self.digest)(i, file, size, scratch)?;
        let stat = Stat::of(file)?;
        Ok(Found { stat, size, digest })
    }
}

/// Where a file lies: its device and physical offset.
fn place(file: &File, choices: &Choices) -> io::Result<(u64, u64)> {
    let dev = Stat::of(file)?.dev;
    if !choices.of(dev).wants_places() {
        return Ok((dev, NO_PLACE));
    }
    // Places only order the reads: without one the file comes first.
    let map = fiemap::map(file.as_fd(), 1, false).ok().flatten();
    let map = map.unwrap_or_default();
    Ok((dev, map.extents.first().map_or(0, |extent| extent.physical)))
}
