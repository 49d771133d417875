//! What a job says at its end ([`Report`]) and while it runs ([`Counters`]).
//!
//! Every entry that the scan found has exactly one [`Outcome`], so that
//! found = copied + unchanged + linked + skipped + failed. Failures may be more than
//! failed entries: one entry can fail in two steps.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::error::Failure;
use crate::job::Verify;

/// How an entry ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Made at the destination, with its content and metadata.
    Copied,
    /// Was there already, equal in kind, size and mtime; other metadata was
    /// brought up to date.
    Unchanged,
    /// Became, or already was, one more name of a file in the same tree.
    Linked,
    /// Left as it is, or not made, because an option says so.
    Skipped,
    /// Not copied exactly: one or more [`Failure`]s say why.
    Failed,
    /// Removed from the destination, because no source has it; not among the
    /// found.
    Deleted,
}

/// Live numbers, written by the stages and polled by a progress bar. A hot
/// path never talks to a terminal.
#[derive(Debug, Default)]
pub struct Counters {
    /// Entries listed so far, of every kind.
    pub found: AtomicU64,
    /// Regular files listed so far.
    pub found_files: AtomicU64,
    /// Bytes of regular files that are to be copied, holes not counted, as far
    /// as is known.
    pub found_bytes: AtomicU64,
    /// Whether the two totals above are final.
    pub scan_done: AtomicBool,
    /// Entries with the outcome [`Outcome::Copied`].
    pub copied: AtomicU64,
    /// Entries with the outcome [`Outcome::Unchanged`].
    pub unchanged: AtomicU64,
    /// Entries with the outcome [`Outcome::Linked`].
    pub linked: AtomicU64,
    /// Entries with the outcome [`Outcome::Skipped`].
    pub skipped: AtomicU64,
    /// Entries with the outcome [`Outcome::Failed`].
    pub failed: AtomicU64,
    /// Regular files among the copied.
    pub copied_files: AtomicU64,
    /// Bytes that were written so far, holes not counted, those of files under
    /// way included.
    pub written_bytes: AtomicU64,
    /// Apparent bytes of the copied files.
    pub copied_bytes: AtomicU64,
    /// Bytes read from sources.
    pub read_bytes: AtomicU64,
    /// Files whose content was shared with the source's extents.
    pub reflinked: AtomicU64,
    /// Files read back and found equal.
    pub verified_files: AtomicU64,
    /// Bytes read back and found equal.
    pub verified_bytes: AtomicU64,
    /// Files at the destination whose kept owner or group is another one,
    /// because the caller may not change it.
    pub owner_not_kept: AtomicU64,
    /// Names that a filter left out; they are not among the found.
    pub excluded: AtomicU64,
    /// Entries removed from the destination.
    pub deleted: AtomicU64,
    /// Files that became one more name of another with the same content.
    pub dedup_linked: AtomicU64,
    /// Files that share the extents of another with the same content.
    pub dedup_reflinked: AtomicU64,
    /// Bytes that were not written because they were there already.
    pub dedup_bytes: AtomicU64,
    /// Bytes of the destination's blocks that dedup spared or freed.
    pub dedup_saved_bytes: AtomicU64,
    /// Files that became one more name of a file of an earlier copy.
    pub link_dest_files: AtomicU64,
    /// Files whose digest the cache knew.
    pub cache_hits: AtomicU64,
    /// Files of which only the blocks that differ were written.
    pub delta_files: AtomicU64,
    /// Bytes of these that differed and were written.
    pub literal_bytes: AtomicU64,
    /// Bytes of these that were there already.
    pub matched_bytes: AtomicU64,
    /// Files that went on from a checkpoint of an earlier run.
    pub resumed_files: AtomicU64,
    /// Bytes of these that were there already, and verified.
    pub resumed_bytes: AtomicU64,
    /// The stages so far, and when each began; the last one is at work.
    pub stages: Mutex<Vec<(&'static str, Instant)>>,
    /// Told of each entry's end, where somebody wants to list them.
    pub ended: Option<SyncSender<(Outcome, PathBuf)>>,
}

impl Counters {
    /// Counts one entry's end.
    pub(crate) fn count(&self, outcome: Outcome, path: impl FnOnce() -> PathBuf) {
        self.of(outcome).fetch_add(1, Relaxed);
        if let Some(ended) = &self.ended {
            // Nobody listens any more: the count is what matters.
            drop(ended.send((outcome, path())));
        }
    }

