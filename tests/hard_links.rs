//! Hard links: names of one inode stay so, and inodes with names elsewhere are never written to.

mod common;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::stat::SFlag;

use common::snapshot::{Leave, NOTHING, Snapshot, assert_same_but};
use common::tree::same_mtime;
use common::{Ability, Haul, Scratch, assert_same, can, copy, haul};

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).expect("stat").ino()
}

#[test]
fn names_of_one_inode_stay_names_of_one_inode() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("a/b/f", b"data")
        .hard_link("a/b/f", "z/f2")
        .hard_link("a/b/f", "f0");
    src.symlink("a/l", "target").hard_link("a/l", "z/l2");
    src.fifo("a/p").hard_link("a/p", "z/p2");
    src.socket("a/s").hard_link("a/s", "z/s2");
    src.random("big", 1, 9_000_000)
        .hard_link("big", "a/big")
        .hard_link("big", "z/y/big");
    src.sparse("holes", 3 << 20, &[(1 << 20, b"x")])
        .hard_link("holes", "z/holes");
    src.file("empty", b"").hard_link("empty", "z/empty");
    for index in 0..500 {
        let name = format!("a/{index}");
        src.file(&name, index.to_string())
            .hard_link(&name, format!("z/{index}"));
    }
    let ran = copy(src.root(), &scratch.dst());
    ran.ok();
    assert_same(src.root(), &scratch.dst());
    assert!(ran.figure("linked") >= 500, "{}", ran.summary());
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn device_nodes_with_two_names_stay_one() {
    if !can(&[Ability::Root]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.device("a/null", SFlag::S_IFCHR, 1, 3)
        .hard_link("a/null", "b/null");
    src.device("a/disk", SFlag::S_IFBLK, 7, 200)
        .hard_link("a/disk", "b/disk");
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn an_inode_with_names_outside_the_tree_is_copied_like_any_other() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("f", b"x");
    fs::hard_link(src.path("f"), scratch.path("elsewhere")).expect("link");
    copy(src.root(), &scratch.dst()).ok();
    assert_eq!(fs::read(scratch.dst().join("f")).expect("read"), b"x");
    assert_eq!(
        fs::metadata(scratch.dst().join("f")).expect("stat").nlink(),
        1
    );
}

#[test]
fn hard_links_across_two_sources_are_kept() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.tree("one"), scratch.tree("two"));
    one.file("f", b"shared");
    two.dir("d");
    fs::hard_link(one.path("f"), two.path("d/g")).expect("link");
    haul([one.root(), two.root(), &scratch.dst()]).ok();
    assert_eq!(
        inode(&scratch.dst().join("one/f")),
        inode(&scratch.dst().join("two/d/g"))
    );
}

#[test]
fn many_names_of_one_inode_arrive() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("0/first", b"x");
    for index in 0..2000 {
        src.hard_link("0/first", format!("{}/{index}", index % 10));
    }
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn twenty_thousand_pairs_arrive_as_pairs() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.dir("a").dir("b");
    for index in 0..20_000 {
        src.file(format!("a/{index}"), b"")
            .hard_link(format!("a/{index}"), format!("b/{index}"));
    }
    copy(src.root(), &scratch.dst()).ok();
    for index in 0..20_000 {
        let (a, b) = (format!("a/{index}"), format!("b/{index}"));
        assert_eq!(
            inode(&scratch.dst().join(a)),
            inode(&scratch.dst().join(b)),
            "{index}"
        );
    }
}

#[test]
fn linked_names_are_read_once() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("d/first", 1, 1_000_000);
    for index in 0..20 {
        src.hard_link("d/first", format!("d/{index}"));
    }
    let haul = Haul::new()
        .arg("--reflink=never")
        .copy(src.root(), &scratch.dst());
    let calls = "read,pread64,readv,preadv,preadv2,copy_file_range,sendfile";
    let (ran, calls) = common::trace::traced(&scratch, &haul, calls);
    ran.ok();
    let read: i64 = calls
        .iter()
        .filter(|call| call.path().is_some_and(|path| path.starts_with(src.root())))
        .filter_map(|call| call.result)
        .sum();
    assert_eq!(read, 1_000_000, "bytes read of the source");
}

