//! The kernel says no: one call of one step fails with one errno, forced with strace. Whatever
//! the step, the file is named, the exit code is not zero, the neighbours arrive, nothing half
//! made stays, and a second run without the fault finishes.

mod common;

use std::fs;
use std::path::Path;

use common::snapshot::Snapshot;
use common::trace::injecting;
use common::tree::bytes_of;
use common::{Ability, Haul, Ran, Scratch, Tree, assert_same, can, copy};

const READS: &str = "read,pread64,readv,preadv,preadv2,copy_file_range,sendfile";
const OPENS: &str = "openat,openat2";
const WRITES: &str = "write,pwrite64,writev,pwritev,pwritev2,copy_file_range";

/// Three files, of which faults concern `victim`, in bundles and as chunks.
fn tree(scratch: &Scratch, size: usize) -> Tree {
    let src = scratch.src();
    for index in 0..20 {
        src.random(format!("before/n{index}"), index, 3000);
        src.random(format!("later/n{index}"), index, 3000);
    }
    src.random("middle/victim", 99, size)
        .random("middle/beside", 98, 5_000_000);
    src
}

/// The neighbours are whole, and the victim is whole, old or absent.
fn check(src: &Tree, dst: &Path, fault: &str) {
    let (from, to) = (Snapshot::of(src.root()), Snapshot::of(dst));
    for (path, want) in from.entries.iter().filter(|(_, entry)| entry.kind == 'f') {
        let name = common::snapshot::show(path);
        match to.entries.get(path) {
            None => assert!(path.ends_with(b"victim"), "{fault}: {name} is missing"),
            Some(have) => assert_eq!(have.digest, want.digest, "{fault}: {name} is not whole"),
        }
    }
    for path in to.entries.keys() {
        let name = common::snapshot::show(path);
        assert!(
            from.entries.contains_key(path),
            "{fault}: {name} was left behind"
        );
    }
}

fn run(src: &Tree, dst: &Path, inject: &str, paths: &[&Path]) -> Ran {
    Haul::new()
        .args(["--reflink=never", "--threads=1"])
        .copy(src.root(), dst)
        .under(injecting(inject, paths))
        .run()
}

#[test]
fn a_source_file_that_cannot_be_read_is_named() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    for size in [3000, 9_000_000] {
        let src = tree(&scratch, size);
        let victim = src.path("middle/victim");
        for (errno, number) in [
            ("EIO", 5),
            ("EBADMSG", 74),
            ("ESTALE", 116),
            ("EUCLEAN", 117),
        ] {
            for when in ["", ":when=1", ":when=2+"] {
                let inject = format!("{READS}:error={errno}{when}");
                let dst = scratch.dst();
                let ran = run(&src, &dst, &inject, &[&victim]);
                let fault = format!("{inject} of {size} bytes");
                // The second of one read, in a file that one read takes, is the end of the file.
                if when == ":when=2+" && ran.code == 0 {
                    assert_same(src.root(), &dst);
                } else {
                    ran.exits(&[23])
                        .says("victim")
                        .says(&format!("os error {number}"));
                    assert!(
                        !dst.join("middle/victim").exists(),
                        "{fault}: part of it is there"
                    );
                    assert_eq!(ran.figure("failed"), 1, "{fault}");
                }
                check(&src, &dst, &fault);
                copy(src.root(), &dst).ok();
                assert_same(src.root(), &dst);
                fs::remove_dir_all(dst).expect("remove");
            }
        }
    }
}

