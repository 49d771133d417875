//! What is refused before or instead of copying: destinations that are, or are in the way of, the
//! source. Nothing is lost on either side.

mod common;

use std::fs;
use std::os::unix::fs::symlink;

use common::snapshot::{Snapshot, assert_untouched};
use common::{Ability, Scratch, assert_same, can, copy, haul};

#[test]
fn a_directory_where_a_file_is_and_a_file_where_a_directory_is_are_refused() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("dir over file/inside/deep", b"1")
        .file("file over dir", b"2")
        .file("z", b"z");
    src.symlink("link over dir", "x")
        .fifo("fifo over dir")
        .file("dir over fifo/f", b"3");
    let dst = scratch.tree("dst");
    dst.file("dir over file", b"keep")
        .file("file over dir/keep", b"keep")
        .dir("link over dir/keep");
    dst.dir("fifo over dir").fifo("dir over fifo");
    let ran = copy(src.root(), dst.root());
    ran.exits(&[23]);
    for name in [
        "dir over file",
        "file over dir",
        "link over dir",
        "fifo over dir",
        "dir over fifo",
    ] {
        ran.says(name);
    }
    assert_eq!(fs::read(dst.path("dir over file")).expect("read"), b"keep");
    assert_eq!(
        fs::read(dst.path("file over dir/keep")).expect("read"),
        b"keep"
    );
    assert!(dst.path("link over dir/keep").is_dir() && dst.path("fifo over dir").is_dir());
    assert_eq!(fs::read(dst.path("z")).expect("a neighbour"), b"z");
    // Nothing of the refused ones lies about under another name.
    assert_eq!(dst.names("").len(), 6);
}

#[test]
fn a_directory_onto_a_file_named_as_destination_is_refused() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("f", b"x");
    fs::write(scratch.path("file"), b"keep").expect("write");
    for source in [src.root().to_owned(), src.contents()] {
        haul([source, scratch.path("file")])
            .exits(&[11, 23])
            .says("file");
        assert_eq!(fs::read(scratch.path("file")).expect("read"), b"keep");
    }
    haul([src.path("f"), scratch.path("file/")]).exits(&[11, 23]);
    haul([src.path("f"), scratch.path("file/below")]).exits(&[11, 23]);
    assert_eq!(fs::read(scratch.path("file")).expect("read"), b"keep");
}

#[test]
fn a_destination_inside_its_source_is_refused_before_anything_is_made() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("f", b"x").file("d/g", b"y");
    symlink(src.path("d"), scratch.path("link")).expect("symlink");
    symlink("src", scratch.path("alias")).expect("symlink");
    let before = Snapshot::of(src.root());
    let mut inside = vec![
        src.path("new"),
        src.path("d"),
        src.path("d/new"),
        src.path("d/../new"),
        scratch.path("link/new"),
        scratch.path("link"),
        scratch.path("./src/../src/d/new"),
        scratch.path("alias/new"),
    ];
    if can(&[Ability::Mount]) {
        inside.push(scratch.bind(&src.path("d"), "bound").join("new"));
        inside.push(scratch.path("bound"));
    }
    for dst in inside {
        for source in [src.contents(), src.root().to_owned()] {
            let ran = haul([&source, &dst]);
            ran.exits(&[11]).says("inside");
            assert_untouched(&before, &Snapshot::of(src.root()));
        }
    }
    // Into a directory beside it, all is well, also where the names begin alike.
    haul([src.contents(), scratch.path("src2")]).ok();
    assert_same(src.root(), &scratch.path("src2"));
}

#[test]
fn a_source_inside_the_destination_is_fine() {
    let scratch = Scratch::new();
    let outer = scratch.tree("outer");
    outer.file("inner/f", b"x").file("inner/d/g", b"y");
    haul([outer.path("inner/"), outer.root().to_owned()]).exits(&[0]);
    assert_eq!(fs::read(outer.path("f")).expect("read"), b"x");
    assert_eq!(fs::read(outer.path("d/g")).expect("read"), b"y");
    assert_eq!(fs::read(outer.path("inner/f")).expect("the source"), b"x");
}

#[test]
fn source_and_destination_that_are_one_lose_nothing() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("f", 1, 200_000)
        .file("d/g", b"y")
        .sparse("h", 1 << 20, &[(9, b"x")]);
    symlink("src", scratch.path("l")).expect("symlink");
    let before = Snapshot::of(src.root());
    let mut names = vec!["src", "./src/../src", "l", "l/", "src/", "src/."];
    if can(&[Ability::Mount]) {
        scratch.bind(src.root(), "bound");
        names.push("bound");
    }
    for name in names {
        let dst = format!("{}/{name}", scratch.root().display());
        haul([src.contents().to_str().expect("UTF-8"), &dst]).exits(&[0, 11, 23]);
        assert_untouched(&before, &Snapshot::of(src.root()));
    }
    // A directory onto itself by its name in its parent.
    haul([src.root(), scratch.root()]).exits(&[0, 11, 23]);
    assert_untouched(&before, &Snapshot::of(src.root()));
    // A file onto itself, directly and through another name.
    haul([src.path("f"), src.path("f")])
        .exits(&[11, 23])
        .says("f");
    haul([src.path("f"), scratch.path("src/")])
        .exits(&[11, 23])
        .says("f");
    haul([src.path("f"), scratch.path("l/f")])
        .exits(&[11, 23])
        .says("f");
    assert_untouched(&before, &Snapshot::of(src.root()));
}

#[test]
fn a_destination_file_that_is_the_source_becomes_a_file_of_its_own() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("f", 1, 200_000).file("other", b"o");
    let dst = scratch.tree("dst");
    fs::hard_link(src.path("f"), dst.path("f")).expect("link");
    let before = fs::read(src.path("f")).expect("read");
    copy(src.root(), dst.root()).ok();
    for path in [src.path("f"), dst.path("f")] {
        assert!(fs::read(&path).expect("read") == before);
        let links = std::os::unix::fs::MetadataExt::nlink(&fs::metadata(&path).expect("stat"));
        assert_eq!(links, 1, "{}", path.display());
    }
    assert_eq!(fs::read(dst.path("other")).expect("read"), b"o");
}
