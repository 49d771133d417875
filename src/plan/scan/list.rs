//! Which names there are: every directory listed once, the next one always the
//! next in inode order above the last (an elevator), several in flight.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use nix::dir::Type;
use nix::fcntl::OFlag;

use super::inodes::{self, Inodes};
use super::{Scan, Start, lock, select};
use crate::error::{During, Failure, Op};
use crate::plan::{Dir, Kind, Listing, Role, Source, There};
use crate::report::Outcome;
use crate::sys::beneath;
use crate::sys::metadata::{Stat, Time};
use crate::sys::xattrs::{Place, Xattrs};

/// A directory that waits to be listed.
struct Task {
    id: usize,
    source: Arc<Source>,
    parent: Option<Arc<Dir>>,
    name: Box<[u8]>,
}

/// A listed directory.
struct Listed {
    dir: Arc<Dir>,
    /// Ids of its directories, in the order of listing.
    children: Box<[usize]>,
}

/// What the threads have found so far. A name goes to where it stays at once:
/// of millions there is no room for two.
#[derive(Default)]
struct Found {
    /// Its entries name their directory by id; the directories come last.
    listing: Listing,
    /// By id.
    listed: Vec<Option<Listed>>,
    failures: Vec<Failure>,
}

impl Found {
    fn add_names(&mut self, id: usize, names: Vec<Name>) {
        let id = u32::try_from(id).expect("fewer than 2^32 directories");
        for name in names {
            self.listing.push(id, &name.name, name.ino, name.kind);
        }
    }

    fn add_dir(&mut self, id: usize, dir: Listed) {
        if self.listed.len() <= id {
            self.listed.resize_with(id + 1, || None);
        }
        self.listed[id] = Some(dir);
    }
}

/// A name in a directory.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
    pub(crate) name: Box<[u8]>,
}

/// Directories that wait, by inode number, and where the elevator is.
#[derive(Default)]
struct Waiting {
    tasks: BTreeMap<(u64, usize), Task>,
    cursor: (u64, usize),
    busy: usize,
    ids: usize,
    /// The bits of an inode number below those that say in which part of the
    /// disk it lies; 64 where they say nothing.
    group_bits: u32,
}

impl Task {
    fn root(source: Arc<Source>) -> Task {
        Task {
            id: 0,
            source,
            parent: None,
            name: Box::default(),
        }
    }

    /// A directory in a listed one.
    fn child(parent: &Arc<Dir>, name: Box<[u8]>) -> Task {
        Task {
            parent: Some(parent.clone()),
            name,
            ..Task::root(parent.source.clone())
        }
    }
}

impl Waiting {
    fn add(&mut self, ino: u64, task: Task) -> usize {
        let id = self.ids;
        self.ids += 1;
        self.tasks.insert((ino, id), Task { id, ..task });
        id
    }

    /// The next above the cursor in its group, or else in the group in which
    /// most directories wait: from group to group the way is far.
    fn next(&mut self) -> Option<Task> {
        let group = self.group(self.cursor.0);
        let above = self.tasks.range(self.cursor..).next();
        let above = above.map(|(&key, _)| key);
        let key = above
            .filter(|key| self.group(key.0) == group)
            .or_else(|| self.first_of_fullest())?;
        self.cursor = key;
        self.busy += 1;
        self.tasks.remove(&key)
    }

    fn first_of_fullest(&self) -> Option<(u64, usize)> {
        let mut groups: BTreeMap<u64, (usize, (u64, usize))> = BTreeMap::new();
        for &key in self.tasks.keys() {
            groups.entry(self.group(key.0)).or_insert((0, key)).0 += 1;
        }
        groups
            .into_values()
            .max_by_key(|(waiting, _)| *waiting)
            .map(|(_, first)| first)
    }

    fn group(&self, ino: u64) -> u64 {
        ino.checked_shr(self.group_bits).unwrap_or(0)
    }
}

