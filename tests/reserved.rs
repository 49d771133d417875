//! Blocks that are there without data, data without blocks of its own: reserved space, holes of
//! nearly a terabyte, shared extents.

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use common::extents::extents;
use common::snapshot::{Leave, NOTHING, assert_same_but, data_map};
use common::tree::same_mtime;
use common::{Ability, Haul, Scratch, Tree, assert_same, can, copy, haul};

const ORDERS: [&str; 2] = ["--order=none", "--order=physical"];

/// A few blocks of any filesystem here, and what it notes about them.
const FEW_BLOCKS: u64 = 64 << 10;

fn allocated(path: &Path) -> u64 {
    fs::metadata(path).expect("stat").blocks() * 512
}

fn shared(path: &Path) -> bool {
    let extents = extents(path);
    !extents.is_empty() && extents.iter().all(|extent| extent.flags.contains("shared"))
}

/// Files whose space is reserved and hardly written. False: not on this filesystem.
fn reserve(src: &Tree) -> bool {
    for (name, len) in [
        ("small", 500_000),
        ("small-never", 500_000),
        ("large", 20 << 20),
        ("large-never", 20 << 20),
    ] {
        if !src.preallocated(name, len) {
            return false;
        }
    }
    src.write_at("small", 250_000, b"x")
        .write_at("large", 11 << 20, b"x");
    // All of it on the medium, so that what is dropped can be dropped.
    for name in src.names("") {
        let path = src.path(std::str::from_utf8(&name).expect("UTF-8"));
        File::open(path).expect("open").sync_all().expect("sync");
    }
    true
}

#[track_caller]
fn check_reserved(src: &Tree, way: &str) {
    for order in ORDERS {
        let dst = src.root().with_extension(format!("{way}-{}", &order[2..]));
        Haul::new()
            .args([order, "--reflink=never"])
            .copy(src.root(), &dst)
            .run()
            .ok();
        let leave = Leave {
            holes: true,
            ..NOTHING
        };
        assert_same_but(src.root(), &dst, leave);
        for name in ["small", "small-never", "large", "large-never"] {
            let have = allocated(&dst.join(name));
            assert!(
                have <= FEW_BLOCKS,
                "{way}, {order}: {name} has {have} bytes"
            );
        }
    }
}

