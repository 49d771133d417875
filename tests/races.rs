//! Trees that change while they are copied. What happens when is chance, so these tests assert
//! what must hold however it falls; the moments themselves are forced with strace in faults.rs.

// Test values are small and known.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::sync::atomic::{AtomicU64, Ordering};

use common::run::while_running;
use common::snapshot::Snapshot;
use common::trace::slowing;
use common::tree::bytes_of;
use common::{Ability, Haul, Scratch, Tree, assert_same, can, copy, haul};

const ROUNDS: usize = 4;

#[test]
fn a_growing_file_is_a_prefix_and_its_neighbours_are_whole() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for index in 0..400 {
        src.random(format!("n{index:03}"), index, 700);
    }
    let logs = ["n050.log", "n150.log", "n250.log", "n350.log"];
    for log in logs {
        src.file(log, b"");
    }
    let line = [b'x'; 80];
    let lines = AtomicU64::new(0);
    while_running(
        |_| {
            if lines.fetch_add(1, Ordering::Relaxed) < 200_000 {
                for log in logs {
                    src.append(log, &line);
                }
            }
        },
        || {
            for round in 0..ROUNDS {
                let dst = scratch.path(format!("dst{round}"));
                let ran = copy(src.root(), &dst);
                ran.exits(&[0, 23]);
                for index in 0..400 {
                    let have = fs::read(dst.join(format!("n{index:03}"))).expect("neighbour");
                    assert!(have == bytes_of(index, 700), "neighbour {index}");
                }
                for log in logs {
                    let Ok(have) = fs::read(dst.join(log)) else {
                        ran.says(log);
                        continue;
                    };
                    assert!(
                        have.iter().all(|&byte| byte == b'x'),
                        "{log} is not a prefix"
                    );
                    // A whole copy, or its name among the failures.
                    if have.len() % line.len() != 0 {
                        ran.exits(&[23]).says(log);
                    }
                }
            }
        },
    );
    let dst = scratch.path("dst0");
    copy(src.root(), &dst).ok();
    assert_same(src.root(), &dst);
}

#[test]
fn a_file_rewritten_in_place_is_never_torn_and_called_copied() {
    let scratch = Scratch::new();
    let src = scratch.src();
    const BLOCK: usize = 1 << 20;
    const BLOCKS: u64 = 24;
    src.file("db", vec![b'A'; BLOCK * BLOCKS as usize])
        .file("neighbour", b"n");
    let file = fs::OpenOptions::new()
        .write(true)
        .open(src.path("db"))
        .expect("open");
    let next = |letter: u8| if letter == b'Z' { b'A' } else { letter + 1 };
    let mut generation = b'A';
    while_running(
        |_| {
            generation = next(generation);
            for block in 0..BLOCKS {
                file.write_all_at(&vec![generation; BLOCK], block * BLOCK as u64)
                    .expect("write");
            }
        },
        || {
            for round in 0..ROUNDS {
                let dst = scratch.path(format!("dst{round}"));
                let ran = copy(src.root(), &dst);
                ran.exits(&[0, 23]);
                assert_eq!(fs::read(dst.join("neighbour")).expect("neighbour"), b"n");
                if ran.code == 23 {
                    ran.says("db");
                    continue;
                }
                // What the file held at one moment: newer bytes up to a place, older ones from
                // there on. Anything else is a mixture of moments.
                let have = fs::read(dst.join("db")).expect("copied");
                assert_eq!(have.len() as u64, BLOCKS * BLOCK as u64);
                let changes: Vec<_> = have.windows(2).filter(|pair| pair[0] != pair[1]).collect();
                let one_moment = match changes[..] {
                    [] => true,
                    [pair] => pair[0] == next(pair[1]),
                    _ => false,
                };
                assert!(one_moment, "torn, and exit 0: {changes:?}");
            }
        },
    );
}

