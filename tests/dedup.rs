//! `--dedup` and `haul dedup`: files of one content become one inode where that is right for all
//! of its names, and no later run changes one name through another.

mod common;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use common::snapshot::{Leave, NOTHING, Snapshot, assert_alike, assert_same_but};
use common::tree::{names_in, same_mtime};
use common::{Ability, Haul, Ran, Scratch, Tree, can, copy, haul};

const BUT_LINKS: Leave = Leave {
    links: true,
    holes: true,
    ..NOTHING
};
const ORDERS: [&str; 2] = ["--order=physical", "--order=none"];

fn dedup(order: &str, src: &Tree, dst: &Path) -> Ran {
    let ran = Haul::new()
        .args(["--dedup", "--no-cache", order])
        .copy(src.root(), dst)
        .run();
    ran.ok();
    ran
}

fn inode(path: impl AsRef<Path>) -> u64 {
    fs::symlink_metadata(path).expect("stat").ino()
}

fn text(tree: &Tree) -> &str {
    tree.root().to_str().expect("UTF-8")
}

/// Files of three contents with equal metadata, small and large.
fn twins(scratch: &Scratch) -> Tree {
    let src = scratch.src();
    for (i, size) in [(1, 500), (2, 70_000), (3, 3_000_000)] {
        for name in ["a", "b/c", "d"] {
            let name = format!("{i}/{name}");
            src.random(&name, i, size).mtime(&name, 1_000_000_000, 7);
        }
    }
    src
}

#[test]
fn files_of_one_content_and_one_metadata_become_one_inode() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = twins(&scratch);
        let dst = scratch.dst();
        let ran = dedup(order, &src, &dst);
        assert_same_but(src.root(), &dst, BUT_LINKS);
        for i in 1..=3 {
            let of = |name: &str| inode(dst.join(format!("{i}/{name}")));
            assert_eq!((of("a"), of("a")), (of("b/c"), of("d")), "{order} {i}");
        }
        assert_eq!(ran.figure("dedup_linked"), 6);
        assert_eq!(ran.figure("linked"), 0, "these are no links of the source");
        assert_eq!(ran.figure("files"), 9);
        assert_eq!(ran.figure("verified_files"), 9);
        // Small ones are known for duplicates before they are written.
        assert_eq!(ran.figure("dedup_bytes"), 2 * 500 + 2 * 70_000);
        assert!(ran.figure("dedup_saved_bytes") >= 2 * (70_000 + 3_000_000));
        assert_eq!(ran.figure("read_bytes"), 3 * 3_070_500, "each byte once");
        // Left alone by the next run.
        let before = Snapshot::of(&dst);
        let again = dedup(order, &src, &dst);
        assert_eq!(again.figure("copied"), 0);
        assert_eq!(before.touched_since(&before), Vec::<String>::new());
        common::snapshot::assert_untouched(&before, &Snapshot::of(&dst));
    }
}

#[test]
fn without_the_option_nothing_is_linked_and_links_of_dedup_are_undone() {
    let scratch = Scratch::new();
    let src = twins(&scratch);
    let dst = scratch.dst();
    dedup("--order=auto", &src, &dst);
    copy(src.root(), &dst).ok();
    common::assert_same(src.root(), &dst);
}

#[test]
fn a_difference_in_metadata_keeps_files_apart() {
    let scratch = Scratch::new();
    let src = scratch.src();
    let names = ["first", "mode", "time", "owner", "xattr", "last"];
    for name in names {
        src.random(name, 5, 40_000).mtime(name, 1_000_000_000, 0);
    }
    src.mode("mode", 0o600);
    src.mtime("time", 1_000_000_000, 1);
    if can(&[Ability::Root]) {
        src.owner("owner", 12, 34);
    }
    if can(&[Ability::Xattr]) {
        src.xattr("xattr", "user.a", b"b");
        src.mtime("xattr", 1_000_000_000, 0);
    }
    let dst = scratch.dst();
    dedup("--order=auto", &src, &dst);
    assert_same_but(src.root(), &dst, BUT_LINKS);
    assert_eq!(inode(dst.join("first")), inode(dst.join("last")));
    for name in ["mode", "time"] {
        assert_ne!(inode(dst.join("first")), inode(dst.join(name)), "{name}");
    }
    if can(&[Ability::Root]) {
        assert_ne!(inode(dst.join("first")), inode(dst.join("owner")));
    }
    if can(&[Ability::Xattr]) {
        assert_ne!(inode(dst.join("first")), inode(dst.join("xattr")));
    }
}

