//! What the sources hold, and what several of them want at one place: names that meet, files that
//! change after they were listed, files that say they are empty.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use common::run::while_running;
use common::snapshot::{Leave, NOTHING, assert_same_but};
use common::trace::slowing;
use common::tree::{bytes_of, names_in, set_times};
use common::{Ability, Haul, Ran, Scratch, Tree, assert_same, can};

const ORDERS: [&str; 2] = ["--order=none", "--order=physical"];

/// Two sources, the first of which has one inode as `f1` and `g1`, and the second a file as
/// `meets`.
fn two_sources(scratch: &Scratch, name: &str, meets: &str, len: usize) -> (Tree, Tree) {
    let (a, b) = (
        scratch.tree(&format!("{name}/a")),
        scratch.tree(&format!("{name}/b")),
    );
    a.random("f1", 1, len)
        .hard_link("f1", "g1")
        .file("only-a", b"a");
    b.random(meets, 2, len).file("only-b", b"b");
    (a, b)
}

#[test]
fn a_file_that_meets_a_hard_link_of_another_source_is_refused_by_name() {
    let scratch = Scratch::new();
    for order in ORDERS {
        for meets in ["f1", "g1"] {
            for len in [5000, 3_000_000] {
                for turned in [false, true] {
                    let name = format!("{}-{meets}-{len}-{turned}", &order[2..]);
                    let (a, b) = two_sources(&scratch, &name, meets, len);
                    let mut sources = [a.contents(), b.contents()];
                    if turned {
                        sources.reverse();
                    }
                    let dst = scratch.path(&name).join("dst");
                    let ran = Haul::new()
                        .args(["--json", order])
                        .args(&sources)
                        .arg(&dst)
                        .run();
                    check_meeting(&ran, &dst, meets, len, &name);
                }
            }
        }
    }
}

#[track_caller]
fn check_meeting(ran: &Ran, dst: &Path, meets: &str, len: usize, case: &str) {
    ran.exits(&[23]);
    let errors = ran.of_type("error");
    assert_eq!(errors.len(), 1, "{case}: one refusal: {}", ran.words());
    let named = errors[0]["path"]["text"].as_str().expect("a path");
    assert!(
        named.ends_with(&format!("/{meets}")),
        "{case}: {}",
        errors[0]
    );
    assert_eq!(ran.figure("failed"), 1, "{case}: {}", ran.summary());
    // Found are the two roots, three names of a and two of b.
    let found = ran.figure("found");
    assert_eq!(
        found,
        ran.figure("copied") + ran.figure("unchanged") + ran.figure("linked") + 1,
        "{case}"
    );
    let have: BTreeMap<Vec<u8>, Vec<u8>> = names_in(dst)
        .into_iter()
        .map(|name| {
            let path = dst.join(std::str::from_utf8(&name).expect("UTF-8"));
            (name, fs::read(path).expect("read"))
        })
        .collect();
    let names: Vec<&[u8]> = have.keys().map(Vec::as_slice).collect();
    assert_eq!(names, [&b"f1"[..], b"g1", b"only-a", b"only-b"], "{case}");
    let (of_a, of_b) = (bytes_of(1, len), bytes_of(2, len));
    for (name, bytes) in &have {
        let is_right = match &name[..] {
            b"only-a" => bytes == b"a",
            b"only-b" => bytes == b"b",
            met if met == meets.as_bytes() => *bytes == of_a || *bytes == of_b,
            _ => *bytes == of_a,
        };
        assert!(
            is_right,
            "{case}: content of {:?}",
            String::from_utf8_lossy(name)
        );
    }
}

#[test]
fn what_changes_after_the_scan_never_gets_the_new_time_with_the_old_content() {
    let scratch = Scratch::new();
    const FILES: u64 = 150;
    for order in ORDERS {
        let at = scratch.tree(&order[2..]);
        let src = Tree::new(at.path("src"));
        for index in 0..FILES {
            let len = if index % 50 == 0 { 1_200_000 } else { 700 };
            src.random(format!("f{index}"), index, len);
        }
        let dst = at.path("dst");
        Haul::new().arg(order).copy(src.root(), &dst).run().ok();

        let next = at.path("next");
        let mut generation = 0;
        for round in 0..4 {
            // Another mode, so that everything there has to be touched.
            let bits = if round % 2 == 0 { 0o640 } else { 0o600 };
            for index in 0..FILES {
                src.mode(format!("f{index}"), bits);
            }
            while_running(
                |random| {
                    generation += 1;
                    let file = src.path(format!("f{}", random.below(FILES)));
                    // Mostly of the same size: then the time alone tells.
                    let len = fs::metadata(&file).expect("stat").len();
                    let len = usize::try_from(len).expect("small");
                    let len = if random.below(8) == 0 { len + 1 } else { len };
                    fs::write(&next, bytes_of(generation + 1000, len)).expect("write");
                    let mtime = (1_000_000_000 + i64::try_from(generation).expect("few"), 7);
                    set_times(&next, None, Some(mtime));
                    fs::rename(&next, &file).expect("rename");
                },
                || {
                    let ran = Haul::new().arg(order).copy(src.root(), &dst).run();
                    ran.exits(&[0, 23]);
                },
            );
            Haul::new().arg(order).copy(src.root(), &dst).run().ok();
            assert_same(src.root(), &dst);
        }
        assert!(generation > 4, "nothing was rewritten");
    }
}

