//! Which of a directory's names count: those that are listed (`--files-from`),
//! and that no filter leaves out.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use nix::errno::Errno;

use super::Scan;
use super::list::Name;
use crate::error::{Failure, Op};
use crate::filter::files::{Lost, Scope};
use crate::plan::{Kind, Role};
use crate::sys::beneath;
use crate::sys::metadata::Stat;

/// Takes out the names and directories that do not count, and counts them. Gives
/// what the directory itself is, and the listed paths that cannot be reached,
/// relative to it.
///
/// `relative` is its path below the source's root, `below` that below the
/// destination's.
pub(super) fn select(
    scan: &Scan<'_>,
    relative: &[u8],
    below: &[u8],
    names: &mut Vec<Name>,
    children: &mut Vec<(u64, Box<[u8]>)>,
) -> (Role, Vec<(Vec<u8>, Lost)>) {
    let filter = scan.filter;
    let takes = |name: &[u8], is_dir| {
        let taken = filter.takes_all_names() || filter.takes(&beneath::join([below, name]), is_dir);
        if !taken {
            scan.counters.excluded.fetch_add(1, Relaxed);
        }
        taken
    };
    let Some(files) = &filter.files else {
        names.retain(|entry| takes(&entry.name, false));
        children.retain(|(_, name)| takes(name, true));
        return (Role::Entry, Vec::new());
    };
    let scope = files.scope(relative, |path| filter.takes(path, true));
    let lost = lost(&scope, names, children);
    // Where what a symlink leads to was meant, it does not stand for that.
    let followed: HashSet<&[u8]> = lost.iter().map(|(path, _)| &path[..]).collect();
    names.retain(|it| {
        let is_followed = it.kind == Kind::Symlink && followed.contains(&it.name[..]);
        scope.takes(&it.name) && !is_followed && takes(&it.name, false)
    });
    children.retain(|(_, name)| scope.is_way(name) || scope.takes(name) && takes(name, true));
    let role = match relative.is_empty() {
        _ if scope.is_listed => Role::Entry,
        true => Role::Holder,
        // Made whatever becomes of what is in it: its size may leave it out.
        false if !names.is_empty() => Role::Entry,
        false => Role::Way,
    };
    (role, lost)
}

fn lost(scope: &Scope<'_>, names: &[Name], children: &[(u64, Box<[u8]>)]) -> Vec<(Vec<u8>, Lost)> {
    if !scope.names_some() {
        return Vec::new();
    }
    let dirs = children.iter().map(|(_, name)| (&name[..], Kind::Dir));
    let others = names.iter().map(|it| (&it.name[..], it.kind));
    let kinds: HashMap<&[u8], Kind> = dirs.chain(others).collect();
    scope.lost(|name| kinds.get(name).copied())
}

/// Looks for the listed names of a directory that may be entered but not read;
/// none where every name counts. What is not there is no failure here.
pub(super) fn look_up(scan: &Scan<'_>, relative: &[u8], dir: impl AsFd) -> Option<LookedUp> {
    let files = scan.filter.files.as_ref()?;
    let scope = files.scope(relative, |path| scan.filter.takes(path, true));
    let mut found = LookedUp::default();
    for name in scope.only()? {
        match Stat::at(&dir, name) {
            Ok(stat) if stat.kind() == Kind::Dir => found.children.push((stat.ino, name.into())),
            Ok(stat) => found.names.push(Name {
                ino: stat.ino,
                kind: stat.kind(),
                name: name.into(),
            }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => found.failed.push((name.into(), e)),
        }
    }
    Some(found)
}

/// Names of a directory that were asked for one by one.
#[derive(Debug, Default)]
pub(super) struct LookedUp {
    pub(super) names: Vec<Name>,
    pub(super) children: Vec<(u64, Box<[u8]>)>,
    pub(super) failed: Vec<(Box<[u8]>, io::Error)>,
}

/// What is said of a listed path that cannot be reached.
pub(super) fn failure(path: PathBuf, why: Lost) -> Failure {
    match why {
        // It has not vanished meanwhile: whoever made the list is to know.
        Lost::Missing => Failure::because(Op::Stat, path, "it is listed, but not there"),
        Lost::NoDirectory => Failure::new(Op::Stat, path, Errno::ENOTDIR.into()),
        Lost::BehindLink => {
            let why = "a symlink leads there, which is not followed: list it by its own path";
            Failure::because(Op::Stat, path, why)
        }
    }
}
