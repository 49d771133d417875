//! The one place that knows the whole flow: [`Job`] says what to copy,
//! [`run`] copies it, [`plan`] only says what would happen.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use crate::cache::Cache;
use crate::dedup;
use crate::delete;
use crate::dest::Dest;
use crate::error::{During, Error, Failure, Op};
use crate::filter::Filter;
use crate::finish;
use crate::plan::choose::Choices;
use crate::plan::scan::{Scan, Start};
use crate::plan::{Plan, preflight};
use crate::report::{Counters, Note, Report};
use crate::sys::{memory, mounts};
use crate::verify;
use crate::work::behind::Behind;
use crate::work::budget::{self, Budget};
use crate::work::run::{Follower, Leader, Run, lock};
use crate::work::turns::Turns;
use crate::work::{self, stream};

mod ends;
mod planned;

use ends::Ends;

pub use verify::trees::verify_trees;

/// How a copy is checked before it is called one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Not at all.
    None,
    /// Every file is read back from the destination (the kernel may answer
    /// from its cache) and compared with the digest of the bytes read.
    #[default]
    Read,
    /// Flushed first, cached pages dropped, then read back from the medium.
    Durable,
}

/// Whether files may share extents with the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reflink {
    /// Where the filesystem can; else copy.
    #[default]
    Auto,
    /// A file that cannot be shared is a failure.
    Always,
    /// Always copy the bytes.
    Never,
}

/// In which order a source disk is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Physical where a seek costs time, none where it does not.
    #[default]
    Auto,
    /// Ascending physical offset (FIEMAP).
    Physical,
    /// Ascending inode number.
    Inode,
    /// As listed, with scan, read and write overlapping.
    None,
}

/// What becomes of files with the same content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dedup {
    /// Nothing: each is a file of its own.
    #[default]
    None,
    /// One inode with several names, where it would be right for all of them;
    /// else shared extents where the filesystem can.
    Link,
    /// Shared extents only.
    Reflink,
}

/// In what two files of the same content may differ and still become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DedupIgnore {
    /// In their mtime.
    pub time: bool,
    /// In their permission bits.
    pub mode: bool,
    /// In their owner and group.
    pub owner: bool,
    /// In their extended attributes, ACLs among them.
    pub xattr: bool,
}

/// What the caller can choose. Fields are named like their flags.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How the copy is checked.
    pub verify: Verify,
    /// Whether extents may be shared.
    pub reflink: Reflink,
    /// In which order a disk is read.
    pub order: Order,
    /// Do not cross into other filesystems.
    pub one_file_system: bool,
    /// Compare content where size and mtime are equal.
    pub checksum: bool,
    /// Go on although the preflight says that the destination is too small.
    pub force: bool,
    /// Make missing parents of the destination.
    pub mkpath: bool,
    /// The mode of a destination directory that has to be made and gets none
    /// from a source, and of missing parents; by default 0755. The command
    /// gives what its umask leaves of 0777.
    pub dest_mode: Option<u32>,
    /// Where two trees are compared: let the kernel answer from its cache, which
    /// by default is passed by, on both sides.
    pub cached: bool,
    /// Bytes of buffers; by default a share of the memory that is free.
    pub memory: Option<u64>,
    /// Writers; by default from the number of processors.
    pub threads: Option<usize>,
    /// What becomes of files with the same content.
    pub dedup: Dedup,
    /// What does not keep two files from being linked.
    pub dedup_ignore: DedupIgnore,
    /// The file that remembers digests across runs; none to do without.
    pub cache: Option<PathBuf>,
    /// Leave a file at the destination that is newer.
    pub update: bool,
    /// Leave whatever is there already.
    pub ignore_existing: bool,
    /// Make nothing that is not there already.
    pub existing: bool,
    /// Times that differ by no more than this many seconds are equal.
    pub modify_window: u64,
    /// Remove from the destination's directories what the sources' do not have.
    pub delete: bool,
    /// Do so although a source could not be read in full.
    pub ignore_errors: bool,
    /// Remove nothing where it would be more than this many entries.
    pub max_delete: Option<u64>,
    /// Keep what is replaced or removed.
    pub backup: Option<Backup>,
    /// Earlier copies whose unchanged files get one more name here; below the
    /// destination where relative.
    pub link_dest: Vec<PathBuf>,
    /// Which entries of the sources count.
    pub filter: Filter,
    /// Write only the blocks of a large file that differ.
    pub delta: bool,
    /// With `delta`, write into the file that is there.
    pub inplace: bool,
    /// Bytes between two checkpoints of a large file; by default 128 MiB, and
    /// one second. Files of two and more of these can be gone on with.
    pub checkpoint: Option<u64>,
}

