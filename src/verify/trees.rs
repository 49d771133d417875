//! Compares two trees without copying: names, kinds, metadata, links, holes,
//! and the content of every file, read from both media in their own order.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use super::digest::content_digest;
use super::medium::{self, Found};
use crate::error::{During, Error, Failure, Op};
use crate::job::{Options, Verify};
use crate::plan::choose::Choices;
use crate::plan::scan::{Scan, Scanned, Start};
use crate::plan::{Action, Entry, Listing, Role, Source};
use crate::report::{Counters, Note, Outcome, Report};
use crate::sys::beneath::{self, Root};
use crate::sys::metadata::Stat;
use crate::sys::mounts;

mod pair;

/// One of the two trees.
struct Side {
    start: Start,
    scanned: Scanned,
}

/// Compares the trees `src` and `dst`, or two files.
///
/// # Errors
/// [`Error`] where one of them cannot be opened; differences are in the report.
pub fn verify_trees(
    src: &Path,
    dst: &Path,
    options: &Options,
    counters: &Counters,
    stop: &AtomicBool,
) -> Result<Report, Error> {
    let began = Instant::now();
    let mounts = mounts::mounts().during(Op::Stat, Path::new("/proc/self/mountinfo"))?;
    let choices = Choices::new(options.order, mounts);
    let (from, to) = (start(src)?, start(dst)?);
    if from.only.is_some() != to.only.is_some() {
        let why = "one is a directory and the other is not";
        return Err(Failure::because(Op::Compare, dst, why).into());
    }
    if !options.cached {
        // What is still only in memory cannot be read from the medium.
        nix::unistd::syncfs(&to.source.root).during(Op::Sync, dst)?;
    }
    counters.enter("scan");
    let theirs = Counters::default();
    let scan = |counters, start: &Start, expects_all| {
        let scan = Scan {
            dest: None,
            cache: None,
            filter: &options.filter,
            expects_all,
            choices: &choices,
            one_file_system: options.one_file_system,
            keep_names: false,
            threads: crate::job::scanners(),
            counters,
            stop,
        };
        scan.run(std::slice::from_ref(start))
    };
    let same = is_one_head(&choices, &from, &to);
    let ours = || scan(counters, &from, true);
    let (ours, theirs) = both(same, ours, || scan(&theirs, &to, false));
    let mut source = Side {
        scanned: ours,
        start: from,
    };
    let mut copy = Side {
        scanned: theirs,
        start: to,
    };
    counters.scan_done.store(true, Relaxed);
    counters.enter("verify");
    let mut comparison = Comparison::new(counters, &mut source, &mut copy);
    comparison.cached = options.cached;
    comparison.names();
    comparison.content(&choices, stop);
    let mut report = comparison.report();
    report.take_counters(counters);
    report.verify = if options.cached {
        Verify::Read
    } else {
        Verify::Durable
    };
    report.disks = choices.told();
    report.interrupted = stop.load(Relaxed);
    report.elapsed = began.elapsed();
    Ok(report)
}

/// Whether both lie on one disk that seeks.
fn is_one_head(choices: &Choices, from: &Start, to: &Start) -> bool {
    let disk = |start: &Start| Stat::of(&start.source.root).map(|stat| choices.of(stat.dev));
    match (disk(from), disk(to)) {
        (Ok(from), Ok(to)) => from.key == to.key && from.wants_places(),
        _ => false,
    }
}

/// Does two things at once; in turn where one head would have to serve both.
fn both<T: Send>(
    in_turn: bool,
    first: impl FnOnce() -> T + Send,
    second: impl FnOnce() -> T,
) -> (T, T) {
    if in_turn {
        return (first(), second());
    }
    std::thread::scope(|scope| {
        let first = scope.spawn(first);
        let second = second();
        let first = first.join();
        (
            first.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            second,
        )
    })
}

/// Opens a tree, or the directory that holds a single file.
fn start(path: &Path) -> Result<Start, Error> {
    let is_dir = fs::metadata(path).during(Op::Open, path)?.is_dir();
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let at = if is_dir { path } else { parent };
    let only = (!is_dir)
        .then(|| path.file_name().map(|n| n.as_encoded_bytes().into()))
        .flatten();
    let root = Root::open(at).during(Op::Open, at)?;
    let source = Source {
        root,
        path: at.to_path_buf(),
        below: Box::default(),
        holds_one: !is_dir,
        rename: None,
    };
    Ok(Start {
        source: Arc::new(source),
        only,
    })
}

