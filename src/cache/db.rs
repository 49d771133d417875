//! The database file: made private, opened with care, and told apart from what
//! is not ours to use. Every reason against it is a [`Why`].

use std::fmt;
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

/// "haul", so that file(1) and we know whose it is.
const APPLICATION: i32 = 0x6861_756c;
const VERSION: i32 = 1;
/// A batch of another run takes milliseconds; who holds it longer than this is
/// not waited for.
const PATIENCE: Duration = Duration::from_secs(3);

/// `fs` is made of the filesystem's identity instead of counted up: a run that
/// holds one stays right when another run clears the cache meanwhile. Times are
/// nanoseconds since the epoch. `digest` has a check of the whole row behind
/// it, since SQLite itself would not notice a flipped bit in it.
const SCHEMA: &str = "
    CREATE TABLE filesystems(id INTEGER PRIMARY KEY, kind TEXT NOT NULL, uuid BLOB NOT NULL);
    CREATE TABLE dirs(fs INTEGER NOT NULL, ino INTEGER NOT NULL, path BLOB NOT NULL,
        PRIMARY KEY(fs, ino)) WITHOUT ROWID;
    CREATE TABLE files(fs INTEGER NOT NULL, ino INTEGER NOT NULL, dir INTEGER NOT NULL,
        size INTEGER NOT NULL, mtime INTEGER NOT NULL, ctime INTEGER NOT NULL,
        digest BLOB NOT NULL, PRIMARY KEY(fs, ino)) WITHOUT ROWID;";

/// Made when there are files: to build it at once costs a fraction of what each
/// row of a first run would add to it.
const INDEX: &str = "CREATE INDEX IF NOT EXISTS files_of ON files(dir)";

/// Why the file cannot be used.
#[derive(Debug)]
pub(super) enum Why {
    Damaged(String),
    Locked,
    ReadOnly,
    Foreign,
    Later(i32),
    NotPrivate,
    NotAFile,
    Io(&'static str, io::Error),
    Sql(rusqlite::Error),
}

impl Why {
    /// The end of a sentence that begins with the file's path.
    pub(super) fn sentence(&self, path: &Path) -> String {
        format!("the cache {} is not used: {self}", path.display())
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Damaged(how) => {
                write!(
                    f,
                    "it is damaged ({how}); haul cache --clear begins a new one"
                )
            }
            Why::Locked => f.write_str("another program holds it locked"),
            Why::ReadOnly => f.write_str("it cannot be written"),
            Why::Foreign => f.write_str("it is a database of another program"),
            Why::Later(version) => write!(f, "a later version of haul wrote it (format {version})"),
            Why::NotPrivate => f.write_str("others than its user can write it"),
            Why::NotAFile => f.write_str("it is no regular file"),
            Why::Io(step, e) => write!(f, "cannot {step} it: {e}"),
            Why::Sql(e) => write!(f, "{e}"),
        }
    }
}

impl From<rusqlite::Error> for Why {
    fn from(e: rusqlite::Error) -> Why {
        match e.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Why::Damaged(e.to_string())
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Why::Locked,
            Some(ErrorCode::ReadOnly) => Why::ReadOnly,
            // A column of another type than we wrote, a table that is not there.
            None | Some(ErrorCode::Unknown) => Why::Damaged(e.to_string()),
            Some(_) => Why::Sql(e),
        }
    }
}

/// Makes an empty private file, and the directories to it, where there is none.
/// Modes are given here since the umask may be 0.
pub(super) fn create(path: &Path) -> Result<(), Why> {
    if let Some(parent) = path.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
        made.map_err(|e| Why::Io("make the directory of", e))?;
    }
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    match made {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(Why::Io("make", e)),
        _ => Ok(()),
    }
}

/// Opens a file that is there, as ours and in the version that we know; tells
/// whether it has any digests.
pub(super) fn open(path: &Path) -> Result<(Connection, bool), Why> {
    let mut connection = connect(path)?;
    if number(&connection, "application_id")? == 0 {
        begin(&mut connection)?;
    }
    if number(&connection, "application_id")? != APPLICATION {
        return Err(Why::Foreign);
    }
    match number(&connection, "user_version")? {
        VERSION => {}
        version if version < VERSION => {
            return Err(Why::Damaged(format!("there is no format {version}")));
        }
        version => return Err(Why::Later(version)),
    }
    write_ahead(&connection)?;
    let any = "SELECT EXISTS(SELECT 1 FROM files)";
    let has_files: bool = connection.query_row(any, [], |row| row.get(0))?;
    if has_files {
        connection.execute_batch(INDEX)?;
    }
    Ok((connection, has_files))
}

/// Opens the file whatever is in it.
pub(super) fn connect(path: &Path) -> Result<Connection, Why> {
    let there = std::fs::metadata(path).map_err(|e| Why::Io("look at", e))?;
    // SQLite would wait for ever at a FIFO.
    if !there.is_file() {
        return Err(Why::NotAFile);
    }
    // Who can write here could tell root that a file has some other content.
    // So could who can write to the directory: SQLite plays back a log that
    // lies beside the file, whoever made it.
    let dir = path.parent().map(std::fs::metadata).transpose();
    let dir = dir.map_err(|e| Why::Io("look at the directory of", e))?;
    if !is_private(&there) || dir.is_some_and(|dir| !is_private(&dir)) {
        return Err(Why::NotPrivate);
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|e| {
        // No right to open it at all.
        match e.sqlite_error_code() {
            Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => Why::ReadOnly,
            _ => e.into(),
        }
    })?;
    if connection.is_readonly("main")? {
        return Err(Why::ReadOnly);
    }
    connection.busy_timeout(PATIENCE)?;
    connection.set_prepared_statement_cache_capacity(16);
    connection.execute_batch(
        "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;
         PRAGMA synchronous = NORMAL; PRAGMA cache_size = -65536;",
    )?;
    Ok(connection)
}

fn is_private(there: &std::fs::Metadata) -> bool {
    let user = nix::unistd::geteuid().as_raw();
    there.mode() & 0o022 == 0 && (there.uid() == user || there.uid() == 0)
}

/// Makes the tables in a file that is still empty; another run may be about to
/// do the same.
fn begin(connection: &mut Connection) -> Result<(), Why> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let tables: i64 =
        transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables == 0 && number(&transaction, "user_version")? == 0 {
        transaction.execute_batch(SCHEMA)?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
    }
    Ok(transaction.commit()?)
}

/// Readers and a writer do not wait for each other with a write-ahead log.
fn write_ahead(connection: &Connection) -> Result<(), Why> {
    let start = Instant::now();
    loop {
        // SQLite does not wait by itself here (it could deadlock).
        let mode = connection.query_row("PRAGMA journal_mode = WAL", [], |row| {
            row.get::<_, String>(0)
        });
        match mode.map_err(Why::from) {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(_) => return Err(Why::ReadOnly),
            Err(Why::Locked) if start.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(why) => return Err(why),
        }
    }
}

/// Reads the whole file.
pub(super) fn check(connection: &Connection) -> Result<(), Why> {
    let answer: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    match answer.as_str() {
        "ok" => Ok(()),
        _ => Err(Why::Damaged(answer)),
    }
}

fn number(connection: &Connection, pragma: &str) -> Result<i32, Why> {
    Ok(connection.pragma_query_value(None, pragma, |row| row.get(0))?)
}