#[test]
fn a_source_file_that_cannot_be_opened_is_named_with_its_errno() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch, 3000);
    // However it is reached: by its name in its directory, or from the top.
    let names = [
        src.path("middle/victim"),
        Path::new("middle/victim").to_owned(),
        Path::new("victim").to_owned(),
    ];
    let names: Vec<&Path> = names.iter().map(AsRef::as_ref).collect();
    for (errno, number) in [
        ("EACCES", 13),
        ("EIO", 5),
        ("ELOOP", 40),
        ("ENXIO", 6),
        ("ETXTBSY", 26),
    ] {
        for order in ["--order=none", "--order=physical"] {
            let dst = scratch.dst();
            // Every attempt: with and without O_NOATIME, at the scan and at the reading.
            let haul = Haul::new()
                .arg(order)
                .arg("--verify=none")
                .copy(src.root(), &dst);
            let ran = haul
                .under(injecting(&format!("{OPENS}:error={errno}"), &names))
                .run();
            ran.exits(&[23])
                .says("src/middle/victim")
                .says(&format!("os error {number}"));
            check(&src, &dst, errno);
            assert!(!dst.join("middle/victim").exists(), "{errno}");
            fs::remove_dir_all(dst).expect("remove");
        }
    }
}

#[test]
fn a_source_file_that_is_gone_when_it_is_opened_has_vanished() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch, 3000);
    // However it is reached: by its name in its directory, or from the top.
    let names = [
        src.path("middle/victim"),
        Path::new("middle/victim").to_owned(),
        Path::new("victim").to_owned(),
    ];
    let names: Vec<&Path> = names.iter().map(AsRef::as_ref).collect();
    for order in ["--order=none", "--order=physical"] {
        let dst = scratch.dst();
        let haul = Haul::new()
            .arg(order)
            .arg("--verify=none")
            .copy(src.root(), &dst);
        let ran = haul
            .under(injecting(&format!("{OPENS}:error=ENOENT"), &names))
            .run();
        ran.exits(&[24]).says("victim");
        check(&src, &dst, "ENOENT");
        assert_eq!(ran.figure("failed"), 1);
        fs::remove_dir_all(dst).expect("remove");
    }
}

#[test]
fn a_directory_that_cannot_be_listed_is_named() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch, 3000);
    let dir = src.path("middle");
    for (errno, number) in [("EIO", 5), ("EBADMSG", 74), ("EUCLEAN", 117)] {
        // At the start of the list, and in the middle of it.
        for when in [1, 2] {
            let inject = format!("getdents64:error={errno}:when={when}");
            let dst = scratch.dst();
            let haul = Haul::new().copy(src.root(), &dst);
            let ran = haul.under(injecting(&inject, &[&dir])).run();
            ran.exits(&[23])
                .says("middle")
                .says(&format!("os error {number}"));
            for side in ["before", "later"] {
                for index in 0..20 {
                    let have = fs::read(dst.join(format!("{side}/n{index}"))).expect("neighbour");
                    assert!(have == bytes_of(index, 3000));
                }
            }
            fs::remove_dir_all(dst).expect("remove");
        }
    }
}

#[test]
fn a_destination_that_cannot_be_written_is_named_and_no_part_stays() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch, 9_000_000);
    let dst = scratch.dst();
    let victim = dst.join("middle/victim");
    for (errno, number, code) in [
        ("EIO", 5, 23),
        ("EFBIG", 27, 23),
        ("EPERM", 1, 23),
        ("ENOSPC", 28, 11),
        ("EDQUOT", 122, 11),
    ] {
        for when in ["", ":when=2+"] {
            let inject = format!("{WRITES}:error={errno}{when}");
            let ran = run(&src, &dst, &inject, &[&victim]);
            ran.exits(&[code])
                .says("victim")
                .says(&format!("os error {number}"));
            assert!(!victim.exists(), "{inject}: part of it is there");
            if code == 23 {
                check(&src, &dst, &inject);
            }
            copy(src.root(), &dst).ok();
            assert_same(src.root(), &dst);
            fs::remove_dir_all(&dst).expect("remove");
        }
    }
}

