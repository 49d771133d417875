//! In which order a disk's files are read. Pure: places in, reads out.
//!
//! One ascending sweep over the first extents; a fragmented file is read extent
//! by extent where the head passes them anyway. Small ones are held in memory
//! until their last extent, large ones are written as they come. Where more of
//! them overlap than can be half-read at once, those that came late wait for a
//! further sweep.

use std::collections::{HashMap, HashSet};

use super::{Entry, Extent, Extents, Kind, LARGE_BYTES, Read, WHOLE};

/// Of a large file with larger extents on average the way to each is not worth
/// giving up its logical order: 8 MiB take four times as long as a seek.
const LARGE_EXTENT_BYTES: u64 = 8 << 20;

/// How much may be half-read at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HalfRead {
    /// Bytes of small files, which wait in memory.
    pub(crate) bytes: u64,
    /// Large files, which are open at the destination.
    pub(crate) files: usize,
}

/// Sorts `files` (indices in `entries`) by physical offset. Files without a
/// place (empty ones, data inside the inode, filesystems that cannot say) come
/// first, in inode order: their inodes are in memory, so they cost no seek.
pub(crate) fn by_physical(
    files: &[u32],
    entries: &[Entry],
    extents: &Extents,
    limit: HalfRead,
) -> Vec<Read> {
    let is_placed = |&&file: &&u32| entries[file as usize].physical != u64::MAX;
    let count = files.iter().filter(is_placed).count();
    let mut placed = Vec::with_capacity(count);
    let mut unplaced = Vec::with_capacity(files.len() - count);
    for &file in files {
        let entry = &entries[file as usize];
        match extents.get(&file) {
            _ if entry.physical == u64::MAX => unplaced.push(file),
            Some(extents) if is_by_extent(entry, extents, limit) => {
                for (part, extent) in (0..).zip(extents) {
                    placed.push((extent.physical, Read { entry: file, part }));
                }
            }
            _ => placed.push((entry.physical, whole(file))),
        }
    }
    // The listing's order breaks ties, so that equal plans are equal.
    placed.sort_unstable_by_key(|(physical, read)| (*physical, read.entry, read.part));
    unplaced.sort_unstable_by_key(|&file| entries[file as usize].ino);
    // The places go before the room for the reads is made.
    let mut waiting: Vec<Read> = placed.into_iter().map(|(_, read)| read).collect();
    waiting.shrink_to_fit();
    let mut reads = Vec::with_capacity(unplaced.len() + waiting.len());
    reads.extend(unplaced.into_iter().map(whole));
    while !waiting.is_empty() {
        waiting = one_sweep(waiting, entries, extents, limit, &mut reads);
    }
    reads
}

fn is_by_extent(entry: &Entry, extents: &[Extent], limit: HalfRead) -> bool {
    if entry.size > LARGE_BYTES {
        entry.allocated / extents.len().max(1) as u64 <= LARGE_EXTENT_BYTES
    } else {
        entry.size <= limit.bytes
    }
}

/// Takes from `waiting` what one sweep can read without ever having more than
/// `limit` half-read, and gives back the rest, still sorted.
fn one_sweep(
    waiting: Vec<Read>,
    entries: &[Entry],
    extents: &Extents,
    limit: HalfRead,
    reads: &mut Vec<Read>,
) -> Vec<Read> {
    let mut half_read: HashMap<u32, usize> = HashMap::new();
    let (mut bytes, mut files) = (0, 0);
    // A file waits with all of its extents, or with none.
    let mut late: HashSet<u32> = HashSet::new();
    let mut later = Vec::new();
    for read in waiting {
        if read.part == WHOLE {
            reads.push(read);
            continue;
        }
        let size = entries[read.entry as usize].size;
        let (held_bytes, held_files) = match size > LARGE_BYTES {
            true => (0, 1),
            false => (size, 0),
        };
        if !half_read.contains_key(&read.entry) {
            let is_first = half_read.is_empty();
            let is_late = late.contains(&read.entry);
            let fits = bytes + held_bytes <= limit.bytes && files + held_files <= limit.files;
            if is_late || !(fits || is_first) {
                late.insert(read.entry);
                later.push(read);
                continue;
            }
            half_read.insert(read.entry, extents[&read.entry].len());
            bytes += held_bytes;
            files += held_files;
        }
        reads.push(read);
        if let Some(left) = half_read.get_mut(&read.entry) {
            *left -= 1;
            if *left == 0 {
                half_read.remove(&read.entry);
                bytes -= held_bytes;
                files -= held_files;
            }
        }
    }
    later
}

