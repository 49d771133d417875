//! The reader of a disk: goes through its sweep, keeps a window of opened
//! files ahead of itself that the kernel is already reading, and fills bundles
//! and pieces.
//!
//! A file that changes while it is read is read again; one that will not hold
//! still is named. The look-ahead keeps each file's identity beside its
//! result, so that an error never shifts the queue.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use nix::errno::Errno;

use super::Work;
use super::budget::Budget;
use super::run::Run;
use crate::error::{During, Failure, Op};
use crate::plan::bundle::Bundle;
use crate::plan::{LARGE_BYTES, Listing, Plan, Read, WHOLE};
use crate::sys::metadata::Stat;
use crate::sys::{advise, beneath};

mod holes;
mod large;
mod share;
mod small;
mod window;

use window::{WINDOW_BYTES, Window};

/// Takes over what was read.
pub(crate) type Sink<'a> = dyn FnMut(Work) + 'a;

/// Reads one sweep.
pub(crate) fn sweep(
    run: &Run<'_>,
    plan: &Plan,
    reads: &[Read],
    budget: &Budget,
    sink: &mut Sink<'_>,
) {
    let mut reader = Reader::new(run, &plan.listing, budget, sink);
    let mut window = Window::new(&plan.listing, &plan.extents, reads, budget.readers as u64);
    let mut halves: HashMap<u32, Half> = HashMap::new();
    while let Some(ahead) = window.next() {
        if run.is_stopped() {
            break;
        }
        if ahead.read.part == WHOLE {
            reader.file(ahead.read.entry, ahead.file.map(Arc::new));
        } else {
            let extents = &plan.extents[&ahead.read.entry];
            reader.part(
                &mut halves,
                ahead.read,
                extents.len(),
                &extents[ahead.read.part as usize],
                ahead.file,
            );
        }
    }
    reader.flush();
}

/// Reads and writes one entry of a plan outside any sweep.
///
/// With buffers of its own: a writer that waited for one of the readers' could
/// wait for itself.
pub(crate) fn copy_one(run: &Run<'_>, listing: &Listing, index: u32) {
    let budget = Budget::new(0, 1, false);
    let mut sink = |work| super::write::work(run, listing, &budget, work);
    let mut reader = Reader::new(run, listing, &budget, &mut sink);
    reader.file(index, open(listing, index).map(Arc::new));
    reader.flush();
}

/// Opens an entry's file.
pub(crate) fn open(listing: &Listing, index: u32) -> io::Result<File> {
    let entry = &listing.entries[index as usize];
    let (dir, name) = (listing.dir(entry), listing.name(entry));
    dir.source
        .root
        .file(&beneath::join([&dir.relative()[..], name]))
}

/// A fragmented file of which some extents are still to come.
struct Half {
    left: usize,
    first: io::Result<Stat>,
    bytes: Vec<u8>,
    failed: Option<io::Error>,
}

/// Fills bundles and pieces and hands them on.
pub(crate) struct Reader<'a, 'run> {
    pub(crate) run: &'run Run<'run>,
    pub(crate) listing: &'a Listing,
    budget: &'a Budget,
    bundle: Bundle,
    sink: &'a mut Sink<'a>,
}

impl<'a, 'run> Reader<'a, 'run> {
    pub(crate) fn new(
        run: &'run Run<'run>,
        listing: &'a Listing,
        budget: &'a Budget,
        sink: &'a mut Sink<'a>,
    ) -> Reader<'a, 'run> {
        Reader {
            run,
            listing,
            budget,
            bundle: Bundle::reusing(budget.take()),
            sink,
        }
    }

    /// Hands on the last bundle.
    pub(crate) fn flush(mut self) {
        let bundle = std::mem::take(&mut self.bundle);
        if bundle.members.is_empty() {
            self.budget.give(bundle.bytes);
        } else {
            (self.sink)(Work::Bundle(bundle));
        }
    }

    /// Reads a whole file that was looked at.
    pub(crate) fn opened(&mut self, entry: u32, file: &Arc<File>, stat: Stat) {
        if let Err(failure) = self.read(entry, file, stat) {
            self.fail(entry, failure);
        }
    }

    /// Reads a whole file.
    pub(crate) fn file(&mut self, entry: u32, file: io::Result<Arc<File>>) {
        let read = file
            .and_then(|file| Ok((Stat::of(&file)?, file)))
            .during_at(Op::Open, || self.path(entry))
            .and_then(|(stat, file)| self.read(entry, &file, stat));
        if let Err(failure) = read {
            self.fail(entry, failure);
        }
    }

