//! Files whose extents the destination can share (reflinks, ioctl_ficlone(2)),
//! or that the kernel can copy by itself where nobody needs to see the bytes.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Reader;
use crate::error::{During, Failure, Op};
use crate::report::Outcome;
use crate::sys::metadata::Stat;
use crate::sys::transfer::{self, Shared};
use crate::sys::xattrs::Place;
use crate::verify::file as check;
use crate::work::spot::Spot;
use crate::work::write::{after_writing, settle};

impl Reader<'_, '_> {
    /// Copies by sharing extents; `false` where these two filesystems cannot,
    /// or this file has nothing to share.
    pub(super) fn share(
        &mut self,
        entry: u32,
        file: &Arc<File>,
        stat: &Stat,
    ) -> Result<bool, Failure> {
        let run = self.run;
        if !run.dest.can_share(stat.dev, file) {
            return Ok(false);
        }
        if run.options.checksum && self.is_kept(entry, file, stat)? {
            return Ok(true);
        }
        let it = &self.listing.entries[entry as usize];
        let (dir, name) = (self.listing.dir(it), self.listing.name(it));
        let xattrs = Place::Open(file)
            .read()
            .during_at(Op::Read, || self.path(entry))?;
        let fd = run.dest.dir_for(dir, name)?;
        let spot = Spot {
            run,
            dir: dir.clone(),
            fd: &fd,
            name: dir.dest_name(name),
        };
        let part = spot.create(stat)?;
        match transfer::share(file, &part.file).during_at(Op::Write, || spot.path()) {
            Ok(Shared::Yes) => {}
            // This file cannot (another extent size, no copy-on-write): the
            // next may.
            Ok(Shared::NotThis | Shared::NotHere) => return part.discard(&spot).map(|()| false),
            Err(failure) => {
                part.discard(&spot)?;
                return Err(failure);
            }
        }
        // A clone is the file at one moment; its metadata must be that moment's.
        let now = Stat::of(file).during_at(Op::Stat, || self.path(entry))?;
        if !stat.held_still(&now) {
            return part.discard(&spot).map(|()| false);
        }
        run.mark(entry);
        let written = part.finish(&spot, stat, &xattrs).and_then(|failures| {
            let expect = check::Expect {
                file: Some(&part.file),
                ..check::Expect::metadata(stat, &xattrs)
            };
            after_writing(&spot, &expect, failures, &mut Vec::new())
        });
        if matches!(&written, Ok((Outcome::Copied, failures)) if failures.is_empty()) {
            run.counters.reflinked.fetch_add(1, Relaxed);
            let shared = stat.size.min(stat.allocated);
            run.counters.written_bytes.fetch_add(shared, Relaxed);
        }
        settle(run, dir, name, stat, written, None);
        Ok(true)
    }
}