#[test]
fn a_file_truncated_over_and_over_is_never_padded() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for index in 0..50 {
        src.random(format!("a{index}"), index, 2000)
            .random(format!("z{index}"), index, 2000);
    }
    src.file("m", vec![b'm'; 3_000_000]);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(src.path("m"))
        .expect("open");
    while_running(
        |random| {
            let len = file.metadata().expect("stat").len();
            let len = random.below(len + 1).min(3_000_000);
            file.set_len(len).expect("truncate");
            file.write_all_at(&vec![b'm'; 300_000], len).expect("write");
        },
        || {
            for round in 0..ROUNDS {
                let dst = scratch.path(format!("dst{round}"));
                let ran = copy(src.root(), &dst);
                ran.exits(&[0, 23]);
                for index in 0..50 {
                    for side in ["a", "z"] {
                        let have = fs::read(dst.join(format!("{side}{index}"))).expect("neighbour");
                        assert!(have == bytes_of(index, 2000), "{side}{index}");
                    }
                }
                match fs::read(dst.join("m")) {
                    // Truncation and extension never leave a zero behind in the source.
                    Ok(have) => assert!(have.iter().all(|&byte| byte == b'm'), "padded"),
                    Err(_) => {
                        ran.says("/m");
                    }
                }
            }
        },
    );
}

#[test]
fn vanishing_files_and_directories_leave_the_rest_whole() {
    let scratch = Scratch::new();
    for round in 0..ROUNDS {
        let src = scratch.tree(&format!("src{round}"));
        for index in 0..1500 {
            src.file(format!("v{index}"), index.to_string());
        }
        for index in 0..200 {
            src.file(format!("dd{index}/f"), b"x")
                .file(format!("keep/{index}"), index.to_string());
        }
        let mut next = 0;
        let dst = scratch.path(format!("dst{round}"));
        while_running(
            |_| {
                // Directories first where the round is odd.
                let index = next;
                next += 1;
                if index < 1500 {
                    fs::remove_file(src.path(format!("v{index}"))).expect("remove");
                }
                if index < 200 {
                    let index = if round % 2 == 0 { index } else { 199 - index };
                    fs::remove_dir_all(src.path(format!("dd{index}"))).expect("remove");
                }
            },
            || {
                let ran = copy(src.root(), &dst);
                ran.exits(&[0, 24]);
                for index in 0..200 {
                    let have = fs::read(dst.join(format!("keep/{index}"))).expect("kept");
                    assert_eq!(have, index.to_string().as_bytes());
                }
                for index in 0..1500 {
                    if let Ok(have) = fs::read(dst.join(format!("v{index}"))) {
                        assert_eq!(have, index.to_string().as_bytes(), "v{index}");
                    }
                }
            },
        );
    }
}

#[test]
fn files_replaced_by_rename_are_old_or_new() {
    // As editors and package managers do; half of them by hard-linked, linked or empty ones.
    let scratch = Scratch::new();
    let src = scratch.src();
    for index in 0..300 {
        src.file(format!("f{index}"), vec![b'0'; 5000]);
    }
    src.dir("new");
    while_running(
        |random| {
            let index = random.below(300);
            let letter = b'0' + random.below(10) as u8;
            src.file("new/next", vec![letter; 5000]);
            fs::rename(src.path("new/next"), src.path(format!("f{index}"))).expect("rename");
        },
        || {
            for round in 0..ROUNDS {
                let dst = scratch.path(format!("dst{round}"));
                copy(src.root(), &dst).exits(&[0, 23, 24]);
                for index in 0..300 {
                    let name = format!("f{index}");
                    // A listing may miss a name that is replaced meanwhile, as on btrfs.
                    let Ok(have) = fs::read(dst.join(&name)) else {
                        continue;
                    };
                    let whole = have.len() == 5000 && have.iter().all(|&byte| byte == have[0]);
                    assert!(whole, "{name} is neither old nor new");
                }
            }
        },
    );
}

#[test]
fn a_directory_swapped_for_a_symlink_is_not_followed() {
    let scratch = Scratch::new();
    let src = scratch.src();
    let secret = scratch.tree("secret");
    secret.file("f", b"secret").file("deep/f", b"secret");
    for index in 0..200 {
        src.file(format!("d{index}/f"), b"public")
            .file(format!("d{index}/deep/f"), b"public");
    }
    while_running(
        |random| {
            let dir = src.path(format!("d{}", random.below(200)));
            let away = scratch.path("away");
            fs::rename(&dir, &away).expect("rename");
            symlink(secret.root(), &dir).expect("symlink");
            fs::remove_file(&dir).expect("unlink");
            fs::rename(&away, &dir).expect("rename back");
        },
        || {
            for round in 0..ROUNDS {
                let dst = scratch.path(format!("dst{round}"));
                copy(src.root(), &dst).exits(&[0, 23, 24]);
                for (path, entry) in &Snapshot::of(&dst).entries {
                    if entry.kind == 'f' {
                        assert_eq!(entry.size, 6, "{}", common::snapshot::show(path));
                        let bytes = fs::read(dst.join(std::str::from_utf8(path).expect("UTF-8")));
                        assert_eq!(bytes.expect("read"), b"public", "followed");
                    }
                }
            }
        },
    );
}

