//! What is never removed, whatever the sources have: excluded names, backups,
//! and the directories that this job reads or keeps things in.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::backup::Backups;
use crate::dest::{Dest, DirRef};
use crate::job::Options;
use crate::sys::beneath::Root;
use crate::sys::metadata::Stat;

/// See the module.
pub(super) struct Keeps<'a> {
    options: &'a Options,
    suffix: Option<&'a OsStr>,
    backups: Option<&'a Backups>,
    /// Source directories: one of them in the destination is in the way.
    sources: Vec<(u64, u64)>,
    /// Directories of backups and of earlier copies.
    others: Vec<(u64, u64)>,
}

/// Why a directory stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stays {
    /// It is one that the job is told to use.
    Quietly,
    /// It is read by this very job.
    IsSource,
}

impl<'a> Keeps<'a> {
    pub(super) fn new(options: &'a Options, dest: &'a Dest, dirs: &[DirRef]) -> Keeps<'a> {
        let roots = dirs.iter().filter(|dir| dir.parent.is_none());
        let backup = options.backup.as_ref();
        let dir = backup.and_then(|backup| backup.dir.as_deref());
        let suffix = backup.filter(|b| b.dir.is_none() && !b.suffix.is_empty());
        let used = dir
            .into_iter()
            .chain(options.link_dest.iter().map(|d| d.as_path()));
        Keeps {
            options,
            backups: dest.backups.as_ref(),
            suffix: suffix.map(|backup| backup.suffix.as_os_str()),
            sources: roots.map(|dir| (dir.stat.dev, dir.stat.ino)).collect(),
            // One that is not there is nowhere in the way.
            others: used.filter_map(|path| inode(&dest.path, path)).collect(),
        }
    }

    /// Whether a name of the destination stays as it is.
    pub(super) fn name(&self, path: &[u8], is_dir: bool) -> bool {
        let is_backup = |suffix: &OsStr| path.ends_with(suffix.as_bytes());
        self.suffix.is_some_and(is_backup) || self.options.filter.protects(path, is_dir)
    }

    /// Whether what is removed keeps a name in its own directory.
    pub(super) fn backups_beside(&self) -> bool {
        self.suffix.is_some()
    }

    /// Whether an opened directory stays.
    pub(super) fn dir(&self, stat: &Stat) -> Option<Stays> {
        let inode = (stat.dev, stat.ino);
        if self.sources.contains(&inode) {
            Some(Stays::IsSource)
        } else {
            // A directory of backups may have been made just now.
            let is_backups = self.backups.is_some_and(|backups| backups.is_dir(stat));
            (is_backups || self.others.contains(&inode)).then_some(Stays::Quietly)
        }
    }
}

fn inode(dest: &Path, path: &Path) -> Option<(u64, u64)> {
    let stat = Root::open(&dest.join(path)).and_then(Stat::of).ok()?;
    Some((stat.dev, stat.ino))
}
