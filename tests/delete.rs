//! `--delete`: what no source has goes, and nothing else does.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use common::random::{Kinds, Random, grow, name, seeds};
use common::snapshot::{Leave, NOTHING, Snapshot};
use common::{Ability, Haul, Scratch, Tree, assert_same, can, haul};

const ORDERS: [&str; 2] = ["--order=physical", "--order=none"];

/// `haul --delete FROM/ TO`.
fn mirror(order: &str, from: &Path, to: &Path) -> Haul {
    Haul::new().args([order, "--delete"]).copy(from, to)
}

#[test]
fn what_no_source_has_goes_with_all_that_is_below() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = scratch.src();
        src.file("a", b"a").file("d/e/f", b"f").dir("empty");
        src.mtime("d/e", 1_000_000, 5);
        mirror(order, src.root(), &scratch.dst()).run().ok();
        let dst = Tree::new(scratch.dst());
        dst.file("old", b"x")
            .file("d/e/old", b"x")
            .file("d/gone/x/y/z", b"x");
        dst.file("empty/only", b"x")
            .symlink("link", "a")
            .fifo("gone/p");
        dst.file(OsStr::from_bytes(b"\xff\n ' *"), b"x").dir("a~");
        let ran = mirror(order, src.root(), dst.root()).run();
        assert_eq!(ran.ok().figure("deleted"), 12, "{}", ran.summary());
        assert_same(src.root(), dst.root());
        assert_eq!(
            mirror(order, src.root(), dst.root())
                .run()
                .ok()
                .figure("deleted"),
            0
        );
    }
}

#[test]
fn nothing_goes_without_the_option_or_in_a_dry_run() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = scratch.src();
        src.file("a", b"a").file("d/b", b"b");
        let dst = Tree::new(scratch.dst());
        dst.file("old/x", b"x").file("d/old", b"x");
        Haul::new()
            .arg(order)
            .copy(src.root(), dst.root())
            .run()
            .ok();
        assert!(dst.path("old/x").exists() && dst.path("d/old").exists());
        let dry = |flag: &str| {
            Haul::new()
                .args([order, "--delete", flag])
                .args([src.contents().as_path(), dst.root()])
                .run()
        };
        let ran = dry("-nv");
        ran.ok().says("to delete at the destination: 3 entries");
        for path in ["old", "old/x", "d/old"] {
            ran.says(&format!("delete \"{}\"", dst.path(path).display()));
        }
        assert!(dst.path("old/x").exists() && dst.path("d/old").exists());
        dst.file("old/y", b"y");
        dry("-n")
            .ok()
            .says("to delete at the destination: 4 entries");
    }
}

#[test]
fn each_deletion_is_listed() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("a", b"a");
    let dst = Tree::new(scratch.dst());
    dst.file("old/x", b"x");
    let ran = haul([
        OsStr::new("-v"),
        OsStr::new("--delete"),
        src.contents().as_os_str(),
        dst.root().as_os_str(),
    ]);
    for path in ["old", "old/x"] {
        ran.ok()
            .says(&format!("deleted \"{}\"", dst.path(path).display()));
    }
    ran.says("deleted 2 entries");
}

#[test]
fn the_root_stays_where_a_source_lands_under_its_own_name() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = scratch.src();
        src.file("a", b"a");
        let dst = Tree::new(scratch.dst());
        dst.file("mine", b"x").file("src/old", b"x");
        let run = |sources: &[&Path]| {
            Haul::new()
                .args([order, "--delete", "--json"])
                .args(sources)
                .arg(dst.root())
                .run()
        };
        assert_eq!(run(&[src.root()]).ok().figure("deleted"), 1);
        dst.file("src/old", b"x");
        assert_eq!(run(&[&src.path("a")]).ok().figure("deleted"), 0);
        assert!(dst.path("mine").exists() && dst.path("src/old").exists());
    }
}

#[test]
fn sources_that_meet_are_one_tree() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let (one, two) = (scratch.tree("one"), scratch.tree("two"));
        one.file("1", b"1").file("both/1", b"1");
        two.file("2", b"2").file("both/2", b"2");
        let named = scratch.tree("named");
        named.file("n", b"n");
        let single = scratch.tree("single");
        single.file("s", b"s");
        let dst = Tree::new(scratch.dst());
        let run = || {
            Haul::new()
                .args([order, "--delete", "--json"])
                .args([
                    one.contents(),
                    two.contents(),
                    named.root().into(),
                    single.path("s"),
                ])
                .arg(dst.root())
                .run()
        };
        run().ok();
        dst.file("old", b"x")
            .file("both/old", b"x")
            .file("named/old", b"x");
        let ran = run();
        assert_eq!(ran.ok().figure("deleted"), 3, "{}", ran.summary());
        for path in ["1", "2", "both/1", "both/2", "named/n", "s"] {
            assert!(dst.path(path).exists(), "{path}");
        }
    }
}

