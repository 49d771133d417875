//! `--backup`: what is replaced or removed at the destination keeps a name:
//! with a suffix beside it, or under the same path in another directory.
//!
//! The old inode gets its second name first, and loses the first one when the
//! new file is renamed over it: so the name is there at every moment. Where no
//! link can be made, the old file is moved.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use crate::error::{During, Error, Op};
use crate::job::Backup;
use crate::plan::Kind;
use crate::sys::beneath::{self, Root};
use crate::sys::metadata::{Stat, Target};
use crate::work::spot::temporary_name;

/// Where old files go.
#[derive(Debug)]
pub(crate) struct Backups {
    suffix: Vec<u8>,
    dir: Option<Place>,
}

#[derive(Debug)]
struct Place {
    path: PathBuf,
    /// Its path below the destination's root, if it is given so.
    below: Option<Vec<u8>>,
    /// Opened, and made, when there is something to keep.
    root: OnceLock<Result<Root, i32>>,
}

/// What became of the old file's own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Old {
    /// There was none.
    Nothing,
    /// It has it still.
    Linked,
    /// It has lost it.
    Moved,
}

impl Backups {
    pub(crate) fn new(backup: &Backup, dest: &Path) -> Backups {
        Backups {
            suffix: backup.suffix.as_bytes().to_vec(),
            dir: backup.dir.as_deref().map(|dir| Place {
                path: dest.join(dir),
                below: below(dir),
                root: OnceLock::new(),
            }),
        }
    }

    /// The name that an old file gets in its own directory.
    pub(crate) fn name_beside(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.dir.is_none().then(|| self.name(name))
    }

    fn name(&self, name: &[u8]) -> Vec<u8> {
        [name, &self.suffix].concat()
    }

    /// Whether a directory is the one that holds the backups.
    pub(crate) fn is_dir(&self, stat: &Stat) -> bool {
        let root = self.dir.as_ref().and_then(|place| place.root.get());
        let root = root.and_then(|root| root.as_ref().ok());
        root.is_some_and(|root| Stat::of(root).is_ok_and(|s| s.is_same_inode(stat)))
    }

    /// Gives what has a name in the directory `fd`, at `dir` below `dest`, its
    /// backup's name.
    pub(crate) fn keep(
        &self,
        dest: &Root,
        fd: &impl AsFd,
        dir: &[u8],
        name: &[u8],
    ) -> io::Result<Old> {
        let old = match Stat::at(fd, name) {
            Err(e) if e.raw_os_error() == Some(Errno::ENOENT as i32) => return Ok(Old::Nothing),
            other => other?,
        };
        // A directory is kept by its files.
        if old.kind() == Kind::Dir {
            return Ok(Old::Nothing);
        }
        let to_name = self.name(name);
        match &self.dir {
            None => keep_as(&old, fd, name, fd, &to_name),
            Some(place) => {
                let to = place.dir(dest, dir)?;
                keep_as(&old, fd, name, &to, &to_name)
            }
        }
    }
}

impl Place {
    /// Opens, made where missing, the directory for the files of `dir`.
    fn dir(&self, dest: &Root, dir: &[u8]) -> io::Result<OwnedFd> {
        let root = self
            .root
            .get_or_init(|| self.open(dest).map_err(|e| e.raw_os_error().unwrap_or(0)));
        let root = root
            .as_ref()
            .map_err(|&errno| io::Error::from_raw_os_error(errno))?;
        match root.dir(dir) {
            Err(e) if e.raw_os_error() == Some(Errno::ENOENT as i32) => {}
            other => return other,
        }
        make_path(root, dir, |below| dest.dir(below).and_then(Stat::of).ok())
    }

    fn open(&self, dest: &Root) -> io::Result<Root> {
        match &self.below {
            // Nothing at the destination may lead elsewhere.
            Some(below) => {
                make_path(dest, below, |_| None)?;
                let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
                Ok(Root::of(dest.at(below, flags)?))
            }
            None => {
                let mut parents = DirBuilder::new();
                parents.mode(0o700).recursive(true);
                parents.create(&self.path)?;
                Root::open(&self.path)
            }
        }
    }
}

