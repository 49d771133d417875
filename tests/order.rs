//! The order of reading, seen from outside: strace says what was read when, filefrag where that
//! lies on the disk. On real ext4 and XFS, aged: names, inodes and places in three orders.

// Test values are small and known.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

mod common;

use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use common::extents::{Extent, extents, physical};
use common::probe::succeeds;
use common::random::Random;
use common::trace::{Call, traced};
use common::tree::bytes_of;
use common::{Ability, Haul, Scratch, Tree, assert_same, can};

const CALLS: &str = "openat,openat2,lseek,read,pread64,readv,preadv,preadv2,copy_file_range,\
                     sendfile,fadvise64,readahead,ioctl";

/// A small disk whose free space was in pieces when the tree was written: files lie in an order
/// unlike that of their names, and the large ones in many extents.
fn aged(scratch: &Scratch, kind: &str) -> Tree {
    let (root, piece) = match kind {
        "xfs" => (scratch.xfs("disk", 320), 256 << 10),
        _ => (scratch.ext4("disk", 64), 48 << 10),
    };
    let disk = Tree::new(root.clone());
    // Fill it up, then free every second piece.
    let mut pieces = 0;
    while std::fs::write(root.join(format!("piece{pieces}")), vec![1; piece]).is_ok() {
        pieces += 1;
    }
    for index in (0..=pieces).step_by(2) {
        disk.remove(format!("piece{index}"));
    }
    sync(&root);
    let tree = Tree::new(root.join("src"));
    let mut random = Random::new(42);
    let mut numbers: Vec<u64> = (0..240).collect();
    random.shuffle(&mut numbers);
    for (count, number) in numbers.into_iter().enumerate() {
        let len = 1 + random.below(30_000) as usize;
        tree.random(format!("d{}/f{number:03}", number % 8), number, len);
        match count {
            60 => interleaved(&tree, ["d3/fragmented", "d3/its twin"], 3_000_000),
            150 => interleaved(&tree, ["fragmented too", "d5/its twin"], 2_000_003),
            _ => {}
        }
    }
    tree.file("empty", b"")
        .symlink("link", "empty")
        .hard_link("d1/f001", "hard link");
    sync(&root);
    // A fresh mount: nothing is dirty, nothing delayed.
    let image = scratch.path("disk.img");
    scratch.unmount(&root);
    scratch
        .try_mount("disk", &["-o", "loop", image.to_str().expect("UTF-8")])
        .expect("mount");
    tree
}

/// Two files that take turns on the disk, 64 KiB at a time.
fn interleaved(tree: &Tree, names: [&str; 2], len: usize) {
    let files = names.map(|name| {
        // The size is known from the start: nothing is allocated beyond the end in advance.
        tree.sparse(name, len as u64, &[]);
        std::fs::OpenOptions::new()
            .write(true)
            .open(tree.path(name))
            .expect("open")
    });
    let bytes = bytes_of(len as u64, len);
    for (index, piece) in bytes.chunks(65_536).enumerate() {
        for file in &files {
            file.write_all_at(piece, index as u64 * 65_536)
                .expect("write");
            file.sync_data().expect("sync");
        }
    }
}

fn sync(root: &Path) {
    succeeds("sync", &["-f", root.to_str().expect("UTF-8")]).expect("sync");
}

/// What was read or asked for in advance: a file and the offset at which it began.
#[derive(Debug)]
struct Access {
    path: PathBuf,
    offset: u64,
    /// Bytes read, or asked for in advance; 0 there means up to the end.
    len: u64,
    advance: bool,
}

/// Follows the file positions, for calls that do not say an offset.
fn accesses(calls: &[Call], below: &Path) -> Vec<Access> {
    let mut positions: HashMap<u64, u64> = HashMap::new();
    let mut found = Vec::new();
    for call in calls {
        let fd = descriptor(&call.args);
        let result = call.result.unwrap_or(-1);
        let advance = match call.name.as_str() {
            "openat" | "openat2" => {
                positions.insert(result as u64, 0);
                continue;
            }
            "lseek" => {
                if result >= 0 {
                    positions.insert(fd, result as u64);
                }
                continue;
            }
            "fadvise64" if call.args.contains("WILLNEED") => true,
            "readahead" => true,
            "fadvise64" | "ioctl" => continue,
            _ => false,
        };
        let Some(path) = call.path().filter(|path| path.starts_with(below)) else {
            continue;
        };
        if result < 0 || (result == 0 && !advance) {
            continue;
        }
        let offset = match call.name.as_str() {
            "read" | "readv" => {
                let at = positions.entry(fd).or_default();
                let offset = *at;
                *at += result as u64;
                offset
            }
            "pread64" | "preadv" | "preadv2" => call.number(3).expect("an offset"),
            "fadvise64" | "readahead" => call.number(1).expect("an offset"),
            other => panic!("{other} was not expected: {}", call.args),
        };
        let len = match call.name.as_str() {
            "fadvise64" | "readahead" => call.number(2).expect("a length"),
            _ => result as u64,
        };
        found.push(Access {
            path,
            offset,
            len,
            advance,
        });
    }
    found
}

