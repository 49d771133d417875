//! What a second run does: nothing to what is equal, everything to what is not.

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;

use common::snapshot::{NOTHING, Snapshot, assert_alike, assert_untouched};
use common::tree::{bytes_of, same_mtime};
use common::{Ability, Haul, Scratch, Tree, assert_same, can, copy};

fn tree(scratch: &Scratch) -> Tree {
    let src = scratch.src();
    src.file("a", b"aaaa")
        .file("d/b", b"bbbb")
        .random("d/big", 1, 9_000_000)
        .file("empty", b"");
    src.symlink("l", "a")
        .fifo("p")
        .socket("s")
        .dir("nothing")
        .hard_link("a", "d/a2");
    src.sparse("holes", 3 << 20, &[(1 << 20, b"x")]);
    for index in 0..100 {
        src.random(format!("many/{index}"), index, 1000);
    }
    src
}

#[test]
fn an_idle_run_touches_nothing_and_reads_nothing() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    copy(src.root(), &scratch.dst()).ok();
    let before = Snapshot::of(&scratch.dst());
    for way in [
        &[][..],
        &["--verify"],
        &["--verify=none"],
        &["--order=physical"],
        &["--order=none"],
        &["-c"],
    ] {
        let ran = Haul::new().args(way).copy(src.root(), &scratch.dst()).run();
        ran.ok();
        let touched = Snapshot::of(&scratch.dst()).touched_since(&before);
        assert!(touched.is_empty(), "{way:?} touched {touched:?}");
        assert_eq!(ran.figure("copied"), 0, "{way:?}: {}", ran.summary());
        assert_eq!(
            ran.figure("unchanged") + ran.figure("linked"),
            ran.figure("found"),
            "{way:?}"
        );
    }
}

#[test]
fn unchanged_files_are_not_read() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch);
    copy(src.root(), &scratch.dst()).ok();
    let haul = Haul::new().copy(src.root(), &scratch.dst());
    let calls = "read,pread64,readv,preadv,preadv2,copy_file_range,sendfile";
    let (ran, calls) = common::trace::traced(&scratch, &haul, calls);
    ran.ok();
    let read = calls
        .iter()
        .filter(|call| call.path().is_some_and(|path| path.starts_with(src.root())))
        .filter_map(|call| call.result)
        .sum::<i64>();
    assert_eq!(read, 0, "bytes of the source read again");
}

#[test]
fn changes_of_content_size_and_time_are_copied() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    copy(src.root(), &scratch.dst()).ok();
    src.append("a", b"more")
        .write_at("d/big", 5_000_000, b"changed inside")
        .file("d/b", b"");
    src.remove("l")
        .symlink("l", "elsewhere")
        .file("new/deep/file", b"n")
        .file("empty", b"no more");
    src.write_at("holes", 5, b"filled")
        .mtime("many/3", 1, 1)
        .remove("p")
        .fifo("p");
    let ran = copy(src.root(), &scratch.dst());
    ran.ok();
    assert_same(src.root(), &scratch.dst());
    assert!(ran.figure("unchanged") > 90, "{}", ran.summary());
}

#[test]
fn a_change_within_the_same_second_is_seen() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("f", b"AAAA")
        .mtime("f", 1_430_802_305, 100_000_000);
    src.file("g", b"AAAA")
        .mtime("g", 1_430_802_305, 100_000_000);
    copy(src.root(), &scratch.dst()).ok();
    src.file("f", b"BBBB")
        .mtime("f", 1_430_802_305, 900_000_000);
    src.file("g", b"BBBB")
        .mtime("g", 1_430_802_305, 100_000_001);
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn an_older_source_is_copied_too() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("f", b"new").mtime("f", 2_000_000_000, 0);
    copy(src.root(), &scratch.dst()).ok();
    src.file("f", b"old").mtime("f", 1_000_000_000, 0);
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn equal_size_and_time_with_other_content_is_found_by_checksum_alone() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("f", b"AAAA")
        .mtime("f", 978_307_200, 0)
        .random("big", 1, 9_000_000);
    copy(src.root(), &scratch.dst()).ok();
    for (name, at) in [("f", 0), ("big", 8_999_999)] {
        let like = fs::symlink_metadata(src.path(name)).expect("stat");
        src.write_at(name, at, b"B")
            .mtime(name, like.mtime(), like.mtime_nsec());
    }
    // By design, as documented: the quick check trusts size and time.
    copy(src.root(), &scratch.dst()).ok();
    assert_eq!(fs::read(scratch.dst().join("f")).expect("read"), b"AAAA");
    // Comparing the trees says so, and -c repairs it.
    common::haul([std::path::Path::new("verify"), src.root(), &scratch.dst()])
        .exits(&[2])
        .says("f");
    let ran = Haul::new().arg("-c").copy(src.root(), &scratch.dst()).run();
    ran.ok();
    assert_same(src.root(), &scratch.dst());
    Haul::new()
        .arg("--checksum")
        .copy(src.root(), &scratch.dst())
        .run()
        .ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn metadata_alone_is_brought_up_to_date_without_copying() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    copy(src.root(), &scratch.dst()).ok();
    let before = Snapshot::of(&scratch.dst());
    src.mode("d/b", 0o4711)
        .mode("d", 0o700)
        .mode("p", 0o600)
        .mode("many/1", 0o400);
    if common::probe::is_root() {
        src.owner("d/big", 12, 34)
            .owner("l", 12, 34)
            .owner("nothing", 12, 34);
    }
    if can(&[Ability::Xattr]) {
        src.xattr("many/2", "user.k", b"v")
            .xattr("nothing", "user.k", b"v");
    }
    src.mtime("nothing", 5, 5).mtime("p", 6, 6);
    let ran = copy(src.root(), &scratch.dst());
    ran.ok();
    assert_same(src.root(), &scratch.dst());
    let after = Snapshot::of(&scratch.dst());
    for path in ["d/b", "d/big", "many/1", "many/2"] {
        let inode = |snapshot: &Snapshot| snapshot.entry(path).touched.0;
        assert_eq!(inode(&before), inode(&after), "{path} was copied again");
    }
    let again = Snapshot::of(&scratch.dst());
    copy(src.root(), &scratch.dst()).ok();
    assert_untouched(&again, &Snapshot::of(&scratch.dst()));
}

