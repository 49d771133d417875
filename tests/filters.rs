//! `--exclude`, `--include` and their files mean what they mean to rsync; sizes; and what is left
//! out is not deleted.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use common::random::{Random, seeds};
use common::{Ability, Haul, Scratch, Tree, can, haul};

/// Names that patterns are made to hit.
const NAMES: [&str; 14] = [
    "a", "b", "ab", "abc", "foo", "foo.o", "bar.o", "x y", "[z]", "-d", "a*b", "~", "q\\r", "é",
];

fn grow(tree: &Tree, random: &mut Random) {
    for _ in 0..40 {
        let mut path = PathBuf::new();
        for _ in 0..random.below(4) {
            path.push(*random.pick(&NAMES));
        }
        path.push(*random.pick(&NAMES));
        let whole = tree.path(&path);
        // A file may be in the way of a directory, and the other way round.
        let blocked = path.ancestors().skip(1).any(|dir| tree.path(dir).is_file());
        if !blocked && !whole.exists() {
            tree.file(&path, b"x");
        }
    }
}

fn pattern(random: &mut Random) -> String {
    const PIECES: [&str; 22] = [
        "a",
        "b",
        "foo",
        "*",
        "**",
        "***",
        "?",
        "[a-c]",
        "[!a]",
        "*.o",
        "foo*",
        "\\*",
        "/",
        "/",
        "/",
        "x y",
        "[[:alpha:]]",
        "-d",
        "ab",
        "q\\r",
        "[]z[]",
        "é",
    ];
    let mut text = String::new();
    if random.chance(20) {
        text.push('/');
    }
    for _ in 0..=random.below(4) {
        let piece: &&str = random.pick(&PIECES);
        text.push_str(piece);
    }
    if random.chance(20) {
        text.push('/');
    }
    text
}

/// What rsync would make, without the root.
fn by_rsync(src: &Path, empty: &Path, args: &[String]) -> BTreeSet<String> {
    let ran = Command::new("rsync")
        .args(["-n", "-a", "-8", "--out-format=%n"])
        .args(args)
        .arg(src.join(""))
        .arg(empty.join(""))
        .output()
        .expect("rsync");
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    let said = String::from_utf8(ran.stdout).expect("UTF-8");
    let names = said.lines().map(|line| line.trim_end_matches('/'));
    // It writes a backslash before some others as an escape.
    let names = names.map(|name| name.replace("\\#134", "\\"));
    names.filter(|name| name != "." && name != "./").collect()
}

/// What haul would copy, without the root.
fn by_haul(src: &Path, args: &[String]) -> BTreeSet<String> {
    let mut filter = haul::Filter::default();
    for arg in args {
        match arg.split_once('=') {
            Some(("--exclude", pattern)) => filter.exclude(pattern.as_bytes()),
            Some(("--include", pattern)) => filter.include(pattern.as_bytes()),
            other => panic!("{other:?}"),
        }
    }
    let options = haul::Options {
        filter,
        ..haul::Options::default()
    };
    let sources = [src.join("")];
    let counters = haul::Counters::default();
    let plan = haul::plan(&sources, None, &options, &counters, &AtomicBool::new(false));
    let plan = plan.expect("a plan");
    let dirs = plan.listing.dirs.iter().map(|dir| dir.path_of(b""));
    let entries = plan.listing.entries.iter().map(|e| plan.listing.path(e));
    let below = |path: PathBuf| {
        let below = path.strip_prefix(src).expect("below").to_path_buf();
        below.into_os_string().into_string().expect("UTF-8")
    };
    let all = dirs.chain(entries).map(below);
    all.filter(|path| !path.is_empty()).collect()
}

#[test]
fn patterns_mean_what_they_mean_to_rsync() {
    if !can(&[Ability::Rsync]) {
        return;
    }
    for seed in seeds(8) {
        let scratch = Scratch::new();
        let src = scratch.src();
        let mut random = Random::new(seed);
        grow(&src, &mut random);
        let empty = scratch.path("empty");
        fs::create_dir(&empty).expect("mkdir");
        for turn in 0..60 {
            let args: Vec<String> = (0..=random.below(4))
                .map(|_| {
                    let kind = *random.pick(&["--exclude=", "--exclude=", "--include="]);
                    let sign = *random.pick(&["", "", "", "", "+ ", "- "]);
                    format!("{kind}{sign}{}", pattern(&mut random))
                })
                .collect();
            let (theirs, ours) = (
                by_rsync(src.root(), &empty, &args),
                by_haul(src.root(), &args),
            );
            assert_eq!(theirs, ours, "HAUL_SEED={seed} turn {turn}: {args:?}");
        }
    }
}