#[test]
fn a_snapshot_that_shares_inodes_with_the_destination_keeps_its_state() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for name in ["content", "mode", "time", "still", "large"] {
        src.file(name, b"1").mtime(name, 1_000_000_000, 1);
    }
    src.random("large", 1, 9_000_000)
        .symlink("link", "one")
        .fifo("fifo");
    copy(src.root(), &scratch.dst()).ok();
    let snap = scratch.tree("snap");
    for name in src.names("") {
        let name = std::ffi::OsStr::from_bytes(&name);
        nix::unistd::linkat(
            nix::fcntl::AT_FDCWD,
            &scratch.dst().join(name),
            nix::fcntl::AT_FDCWD,
            &snap.path(name),
            nix::fcntl::AtFlags::empty(),
        )
        .expect("link");
    }
    let before = Snapshot::of(snap.root());
    src.file("content", b"22")
        .mode("mode", 0o600)
        .mtime("time", 5, 5)
        .write_at("large", 5, b"!");
    src.mode("fifo", 0o600)
        .remove("link")
        .symlink("link", "two");
    if can(&[Ability::Xattr]) {
        src.xattr("still", "user.new", b"1");
    }
    copy(src.root(), &scratch.dst()).ok();
    assert_same_but(
        src.root(),
        &scratch.dst(),
        Leave {
            links: true,
            ..NOTHING
        },
    );
    let now = Snapshot::of(snap.root());
    // Link counts and ctimes move when a name goes; all else must not.
    for (path, old) in &before.entries {
        let new = now.entry(std::ffi::OsStr::from_bytes(path));
        let facts = |e: &common::snapshot::Entry| {
            (
                e.kind,
                e.mode,
                e.owner,
                e.mtime,
                e.size,
                e.digest,
                e.target.clone(),
                e.xattrs.clone(),
                e.touched.0,
            )
        };
        assert_eq!(
            facts(old),
            facts(new),
            "snapshot of {}",
            common::snapshot::show(path)
        );
    }
}

#[test]
fn unchanged_files_go_on_sharing_inodes_with_a_snapshot() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("same", b"1").file("changed", b"1");
    copy(src.root(), &scratch.dst()).ok();
    for name in ["same", "changed"] {
        fs::hard_link(scratch.dst().join(name), scratch.path(name)).expect("link");
    }
    src.file("changed", b"22");
    copy(src.root(), &scratch.dst()).ok();
    assert_eq!(
        inode(&scratch.dst().join("same")),
        inode(&scratch.path("same"))
    );
    assert_eq!(fs::read(scratch.path("changed")).expect("read"), b"1");
}

#[test]
fn links_between_files_of_the_destination_do_not_mix_up_the_source() {
    // At the destination a and b are one inode; in the source they are two files.
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("a", b"AAAA")
        .file("b", b"BBBB")
        .random("c", 1, 9_000_000)
        .random("d", 2, 9_000_000);
    let dst = scratch.tree("dst");
    dst.file("a", b"old")
        .hard_link("a", "b")
        .file("c", b"old")
        .hard_link("c", "d");
    copy(src.root(), dst.root()).ok();
    assert_same(src.root(), dst.root());
}

#[test]
fn names_that_no_longer_share_an_inode_are_parted() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("a", b"same")
        .mtime("a", 1_000_000_000, 1)
        .hard_link("a", "b")
        .hard_link("a", "c");
    copy(src.root(), &scratch.dst()).ok();
    src.remove("b")
        .file("b", b"same")
        .mtime("b", 1_000_000_000, 1);
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
    // And a change of one of them stays with that one.
    src.mode("b", 0o600).file("c", b"other bytes");
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn files_that_became_one_inode_become_one() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("a", b"same")
        .file("d/b", b"same")
        .file("c", b"longer than same");
    for name in ["a", "d/b", "c"] {
        src.mtime(name, 1_000_000_000, 1);
    }
    copy(src.root(), &scratch.dst()).ok();
    for name in ["d/b", "c"] {
        src.remove(name).hard_link("a", name);
    }
    same_mtime(&src.path("d"), &scratch.dst().join("d"));
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}
