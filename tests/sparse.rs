//! Holes stay holes, to the block; preallocated space does not become data; reflinks where the
//! filesystem has them.

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use nix::fcntl::{FallocateFlags, fallocate};

use common::extents::extents;
use common::snapshot::{Leave, NOTHING, Snapshot, assert_same_but, data_map};
use common::{Ability, Haul, Scratch, assert_same, can, copy, haul};

fn allocated(path: &Path) -> u64 {
    fs::metadata(path).expect("stat").blocks() * 512
}

fn shared(path: &Path) -> bool {
    let extents = extents(path);
    !extents.is_empty() && extents.iter().all(|extent| extent.flags.contains("shared"))
}

#[test]
fn holes_at_every_place_stay_holes() {
    if !can(&[Ability::Sparse]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.sparse("all hole", 10 << 20, &[]);
    src.sparse("one byte of hole", 1, &[]);
    src.sparse("trailing", 10_485_761, &[(0, b"A")]);
    src.sparse("leading", (5 << 20) + 1, &[(5 << 20, b"Z")]);
    src.sparse(
        "middle",
        4 << 20,
        &[(0, b"head"), (2 << 20, b"through"), ((4 << 20) - 3, b"end")],
    );
    src.sparse("odd size", 1_234_567, &[(600_000, b"odd")]);
    let many: Vec<(u64, &[u8])> = (0..200)
        .map(|index| (index * 65_536, &b"tick"[..]))
        .collect();
    src.sparse("many", 200 * 65_536 + 12_345, &many);
    let blocks: Vec<(u64, &[u8])> = (0..64)
        .map(|index| (index * 8192, &[7_u8; 4096][..]))
        .collect();
    src.sparse("every second block", 64 * 8192, &blocks);
    src.sparse("small", 20_000, &[(12_288, b"x")])
        .file("zeros that are data", vec![0; 100_000]);
    src.file("tiny zeros", [0; 12])
        .hard_link("middle", "middle again");
    for order in ["--order=none", "--order=physical"] {
        let dst = scratch.path(order);
        Haul::new()
            .arg(order)
            .arg("--reflink=never")
            .copy(src.root(), &dst)
            .run()
            .ok();
        assert_same(src.root(), &dst);
    }
    copy(src.root(), &scratch.path("auto")).ok();
    assert_same(src.root(), &scratch.path("auto"));
    let (from, to) = (
        Snapshot::of(src.root()),
        Snapshot::of(&scratch.path("--order=none")),
    );
    for (path, entry) in &from.entries {
        let copied = &to.entries[path];
        assert!(
            copied.allocated <= entry.allocated + 65_536,
            "{}: {} allocated, of {}",
            common::snapshot::show(path),
            copied.allocated,
            entry.allocated
        );
    }
}

#[test]
fn a_sparse_file_above_8_gib_arrives_quickly_and_sparse() {
    if !can(&[Ability::Sparse]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    let gib = 1_u64 << 30;
    src.sparse(
        "huge",
        9 * gib + 4097,
        &[(1, b"head"), (5 * gib, b"middle"), (9 * gib + 4000, b"end")],
    );
    src.sparse("hole of 20 GiB", 20 * gib, &[]);
    for way in ["--order=none", "--order=physical", "--verify"] {
        let dst = scratch.path(way);
        Haul::new().arg(way).copy(src.root(), &dst).run().ok();
        assert_same(src.root(), &dst);
        assert!(allocated(&dst.join("huge")) < 1 << 20);
        assert!(allocated(&dst.join("hole of 20 GiB")) < 1 << 20);
    }
}

#[test]
fn space_that_is_preallocated_and_unwritten_does_not_become_data() {
    if !can(&[Ability::Sparse]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    if !src.preallocated("all", 16 << 20) || !src.preallocated("part", 16 << 20) {
        return common::probe::skip("fallocate", "not on this filesystem");
    }
    src.write_at("part", 8 << 20, b"data in the middle")
        .file("kept", b"x");
    let kept = OpenOptions::new()
        .write(true)
        .open(src.path("kept"))
        .expect("open");
    // Space behind the end of the file, too.
    fallocate(&kept, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, 8 << 20).expect("fallocate");
    // A clone would share the space, which costs nothing, and is another matter.
    Haul::new()
        .arg("--reflink=never")
        .copy(src.root(), &scratch.dst())
        .run()
        .ok();
    assert_same_but(
        src.root(),
        &scratch.dst(),
        Leave {
            holes: true,
            ..NOTHING
        },
    );
    for name in ["all", "part", "kept"] {
        let copied = scratch.dst().join(name);
        assert!(
            allocated(&copied) < 1 << 20,
            "{name}: {} bytes",
            allocated(&copied)
        );
    }
}

#[test]
fn data_just_written_into_preallocated_space_arrives() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for index in 0..20 {
        let name = format!("p{index}");
        if !src.preallocated(&name, 4 << 20) {
            return common::probe::skip("fallocate", "not on this filesystem");
        }
    }
    // Fresh, dirty and not on disk: FIEMAP calls these extents unwritten.
    for index in 0..20 {
        src.write_at(
            format!("p{index}"),
            655_360,
            &common::bytes_of(index, 1_000_000),
        );
    }
    src.random("delayed", 99, 300_000);
    copy(src.root(), &scratch.dst()).ok();
    assert_same_but(
        src.root(),
        &scratch.dst(),
        Leave {
            holes: true,
            ..NOTHING
        },
    );
}

#[test]
fn a_file_that_shrank_or_grew_at_the_source_leaves_nothing_of_the_old_copy() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("full to holes", 1, 9_000_000)
        .random("shrinks", 2, 9_000_000)
        .random("grows", 3, 10);
    copy(src.root(), &scratch.dst()).ok();
    src.remove("full to holes")
        .sparse("full to holes", 9_000_000, &[(4 << 20, b"x")]);
    src.random("shrinks", 2, 5).random("grows", 3, 9_000_000);
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn a_file_whose_holes_are_punched_and_filled_meanwhile_ends() {
    if !can(&[Ability::Sparse]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("j", 1, 64_000_000)
        .file("a", b"a")
        .file("zz", b"z");
    let file = OpenOptions::new()
        .write(true)
        .open(src.path("j"))
        .expect("open");
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    if fallocate(&file, punch, 0, 65_536).is_err() {
        return common::probe::skip("punch", "not on this filesystem");
    }
    common::run::while_running(
        |random| {
            let at = random.below(60_000) * 1024;
            fallocate(&file, punch, at.cast_signed(), 65_536).expect("punch");
            file.write_all_at(b"d", at).expect("write");
        },
        || {
            for round in 0..3 {
                let dst = scratch.path(format!("dst{round}"));
                let ran = copy(src.root(), &dst);
                ran.exits(&[0, 23]);
                assert_eq!(fs::read(dst.join("zz")).expect("neighbour"), b"z");
                assert_eq!(fs::read(dst.join("a")).expect("neighbour"), b"a");
                if ran.code == 23 {
                    ran.says("/j");
                }
            }
        },
    );
    copy(src.root(), &scratch.path("dst0")).ok();
    // Which of the source's blocks count as data depends on what is cached and
    // not yet written out; its bytes do not.
    let bytes = |path: &std::path::Path| fs::read(path).expect("read");
    assert!(bytes(&src.path("j")) == bytes(&scratch.path("dst0/j")));
}

#[test]
fn reflinks_share_the_blocks_and_keep_the_metadata() {
    if !can(&[Ability::Reflink, Ability::Fiemap]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("f", 1, 3_000_000)
        .mode("f", 0o640)
        .mtime("f", 1_000_000_000, 7);
    src.random("odd", 2, 1_234_567)
        .sparse("holes", 9 << 20, &[(4 << 20, &[1; 65_536])]);
    src.file("empty", b"")
        .random("small", 3, 5000)
        .symlink("l", "f")
        .hard_link("f", "g");
    if can(&[Ability::Xattr]) {
        src.xattr("f", "user.k", b"v");
    }
    for way in [
        &["--reflink=always"][..],
        &["--reflink=auto"],
        &[],
        &["--verify"],
    ] {
        let dst = scratch.path(format!("dst{}", way.concat()));
        Haul::new().args(way).copy(src.root(), &dst).run().ok();
        assert_same(src.root(), &dst);
        for name in ["f", "odd", "holes"] {
            assert!(
                shared(&dst.join(name)),
                "{way:?}: {name} {:?}",
                extents(&dst.join(name))
            );
        }
        // Sharing ends with a write: the source must not change.
        let before = fs::read(src.path("odd")).expect("read");
        let copied = OpenOptions::new()
            .write(true)
            .open(dst.join("odd"))
            .expect("open");
        copied
            .write_all_at(b"written to the copy", 100)
            .expect("write");
        assert!(
            fs::read(src.path("odd")).expect("read") == before,
            "the source changed"
        );
        drop(fs::remove_dir_all(dst));
    }
}

#[test]
fn reflink_never_shares_nothing() {
    if !can(&[Ability::Reflink, Ability::Fiemap]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("f", 1, 3_000_000).random("g", 2, 100_000);
    Haul::new()
        .arg("--reflink=never")
        .copy(src.root(), &scratch.dst())
        .run()
        .ok();
    assert_same(src.root(), &scratch.dst());
    for name in ["f", "g"] {
        let any = extents(&scratch.dst().join(name))
            .iter()
            .any(|e| e.flags.contains("shared"));
        assert!(!any, "{name}");
    }
}

#[test]
fn reflink_always_fails_clearly_where_it_cannot_be() {
    if !can(&[Ability::Mount]) {
        return;
    }
    let scratch = Scratch::new();
    let src = common::Tree::new(scratch.tmpfs("from", "size=10m"));
    src.random("f", 1, 100_000)
        .symlink("l", "f")
        .file("empty", b"");
    let dst = scratch.dst();
    let ran = Haul::new()
        .arg("--reflink=always")
        .copy(src.root(), &dst)
        .run();
    ran.exits(&[11, 23])
        .says_one_of(&["reflink", "clone", "FICLONE"]);
    assert!(!dst.join("f").exists(), "a copy that was not asked for");
    // And auto falls back in silence.
    let ran = copy(src.root(), &scratch.path("auto"));
    ran.ok();
    assert_same(src.root(), &scratch.path("auto"));
    assert!(ran.of_type("note").is_empty(), "{}", ran.words());
}

#[test]
fn a_reflink_onto_ext4_fails_clearly() {
    if !can(&[Ability::Loop]) {
        return;
    }
    let scratch = Scratch::new();
    let root = scratch.ext4("disk", 64);
    let src = common::Tree::new(root.join("src"));
    src.random("f", 1, 100_000);
    let dst = root.join("dst");
    let ran = haul([Path::new("--reflink=always"), src.root(), &dst]);
    ran.exits(&[11, 23])
        .says_one_of(&["reflink", "clone", "FICLONE"]);
    assert!(!dst.join("src/f").exists());
    haul([Path::new("--reflink=auto"), src.root(), &dst]).ok();
    assert_same(src.root(), &dst.join("src"));
}

#[test]
fn files_that_share_blocks_in_the_source_arrive() {
    if !can(&[Ability::Reflink]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("a", 1, 3_000_000);
    for name in ["b", "c"] {
        let (from, to) = (src.path("a"), src.path(name));
        let args = [
            "--reflink=always",
            from.to_str().expect("UTF-8"),
            to.to_str().expect("UTF-8"),
        ];
        common::probe::succeeds("cp", &args).expect("cp");
    }
    src.write_at("b", 1_000_000, b"differs here");
    for way in [
        ["--order=physical", "--reflink=never"],
        ["--order=auto", "--reflink=auto"],
    ] {
        let dst = scratch.path(way[0]);
        Haul::new().args(way).copy(src.root(), &dst).run().ok();
        assert_same(src.root(), &dst);
    }
    assert!(
        !data_map(&scratch.path("--order=physical/b"))
            .expect("map")
            .is_empty()
    );
}
