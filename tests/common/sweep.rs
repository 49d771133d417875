//! What was read when, and where that lies on the disk: from the calls that strace saw.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::extents::{Extent, extents, physical};
use super::trace::Call;

/// The calls to trace.
pub const CALLS: &str = "openat,openat2,lseek,read,pread64,readv,preadv,preadv2,copy_file_range,\
                     sendfile,fadvise64,readahead,ioctl";

/// What was read or asked for in advance: a file and the offset at which it began.
#[derive(Debug)]
pub struct Access {
    pub path: PathBuf,
    pub offset: u64,
    /// Bytes read, or asked for in advance; 0 there means up to the end.
    pub len: u64,
    pub advance: bool,
}

/// Follows the file positions, for calls that do not say an offset.
pub fn accesses(calls: &[Call], below: &Path) -> Vec<Access> {
    let mut positions: HashMap<u64, u64> = HashMap::new();
    let mut found = Vec::new();
    for call in calls {
        let fd = descriptor(&call.args);
        let result = call.result.unwrap_or(-1);
        let advance = match call.name.as_str() {
            "openat" | "openat2" => {
                positions.insert(result as u64, 0);
                continue;
            }
            "lseek" => {
                if result >= 0 {
                    positions.insert(fd, result as u64);
                }
                continue;
            }
            "fadvise64" if call.args.contains("WILLNEED") => true,
            "readahead" => true,
            "fadvise64" | "ioctl" => continue,
            _ => false,
        };
        let Some(path) = call.path().filter(|path| path.starts_with(below)) else {
            continue;
        };
        if result < 0 || (result == 0 && !advance) {
            continue;
        }
        let offset = match call.name.as_str() {
            "read" | "readv" => {
                let at = positions.entry(fd).or_default();
                let offset = *at;
                *at += result as u64;
                offset
            }
            "pread64" | "preadv" | "preadv2" => call.number(3).expect("an offset"),
            "fadvise64" | "readahead" => call.number(1).expect("an offset"),
            other => panic!("{other} was not expected: {}", call.args),
        };
        let len = match call.name.as_str() {
            "fadvise64" | "readahead" => call.number(2).expect("a length"),
            _ => result as u64,
        };
        found.push(Access {
            path,
            offset,
            len,
            advance,
        });
    }
    found
}

fn descriptor(args: &str) -> u64 {
    args.split('<')
        .next()
        .and_then(|number| number.trim().parse().ok())
        .unwrap_or(u64::MAX)
}

pub struct Disk {
    maps: HashMap<PathBuf, Vec<Extent>>,
}

impl Disk {
    pub fn new() -> Disk {
        Disk {
            maps: HashMap::new(),
        }
    }

    fn place(&mut self, access: &Access) -> Option<u64> {
        let map = self
            .maps
            .entry(access.path.clone())
            .or_insert_with(|| extents(&access.path));
        physical(map, access.offset)
    }

    /// Accesses whose place lies before that of the one before them.
    pub fn steps_back<'a>(&mut self, accesses: impl Iterator<Item = &'a Access>) -> Vec<String> {
        let mut back = Vec::new();
        let mut last = 0;
        for access in accesses {
            let Some(place) = self.place(access) else {
                continue;
            };
            if place < last {
                back.push(format!(
                    "{:?}@{} at {place} after {last}",
                    access.path, access.offset
                ));
            }
            last = place;
        }
        back
    }
}
