//! Hints to the page cache (posix_fadvise(2)). They are hints: where a
//! filesystem does not take one, nothing is lost but time, so errors are
//! answers and not failures.

use std::os::fd::AsFd;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

/// Starts reading a range into the page cache, without waiting for it.
///
/// In steps, because of each call the kernel takes no more than the larger of
/// the device's read-ahead and its largest request (force_page_cache_ra in
/// mm/readahead.c), and leaves the rest without a word.
pub(crate) fn will_need(fd: impl AsFd, offset: u64, len: u64) -> bool {
    let steps = (offset..offset + len).step_by(STEP_BYTES);
    steps.fold(true, |taken, at| {
        let some = (offset + len - at).min(STEP_BYTES as u64);
        advise(&fd, at, some, PosixFadviseAdvice::POSIX_FADV_WILLNEED) && taken
    })
}

/// The kernel's usual read-ahead: no device takes less.
const STEP_BYTES: usize = 128 << 10;

/// Drops a range's clean pages from the page cache.
pub(crate) fn drop_cached(fd: impl AsFd, offset: u64, len: u64) -> bool {
    advise(fd, offset, len, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
}

fn advise(fd: impl AsFd, offset: u64, len: u64, advice: PosixFadviseAdvice) -> bool {
    match (i64::try_from(offset), i64::try_from(len)) {
        (Ok(offset), Ok(len)) => posix_fadvise(fd, offset, len, advice).is_ok(),
        _ => false,
    }
}
