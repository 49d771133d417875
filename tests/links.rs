//! Symbolic and hard links: kept as they are, never followed where that would leave the tree,
//! never written through.

mod common;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use nix::sys::stat::SFlag;

use common::snapshot::{Leave, NOTHING, Snapshot, assert_same_but, assert_untouched};
use common::tree::{names_in, same_mtime};
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
