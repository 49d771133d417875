//! What can go wrong, in two sizes.
//!
//! [`Error`]: the job cannot start or cannot go on. [`Failure`]: one entry was
//! not copied exactly; it is collected with its path, the step and the
//! `io::Error` itself, and never stops the others.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// The step in which an entry failed: the word after "cannot" in a message and
/// the `during` of a JSON line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Listing a source directory.
    Scan,
    /// Asking for a source entry's metadata.
    Stat,
    /// Opening a source file.
    Open,
    /// Reading a source file, a link's target or its extended attributes.
    Read,
    /// Making a name at the destination.
    Create,
    /// Writing data at the destination.
    Write,
    /// Setting owner, mode, extended attributes or times.
    SetMetadata,
    /// Flushing the destination to its medium.
    Sync,
    /// Moving a finished temporary over an existing name.
    Rename,
    /// Making a hard link.
    Link,
    /// Removing what no source has, or one of our own unfinished files.
    Remove,
    /// Comparing content read back from the destination.
    Verify,
    /// Comparing kind, metadata, holes or links of a finished entry.
    Compare,
}

impl Op {
    /// Every step, for tests that must cover them all.
    pub const ALL: [Op; 13] = [
        Op::Scan,
        Op::Stat,
        Op::Open,
        Op::Read,
        Op::Create,
        Op::Write,
        Op::SetMetadata,
        Op::Sync,
        Op::Rename,
        Op::Link,
        Op::Remove,
        Op::Verify,
        Op::Compare,
    ];

    /// One lower-case word, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Op::Scan => "scan",
            Op::Stat => "stat",
            Op::Open => "open",
            Op::Read => "read",
            Op::Create => "create",
            Op::Write => "write",
            Op::SetMetadata => "set-metadata",
            Op::Sync => "sync",
            Op::Rename => "rename",
            Op::Link => "link",
            Op::Remove => "remove",
            Op::Verify => "verify",
            Op::Compare => "compare",
        }
    }

    /// The step as the verb of a message.
    pub fn verb(self) -> &'static str {
        match self {
            Op::Scan => "list",
            Op::SetMetadata => "set the metadata of",
            Op::Compare => "confirm",
            other => other.name(),
        }
    }

    /// Whether the step looks at the source, where "not found" means that the
    /// entry vanished after it was listed.
    pub(crate) fn is_on_source(self) -> bool {
        matches!(self, Op::Scan | Op::Stat | Op::Open | Op::Read)
    }
}

/// One entry that was not copied exactly.
#[derive(Debug)]
pub struct Failure {
    /// The path that the step was about: of the source or of the destination.
    pub path: PathBuf,
    /// What was being done.
    pub op: Op,
    /// Which part of the entry, where that is not clear (an attribute's name).
    pub detail: Option<Box<str>>,
    /// The kernel's answer, or `ErrorKind::Other`/`InvalidData` with our words.
    pub source: io::Error,
}

impl Failure {
    pub(crate) fn new(op: Op, path: impl Into<PathBuf>, source: io::Error) -> Failure {
        Failure {
            path: path.into(),
            op,
            detail: None,
            source,
        }
    }

    pub(crate) fn detail(mut self, detail: impl Into<Box<str>>) -> Failure {
        self.detail = Some(detail.into());
        self
    }

    /// A failure that the kernel has no errno for.
    pub(crate) fn because(op: Op, path: impl Into<PathBuf>, why: impl Into<String>) -> Failure {
        Failure::new(op, path, io::Error::other(why.into()))
    }

    /// Whether this is a source entry that vanished after the scan.
    pub fn is_vanished(&self) -> bool {
        self.op.is_on_source() && self.source.raw_os_error() == Some(Errno::ENOENT as i32)
    }

    /// Whether content at the destination differs from what was read.
    pub fn is_wrong_content(&self) -> bool {
        // Not being able to look (no right, no descriptor) is no such proof; a
        // medium that does not give the bytes back (EIO, EUCLEAN) is.
        let lost = [Errno::EIO as i32, Errno::EUCLEAN as i32];
        let errno = self.source.raw_os_error();
        self.op == Op::Verify && errno.is_none_or(|n| lost.contains(&n))
    }

    /// Whether the destination has no room left.
    pub fn is_full(&self) -> bool {
        let full = [Errno::ENOSPC as i32, Errno::EDQUOT as i32];
        !self.op.is_on_source()
            && self
                .source
                .raw_os_error()
                .is_some_and(|n| full.contains(&n))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, path, source) = (self.op.verb(), self.path.display(), &self.source);
        match &self.detail {
            Some(detail) => write!(f, "cannot {verb} \"{path}\" ({detail}): {source}"),
            None => write!(f, "cannot {verb} \"{path}\": {source}"),
        }
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Puts the step and the path to a result.
pub(crate) trait During<T>: Sized {
    fn during(self, op: Op, path: &Path) -> Result<T, Failure> {
        self.during_at(op, || path.to_path_buf())
    }

    /// The same with a path that is put together only where it is needed.
    fn during_at(self, op: Op, path: impl FnOnce() -> PathBuf) -> Result<T, Failure>;
}

impl<T> During<T> for io::Result<T> {
    fn during_at(self, op: Op, path: impl FnOnce() -> PathBuf) -> Result<T, Failure> {
        self.map_err(|source| Failure::new(op, path(), source))
    }
}

impl<T> During<T> for nix::Result<T> {
    fn during_at(self, op: Op, path: impl FnOnce() -> PathBuf) -> Result<T, Failure> {
        self.map_err(|errno| Failure::new(op, path(), errno.into()))
    }
}

/// Why a job could not start or go on.
#[derive(Debug)]
pub enum Error {
    /// A step on a path that everything hangs on: a source argument, the
    /// destination's root.
    Path(Failure),
    /// The destination lies inside a source, so copying would feed itself.
    Inside {
        /// The source argument.
        from: PathBuf,
        /// The destination argument.
        to: PathBuf,
    },
    /// Source and destination are one and the same directory.
    Same(PathBuf),
    /// The destination cannot hold what the plan needs.
    NoRoom(crate::plan::preflight::Shortfall),
    /// Anything else that the caller has to change, in one sentence.
    Refused(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Path(failure) => failure.fmt(f),
            Error::Inside { from, to } => write!(
                f,
                "the destination \"{}\" lies inside the source \"{}\": choose one outside it",
                to.display(),
                from.display()
            ),
            Error::Same(path) => write!(
                f,
                "source and destination are the same directory: \"{}\"",
                path.display()
            ),
            Error::NoRoom(shortfall) => shortfall.fmt(f),
            Error::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Path(failure) => Some(&failure.source),
            _ => None,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        Error::Path(failure)
    }
}
