//! How far ahead of a reader the kernel is asked to read.
//!
//! One stream of requests in the order of the reads, and never more than a
//! window of it: what is asked for too early waits in the disk's queue, which
//! serves what is old although the head is elsewhere.

use std::fs::File;
use std::ops::Range;

use crate::sys::advise;

/// Bytes ahead: twice what a 7,200 rpm disk reads in 50 ms; measured in
/// METHODOLOGY.md.
pub(crate) const WINDOW_BYTES: u64 = 16 << 20;

/// What of a range of a file has been asked for.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    to: u64,
    end: u64,
}

impl Asked {
    /// Asks for the beginning of a range, up to so many bytes.
    pub(crate) fn begin(file: &File, range: Range<u64>, bytes: u64) -> Asked {
        let mut asked = Asked::nothing(range);
        asked.ask(file, asked.to + bytes.min(WINDOW_BYTES));
        asked
    }

    /// Nothing of it yet.
    pub(crate) fn nothing(range: Range<u64>) -> Asked {
        Asked {
            to: range.start,
            end: range.end,
        }
    }

    /// Keeps a window ahead of a reader that is at `at`. It is refilled when it
    /// has run half empty, so that requests come in strides.
    pub(crate) fn keep_ahead(&mut self, file: &File, at: u64) {
        if self.to.saturating_sub(at) <= WINDOW_BYTES / 2 {
            self.to = self.to.max(at);
            self.ask(file, at + WINDOW_BYTES);
        }
    }

    fn ask(&mut self, file: &File, to: u64) {
        let to = to.min(self.end);
        if to > self.to {
            advise::will_need(file, self.to, to - self.to);
            self.to = to;
        }
    }
}
