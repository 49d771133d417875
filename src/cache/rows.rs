//! What a row says and how it is written: a digest, what it stands for, and a
//! check over both. The id of a filesystem is made of its identity.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::{CachedStatement, Connection, TransactionBehavior, params};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::db::Why;
use crate::sys::fsid::Identity;
use crate::sys::metadata::{Stat, Time};

#[derive(Debug)]
pub(super) struct Device {
    pub(super) id: i64,
    pub(super) identity: Identity,
    /// Every change changes ctime there.
    pub(super) is_fine: bool,
}

/// Each with the id of the filesystem.
#[derive(Debug)]
pub(super) enum Change {
    /// A directory's inode and path.
    Name(i64, u64, PathBuf),
    /// The inode of the file's directory.
    Learn(i64, u64, Row),
    Forget(i64, u64),
}

#[derive(Debug)]
pub(super) struct Row {
    pub(super) ino: u64,
    pub(super) size: u64,
    pub(super) mtime: i64,
    pub(super) ctime: i64,
    /// With its check.
    pub(super) digest: [u8; 24],
}

impl Change {
    fn place(&self) -> (bool, i64, u64) {
        match self {
            Change::Name(fs, ino, _) => (false, *fs, *ino),
            Change::Learn(fs, _, row) => (true, *fs, row.ino),
            Change::Forget(fs, ino) => (true, *fs, *ino),
        }
    }
}

impl Device {
    pub(super) fn new(identity: Identity, dev: u64) -> Device {
        Device {
            is_fine: identity.tells_changes_apart(dev),
            id: device_id(&identity),
            identity,
        }
    }
}

/// Small numbers take few bytes in a row; two filesystems with one number would
/// only overwrite each other's rows.
pub(super) fn device_id(identity: &Identity) -> i64 {
    (xxh3_64(&identity.uuid) >> 33).cast_signed()
}

/// Writes changes in one transaction.
pub(super) fn write<'a>(
    connection: &mut Connection,
    devices: impl Iterator<Item = &'a Arc<Device>>,
    mut rows: Vec<Change>,
) -> Result<(), Why> {
    // Neighbours lie on one page. Of one inode the last change counts, still.
    rows.sort_by_key(Change::place);
    let behavior = TransactionBehavior::Immediate;
    let transaction = connection.transaction_with_behavior(behavior)?;
    {
        let mut fs =
            transaction.prepare_cached("INSERT OR IGNORE INTO filesystems VALUES(?, ?, ?)")?;
        for device in devices {
            fs.execute(params![
                device.id,
                device.identity.kind,
                device.identity.uuid
            ])?;
        }
        let mut name = transaction.prepare_cached("REPLACE INTO dirs VALUES(?, ?, ?)")?;
        let mut learn = Learn::new(&transaction)?;
        let mut forget =
            transaction.prepare_cached("DELETE FROM files WHERE fs = ? AND ino = ?")?;
        for row in rows {
            match row {
                Change::Name(fs, ino, path) => {
                    name.execute(params![fs, ino.cast_signed(), path.as_os_str().as_bytes()])?;
                }
                Change::Learn(fs, dir, row) => learn.add((fs, dir, row))?,
                Change::Forget(fs, ino) => {
                    learn.flush()?;
                    forget.execute(params![fs, ino.cast_signed()])?;
                }
            }
        }
        learn.flush()?;
    }
    Ok(transaction.commit()?)
}

/// Writes rows by the dozen: beginning a statement takes longer than a row.
struct Learn<'a> {
    one: CachedStatement<'a>,
    many: CachedStatement<'a>,
    rows: Vec<(i64, u64, Row)>,
}

const DOZEN: usize = 12;

impl<'a> Learn<'a> {
    fn new(connection: &'a Connection) -> Result<Learn<'a>, Why> {
        const ROW: &str = "(?, ?, ?, ?, ?, ?, ?)";
        let sql =
            |rows: usize| format!("REPLACE INTO files VALUES{}", [ROW].repeat(rows).join(","));
        Ok(Learn {
            one: connection.prepare_cached(&sql(1))?,
            many: connection.prepare_cached(&sql(DOZEN))?,
            rows: Vec::with_capacity(DOZEN),
        })
    }

    fn add(&mut self, row: (i64, u64, Row)) -> Result<(), Why> {
        self.rows.push(row);
        if self.rows.len() < DOZEN {
            return Ok(());
        }
        execute(&mut self.many, &self.rows)?;
        self.rows.clear();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Why> {
        for row in self.rows.drain(..) {
            execute(&mut self.one, &[row])?;
        }
        Ok(())
    }
}

fn execute(statement: &mut CachedStatement<'_>, rows: &[(i64, u64, Row)]) -> Result<(), Why> {
    for (at, (fs, dir, row)) in (1..).step_by(7).zip(rows) {
        statement.raw_bind_parameter(at, fs)?;
        statement.raw_bind_parameter(at + 1, row.ino.cast_signed())?;
        statement.raw_bind_parameter(at + 2, dir.cast_signed())?;
        statement.raw_bind_parameter(at + 3, row.size.cast_signed())?;
        statement.raw_bind_parameter(at + 4, row.mtime)?;
        statement.raw_bind_parameter(at + 5, row.ctime)?;
        statement.raw_bind_parameter(at + 6, row.digest)?;
    }
    statement.raw_execute()?;
    Ok(())
}

/// A digest with the check of its row behind it, in which the identity counts:
/// two filesystems whose ids fall together do not answer for each other.
pub(super) fn checked(
    identity: &Identity,
    stat: &Stat,
    times: (i64, i64),
    digest: u128,
) -> [u8; 24] {
    let mut text = [0; 48];
    text[..16].copy_from_slice(&digest.to_be_bytes());
    let numbers = [
        stat.ino,
        stat.size,
        times.0.cast_unsigned(),
        times.1.cast_unsigned(),
    ];
    for (bytes, number) in text[16..].chunks_exact_mut(8).zip(numbers) {
        bytes.copy_from_slice(&number.to_be_bytes());
    }
    let check = xxh3_64_with_seed(&text, xxh3_64(&identity.uuid));
    let mut kept = [0; 24];
    kept[..16].copy_from_slice(&text[..16]);
    kept[16..].copy_from_slice(&check.to_be_bytes());
    kept
}

pub(super) fn digest_of(kept: &[u8; 24]) -> u128 {
    let mut digest = [0; 16];
    digest.copy_from_slice(&kept[..16]);
    u128::from_be_bytes(digest)
}

/// Since the epoch; none before 1677 and after 2262.
pub(super) fn nanoseconds(time: Time) -> Option<i64> {
    time.s
        .checked_mul(1_000_000_000)?
        .checked_add(time.ns.into())
}
