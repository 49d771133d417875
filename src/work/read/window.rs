//! The files ahead of a reader: opened, and already being read by the kernel.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;

use super::open;
use crate::plan::{Extents, LARGE_BYTES, Listing, Read, WHOLE};
use crate::sys::memory;
use crate::work::ahead::{Asked, WINDOW_BYTES};

/// Opened files ahead, at most.
const WINDOW_FILES: u64 = 1024;

/// Descriptors left for everything else.
const OTHER_FILES: u64 = 48;

/// A file that was opened ahead of its turn.
pub(super) struct Ahead {
    pub(super) read: Read,
    pub(super) file: io::Result<File>,
    pub(super) asked: Asked,
    bytes: u64,
}

impl Ahead {
    /// Its bytes if it is read in one go; 0 if it comes in pieces.
    pub(super) fn small_bytes(&self) -> u64 {
        if self.bytes > LARGE_BYTES {
            0
        } else {
            self.bytes
        }
    }
}

/// Files opened and asked for ahead of the reader. It is refilled when it has
/// run half empty, so that requests reach the disk's queue in strides that the
/// scheduler can sort and merge.
pub(super) struct Window<'a> {
    listing: &'a Listing,
    extents: &'a Extents,
    reads: std::slice::Iter<'a, Read>,
    ahead: VecDeque<Ahead>,
    bytes: u64,
    max_files: usize,
}

impl<'a> Window<'a> {
    pub(super) fn new(
        listing: &'a Listing,
        extents: &'a Extents,
        reads: &'a [Read],
        readers: u64,
    ) -> Window<'a> {
        let files = memory::open_files_limit().saturating_sub(OTHER_FILES) / 2 / readers;
        let max_files = usize::try_from(files.clamp(1, WINDOW_FILES)).unwrap_or(1);
        Window {
            listing,
            extents,
            reads: reads.iter(),
            ahead: VecDeque::new(),
            bytes: 0,
            max_files,
        }
    }

    pub(super) fn next(&mut self) -> Option<Ahead> {
        self.top_up(0);
        if self.ahead.is_empty() {
            self.fill(0);
        }
        let first = self.ahead.pop_front()?;
        self.bytes -= first.bytes;
        Some(first)
    }

    /// Refills it for a reader that has still so many bytes to read of what it
    /// was given last.
    pub(super) fn top_up(&mut self, left: u64) {
        if self.ahead.len() <= self.max_files / 2 && self.bytes + left <= WINDOW_BYTES / 2 {
            self.fill(left);
        }
    }

    fn fill(&mut self, left: u64) {
        while self.ahead.is_empty()
            || (self.ahead.len() < self.max_files && self.bytes + left < WINDOW_BYTES)
        {
            let Some(&read) = self.reads.next() else {
                return;
            };
            let range = self.range(read);
            let file = open(self.listing, read.entry);
            let room = WINDOW_BYTES.saturating_sub(self.bytes + left);
            let asked = match &file {
                Ok(file) => Asked::begin(file, range.clone(), room),
                Err(_) => Asked::nothing(range.clone()),
            };
            // All of it, however little was asked for: what comes behind a
            // large file waits until that is nearly read.
            let bytes = range.end - range.start;
            self.bytes += bytes;
            self.ahead.push_back(Ahead {
                read,
                file,
                asked,
                bytes,
            });
        }
    }

    fn range(&self, read: Read) -> Range<u64> {
        let size = self.listing.entries[read.entry as usize].size;
        match read.part {
            WHOLE => 0..size,
            part => {
                let extent = self.extents[&read.entry][part as usize];
                let start = extent.logical.min(size);
                start..(extent.logical + extent.len).min(size).max(start)
            }
        }
    }
}
