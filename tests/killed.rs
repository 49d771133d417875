//! Interrupted, killed, run again. The moments are forced with strace, which kills the command
//! at its n-th call of a kind, or makes calls slow enough that a signal surely comes in between.

mod common;

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use common::snapshot::Snapshot;
use common::trace::{injecting, slowing, traced};
use common::tree::names_in;
use common::{Ability, Haul, Scratch, Tree, assert_same, can, copy};

const OLD: i64 = 978_307_200;

fn tree(scratch: &Scratch) -> Tree {
    let src = scratch.src();
    for index in 0..60 {
        let name = format!("d{}/n{index}", index % 4);
        src.random(&name, index, 3000).mtime(&name, OLD, 5);
    }
    for name in ["big1", "d1/big2"] {
        src.random(name, 7, 9_000_000).mtime(name, OLD, 5);
    }
    src.sparse("holes", 5 << 20, &[(3 << 20, b"x")])
        .mtime("holes", OLD, 5);
    src.symlink("l", "big1")
        .hard_link("big1", "d2/again")
        .fifo("d3/p")
        .dir("e/mpty");
    src
}

/// Nothing at the destination may look finished and not be so: by size and time, which is what
/// a second run trusts.
fn assert_nothing_poses_as_finished(src: &Tree, dst: &Path, when: &str) {
    if !dst.exists() {
        return;
    }
    let (from, to) = (Snapshot::of(src.root()), Snapshot::of(dst));
    for (path, have) in &to.entries {
        let Some(want) = from.entries.get(path) else {
            continue;
        };
        let poses = have.kind == 'f' && (have.size, have.mtime) == (want.size, want.mtime);
        let name = common::snapshot::show(path);
        assert!(
            !poses || have.digest == want.digest,
            "{when}: {name} looks finished"
        );
    }
}

fn assert_no_strangers(src: &Tree, dst: &Path, when: &str) {
    let (from, to) = (Snapshot::of(src.root()), Snapshot::of(dst));
    let strangers: Vec<_> = to
        .entries
        .keys()
        .filter(|path| !from.entries.contains_key(*path))
        .map(|path| common::snapshot::show(path))
        .collect();
    assert!(strangers.is_empty(), "{when}: left behind: {strangers:?}");
}

/// Calls that change the destination, and when to die at them.
const DEATHS: [(&str, &[u32]); 9] = [
    (
        "write,pwrite64,pwritev,pwritev2,copy_file_range",
        &[1, 2, 9],
    ),
    ("openat,openat2", &[40, 80, 120]),
    ("mkdirat", &[1, 2]),
    ("linkat,link", &[1, 2]),
    ("renameat,renameat2,rename", &[1, 2, 5]),
    ("utimensat", &[1, 5, 20]),
    ("fchmod,fchmodat,?fchmodat2", &[1, 5]),
    ("symlinkat", &[1]),
    ("ftruncate,fallocate", &[1, 2]),
];

#[test]
fn a_killed_first_run_is_finished_by_the_second() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch);
    let mut died = 0;
    for (calls, times) in DEATHS {
        for time in times {
            let when = format!("killed at call {time} of {calls}");
            let dst = scratch.path("dst");
            let ran = killed_at(&src, &dst, calls, *time);
            died += u32::from(ran == 128 + 9);
            assert_nothing_poses_as_finished(&src, &dst, &when);
            copy(src.root(), &dst).ok();
            assert_no_strangers(&src, &dst, &when);
            assert_same(src.root(), &dst);
            fs::remove_dir_all(&dst).expect("remove");
        }
    }
    assert!(died >= 8, "only {died} runs were killed at all");
}

