//! The whole state of a tree, and the comparison of two: kinds, bytes, holes, modes, owners,
//! nanosecond times, extended attributes (ACLs are such), device numbers, link structure.
//!
//! Works by directory descriptors, so paths may be longer than PATH_MAX, and without disturbing
//! access times where it may.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::unistd::{Whence, lseek};
use xxhash_rust::xxh3::Xxh3Default;

use super::tree::via;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub kind: char,
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: (i64, i64),
    pub atime: (i64, i64),
    /// Size in bytes; of files only.
    pub size: u64,
    pub digest: u128,
    /// Where SEEK_DATA finds data; of files only.
    pub data: Vec<(u64, u64)>,
    /// Bytes that the filesystem has allocated; of files only.
    pub allocated: u64,
    pub target: Vec<u8>,
    pub rdev: u64,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path, in byte order, that shares the inode; of non-directories only.
    pub group: Vec<u8>,
    pub links: u64,
    /// Inode number and ctime: whether a thing was touched at all.
    pub touched: (u64, i64, i64),
}

/// Entries by path below the root (which is the empty path).
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub entries: BTreeMap<Vec<u8>, Entry>,
}

/// What a comparison leaves out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Leave {
    pub owners: bool,
    pub holes: bool,
    pub xattrs: bool,
    pub times: bool,
    pub modes: bool,
    pub links: bool,
    pub root: bool,
}

/// Nothing is left out.
pub const NOTHING: Leave = Leave {
    owners: false,
    holes: false,
    xattrs: false,
    times: false,
    modes: false,
    links: false,
    root: false,
};

impl Snapshot {
    #[track_caller]
    pub fn of(root: &Path) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let mut groups = BTreeMap::new();
        let meta = fs::symlink_metadata(root).unwrap_or_else(|error| panic!("{root:?}: {error}"));
        snapshot.add(root, Vec::new(), &meta, &mut groups);
        if meta.is_dir() {
            snapshot.walk(&open_quietly(root).expect("open root"), b"", &mut groups);
        }
        snapshot
    }

    fn walk(&mut self, dir: &File, below: &[u8], groups: &mut BTreeMap<(u64, u64), Vec<u8>>) {
        let here = via(dir, OsStr::new("."));
        let mut names: Vec<_> = fs::read_dir(&here)
            .unwrap_or_else(|error| panic!("list {}: {error}", show(below)))
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        names.sort();
        for name in names {
            let mut path = below.to_vec();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            let place = via(dir, &name);
            let meta = fs::symlink_metadata(&place)
                .unwrap_or_else(|error| panic!("stat {}: {error}", show(&path)));
            self.add(&place, path.clone(), &meta, groups);
            if meta.is_dir() {
                let child = open_quietly(&place)
                    .unwrap_or_else(|error| panic!("open {}: {error}", show(&path)));
                self.walk(&child, &path, groups);
            }
        }
    }

    fn add(
        &mut self,
        place: &Path,
        path: Vec<u8>,
        meta: &fs::Metadata,
        groups: &mut BTreeMap<(u64, u64), Vec<u8>>,
    ) {
        let fail = |error: io::Error| -> ! { panic!("{}: {error}", show(&path)) };
        let kind = kind_of(meta);
        let file = kind == 'f';
        let mut digest = 0;
        let mut data = Vec::new();
        if file {
            digest = digest_of(place).unwrap_or_else(|error| fail(error));
            data = data_map(place).unwrap_or_else(|error| fail(error));
        }
        let target = match kind {
            'l' => fs::read_link(place)
                .unwrap_or_else(|error| fail(error))
                .into_os_string(),
            _ => std::ffi::OsString::new(),
        };
        let inode = (meta.dev(), meta.ino());
        let group = match kind {
            'd' => path.clone(),
            _ => groups.entry(inode).or_insert_with(|| path.clone()).clone(),
        };
        let entry = Entry {
            kind,
            mode: meta.mode() & 0o7777,
            owner: (meta.uid(), meta.gid()),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            atime: (meta.atime(), meta.atime_nsec()),
            size: if file { meta.len() } else { 0 },
            digest,
            data,
            allocated: if file { meta.blocks() * 512 } else { 0 },
            target: target.as_bytes().to_vec(),
            rdev: if matches!(kind, 'c' | 'b') {
                meta.rdev()
            } else {
                0
            },
            xattrs: xattrs_of(place),
            group,
            links: if kind == 'd' { 1 } else { meta.nlink() },
            touched: (meta.ino(), meta.ctime(), meta.ctime_nsec()),
        };
        self.entries.insert(path, entry);
    }

    #[track_caller]
    pub fn entry(&self, path: impl AsRef<Path>) -> &Entry {
        let path = path.as_ref().as_os_str().as_bytes();
        self.entries
            .get(path)
            .unwrap_or_else(|| panic!("no {}", show(path)))
    }

    /// What differs, one line each; empty when `other` is a faithful copy.
    pub fn differences(&self, other: &Snapshot, leave: Leave) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, want) in &self.entries {
            if path.is_empty() && leave.root {
                continue;
            }
            match other.entries.get(path) {
                None => lines.push(format!("{} is missing", show(path))),
                Some(have) => differ(&mut lines, path, want, have, leave),
            }
        }
        for path in other.entries.keys() {
            if !self.entries.contains_key(path) {
                lines.push(format!("{} is extra", show(path)));
            }
        }
        lines
    }

    /// Paths whose inode or ctime is not what it was.
    pub fn touched_since(&self, before: &Snapshot) -> Vec<String> {
        let untouched = |path: &Vec<u8>, entry: &Entry| {
            before
                .entries
                .get(path)
                .is_some_and(|old| old.touched == entry.touched)
        };
        self.entries
            .iter()
            .filter(|(path, entry)| !untouched(path, entry))
            .map(|(path, _)| show(path))
            .collect()
    }
}

