//! Modes, owners, times, extended attributes, capabilities and ACLs are those of the source, in
//! spite of umask, setgid parents and default ACLs.

// Test values are small and known.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use common::snapshot::{Leave, NOTHING, Snapshot, assert_same_but, assert_untouched};
use common::{Ability, Haul, Scratch, Tree, assert_same, can, copy, haul};

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("stat").mode() & 0o7777
}

#[test]
fn times_are_kept_to_the_nanosecond() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("d/f", b"x")
        .symlink("l", "d/f")
        .symlink("dangling", "nowhere")
        .fifo("p")
        .dir("e");
    let times = [
        ("d/f", 1_449_438_529, 242_551_392),
        ("l", 1_449_438_529, 1),
        ("dangling", 1_449_438_529, 999_999_998),
        ("p", 1_449_438_529, 999_999_999),
        ("d", 0, 0),
        ("e", 1, 1),
    ];
    for (path, seconds, nanos) in times {
        src.mtime(path, seconds, nanos);
    }
    src.mtime("", 1_449_438_529, 123_456_789);
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
    let copied = Snapshot::of(&scratch.dst());
    assert_eq!(copied.entry("l").mtime, (1_449_438_529, 1));
    assert_eq!(copied.entry("").mtime, (1_449_438_529, 123_456_789));
}

#[test]
fn times_before_1970_and_far_ahead_are_kept() {
    let scratch = Scratch::new();
    let src = scratch.src();
    // Beyond what nanoseconds in 64 bits can say, too; the filesystem clamps what it cannot hold.
    for (index, seconds) in [
        -1,
        -9_618_825_600,
        -2_000_000_000,
        4_102_444_800,
        10_413_792_000,
        13_569_465_600,
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("f{index}");
        src.file(&name, b"x").mtime(&name, seconds, 500_000_000);
        let name = format!("bundle/d{index}");
        src.dir(&name).mtime(&name, seconds, 1);
    }
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
    let before = Snapshot::of(&scratch.dst());
    copy(src.root(), &scratch.dst()).ok();
    assert_untouched(&before, &Snapshot::of(&scratch.dst()));
}

#[test]
fn times_that_the_destination_clamps_are_said_once_and_not_copied_for_ever() {
    if !can(&[Ability::Loop]) {
        return;
    }
    let scratch = Scratch::new();
    // Inodes of 128 bytes hold whole seconds up to 2038.
    let small = ["mkfs.ext4", "-q", "-I", "128"];
    let old = scratch.try_image("old", 32, &small).expect("ext4 of old");
    let memory = Tree::new(scratch.tmpfs("memory", "size=8m"));
    memory
        .file("far", b"a")
        .file("near", b"b")
        .file("fraction", b"c")
        .dir("d");
    memory
        .mtime("far", 13_569_465_600, 0)
        .mtime("near", 10_413_792_000, 5);
    memory
        .mtime("fraction", 1_000_000_000, 500_000_000)
        .mtime("d", 13_569_465_600, 7);
    let ran = copy(memory.root(), &old.join("t"));
    ran.ok();
    assert_same_but(
        memory.root(),
        &old.join("t"),
        Leave {
            times: true,
            ..NOTHING
        },
    );
    let before = Snapshot::of(&old.join("t"));
    for _ in 0..2 {
        let again = copy(memory.root(), &old.join("t"));
        again.ok();
        assert_untouched(&before, &Snapshot::of(&old.join("t")));
    }
    // A real change is still seen.
    memory
        .append("far", b"more")
        .mtime("far", 13_569_465_600, 0);
    copy(memory.root(), &old.join("t")).ok();
    assert_eq!(fs::read(old.join("t/far")).expect("read"), b"amore");
}

#[test]
fn access_times_are_kept_and_the_source_is_not_disturbed() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for name in ["f", "d/g"] {
        src.file(name, b"x").atime(name, 978_307_200, 123_456_789);
    }
    src.random("big", 1, 3_000_000)
        .atime("big", 978_307_200, 123_456_789);
    for way in ["--verify=none", "--verify=read", "--verify=durable"] {
        let dst = scratch.path(way);
        Haul::new().arg(way).copy(src.root(), &dst).run().ok();
        let (from, to) = (Snapshot::of(src.root()), Snapshot::of(&dst));
        for name in ["f", "d/g", "big"] {
            assert_eq!(
                from.entry(name).atime,
                (978_307_200, 123_456_789),
                "{way}: source {name}"
            );
            assert_eq!(
                to.entry(name).atime,
                (978_307_200, 123_456_789),
                "{way}: copy of {name}"
            );
        }
    }
}

