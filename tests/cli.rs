//! The command line: exit codes, what goes to which stream, machine-readable lines.

mod common;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Haul, Scratch, Tree, copy, haul};

fn tree(scratch: &Scratch) -> Tree {
    let src = scratch.src();
    src.file("a", b"a")
        .random("d/big", 1, 9_000_000)
        .symlink("l", "a")
        .hard_link("a", "d/a2");
    for index in 0..30 {
        src.random(format!("many/{index}"), index, 1000);
    }
    src
}

#[test]
fn wrong_usage_is_1_and_says_how() {
    let wrong: &[&[&str]] = &[
        &[],
        &["only-one"],
        &["--nosuch", "a", "b"],
        &["--verify=sometimes", "a", "b"],
        &["--order=random", "a", "b"],
        &["--reflink=perhaps", "a", "b"],
        &["--threads=none", "a", "b"],
        &["--memory=lots", "a", "b"],
        &["verify"],
        &["verify", "a"],
        &["plan"],
    ];
    for args in wrong {
        let ran = haul(args.iter());
        assert_eq!(ran.code, 1, "haul {args:?}: {}", ran.words());
        assert!(
            ran.stdout.is_empty() && !ran.stderr.is_empty(),
            "haul {args:?}"
        );
    }
}

#[test]
fn help_and_version_are_answers_not_errors() {
    for args in [
        &["--help"][..],
        &["-h"],
        &["--version"],
        &["verify", "--help"],
        &["plan", "--help"],
    ] {
        let ran = haul(args);
        ran.ok();
        assert!(
            !ran.stdout.is_empty() && ran.stderr.is_empty(),
            "haul {args:?}"
        );
    }
    let long = haul(["--help"]).output();
    for code in ["0", "1", "2", "11", "20", "23", "24"] {
        let listed = long
            .lines()
            .any(|line| line.split_whitespace().next() == Some(code));
        assert!(listed, "exit code {code} is not in --help");
    }
    for option in [
        "--dry-run",
        "--verbose",
        "--quiet",
        "--json",
        "--verify",
        "--reflink",
        "--order",
        "--one-file-system",
        "--checksum",
        "--force",
        "--mkpath",
        "--memory",
        "--threads",
    ] {
        assert!(long.contains(option), "{option} is not in --help");
    }
    let short = haul(["-h"]).output();
    assert!(
        short.lines().count() < long.lines().count(),
        "-h is the short one"
    );
    assert!(haul(["--version"]).output().starts_with("haul "));
}

#[test]
fn words_go_to_standard_error_and_json_to_standard_output() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    let plain = haul([src.contents(), scratch.path("plain")]);
    plain.ok();
    assert!(plain.stdout.is_empty(), "{}", plain.output());
    assert!(plain.stderr.contains("copied"), "{}", plain.words());
    let json = copy(src.root(), &scratch.path("json"));
    json.ok();
    assert!(!json.stdout.is_empty());
    let last = json.json().pop().expect("lines");
    assert_eq!(last["type"], "summary", "the summary is the last line");
    let quiet = haul([Path::new("-q"), &src.contents(), &scratch.path("quiet")]);
    quiet.ok();
    assert!(
        quiet.stdout.is_empty() && quiet.stderr.is_empty(),
        "{}",
        quiet.words()
    );
}

#[test]
fn quiet_still_says_what_failed() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    let dst = scratch.tree("dst");
    dst.file("d", b"in the way");
    let ran = haul([Path::new("-q"), &src.contents(), dst.root()]);
    ran.exits(&[23]).says("dst/d");
    assert!(ran.stdout.is_empty());
}

#[test]
fn error_lines_have_one_form() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    let dst = scratch.tree("dst");
    dst.dir("a").file("d", b"in the way");
    let ran = haul([src.contents(), dst.root().to_owned()]);
    ran.exits(&[23]);
    let lines: Vec<&str> = ran
        .stderr
        .lines()
        .filter(|line| line.starts_with("haul: cannot "))
        .collect();
    assert!(lines.len() >= 2, "{}", ran.words());
    for line in lines {
        assert!(line.contains('"'), "no path: {line}");
    }
    let ran = copy(src.root(), dst.root());
    for error in ran.exits(&[23]).of_type("error") {
        for field in ["during", "message"] {
            assert!(error[field].is_string(), "{field}: {error}");
        }
        assert!(error["path"]["text"].is_string(), "{error}");
    }
}

#[test]
fn verbose_names_every_entry() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    let ran = haul([Path::new("-v"), &src.contents(), &scratch.dst()]);
    ran.ok();
    for name in ["d/big", "many/7", "d/a2"] {
        ran.says(name);
    }
}

#[test]
fn the_summary_counts_every_entry_once() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    // Root, a, d, d/big, l, d/a2, many, and thirty files.
    let ran = Haul::new()
        .arg("--reflink=never")
        .copy(src.root(), &scratch.dst())
        .run();
    ran.ok();
    assert_eq!(ran.figure("found"), 37);
    assert_eq!(ran.figure("linked"), 1);
    assert_eq!(ran.figure("copied"), 36);
    assert_eq!(ran.figure("bytes"), 9_000_000 + 30 * 1000 + 1);
    assert_eq!(ran.figure("verified_files"), 32);
    let again = copy(src.root(), &scratch.dst());
    assert_eq!(again.figure("copied"), 0, "{}", again.summary());
    src.append("many/3", b"x").file("new", b"n");
    let third = copy(src.root(), &scratch.dst());
    third.ok();
    assert_eq!(third.figure("found"), 38);
    assert_eq!(third.figure("files"), 2, "{}", third.summary());
}

