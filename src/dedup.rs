//! Files of the same content become one: hard links where a shared inode is
//! right for both names, shared extents where it is not.
//!
//! A digest (XXH3-128, not cryptographic) only finds the candidate; before
//! anything is shared the bytes are compared. The [`Table`] is asked before a
//! file is written and told when it has arrived; who comes while its first twin
//! is still being written waits for it. [`join`] compares and links, [`rest`]
//! looks after the files that were there before, and [`tree`] does the same in
//! a tree that nobody is copying to.

pub(crate) mod join;
pub(crate) mod rest;
pub(crate) mod tree;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};

use xxhash_rust::xxh3::xxh3_128;

use crate::job::{Dedup, DedupIgnore, Options};
use crate::plan::Dir;
use crate::sys::metadata::{Stat, Time};
use crate::sys::xattrs::{self, Xattrs};
use crate::work::run::lock;

/// What two names of one inode have in common besides the content; `None` where
/// it does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Likeness {
    mode: Option<u32>,
    owner: Option<(u32, u32)>,
    mtime: Option<Time>,
    xattrs: Option<u128>,
}

impl Likeness {
    /// Of a file that shall have this metadata.
    pub(crate) fn new(options: &Options, stat: &Stat, xattrs: &Xattrs) -> Likeness {
        // Shared extents leave each file its own inode.
        let counts = options.dedup != Dedup::Reflink;
        let ignore = options.dedup_ignore;
        Likeness {
            mode: (counts && !ignore.mode).then(|| stat.permissions()),
            owner: (counts && !ignore.owner).then_some((stat.uid, stat.gid)),
            mtime: (counts && !ignore.time).then_some(stat.mtime),
            xattrs: (counts && !ignore.xattr).then(|| digest_of(xattrs)),
        }
    }
}

fn digest_of(xattrs: &Xattrs) -> u128 {
    let mut all = Vec::new();
    for (name, value) in xattrs.iter().filter(|(name, _)| !xattrs::is_local(name)) {
        let name = name.as_encoded_bytes();
        for part in [name, value] {
            all.extend_from_slice(&(part.len() as u64).to_le_bytes());
            all.extend_from_slice(part);
        }
    }
    xxh3_128(&all)
}

/// Size in bytes and digest of a content.
pub(crate) type Content = (u64, u128);

/// A file at the destination that others can be joined with.
#[derive(Debug)]
pub(crate) struct Twin {
    pub(crate) dir: Arc<Dir>,
    /// Its name at the destination.
    pub(crate) name: Box<[u8]>,
}

#[derive(Debug)]
enum State {
    /// Somebody writes it.
    Pending,
    There(Arc<Twin>),
}

type Slots = Vec<(Likeness, State)>;

/// Most contents are there once: the room for four that a vector begins with is
/// 300 bytes a file too many.
fn push(slots: &mut Slots, like: Likeness, state: State) {
    slots.reserve_exact(1);
    slots.push((like, state));
}

/// What is known of the contents that are at the destination.
#[derive(Debug, Default)]
pub(crate) struct Table {
    contents: Mutex<HashMap<Content, Slots>>,
    changed: Condvar,
    /// Files that were there before this run: see [`rest`].
    kept: Mutex<Vec<rest::Kept>>,
    /// The destination has answered that it cannot share extents.
    cannot_share: AtomicBool,
}

/// The answer of [`Table::claim`].
#[derive(Debug)]
pub(crate) enum Claim {
    /// There is one that is alike.
    Twin(Arc<Twin>),
    /// There is none: the caller writes the file and says how that ended
    /// ([`Table::settle`]). What has the same content and other metadata, if
    /// anything, can lend its extents.
    First(Option<Arc<Twin>>),
}

impl Table {
    /// Asks for a twin; waits while one is being written.
    pub(crate) fn claim(&self, content: Content, like: Likeness) -> Claim {
        let mut contents = lock(&self.contents);
        loop {
            let slots = contents.entry(content).or_default();
            let mut other = None;
            let mut wait = false;
            for (likeness, state) in slots.iter() {
                match state {
                    State::There(twin) if *likeness == like => return Claim::Twin(twin.clone()),
                    State::There(twin) => other = Some(twin.clone()),
                    State::Pending => wait |= *likeness == like || self.can_share(),
                }
            }
            if !wait || (other.is_some() && !slots.iter().any(|(l, _)| *l == like)) {
                push(slots, like, State::Pending);
                return Claim::First(other);
            }
            contents = self
                .changed
                .wait(contents)
                .unwrap_or_else(|e| e.into_inner());
        }
    }

    /// Says how the writing of a claimed content ended.
    pub(crate) fn settle(&self, content: Content, like: Likeness, twin: Option<Twin>) {
        let mut contents = lock(&self.contents);
        if let Some(slots) = contents.get_mut(&content) {
            slots.retain(|(l, state)| *l != like || !matches!(state, State::Pending));
            let is_known = slots.iter().any(|(l, _)| *l == like);
            if let Some(twin) = twin.filter(|_| !is_known) {
                push(slots, like, State::There(Arc::new(twin)));
            }
        }
        drop(contents);
        self.changed.notify_all();
    }

