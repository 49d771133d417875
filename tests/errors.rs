//! Bad input gets a clear error, loses nothing, and does not stop the others.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use common::probe::skip;
use common::snapshot::{Leave, NOTHING, Snapshot, assert_same_but, assert_untouched};
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
fn a_directory_where_a_file_is_and_a_file_where_a_directory_is_are_refused() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("dir over file/inside/deep", b"1")
        .file("file over dir", b"2")
        .file("z", b"z");
    src.symlink("link over dir", "x")
        .fifo("fifo over dir")
        .file("dir over fifo/f", b"3");
    let dst = scratch.tree("dst");
    dst.file("dir over file", b"keep")
        .file("file over dir/keep", b"keep")
        .dir("link over dir/keep");
    dst.dir("fifo over dir").fifo("dir over fifo");
    let ran = copy(src.root(), dst.root());
    ran.exits(&[23]);
    for name in [
        "dir over file",
        "file over dir",
        "link over dir",
        "fifo over dir",
        "dir over fifo",
    ] {
        ran.says(name);
    }
    assert_eq!(fs::read(dst.path("dir over file")).expect("read"), b"keep");
    assert_eq!(
        fs::read(dst.path("file over dir/keep")).expect("read"),
        b"keep"
    );
    assert!(dst.path("link over dir/keep").is_dir() && dst.path("fifo over dir").is_dir());
    assert_eq!(fs::read(dst.path("z")).expect("a neighbour"), b"z");
    // Nothing of the refused ones lies about under another name.
    assert_eq!(dst.names("").len(), 6);
}

#[test]
fn a_directory_onto_a_file_named_as_destination_is_refused() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("f", b"x");
    fs::write(scratch.path("file"), b"keep").expect("write");
    for source in [src.root().to_owned(), src.contents()] {
        haul([source, scratch.path("file")])
            .exits(&[11, 23])
            .says("file");
        assert_eq!(fs::read(scratch.path("file")).expect("read"), b"keep");
    }
    haul([src.path("f"), scratch.path("file/")]).exits(&[11, 23]);
    haul([src.path("f"), scratch.path("file/below")]).exits(&[11, 23]);
    assert_eq!(fs::read(scratch.path("file")).expect("read"), b"keep");
}

#[test]
fn a_destination_inside_its_source_is_refused_before_anything_is_made() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("f", b"x").file("d/g", b"y");
    symlink(src.path("d"), scratch.path("link")).expect("symlink");
    symlink("src", scratch.path("alias")).expect("symlink");
    let before = Snapshot::of(src.root());
    let mut inside = vec![
        src.path("new"),
        src.path("d"),
        src.path("d/new"),
        src.path("d/../new"),
        scratch.path("link/new"),
        scratch.path("link"),
        scratch.path("./src/../src/d/new"),
        scratch.path("alias/new"),
    ];
    if can(&[Ability::Mount]) {
        inside.push(scratch.bind(&src.path("d"), "bound").join("new"));
        inside.push(scratch.path("bound"));
    }
    for dst in inside {
        for source in [src.contents(), src.root().to_owned()] {
            let ran = haul([&source, &dst]);
            ran.exits(&[11]).says("inside");
            assert_untouched(&before, &Snapshot::of(src.root()));
        }
    }
    // Into a directory beside it, all is well, also where the names begin alike.
    haul([src.contents(), scratch.path("src2")]).ok();
    assert_same(src.root(), &scratch.path("src2"));
}

#[test]
fn a_source_inside_the_destination_is_fine() {
    let scratch = Scratch::new();
    let outer = scratch.tree("outer");
    outer.file("inner/f", b"x").file("inner/d/g", b"y");
    haul([outer.path("inner/"), outer.root().to_owned()]).exits(&[0]);
    assert_eq!(fs::read(outer.path("f")).expect("read"), b"x");
    assert_eq!(fs::read(outer.path("d/g")).expect("read"), b"y");
    assert_eq!(fs::read(outer.path("inner/f")).expect("the source"), b"x");
}

#[test]
fn source_and_destination_that_are_one_lose_nothing() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("f", 1, 200_000)
        .file("d/g", b"y")
        .sparse("h", 1 << 20, &[(9, b"x")]);
    symlink("src", scratch.path("l")).expect("symlink");
    let before = Snapshot::of(src.root());
    let mut names = vec!["src", "./src/../src", "l", "l/", "src/", "src/."];
    if can(&[Ability::Mount]) {
        scratch.bind(src.root(), "bound");
        names.push("bound");
    }
    for name in names {
        let dst = format!("{}/{name}", scratch.root().display());
        haul([src.contents().to_str().expect("UTF-8"), &dst]).exits(&[0, 11, 23]);
        assert_untouched(&before, &Snapshot::of(src.root()));
    }
    // A directory onto itself by its name in its parent.
    haul([src.root(), scratch.root()]).exits(&[0, 11, 23]);
    assert_untouched(&before, &Snapshot::of(src.root()));
    // A file onto itself, directly and through another name.
    haul([src.path("f"), src.path("f")])
        .exits(&[11, 23])
        .says("f");
    haul([src.path("f"), scratch.path("src/")])
        .exits(&[11, 23])
        .says("f");
    haul([src.path("f"), scratch.path("l/f")])
        .exits(&[11, 23])
        .says("f");
    assert_untouched(&before, &Snapshot::of(src.root()));
}

#[test]
fn a_destination_file_that_is_the_source_is_refused_and_named() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("f", 1, 200_000).file("other", b"o");
    let dst = scratch.tree("dst");
    fs::hard_link(src.path("f"), dst.path("f")).expect("link");
    let before = fs::read(src.path("f")).expect("read");
    let ran = copy(src.root(), dst.root());
    ran.exits(&[23]).says("f");
    assert!(fs::read(src.path("f")).expect("read") == before);
    assert_eq!(fs::read(dst.path("other")).expect("read"), b"o");
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
