//! Whose metadata it is: ACLs and attributes on the way between filesystems and users, inodes
//! that have names outside the tree, and the modes of directories that no source gives one.

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use common::snapshot::{Entry, Leave, NOTHING, Snapshot, assert_alike};
use common::tree::{bytes_of, names_in, same_mtime};
use common::{Ability, Haul, Scratch, Tree, assert_same, can, haul};

const ORDERS: [&str; 2] = ["--order=none", "--order=physical"];
/// Below and above what is held in one piece.
const SIZES: [(&str, usize); 2] = [("small", 5000), ("large", 3_000_000)];

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("stat").mode() & 0o7777
}

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).expect("stat").ino()
}

fn links(path: &Path) -> u64 {
    fs::symlink_metadata(path).expect("stat").nlink()
}

/// A tree without what XFS lists of its ACLs under a second name.
fn without_aliases(root: &Path) -> Snapshot {
    let mut snapshot = Snapshot::of(root);
    for entry in snapshot.entries.values_mut() {
        entry
            .xattrs
            .retain(|name, _| !name.starts_with(b"trusted.SGI_ACL_"));
    }
    snapshot
}

#[test]
fn acls_stay_when_xfs_shows_them_under_a_second_name() {
    if !can(&[Ability::Loop, Ability::Xfs, Ability::Acl]) {
        return;
    }
    let scratch = Scratch::new();
    let (ext4, xfs) = (scratch.ext4("ext4", 64), scratch.xfs("xfs", 300));
    let src = Tree::new(ext4.join("src"));
    src.random("f", 1, 5000)
        .random("large", 2, 3_000_000)
        .dir("d/e");
    for name in ["f", "large", "d"] {
        src.acl(name, "u:1234:rw,g:4321:r").mode(name, 0o750);
    }
    src.acl("d", "d:u:1234:rwx,d:g:7:rx");
    // Without this the comparison below would compare nothing.
    let listed = |path: &Path, name: &str| xattr::get(path, name).expect("getxattr").is_some();
    assert!(listed(&src.path("f"), "system.posix_acl_access"));
    assert!(listed(&src.path("d"), "system.posix_acl_default"));
    let leave = Leave {
        holes: true,
        ..NOTHING
    };
    for order in ORDERS {
        let there = xfs.join(&order[2..]);
        // The first run makes them; the others find them and have to leave them alone.
        for _ in 0..3 {
            let ran = Haul::new().arg(order).copy(src.root(), &there).run();
            ran.ok();
            assert_alike(&Snapshot::of(src.root()), &without_aliases(&there), leave);
        }
        haul([Path::new("verify"), src.root(), &there]).ok();
        haul([Path::new("verify"), &there, src.root()]).ok();
        // And an ACL that changed is given, not only kept.
        src.acl("f", "u:1234:r").acl("d", "d:u:1234:r");
        Haul::new().arg(order).copy(src.root(), &there).run().ok();
        assert_alike(&Snapshot::of(src.root()), &without_aliases(&there), leave);

        let back = ext4.join(&order[2..]);
        for _ in 0..2 {
            Haul::new().arg(order).copy(&there, &back).run().ok();
            // Nothing left out: an alias that was taken for an attribute would show.
            assert_alike(&Snapshot::of(src.root()), &Snapshot::of(&back), leave);
        }
    }
}

#[test]
fn a_read_only_file_of_a_user_gets_its_acl_and_attributes_also_later() {
    if !can(&[Ability::Acl, Ability::Xattr]) {
        return;
    }
    let scratch = Scratch::new();
    for order in ORDERS {
        let home = scratch.user_dir(&order[2..]);
        let src = Tree::new(home.join("src"));
        for (name, len) in SIZES {
            src.random(name, 1, len)
                .xattr(name, "user.first", b"1")
                .acl(name, "u:1:r")
                .mode(name, 0o444);
        }
        scratch.give_to_user(&home);
        let dst = home.join("dst");
        let by_user = || {
            Haul::new()
                .by_user(&scratch)
                .arg(order)
                .copy(src.root(), &dst)
        };
        by_user().run().ok();
        assert_same(src.root(), &dst);
        let before = [inode(&dst.join("small")), inode(&dst.join("large"))];

        for (name, _) in SIZES {
            let mtime = scratch.path("mtime");
            fs::write(&mtime, b"").expect("write");
            same_mtime(&mtime, &src.path(name));
            src.mode(name, 0o644)
                .xattr(name, "user.later", b"2")
                .xattr(name, "user.first", b"changed")
                .mode(name, 0o444);
            same_mtime(&src.path(name), &mtime);
        }
        by_user().run().ok();
        assert_same(src.root(), &dst);
        for (name, _) in SIZES {
            assert_eq!(mode_of(&dst.join(name)), 0o444, "{order}: {name}");
            let value = xattr::get(dst.join(name), "user.later").expect("getxattr");
            assert_eq!(value.as_deref(), Some(&b"2"[..]), "{order}: {name}");
        }
        // The content was there: no second copy of it.
        let after = [inode(&dst.join("small")), inode(&dst.join("large"))];
        assert_eq!(before, after, "{order}");
    }
}

