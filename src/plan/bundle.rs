//! Small neighbours travel together: a few MiB in memory, framed as a tar stream
//! where they leave the machine.
//!
//! A local writer takes names and metadata from [`Member`] and the content as it
//! lies here: headers would cost a third of the processor time that an empty
//! file takes in user space. ustar
//! headers by the crate `tar`; PAX records (POSIX.1-2001, pax(1)) for what they
//! cannot hold: long names, fractions of seconds and dates outside 1970..2242,
//! ids above 2,097,151, extended attributes. No I/O here.

use std::io::{self, Write};
use std::ops::Range;

use tar::{EntryType, Header};

use crate::error::Failure;
use crate::sys::metadata::Stat;
use crate::sys::xattrs::Xattrs;

/// A bundle is handed on when the next file would take it past this.
pub(crate) const BUNDLE_BYTES: usize = 4 << 20;

const BLOCK: usize = 512;

/// A file in a bundle.
#[derive(Debug)]
pub(crate) struct Member {
    /// Index of the entry in its listing.
    pub(crate) entry: u32,
    /// Its metadata when it was opened for reading.
    pub(crate) stat: Stat,
    pub(crate) xattrs: Xattrs,
    /// Its content in the bundle's bytes.
    pub(crate) data: Range<usize>,
    /// For a file with holes: the ranges that are data.
    pub(crate) ranges: Option<Vec<Range<u64>>>,
    /// What is known to be wrong with what was read.
    pub(crate) flaw: Option<Failure>,
}

/// The contents of small files, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct Bundle {
    pub(crate) bytes: Vec<u8>,
    pub(crate) members: Vec<Member>,
}

impl Bundle {
    /// A bundle that writes into a buffer used before.
    pub(crate) fn reusing(mut bytes: Vec<u8>) -> Bundle {
        bytes.clear();
        Bundle {
            bytes,
            members: Vec::new(),
        }
    }

    /// Whether a file of `size` would take it past its measure.
    pub(crate) fn is_full_for(&self, size: u64) -> bool {
        !self.members.is_empty() && self.bytes.len() as u64 + size > BUNDLE_BYTES as u64
    }

    /// Writes it as a tar stream, without the end marker; `path` names a member
    /// there. Content is written from where it lies.
    ///
    /// # Errors
    /// Those of `out`.
    pub(crate) fn write_tar<P: AsRef<[u8]>>(
        &self,
        out: &mut impl Write,
        path: impl Fn(&Member) -> P,
    ) -> io::Result<()> {
        let mut headers = Vec::new();
        for member in &self.members {
            let data = &self.bytes[member.data.clone()];
            headers.clear();
            append_headers(&mut headers, path(member).as_ref(), member, data.len());
            out.write_all(&headers)?;
            out.write_all(data)?;
            let padding = data.len().next_multiple_of(BLOCK) - data.len();
            out.write_all(&[0; BLOCK][..padding])?;
        }
        Ok(())
    }
}

