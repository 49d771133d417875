//! Digests of files. XXH3-128 of the content; of a large file with holes, of its
//! data ranges, with a mark for each gap: a tebibyte of nothing is not hashed.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::plan::LARGE_BYTES;
use crate::sys::transfer;

/// Read in one go up to this; larger files in pieces of it.
const PIECE_BYTES: usize = 1 << 20;

/// What was taken of a file's content while it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Digest {
    /// One over all of it, in its order; of a large file with holes, over its
    /// data with a mark for each gap.
    Plain(u128),
    /// One over each of the pieces in which it came, in the order of offsets.
    Pieces(Box<[Piece]>),
}

impl Digest {
    /// As one number, to be compared with that of a copy.
    pub(crate) fn value(&self) -> u128 {
        match self {
            Digest::Plain(digest) => *digest,
            Digest::Pieces(pieces) => {
                let mut all = Xxh3::new();
                for piece in pieces {
                    all.update(&piece.digest.to_le_bytes());
                }
                all.digest128()
            }
        }
    }

    /// The one that other files with the same content have as well.
    pub(crate) fn plain(&self) -> Option<u128> {
        match self {
            Digest::Plain(digest) => Some(*digest),
            Digest::Pieces(_) => None,
        }
    }
}

/// A piece of a file and the digest of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    offset: u64,
    len: u64,
    digest: u128,
}

impl Piece {
    pub(crate) fn of(offset: u64, bytes: &[u8]) -> Piece {
        Piece {
            offset,
            len: bytes.len() as u64,
            digest: xxh3_128(bytes),
        }
    }
}

/// The value of a copy's digest, taken as that of its source was: equal to
/// [`Digest::value`] where the contents are.
///
/// # Errors
/// As [`digest_of_copy`].
pub(crate) fn digest_like(
    like: &Digest,
    file: &File,
    size: u64,
    ranges: Option<&[Range<u64>]>,
    scratch: &mut Vec<u8>,
) -> io::Result<u128> {
    let pieces = match like {
        Digest::Plain(_) => return digest_of_copy(file, size, ranges, scratch),
        Digest::Pieces(pieces) => pieces,
    };
    if let Some(ranges) = ranges {
        holes_must_be_zeros(file, size, ranges, scratch)?;
    }
    let mut all = Xxh3::new();
    for piece in pieces {
        let mut hasher = Xxh3::new();
        let range = piece.offset..piece.offset + piece.len;
        hash_range(&mut hasher, file, &range, scratch)?;
        all.update(&hasher.digest128().to_le_bytes());
    }
    Ok(all.digest128())
}

/// The digest of a file's first `size` bytes, holes as the zeros that they read
/// as: the same however the file is stored.
///
/// # Errors
/// `UnexpectedEof` where there are fewer.
pub(crate) fn read_digest(file: &File, size: u64, scratch: &mut Vec<u8>) -> io::Result<u128> {
    if size <= PIECE_BYTES as u64 {
        scratch.resize(usize::try_from(size).unwrap_or(PIECE_BYTES), 0);
        read_all(file, scratch, 0)?;
        return Ok(xxh3_128(scratch));
    }
    let mut hasher = Xxh3::new();
    let mut at = 0;
    for range in transfer::data_ranges(file, size)? {
        hash_zeros(&mut hasher, range.start - at);
        hash_range(&mut hasher, file, &range, scratch)?;
        at = range.end;
    }
    hash_zeros(&mut hasher, size - at);
    Ok(hasher.digest128())
}

