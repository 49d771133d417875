//! The thread that writes records: it flushes a part, and only then says in
//! its attribute how far it is. There is none until it is needed.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use xxhash_rust::xxh3::Xxh3;

use super::Record;
use crate::error::{Failure, Op};
use crate::sys::metadata::{Stat, Target, Time, UNFINISHED};
use crate::verify::digest::hash_prefix;
use crate::work::run::lock;

/// A part of which records are kept.
pub(super) struct Saved {
    file: File,
    path: PathBuf,
    /// The source's data.
    ranges: Box<[Range<u64>]>,
    state: Mutex<State>,
    /// Over what is recorded, where nobody else sees the bytes; up to where.
    own: Mutex<(u64, Xxh3)>,
}

impl std::fmt::Debug for Saved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Saved")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    /// Nothing more is to be recorded.
    is_closed: bool,
    /// How far it is recorded.
    offset: u64,
    failure: Option<io::Error>,
}

impl Saved {
    pub(super) fn new(
        file: File,
        path: PathBuf,
        ranges: &[Range<u64>],
        offset: u64,
        hasher: Xxh3,
    ) -> Saved {
        Saved {
            file,
            path,
            ranges: ranges.into(),
            state: Mutex::new(State {
                offset,
                ..State::default()
            }),
            own: Mutex::new((offset, hasher)),
        }
    }

    pub(super) fn close(&self) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.is_closed = true;
        state.failure.take().map_or(Ok(()), Err)
    }

    pub(super) fn offset(&self) -> u64 {
        lock(&self.state).offset
    }

    fn is_closed(&self) -> bool {
        lock(&self.state).is_closed
    }

    /// Flushes, and records; a failure that comes when the file is counted
    /// already is given back.
    fn save(&self, order: Order) -> Option<Failure> {
        if self.is_closed() {
            return None;
        }
        // What the kernel says of a lost write it says once.
        let flushed = self.file.sync_data();
        let digest = match (order.digest, &flushed) {
            (Some(digest), _) => Some(digest),
            (None, Ok(())) => self.digest_to(order.offset),
            (None, Err(_)) => None,
        };
        let mut state = lock(&self.state);
        match flushed {
            Err(e) if state.is_closed => {
                drop(state);
                return Some(self.disown(e));
            }
            Err(e) => {
                state.is_closed = true;
                state.failure = Some(e);
                return None;
            }
            Ok(()) if state.is_closed => return None,
            Ok(()) => {}
        }
        let record = digest.map(|digest| Record {
            source: order.source,
            offset: order.offset,
            digest,
        });
        match record.map(|record| record.write(&self.file)) {
            Some(Ok(())) => state.offset = order.offset,
            // No room for the attribute, or a beginning that cannot be read:
            // who goes on with the file has the record before.
            Some(Err(_)) | None => state.is_closed = true,
        }
        None
    }

    /// Takes what was written since the last record into the digest.
    fn digest_to(&self, offset: u64) -> Option<u128> {
        let mut own = lock(&self.own);
        let (at, hasher) = &mut *own;
        let go_on = || !self.is_closed();
        let is_all = hash_prefix(hasher, &self.file, &self.ranges, *at..offset, go_on);
        *at = offset;
        is_all.ok()?.then(|| hasher.digest128())
    }

    /// Marks a file whose bytes were lost after it was finished.
    fn disown(&self, e: io::Error) -> Failure {
        let target: Target<'_, File> = Target::Open(&self.file);
        let disowned = Stat::of(&self.file).and_then(|stat| {
            target.set_times(stat.atime, Time::now())?;
            target.set_permissions(stat.permissions() | UNFINISHED)
        });
        let failure = Failure::new(Op::Sync, &self.path, e);
        match disowned {
            Ok(()) => failure,
            Err(e) => failure.detail(format!("and it could not be marked: {e}")),
        }
    }
}

/// To record that a part is written up to an offset.
pub(super) struct Order {
    pub(super) saved: Arc<Saved>,
    /// The source's identity.
    pub(super) source: String,
    pub(super) offset: u64,
    /// Of everything before; taken from the part where none.
    pub(super) digest: Option<u128>,
}

/// What is sent to the thread, and what it gives back at its end.
type Thread = (Sender<Order>, JoinHandle<Vec<Failure>>);

/// The thread of a run that writes records.
#[derive(Debug, Default)]
pub(crate) struct Saver(Mutex<Option<Thread>>);

impl Saver {
    pub(super) fn save(&self, order: Order) {
        let mut thread = lock(&self.0);
        let (orders, _) = thread.get_or_insert_with(|| {
            let (sender, receiver) = unbounded();
            (sender, std::thread::spawn(|| serve(receiver)))
        });
        orders
            .send(order)
            .expect("the thread lives as long as the sender");
    }

    /// Waits for what is under way; gives what went wrong with files that had
    /// been counted already.
    pub(crate) fn finish(&self) -> Vec<Failure> {
        let Some((orders, thread)) = lock(&self.0).take() else {
            return Vec::new();
        };
        drop(orders);
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

// It owns the receiver: with it the channel ends.
#[allow(clippy::needless_pass_by_value)]
fn serve(orders: Receiver<Order>) -> Vec<Failure> {
    orders
        .iter()
        .filter_map(|order| order.saved.clone().save(order))
        .collect()
}