#[test]
fn a_hostile_destination_gains_no_way_out() {
    // Somebody who may write to the destination swaps directories for links out of it.
    let scratch = Scratch::new();
    let src = scratch.src();
    for index in 0..100 {
        src.file(format!("d{index}/f"), b"x")
            .file(format!("d{index}/e/g"), b"y");
        src.symlink(format!("d{index}/l"), "f")
            .fifo(format!("d{index}/p"));
    }
    let outside = scratch.tree("outside");
    outside.dir("e");
    let before = Snapshot::of(outside.root());
    let dst = scratch.tree("dst");
    while_running(
        |random| {
            let dir = dst.path(format!("d{}", random.below(100)));
            let away = scratch.path("away");
            if fs::rename(&dir, &away).is_ok() {
                if symlink(outside.root(), &dir).is_ok() {
                    fs::remove_file(&dir).ok();
                }
                // The copier may have made the directory again meanwhile.
                if fs::rename(&away, &dir).is_err() {
                    fs::remove_dir_all(&away).ok();
                }
            }
        },
        || {
            for _ in 0..ROUNDS {
                copy(src.root(), dst.root()).exits(&[0, 23]);
            }
        },
    );
    common::snapshot::assert_untouched(&before, &Snapshot::of(outside.root()));
}

#[test]
fn two_copies_into_one_destination_at_once_leave_whole_files() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for index in 0..300 {
        src.random(format!("d{}/{index}", index % 7), index, 3000);
    }
    src.random("big", 1, 9_000_000);
    let (one, two) = std::thread::scope(|scope| {
        let run = || scope.spawn(|| copy(src.root(), &scratch.dst()));
        let (one, two) = (run(), run());
        (one.join().expect("one"), two.join().expect("two"))
    });
    for ran in [&one, &two] {
        ran.exits(&[0, 2, 23]);
    }
    // Whatever they said of each other, a third run puts it right.
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn a_missing_source_is_an_error_and_makes_nothing() {
    let scratch = Scratch::new();
    let missing = Tree::new(scratch.path("there"));
    missing.file("f", b"x");
    haul([scratch.path("nosuch"), scratch.dst()])
        .exits(&[11])
        .says("nosuch")
        .says("os error 2");
    assert!(!scratch.dst().exists());
    haul([scratch.path("nosuch/"), scratch.dst()])
        .exits(&[11])
        .says("nosuch");
    haul([
        missing.root().to_owned(),
        scratch.path("nosuch"),
        scratch.dst(),
    ])
    .exits(&[11])
    .says("nosuch");
    assert!(
        !scratch.dst().exists(),
        "one source of two is missing: nothing is begun"
    );
}

#[test]
fn files_that_vanish_between_scan_and_reading_are_24() {
    // The scan is over when the destination appears; opening is slowed down, so that most files
    // are still to be read when half of them go.
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    for index in 0..400 {
        src.random(format!("n{index}"), index, 50_000);
    }
    let dst = scratch.dst();
    let haul = Haul::new()
        .args(["--order=physical", "--threads=1", "--memory=16M"])
        .copy(src.root(), &dst);
    let mut running = haul.under(slowing("openat,openat2", 4)).start();
    assert!(running.until(|| dst.join("n0").exists() || names_if_any(&dst) > 0));
    for index in (1..400).step_by(2) {
        fs::remove_file(src.path(format!("n{index}"))).expect("remove");
    }
    let ran = running.wait();
    ran.exits(&[24]);
    assert!(ran.figure("failed") > 0);
    for index in (0..400).step_by(2) {
        let have = fs::read(dst.join(format!("n{index}"))).expect("neighbour");
        assert!(have == bytes_of(index, 50_000), "n{index}");
    }
    for error in ran.of_type("error") {
        assert_eq!(error["errno"], 2, "{error}");
    }
}

fn names_if_any(dir: &std::path::Path) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}
