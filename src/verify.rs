//! Proof: what was written is read back and compared with the digest of what
//! was read.
//!
//! [`file`] looks at one entry as soon as it is written. [`medium`] reads many
//! files from the medium itself, in its order: for `--verify` (durable) after
//! everything was flushed, and for comparing two trees ([`trees`]).

pub(crate) mod digest;
pub(crate) mod file;
pub(crate) mod medium;
pub(crate) mod trees;

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering::Relaxed;

use crate::error::{Failure, Op};
use crate::plan::LARGE_BYTES;
use crate::plan::choose::Choices;
use crate::report::Outcome;
use crate::sys::beneath;
use crate::sys::metadata::Stat;
use crate::work::run::{Copied, Run, lock};
use crate::work::spot::Spot;
use digest::{Digest, digest_like};
use medium::Found;

/// Reads every copied file back from the medium. They must have been flushed.
pub(crate) fn durable(run: &Run<'_>, choices: &Choices) {
    let copied = std::mem::take(&mut *lock(&run.copied));
    let open = |i: usize| {
        let it: &Copied = &copied[i];
        run.dest
            .root
            .file(&beneath::join([&it.dir.relative_dest()[..], &it.name]))
    };
    let each = |i: usize, found: io::Result<Found>| {
        let it = &copied[i];
        if let (Ok(found), Some(Digest::Plain(digest))) = (&found, &it.digest) {
            learn(run, it, found, *digest);
        }
        let wrong = match found {
            Ok(found) if found.size != it.size => Some(io::Error::other("its size is another now")),
            Ok(found)
                if it
                    .digest
                    .as_ref()
                    .is_some_and(|it| it.value() != found.digest) =>
            {
                Some(io::Error::other(file::WRONG_CONTENT))
            }
            Ok(_) => None,
            Err(e) => Some(e),
        };
        match wrong {
            None => {
                run.counters.verified_files.fetch_add(1, Relaxed);
                run.counters.verified_bytes.fetch_add(it.size, Relaxed);
            }
            Some(e) => {
                let path = it.dir.dest_path_of(&run.dest.path, &it.name);
                run.failed(Failure::new(Op::Verify, path, e));
                disown(run, it);
                run.counters.recount(Outcome::Copied, Outcome::Failed);
                run.counters.copied_files.fetch_sub(1, Relaxed);
            }
        }
    };
    let digest = |i: usize, file: &File, size: u64, scratch: &mut Vec<u8>| {
        let it = &copied[i];
        // Of shared extents there is none: they are read, and that is all.
        let like = it.digest.as_ref().unwrap_or(&Digest::Plain(0));
        digest_like(like, file, size, it.ranges.as_deref(), scratch)
    };
    let files = medium::Files {
        count: copied.len(),
        open: &open,
        places: None,
        digest: &digest,
        each: &each,
        is_stopped: &|| run.is_interrupted(),
        drop_cached: true,
    };
    medium::read(&files, choices);
}

/// Remembers what was read from the medium and found right.
fn learn(run: &Run<'_>, it: &Copied, found: &Found, digest: u128) {
    let is_plain = it.ranges.is_none() || it.size <= LARGE_BYTES;
    let is_right = found.digest == digest && found.size == it.size && is_plain;
    if run.cache.is_none() || !is_right {
        return;
    }
    // A directory that is gone has nothing to be remembered.
    if let Ok(fd) = run.dest.root.dir(&it.dir.relative_dest()) {
        let spot = Spot {
            run,
            dir: it.dir.clone(),
            fd: &fd,
            name: &it.name,
        };
        spot.learn(&found.stat, digest);
    }
}

/// See [`Spot::disown`].
fn disown(run: &Run<'_>, it: &Copied) {
    let mut failures = Vec::new();
    match run.dest.dir(&it.dir) {
        Ok(fd) => {
            let spot = Spot {
                run,
                dir: it.dir.clone(),
                fd: &fd,
                name: &it.name,
            };
            match Stat::at(&fd, &it.name) {
                Ok(stat) => spot.disown(&stat, &mut failures),
                Err(e) => failures.push(Failure::new(Op::SetMetadata, spot.path(), e)),
            }
        }
        Err(failure) => failures.push(failure),
    }
    for failure in failures {
        run.failed(failure);
    }
}
