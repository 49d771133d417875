//! Verification: what was written is looked at, and `haul verify` finds what differs between
//! two trees, by name.

mod common;

use std::fs;
use std::path::Path;

use common::trace::{injecting, traced};
use common::{Ability, Haul, Scratch, Tree, assert_same, can};

fn tree(scratch: &Scratch) -> Tree {
    let src = scratch.src();
    src.random("d/f", 1, 1_000_001)
        .random("small", 2, 100)
        .symlink("l", "small")
        .file("d/x", b"x");
    src.sparse("hole", 2 << 20, &[(1 << 20, b"data")])
        .fifo("p")
        .dir("nothing")
        .file("empty", b"");
    src.hard_link("small", "d/small too")
        .mode("d/x", 0o640)
        .mtime("d/x", 1_000_000_000, 5);
    src
}

#[test]
fn content_spoiled_before_it_is_read_back_fails_the_copy() {
    // The write is said to have happened, and did not: the kernel's lie is strace's.
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    for size in [3000_usize, 9_000_000] {
        let src = scratch.src();
        src.random("a", 1, 3000)
            .random("victim", 2, size)
            .random("z", 3, 3000);
        for way in ["--verify=read", "--verify"] {
            let dst = scratch.dst();
            let victim = dst.join("victim");
            let inject = "write,pwrite64:retval=1:when=1";
            let haul = Haul::new()
                .args([way, "--reflink=never", "--memory=64M"])
                .copy(src.root(), &dst);
            let ran = haul.under(injecting(inject, &[&victim])).run();
            if ran.code == 0 && fs::read(&victim).expect("read") == common::bytes_of(2, size) {
                continue; // nothing was lost: written by other calls, or in other pieces
            }
            ran.exits(&[2, 23]).says("victim");
            assert!(fs::read(dst.join("a")).expect("neighbour") == common::bytes_of(1, 3000));
            // Its mtime is later than the source's, and it is there: marked it is copied all the same.
            let mends = match way {
                "--verify" => "--ignore-existing",
                _ => "-u",
            };
            Haul::new().args([mends]).copy(src.root(), &dst).run().ok();
            assert_same(src.root(), &dst);
            fs::remove_dir_all(&dst).expect("remove");
        }
    }
}

#[test]
fn every_file_is_read_back_once_and_only_when_asked() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch);
    src.random("big", 9, 9_000_000);
    for (way, times) in [
        ("--verify=none", 0),
        ("--verify=read", 1),
        ("--verify=durable", 1),
    ] {
        let dst = scratch.path(way);
        let haul = Haul::new()
            .args([way, "--reflink=never"])
            .copy(src.root(), &dst);
        let (ran, calls) = traced(&scratch, &haul, "read,pread64,readv,preadv,preadv2");
        ran.ok();
        let read = calls
            .iter()
            .filter(|call| call.path().is_some_and(|path| path == dst.join("big")))
            .filter_map(|call| call.result)
            .sum::<i64>();
        assert_eq!(read, times * 9_000_000, "{way}");
        assert_eq!(
            ran.figure("verified_files"),
            times.unsigned_abs() * 6,
            "{way}: {}",
            ran.summary()
        );
    }
}

#[test]
fn durable_flushes_files_and_directories_before_it_reads_back() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch);
    let dst = scratch.dst();
    let haul = Haul::new()
        .args(["--verify", "--reflink=never"])
        .copy(src.root(), &dst);
    let calls = "read,pread64,readv,preadv,preadv2,fsync,fdatasync,syncfs,fadvise64";
    let (ran, calls) = traced(&scratch, &haul, calls);
    ran.ok();
    let below = |path: &Path| path.starts_with(&dst);
    let flushed = calls
        .iter()
        .position(|call| ["fsync", "fdatasync", "syncfs"].contains(&call.name.as_str()));
    let flushed = flushed.expect("a flush");
    let read = calls.iter().position(|call| {
        call.name.contains("read") && call.path().is_some_and(|path| below(&path))
    });
    assert!(
        flushed < read.expect("read back"),
        "read back before it was flushed"
    );
    let dropped = calls[flushed..].iter().any(|call| {
        call.args.contains("POSIX_FADV_DONTNEED") && call.path().is_some_and(|path| below(&path))
    });
    assert!(dropped, "the cached pages were not dropped");
}
