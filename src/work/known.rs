//! What the cache across runs knows of the files of this run, and is told.
//!
//! Only digests of whole contents go into it, holes read as the zeros that they
//! are: two files of one content have one digest, however they are stored.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use super::run::Run;
use super::spot::Spot;
use crate::cache::Cache;
use crate::plan::Dir;
use crate::sys::metadata::Stat;
use crate::verify::digest::{content_digest, read_digest};

/// Zeros of holes are hashed too, but not for minutes.
const MOST_HOLES_BYTES: u64 = 1 << 30;

/// Whether the digest of a whole content is worth its time.
fn is_dense(stat: &Stat) -> bool {
    stat.size.saturating_sub(stat.allocated) < MOST_HOLES_BYTES
}

/// A path that still means the same in another working directory.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

/// The digest of a source file, if it did not change since it was taken.
pub(crate) fn source_digest(cache: &Cache, dir: &Dir, stat: &Stat) -> Option<u128> {
    let root = &dir.source.root;
    if cache.knows_device(stat.dev) {
        return cache.known(root, stat);
    }
    // What cannot be opened here is met again by whoever reads it.
    let fd = root.dir(&dir.relative()).ok()?;
    cache.known(&fd, stat)
}

impl Run<'_> {
    /// See [`source_digest`].
    pub(crate) fn known_source(&self, dir: &Dir, stat: &Stat) -> Option<u128> {
        source_digest(self.cache?, dir, stat)
    }

    /// Counts a file whose digest nobody had to take.
    pub(crate) fn count_hit(&self) {
        self.counters.cache_hits.fetch_add(1, Relaxed);
    }

    /// Remembers the digest of a source file that held still.
    pub(crate) fn learn_source(&self, dir: &Dir, stat: &Stat, digest: u128) {
        let Some(cache) = self.cache else { return };
        let holder = (dir.stat.dev, dir.stat.ino);
        let path = || absolute(&dir.path_of(b""));
        let root = &dir.source.root;
        if cache.knows_device(stat.dev) {
            return cache.learn(root, stat, holder, path, digest);
        }
        if let Ok(fd) = root.dir(&dir.relative()) {
            cache.learn(&fd, stat, holder, path, digest);
        }
    }
}

impl Spot<'_> {
    /// The digest of the file under this name, if it did not change since it
    /// was taken.
    pub(crate) fn known(&self, there: &Stat) -> Option<u128> {
        self.run.cache?.known(self.fd, there)
    }

    /// Remembers the digest of a file that was read back.
    pub(crate) fn learn(&self, there: &Stat, digest: u128) {
        let Some(cache) = self.run.cache else { return };
        // A directory that is gone has nothing to be remembered.
        let Ok(dir) = Stat::of(self.fd) else { return };
        let path = || absolute(&self.dir.dest_path_of(&self.run.dest.path, b""));
        cache.learn(self.fd, there, (dir.dev, dir.ino), path, digest);
    }

    /// Drops what is known of a file that will be replaced.
    pub(crate) fn forget(&self, there: &Stat) {
        if let Some(cache) = self.run.cache.filter(|_| there.links == 1) {
            cache.forget(self.fd, there);
        }
    }
}

/// The digests of a source file and of what is in its place, to be compared:
/// from the cache where it knows them, else read, and remembered.
pub(crate) fn both_digests(
    spot: &Spot<'_>,
    source: (&File, &Stat),
    there: (&File, &Stat),
) -> io::Result<(u128, u128)> {
    let mut scratch = Vec::new();
    let run = spot.run;
    if run.cache.is_none() || !is_dense(source.1) || !is_dense(there.1) {
        let ours = content_digest(source.0, source.1.size, &mut scratch)?;
        return Ok((ours, content_digest(there.0, there.1.size, &mut scratch)?));
    }
    let ours = match run.known_source(&spot.dir, source.1) {
        Some(digest) => digest,
        None => {
            let digest = read_digest(source.0, source.1.size, &mut scratch)?;
            run.counters.read_bytes.fetch_add(source.1.size, Relaxed);
            if source.1.held_still(&Stat::of(source.0)?) {
                run.learn_source(&spot.dir, source.1, digest);
            }
            digest
        }
    };
    let theirs = match spot.known(there.1) {
        Some(digest) => digest,
        None => {
            let digest = read_digest(there.0, there.1.size, &mut scratch)?;
            if there.1.held_still(&Stat::of(there.0)?) {
                spot.learn(there.1, digest);
            }
            digest
        }
    };
    Ok((ours, theirs))
}
