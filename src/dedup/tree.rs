//! The same inside a tree that is there already: `haul dedup`.
//!
//! Sizes sort out most files, then metadata; what is left is read in the order
//! of its disk. Names of one inode stay together: they all go over to the twin.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use super::join::{self, Bytes, Under, Wanted};
use super::{Likeness, Table, Twin};
use crate::dest::Dest;
use crate::error::{During, Error, Failure, Op};
use crate::job::{Dedup, Options, Verify};
use crate::plan::choose::Choices;
use crate::plan::scan::{Scan, Start};
use crate::plan::{Action, Kind, Listing, Source};
use crate::report::{Counters, Outcome, Report};
use crate::sys::beneath::Root;
use crate::sys::metadata::{Stat, Target};
use crate::sys::xattrs::{Place, Xattrs};
use crate::sys::{fiemap, mounts, transfer};
use crate::verify::digest::read_digest;
use crate::verify::medium;
use crate::work::run::{Run, lock};
use crate::work::spot::Spot;

/// Joins the duplicates in the tree `path`; with `dry_run`, only counts them.
///
/// # Errors
/// [`Error`] where the tree cannot be opened; what goes wrong with a file is in
/// the report.
pub fn dedup_tree(
    path: &Path,
    options: &Options,
    dry_run: bool,
    counters: &Counters,
    stop: &AtomicBool,
) -> Result<Report, Error> {
    let began = Instant::now();
    let options = Options {
        verify: Verify::Read,
        dedup: match options.dedup {
            Dedup::None => Dedup::Link,
            asked => asked,
        },
        ..options.clone()
    };
    let mounts = mounts::mounts().during(Op::Stat, Path::new("/proc/self/mountinfo"))?;
    let choices = Choices::new(options.order, mounts);
    let start = start(path)?;
    let dest = Dest::open(path, &options).during(Op::Open, path)?;
    let (cache, mut notes) = crate::job::open_cache(&options);
    counters.enter("scan");
    let scan = Scan {
        dest: None,
        cache: cache.as_ref(),
        filter: &options.filter,
        expects_all: true,
        choices: &choices,
        one_file_system: options.one_file_system,
        keep_names: false,
        threads: crate::job::scanners(),
        counters,
        stop,
    };
    let scanned = scan.run(std::slice::from_ref(&start));
    counters.scan_done.store(true, Relaxed);
    let run = Run::new(&dest, &options, counters, stop, 0).remembering(cache.as_ref());
    scanned.failures.into_iter().for_each(|f| run.failed(f));
    let tree = Tree {
        run: &run,
        listing: &scanned.listing,
        dry_run,
        linked: Mutex::default(),
        failed: Mutex::default(),
    };
    counters.enter("read");
    let inodes = tree.read(tree.candidates(&scanned.links), &choices);
    counters.enter("link");
    tree.join(&inodes);
    tree.account();
    notes.extend(run.notes());
    notes.extend(crate::job::close_cache(cache.as_ref()));
    let mut report = Report {
        verify: Verify::None,
        failures: run.take_failures(),
        notes,
        disks: choices.told(),
        interrupted: stop.load(Relaxed),
        ..Report::default()
    };
    report.take_counters(counters);
    report.elapsed = began.elapsed();
    Ok(report)
}

/// Whether two files begin at one place of their disk.
fn is_at_one_place(one: &File, other: &File) -> bool {
    let place = |file: &File| {
        let map = fiemap::map(file.as_fd(), 1, true).ok().flatten();
        map.and_then(|map| map.extents.first().map(|extent| extent.physical))
    };
    let first = place(one);
    first.is_some() && first == place(other)
}

fn start(path: &Path) -> Result<Start, Error> {
    let root = Root::open(path).during(Op::Open, path)?;
    let source = Source {
        root,
        path: path.to_path_buf(),
        below: Box::default(),
        holds_one: false,
        rename: None,
    };
    Ok(Start {
        source: Arc::new(source),
        only: None,
    })
}

/// A file with all of its names in the tree.
struct Inode {
    /// Indices of entries; the first is the one that is read.
    names: Vec<u32>,
    stat: Stat,
    xattrs: Xattrs,
    like: Likeness,
    digest: Option<u128>,
}

