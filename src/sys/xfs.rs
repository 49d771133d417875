//! What XFS tells of its inodes: ioctl_xfs_fsgeometry(2), and
//! ioctl_xfs_bulkstat(2), which only root may ask for.
//!
//! Nothing of the latter's answer is used here. What counts is that the kernel
//! reads the inodes in the order in which they lie, with read-ahead, and keeps
//! their blocks: whoever asks for one of them later does not wait for the disk.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::statfs::{XFS_SUPER_MAGIC, fstatfs};

/// Inodes asked for in one call.
const BATCH: u32 = 1024;

/// `struct xfs_bulk_ireq`: where to begin, how many are wanted, how many came.
#[repr(C)]
#[derive(Default)]
struct Header {
    ino: u64,
    flags: u32,
    wanted: u32,
    came: u32,
    group: u32,
    reserved: [u64; 5],
}

/// `struct xfs_bulkstat`: 192 bytes of which nothing is looked at.
type Record = [u64; 24];

#[repr(C)]
struct Request {
    header: Header,
    records: [Record; BATCH as usize],
}

/// `_IOR('X', 127, struct xfs_bulk_ireq)`: the header without its records.
const XFS_IOC_BULKSTAT: nix::libc::Ioctl = nix::request_code_read!(b'X', 127, size_of::<Header>());

/// `_IOR('X', 100, struct xfs_fsop_geom_v1)`.
const XFS_IOC_FSGEOMETRY_V1: nix::libc::Ioctl =
    nix::request_code_read!(b'X', 100, size_of::<Geometry>());

/// `struct xfs_fsop_geom_v1`, of which the beginning is looked at.
#[repr(C)]
#[derive(Default)]
struct Geometry {
    block_bytes: u32,
    realtime_blocks: u32,
    group_blocks: u32,
    groups: u32,
    log_blocks: u32,
    sector_bytes: u32,
    inode_bytes: u32,
    rest: [u32; 21],
}

/// The bits of an inode number that say where in its allocation group it lies;
/// `None` where it is no XFS.
///
/// # Errors
/// Those of the calls.
pub(crate) fn group_bits(fd: impl AsFd) -> io::Result<Option<u32>> {
    if fstatfs(&fd)?.filesystem_type() != XFS_SUPER_MAGIC {
        return Ok(None);
    }
    let mut geometry = Geometry::default();
    // SAFETY: the kernel fills the structure, whose size is in the request's
    // number, and keeps no pointer to it.
    let result = unsafe {
        nix::libc::ioctl(
            fd.as_fd().as_raw_fd(),
            XFS_IOC_FSGEOMETRY_V1,
            std::ptr::from_mut(&mut geometry),
        )
    };
    nix::errno::Errno::result(result)?;
    let in_block = geometry.block_bytes.checked_div(geometry.inode_bytes);
    let blocks = geometry.group_blocks.next_power_of_two().trailing_zeros();
    Ok(in_block.map(|inodes| blocks + inodes.max(1).ilog2()))
}

/// Inodes in use on the filesystem; `None` where it is no XFS.
///
/// # Errors
/// Those of fstatfs(2).
pub(crate) fn used_inodes(fd: impl AsFd) -> io::Result<Option<u64>> {
    let about = fstatfs(fd)?;
    let is_xfs = about.filesystem_type() == XFS_SUPER_MAGIC;
    Ok(is_xfs.then(|| about.files().saturating_sub(about.files_free())))
}

/// Has the kernel read all inodes, as long as `goes_on`.
///
/// # Errors
/// Those of the ioctl: EPERM for all but root, ENOTTY before Linux 5.3.
pub(crate) fn read_inodes(fd: impl AsFd, goes_on: impl Fn() -> bool) -> io::Result<()> {
    let mut request = Box::new(Request {
        header: Header::default(),
        records: [[0; 24]; BATCH as usize],
    });
    while goes_on() {
        request.header.wanted = BATCH;
        request.header.came = 0;
        // SAFETY: `request` is a header followed by room for as many records
        // as it says; the kernel writes no more and keeps no pointer.
        let result = unsafe {
            nix::libc::ioctl(
                fd.as_fd().as_raw_fd(),
                XFS_IOC_BULKSTAT,
                std::ptr::from_mut(&mut *request),
            )
        };
        nix::errno::Errno::result(result)?;
        if request.header.came == 0 {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_structures_have_their_sizes() {
        assert_eq!(size_of::<Header>(), 64);
        assert_eq!(size_of::<Record>(), 192);
        assert_eq!(size_of::<Geometry>(), 112);
    }
}
