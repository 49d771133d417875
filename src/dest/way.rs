//! With `--delete`, what is no directory makes way for one of a source.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;

use nix::errno::Errno;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::{Dest, made};
use crate::backup::Old;
use crate::plan::Dir;

impl Dest {
    /// Whether what is in the way of a directory may go: nothing that another
    /// entry of the sources can be.
    pub(super) fn may_give_way(&self, dir: &Dir) -> bool {
        let parent = dir.parent.as_deref().and_then(made);
        let is_ours = parent.is_none_or(|made| made.fresh || made.taken.is_some());
        self.gives_way && !is_ours && (self.ignore_errors || !self.spoiled.load(Relaxed))
    }

    /// Removes a name that is no directory, so that one can be made.
    pub(super) fn make_way(&self, dir: &Dir, parent: &OwnedFd, name: &[u8]) -> io::Result<()> {
        // Held to the end: no two may take the last that --max-delete allows.
        let mut cleared = self.cleared.lock().unwrap_or_else(|e| e.into_inner());
        let count = cleared.len() as u64;
        if self.max_delete.is_some_and(|most| count >= most) {
            return Err(Errno::ENOTDIR.into());
        }
        let mut old = Old::Nothing;
        if let (Some(backups), Some(above)) = (&self.backups, &dir.parent) {
            if backups
                .name_beside(name)
                .is_some_and(|n| above.has_name(&n))
            {
                return Err(Errno::EEXIST.into());
            }
            old = backups.keep(&self.root, parent, &above.relative_dest(), name)?;
        }
        if old != Old::Moved {
            unlinkat(parent, name, UnlinkatFlags::NoRemoveDir)?;
        }
        cleared.push(dir.dest_path_of(&self.path, b""));
        Ok(())
    }
}
