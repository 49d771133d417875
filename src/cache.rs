//! The digests of files across runs, in one SQLite file.
//!
//! A digest is believed only while filesystem, inode, size, mtime and ctime are
//! all what they were: content cannot change without ctime, which nobody can
//! set (a write through mmap is the exception: its time may come later). Rows
//! of vanished files go when their directory is listed, or by [`prune`].
//!
//! The cache is a help and never a condition: whatever is wrong with the file
//! is a sentence, and the run goes on without it.

mod db;
mod manage;
mod rows;

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rusqlite::{Connection, OptionalExtension, params};

use crate::sys::fsid;
use crate::sys::metadata::{Stat, Time};
use db::Why;
use rows::{Change, Device, Row, checked, digest_of, nanoseconds};

pub use manage::{Contents, Filesystem, Pruned, clear, prune, show};

/// Changes are written this many at a time: one transaction costs as much as
/// hundreds of rows.
const BATCH: usize = 16384;
/// A view of the database is given up after this many questions, so that other
/// runs can fold their log back into it.
const VIEW: u32 = 8192;
/// Coarse clocks tick every 1 to 10 ms.
const TICK_NS: i64 = 20_000_000;
/// And a tick to spare.
const SECOND_NS: i64 = 1_000_000_000 + TICK_NS;

/// The open cache, shared by all threads.
#[derive(Debug)]
pub(crate) struct Cache {
    path: PathBuf,
    /// Whether any digests were in it when it was opened.
    had_files: bool,
    /// When, in nanoseconds since the epoch.
    opened: i64,
    /// None for a filesystem about which nothing can be remembered.
    devices: RwLock<HashMap<u64, Option<Arc<Device>>>>,
    /// Taken before `changes` where both are needed: batches keep their order.
    base: Mutex<Base>,
    changes: Mutex<Changes>,
    is_broken: AtomicBool,
}

#[derive(Debug)]
struct Base {
    connection: Connection,
    /// Questions since the current view began; none without a view.
    asked: Option<u32>,
    why: Option<Why>,
}

/// What is not written yet.
#[derive(Debug, Default)]
struct Changes {
    rows: Vec<Change>,
    /// Directories whose path was given in this run.
    named: HashSet<(i64, u64)>,
}

impl Cache {
    /// Opens the cache, or makes an empty one. The error is one sentence, after
    /// which the run goes on without.
    pub(crate) fn open(path: &Path) -> Result<Cache, String> {
        let opened = db::create(path).and_then(|()| db::open(path));
        let (connection, had_files) = opened.map_err(|why| why.sentence(path))?;
        Ok(Cache {
            path: path.into(),
            had_files,
            // A clock that cannot be told makes every file a young one.
            opened: nanoseconds(Time::now()).unwrap_or(i64::MIN),
            devices: RwLock::default(),
            base: Mutex::new(Base {
                connection,
                asked: None,
                why: None,
            }),
            changes: Mutex::default(),
            is_broken: AtomicBool::new(false),
        })
    }

    /// Whether the filesystem of this `st_dev` was met before: then no
    /// descriptor is needed to ask about its files, and any will do.
    pub(crate) fn knows_device(&self, dev: u64) -> bool {
        self.read_devices().contains_key(&dev)
    }

