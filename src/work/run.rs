//! What all threads of one run share: where to write, what was chosen, and the
//! ledger of outcomes. Every entry is counted exactly once.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use nix::errno::Errno;

use super::behind::Behind;
use super::checkpoint::saver::Saver;
use super::turns::Turns;
use crate::cache::Cache;
use crate::dedup::{self, Table};
use crate::dest::Dest;
use crate::error::{Failure, Op};
use crate::job::{Dedup, Options, Verify};
use crate::plan::{Dir, Entry, Listing};
use crate::report::{Counters, Note, Outcome};
use crate::sys::metadata::Stat;
use crate::verify::digest::Digest;

/// Device and inode number.
type Inode = (u64, u64);

/// A copied file that is still to be read back from the medium.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) dir: Arc<Dir>,
    pub(crate) name: Box<[u8]>,
    pub(crate) size: u64,
    /// Of the bytes read; none where extents were shared.
    pub(crate) digest: Option<Digest>,
    /// The data of a file with holes.
    pub(crate) ranges: Option<Box<[Range<u64>]>>,
}

/// One more name of an inode of the source.
#[derive(Debug)]
pub(crate) struct Follower {
    /// Device and inode at the source.
    pub(crate) inode: (u64, u64),
    pub(crate) dir: Arc<Dir>,
    pub(crate) name: Box<[u8]>,
}

/// The name under which an inode with several was copied.
#[derive(Debug)]
pub(crate) struct Leader {
    pub(crate) dir: Arc<Dir>,
    pub(crate) name: Box<[u8]>,
    /// Whether that copy arrived.
    pub(crate) arrived: bool,
}

/// Shared by all threads of a run.
pub(crate) struct Run<'a> {
    pub(crate) dest: &'a Dest,
    pub(crate) options: &'a Options,
    pub(crate) counters: &'a Counters,
    /// What is remembered across runs, if anything.
    pub(crate) cache: Option<&'a Cache>,
    stop: &'a AtomicBool,
    full: AtomicBool,
    failures: Mutex<Vec<Failure>>,
    /// One bit an entry of the plan: its outcome is counted.
    marks: Vec<AtomicU64>,
    pub(crate) leaders: Mutex<HashMap<(u64, u64), Leader>>,
    pub(crate) followers: Mutex<Vec<Follower>>,
    /// Inodes at the destination with several names that were kept, and the
    /// source's inode that each stands for, with its digest if known.
    kept: Mutex<HashMap<Inode, (Inode, Option<u128>)>>,
    pub(crate) copied: Mutex<Vec<Copied>>,
    /// With `--dedup`: what is known of the contents that are there.
    twins: Option<Table>,
    /// Files are written without asking for twins: see `finish`.
    pub(crate) alone: AtomicBool,
    /// Records how far large files are.
    pub(crate) saver: Saver,
    /// Has the destination's disk write meanwhile.
    pub(crate) behind: Behind,
    /// The disk on which both ends are, if they are.
    turns: Option<(u64, Turns)>,
    owner_notes: Tally,
    xattr_notes: Tally,
    time_notes: Tally,
    merge_notes: Tally,
}

/// Counts a thing that is said once.
#[derive(Debug, Default)]
struct Tally {
    count: AtomicU64,
    first: Mutex<Option<PathBuf>>,
}

impl Tally {
    fn add(&self, path: impl FnOnce() -> PathBuf) {
        if self.count.fetch_add(1, Relaxed) == 0 {
            *lock(&self.first) = Some(path());
        }
    }

