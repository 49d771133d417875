//! `--link-dest`: earlier copies whose unchanged files get one more name at the
//! destination instead of a copy.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::OFlag;

use super::Dest;
use crate::backup;
use crate::error::{Error, Failure, Op};
use crate::plan::{Dir, Kind};
use crate::sys::beneath::{self, Root};
use crate::sys::metadata::Stat;

/// The earlier copies, opened, in the order in which they are asked.
pub(crate) type References = Arc<[Root]>;

/// Opens the directories that `--link-dest` names.
pub(crate) fn open(dirs: &[PathBuf], dest: &Path) -> Result<References, Error> {
    let refuse = |why: String| Err(Error::Refused(why));
    let mut roots = Vec::new();
    for dir in dirs {
        let path = resolve(dir, dest);
        let root = match Root::open(&path) {
            Ok(root) => root,
            Err(e) => return Err(Failure::new(Op::Open, path, e).detail("--link-dest").into()),
        };
        let stat = Stat::of(&root).map_err(|e| Failure::new(Op::Open, &path, e))?;
        if Root::open(dest)
            .and_then(Stat::of)
            .is_ok_and(|at| at.is_same_inode(&stat))
        {
            return refuse(format!(
                "--link-dest \"{}\" is the destination itself: name an earlier copy",
                path.display()
            ));
        }
        if backup::nearest(dest)?.dev != stat.dev {
            return refuse(format!(
                "--link-dest \"{}\" is on another filesystem than the destination, where no hard link leads",
                path.display()
            ));
        }
        roots.push(root);
    }
    Ok(roots.into())
}

/// A relative directory is below the destination. Where that is still to be
/// made, the kernel cannot walk through it: `NEW/../OLD` is `OLD` beside it.
pub(crate) fn resolve(dir: &Path, dest: &Path) -> PathBuf {
    let joined = dest.join(dir);
    if dir.is_absolute() || dest.exists() {
        return joined;
    }
    let mut path = dest.to_path_buf();
    for component in dir.components() {
        match component {
            // A bare name is below the working directory.
            Component::ParentDir if path.parent() == Some(Path::new("")) => path = ".".into(),
            Component::ParentDir if path.file_name().is_some() => {
                path.pop();
            }
            other => path.push(other),
        }
    }
    path
}

impl Dest {
    /// Whether an earlier copy seems to have an unchanged file, by one stat.
    pub(crate) fn is_referenced(&self, dir: &Dir, name: &[u8], stat: &Stat) -> bool {
        if self.references.is_empty() || stat.kind() != Kind::File {
            return false;
        }
        let path = beneath::join([&dir.relative_dest()[..], dir.dest_name(name)]);
        self.references.iter().any(|root| {
            let looked = root.at(&path, OFlag::O_PATH).and_then(Stat::of);
            looked.is_ok_and(|there| self.is_unchanged(stat, &there))
        })
    }

    /// Whether a file of an earlier copy has kind, size, time and mode of a
    /// source's.
    pub(crate) fn is_unchanged(&self, stat: &Stat, there: &Stat) -> bool {
        there.kind() == Kind::File
            && !there.is_same_inode(stat)
            && self.is_same_content_by_stat(stat, there)
            && (self.is_user()
                || (there.uid, there.gid, there.permissions())
                    == (stat.uid, stat.gid, stat.permissions()))
    }
}
