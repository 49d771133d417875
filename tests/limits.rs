//! Where something ends: descriptors, file sizes, depth, room, the cache before a flush.

mod common;

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, mkdirat};

use common::snapshot::{Leave, NOTHING, assert_same_but};
use common::trace::traced;
use common::tree::{bytes_of, mode, names_in};
use common::{Ability, Haul, Scratch, Tree, assert_same, can, copy};

const ORDERS: [&str; 2] = ["--order=none", "--order=physical"];

const LEVELS: usize = 2500;

/// Removes what is too deep for a recursion that keeps every level open.
struct Deep(PathBuf);

impl Drop for Deep {
    fn drop(&mut self) {
        Command::new("rm").arg("-rf").arg(&self.0).status().ok();
    }
}

fn into(parent: &OwnedFd, name: &str) -> OwnedFd {
    openat(parent, name, OFlag::O_DIRECTORY, Mode::empty())
        .unwrap_or_else(|error| panic!("open {name}: {error}"))
}

#[test]
fn directories_deeper_than_any_path_arrive_and_are_found_again() {
    let scratch = Scratch::new();
    let deep = Deep(scratch.path("deep"));
    let src = scratch.tree("deep/src");
    let mut at: OwnedFd = open(src.root(), OFlag::O_DIRECTORY, Mode::empty()).expect("open");
    for level in 0..LEVELS {
        let bits = if level % 2 == 0 { 0o750 } else { 0o711 };
        mkdirat(&at, "d", mode(bits)).expect("mkdirat");
        at = into(&at, "d");
    }
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT;
    let file = openat(&at, "f", flags, mode(0o644)).expect("create");
    std::io::Write::write_all(&mut File::from(file), &bytes_of(1, 5000)).expect("write");
    for order in ORDERS {
        let dst = deep.0.join(&order[2..]);
        let first = Haul::new().arg(order).copy(src.root(), &dst).run();
        first.ok();
        // The root, the levels and the file.
        assert_eq!(first.figure("found"), LEVELS as u64 + 2, "{order}");
        let again = Haul::new().arg(order).copy(src.root(), &dst).run();
        again.ok();
        assert_eq!(again.figure("copied"), 0, "{order}: {}", again.summary());
        compare_levels(src.root(), &dst, order);
    }
}

/// Both down to the bottom, with two directories open.
fn compare_levels(from: &Path, to: &Path, order: &str) {
    let look = |path: &Path| open(path, OFlag::O_DIRECTORY, Mode::empty()).expect("open");
    let (mut from, mut to) = (look(from), look(to));
    for level in 0..LEVELS {
        (from, to) = (into(&from, "d"), into(&to, "d"));
        let [want, have] = [&from, &to].map(|dir| {
            let meta = File::from(dir.try_clone().expect("dup"))
                .metadata()
                .expect("stat");
            (meta.mode(), meta.mtime(), meta.mtime_nsec())
        });
        assert_eq!(want, have, "{order}: level {level}");
    }
    let file = openat(&to, "f", OFlag::O_RDONLY, Mode::empty()).expect("the file at the bottom");
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut File::from(file), &mut bytes).expect("read");
    assert!(bytes == bytes_of(1, 5000), "{order}: content");
}

#[test]
fn few_descriptors_are_enough_to_verify() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for index in 0..300 {
        let len = if index % 100 == 0 { 1_500_000 } else { 3000 };
        src.random(format!("d{}/f{index}", index % 11), index, len);
    }
    for order in ORDERS {
        let dst = scratch.path(order);
        let ran = Haul::new()
            .open_files(64)
            .args([order, "--verify=durable", "--reflink=never"])
            .copy(src.root(), &dst)
            .run();
        ran.ok();
        assert_eq!(ran.figure("verified_files"), 300, "{}", ran.summary());
        assert_same(src.root(), &dst);
        let words = ["verify".as_ref(), Path::new("--json"), src.root(), &dst];
        let ran = Haul::new().open_files(64).args(words).run();
        ran.ok();
        assert_eq!(ran.figure("verified_files"), 300, "{}", ran.summary());
    }
}

#[test]
fn a_single_file_is_flushed_before_it_is_read_back() {
    if !can(&[Ability::Strace]) {
        return;
    }
    for order in ORDERS {
        for len in [5000, 3_000_000] {
            let scratch = Scratch::new();
            let src = scratch.src();
            src.random("f", 1, len);
            let dst = scratch.tree("dst");
            let haul = Haul::new()
                .args(["--json", "--verify=durable", "--reflink=never", order])
                .args([src.path("f"), dst.path("f")]);
            let calls = "read,pread64,readv,preadv,preadv2,mmap,fsync,fdatasync,syncfs";
            let (ran, calls) = traced(&scratch, &haul, calls);
            ran.ok();
            assert_eq!(ran.figure("verified_files"), 1, "{order}, {len}");
            let in_dst = |path: Option<PathBuf>| path.is_some_and(|p| p.starts_with(dst.root()));
            // A whole filesystem: a file by itself leaves its name in the cache.
            let flushed = calls.iter().position(|call| {
                call.name == "syncfs" && call.result == Some(0) && in_dst(call.path())
            });
            let read = calls
                .iter()
                .position(|call| call.name.contains("read") && in_dst(call.path()));
            let (flushed, read) = (flushed.expect("a syncfs"), read.expect("read back"));
            assert!(flushed < read, "{order}, {len}: read back before the flush");
        }
    }
}

