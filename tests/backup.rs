//! `--backup`: what is replaced or deleted is kept.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use common::random::{Kinds, Random, grow, seeds};
use common::snapshot::{Leave, NOTHING, Snapshot};
use common::tree::bytes_of;
use common::{Ability, Haul, Scratch, Tree, can};

const ORDERS: [&str; 2] = ["--order=physical", "--order=none"];

fn run(order: &str, more: &[&str], from: &Path, to: &Path) -> common::Ran {
    Haul::new().arg(order).args(more).copy(from, to).run()
}

/// A source, and a destination where each of its entries is another.
fn changed(scratch: &Scratch) -> (Tree, Tree) {
    let (src, dst) = (scratch.src(), Tree::new(scratch.dst()));
    src.file("a", b"new")
        .random("d/big", 1, 3_000_000)
        .symlink("d/l", "new");
    src.file("same", b"same")
        .file("first", b"linked")
        .hard_link("first", "second");
    dst.file("a", b"old")
        .random("d/big", 2, 2_000_000)
        .symlink("d/l", "old");
    dst.file("same", b"same").file("second", b"old");
    dst.mode("a", 0o640).mtime("a", 1_000_000, 7);
    common::tree::same_mtime(&dst.path("same"), &src.path("same"));
    (src, dst)
}

#[test]
fn what_is_replaced_is_kept_beside_it_or_in_a_directory() {
    let ways: [(&[&str], &str, &str); 4] = [
        (&["--backup"], "", "~"),
        (&["-b", "--suffix=.old"], "", ".old"),
        (&["--backup-dir=kept/here"], "kept/here/", ""),
        (&["--backup-dir=../kept", "--suffix=.1"], "../kept/", ".1"),
    ];
    for order in ORDERS {
        for (flags, dir, suffix) in ways {
            let scratch = Scratch::new();
            let (src, dst) = changed(&scratch);
            let old = fs::metadata(dst.path("a")).expect("stat");
            run(order, flags, src.root(), dst.root()).ok();
            let kept = |name: &str| dst.root().join(format!("{dir}{name}{suffix}"));
            let is = fs::metadata(kept("a")).unwrap_or_else(|e| panic!("{flags:?}: {e}"));
            assert_eq!(is.ino(), old.ino(), "{flags:?}: the very inode");
            assert_eq!(fs::read(kept("a")).expect("read"), b"old");
            assert_eq!(
                fs::read(kept("d/big")).expect("read"),
                bytes_of(2, 2_000_000)
            );
            assert_eq!(fs::read_link(kept("d/l")).expect("link"), Path::new("old"));
            assert_eq!(fs::read(kept("second")).expect("read"), b"old");
            for name in ["same", "first"] {
                assert!(
                    !kept(name).exists() || kept(name) == dst.path(name),
                    "{name}"
                );
            }
            for name in ["a", "d/big", "same", "first", "second"] {
                let (want, have) = (fs::read(src.path(name)), fs::read(dst.path(name)));
                assert_eq!(
                    want.expect("read"),
                    have.expect("read"),
                    "{flags:?}: {name}"
                );
            }
            // Again: the newer backup takes the older one's place.
            src.file("a", b"newer");
            run(order, flags, src.root(), dst.root()).ok();
            assert_eq!(fs::read(kept("a")).expect("read"), b"new", "{flags:?}");
            assert_eq!(fs::read(dst.path("a")).expect("read"), b"newer");
        }
    }
}

#[test]
fn what_is_deleted_is_kept_as_well() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let (src, dst) = (scratch.src(), Tree::new(scratch.dst()));
        src.file("a", b"a");
        dst.file("gone/deep/x", b"x")
            .symlink("gone/l", "x")
            .file("old", b"old");
        dst.mode("gone/deep", 0o711);
        let flags = ["--delete", "--backup-dir=bak"];
        let ran = run(order, &flags, src.root(), dst.root());
        assert_eq!(ran.ok().figure("deleted"), 5, "{}", ran.summary());
        assert_eq!(fs::read(dst.path("bak/gone/deep/x")).expect("read"), b"x");
        assert_eq!(fs::read(dst.path("bak/old")).expect("read"), b"old");
        let mode = fs::metadata(dst.path("bak/gone/deep"))
            .expect("stat")
            .mode();
        assert_eq!(mode & 0o7777, 0o711);
        assert!(!dst.path("gone").exists() && !dst.path("old").exists());
        // Backups are no extras, now or later.
        dst.file("other", b"x");
        assert_eq!(
            run(order, &flags, src.root(), dst.root())
                .ok()
                .figure("deleted"),
            1
        );
        assert!(dst.path("bak/gone/deep/x").exists());
        let ran = run(order, &["--delete", "-b"], src.root(), dst.root());
        ran.ok();
        dst.file("again/x", b"x");
        let ran = run(order, &["--delete", "-b"], src.root(), dst.root());
        assert_eq!(ran.ok().figure("deleted"), 1, "{}", ran.summary());
        assert_eq!(fs::read(dst.path("again/x~")).expect("read"), b"x");
        let ran = run(order, &["--delete", "-b"], src.root(), dst.root());
        assert_eq!(ran.ok().figure("deleted"), 0);
    }
}

