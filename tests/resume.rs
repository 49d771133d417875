//! Killed inside a large file, run again: what was recorded is read back and not written twice,
//! and whatever is not the very same source, or not what the record says, is begun anew.
//!
//! The source's sixth read takes for ever (strace), so that a run stands still at a known place
//! until the record is there, and is killed then.

mod common;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use common::probe::succeeds;
use common::run::Running;
use common::snapshot::digest_of;
use common::trace::injecting;
use common::tree::{bytes_of, names_in};
use common::{Ability, Haul, Ran, Scratch, Tree, assert_same, can, copy};

const OLD: i64 = 978_307_200;
const SIZE: usize = 48 << 20;
const ATTRIBUTE: &str = "user.haul.part";

fn haul(src: &Tree, dst: &Path, more: &[&str]) -> Haul {
    Haul::new()
        .args([
            "--checkpoint=4M",
            "--order=none",
            "--reflink=never",
            "--threads=2",
        ])
        .args(more)
        .copy(src.root(), dst)
}

fn again(src: &Tree, dst: &Path, more: &[&str]) -> Ran {
    let ran = haul(src, dst, more).run();
    ran.ok();
    assert_same(src.root(), dst);
    for name in names_in(dst) {
        let path = dst.join(String::from_utf8(name).expect("UTF-8"));
        assert_eq!(xattr::get(&path, ATTRIBUTE).expect("xattr"), None);
    }
    ran
}

/// The place that a record names.
fn offset_in(path: &Path) -> u64 {
    let text = xattr::get(path, ATTRIBUTE).ok().flatten();
    let text = String::from_utf8(text.unwrap_or_default()).expect("UTF-8");
    let words: Vec<&str> = text.split(' ').collect();
    match words[..] {
        [.., offset, _, _] => offset.parse().expect("a number"),
        _ => 0,
    }
}

/// What of ours lies in a directory beside `f`.
fn part_beside(dst: &Path) -> Option<PathBuf> {
    let mut names = dst.exists().then(|| names_in(dst))?.into_iter();
    let name = names.find(|name| name.starts_with(b".haul-"))?;
    Some(dst.join(String::from_utf8(name).expect("UTF-8")))
}

fn source(scratch: &Scratch) -> Tree {
    let src = scratch.src();
    src.file("f", bytes_of(1, SIZE))
        .mtime("f", OLD, 5)
        .mode("f", 0o644);
    // What is not on the medium yet may be read twice: to tell data from reserved blocks.
    let file = fs::File::open(src.path("f")).expect("open");
    file.sync_all().expect("sync");
    src
}

/// A run that stands still at one of its reads.
fn standing_at(read: &str, src: &Tree, dst: &Path, more: &[&str]) -> Running {
    let inject = format!("inject={read}");
    let calls = read.split_once(':').expect("a read and its delay").0;
    let mut tracer: Vec<OsString> = ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-P"]
        .iter()
        .map(OsString::from)
        .collect();
    tracer.push(src.path("f").into());
    tracer.extend([
        "-e".into(),
        format!("trace={calls}").into(),
        "-e".into(),
        inject.into(),
    ]);
    haul(src, dst, more).under(tracer).start()
}

/// The sixth read of 4 MiB, or the second of the kernel's, takes this long.
fn reads(more: &[&str], delay: &str) -> String {
    match more.contains(&"--verify=none") {
        true => format!("pread64,copy_file_range:delay_enter={delay}:when=2+"),
        false => format!("pread64:delay_enter={delay}:when=6+"),
    }
}

/// A run that stands still behind its first record.
fn standing(
    src: &Tree,
    dst: &Path,
    delay: &str,
    more: &[&str],
    part: impl Fn() -> PathBuf,
) -> Running {
    let mut running = standing_at(&reads(more, delay), src, dst, more);
    assert!(running.until(|| offset_in(&part()) > 0), "no record came");
    running
}

fn tracer_of(pid: u32) -> Pid {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let mut lines = status.lines();
    let tracer = lines.find_map(|line| line.strip_prefix("TracerPid:"));
    let tracer = tracer
        .and_then(|pid| pid.trim().parse().ok())
        .expect("a tracer");
    assert!(tracer > 1, "strace is not there");
    Pid::from_raw(tracer)
}

