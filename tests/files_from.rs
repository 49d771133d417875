//! `--files-from` and `-0`: what is listed is copied as rsync would copy it, and nothing else; what
//! cannot be copied is named.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::random::{Random, seeds};
use common::{Ability, Haul, Ran, Scratch, Tree, can, haul};

const OLD: i64 = 978_307_200;

/// Kind, size and mtime of everything below.
fn everything(root: &Path) -> BTreeMap<PathBuf, (bool, u64, i64)> {
    let mut all = BTreeMap::new();
    let mut stack = vec![root.to_path_buf()];
    while let Some(dir) = stack.pop() {
        for entry in fs::read_dir(&dir).expect("list") {
            let path = entry.expect("entry").path();
            let stat = fs::symlink_metadata(&path).expect("stat");
            let is_dir = stat.is_dir();
            let size = if is_dir { 0 } else { stat.len() };
            let below = path.strip_prefix(root).expect("below").to_path_buf();
            all.insert(below, (is_dir, size, stat.mtime()));
            if is_dir {
                stack.push(path);
            }
        }
    }
    all
}

fn names(root: &Path) -> Vec<String> {
    let text = |path: PathBuf| path.to_str().expect("UTF-8").to_owned();
    everything(root).into_keys().map(text).collect()
}

fn small_tree(scratch: &Scratch) -> Tree {
    let src = scratch.src();
    for name in ["a/b/f", "a/g", "a/sub/y", "c/d/h", "top"] {
        src.file(name, name).mtime(name, OLD, 0);
    }
    src.symlink("link", "a");
    for dir in ["a/b", "a/sub", "a", "c/d", "c"] {
        src.mtime(dir, OLD, 0);
    }
    src
}

/// Runs with such a list; each way of copying gives the same.
fn listed(scratch: &Scratch, src: &Tree, list: &[u8], more: &[&str]) -> (Ran, Vec<String>) {
    let file = scratch.path("list");
    fs::write(&file, list).expect("write");
    let mut last = None;
    for order in ["--order=physical", "--order=none"] {
        let dst = scratch.dst();
        let ran = Haul::new()
            .args([order, &format!("--files-from={}", file.display())])
            .args(more)
            .copy(src.root(), &dst)
            .run();
        let found = if dst.exists() {
            names(&dst)
        } else {
            Vec::new()
        };
        if dst.exists() {
            fs::remove_dir_all(&dst).expect("remove");
        }
        if let Some((_, before)) = &last {
            assert_eq!(before, &found, "{order}");
        }
        last = Some((ran, found));
    }
    last.expect("two runs")
}

#[test]
fn a_path_comes_with_its_directories_and_a_directory_without_its_contents() {
    let scratch = Scratch::new();
    let src = small_tree(&scratch);
    for (list, expected) in [
        ("a/b/f\n", &["a", "a/b", "a/b/f"][..]),
        ("/a/b/f", &["a", "a/b", "a/b/f"]),
        ("a\n", &["a"]),
        ("a/\n", &["a", "a/b", "a/g", "a/sub"]),
        ("a/../top\n../c\n./a//g\ntop\n", &["a", "a/g", "c", "top"]),
        ("top/\n", &["top"]),
        ("link\n", &["link"]),
        (".\n", &["a", "c", "link", "top"]),
        ("#top\n;top\n\n\r\n", &[]),
    ] {
        let (ran, found) = listed(&scratch, &src, list.as_bytes(), &[]);
        ran.ok();
        assert_eq!(found, expected, "{list:?}");
    }
    let (ran, found) = listed(&scratch, &src, b"a\n", &["-r"]);
    ran.ok();
    assert_eq!(found, ["a", "a/b", "a/b/f", "a/g", "a/sub", "a/sub/y"]);
    let (ran, found) = listed(&scratch, &src, b"a\n", &["-a"]);
    ran.ok();
    assert_eq!(found, ["a"], "-a does not imply -r here");
}

#[test]
fn what_is_not_there_is_named_once_and_keeps_nothing_else() {
    let scratch = Scratch::new();
    let src = small_tree(&scratch);
    let list = b"a/b/nope\na/b/nope\ntop/x\ngone/and/away\nc/d/h\n";
    let (ran, found) = listed(&scratch, &src, list, &[]);
    ran.exits(&[23])
        .says("a/b/nope")
        .says("top/x")
        .says("gone/and/away");
    assert_eq!(found, ["c", "c/d", "c/d/h"]);
    assert_eq!(ran.figure("failed"), 3);
}

