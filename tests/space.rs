//! Room at the destination: known before the first write, and on the way where it was not.

mod common;

use std::fs;
use std::path::PathBuf;

use common::snapshot::{Leave, NOTHING, Snapshot, assert_same_but};
use common::tree::{bytes_of, names_in};
use common::{Ability, Haul, Scratch, Tree, assert_same, can, copy, haul};

/// A tmpfs as destination, small by design.
fn small(scratch: &Scratch, options: &str) -> Option<PathBuf> {
    can(&[Ability::Mount]).then(|| scratch.tmpfs("small", options))
}

#[test]
fn too_little_space_is_said_with_figures_before_anything_is_written() {
    let scratch = Scratch::new();
    let Some(room) = small(&scratch, "size=2m") else {
        return;
    };
    let src = scratch.src();
    for index in 0..10 {
        src.random(format!("d/{index}"), index, 1_000_000);
    }
    for dst in [room.join("new"), room.clone()] {
        let ran = copy(src.root(), &dst);
        ran.exits(&[11])
            .says("space")
            .says("2097152")
            .says("--force");
        // What is needed: ten files of 245 pages each, and little beside.
        let needs = ran
            .said()
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|word| word.parse::<u64>().ok())
            .any(|figure| (10_035_200..11_000_000).contains(&figure));
        assert!(needs, "{}", ran.words());
        assert!(names_in(&room).is_empty(), "something was written");
    }
    // Also in the machine's words, and for a plan.
    let ran = Haul::new().copy(src.root(), &room.join("new")).run();
    assert!(
        ran.json().iter().any(|line| line["type"] == "fatal"),
        "{}",
        ran.output()
    );
}

#[test]
fn too_few_inodes_are_called_inodes() {
    let scratch = Scratch::new();
    let Some(room) = small(&scratch, "size=64m,nr_inodes=60") else {
        return;
    };
    let src = scratch.src();
    for index in 0..200 {
        src.file(format!("{index}"), index.to_string());
    }
    for order in ["--order=none", "--order=physical"] {
        let ran = Haul::new()
            .arg(order)
            .copy(src.root(), &room.join("x"))
            .run();
        ran.exits(&[11]).says("inode").says("201").says("59");
        assert!(names_in(&room).is_empty());
    }
}

#[test]
fn directories_links_and_special_files_need_inodes_too() {
    let scratch = Scratch::new();
    let Some(room) = small(&scratch, "size=64m,nr_inodes=100") else {
        return;
    };
    let src = scratch.src();
    for index in 0..40 {
        src.dir(format!("d{index}"))
            .symlink(format!("l{index}"), "x")
            .fifo(format!("p{index}"));
    }
    copy(src.root(), &room.join("x")).exits(&[11]).says("inode");
    assert!(names_in(&room).is_empty());
}

#[test]
fn hard_links_and_holes_need_no_room() {
    let scratch = Scratch::new();
    let Some(room) = small(&scratch, "size=4m,nr_inodes=400") else {
        return;
    };
    let src = scratch.src();
    src.random("data", 1, 2_000_000)
        .sparse("holes", 1 << 30, &[(1 << 29, b"x")]);
    for index in 0..200 {
        src.hard_link("data", format!("{index}"));
    }
    copy(src.root(), &room.join("x")).ok();
    assert_same_but(
        src.root(),
        &room.join("x"),
        Leave {
            holes: true,
            ..NOTHING
        },
    );
}

#[test]
fn small_files_are_counted_in_whole_blocks() {
    let scratch = Scratch::new();
    let Some(room) = small(&scratch, "size=1m,nr_inodes=10000") else {
        return;
    };
    let src = scratch.src();
    // 400 bytes that take 400 pages.
    for index in 0..400 {
        src.file(format!("{index}"), b"x");
    }
    copy(src.root(), &room.join("x")).exits(&[11]);
    assert!(names_in(&room).is_empty());
}

#[test]
fn what_is_there_already_needs_no_room() {
    let scratch = Scratch::new();
    let Some(room) = small(&scratch, "size=6m") else {
        return;
    };
    let src = scratch.src();
    src.random("a", 1, 2_000_000).random("b", 2, 2_000_000);
    copy(src.root(), &room).ok();
    // 2 MB are left; both files are unchanged, and one small one is new.
    src.random("c", 3, 500_000);
    let ran = copy(src.root(), &room);
    ran.ok();
    assert_same(src.root(), &room);
    // As much again does not fit.
    src.random("d", 4, 4_000_000);
    copy(src.root(), &room).exits(&[11]);
    assert!(!room.join("d").exists());
}

