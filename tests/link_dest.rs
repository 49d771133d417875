//! `--link-dest`: unchanged files of an earlier copy get one more name.

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use common::edits::edit;
use common::random::{Kinds, Random, grow, seeds};
use common::snapshot::{Leave, NOTHING, Snapshot, assert_same_but};
use common::{Ability, Haul, Scratch, Tree, can};

const ORDERS: [&str; 2] = ["--order=physical", "--order=none"];

fn snap(order: &str, more: &[&str], from: &Path, to: &Path) -> common::Ran {
    Haul::new().arg(order).args(more).copy(from, to).run()
}

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path)
        .unwrap_or_else(|e| panic!("{path:?}: {e}"))
        .ino()
}

fn tree(scratch: &Scratch) -> Tree {
    let src = scratch.src();
    src.file("a", b"a")
        .file("d/b", b"b")
        .random("big", 1, 2_000_000);
    src.file("one", b"1")
        .hard_link("one", "d/two")
        .symlink("l", "a");
    src.mtime("a", 1_000_000, 7);
    src
}

/// What is linked is one inode with names outside the tree.
const LINKS: Leave = Leave {
    links: true,
    ..NOTHING
};

#[test]
fn unchanged_files_become_one_more_name() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = tree(&scratch);
        let (old, new) = (scratch.path("old"), scratch.path("new"));
        snap(order, &[], src.root(), &old).ok();
        let before = Snapshot::of(&old);
        src.file("d/b", b"changed")
            .file("fresh", b"f")
            .mode("a", 0o711);
        let ran = snap(order, &["--link-dest=../old"], src.root(), &new);
        ran.ok();
        assert_eq!(ran.figure("link_dest_files"), 2, "{}", ran.summary());
        for name in ["big", "one", "d/two"] {
            assert_eq!(inode(&old.join(name)), inode(&new.join(name)), "{name}");
        }
        for name in ["a", "d/b"] {
            assert_ne!(inode(&old.join(name)), inode(&new.join(name)), "{name}");
        }
        assert_same_but(src.root(), &new, LINKS);
        assert!(before.differences(&Snapshot::of(&old), LINKS).is_empty());
        // Nothing more is done the second time.
        let again = snap(order, &["--link-dest=../old"], src.root(), &new);
        assert_eq!(again.ok().figure("copied"), 0, "{}", again.summary());
        // A change of metadata alone does not reach the earlier copy.
        src.mode("big", 0o600);
        snap(order, &["--link-dest=../old"], src.root(), &new).ok();
        assert!(before.differences(&Snapshot::of(&old), LINKS).is_empty());
        assert_same_but(src.root(), &new, LINKS);
    }
}

#[test]
fn a_dry_run_knows_what_will_be_linked_and_makes_nothing() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    let (old, new) = (scratch.path("old"), scratch.path("new"));
    snap("--order=none", &[], src.root(), &old).ok();
    src.file("d/b", b"changed");
    // A plan has no report whose sums could be checked.
    let dry = Haul::new().args(["--dry-run", "--link-dest=../old"]);
    let ran = dry.copy(src.root(), &new).start().wait();
    ran.ok();
    let plan = ran.of_type("plan").remove(0);
    assert_eq!(plan["bytes_to_copy"], 7, "{plan}");
    assert_eq!(plan["unchanged"], 3, "{plan}");
    assert!(!new.exists());
}

#[test]
fn a_snapshot_that_does_not_fit_makes_nothing() {
    if !can(&[Ability::Mount]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch);
    let room = scratch.tmpfs("room", "size=6m");
    let (old, new) = (room.join("old"), room.join("new"));
    snap("--order=physical", &[], src.root(), &old).ok();
    // Of a second copy there is no room, of one more name there is.
    src.random("big2", 2, 3_000_000);
    let link = ["--link-dest=../old"];
    snap("--order=physical", &link, src.root(), &new).ok();
    src.random("big3", 3, 3_000_000);
    let newer = room.join("newer");
    snap(
        "--order=physical",
        &["--link-dest=../new"],
        src.root(),
        &newer,
    )
    .exits(&[11]);
    assert!(!newer.exists());
}

#[test]
fn unchanged_files_are_not_opened() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch);
    snap("--order=none", &[], src.root(), &scratch.path("old")).ok();
    for order in ORDERS {
        let to = scratch.path(order);
        let haul = Haul::new()
            .args([order, "--link-dest=../old"])
            .copy(src.root(), &to);
        let (ran, _) = common::trace::traced(&scratch, &haul, "read,pread64");
        assert_eq!(ran.ok().figure("read_bytes"), 0);
        assert_eq!(ran.figure("link_dest_files"), 4, "{}", ran.summary());
    }
}

#[test]
fn several_are_asked_in_order() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = tree(&scratch);
        let (one, two, new) = (scratch.path("1"), scratch.path("2"), scratch.path("new"));
        snap(order, &[], src.root(), &one).ok();
        snap(order, &[], src.root(), &two).ok();
        Tree::new(one.clone()).remove("big");
        let flags = ["--link-dest=../1", "--link-dest=../2"];
        snap(order, &flags, src.root(), &new).ok();
        assert_eq!(inode(&new.join("a")), inode(&one.join("a")));
        assert_eq!(inode(&new.join("big")), inode(&two.join("big")));
    }
}