fn differ(lines: &mut Vec<String>, path: &[u8], want: &Entry, have: &Entry, leave: Leave) {
    let mut say = |what: &str, want: String, have: String| {
        if want != have {
            lines.push(format!("{}: {what} is {have}, not {want}", show(path)));
        }
    };
    say("kind", want.kind.to_string(), have.kind.to_string());
    if want.kind != have.kind {
        return;
    }
    say("size", want.size.to_string(), have.size.to_string());
    say(
        "digest of the bytes",
        format!("{:x}", want.digest),
        format!("{:x}", have.digest),
    );
    say("link text", show(&want.target), show(&have.target));
    say(
        "device",
        format!("{:x}", want.rdev),
        format!("{:x}", have.rdev),
    );
    if !leave.holes {
        say(
            "map of the data",
            format!("{:?}", want.data),
            format!("{:?}", have.data),
        );
    }
    if !leave.modes {
        say(
            "mode",
            format!("{:o}", want.mode),
            format!("{:o}", have.mode),
        );
    }
    if !leave.owners {
        say(
            "owner",
            format!("{:?}", want.owner),
            format!("{:?}", have.owner),
        );
    }
    if !leave.times {
        say(
            "mtime",
            format!("{:?}", want.mtime),
            format!("{:?}", have.mtime),
        );
    }
    if !leave.xattrs {
        say(
            "xattrs",
            show_xattrs(&want.xattrs),
            show_xattrs(&have.xattrs),
        );
    }
    if !leave.links {
        say(
            "first name of the inode",
            show(&want.group),
            show(&have.group),
        );
        say("link count", want.links.to_string(), have.links.to_string());
    }
}

/// Fails with the first differences between a source and its copy.
#[track_caller]
pub fn assert_same(from: &Path, to: &Path) {
    assert_same_but(from, to, NOTHING);
}

#[track_caller]
pub fn assert_same_but(from: &Path, to: &Path, leave: Leave) {
    assert_alike(&Snapshot::of(from), &Snapshot::of(to), leave);
}

#[track_caller]
pub fn assert_alike(want: &Snapshot, have: &Snapshot, leave: Leave) {
    let lines = want.differences(have, leave);
    assert!(
        lines.is_empty(),
        "{} differences:\n{}",
        lines.len(),
        head(&lines)
    );
}

