//! What each argument names, and where it lands.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;

use crate::error::{During, Error, Failure, Op};
use crate::plan::scan::Start;
use crate::plan::{Kind, Source};
use crate::sys::beneath::Root;

/// A source argument, looked at.
pub(super) struct Argument<'a> {
    pub(super) path: &'a Path,
    /// `a/`, `.`, `..`, `/`: what is in it, not it.
    contents: bool,
    pub(super) kind: Kind,
}

pub(super) fn look(path: &Path) -> Result<Argument<'_>, Error> {
    let bytes = path.as_os_str().as_bytes();
    let contents = bytes.ends_with(b"/")
        || matches!(
            path.components().next_back(),
            Some(Component::CurDir | Component::ParentDir | Component::RootDir) | None
        )
        || bytes.ends_with(b"/.");
    let found = if contents {
        fs::metadata(path)
    } else {
        fs::symlink_metadata(path)
    };
    let found = found.during(Op::Stat, path)?;
    let kind = if found.is_dir() {
        Kind::Dir
    } else if contents {
        return Err(Failure::new(Op::Open, path, Errno::ENOTDIR.into()).into());
    } else if found.is_file() {
        Kind::File
    } else {
        // Which of the others does not matter here.
        Kind::Symlink
    };
    Ok(Argument {
        path,
        contents,
        kind,
    })
}

/// The destination's root, and the name of a single file in it.
pub(super) type Landing = (PathBuf, Option<Box<[u8]>>);

/// Where the destination's root is, and the name that a single file gets.
pub(super) fn landing(arguments: &[Argument<'_>], dest: &Path) -> Result<Landing, Error> {
    let wants_dir = dest.as_os_str().as_bytes().ends_with(b"/");
    let is_dir = match fs::metadata(dest) {
        Ok(found) => Some(found.is_dir()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(Failure::new(Op::Stat, dest, e).into()),
    };
    // A dangling symlink is a name that is taken, not one that is free.
    let is_free = is_dir.is_none() && fs::symlink_metadata(dest).is_err();
    match (arguments, is_dir) {
        (_, Some(true)) => Ok((dest.to_path_buf(), None)),
        ([one], _) if one.kind != Kind::Dir && !wants_dir => {
            let name = dest
                .file_name()
                .ok_or_else(|| Error::from(Failure::new(Op::Create, dest, Errno::EISDIR.into())))?;
            Ok((parent(dest).to_path_buf(), Some(name.as_bytes().into())))
        }
        (_, None) if is_free => Ok((dest.to_path_buf(), None)),
        _ => Err(Failure::new(Op::Open, dest, Errno::ENOTDIR.into()).into()),
    }
}

pub(super) fn start(argument: &Argument<'_>, rename: Option<&[u8]>) -> Result<Start, Error> {
    let path = argument.path;
    let name: Box<[u8]> = path
        .file_name()
        .map(|name| name.as_bytes().into())
        .unwrap_or_default();
    let holds_one = argument.kind != Kind::Dir;
    let root_path = if holds_one { parent(path) } else { path };
    let root = Root::open(root_path).during(Op::Open, root_path)?;
    let below = if holds_one || argument.contents {
        Box::default()
    } else {
        name.clone()
    };
    let source = Source {
        root,
        path: root_path.to_path_buf(),
        below,
        holds_one,
        rename: rename.map(Into::into),
    };
    Ok(Start {
        source: Arc::new(source),
        only: holds_one.then_some(name),
    })
}

/// The canonical path of what is read: of a directory, or of the directory
/// that holds the one entry.
pub(super) fn canonical(argument: &Argument<'_>) -> Result<PathBuf, Error> {
    let path = if argument.kind == Kind::Dir {
        argument.path
    } else {
        parent(argument.path)
    };
    Ok(fs::canonicalize(path).during(Op::Open, path)?)
}

/// The canonical path that a destination has or will have.
pub(super) fn will_be(path: &Path) -> Result<PathBuf, Error> {
    match fs::canonicalize(path) {
        Ok(path) => Ok(path),
        Err(e) if e.kind() == io::ErrorKind::NotFound && parent(path) != path => {
            let name = path.file_name().unwrap_or_default();
            Ok(will_be(parent(path))?.join(name))
        }
        Err(e) => Err(Failure::new(Op::Open, path, e).into()),
    }
}

/// The directory that holds a path; `.` for a bare name.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}