#[test]
fn no_symlink_leads_out_of_the_source() {
    let scratch = Scratch::new();
    let src = small_tree(&scratch);
    fs::create_dir(scratch.path("outside")).expect("mkdir");
    fs::write(scratch.path("outside/secret"), "secret").expect("write");
    src.symlink("out", "../outside");
    for list in ["out/secret\ntop\n", "out/\ntop\n", "link/g\ntop\n"] {
        let (ran, found) = listed(&scratch, &src, list.as_bytes(), &[]);
        ran.exits(&[23]).says("symlink");
        assert_eq!(found, ["top"], "{list:?}");
    }
}

#[test]
fn filters_apply_to_what_is_listed() {
    let scratch = Scratch::new();
    let src = small_tree(&scratch);
    let (ran, found) = listed(&scratch, &src, b"a/b/f\ntop\nc/\n", &["--exclude=f"]);
    ran.ok();
    assert_eq!(found, ["c", "c/d", "top"]);
    let (ran, found) = listed(&scratch, &src, b"a/b/f\ntop\n", &["--exclude=a"]);
    ran.ok();
    assert_eq!(
        found,
        ["a", "a/b", "a/b/f", "top"],
        "directories on the way count for nothing"
    );
}

#[test]
fn a_size_leaves_out_a_file_but_not_its_directories() {
    let scratch = Scratch::new();
    let src = small_tree(&scratch);
    src.random("a/b/large", 1, 5000).mtime("a/b", OLD, 0);
    let (ran, found) = listed(&scratch, &src, b"a/b/large\nc/d/h\n", &["--max-size=1k"]);
    ran.ok();
    assert_eq!(found, ["a", "a/b", "c", "c/d", "c/d/h"], "as rsync does");
    assert_eq!(ran.figure("skipped"), 1);
    let dst = scratch.dst();
    let list = scratch.path("list");
    let options = [
        "--max-size=1k".to_owned(),
        format!("--files-from={}", list.display()),
    ];
    let both = [src.root(), &dst].map(|path| path.to_str().expect("UTF-8").to_owned());
    haul(options.iter().chain(&both)).ok();
    let verify = ["verify".to_owned()];
    let ran = haul(verify.iter().chain(&options).chain(&both));
    ran.ok().says("+ skipped 1");
}

#[test]
fn a_directory_that_may_only_be_entered_gives_what_is_listed_in_it() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("home/me/f", b"f").file("home/other/g", b"g");
    src.file("shut/x", b"x").file("top", b"top");
    scratch.give_to_user(src.root());
    src.mode("home", 0o311).mode("shut", 0);
    let list = scratch.path("list");
    fs::write(&list, "home/me/f\nhome/nope\nshut/x\ntop\n").expect("write");
    for order in ["--order=physical", "--order=none"] {
        let dst = scratch.user_dir(order);
        let ran = Haul::new()
            .by_user(&scratch)
            .args([order, &format!("--files-from={}", list.display())])
            .copy(src.root(), &dst)
            .run();
        ran.exits(&[23]).says("home/nope").says("shut/x");
        assert_eq!(ran.count("home/nope"), 1, "{}", ran.words());
        assert_eq!(fs::read(dst.join("home/me/f")).expect("f"), b"f");
        assert_eq!(fs::read(dst.join("top")).expect("top"), b"top");
        assert!(!dst.join("home/other").exists() && !dst.join("shut").exists());
        assert_eq!(ran.figure("failed"), 2);
        let mode = fs::metadata(dst.join("home")).expect("home").mode();
        assert_eq!(mode & 0o777, 0o311);
        fs::set_permissions(
            dst.join("home"),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .expect("chmod");
    }
}

#[test]
fn a_list_comes_by_standard_input_with_any_names() {
    let scratch = Scratch::new();
    let src = scratch.src();
    let odd: [&[u8]; 5] = [b"#hash", b"new\nline", b"\xff\xfe", b" space ", b"-r"];
    for name in odd {
        src.file(std::ffi::OsStr::from_bytes(name), name);
    }
    src.file("not", "listed");
    let dst = scratch.dst();
    let mut child = Command::new(env!("CARGO_BIN_EXE_haul"))
        .args(["--files-from=-", "-0"])
        .arg(src.root())
        .arg(&dst)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("haul");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(&odd.join(&0)).expect("write");
    drop(stdin);
    assert!(child.wait().expect("wait").success());
    let copied = common::tree::names_in(&dst);
    assert_eq!(copied.len(), odd.len(), "{copied:?}");
    for name in odd {
        let path = dst.join(std::ffi::OsStr::from_bytes(name));
        assert_eq!(fs::read(path).expect("read"), name);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let scratch = Scratch::new();
    let src = small_tree(&scratch);
    let list = scratch.path("list");
    fs::write(&list, "top\n").expect("write");
    let from = format!("--files-from={}", list.display());
    let (a, dst) = (src.root().to_str().expect("UTF-8"), scratch.dst());
    let dst = dst.to_str().expect("UTF-8");
    haul([&from, a, a, dst]).exits(&[11]).says("one source");
    haul([&from, "--delete", a, dst])
        .exits(&[11])
        .says("--files-from does not list");
    haul(["--files-from=/nowhere/list", a, dst])
        .exits(&[11])
        .says("/nowhere/list");
    haul(["--files-from=-", "--exclude-from=-", a, dst])
        .exits(&[11])
        .says("standard input");
    assert!(!Path::new(dst).exists());
}

#[test]
fn a_listed_name_of_an_inode_is_copied_although_another_is_not() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("d/first", "content")
        .hard_link("d/first", "d/second");
    src.hard_link("d/first", "third");
    let (ran, found) = listed(&scratch, &src, b"d/second\nthird\n", &[]);
    ran.ok();
    assert_eq!(found, ["d", "d/second", "third"]);
    assert_eq!(ran.figure("linked"), 1);
}

