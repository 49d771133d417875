//! A [`Plan`] in numbers, for printing. Pure: nothing is looked at again.

use std::collections::HashSet;

use crate::plan::bundle::BUNDLE_BYTES;
use crate::plan::{Action, Entry, Kind, LARGE_BYTES, Plan, Read, WHOLE};
use crate::report::DiskChoice;

/// A bundle's bytes for a file beside its content: a header, and two blocks of
/// PAX records where the mtime has a fraction. Other records are rare.
const HEADER_BYTES: u64 = 512;
const PAX_BYTES: u64 = 1024;

/// What a plan amounts to. Every entry is one of `files`, `dirs`, `symlinks`,
/// `specials` and `hard_links`, so these add up to `entries`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Entries of every kind.
    pub entries: u64,
    /// Regular files; of several names of one file, the first.
    pub files: u64,
    /// Directories.
    pub dirs: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// FIFOs, sockets and devices.
    pub specials: u64,
    /// Further names of an entry that is counted already.
    pub hard_links: u64,
    /// Entries that the destination holds already.
    pub unchanged: u64,
    /// Entries that an option leaves as they are, or does not make.
    pub skipped: u64,
    /// Regular files whose content is to be copied.
    pub to_copy_files: u64,
    /// Apparent bytes of `files`.
    pub bytes: u64,
    /// Bytes that `files` occupy in the source.
    pub allocated: u64,
    /// Apparent bytes of `to_copy_files`.
    pub bytes_to_copy: u64,
    /// Bundles of small files, about: what a bundle holds beside content depends
    /// on names and attributes.
    pub bundles: u64,
    /// Files that travel alone.
    pub large_files: u64,
    /// Each disk's sweep.
    pub disks: Vec<DiskSummary>,
    /// Entries that would be removed from the destination.
    pub to_delete: u64,
    /// What could not be looked at.
    pub failures: u64,
}

/// One disk's sweep in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSummary {
    /// The disk, its order and why.
    pub choice: DiskChoice,
    /// Reads: files, or extents of fragmented ones.
    pub reads: u64,
    /// Bytes of these reads.
    pub bytes: u64,
    /// Bytes that the head would travel in the order of the directories.
    pub travel_listed: u64,
    /// Bytes that the head travels in the order of the sweep.
    pub travel: u64,
}

impl Plan {
    /// Adds the plan up.
    pub fn summary(&self) -> Summary {
        let dirs = self.listing.dirs.iter().filter(|dir| dir.is_entry());
        let mut sum = Summary {
            dirs: dirs.count() as u64,
            failures: self.failures.len() as u64,
            to_delete: self.deletions.len() as u64,
            ..Summary::default()
        };
        for entry in &self.listing.entries {
            sum.unchanged += u64::from(matches!(
                entry.action,
                Action::Keep | Action::Same | Action::Refer
            ));
            sum.skipped += u64::from(entry.action == Action::Skip);
            match (entry.action, entry.kind) {
                (Action::Link, _) => sum.hard_links += 1,
                (action, Kind::File) => {
                    sum.files += 1;
                    sum.bytes += entry.size;
                    sum.allocated += entry.allocated;
                    if action == Action::Copy {
                        sum.to_copy_files += 1;
                        sum.bytes_to_copy += entry.size;
                    }
                }
                // Directories have a list of their own; one that could not be
                // looked at may stand here.
                (_, Kind::Dir) => sum.dirs += 1,
                (_, Kind::Symlink) => sum.symlinks += 1,
                _ => sum.specials += 1,
            }
        }
        sum.entries = sum.files + sum.dirs + sum.symlinks + sum.specials + sum.hard_links;
        for sweep in &self.sweeps {
            sum.bundles += self.bundles_of(&sweep.reads);
            sum.disks.push(DiskSummary {
                choice: sweep.choice.clone(),
                reads: sweep.reads.len() as u64,
                bytes: sweep.reads.iter().map(|read| self.bytes_of(read)).sum(),
                travel_listed: sweep.travel_listed,
                travel: sweep.travel,
            });
        }
        let files = self.listing.entries.iter();
        let copied = files.filter(|e| e.kind == Kind::File && e.action == Action::Copy);
        sum.large_files = copied.filter(|e| e.size > LARGE_BYTES).count() as u64;
        sum
    }

    fn bytes_of(&self, read: &Read) -> u64 {
        let whole = self.listing.entries[read.entry as usize].size;
        let Some(extents) = self.extents.get(&read.entry) else {
            return whole;
        };
        match read.part {
            WHOLE => whole,
            part => extents[part as usize].len,
        }
    }