#[test]
fn content_counts_with_checksum() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = tree(&scratch);
        let (old, new) = (scratch.path("old"), scratch.path("new"));
        snap(order, &[], src.root(), &old).ok();
        src.file("a", b"x").mtime("a", 1_000_000, 7);
        snap(order, &["-c", "--link-dest=../old"], src.root(), &new).ok();
        assert_eq!(fs::read(new.join("a")).expect("read"), b"x");
        assert_eq!(fs::read(old.join("a")).expect("read"), b"a");
        assert_eq!(inode(&new.join("big")), inode(&old.join("big")));
    }
}

#[test]
fn names_that_parted_stay_apart() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = scratch.src();
        src.file("one", b"x")
            .hard_link("one", "two")
            .mtime("one", 5, 5);
        let (old, new) = (scratch.path("old"), scratch.path("new"));
        snap(order, &[], src.root(), &old).ok();
        src.remove("two").file("two", b"x").mtime("two", 5, 5);
        src.mode(
            "two",
            fs::metadata(src.path("one")).expect("stat").mode() & 0o7777,
        );
        snap(order, &["--link-dest=../old"], src.root(), &new).ok();
        assert_ne!(inode(&new.join("one")), inode(&new.join("two")));
    }
}

#[test]
fn symlinks_in_the_earlier_copy_are_not_followed() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = tree(&scratch);
        let outside = scratch.path("outside");
        snap(order, &[], src.root(), &outside).ok();
        let old = scratch.tree("old");
        old.symlink("d", outside.join("d"))
            .symlink("a", outside.join("a"));
        let new = scratch.path("new");
        let ran = snap(order, &["--link-dest=../old"], src.root(), &new);
        assert_eq!(ran.ok().figure("link_dest_files"), 0);
        assert_ne!(inode(&new.join("a")), inode(&outside.join("a")));
        assert_ne!(inode(&new.join("d/b")), inode(&outside.join("d/b")));
    }
}

#[test]
fn a_directory_that_cannot_serve_is_refused() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    let dst = scratch.dst();
    fs::create_dir(&dst).expect("mkdir");
    let mut ways = vec![
        "--link-dest=../none",
        "--link-dest=.",
        "--link-dest=../src/a",
    ];
    if can(&[Ability::Mount]) {
        scratch.tmpfs("other", "size=1m");
        ways.push("--link-dest=../other");
    }
    for flag in ways {
        snap("--order=none", &[flag], src.root(), &dst).exits(&[11]);
        assert_eq!(fs::read_dir(&dst).expect("list").count(), 0, "{flag}");
    }
}

#[test]
fn an_earlier_copy_below_the_destination_is_not_deleted() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = tree(&scratch);
        let dst = scratch.dst();
        fs::create_dir_all(dst.join("old")).expect("mkdir");
        snap(order, &[], src.root(), &dst.join("old")).ok();
        let flags = ["--delete", "--link-dest=old"];
        snap(order, &flags, src.root(), &dst).ok();
        assert_eq!(inode(&dst.join("big")), inode(&dst.join("old/big")));
    }
}

#[test]
fn random_snapshots_are_as_rsyncs() {
    if !can(&[Ability::Rsync]) {
        return;
    }
    for seed in seeds(3) {
        let scratch = Scratch::new();
        let src = scratch.src();
        let mut random = Random::new(seed);
        let kinds = Kinds::here(false, false);
        grow(&src, &mut random, 80, kinds);
        let old = scratch.path("old");
        Haul::new().copy(src.root(), &old).run().ok();
        edit(&src, &mut random, 25, kinds);
        let status = Command::new("rsync")
            .args(["-aH", "--modify-window=-1", "--link-dest=../old", "--"])
            .args([src.contents(), scratch.path("rsync/")])
            .status()
            .expect("rsync");
        assert!(status.success(), "HAUL_SEED={seed}");
        let (now, past) = (Snapshot::of(src.root()), Snapshot::of(&old));
        // Which files of one name share the earlier copy's inode.
        let shared = |new: &Path| -> Vec<_> {
            let single =
                |path: &Vec<u8>| now.entries[path].kind == 'f' && now.entries[path].links == 1;
            let new = Snapshot::of(new).entries;
            let is_same = |path: &Vec<u8>| {
                past.entries
                    .get(path)
                    .is_some_and(|e| e.touched.0 == new[path].touched.0)
            };
            new.keys()
                .filter(|path| single(path) && is_same(path))
                .cloned()
                .collect()
        };
        for order in ORDERS {
            let new = scratch.path(order);
            let ran = snap(order, &["--link-dest=../old"], src.root(), &new);
            assert_eq!(ran.code, 0, "HAUL_SEED={seed}: {}", ran.words());
            let copy = Snapshot::of(&new);
            let lines = now.differences(&copy, LINKS);
            assert!(lines.is_empty(), "HAUL_SEED={seed}: {order}: {lines:?}");
            for (path, entry) in &now.entries {
                assert_eq!(entry.group, copy.entries[path].group, "HAUL_SEED={seed}");
            }
            let lines = past.differences(&Snapshot::of(&old), LINKS);
            assert!(
                lines.is_empty(),
                "HAUL_SEED={seed}: {order}: the old one: {lines:?}"
            );
            assert_eq!(shared(&new), shared(&scratch.path("rsync")));
        }
    }
}