#[test]
fn what_is_ignored_is_merged_and_said() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for (i, name) in [(1, "a"), (2, "b"), (3, "c")] {
        src.random(name, 5, 40_000).mtime(name, i, 0);
    }
    src.mode("c", 0o600);
    let dst = scratch.dst();
    let args = [
        "--dedup",
        "--no-cache",
        "--dedup-ignore=time",
        "--threads=1",
    ];
    let ran = Haul::new().args(args).copy(src.root(), &dst).run();
    ran.ok().says("mtime");
    assert_eq!(inode(dst.join("a")), inode(dst.join("b")));
    assert_ne!(inode(dst.join("a")), inode(dst.join("c")), "modes differ");
    // ... and again: no new inodes.
    let (a, c) = (inode(dst.join("a")), inode(dst.join("c")));
    Haul::new().args(args).copy(src.root(), &dst).run().ok();
    assert_eq!((inode(dst.join("a")), inode(dst.join("b"))), (a, a));
    assert_eq!(inode(dst.join("c")), c);
}

#[test]
fn empty_files_are_never_linked() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for name in ["a", "b"] {
        src.file(name, b"").mtime(name, 1, 0);
    }
    let ran = dedup("--order=auto", &src, &scratch.dst());
    assert_eq!(ran.figure("dedup_linked"), 0);
    common::assert_same(src.root(), &scratch.dst());
}

#[test]
fn a_change_of_one_twin_leaves_the_other_alone() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = twins(&scratch);
        let dst = scratch.dst();
        dedup(order, &src, &dst);
        for i in 1..=3 {
            src.random(format!("{i}/a"), 77, 600 * i as usize);
        }
        src.mode("1/d", 0o600);
        dedup(order, &src, &dst);
        assert_same_but(src.root(), &dst, BUT_LINKS);
        assert_ne!(inode(dst.join("1/d")), inode(dst.join("1/b/c")));
        assert_eq!(inode(dst.join("2/d")), inode(dst.join("2/b/c")));
    }
}

#[test]
fn what_becomes_a_duplicate_is_linked_and_what_stops_being_one_is_not() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = twins(&scratch);
        src.random("late", 9, 70_000).mtime("late", 5, 5);
        let dst = scratch.dst();
        dedup(order, &src, &dst);
        // By its content, and by its metadata alone.
        src.random("late", 2, 70_000)
            .mtime("late", 1_000_000_000, 7);
        src.mode("3/d", 0o640);
        dedup(order, &src, &dst);
        assert_eq!(inode(dst.join("late")), inode(dst.join("2/a")), "{order}");
        assert_ne!(inode(dst.join("3/d")), inode(dst.join("3/a")), "{order}");
        src.mode("3/d", 0o644);
        same_mtime(&src.path("3/d"), &src.path("3/a"));
        dedup(order, &src, &dst);
        assert_eq!(inode(dst.join("3/d")), inode(dst.join("3/a")), "{order}");
        assert_same_but(src.root(), &dst, BUT_LINKS);
    }
}

#[test]
fn groups_of_hard_links_stay_groups_and_are_counted_apart() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = twins(&scratch);
        src.hard_link("1/a", "l1").hard_link("1/d", "l2");
        src.hard_link("3/d", "1/l3");
        let dst = scratch.dst();
        let ran = dedup(order, &src, &dst);
        assert_eq!(ran.figure("linked"), 3);
        assert_eq!(ran.figure("dedup_linked"), 6);
        assert_same_but(src.root(), &dst, BUT_LINKS);
        for name in ["1/d", "1/b/c", "l1", "l2"] {
            assert_eq!(inode(dst.join("1/a")), inode(dst.join(name)), "{name}");
        }
        // One group changes: all of its names, and no other.
        src.file("l2", b"new");
        dedup(order, &src, &dst);
        assert_same_but(src.root(), &dst, BUT_LINKS);
        assert_eq!(inode(dst.join("1/d")), inode(dst.join("l2")));
        assert_ne!(inode(dst.join("1/d")), inode(dst.join("l1")));
    }
}

#[test]
fn a_twin_with_all_the_names_it_can_have_is_followed_by_another() {
    if !can(&[Ability::Mount, Ability::Loop]) {
        return;
    }
    let scratch = Scratch::new();
    // ext4 allows 65,000 names.
    let mkfs = ["mkfs.ext4", "-q", "-m", "0", "-b", "1024", "-N", "20000"];
    let dst = scratch.try_image("ext4", 96, &mkfs).expect("ext4 image");
    let src = scratch.tree("many");
    for i in 0..65_001 {
        let name = format!("{}/{i}", i / 2000);
        src.file(&name, b"the same everywhere").mtime(&name, 1, 0);
    }
    // A group whose names cannot all follow their first one.
    for i in 0..20 {
        src.hard_link("0/1", format!("group/{i}"));
    }
    let ran = dedup("--order=none", &src, &dst.join("copy"));
    assert_same_but(src.root(), &dst.join("copy"), BUT_LINKS);
    let mut names: HashMap<u64, u64> = HashMap::new();
    for dir in names_in(&dst.join("copy")) {
        let dir = dst
            .join("copy")
            .join(String::from_utf8(dir).expect("a number"));
        for name in names_in(&dir) {
            let at = dir.join(String::from_utf8(name).expect("a number"));
            *names.entry(inode(at)).or_default() += 1;
        }
    }
    assert!(names.len() < 5, "{names:?}");
    assert_eq!(names.values().sum::<u64>(), 65_021);
    let first = inode(dst.join("copy/0/1"));
    for i in 0..20 {
        assert_eq!(inode(dst.join(format!("copy/group/{i}"))), first, "{i}");
    }
    assert_eq!(ran.figure("linked"), 20);
}

