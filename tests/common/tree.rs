//! Builds source trees. Every method takes a path below the root, makes missing parents, and
//! panics with the path when the filesystem refuses.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags, FallocateFlags, OFlag, fallocate, open, openat};
use nix::sys::stat::{Mode, SFlag, UtimensatFlags, makedev, mkdirat, mknod, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchownat, linkat, mkfifo};

use super::probe::succeeds;

/// A directory that a test fills.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
}

/// `len` bytes that depend on the seed alone and do not compress or repeat.
pub fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

impl Tree {
    pub fn new(root: PathBuf) -> Tree {
        fs::create_dir_all(&root).expect("tree root");
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).expect("tree root mode");
        Tree { root }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        if below.as_ref().as_os_str().is_empty() {
            return self.root.clone();
        }
        self.root.join(below)
    }

    /// The root with a slash behind it: its contents, to the command.
    pub fn contents(&self) -> PathBuf {
        self.root.join("")
    }

    fn with_parent(&self, below: impl AsRef<Path>) -> PathBuf {
        let path = self.path(below);
        fs::create_dir_all(path.parent().expect("parent")).expect("parents");
        path
    }

    pub fn dir(&self, below: impl AsRef<Path>) -> &Tree {
        fs::create_dir_all(self.path(below)).expect("mkdir");
        self
    }

    pub fn file(&self, below: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> &Tree {
        let path = self.with_parent(below);
        fs::write(&path, bytes).unwrap_or_else(|error| panic!("write {path:?}: {error}"));
        self
    }

    /// A file of pseudo-random bytes.
    pub fn random(&self, below: impl AsRef<Path>, seed: u64, len: usize) -> &Tree {
        self.file(below, bytes_of(seed, len))
    }

    pub fn symlink(&self, below: impl AsRef<Path>, text: impl AsRef<Path>) -> &Tree {
        let path = self.with_parent(below);
        std::os::unix::fs::symlink(text, &path)
            .unwrap_or_else(|error| panic!("symlink {path:?}: {error}"));
        self
    }

    /// A further name of anything but a directory; of a symlink itself, too.
    pub fn hard_link(&self, existing: impl AsRef<Path>, below: impl AsRef<Path>) -> &Tree {
        let (old, new) = (self.path(existing), self.with_parent(below));
        linkat(AT_FDCWD, &old, AT_FDCWD, &new, AtFlags::empty())
            .unwrap_or_else(|error| panic!("link {new:?}: {error}"));
        self
    }

    pub fn fifo(&self, below: impl AsRef<Path>) -> &Tree {
        mkfifo(&self.with_parent(below), mode(0o644)).expect("mkfifo");
        self
    }

    /// A socket that nobody listens to.
    pub fn socket(&self, below: impl AsRef<Path>) -> &Tree {
        mknod(&self.with_parent(below), SFlag::S_IFSOCK, mode(0o644), 0).expect("mknod");
        self
    }

    /// A device node; root only.
    pub fn device(&self, below: impl AsRef<Path>, kind: SFlag, major: u64, minor: u64) -> &Tree {
        let path = self.with_parent(below);
        mknod(&path, kind, mode(0o600), makedev(major, minor)).expect("mknod");
        self
    }

    /// A file of `len` bytes with data at the given places and holes elsewhere.
    pub fn sparse(&self, below: impl AsRef<Path>, len: u64, data: &[(u64, &[u8])]) -> &Tree {
        let file = File::create(self.with_parent(below)).expect("create");
        file.set_len(len).expect("set_len");
        for (offset, bytes) in data {
            file.write_all_at(bytes, *offset).expect("write");
        }
        self
    }

    /// A file with all its blocks allocated and none of them written. False: not supported here.
    #[must_use]
    pub fn preallocated(&self, below: impl AsRef<Path>, len: u64) -> bool {
        let file = File::create(self.with_parent(below)).expect("create");
        fallocate(&file, FallocateFlags::empty(), 0, len.cast_signed()).is_ok()
    }

    /// Overwrites in place: same inode, new mtime.
    pub fn write_at(&self, below: impl AsRef<Path>, offset: u64, bytes: &[u8]) -> &Tree {
        let file = OpenOptions::new()
            .write(true)
            .open(self.path(below))
            .expect("open");
        file.write_all_at(bytes, offset).expect("write");
        self
    }

    pub fn append(&self, below: impl AsRef<Path>, bytes: &[u8]) -> &Tree {
        let mut file = OpenOptions::new()
            .append(true)
            .open(self.path(below))
            .expect("open");
        file.write_all(bytes).expect("append");
        self
    }

    pub fn mode(&self, below: impl AsRef<Path>, bits: u32) -> &Tree {
        let path = self.path(below);
        fs::set_permissions(&path, fs::Permissions::from_mode(bits))
            .unwrap_or_else(|error| panic!("chmod {path:?}: {error}"));
        self
    }

    /// Changes the owner of the thing itself, also of a symlink; root only.
    pub fn owner(&self, below: impl AsRef<Path>, uid: u32, gid: u32) -> &Tree {
        let path = self.path(below);
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        fchownat(AT_FDCWD, &path, uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW).expect("chown");
        self
    }

    /// Sets the mtime of the thing itself, also of a symlink.
    pub fn mtime(&self, below: impl AsRef<Path>, seconds: i64, nanos: i64) -> &Tree {
        let path = self.path(below);
        set_times(&path, None, Some((seconds, nanos)));
        self
    }

    pub fn atime(&self, below: impl AsRef<Path>, seconds: i64, nanos: i64) -> &Tree {
        set_times(&self.path(below), Some((seconds, nanos)), None);
        self
    }

    pub fn xattr(&self, below: impl AsRef<Path>, name: &str, value: &[u8]) -> &Tree {
        let path = self.path(below);
        xattr::set(&path, name, value)
            .unwrap_or_else(|error| panic!("setxattr {name} {path:?}: {error}"));
        self
    }

    /// Adds ACL entries in setfacl's words, default ones with `d:` in front.
    pub fn acl(&self, below: impl AsRef<Path>, entries: &str) -> &Tree {
        let path = self.path(below);
        succeeds("setfacl", &["-m", entries, path.to_str().expect("UTF-8")]).expect("setfacl");
        self
    }

    /// A chain of directories whose path is longer than the kernel takes in one piece, with a
    /// file at every level. Returns the length of the last path below the root.
    pub fn deeper_than_path_max(&self, levels: usize) -> usize {
        let name = "n".repeat(200);
        let mut parent: OwnedFd =
            open(&self.root, OFlag::O_DIRECTORY, Mode::empty()).expect("open root");
        for level in 0..levels {
            mkdirat(&parent, name.as_str(), mode(0o755)).expect("mkdirat");
            parent =
                openat(&parent, name.as_str(), OFlag::O_DIRECTORY, Mode::empty()).expect("openat");
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT;
            let file = openat(&parent, "f", flags, mode(0o644)).expect("create");
            File::from(file)
                .write_all(&bytes_of(level as u64, 100))
                .expect("write");
        }
        levels * (name.len() + 1)
    }

    pub fn remove(&self, below: impl AsRef<Path>) -> &Tree {
        let path = self.path(below);
        let meta = fs::symlink_metadata(&path).expect("to be removed");
        if meta.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        }
        .expect("remove");
        self
    }

    /// Names in one directory, sorted.
    pub fn names(&self, below: impl AsRef<Path>) -> Vec<Vec<u8>> {
        names_in(&self.path(below))
    }
}