#[test]
fn a_backup_takes_no_entrys_place() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let (src, dst) = (scratch.src(), Tree::new(scratch.dst()));
        src.file("a", b"new")
            .file("a~", b"an entry")
            .file("gone~", b"too");
        dst.file("a", b"old").file("gone", b"x");
        let ran = run(order, &["-b", "--delete"], src.root(), dst.root());
        ran.exits(&[23]);
        assert_eq!(ran.of_type("error").len(), 2, "{}", ran.words());
        assert_eq!(fs::read(dst.path("a~")).expect("read"), b"an entry");
        assert_eq!(fs::read(dst.path("gone~")).expect("read"), b"too");
        assert_eq!(fs::read(dst.path("a")).expect("read"), b"old");
    }
}

#[test]
fn a_backup_takes_no_place_of_another_sources_entry() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let (one, two) = (scratch.tree("one"), scratch.tree("two"));
        one.file("a", b"new");
        two.file("a~", b"an entry");
        let dst = Tree::new(scratch.dst());
        dst.file("a", b"old");
        Haul::new()
            .args([order, "--backup", "--json", "--threads=1"])
            .args([two.contents(), one.contents()])
            .arg(dst.root())
            .run();
        assert_eq!(
            fs::read(dst.path("a~")).expect("read"),
            b"an entry",
            "{order}"
        );
        let old = [dst.path("a"), dst.path("a~~")];
        assert!(
            old.iter()
                .any(|path| fs::read(path).is_ok_and(|bytes| bytes == b"old"))
        );
    }
}

#[test]
fn no_backup_is_made_in_a_source() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let (src, dst) = (scratch.src(), Tree::new(scratch.dst()));
        src.file("a", b"newer").file("in/a", b"read");
        dst.file("a", b"old").file("src/a", b"old");
        let before = Snapshot::of(src.root());
        // At it, in it, under a path that leads there only once it is made, and
        // above it: there `DEST/src/a` would become the source's `a`.
        for dir in ["../src", "../src/in", "../src/new", "none/../../src", ".."] {
            let flag = format!("--backup-dir={dir}");
            run(order, &["--delete", &flag], src.root(), dst.root()).exits(&[11]);
            assert!(
                Snapshot::of(src.root()).touched_since(&before).is_empty(),
                "{dir}"
            );
            assert_eq!(fs::read(dst.path("a")).expect("read"), b"old", "{dir}");
        }
        // A single file: the backup would be that very file.
        let ran = Haul::new()
            .args([order, "--backup-dir=../src"])
            .args([src.path("a").as_path(), dst.root()])
            .run();
        ran.exits(&[11]);
        assert_eq!(fs::read(src.path("a")).expect("read"), b"newer");
    }
}

#[test]
fn no_backup_is_made_where_a_source_has_an_entry() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let (src, dst) = (scratch.src(), Tree::new(scratch.dst()));
        src.file("a", b"newer").file("bak/a", b"an entry");
        dst.file("a", b"old");
        let absolute = format!("--backup-dir={}", dst.path("bak").display());
        for flag in ["--backup-dir=bak", "--backup-dir=./bak", &absolute] {
            run(order, &[flag], src.root(), dst.root()).exits(&[11]);
            assert_eq!(fs::read(dst.path("a")).expect("read"), b"old");
        }
        // Beside what a source has there is room.
        run(order, &["--backup-dir=bak/old"], src.root(), dst.root()).ok();
        assert_eq!(fs::read(dst.path("bak/a")).expect("read"), b"an entry");
        assert_eq!(fs::read(dst.path("bak/old/a")).expect("read"), b"old");
        let flags = ["--delete", "--backup-dir=bak/old"];
        let ran = run(order, &flags, src.root(), dst.root());
        assert_eq!(ran.ok().figure("deleted"), 0);
        assert_eq!(fs::read(dst.path("bak/old/a")).expect("read"), b"old");
    }
}