#[test]
fn symlinks_go_and_what_they_point_at_stays() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = scratch.src();
        src.file("a", b"a").dir("d");
        let outside = scratch.tree("outside");
        outside.file("precious/x", b"x");
        let dst = Tree::new(scratch.dst());
        dst.symlink("out", outside.root()).dir("gone");
        dst.symlink("gone/out", outside.path("precious"))
            .symlink("gone/up", "../..");
        // And one in the place of a directory of the source.
        dst.symlink("d", outside.root());
        mirror(order, src.root(), dst.root()).run();
        assert!(outside.path("precious/x").exists());
        assert!(fs::symlink_metadata(dst.path("gone")).is_err());
        assert!(fs::symlink_metadata(dst.path("out")).is_err());
    }
}

#[test]
fn what_is_mounted_in_the_way_is_named_and_stays() {
    if !can(&[Ability::Mount]) {
        return;
    }
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = scratch.src();
        src.file("a", b"a");
        let dst = Tree::new(scratch.dst());
        dst.file("gone/x", b"x").dir("gone/tmp").dir("gone/bind");
        scratch.tree("outside").file("precious", b"x");
        let tmp = scratch.tmpfs("dst/gone/tmp", "size=1m");
        fs::write(tmp.join("precious"), b"x").expect("write");
        scratch.bind(&scratch.path("outside"), "dst/gone/bind");
        let ran = mirror(order, src.root(), dst.root()).run();
        ran.exits(&[23]);
        assert_eq!(ran.of_type("error").len(), 2, "{}", ran.words());
        assert!(tmp.join("precious").exists());
        assert!(scratch.path("outside/precious").exists());
        assert!(!dst.path("gone/x").exists(), "its neighbours go");
    }
}

#[test]
fn a_source_that_cannot_be_read_lets_nothing_go() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let from = scratch.user_dir("from");
        let to = scratch.user_dir("to");
        let src = Tree::new(from.clone());
        src.file("shut/inside", b"x").file("open/a", b"a");
        let dst = Tree::new(to.clone());
        dst.file("shut/old", b"x")
            .file("open/old", b"x")
            .file("old", b"x");
        scratch.give_to_user(&from);
        scratch.give_to_user(&to);
        src.mode("shut", 0o000);
        let run = |more: &[&str]| mirror(order, &from, &to).args(more).by_user(&scratch).run();
        let ran = run(&[]);
        ran.exits(&[23]);
        assert_eq!(ran.figure("deleted"), 0);
        assert!(
            ran.output().contains("--delete removed nothing"),
            "{}",
            ran.output()
        );
        dst.mode("shut", 0o700);
        for old in ["shut/old", "open/old", "old"] {
            assert!(dst.path(old).exists(), "{old}");
        }
        // What was listed in full may then be cleaned, the rest never.
        let ran = run(&["--ignore-errors"]);
        assert_eq!(ran.exits(&[23]).figure("deleted"), 2, "{}", ran.summary());
        src.mode("shut", 0o700);
        dst.mode("shut", 0o700);
        assert!(dst.path("shut/old").exists() && !dst.path("open/old").exists());
    }
}

#[test]
fn a_file_that_cannot_be_read_lets_nothing_go() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let (from, to) = (scratch.user_dir("from"), scratch.user_dir("to"));
        let src = Tree::new(from.clone());
        src.file("shut", b"x").file("a", b"a");
        Tree::new(to.clone()).file("old", b"x");
        scratch.give_to_user(&from);
        scratch.give_to_user(&to);
        src.mode("shut", 0o000);
        let ran = mirror(order, &from, &to).by_user(&scratch).run();
        assert_eq!(ran.exits(&[23]).figure("deleted"), 0);
        assert!(to.join("old").exists());
        let dry = Haul::new()
            .args([order, "--delete", "-n"])
            .args([&from.join(""), &to])
            .by_user(&scratch)
            .run();
        dry.exits(&[23]).says("--delete removed nothing");
    }
}

#[test]
fn more_than_max_delete_is_none() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = scratch.src();
        src.file("a", b"a");
        let dst = Tree::new(scratch.dst());
        dst.file("gone/1", b"x")
            .file("gone/2", b"x")
            .file("b", b"x");
        let run = |most: &str| mirror(order, src.root(), dst.root()).arg(most).run();
        let ran = run("--max-delete=3");
        assert_eq!(ran.exits(&[23]).figure("deleted"), 0);
        assert!(
            ran.output().contains("4 entries are in no source"),
            "{}",
            ran.output()
        );
        assert!(dst.path("gone/1").exists() && dst.path("a").exists());
        assert_eq!(run("--max-delete=4").ok().figure("deleted"), 4);
        assert_same(src.root(), dst.root());
        assert_eq!(run("--max-delete=0").ok().figure("deleted"), 0);
    }
}

