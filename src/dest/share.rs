//! Which devices' files can share their extents with files of the destination.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering::Relaxed;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::Dest;
use crate::job::Reflink;
use crate::sys::transfer::{self, Shared};

impl Dest {
    /// Whether files of `file`'s device can share their extents with files
    /// here: tried once for each device, on a file without a name.
    pub(crate) fn can_share(&self, dev: u64, file: &File) -> bool {
        if self.reflink == Reflink::Never {
            return false;
        }
        if self.shares_are_settled.load(Relaxed) {
            return self.shares(dev);
        }
        let mut shares = self.shares.lock().unwrap_or_else(|e| e.into_inner());
        *shares.entry(dev).or_insert_with(|| {
            let flags = OFlag::O_RDWR | OFlag::O_TMPFILE | OFlag::O_CLOEXEC;
            let private = Mode::S_IRUSR | Mode::S_IWUSR;
            openat(&self.root, ".", flags, private)
                .map_err(io::Error::from)
                .and_then(|fd| transfer::share(file, &fd.into()))
                .is_ok_and(|shared| shared != Shared::NotHere)
        })
    }

    /// Ends the trying: from now on a device's answer is what it was, so that a
    /// plan's files go one way each.
    pub(crate) fn settle_shares(&self) {
        self.shares_are_settled.store(true, Relaxed);
    }

    /// Whether a file that cannot be shared is a failure.
    pub(crate) fn must_share(&self) -> bool {
        self.reflink == Reflink::Always
    }

    /// Whether a device's files are known to be shareable.
    pub(crate) fn shares(&self, dev: u64) -> bool {
        let shares = self.shares.lock().unwrap_or_else(|e| e.into_inner());
        shares.get(&dev).copied().unwrap_or(false)
    }

    /// Whether sharing is to be tried at all.
    pub(crate) fn wants_share(&self) -> bool {
        self.reflink != Reflink::Never
    }
}
