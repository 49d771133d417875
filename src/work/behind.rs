//! Has a destination that seeks write while there is still to be read.
//!
//! The kernel keeps dirty pages for seconds, so a disk is idle until somebody
//! waits for it to have written. A thread has the filesystem written out each
//! time that some more was copied; what it does at the end of the copy is
//! finished, and no more. (To start the writing of each file by itself,
//! sync_file_range(2), was slower than nothing: many small writes.)

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::run::lock;

/// Bytes after which there is something to be written: a disk takes 0.1 s for
/// them. Measured in METHODOLOGY.md; larger ones begin later.
const ROUND_BYTES: u64 = 16 << 20;

/// Told of what was copied.
#[derive(Debug, Default)]
pub(crate) struct Behind(Option<Rounds>);

#[derive(Debug)]
struct Rounds {
    bytes: AtomicU64,
    due_tx: Mutex<Option<Sender<()>>>,
    ended_rx: Receiver<io::Result<()>>,
}

impl Behind {
    /// Runs `copy` with one for the filesystem of `root`, if `wanted`; else
    /// with one that does nothing.
    pub(crate) fn during<T>(
        wanted: bool,
        root: impl AsFd,
        copy: impl FnOnce(Behind) -> io::Result<T>,
    ) -> io::Result<T> {
        if !wanted {
            return copy(Behind::default());
        }
        let root = File::from(root.as_fd().try_clone_to_owned()?);
        let (due_tx, due_rx) = bounded(1);
        let (ended_tx, ended_rx) = bounded(1);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Nobody waits for it where the copy could not begin.
                drop(ended_tx.send(write_out(&root, due_rx, &is_over)));
            });
            let copied = copy(Behind(Some(Rounds {
                bytes: AtomicU64::new(0),
                due_tx: Mutex::new(Some(due_tx)),
                ended_rx,
            })));
            is_over.store(true, Relaxed);
            copied
        })
    }

    /// Notes bytes that were written.
    pub(crate) fn wrote(&self, bytes: u64) {
        let Some(rounds) = &self.0 else { return };
        let before = rounds.bytes.fetch_add(bytes, Relaxed);
        if before / ROUND_BYTES != (before + bytes) / ROUND_BYTES
            && let Some(due) = &*lock(&rounds.due_tx)
        {
            // One that waits already is enough.
            due.try_send(()).unwrap_or_default();
        }
    }

    /// Ends it, and says what went wrong: an error of writing is told once.
    pub(crate) fn end(&self) -> io::Result<()> {
        let Some(rounds) = &self.0 else { return Ok(()) };
        match lock(&rounds.due_tx).take() {
            Some(due) => {
                drop(due);
                rounds.ended_rx.recv().unwrap_or(Ok(()))
            }
            None => Ok(()),
        }
    }
}

fn write_out(root: &File, due: Receiver<()>, is_over: &AtomicBool) -> io::Result<()> {
    let mut written = Ok(());
    for () in due {
        if is_over.load(Relaxed) {
            break;
        }
        let round = nix::unistd::syncfs(root).map_err(io::Error::from);
        written = written.and(round);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_come_with_the_bytes_and_end_with_the_copy() {
        let dir = tempfile::tempdir().unwrap();
        let root = File::open(dir.path()).unwrap();
        let ended = Behind::during(true, &root, |behind| {
            for _ in 0..5 {
                behind.wrote(ROUND_BYTES / 2);
            }
            let rounds = behind.0.as_ref().unwrap();
            assert_eq!(rounds.bytes.load(Relaxed), ROUND_BYTES / 2 * 5);
            behind.end()?;
            behind.wrote(ROUND_BYTES); // nobody is there any more
            behind.end()
        });
        ended.unwrap();
    }
}