#[test]
fn a_fatal_error_is_a_line_of_json_too() {
    let scratch = Scratch::new();
    let ran = Haul::new()
        .arg("--json")
        .args([scratch.path("nosuch"), scratch.dst()])
        .run();
    ran.exits(&[11]);
    let lines = ran.json();
    assert!(
        lines.iter().any(|line| line["type"] == "fatal"),
        "{lines:?}"
    );
}

#[test]
fn the_plan_says_what_would_be_copied_and_in_which_order() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    let ran = haul([Path::new("plan"), src.root()]);
    ran.ok();
    assert!(!ran.stdout.is_empty() || !ran.stderr.is_empty());
    let ran = Haul::new()
        .args(["plan", "--json"])
        .arg(src.root())
        .start()
        .wait();
    ran.ok();
    let plans = ran.of_type("plan");
    assert_eq!(plans.len(), 1, "{}", ran.output());
    let text = plans[0].to_string();
    for figure in ["9030001", "bundles", "order"] {
        assert!(text.contains(figure), "{figure} is not in {text}");
    }
    let dry = Haul::new()
        .arg("-n")
        .copy(src.root(), &scratch.dst())
        .start()
        .wait();
    dry.ok();
    assert_eq!(dry.of_type("plan").len(), 1);
    assert!(!scratch.dst().exists());
    haul([Path::new("plan"), &scratch.path("nosuch")])
        .exits(&[11])
        .says("nosuch");
}

#[test]
fn every_order_asked_for_is_the_order_planned() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    for order in ["physical", "inode", "none"] {
        let option = format!("--order={order}");
        let ran = Haul::new()
            .args(["plan", "--json", &option])
            .arg(src.root())
            .start()
            .wait();
        ran.ok();
        assert!(ran.output().contains(order), "{order}: {}", ran.output());
    }
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    for index in 0..3000 {
        src.file(format!("more/{index}"), b"");
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_haul"))
        .args(["--json", "-v"])
        .args([src.contents(), scratch.dst()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    drop(child.stdout.take());
    let mut words = String::new();
    child
        .stderr
        .take()
        .expect("stderr")
        .read_to_string(&mut words)
        .expect("UTF-8");
    let status = child.wait().expect("ends");
    assert!(!words.contains("panicked"), "{words}");
    assert_eq!(status.code(), Some(0), "the copy itself is whole: {words}");
    common::assert_same(src.root(), &scratch.dst());
}

#[test]
fn closed_streams_do_not_reach_the_files() {
    // With 0, 1 and 2 closed, the first files opened get these numbers; no words may go there.
    let scratch = Scratch::new();
    let src = tree(&scratch);
    let dst = scratch.tree("dst");
    dst.file("d", b"in the way, so that there is something to say");
    let script = "exec \"$@\" <&- >&- 2>&-";
    Command::new("sh")
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_haul")])
        .args([src.contents(), dst.root().to_owned()])
        .status()
        .expect("sh");
    for index in 0..30 {
        let have = fs::read(dst.path(format!("many/{index}"))).expect("copied");
        assert!(have == common::bytes_of(index, 1000), "{index}");
    }
    assert_eq!(
        fs::read(dst.path("d")).expect("read"),
        b"in the way, so that there is something to say"
    );
}

#[test]
fn help_goes_out_although_nobody_reads_the_rest() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_haul"))
        .arg("--help")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    drop(child.stdout.take());
    let mut words = String::new();
    child
        .stderr
        .take()
        .expect("stderr")
        .read_to_string(&mut words)
        .expect("UTF-8");
    child.wait().expect("ends");
    assert!(!words.contains("panicked"), "{words}");
}

/// The command on a terminal of its own; what it wrote there.
fn on_a_terminal(args: &[&std::path::Path]) -> Option<Vec<u8>> {
    let mut line = format!("'{}'", env!("CARGO_BIN_EXE_haul"));
    for arg in args {
        line += &format!(" '{}'", arg.to_str().expect("UTF-8"));
    }
    let output = Command::new("script")
        .args(["-q", "-e", "-c", &line, "/dev/null"])
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) => Some(output.stdout),
        Err(error) => {
            common::probe::skip("script", &error.to_string());
            None
        }
    }
}

#[test]
fn hostile_names_do_not_act_on_a_terminal() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("\x1b[2Jclear/f", b"x")
        .file("\u{202e}gnp.exe/f", b"x")
        .file("bell\x07/f", b"x");
    let dst = scratch.tree("dst");
    for name in src.names("") {
        dst.file(String::from_utf8(name).expect("UTF-8"), b"in the way");
    }
    let Some(shown) = on_a_terminal(&[&src.contents(), dst.root()]) else {
        return;
    };
    let text = String::from_utf8_lossy(&shown);
    assert!(
        text.contains("clear") && text.contains("gnp.exe") && text.contains("bell"),
        "{text:?}"
    );
    assert!(!text.contains("\x1b[2Jclear"), "{text:?}");
    assert!(!text.contains('\u{202e}'), "{text:?}");
    assert!(!text.contains('\x07'), "{text:?}");
}

#[test]
fn a_terminal_sees_the_summary_after_the_progress() {
    let scratch = Scratch::new();
    let src = tree(&scratch);
    let Some(shown) = on_a_terminal(&[&src.contents(), &scratch.dst()]) else {
        return;
    };
    let text = String::from_utf8_lossy(&shown);
    assert!(text.contains("found 37"), "{text:?}");
    common::assert_same(src.root(), &scratch.dst());
    // A pipe sees no progress at all: nothing that goes back over a line.
    let piped = haul([src.contents(), scratch.path("other")]);
    piped.ok();
    assert!(
        !piped.stderr.contains('\r') && !piped.stderr.contains('\x1b'),
        "{:?}",
        piped.stderr
    );
}
