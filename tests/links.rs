//! Symbolic and hard links: kept as they are, never followed where that would leave the tree,
//! never written through.

mod common;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use common::snapshot::{Snapshot, assert_untouched};
use common::tree::names_in;
use common::{Scratch, assert_same, copy, haul};

#[test]
fn the_text_of_every_symlink_is_kept() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.dir("D/E");
    let texts: [(&str, &[u8]); 14] = [
        ("dangling", b"nope"),
        ("absolute", b"/abs/none"),
        ("loop", b"loop"),
        ("a", b"b"),
        ("b", b"a"),
        ("into", b"D/E"),
        ("dot", b"."),
        ("up", b".."),
        ("root", b"/"),
        ("newline", b"x  y\nz"),
        ("bytes", b"bad\xffutf"),
        ("space", b" "),
        ("slashes", b"D//E/"),
        ("dash", b"--help"),
    ];
    for (name, text) in texts {
        src.symlink(name, Path::new(std::ffi::OsStr::from_bytes(text)));
    }
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn link_texts_and_hard_linked_paths_of_every_length_are_kept() {
    let scratch = Scratch::new();
    let src = scratch.src();
    let most = longest_link_text(&scratch);
    for len in [
        1, 98, 99, 100, 101, 155, 156, 255, 256, 1023, 1024, 4094, 4095,
    ] {
        if len <= most {
            src.symlink(format!("l{len}"), "x".repeat(len));
        }
    }
    let part = "d".repeat(60);
    let deep: PathBuf = [&part, &part, &part, &part].iter().collect();
    src.file(&deep, b"z")
        .hard_link(&deep, "short")
        .hard_link("short", format!("{part}/{part}/yy"));
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

/// XFS stops at 1023 bytes.
fn longest_link_text(scratch: &Scratch) -> usize {
    let fits = |len: usize| symlink("x".repeat(len), scratch.path(format!("probe{len}"))).is_ok();
    [4095, 1023]
        .into_iter()
        .find(|&len| fits(len))
        .expect("a filesystem with symlinks")
}

#[test]
fn a_source_that_is_a_symlink_is_followed_with_a_slash_only() {
    let scratch = Scratch::new();
    let real = scratch.tree("real");
    real.file("f", b"x").symlink("l", "f").mode("", 0o750);
    symlink("real", scratch.path("link")).expect("symlink");
    haul([scratch.path("link/"), scratch.path("through")]).ok();
    assert_same(real.root(), &scratch.path("through"));

    haul([scratch.path("link"), scratch.path("as link/")]).ok();
    assert_eq!(
        fs::read_link(scratch.path("as link/link")).expect("a link"),
        Path::new("real")
    );
}

#[test]
fn a_dangling_source_link_is_copied_without_a_slash_and_missing_with_one() {
    let scratch = Scratch::new();
    symlink("nowhere", scratch.path("link")).expect("symlink");
    scratch.tree("dst");
    haul([scratch.path("link"), scratch.dst()]).ok();
    assert_eq!(
        fs::read_link(scratch.dst().join("link")).expect("link"),
        Path::new("nowhere")
    );
    haul([scratch.path("link/"), scratch.path("other")])
        .exits(&[11])
        .says("link");
}

#[test]
fn a_destination_that_is_a_symlink_to_a_directory_is_the_directory() {
    // The destination as the user named it may be a link; only what lies below is not followed.
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("f", b"x");
    scratch.tree("real");
    symlink("real", scratch.path("link")).expect("symlink");
    haul([src.root(), &scratch.path("link/")]).ok();
    assert_eq!(fs::read(scratch.path("real/src/f")).expect("read"), b"x");
}

#[test]
fn a_destination_link_where_the_source_has_a_directory_is_refused() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("d/f", b"new")
        .file("d/sub/g", b"new")
        .mode("d", 0o750)
        .file("e/h", b"h")
        .file("z", b"z");
    let outside = scratch.tree("outside");
    outside.file("f", b"keep").mode("", 0o700);
    let before = Snapshot::of(outside.root());
    for target in [Path::new("../outside"), outside.root(), Path::new("e")] {
        let dst = scratch.tree("dst");
        dst.dir("e").symlink("d", target);
        let ran = copy(src.root(), dst.root());
        ran.exits(&[23]).says("dst/d");
        assert_untouched(&before, &Snapshot::of(outside.root()));
        assert_eq!(fs::read_link(dst.path("d")).expect("still a link"), target);
        assert_eq!(
            names_in(&dst.path("e")),
            [b"h"],
            "nothing went through the link"
        );
        assert_eq!(fs::read(dst.path("z")).expect("a neighbour"), b"z");
        fs::remove_dir_all(dst.root()).expect("remove");
    }
}

#[test]
fn a_destination_link_deep_in_the_tree_is_not_followed_either() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("a/b/c/f", b"new")
        .random("a/b/c/big", 1, 9_000_000)
        .fifo("a/b/c/p");
    src.symlink("a/b/c/l", "x")
        .hard_link("a/b/c/f", "a/b/c/g")
        .dir("a/b/c/e");
    let outside = scratch.tree("outside");
    outside.dir("c");
    let before = Snapshot::of(outside.root());
    let dst = scratch.tree("dst");
    dst.dir("a").symlink("a/b", "../../outside");
    copy(src.root(), dst.root()).exits(&[23]).says("a/b");
    assert_untouched(&before, &Snapshot::of(outside.root()));
}

#[test]
fn a_destination_link_where_the_source_has_a_file_is_replaced_itself() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for name in ["to file", "dangling", "to dir", "absolute", "loop"] {
        src.file(name, b"NEW");
    }
    src.random("large", 1, 9_000_000)
        .fifo("fifo")
        .symlink("link", "other text");
    let victim = scratch.path("victim");
    fs::write(&victim, b"victim").expect("write");
    let outside = scratch.tree("outside");
    outside.file("f", b"keep");
    let before = (Snapshot::of(&victim), Snapshot::of(outside.root()));
    let dst = scratch.tree("dst");
    dst.symlink("to file", "../victim")
        .symlink("dangling", "../made")
        .symlink("to dir", "../outside");
    dst.symlink("absolute", &victim)
        .symlink("loop", "loop")
        .symlink("large", "../victim");
    dst.symlink("fifo", "../victim")
        .symlink("link", "../victim");
    copy(src.root(), dst.root()).ok();
    assert_untouched(&before.0, &Snapshot::of(&victim));
    assert_untouched(&before.1, &Snapshot::of(outside.root()));
    assert!(
        !scratch.path("made").exists(),
        "written through a dangling link"
    );
    assert_same(src.root(), dst.root());
}

#[test]
fn a_link_of_equal_size_and_time_is_not_taken_for_the_file() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("f", b"0123456789").mtime("f", 1_000_000_000, 5);
    src.symlink("l", "0123456789").mtime("l", 1_000_000_000, 5);
    let dst = scratch.tree("dst");
    dst.symlink("f", "9876543210").mtime("f", 1_000_000_000, 5);
    dst.symlink("l", "9876543210").mtime("l", 1_000_000_000, 5);
    copy(src.root(), dst.root()).ok();
    assert_same(src.root(), dst.root());
}