#[test]
fn every_mode_bit_is_kept() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for bit in 0..12 {
        let name = format!("f{bit}");
        src.file(&name, b"x").mode(&name, 1 << bit);
        let name = format!("d{bit}");
        src.file(format!("{name}/inside"), b"x");
        // Without root the directory has to stay open to its owner.
        let floor = if common::probe::is_root() { 0 } else { 0o700 };
        src.mode(&name, (1 << bit) | floor);
        if floor != 0 {
            src.mode(format!("f{bit}"), (1 << bit) | 0o400);
        }
    }
    src.file("none", b"x").file("all", b"x").mode("all", 0o7777);
    src.mode("none", if common::probe::is_root() { 0 } else { 0o400 });
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn setuid_bits_survive_a_foreign_owner_and_an_update_of_the_owner() {
    if !can(&[Ability::Root]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    for bits in [0o4755, 0o2755, 0o6711, 0o1777] {
        let name = format!("f{bits:o}");
        src.random(&name, 1, 5000)
            .owner(&name, 1234, 4321)
            .mode(&name, bits);
    }
    src.dir("d").owner("d", 7, 8).mode("d", 0o3770);
    src.random("large", 2, 9_000_000)
        .owner("large", 1234, 4321)
        .mode("large", 0o6755);
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
    let dst = Tree::new(scratch.dst());
    for name in ["f4755", "f6711", "large", "d"] {
        dst.owner(name, 0, 0);
    }
    dst.mtime("", 0, 0); // Tree::new may have changed the root's mode
    src.mode("", 0o755);
    copy(src.root(), dst.root()).ok();
    assert_same(src.root(), dst.root());
}

#[test]
fn owners_are_numbers_of_any_size() {
    if !can(&[Ability::Root]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    let ids = [
        0,
        1,
        65_534,
        65_535,
        2_097_151,
        2_097_152,
        2_147_483_648,
        3_000_000_000,
        4_294_967_294,
    ];
    for (index, id) in ids.into_iter().enumerate() {
        let name = format!("d/f{index}");
        src.file(&name, b"x")
            .owner(&name, id, ids[ids.len() - 1 - index]);
        let name = format!("d/l{index}");
        src.symlink(&name, "f0").owner(&name, id, id);
        let name = format!("d/sub{index}");
        src.dir(&name).owner(&name, id, id);
    }
    src.random("large", 1, 6_000_000)
        .owner("large", 3_000_000_000, 2_500_000_000);
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn owner_and_time_of_a_symlink_are_its_own() {
    if !can(&[Ability::Root]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    let outside = scratch.path("outside");
    fs::write(&outside, b"v").expect("write");
    let before = Snapshot::of(&outside);
    src.symlink("abs", &outside)
        .symlink("rel", "../outside")
        .symlink("dangling", "nowhere");
    for (index, name) in ["abs", "rel", "dangling"].into_iter().enumerate() {
        src.owner(name, 1234, 4321)
            .mtime(name, 936_868_149, 900_000_000 + index as i64);
    }
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
    assert_untouched(&before, &Snapshot::of(&outside));
}

#[test]
fn a_user_who_cannot_give_files_away_hears_it_once() {
    if !can(&[Ability::Root]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    for index in 0..300 {
        let name = format!("f{index}");
        src.file(&name, b"x").owner(&name, 1234, 4321);
    }
    src.file("suid", b"x")
        .owner("suid", 1234, 4321)
        .mode("suid", 0o6755);
    src.file("sticky", b"x")
        .owner("sticky", 1234, 4321)
        .mode("sticky", 0o1644);
    src.dir("sgid")
        .owner("sgid", 1234, 4321)
        .mode("sgid", 0o2755);
    src.symlink("l", "suid").owner("l", 1234, 4321);
    let home = scratch.user_dir("home");
    let ran = Haul::new()
        .by_user(&scratch)
        .copy(src.root(), &home.join("dst"))
        .run();
    ran.ok();
    assert!(
        ran.said().lines().count() < 12,
        "not once per file: {}",
        ran.words()
    );
    assert_eq!(ran.count("owner"), 1, "said once: {}", ran.said());
    let leave = Leave {
        owners: true,
        modes: true,
        ..NOTHING
    };
    assert_same_but(src.root(), &home.join("dst"), leave);
    // A file that would run as somebody else now must not be.
    assert_eq!(mode_of(&home.join("dst/suid")), 0o755);
    assert_eq!(mode_of(&home.join("dst/sgid")) & 0o6000, 0);
    assert_eq!(mode_of(&home.join("dst/f1")), mode_of(&src.path("f1")));
    // And a second run has nothing to do.
    let before = Snapshot::of(&home.join("dst"));
    Haul::new()
        .by_user(&scratch)
        .copy(src.root(), &home.join("dst"))
        .run()
        .ok();
    assert_untouched(&before, &Snapshot::of(&home.join("dst")));
}

#[test]
fn read_only_directories_of_a_user_arrive_and_end_read_only() {
    let scratch = Scratch::new();
    let home = scratch.user_dir("home");
    let src = Tree::new(home.join("src"));
    src.file("ro/f", b"x")
        .file("ro/deep/g", b"y")
        .symlink("ro/l", "f")
        .fifo("ro/p");
    src.hard_link("ro/f", "ro/deep/h")
        .random("ro/deep/big", 1, 9_000_000)
        .dir("ro/empty");
    scratch.give_to_user(&home);
    src.mode("ro/f", 0o400)
        .mode("ro/empty", 0o500)
        .mode("ro/deep", 0o555)
        .mode("ro", 0o555);
    Haul::new()
        .by_user(&scratch)
        .copy(src.root(), &home.join("dst"))
        .run()
        .ok();
    assert_same(src.root(), &home.join("dst"));
    // Also as an update: a new file has to get into a directory that is read-only already.
    src.mode("ro/deep", 0o755).file("ro/deep/new", b"z");
    scratch.give_to_user(&src.path("ro/deep/new"));
    src.mode("ro/deep", 0o555);
    Haul::new()
        .by_user(&scratch)
        .copy(src.root(), &home.join("dst"))
        .run()
        .ok();
    assert_same(src.root(), &home.join("dst"));
}

#[test]
fn a_hostile_umask_takes_nothing_away() {
    let scratch = Scratch::new();
    let home = scratch.user_dir("home");
    let src = Tree::new(home.join("src"));
    src.random("d/big", 1, 9_000_000)
        .symlink("d/l", "big")
        .fifo("d/p")
        .hard_link("d/big", "again");
    for index in 0..50 {
        src.file(format!("d/e/{index}"), index.to_string());
    }
    if can(&[Ability::Xattr]) {
        src.xattr("d/big", "user.k", b"v")
            .xattr("d/e", "user.k", b"v");
    }
    scratch.give_to_user(&home);
    src.mode("d", 0o775)
        .mode("d/big", 0o664)
        .mode("d/e/3", 0o666)
        .mode("d/p", 0o666);
    for umask in [0o777, 0o277, 0o077, 0o022, 0] {
        let dst = home.join(format!("dst{umask:o}"));
        Haul::new()
            .by_user(&scratch)
            .umask(umask)
            .copy(src.root(), &dst)
            .run()
            .ok();
        assert_same(src.root(), &dst);
    }
}

#[test]
fn a_setgid_parent_adds_nothing() {
    if !can(&[Ability::Root]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("d/e/f", b"x")
        .symlink("d/l", "e")
        .fifo("d/p")
        .mode("d", 0o750)
        .dir("d/g")
        .mode("d/g", 0o2755);
    let parent = scratch.tree("parent");
    parent
        .dir("dst")
        .owner("dst", 0, 4321)
        .mode("dst", 0o2777)
        .owner("", 0, 4321)
        .mode("", 0o2777);
    copy(src.root(), &parent.path("dst")).ok();
    assert_same(src.root(), &parent.path("dst"));
    copy(src.root(), &parent.path("made")).ok();
    assert_same(src.root(), &parent.path("made"));
    haul([src.root(), parent.root()]).ok();
    assert_same(src.root(), &parent.path("src"));
}

#[test]
fn metadata_of_an_existing_directory_is_brought_up_to_date() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("d/f", b"x")
        .mode("d", 0o711)
        .mtime("d", 5, 6)
        .mtime("", 7, 8);
    let dst = scratch.tree("dst");
    dst.dir("d").mode("d", 0o700);
    if can(&[Ability::Xattr]) {
        dst.xattr("d", "user.stale", b"1");
    }
    copy(src.root(), dst.root()).ok();
    assert_same(src.root(), dst.root());
}