#[test]
fn a_new_destination_gets_every_file_once_where_blocks_are_shared() {
    if !can(&[Ability::Reflink]) {
        return;
    }
    let scratch = Scratch::new();
    let src = scratch.src();
    for index in 0..300 {
        let len = if index % 30 == 0 { 1_500_000 } else { 6000 };
        src.random(format!("d{}/f{index}", index % 7), index, len);
    }
    src.file("empty", b"").symlink("l", "empty");
    for round in 0..10 {
        let dst = scratch.path(format!("dst{round}"));
        let ran = Haul::new()
            .args(["--order=inode", "--threads=1"])
            .copy(src.root(), &dst)
            .run();
        ran.ok();
        let summary = ran.summary();
        assert_eq!(ran.figure("found"), ran.figure("copied"), "{summary}");
        assert_eq!(ran.figure("files"), 301, "{summary}");
        assert_eq!(ran.figure("bytes"), 10 * 1_500_000 + 290 * 6000);
        assert_same(src.root(), &dst);
    }
}

#[test]
fn what_the_first_reader_learns_of_sharing_does_not_copy_files_twice() {
    if !can(&[Ability::Reflink, Ability::Loop, Ability::Strace]) {
        return;
    }
    // Three disks, of which one shares with the destination. Each reader starts late, so that
    // the one before has shared files while the job is still being started.
    let scratch = Scratch::new();
    let memory = Tree::new(scratch.tmpfs("memory", "size=16m").join("b"));
    let disk = Tree::new(scratch.ext4("disk", 64).join("c"));
    let sources = [scratch.tree("a"), memory, disk];
    for (seed, source) in (0..).zip(&sources) {
        for index in 0..40 {
            source.random(format!("f{index}"), seed * 100 + index, 6000);
        }
    }
    for order in ["--order=inode", "--order=physical"] {
        for threads in ["--threads=1", "--threads=4"] {
            let dst = scratch.path(format!("dst{order}{threads}"));
            let ran = Haul::new()
                .under(slowing("clone,clone3", 30))
                .args(["--json", order, threads])
                .args(sources.iter().map(Tree::root))
                .arg(dst.join(""))
                .run();
            ran.ok();
            assert_eq!(ran.figure("copied"), 3 * 41, "{}", ran.summary());
            assert_eq!(ran.figure("files"), 3 * 40, "{}", ran.summary());
            assert_eq!(ran.figure("bytes"), 3 * 40 * 6000, "{}", ran.summary());
            for (name, source) in ["a", "b", "c"].into_iter().zip(&sources) {
                let leave = Leave {
                    holes: true,
                    ..NOTHING
                };
                assert_same_but(source.root(), &dst.join(name), leave);
            }
        }
    }
}

#[test]
fn a_file_for_a_missing_directory_is_refused_and_nothing_is_made() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("f", 1, 5000);
    for order in ORDERS {
        let at = scratch.tree(&order[2..]);
        for below in ["nodir/x", "nodir/deeper/x"] {
            let dst = at.path(below);
            let run = |more: &[&str]| {
                let base = Haul::new().arg(order).args(more);
                base.arg(src.path("f")).arg(&dst).run()
            };
            run(&[]).exits(&[11]).says("nodir").says("--mkpath");
            assert!(
                names_in(at.root()).is_empty(),
                "{order}: something was made"
            );
            run(&["--mkpath"]).ok();
            assert_eq!(fs::read(&dst).expect("copied"), bytes_of(1, 5000));
            at.remove("nodir");
        }
    }
}

#[test]
fn a_file_that_says_it_is_empty_and_is_large_arrives_whole() {
    let scratch = Scratch::new();
    let from = Path::new("/proc/kallsyms");
    let len = fs::read(from).map_or(0, |bytes| bytes.len());
    if len <= 1 << 20 {
        return common::probe::skip("kallsyms", "not readable here, or short");
    }
    assert_eq!(fs::metadata(from).expect("stat").len(), 0);
    for order in ORDERS {
        let dst = scratch.path(order);
        // It changes when a module is loaded: another test may mount something.
        let whole = (0..10).any(|_| {
            let before = fs::read(from).expect("read");
            let ran = Haul::new()
                .args(["--json", order])
                .args([from, &dst.join("")])
                .run();
            let after = fs::read(from).expect("read");
            if before != after {
                return false;
            }
            ran.ok();
            let have = fs::read(dst.join("kallsyms")).expect("copied");
            assert!(
                have == before,
                "{order}: {} bytes of {}",
                have.len(),
                before.len()
            );
            true
        });
        assert!(whole, "never the same twice");
    }
}

#[test]
fn two_sources_without_a_common_name_are_two_copies() {
    // The other side of the refusals above: what does not meet is not refused.
    let scratch = Scratch::new();
    for order in ORDERS {
        let (a, b) = two_sources(&scratch, &order[2..], "h1", 5000);
        b.dir("d").file("d/x", b"x");
        a.dir("d").file("d/y", b"y");
        let dst = scratch.path(&order[2..]).join("dst");
        Haul::new()
            .args(["--json", order])
            .args([a.contents(), b.contents()])
            .arg(&dst)
            .run()
            .ok();
        let want = scratch.tree(&format!("{}/want", &order[2..]));
        want.random("f1", 1, 5000)
            .hard_link("f1", "g1")
            .random("h1", 2, 5000);
        want.file("only-a", b"a").file("only-b", b"b");
        want.file("d/x", b"x").file("d/y", b"y");
        let leave = Leave {
            times: true,
            ..NOTHING
        };
        assert_same_but(want.root(), &dst, leave);
    }
}
