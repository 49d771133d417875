//! Looks at a finished entry of the destination, by its name: kind, metadata
//! and holes, and its content read back and compared with a digest.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use nix::errno::Errno;

use crate::error::{During, Failure, Op};
use crate::plan::{Kind, LARGE_BYTES};
use crate::sys::metadata::{Owner, Stat};
use crate::sys::xattrs::{self, Place, Xattrs};
use crate::sys::{advise, beneath, transfer};
use crate::verify::digest::{Digest, content_digest, digest_like};
use crate::work::run::Run;
use crate::work::spot::Spot;

/// What must be found.
pub(crate) struct Expect<'a> {
    pub(crate) stat: &'a Stat,
    pub(crate) xattrs: &'a Xattrs,
    /// Of a file's content.
    pub(crate) size: u64,
    /// Of a file's content; none where it shares its extents with the source.
    pub(crate) digest: Option<Digest>,
    /// The ranges of a file that are data, if some are not.
    pub(crate) ranges: Option<&'a [Range<u64>]>,
    /// The file as it was written, for the case that its mode lets even its
    /// owner not read it.
    pub(crate) file: Option<&'a File>,
}

impl<'a> Expect<'a> {
    /// Only kind and metadata.
    pub(crate) fn metadata(stat: &'a Stat, xattrs: &'a Xattrs) -> Expect<'a> {
        Expect {
            stat,
            xattrs,
            size: stat.size,
            digest: None,
            ranges: None,
            file: None,
        }
    }
}

/// Looks at kind and metadata.
pub(crate) fn look(spot: &Spot<'_>, expect: &Expect<'_>, failures: &mut Vec<Failure>) {
    match Stat::at(spot.fd, spot.name) {
        Ok(have) => {
            spot.take(&have);
            compare_stat(spot, expect, &have, failures);
            if !expect.xattrs.is_empty() {
                compare_xattrs(
                    spot,
                    expect.xattrs,
                    &Place::name(spot.fd, spot.name),
                    failures,
                );
            }
        }
        Err(e) => failures.push(Failure::new(Op::Compare, spot.path(), e)),
    }
}

/// Looks at kind and metadata, and reads the content back.
pub(crate) fn read_back(
    spot: &Spot<'_>,
    expect: &Expect<'_>,
    scratch: &mut Vec<u8>,
    failures: &mut Vec<Failure>,
) {
    let file = match open_named(spot, expect) {
        Ok(file) => file,
        Err(failure) => return failures.push(failure),
    };
    let have = match Stat::of(&file).during_at(Op::Compare, || spot.path()) {
        Ok(have) => have,
        Err(failure) => return failures.push(failure),
    };
    spot.take(&have);
    compare_stat(spot, expect, &have, failures);
    if !expect.xattrs.is_empty() {
        compare_xattrs(spot, expect.xattrs, &Place::Open(&file), failures);
    }
    if let Some(ranges) = expect.ranges {
        compare_holes(spot, ranges, &file, &have, failures);
    }
    // Shared extents are the source's own blocks: nothing to compare with.
    let Some(digest) = &expect.digest else { return };
    let found = digest_like(digest, &file, expect.size, expect.ranges, scratch);
    match found.during_at(Op::Verify, || spot.path()) {
        Ok(found) if found == digest.value() => {
            count_verified(spot.run, expect.size);
            if expect.ranges.is_none() || expect.size <= LARGE_BYTES {
                digest.plain().inspect(|&digest| spot.learn(&have, digest));
            }
        }
        Ok(_) => failures.push(Failure::because(Op::Verify, spot.path(), WRONG_CONTENT)),
        Err(failure) => failures.push(failure),
    }
}

/// Counts a file whose content was found equal.
pub(crate) fn count_verified(run: &Run<'_>, size: u64) {
    run.counters.verified_files.fetch_add(1, Relaxed);
    run.counters.verified_bytes.fetch_add(size, Relaxed);
}

pub(crate) const WRONG_CONTENT: &str = "its content differs from what was read";

fn open_named(spot: &Spot<'_>, expect: &Expect<'_>) -> Result<File, Failure> {
    match (
        beneath::open_file(std::os::fd::AsFd::as_fd(spot.fd), spot.name),
        expect.file,
    ) {
        (Err(e), Some(written)) if e.raw_os_error() == Some(Errno::EACCES as i32) => {
            let same = Stat::at(spot.fd, spot.name)
                .and_then(|named| Ok(named.is_same_inode(&Stat::of(written)?)))
                .during_at(Op::Compare, || spot.path())?;
            if same {
                written.try_clone().during_at(Op::Compare, || spot.path())
            } else {
                Err(Failure::new(Op::Compare, spot.path(), e))
            }
        }
        (opened, _) => opened.during_at(Op::Compare, || spot.path()),
    }
}

/// The digest of what a name of the destination holds now.
pub(crate) fn digest_at(spot: &Spot<'_>, scratch: &mut Vec<u8>) -> io::Result<u128> {
    let file = beneath::open_file(std::os::fd::AsFd::as_fd(spot.fd), spot.name)?;
    let size = Stat::of(&file)?.size;
    content_digest(&file, size, scratch)
}

