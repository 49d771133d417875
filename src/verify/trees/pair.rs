//! One entry beside its counterpart: kind, metadata, links and holes.

use std::collections::HashMap;
use std::path::PathBuf;

use nix::fcntl::OFlag;

use super::{Comparison, Side, relative};
use crate::error::{During, Failure, Op};
use crate::plan::{Action, Dir, Entry, Kind};
use crate::report::{Note, Outcome};
use crate::sys::metadata::Stat;
use crate::sys::xattrs::{self, Place};
use crate::sys::{special, transfer};
use crate::verify::file::filled;

/// Which inode of the copy stands for which of the source, and back.
#[derive(Default)]
pub(super) struct Groups {
    there: HashMap<(u64, u64), (u64, u64)>,
    back: HashMap<(u64, u64), (u64, u64)>,
}

impl Groups {
    /// Whether two names that are one inode here are one there, and no others.
    fn agree(&mut self, ours: &Stat, theirs: &Stat) -> bool {
        let (a, b) = ((ours.dev, ours.ino), (theirs.dev, theirs.ino));
        let there = ours.links < 2 || *self.there.entry(a).or_insert(b) == b;
        let back = theirs.links < 2 || *self.back.entry(b).or_insert(a) == a;
        there && back
    }
}

impl Comparison<'_> {
    pub(super) fn pair_dirs(&self, ours: &Dir, theirs: &Dir) {
        let path = theirs.path_of(b"");
        let mut wrong = differences(&ours.stat, &theirs.stat);
        let local = |name: &&(std::ffi::OsString, Vec<u8>)| !xattrs::is_local(&name.0);
        if !ours
            .xattrs
            .iter()
            .filter(local)
            .eq(theirs.xattrs.iter().filter(local))
        {
            wrong.push("its attributes differ".into());
        }
        let incomplete = ours.is_incomplete || theirs.is_incomplete;
        self.settle(wrong, &path, ours.path_of(b""), incomplete);
    }

    /// Compares everything but content; `true` where that is to be compared
    /// yet, and decides.
    pub(super) fn pair_entries(&self, ours: &Entry, theirs: &Entry, groups: &mut Groups) -> bool {
        let our_path = self.source.scanned.listing.path(ours);
        let path = self.copy.scanned.listing.path(theirs);
        // Could not be looked at: its failure is there already.
        if ours.action == Action::Fail || theirs.action == Action::Fail {
            self.counters.count(Outcome::Failed, || our_path);
            return false;
        }
        match self.look(ours, theirs, groups) {
            Ok(wrong) if wrong.is_empty() && ours.kind == Kind::File => {
                self.note_holes(ours, theirs);
                true
            }
            Ok(wrong) => {
                // Wrong content is worth more than wrong metadata: if both are
                // wrong, both are said.
                if ours.kind == Kind::File && theirs.kind == Kind::File && ours.size != theirs.size
                {
                    let why = format!("its size is {}, not {}", theirs.size, ours.size);
                    self.fail(Failure::because(Op::Verify, &path, why));
                }
                let is_file = ours.kind == Kind::File
                    && theirs.kind == Kind::File
                    && ours.size == theirs.size;
                if is_file && !self.same_bytes(ours, theirs) {
                    self.fail(Failure::because(
                        Op::Verify,
                        &path,
                        "its content differs from the source's",
                    ));
                }
                self.settle(wrong, &path, our_path, false);
                false
            }
            Err(failure) => {
                self.different(failure, our_path);
                false
            }
        }
    }

    fn settle(&self, wrong: Vec<String>, path: &std::path::Path, ours: PathBuf, failed: bool) {
        let outcome = if wrong.is_empty() && !failed {
            Outcome::Unchanged
        } else {
            Outcome::Failed
        };
        for why in wrong {
            self.fail(Failure::because(Op::Compare, path, why));
        }
        self.counters.count(outcome, || ours);
    }

    fn look(
        &self,
        ours: &Entry,
        theirs: &Entry,
        groups: &mut Groups,
    ) -> Result<Vec<String>, Failure> {
        let (a, b) = (At::open(self.source, ours)?, At::open(self.copy, theirs)?);
        let mut wrong = differences(&a.stat, &b.stat);
        if !groups.agree(&a.stat, &b.stat) {
            wrong.push("its hard links are others than the source's".into());
        }
        let attributes = |at: &At| -> Result<Vec<_>, Failure> {
            let read = Place::name(&at.dir, &at.name)
                .read()
                .during(Op::Compare, &at.path)?;
            Ok(read
                .into_iter()
                .filter(|(name, _)| !xattrs::is_local(name))
                .collect())
        };
        let (our_attributes, their_attributes) = (attributes(&a)?, attributes(&b)?);
        for (name, value) in &our_attributes {
            match their_attributes.iter().find(|(n, _)| n == name) {
                Some((_, v)) if v == value => {}
                Some(_) => wrong.push(format!("its attribute {} differs", name.display())),
                None => wrong.push(format!("its attribute {} is missing", name.display())),
            }
        }
        for (name, _) in &their_attributes {
            if !our_attributes.iter().any(|(n, _)| n == name) {
                wrong.push(format!("the source has no attribute {}", name.display()));
            }
        }
        if ours.kind == Kind::Symlink && theirs.kind == Kind::Symlink {
            let text =
                |at: &At| special::read_link(&at.dir, &at.name).during(Op::Compare, &at.path);
            if text(&a)? != text(&b)? {
                wrong.push("it points elsewhere".into());
            }
        }
        Ok(wrong)
    }

    /// A hole and a block of zeros read the same, so this is no failure; but
    /// it takes room, so it is said.
    fn note_holes(&self, ours: &Entry, theirs: &Entry) {
        let ranges = |side: &Side, entry: &Entry| -> std::io::Result<(Vec<_>, Stat)> {
            let path = relative(&side.scanned.listing, entry);
            let file = side.scanned.listing.dir(entry).source.root.file(&path)?;
            let stat = Stat::of(&file)?;
            Ok((transfer::data_ranges(&file, stat.size)?, stat))
        };
        // More blocks than the source has are the sign; what cannot be opened
        // here fails when its content is read.
        if theirs.allocated <= ours.allocated {
            return;
        }
        let (Ok((wanted, _)), Ok((found, stat))) =
            (ranges(self.source, ours), ranges(self.copy, theirs))
        else {
            return;
        };
        let bytes = filled(&wanted, &found, &stat);
        if bytes > 0 {
            let path = self.copy.scanned.listing.path(theirs);
            let text = format!(
                "holes of \"{}\" became data: {bytes} bytes of zeros",
                path.display()
            );
            self.notes
                .lock()
                .unwrap_or_else(|e| e.into_inner())
                .push(Note { count: 1, text });
        }
    }

    /// Compares two files right away.
    fn same_bytes(&self, ours: &Entry, theirs: &Entry) -> bool {
        let digest = |side: &Side, entry: &Entry| -> std::io::Result<u128> {
            let path = relative(&side.scanned.listing, entry);
            let file = side.scanned.listing.dir(entry).source.root.file(&path)?;
            if !self.cached {
                crate::sys::advise::drop_cached(&file, 0, 0);
            }
            crate::verify::digest::content_digest(&file, entry.size, &mut Vec::new())
        };
        let (a, b) = (digest(self.source, ours), digest(self.copy, theirs));
        let same = matches!((&a, &b), (Ok(a), Ok(b)) if a == b);
        for (side, entry, result) in [(self.source, ours, a), (self.copy, theirs, b)] {
            match result {
                Ok(_) => {}
                Err(e) => self.fail(Failure::new(Op::Read, side.scanned.listing.path(entry), e)),
            }
        }
        same
    }
}