pub fn names_in(dir: &Path) -> Vec<Vec<u8>> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap_or_else(|error| panic!("list {dir:?}: {error}"))
        .map(|entry| entry.expect("entry").file_name().as_bytes().to_vec())
        .collect();
    names.sort();
    names
}

pub fn mode(bits: u32) -> Mode {
    Mode::from_bits_truncate(bits)
}

/// A short path to a name in an open directory, for calls that know no directory descriptors.
pub fn via(dir: &impl std::os::fd::AsRawFd, name: &OsStr) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name)
}

/// Sets one or both times of the thing itself; `None` leaves a time as it is.
pub fn set_times(path: &Path, atime: Option<(i64, i64)>, mtime: Option<(i64, i64)>) {
    let spec = |time: Option<(i64, i64)>| {
        time.map_or(TimeSpec::UTIME_OMIT, |(seconds, nanos)| {
            TimeSpec::new(seconds, nanos)
        })
    };
    let flag = UtimensatFlags::NoFollowSymlink;
    utimensat(AT_FDCWD, path, &spec(atime), &spec(mtime), flag)
        .unwrap_or_else(|error| panic!("utimensat {path:?}: {error}"));
}

/// Gives `path` the mtime that `like` has, to the nanosecond.
pub fn same_mtime(path: &Path, like: &Path) {
    let meta = fs::symlink_metadata(like).expect("stat");
    set_times(path, None, Some((meta.mtime(), meta.mtime_nsec())));
}