#[test]
fn what_was_changed_at_the_destination_is_put_right() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    copy(src.root(), &scratch.dst()).ok();
    let dst = Tree::new(scratch.dst());
    dst.append("a", b"more")
        .mode("d/b", 0)
        .remove("l")
        .symlink("l", "wrong")
        .mode("d", 0o700);
    dst.mtime("many/5", 5, 5)
        .remove("many/6")
        .remove("p")
        .file("p", b"now a file");
    dst.remove("d/b")
        .fifo("d/b")
        .remove("many/7")
        .symlink("many/7", "x");
    copy(src.root(), dst.root()).ok();
    assert_same(src.root(), dst.root());
}

#[test]
fn a_cut_copy_is_never_taken_for_finished() {
    // As a killed copier of another kind leaves it: right time, or right size, not both.
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("cut", 1, 3_000_000)
        .random("sparse", 2, 3_000_000)
        .random("young", 3, 3_000_000);
    let dst = scratch.tree("dst");
    dst.file("cut", &bytes_of(1, 3_000_000)[..1_000_000])
        .sparse("sparse", 3_000_000, &[]);
    dst.file("young", bytes_of(3, 3_000_000));
    same_mtime(&dst.path("cut"), &src.path("cut"));
    copy(src.root(), dst.root()).ok();
    assert_same(src.root(), dst.root());
}

#[test]
fn a_file_that_was_one_of_two_names_is_replaced_alone() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("a", b"one")
        .hard_link("a", "b")
        .hard_link("a", "c");
    copy(src.root(), &scratch.dst()).ok();
    src.remove("b").file("b", b"another");
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
    src.remove("a").file("a", b"a third");
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn updates_replace_files_and_never_write_into_them() {
    // Whoever has the old file open goes on reading the old file.
    use std::io::{Read, Seek};
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("small", 1, 1000)
        .random("large", 2, 9_000_000)
        .sparse("holes", 1 << 20, &[(9, b"x")]);
    copy(src.root(), &scratch.dst()).ok();
    let mut open: Vec<_> = ["small", "large", "holes"]
        .into_iter()
        .map(|name| {
            let mut file = fs::File::open(scratch.dst().join(name)).expect("open");
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).expect("read");
            (name, file, bytes)
        })
        .collect();
    src.random("small", 3, 1000)
        .random("large", 4, 9_000_000)
        .sparse("holes", 1 << 20, &[(9, b"y")]);
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
    for (name, file, old) in &mut open {
        let mut bytes = Vec::new();
        file.rewind().expect("seek");
        file.read_to_end(&mut bytes).expect("read");
        assert!(bytes == *old, "{name} was written into");
    }
}

#[test]
fn directories_that_were_removed_in_the_source_stay_at_the_destination() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    copy(src.root(), &scratch.dst()).ok();
    let kept = Snapshot::of(&scratch.dst().join("d"));
    src.remove("d");
    copy(src.root(), &scratch.dst()).ok();
    assert_alike(&kept, &Snapshot::of(&scratch.dst().join("d")), NOTHING);
}

#[test]
fn a_dry_run_says_what_would_be_done_and_writes_nothing() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    for flag in ["-n", "--dry-run"] {
        let ran = common::haul([std::path::Path::new(flag), &src.contents(), &scratch.dst()]);
        ran.ok();
        assert!(!scratch.dst().exists());
        assert!(!ran.said().is_empty());
    }
    copy(src.root(), &scratch.dst()).ok();
    src.append("a", b"more").file("new", b"n");
    let before = Snapshot::of(scratch.root());
    Haul::new()
        .arg("-n")
        .copy(src.root(), &scratch.dst())
        .start()
        .wait()
        .ok();
    assert_untouched(&before, &Snapshot::of(scratch.root()));
}