#[test]
fn a_killed_update_keeps_old_or_new_files_and_is_finished_by_the_next() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch);
    let old = scratch.path("old");
    copy(src.root(), &old).ok();
    let before = Snapshot::of(&old);
    for index in 0..60 {
        src.random(format!("d{}/n{index}", index % 4), index + 1000, 3000);
    }
    src.random("big1", 8, 9_000_000)
        .remove("l")
        .symlink("l", "other");
    let after = Snapshot::of(src.root());
    let mut died = 0;
    for (calls, times) in DEATHS {
        for time in times {
            let when = format!("killed at call {time} of {calls}");
            let dst = scratch.path("dst");
            common::probe::succeeds(
                "cp",
                &[
                    "-a",
                    old.to_str().expect("UTF-8"),
                    dst.to_str().expect("UTF-8"),
                ],
            )
            .expect("cp -a");
            died += u32::from(killed_at(&src, &dst, calls, *time) == 128 + 9);
            let now = Snapshot::of(&dst);
            for (path, was) in before.entries.iter().filter(|(_, entry)| entry.kind == 'f') {
                let is = now.entry(std::str::from_utf8(path).expect("UTF-8"));
                let whole = [was.digest, after.entries[path].digest].contains(&is.digest);
                assert!(
                    whole,
                    "{when}: {} is neither old nor new",
                    common::snapshot::show(path)
                );
            }
            assert_nothing_poses_as_finished(&src, &dst, &when);
            sweep_temporaries(&dst);
            copy(src.root(), &dst).ok();
            assert_no_strangers(&src, &dst, &when);
            assert_same(src.root(), &dst);
            fs::remove_dir_all(&dst).expect("remove");
        }
    }
    assert!(died >= 6, "only {died} runs were killed at all");
}

fn killed_at(src: &Tree, dst: &Path, calls: &str, time: u32) -> i32 {
    let inject = format!("{calls}:signal=KILL:when={time}");
    let haul = Haul::new()
        .args(["--threads=2", "-q"])
        .arg(src.contents())
        .arg(dst);
    let ran = haul.under(injecting(&inject, &[])).run();
    ran.exits(&[0, 128 + 9]);
    ran.code
}

#[test]
fn an_interrupt_ends_the_copy_with_20_and_leaves_nothing_half_made() {
    if !can(&[Ability::Strace]) {
        return;
    }
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let scratch = Scratch::new();
        let src = scratch.src();
        for index in 0..600 {
            let name = format!("d{}/n{index}", index % 4);
            src.random(&name, index, 50_000).mtime(&name, OLD, 5);
        }
        let dst = scratch.dst();
        let haul = Haul::new().arg("--threads=2").copy(src.root(), &dst);
        let mut running = haul.under(slowing("openat,openat2", 5)).start();
        let begun = running.until(|| dst.join("d0").exists() || dst.join("d3").exists());
        assert!(begun, "ended before it began");
        running.signal(signal);
        let ran = running.wait();
        ran.exits(&[20])
            .says_one_of(&["interrupted", "Interrupted"]);
        assert_eq!(ran.figure("exit_code"), 20);
        let [found, copied, unchanged, linked, failed, left] = [
            "found",
            "copied",
            "unchanged",
            "linked",
            "failed",
            "not_reached",
        ]
        .map(|name| ran.figure(name));
        assert_eq!(
            found,
            copied + unchanged + linked + failed + left,
            "{}",
            ran.summary()
        );
        assert!(left + failed > 0, "interrupted too late to prove anything");
        assert_nothing_poses_as_finished(&src, &dst, "interrupted");
        assert_no_strangers(&src, &dst, "interrupted");
        let from = Snapshot::of(src.root());
        for (path, entry) in Snapshot::of(&dst).entries {
            if entry.kind == 'f' {
                let name = common::snapshot::show(&path);
                assert_eq!(
                    entry.digest, from.entries[&path].digest,
                    "{name} is not whole"
                );
            }
        }
        copy(src.root(), &dst).ok();
        assert_same(src.root(), &dst);
    }
}