fn descriptor(args: &str) -> u64 {
    args.split('<')
        .next()
        .and_then(|number| number.trim().parse().ok())
        .unwrap_or(u64::MAX)
}

struct Disk {
    maps: HashMap<PathBuf, Vec<Extent>>,
}

impl Disk {
    fn new() -> Disk {
        Disk {
            maps: HashMap::new(),
        }
    }

    fn place(&mut self, access: &Access) -> Option<u64> {
        let map = self
            .maps
            .entry(access.path.clone())
            .or_insert_with(|| extents(&access.path));
        physical(map, access.offset)
    }

    /// Accesses whose place lies before that of the one before them.
    fn steps_back<'a>(&mut self, accesses: impl Iterator<Item = &'a Access>) -> Vec<String> {
        let mut back = Vec::new();
        let mut last = 0;
        for access in accesses {
            let Some(place) = self.place(access) else {
                continue;
            };
            if place < last {
                back.push(format!(
                    "{:?}@{} at {place} after {last}",
                    access.path, access.offset
                ));
            }
            last = place;
        }
        back
    }
}

#[test]
fn reads_come_in_ascending_order_of_the_place_on_ext4() {
    if can(&[Ability::Loop, Ability::Strace]) {
        ascending("ext4");
    }
}

#[test]
fn reads_come_in_ascending_order_of_the_place_on_xfs() {
    if can(&[Ability::Xfs, Ability::Strace]) {
        ascending("xfs");
    }
}

fn ascending(kind: &str) {
    let scratch = Scratch::new();
    let src = aged(&scratch, kind);
    let mut disk = Disk::new();
    let fragments = extents(&src.path("d3/fragmented")).len();
    assert!(
        fragments >= 4,
        "{kind}: the file lies in {fragments} extents: no test of them"
    );

    // As listed, the head would go back and forth: otherwise this shows nothing.
    let listed = Haul::new()
        .args([
            "--order=none",
            "--threads=1",
            "--reflink=never",
            "--verify=none",
        ])
        .copy(src.root(), &scratch.path("listed"));
    let (ran, calls) = traced(&scratch, &listed, CALLS);
    ran.ok();
    let unordered = accesses(&calls, src.root());
    let back = disk.steps_back(unordered.iter().filter(|access| !access.advance));
    assert!(
        back.len() > 20,
        "{kind}: {} steps back when unordered",
        back.len()
    );
    assert!(
        !calls.iter().any(|call| call.args.contains("FIEMAP")),
        "FIEMAP without an order"
    );

    let dst = scratch.dst();
    let ordered = Haul::new()
        .args(["--order=physical", "--reflink=never"])
        .copy(src.root(), &dst);
    let (ran, calls) = traced(&scratch, &ordered, CALLS);
    ran.ok();
    let all = accesses(&calls, src.root());
    let read = all.iter().filter(|access| !access.advance).count();
    let asked = all.iter().filter(|access| access.advance).count();
    assert!(read >= 240, "{kind}: only {read} reads were seen");
    assert!(
        asked >= 240,
        "{kind}: only {asked} were asked for in advance"
    );
    let back = disk.steps_back(all.iter().filter(|access| !access.advance));
    assert!(
        back.is_empty(),
        "{kind}: {} reads go back: {:#?}",
        back.len(),
        &back[..back.len().min(5)]
    );
    let back = disk.steps_back(all.iter().filter(|access| access.advance));
    assert!(
        back.is_empty(),
        "{kind}: {} advices go back: {:#?}",
        back.len(),
        &back[..back.len().min(5)]
    );
    let synced = calls
        .iter()
        .any(|call| call.args.contains("FIEMAP_FLAG_SYNC"));
    assert!(
        !synced,
        "{kind}: a clean file was flushed to learn where it lies"
    );
    assert_same(src.root(), &dst);
}