pub(crate) fn compare_stat(
    spot: &Spot<'_>,
    expect: &Expect<'_>,
    have: &Stat,
    failures: &mut Vec<Failure>,
) {
    let want = expect.stat;
    let mut wrong = |why: String| failures.push(Failure::because(Op::Compare, spot.path(), why));
    if have.kind() != want.kind() {
        return wrong(format!(
            "it is a {}, not a {}",
            have.kind().name(),
            want.kind().name()
        ));
    }
    let owner = Owner {
        uid: have.uid == want.uid,
        gid: have.gid == want.gid,
    };
    if !owner.is_kept() && !spot.run.dest.is_user() {
        wrong(format!(
            "its owner is {}:{}, not {}:{}",
            have.uid, have.gid, want.uid, want.gid
        ));
    }
    let permissions = owner.permissions(want);
    if want.kind() != Kind::Symlink && have.permissions() != permissions {
        wrong(format!(
            "its mode is {:04o}, not {permissions:04o}",
            have.permissions()
        ));
    }
    if want.kind() == Kind::File && have.size != expect.size {
        wrong(format!("its size is {}, not {}", have.size, expect.size));
    }
    if have.rdev != want.rdev && matches!(want.kind(), Kind::CharDevice | Kind::BlockDevice) {
        wrong(format!(
            "its device number is {:#x}, not {:#x}",
            have.rdev, want.rdev
        ));
    }
    if have.mtime != want.mtime {
        if spot.run.dest.is_same_time(want.mtime, have.mtime) {
            spot.run.note_time(|| spot.path());
        } else {
            let (h, w) = (have.mtime, want.mtime);
            wrong(format!(
                "its mtime is {}.{:09}, not {}.{:09}",
                h.s, h.ns, w.s, w.ns
            ));
        }
    }
}

/// Compares attributes; those that only root may set are not asked of a user.
fn compare_xattrs(spot: &Spot<'_>, want: &Xattrs, place: &Place<'_>, failures: &mut Vec<Failure>) {
    let have = match place.read() {
        Ok(have) => have,
        Err(e) => return failures.push(Failure::new(Op::Compare, spot.path(), e)),
    };
    for (name, value) in want {
        let excused = spot.run.dest.is_user() && xattrs::is_privileged(name);
        if !excused && !have.iter().any(|(n, v)| n == name && v == value) {
            let why = format!("its attribute {} is not what was set", name.display());
            failures.push(Failure::because(Op::Compare, spot.path(), why));
        }
    }
}

/// Every hole of the source must be one here, as far as blocks go.
fn compare_holes(
    spot: &Spot<'_>,
    ranges: &[Range<u64>],
    file: &File,
    have: &Stat,
    failures: &mut Vec<Failure>,
) {
    let look = || transfer::data_ranges(file, have.size).map(|found| filled(ranges, &found, have));
    // What XFS reserves for copy-on-write counts as data while it is in the
    // cache, of which it is out when nothing is left to be written.
    let again = || {
        file.sync_data()?;
        advise::drop_cached(file, 0, 0);
        look()
    };
    match look().and_then(|bytes| if bytes > 0 { again() } else { Ok(0) }) {
        Ok(0) => {}
        Ok(bytes) => {
            let why = format!("{bytes} bytes of holes became data");
            failures.push(Failure::because(Op::Compare, spot.path(), why));
        }
        Err(e) => failures.push(Failure::new(Op::Compare, spot.path(), e)),
    }
}

/// Bytes of `found` that lie outside `wanted`, whose ranges count up to the
/// borders of their blocks.
pub(crate) fn filled(wanted: &[Range<u64>], found: &[Range<u64>], stat: &Stat) -> u64 {
    let block = u64::from(stat.block.max(4096));
    let mut bytes = 0;
    for range in found {
        let mut at = range.start;
        for want in wanted {
            let (from, to) = (want.start / block * block, want.end.next_multiple_of(block));
            if to <= at || from >= range.end {
                continue;
            }
            bytes += from.saturating_sub(at);
            at = at.max(to);
        }
        bytes += range.end.saturating_sub(at);
    }
    bytes
}

/// A symlink's text must be the source's.
pub(crate) fn link_text(spot: &Spot<'_>, text: &[u8], failures: &mut Vec<Failure>) {
    match crate::sys::special::read_link(spot.fd, spot.name) {
        Ok(found) if found == text => {}
        Ok(_) => failures.push(Failure::because(
            Op::Compare,
            spot.path(),
            "it points elsewhere",
        )),
        Err(e) => failures.push(Failure::new(Op::Compare, spot.path(), e)),
    }
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::File => "regular file",
            Kind::Dir => "directory",
            Kind::Symlink => "symlink",
            Kind::Fifo => "FIFO",
            Kind::Socket => "socket",
            Kind::CharDevice => "character device",
            Kind::BlockDevice => "block device",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_that_became_data_are_counted_beyond_the_borders_of_blocks() {
        let stat = Stat {
            block: 4096,
            ..Stat::default()
        };
        let k = 1024;
        assert_eq!(filled(&[], &[], &stat), 0);
        assert_eq!(filled(&[10..20], &[0..4 * k], &stat), 0);
        assert_eq!(filled(&[10..20], &[0..8 * k], &stat), 4 * k);
        assert_eq!(filled(&[], &[0..100], &stat), 100);
        assert_eq!(
            filled(&[0..4 * k, 12 * k..16 * k], &[0..16 * k], &stat),
            8 * k
        );
    }
}