/// Nothing was touched: same inodes, same ctimes, no new and no missing names.
#[track_caller]
pub fn assert_untouched(before: &Snapshot, now: &Snapshot) {
    let mut lines = now.touched_since(before);
    lines.extend(before.differences(now, NOTHING));
    assert!(
        lines.is_empty(),
        "touched, {} lines:\n{}",
        lines.len(),
        head(&lines)
    );
}

fn head(lines: &[String]) -> String {
    lines
        .iter()
        .take(12)
        .map(|line| line.chars().take(400).collect::<String>() + "\n")
        .collect()
}

pub fn show(path: &[u8]) -> String {
    format!("{:?}", OsStr::from_bytes(path))
}

fn show_xattrs(xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) -> String {
    let mut text = String::new();
    for (name, value) in xattrs {
        write!(text, "{}={} ", show(name), show(value)).expect("text");
    }
    text
}

pub fn kind_of(meta: &fs::Metadata) -> char {
    let kind = meta.file_type();
    match () {
        () if kind.is_dir() => 'd',
        () if kind.is_symlink() => 'l',
        () if kind.is_fifo() => 'p',
        () if kind.is_socket() => 's',
        () if kind.is_char_device() => 'c',
        () if kind.is_block_device() => 'b',
        () => 'f',
    }
}

/// Opens for reading without moving the atime, where that is allowed.
fn open_quietly(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOATIME)
        .open(path)
        .or_else(|_| File::open(path))
}

pub fn digest_of(path: &Path) -> io::Result<u128> {
    let mut file = open_quietly(path)?;
    let mut hash = Xxh3Default::new();
    // Holes hash as their length, so that apparent terabytes cost nothing. Zeros that are data
    // hash as zeros: both sides are therefore read as runs of zeros and of bytes.
    let mut buffer = vec![0; 1 << 16];
    let size = file.metadata()?.len();
    let mut zeros = 0_u64;
    for (from, to) in data_map(path)? {
        zeros += from.saturating_sub(position(&mut file)?);
        seek(&mut file, from)?;
        let mut left = to - from;
        while left > 0 {
            let most = buffer.len().min(left as usize);
            let got = file.read(&mut buffer[..most])?;
            if got == 0 {
                break;
            }
            for block in buffer[..got].chunks(512) {
                if block.iter().all(|&byte| byte == 0) {
                    zeros += block.len() as u64;
                } else {
                    flush_zeros(&mut hash, &mut zeros);
                    hash.update(block);
                }
            }
            left -= got as u64;
        }
    }
    zeros += size.saturating_sub(position(&mut file)?);
    flush_zeros(&mut hash, &mut zeros);
    Ok(hash.digest128())
}

fn flush_zeros(hash: &mut Xxh3Default, zeros: &mut u64) {
    if *zeros > 0 {
        hash.update(b"zeros");
        hash.update(&zeros.to_le_bytes());
        *zeros = 0;
    }
}

fn position(file: &mut File) -> io::Result<u64> {
    io::Seek::stream_position(file)
}

fn seek(file: &mut File, to: u64) -> io::Result<u64> {
    io::Seek::seek(file, io::SeekFrom::Start(to))
}

/// The ranges in which SEEK_DATA finds data.
pub fn data_map(path: &Path) -> io::Result<Vec<(u64, u64)>> {
    let file = open_quietly(path)?;
    let mut map = Vec::new();
    let mut at = 0;
    loop {
        let from = match lseek(&file, at, Whence::SeekData) {
            Ok(from) => from,
            Err(Errno::ENXIO) => return Ok(map),
            Err(error) => return Err(error.into()),
        };
        let to = lseek(&file, from, Whence::SeekHole)?;
        map.push((from as u64, to as u64));
        at = to;
    }
}

fn xattrs_of(place: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let Ok(names) = xattr::list(place) else {
        return BTreeMap::new();
    };
    names
        .filter_map(|name| {
            let value = xattr::get(place, &name).ok().flatten()?;
            Some((name.as_bytes().to_vec(), value))
        })
        .collect()
}
