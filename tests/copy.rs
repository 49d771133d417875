//! What arrives, and where: the rule of the trailing slash, sizes, shapes, options that must not
//! change the result.

// Test values are small and known.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

mod common;

use std::fs;
use std::path::Path;

use common::snapshot::{Leave, NOTHING, Snapshot, assert_alike, assert_same_but};
use common::tree::names_in;
use common::{Ability, Haul, Scratch, Tree, assert_same, can, copy};

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
fn files_of_all_sizes_around_the_edges_of_buffers_arrive() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for power in [9, 12, 16, 17, 18, 20, 21, 22, 23] {
        let size = 1_usize << power;
        for len in [size - 1, size, size + 1] {
            src.random(format!("{len}"), len as u64, len);
        }
    }
    src.random("40 MB", 40, 40_000_003)
        .file("0", b"")
        .file("1", b"x");
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn twenty_levels_of_nothing_arrive() {
    let scratch = Scratch::new();
    let src = scratch.src();
    let mut path = std::path::PathBuf::new();
    for level in 0..20 {
        path.push(format!("level {level}"));
        src.dir(&path).dir(path.join("empty"));
    }
    for level in (1..=20).rev() {
        let dir: std::path::PathBuf = path.iter().take(level).collect();
        src.mtime(&dir, 1_000_000 + level as i64, level as i64);
    }
    let ran = copy(src.root(), &scratch.dst());
    ran.ok();
    assert_same(src.root(), &scratch.dst());
    assert_eq!(
        ran.figure("found"),
        41,
        "each directory counts once, the root too"
    );
}

#[test]
fn an_empty_directory_is_copied() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.mode("", 0o700).mtime("", 77, 7);
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn seventy_thousand_files_in_one_directory_arrive() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.dir("d");
    for index in 0..70_000 {
        fs::write(src.path(format!("d/file-{index:07}.dat")), b"x").expect("write");
    }
    let ran = copy(src.root(), &scratch.dst());
    ran.ok();
    assert_eq!(ran.figure("found"), 70_002);
    assert_eq!(names_in(&scratch.dst().join("d")).len(), 70_000);
    let picked = scratch.dst().join("d/file-0065537.dat");
    assert_eq!(fs::read(picked).expect("read"), b"x");
}

#[test]
fn a_wide_tree_of_directories_arrives() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for index in 0..1500 {
        src.file(format!("{index}/x/y/f"), index.to_string());
    }
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn every_order_thread_count_and_memory_gives_the_same_tree() {
    let scratch = Scratch::new();
    let src = mixed(&scratch);
    src.sparse("holes", 5 << 20, &[(1 << 20, b"x"), (3 << 20, b"y")]);
    let ways: &[&[&str]] = &[
        &["--order=auto"],
        &["--order=physical"],
        &["--order=inode"],
        &["--order=none"],
        &["--threads=1"],
        &["--threads=7"],
        &["--threads=1", "--order=physical", "--memory=1M"],
        &["--threads=16", "--order=none", "--memory=1M"],
        &["--memory=64M"],
        &["--reflink=never"],
        &["--verify=none"],
        &["--verify=read"],
        &["--verify=durable"],
        &["--verify"],
        &["-a", "-r", "-H", "-A", "-X", "-S"],
        &["-aHAXS"],
        &["--order=physical", "--verify", "--reflink=never"],
    ];
    for (index, way) in ways.iter().enumerate() {
        let dst = scratch.path(format!("dst{index}"));
        Haul::new().args(*way).copy(src.root(), &dst).run().ok();
        let lines = Snapshot::of(src.root()).differences(&Snapshot::of(&dst), NOTHING);
        assert!(lines.is_empty(), "{way:?}: {lines:?}");
    }
}

#[test]
fn other_files_at_the_destination_stay() {
    let scratch = Scratch::new();
    let src = mixed(&scratch);
    let dst = scratch.tree("dst");
    dst.file("own", b"mine")
        .file("a/own", b"mine")
        .dir("own dir/x")
        .symlink("own link", "nowhere");
    copy(src.root(), dst.root()).ok();
    for kept in ["own", "a/own", "own dir/x"] {
        assert!(dst.path(kept).exists(), "{kept}");
    }
    assert_eq!(
        fs::read_link(dst.path("own link")).expect("link"),
        Path::new("nowhere")
    );
    for path in ["own", "a/own", "own dir", "own link"] {
        dst.remove(path);
    }
    // Taking them out again moved the directories' times.
    assert_same_but(
        src.root(),
        dst.root(),
        Leave {
            times: true,
            ..NOTHING
        },
    );
}

#[test]
fn the_source_is_left_as_it_was() {
    let scratch = Scratch::new();
    let src = mixed(&scratch);
    let before = Snapshot::of(src.root());
    copy(src.root(), &scratch.dst()).ok();
    Haul::new()
        .arg("--verify")
        .copy(src.root(), &scratch.dst())
        .run()
        .ok();
    let after = Snapshot::of(src.root());
    common::snapshot::assert_untouched(&before, &after);
    for (path, entry) in &after.entries {
        if entry.kind == 'f' {
            let name = common::snapshot::show(path);
            assert_eq!(
                entry.atime, before.entries[path].atime,
                "atime of {name} moved"
            );
        }
    }
}

