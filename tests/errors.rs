//! Bad input gets a clear error, loses nothing, and does not stop the others.

mod common;

use std::fs;
use std::process::Command;

use common::probe::skip;
use common::snapshot::{Leave, NOTHING, assert_same_but};
use common::tree::names_in;
use common::{Ability, Haul, Scratch, Tree, assert_same, can, copy, haul};

#[test]
fn what_a_user_may_not_read_is_named_and_the_rest_arrives() {
    let scratch = Scratch::new();
    let home = scratch.user_dir("home");
    let src = Tree::new(home.join("src"));
    for index in 1..=3 {
        for dir in ["a", "z", "noread", "nosearch"] {
            src.file(format!("{dir}/{index}"), index.to_string());
        }
    }
    scratch.give_to_user(&home);
    src.mode("a/2", 0)
        .mode("noread", 0o300)
        .mode("nosearch", 0o600);
    let dst = home.join("dst");
    let ran = Haul::new().by_user(&scratch).copy(src.root(), &dst).run();
    ran.exits(&[23])
        .says("a/2")
        .says("noread")
        .says("nosearch")
        .says("os error 13");
    assert_eq!(ran.count("a/2\""), 1, "said once: {}", ran.words());
    for path in ["a/1", "a/3", "z/1", "z/2", "z/3"] {
        assert_eq!(fs::read(dst.join(path)).expect(path), &path.as_bytes()[2..]);
    }
    assert!(
        !dst.join("a/2").exists(),
        "an empty stand-in for a file that was not read"
    );
    let errors = ran.of_type("error");
    let of_a2 = errors.iter().find(|error| {
        error["path"]["text"]
            .as_str()
            .is_some_and(|p| p.ends_with("a/2"))
    });
    let of_a2 = of_a2.expect("an error about a/2");
    assert_eq!(of_a2["errno"], 13);
    assert!(
        of_a2["message"]
            .as_str()
            .expect("message")
            .contains("Permission denied"),
        "{of_a2}"
    );
    src.mode("noread", 0o700)
        .mode("nosearch", 0o700)
        .mode("a/2", 0o600);
    Haul::new()
        .by_user(&scratch)
        .copy(src.root(), &dst)
        .run()
        .ok();
    assert_same(src.root(), &dst);
}

#[test]
fn an_unreadable_file_does_not_cost_the_old_copy() {
    let scratch = Scratch::new();
    let home = scratch.user_dir("home");
    let src = Tree::new(home.join("src"));
    src.file("f", b"old").file("d/g", b"old");
    scratch.give_to_user(&home);
    let dst = home.join("dst");
    Haul::new()
        .by_user(&scratch)
        .copy(src.root(), &dst)
        .run()
        .ok();
    src.file("f", b"newer").mode("f", 0).mode("d", 0);
    Haul::new()
        .by_user(&scratch)
        .copy(src.root(), &dst)
        .run()
        .exits(&[23])
        .says("f");
    assert_eq!(fs::read(dst.join("f")).expect("read"), b"old");
    assert_eq!(names_in(&dst), [b"d".to_vec(), b"f".to_vec()]);
    // What could not be listed is still there.
    src.mode("d", 0o700);
    Command::new("chmod")
        .arg("700")
        .arg(dst.join("d"))
        .status()
        .expect("chmod");
    assert_eq!(fs::read(dst.join("d/g")).expect("read"), b"old");
}

#[test]
fn a_destination_that_may_not_be_written_is_an_error() {
    let scratch = Scratch::new();
    let home = scratch.user_dir("home");
    let src = Tree::new(home.join("src"));
    src.file("f", b"x")
        .file("closed/g", b"y")
        .file("open/h", b"z");
    scratch.give_to_user(&home);
    let user = || Haul::new().by_user(&scratch);
    let locked = home.join("locked");
    fs::create_dir(&locked).expect("mkdir");
    Tree::new(locked.clone()).mode("", 0o555);
    if common::probe::is_root() {
        // Not the user's own: it cannot be opened up.
        user()
            .copy(src.root(), &locked.join("dst"))
            .run()
            .exits(&[11])
            .says("locked");
        let dst = Tree::new(home.join("dst"));
        dst.dir("closed")
            .mode("closed", 0o555)
            .dir("open")
            .owner("", 65_534, 65_534);
        dst.owner("open", 65_534, 65_534);
        user()
            .copy(src.root(), dst.root())
            .run()
            .exits(&[23])
            .says("closed");
        assert_eq!(fs::read(dst.path("open/h")).expect("read"), b"z");
        assert_eq!(fs::read(dst.path("f")).expect("read"), b"x");
    }
}

#[test]
fn what_a_directory_holds_is_copied_although_its_attributes_cannot_be_read() {
    if !can(&[Ability::Strace]) {
        return;
    }
    for order in ["--order=physical", "--order=none"] {
        let scratch = Scratch::new();
        let src = scratch.src();
        src.file("d/e/f", b"content").file("d/g", b"more");
        let dst = scratch.dst();
        let inject = "flistxattr:error=EIO";
        let haul = Haul::new().arg(order).copy(src.root(), &dst);
        let ran = haul
            .under(common::trace::injecting(inject, &[&src.path("d")]))
            .run();
        ran.exits(&[23]).says("src/d");
        assert_eq!(fs::read(dst.join("d/e/f")).expect("read"), b"content");
        assert_eq!(fs::read(dst.join("d/g")).expect("read"), b"more");
    }
}

