//! The order of reading, seen from outside: strace says what was read when, filefrag where that
//! lies on the disk. On real ext4 and XFS, aged: names, inodes and places in three orders.

// Test values are small and known.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

mod common;

use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use common::extents::extents;
use common::probe::succeeds;
use common::random::Random;
use common::sweep::{CALLS, Disk, accesses};
use common::trace::{Call, traced};
use common::tree::bytes_of;
use common::{Ability, Haul, Scratch, Tree, assert_same, can};

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
    // Of large files it tells what was reserved and never written; small ones need no map.
    let small = |call: &&Call| {
        let size = call.path().and_then(|path| std::fs::metadata(path).ok());
        size.is_some_and(|meta| meta.len() < 1 << 20)
    };
    let fiemap = calls
        .iter()
        .filter(small)
        .find(|call| call.args.contains("FIEMAP"));
    assert!(
        fiemap.is_none(),
        "{kind}: FIEMAP without an order: {fiemap:?}"
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
fn verification_reads_the_destination_back_in_the_order_of_its_place() {
    if !can(&[Ability::Loop, Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = aged(&scratch, "ext4");
    let other = scratch.ext4("other", 64);
    let dst = other.join("dst");
    // Written in the order of the source; then aged, so that its own order is another one.
    let haul = Haul::new()
        .args(["--verify=none", "--reflink=never"])
        .copy(src.root(), &dst);
    haul.run().ok();
    let copied = Tree::new(dst.clone());
    for number in (0..240).step_by(3) {
        let name = format!("d{}/f{number:03}", number % 8);
        let bytes = std::fs::read(copied.path(&name)).expect("read");
        let like = src.path(&name);
        copied.remove(&name).file(&name, bytes);
        common::tree::same_mtime(&copied.path(&name), &like);
    }
    sync(&other);
    let haul = Haul::new()
        .args(["verify", "--order=physical"])
        .args([src.root(), &dst]);
    let (_, calls) = traced(&scratch, &haul, CALLS);
    for side in [src.root(), &dst] {
        let all = accesses(&calls, side);
        let read = all.iter().filter(|access| !access.advance).count();
        assert!(read >= 240, "{side:?}: only {read} reads were seen");
        // File by file: a digest wants the pieces of one in their own order.
        let begun = all
            .iter()
            .filter(|access| !access.advance && access.offset == 0);
        let back = Disk::new().steps_back(begun);
        let some = &back[..back.len().min(5)];
        assert!(
            back.is_empty(),
            "{side:?}: {} reads go back: {some:#?}",
            back.len()
        );
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