#[test]
fn one_file_system_stops_at_mount_points() {
    if !can(&[Ability::Mount]) {
        return;
    }
    let scratch = Scratch::new();
    let src = mixed(&scratch);
    let inner = Tree::new(scratch.tmpfs("src/mounted", "size=1m"));
    inner.file("inside", b"x");
    let dst = scratch.dst();
    Haul::new().arg("-x").copy(src.root(), &dst).run().ok();
    // As with rsync -x, the place of the mount is there, and empty.
    assert!(dst.join("mounted").is_dir());
    assert!(names_in(&dst.join("mounted")).is_empty());

    let all = scratch.path("all");
    copy(src.root(), &all).ok();
    assert_eq!(fs::read(all.join("mounted/inside")).expect("read"), b"x");
}

#[test]
fn a_tree_over_tmpfs_overlay_and_disk_arrives() {
    if !can(&[Ability::Mount]) {
        return;
    }
    let scratch = Scratch::new();
    let src = mixed(&scratch);
    let memory = Tree::new(scratch.tmpfs("src/memory", "size=20m"));
    let layers = Tree::new(scratch.tmpfs("layers", "size=20m"));
    layers
        .dir("upper")
        .dir("work")
        .file("lower/low", b"low")
        .file("lower/changed", b"before");
    let options = format!(
        "lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work",
        layers.root().display()
    );
    let mounted = scratch.try_mount("src/overlay", &["-t", "overlay", "-o", &options, "none"]);
    let overlay = match mounted {
        Ok(path) => Tree::new(path),
        Err(why) => return common::probe::skip("overlay", &why),
    };
    overlay.file("changed", b"after").random("up", 3, 3_000_000);
    memory.random("big", 4, 3_000_000);
    for index in 0..50 {
        memory.file(format!("{index}"), index.to_string());
        overlay.file(format!("{index}"), index.to_string());
    }
    for order in [
        "--order=physical",
        "--order=auto",
        "--order=none",
        "--order=inode",
    ] {
        let dst = scratch.path(order);
        let ran = Haul::new().arg(order).copy(src.root(), &dst).run();
        ran.ok();
        assert!(ran.said().lines().count() < 20, "a flood: {}", ran.words());
        assert_same(src.root(), &dst);
    }
}

#[test]
fn a_user_copies_a_tree_of_their_own() {
    let scratch = Scratch::new();
    let home = scratch.user_dir("home");
    let src = Tree::new(home.join("src"));
    src.file("d/f", b"x")
        .symlink("d/l", "f")
        .hard_link("d/f", "g")
        .fifo("p")
        .random("big", 1, 2_000_000);
    src.mode("d/f", 0o4751)
        .mode("d", 0o2750)
        .mtime("d", 5, 5)
        .mtime("d/l", 6, 6);
    scratch.give_to_user(&home);
    if common::probe::is_root() {
        // chown took the bits away.
        src.mode("d/f", 0o4751).mode("d", 0o2750);
    }
    Haul::new()
        .by_user(&scratch)
        .copy(src.root(), &home.join("dst"))
        .run()
        .ok();
    assert_same(src.root(), &home.join("dst"));
}

#[test]
fn a_copy_of_the_copy_is_the_same_again() {
    let scratch = Scratch::new();
    let src = mixed(&scratch);
    copy(src.root(), &scratch.path("1")).ok();
    copy(&scratch.path("1"), &scratch.path("2")).ok();
    assert_alike(
        &Snapshot::of(src.root()),
        &Snapshot::of(&scratch.path("2")),
        NOTHING,
    );
}

#[test]
fn memory_stays_within_the_budget_however_large_the_files_are() {
    let scratch = Scratch::new();
    let src = scratch.src();
    let block = common::bytes_of(1, 1 << 20);
    for name in ["one", "two"] {
        src.file(name, b"");
        for _ in 0..200 {
            src.append(name, &block);
        }
    }
    for order in ["--order=physical", "--order=none"] {
        let dst = scratch.path(order);
        let haul = Haul::new().args([order, "--memory=16M", "--reflink=never"]);
        let mut running = haul.copy(src.root(), &dst).start();
        let status = format!("/proc/{}/status", running.pid());
        let mut peak_kib = 0;
        running.until(|| {
            let text = fs::read_to_string(&status).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let figure = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            peak_kib = figure.unwrap_or(0).max(peak_kib);
            false
        });
        running.wait().ok();
        assert!(peak_kib > 0, "never seen");
        assert!(peak_kib < 150_000, "{order}: {peak_kib} KiB at the peak");
        fs::remove_dir_all(dst).expect("remove");
    }
}