    /// The digest of a file that has not changed since it was taken. `fd` is
    /// the file, its directory or anything on the same filesystem.
    pub(crate) fn known(&self, fd: impl AsFd, stat: &Stat) -> Option<u128> {
        let device = self.device(fd, stat.dev)?;
        let (mtime, ctime) = (nanoseconds(stat.mtime)?, nanoseconds(stat.ctime)?);
        let kept = self.with(|base| {
            base.look()?;
            let mut query = base.connection.prepare_cached(
                "SELECT size, mtime, ctime, digest FROM files WHERE fs = ? AND ino = ?",
            )?;
            let row = query.query_row(params![device.id, stat.ino.cast_signed()], |row| {
                let of_row: (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
                Ok((of_row, row.get::<_, [u8; 24]>(3)?))
            });
            let Some((of_row, kept)) = row.optional()? else {
                return Ok(None);
            };
            if of_row != (stat.size.cast_signed(), mtime, ctime) {
                return Ok(None);
            }
            let digest = digest_of(&kept);
            if kept != checked(&device.identity, stat, (mtime, ctime), digest) {
                return Err(Why::Damaged("a row does not match its check".into()));
            }
            Ok(Some(digest))
        });
        kept.flatten()
    }

    /// Remembers a digest. `stat` is as it is after the digest was taken, and
    /// as it was before; `dir` is `st_dev` and inode of the file's directory.
    pub(crate) fn learn(
        &self,
        fd: impl AsFd,
        stat: &Stat,
        dir: (u64, u64),
        dir_path: impl FnOnce() -> PathBuf,
        digest: u128,
    ) {
        let Some(device) = self.device(fd, stat.dev) else {
            return;
        };
        let (Some(mtime), Some(ctime)) = (nanoseconds(stat.mtime), nanoseconds(stat.ctime)) else {
            return;
        };
        // A file that was bind-mounted into another filesystem's directory.
        if dir.0 != stat.dev {
            return;
        }
        // A write in the same tick of the clock as the last one leaves ctime as
        // it is, so a digest taken between the two would be believed for ever.
        // When this one was taken is not known here, but not before the cache
        // was opened: what has not changed since then was read in a later tick.
        // Whole seconds (inodes of 128 bytes on ext4) are a tick of a second,
        // whatever the kernel can do.
        let is_whole = stat.ctime.ns == 0;
        let tick = if is_whole { SECOND_NS } else { TICK_NS };
        let is_old = self.opened.saturating_sub(ctime) > tick;
        if !is_old && (is_whole || !device.is_fine) {
            return;
        }
        let row = Row {
            ino: stat.ino,
            size: stat.size,
            mtime,
            ctime,
            digest: checked(&device.identity, stat, (mtime, ctime), digest),
        };
        self.change(|changes| {
            if changes.named.insert((device.id, dir.1)) {
                let name = Change::Name(device.id, dir.1, dir_path());
                changes.rows.push(name);
            }
            changes.rows.push(Change::Learn(device.id, dir.1, row));
        });
    }

    /// Drops what is known of an inode.
    pub(crate) fn forget(&self, fd: impl AsFd, stat: &Stat) {
        if let Some(device) = self.device(fd, stat.dev) {
            let gone = Change::Forget(device.id, stat.ino);
            self.change(|changes| changes.rows.push(gone));
        }
    }

    /// Drops what is known of files that are no longer in a directory. `fd` is
    /// the directory, `inodes` what is in it, ascending.
    pub(crate) fn listed(&self, fd: impl AsFd, dir: &Stat, inodes: &[u64]) {
        // What this run has learned was there.
        let Some(device) = self.device(fd, dir.dev).filter(|_| self.had_files) else {
            return;
        };
        let gone = self.with(|base| {
            base.look()?;
            let kept = manage::inodes_of(&base.connection, device.id, dir.ino)?;
            let gone = kept.into_iter();
            Ok(gone
                .filter(|ino| inodes.binary_search(ino).is_err())
                .collect::<Vec<_>>())
        });
        let gone = gone.unwrap_or_default();
        if !gone.is_empty() {
            let gone = gone.into_iter().map(|ino| Change::Forget(device.id, ino));
            self.change(|changes| changes.rows.extend(gone));
        }
    }

    /// Writes what is left. Says in a sentence what went wrong since the cache
    /// was opened.
    pub(crate) fn close(&self) -> Option<String> {
        self.flush();
        let why = lock(&self.base).why.take();
        why.map(|why| why.sentence(&self.path))
    }

    fn device(&self, fd: impl AsFd, dev: u64) -> Option<Arc<Device>> {
        if self.is_broken.load(Relaxed) {
            return None;
        }
        if let Some(known) = self.read_devices().get(&dev) {
            return known.clone();
        }
        // A descriptor from elsewhere says nothing about this one; a filesystem
        // that does not answer is asked again next time. Neither is a failure
        // of the file that it is about.
        if !Stat::of(&fd).is_ok_and(|stat| stat.dev == dev) {
            return None;
        }
        let identity = fsid::identity(&fd).ok()?;
        let device = identity.map(|identity| Arc::new(Device::new(identity, dev)));
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        devices.insert(dev, device.clone());
        device
    }

    fn read_devices(&self) -> std::sync::RwLockReadGuard<'_, HashMap<u64, Option<Arc<Device>>>> {
        self.devices.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the database. The first error is kept for the end, and nothing
    /// is asked or written after it.
    fn with<T>(&self, work: impl FnOnce(&mut Base) -> Result<T, Why>) -> Option<T> {
        let mut base = lock(&self.base);
        if base.why.is_some() {
            return None;
        }
        match work(&mut base) {
            Ok(done) => Some(done),
            Err(why) => {
                base.why = Some(why);
                self.is_broken.store(true, Relaxed);
                None
            }
        }
    }

    fn change(&self, add: impl FnOnce(&mut Changes)) {
        let full = {
            let mut changes = lock(&self.changes);
            add(&mut changes);
            changes.rows.len() >= BATCH
        };
        if full {
            self.flush();
        }
    }

    fn flush(&self) {
        self.with(|base| {
            let rows = std::mem::take(&mut lock(&self.changes).rows);
            if rows.is_empty() {
                return Ok(());
            }
            base.leave()?;
            let devices = self.read_devices().clone();
            rows::write(&mut base.connection, devices.values().flatten(), rows)
        });
    }
}

impl Base {
    /// Begins a view of the database, or keeps to it: questions inside one cost
    /// no locks.
    fn look(&mut self) -> Result<(), Why> {
        if self.asked >= Some(VIEW) {
            self.leave()?;
        }
        if self.asked.is_none() {
            self.connection.execute_batch("BEGIN")?;
        }
        self.asked = Some(self.asked.unwrap_or(0) + 1);
        Ok(())
    }