#[test]
fn force_goes_on_and_keeps_what_fits() {
    let scratch = Scratch::new();
    let Some(room) = small(&scratch, "size=4m") else {
        return;
    };
    let src = scratch.src();
    for index in 0..40 {
        src.random(format!("{index:02}"), index, 300_000);
    }
    for way in [
        &["--order=none"][..],
        &["--order=physical"],
        &["--verify"],
        &["--threads=1"],
    ] {
        let dst = room.join("x");
        let ran = Haul::new()
            .arg("--force")
            .args(way)
            .copy(src.root(), &dst)
            .run();
        ran.exits(&[11]).says_one_of(&["No space left", "full"]);
        let names = names_in(&dst);
        assert!(!names.is_empty(), "nothing was kept");
        for name in &names {
            let name = std::str::from_utf8(name).expect("no temporary names");
            let index: u64 = name
                .parse()
                .unwrap_or_else(|_| panic!("left behind: {name}"));
            let have = fs::read(dst.join(name)).expect("read");
            assert!(
                have == bytes_of(index, 300_000),
                "{name} is there and is not whole"
            );
        }
        // The sum of the summary counts what is missing.
        let summary = ran.summary();
        let missing = 41 - names.len() as u64 - 1;
        let told = summary["failed"].as_u64().expect("failed")
            + summary["not_reached"].as_u64().expect("not_reached");
        assert!(told >= missing, "{missing} are missing: {summary}");
        fs::remove_dir_all(&dst).expect("remove");
    }
}

#[test]
fn a_full_destination_does_not_cost_the_old_copies() {
    let scratch = Scratch::new();
    let Some(room) = small(&scratch, "size=4m") else {
        return;
    };
    let src = scratch.src();
    src.random("a", 1, 1_500_000).random("b", 2, 1_500_000);
    copy(src.root(), &room).ok();
    let before = Snapshot::of(&room);
    src.random("a", 3, 1_600_000).random("b", 4, 1_600_000);
    let ran = Haul::new().arg("--force").copy(src.root(), &room).run();
    assert_ne!(ran.code, 0, "3.2 MB beside 3 MB in 4 MB");
    for (name, seed, old) in [("a", 3, 1), ("b", 4, 2)] {
        let have = fs::read(room.join(name)).expect("read");
        let whole = have == bytes_of(seed, 1_600_000) || have == bytes_of(old, 1_500_000);
        assert!(whole, "{name} is neither old nor new");
    }
    assert_eq!(
        names_in(&room).len(),
        before.entries.len() - 1,
        "left behind"
    );
}

#[test]
fn inodes_that_run_out_on_the_way_end_the_job_in_order() {
    let scratch = Scratch::new();
    let Some(room) = small(&scratch, "size=64m,nr_inodes=30") else {
        return;
    };
    let src = scratch.src();
    for index in 0..200 {
        src.file(format!("d{}/{index}", index % 5), index.to_string());
    }
    let dst = room.join("x");
    let ran = Haul::new().arg("--force").copy(src.root(), &dst).run();
    ran.exits(&[11, 23]).says("os error 28");
    for (path, entry) in &Snapshot::of(&dst).entries {
        if entry.kind == 'f' {
            let path = std::str::from_utf8(path).expect("UTF-8");
            let index = path.rsplit('/').next().expect("name");
            assert_eq!(fs::read(dst.join(path)).expect("read"), index.as_bytes());
        }
    }
}

#[test]
fn a_disk_that_fills_up_on_ext4_is_finished_after_it_was_made_room_on() {
    if !can(&[Ability::Loop]) {
        return;
    }
    let scratch = Scratch::new();
    let room = scratch.ext4("disk", 32);
    let src = scratch.src();
    for index in 0..60 {
        src.random(format!("{index:02}"), index, 500_000);
    }
    let filler = Tree::new(room.join("filler"));
    filler.random("f", 99, 12_000_000);
    haul([src.contents(), room.join("x")]).exits(&[11]);
    assert!(!room.join("x").exists());
    Haul::new()
        .arg("--force")
        .copy(src.root(), &room.join("x"))
        .run()
        .exits(&[11]);
    fs::remove_dir_all(filler.root()).expect("remove");
    fs::remove_dir_all(room.join("lost+found")).expect("remove");
    // 30 MB of data do not fit into 32 MB with a journal: half of the source goes.
    for index in 30..60 {
        src.remove(format!("{index:02}"));
    }
    fs::remove_dir_all(room.join("x")).expect("remove");
    copy(src.root(), &room.join("x")).ok();
    assert_same(src.root(), &room.join("x"));
}