#[test]
fn an_interrupt_in_a_large_file_removes_the_part() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("large", 1, 120_000_000).mtime("large", OLD, 5);
    let dst = scratch.dst();
    let haul = Haul::new()
        .args(["--threads=1", "--memory=16M", "--reflink=never"])
        .copy(src.root(), &dst);
    let slow = slowing("write,pwrite64,pwritev,pwritev2,copy_file_range", 60);
    let mut running = haul.under(slow).start();
    let begun = running.until(|| dst.join("large").exists());
    if !begun {
        // Written without a name until it is whole: nothing to be seen meanwhile.
        return;
    }
    running.signal(Signal::SIGINT);
    let ran = running.wait();
    ran.exits(&[20]);
    assert!(names_in(&dst).is_empty(), "a part was left");
}

#[test]
fn a_second_interrupt_leaves_at_once() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    for index in 0..300 {
        src.random(format!("n{index}"), index, 3000);
    }
    let dst = scratch.dst();
    let haul = Haul::new().arg("--threads=1").copy(src.root(), &dst);
    let mut running = haul
        .under(slowing("openat,openat2,write,pwrite64", 20))
        .start();
    assert!(running.until(|| dst.exists()));
    // Signals of one kind do not queue up: sent until it ends, at least two get there.
    running.signal_until_end(Signal::SIGINT);
    let ran = running.wait();
    assert!(
        [20, 130, 128 + 2].contains(&ran.code),
        "exit {}: {}",
        ran.code,
        ran.words()
    );
    assert_nothing_poses_as_finished(&src, &dst, "interrupted twice");
    copy(src.root(), &dst).ok();
    assert_same(src.root(), &dst);
}

#[test]
fn new_names_are_created_exclusively_and_private() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch);
    let haul = Haul::new().umask(0).copy(src.root(), &scratch.dst());
    let (ran, calls) = traced(&scratch, &haul, "open,openat,openat2,creat,mkdirat,mknodat");
    ran.ok();
    let mut created = 0;
    for call in calls.iter().filter(|call| call.args.contains("O_CREAT")) {
        if !call.args.contains(scratch.dst().to_str().expect("UTF-8")) {
            continue;
        }
        created += 1;
        assert!(call.args.contains("O_EXCL"), "not exclusive: {}", call.args);
        assert!(
            call.args.contains("01600"),
            "not private, or not marked: {}",
            call.args
        );
        assert!(!call.args.contains("O_TRUNC"), "truncates: {}", call.args);
    }
    let nameless = calls
        .iter()
        .filter(|call| call.args.contains("O_TMPFILE"))
        .count();
    assert!(
        created + nameless >= 60,
        "{created} created, {nameless} nameless"
    );
}

#[test]
fn times_are_set_after_the_last_byte() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch);
    let haul = Haul::new().copy(src.root(), &scratch.dst());
    let calls = "write,pwrite64,pwritev,pwritev2,ftruncate,fallocate,copy_file_range,utimensat,renameat,renameat2";
    let (ran, calls) = traced(&scratch, &haul, calls);
    ran.ok();
    let mut timed = std::collections::BTreeSet::new();
    for call in &calls {
        // copy_file_range writes to its third argument; that one is the copy.
        let Some(path) = call.path().filter(|path| path.starts_with(scratch.dst())) else {
            continue;
        };
        if call.name == "utimensat" {
            timed.insert(path);
        } else if !path.is_dir() {
            assert!(
                !timed.contains(&path),
                "{} after the times: {}",
                call.name,
                call.args
            );
        }
    }
}

/// A run that is killed between naming a replacement and renaming it leaves its
/// temporary name: README.md, Limits. Nothing else may be left.
fn sweep_temporaries(dir: &std::path::Path) {
    for entry in fs::read_dir(dir).expect("list") {
        let entry = entry.expect("entry");
        if entry.file_type().expect("type").is_dir() {
            sweep_temporaries(&entry.path());
        } else if entry.file_name().to_string_lossy().starts_with(".haul-") {
            fs::remove_file(entry.path()).expect("remove");
        }
    }
}