struct Tree<'a> {
    run: &'a Run<'a>,
    listing: &'a Listing,
    dry_run: bool,
    /// Entries that became links.
    linked: Mutex<HashSet<u32>>,
    failed: Mutex<HashSet<u32>>,
}

impl Tree<'_> {
    /// The files that share their size, and what else twins must share, with
    /// another one on the same filesystem.
    fn candidates(&self, links: &[(u32, u32)]) -> Vec<Inode> {
        let mut further: HashMap<u32, Vec<u32>> = HashMap::new();
        for &(name, first) in links {
            further.entry(first).or_default().push(name);
        }
        let entries = &self.listing.entries;
        let is_file = |i: &u32| {
            let entry = &entries[*i as usize];
            entry.kind == Kind::File && entry.size > 0 && entry.action == Action::Copy
        };
        let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        let mut by_size: HashMap<(u16, u64), Vec<u32>> = HashMap::new();
        for i in (0..count).filter(is_file) {
            let entry = &entries[i as usize];
            by_size
                .entry((entry.device, entry.size))
                .or_default()
                .push(i);
        }
        let mut found = Vec::new();
        let mut shares: HashMap<u16, bool> = HashMap::new();
        for ((device, _), group) in by_size {
            if group.len() < 2 {
                continue;
            }
            let mut inodes: Vec<Inode> = group
                .iter()
                .filter_map(|&i| {
                    let names = further.remove(&i).unwrap_or_default();
                    let names = std::iter::once(i).chain(names).collect();
                    self.look(names).map_err(|f| self.fail(i, f)).ok()
                })
                .collect();
            let shares = *shares
                .entry(device)
                .or_insert_with(|| self.can_share(group[0]));
            if !shares {
                let mut likes: HashMap<Likeness, usize> = HashMap::new();
                inodes
                    .iter()
                    .for_each(|i| *likes.entry(i.like).or_default() += 1);
                inodes.retain(|inode| likes[&inode.like] > 1);
            }
            found.extend(inodes);
        }
        found
    }

    fn look(&self, names: Vec<u32>) -> Result<Inode, Failure> {
        let path = self.listing.path(&self.listing.entries[names[0] as usize]);
        let file = crate::work::read::open(self.listing, names[0]).during(Op::Open, &path)?;
        let stat = Stat::of(&file).during(Op::Stat, &path)?;
        let xattrs = Place::Open(&file).read().during(Op::Read, &path)?;
        Ok(Inode {
            names,
            like: Likeness::new(self.run.options, &stat, &xattrs),
            stat,
            xattrs,
            digest: None,
        })
    }

    /// Whether two files on an entry's filesystem can share extents: tried by
    /// sharing nothing with itself.
    fn can_share(&self, index: u32) -> bool {
        let answer = crate::work::read::open(self.listing, index)
            .and_then(|file| transfer::can_share_ranges(&file));
        answer.unwrap_or(false)
    }

    /// Takes the digests, in the order of the disks.
    fn read(&self, inodes: Vec<Inode>, choices: &Choices) -> Vec<Inode> {
        let dir = |inode: &Inode| {
            let entry = &self.listing.entries[inode.names[0] as usize];
            self.listing.dir(entry).clone()
        };
        let (mut known, mut inodes): (Vec<_>, Vec<_>) = inodes
            .into_iter()
            .map(|mut inode| {
                inode.digest = self.run.known_source(&dir(&inode), &inode.stat);
                inode
            })
            .partition(|inode| inode.digest.is_some());
        let hits = known.len() as u64;
        self.run.counters.cache_hits.fetch_add(hits, Relaxed);
        let digests = Mutex::new(vec![None; inodes.len()]);
        let first = |i: usize| inodes[i].names[0];
        let each = |i: usize, found: io::Result<medium::Found>| match found {
            Ok(found) => {
                self.run.counters.read_bytes.fetch_add(found.size, Relaxed);
                if found.stat.held_still(&inodes[i].stat) {
                    let digest = found.digest;
                    self.run.learn_source(&dir(&inodes[i]), &found.stat, digest);
                    lock(&digests)[i] = Some(digest);
                }
            }
            Err(e) => {
                let path = self.listing.path(&self.listing.entries[first(i) as usize]);
                self.fail(first(i), Failure::new(Op::Read, path, e));
            }
        };
        let files = medium::Files {
            count: inodes.len(),
            open: &|i| crate::work::read::open(self.listing, first(i)),
            places: None,
            digest: &|_, file, size, scratch| read_digest(file, size, scratch),
            each: &each,
            is_stopped: &|| self.run.is_interrupted(),
            drop_cached: false,
        };
        medium::read(&files, choices);
        let digests = digests.into_inner().unwrap_or_else(|e| e.into_inner());
        for (inode, digest) in inodes.iter_mut().zip(digests) {
            inode.digest = digest;
        }
        known.append(&mut inodes);
        known
    }

    /// Joins each content's files with the one that has the most names.
    fn join(&self, inodes: &[Inode]) {
        let mut contents: HashMap<(u64, u64, u128), Vec<&Inode>> = HashMap::new();
        for inode in inodes {
            if let Some(digest) = inode.digest {
                let key = (inode.stat.dev, inode.stat.size, digest);
                contents.entry(key).or_default().push(inode);
            }
        }
        let mut touched: HashSet<u32> = HashSet::new();
        let table = Table::default();
        for mut same in contents.into_values().filter(|same| same.len() > 1) {
            // Links to what has most names already change least.
            same.sort_by_key(|inode| (std::cmp::Reverse(inode.stat.links), inode.stat.ino));
            let mut leaders: Vec<&Inode> = Vec::new();
            for inode in same {
                if self.run.is_stopped() {
                    return self.restore_times(&touched);
                }
                if !self.join_one(&table, &leaders, inode, &mut touched) {
                    leaders.push(inode);
                }
            }
        }
        self.restore_times(&touched);
    }

    /// Joins a file with one of the leaders; `false` where it leads itself.
    fn join_one(
        &self,
        table: &Table,
        leaders: &[&Inode],
        inode: &Inode,
        touched: &mut HashSet<u32>,
    ) -> bool {
        let may_link = self.run.options.dedup == Dedup::Link;
        let alike = |leader: &&&Inode| may_link && leader.like == inode.like;
        // The last one: those before may have all the names that they can have.
        let linked = match leaders.iter().rev().find(alike) {
            Some(leader) => self.link(leader, inode, touched),
            None => match leaders.first() {
                Some(leader) => {
                    return self.share(table, leader, inode).unwrap_or_else(|f| {
                        self.fail(inode.names[0], f);
                        true
                    }) && !may_link;
                }
                None => return false,
            },
        };
        linked.unwrap_or_else(|failure| {
            self.fail(inode.names[0], failure);
            true
        })
    }

    fn link(
        &self,
        leader: &Inode,
        inode: &Inode,
        touched: &mut HashSet<u32>,
    ) -> Result<bool, Failure> {
        let counters = self.run.counters;
        let all_names = inode.stat.links == inode.names.len() as u64;
        if self.dry_run {
            counters
                .dedup_linked
                .fetch_add(inode.names.len() as u64, Relaxed);
        } else {
            let (dir, name) = self.place(leader.names[0]);
            let twin = Twin { dir, name };
            let path = self
                .listing
                .path(&self.listing.entries[inode.names[0] as usize]);
            let file = crate::work::read::open(self.listing, inode.names[0]);
            let file = file.during(Op::Open, &path)?;
            for &index in &inode.names {
                if !self.link_name(&twin, inode, &file, index)? {
                    return Ok(false);
                }
                touched.insert(self.listing.entries[index as usize].dir);
            }
        }
        if all_names {
            counters
                .dedup_saved_bytes
                .fetch_add(inode.stat.allocated, Relaxed);
        }
        lock(&self.linked).extend(&inode.names);
        Ok(true)
    }

    fn link_name(
        &self,
        twin: &Twin,
        inode: &Inode,
        file: &File,
        index: u32,
    ) -> Result<bool, Failure> {
        let (dir, name) = self.place(index);
        let path = self.listing.path(&self.listing.entries[index as usize]);
        let fd: OwnedFd = self
            .run
            .dest
            .root
            .dir(&dir.relative_dest())
            .during(Op::Link, &path)?;
        let spot = Spot {
            run: self.run,
            dir,
            fd: &fd,
            name: &name,
        };
        let there = Stat::at(&fd, &name).during(Op::Link, &path)?;
        let now = Stat::of(file).during(Op::Stat, &path)?;
        if !there.is_same_inode(&now)
            || (now.size, now.mtime) != (inode.stat.size, inode.stat.mtime)
        {
            return Err(Failure::because(Op::Read, path, "it changed meanwhile"));
        }
        let wanted = Wanted {
            bytes: Bytes::File(file, inode.stat.size),
            digest: inode.digest.unwrap_or_default(),
            // As if it came from elsewhere: here it is its own source.
            stat: &Stat {
                dev: 0,
                ino: 0,
                ..now
            },
            xattrs: &inode.xattrs,
            saves: false,
        };
        match join::link(&spot, twin, &wanted, Under::Itself)? {
            Some((_, failures)) => {
                failures.into_iter().for_each(|f| self.run.failed(f));
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Lets two files with different metadata share their extents.
    fn share(&self, table: &Table, leader: &Inode, inode: &Inode) -> Result<bool, Failure> {
        if !table.can_share() {
            return Ok(false);
        }
        let counters = self.run.counters;
        let path = self
            .listing
            .path(&self.listing.entries[inode.names[0] as usize]);
        let open = |index| crate::work::read::open(self.listing, index);
        let from = open(leader.names[0]).during(Op::Open, &path)?;
        let to = open(inode.names[0]).during(Op::Open, &path)?;
        // Sharing again what is shared changes nothing, and saves nothing.
        let is_shared_already = is_at_one_place(&from, &to);
        if !self.dry_run {
            let shared = transfer::share_range(&from, &to, inode.stat.size);
            match shared.during(Op::Write, &path)? {
                None => {
                    table.no_sharing();
                    return Ok(false);
                }
                Some(false) => return Ok(false),
                Some(true) => {}
            }
        }
        // Content inside an inode (btrfs) has no place to be shared.
        let is_shared_now = self.dry_run || is_at_one_place(&from, &to);
        if is_shared_already || !is_shared_now {
            return Ok(true);
        }
        counters.dedup_reflinked.fetch_add(1, Relaxed);
        counters
            .dedup_saved_bytes
            .fetch_add(inode.stat.allocated, Relaxed);
        Ok(true)
    }

    fn place(&self, index: u32) -> (Arc<crate::plan::Dir>, Box<[u8]>) {
        let entry = &self.listing.entries[index as usize];
        (
            self.listing.dir(entry).clone(),
            self.listing.name(entry).into(),
        )
    }

    /// Nothing was changed in these directories but which inode a name means.
    fn restore_times(&self, touched: &HashSet<u32>) {
        for &index in touched {
            let dir = &self.listing.dirs[index as usize];
            let opened = self.run.dest.root.dir(&dir.relative_dest());
            let set = opened
                .and_then(|fd| Target::Name(&fd, b".").set_times(dir.stat.atime, dir.stat.mtime));
            if let Err(failure) = set.during_at(Op::SetMetadata, || dir.path_of(b"")) {
                self.run.failed(failure);
            }
        }
    }

    fn fail(&self, index: u32, failure: Failure) {
        lock(&self.failed).insert(index);
        self.run.failed(failure);
    }

    /// Every entry has one end.
    fn account(&self) {
        let (linked, failed) = (lock(&self.linked), lock(&self.failed));
        for (i, entry) in (0..).zip(&self.listing.entries) {
            let outcome = if entry.action == Action::Fail || failed.contains(&i) {
                Outcome::Failed
            } else if linked.contains(&i) {
                Outcome::Linked
            } else {
                Outcome::Unchanged
            };
            self.run
                .counters
                .count(outcome, || self.listing.path(entry));
        }
        for dir in &self.listing.dirs {
            let outcome = if dir.is_incomplete {
                Outcome::Failed
            } else {
                Outcome::Unchanged
            };
            self.run.counters.count(outcome, || dir.path_of(b""));
        }
    }
}