/// A digest of the content that is the same however a file is stored, and does
/// not take long over nothing: blocks of zeros, holes or not, are passed over,
/// with a mark for each gap.
///
/// # Errors
/// `UnexpectedEof` where the file is shorter than `size`.
pub(crate) fn content_digest(file: &File, size: u64, scratch: &mut Vec<u8>) -> io::Result<u128> {
    if size <= PIECE_BYTES as u64 {
        return read_digest(file, size, scratch);
    }
    let mut hasher = Xxh3::new();
    let (mut at, mut read_to) = (0, 0);
    for range in transfer::data_ranges(file, size)? {
        let start = (range.start - range.start % BLOCK_BYTES).max(read_to);
        let end = range.end.next_multiple_of(BLOCK_BYTES).min(size);
        let mut offset = start;
        for_pieces(file, start..end.max(start), scratch, |piece| {
            for block in piece.chunks(BLOCK_LEN) {
                if block.iter().any(|&b| b != 0) {
                    hash_gap(&mut hasher, at, offset);
                    hasher.update(block);
                    at = offset + block.len() as u64;
                }
                offset += block.len() as u64;
            }
            Ok(())
        })?;
        read_to = end.max(read_to);
    }
    hash_gap(&mut hasher, at, size);
    Ok(hasher.digest128())
}

/// The unit in which [`content_digest`] passes over zeros; pieces are whole
/// multiples of it.
const BLOCK_LEN: usize = 64 << 10;
const BLOCK_BYTES: u64 = BLOCK_LEN as u64;

/// The digest of a copy, to be compared with the one that was taken while its
/// source was read. Where the source had holes (`ranges` are its data), what
/// the copy has outside of them must be zeros.
///
/// # Errors
/// `UnexpectedEof` where the copy is shorter; `InvalidData` where a hole is not
/// zeros.
pub(crate) fn digest_of_copy(
    file: &File,
    size: u64,
    ranges: Option<&[Range<u64>]>,
    scratch: &mut Vec<u8>,
) -> io::Result<u128> {
    let Some(ranges) = ranges.filter(|_| size > LARGE_BYTES) else {
        return read_digest(file, size, scratch);
    };
    holes_must_be_zeros(file, size, ranges, scratch)?;
    digest_of_ranges(file, size, ranges, scratch)
}

/// The digest of data ranges, with a mark for each gap.
pub(crate) fn digest_of_ranges(
    file: &File,
    size: u64,
    ranges: &[Range<u64>],
    scratch: &mut Vec<u8>,
) -> io::Result<u128> {
    let mut hasher = Xxh3::new();
    let mut at = 0;
    for range in ranges {
        hash_gap(&mut hasher, at, range.start);
        hash_range(&mut hasher, file, range, scratch)?;
        at = range.end;
    }
    hash_gap(&mut hasher, at, size);
    Ok(hasher.digest128())
}

/// Goes on with such a digest: takes in the data of a file within `span`, which
/// begins where the digest ends. Both ends must be ends of data that was
/// written; `false` where they are not, or where `go_on` says so.
pub(crate) fn hash_prefix(
    hasher: &mut Xxh3,
    file: &File,
    ranges: &[Range<u64>],
    span: Range<u64>,
    go_on: impl Fn() -> bool,
) -> io::Result<bool> {
    let mut at = span.start;
    let mut stopped = false;
    let within = |range: &&Range<u64>| range.end > span.start && range.start < span.end;
    for range in ranges.iter().filter(within) {
        let start = range.start.max(span.start);
        hash_gap(hasher, at, start);
        at = range.end.min(span.end);
        for_pieces(file, start..at, &mut Vec::new(), |piece| {
            stopped |= !go_on();
            if stopped {
                return Err(io::ErrorKind::Interrupted.into());
            }
            hasher.update(piece);
            Ok(())
        })
        .or_else(|e| if stopped { Ok(()) } else { Err(e) })?;
        if stopped {
            return Ok(false);
        }
    }
    Ok(at == span.end)
}

/// Marks a gap by where the next data begins. No gap, no mark: of a file
/// without holes the digest is that of its bytes.
pub(crate) fn hash_gap(hasher: &mut Xxh3, from: u64, to: u64) {
    if to > from {
        hasher.update(&to.to_le_bytes());
    }
}

fn hash_range(
    hasher: &mut Xxh3,
    file: &File,
    range: &Range<u64>,
    scratch: &mut Vec<u8>,
) -> io::Result<()> {
    for_pieces(file, range.clone(), scratch, |piece| {
        hasher.update(piece);
        Ok(())
    })
}