#[test]
fn the_order_on_the_command_line_and_in_files_is_kept() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for name in ["a.o", "keep.o", "d/b.o", "d/c.c", "tmp/x"] {
        src.file(name, name);
    }
    let list = scratch.path("list");
    fs::write(&list, "; comment\n\n- *.o\n/tmp/\n").expect("write");
    for order in ["--order=physical", "--order=none"] {
        let dst = scratch.path(order);
        let ran = Haul::new()
            .args(["--include=keep.o", order])
            .arg(format!("--exclude-from={}", list.display()))
            .arg("--include=*.o")
            .copy(src.root(), &dst)
            .run();
        ran.ok();
        assert_eq!(ran.figure("excluded"), 3);
        let there = |name: &str| dst.join(name).exists();
        assert!(there("keep.o") && there("d/c.c"));
        assert!(!there("a.o") && !there("d/b.o") && !there("tmp"));
    }
    let ran = haul(["--exclude-from=/nonexistent/list", "--json", "a", "b"]);
    ran.exits(&[11]).says("/nonexistent/list");
}

#[test]
fn sizes_leave_files_out_and_in_place() {
    for order in ["--order=physical", "--order=none"] {
        let scratch = Scratch::new();
        let src = scratch.src();
        src.file("small", b"1")
            .random("middle", 1, 2000)
            .random("large", 2, 9000);
        src.symlink("link", "nowhere").dir("dir");
        let args = ["--min-size=10", "--max-size=4k", order];
        let ran = Haul::new()
            .args(args)
            .copy(src.root(), &scratch.dst())
            .run();
        ran.ok();
        assert_eq!(ran.figure("skipped"), 2);
        let there = |name: &str| fs::symlink_metadata(scratch.dst().join(name)).is_ok();
        assert!(there("middle") && there("link") && there("dir"));
        assert!(!there("small") && !there("large"));
    }
}

#[test]
fn what_is_left_out_is_not_deleted() {
    for order in ["--order=physical", "--order=none"] {
        let scratch = Scratch::new();
        let src = scratch.src();
        src.file("a", b"a");
        let dst = scratch.tree("dst");
        dst.file("old", b"old")
            .file("keep.log", b"log")
            .file("gone/x.log", b"log");
        dst.file("gone/y", b"y");
        let args = ["--delete", "--exclude=*.log", order];
        let ran = Haul::new().args(args).copy(src.root(), dst.root()).run();
        ran.ok();
        let there = |name: &str| dst.path(name).exists();
        assert!(there("a") && there("keep.log") && there("gone/x.log"));
        assert!(!there("old") && !there("gone/y"));
    }
}

#[test]
fn a_comparison_leaves_out_what_the_copy_left_out() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for name in ["a.o", "d/b.o", "d/c.c", "tmp/x"] {
        src.file(name, name);
    }
    src.random("large", 1, 100_000);
    let dst = scratch.dst();
    let filters = ["--exclude=*.o", "--exclude=/tmp/", "--max-size=50K"];
    Haul::new().args(filters).copy(src.root(), &dst).run().ok();
    let sides = [src.root(), &*dst].map(|path| path.to_str().expect("UTF-8"));
    let verify = |filters: &[&str]| haul([&["verify", "--json"], filters, &sides].concat());
    let ran = verify(&filters);
    ran.ok();
    assert_eq!((ran.figure("excluded"), ran.figure("skipped")), (3, 1));
    verify(&filters[..2]).exits(&[2, 23]).says("large");
    verify(&[]).exits(&[2, 23]).says("a.o");
    // What is left out is no extra file either, and what is not is looked at.
    fs::write(dst.join("d/mine.o"), "x").expect("write");
    fs::create_dir(dst.join("tmp")).expect("mkdir");
    // A new name has changed the time of its directory.
    src.mtime("d", 978_307_200, 0);
    Tree::new(dst.clone()).mtime("d", 978_307_200, 0);
    for root in [src.root(), &*dst] {
        Tree::new(root.to_path_buf()).mtime("", 978_307_200, 0);
    }
    verify(&filters).ok();
    fs::write(dst.join("d/c.c"), "C/c.c").expect("write");
    verify(&filters).exits(&[2, 23]).says("c.c");
}