/// What must not change of an inode because of one of its names.
fn what_is_its_own(entry: &Entry) -> Entry {
    Entry {
        touched: (entry.touched.0, 0, 0),
        links: 0,
        group: Vec::new(),
        atime: (0, 0),
        ..entry.clone()
    }
}

#[test]
fn metadata_of_an_inode_with_a_name_outside_the_tree_is_left_as_it_was() {
    let scratch = Scratch::new();
    let (root, attributes) = (common::probe::is_root(), can(&[Ability::Xattr]));
    for order in ORDERS {
        let at = scratch.tree(&order[2..]);
        let src = Tree::new(at.path("src"));
        let mut names = Vec::new();
        for (size, len) in SIZES {
            for change in ["mode", "owner", "attribute"] {
                let name = format!("{size}-{change}");
                src.random(&name, 1, len).mode(&name, 0o644);
                names.push(name);
            }
        }
        src.fifo("fifo-mode").mode("fifo-mode", 0o644);
        names.push("fifo-mode".into());
        let dst = at.path("dst");
        Haul::new().arg(order).copy(src.root(), &dst).run().ok();
        let outside = Tree::new(at.path("outside"));
        for name in &names {
            fs::hard_link(dst.join(name), outside.path(name)).expect("link");
        }
        let before = Snapshot::of(outside.root());

        for name in &names {
            match name.rsplit('-').next() {
                Some("owner") if root => src.owner(name, 1234, 4321),
                Some("attribute") if attributes => src.xattr(name, "user.k", b"v"),
                _ => src.mode(name, 0o600),
            };
        }
        Haul::new().arg(order).copy(src.root(), &dst).run().ok();
        assert_same(src.root(), &dst);
        let after = Snapshot::of(outside.root());
        for name in &names {
            assert_eq!(
                what_is_its_own(before.entry(name)),
                what_is_its_own(after.entry(name)),
                "{order}: {name}"
            );
            assert_eq!(links(&outside.path(name)), 1, "{order}: {name}");
        }
    }
}

/// A file of 3 MB, and a copy of it whose inode has a name outside the destination.
fn linked_outside(at: &Tree) -> (Tree, PathBuf, PathBuf) {
    let src = Tree::new(at.path("src"));
    src.random("f", 1, 3_000_000)
        .mode("f", 0o644)
        .mtime("f", 1_000_000_000, 5);
    let dst = Tree::new(at.path("dst"));
    dst.random("f", 1, 3_000_000)
        .mode("f", 0o600)
        .mtime("f", 1_000_000_000, 5);
    let outside = at.path("outside");
    fs::hard_link(dst.path("f"), &outside).expect("link");
    (src, dst.root().to_owned(), outside)
}

#[test]
fn checksums_that_agree_do_not_change_an_inode_with_a_name_outside() {
    let scratch = Scratch::new();
    for order in ORDERS {
        let (src, dst, outside) = linked_outside(&scratch.tree(&order[2..]));
        let before = Snapshot::of(&outside);
        let ran = Haul::new().args(["-c", order]).copy(src.root(), &dst).run();
        ran.ok();
        assert_same(src.root(), &dst);
        assert_ne!(inode(&dst.join("f")), inode(&outside), "{order}: shared");
        assert_eq!(
            what_is_its_own(before.entry("")),
            what_is_its_own(Snapshot::of(&outside).entry("")),
            "{order}: the name outside"
        );
        assert_eq!(names_in(&dst), [b"f"], "{order}: left behind");
    }
}

#[test]
fn checksums_that_agree_keep_the_inode_and_bring_its_metadata() {
    let scratch = Scratch::new();
    for order in ORDERS {
        let (src, dst, outside) = linked_outside(&scratch.tree(&order[2..]));
        fs::remove_file(outside).expect("remove");
        let before = inode(&dst.join("f"));
        let ran = Haul::new().args(["-c", order]).copy(src.root(), &dst).run();
        ran.ok();
        assert_eq!(inode(&dst.join("f")), before, "{order}: made anew");
        assert_eq!(ran.figure("files"), 0, "{order}");
        assert_same(src.root(), &dst);
    }
}

#[test]
fn checksums_that_differ_replace_what_looks_the_same() {
    let scratch = Scratch::new();
    for order in ORDERS {
        let at = scratch.tree(&order[2..]);
        let (src, dst) = (Tree::new(at.path("src")), Tree::new(at.path("dst")));
        for (name, len) in SIZES {
            // One byte, and the last one.
            let mut other = bytes_of(1, len);
            other[len - 1] ^= 1;
            src.random(name, 1, len).mtime(name, 1_000_000_000, 5);
            dst.file(name, other).mtime(name, 1_000_000_000, 5);
        }
        let ran = Haul::new().arg(order).copy(src.root(), dst.root()).run();
        ran.ok();
        assert_eq!(ran.figure("files"), 0, "{order}: looks the same");
        let ran = Haul::new()
            .args(["-c", order])
            .copy(src.root(), dst.root())
            .run();
        ran.ok();
        assert_eq!(ran.figure("files"), 2, "{order}");
        assert_same(src.root(), dst.root());
    }
}

