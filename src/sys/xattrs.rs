//! Extended attributes, POSIX ACLs and file capabilities among them (the
//! kernel shows both as attributes: xattr(7), acl(5)).
//!
//! Entries that must not be opened are reached through /proc/self/fd, whose
//! last component is not followed (lsetxattr(2)).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::errno::Errno;
use xattr::FileExt;

use super::special::proc_name;

mod at;

/// Names and values, sorted by name, ACLs last: setting one may take away the
/// right to set the others.
pub(crate) type Xattrs = Vec<(OsString, Vec<u8>)>;

/// Where attributes are: an open file, or a name in an open directory.
pub(crate) enum Place<'a> {
    Open(&'a File),
    Name(BorrowedFd<'a>, &'a [u8]),
    Path(PathBuf),
}

impl<'a> Place<'a> {
    pub(crate) fn name(dir: &'a impl AsFd, name: &'a [u8]) -> Place<'a> {
        Place::Name(dir.as_fd(), name)
    }

    fn list(&self) -> io::Result<Vec<OsString>> {
        let names = match self {
            Place::Open(file) => file.list_xattr(),
            Place::Path(path) => xattr::list(path),
            Place::Name(dir, name) => match at::list(*dir, name) {
                Ok(Some(names)) => {
                    let names = names.split(|&b| b == 0).filter(|name| !name.is_empty());
                    let names = names.map(OsStr::from_bytes);
                    return Ok(names.filter(|n| !is_alias(n)).map(OsString::from).collect());
                }
                Ok(None) => xattr::list(proc_name(dir, name)),
                Err(e) => Err(e),
            },
        };
        match names {
            Ok(names) => Ok(names.filter(|name| !is_alias(name)).collect()),
            // A filesystem without attributes has none.
            Err(e) if is_unsupported(&e) => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    /// One attribute, if it is there.
    pub(crate) fn get(&self, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        match self {
            Place::Open(file) => file.get_xattr(name),
            Place::Path(path) => xattr::get(path, name),
            Place::Name(dir, at) => xattr::get(proc_name(dir, at), name),
        }
    }

    pub(crate) fn set(&self, name: &OsStr, value: &[u8]) -> io::Result<()> {
        match self {
            Place::Open(file) => file.set_xattr(name, value),
            Place::Path(path) => xattr::set(path, name, value),
            Place::Name(dir, at) => xattr::set(proc_name(dir, at), name, value),
        }
    }

    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        match self {
            Place::Open(file) => file.remove_xattr(name),
            Place::Path(path) => xattr::remove(path, name),
            Place::Name(dir, at) => xattr::remove(proc_name(dir, at), name),
        }
    }

    /// All attributes. One that vanishes between list and get is left out.
    pub(crate) fn read(&self) -> io::Result<Xattrs> {
        let names = self.list()?;
        let mut all = Xattrs::new();
        for name in names {
            // Whoever may not see a value (another user's security.*) cannot
            // copy it either; names that only listing shows are passed over.
            if let Some(value) = self.get(&name)? {
                all.push((name, value));
            }
        }
        all.sort_by(|(a, _), (b, _)| (is_acl(a), a).cmp(&(is_acl(b), b)));
        Ok(all)
    }

    /// Whether a directory hands an ACL down to what is made in it.
    pub(crate) fn hands_down_acl(&self) -> io::Result<bool> {
        match self.get(OsStr::new(DEFAULT_ACL)) {
            Ok(value) => Ok(value.is_some()),
            Err(e) if is_unsupported(&e) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Makes the attributes equal to `want`: sets what differs, removes what
    /// is not wanted. Where `fresh`, there is nothing to remove.
    ///
    /// Returns those that could not be set or removed.
    pub(crate) fn make_equal(&self, want: &Xattrs, fresh: bool) -> Vec<(OsString, io::Error)> {
        let mut failed = Vec::new();
        let have = if fresh {
            Xattrs::new()
        } else {
            match self.read() {
                Ok(have) => have,
                Err(e) => return vec![(OsString::from("(list)"), e)],
            }
        };
        for (name, value) in want {
            if !have.iter().any(|(n, v)| n == name && v == value)
                && let Err(e) = self.set(name, value)
            {
                failed.push((name.clone(), e));
            }
        }
        for (name, _) in &have {
            let is_wanted = want.iter().any(|(n, _)| n == name);
            if !is_wanted && !is_local(name) {
                match self.remove(name) {
                    Err(e) if e.raw_os_error() == Some(Errno::ENODATA as i32) => {}
                    Err(e) => failed.push((name.clone(), e)),
                    Ok(()) => {}
                }
            }
        }
        failed
    }
}

const DEFAULT_ACL: &str = "system.posix_acl_default";

fn is_acl(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"system.posix_acl_")
}

/// A filesystem's second name for an attribute that it shows under its common
/// name too: XFS lists ACLs to root as trusted.SGI_ACL_FILE and _DEFAULT.
/// Removing the alias would remove the ACL (libattr's xattr.conf skips it as
/// well).
fn is_alias(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"trusted.SGI_ACL_")
}

/// Labels that the destination's own policy gives (SELinux), never removed.
pub(crate) fn is_local(name: &OsStr) -> bool {
    name == "security.selinux"
}

/// Whether the filesystem has no such attributes at all.
pub(crate) fn is_unsupported(e: &io::Error) -> bool {
    e.raw_os_error()
        .is_some_and(|n| n == Errno::EOPNOTSUPP as i32 || n == Errno::ENOSYS as i32)
}

/// Whether only a privileged user could set this attribute.
pub(crate) fn is_privileged(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}