    fn leave(&mut self) -> Result<(), Why> {
        if self.asked.take().is_some() {
            self.connection.execute_batch("COMMIT")?;
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::print_stderr)] // skips, and the measurement
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::*;
    use crate::sys::fsid::Identity;

    /// A cache and a directory of files, on a filesystem that has an identity.
    struct Scene {
        dir: TempDir,
    }

    impl Scene {
        /// None, and a word about it, where no filesystem here has an identity.
        fn new() -> Option<Scene> {
            let dir = tempfile::tempdir().unwrap();
            if fsid::identity(File::open(dir.path()).unwrap())
                .unwrap()
                .is_none()
            {
                eprintln!("SKIP: the temporary directory's filesystem has no identity");
                return None;
            }
            Some(Scene { dir })
        }

        fn path(&self) -> PathBuf {
            self.dir.path().join("cache/haul/digests.sqlite")
        }

        fn open(&self) -> Cache {
            Cache::open(&self.path()).unwrap()
        }

        fn root(&self) -> File {
            File::open(self.dir.path()).unwrap()
        }

        /// A file's stat as it would be long after it was written.
        fn file(&self, name: &str) -> Stat {
            let path = self.dir.path().join(name);
            fs::write(&path, name).unwrap();
            let old = Time {
                s: 1_700_000_000,
                ns: 123_456_789,
            };
            Stat {
                ctime: old,
                ..Stat::of(File::open(path).unwrap()).unwrap()
            }
        }

        fn learn(&self, cache: &Cache, stat: &Stat, digest: u128) {
            let dir = Stat::of(self.root()).unwrap();
            let path = || self.dir.path().into();
            cache.learn(self.root(), stat, (dir.dev, dir.ino), path, digest);
        }

        fn filled(&self) -> Stat {
            let stat = self.file("a");
            let cache = self.open();
            self.learn(&cache, &stat, 7 << 100);
            assert_eq!(cache.close(), None);
            stat
        }

        fn sql(&self, text: &str) {
            Connection::open(self.path())
                .unwrap()
                .execute_batch(text)
                .unwrap();
        }
    }

    #[test]
    fn a_digest_is_known_while_everything_is_as_it_was() {
        let Some(scene) = Scene::new() else { return };
        let stat = scene.filled();
        let cache = scene.open();
        assert!(!cache.knows_device(stat.dev));
        assert_eq!(cache.known(scene.root(), &stat), Some(7 << 100));
        assert!(cache.knows_device(stat.dev));
        let later = |time: Time| Time {
            ns: time.ns + 1,
            ..time
        };
        for other in [
            Stat {
                size: stat.size + 1,
                ..stat
            },
            Stat {
                mtime: later(stat.mtime),
                ..stat
            },
            Stat {
                ctime: later(stat.ctime),
                ..stat
            },
            Stat {
                ino: stat.ino + 1_000_000,
                ..stat
            },
            Stat {
                dev: stat.dev + 1,
                ..stat
            },
        ] {
            assert_eq!(cache.known(scene.root(), &other), None, "{other:?}");
        }
        assert_eq!(cache.close(), None);
    }

