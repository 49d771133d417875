//! What is in the cache file, and taking out of it what is gone.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};

use super::db::{self, Why};
use super::rows::device_id;
use crate::error::{Error, Failure, Op};
use crate::sys::beneath::Root;
use crate::sys::fsid::{self, Identity};
use crate::sys::metadata::Stat;

/// What a cache file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Bytes of the file and its log.
    pub bytes: u64,
    /// Digests in it.
    pub files: u64,
    /// Directories whose paths it keeps.
    pub dirs: u64,
    /// The filesystems that they lie on.
    pub filesystems: Vec<Filesystem>,
}

/// A filesystem with remembered files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filesystem {
    /// `ext4`, `xfs`, ...
    pub kind: String,
    /// In the usual form; on btrfs with the subvolume's mark behind it.
    pub uuid: String,
    /// Digests of files on it.
    pub files: u64,
}

/// What [`prune`] did.
#[derive(Debug, Default)]
pub struct Pruned {
    /// Digests that were removed.
    pub removed: u64,
    /// Digests that are still there.
    pub files: u64,
    /// Directories that could not be looked at; their digests stay.
    pub failures: Vec<Failure>,
}

/// What the cache at `path` holds; nothing where there is none. The whole file
/// is checked on the way. The error says why it cannot be used.
pub fn show(path: &Path) -> Result<Contents, Error> {
    if !is_there(path)? {
        return Ok(Contents::default());
    }
    contents(path).map_err(|why| refused(&why, path))
}

/// Goes to every directory of which files are remembered, and removes from the
/// cache what is no longer in it. What lies on a filesystem that is not mounted
/// there now stays.
pub fn prune(path: &Path) -> Result<Pruned, Error> {
    if !is_there(path)? {
        return Ok(Pruned::default());
    }
    pruned(path).map_err(|why| refused(&why, path))
}

/// Forgets everything. A damaged file is removed; one that another program or a
/// later version wrote is left alone.
pub fn clear(path: &Path) -> Result<(), Error> {
    if !is_there(path)? {
        return Ok(());
    }
    let cleared = match emptied(path) {
        // Nobody can be at work with it.
        Err(Why::Damaged(_)) => remove(path),
        other => other,
    };
    cleared.map_err(|why| refused(&why, path))
}

fn is_there(path: &Path) -> Result<bool, Error> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Failure::new(Op::Stat, path, e).into()),
    }
}

fn refused(why: &Why, path: &Path) -> Error {
    Error::Refused(why.sentence(path))
}

fn contents(path: &Path) -> Result<Contents, Why> {
    let (connection, _) = db::open(path)?;
    db::check(&connection)?;
    let mut query = connection.prepare(
        "SELECT kind, uuid, (SELECT count(*) FROM files WHERE fs = id) FROM filesystems
         ORDER BY kind, uuid",
    )?;
    let rows = query.query_map([], |row| {
        Ok(Filesystem {
            kind: row.get(0)?,
            uuid: uuid_text(&row.get::<_, Vec<u8>>(1)?),
            files: row.get::<_, i64>(2)?.cast_unsigned(),
        })
    })?;
    let filesystems = rows.collect::<Result<Vec<_>, _>>()?;
    Ok(Contents {
        bytes: bytes(path)?,
        files: count(&connection, "SELECT count(*) FROM files")?,
        dirs: count(&connection, "SELECT count(*) FROM dirs")?,
        filesystems,
    })
}

fn count(connection: &Connection, query: &str) -> Result<u64, Why> {
    let count: i64 = connection.query_row(query, [], |row| row.get(0))?;
    Ok(count.cast_unsigned())
}

fn bytes(path: &Path) -> Result<u64, Why> {
    let mut bytes = 0;
    for end in ["", "-wal"] {
        bytes += match fs::metadata(beside(path, end)) {
            Ok(there) => there.len(),
            Err(e) if e.kind() == ErrorKind::NotFound => 0,
            Err(e) => return Err(Why::Io("look at", e)),
        };
    }
    Ok(bytes)
}

/// SQLite puts its log beside the database.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// `0c0ffee0-1111-2222-3333-444455556666`, or plain digits.
fn uuid_text(uuid: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for (i, byte) in uuid.iter().enumerate() {
        let dash = uuid.len() >= 16 && matches!(i, 4 | 6 | 8 | 10 | 16);
        // Writing to a String cannot fail.
        write!(text, "{}{byte:02x}", if dash { "-" } else { "" }).ok();
    }
    text
}

/// What is remembered of a directory's files.
pub(super) fn inodes_of(connection: &Connection, fs: i64, dir: u64) -> Result<Vec<u64>, Why> {
    let mut query = connection.prepare_cached("SELECT ino FROM files WHERE dir = ? AND fs = ?")?;
    let rows = query.query_map(params![dir.cast_signed(), fs], |row| row.get::<_, i64>(0))?;
    Ok(rows
        .map(|ino| ino.map(i64::cast_unsigned))
        .collect::<Result<_, _>>()?)
}

/// A directory of which files are remembered.
struct Remembered {
    fs: i64,
    ino: u64,
    path: PathBuf,
    /// Gone with its mount, for ever.
    is_in_memory: bool,
}