const NAMES: [&str; 8] = ["a", "b", "ab", "foo.o", "x y", "é", "[z]", "~"];

fn random_path(random: &mut Random) -> String {
    let mut path = String::new();
    for _ in 0..=random.below(3) {
        if !path.is_empty() {
            path.push('/');
        }
        path.push_str(random.pick::<&str>(&NAMES));
    }
    path
}

fn random_line(random: &mut Random, paths: &[String]) -> String {
    let path = match random.chance(90) {
        true => random.pick(paths).clone(),
        false => random_path(random),
    };
    match random.below(8) {
        0 => format!("/{path}"),
        1 | 2 => format!("{path}/"),
        3 => format!("./{}", path.replace('/', "//")),
        4 => format!("{path}/../{}", random.pick::<&str>(&NAMES)),
        _ => path,
    }
}

#[test]
fn random_lists_copy_what_rsync_copies() {
    if !can(&[Ability::Rsync]) {
        return;
    }
    for seed in seeds(2) {
        let scratch = Scratch::new();
        let src = scratch.src();
        let mut random = Random::new(seed);
        for _ in 0..30 {
            let path = random_path(&mut random);
            let is_blocked = Path::new(&path)
                .ancestors()
                .skip(1)
                .any(|dir| src.path(dir).is_file());
            if !is_blocked && !src.path(&path).exists() {
                src.file(&path, path.as_bytes());
            }
        }
        let all = names(src.root());
        for (i, path) in (0..).zip(&all) {
            src.mtime(path, OLD + i, 0);
        }
        for turn in 0..20 {
            let lines: Vec<String> = (0..=random.below(6))
                .map(|_| random_line(&mut random, &all))
                .collect();
            let list = scratch.path("list");
            fs::write(&list, lines.join("\n")).expect("write");
            let mut options = vec![format!("--files-from={}", list.display())];
            if random.chance(30) {
                options.push("-r".into());
            }
            if random.chance(30) {
                options.push(format!("--exclude={}", random.pick::<&str>(&NAMES)));
            }
            if random.chance(20) {
                options.push(format!("--max-size={}", random.below(6)));
            }
            let what = format!("HAUL_SEED={seed} turn {turn}: {lines:?} {options:?}");
            let theirs = scratch.path("theirs");
            fs::create_dir(&theirs).expect("mkdir");
            let rsync = Command::new("rsync")
                .args(["-a", "-q"])
                .args(&options)
                .args([src.path("."), theirs.clone()])
                .stderr(Stdio::null())
                .status()
                .expect("rsync");
            let order = *random.pick(&["--order=physical", "--order=none"]);
            let ours = scratch.path("ours");
            let ran = Haul::new()
                .args(&options)
                .arg(order)
                .copy(src.root(), &ours)
                .run();
            assert_eq!(Some(ran.code), rsync.code(), "{what}: {}", ran.words());
            let made = match ours.exists() {
                true => everything(&ours),
                false => BTreeMap::new(),
            };
            assert_eq!(everything(&theirs), made, "{what}");
            // The very same again: nothing to do, and equal to those who look.
            if ran.code == 0 {
                let again = Haul::new()
                    .args(&options)
                    .arg(order)
                    .copy(src.root(), &ours)
                    .run();
                again.ok();
                assert_eq!(again.figure("copied"), 0, "{what}");
                let mut verify = vec!["verify".to_owned()];
                verify.extend(options.iter().cloned());
                let sides = [src.root(), &ours].map(|p| p.to_str().expect("UTF-8").to_owned());
                verify.extend(sides);
                haul(&verify).ok();
            }
            fs::remove_dir_all(&theirs).expect("remove");
            if ours.exists() {
                fs::remove_dir_all(&ours).expect("remove");
            }
        }
    }
}