    /// Small neighbours fill a bundle; large files pass by.
    fn bundles_of(&self, reads: &[Read]) -> u64 {
        let (mut bundles, mut filled) = (0, BUNDLE_BYTES as u64);
        let mut begun = HashSet::new();
        for read in reads {
            let entry = &self.listing.entries[read.entry as usize];
            let is_further_part = read.part != WHOLE && !begun.insert(read.entry);
            if entry.size > LARGE_BYTES || is_further_part {
                continue;
            }
            filled += bundled_bytes(entry);
            if filled > BUNDLE_BYTES as u64 {
                bundles += 1;
                filled = bundled_bytes(entry);
            }
        }
        bundles
    }
}

fn bundled_bytes(entry: &Entry) -> u64 {
    let pax = if entry.has_fraction() { PAX_BYTES } else { 0 };
    HEADER_BYTES + pax + entry.size.next_multiple_of(512)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Extent, Sweep};

    fn plan(entries: &[(Kind, Action, u64)], reads: Vec<Read>) -> Plan {
        let mut plan = Plan::default();
        for &(kind, action, size) in entries {
            plan.listing.push(0, b"name", 1, kind);
            let entry = plan.listing.entries.last_mut().unwrap();
            entry.action = action;
            entry.size = size;
            entry.allocated = size.next_multiple_of(4096);
        }
        plan.sweeps.push(Sweep {
            key: 1,
            choice: DiskChoice {
                disk: "sda".into(),
                order: "physical",
                why: "rotational".into(),
            },
            reads,
            travel_listed: 9,
            travel: 3,
        });
        plan
    }

    fn whole(entry: u32) -> Read {
        Read { entry, part: WHOLE }
    }

    #[test]
    fn kinds_add_up_to_entries() {
        let sum = plan(
            &[
                (Kind::File, Action::Copy, 10),
                (Kind::File, Action::Keep, 5000),
                (Kind::File, Action::Link, 10),
                (Kind::Symlink, Action::Copy, 4),
                (Kind::Symlink, Action::Link, 4),
                (Kind::Fifo, Action::Copy, 0),
                (Kind::BlockDevice, Action::Fail, 0),
            ],
            vec![whole(0)],
        )
        .summary();
        assert_eq!(sum.entries, 7);
        assert_eq!((sum.files, sum.symlinks, sum.specials), (2, 1, 2));
        assert_eq!((sum.hard_links, sum.unchanged), (2, 1));
        assert_eq!((sum.bytes, sum.allocated), (5010, 4096 + 8192));
        assert_eq!((sum.to_copy_files, sum.bytes_to_copy), (1, 10));
        assert_eq!((sum.disks[0].reads, sum.disks[0].bytes), (1, 10));
        assert_eq!((sum.disks[0].travel_listed, sum.disks[0].travel), (9, 3));
    }

    #[test]
    fn small_files_fill_bundles_and_large_ones_travel_alone() {
        let file = |size| (Kind::File, Action::Copy, size);
        // Three of these and their headers fit a bundle, four do not.
        let mut entries = vec![file(LARGE_BYTES); 7];
        entries.push(file(LARGE_BYTES + 1));
        let sum = plan(&entries, (0..8).map(whole).collect()).summary();
        assert_eq!((sum.bundles, sum.large_files), (3, 1));
        assert_eq!(sum.disks[0].bytes, 8 * LARGE_BYTES + 1);

        assert_eq!(plan(&[], vec![]).summary().bundles, 0);
        assert_eq!(plan(&[file(0)], vec![whole(0)]).summary().bundles, 1);
    }

    #[test]
    fn a_file_in_two_extents_is_two_reads_and_one_file() {
        let file = (Kind::File, Action::Copy, LARGE_BYTES);
        let reads = vec![
            Read { entry: 0, part: 1 },
            whole(1),
            Read { entry: 0, part: 0 },
        ];
        let mut plan = plan(&[file, file], reads);
        let half = |n| Extent {
            logical: n * LARGE_BYTES / 2,
            physical: (7 - n) << 30,
            len: LARGE_BYTES / 2,
        };
        plan.extents.insert(0, [half(0), half(1)].into());
        let sum = plan.summary();
        assert_eq!((sum.bundles, sum.to_copy_files), (1, 2));
        assert_eq!(
            (sum.disks[0].reads, sum.disks[0].bytes),
            (3, 2 * LARGE_BYTES)
        );
    }
}