    /// Takes back an outcome that a later look disproved.
    pub(crate) fn recount(&self, was: Outcome, is: Outcome) {
        self.of(was).fetch_sub(1, Relaxed);
        self.of(is).fetch_add(1, Relaxed);
    }

    fn of(&self, outcome: Outcome) -> &AtomicU64 {
        match outcome {
            Outcome::Copied => &self.copied,
            Outcome::Unchanged => &self.unchanged,
            Outcome::Linked => &self.linked,
            Outcome::Skipped => &self.skipped,
            Outcome::Failed => &self.failed,
            Outcome::Deleted => &self.deleted,
        }
    }

    pub(crate) fn enter(&self, stage: &'static str) {
        self.stages().push((stage, Instant::now()));
    }

    /// Which stage is at work; empty before the first.
    pub fn stage(&self) -> &'static str {
        self.stages().last().map_or("", |(stage, _)| stage)
    }

    fn stages(&self) -> MutexGuard<'_, Vec<(&'static str, Instant)>> {
        self.stages.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// How long each stage took, until now.
    fn stage_times(&self) -> Vec<(&'static str, Duration)> {
        let stages = self.stages();
        let ends = stages.iter().skip(1).map(|(_, began)| *began);
        let ends = ends.chain(std::iter::once(Instant::now()));
        let times = stages.iter().zip(ends);
        times
            .map(|((stage, began), end)| (*stage, end - *began))
            .collect()
    }
}

/// Something worth saying once that is not a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// How many entries it concerns; 0 where it is about none of them.
    pub count: u64,
    /// One sentence.
    pub text: String,
}

/// The order in which one source disk was read, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskChoice {
    /// The disk's name (`sda`, `loop3`), or the filesystem's type where there
    /// is no block device.
    pub disk: String,
    /// `physical`, `inode` or `none`.
    pub order: &'static str,
    /// Whether a seek costs time there, and how that was found out.
    pub why: String,
}

