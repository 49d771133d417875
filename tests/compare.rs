//! `haul verify SRC DST`: finds what differs between two trees, by name, and writes nothing.

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::snapshot::{Snapshot, assert_untouched};
use common::trace::{injecting, traced};
use common::tree::same_mtime;
use common::{Ability, Haul, Ran, Scratch, Tree, assert_same, can, copy};

fn verify(src: &Path, dst: &Path) -> Ran {
    Haul::new().arg("verify").args([src, dst]).run()
}

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
fn equal_trees_are_equal_and_stay_untouched() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    copy(src.root(), &scratch.dst()).ok();
    let before = (Snapshot::of(src.root()), Snapshot::of(&scratch.dst()));
    verify(src.root(), &scratch.dst()).ok();
    for slash in [src.contents(), scratch.dst().join("")] {
        verify(&slash, &scratch.dst()).ok();
    }
    verify(&scratch.dst(), src.root()).ok();
    assert_untouched(&before.0, &Snapshot::of(src.root()));
    assert_untouched(&before.1, &Snapshot::of(&scratch.dst()));
    let ran = Haul::new()
        .args(["verify", "--json"])
        .args([src.root(), &scratch.dst()])
        .run();
    ran.ok();
    assert_eq!(ran.figure("failed"), 0);
    assert!(ran.figure("verified_files") >= 5, "{}", ran.summary());
}

#[test]
fn only_cached_lets_memory_answer_and_it_finds_the_same() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch);
    copy(src.root(), &scratch.dst()).ok();
    for (options, how) in [
        (&["--json"][..], "durable"),
        (&["--json", "--cached"], "read"),
    ] {
        let haul = Haul::new().arg("verify").args(options);
        let haul = haul.args([src.root(), &scratch.dst()]);
        let (ran, calls) = traced(&scratch, &haul, "fadvise64,syncfs");
        ran.ok();
        assert_eq!(ran.summary()["verify"], how);
        let passes_by = |name, what| {
            calls
                .iter()
                .any(|call| call.name == name && call.args.contains(what))
        };
        assert_eq!(
            passes_by("fadvise64", "POSIX_FADV_DONTNEED"),
            how == "durable"
        );
        assert_eq!(passes_by("syncfs", ""), how == "durable");
    }
    flip(&src, "d/f", 500_000);
    let ran = Haul::new()
        .args(["verify", "--cached"])
        .args([src.root(), &scratch.dst()])
        .run();
    ran.exits(&[2]).says("d/f");
}