#[test]
fn short_writes_and_short_reads_are_gone_on_with() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch, 9_000_000);
    let dst = scratch.dst();
    let (from, to) = (src.path("middle/victim"), dst.join("middle/victim"));
    // An interrupted call is not a failure.
    for (calls, path) in [(READS, &from), (WRITES, &to)] {
        for when in [1, 2] {
            let ran = run(
                &src,
                &dst,
                &format!("{calls}:error=EINTR:when={when}"),
                &[path],
            );
            ran.ok();
            assert_same(src.root(), &dst);
            fs::remove_dir_all(&dst).expect("remove");
        }
    }
}

#[test]
fn metadata_that_is_refused_is_a_failure_and_said() {
    if !can(&[Ability::Strace, Ability::Root]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch, 3000);
    src.owner("middle/victim", 12, 34)
        .mode("middle/victim", 0o640)
        .mtime("middle/victim", 5, 5);
    src.symlink("middle/link", "victim")
        .mtime("middle/link", 6, 6);
    for calls in ["fchown,fchownat", "fchmod,fchmodat,?fchmodat2", "utimensat"] {
        for (errno, number) in [("EIO", 5), ("EROFS", 30)] {
            // It is there already: a destination that cannot even be made is another matter.
            let dst = scratch.tree("dst").root().to_owned();
            let haul = Haul::new().copy(src.root(), &dst);
            let ran = haul
                .under(injecting(&format!("{calls}:error={errno}"), &[]))
                .run();
            ran.exits(&[23])
                .says(&format!("os error {number}"))
                .says("victim");
            // What could not be finished must not pass for finished on the next run.
            copy(src.root(), &dst).ok();
            assert_same(src.root(), &dst);
            fs::remove_dir_all(&dst).expect("remove");
        }
    }
}

#[test]
fn attributes_that_are_refused_are_named() {
    if !can(&[Ability::Strace, Ability::Xattr]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch, 3000);
    src.xattr("middle/victim", "user.k", b"v")
        .xattr("middle", "user.k", b"v");
    for (errno, number) in [("ENOSPC", 28), ("EPERM", 1), ("E2BIG", 7), ("EIO", 5)] {
        let dst = scratch.dst();
        let inject = format!("setxattr,lsetxattr,fsetxattr,?setxattrat:error={errno}");
        let ran = Haul::new()
            .copy(src.root(), &dst)
            .under(injecting(&inject, &[]))
            .run();
        ran.exits(&[23, 11])
            .says("victim")
            .says(&format!("os error {number}"));
        let victim = dst.join("middle/victim");
        if victim.exists() {
            assert!(fs::read(victim).expect("read") == bytes_of(99, 3000));
        }
        copy(src.root(), &dst).ok();
        assert_same(src.root(), &dst);
        fs::remove_dir_all(&dst).expect("remove");
    }
}

#[test]
fn a_flush_that_fails_is_not_durable_and_not_a_success() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch, 3000);
    for (errno, number) in [("EIO", 5), ("ENOSPC", 28), ("EDQUOT", 122)] {
        let dst = scratch.dst();
        let inject = format!("fsync,fdatasync,syncfs,sync_file_range:error={errno}");
        let haul = Haul::new().arg("--verify").copy(src.root(), &dst);
        let ran = haul.under(injecting(&inject, &[])).run();
        assert_ne!(ran.code, 0, "{errno}: {}", ran.words());
        ran.says(&format!("os error {number}"));
        copy(src.root(), &dst).ok();
        assert_same(src.root(), &dst);
        fs::remove_dir_all(&dst).expect("remove");
    }
}