/// An entry, in its opened directory.
struct At {
    dir: std::os::fd::OwnedFd,
    name: Vec<u8>,
    path: PathBuf,
    stat: Stat,
}

impl At {
    fn open(side: &Side, entry: &Entry) -> Result<At, Failure> {
        let listing = &side.scanned.listing;
        let path = listing.path(entry);
        let holder = listing.dir(entry);
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let dir = holder
            .source
            .root
            .at(&holder.relative(), flags)
            .during(Op::Compare, &path)?;
        let name = listing.name(entry).to_vec();
        let stat = Stat::at(&dir, &name).during(Op::Compare, &path)?;
        Ok(At {
            dir,
            name,
            path,
            stat,
        })
    }
}

fn differences(ours: &Stat, theirs: &Stat) -> Vec<String> {
    let mut wrong = Vec::new();
    let (our_kind, kind) = (ours.kind(), theirs.kind());
    if our_kind != kind {
        return vec![format!(
            "it is a {}, not a {}",
            kind.name(),
            our_kind.name()
        )];
    }
    if ours.permissions() != theirs.permissions() && kind != Kind::Symlink {
        wrong.push(format!(
            "its mode is {:04o}, not {:04o}",
            theirs.permissions(),
            ours.permissions()
        ));
    }
    if (ours.uid, ours.gid) != (theirs.uid, theirs.gid) {
        let (a, b) = ((theirs.uid, theirs.gid), (ours.uid, ours.gid));
        wrong.push(format!("its owner is {}:{}, not {}:{}", a.0, a.1, b.0, b.1));
    }
    if ours.mtime != theirs.mtime {
        let (a, b) = (theirs.mtime, ours.mtime);
        wrong.push(format!(
            "its mtime is {}.{:09}, not {}.{:09}",
            a.s, a.ns, b.s, b.ns
        ));
    }
    if ours.rdev != theirs.rdev && matches!(kind, Kind::CharDevice | Kind::BlockDevice) {
        wrong.push("its device number differs".into());
    }
    wrong
}