fn killed(src: &Tree, dst: &Path, part: impl Fn() -> PathBuf) {
    killed_with(src, dst, &[], part);
}

fn killed_with(src: &Tree, dst: &Path, more: &[&str], part: impl Fn() -> PathBuf) {
    end(standing(src, dst, "100s", more, &part), part);
}

fn end(running: Running, part: impl Fn() -> PathBuf) {
    // strace would keep the thread that it delays from dying.
    let tracer = tracer_of(running.pid());
    running.signal(Signal::SIGKILL);
    kill(tracer, Signal::SIGKILL).expect("kill strace");
    assert_eq!(running.wait().code, 128 + 9);
    // A thread that was traced may take its time to let go of its files. Asked by a program of its
    // own: a lock of this process would go on in what other tests start meanwhile.
    let part = part();
    succeeds("flock", &[part.to_str().expect("UTF-8"), "true"]).expect("flock");
}

/// Whether this can be tested here: strace, and attributes of users.
fn is_possible(scratch: &Scratch) -> bool {
    let probe = scratch.path("probe");
    fs::write(&probe, "").expect("probe");
    can(&[Ability::Strace]) && xattr::set(&probe, ATTRIBUTE, b"1").is_ok()
}

fn assert_resumed(ran: &Ran) {
    assert_eq!(ran.figure("resumed_files"), 1, "{}", ran.line);
    let (there, read) = (ran.figure("resumed_bytes"), ran.figure("read_bytes"));
    assert!(there >= 4 << 20, "only {there} bytes");
    assert_eq!(there + read, SIZE as u64);
}

#[test]
fn a_new_file_goes_on_from_its_record() {
    let scratch = Scratch::new();
    if !is_possible(&scratch) {
        return;
    }
    for (first, more) in [
        (&[][..], &[][..]),
        (&[], &["--verify=none"]),
        (&["--verify=none"], &["--verify=none"]),
        (&["--verify=none"], &["--verify=durable"]),
        (&[], &["-u"]),
        (&["--dedup"], &["--ignore-existing"]),
        (&[], &["--dedup"]),
        (&[], &["--delta", "--inplace"]),
    ] {
        let (src, dst) = (source(&scratch), scratch.dst());
        killed_with(&src, &dst, first, || dst.join("f"));
        let torn = fs::metadata(dst.join("f")).expect("stat");
        assert_eq!(torn.mode() & 0o7777, 0o1600);
        let ran = again(&src, &dst, more);

        assert_resumed(&ran);
        fs::remove_dir_all(&dst).expect("remove");
    }
}

#[test]
fn what_a_killed_run_left_is_no_newer_file_and_no_finished_one() {
    let scratch = Scratch::new();
    if !can(&[Ability::Strace]) {
        return;
    }
    for more in [
        "-u",
        "--ignore-existing",
        "--modify-window=4000000000",
        "--backup",
        "-c",
    ] {
        let (src, dst) = (source(&scratch), scratch.dst());
        src.file("small", b"small").mtime("small", OLD, 5);
        // As large as the file, but for these bytes all zeros.
        let mut running = standing_at(
            "pread64:delay_enter=100s:when=6+",
            &src,
            &dst,
            &["--checkpoint=1G"],
        );
        let part = dst.join("f");
        assert!(running.until(|| fs::metadata(&part).is_ok_and(|stat| stat.blocks() > 0)));
        end(running, || part.clone());
        fs::File::options()
            .write(true)
            .open(&part)
            .and_then(|file| file.set_len(SIZE as u64))
            .expect("set_len");
        let ran = again(&src, &dst, &["--checkpoint=1G", more]);
        assert_eq!(ran.figure("resumed_files"), 0);
        assert!(!dst.join("f~").exists(), "no state that is worth a backup");
        fs::remove_dir_all(&dst).expect("remove");
    }
}