#[test]
fn what_makes_way_counts_as_well() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let (src, dst) = (scratch.src(), Tree::new(scratch.dst()));
        src.dir("empty").file("full/x", b"x").file("file", b"x");
        let fill = || {
            dst.file("empty", b"old").file("full", b"old");
            dst.file("file/x", b"old").file("extra", b"old");
        };
        fill();
        let run = |flags: &[&str]| mirror(order, src.root(), dst.root()).args(flags).run();
        let dry = Haul::new()
            .args([order, "--delete", "-nv"])
            .args([src.contents().as_path(), dst.root()])
            .run();
        dry.ok().says("to delete at the destination: 5 entries");
        for path in ["empty", "full", "file", "file/x", "extra"] {
            dry.says(&format!("delete \"{}\"", dst.path(path).display()));
        }
        let most = run(&["--max-delete=4"]);
        most.exits(&[23]);
        assert!(most.figure("deleted") <= 4, "{}", most.summary());
        assert!(dst.path("extra").exists(), "{}", most.words());
        for name in ["empty", "full", "file"] {
            dst.remove(name);
        }
        fill();
        assert_eq!(run(&["--max-delete=5"]).ok().figure("deleted"), 5);
        assert_same(src.root(), dst.root());
    }
}

#[test]
fn many_in_the_way_are_no_more_than_max_delete() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let (src, dst) = (scratch.src(), Tree::new(scratch.dst()));
        for index in 0..40 {
            src.file(format!("f{index}"), b"x")
                .file(format!("d{index}/x"), b"x");
            dst.file(format!("f{index}/x"), b"old")
                .file(format!("d{index}"), b"x");
        }
        let ran = mirror(order, src.root(), dst.root())
            .args(["--max-delete=9", "--threads=8"])
            .run();
        ran.exits(&[23]);
        assert!(ran.figure("deleted") <= 9, "{}", ran.summary());
        // A directory in the way is two entries, a file one.
        let is_gone = |name: String| dst.path(name).is_file();
        let dirs = (0..40).filter(|i| is_gone(format!("f{i}"))).count();
        let files = (0..40).filter(|i| is_gone(format!("d{i}/x"))).count();
        let gone = 2 * dirs + files;
        assert_eq!(gone as u64, ran.figure("deleted"), "{}", ran.summary());
    }
}

#[test]
fn the_source_itself_is_never_deleted() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let dst = Tree::new(scratch.dst());
        dst.file("box/src/precious", b"x").file("box/old", b"x");
        let ran = mirror(order, &dst.path("box/src"), dst.root()).run();
        ran.exits(&[23]);
        assert!(dst.path("box/src/precious").exists());
        assert!(dst.path("precious").exists());
    }
}

#[test]
fn directories_deeper_than_any_path_go() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = scratch.src();
        src.file("a", b"a");
        let deep = Tree::new(scratch.path("dst"));
        deep.deeper_than_path_max(1500);
        let ran = mirror(order, src.root(), deep.root()).open_files(64).run();
        ran.ok();
        assert_same(src.root(), deep.root());
    }
}

#[test]
fn a_users_own_closed_directories_go() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let (from, to) = (scratch.user_dir("from"), scratch.user_dir("to"));
        Tree::new(from.clone()).file("d/a", b"a").mode("d", 0o555);
        let dst = Tree::new(to.clone());
        dst.file("d/old", b"x").file("gone/x", b"x");
        scratch.give_to_user(&from);
        scratch.give_to_user(&to);
        dst.mode("d", 0o500).mode("gone", 0o000);
        let ran = mirror(order, &from, &to).by_user(&scratch).run();
        assert_eq!(ran.ok().figure("deleted"), 3, "{}", ran.summary());
        assert_same(&from, &to);
    }
}

#[test]
fn a_name_that_differs_by_case_only_is_not_lost() {
    if !can(&[Ability::Casefold]) {
        return;
    }
    for order in ORDERS {
        let scratch = Scratch::new();
        let options = ["mkfs.ext4", "-q", "-O", "casefold", "-E", "encoding=utf8"];
        let root = scratch
            .try_image("folding", 64, &options)
            .expect("ext4 that folds");
        let dst = Tree::new(root.join("t"));
        common::probe::succeeds("chattr", &["+F", dst.root().to_str().expect("UTF-8")])
            .expect("chattr");
        let src = scratch.src();
        src.file("Name", b"new content").file("Dir/Inner", b"x");
        dst.file("name", b"x")
            .file("dir/inner", b"old")
            .file("dir/old", b"old");
        let ran = mirror(order, src.root(), dst.root()).run();
        assert_eq!(ran.figure("deleted"), 1, "{}", ran.summary());
        assert_eq!(fs::read(dst.path("NAME")).expect("read"), b"new content");
        assert_eq!(fs::read(dst.path("DIR/INNER")).expect("read"), b"x");
    }
}