/// What has become of such a directory.
enum Now {
    /// It is there, with these inodes in it.
    Holds(Vec<u64>),
    Gone,
    /// Its filesystem is not mounted where it was.
    Elsewhere,
}

fn pruned(path: &Path) -> Result<Pruned, Why> {
    let (connection, _) = db::open(path)?;
    let mut pruned = Pruned::default();
    for dir in remembered(&connection)? {
        let now = match look(&dir) {
            Ok(now) => now,
            Err(e) => {
                pruned.failures.push(Failure::new(Op::Scan, dir.path, e));
                continue;
            }
        };
        let gone = match now {
            Now::Elsewhere => continue,
            Now::Gone => inodes_of(&connection, dir.fs, dir.ino)?,
            Now::Holds(mut inodes) => {
                inodes.sort_unstable();
                let mut kept = inodes_of(&connection, dir.fs, dir.ino)?;
                kept.retain(|ino| inodes.binary_search(ino).is_err());
                kept
            }
        };
        pruned.removed += remove_rows(&connection, dir.fs, &gone)?;
    }
    // Of files whose directory is not known there is nothing to look at.
    let strays = "DELETE FROM files WHERE NOT EXISTS
        (SELECT 1 FROM dirs WHERE dirs.fs = files.fs AND dirs.ino = files.dir)";
    pruned.removed += connection.execute(strays, [])? as u64;
    connection.execute_batch(
        "DELETE FROM dirs WHERE NOT EXISTS
            (SELECT 1 FROM files WHERE files.dir = dirs.ino AND files.fs = dirs.fs);
         DELETE FROM filesystems WHERE NOT EXISTS (SELECT 1 FROM files WHERE fs = id);",
    )?;
    if pruned.removed > 0 {
        connection.execute_batch("VACUUM")?;
    }
    pruned.files = count(&connection, "SELECT count(*) FROM files")?;
    Ok(pruned)
}

fn remembered(connection: &Connection) -> Result<Vec<Remembered>, Why> {
    let mut query = connection.prepare(
        "SELECT fs, ino, path, (SELECT kind FROM filesystems WHERE id = fs) = 'tmpfs' FROM dirs",
    )?;
    let rows = query.query_map([], |row| {
        Ok(Remembered {
            fs: row.get(0)?,
            ino: row.get::<_, i64>(1)?.cast_unsigned(),
            path: OsString::from_vec(row.get(2)?).into(),
            is_in_memory: row.get::<_, Option<bool>>(3)?.unwrap_or(false),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn remove_rows(connection: &Connection, fs: i64, inodes: &[u64]) -> Result<u64, Why> {
    if inodes.is_empty() {
        return Ok(0);
    }
    let transaction = connection.unchecked_transaction()?;
    let mut removed = 0;
    {
        let mut remove =
            transaction.prepare_cached("DELETE FROM files WHERE fs = ? AND ino = ?")?;
        for ino in inodes {
            removed += remove.execute(params![fs, ino.cast_signed()])? as u64;
        }
    }
    transaction.commit()?;
    Ok(removed)
}

fn look(dir: &Remembered) -> io::Result<Now> {
    let away = if dir.is_in_memory {
        Now::Gone
    } else {
        Now::Elsewhere
    };
    let is_on_its_filesystem =
        |identity: Option<Identity>| identity.is_some_and(|found| device_id(&found) == dir.fs);
    // What is nearest to it and there shows which filesystem is mounted.
    for at in dir.path.ancestors() {
        let root = match Root::open(at) {
            Ok(root) => root,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                continue;
            }
            Err(e) => return Err(e),
        };
        if !is_on_its_filesystem(fsid::identity(&root)?) {
            return Ok(away);
        }
        let stat = Stat::of(&root)?;
        if at != dir.path || stat.ino != dir.ino {
            return Ok(Now::Gone);
        }
        return Ok(Now::Holds(inodes_in(root)?));
    }
    Ok(away)
}

fn inodes_in(root: Root) -> io::Result<Vec<u64>> {
    let mut listing = nix::dir::Dir::openat(
        &root,
        ".",
        nix::fcntl::OFlag::O_RDONLY | nix::fcntl::OFlag::O_CLOEXEC,
        nix::sys::stat::Mode::empty(),
    )?;
    let mut inodes = Vec::new();
    for entry in listing.iter() {
        inodes.push(entry?.ino());
    }
    Ok(inodes)
}

/// In place: another run may have the file open.
fn emptied(path: &Path) -> Result<(), Why> {
    let (connection, _) = db::open(path)?;
    db::check(&connection)?;
    Ok(connection.execute_batch(
        "BEGIN IMMEDIATE; DELETE FROM files; DELETE FROM dirs; DELETE FROM filesystems; COMMIT;
         VACUUM",
    )?)
}

fn remove(path: &Path) -> Result<(), Why> {
    for end in ["-wal", "-shm", ""] {
        match fs::remove_file(beside(path, end)) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(Why::Io("remove", e)),
            _ => {}
        }
    }
    Ok(())
}