#[test]
fn a_destination_that_refuses_the_mark_gets_the_files_without_it() {
    let scratch = Scratch::new();
    if !can(&[Ability::Strace]) {
        return;
    }
    let (src, dst) = (scratch.src(), scratch.dst());
    src.file("f", b"content").mtime("f", OLD, 5);
    // The first to open this name reads the source, the second makes the copy.
    let tracer = injecting("openat:error=EPERM:when=2", &[Path::new("f")]);
    let ran = haul(&src, &dst, &[]).under(tracer).run();
    ran.ok();
    assert_same(src.root(), &dst);
}

#[test]
fn an_update_goes_on_too_and_the_old_file_stays_until_then() {
    let scratch = Scratch::new();
    if !is_possible(&scratch) {
        return;
    }
    let (src, dst) = (source(&scratch), scratch.dst());
    fs::create_dir(&dst).expect("mkdir");
    fs::write(dst.join("f"), "old").expect("write");
    killed(&src, &dst, || part_beside(&dst).unwrap_or_default());
    assert_eq!(fs::read(dst.join("f")).expect("read"), b"old");
    assert_resumed(&again(&src, &dst, &[]));
}

#[test]
fn another_source_is_begun_anew_and_what_is_stale_goes() {
    let scratch = Scratch::new();
    if !is_possible(&scratch) {
        return;
    }
    for is_update in [false, true] {
        let (src, dst) = (source(&scratch), scratch.path(format!("dst{is_update}")));
        let part = || part_beside(&dst).unwrap_or_else(|| dst.join("f"));
        if is_update {
            fs::create_dir(&dst).expect("mkdir");
            fs::write(dst.join("f"), "old").expect("write");
        }
        killed(&src, &dst, part);
        // The same size and mtime: its ctime tells.
        src.write_at("f", 0, &bytes_of(2, 100)).mtime("f", OLD, 5);
        assert_eq!(again(&src, &dst, &[]).figure("resumed_files"), 0);
    }
}

#[test]
fn a_beginning_that_is_not_what_the_record_says_is_not_believed() {
    let scratch = Scratch::new();
    if !is_possible(&scratch) {
        return;
    }
    let (src, dst) = (source(&scratch), scratch.dst());
    killed(&src, &dst, || dst.join("f"));
    let part = fs::File::options().write(true).open(dst.join("f"));
    let byte = [!bytes_of(1, 101)[100]];
    part.expect("open").write_all_at(&byte, 100).expect("write");
    assert_eq!(again(&src, &dst, &[]).figure("resumed_files"), 0);
}

#[test]
fn a_part_that_another_run_holds_is_left_to_it() {
    let scratch = Scratch::new();
    if !is_possible(&scratch) {
        return;
    }
    let (src, dst) = (source(&scratch), scratch.dst());
    fs::create_dir(&dst).expect("mkdir");
    fs::write(dst.join("f"), "old").expect("write");
    killed(&src, &dst, || part_beside(&dst).unwrap_or_default());
    let part = part_beside(&dst).expect("a part");
    let (held, digest) = (fs::File::open(&part).expect("open"), digest_of(&part));
    held.lock().expect("lock");
    let ran = haul(&src, &dst, &[]).run();
    ran.ok();
    assert_eq!(ran.figure("resumed_files"), 0);
    assert_eq!(
        digest_of(&part).expect("still there"),
        digest.expect("digest")
    );
    assert_eq!(
        digest_of(&dst.join("f")).ok(),
        digest_of(&src.path("f")).ok()
    );
}

#[test]
fn a_new_file_that_another_run_is_writing_is_left_to_it_and_named() {
    let scratch = Scratch::new();
    if !is_possible(&scratch) {
        return;
    }
    let (src, dst) = (source(&scratch), scratch.dst());
    killed(&src, &dst, || dst.join("f"));
    let (held, digest) = (
        fs::File::open(dst.join("f")).expect("open"),
        digest_of(&dst.join("f")).expect("digest"),
    );
    held.lock().expect("lock");
    haul(&src, &dst, &[]).run().exits(&[23]).says("another run");
    assert_eq!(digest_of(&dst.join("f")).expect("digest"), digest);
    held.unlock().expect("unlock");
    assert_resumed(&again(&src, &dst, &[]));
}

