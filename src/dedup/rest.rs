//! The files that were at the destination before: kept ones can be twins of new
//! ones, and of each other since their metadata became equal.
//!
//! Nothing is read of them unless two could be one: same size, same metadata,
//! different inodes. What the cache knows is not read either.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::join::{self, Bytes, Under, Wanted};
use super::{Likeness, Table, Twin};
use crate::error::{During, Failure, Op};
use crate::plan::Dir;
use crate::sys::beneath;
use crate::sys::metadata::Stat;
use crate::sys::xattrs::Xattrs;
use crate::verify::digest::read_digest;
use crate::work::run::{Run, lock};
use crate::work::spot::Spot;

/// A file that was there, and is as it should be.
#[derive(Debug)]
pub(crate) struct Kept {
    dir: Arc<Dir>,
    /// Its name at the destination.
    name: Box<[u8]>,
    /// As the source has it.
    stat: Stat,
    xattrs: Xattrs,
    ino: u64,
    /// Of its content, where the cache knows it.
    digest: Option<u128>,
}

impl Table {
    /// Takes note of a file that was kept.
    pub(crate) fn keep(
        &self,
        spot: &Spot<'_>,
        stat: &Stat,
        xattrs: &Xattrs,
        ino: u64,
        digest: Option<u128>,
    ) {
        if stat.size == 0 {
            return;
        }
        let twin = || Twin {
            dir: spot.dir.clone(),
            name: spot.name.into(),
        };
        if let Some(digest) = digest {
            let like = Likeness::new(spot.run.options, stat, xattrs);
            if self.add((stat.size, digest), like, twin()).is_none() {
                return;
            }
        }
        lock(&self.kept).push(Kept {
            dir: spot.dir.clone(),
            name: spot.name.into(),
            stat: *stat,
            xattrs: xattrs.clone(),
            ino,
            digest,
        });
    }
}

/// Joins kept files with each other and with what is new.
pub(crate) fn join_kept(run: &Run<'_>, table: &Table) {
    let mut groups: HashMap<(u64, Likeness), Vec<Kept>> = HashMap::new();
    for kept in std::mem::take(&mut *lock(&table.kept)) {
        let like = Likeness::new(run.options, &kept.stat, &kept.xattrs);
        groups.entry((kept.stat.size, like)).or_default().push(kept);
    }
    if groups.is_empty() {
        return;
    }
    let others = table.likes();
    for ((size, like), group) in groups {
        let one_inode = group.iter().all(|kept| kept.ino == group[0].ino);
        if one_inode && !others.contains(&(size, like)) {
            continue;
        }
        for kept in group {
            if run.is_stopped() {
                return;
            }
            if let Err(failure) = join_one(run, table, like, &kept) {
                run.failed(failure);
            }
        }
    }
}

fn join_one(run: &Run<'_>, table: &Table, like: Likeness, kept: &Kept) -> Result<(), Failure> {
    let fd = run.dest.dir_for(&kept.dir, &kept.name)?;
    let spot = Spot {
        run,
        dir: kept.dir.clone(),
        fd: &fd,
        name: &kept.name,
    };
    let file = beneath::open_file(fd.as_fd(), &kept.name).during_at(Op::Verify, || spot.path())?;
    let there = Stat::of(&file).during_at(Op::Verify, || spot.path())?;
    if there.ino != kept.ino || there.size != kept.stat.size {
        // Somebody else is at work here: not ours to join.
        return Ok(());
    }
    let digest = match kept.digest {
        Some(digest) => digest,
        None => {
            let digest = read_digest(&file, there.size, &mut Vec::new());
            digest.during_at(Op::Verify, || spot.path())?
        }
    };
    let wanted = Wanted {
        bytes: Bytes::File(&file, there.size),
        digest,
        stat: &kept.stat,
        xattrs: &kept.xattrs,
        saves: true,
    };
    let twin = || Twin {
        dir: kept.dir.clone(),
        name: kept.name.clone(),
    };
    if let Some(first) = table.add(wanted.content(), like, twin()) {
        spot.unclaim(&there);
        match join::link(&spot, &first, &wanted, Under::Itself)? {
            Some((_, failures)) => failures.into_iter().for_each(|f| run.failed(f)),
            None => table.instead(wanted.content(), like, &first, twin()),
        }
    }
    Ok(())
}