#[test]
fn another_kind_in_the_way_is_replaced_with_delete_only() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let src = scratch.src();
        src.file("dir/in/file", b"x")
            .file("file", b"f")
            .symlink("link", "x");
        src.file("deep/dir/in", b"x")
            .hard_link("file", "name")
            .fifo("pipe");
        let outside = scratch.tree("outside");
        outside.file("precious", b"x");
        let dst = Tree::new(scratch.dst());
        dst.file("dir", b"in the way")
            .symlink("deep/dir", outside.root());
        for name in ["file/x/y", "link/x", "name/x", "pipe/x"] {
            dst.file(name, b"x");
        }
        dst.symlink("file/x/out", outside.root());
        let ran = Haul::new().arg(order).copy(src.root(), dst.root()).run();
        ran.exits(&[23]);
        assert!(dst.path("file/x/y").exists() && dst.path("dir").is_file());
        let dry = Haul::new()
            .args([order, "--delete", "-n"])
            .args([src.contents().as_path(), dst.root()])
            .run();
        dry.ok().says("to delete at the destination: 12 entries");
        let most = mirror(order, src.root(), dst.root()).arg("--max-delete=1");
        most.run().exits(&[23]);
        assert!(dst.path("file/x/y").exists());
        // One has made way already.
        let ran = mirror(order, src.root(), dst.root()).run();
        assert_eq!(ran.ok().figure("deleted"), 11, "{}", ran.summary());
        assert_same(src.root(), dst.root());
        assert!(outside.path("precious").exists());
    }
}

#[test]
fn another_kind_in_the_way_stays_where_nothing_may_be_deleted() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let (one, two) = (scratch.tree("one"), scratch.tree("two"));
        one.file("both", b"a file");
        two.file("both/x", b"a directory");
        let dst = Tree::new(scratch.dst());
        let ran = Haul::new()
            .args([order, "--delete", "--json"])
            .args([one.contents(), two.contents()])
            .arg(dst.root())
            .run();
        // One of the two arrives, and is not taken away for the other.
        ran.exits(&[23]);
        let arrived = [dst.path("both"), dst.path("both/x")];
        assert!(arrived.iter().any(|path| path.is_file()));
        assert_eq!(ran.figure("deleted"), 0);
    }
}

/// What both have before the edits, then what only one has.
fn diverge(random: &mut Random, src: &Tree, dst: &Tree) {
    let kinds = Kinds::here(false, false);
    grow(dst, random, 60, kinds);
    grow(src, random, 60, kinds);
    for tree in [src, dst] {
        for _ in 0..10 {
            let new = name(random);
            if fs::symlink_metadata(tree.path(&new)).is_err() {
                tree.file(Path::new(&new).join("x"), b"x");
            }
        }
    }
}

#[test]
fn random_trees_end_as_with_rsync() {
    if !can(&[Ability::Rsync]) {
        return;
    }
    // rsync writes zeros where a source has holes.
    let leave = Leave {
        holes: true,
        ..NOTHING
    };
    for seed in seeds(3) {
        let scratch = Scratch::new();
        let (src, dst) = (scratch.src(), Tree::new(scratch.dst()));
        let mut random = Random::new(seed);
        // One tree of the past at the destination, which is the source's no more.
        grow(&src, &mut random, 80, Kinds::here(false, false));
        haul([src.contents().as_os_str(), dst.root().as_os_str()]).ok();
        diverge(&mut random, &src, &dst);
        let copies = ["rsync", "physical", "none"].map(|name| scratch.path(name));
        for copy in &copies {
            let args = [OsStr::new("-a"), dst.root().as_os_str(), copy.as_os_str()];
            assert!(
                Command::new("cp")
                    .args(args)
                    .status()
                    .expect("cp")
                    .success()
            );
        }
        let status = Command::new("rsync")
            .args(["-aH", "--delete", "--modify-window=-1", "--force", "--"])
            .args([src.contents().as_os_str(), copies[0].as_os_str()])
            .status()
            .expect("rsync");
        assert!(status.success(), "HAUL_SEED={seed}");
        for (order, copy) in ORDERS.iter().zip(&copies[1..]) {
            let ran = mirror(order, src.root(), copy).run();
            assert_eq!(ran.code, 0, "HAUL_SEED={seed}: {}", ran.words());
            let lines = Snapshot::of(&copies[0]).differences(&Snapshot::of(copy), leave);
            assert!(lines.is_empty(), "HAUL_SEED={seed}: {order}: {lines:?}");
        }
    }
}
