//! Hints to the page cache (posix_fadvise(2)). They are hints: where a
//! filesystem does not take one, nothing is lost but time, so errors are
//! answers and not failures.

use std::os::fd::AsFd;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

/// Starts reading a range into the page cache, without waiting for it.
pub(crate) fn will_need(fd: impl AsFd, offset: u64, len: u64) -> bool {
    advise(fd, offset, len, PosixFadviseAdvice::POSIX_FADV_WILLNEED)
}

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
