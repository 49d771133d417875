//! The files ahead of a reader: opened, and already being read by the kernel.

use std::collections::VecDeque;
use std::fs::File;
use std::io;

use super::open;
use crate::plan::{Extents, Listing, Read, WHOLE};
use crate::sys::{advise, memory};

/// Bytes that the kernel is asked to read ahead, over all opened files. Twice
/// what a 7,200 rpm disk reads in 50 ms; measured in METHODOLOGY.md.
pub(super) const WINDOW_BYTES: u64 = 16 << 20;

/// Opened files ahead, at most.
const WINDOW_FILES: u64 = 1024;

/// Descriptors left for everything else.
const OTHER_FILES: u64 = 48;

/// A file that was opened ahead of its turn.
pub(super) struct Ahead {
    pub(super) read: Read,
    pub(super) file: io::Result<File>,
    asked_bytes: u64,
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
        if self.ahead.len() <= self.max_files / 2 && self.bytes <= WINDOW_BYTES / 2 {
            self.fill();
        }
        let first = self.ahead.pop_front()?;
        self.bytes -= first.asked_bytes;
        Some(first)
    }

    fn fill(&mut self) {
        while self.ahead.is_empty()
            || (self.ahead.len() < self.max_files && self.bytes < WINDOW_BYTES)
        {
            let Some(&read) = self.reads.next() else {
                return;
            };
            let file = open(self.listing, read.entry);
            let (offset, len) = match read.part {
                WHOLE => (
                    0,
                    self.listing.entries[read.entry as usize]
                        .size
                        .min(WINDOW_BYTES),
                ),
                part => {
                    let extent = self.extents[&read.entry][part as usize];
                    (extent.logical, extent.len)
                }
            };
            if let Ok(file) = &file
                && len > 0
            {
                advise::will_need(file, offset, len);
            }
            self.bytes += len;
            self.ahead.push_back(Ahead {
                read,
                file,
                asked_bytes: len,
            });
        }
    }
}
