//! Files that travel in a bundle.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{Reader, Work, holes};
use crate::error::{During, Failure, Op};
use crate::plan::LARGE_BYTES;
use crate::plan::bundle::{Bundle, Member};
use crate::sys::metadata::Stat;
use crate::sys::xattrs::Place;
use crate::work::ahead::Asked;

/// Times that a file is read before it is said not to hold still.
pub(super) const ATTEMPTS: u32 = 5;

/// What one reading of a file gave.
enum Look {
    /// All of it, and it held still.
    Still,
    /// It changed in between.
    Changed(Stat),
}

impl Reader<'_, '_> {
    /// Reads a small file into the bundle. `bytes`, where given, is its
    /// content as read before, while it was as `first` says.
    pub(super) fn small(
        &mut self,
        entry: u32,
        file: &Arc<File>,
        first: Stat,
        bytes: Option<&[u8]>,
    ) -> Result<(), Failure> {
        if self.bundle.is_full_for(first.size) {
            let next = Bundle::reusing(self.budget.take());
            let full = std::mem::replace(&mut self.bundle, next);
            (self.sink)(Work::Bundle(full));
        }
        let mut stat = first;
        for attempt in 1..=ATTEMPTS {
            let xattrs = Place::Open(file)
                .read()
                .during_at(Op::Read, || self.path(entry))?;
            let data_at = self.bundle.bytes.len();
            let got = match bytes {
                Some(bytes) if attempt == 1 => {
                    self.bundle.bytes.extend_from_slice(bytes);
                    Ok(())
                }
                _ => append(file, &mut self.bundle.bytes, &stat),
            };
            let read = (self.bundle.bytes.len() - data_at) as u64;
            if bytes.is_none() || attempt > 1 {
                self.run.counters.read_bytes.fetch_add(read, Relaxed);
            }
            let looked = got.and_then(|()| {
                if is_surely_empty(&stat) {
                    Ok(Look::Still)
                } else {
                    look_again(file, &stat, read)
                }
            });
            let flaw = match looked {
                Ok(Look::Still) => None,
                Ok(Look::Changed(now)) if attempt < ATTEMPTS => {
                    self.bundle.bytes.truncate(data_at);
                    if now.size > LARGE_BYTES {
                        return self.large(entry, file, now, Asked::nothing(0..now.size));
                    }
                    stat = now;
                    continue;
                }
                Ok(Look::Changed(now)) => {
                    let is_prefix = now.size >= stat.size
                        && read == stat.size
                        && reads_the_same(file, &self.bundle.bytes[data_at..])
                            .during_at(Op::Read, || self.path(entry))?;
                    if !is_prefix {
                        self.bundle.bytes.truncate(data_at);
                        let why = will_not_hold_still(false);
                        return Err(Failure::because(Op::Read, self.path(entry), why));
                    }
                    Some(Failure::because(
                        Op::Read,
                        self.path(entry),
                        will_not_hold_still(true),
                    ))
                }
                Err(e) => {
                    self.bundle.bytes.truncate(data_at);
                    return Err(Failure::new(Op::Read, self.path(entry), e));
                }
            };
            let data = data_at..self.bundle.bytes.len();
            let ranges = holes::of_bytes(file, &self.bundle.bytes[data.clone()])
                .during_at(Op::Read, || self.path(entry))?;
            self.bundle.members.push(Member {
                entry,
                stat,
                xattrs,
                data,
                ranges,
                flaw,
            });
            return Ok(());
        }
        unreachable!("the last attempt returns")
    }
}

pub(super) fn will_not_hold_still(prefix: bool) -> &'static str {
    if prefix {
        "it kept growing while it was read; the copy holds its beginning"
    } else {
        "it kept changing while it was read; no copy was made of it"
    }
}

/// Appends the file's content: exactly the size that it had, or, where that is
/// 0, whatever there is (/proc says 0 of files that have content).
fn append(file: &File, out: &mut Vec<u8>, stat: &Stat) -> io::Result<()> {
    let start = out.len();
    if is_surely_empty(stat) {
        return Ok(());
    }
    if stat.size == 0 {
        return append_unsized(file, out, start);
    }
    let want = usize::try_from(stat.size).unwrap_or(0);
    out.resize(start + want, 0);
    let mut done = 0;
    while done < want {
        match read_at(file, &mut out[start + done..], done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    out.truncate(start + done);
    Ok(())
}

/// Whether a size of 0 is the truth: on what lies on a block device. (Devices
/// without one have the major number 0: /proc, but tmpfs and btrfs, too.)
fn is_surely_empty(stat: &Stat) -> bool {
    stat.size == 0 && nix::sys::stat::major(stat.dev) != 0
}

fn append_unsized(file: &File, out: &mut Vec<u8>, start: usize) -> io::Result<()> {
    // Most empty files are empty: one small read tells.
    let mut piece = 64;
    loop {
        let at = out.len();
        out.resize(at + piece, 0);
        let n = read_at(file, &mut out[at..], (at - start) as u64)?;
        out.truncate(at + n);
        if n == 0 {
            return Ok(());
        }
        if out.len() - start > MAX_UNSIZED_BYTES {
            return Err(io::Error::other("it has no size and does not end"));
        }
        piece = 256 * 1024;
    }
}

/// The largest file in /proc that says 0 and means it is some MiB.
const MAX_UNSIZED_BYTES: usize = 64 << 20;

pub(super) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        match file.read_at(buffer, offset) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn look_again(file: &File, before: &Stat, read: u64) -> io::Result<Look> {
    let now = Stat::of(file)?;
    if !before.held_still(&now) {
        return Ok(Look::Changed(now));
    }
    if read == before.size {
        return Ok(Look::Still);
    }
    // Files that are made up as they are read (/proc, /sys) have no blocks and
    // a size that says nothing.
    if before.allocated == 0 && (before.size == 0 || read < before.size) {
        return Ok(Look::Still);
    }
    if before.size > 0 && read < before.size {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "it ends before its size says",
        ));
    }
    Ok(Look::Changed(now))
}

fn reads_the_same(file: &File, bytes: &[u8]) -> io::Result<bool> {
    let mut again = vec![0; bytes.len()];
    match file.read_exact_at(&mut again, 0) {
        Ok(()) => Ok(again == bytes),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}
