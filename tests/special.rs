//! FIFOs, sockets, device nodes, files of /proc, and filesystems that lack what haul would like.

mod common;

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use nix::sys::stat::SFlag;

use common::snapshot::{Leave, NOTHING, Snapshot, assert_same_but};
use common::trace::traced;
use common::tree::names_in;
use common::{Ability, Haul, Scratch, Tree, assert_same, can, copy, haul};

#[test]
fn a_fifo_arrives_as_a_fifo_and_nothing_hangs() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.fifo("p")
        .mode("p", 0o640)
        .mtime("p", 978_307_200, 3)
        .file("f", b"x")
        .file("g", b"y");
    src.fifo("d/q").mode("d/q", 0);
    let ran = copy(src.root(), &scratch.dst());
    ran.ok();
    assert_same(src.root(), &scratch.dst());
    assert_eq!(ran.figure("found"), 6);
}

#[test]
fn a_fifo_at_the_destination_is_replaced_by_the_file() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("small", b"y")
        .random("large", 1, 9_000_000)
        .symlink("l", "x")
        .file("empty", b"");
    let dst = scratch.tree("dst");
    for name in ["small", "large", "l", "empty"] {
        dst.fifo(name);
    }
    copy(src.root(), dst.root()).ok();
    assert_same(src.root(), dst.root());
}

#[test]
fn a_socket_arrives_as_a_socket() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.socket("s")
        .mode("s", 0o600)
        .mtime("s", 978_307_200, 3)
        .socket("d/t");
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn special_files_named_as_sources_are_copied_not_read() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.fifo("p").socket("s");
    scratch.tree("dst");
    haul([src.path("p"), src.path("s"), scratch.dst()]).ok();
    let kind = |name: &str| {
        scratch
            .dst()
            .join(name)
            .symlink_metadata()
            .expect("stat")
            .file_type()
    };
    assert!(kind("p").is_fifo() && kind("s").is_socket());
}