#[test]
fn an_old_file_is_no_backup_of_itself() {
    if !can(&[Ability::Mount]) {
        return;
    }
    for order in ORDERS {
        let scratch = Scratch::new();
        let (src, dst) = (scratch.src(), Tree::new(scratch.dst()));
        src.file("d/a", b"newer");
        dst.file("d/a", b"old");
        // The backup of `d/a` goes to `kept/d/a`, which is `d/a`.
        scratch.bind(&dst.path("d"), "kept/d");
        run(order, &["--backup-dir=../kept"], src.root(), dst.root()).exits(&[23]);
        assert_eq!(fs::read(dst.path("d/a")).expect("read"), b"old");
    }
}

#[test]
fn backups_lead_nowhere_else() {
    for order in ORDERS {
        let scratch = Scratch::new();
        let (src, dst) = changed(&scratch);
        let outside = scratch.tree("outside");
        dst.symlink("bak", outside.root());
        let ran = run(order, &["--backup-dir=bak/x"], src.root(), dst.root());
        ran.exits(&[23]);
        assert!(outside.names("").is_empty());
        assert_eq!(
            fs::read(dst.path("a")).expect("read"),
            b"old",
            "nothing is lost"
        );
        // And a directory of it that is a link.
        dst.dir("kept").symlink("kept/d", outside.root());
        run(order, &["--backup-dir=kept"], src.root(), dst.root()).exits(&[23]);
        assert!(outside.names("").is_empty());
    }
}

#[test]
fn a_choice_that_cannot_work_is_refused_at_once() {
    let scratch = Scratch::new();
    let (src, dst) = changed(&scratch);
    let before = Snapshot::of(dst.root());
    let mut ways = vec![
        vec!["-b", "--suffix="],
        vec!["-b", "--suffix=a/b"],
        vec!["--backup-dir=."],
    ];
    if can(&[Ability::Mount]) {
        scratch.tmpfs("other", "size=1m");
        ways.push(vec!["--backup-dir=../other/x"]);
    }
    for flags in ways {
        run("--order=none", &flags, src.root(), dst.root()).exits(&[11]);
        assert!(Snapshot::of(dst.root()).touched_since(&before).is_empty());
    }
}

#[test]
fn random_trees_end_as_with_rsync() {
    if !can(&[Ability::Rsync]) {
        return;
    }
    let leave = Leave {
        holes: true,
        ..NOTHING
    };
    for seed in seeds(2) {
        let scratch = Scratch::new();
        let (src, dst) = (scratch.src(), Tree::new(scratch.dst()));
        let mut random = Random::new(seed);
        grow(&src, &mut random, 60, Kinds::here(false, false));
        grow(&dst, &mut random, 40, Kinds::here(false, false));
        for index in 0..20 {
            src.random(format!("both/{index}"), index, 500);
            dst.random(format!("both/{index}"), index + 100, 700);
        }
        let copies = ["rsync", "physical", "none"].map(|name| scratch.path(name));
        for copy in &copies {
            let args = [OsStr::new("-a"), dst.root().as_os_str(), copy.as_os_str()];
            assert!(
                Command::new("cp")
                    .args(args)
                    .status()
                    .expect("cp")
                    .success()
            );
        }
        let flags = ["--delete", "--backup", "--backup-dir"];
        let bak = |copy: &Path| copy.with_extension("bak");
        let status = Command::new("rsync")
            .args(["-aH", "--modify-window=-1"])
            .args(flags)
            .arg(bak(&copies[0]))
            .args([src.contents().as_os_str(), copies[0].as_os_str()])
            .status()
            .expect("rsync");
        assert!(status.success(), "HAUL_SEED={seed}");
        let files = |root: &Path| -> Vec<_> {
            let all = Snapshot::of(root).entries;
            let files = all.into_iter().filter(|(_, e)| e.kind != 'd');
            files.map(|(path, e)| (path, e.kind)).collect()
        };
        for (order, copy) in ORDERS.iter().zip(&copies[1..]) {
            let ran = Haul::new()
                .arg(order)
                .args(flags)
                .arg(bak(copy))
                .copy(src.root(), copy)
                .run();
            assert_eq!(ran.code, 0, "HAUL_SEED={seed}: {}", ran.words());
            let lines = Snapshot::of(&copies[0]).differences(&Snapshot::of(copy), leave);
            assert!(lines.is_empty(), "HAUL_SEED={seed}: {order}: {lines:?}");
            assert_eq!(
                files(&bak(&copies[0])),
                files(&bak(copy)),
                "HAUL_SEED={seed}"
            );
        }
    }
}