    fn read(&mut self, entry: u32, file: &Arc<File>, stat: Stat) -> Result<(), Failure> {
        if stat.kind() != crate::plan::Kind::File {
            return Err(Failure::because(
                Op::Open,
                self.path(entry),
                "is no longer a regular file",
            ));
        }
        if self.run.dest.wants_share() && stat.size > 0 {
            if self.share(entry, file, &stat)? {
                return Ok(());
            }
            if self.run.dest.must_share() {
                let e = Errno::EOPNOTSUPP.into();
                return Err(
                    Failure::new(Op::Create, self.path(entry), e).detail("--reflink=always")
                );
            }
        }
        let delta = self.run.options.delta && stat.size == LARGE_BYTES;
        let done = if stat.size > LARGE_BYTES || delta {
            self.large(entry, file, stat)
        } else {
            self.small(entry, file, stat, None)
        };
        if self.budget.drop_behind {
            advise::drop_cached(&**file, 0, 0);
        }
        done
    }

    /// Reads one extent of a fragmented file, and hands on the file with its
    /// last one.
    fn part(
        &mut self,
        halves: &mut HashMap<u32, Half>,
        read: Read,
        parts: usize,
        extent: &crate::plan::Extent,
        file: io::Result<File>,
    ) {
        let size = self.listing.entries[read.entry as usize].size;
        let half = halves.entry(read.entry).or_insert_with(|| Half {
            left: parts,
            first: file.as_ref().map_err(copy_error).and_then(Stat::of),
            bytes: vec![0; usize::try_from(size).unwrap_or(0)],
            failed: None,
        });
        half.left -= 1;
        match &file {
            Ok(file) => {
                let end = (extent.logical + extent.len).min(size);
                let range = extent.logical.min(end)..end;
                let (from, to) = (usize::try_from(range.start), usize::try_from(range.end));
                if let (Ok(from), Ok(to)) = (from, to)
                    && let Err(e) = file.read_exact_at(&mut half.bytes[from..to], range.start)
                {
                    // Shorter than it was: found out when it is looked at as
                    // a whole.
                    if e.kind() != io::ErrorKind::UnexpectedEof {
                        half.failed.get_or_insert(e);
                    }
                }
            }
            Err(e) => {
                half.failed.get_or_insert(copy_error(e));
            }
        }
        if half.left == 0
            && let Some(half) = halves.remove(&read.entry)
        {
            self.assembled(read.entry, half, file);
        }
    }

    /// A file whose extents were read in the disk's order.
    fn assembled(&mut self, entry: u32, half: Half, file: io::Result<File>) {
        let whole = || -> Result<(), Failure> {
            let path = self.path(entry);
            if let Some(e) = half.failed {
                return Err(Failure::new(Op::Read, path, e));
            }
            let first = half.first.during(Op::Open, &path)?;
            let file = Arc::new(file.during(Op::Open, &path)?);
            if first.size != half.bytes.len() as u64 {
                return self.read(entry, &file, first);
            }
            self.run.counters.read_bytes.fetch_add(first.size, Relaxed);
            if first.size > LARGE_BYTES {
                self.large_from(entry, &file, first, &half.bytes)
            } else {
                self.small(entry, &file, first, Some(&half.bytes))
            }
        };
        if let Err(failure) = whole() {
            self.fail(entry, failure);
        }
    }

    pub(crate) fn path(&self, entry: u32) -> std::path::PathBuf {
        self.listing.path(&self.listing.entries[entry as usize])
    }

    /// Counts an entry that could not be read.
    pub(crate) fn fail(&mut self, entry: u32, failure: Failure) {
        let it = &self.listing.entries[entry as usize];
        self.run.mark(entry);
        self.run.entry_failed(failure);
        if it.links > 1 {
            let stat = Stat {
                dev: self.listing.devices[usize::from(it.device)],
                ino: it.ino,
                links: u64::from(it.links),
                ..Stat::default()
            };
            self.run
                .led(&stat, self.listing.dir(it), self.listing.name(it), false);
        }
    }
}

/// `io::Error` is not `Clone`; errors of system calls are their errno.
fn copy_error(e: &io::Error) -> io::Error {
    e.raw_os_error().map_or_else(
        || io::Error::new(e.kind(), e.to_string()),
        io::Error::from_raw_os_error,
    )
}