/// Lists every directory; the listing comes out in the order of a walk.
pub(super) fn list(scan: &Scan<'_>, starts: &[Start]) -> (Listing, Vec<Failure>) {
    let mut waiting = Waiting {
        group_bits: inodes::group_bits(starts),
        ..Waiting::default()
    };
    let mut roots = Vec::new();
    let mut found = Found::default();
    for start in starts {
        if let Some(name) = &start.only {
            let id = waiting.ids;
            waiting.ids += 1;
            let (dir, names) = holder(start, name);
            scan.counters.found.fetch_add(1, Relaxed);
            found.add_names(id, names);
            let children = Box::default();
            found.add_dir(id, Listed { dir, children });
            roots.push(id);
        } else {
            roots.push(waiting.add(0, Task::root(start.source.clone())));
        }
    }
    let shared = (Mutex::new(waiting), Condvar::new());
    let inodes = Inodes::new(scan, starts);
    let found = Mutex::new(found);
    std::thread::scope(|scope| {
        for _ in 0..scan.threads {
            scope.spawn(|| work(scan, &inodes, &shared, &found));
        }
    });
    let mut found = found.into_inner().unwrap_or_else(|e| e.into_inner());
    let failures = std::mem::take(&mut found.failures);
    (number(&roots, found), failures)
}

/// The directory that holds a source that is not one.
pub(crate) fn holder(start: &Start, name: &[u8]) -> (Arc<Dir>, Vec<Name>) {
    let dir = Arc::new(Dir {
        parent: None,
        name: Box::default(),
        source: start.source.clone(),
        stat: Stat::of(&start.source.root).unwrap_or_default(),
        xattrs: Xattrs::new(),
        there: There::Dir,
        names: Some([digest_of(start.source.rename.as_deref().unwrap_or(name))].into()),
        role: Role::Holder,
        is_incomplete: false,
        made: OnceLock::new(),
        folds_case: OnceLock::new(),
    });
    let found = Stat::at(&start.source.root, name).unwrap_or_default();
    let name = Name {
        ino: found.ino,
        kind: found.kind(),
        name: name.into(),
    };
    (dir, vec![name])
}

fn work(
    scan: &Scan<'_>,
    inodes: &Inodes<'_>,
    shared: &(Mutex<Waiting>, Condvar),
    found: &Mutex<Found>,
) {
    let (waiting, changed) = shared;
    let mut state = lock(waiting);
    loop {
        if scan.stop.load(Relaxed) {
            changed.notify_all();
            return;
        }
        let Some(task) = state.next() else {
            if state.busy == 0 {
                changed.notify_all();
                return;
            }
            state = changed.wait(state).unwrap_or_else(|e| e.into_inner());
            continue;
        };
        drop(state);
        let (opened, mut failures) = {
            let _listing = inodes.listing();
            open_dir(scan, task.source, task.parent, task.name)
        };
        let mut tasks = Vec::new();
        let mut listed = None;
        if let Some(Opened {
            dir,
            names,
            children,
        }) = opened
        {
            inodes.found(dir.stat.dev, names.len() + children.len());
            lock(found).add_names(task.id, names);
            let task = |(ino, name)| (ino, Task::child(&dir, name));
            tasks = children.into_iter().map(task).collect();
            listed = Some(dir);
        }
        state = lock(waiting);
        let mut found = lock(found);
        if let Some(dir) = listed {
            let tasks = tasks.into_iter();
            let children = tasks.map(|(ino, task)| state.add(ino, task)).collect();
            found.add_dir(task.id, Listed { dir, children });
        }
        found.failures.append(&mut failures);
        drop(found);
        state.busy -= 1;
        changed.notify_all();
    }
}

/// A directory, looked at and listed.
pub(crate) struct Opened {
    pub(crate) dir: Arc<Dir>,
    pub(crate) names: Vec<Name>,
    pub(crate) children: Vec<(u64, Box<[u8]>)>,
}

