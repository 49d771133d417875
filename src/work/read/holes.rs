//! What of a file is data, and what is a hole of the source that shall be one
//! of the copy.
//!
//! The kernel is asked (SEEK_DATA; for blocks that were reserved and never
//! written, which it takes for data once they were read into the cache, FIEMAP)
//! and not simply believed: a hole that is not zeros is data.

use std::fs::File;
use std::io;
use std::ops::Range;

use super::small::read_at;
use crate::sys::metadata::Stat;
use crate::sys::{fiemap, transfer};

/// Smallest block of any filesystem here: XFS can have 512 bytes.
const SMALLEST_BLOCK: usize = 512;

/// Zeros are looked for in blocks of this where holes are read.
const BLOCK: u64 = 4096;

/// The ranges of a small file that are data, if some are not. `data` is its
/// content: only where that could be a hole is the kernel asked at all.
pub(super) fn of_bytes(file: &File, data: &[u8]) -> io::Result<Option<Vec<Range<u64>>>> {
    if !data.chunks(SMALLEST_BLOCK).any(is_zero) {
        return Ok(None);
    }
    let size = data.len() as u64;
    let said = without(
        &transfer::data_ranges(file, size)?,
        &fiemap::unwritten(file),
    );
    let mut believed: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    for range in said.into_iter().chain(std::iter::once(size..size)) {
        for_not_zero(&data[index(at)..index(range.start)], at, &mut believed);
        push(&mut believed, range.clone());
        at = range.end;
    }
    Ok((believed != [0..size]).then_some(believed))
}

/// The ranges of a large file to read as data. What the kernel calls a hole is
/// believed where the allocated blocks agree: no more of them than data and
/// reserved blocks need. Where there are more, the holes are read as well.
pub(super) fn of_file(file: &File, stat: &Stat) -> io::Result<Vec<Range<u64>>> {
    let data = transfer::data_ranges(file, stat.size)?;
    let unwritten = fiemap::unwritten(file);
    let said = without(&data, &unwritten);
    let len = |ranges: &[Range<u64>]| -> u64 {
        let whole = |r: &Range<u64>| (r.end - r.start).next_multiple_of(BLOCK);
        ranges.iter().map(whole).sum()
    };
    let explained = len(&data) + len(&unwritten);
    // Extent trees and attribute blocks count as allocated too.
    let is_explained = stat.allocated <= explained + explained / 64 + (64 << 10);
    let mut believed: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    for range in said
        .into_iter()
        .chain(std::iter::once(stat.size..stat.size))
    {
        let hole = at..range.start;
        // Blocks that were reserved and are dirty in the cache are both.
        for read in both(
            &hole,
            if is_explained {
                &data
            } else {
                std::slice::from_ref(&hole)
            },
        ) {
            read_not_zero(file, read, &mut believed)?;
        }
        push(&mut believed, range.clone());
        at = range.end;
    }
    Ok(believed)
}

/// `ranges` less `holes`; both ascending.
fn without(ranges: &[Range<u64>], holes: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut rest = Vec::new();
    for range in ranges {
        let mut at = range.start;
        for hole in both(range, holes) {
            push(&mut rest, at..hole.start);
            at = hole.end;
        }
        push(&mut rest, at..range.end);
    }
    rest
}

/// The parts of `ranges` that lie in `within`.
fn both(within: &Range<u64>, ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let cut = |r: &Range<u64>| r.start.max(within.start)..r.end.min(within.end);
    ranges.iter().map(cut).filter(|r| !r.is_empty()).collect()
}

/// Adds the blocks of a supposed hole that are not zeros after all.
fn read_not_zero(file: &File, hole: Range<u64>, out: &mut Vec<Range<u64>>) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = hole.start;
    while at < hole.end {
        let want = index((hole.end - at).min(buffer.len() as u64));
        let n = read_at(file, &mut buffer[..want], at)?;
        if n == 0 {
            return Ok(());
        }
        for_not_zero(&buffer[..n], at, out);
        at += n as u64;
    }
    Ok(())
}

fn for_not_zero(bytes: &[u8], offset: u64, out: &mut Vec<Range<u64>>) {
    let mut at = 0;
    while at < bytes.len() {
        // Blocks begin where the file's blocks do.
        let to_border = BLOCK - (offset + at as u64) % BLOCK;
        let end = bytes.len().min(at + index(to_border));
        if !is_zero(&bytes[at..end]) {
            push(out, offset + at as u64..offset + end as u64);
        }
        at = end;
    }
}

fn push(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        _ if range.is_empty() => {}
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&b| b == 0)
}

// Offsets in memory.
#[allow(clippy::cast_possible_truncation)]
fn index(offset: u64) -> usize {
    offset as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_blocks_are_taken_out_of_what_is_called_data() {
        assert_eq!(without(&[0..100], &[]), [0..100]);
        assert_eq!(without(&[0..100], &[10..20, 90..200]), [0..10, 20..90]);
        assert_eq!(without(&[0..10, 20..30], &[0..25]), [25..30]);
        assert!(without(&[5..6], &[0..10]).is_empty());
    }

    #[test]
    fn what_is_not_zero_is_data_whatever_was_said() {
        let mut bytes = vec![0; 20_000];
        bytes[5000] = 1;
        bytes[19_999] = 1;
        let mut out = Vec::new();
        for_not_zero(&bytes, 100, &mut out);
        assert_eq!(out, [4096..8192, 16_384..20_100]);
    }
}