#[test]
fn a_broken_directory_is_an_error_not_an_end() {
    if !can(&[Ability::Loop]) {
        return;
    }
    let scratch = Scratch::new();
    let mkfs = ["mkfs.ext4", "-q", "-O", "metadata_csum", "-b", "4096"];
    let root = scratch.try_image("disk", 32, &mkfs).expect("ext4");
    let disk = Tree::new(root.join("s"));
    for index in 0..100 {
        disk.file(format!("ok/{index}"), index.to_string());
        disk.file(
            format!("broken/file-with-a-long-name-{index}"),
            index.to_string(),
        );
    }
    scratch.unmount(&root);
    let image = scratch.path("disk.img");
    let output = Command::new("debugfs")
        .args(["-R", "blocks /s/broken"])
        .arg(&image)
        .output()
        .expect("debugfs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let Some(block) = text
        .split_whitespace()
        .last()
        .and_then(|word| word.parse::<u64>().ok())
    else {
        return skip("debugfs", &text);
    };
    use std::os::unix::fs::FileExt;
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&image)
        .expect("image");
    file.write_all_at(&common::bytes_of(1, 4096), block * 4096)
        .expect("damage");
    drop(file);
    scratch
        .try_mount("disk", &["-o", "loop", image.to_str().expect("UTF-8")])
        .expect("mount again");
    for order in ["--order=none", "--order=physical"] {
        let dst = scratch.path(order);
        let ran = Haul::new().arg(order).copy(disk.root(), &dst).run();
        ran.exits(&[23]).says("broken");
        assert_eq!(names_in(&dst.join("ok")).len(), 100);
    }
}

#[test]
fn few_descriptors_are_enough() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for index in 0..300 {
        src.file(format!("w{index}/x/y/f"), index.to_string());
    }
    let mut deep = String::from("deep");
    for _ in 0..150 {
        src.file(format!("{deep}/f"), deep.len().to_string());
        deep += "/d";
    }
    for index in 0..2000 {
        src.file(format!("n{index}"), index.to_string());
    }
    src.random("big", 1, 20_000_000)
        .random("big2", 2, 20_000_000);
    for most in [64, 256] {
        for way in [
            "--order=none",
            "--order=physical",
            "--verify",
            "--threads=32",
        ] {
            let dst = scratch.path(format!("dst{most}{way}"));
            let ran = Haul::new()
                .arg(way)
                .open_files(most)
                .copy(src.root(), &dst)
                .run();
            ran.ok();
            assert_same(src.root(), &dst);
            let again = Haul::new().open_files(most).copy(src.root(), &dst).run();
            again.ok();
            assert_eq!(again.figure("copied"), 0);
            fs::remove_dir_all(dst).expect("remove");
        }
    }
}

#[test]
fn a_limit_too_low_for_anything_is_an_error_not_a_part_of_the_tree() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for index in 0..50 {
        src.file(format!("d{index}/f"), index.to_string());
    }
    let ran = Haul::new()
        .open_files(12)
        .copy(src.root(), &scratch.dst())
        .run();
    if ran.code == 0 {
        assert_same(src.root(), &scratch.dst());
    } else {
        ran.exits(&[11, 23]);
        assert!(!ran.said().is_empty());
    }
}

#[test]
fn a_read_only_destination_is_an_error_with_its_reason() {
    if !can(&[Ability::Mount]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("f", b"x");
    let mounted = scratch.tmpfs("ro", "size=1m");
    common::probe::succeeds(
        "mount",
        &["-o", "remount,ro", mounted.to_str().expect("UTF-8")],
    )
    .expect("remount");
    haul([src.contents(), mounted.join("new")])
        .exits(&[11])
        .says("os error 30");
    haul([src.contents(), mounted])
        .exits(&[11, 23])
        .says("os error 30");
}

#[test]
fn immutable_files_at_the_destination_are_named() {
    if !can(&[Ability::Root]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("a", b"a")
        .file("fixed", b"new")
        .file("z", b"z")
        .file("d/inside", b"i");
    let dst = scratch.tree("dst");
    dst.file("fixed", b"old").dir("d");
    let fixed = [dst.path("fixed"), dst.path("d")];
    let change = |sign: &str| {
        fixed.iter().try_for_each(|path| {
            common::probe::succeeds("chattr", &[sign, path.to_str().expect("UTF-8")])
        })
    };
    if let Err(why) = change("+i") {
        change("-i").ok();
        return skip("chattr", &why);
    }
    let ran = copy(src.root(), dst.root());
    change("-i").expect("chattr -i");
    ran.exits(&[23]).says("fixed").says("os error 1").says("/d");
    assert_eq!(fs::read(dst.path("fixed")).expect("read"), b"old");
    assert_eq!(fs::read(dst.path("a")).expect("read"), b"a");
    assert_eq!(fs::read(dst.path("z")).expect("read"), b"z");
    copy(src.root(), dst.root()).ok();
    assert_same_but(
        src.root(),
        dst.root(),
        Leave {
            root: true,
            ..NOTHING
        },
    );
}

#[test]
fn a_file_longer_than_the_limit_is_named_and_leaves_no_part() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("a", b"a")
        .random("large", 1, 9_000_000)
        .file("z", b"z");
    // ulimit -f: EFBIG, as on a filesystem that stops at 4 GiB. SIGXFSZ comes with it.
    let wrapped =
        Haul::new()
            .copy(src.root(), &scratch.dst())
            .under(["prlimit", "--fsize=1000000", "--"]);
    let ran = wrapped.run();
    if ran.code == 128 + 25 {
        // Killed by SIGXFSZ: what is there must not pass for finished.
        copy(src.root(), &scratch.dst()).ok();
    } else {
        ran.exits(&[23]).says("large");
        assert!(
            !scratch.dst().join("large").exists(),
            "a part under the final name"
        );
        assert_eq!(
            fs::read(scratch.dst().join("z")).expect("a neighbour"),
            b"z"
        );
        copy(src.root(), &scratch.dst()).ok();
    }
    assert_same(src.root(), &scratch.dst());
}