/// Opens, looks at and lists one directory. One that may not be listed is
/// still an entry; none comes out only where it cannot even be looked at.
pub(crate) fn open_dir(
    scan: &Scan<'_>,
    source: Arc<Source>,
    parent: Option<Arc<Dir>>,
    name: Box<[u8]>,
) -> (Option<Opened>, Vec<Failure>) {
    let relative = parent.as_ref().map(|p| p.relative()).unwrap_or_default();
    let relative = beneath::join([&relative[..], &name]);
    let path = || beneath::append(&source.path, &relative);
    let mut failures = Vec::new();
    let listable = source
        .root
        .at(&relative, OFlag::O_RDONLY | OFlag::O_DIRECTORY);
    let mut looked_up = None;
    let fd = match listable {
        Ok(fd) => Ok(fd),
        Err(e) => {
            let fd = source.root.dir(&relative);
            if e.kind() == io::ErrorKind::PermissionDenied {
                looked_up = fd
                    .as_ref()
                    .ok()
                    .and_then(|fd| select::look_up(scan, &relative, fd));
            }
            if looked_up.is_none() {
                failures.push(Failure::new(Op::Scan, path(), e));
            }
            fd
        }
    };
    // Where even that fails, the directory is gone or is none any more: the
    // failure that is noted already says so.
    let looked = fd.and_then(|fd| Ok((Stat::of(&fd)?, fd)));
    let Ok((stat, fd)) = looked else {
        scan.counters.found.fetch_add(1, Relaxed);
        scan.counters.count(Outcome::Failed, path);
        return (None, failures);
    };
    let file = std::fs::File::from(fd);
    // What it holds is copied although its attributes cannot be read.
    let is_open = failures.is_empty();
    let xattrs = if is_open {
        let place = match looked_up {
            Some(_) => Place::name(&file, b"."),
            None => Place::Open(&file),
        };
        place.read().unwrap_or_else(|e| {
            failures.push(Failure::new(Op::Read, path(), e));
            Xattrs::new()
        })
    } else {
        Xattrs::new()
    };
    let there = there(scan, &source, parent.as_deref(), &name);
    let same_dest = scan.dest.is_some_and(|dest| dest.is(&stat));
    let other_device = parent.as_ref().is_some_and(|p| p.stat.dev != stat.dev);
    let enter = is_open && !same_dest && !(scan.one_file_system && other_device);
    if same_dest {
        failures.push(Failure::because(
            Op::Scan,
            path(),
            "it is the destination itself",
        ));
    }
    let (mut names, mut children) = (Vec::new(), Vec::new());
    let is_listable = looked_up.is_none();
    let failed_before = failures.len();
    let mut digests = (enter && is_listable && scan.keep_names).then(Vec::new);
    let mut unseen = Vec::new();
    if let Some(found) = looked_up.filter(|_| enter) {
        (names, children, unseen) = (found.names, found.children, found.failed);
    } else if enter
        && let Err(failure) =
            read_names(file.into(), &stat, &mut names, &mut children, &mut digests)
                .during_at(Op::Scan, path)
    {
        failures.push(failure);
    }
    if let Some(cache) = scan
        .cache
        .filter(|_| enter && is_listable && failures.is_empty())
    {
        let mut inodes: Vec<u64> = names.iter().map(|name| name.ino).collect();
        inodes.sort_unstable();
        cache.listed(&source.root, &stat, &inodes);
    }
    let below = match &parent {
        Some(parent) => beneath::join([&parent.relative_dest()[..], &name]),
        None => source.below.to_vec(),
    };
    let is_complete = enter && failures.len() == failed_before && unseen.is_empty();
    let (role, lost) = select::select(scan, &relative, &below, &mut names, &mut children);
    let found = names.len() + usize::from(role == Role::Entry);
    scan.counters.found.fetch_add(found as u64, Relaxed);
    let is_incomplete = !failures.is_empty();
    let count = |at: &[u8]| {
        let path = path().join(std::ffi::OsStr::from_bytes(at));
        scan.counters.found.fetch_add(1, Relaxed);
        scan.counters.count(Outcome::Failed, || path.clone());
        path
    };
    if is_complete && scan.expects_all {
        let lost = lost.into_iter();
        failures.extend(lost.map(|(at, why)| select::failure(count(&at), why)));
    }
    let unseen = unseen.into_iter();
    failures.extend(unseen.map(|(at, e)| Failure::new(Op::Stat, count(&at), e)));
    let made = OnceLock::new();
    let dir = Arc::new(Dir {
        parent,
        name,
        source: source.clone(),
        stat,
        xattrs,
        there,
        names: digests.filter(|_| !is_incomplete).map(sorted),
        role,
        is_incomplete,
        made,
        folds_case: OnceLock::new(),
    });
    (
        Some(Opened {
            dir,
            names,
            children,
        }),
        failures,
    )
}