/// What a job did. Sums add up: see [`Outcome`].
#[derive(Debug, Default)]
pub struct Report {
    /// Entries found in the sources, of every kind.
    pub found: u64,
    /// Regular files among them.
    pub found_files: u64,
    /// Entries made at the destination.
    pub copied: u64,
    /// Entries that were there already.
    pub unchanged: u64,
    /// Entries that are one more name of another.
    pub linked: u64,
    /// Entries left as they are, or not made, because an option says so.
    pub skipped: u64,
    /// Entries not copied exactly.
    pub failed: u64,
    /// Regular files among the copied.
    pub copied_files: u64,
    /// Apparent bytes of the copied files.
    pub copied_bytes: u64,
    /// Bytes read from the sources.
    pub read_bytes: u64,
    /// Files that share their extents with the source.
    pub reflinked: u64,
    /// Names that a filter left out; they are not among the found.
    pub excluded: u64,
    /// Entries removed from the destination.
    pub deleted: u64,
    /// Files that became one more name of another with the same content.
    pub dedup_linked: u64,
    /// Files that share the extents of another with the same content.
    pub dedup_reflinked: u64,
    /// Bytes that were not written because they were there already.
    pub dedup_bytes: u64,
    /// Bytes of the destination's blocks that dedup spared or freed.
    pub dedup_saved_bytes: u64,
    /// Files that became one more name of a file of an earlier copy.
    pub link_dest_files: u64,
    /// Files whose digest the cache knew.
    pub cache_hits: u64,
    /// Files of which only the blocks that differ were written.
    pub delta_files: u64,
    /// Bytes of these that differed and were written.
    pub literal_bytes: u64,
    /// Bytes of these that were there already.
    pub matched_bytes: u64,
    /// Files that went on from a checkpoint of an earlier run.
    pub resumed_files: u64,
    /// Bytes of these that were there already, and verified.
    pub resumed_bytes: u64,
    /// How the copy was verified.
    pub verify: Verify,
    /// Files read back from the destination and found equal.
    pub verified_files: u64,
    /// Bytes read back from the destination and found equal.
    pub verified_bytes: u64,
    /// Every failure, in the order in which they happened.
    pub failures: Vec<Failure>,
    /// What is worth knowing besides.
    pub notes: Vec<Note>,
    /// How each source disk was read.
    pub disks: Vec<DiskChoice>,
    /// Whether the job was told to stop before its end.
    pub interrupted: bool,
    /// Whether the job stopped because the destination was full.
    pub full: bool,
    /// Wall time from start to end.
    pub elapsed: Duration,
    /// Wall time of each stage, in their order.
    pub stages: Vec<(&'static str, Duration)>,
}

impl Report {
    /// The process's exit code for this report: the table of `haul --help`.
    pub fn exit_code(&self) -> u8 {
        if self.interrupted {
            20
        } else if self.full {
            11
        } else if self.failures.iter().any(Failure::is_wrong_content) {
            2
        } else if self.failures.is_empty() && self.is_accounted_for() {
            0
        } else if !self.failures.is_empty() && self.failures.iter().all(Failure::is_vanished) {
            24
        } else {
            23
        }
    }

    /// Whether every entry found has an end, and none failed.
    fn is_accounted_for(&self) -> bool {
        self.failed == 0 && self.found == self.copied + self.unchanged + self.linked + self.skipped
    }

    /// Takes over the final values of the live numbers.
    pub(crate) fn take_counters(&mut self, counters: &Counters) {
        self.stages = counters.stage_times();
        self.found = counters.found.load(Relaxed);
        self.found_files = counters.found_files.load(Relaxed);
        self.copied = counters.copied.load(Relaxed);
        self.unchanged = counters.unchanged.load(Relaxed);
        self.linked = counters.linked.load(Relaxed);
        self.skipped = counters.skipped.load(Relaxed);
        self.failed = counters.failed.load(Relaxed);
        self.excluded = counters.excluded.load(Relaxed);
        self.deleted = counters.deleted.load(Relaxed);
        self.dedup_linked = counters.dedup_linked.load(Relaxed);
        self.dedup_reflinked = counters.dedup_reflinked.load(Relaxed);
        self.dedup_bytes = counters.dedup_bytes.load(Relaxed);
        self.dedup_saved_bytes = counters.dedup_saved_bytes.load(Relaxed);
        self.link_dest_files = counters.link_dest_files.load(Relaxed);
        self.cache_hits = counters.cache_hits.load(Relaxed);
        self.delta_files = counters.delta_files.load(Relaxed);
        self.literal_bytes = counters.literal_bytes.load(Relaxed);
        self.matched_bytes = counters.matched_bytes.load(Relaxed);
        self.resumed_files = counters.resumed_files.load(Relaxed);
        self.resumed_bytes = counters.resumed_bytes.load(Relaxed);
        self.copied_files = counters.copied_files.load(Relaxed);
        self.copied_bytes = counters.copied_bytes.load(Relaxed);
        self.read_bytes = counters.read_bytes.load(Relaxed);
        self.reflinked = counters.reflinked.load(Relaxed);
        self.verified_files = counters.verified_files.load(Relaxed);
        self.verified_bytes = counters.verified_bytes.load(Relaxed);
    }
}