#[test]
fn advice_comes_before_the_read_and_not_far_ahead() {
    if !can(&[Ability::Loop, Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let disk = scratch.ext4("disk", 400);
    let src = Tree::new(disk.join("src"));
    for index in 0..4000 {
        src.file(format!("small/{index}"), b"x");
    }
    for index in 0..120 {
        src.random(format!("middle/{index}"), index, 1 << 20);
    }
    sync(&disk);
    let haul = Haul::new()
        .args(["--order=physical", "--verify=none"])
        .copy(src.root(), &scratch.dst());
    let (ran, calls) = traced(&scratch, &haul, CALLS);
    ran.ok();
    let (mut files, mut bytes) = (0_i64, 0_i64);
    let (mut most_files, mut most_bytes) = (0, 0);
    let mut advised = BTreeSet::new();
    for access in accesses(&calls, src.root()) {
        let size = std::fs::metadata(&access.path).expect("stat").len();
        if access.advance {
            let first = advised.insert(access.path.clone());
            files += i64::from(first);
            bytes += if access.len == 0 {
                size
            } else {
                access.len.min(size)
            } as i64;
            most_files = most_files.max(files);
            most_bytes = most_bytes.max(bytes);
        } else {
            assert!(
                advised.contains(&access.path),
                "no advice for {:?}",
                access.path
            );
            files -= i64::from(access.offset + access.len == size);
            bytes -= access.len as i64;
        }
    }
    assert!(
        most_files > 8 && most_bytes > 1 << 20,
        "no window: {most_files} files, {most_bytes} bytes"
    );
    assert!(most_files < 3000, "{most_files} files ahead");
    assert!(most_bytes < 64 << 20, "{most_bytes} bytes ahead");
}

#[test]
fn two_sources_on_one_disk_are_one_sweep() {
    if !can(&[Ability::Loop, Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = aged(&scratch, "ext4");
    let haul = Haul::new()
        .args([
            "--order=physical",
            "--reflink=never",
            "--verify=none",
            "--json",
        ])
        .args((0..8).map(|index| src.path(format!("d{index}"))))
        .arg(scratch.dst());
    let (ran, calls) = traced(&scratch, &haul, CALLS);
    ran.ok();
    let all = accesses(&calls, src.root());
    let back = Disk::new().steps_back(all.iter().filter(|access| !access.advance));
    assert!(
        back.is_empty(),
        "{} reads go back: {:#?}",
        back.len(),
        &back[..back.len().min(5)]
    );
}

#[test]
fn the_order_of_inodes_is_kept_when_asked_for() {
    if !can(&[Ability::Loop, Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = aged(&scratch, "ext4");
    let haul = Haul::new()
        .args(["--order=inode", "--reflink=never", "--verify=none"])
        .copy(src.root(), &scratch.dst());
    let (ran, calls) = traced(&scratch, &haul, CALLS);
    ran.ok();
    let mut last = 0;
    for access in accesses(&calls, src.root())
        .iter()
        .filter(|access| !access.advance)
    {
        let inode = std::fs::metadata(&access.path).expect("stat").ino();
        assert!(
            inode >= last,
            "{:?}: inode {inode} after {last}",
            access.path
        );
        last = inode;
    }
    assert!(last > 0);
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn every_byte_of_the_source_is_read_once() {
    if !can(&[Ability::Loop, Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = aged(&scratch, "ext4");
    let (files, _) = common::edits::listing(src.root());
    let mut inodes = HashMap::new();
    for file in &files {
        let meta = std::fs::metadata(src.path(file)).expect("stat");
        inodes.insert(meta.ino(), meta.len());
    }
    let bytes: u64 = inodes.values().sum();
    for order in ["--order=physical", "--order=none", "--order=inode"] {
        let haul = Haul::new()
            .args([order, "--reflink=never"])
            .copy(src.root(), &scratch.path(order));
        let (ran, calls) = traced(&scratch, &haul, CALLS);
        ran.ok();
        let read: i64 = calls
            .iter()
            .filter(|call| call.name.contains("read") && call.name != "readahead")
            .filter(|call| call.path().is_some_and(|path| path.starts_with(src.root())))
            .filter_map(|call| call.result)
            .sum();
        assert_eq!(read as u64, bytes, "{order}");
        assert_eq!(ran.figure("read_bytes"), bytes, "{order}");
    }
}

#[test]
fn the_plan_tells_how_far_the_head_would_travel() {
    if !can(&[Ability::Loop]) {
        return;
    }
    let scratch = Scratch::new();
    let src = aged(&scratch, "ext4");
    let ran = Haul::new()
        .args(["plan", "--json", "--order=physical"])
        .arg(src.root())
        .start()
        .wait();
    ran.ok();
    let plan = &ran.of_type("plan")[0];
    // Two distances somewhere in the plan: as listed, and in our order, which must be shorter.
    let mut travels = Vec::new();
    travels_in(plan, String::new(), &mut travels);
    assert!(travels.len() >= 2, "no head travel in {plan}");
    let shortest = travels.iter().min_by_key(|(_, far)| *far).expect("two");
    let longest = travels.iter().max_by_key(|(_, far)| *far).expect("two");
    assert!(shortest.1 * 5 < longest.1, "{travels:?}");
}

fn travels_in(value: &serde_json::Value, name: String, found: &mut Vec<(String, u64)>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (key, value) in fields {
                travels_in(value, format!("{name}.{key}"), found);
            }
        }
        serde_json::Value::Array(values) => {
            values
                .iter()
                .for_each(|value| travels_in(value, name.clone(), found));
        }
        serde_json::Value::Number(number) if name.contains("travel") => {
            found.push((name, number.as_f64().unwrap_or(0.0) as u64));
        }
        _ => {}
    }
}