#[test]
fn a_file_above_the_limit_of_sizes_is_named_and_its_neighbours_arrive() {
    if !can(&[Ability::Sparse]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("a", 1, 100_000)
        .random("d/z", 2, 100_000)
        .random("large", 3, 3_000_000)
        .random("d/larger", 4, 9_000_000)
        .sparse("hole", 5_000_000, &[(0, b"data")]);
    let too_large = ["large", "d/larger", "hole"];
    for order in ORDERS {
        for more in [&["--threads=1"][..], &["--threads=4"], &["--verify"]] {
            let dst = scratch.path(format!("{order}{}", more[0]));
            let ran = Haul::new()
                .under(["prlimit", "--fsize=1000000", "--"])
                .args([order, "--reflink=never"])
                .args(more)
                .copy(src.root(), &dst)
                .run();
            ran.exits(&[23]);
            assert_eq!(ran.figure("failed"), 3, "{order}: {}", ran.summary());
            let errors = ran.of_type("error");
            for name in too_large {
                let is_named = errors.iter().any(|error| {
                    let path = error["path"]["text"].as_str();
                    path.is_some_and(|path| path.ends_with(&format!("/{name}")))
                        && error.to_string().contains("File too large")
                });
                assert!(is_named, "{order}: {name}: {}", ran.words());
            }
            assert_eq!(names_in(&dst), [&b"a"[..], b"d"], "{order}: left behind");
            assert_eq!(names_in(&dst.join("d")), [b"z"], "{order}: left behind");
            for (name, seed) in [("a", 1), ("d/z", 2)] {
                let have = fs::read(dst.join(name)).expect("neighbour");
                assert!(have == bytes_of(seed, 100_000), "{order}: {name}");
            }
            // Without the limit the same command finishes the copy.
            copy(src.root(), &dst).ok();
            assert_same(src.root(), &dst);
        }
    }
}

#[test]
fn a_file_that_was_there_survives_a_limit_of_sizes() {
    let scratch = Scratch::new();
    for order in ORDERS {
        let at = scratch.tree(&order[2..]);
        let src = Tree::new(at.path("src"));
        src.random("f", 1, 500_000);
        let dst = at.path("dst");
        Haul::new().arg(order).copy(src.root(), &dst).run().ok();
        src.random("f", 2, 3_000_000);
        Haul::new()
            .under(["prlimit", "--fsize=1000000", "--"])
            .args([order, "--reflink=never"])
            .copy(src.root(), &dst)
            .run()
            .exits(&[23])
            .says("File too large");
        assert!(fs::read(dst.join("f")).expect("old") == bytes_of(1, 500_000));
        assert_eq!(names_in(&dst), [b"f"], "{order}: left behind");
    }
}

/// A large file that ends in a hole, and some others: 60 MB of data.
fn filling(scratch: &Scratch) -> Tree {
    let src = scratch.src();
    let data = bytes_of(1, 46 << 20);
    src.sparse("large", 52 << 20, &[(0, &data)]);
    for index in 0..14 {
        src.random(format!("d{}/f{index:02}", index % 3), 2 + index, 1 << 20);
    }
    src
}

/// Copies into too little room, then, with room, once more.
fn fill_and_finish(src: &Tree, room: &Path, fillers: &[usize]) {
    for &filler in fillers {
        let (dst, in_the_way) = (room.join("dst"), room.join("filler"));
        fs::write(&in_the_way, bytes_of(99, filler)).expect("filler");
        let ran = Haul::new()
            .args(["--force", "--threads=4", "--order=none"])
            .copy(src.root(), &dst)
            .run();
        ran.exits(&[11]).says_one_of(&["No space left", "full"]);
        fs::remove_file(in_the_way).expect("remove");
        let ran = Haul::new()
            .args(["--force", "--threads=4", "--order=none"])
            .copy(src.root(), &dst)
            .run();
        ran.ok();
        // Where data lies in files is the filesystem's own matter, by its blocks.
        let leave = Leave {
            holes: true,
            ..NOTHING
        };
        assert_same_but(src.root(), &dst, leave);
        fs::remove_dir_all(dst).expect("remove");
    }
}

#[test]
fn a_large_file_cut_short_by_a_full_disk_is_not_taken_for_finished_in_memory() {
    if !can(&[Ability::Mount]) {
        return;
    }
    let scratch = Scratch::new();
    let src = filling(&scratch);
    let room = scratch.tmpfs("room", "size=64m");
    let fillers = [6 << 20, 10 << 20, 17 << 20, 30 << 20, 62 << 20];
    fill_and_finish(&src, &room, &fillers);
}

#[test]
fn a_large_file_cut_short_by_a_full_disk_is_not_taken_for_finished_on_ext4() {
    if !can(&[Ability::Loop]) {
        return;
    }
    let scratch = Scratch::new();
    let src = filling(&scratch);
    let room = scratch.ext4("room", 80);
    fill_and_finish(&src, &room, &[20 << 20, 24 << 20, 40 << 20]);
}