/// Pairs of entries, and what was found of them.
struct Comparison<'a> {
    counters: &'a Counters,
    source: &'a Side,
    copy: &'a Side,
    failures: Mutex<Vec<Failure>>,
    notes: Mutex<Vec<Note>>,
    /// Files whose content is still to be compared: indices in both listings.
    files: Vec<(u32, u32)>,
    /// Whether the page cache may answer.
    cached: bool,
}

impl<'a> Comparison<'a> {
    fn new(counters: &'a Counters, source: &'a mut Side, copy: &'a mut Side) -> Comparison<'a> {
        let mut failures = std::mem::take(&mut source.scanned.failures);
        failures.append(&mut copy.scanned.failures);
        Comparison {
            counters,
            source,
            copy,
            failures: Mutex::new(failures),
            notes: Mutex::default(),
            files: Vec::new(),
            cached: false,
        }
    }

    /// Pairs what has the same path, and names what has no counterpart.
    fn names(&mut self) {
        let (ours, theirs) = (&self.source.scanned.listing, &self.copy.scanned.listing);
        let mut their_dirs: HashMap<Vec<u8>, u32> = (0..)
            .zip(&theirs.dirs)
            .map(|(i, dir)| (dir.relative(), i))
            .collect();
        let mut their_entries: HashMap<(u32, &[u8]), u32> = (0..)
            .zip(&theirs.entries)
            .map(|(i, entry)| ((entry.dir, theirs.name(entry)), i))
            .collect();
        let single = self.source.start.only.is_some();
        // Where each directory of ours has its counterpart.
        let mut across = vec![None; ours.dirs.len()];
        for (i, dir) in ours.dirs.iter().enumerate() {
            across[i] = their_dirs.remove(&dir.relative());
            match (dir.role, across[i]) {
                (Role::Holder, _) | (Role::Way, None) => continue,
                (Role::Way, Some(_)) => drop(self.counters.found.fetch_add(1, Relaxed)),
                (Role::Entry, _) => {}
            }
            match across[i] {
                Some(there) => self.pair_dirs(dir, &theirs.dirs[there as usize]),
                None => self.missing(ours.dirs[i].path_of(b""), &dir.relative()),
            }
        }
        let mut groups = pair::Groups::default();
        let mut files = Vec::new();
        for (i, entry) in (0..).zip(&ours.entries) {
            let there = across[entry.dir as usize].and_then(|dir| {
                if single {
                    their_entries.drain().next().map(|(_, i)| i)
                } else {
                    their_entries.remove(&(dir, ours.name(entry)))
                }
            });
            if entry.action == Action::Skip {
                self.counters.count(Outcome::Skipped, || ours.path(entry));
                continue;
            }
            let Some(there) = there else {
                self.missing(ours.path(entry), &relative(ours, entry));
                continue;
            };
            if self.pair_entries(entry, &theirs.entries[there as usize], &mut groups) {
                files.push((i, there));
            }
        }
        for (_, i) in their_dirs {
            let dir = &theirs.dirs[i as usize];
            if dir.role == Role::Entry {
                self.extra(dir.path_of(b""));
            }
        }
        for (_, i) in their_entries {
            self.extra(theirs.path(&theirs.entries[i as usize]));
        }
        self.files = files;
    }

    fn missing(&self, source: std::path::PathBuf, relative: &[u8]) {
        let path = beneath::append(&self.copy.start.source.path, relative);
        self.different(Failure::because(Op::Compare, path, "it is missing"), source);
    }

    /// What only the copy has counts as found, so that the sums hold.
    fn extra(&self, path: std::path::PathBuf) {
        self.counters.found.fetch_add(1, Relaxed);
        self.different(
            Failure::because(Op::Compare, &path, "the source does not have it"),
            path,
        );
    }

    fn different(&self, failure: Failure, entry: std::path::PathBuf) {
        self.fail(failure);
        self.counters.count(Outcome::Failed, || entry);
    }

    fn fail(&self, failure: Failure) {
        self.failures
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .push(failure);
    }

    /// Reads all paired files from both sides and compares their digests.
    fn content(&self, choices: &Choices, stop: &AtomicBool) {
        let count = self.files.len();
        let ours: Mutex<Vec<Option<Found>>> = Mutex::new(vec![None; count]);
        let theirs: Mutex<Vec<Option<Found>>> = Mutex::new(vec![None; count]);
        let failed: Mutex<Vec<bool>> = Mutex::new(vec![false; count]);
        let read = |side: &Side,
                    pick: &(dyn Fn(&(u32, u32)) -> u32 + Sync),
                    into: &Mutex<Vec<Option<Found>>>,
                    op: Op| {
            let listing = &side.scanned.listing;
            let open = |i: usize| crate::work::read::open(listing, pick(&self.files[i]));
            let each = |i: usize, found: std::io::Result<Found>| match found {
                Ok(found) => into.lock().unwrap_or_else(|e| e.into_inner())[i] = Some(found),
                Err(e) => {
                    failed.lock().unwrap_or_else(|e| e.into_inner())[i] = true;
                    let entry = &listing.entries[pick(&self.files[i]) as usize];
                    self.fail(Failure::new(op, listing.path(entry), e));
                }
            };
            let digest = |_, file: &fs::File, size, scratch: &mut Vec<u8>| {
                content_digest(file, size, scratch)
            };
            let place = |i: usize| {
                let entry = &listing.entries[pick(&self.files[i]) as usize];
                let dev = listing.devices[usize::from(entry.device)];
                // Without a known place a file comes first.
                let physical = Some(entry.physical).filter(|&at| at != u64::MAX);
                (dev, physical.unwrap_or(0))
            };
            let files = medium::Files {
                count,
                open: &open,
                places: Some(&place),
                digest: &digest,
                each: &each,
                is_stopped: &|| stop.load(Relaxed),
                drop_cached: !self.cached,
            };
            medium::read(&files, choices);
        };
        let same = is_one_head(choices, &self.source.start, &self.copy.start);
        let first = || read(self.source, &|pair| pair.0, &ours, Op::Read);
        both(same, first, || {
            read(self.copy, &|pair| pair.1, &theirs, Op::Verify);
        });
        let (ours, theirs) = (into_inner(ours), into_inner(theirs));
        let failed = into_inner(failed);
        for (i, pair) in self.files.iter().enumerate() {
            self.compare_content(*pair, ours[i], theirs[i], failed[i]);
        }
    }

    fn compare_content(
        &self,
        pair: (u32, u32),
        ours: Option<Found>,
        theirs: Option<Found>,
        failed: bool,
    ) {
        let listing = &self.source.scanned.listing;
        let path = || listing.path(&listing.entries[pair.0 as usize]);
        let (Some(ours), Some(theirs)) = (ours, theirs) else {
            // Interrupted before it was read: not counted as anything.
            if failed {
                self.counters.count(Outcome::Failed, path);
            }
            return;
        };
        if (ours.size, ours.digest) == (theirs.size, theirs.digest) {
            self.counters.verified_files.fetch_add(1, Relaxed);
            self.counters.verified_bytes.fetch_add(ours.size, Relaxed);
            self.counters.count(Outcome::Unchanged, path);
            return;
        }
        let theirs_at = self
            .copy
            .scanned
            .listing
            .path(&self.copy.scanned.listing.entries[pair.1 as usize]);
        let why = if ours.size == theirs.size {
            "its content differs from the source's".to_owned()
        } else {
            format!("its size is {}, not {}", theirs.size, ours.size)
        };
        self.different(Failure::because(Op::Verify, theirs_at, why), path());
    }

    fn report(self) -> Report {
        let mut failures = into_inner(self.failures);
        failures.sort_by(|a, b| a.path.cmp(&b.path));
        Report {
            failures,
            notes: into_inner(self.notes),
            ..Report::default()
        }
    }
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(|e| e.into_inner())
}

fn relative(listing: &Listing, entry: &Entry) -> Vec<u8> {
    beneath::join([&listing.dir(entry).relative()[..], listing.name(entry)])
}