    #[test]
    fn a_descriptor_from_elsewhere_says_nothing_about_a_device() {
        let Some(scene) = Scene::new() else { return };
        let stat = scene.filled();
        let cache = scene.open();
        let elsewhere = File::open("/proc/self/status").unwrap();
        assert_eq!(cache.known(elsewhere, &stat), None);
        assert!(!cache.knows_device(stat.dev));
        assert_eq!(cache.known(scene.root(), &stat), Some(7 << 100));
    }

    #[test]
    fn another_filesystem_with_the_same_inodes_is_another() {
        let Some(scene) = Scene::new() else { return };
        let stat = scene.filled();
        let cache = scene.open();
        let identity = Identity {
            kind: "ext4",
            uuid: vec![1; 16],
        };
        let other = Some(Arc::new(Device::new(identity, stat.dev)));
        cache.devices.write().unwrap().insert(stat.dev, other);
        assert_eq!(cache.known(scene.root(), &stat), None);
    }

    #[test]
    fn what_is_forgotten_or_no_longer_listed_is_gone() {
        let Some(scene) = Scene::new() else { return };
        let (a, b, c) = (scene.file("a"), scene.file("b"), scene.file("c"));
        let cache = scene.open();
        for (stat, digest) in [(&a, 1), (&b, 2), (&c, 3)] {
            scene.learn(&cache, stat, digest);
        }
        cache.forget(scene.root(), &a);
        assert_eq!(cache.close(), None);
        let cache = scene.open();
        let mut inodes = [a.ino, c.ino];
        inodes.sort_unstable();
        cache.listed(scene.root(), &Stat::of(scene.root()).unwrap(), &inodes);
        assert_eq!(cache.close(), None);
        let cache = scene.open();
        let known = [a, b, c].map(|stat| cache.known(scene.root(), &stat));
        assert_eq!(known, [None, None, Some(3)]);
    }

    #[test]
    fn a_file_changed_a_moment_ago_is_learned_only_where_clocks_are_fine() {
        let Some(scene) = Scene::new() else { return };
        // An hour ahead, so that no slow machine makes it old meanwhile.
        let now = Time::now();
        let ctime = Time {
            s: now.s + 3600,
            ..now
        };
        let fresh = Stat {
            ctime,
            ..scene.file("a")
        };
        let cache = scene.open();
        for (fine, want) in [("xfs", is_fine("xfs")), ("f2fs", false)] {
            let identity = Identity {
                kind: fine,
                uuid: vec![1; 16],
            };
            let device = Some(Arc::new(Device::new(identity, fresh.dev)));
            cache.devices.write().unwrap().insert(fresh.dev, device);
            scene.learn(&cache, &fresh, 1);
            cache.flush();
            let known = cache.known(scene.root(), &fresh).is_some();
            assert_eq!(known, want, "{fine}");
            cache.forget(scene.root(), &fresh);
            cache.flush();
        }
    }

    /// 128-byte inodes of ext4; also ext2 and ext3, but for the zero.
    #[test]
    fn whole_seconds_are_believed_only_of_files_older_than_the_run() {
        let Some(scene) = Scene::new() else { return };
        let stat = scene.file("a");
        let cache = scene.open();
        let now = Time::now();
        for (s, want) in [(now.s, false), (now.s - 3, true)] {
            let ctime = Time { s, ns: 0 };
            let young = Stat { ctime, ..stat };
            scene.learn(&cache, &young, 1);
            cache.flush();
            let known = cache.known(scene.root(), &young).is_some();
            assert_eq!(known, want, "{} s ago", now.s - s);
        }
    }

    fn is_fine(kind: &'static str) -> bool {
        Identity {
            kind,
            uuid: Vec::new(),
        }
        .tells_changes_apart(0)
    }