    fn note(&self, text: &str) -> Option<Note> {
        let count = self.count.load(Relaxed);
        let first = lock(&self.first);
        let first = first
            .as_ref()
            .map(|p| format!(" (first: \"{}\")", p.display()));
        (count > 0).then(|| Note {
            count,
            text: text.to_owned() + &first.unwrap_or_default(),
        })
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        dest: &'a Dest,
        options: &'a Options,
        counters: &'a Counters,
        stop: &'a AtomicBool,
        entries: usize,
    ) -> Run<'a> {
        Run {
            dest,
            options,
            counters,
            cache: None,
            stop,
            full: AtomicBool::new(false),
            failures: Mutex::default(),
            marks: (0..entries.div_ceil(64))
                .map(|_| AtomicU64::new(0))
                .collect(),
            leaders: Mutex::default(),
            followers: Mutex::default(),
            kept: Mutex::default(),
            copied: Mutex::default(),
            twins: (options.dedup != Dedup::None).then(Table::default),
            alone: AtomicBool::new(false),
            saver: Saver::default(),
            behind: Behind::default(),
            turns: None,
            merge_notes: Tally::default(),
            owner_notes: Tally::default(),
            xattr_notes: Tally::default(),
            time_notes: Tally::default(),
        }
    }

    /// With what is remembered across runs.
    pub(crate) fn remembering(self, cache: Option<&'a Cache>) -> Run<'a> {
        Run { cache, ..self }
    }

    /// With what the destination's disk asks for.
    pub(crate) fn on(self, behind: Behind, turns: Option<(u64, Turns)>) -> Run<'a> {
        Run {
            behind,
            turns,
            ..self
        }
    }

    /// Counts bytes that were written.
    pub(crate) fn wrote(&self, bytes: u64) {
        self.counters.written_bytes.fetch_add(bytes, Relaxed);
        self.behind.wrote(bytes);
    }

    /// The turns of a disk (by [`Sweep::key`](crate::plan::Sweep)), if the
    /// destination is on it.
    pub(crate) fn turns_on(&self, key: u64) -> Option<&Turns> {
        let turns = self.turns.as_ref().filter(|(on, _)| *on == key);
        turns.map(|(_, turns)| turns)
    }

    /// Whether no new work may be begun.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed) || self.full.load(Relaxed)
    }

    /// The flag that an interruption sets.
    pub(crate) fn stop(&self) -> &AtomicBool {
        self.stop
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.stop.load(Relaxed)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Relaxed)
    }

    pub(crate) fn is_verified(&self) -> bool {
        self.options.verify != Verify::None
    }

    /// What is known of the contents at the destination, where duplicates are
    /// to become one.
    pub(crate) fn twins(&self) -> Option<&Table> {
        self.twins.as_ref().filter(|_| !self.alone.load(Relaxed))
    }

    /// Whether anything asks for the digests of what is read.
    pub(crate) fn needs_digests(&self) -> bool {
        self.is_verified() || self.twins.is_some() || self.cache.is_some()
    }

    /// Notes a failure; a full destination ends the handing out of work.
    pub(crate) fn failed(&self, failure: Failure) {
        if failure.is_full() {
            self.full.store(true, Relaxed);
        }
        if failure.op.is_on_source() {
            self.dest.spoiled.store(true, Relaxed);
        }
        lock(&self.failures).push(failure);
    }

    /// Notes a failure that is an entry's outcome.
    pub(crate) fn entry_failed(&self, failure: Failure) {
        self.counters
            .count(Outcome::Failed, || failure.path.clone());
        self.failed(failure);
    }

    /// Counts the end of an entry that has failures or none.
    pub(crate) fn finished(
        &self,
        dir: &Dir,
        name: &[u8],
        outcome: Outcome,
        failures: Vec<Failure>,
    ) -> Outcome {
        let outcome = if failures.is_empty() {
            outcome
        } else {
            Outcome::Failed
        };
        for failure in failures {
            self.failed(failure);
        }
        self.counters.count(outcome, || dir.path_of(name));
        outcome
    }

    /// Failures of a kind so far.
    pub(crate) fn failures_that(&self, are: impl Fn(&Failure) -> bool) -> usize {
        lock(&self.failures).iter().filter(|f| are(f)).count()
    }

    pub(crate) fn take_failures(&self) -> Vec<Failure> {
        std::mem::take(&mut lock(&self.failures))
    }

    /// Notes that an entry of the plan is accounted for.
    pub(crate) fn mark(&self, entry: u32) {
        if let Some(word) = self.marks.get(entry as usize / 64) {
            word.fetch_or(1 << (entry % 64), Relaxed);
        }
    }

    pub(crate) fn is_marked(&self, entry: u32) -> bool {
        let word = self.marks.get(entry as usize / 64);
        word.is_some_and(|word| word.load(Relaxed) & (1 << (entry % 64)) != 0)
    }

    /// Counts an entry that the job did not come to.
    pub(crate) fn not_reached(&self, dir: &Dir, name: &[u8]) {
        self.not_reached_path(dir.dest_path_of(&self.dest.path, dir.dest_name(name)));
    }

    /// See [`Run::not_reached`].
    pub(crate) fn not_reached_path(&self, path: PathBuf) {
        self.counters.count(Outcome::Failed, || path.clone());
        if self.is_full() {
            lock(&self.failures).push(Failure::new(Op::Create, path, Errno::ENOSPC.into()));
        }
    }

    /// Names an inode's leader: `true` for the first name, which is copied;
    /// later ones are links, made at the end.
    pub(crate) fn lead_or_follow(&self, stat: &Stat, dir: &Arc<Dir>, name: &[u8]) -> bool {
        let inode = (stat.dev, stat.ino);
        let mut leaders = lock(&self.leaders);
        if leaders.contains_key(&inode) {
            let follower = Follower {
                inode,
                dir: dir.clone(),
                name: name.into(),
            };
            lock(&self.followers).push(follower);
            return false;
        }
        let leader = Leader {
            dir: dir.clone(),
            name: name.into(),
            arrived: false,
        };
        leaders.insert(inode, leader);
        true
    }

    /// Whether an entry's extents can be shared instead of its bytes copied;
    /// known once its device was tried.
    pub(crate) fn is_shared(&self, listing: &Listing, entry: &Entry) -> bool {
        self.dest.shares(listing.devices[usize::from(entry.device)])
    }

    /// Notes that an inode with several names was copied, or not.
    pub(crate) fn led(&self, stat: &Stat, dir: &Arc<Dir>, name: &[u8], arrived: bool) {
        if stat.links < 2 {
            return;
        }
        let mut leaders = lock(&self.leaders);
        let leader = leaders
            .entry((stat.dev, stat.ino))
            .or_insert_with(|| Leader {
                dir: dir.clone(),
                name: name.into(),
                arrived,
            });
        leader.arrived = arrived;
    }

    /// Whether an inode of the destination may stand for an inode of the
    /// source: not if it already stands for another, unless duplicates are one
    /// and the cache knows that both have this content.
    pub(crate) fn stands_for(&self, dir: &Dir, there: &Stat, source: &Stat) -> bool {
        if there.links < 2 {
            return true;
        }
        let digest = self.twins().and_then(|_| self.known_source(dir, source));
        let inode = (source.dev, source.ino);
        let mut kept = lock(&self.kept);
        let (first, known) = kept
            .entry((there.dev, there.ino))
            .or_insert((inode, digest));
        *first == inode || (digest.is_some() && *known == digest)
    }

    pub(crate) fn note_owner(&self, path: impl FnOnce() -> PathBuf) {
        self.counters.owner_not_kept.fetch_add(1, Relaxed);
        self.owner_notes.add(path);
    }

    pub(crate) fn note_xattr(&self, path: impl FnOnce() -> PathBuf) {
        self.xattr_notes.add(path);
    }

    pub(crate) fn note_time(&self, path: impl FnOnce() -> PathBuf) {
        self.time_notes.add(path);
    }

    /// Notes a file that lost its own metadata to a twin's.
    pub(crate) fn note_merged(&self, path: impl FnOnce() -> PathBuf) {
        self.merge_notes.add(path);
    }

    /// Everything that is worth saying once.
    pub(crate) fn notes(&self) -> Vec<Note> {
        let merged = format!(
            "files have their twin's {} instead of their own (--dedup-ignore)",
            dedup::ignored(self.options.dedup_ignore)
        );
        [
            self.merge_notes.note(&merged),
            self.owner_notes.note(
                "entries belong to you instead of their owner or group, which only root may set",
            ),
            self.xattr_notes
                .note("entries lack attributes (security.*, trusted.*) that only root may set"),
            self.time_notes
                .note("entries have times that the destination cannot hold exactly"),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}
