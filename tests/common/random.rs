//! Random trees from a seed, and the same seed again with `HAUL_SEED`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::SFlag;

use super::probe::is_root;
use super::tree::{Tree, bytes_of};

/// SplitMix64: small, and the same everywhere.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end as u64 + 1) as usize);
        }
    }
}

/// The seeds to try: the one of `HAUL_SEED`, or some that differ from run to run.
pub fn seeds(count: u64) -> Vec<u64> {
    if let Ok(seed) = std::env::var("HAUL_SEED") {
        return vec![seed.parse().expect("HAUL_SEED is a number")];
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let base = now.expect("after 1970").as_nanos() as u64;
    (0..count)
        .map(|index| Random::new(base ^ index).next() % 1_000_000_000)
        .collect()
}

/// What may be in a random tree.
#[derive(Clone, Copy, Debug)]
pub struct Kinds {
    pub xattrs: bool,
    pub acls: bool,
    /// Owners and devices; needs root.
    pub root: bool,
}

impl Kinds {
    pub fn here(xattrs: bool, acls: bool) -> Kinds {
        Kinds {
            xattrs,
            acls,
            root: is_root(),
        }
    }
}

/// Fills a tree with about `count` things of all kinds, some of them odd.
pub fn grow(tree: &Tree, random: &mut Random, count: usize, kinds: Kinds) {
    let mut dirs = vec![PathBuf::new()];
    let mut others: Vec<PathBuf> = Vec::new();
    for _ in 0..count {
        let parent = random.pick(&dirs).clone();
        let path = parent.join(name(random));
        if tree.path(&path).symlink_metadata().is_ok() || path.as_os_str().len() > 1500 {
            continue;
        }
        add(tree, random, &path, &mut dirs, &mut others, kinds);
    }
    // Metadata last and directories from the deepest up: making things in them moves their times.
    for path in others.iter().chain(dirs.iter().rev()) {
        decorate(tree, random, path, kinds);
    }
}

fn add(
    tree: &Tree,
    random: &mut Random,
    path: &Path,
    dirs: &mut Vec<PathBuf>,
    others: &mut Vec<PathBuf>,
    kinds: Kinds,
) {
    match random.below(100) {
        0..20 => {
            tree.dir(path);
            dirs.push(path.to_owned());
            return;
        }
        20..65 => {
            let len = size(random);
            tree.file(path, bytes_of(random.next(), len));
        }
        65..72 => holes(tree, random, path),
        72..80 => {
            tree.symlink(path, PathBuf::from(name(random)));
        }
        80..90 if !others.is_empty() => {
            tree.hard_link(random.pick(others).clone(), path);
        }
        90..93 => {
            tree.fifo(path);
        }
        93..95 if kinds.root => {
            let kind = *random.pick(&[SFlag::S_IFCHR, SFlag::S_IFBLK]);
            tree.device(path, kind, random.below(500), random.below(1 << 18));
        }
        95..97 => {
            tree.socket(path);
        }
        _ => {
            tree.file(path, b"");
        }
    }
    others.push(path.to_owned());
}

fn holes(tree: &Tree, random: &mut Random, path: &Path) {
    let len = random.below(3 << 20) + 1;
    let bytes = bytes_of(random.next(), 5000);
    let mut places: Vec<u64> = (0..random.below(4)).map(|_| random.below(len)).collect();
    places.sort_unstable();
    let data: Vec<(u64, &[u8])> = places
        .iter()
        .map(|&at| (at, &bytes[..bytes.len().min((len - at) as usize)]))
        .collect();
    tree.sparse(path, len, &data);
}

pub fn size(random: &mut Random) -> usize {
    let edges = [
        1,
        511,
        512,
        513,
        4095,
        4096,
        4097,
        65_535,
        65_536,
        65_537,
        1 << 20,
    ];
    match random.below(10) {
        0..6 => random.below(20_000) as usize,
        6..8 => *random.pick(&edges),
        8 => random.below(300_000) as usize,
        _ => random.below(3_000_000) as usize,
    }
}

/// Any bytes but `/` and NUL, mostly plain ones.
pub fn name(random: &mut Random) -> OsString {
    let odd: &[&[u8]] = &[
        b"\xff\xfe",
        b"caf\xe9",
        b"caf\xc3\xa9",
        b"\xed\xa0\x80",
        b"new\nline",
        b" ",
        b"-rf",
        b"--help",
        b"*",
        b"a b",
        b"quote'\"",
        b"$(id)",
        b"\\",
        b"..x",
        b"...",
        b".hidden",
        b"tab\t",
        b"\x1b[31m",
        b"\x01\x02\x7f",
        b"a:b",
        b"x~",
        b".haul",
        b"#x#",
        b"%n",
    ];
    let mut bytes = match random.below(10) {
        0..2 => random.pick(odd).to_vec(),
        2 => {
            let len = random.pick(&[99, 100, 101, 155, 156, 200, 240]);
            vec![b'a' + random.below(26) as u8; *len]
        }
        _ => Vec::new(),
    };
    bytes.extend_from_slice(random.below(10_000).to_string().as_bytes());
    OsString::from_vec(bytes)
}

/// Gives a thing random metadata, of which each kind has its own chance.
pub fn decorate(tree: &Tree, random: &mut Random, path: &Path, kinds: Kinds) {
    let meta = tree.path(path).symlink_metadata().expect("stat");
    let link = meta.is_symlink();
    if kinds.root && random.chance(30) {
        let ids = [0, 1, 1000, 65_534, 2_097_151, 2_097_152, 3_000_000_000];
        let (uid, gid) = (*random.pick(&ids), *random.pick(&ids));
        tree.owner(path, uid, gid);
    }
    if !link && random.chance(50) {
        let mut bits = random.below(0o10000) as u32;
        if !kinds.root {
            // Without root the tree has to stay readable for its owner.
            bits |= if meta.is_dir() { 0o500 } else { 0o400 };
        }
        tree.mode(path, bits);
    }
    let plain = meta.is_file() || meta.is_dir();
    if kinds.xattrs && plain && random.chance(15) && writable(tree, path, kinds) {
        let len = random.below(200) as usize;
        tree.xattr(path, "user.one", &bytes_of(random.next(), len));
        if kinds.root {
            tree.xattr(path, "trusted.two", b"\x00\xff");
        }
    }
    if kinds.acls && plain && random.chance(10) && tree.path(path).to_str().is_some() {
        tree.acl(path, "u:1:rw,g:65534:r");
        if meta.is_dir() {
            tree.acl(path, "d:u:2:rx,d:g:3:rwx");
        }
    }
    if random.chance(70) {
        let seconds = [
            -1,
            0,
            1,
            1_000_000_000,
            1_700_000_000,
            4_000_000_000,
            -900_000_000,
        ];
        tree.mtime(
            path,
            *random.pick(&seconds),
            random.below(1_000_000_000) as i64,
        );
    }
}

fn writable(tree: &Tree, path: &Path, kinds: Kinds) -> bool {
    use std::os::unix::fs::MetadataExt;
    kinds.root
        || tree
            .path(path)
            .symlink_metadata()
            .is_ok_and(|meta| meta.mode() & 0o200 != 0)
}
