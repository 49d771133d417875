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
use crate::sys::beneath;
use crate::sys::metadata::Stat;
use crate::sys::xattrs::{Place, Xattrs};
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
        let path = self.path(entry);
        if self.bundle.is_full_for(first.size) {
            let next = Bundle::reusing(self.budget.take());
            let full = std::mem::replace(&mut self.bundle, next);
            (self.sink)(Work::Bundle(full));
        }
        let mut stat = first;
        for attempt in 1..=ATTEMPTS {
            let xattrs = Place::Open(file).read().during(Op::Read, &path)?;
            let start = self.bundle.bytes.len();
            let name = self.name_in_stream(entry);
            self.bundle.begin(&name, &stat, &xattrs, stat.size);
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
            let looked = got.and_then(|()| look_again(file, &stat, read));
            let flaw = match looked {
                Ok(Look::Still) => None,
                Ok(Look::Changed(now)) if attempt < ATTEMPTS => {
                    self.bundle.bytes.truncate(start);
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
                            .during(Op::Read, &path)?;
                    if !is_prefix {
                        self.bundle.bytes.truncate(start);
                        return Err(Failure::because(Op::Read, path, will_not_hold_still(false)));
                    }
                    Some(Failure::because(
                        Op::Read,
                        path.clone(),
                        will_not_hold_still(true),
                    ))
                }
                Err(e) => {
                    self.bundle.bytes.truncate(start);
                    return Err(Failure::new(Op::Read, path, e));
                }
            };
            if read != stat.size {
                self.reframe(start, data_at, &name, &stat, &xattrs);
            }
            let data_at = self.bundle.bytes.len() - usize::try_from(read).unwrap_or(0);
            let data = data_at..self.bundle.bytes.len();
            let ranges =
                holes::of_bytes(file, &self.bundle.bytes[data.clone()]).during(Op::Read, &path)?;
            self.bundle.end(
                data_at,
                Member {
                    entry,
                    stat,
                    xattrs,
                    data,
                    ranges,
                    flaw,
                },
            );
            return Ok(());
        }
        unreachable!("the last attempt returns")
    }

    /// The name in the tar stream: the path below the destination.
    fn name_in_stream(&self, entry: u32) -> Vec<u8> {
        let it = &self.listing.entries[entry as usize];
        let dir = self.listing.dir(it);
        beneath::join([
            &dir.relative_dest()[..],
            dir.dest_name(self.listing.name(it)),
        ])
    }

    /// The size that was said is not the size that there is (/proc): headers
    /// that say the right one.
    fn reframe(&mut self, start: usize, data_at: usize, name: &[u8], stat: &Stat, xattrs: &Xattrs) {
        let data = self.bundle.bytes.split_off(data_at);
        self.bundle.bytes.truncate(start);
        self.bundle.begin(name, stat, xattrs, data.len() as u64);
        self.bundle.bytes.extend_from_slice(&data);
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
