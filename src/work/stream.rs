//! Where the disk does not seek: no plan, no barrier. Every thread takes a
//! directory, lists it, and copies what is in it; directories found on the way
//! and parts of large directories are there for whoever is idle.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use crossbeam_channel::bounded;
use rayon::Scope;

use super::budget::Budget;
use super::keep;
use super::read::Reader;
use super::refer;
use super::run::{Run, lock};
use super::write::{self, Near, make_special, settled};
use crate::dest::compare::Sides;
use crate::error::{During, Failure, Op};
use crate::plan::scan::list::{Name, open_dir};
use crate::plan::scan::{Scan, Start};
use crate::plan::{Action, Dir, Kind, Listing, Source};
use crate::report::Outcome;
use crate::sys::beneath;
use crate::sys::metadata::Stat;

/// Entries of one directory that a thread copies without offering some of them
/// to others: a directory of 200,000 files keeps all busy.
const BATCH_ENTRIES: usize = 512;

/// What the threads of a stream share.
struct Stream<'a> {
    run: &'a Run<'a>,
    scan: &'a Scan<'a>,
    budget: &'a Budget,
    dirs: Mutex<Vec<Arc<Dir>>>,
}

/// Copies everything; gives back the directories, parents before children.
pub(crate) fn copy(
    run: &Run<'_>,
    scan: &Scan<'_>,
    budget: &Budget,
    starts: &[Start],
    pool: &rayon::ThreadPool,
) -> Vec<Arc<Dir>> {
    let stream = Stream {
        run,
        scan,
        budget,
        dirs: Mutex::default(),
    };
    pool.scope(|scope| {
        for start in starts {
            match &start.only {
                Some(name) => stream.single(start, name),
                None => {
                    let (stream, source) = (&stream, start.source.clone());
                    scope.spawn(move |scope| stream.directory(scope, source, None, Box::default()));
                }
            }
        }
    });
    run.counters.scan_done.store(true, Relaxed);
    stream.dirs.into_inner().unwrap_or_else(|e| e.into_inner())
}