/// What a copy has outside of its source's data must be zeros.
fn holes_must_be_zeros(
    file: &File,
    size: u64,
    ranges: &[Range<u64>],
    scratch: &mut Vec<u8>,
) -> io::Result<()> {
    for found in transfer::data_ranges(file, size)? {
        let mut at = found.start;
        for range in ranges
            .iter()
            .filter(|r| r.end > found.start && r.start < found.end)
        {
            must_be_zeros(file, at..range.start, scratch)?;
            at = range.end;
        }
        must_be_zeros(file, at..found.end, scratch)?;
    }
    Ok(())
}

fn must_be_zeros(file: &File, range: Range<u64>, scratch: &mut Vec<u8>) -> io::Result<()> {
    for_pieces(file, range, scratch, |piece| {
        if piece.iter().any(|&b| b != 0) {
            let why = "a hole of the source is not zeros";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(())
    })
}

fn for_pieces(
    file: &File,
    range: Range<u64>,
    scratch: &mut Vec<u8>,
    mut each: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut at = range.start;
    while at < range.end {
        let want = (range.end - at).min(PIECE_BYTES as u64);
        scratch.resize(usize::try_from(want).unwrap_or(PIECE_BYTES), 0);
        read_all(file, scratch, at)?;
        each(scratch)?;
        at += want;
    }
    Ok(())
}

fn hash_zeros(hasher: &mut Xxh3, mut len: u64) {
    static ZEROS: [u8; 65536] = [0; 65536];
    while len > 0 {
        let some = len.min(ZEROS.len() as u64);
        hasher.update(&ZEROS[..usize::try_from(some).unwrap_or(ZEROS.len())]);
        len -= some;
    }
}

fn read_all(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    match file.read_exact_at(buffer, offset) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(io::Error::new(
            e.kind(),
            "it is shorter than what was written",
        )),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_where_the_source_has_a_hole_is_found() {
        let file = tempfile::tempfile().unwrap();
        let size = 3 << 20;
        file.set_len(size).unwrap();
        file.write_all_at(b"data", 1 << 20).unwrap();
        let ranges = [1 << 20..(1 << 20) + 4096];
        let mut scratch = Vec::new();
        let good = digest_of_copy(&file, size, Some(&ranges), &mut scratch).unwrap();
        assert_eq!(
            good,
            digest_of_ranges(&file, size, &ranges, &mut scratch).unwrap()
        );
        // Zeros in a hole change nothing; anything else does.
        file.write_all_at(&[0; 8192], 2 << 20).unwrap();
        let same = digest_of_copy(&file, size, Some(&ranges), &mut scratch).unwrap();
        assert_eq!(good, same);
        file.write_all_at(b"x", (2 << 20) + 5).unwrap();
        assert!(digest_of_copy(&file, size, Some(&ranges), &mut scratch).is_err());
    }

    #[test]
    fn content_has_one_digest_however_it_is_stored() {
        let size = (3 << 20) + 77;
        let (sparse, dense) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        sparse.set_len(size).unwrap();
        dense.write_all_at(&vec![0; 3 << 20], 0).unwrap();
        dense.set_len(size).unwrap();
        for file in [&sparse, &dense] {
            file.write_all_at(b"some", (1 << 20) + 65_534).unwrap();
            file.write_all_at(b"end", size - 3).unwrap();
        }
        let mut scratch = Vec::new();
        let mut of = |file: &File| content_digest(file, size, &mut scratch).unwrap();
        let digest = of(&sparse);
        assert_eq!(digest, of(&dense));
        dense.write_all_at(b"x", 2 << 20).unwrap();
        assert_ne!(digest, of(&dense));
        sparse.set_len(0).unwrap();
        sparse.set_len(size).unwrap();
        sparse.write_all_at(b"some", (2 << 20) + 65_534).unwrap();
        sparse.write_all_at(b"end", size - 3).unwrap();
        assert_ne!(digest, of(&sparse));
    }

    #[test]
    fn a_digest_knows_where_data_lies() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 << 20).unwrap();
        let mut scratch = Vec::new();
        let mut of =
            |range: Range<u64>| digest_of_ranges(&file, 8 << 20, &[range], &mut scratch).unwrap();
        assert_ne!(of(0..4096), of(4096..8192));
    }
}