#[test]
fn durable_verification_reads_each_name_again() {
    let scratch = Scratch::new();
    let src = twins(&scratch);
    let dst = scratch.dst();
    let args = ["--dedup", "--no-cache", "--verify"];
    let ran = Haul::new().args(args).copy(src.root(), &dst).run();
    ran.ok();
    assert_eq!(ran.figure("verified_files"), 9);
    assert_same_but(src.root(), &dst, BUT_LINKS);
}

#[test]
fn a_twin_that_was_changed_behind_our_back_is_none() {
    let scratch = Scratch::new();
    let src = twins(&scratch);
    let dst = scratch.dst();
    dedup("--order=auto", &src, &dst);
    // The same size and mtime, another content: no run without -c can see it.
    let other = common::bytes_of(123, 70_000);
    fs::write(dst.join("2/a"), other).expect("write");
    common::tree::set_times(&dst.join("2/a"), None, Some((1_000_000_000, 7)));
    src.random("2/new", 2, 70_000)
        .mtime("2/new", 1_000_000_000, 7);
    dedup("--order=auto", &src, &dst);
    let right = fs::read(src.path("2/new")).expect("read");
    assert_eq!(fs::read(dst.join("2/new")).expect("read"), right);
}

#[test]
fn extents_are_shared_where_a_link_would_be_wrong() {
    let scratch = Scratch::new();
    let src = twins(&scratch);
    for i in 1..=3 {
        src.mode(format!("{i}/d"), 0o600);
    }
    let dst = scratch.dst();
    let ran = dedup("--order=auto", &src, &dst);
    assert_same_but(src.root(), &dst, BUT_LINKS);
    let shared = ran.figure("dedup_reflinked");
    assert!(shared == 0 || shared == 3, "{}", ran.summary());
    let own = scratch.path("own");
    let args = ["--dedup=reflink", "--no-cache"];
    let ran = Haul::new().args(args).copy(src.root(), &own).run();
    ran.ok();
    assert_eq!(ran.figure("dedup_linked"), 0);
    assert_eq!(ran.figure("dedup_reflinked"), 2 * shared);
    common::assert_same(src.root(), &own);
}

#[test]
fn nothing_is_left_for_hardlink_to_link() {
    let scratch = Scratch::new();
    let src = twins(&scratch);
    src.mode("1/a", 0o600).mode("2/d", 0o604);
    src.sparse("s1", 3 << 20, &[(1 << 20, b"x")])
        .mtime("s1", 3, 3);
    src.sparse("s2", 3 << 20, &[(1 << 20, b"x")])
        .mtime("s2", 3, 3);
    let dst = scratch.dst();
    dedup("--order=auto", &src, &dst);
    let left = Command::new("hardlink")
        .args(["-n", "-X"])
        .arg(&dst)
        .output();
    let left = left.expect("hardlink");
    let said = String::from_utf8_lossy(&left.stdout);
    let linked = said.lines().find(|line| line.starts_with("Linked:"));
    let linked = linked.expect("a summary");
    assert!(linked.contains(" 0 files"), "{said}");
}

#[test]
fn a_tree_is_deduplicated_in_place() {
    let scratch = Scratch::new();
    let src = twins(&scratch);
    src.mode("1/a", 0o600).hard_link("2/a", "2/other");
    let before = Snapshot::of(src.root());
    let dirs = |root: &Path| {
        fs::metadata(root.join("3/b"))
            .expect("stat")
            .modified()
            .ok()
    };
    let time = dirs(src.root());
    let ran = haul(["dedup", "--json", "-n", text(&src)]);
    ran.ok();
    assert_eq!(ran.figure("dedup_linked"), 5);
    common::snapshot::assert_untouched(&before, &Snapshot::of(src.root()));
    let ran = haul(["dedup", "--json", text(&src)]);
    ran.ok();
    assert_eq!(ran.figure("dedup_linked"), 5);
    assert_alike(&before, &Snapshot::of(src.root()), BUT_LINKS);
    assert_eq!(dirs(src.root()), time, "a directory's mtime");
    assert_eq!(inode(src.path("1/b/c")), inode(src.path("1/d")));
    assert_ne!(inode(src.path("1/b/c")), inode(src.path("1/a")));
    assert_eq!(inode(src.path("2/b/c")), inode(src.path("2/other")));
    let ran = haul(["dedup", "--json", text(&src)]);
    assert_eq!(
        (
            ran.ok().figure("dedup_linked"),
            ran.figure("dedup_reflinked")
        ),
        (0, 0)
    );
}