    /// Takes the place of a twin that can have no more names, or is not what
    /// it was: the caller writes the file, as after [`Claim::First`].
    pub(crate) fn replace(&self, content: Content, like: Likeness, gone: &Arc<Twin>) -> Claim {
        let mut contents = lock(&self.contents);
        if let Some(slots) = contents.get_mut(&content) {
            slots.retain(
                |(_, state)| !matches!(state, State::There(twin) if Arc::ptr_eq(twin, gone)),
            );
        }
        drop(contents);
        self.claim(content, like)
    }

    /// Takes in a file that is there; gives the twin that was there before it.
    pub(crate) fn add(&self, content: Content, like: Likeness, twin: Twin) -> Option<Arc<Twin>> {
        let mut contents = lock(&self.contents);
        let slots = contents.entry(content).or_default();
        for (likeness, state) in slots.iter() {
            if let (true, State::There(twin)) = (*likeness == like, state) {
                return Some(twin.clone());
            }
        }
        push(slots, like, State::There(Arc::new(twin)));
        None
    }

    /// Takes in a file in place of a twin that can have no more names.
    pub(crate) fn instead(&self, content: Content, like: Likeness, gone: &Arc<Twin>, twin: Twin) {
        let mut contents = lock(&self.contents);
        let slots = contents.entry(content).or_default();
        slots.retain(|(_, state)| !matches!(state, State::There(twin) if Arc::ptr_eq(twin, gone)));
        push(slots, like, State::There(Arc::new(twin)));
    }

    /// Sizes and metadata of everything that is there.
    fn likes(&self) -> HashSet<(u64, Likeness)> {
        let contents = lock(&self.contents);
        let all = contents.iter().flat_map(|(content, slots)| {
            let size = content.0;
            slots.iter().map(move |(like, _)| (size, *like))
        });
        all.collect()
    }

    pub(crate) fn can_share(&self) -> bool {
        !self.cannot_share.load(Relaxed)
    }

    pub(crate) fn no_sharing(&self) {
        self.cannot_share.store(true, Relaxed);
    }
}

/// Names what `--dedup-ignore` lets differ.
pub(crate) fn ignored(ignore: DedupIgnore) -> String {
    let all = [
        (ignore.time, "mtime"),
        (ignore.mode, "mode"),
        (ignore.owner, "owner"),
        (ignore.xattr, "attributes"),
    ];
    let names: Vec<_> = all
        .iter()
        .filter(|(is, _)| *is)
        .map(|(_, name)| *name)
        .collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn like(mode: u32) -> Likeness {
        let stat = Stat {
            mode,
            ..Stat::default()
        };
        Likeness::new(&Options::default(), &stat, &Xattrs::new())
    }

    fn twin(name: &[u8]) -> Twin {
        Twin {
            dir: crate::plan::sample_dir(),
            name: name.into(),
        }
    }

    #[test]
    fn who_comes_while_the_first_is_written_waits_for_it() {
        let table = Table::default();
        assert!(matches!(
            table.claim((5, 1), like(0o644)),
            Claim::First(None)
        ));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| table.claim((5, 1), like(0o644)));
            table.settle((5, 1), like(0o644), Some(twin(b"a")));
            match second.join().unwrap() {
                Claim::Twin(twin) => assert_eq!(&*twin.name, b"a"),
                Claim::First(_) => panic!("it did not wait"),
            }
        });
    }

    #[test]
    fn other_metadata_lends_extents_only() {
        let table = Table::default();
        table.add((5, 1), like(0o644), twin(b"a"));
        match table.claim((5, 1), like(0o600)) {
            Claim::First(Some(other)) => assert_eq!(&*other.name, b"a"),
            claim => panic!("{claim:?}"),
        }
        assert!(matches!(
            table.claim((6, 1), like(0o644)),
            Claim::First(None)
        ));
    }

    #[test]
    fn one_that_failed_leaves_its_place_to_the_next() {
        let table = Table::default();
        assert!(matches!(table.claim((5, 1), like(1)), Claim::First(None)));
        table.settle((5, 1), like(1), None);
        assert!(matches!(table.claim((5, 1), like(1)), Claim::First(None)));
    }

    #[test]
    fn a_full_twin_is_replaced_once() {
        let table = Table::default();
        table.add((5, 1), like(1), twin(b"full"));
        let Claim::Twin(full) = table.claim((5, 1), like(1)) else {
            panic!()
        };
        assert!(matches!(
            table.replace((5, 1), like(1), &full),
            Claim::First(None)
        ));
        table.settle((5, 1), like(1), Some(twin(b"new")));
        // Another thread that met the full one too finds the new one.
        match table.replace((5, 1), like(1), &full) {
            Claim::Twin(twin) => assert_eq!(&*twin.name, b"new"),
            claim => panic!("{claim:?}"),
        }
    }

    #[test]
    fn what_is_ignored_does_not_tell_files_apart() {
        let mut options = Options::default();
        let stat = |mode, s| Stat {
            mode,
            mtime: Time { s, ns: 0 },
            ..Stat::default()
        };
        let none = Xattrs::new();
        let of = |options: &Options, stat: &Stat| Likeness::new(options, stat, &none);
        assert_ne!(of(&options, &stat(1, 1)), of(&options, &stat(1, 2)));
        options.dedup_ignore.time = true;
        assert_eq!(of(&options, &stat(1, 1)), of(&options, &stat(1, 2)));
        assert_ne!(of(&options, &stat(1, 1)), of(&options, &stat(2, 1)));
        assert_eq!(ignored(options.dedup_ignore), "mtime");
    }
}