impl Stream<'_> {
    /// A source that is not a directory.
    fn single(&self, start: &Start, name: &[u8]) {
        let listed = crate::plan::scan::list::holder(start, name);
        self.run.counters.found.fetch_add(1, Relaxed);
        lock(&self.dirs).push(listed.0.clone());
        self.batch(&listed.0, listed.1);
    }

    fn directory<'s>(
        &'s self,
        scope: &Scope<'s>,
        source: Arc<Source>,
        parent: Option<Arc<Dir>>,
        name: Box<[u8]>,
    ) {
        if self.run.is_stopped() {
            let path = match &parent {
                Some(parent) => parent.path_of(&name),
                None => source.path.clone(),
            };
            self.run.counters.found.fetch_add(1, Relaxed);
            return self.run.not_reached_path(path);
        }
        let (opened, failures) = open_dir(self.scan, source.clone(), parent, name);
        for failure in failures {
            self.run.failed(failure);
        }
        let Some(opened) = opened else { return };
        lock(&self.dirs).push(opened.dir.clone());
        for (_, name) in opened.children {
            let (source, parent) = (source.clone(), opened.dir.clone());
            scope.spawn(move |scope| self.directory(scope, source, Some(parent), name));
        }
        let mut names = opened.names;
        // On whatever holds it, neighbours in inode order are neighbours.
        names.sort_unstable_by_key(|name| name.ino);
        while names.len() > BATCH_ENTRIES {
            let batch = names.split_off(names.len() - BATCH_ENTRIES);
            let dir = opened.dir.clone();
            scope.spawn(move |_| self.batch(&dir, batch));
        }
        self.batch(&opened.dir, names);
    }

    /// Copies some entries of one directory.
    fn batch(&self, dir: &Arc<Dir>, names: Vec<Name>) {
        let mut listing = Listing::default();
        listing.dirs.push(dir.clone());
        for name in &names {
            listing.push(0, &name.name, name.ino, name.kind);
        }
        drop(names);
        let count = u32::try_from(listing.entries.len()).unwrap_or(u32::MAX);
        let fd = match dir.source.root.dir(&dir.relative()) {
            Ok(fd) => fd,
            Err(e) => return self.lost(&listing, &e),
        };
        // Looking and reading take turns: a file is opened once, and what is
        // found of it goes into the listing before the reader needs it.
        let mut near = Near::default();
        let mut sides = Sides::default();
        let mut files = Vec::new();
        for index in 0..count {
            if self.run.is_stopped() {
                let entry = &listing.entries[index as usize];
                self.run.not_reached(dir, listing.name(entry));
                continue;
            }
            match self.look(&mut listing, &fd, index, &mut sides) {
                Ok(Some(file)) => files.push((index, file)),
                Ok(None) => self.without_reading(&listing, index, &mut near),
                Err(failure) => self.run.entry_failed(failure),
            }
            if files.len() >= FILES_AHEAD || index + 1 == count {
                self.read(&listing, std::mem::take(&mut files));
            }
        }
        if !files.is_empty() {
            self.read(&listing, files);
        }
    }

    fn lost(&self, listing: &Listing, e: &std::io::Error) {
        for entry in &listing.entries {
            let path = listing.path(entry);
            let error = e
                .raw_os_error()
                .map_or_else(|| e.kind().into(), std::io::Error::from_raw_os_error);
            self.run.entry_failed(Failure::new(Op::Open, path, error));
        }
    }

    /// Looks at an entry; gives its file if it is one that has to be read.
    fn look(
        &self,
        listing: &mut Listing,
        fd: &OwnedFd,
        index: u32,
        sides: &mut Sides,
    ) -> Result<Option<(File, Stat)>, Failure> {
        let entry = listing.entries[index as usize];
        let dir = listing.dir(&entry);
        let name = listing.name(&entry);
        let path = || dir.path_of(name);
        let dest = self.run.dest;
        let mut action = Action::Copy;
        let mut stat = Stat::default();
        // What may be there already is compared first: an unchanged file need
        // not be opened.
        let is_new =
            dest.is_new_in(dir) && !dest.rules.may_skip_new() && dest.references.is_empty();
        if entry.kind != Kind::File || !is_new {
            stat = Stat::at(fd, name).during_at(Op::Stat, path)?;
            action = dest.compare(sides, dir, name, &stat, self.run.cache).action;
            self.scan.count_hit(stat.kind(), action);
        }
        let mut file = None;
        if entry.kind == Kind::File && action == Action::Copy {
            let opened = beneath::open_file(fd.as_fd(), name).during_at(Op::Open, path)?;
            stat = Stat::of(&opened).during_at(Op::Stat, path)?;
            file = Some(opened);
        }
        if stat.kind() == Kind::Dir {
            return Err(Failure::because(
                Op::Stat,
                path(),
                "became a directory after it was listed",
            ));
        }
        if action != Action::Skip && stat.links > 1 && !self.run.lead_or_follow(&stat, dir, name) {
            action = Action::Link;
        }
        listing.fill(index, &stat);
        listing.entries[index as usize].action = action;
        let counters = self.run.counters;
        if stat.kind() == Kind::File {
            counters.found_files.fetch_add(1, Relaxed);
            if action == Action::Copy {
                let data = stat.size.min(stat.allocated);
                counters.found_bytes.fetch_add(data, Relaxed);
            }
        }
        let is_read = action == Action::Copy && stat.kind() == Kind::File;
        Ok(file.filter(|_| is_read).map(|file| (file, stat)))
    }

    fn without_reading(&self, listing: &Listing, index: u32, near: &mut Near) {
        match listing.entries[index as usize].action {
            Action::Keep => keep::keep(self.run, listing, index, near),
            Action::Refer => refer::refer(self.run, listing, index, near),
            Action::Copy => make_special(self.run, listing, index, near),
            Action::Same => settled(self.run, listing, index, Outcome::Unchanged),
            Action::Skip => settled(self.run, listing, index, Outcome::Skipped),
            // Linked at the end, when its leader is there.
            Action::Link | Action::Fail => {}
        }
    }

    fn read(&self, listing: &Listing, files: Vec<(u32, (File, Stat))>) {
        let mut sink = |work| write::work(self.run, listing, self.budget, work);
        let mut reader = Reader::new(self.run, listing, self.budget, &mut sink);
        let mut large = Vec::new();
        for (index, (file, stat)) in files {
            if self.run.is_stopped() {
                let entry = &listing.entries[index as usize];
                self.run
                    .not_reached(listing.dir(entry), listing.name(entry));
            } else if stat.size > PIPED_BYTES {
                large.push((index, Arc::new(file), stat));
            } else {
                reader.opened(index, &Arc::new(file), stat);
            }
        }
        reader.flush();
        rayon::scope(|scope| {
            for (index, file, stat) in large {
                scope.spawn(move |_| self.read_piped(listing, index, &file, stat));
            }
        });
    }

    /// A file that is worth a thread of its own for the writing, so that it is
    /// read meanwhile.
    fn read_piped(&self, listing: &Listing, index: u32, file: &Arc<File>, stat: Stat) {
        let (work_tx, work_rx) = bounded(PIPED_PIECES);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for work in work_rx {
                    write::work(self.run, listing, self.budget, work);
                }
            });
            let mut sink = |work| {
                work_tx.send(work).expect("the writer outlives the reader");
            };
            let mut reader = Reader::new(self.run, listing, self.budget, &mut sink);
            reader.opened(index, file, stat);
            reader.flush();
            drop(work_tx);
        });
    }
}

/// Files above this are read and written by two threads.
const PIPED_BYTES: u64 = 16 << 20;

/// Pieces between the two: one that is written, one that waits.
const PIPED_PIECES: usize = 2;

/// Files that are open at once in a thread, before they are read.
const FILES_AHEAD: usize = 8;

/// Descriptors that a thread may need at once.
pub(crate) const FILES_EACH: u64 = FILES_AHEAD as u64 + 6;
