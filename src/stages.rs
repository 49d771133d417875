//! The stages that do no I/O, for the benchmark in benches/stages.rs: plain
//! values in and out. No API: it may change with every version.

use std::path::PathBuf;

use crate::plan::bundle::{Bundle, Member};
use crate::plan::order::{self, HalfRead};
use crate::plan::{Entry, Extent, Extents, Kind, Listing};
use crate::sys::metadata::Stat;
use crate::sys::xattrs::Xattrs;

/// Files as a scan has found them, scattered over a disk.
#[derive(Debug)]
pub struct Scattered {
    files: Vec<u32>,
    entries: Vec<Entry>,
    extents: Extents,
}

impl Scattered {
    /// `count` files of 8 KiB; each tenth lies in four extents.
    pub fn new(count: u32) -> Scattered {
        let mut listing = Listing::default();
        let mut extents = Extents::new();
        for file in 0..count {
            let place = |part: u32| {
                let hash = xxhash_rust::xxh3::xxh3_64(&u64::from(file * 4 + part).to_le_bytes());
                hash % (1 << 40) / 4096 * 4096
            };
            listing.push(0, b"file", u64::from(file), Kind::File);
            if let Some(entry) = listing.entries.last_mut() {
                entry.size = 8192;
                entry.allocated = 8192;
                entry.physical = place(0);
            }
            if file % 10 == 0 {
                let parts = (0..4).map(|part| Extent {
                    logical: u64::from(part) * 2048,
                    physical: place(part),
                    len: 2048,
                });
                extents.insert(file, parts.collect());
            }
        }
        Scattered {
            files: (0..count).collect(),
            entries: listing.entries,
            extents,
        }
    }

    /// Orders them by place; the number of reads.
    pub fn order(&self) -> usize {
        let limit = HalfRead {
            bytes: 64 << 20,
            files: 256,
        };
        order::by_physical(&self.files, &self.entries, &self.extents, limit).len()
    }
}

/// Puts files into bundles and frames these as tar streams; the bytes of all.
pub fn bundle(contents: &[Vec<u8>]) -> usize {
    let mut bundle = Bundle::default();
    let mut stream = Vec::new();
    let mut bytes = 0;
    let mut frame = |bundle: &Bundle| {
        stream.clear();
        let framed = bundle.write_tar(&mut stream, |_| b"directory/file");
        framed.map_or(0, |()| stream.len())
    };
    for (entry, content) in (0..).zip(contents) {
        let stat = Stat {
            mode: 0o100_644,
            size: content.len() as u64,
            ..Stat::default()
        };
        if bundle.is_full_for(stat.size) {
            bytes += frame(&bundle);
            bundle = Bundle::reusing(std::mem::take(&mut bundle.bytes));
        }
        let xattrs = Xattrs::new();
        let start = bundle.bytes.len();
        bundle.bytes.extend_from_slice(content);
        bundle.members.push(Member {
            entry,
            stat,
            xattrs,
            data: start..bundle.bytes.len(),
            ranges: None,
            flaw: None,
        });
    }
    bytes + frame(&bundle)
}

/// Lists a tree and looks at each entry; how many there are.
///
/// # Errors
/// As [`plan`](crate::plan()).
pub fn scan(root: PathBuf) -> Result<usize, crate::Error> {
    let options = crate::Options {
        order: crate::Order::None,
        ..crate::Options::default()
    };
    let stop = std::sync::atomic::AtomicBool::new(false);
    let plan = crate::plan(&[root], None, &options, &crate::Counters::default(), &stop)?;
    Ok(plan.listing.entries.len() + plan.listing.dirs.len())
}