    #[test]
    fn a_flipped_bit_in_a_row_is_noticed_and_ends_the_cache() {
        let Some(scene) = Scene::new() else { return };
        let stat = scene.filled();
        scene.sql("UPDATE files SET digest = CAST(x'01' || substr(digest, 2) AS BLOB)");
        let cache = scene.open();
        assert_eq!(cache.known(scene.root(), &stat), None);
        let why = cache.close().unwrap();
        assert!(why.contains("damaged") && why.contains("check"), "{why}");
    }

    #[test]
    fn after_an_error_nothing_is_asked_and_the_first_reason_is_kept() {
        let Some(scene) = Scene::new() else { return };
        let stat = scene.filled();
        let cache = scene.open();
        scene.sql("DROP TABLE files");
        assert_eq!(cache.known(scene.root(), &stat), None);
        scene.learn(&cache, &stat, 1);
        let why = cache.close().unwrap();
        assert!(why.contains("no such table"), "{why}");
    }

    #[test]
    fn the_file_is_private_whatever_the_umask() {
        let Some(scene) = Scene::new() else { return };
        scene.filled();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&scene.path()), 0o600);
        assert_eq!(mode(scene.path().parent().unwrap()), 0o700);
    }

    #[test]
    fn what_is_not_ours_is_refused_with_its_reason() {
        for (statement, word) in [
            ("PRAGMA user_version = 2", "a later version"),
            ("PRAGMA user_version = 0", "damaged"),
            ("PRAGMA application_id = 1", "another program"),
            ("PRAGMA application_id = 0", "another program"),
        ] {
            let Some(scene) = Scene::new() else { return };
            scene.filled();
            scene.sql(statement);
            let why = Cache::open(&scene.path()).unwrap_err();
            assert!(why.contains(word), "{statement}: {why}");
        }
    }

    #[test]
    fn who_can_be_written_by_others_is_not_believed() {
        let Some(scene) = Scene::new() else { return };
        scene.filled();
        fs::set_permissions(scene.path(), PermissionsExt::from_mode(0o602)).unwrap();
        let why = Cache::open(&scene.path()).unwrap_err();
        assert!(why.contains("others"), "{why}");
    }

    #[test]
    fn many_threads_and_several_caches_on_one_file_lose_nothing() {
        let Some(scene) = Scene::new() else { return };
        let stat = scene.file("a");
        let of = |n: u64| Stat { ino: n, ..stat };
        std::thread::scope(|scope| {
            for half in 0..2 {
                let scene = &scene;
                scope.spawn(move || {
                    let cache = &scene.open();
                    std::thread::scope(|scope| {
                        for part in 0..2 {
                            scope.spawn(move || {
                                for n in (half * 2 + part..40_000).step_by(4) {
                                    scene.learn(cache, &of(n), n.into());
                                    cache.known(scene.root(), &of(n / 2));
                                }
                            });
                        }
                    });
                    assert_eq!(cache.close(), None);
                });
            }
        });
        let cache = scene.open();
        for n in 0..40_000 {
            assert_eq!(cache.known(scene.root(), &of(n)), Some(n.into()));
        }
    }

    #[test]
    fn no_damage_makes_it_tell_a_wrong_digest() {
        let Some(scene) = Scene::new() else { return };
        let stat = scene.file("a");
        let of = |n: u64| Stat { ino: n, ..stat };
        let cache = scene.open();
        for n in 0..300 {
            scene.learn(&cache, &of(n), n.into());
        }
        assert_eq!(cache.close(), None);
        drop(cache);
        let whole = fs::read(scene.path()).unwrap();
        let (mut refused, mut right, mut silent) = (0, 0, 0);
        for round in 0..120 {
            let mut bytes = whole.clone();
            let noise = xxhash_rust::xxh3::xxh3_64_with_seed(b"damage", round);
            #[allow(clippy::cast_possible_truncation)]
            let at = noise as usize % bytes.len();
            match round % 4 {
                0 => bytes[at] ^= 1 << (noise >> 61),
                1 => bytes[at..].iter_mut().take(512).for_each(|b| *b = 0),
                2 => bytes.truncate(at),
                _ => bytes[at] = bytes[at].wrapping_add(1),
            }
            fs::write(scene.path(), bytes).unwrap();
            match Cache::open(&scene.path()) {
                Err(why) => {
                    assert!(why.contains("is not used"), "{why}");
                    refused += 1;
                }
                Ok(cache) => {
                    for n in 0..300 {
                        match cache.known(scene.root(), &of(n)) {
                            None => silent += 1,
                            Some(digest) => {
                                assert_eq!(digest, u128::from(n), "round {round}");
                                right += 1;
                            }
                        }
                    }
                }
            }
            for end in ["-wal", "-shm"] {
                let log = scene.path().with_file_name(format!("digests.sqlite{end}"));
                assert!(!log.exists() || fs::remove_file(log).is_ok());
            }
        }
        assert!(
            refused > 0 && right > 0 && silent > 0,
            "{refused} {right} {silent}"
        );
    }

    #[test]
    fn pruning_removes_what_is_no_longer_in_its_directory() {
        let Some(scene) = Scene::new() else { return };
        let tree = scene.dir.path().join("tree");
        for dir in ["kept", "gone", "replaced"] {
            fs::create_dir_all(tree.join(dir)).unwrap();
        }
        let cache = scene.open();
        let mut stats = Vec::new();
        for name in ["kept/a", "kept/b", "gone/c", "replaced/d"] {
            let stat = scene.file(&format!("tree/{name}"));
            let path = tree.join(name).parent().unwrap().to_path_buf();
            let dir = Stat::of(File::open(&path).unwrap()).unwrap();
            cache.learn(scene.root(), &stat, (dir.dev, dir.ino), || path, 9);
            stats.push(stat);
        }
        assert_eq!(cache.close(), None);
        drop(cache);
        let pruned = prune(&scene.path()).unwrap();
        assert_eq!(
            (pruned.removed, pruned.files, pruned.failures.len()),
            (0, 4, 0)
        );
        fs::remove_file(tree.join("kept/b")).unwrap();
        fs::remove_dir_all(tree.join("gone")).unwrap();
        fs::rename(tree.join("replaced"), tree.join("moved")).unwrap();
        fs::create_dir(tree.join("replaced")).unwrap();
        let pruned = prune(&scene.path()).unwrap();
        assert_eq!(
            (pruned.removed, pruned.files, pruned.failures.len()),
            (3, 1, 0)
        );
        let shown = show(&scene.path()).unwrap();
        assert_eq!(
            (shown.files, shown.dirs, shown.filesystems.len()),
            (1, 1, 1)
        );
        let cache = scene.open();
        assert_eq!(cache.known(scene.root(), &stats[0]), Some(9));
    }

    /// `cargo test --release -- --ignored --nocapture a_million`
    #[test]
    #[ignore = "a measurement"]
    fn a_million_rows() {
        let Some(scene) = Scene::new() else { return };
        let stat = scene.file("a");
        let root = scene.root();
        let dir = Stat::of(&root).unwrap();
        // As a walk meets them: near each other, not quite ascending.
        let of = |n: u64| Stat {
            ino: 20_000_000 + (n ^ 0x2a5),
            size: n,
            ..stat
        };
        let learn = || {
            let start = processor_s();
            let cache = scene.open();
            for n in 0..1_000_000 {
                let of_dir = (dir.dev, 90_000 + n / 50);
                let path = || PathBuf::from(format!("/home/somebody/some/where/{n}"));
                cache.learn(&root, &of(n), of_dir, path, u128::from(n) << 64);
            }
            assert_eq!(cache.close(), None);
            processor_s() - start
        };
        let first = learn();
        let again = learn();
        let start = processor_s();
        let cache = scene.open();
        for n in 0..1_000_000 {
            assert!(cache.known(&root, &of(n)).is_some());
        }
        let known = processor_s() - start;
        drop(cache);
        let bytes = fs::metadata(scene.path()).unwrap().len();
        eprintln!(
            "learn {first:.1} s, again {again:.1} s, known {known:.1} s of a processor, {bytes} bytes"
        );
    }

    /// Spent by this process so far. A clock would time the other processes.
    fn processor_s() -> f64 {
        use nix::sys::resource::{UsageWho, getrusage};
        use nix::sys::time::TimeValLike;
        let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
        let spent = usage.user_time() + usage.system_time();
        std::time::Duration::from_millis(spent.num_milliseconds().unsigned_abs()).as_secs_f64()
    }
}