#[test]
fn a_read_only_destination_of_a_user_is_read_only_again() {
    let scratch = Scratch::new();
    for order in ORDERS {
        let home = scratch.user_dir(&order[2..]);
        let at = Tree::new(home);
        at.random("a", 1, 5000)
            .random("b", 2, 3_000_000)
            .dir("one")
            .dir("two");
        scratch.give_to_user(at.root());
        at.mode("one", 0o555).mode("two", 0o555);
        let by_user = |words: &[PathBuf]| {
            let ran = Haul::new()
                .by_user(&scratch)
                .args(["--json", order])
                .args(words)
                .run();
            ran.ok();
        };
        by_user(&[at.path("a"), at.path("one")]);
        by_user(&[at.path("a"), at.path("b"), at.path("two")]);
        for (dir, names) in [("one", &["a"][..]), ("two", &["a", "b"])] {
            assert_eq!(mode_of(&at.path(dir)), 0o555, "{order}: {dir}");
            for name in names {
                let copied = at.path(dir).join(name);
                assert_eq!(
                    fs::read(at.path(name)).expect("read"),
                    fs::read(copied).expect("copied")
                );
            }
        }
    }
}

#[test]
fn directories_that_no_source_gives_a_mode_get_what_the_umask_leaves() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("a", 1, 5000)
        .mode("a", 0o666)
        .file("b", b"b")
        .dir("tree");
    src.mode("tree", 0o711);
    for order in ORDERS {
        for (umask, want) in [(0o027, 0o750), (0o002, 0o775), (0o077, 0o700)] {
            let at = scratch.tree(&format!("{}-{umask:o}", &order[2..]));
            let run = |words: &[PathBuf]| {
                let ran = Haul::new()
                    .umask(umask)
                    .args(["--json", "--mkpath", order])
                    .args(words)
                    .run();
                ran.ok();
            };
            run(&[src.path("a"), src.path("b"), at.path("several")]);
            run(&[src.path("a"), at.path("single/")]);
            run(&[src.path("a"), at.path("p/q/renamed")]);
            run(&[src.path("a"), src.path("b"), at.path("r/s/t")]);
            run(&[src.path("tree").join(""), at.path("u/v/contents")]);
            for dir in [
                "several", "single", "p", "p/q", "r", "r/s", "r/s/t", "u", "u/v",
            ] {
                let mode = mode_of(&at.path(dir));
                assert_eq!(mode, want, "{order}, umask {umask:o}: {dir} has {mode:o}");
            }
            // What comes from a source has its mode, whatever the umask.
            assert_eq!(mode_of(&at.path("u/v/contents")), 0o711, "{order}");
            for file in ["several/a", "single/a", "p/q/renamed", "r/s/t/a"] {
                assert_eq!(mode_of(&at.path(file)), 0o666, "{order}: {file}");
            }
        }
    }
}

#[test]
fn a_destination_that_shares_all_inodes_with_the_source_becomes_independent() {
    let scratch = Scratch::new();
    for order in ORDERS {
        let at = scratch.tree(&order[2..]);
        let src = Tree::new(at.path("src"));
        src.random("small", 1, 5000)
            .random("d/large", 2, 3_000_000)
            .file("d/e/empty", b"");
        let before = Snapshot::of(src.root());
        let dst = at.path("dst");
        let words = ["-al", src.root().to_str().expect("UTF-8")];
        common::probe::succeeds(
            "cp",
            &[&words[..], &[dst.to_str().expect("UTF-8")]].concat(),
        )
        .expect("cp -al");
        assert_eq!(links(&src.path("small")), 2, "nothing is shared");

        Haul::new().arg(order).copy(src.root(), &dst).run().ok();
        for name in ["small", "d/large", "d/e/empty"] {
            let (from, to) = (src.path(name), dst.join(name));
            assert_ne!(inode(&from), inode(&to), "{order}: {name} is shared");
            assert_eq!((links(&from), links(&to)), (1, 1), "{order}: {name}");
        }
        assert_same(src.root(), &dst);
        assert_alike(&before, &Snapshot::of(src.root()), NOTHING);
        // Nothing to do any more.
        let again = Haul::new().arg(order).copy(src.root(), &dst).run();
        again.ok();
        assert_eq!(again.figure("copied"), 0, "{order}: {}", again.summary());
        // A directory onto itself is another thing.
        let ran = Haul::new().arg(order).copy(src.root(), src.root()).run();
        ran.exits(&[11]);
        assert_alike(&before, &Snapshot::of(src.root()), NOTHING);
    }
}