/// Makes the directories of a path, private or as `like` says.
fn make_path(
    root: &Root,
    path: &[u8],
    like: impl Fn(&[u8]) -> Option<Stat>,
) -> io::Result<OwnedFd> {
    let mut made = Vec::new();
    let mut at = root.dir(b"")?;
    for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
        let is_new = match mkdirat(&at, name, Mode::S_IRWXU) {
            Err(Errno::EEXIST) => false,
            other => other.map(|()| true)?,
        };
        made = beneath::join([&made[..], name]);
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        at = if is_new {
            beneath::open_dir_here(at.as_fd(), name, flags)?
        } else {
            root.dir(&made)?
        };
        if let Some(want) = like(&made).filter(|_| is_new) {
            let file = File::from(at.try_clone()?);
            let target = Target::Open(&file);
            let owner = target.set_owner(&want, &Stat::of(&file)?)?;
            target.set_permissions(owner.permissions(&want))?;
        }
    }
    Ok(at)
}

fn keep_as(
    old: &Stat,
    fd: &impl AsFd,
    name: &[u8],
    to: &impl AsFd,
    to_name: &[u8],
) -> io::Result<Old> {
    match linkat(fd, name, to, to_name, AtFlags::empty()) {
        Ok(()) => return Ok(Old::Linked),
        Err(Errno::EEXIST) => {}
        Err(errno) => return move_to(errno, fd, name, to, to_name),
    }
    // An older backup; renaming one name of an inode over another does nothing.
    if Stat::at(to, to_name)?.is_same_inode(old) {
        // Unless it is the very name that is about to be replaced.
        if name == to_name && Stat::of(to)?.is_same_inode(&Stat::of(fd)?) {
            return Err(io::Error::other("its backup's name is its own"));
        }
        return Ok(Old::Linked);
    }
    loop {
        let temporary = temporary_name();
        match linkat(fd, name, to, temporary.as_str(), AtFlags::empty()) {
            Err(Errno::EEXIST) => {}
            Err(errno) => return move_to(errno, fd, name, to, to_name),
            Ok(()) => {
                if let Err(errno) = renameat(to, temporary.as_str(), to, to_name) {
                    unlinkat(to, temporary.as_str(), UnlinkatFlags::NoRemoveDir)?;
                    return Err(errno.into());
                }
                return Ok(Old::Linked);
            }
        }
    }
}

/// Where links cannot be made, or not to this file (protected_hardlinks), the
/// old file is moved, and its name is missing for a moment.
fn move_to(
    errno: Errno,
    fd: &impl AsFd,
    name: &[u8],
    to: &impl AsFd,
    to_name: &[u8],
) -> io::Result<Old> {
    match errno {
        Errno::EPERM | Errno::EOPNOTSUPP | Errno::EMLINK | Errno::ENOSYS => {
            renameat(fd, name, to, to_name)?;
            Ok(Old::Moved)
        }
        other => Err(other.into()),
    }
}

/// The path of a relative directory below the destination's root; none where
/// it leads out of it (`../old`), which its owner may well want.
fn below(dir: &Path) -> Option<Vec<u8>> {
    let mut names: Vec<&[u8]> = Vec::new();
    for component in dir.components() {
        match component {
            Component::Normal(name) => names.push(name.as_bytes()),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(beneath::join(names))
}

/// Says what is wrong with a choice of backups before anything is written.
pub(crate) fn check(backup: &Backup, dest: &Path) -> Result<(), Error> {
    let refuse = |why: String| Err(Error::Refused(why));
    if backup.suffix.as_bytes().contains(&b'/') {
        return refuse("--suffix is the end of a name: it cannot hold a slash".into());
    }
    let Some(dir) = &backup.dir else {
        if backup.suffix == OsStr::new("") {
            return refuse("--backup needs a --suffix that is not empty, or a --backup-dir".into());
        }
        return Ok(());
    };
    let path = dest.join(dir);
    let stat_of = |path: &Path| Root::open(path).and_then(Stat::of);
    if let (Ok(there), Ok(at)) = (stat_of(&path), stat_of(dest))
        && there.is_same_inode(&at)
    {
        return refuse(
            "--backup-dir is the destination itself: name another, or only a --suffix".into(),
        );
    }
    if nearest(&path)?.dev != nearest(dest)?.dev {
        return refuse(format!(
            "--backup-dir \"{}\" is on another filesystem than the destination: choose one on the same",
            path.display()
        ));
    }
    Ok(())
}

/// What a path is, or will be made in.
pub(crate) fn nearest(path: &Path) -> Result<Stat, Error> {
    let mut at = path;
    loop {
        match std::fs::canonicalize(at).and_then(|real| Root::open(&real).and_then(Stat::of)) {
            Ok(stat) => return Ok(stat),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => return Ok(other.during(Op::Stat, path)?),
        }
        at = match at.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
    }
}
