//! The reader of a disk: goes through its sweep, keeps a window of opened
//! files ahead of itself that the kernel is already reading, and fills bundles
//! and pieces.
//!
//! A file that changes while it is read is read again; one that will not hold
//! still is named. The look-ahead keeps each file's identity beside its
//! result, so that an error never shifts the queue.

use std::fs::File;
use std::io;
use std::sync::Arc;

use nix::errno::Errno;

use super::Work;
use super::ahead::Asked;
use super::budget::Budget;
use super::run::Run;
use super::turns::Turns;
use crate::error::{During, Failure, Op};
use crate::plan::bundle::Bundle;
use crate::plan::{LARGE_BYTES, Listing, Plan, Read, Sweep, WHOLE};
use crate::sys::metadata::Stat;
use crate::sys::{advise, beneath};

mod holes;
mod large;
mod parts;
mod share;
mod small;
mod window;

use parts::Halves;
use window::Window;

/// Takes over what was read.
pub(crate) type Sink<'a> = dyn FnMut(Work) + 'a;

/// Reads one sweep.
pub(crate) fn sweep(
    run: &Run<'_>,
    plan: &Plan,
    (sweep, reads): (&Sweep, &[Read]),
    budget: &Budget,
    sink: &mut Sink<'_>,
) {
    let window = Window::new(&plan.listing, &plan.extents, reads, budget.readers as u64);
    let mut reader = Reader {
        window: Some(window),
        turns: run.turns_on(sweep.key),
        ..Reader::new(run, &plan.listing, budget, sink)
    };
    let mut halves = Halves::default();
    while let Some(ahead) = reader.window.as_mut().and_then(Window::next) {
        if run.is_stopped() {
            break;
        }
        if let Some(turns) = reader.turns {
            turns.read(run, ahead.small_bytes());
        }
        if ahead.read.part == WHOLE {
            reader.file(ahead.read.entry, ahead.file.map(Arc::new), ahead.asked);
        } else {
            reader.part(&mut halves, ahead, &plan.extents);
        }
    }
    reader.abandon(halves);
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
    let size = listing.entries[index as usize].size;
    let file = open(listing, index).map(Arc::new);
    reader.file(index, file, Asked::nothing(0..size));
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

/// Fills bundles and pieces and hands them on.
pub(crate) struct Reader<'a, 'run> {
    pub(crate) run: &'run Run<'run>,
    pub(crate) listing: &'a Listing,
    budget: &'a Budget,
    bundle: Bundle,
    sink: &'a mut Sink<'a>,
    /// What comes next, where that is planned.
    window: Option<Window<'a>>,
    /// Where the destination is on the same disk.
    turns: Option<&'run Turns>,
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
            window: None,
            turns: None,
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
        if let Err(failure) = self.read(entry, file, stat, Asked::nothing(0..stat.size)) {
            self.fail(entry, failure);
        }
    }

    /// Reads a whole file, of which the kernel may have been asked already.
    pub(crate) fn file(&mut self, entry: u32, file: io::Result<Arc<File>>, asked: Asked) {
        let read = file
            .and_then(|file| Ok((Stat::of(&file)?, file)))
            .during_at(Op::Open, || self.path(entry))
            .and_then(|(stat, file)| self.read(entry, &file, stat, asked));
        if let Err(failure) = read {
            self.fail(entry, failure);
        }
    }

    fn read(
        &mut self,
        entry: u32,
        file: &Arc<File>,
        stat: Stat,
        asked: Asked,
    ) -> Result<(), Failure> {
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
            self.large(entry, file, stat, asked)
        } else {
            self.small(entry, file, stat, None)
        };
        if self.budget.drop_behind {
            advise::drop_cached(&**file, 0, 0);
        }
        done
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