fn append_headers(out: &mut Vec<u8>, path: &[u8], member: &Member, size: usize) {
    let Member { stat, xattrs, .. } = member;
    let pax = pax_records(path, stat, xattrs);
    if !pax.is_empty() {
        let mut header = header(b"././@PaxHeader", EntryType::XHeader, pax.len());
        header.set_mode(0o644);
        header.set_cksum();
        out.extend_from_slice(header.as_bytes());
        out.extend_from_slice(&pax);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    let mut header = header(&path[..path.len().min(100)], EntryType::Regular, size);
    header.set_mode(stat.permissions());
    header.set_uid(u64::from(stat.uid.min(MAX_OCTAL_ID)));
    header.set_gid(u64::from(stat.gid.min(MAX_OCTAL_ID)));
    header.set_mtime(u64::try_from(stat.mtime.s).unwrap_or(0).min(MAX_OCTAL_TIME));
    header.set_cksum();
    out.extend_from_slice(header.as_bytes());
}

/// Seven octal digits.
const MAX_OCTAL_ID: u32 = 0o7_777_777;
/// Eleven octal digits.
const MAX_OCTAL_TIME: u64 = 0o77_777_777_777;

fn header(name: &[u8], kind: EntryType, size: usize) -> Header {
    let mut header = Header::new_ustar();
    if let Some(ustar) = header.as_ustar_mut() {
        ustar.name[..name.len()].copy_from_slice(name);
    }
    header.set_entry_type(kind);
    header.set_size(size as u64);
    header
}

fn pax_records(path: &[u8], stat: &Stat, xattrs: &Xattrs) -> Vec<u8> {
    let mut records = Vec::new();
    if path.len() > 100 {
        record(&mut records, b"path", path);
    }
    let seconds = u64::try_from(stat.mtime.s);
    if stat.mtime.ns != 0 || seconds.is_err() || seconds.is_ok_and(|s| s > MAX_OCTAL_TIME) {
        record(
            &mut records,
            b"mtime",
            &decimal(stat.mtime.s, stat.mtime.ns),
        );
    }
    for (key, id) in [(b"uid", stat.uid), (b"gid", stat.gid)] {
        if id > MAX_OCTAL_ID {
            record(&mut records, key, id.to_string().as_bytes());
        }
    }
    for (name, value) in xattrs {
        // The key that GNU tar, bsdtar and star read.
        let key = [b"SCHILY.xattr.", name.as_encoded_bytes()].concat();
        record(&mut records, &key, value);
    }
    records
}

/// Seconds before 1970 count down while nanoseconds count up: -1 s + 0.25 s
/// is written -0.75.
fn decimal(s: i64, ns: u32) -> Vec<u8> {
    let text = if s >= 0 || ns == 0 {
        format!("{s}.{ns:09}")
    } else {
        format!("-{}.{:09}", (s + 1).unsigned_abs(), 1_000_000_000 - ns)
    };
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// `LEN KEY=VALUE\n`, where LEN counts its own digits.
fn record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + digits(rest);
    if digits(len) > digits(rest) {
        len += 1;
    }
    // Writing to a Vec cannot fail.
    if write!(out, "{len} ").is_ok() {
        out.extend_from_slice(key);
        out.push(b'=');
        out.extend_from_slice(value);
        out.push(b'\n');
    }
}

fn digits(n: usize) -> usize {
    n.checked_ilog10().map_or(1, |log| log as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::metadata::Time;
    use std::io::Read;

    fn add(bundle: &mut Bundle, stat: Stat, xattrs: Xattrs, data: &[u8]) {
        let at = bundle.bytes.len();
        bundle.bytes.extend_from_slice(data);
        bundle.members.push(Member {
            entry: u32::try_from(bundle.members.len()).unwrap(),
            stat,
            xattrs,
            data: at..bundle.bytes.len(),
            ranges: None,
            flaw: None,
        });
    }

    fn stat(s: i64, ns: u32) -> Stat {
        Stat {
            mode: 0o100_640,
            uid: 7,
            gid: 8,
            mtime: Time { s, ns },
            ..Stat::default()
        }
    }

    #[test]
    fn a_bundle_becomes_a_tar_stream_that_keeps_what_ustar_cannot_say() {
        let long = [b"d/".as_slice(), &[b'n'; 255]].concat();
        let mut bundle = Bundle::default();
        add(&mut bundle, stat(5, 0), vec![], b"one");
        let huge = Stat {
            uid: 3_000_000_000,
            ..stat(-1, 250_000_000)
        };
        let attrs = vec![("user.k".into(), b"v\0\xff=".to_vec())];
        add(&mut bundle, huge, attrs, &[b'x'; 1025]);
        let names = [b"plain\xff".as_slice(), &long];
        let mut stream = Vec::new();
        bundle
            .write_tar(&mut stream, |member| names[member.entry as usize])
            .unwrap();
        let mut archive = tar::Archive::new(&stream[..]);
        let mut entries = archive.entries().unwrap();
        let mut first = entries.next().unwrap().unwrap();
        assert_eq!(&first.path_bytes()[..], b"plain\xff");
        assert_eq!(
            (
                first.header().mode().unwrap(),
                first.header().uid().unwrap()
            ),
            (0o640, 7)
        );
        let mut data = Vec::new();
        first.read_to_end(&mut data).unwrap();
        assert_eq!(data, b"one");
        let mut second = entries.next().unwrap().unwrap();
        assert_eq!(&second.path_bytes()[..], &long[..]);
        let records: Vec<_> = second
            .pax_extensions()
            .unwrap()
            .unwrap()
            .map(|r| {
                r.map(|r| (r.key_bytes().to_vec(), r.value_bytes().to_vec()))
                    .unwrap()
            })
            .collect();
        let want: [(&[u8], &[u8]); 4] = [
            (b"path", &long),
            (b"mtime", b"-0.75"),
            (b"uid", b"3000000000"),
            (b"SCHILY.xattr.user.k", b"v\0\xff="),
        ];
        assert_eq!(records.len(), want.len());
        for ((key, value), (want_key, want_value)) in records.iter().zip(want) {
            assert_eq!((&key[..], &value[..]), (want_key, want_value));
        }
        assert!(entries.next().is_none());
    }

    #[test]
    fn record_lengths_count_their_own_digits() {
        for n in [1, 3, 4, 5, 90, 93, 94, 95, 96, 990, 9985, 9990] {
            let mut out = Vec::new();
            record(&mut out, b"k", &vec![b'v'; n]);
            let len: usize = std::str::from_utf8(out.split(|&b| b == b' ').next().unwrap())
                .unwrap()
                .parse()
                .unwrap();
            assert_eq!(len, out.len());
        }
    }
}