#[test]
fn names_that_cannot_be_made_are_named() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch, 3000);
    src.symlink("middle/the-link", "x")
        .fifo("middle/the-fifo")
        .dir("middle/the-dir/below");
    src.hard_link("middle/beside", "middle/the-hard-link");
    let cases = [
        ("symlinkat", "the-link"),
        ("mknodat,mknod", "the-fifo"),
        ("mkdirat,mkdir", "the-dir"),
        ("linkat,link", "the-hard-link"),
    ];
    for (calls, name) in cases {
        for (errno, number) in [("EIO", 5), ("EPERM", 1), ("EMLINK", 31)] {
            let dst = scratch.dst();
            let names = [dst.join("middle").join(name), Path::new(name).to_owned()];
            let names: Vec<&Path> = names.iter().map(AsRef::as_ref).collect();
            let haul = Haul::new().copy(src.root(), &dst);
            let ran = haul
                .under(injecting(&format!("{calls}:error={errno}"), &names))
                .run();
            if calls.starts_with("linkat") && ran.code == 0 {
                // A filesystem that can take no further link: a copy is as good.
                assert_eq!(ran.figure("failed"), 0);
                let have = fs::read(dst.join("middle/the-hard-link")).expect("read");
                assert!(have == bytes_of(98, 5_000_000));
            } else {
                ran.exits(&[23])
                    .says_one_of(&[name, "beside"])
                    .says(&format!("os error {number}"));
                assert!(dst.join("middle/victim").exists(), "{calls}: neighbours");
            }
            copy(src.root(), &dst).ok();
            fs::remove_dir_all(&dst).expect("remove");
        }
    }
}

#[test]
fn a_rename_that_fails_keeps_the_old_file_and_leaves_no_part() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch, 3000);
    let dst = scratch.dst();
    copy(src.root(), &dst).ok();
    src.random("middle/victim", 100, 4000);
    let inject = "rename,renameat,renameat2:error=EIO";
    let ran = Haul::new()
        .copy(src.root(), &dst)
        .under(injecting(inject, &[]))
        .run();
    ran.exits(&[23]).says("victim").says("os error 5");
    assert!(fs::read(dst.join("middle/victim")).expect("read") == bytes_of(99, 3000));
    assert_eq!(
        Snapshot::of(&dst).entries.len(),
        Snapshot::of(src.root()).entries.len()
    );
    copy(src.root(), &dst).ok();
    assert_same(src.root(), &dst);
}

#[test]
fn kernels_and_filesystems_that_lack_a_call_are_worked_around() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch, 9_000_000);
    src.sparse("holes", 5 << 20, &[(3 << 20, b"x")])
        .hard_link("holes", "again");
    let lacks = [
        ("openat2", "ENOSYS"),
        ("copy_file_range", "ENOSYS"),
        ("copy_file_range", "EXDEV"),
        ("copy_file_range", "EOPNOTSUPP"),
        ("fallocate", "EOPNOTSUPP"),
        ("fadvise64", "EINVAL"),
        ("statx", "ENOSYS"),
        ("renameat2", "EINVAL"),
        ("renameat2", "ENOSYS"),
        ("?fchmodat2", "ENOSYS"),
        ("listxattr,llistxattr,flistxattr", "EOPNOTSUPP"),
        ("ioctl", "ENOTTY"),
        ("ioctl", "EOPNOTSUPP"),
        ("sync_file_range", "ENOSYS"),
        ("io_uring_setup", "ENOSYS"),
    ];
    for (calls, errno) in lacks {
        for order in ["--order=none", "--order=physical"] {
            let dst = scratch.dst();
            let haul = Haul::new().args([order, "--verify"]).copy(src.root(), &dst);
            let ran = haul
                .under(injecting(&format!("{calls}:error={errno}"), &[]))
                .run();
            let what = format!("{calls} {errno} {order}: {}", ran.words());
            assert_eq!(ran.code, 0, "{what}");
            assert_same(src.root(), &dst);
            // Again, over what is there.
            src.write_at("middle/victim", 5, b"changed");
            let haul = Haul::new().arg(order).copy(src.root(), &dst);
            haul.under(injecting(&format!("{calls}:error={errno}"), &[]))
                .run()
                .ok();
            assert_same(src.root(), &dst);
            fs::remove_dir_all(&dst).expect("remove");
        }
    }
}