/// Sorts by inode number.
pub(crate) fn by_inode(files: &[u32], entries: &[Entry]) -> Vec<Read> {
    let mut files = files.to_vec();
    files.sort_unstable_by_key(|&file| (entries[file as usize].ino, file));
    files.into_iter().map(whole).collect()
}

/// As listed.
pub(crate) fn as_listed(files: &[u32], entries: &[Entry]) -> Vec<Read> {
    let mut files = files.to_vec();
    files.sort_unstable_by_key(|&file| entries[file as usize].listed());
    files.into_iter().map(whole).collect()
}

fn whole(entry: u32) -> Read {
    Read { entry, part: WHOLE }
}

/// Bytes that the head travels between the reads: from where one ends to where
/// the next begins. Files without a place are passed over.
pub(crate) fn travel(reads: &[Read], entries: &[Entry], extents: &Extents) -> u64 {
    let mut head: Option<u64> = None;
    let mut travel = 0;
    let mut pass = |physical: u64, len: u64| {
        travel += head.map_or(0, |at| at.abs_diff(physical));
        head = Some(physical + len);
    };
    for read in reads {
        let entry = &entries[read.entry as usize];
        if entry.kind != Kind::File || entry.physical == u64::MAX {
            continue;
        }
        match (extents.get(&read.entry), read.part) {
            (Some(extents), WHOLE) => {
                for extent in extents {
                    pass(extent.physical, extent.len);
                }
            }
            (Some(extents), part) => {
                let extent = &extents[part as usize];
                pass(extent.physical, extent.len);
            }
            (None, _) => pass(entry.physical, entry.allocated),
        }
    }
    travel
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Extent, Listing};
    use proptest::prelude::*;

    /// Files from (size, extents as (physical, len)).
    fn files(list: &[(u64, Vec<(u64, u64)>)]) -> (Vec<u32>, Vec<Entry>, Extents) {
        let mut listing = Listing::default();
        let mut extents = Extents::new();
        for (i, (size, places)) in (0u32..).zip(list) {
            listing.push(0, b"f", u64::from(1000 - i), Kind::File);
            let entry = listing.entries.last_mut().unwrap();
            entry.size = *size;
            entry.physical = places.first().map_or(u64::MAX, |p| p.0);
            entry.allocated = places.iter().map(|p| p.1).sum();
            if places.len() > 1 {
                let mut logical = 0;
                let list = places.iter().map(|&(physical, len)| {
                    logical += len;
                    Extent {
                        logical: logical - len,
                        physical,
                        len,
                    }
                });
                extents.insert(i, list.collect());
            }
        }
        (
            (0..u32::try_from(list.len()).unwrap()).collect(),
            listing.entries,
            extents,
        )
    }

    fn half_read(bytes: u64) -> HalfRead {
        HalfRead { bytes, files: 2 }
    }

    fn place(read: &Read, entries: &[Entry], extents: &Extents) -> u64 {
        match read.part {
            WHOLE => entries[read.entry as usize].physical,
            part => extents[&read.entry][part as usize].physical,
        }
    }

    #[test]
    fn offsets_ascend_and_files_without_a_place_come_first_by_inode() {
        let (all, entries, extents) = files(&[
            (10, vec![(900, 10)]),
            (0, vec![]),
            (10, vec![(100, 10)]),
            (5, vec![]),
            (10, vec![(500, 10)]),
        ]);
        let reads = by_physical(&all, &entries, &extents, half_read(1 << 20));
        let order: Vec<u32> = reads.iter().map(|r| r.entry).collect();
        assert_eq!(order, [3, 1, 2, 4, 0]);
    }

    #[test]
    fn extents_of_two_interleaved_files_are_read_as_the_head_passes_them() {
        let (all, entries, extents) = files(&[
            (20, vec![(100, 10), (300, 10)]),
            (20, vec![(200, 10), (400, 10)]),
        ]);
        let reads = by_physical(&all, &entries, &extents, half_read(100));
        let order: Vec<_> = reads.iter().map(|r| (r.entry, r.part)).collect();
        assert_eq!(order, [(0, 0), (1, 0), (0, 1), (1, 1)]);
        assert_eq!(travel(&reads, &entries, &extents), 3 * 90);
    }

    #[test]
    fn what_the_window_cannot_hold_waits_for_a_further_sweep() {
        let (all, entries, extents) = files(&[
            (20, vec![(100, 10), (300, 10)]),
            (20, vec![(200, 10), (400, 10)]),
        ]);
        let reads = by_physical(&all, &entries, &extents, half_read(30));
        let order: Vec<_> = reads.iter().map(|r| (r.entry, r.part)).collect();
        assert_eq!(order, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    }

    #[test]
    fn large_files_are_read_by_extent_as_many_as_may_be_half_read() {
        const M: u64 = 1 << 20;
        let large = |at: u64| (4 * M, vec![(at * M, 2 * M), ((100 + at) * M, 2 * M)]);
        let (all, entries, extents) = files(&[large(0), large(2), large(4)]);
        let reads = by_physical(&all, &entries, &extents, half_read(1));
        let order: Vec<_> = reads.iter().map(|r| (r.entry, r.part)).collect();
        assert_eq!(order, [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]);
    }

    #[test]
    fn a_large_file_of_few_large_extents_is_one_read() {
        const M: u64 = 1 << 20;
        let places = vec![(100 * M, 9 * M), (0, 9 * M)];
        let (all, entries, extents) = files(&[(18 * M, places)]);
        let reads = by_physical(&all, &entries, &extents, half_read(1));
        assert_eq!(reads, [whole(0)]);
    }

    #[test]
    fn a_file_larger_than_the_window_is_one_read_at_its_first_extent() {
        let (all, entries, extents) =
            files(&[(200, vec![(300, 100), (100, 100)]), (10, vec![(200, 10)])]);
        let reads = by_physical(&all, &entries, &extents, half_read(50));
        assert_eq!(reads, [whole(1), whole(0)]);
    }

    #[test]
    fn the_head_travels_back_and_forth_in_the_listed_order() {
        let (all, entries, extents) = files(&[
            (10, vec![(1000, 10)]),
            (10, vec![(0, 10)]),
            (10, vec![(2000, 10)]),
        ]);
        let mut entries = entries;
        for entry in &mut entries {
            entry.allocated = 10;
        }
        let listed = as_listed(&all, &entries);
        assert_eq!(travel(&listed, &entries, &extents), 1010 + 1990);
        let sorted = by_physical(&all, &entries, &extents, half_read(100));
        assert_eq!(travel(&sorted, &entries, &extents), 990 + 990);
    }

    proptest! {
        // A failure prints its input; it is not written into the tree.
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn every_byte_is_read_once_and_each_sweep_ascends(
            shapes in prop::collection::vec(prop::collection::vec((0u64..5000, 1u64..50), 0..6), 0..40),
            window in 1u64..400,
        ) {
            let list: Vec<_> = shapes
                .into_iter()
                .map(|places| (places.iter().map(|p| p.1).sum(), places))
                .collect();
            let (all, entries, extents) = files(&list);
            let reads = by_physical(&all, &entries, &extents, half_read(window));
            // Each file either whole or in all of its parts, exactly once.
            let mut seen: HashMap<u32, Vec<u32>> = HashMap::new();
            for read in &reads {
                seen.entry(read.entry).or_default().push(read.part);
            }
            prop_assert_eq!(seen.len(), all.len());
            for (file, mut parts) in seen {
                parts.sort_unstable();
                let n = extents.get(&file).map_or(0, |e| u32::try_from(e.len()).unwrap());
                prop_assert!(parts == [WHOLE] || parts == (0..n).collect::<Vec<_>>());
            }
            // Offsets fall only where a further sweep begins, and then the
            // files that are half-read are none.
            let mut open: HashMap<u32, usize> = HashMap::new();
            let mut before = 0;
            for read in reads.iter().skip_while(|r| entries[r.entry as usize].physical == u64::MAX) {
                let at = place(read, &entries, &extents);
                if at < before {
                    prop_assert!(open.is_empty());
                }
                before = at;
                if read.part != WHOLE {
                    let left = open.entry(read.entry).or_insert(extents[&read.entry].len());
                    *left -= 1;
                    if *left == 0 {
                        open.remove(&read.entry);
                    }
                    let held: u64 = open.keys().map(|&f| entries[f as usize].size).sum();
                    prop_assert!(held <= window);
                }
            }
        }
    }
}
