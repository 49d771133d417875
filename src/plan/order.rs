//! In which order a disk's files are read. Pure: places in, reads out.
//!
//! One ascending sweep over the first extents; a fragmented file that fits the
//! memory window is read extent by extent where the head passes them anyway.
//! Where more such files overlap than the window can hold half-read, those
//! that came late wait for a further sweep.

use std::collections::{HashMap, HashSet};

use super::{Entry, Extents, Kind, Read, WHOLE};

/// Sorts `files` (indices in `entries`) by physical offset. Files without a
/// place (empty ones, data inside the inode, filesystems that cannot say) come
/// first, in inode order: their inodes are in memory, so they cost no seek.
pub(crate) fn by_physical(
    files: &[u32],
    entries: &[Entry],
    extents: &Extents,
    window_bytes: u64,
) -> Vec<Read> {
    let is_placed = |&&file: &&u32| entries[file as usize].physical != u64::MAX;
    let count = files.iter().filter(is_placed).count();
    let mut placed = Vec::with_capacity(count);
    let mut unplaced = Vec::with_capacity(files.len() - count);
    for &file in files {
        let entry = &entries[file as usize];
        match extents.get(&file) {
            _ if entry.physical == u64::MAX => unplaced.push(file),
            Some(extents) if entry.size <= window_bytes => {
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
        waiting = one_sweep(waiting, entries, extents, window_bytes, &mut reads);
    }
    reads
}

/// Takes from `waiting` what one sweep can read without ever holding more than
/// `window_bytes` of half-read files, and gives back the rest, still sorted.
fn one_sweep(
    waiting: Vec<Read>,
    entries: &[Entry],
    extents: &Extents,
    window_bytes: u64,
    reads: &mut Vec<Read>,
) -> Vec<Read> {
    let mut half_read: HashMap<u32, usize> = HashMap::new();
    let mut half_read_bytes = 0;
    // A file waits with all of its extents, or with none.
    let mut late: HashSet<u32> = HashSet::new();
    let mut later = Vec::new();
    for read in waiting {
        if read.part == WHOLE {
            reads.push(read);
            continue;
        }
        let size = entries[read.entry as usize].size;
        if !half_read.contains_key(&read.entry) {
            let is_first = half_read.is_empty();
            let is_late = late.contains(&read.entry);
            if is_late || (half_read_bytes + size > window_bytes && !is_first) {
                late.insert(read.entry);
                later.push(read);
                continue;
            }
            half_read.insert(read.entry, extents[&read.entry].len());
            half_read_bytes += size;
        }
        reads.push(read);
        if let Some(left) = half_read.get_mut(&read.entry) {
            *left -= 1;
            if *left == 0 {
                half_read.remove(&read.entry);
                half_read_bytes -= size;
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
        let reads = by_physical(&all, &entries, &extents, 1 << 20);
        let order: Vec<u32> = reads.iter().map(|r| r.entry).collect();
        assert_eq!(order, [3, 1, 2, 4, 0]);
    }

    #[test]
    fn extents_of_two_interleaved_files_are_read_as_the_head_passes_them() {
        let (all, entries, extents) = files(&[
            (20, vec![(100, 10), (300, 10)]),
            (20, vec![(200, 10), (400, 10)]),
        ]);
        let reads = by_physical(&all, &entries, &extents, 100);
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
        let reads = by_physical(&all, &entries, &extents, 30);
        let order: Vec<_> = reads.iter().map(|r| (r.entry, r.part)).collect();
        assert_eq!(order, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    }

    #[test]
    fn a_file_larger_than_the_window_is_one_read_at_its_first_extent() {
        let (all, entries, extents) =
            files(&[(200, vec![(300, 100), (100, 100)]), (10, vec![(200, 10)])]);
        let reads = by_physical(&all, &entries, &extents, 50);
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
        let sorted = by_physical(&all, &entries, &extents, 100);
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
            let reads = by_physical(&all, &entries, &extents, window);
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
