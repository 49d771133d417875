//! Extended attributes, capabilities and ACLs are those of the source.

mod common;

use std::fs;

use common::snapshot::{Snapshot, assert_untouched};
use common::{Ability, Haul, Scratch, Tree, assert_same, can, copy, haul};

#[test]
fn extended_attributes_of_files_and_directories_are_kept() {
    if !can(&[Ability::Xattr]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("f", b"x")
        .random("big", 1, 9_000_000)
        .dir("d")
        .file("empty", b"")
        .file("ro", b"x");
    for name in ["f", "big", "d", "empty", "ro", ""] {
        src.xattr(name, "user.text", b"value")
            .xattr(name, "user.empty", b"");
        src.xattr(name, "user.bytes", b"\x00\xff\x0a=");
    }
    src.xattr("f", "user.with=equals", b"1")
        .xattr("f", "user.caf\u{e9}", b"2");
    src.xattr("f", "user.long", &common::bytes_of(1, 1500))
        .mode("ro", 0o444);
    for index in 0..20 {
        src.xattr(
            "d",
            &format!("user.number{index}"),
            index.to_string().as_bytes(),
        );
    }
    src.hard_link("f", "f again");
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());

    // Changed, added and removed ones follow on the next run.
    src.xattr("f", "user.text", b"other")
        .xattr("big", "user.new", b"n");
    xattr::remove(src.path("d"), "user.number3").expect("removexattr");
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn attributes_of_symlinks_and_of_the_trusted_kind_are_kept_for_root() {
    if !can(&[Ability::Root, Ability::Xattr]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("f", b"x")
        .dir("d")
        .symlink("l", "f")
        .symlink("dangling", "nowhere")
        .fifo("p");
    for name in ["f", "d", "l", "dangling", "p"] {
        src.xattr(name, "trusted.haul", b"\x01\x00\x02");
    }
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
    assert!(!Snapshot::of(&scratch.dst()).entry("l").xattrs.is_empty());
}

#[test]
fn attributes_the_destination_refuses_are_named() {
    if !can(&[Ability::Mount, Ability::Xattr]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("f", b"x")
        .xattr("f", "user.k", b"v")
        .file("g", b"y");
    // ramfs knows no attributes at all.
    let ram = match scratch.try_mount("ram", &["-t", "ramfs", "none"]) {
        Ok(path) => path,
        Err(why) => return common::probe::skip("ramfs", &why),
    };
    if xattr::set(&ram, "user.probe", b"1").is_ok() {
        return common::probe::skip("ramfs", "takes attributes");
    }
    let ran = copy(src.root(), &ram.join("t"));
    ran.exits(&[0, 23]).says_one_of(&["xattr", "attribute"]);
    assert_eq!(fs::read(ram.join("t/f")).expect("read"), b"x");
    assert_eq!(fs::read(ram.join("t/g")).expect("read"), b"y");
}

#[test]
fn file_capabilities_survive() {
    if !can(&[Ability::Caps]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    for (name, len) in [("small", 5000), ("large", 9_000_000)] {
        src.random(name, 1, len)
            .owner(name, 1234, 4321)
            .mode(name, 0o755);
        let path = src.path(name);
        common::probe::succeeds("setcap", &["cap_net_raw+ep", path.to_str().expect("UTF-8")])
            .expect("setcap");
    }
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
    let copied = Snapshot::of(&scratch.dst());
    assert!(
        copied
            .entry("small")
            .xattrs
            .contains_key(b"security.capability".as_slice())
    );
    // An update of the owner alone takes them away in the kernel; they have to come back.
    src.owner("small", 5, 6).mode("small", 0o755);
    let path = src.path("small");
    common::probe::succeeds("setcap", &["cap_net_raw+ep", path.to_str().expect("UTF-8")])
        .expect("setcap");
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn access_and_default_acls_are_kept_and_idle_runs_change_nothing() {
    if !can(&[Ability::Acl]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("d/f", b"x")
        .file("d/g", b"y")
        .dir("d/plain")
        .random("d/big", 1, 9_000_000);
    src.acl("d", "u:65534:rwx,d:u:65534:rwx,d:g:1:r-x");
    src.acl("d/f", "u:1:rw,g:65534:r,m::rw")
        .mode("d/f", 0o640)
        .acl("d/big", "u:2:r");
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
    let before = Snapshot::of(&scratch.dst());
    for _ in 0..2 {
        copy(src.root(), &scratch.dst()).ok();
        assert_untouched(&before, &Snapshot::of(&scratch.dst()));
    }
    // An ACL that went away in the source goes away at the destination.
    let path = src.path("d");
    common::probe::succeeds("setfacl", &["-R", "-b", path.to_str().expect("UTF-8")])
        .expect("setfacl");
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn a_default_acl_on_the_parent_does_not_leak_into_the_copy() {
    if !can(&[Ability::Acl]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("d/f", b"x")
        .random("d/big", 1, 9_000_000)
        .symlink("d/l", "f")
        .fifo("d/p")
        .dir("d/e");
    src.mode("d/f", 0o640).mode("d", 0o750);
    let parent = scratch.tree("parent");
    parent.acl("", "d:u:1:rwx,d:g:2:rwx,d:m::rwx,d:o::rwx");
    haul([src.root(), parent.root()]).ok();
    assert_same(src.root(), &parent.path("src"));
    copy(src.root(), &parent.path("made")).ok();
    assert_same(src.root(), &parent.path("made"));
}

#[test]
fn capabilities_that_a_user_may_not_give_are_said() {
    if !can(&[Ability::Caps]) {
        return;
    }
    let scratch = Scratch::new();
    let home = scratch.user_dir("home");
    let src = Tree::new(home.join("src"));
    src.file("ping", b"x").file("other", b"o");
    scratch.give_to_user(&home);
    let path = src.path("ping");
    common::probe::succeeds("setcap", &["cap_net_raw+ep", path.to_str().expect("UTF-8")])
        .expect("setcap");
    let dst = home.join("dst");
    let ran = Haul::new().by_user(&scratch).copy(src.root(), &dst).run();
    // Counted as owners are, or a failure: but not in silence.
    ran.exits(&[0, 23])
        .says_one_of(&["capabilit", "attribute", "owner"]);
    assert_eq!(fs::read(dst.join("ping")).expect("read"), b"x");
    assert_eq!(fs::read(dst.join("other")).expect("read"), b"o");
}

#[test]
fn attributes_of_files_that_are_not_writable_in_the_end_are_kept_for_a_user() {
    // user.* needs write permission, which the mode or the ACL to come may take away.
    if !can(&[Ability::Xattr]) {
        return;
    }
    let scratch = Scratch::new();
    let home = scratch.user_dir("home");
    let src = Tree::new(home.join("src"));
    for (name, len) in [("small", 10), ("large", 9_000_000)] {
        src.random(name, 1, len).xattr(name, "user.k", b"v");
        src.random(format!("acl {name}"), 1, len)
            .xattr(format!("acl {name}"), "user.k", b"v");
    }
    src.dir("d")
        .xattr("d", "user.k", b"v")
        .dir("acl d")
        .xattr("acl d", "user.k", b"v");
    if can(&[Ability::Acl]) {
        for name in ["acl small", "acl large", "acl d"] {
            src.acl(name, "u:1:rwx");
        }
    }
    scratch.give_to_user(&home);
    for name in ["small", "large", "acl small", "acl large"] {
        src.mode(name, 0o444);
    }
    src.mode("d", 0o555).mode("acl d", 0o555);
    let dst = home.join("dst");
    for _ in 0..2 {
        Haul::new()
            .by_user(&scratch)
            .copy(src.root(), &dst)
            .run()
            .ok();
        assert_same(src.root(), &dst);
    }
}
