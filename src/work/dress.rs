//! Metadata of what is complete, set in the only order that works.

use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;

use super::spot::Spot;
use crate::error::Failure;
use crate::error::Op;
use crate::plan::Kind;
use crate::sys::metadata::{Owner, Stat, Target, Time, UNFINISHED};
use crate::sys::xattrs::{self, Place, Xattrs};

impl Spot<'_> {
    /// Takes the source's mtime from a copy that is known to be wrong, and
    /// marks it, so that no later run takes it for finished.
    pub(crate) fn disown(&self, stat: &Stat, failures: &mut Vec<Failure>) {
        let target = Target::Name(self.fd, self.name);
        let disown = || {
            target.set_times(stat.atime, Time::now())?;
            if stat.kind() == Kind::File {
                let mode = target.stat()?.permissions();
                target.set_permissions(mode | UNFINISHED)?;
            }
            Ok(())
        };
        if let Err(e) = disown() {
            failures.push(Failure::new(Op::SetMetadata, self.path(), e));
        }
    }

    /// Gives metadata to what is complete, in the only order that works: the
    /// owner first, since changing it clears setuid bits and capabilities;
    /// then attributes, times, and last the mode: with it goes the mark of
    /// what is unfinished.
    ///
    /// `clean`: there are surely no attributes yet that would have to go. What
    /// cannot be set is told and does not keep the rest from being set.
    pub(crate) fn dress<Fd: AsFd>(
        &self,
        target: &Target<'_, Fd>,
        place: &Place<'_>,
        stat: &Stat,
        xattrs: &Xattrs,
        clean: bool,
    ) -> Result<Vec<Failure>, Failure> {
        let mut failures = Vec::new();
        let step = |e: io::Error| Failure::new(Op::SetMetadata, self.path(), e);
        let have = target.stat().map_err(step)?;
        let owner = target.set_owner(stat, &have).unwrap_or_else(|e| {
            failures.push(step(e));
            Owner {
                uid: have.uid == stat.uid,
                gid: have.gid == stat.gid,
            }
        });
        if !owner.is_kept() && failures.is_empty() {
            if self.run.dest.is_user() {
                self.run.note_owner(|| self.path());
            } else {
                failures.push(step(Errno::EPERM.into()));
            }
        }
        if !xattrs.is_empty() || !clean {
            if self.run.dest.is_user() && stat.kind() != Kind::Symlink && have.mode & 0o200 == 0 {
                // Attributes of the user's own need the right to write, which
                // goes again with the mode below.
                target
                    .set_permissions(have.permissions() | 0o200)
                    .map_err(step)?;
            }
            failures.extend(self.set_xattrs(place, xattrs, clean));
        }
        if let Err(e) = target.set_times(stat.atime, stat.mtime) {
            failures.push(step(e));
        }
        if stat.kind() != Kind::Symlink
            && let Err(e) = target.set_permissions(owner.permissions(stat))
        {
            failures.push(step(e));
        }
        Ok(failures)
    }

    /// Makes attributes equal; those that only root may set are noted.
    fn set_xattrs(&self, place: &Place<'_>, want: &Xattrs, clean: bool) -> Vec<Failure> {
        let mut failures = Vec::new();
        for (name, error) in place.make_equal(want, clean) {
            let denied = error.raw_os_error() == Some(Errno::EPERM as i32);
            if denied && self.run.dest.is_user() && xattrs::is_privileged(&name) {
                self.run.note_xattr(|| self.path());
                continue;
            }
            let failure = Failure::new(Op::SetMetadata, self.path(), error);
            failures.push(failure.detail(format!("attribute {}", name.display())));
        }
        failures
    }
}