/// How what is replaced or removed is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// Where to; beside the file where none. Below the destination where
    /// relative.
    pub dir: Option<PathBuf>,
    /// What its name gets at its end.
    pub suffix: std::ffi::OsString,
}

/// What to copy where.
#[derive(Clone, Debug)]
pub struct Job {
    /// As given: a trailing slash means the contents of a directory.
    pub sources: Vec<PathBuf>,
    /// A directory, made if only its last component is missing.
    pub dest: PathBuf,
    /// The choices.
    pub options: Options,
}

/// Copies. `stop` may be set at any time from anywhere (a signal handler): what
/// is under way is finished or removed, and the report says `interrupted`.
///
/// # Errors
/// [`Error`] where nothing could be started; whatever goes wrong later is in
/// the report.
pub fn run(job: &Job, counters: &Counters, stop: &AtomicBool) -> Result<Report, Error> {
    let began = Instant::now();
    let mounts = mounts::mounts().during(Op::Stat, Path::new("/proc/self/mountinfo"))?;
    let mut ends = Ends::resolve(&job.sources, Some(&job.dest), &job.options, &mounts)?;
    ends.leave_out(&job.options.filter, counters);
    let choices = Choices::new(job.options.order, mounts);
    let (cache, mut notes) = open_cache(&job.options);
    let mut report = if ends.overlap(&choices, &job.options)? {
        streamed(job, ends, &choices, cache.as_ref(), counters, stop)?
    } else {
        planned(job, ends, &choices, cache.as_ref(), counters, stop)?
    };
    notes.append(&mut report.notes);
    notes.extend(close_cache(cache.as_ref()));
    report.notes = notes;
    report.verify = job.options.verify;
    report.disks = choices.told();
    report.interrupted = stop.load(Relaxed);
    report.elapsed = began.elapsed();
    Ok(report)
}

/// Says what [`run`] would do, and writes nothing.
///
/// # Errors
/// [`Error`] where a source is missing or the destination unusable.
pub fn plan(
    sources: &[PathBuf],
    dest: Option<&Path>,
    options: &Options,
    counters: &Counters,
    stop: &AtomicBool,
) -> Result<Plan, Error> {
    let mounts = mounts::mounts().during(Op::Stat, Path::new("/proc/self/mountinfo"))?;
    let mut ends = Ends::resolve(sources, dest, options, &mounts)?;
    ends.leave_out(&options.filter, counters);
    let choices = Choices::new(options.order, mounts);
    let budget = budget::bytes(options.memory, memory::available_bytes());
    let foreseen = ends.foresee(options)?;
    let looked_at = ends.dest.as_ref().or(foreseen.as_ref());
    let scan = scan(looked_at, options, &choices, counters, stop);
    let mut plan = planned::plan(&scan, &ends.starts, budget);
    if let Some(dest) = &ends.dest {
        delete::foresee(dest, options, stop, &mut plan);
    }
    Ok(plan)
}

/// Opens what is remembered across runs, or says why it cannot be used.
pub(crate) fn open_cache(options: &Options) -> (Option<Cache>, Vec<Note>) {
    match options.cache.as_deref().map(Cache::open) {
        None => (None, Vec::new()),
        Some(Ok(cache)) => (Some(cache), Vec::new()),
        Some(Err(text)) => (None, vec![Note { count: 0, text }]),
    }
}

/// Writes what was learned; says what went wrong with it, if anything.
pub(crate) fn close_cache(cache: Option<&Cache>) -> Option<Note> {
    let text = cache?.close()?;
    Some(Note { count: 0, text })
}

/// With a plan: scan, order, then read in sweeps.
fn planned(
    job: &Job,
    mut ends: Ends,
    choices: &Choices,
    cache: Option<&Cache>,
    counters: &Counters,
    stop: &AtomicBool,
) -> Result<Report, Error> {
    let available = memory::available_bytes();
    let memory = budget::bytes(job.options.memory, available);
    counters.enter("scan");
    let foreseen = ends.foresee(&job.options)?;
    let looked_at = ends.dest.as_ref().or(foreseen.as_ref());
    let scan = Scan {
        cache,
        ..scan(looked_at, &job.options, choices, counters, stop)
    };
    let mut plan = planned::plan(&scan, &ends.starts, memory);
    let shared = ends.can_share(&plan, &job.options)?;
    if !job.options.force {
        let twins = job.options.dedup != Dedup::None;
        preflight::check(&plan, &job.dest, &ends.room()?, shared, twins).map_err(Error::NoRoom)?;
    }
    let dest = ends.make_dest(&job.options)?.meeting_of(ends.starts.len());
    ends::try_shares(&dest, &plan);
    dest.settle_shares();
    let bytes: u64 = plan.listing.entries.iter().map(|e| e.size).sum();
    let budget = Budget::new(memory, work::readers(&plan), bytes > available / 2);
    let dest_disk = choices.seeking(dest.dev());
    let is_one_disk = |&key: &u64| plan.sweeps.iter().any(|sweep| sweep.key == key);
    let turns = dest_disk
        .filter(is_one_disk)
        .map(|key| (key, Turns::new(available)));
    let writes_behind = dest_disk.is_some() && turns.is_none();
    Behind::during(writes_behind, &dest.root, |behind| {
        let count = plan.listing.entries.len();
        let run = Run::new(&dest, &job.options, counters, stop, count)
            .remembering(cache)
            .on(behind, turns);
        planned::account_for_failures(&run, &mut plan);
        planned::drop_shared_reads(&run, &mut plan);
        planned::register_links(&run, &plan);
        counters.scan_done.store(true, Relaxed);
        counters.enter("copy");
        work::execute(&run, &plan, &budget, writers(&job.options, 5));
        work::account_for_the_rest(&run, &plan.listing);
        let dirs = std::mem::take(&mut plan.listing.dirs);
        drop(plan);
        Ok(finished(&run, choices, &dirs))
    })
    .during(Op::Sync, &job.dest)
    .map_err(Error::from)
}

