//! Source and destination on one disk: a memory-full is read, then written, in
//! turns, so that the head does not go back and forth between the two.
//!
//! What was written meanwhile is in the page cache. The kernel would begin to
//! write it out when a share of the memory is dirty; before that comes, the
//! reader stops, and everything is written in one go.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::run::Run;
use crate::error::{Failure, Op};
use crate::sys::memory;

/// When whose turn it is.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Bytes read in one turn.
    limit: u64,
    read: AtomicU64,
}

impl Turns {
    /// `available` bytes of memory are free.
    pub(crate) fn new(available: u64) -> Turns {
        Turns {
            limit: (memory::background_dirty_bytes(available) / 8 * 7).max(MIN_BYTES),
            read: AtomicU64::new(0),
        }
    }

    /// Notes what was read; where that makes a memory-full, writes it out.
    pub(crate) fn read(&self, run: &Run<'_>, bytes: u64) {
        if !self.is_over(bytes) {
            return;
        }
        let written = nix::unistd::syncfs(&run.dest.root);
        if let Err(errno) = written {
            let path = run.dest.path.clone();
            run.failed(Failure::new(Op::Sync, path, io::Error::from(errno)));
        }
    }

    /// Whether so many bytes more end this turn; the next then begins.
    fn is_over(&self, bytes: u64) -> bool {
        let read = self.read.fetch_add(bytes, Relaxed) + bytes;
        let is_over = read >= self.limit;
        if is_over {
            self.read.store(0, Relaxed);
        }
        is_over
    }
}

/// A turn is at least this long: the way there and back is some ten
/// milliseconds, in which a disk reads two megabytes.
const MIN_BYTES: u64 = 32 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_over_when_a_memory_full_was_read() {
        let turns = Turns::new(0);
        assert!(!turns.is_over(MIN_BYTES - 1));
        assert!(turns.is_over(1));
        assert!(!turns.is_over(MIN_BYTES - 1), "the next one begins");
        assert!(turns.is_over(2));
    }

    #[test]
    fn a_turn_is_shorter_than_the_kernels_patience_with_dirty_pages() {
        let available = 64 << 30;
        let turns = Turns::new(available);
        assert!(turns.limit <= memory::background_dirty_bytes(available).max(MIN_BYTES));
    }
}