/// Reads a directory's names; what was read before an error is kept. `before`
/// is what it was when it was opened.
fn read_names(
    fd: OwnedFd,
    before: &Stat,
    names: &mut Vec<Name>,
    children: &mut Vec<(u64, Box<[u8]>)>,
    digests: &mut Option<Vec<u64>>,
) -> io::Result<()> {
    let mut dir = nix::dir::Dir::from_fd(fd)?;
    let mut add = |ino, kind, name: &[u8]| match kind {
        Kind::Dir => children.push((ino, name.into())),
        _ => names.push(Name {
            ino,
            kind,
            name: name.into(),
        }),
    };
    let mut untold: Vec<(u64, Box<[u8]>)> = Vec::new();
    for entry in dir.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        if let Some(digests) = digests {
            digests.push(digest_of(name));
        }
        match entry.file_type() {
            Some(kind) => add(entry.ino(), kind_of(kind), name),
            None => untold.push((entry.ino(), name.into())),
        }
    }
    // Some filesystems do not say of what kind a name is.
    for (ino, name) in untold {
        match Stat::at(&dir, &name) {
            Ok(stat) => add(stat.ino, stat.kind(), &name),
            Err(_) => add(ino, Kind::File, &name),
        }
    }
    // Of a directory that changes meanwhile the kernel may give a name twice
    // (tmpfs does). Times are too coarse to tell where it has just changed.
    let now = Stat::of(&dir)?;
    let is_young = now.mtime.s.saturating_add(2) > Time::now().s;
    if is_young || now.mtime != before.mtime {
        keep_once(names, children);
    }
    Ok(())
}

/// Takes out what has the name of an earlier one.
fn keep_once(names: &mut Vec<Name>, children: &mut Vec<(u64, Box<[u8]>)>) {
    let mut seen: HashSet<Box<[u8]>> = HashSet::new();
    names.retain(|entry| seen.insert(entry.name.clone()));
    children.retain(|(_, name)| seen.insert(name.clone()));
}

/// Stands for a name that the destination may keep. Two names with one digest
/// only keep a name that could go.
pub(crate) fn digest_of(name: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name)
}

fn sorted(mut digests: Vec<u64>) -> Box<[u64]> {
    digests.sort_unstable();
    digests.into_boxed_slice()
}

fn kind_of(kind: Type) -> Kind {
    match kind {
        Type::Directory => Kind::Dir,
        Type::Symlink => Kind::Symlink,
        Type::Fifo => Kind::Fifo,
        Type::Socket => Kind::Socket,
        Type::CharacterDevice => Kind::CharDevice,
        Type::BlockDevice => Kind::BlockDevice,
        Type::File => Kind::File,
    }
}

/// What the destination holds under a directory's name.
fn there(scan: &Scan<'_>, source: &Source, parent: Option<&Dir>, name: &[u8]) -> There {
    let Some(dest) = scan.dest else {
        return There::Nothing;
    };
    let relative = match parent {
        Some(parent) if parent.there != There::Dir => return parent.there,
        Some(parent) => beneath::join([&parent.relative_dest()[..], name]),
        None => source.below.to_vec(),
    };
    dest.there(&relative)
}

/// Puts the directories into the order of a walk, and their numbers in it into
/// the entries, which stay as they came.
fn number(roots: &[usize], found: Found) -> Listing {
    let Found {
        mut listing,
        mut listed,
        ..
    } = found;
    let mut numbers: Vec<u32> = vec![0; listed.len()];
    let mut stack: Vec<usize> = roots.iter().rev().copied().collect();
    while let Some(id) = stack.pop() {
        let Some(listed) = listed.get_mut(id).and_then(Option::take) else {
            continue;
        };
        numbers[id] = u32::try_from(listing.dirs.len()).expect("fewer than 2^32 directories");
        listing.dirs.push(listed.dir);
        stack.extend(listed.children.iter().rev());
    }
    for entry in &mut listing.entries {
        entry.dir = numbers[entry.dir as usize];
    }
    listing.shrink();
    listing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_was_given_twice_counts_once() {
        let entry = |ino, name: &[u8]| Name {
            ino,
            kind: Kind::File,
            name: name.into(),
        };
        let mut names = vec![entry(1, b"a"), entry(2, b"b"), entry(1, b"a")];
        let mut children: Vec<(u64, Box<[u8]>)> = vec![
            (3, b"c"[..].into()),
            (3, b"c"[..].into()),
            (4, b"b"[..].into()),
        ];
        keep_once(&mut names, &mut children);
        let names: Vec<_> = names.iter().map(|entry| &entry.name[..]).collect();
        assert_eq!(names, [b"a", b"b"]);
        assert_eq!(children, [(3, b"c"[..].into())]);
    }
}
