//! Sources and destinations as they are named: the rule of the trailing slash, single files,
//! several sources, destinations that do not exist.

// Test values are small and known.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

mod common;

use std::fs;

use common::snapshot::Snapshot;
use common::tree::names_in;
use common::{Haul, Scratch, Tree, assert_same, copy, haul};

/// A bit of everything that any user can make.
fn mixed(scratch: &Scratch) -> Tree {
    let src = scratch.src();
    src.file("empty", b"")
        .file("a/one", b"1")
        .random("a/b/c/big", 1, 3_000_000);
    src.dir("a/nothing")
        .symlink("a/link", "b/c/big")
        .hard_link("a/one", "z/one too");
    for index in 0..200 {
        src.random(format!("small/{index}"), index, 37 * index as usize);
    }
    src.mode("a/one", 0o640)
        .mode("a/nothing", 0o711)
        .mtime("a/one", 1_234_567_890, 987_654_321);
    src.mtime("a", 1_000_000_000, 1).mtime("", 1_100_000_000, 2);
    src
}

#[test]
fn contents_of_a_source_with_a_slash_become_the_destination() {
    let scratch = Scratch::new();
    let src = mixed(&scratch);
    src.mode("", 0o751);
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn a_source_without_a_slash_arrives_under_its_name() {
    let scratch = Scratch::new();
    let src = mixed(&scratch);
    haul([src.root(), &scratch.dst()]).ok();
    assert_eq!(names_in(&scratch.dst()), [b"src"]);
    assert_same(src.root(), &scratch.dst().join("src"));
}

#[test]
fn a_slash_behind_the_destination_changes_nothing() {
    let scratch = Scratch::new();
    let src = mixed(&scratch);
    haul([src.contents(), scratch.path("one/")]).ok();
    assert_same(src.root(), &scratch.path("one"));
    haul([src.root().to_owned(), scratch.path("two/")]).ok();
    assert_same(src.root(), &scratch.path("two/src"));
}

#[test]
fn sources_relative_to_the_current_directory_work() {
    let scratch = Scratch::new();
    let src = mixed(&scratch);
    for (source, lands_in) in [
        ("src", "src"),
        ("./src", "src"),
        ("src/", ""),
        ("src//", ""),
        ("src/.", ""),
    ] {
        let dst = scratch.path("relative");
        Haul::new()
            .current_dir(scratch.root())
            .args([source, "relative"])
            .run()
            .ok();
        assert_same(src.root(), &dst.join(lands_in));
        fs::remove_dir_all(dst).expect("remove");
    }
    // The current directory itself, and one above it, are their contents: they have no name.
    Haul::new()
        .current_dir(src.root())
        .args([".", "../dot"])
        .run()
        .ok();
    assert_same(src.root(), &scratch.path("dot"));
    Haul::new()
        .current_dir(&src.path("a/b"))
        .args(["../..", "../../../up"])
        .run()
        .ok();
    assert_same(src.root(), &scratch.path("up"));
}

#[test]
fn one_file_is_copied_to_the_name_given() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("f", 7, 100_000)
        .mode("f", 0o604)
        .mtime("f", 99, 5);
    haul([src.path("f"), scratch.path("new name")]).ok();
    assert_same(&src.path("f"), &scratch.path("new name"));
}

#[test]
fn one_file_goes_into_a_directory() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("f", b"x").mtime("f", 99, 5);
    scratch.tree("there");
    haul([src.path("f"), scratch.path("there")]).ok();
    assert_same(&src.path("f"), &scratch.path("there/f"));
    // A slash says that the name is to be a directory, and so it is made.
    haul([src.path("f"), scratch.path("made/")]).ok();
    assert_same(&src.path("f"), &scratch.path("made/f"));
}

#[test]
fn one_file_replaces_the_file_named() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("f", b"new").mtime("f", 99, 5);
    fs::write(scratch.path("old"), b"old and longer").expect("write");
    haul([src.path("f"), scratch.path("old")]).ok();
    assert_same(&src.path("f"), &scratch.path("old"));
}

#[test]
fn several_sources_go_into_one_destination() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.tree("one"), scratch.tree("two"));
    one.file("f", b"1").dir("d");
    two.file("g", b"2").symlink("l", "g");
    fs::write(scratch.path("three"), b"3").expect("write");
    let dst = scratch.dst();
    haul([one.root(), two.root(), &scratch.path("three"), &dst]).ok();
    assert_same(one.root(), &dst.join("one"));
    assert_same(two.root(), &dst.join("two"));
    assert_same(&scratch.path("three"), &dst.join("three"));
    assert_eq!(
        names_in(&dst),
        [b"one".to_vec(), b"three".to_vec(), b"two".to_vec()]
    );
}

#[test]
fn contents_of_two_sources_are_merged() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.tree("one"), scratch.tree("two"));
    one.file("d/f", b"1").file("only one", b"1");
    two.file("d/g", b"2").file("only two", b"2");
    haul([one.contents(), two.contents(), scratch.dst()]).ok();
    for (tree, path) in [
        (&one, "d/f"),
        (&one, "only one"),
        (&two, "d/g"),
        (&two, "only two"),
    ] {
        assert_same(&tree.path(path), &scratch.dst().join(path));
    }
}

#[test]
fn two_files_for_one_name_are_not_passed_over_in_silence() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.tree("one"), scratch.tree("two"));
    one.file("same", b"from one");
    two.file("same", b"from two, other");
    let dst = scratch.tree("dst");
    let ran = haul([one.path("same"), two.path("same"), dst.root().to_owned()]);
    ran.exits(&[1, 11, 23]).says("same");
    assert!(one.path("same").exists() && two.path("same").exists());
}

#[test]
fn a_missing_parent_of_the_destination_is_not_made_unasked() {
    let scratch = Scratch::new();
    let src = mixed(&scratch);
    let far = scratch.path("no/such/place");
    copy(src.root(), &far).exits(&[11]).says("--mkpath");
    assert!(!scratch.path("no").exists());
    Haul::new()
        .arg("--mkpath")
        .copy(src.root(), &far)
        .run()
        .ok();
    assert_same(src.root(), &far);
}

#[test]
fn a_source_named_twice_is_copied_once_or_refused() {
    let scratch = Scratch::new();
    let src = mixed(&scratch);
    let dst = scratch.tree("dst");
    let before = Snapshot::of(src.root());
    let ran = haul([src.root(), src.root(), dst.root()]);
    ran.exits(&[0, 1, 11, 23]);
    common::snapshot::assert_untouched(&before, &Snapshot::of(src.root()));
    if ran.code == 0 {
        assert_same(src.root(), &dst.path("src"));
    }
}

#[test]
fn a_destination_that_is_a_fifo_or_a_dangling_link_is_an_error() {
    let scratch = Scratch::new();
    let src = mixed(&scratch);
    scratch
        .tree("at")
        .fifo("fifo")
        .symlink("dangling", "nowhere")
        .symlink("loop", "loop");
    for name in ["at/fifo", "at/dangling", "at/loop"] {
        copy(src.root(), &scratch.path(name))
            .exits(&[11])
            .says(name);
    }
    assert_eq!(names_in(&scratch.path("at")).len(), 3, "nothing was made");
}