#[test]
fn what_a_killed_run_left_takes_no_room_from_the_next() {
    let scratch = Scratch::new();
    if !can(&[Ability::Strace, Ability::Mount]) {
        return;
    }
    for is_update in [false, true] {
        let src = source(&scratch);
        let dst = scratch.tmpfs(&format!("m{is_update}"), "size=72m");
        if is_update {
            fs::write(dst.join("f"), "old").expect("write");
        }
        let part = || part_beside(&dst).unwrap_or_else(|| dst.join("f"));
        // With a record it is gone on with; without it is removed first.
        killed(&src, &dst, part);
        assert_eq!(again(&src, &dst, &[]).figure("resumed_files"), 1);
        src.write_at("f", 0, b"new").mtime("f", OLD + 1, 5);
        fs::remove_file(dst.join("f")).expect("remove");
        killed(&src, &dst, || dst.join("f"));
        src.write_at("f", 0, b"newer").mtime("f", OLD + 2, 5);
        assert_eq!(again(&src, &dst, &[]).figure("resumed_files"), 0);
    }
}

#[test]
fn nothing_stays_beside_a_file_that_is_there() {
    let scratch = Scratch::new();
    if !is_possible(&scratch) {
        return;
    }
    for is_copied_by_hand in [false, true] {
        let (src, dst) = (source(&scratch), scratch.dst());
        fs::create_dir(&dst).expect("mkdir");
        fs::write(dst.join("f"), "old").expect("write");
        killed(&src, &dst, || part_beside(&dst).unwrap_or_default());
        let part = part_beside(&dst).expect("a part");
        if is_copied_by_hand {
            fs::copy(src.path("f"), dst.join("f")).expect("copy");
            Tree::new(dst.clone()).mtime("f", OLD, 5).mode("f", 0o644);
        } else {
            // Killed before there was a record.
            xattr::remove(&part, ATTRIBUTE).expect("remove");
        }
        assert_eq!(again(&src, &dst, &[]).figure("resumed_files"), 0);
        assert_eq!(names_in(&dst), [b"f"]);
        fs::remove_dir_all(&dst).expect("remove");
    }
}

#[test]
fn a_signal_keeps_what_can_be_gone_on_with() {
    let scratch = Scratch::new();
    if !is_possible(&scratch) {
        return;
    }
    let (src, dst) = (source(&scratch), scratch.dst());
    let running = standing(&src, &dst, "2s", &[], || dst.join("f"));
    running.signal(Signal::SIGINT);
    assert_eq!(running.wait().code, 20);
    let torn = fs::metadata(dst.join("f")).expect("it is kept");
    assert_eq!(torn.mode() & 0o7777, 0o1600);
    assert_ne!(torn.mtime(), OLD);
    assert_resumed(&again(&src, &dst, &[]));
}

#[test]
fn a_file_with_holes_goes_on_as_well() {
    let scratch = Scratch::new();
    if !is_possible(&scratch) {
        return;
    }
    let src = scratch.src();
    let data = bytes_of(3, 20 << 20);
    let places = [(1 << 20, &data[..]), (30 << 20, &data[..17 << 20])];
    src.sparse("f", SIZE as u64, &places).mtime("f", OLD, 5);
    let file = fs::File::open(src.path("f")).expect("open");
    file.sync_all().expect("sync");
    let dst = scratch.dst();
    killed(&src, &dst, || dst.join("f"));
    let ran = again(&src, &dst, &[]);
    assert_eq!(ran.figure("resumed_files"), 1);
    assert!(ran.figure("read_bytes") < 37 << 20);
}

#[test]
fn a_small_file_leaves_no_record_and_a_finished_one_none() {
    let scratch = Scratch::new();
    let src = source(&scratch);
    src.random("small", 2, 5 << 20);
    let ran = again(&src, &scratch.dst(), &[]);
    assert_eq!(ran.figure("resumed_files"), 0);
    copy(src.root(), &scratch.path("other")).ok();
}
