//! Memory for content on its way: a bounded number of buffers that go round
//! between readers and writers, and the window for half-read files.

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::plan::bundle::BUNDLE_BYTES;

/// A buffer holds a bundle, and the small file (up to 1 MiB) and headers that
/// took it past its measure.
pub(crate) const BUFFER_BYTES: usize = BUNDLE_BYTES + (1 << 20) + 64 * 1024;

/// By default a quarter of what is free, but not more than this: beyond it a
/// longer queue has not made any tree faster.
const MAX_DEFAULT_BYTES: u64 = 512 << 20;

/// A reader holds the bundle that it fills and takes the next one before it
/// hands it on; with two more there is always one to be written.
const BUFFERS_PER_READER: usize = 4;

/// Buffers that go round.
pub(crate) struct Budget {
    full_tx: Sender<Vec<u8>>,
    free_rx: Receiver<Vec<u8>>,
    /// Threads that share the open files.
    pub(crate) readers: usize,
    /// Whether the kernel may copy large files by itself where nobody needs to
    /// see the bytes. Not in a sweep, whose reader must not wait for writes.
    pub(crate) in_kernel: bool,
    /// Whether what was read should leave the page cache again.
    pub(crate) drop_behind: bool,
}

/// Bytes to use, as asked or from what is free.
pub(crate) fn bytes(asked: Option<u64>, available: u64) -> u64 {
    asked
        .unwrap_or_else(|| (available / 4).min(MAX_DEFAULT_BYTES))
        .max(32 << 20)
}

impl Budget {
    /// Half of `bytes` for buffers; the other half is the order's window for
    /// half-read files.
    pub(crate) fn new(bytes: u64, readers: usize, drop_behind: bool) -> Budget {
        let buffers = usize::try_from(bytes / 2).unwrap_or(usize::MAX) / BUFFER_BYTES;
        let buffers = buffers.max(BUFFERS_PER_READER * readers.max(1));
        let (full_tx, free_rx) = bounded(buffers);
        for _ in 0..buffers {
            // Empty vectors take no memory until they are first filled.
            full_tx
                .send(Vec::new())
                .expect("the channel holds them all");
        }
        Budget {
            full_tx,
            free_rx,
            readers: readers.max(1),
            in_kernel: false,
            drop_behind,
        }
    }

    /// Takes an empty buffer; waits until one is free.
    pub(crate) fn take(&self) -> Vec<u8> {
        let mut buffer = self.recv();
        buffer.clear();
        buffer
    }

    /// The same with `len` bytes of whatever was in it before: nothing is
    /// cleared that will be overwritten.
    pub(crate) fn take_len(&self, len: usize) -> Vec<u8> {
        let mut buffer = self.recv();
        buffer.resize(len, 0);
        buffer
    }

    fn recv(&self) -> Vec<u8> {
        self.free_rx
            .recv()
            .expect("the budget holds its own sender")
    }

    /// Gives a buffer back.
    pub(crate) fn give(&self, mut buffer: Vec<u8>) {
        // A file larger than the usual made it grow: its memory goes.
        if buffer.capacity() > 2 * BUFFER_BYTES {
            buffer = Vec::new();
        }
        self.full_tx
            .try_send(buffer)
            .expect("no more buffers come back than were taken");
    }
}