type Change = fn(&Tree) -> &Tree;
/// One kind of damage, the path that must be named, and the exit code.
type Damage = (&'static str, Change, &'static str, &'static [i32]);

const DAMAGES: &[Damage] = &[
    ("a flipped first byte", |t| flip(t, "d/f", 0), "d/f", &[2]),
    (
        "a flipped last byte",
        |t| flip(t, "d/f", 1_000_000),
        "d/f",
        &[2],
    ),
    (
        "a flipped byte in a small file",
        |t| flip(t, "small", 50),
        "small",
        &[2],
    ),
    ("a byte in a hole", |t| flip(t, "hole", 5), "hole", &[2]),
    ("a short file", |t| cut(t, "d/f"), "d/f", &[2, 23]),
    (
        "a longer file",
        |t| t.append("d/f", b"x").mtime("d/f", 1, 1),
        "d/f",
        &[2, 23],
    ),
    (
        "an emptied file",
        |t| t.file("small", b""),
        "small",
        &[2, 23],
    ),
    ("a missing file", |t| t.remove("d/x"), "d/x", &[2, 23]),
    (
        "a missing directory",
        |t| t.remove("nothing"),
        "nothing",
        &[2, 23],
    ),
    ("a missing fifo", |t| t.remove("p"), "p", &[2, 23]),
    (
        "an extra file",
        |t| t.file("d/extra", b"e"),
        "extra",
        &[2, 23],
    ),
    ("an extra directory", |t| t.dir("extra"), "extra", &[2, 23]),
    (
        "another link text",
        |t| t.remove("l").symlink("l", "other"),
        "l",
        &[2, 23],
    ),
    (
        "a directory for a file",
        |t| t.remove("d/x").dir("d/x"),
        "d/x",
        &[2, 23],
    ),
    (
        "a link for a file",
        |t| t.remove("d/x").symlink("d/x", "f"),
        "d/x",
        &[2, 23],
    ),
    (
        "a file for a fifo",
        |t| t.remove("p").file("p", b""),
        "p",
        &[2, 23],
    ),
    ("another mode", |t| t.mode("d/x", 0o600), "d/x", &[23]),
    (
        "another mode of a directory",
        |t| t.mode("nothing", 0o700),
        "nothing",
        &[23],
    ),
    (
        "another time",
        |t| t.mtime("d/x", 1_000_000_000, 6),
        "d/x",
        &[23],
    ),
    (
        "another time of a directory",
        |t| t.mtime("nothing", 1, 1),
        "nothing",
        &[23],
    ),
    ("another time of a link", |t| t.mtime("l", 1, 1), "l", &[23]),
    ("a hard link that is none any more", unshare, "small", &[23]),
];

fn flip<'a>(tree: &'a Tree, name: &str, at: u64) -> &'a Tree {
    let path = tree.path(name);
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .expect("open");
    let times = fs::metadata(&path).expect("stat");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 1], at).expect("write");
    use std::os::unix::fs::MetadataExt;
    tree.mtime(name, times.mtime(), times.mtime_nsec())
}

fn cut<'a>(tree: &'a Tree, name: &str) -> &'a Tree {
    let file = fs::OpenOptions::new()
        .write(true)
        .open(tree.path(name))
        .expect("open");
    file.set_len(1_000_000).expect("cut");
    tree
}

fn unshare(tree: &Tree) -> &Tree {
    let bytes = fs::read(tree.path("small")).expect("read");
    let like = tree.path("d/small too");
    tree.remove("small").file("small", bytes);
    same_mtime(&tree.path("small"), &like);
    tree
}

#[test]
fn every_kind_of_damage_is_found_and_named() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    for (what, damage, name, codes) in DAMAGES {
        let dst = scratch.dst();
        copy(src.root(), &dst).ok();
        let before = Snapshot::of(&dst);
        let copied = Tree::new(dst.clone());
        same_mtime(&dst, src.root());
        damage(&copied);
        assert!(
            !before
                .differences(&Snapshot::of(&dst), common::snapshot::NOTHING)
                .is_empty(),
            "{what}"
        );
        let ran = verify(src.root(), &dst);
        assert!(
            codes.contains(&ran.code),
            "{what}: exit {}\n{}",
            ran.code,
            ran.words()
        );
        let said = ran.said();
        assert!(
            said.contains(name),
            "{what}: {name} is not named in\n{said}"
        );
        let json = Haul::new()
            .args(["verify", "--json"])
            .args([src.root(), &dst])
            .run();
        assert!(!json.of_type("error").is_empty(), "{what}: no error line");
        fs::remove_dir_all(dst).expect("remove");
    }
}

#[test]
fn owners_and_attributes_are_compared() {
    if !can(&[Ability::Root, Ability::Xattr]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch);
    src.xattr("d/x", "user.k", b"v");
    let damages: [(&str, Change); 6] = [
        ("owner", |t| t.owner("d/x", 1, 0)),
        ("group", |t| t.owner("d/x", 0, 1)),
        ("owner of a link", |t| t.owner("l", 1, 0)),
        ("another value", |t| t.xattr("d/x", "user.k", b"w")),
        ("one more", |t| t.xattr("d/x", "user.more", b"")),
        ("one less", |t| {
            xattr::remove(t.path("d/x"), "user.k").expect("remove");
            t
        }),
    ];
    for (what, damage) in damages {
        let dst = scratch.dst();
        copy(src.root(), &dst).ok();
        verify(src.root(), &dst).ok();
        damage(&Tree::new(dst.clone()));
        same_mtime(&dst, src.root());
        let ran = verify(src.root(), &dst);
        assert_eq!(ran.code, 23, "{what}: {}", ran.words());
        fs::remove_dir_all(dst).expect("remove");
    }
}