#[test]
fn device_nodes_are_made_anew_by_root() {
    if !can(&[Ability::Root]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.device("zero", SFlag::S_IFCHR, 1, 5)
        .device("disk", SFlag::S_IFBLK, 7, 200);
    src.device("far", SFlag::S_IFCHR, 500, 250_000)
        .device("d/full", SFlag::S_IFCHR, 1, 7);
    src.mode("zero", 0o666)
        .owner("zero", 12, 34)
        .mtime("zero", 1_000_000_000, 1)
        .file("zz", b"x");
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
    // Another number under the same name is another device.
    src.remove("zero")
        .device("zero", SFlag::S_IFCHR, 1, 3)
        .mtime("zero", 1_000_000_000, 1);
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn device_nodes_at_the_destination_are_not_written_to() {
    if !can(&[Ability::Root, Ability::Loop]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("disk", 1, 500_000).random("full", 2, 500_000);
    let dst = scratch.tree("dst");
    // /dev/full would answer with ENOSPC; a loop device that does not exist with ENXIO.
    dst.device("full", SFlag::S_IFCHR, 1, 7)
        .device("disk", SFlag::S_IFBLK, 7, 200);
    copy(src.root(), dst.root()).ok();
    assert_same(src.root(), dst.root());
}

#[test]
fn device_nodes_are_failures_for_a_user_and_never_read() {
    if !can(&[Ability::Root]) {
        return;
    }
    let scratch = Scratch::new();
    let home = scratch.user_dir("home");
    let src = Tree::new(home.join("src"));
    src.device("zero", SFlag::S_IFCHR, 1, 5)
        .device("d/disk", SFlag::S_IFBLK, 7, 200);
    src.file("a", b"a").file("d/b", b"b").file("zz", b"z");
    scratch.give_to_user(&home);
    src.mode("zero", 0o666).mode("d/disk", 0o666);
    let dst = home.join("dst");
    let ran = Haul::new().by_user(&scratch).copy(src.root(), &dst).run();
    ran.exits(&[23]).says("zero").says("disk");
    assert_eq!(ran.figure("failed"), 2);
    for (name, bytes) in [("a", b"a"), ("d/b", b"b"), ("zz", b"z")] {
        assert_eq!(fs::read(dst.join(name)).expect("a neighbour"), bytes);
    }
    assert_eq!(
        names_in(&dst),
        [b"a".to_vec(), b"d".to_vec(), b"zz".to_vec()]
    );
    assert_eq!(names_in(&dst.join("d")), [b"b"]);
}

#[test]
fn neither_devices_nor_fifos_nor_sockets_are_ever_opened() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.fifo("the-fifo")
        .socket("the-socket")
        .file("a", b"x")
        .file("z", b"y");
    if common::probe::is_root() {
        src.device("the-device", SFlag::S_IFCHR, 1, 5);
    }
    let copying = Haul::new().arg("--verify").copy(src.root(), &scratch.dst());
    for round in ["first", "second"] {
        let (ran, calls) = traced(&scratch, &copying, "open,openat,openat2");
        ran.ok();
        for call in &calls {
            let special = ["the-fifo\"", "the-socket\"", "the-device\""];
            let opened = special.iter().any(|name| call.args.contains(name));
            // O_PATH opens nothing: it is a handle of the name.
            assert!(
                !opened || call.args.contains("O_PATH"),
                "{round}: {}",
                call.args
            );
        }
    }
}

#[test]
fn files_of_proc_have_content_though_their_size_is_zero() {
    let Ok(want) = fs::read("/proc/version") else {
        return common::probe::skip("proc", "no /proc/version");
    };
    let scratch = Scratch::new();
    scratch.tree("dst");
    let ran = haul([Path::new("/proc/version"), &scratch.dst()]);
    ran.exits(&[0, 23]);
    let copied = fs::read(scratch.dst().join("version"));
    if ran.code == 0 {
        assert_eq!(copied.expect("the copy"), want);
    } else {
        ran.says("version");
        assert!(
            copied.map_or(true, |bytes| bytes == want),
            "a part under the final name"
        );
    }
}

#[test]
fn a_directory_of_proc_is_copied_or_named_file_by_file() {
    let from = Path::new("/proc/sys/kernel/keys");
    if !from.is_dir() {
        return common::probe::skip("proc", "no /proc/sys/kernel/keys");
    }
    let scratch = Scratch::new();
    let dst = scratch.dst();
    let ran = copy(from, &dst);
    ran.exits(&[0, 23]);
    for name in names_in(from) {
        let name = String::from_utf8(name).expect("UTF-8");
        let Ok(want) = fs::read(from.join(&name)) else {
            continue;
        };
        match fs::read(dst.join(&name)) {
            Ok(have) => assert_eq!(have, want, "{name}"),
            Err(_) => {
                ran.says(&name);
            }
        }
    }
}

#[test]
fn a_tree_in_memory_is_copied_to_memory() {
    if !can(&[Ability::Mount]) {
        return;
    }
    let scratch = Scratch::new();
    let src = Tree::new(scratch.tmpfs("from", "size=20m"));
    src.random("big", 1, 3_000_000)
        .sparse("holes", 1 << 30, &[(1 << 29, b"x")])
        .symlink("l", "big");
    for index in 0..100 {
        src.file(format!("d/{index}"), index.to_string());
    }
    let dst = scratch.tmpfs("to", "size=20m").join("t");
    let ran = copy(src.root(), &dst);
    ran.ok();
    assert_same(src.root(), &dst);
    assert!(ran.said().lines().count() < 20, "a flood: {}", ran.words());
}

#[test]
fn a_fat_filesystem_takes_what_it_can_and_the_rest_is_named() {
    if !can(&[Ability::Vfat]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("a", b"a")
        .hard_link("a", "b")
        .symlink("l", "a")
        .mode("a", 0o640);
    if common::probe::is_root() {
        src.owner("a", 1234, 0);
    }
    let fat = scratch.try_image("fat", 40, &["mkfs.vfat"]).expect("FAT");
    let ran = copy(src.root(), &fat.join("t"));
    ran.exits(&[23]).says("l");
    assert_eq!(fs::read(fat.join("t/a")).expect("read"), b"a");
    assert_eq!(fs::read(fat.join("t/b")).expect("read"), b"a");
}

#[test]
fn a_tmpfs_gets_all_that_a_disk_has() {
    if !can(&[Ability::Mount]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("a", b"a")
        .hard_link("a", "b")
        .symlink("l", "a")
        .fifo("p")
        .owner("a", 1234, 4321);
    let dst = scratch.tmpfs("to", "size=20m").join("t");
    copy(src.root(), &dst).ok();
    assert_same_but(
        src.root(),
        &dst,
        Leave {
            holes: true,
            ..NOTHING
        },
    );
}

#[test]
fn names_that_fold_into_one_are_not_lost_in_silence() {
    if !can(&[Ability::Casefold]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("readme", b"lower")
        .file("README", b"UPPER")
        .file("dir/a", b"1")
        .file("DIR/b", b"2");
    src.file("z", b"z");
    let options = ["mkfs.ext4", "-q", "-O", "casefold", "-E", "encoding=utf8"];
    let root = scratch
        .try_image("folding", 64, &options)
        .expect("ext4 that folds");
    let dst = Tree::new(root.join("t"));
    common::probe::succeeds("chattr", &["+F", dst.root().to_str().expect("UTF-8")])
        .expect("chattr");
    let ran = copy(src.root(), dst.root());
    ran.exits(&[2, 23]);
    assert_eq!(fs::read(dst.path("z")).expect("a neighbour"), b"z");
    let files = Snapshot::of(dst.root())
        .entries
        .values()
        .filter(|e| e.kind == 'f')
        .count();
    assert!(files >= 2, "{files} files");
    ran.says_one_of(&["readme", "README"]);
}