#[test]
fn space_reserved_and_never_written_takes_none_when_it_is_cached() {
    if !can(&[Ability::Sparse, Ability::Fiemap]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    if !reserve(&src) {
        return common::probe::skip("fallocate", "not on this filesystem");
    }
    // Read blocks look like data to SEEK_DATA.
    for name in src.names("") {
        let path = src.path(std::str::from_utf8(&name).expect("UTF-8"));
        let mut bytes = Vec::new();
        let mut file = File::open(path).expect("open");
        file.read_to_end(&mut bytes).expect("read");
    }
    check_reserved(&src, "warm");
}

#[test]
fn space_reserved_and_never_written_takes_none_when_it_is_not_cached() {
    if !can(&[Ability::Root, Ability::Sparse, Ability::Fiemap]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    if !reserve(&src) {
        return common::probe::skip("fallocate", "not on this filesystem");
    }
    if let Err(error) = fs::write("/proc/sys/vm/drop_caches", "1") {
        return common::probe::skip("drop_caches", &error.to_string());
    }
    check_reserved(&src, "cold");
}

#[test]
fn data_in_reserved_space_that_is_not_on_the_medium_yet_arrives() {
    if !can(&[Ability::Sparse]) {
        return;
    }
    let scratch = Scratch::new();
    for order in ORDERS {
        let src = scratch.tree(&order[2..]);
        for (name, len) in [("small", 500_000), ("large", 20 << 20)] {
            if !src.preallocated(name, len) {
                return common::probe::skip("fallocate", "not on this filesystem");
            }
            src.write_at(name, len / 2, &common::bytes_of(len, 100_000));
        }
        let dst = src.root().with_extension("dst");
        Haul::new()
            .args([order, "--reflink=never"])
            .copy(src.root(), &dst)
            .run()
            .ok();
        let leave = Leave {
            holes: true,
            ..NOTHING
        };
        assert_same_but(src.root(), &dst, leave);
        for name in ["small", "large"] {
            let have = allocated(&dst.join(name));
            assert!(have <= 100_000 + FEW_BLOCKS, "{order}: {name} has {have}");
        }
    }
}

/// Seconds of processor time, of which a hollow file needs hundredths. Read as bytes, a tebibyte
/// needs hours, and its zeros hashed by their number still more than this.
const WORK: [&str; 3] = ["prlimit", "--cpu=30", "--"];

/// A file of this size with a little in it: at both ends and between.
fn hollow(src: &Tree, len: u64) -> nix::Result<()> {
    let file = File::create(src.path("huge")).expect("create");
    nix::unistd::ftruncate(&file, len.cast_signed())?;
    let places: [(u64, &[u8]); 4] = [
        (0, b"head"),
        (len / 4, &[7; 70_000]),
        (len / 2 + 12_345, b"not at a border"),
        (len - 3, b"end"),
    ];
    src.sparse("huge", len, &places);
    Ok(())
}

#[test]
fn a_tebibyte_with_little_in_it_is_copied_and_read_back_by_its_data() {
    if !can(&[Ability::Sparse]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    if let Err(error) = hollow(&src, 1 << 40) {
        return common::probe::skip("huge", error.desc());
    }
    src.file("neighbour", b"n");
    for order in ORDERS {
        for verify in ["--verify=read", "--verify=durable"] {
            let dst = scratch.path(format!("dst{order}{verify}"));
            let ran = Haul::new()
                .under(WORK)
                .args([order, verify, "--reflink=never"])
                .copy(src.root(), &dst)
                .run();
            ran.ok();
            assert_eq!(ran.figure("verified_files"), 2, "{order}");
            // Content, holes, all.
            assert_same(src.root(), &dst);
            assert!(allocated(&dst.join("huge")) < 1 << 20, "{order}");
        }
    }
}

#[test]
fn damage_in_the_data_and_in_the_holes_of_a_huge_file_is_found() {
    if !can(&[Ability::Sparse]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    let len = 1 << 40;
    if let Err(error) = hollow(&src, len) {
        return common::probe::skip("huge", error.desc());
    }
    let dst = scratch.dst();
    Haul::new()
        .under(WORK)
        .arg("--reflink=never")
        .copy(src.root(), &dst)
        .run()
        .ok();
    let verify = || {
        let words = [Path::new("verify"), src.root(), &dst];
        Haul::new().under(WORK).args(words).run()
    };
    verify().ok();
    let copied = dst.join("huge");
    let put = |at: u64, bytes: &[u8]| {
        let file = OpenOptions::new().write(true).open(&copied).expect("open");
        file.write_all_at(bytes, at).expect("write");
        same_mtime(&copied, &src.path("huge"));
    };
    // In the data: a flipped byte, at both ends and in the middle of it.
    for (at, byte) in [(0, b'h'), (len / 4 + 69_999, 7), (len - 1, b'd')] {
        put(at, &[byte ^ 1]);
        verify().exits(&[2]).says("huge");
        put(at, &[byte]);
        verify().ok();
    }
    // In a hole: junk is found, zeros are none.
    for at in [10 << 20, len / 4 * 3 + 4095] {
        put(at, b"junk");
        verify().exits(&[2]).says("huge");
        put(at, &[0; 4]);
        verify().ok();
    }
}

#[test]
fn sharing_that_was_demanded_and_is_not_possible_is_a_failure() {
    if !can(&[Ability::Mount]) {
        return;
    }
    let scratch = Scratch::new();
    let from = Tree::new(scratch.tmpfs("from", "size=16m"));
    let src = Tree::new(from.path("src"));
    src.random("d/small", 1, 5000)
        .random("d/large", 2, 3_000_000)
        .symlink("l", "d");
    let none = Tree::new(from.path("none"));
    none.symlink("l", "x").dir("d");
    for order in ORDERS {
        let at = scratch.tree(&order[2..]);
        for existing in [false, true] {
            let dst = at.path(format!("dst-{existing}"));
            if existing {
                fs::create_dir(&dst).expect("mkdir");
            }
            for one in [src.path("d/large"), src.path("d/small"), src.contents()] {
                let ran = Haul::new()
                    .args(["--json", "--reflink=always", order])
                    .arg(&one)
                    .arg(dst.join(""))
                    .run();
                ran.exits(&[11, 23])
                    .says_one_of(&["reflink", "clone", "FICLONE", "share"]);
                for name in ["large", "small", "d/large", "d/small"] {
                    let made = dst.join(name);
                    assert!(!made.exists(), "{order}: {made:?} was not asked for");
                    if ran.code == 23 && one == src.contents() && name.starts_with('d') {
                        ran.says(name);
                    }
                }
            }
        }
        // Without files there is nothing to share.
        let dst = at.path("none");
        Haul::new()
            .args(["--reflink=always", order])
            .copy(none.root(), &dst)
            .run()
            .ok();
        assert_same(none.root(), &dst);
    }
}

/// A btrfs of its own, whatever is under test.
fn btrfs(scratch: &Scratch) -> Option<Tree> {
    if !can(&[Ability::Root, Ability::Loop]) {
        return None;
    }
    let mkfs = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/mkfs-btrfs.sh");
    match scratch.try_image("btrfs", 256, &[mkfs, "-q"]) {
        Ok(root) => Some(Tree::new(root)),
        Err(why) => {
            common::probe::skip("btrfs", &why);
            None
        }
    }
}

#[test]
fn a_file_that_cannot_be_shared_does_not_keep_its_neighbours_from_it() {
    let scratch = Scratch::new();
    let Some(at) = btrfs(&scratch) else {
        return;
    };
    let neighbours = ["b", "d/c", "z"];
    for (index, only) in ["a", "d/a", "zz"].into_iter().enumerate() {
        let src = Tree::new(at.path(format!("src{index}")));
        // Not copied on write: only an empty file can become such.
        src.file(only, b"");
        let path = src.path(only);
        common::probe::succeeds("chattr", &["+C", path.to_str().expect("UTF-8")]).expect("+C");
        let mut file = OpenOptions::new().write(true).open(&path).expect("open");
        file.write_all(&common::bytes_of(9, 300_000))
            .expect("write");
        for (seed, name) in (1..).zip(neighbours) {
            src.random(name, seed, 1_000_000);
        }
        for order in ["--order=none", "--order=physical", "--order=inode"] {
            let dst = at.path(format!("dst{index}{order}"));
            let ran = Haul::new().arg(order).copy(src.root(), &dst).run();
            ran.ok();
            assert_same(src.root(), &dst);
            for name in neighbours {
                let copied = dst.join(name);
                assert!(
                    shared(&copied),
                    "{order}, beside {only}: {name} {:?}",
                    extents(&copied)
                );
            }
            assert!(!shared(&dst.join(only)), "{order}: {only} is shared");
            assert_eq!(ran.figure("reflinked"), 3, "{order}: {}", ran.summary());
            // Demanded, it is that one file which fails.
            let dst = at.path(format!("must{index}{order}"));
            let ran = Haul::new()
                .args([order, "--reflink=always"])
                .copy(src.root(), &dst)
                .run();
            ran.exits(&[11, 23]);
            assert!(!dst.join(only).exists(), "{order}: {only} is no share");
            if ran.code == 23 {
                ran.says(only);
                assert_eq!(ran.figure("reflinked"), 3, "{order}: {}", ran.summary());
                assert!(neighbours.iter().all(|name| shared(&dst.join(name))));
            }
        }
    }
}

#[test]
fn a_lost_hole_and_reserved_space_are_no_difference_between_trees() {
    if !can(&[Ability::Sparse]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.sparse("f", 20 << 20, &[(5 << 20, b"data")]);
    copy(src.root(), &scratch.dst()).ok();
    let copied = scratch.dst().join("f");
    assert!(data_map(&copied).expect("map").len() == 1);
    let file = OpenOptions::new().write(true).open(&copied).expect("open");
    file.write_all_at(&[0; 100_000], 10 << 20).expect("write");
    same_mtime(&copied, &src.path("f"));
    haul([Path::new("verify"), src.root(), &scratch.dst()]).ok();
}