#[test]
fn an_acl_that_was_added_is_found() {
    if !can(&[Ability::Acl]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch);
    copy(src.root(), &scratch.dst()).ok();
    Tree::new(scratch.dst()).acl("d/x", "u:1:r");
    same_mtime(&scratch.dst(), src.root());
    verify(src.root(), &scratch.dst()).exits(&[23]);
}

#[test]
fn a_lost_hole_is_named_but_holds_the_same_bytes() {
    if !can(&[Ability::Sparse]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch);
    copy(src.root(), &scratch.dst()).ok();
    let hole = scratch.dst().join("hole");
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&hole)
        .expect("open");
    file.write_all_at(&vec![0; 1 << 19], 0).expect("zeros");
    drop(file);
    same_mtime(&hole, &src.path("hole"));
    let ran = verify(src.root(), &scratch.dst());
    ran.ok();
    let said = ran.said();
    assert!(said.contains("hole"), "the lost hole is not named: {said}");
}

#[test]
fn access_times_are_not_a_difference() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    copy(src.root(), &scratch.dst()).ok();
    Tree::new(scratch.dst()).atime("d/f", 5, 5).atime("d", 6, 6);
    same_mtime(&scratch.dst(), src.root());
    verify(src.root(), &scratch.dst()).ok();
}

#[test]
fn a_missing_side_is_an_error() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    verify(src.root(), &scratch.path("nosuch"))
        .exits(&[11])
        .says("nosuch");
    verify(&scratch.path("nosuch"), src.root())
        .exits(&[11])
        .says("nosuch");
}

#[test]
fn an_unreadable_file_is_an_error_not_an_equal_one() {
    if !can(&[Ability::Strace]) {
        return;
    }
    let scratch = Scratch::new();
    let src = tree(&scratch);
    copy(src.root(), &scratch.dst()).ok();
    for side in [src.path("d/f"), scratch.dst().join("d/f")] {
        let haul = Haul::new().arg("verify").args([src.root(), &scratch.dst()]);
        let inject = "read,pread64,readv,preadv,preadv2:error=EIO";
        let ran = haul.under(injecting(inject, &[&side])).run();
        ran.exits(&[2, 23]).says("d/f").says("os error 5");
    }
}

#[test]
fn damage_on_the_medium_is_found_though_the_cache_is_whole() {
    if !can(&[Ability::Loop]) {
        return;
    }
    let scratch = Scratch::new();
    let mkfs = ["mkfs.ext4", "-q", "-O", "^has_journal"];
    let room = scratch.try_image("disk", 64, &mkfs).expect("ext4");
    let src = scratch.src();
    for digit in [b'1', b'2', b'3'] {
        src.file(format!("f{}", digit as char), vec![digit; 3_000_000]);
    }
    let dst = room.join("t");
    Haul::new()
        .arg("--verify")
        .copy(src.root(), &dst)
        .run()
        .ok();
    assert_same(src.root(), &dst); // and now it is in the cache
    let extents = common::extents::extents(&dst.join("f2"));
    let place = common::extents::physical(&extents, 1_000_000).expect("an extent");
    let image = scratch.path("disk.img");
    let medium = fs::OpenOptions::new()
        .write(true)
        .open(&image)
        .expect("image");
    medium.write_all_at(&[b'X'; 4096], place).expect("spoil");
    medium.sync_all().expect("sync");
    drop(medium);
    assert!(
        fs::read(dst.join("f2"))
            .expect("read")
            .iter()
            .all(|&byte| byte == b'2')
    );
    verify(src.root(), &dst).exits(&[2]).says("f2");
}
