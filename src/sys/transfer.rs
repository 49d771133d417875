//! Moving bytes inside the kernel, and telling data from holes.
//!
//! Fallback ladder: `Ok(None)`/`Ok(false)` means "not supported here, take the
//! next way"; `Err` means that it failed.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::fcntl::FallocateFlags;
use nix::unistd::{Whence, lseek};

nix::ioctl_write_int_bad!(ficlone, nix::request_code_write!(0x94, 9, size_of::<i32>()));

/// How sharing extents went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shared {
    /// The files have the same extents now.
    Yes,
    /// This file cannot (no copy-on-write, in use), others may.
    NotThis,
    /// These filesystems cannot.
    NotHere,
}

/// Shares all of `src`'s extents with `dst` (ioctl_ficlone(2)).
pub(crate) fn share(src: &File, dst: &File) -> io::Result<Shared> {
    // SAFETY: both descriptors are open for as long as the call lasts; the
    // kernel takes the second as a number.
    match unsafe { ficlone(dst.as_raw_fd(), src.as_raw_fd()) } {
        Ok(_) => Ok(Shared::Yes),
        Err(Errno::EINVAL | Errno::ETXTBSY | Errno::EPERM | Errno::EBADF | Errno::EISDIR) => {
            Ok(Shared::NotThis)
        }
        Err(Errno::EOPNOTSUPP | Errno::ENOTTY | Errno::EXDEV | Errno::ENOSYS) => {
            Ok(Shared::NotHere)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// One destination of FIDEDUPERANGE, with the call's own fields before it
/// (ioctl_fideduperange(2)).
#[repr(C)]
struct DedupeRange {
    src_offset: u64,
    src_length: u64,
    dest_count: u16,
    reserved1: u16,
    reserved2: u32,
    dest_fd: i64,
    dest_offset: u64,
    bytes_deduped: u64,
    status: i32,
    reserved: u32,
}

// The number counts the head alone: the destinations follow it.
nix::ioctl_readwrite_bad!(
    fideduperange,
    nix::request_code_readwrite!(0x94, 54, 24),
    DedupeRange
);

/// btrfs shares at most this much in one call.
const DEDUPE_BYTES: u64 = 16 << 20;

/// Lets `dst` share the extents of `src`, if the kernel finds their first
/// `size` bytes equal; nothing but extents is changed. `Some(false)` where they
/// differ, `None` where the filesystem cannot.
pub(crate) fn share_range(src: &File, dst: &File, size: u64) -> io::Result<Option<bool>> {
    let mut at = 0;
    while at < size {
        let len = (size - at).min(DEDUPE_BYTES);
        match dedupe(src, dst, at, len)? {
            None => return Ok(None),
            Some(n) if n > 0 => at += n,
            Some(_) => return Ok(Some(false)),
        }
    }
    Ok(Some(true))
}

/// Whether the filesystem of a file can share ranges at all.
pub(crate) fn can_share_ranges(file: &File) -> io::Result<bool> {
    Ok(dedupe(file, file, 0, 0)?.is_some())
}

fn dedupe(src: &File, dst: &File, offset: u64, len: u64) -> io::Result<Option<u64>> {
    let mut range = DedupeRange {
        src_offset: offset,
        src_length: len,
        dest_count: 1,
        reserved1: 0,
        reserved2: 0,
        dest_fd: i64::from(dst.as_raw_fd()),
        dest_offset: offset,
        bytes_deduped: 0,
        status: 0,
        reserved: 0,
    };
    // SAFETY: the struct is laid out as the kernel's with one destination, and
    // both descriptors are open for as long as the call lasts.
    match unsafe { fideduperange(src.as_raw_fd(), &raw mut range) } {
        Ok(_) => {}
        Err(Errno::EOPNOTSUPP | Errno::ENOTTY | Errno::ENOSYS | Errno::EXDEV) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    match range.status {
        // FILE_DEDUPE_RANGE_SAME, and _DIFFERS
        0 => Ok(Some(range.bytes_deduped)),
        1 => Ok(Some(0)),
        errno => match Errno::from_raw(-errno) {
            Errno::EOPNOTSUPP | Errno::EXDEV | Errno::ENOTTY => Ok(None),
            Errno::EINVAL => Ok(Some(0)),
            errno => Err(errno.into()),
        },
    }
}

/// Copies up to `len` bytes at the same offset of both files inside the
/// kernel; `None` where these two cannot. `Some(0)` is the end of `src`.
pub(crate) fn copy_range(src: &File, dst: &File, offset: u64, len: u64) -> io::Result<Option<u64>> {
    let (mut from, mut to) = (signed(offset)?, signed(offset)?);
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    match nix::fcntl::copy_file_range(src, Some(&mut from), dst, Some(&mut to), len) {
        Ok(n) => Ok(Some(n as u64)),
        Err(
            Errno::EXDEV
            | Errno::EINVAL
            | Errno::EOPNOTSUPP
            | Errno::ENOSYS
            | Errno::EPERM
            | Errno::ETXTBSY,
        ) => Ok(None),
        Err(Errno::EINTR) => copy_range(src, dst, offset, len as u64),
        Err(errno) => Err(errno.into()),
    }
}

/// The ranges of `file` below `size` that hold data, ascending (lseek(2),
/// SEEK_DATA); one range over all where the filesystem cannot say.
pub(crate) fn data_ranges(file: impl AsFd, size: u64) -> io::Result<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let data = match lseek(&file, signed(at)?, Whence::SeekData) {
            Ok(data) => unsigned(data),
            Err(Errno::ENXIO) => break,
            Err(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::ENOTTY) => {
                return Ok(Vec::from([0..size]));
            }
            Err(errno) => return Err(errno.into()),
        };
        // A file that is punched while it is asked may answer backwards.
        if data >= size || data < at {
            break;
        }
        let hole = match lseek(&file, signed(data)?, Whence::SeekHole) {
            Ok(hole) => unsigned(hole).min(size),
            Err(Errno::ENXIO) => size,
            Err(errno) => return Err(errno.into()),
        };
        if hole > data {
            ranges.push(data..hole);
        }
        at = hole.max(data + 1);
    }
    Ok(ranges)
}

/// Reserves room without changing the size, so that a cut of power cannot
/// leave a file of the right length without its content. `false` where the
/// filesystem cannot.
///
/// Nor on btrfs, where reserved room is not compressed and is written twice.
pub(crate) fn reserve(file: &File, range: &Range<u64>) -> io::Result<bool> {
    if nix::sys::statfs::fstatfs(file)?.filesystem_type() == nix::sys::statfs::BTRFS_SUPER_MAGIC {
        return Ok(false);
    }
    let len = signed(range.end - range.start)?;
    match nix::fcntl::fallocate(
        file,
        FallocateFlags::FALLOC_FL_KEEP_SIZE,
        signed(range.start)?,
        len,
    ) {
        Ok(()) => Ok(true),
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Makes a range of a file of `size` bytes a hole, or zeros where the filesystem
/// has no holes.
pub(crate) fn clear(file: &File, range: &Range<u64>, size: u64) -> io::Result<()> {
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let len = signed(range.end - range.start)?;
    match nix::fcntl::fallocate(file, flags, signed(range.start)?, len) {
        Ok(()) => return Ok(()),
        Err(Errno::EINTR) => return clear(file, range, size),
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {}
        Err(errno) => return Err(errno.into()),
    }
    let zeros = vec![0; 1 << 20];
    let mut at = range.start;
    let end = range.end.min(size);
    while at < end {
        let n = usize::try_from(end - at).map_or(zeros.len(), |n| n.min(zeros.len()));
        std::os::unix::fs::FileExt::write_all_at(file, &zeros[..n], at)?;
        at += n as u64;
    }
    Ok(())
}

fn signed(offset: u64) -> io::Result<i64> {
    i64::try_from(offset).map_err(|_| Errno::EFBIG.into())
}

// The kernel answers offsets that are not negative.
#[allow(clippy::cast_sign_loss)]
fn unsigned(offset: i64) -> u64 {
    offset as u64
}

nix::ioctl_read!(get_flags, b'f', 1, nix::libc::c_long);

/// FS_CASEFOLD_FL: names in this directory that differ in case are one.
const CASEFOLD: nix::libc::c_long = 0x4000_0000;

/// Whether a directory takes names that differ only in case for one: ext4 and
/// f2fs say so by a flag, the FATs and their kin always do.
pub(crate) fn folds_case(dir: impl AsFd) -> bool {
    let kind = nix::sys::statfs::fstatfs(&dir).map(|fs| fs.filesystem_type().0);
    // Magic numbers from the kernel's magic.h and drivers: msdos, exfat, ntfs,
    // ntfs3, smb2, cifs, hfsplus.
    const FOLDING: [i64; 7] = [
        0x4d44,
        0x2011_bab0,
        0x5346_544e,
        0x7366_746e,
        0xfe53_4d42,
        0xff53_4d42,
        0x482b,
    ];
    if kind.is_ok_and(|kind| FOLDING.contains(&kind)) {
        return true;
    }
    // The ioctl needs a descriptor that is open for reading.
    flags_of(&dir)
        .or_else(|_| {
            use nix::fcntl::{OFlag, openat};
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            let open = openat(&dir, ".", flags, nix::sys::stat::Mode::empty())?;
            flags_of(&open)
        })
        .is_ok_and(|bits| bits & CASEFOLD != 0)
}

fn flags_of(file: impl AsFd) -> nix::Result<nix::libc::c_long> {
    let mut bits: nix::libc::c_long = 0;
    // SAFETY: the kernel writes an int (ioctl_iflags(2)) into a long that was
    // zeroed.
    unsafe { get_flags(file.as_fd().as_raw_fd(), &raw mut bits) }?;
    Ok(bits)
}
