//! Where a file lies on its disk: the FIEMAP ioctl
//! (Documentation/filesystems/fiemap.rst in the kernel's sources).
//!
//! Asked without FIEMAP_FLAG_SYNC, which would write out dirty files of a tree
//! that is only to be read; the caller asks again with it where an extent is
//! not placed yet. The answer orders reads. It never says what is data and
//! what is a hole.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

/// A run of a file's bytes that lies in one piece on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file, in bytes.
    pub logical: u64,
    /// Offset on the device, in bytes. On btrfs: in its own address space,
    /// which ascends with the disk's within a chunk.
    pub physical: u64,
    /// Length in bytes.
    pub len: u64,
}

/// What FIEMAP knows of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Map {
    /// Placed extents, in logical order.
    pub(crate) extents: Vec<Extent>,
    /// Some extent has no place yet (delayed allocation).
    pub(crate) unplaced: bool,
    /// Reserved and never written; also among the extents.
    pub(crate) unwritten: Vec<Range<u64>>,
}

const FLAG_SYNC: u32 = 0x1;
const EXTENT_LAST: u32 = 0x1;
const EXTENT_UNKNOWN: u32 = 0x2;
const EXTENT_DELALLOC: u32 = 0x4;
/// Reserved, never written: reads as zeros.
const EXTENT_UNWRITTEN: u32 = 0x800;
/// Data lies inside the metadata: its place is not that of a read of its own.
const EXTENT_INLINE: u32 = 0x200;

/// Extents asked for in one call: most files have one, and 56 bytes each on
/// the stack cost nothing.
const BATCH: usize = 32;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; BATCH],
}

/// `_IOWR('f', 11, struct fiemap)`: the header without its extents, 32 bytes.
const FS_IOC_FIEMAP: nix::libc::Ioctl = nix::request_code_readwrite!(b'f', 11, 32);

/// Asks for up to `limit` extents; `None` where the filesystem cannot say.
///
/// # Errors
/// Whatever the ioctl answers but "not supported".
pub(crate) fn map(file: impl AsFd, limit: usize, sync: bool) -> io::Result<Option<Map>> {
    let mut map = Map::default();
    let mut request = Request {
        start: 0,
        length: u64::MAX,
        flags: if sync { FLAG_SYNC } else { 0 },
        mapped: 0,
        count: 0,
        reserved: 0,
        extents: [RawExtent::default(); BATCH],
    };
    loop {
        #[allow(clippy::cast_possible_truncation)]
        let count = BATCH.min(limit - map.extents.len()) as u32;
        request.count = count;
        request.mapped = 0;
        // SAFETY: the kernel reads the header and writes `mapped` and at most
        // `count` extents, for all of which `request` has room.
        let answer =
            unsafe { nix::libc::ioctl(file.as_fd().as_raw_fd(), FS_IOC_FIEMAP, &raw mut request) };
        match Errno::result(answer) {
            Ok(_) => {}
            Err(
                Errno::EOPNOTSUPP | Errno::ENOTTY | Errno::EINVAL | Errno::EBADR | Errno::ENOSYS,
            ) => {
                return Ok(None);
            }
            Err(errno) => return Err(errno.into()),
        }
        let mapped = &request.extents[..BATCH.min(request.mapped as usize)];
        let Some(last) = mapped.last() else {
            return Ok(Some(map));
        };
        request.start = last.logical.saturating_add(last.length);
        let at_end = last.flags & EXTENT_LAST != 0 || last.length == 0;
        for raw in mapped {
            take(&mut map, raw);
        }
        if at_end || map.extents.len() >= limit {
            return Ok(Some(map));
        }
    }
}

/// Ranges that were reserved and never written (FIEMAP_EXTENT_UNWRITTEN),
/// ascending; none where the filesystem does not say, or too many to list.
pub(crate) fn unwritten(file: impl AsFd) -> Vec<Range<u64>> {
    // An answer only adds holes that are zeros too; without one there are
    // fewer holes, not wrong ones.
    match map(file, MAX_UNWRITTEN, false) {
        Ok(Some(map)) if map.extents.len() < MAX_UNWRITTEN => map.unwritten,
        _ => Vec::new(),
    }
}

const MAX_UNWRITTEN: usize = 65536;

fn take(map: &mut Map, raw: &RawExtent) {
    if raw.flags & EXTENT_UNWRITTEN != 0 {
        map.unwritten
            .push(raw.logical..raw.logical.saturating_add(raw.length));
    }
    if raw.flags & (EXTENT_UNKNOWN | EXTENT_DELALLOC) != 0 {
        map.unplaced = true;
        return;
    }
    if raw.flags & EXTENT_INLINE != 0 {
        return;
    }
    let extent = Extent {
        logical: raw.logical,
        physical: raw.physical,
        len: raw.length,
    };
    // Neighbours on the disk as in the file are one read.
    match map.extents.last_mut() {
        Some(before)
            if before.logical + before.len == extent.logical
                && before.physical + before.len == extent.physical =>
        {
            before.len += extent.len;
        }
        _ => map.extents.push(extent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_extent_and_inline_data_has_no_place() {
        let raw = |logical, physical, flags| RawExtent {
            logical,
            physical,
            length: 4096,
            flags,
            ..RawExtent::default()
        };
        let mut map = Map::default();
        for extent in [raw(0, 8192, 0), raw(4096, 12288, 0), raw(8192, 4096, 0)] {
            take(&mut map, &extent);
        }
        take(&mut map, &raw(12288, 0, EXTENT_DELALLOC));
        take(&mut map, &raw(16384, 0, EXTENT_INLINE));
        let extent = |logical, physical, len| Extent {
            logical,
            physical,
            len,
        };
        assert_eq!(
            map.extents,
            [extent(0, 8192, 8192), extent(8192, 4096, 4096)]
        );
        assert!(map.unplaced);
    }
}
