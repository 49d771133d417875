//! Reads many files from their medium, not from the page cache, each disk in
//! the order in which it holds them, and gives their digests.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::file::read_digest;
use crate::plan::choose::Choices;
use crate::sys::metadata::Stat;
use crate::sys::{advise, fiemap};

/// What was found of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) size: u64,
    pub(crate) digest: u128,
}

/// Requests for places in flight, so that the disk's queue can sort them.
const LOOKERS: usize = 16;

/// See [`crate::work::read`]: opened ahead of the reader.
const WINDOW_BYTES: u64 = 16 << 20;
const WINDOW_FILES: usize = 64;

/// Threads that read from a disk that does not seek.
const READERS: usize = 4;

type Open<'a> = &'a (dyn Fn(usize) -> io::Result<File> + Sync);
type Each<'a> = &'a (dyn Fn(usize, io::Result<Found>) + Sync);

/// Reads files 0 to `count`; `each` is told of every one, in any order.
pub(crate) fn read(
    count: usize,
    choices: &Choices,
    is_stopped: &(dyn Fn() -> bool + Sync),
    open: Open<'_>,
    each: Each<'_>,
) {
    let next = AtomicUsize::new(0);
    let places = Mutex::new(HashMap::<u64, Vec<(u64, usize)>>::new());
    std::thread::scope(|scope| {
        for _ in 0..LOOKERS.min(count) {
            scope.spawn(|| {
                while !is_stopped() {
                    let i = next.fetch_add(1, Relaxed);
                    if i >= count {
                        break;
                    }
                    match open(i).and_then(|file| place(&file, choices)) {
                        Ok((key, physical)) => {
                            let mut places = places.lock().unwrap_or_else(|e| e.into_inner());
                            places.entry(key).or_default().push((physical, i));
                        }
                        Err(e) => each(i, Err(e)),
                    }
                }
            });
        }
    });
    let places = places.into_inner().unwrap_or_else(|e| e.into_inner());
    std::thread::scope(|scope| {
        for mut files in places.into_values() {
            files.sort_unstable();
            scope.spawn(move || {
                let seeks = files
                    .first()
                    .is_some_and(|(physical, _)| *physical != NO_PLACE);
                let files: Vec<usize> = files.into_iter().map(|(_, i)| i).collect();
                if seeks {
                    sweep(&files, is_stopped, open, each);
                } else {
                    side_by_side(&files, is_stopped, open, each);
                }
            });
        }
    });
}

/// Of files on disks that do not seek.
const NO_PLACE: u64 = u64::MAX;

/// Drops a file's cached pages, and tells where it lies: (disk, offset).
fn place(file: &File, choices: &Choices) -> io::Result<(u64, u64)> {
    advise::drop_cached(file, 0, 0);
    let stat = Stat::of(file)?;
    let choice = choices.of(stat.dev);
    if !choice.wants_places() {
        return Ok((choice.key, NO_PLACE));
    }
    // Places only order the reads: without one the file comes first.
    let map = fiemap::map(file.as_fd(), 1, false)
        .ok()
        .flatten()
        .unwrap_or_default();
    Ok((
        choice.key,
        map.extents.first().map_or(0, |extent| extent.physical),
    ))
}

/// One ascending sweep, with files opened and asked for ahead of the reader.
fn sweep(files: &[usize], is_stopped: &(dyn Fn() -> bool + Sync), open: Open<'_>, each: Each<'_>) {
    let mut rest = files.iter();
    let mut ahead: VecDeque<(usize, io::Result<(File, u64)>)> = VecDeque::new();
    let mut ahead_bytes = 0;
    let mut scratch = Vec::new();
    loop {
        if ahead.len() <= WINDOW_FILES / 2 && ahead_bytes <= WINDOW_BYTES / 2 {
            while ahead.is_empty() || (ahead.len() < WINDOW_FILES && ahead_bytes < WINDOW_BYTES) {
                let Some(&i) = rest.next() else { break };
                let opened = open(i).and_then(|file| Ok((Stat::of(&file)?.size, file)));
                let opened = opened.map(|(size, file)| {
                    advise::will_need(&file, 0, size.min(WINDOW_BYTES));
                    ahead_bytes += size.min(WINDOW_BYTES);
                    (file, size)
                });
                ahead.push_back((i, opened));
            }
        }
        let Some((i, opened)) = ahead.pop_front() else {
            return;
        };
        if is_stopped() {
            return;
        }
        each(
            i,
            opened.and_then(|(file, size)| {
                ahead_bytes -= size.min(WINDOW_BYTES);
                digest(&file, size, &mut scratch)
            }),
        );
    }
}

/// Several at once.
fn side_by_side(
    files: &[usize],
    is_stopped: &(dyn Fn() -> bool + Sync),
    open: Open<'_>,
    each: Each<'_>,
) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..READERS.min(files.len()) {
            scope.spawn(|| {
                let mut scratch = Vec::new();
                while !is_stopped() {
                    let Some(&i) = files.get(next.fetch_add(1, Relaxed)) else {
                        break;
                    };
                    let found = open(i).and_then(|file| {
                        let size = Stat::of(&file)?.size;
                        digest(&file, size, &mut scratch)
                    });
                    each(i, found);
                }
            });
        }
    });
}

fn digest(file: &File, size: u64, scratch: &mut Vec<u8>) -> io::Result<Found> {
    Ok(Found {
        size,
        digest: read_digest(file, size, scratch)?,
    })
}