/// Without one: every thread lists, reads and writes.
fn streamed(
    job: &Job,
    mut ends: Ends,
    choices: &Choices,
    cache: Option<&Cache>,
    counters: &Counters,
    stop: &AtomicBool,
) -> Result<Report, Error> {
    let memory = budget::bytes(job.options.memory, memory::available_bytes());
    let dest = ends.make_dest(&job.options)?.meeting_of(ends.starts.len());
    let threads = writers(&job.options, stream::FILES_EACH);
    let mut budget = Budget::new(memory, threads, false);
    budget.in_kernel = true;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|e| Error::Refused(format!("cannot start threads: {e}")))?;
    let writes_behind = choices.seeking(dest.dev()).is_some();
    Behind::during(writes_behind, &dest.root, |behind| {
        let run = Run::new(&dest, &job.options, counters, stop, 0)
            .remembering(cache)
            .on(behind, None);
        let scan = Scan {
            cache,
            ..scan(Some(&dest), &job.options, choices, counters, stop)
        };
        counters.enter("copy");
        let dirs = stream::copy(&run, &scan, &budget, &ends.starts, &pool);
        Ok(finished(&run, choices, &dirs))
    })
    .during(Op::Sync, &job.dest)
    .map_err(Error::from)
}

/// Links, directories, and the proof.
fn finished(run: &Run<'_>, choices: &Choices, dirs: &[crate::dest::DirRef]) -> Report {
    run.counters.enter("finish");
    for failure in run.saver.finish() {
        run.failed(failure);
    }
    if let Err(e) = run.behind.end() {
        run.failed(Failure::new(Op::Sync, run.dest.path.clone(), e));
    }
    if let Some(table) = run.twins() {
        dedup::rest::join_kept(run, table);
    }
    finish::links(run);
    let note = delete::extraneous(run, dirs);
    finish::directories(run, dirs);
    if run.options.verify == Verify::Durable && !run.is_interrupted() {
        run.counters.enter("flush");
        finish::sync(run, dirs);
        run.counters.enter("verify");
        verify::durable(run, choices);
    }
    let mut report = Report {
        full: run.is_full(),
        notes: run.notes().into_iter().chain(note).collect(),
        ..Report::default()
    };
    report.failures = run.take_failures();
    report.take_counters(run.counters);
    report
}

fn scan<'a>(
    dest: Option<&'a Dest>,
    options: &'a Options,
    choices: &'a Choices,
    counters: &'a Counters,
    stop: &'a AtomicBool,
) -> Scan<'a> {
    Scan {
        dest,
        choices,
        cache: None,
        filter: &options.filter,
        expects_all: true,
        one_file_system: options.one_file_system,
        keep_names: options.delete || options.backup.is_some(),
        threads: scanners(),
        counters,
        stop,
    }
}

/// Metadata requests in flight: enough for a disk's queue to be sorted, fewer
/// where few files may be open (each has three at most).
pub(crate) fn scanners() -> usize {
    let files = memory::open_files_limit().saturating_sub(16) / 4;
    usize::try_from(files.clamp(1, 16)).unwrap_or(1)
}

/// Writing is memory copying and kernel work for the processors' number of
/// threads, and waiting for as many more; never more than may have `files`
/// files open each.
fn writers(options: &Options, files: u64) -> usize {
    let processors = std::thread::available_parallelism().map_or(2, |n| n.get());
    let wanted = options.threads.unwrap_or((2 * processors).clamp(2, 32));
    let can = memory::open_files_limit().saturating_sub(24) / files;
    wanted
        .min(usize::try_from(can).unwrap_or(usize::MAX))
        .max(1)
}
