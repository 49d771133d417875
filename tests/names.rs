//! Names are bytes: of any value, of up to 255 of them, in paths of any length.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use common::snapshot::{Snapshot, assert_untouched};
use common::tree::names_in;
use common::{Haul, Scratch, assert_same, copy, haul};

fn bytes(name: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(name))
}

#[test]
fn names_that_are_not_text_arrive_byte_for_byte() {
    let scratch = Scratch::new();
    let src = scratch.src();
    let names: [&[u8]; 14] = [
        b"\xff\xfe",
        b"caf\xe9",
        b"caf\xc3\xa9",
        b"cafe\xcc\x81",
        b"\xed\xa0\x80",
        b"a\xffb",
        b"a\xfeb",
        b"\x80",
        b"\x01\x02\x7f",
        b"new\nline",
        b"\n",
        b"tab\t",
        b"\x1b[2J",
        b"\xe2\x80\xae",
    ];
    for name in names {
        src.file(bytes(name), name);
        let dir = [b"d", name].concat();
        src.file(bytes(&dir).join(bytes(name)), b"1");
        src.symlink(bytes(&[b"l", name].concat()), bytes(name));
        src.hard_link(bytes(name), bytes(&[b"h", name].concat()));
        src.fifo(bytes(&[b"p", name].concat()));
    }
    src.random(bytes(b"big\xff"), 1, 9_000_000);
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
    let before = Snapshot::of(&scratch.dst());
    copy(src.root(), &scratch.dst()).ok();
    assert_untouched(&before, &Snapshot::of(&scratch.dst()));
}

#[test]
fn every_byte_may_stand_in_a_name() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for byte in (1..=255).filter(|&byte| byte != b'/') {
        src.file(bytes(&[byte, b'.', byte, b'x']), [byte]);
    }
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn names_that_look_like_options_patterns_or_hosts_are_names() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for name in [
        "-rf",
        "--help",
        "--json",
        "-",
        "--",
        "*",
        "?",
        "[a]",
        "~",
        "$HOME",
        "$(touch x)",
        "`id`",
        "a b",
        " ",
        "'",
        "\"",
        "\\",
        ";",
        "&",
        "#x#",
        "%s",
        "a:b",
        "host:path",
        "2024-01-01 12:00",
        "@x",
        "=",
    ] {
        src.file(name, name).file(format!("d{name}/x"), name);
    }
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn a_source_and_a_destination_may_begin_with_a_dash_or_hold_a_colon() {
    let scratch = Scratch::new();
    let tree = scratch.tree("-source");
    tree.file("f", b"x");
    scratch.tree("a:b").file("f", b"y");
    let here = || Haul::new().current_dir(scratch.root());
    here().args(["--", "-source/", "-dst"]).run().ok();
    assert_same(tree.root(), &scratch.path("-dst"));
    here().args(["./-source/", "dst2"]).run().ok();
    assert_same(tree.root(), &scratch.path("dst2"));
    here().args(["./a:b/", "./c:d"]).run().ok();
    assert_same(&scratch.path("a:b"), &scratch.path("c:d"));
}

#[test]
fn sources_named_in_bytes_work() {
    let scratch = Scratch::new();
    let name = bytes(b"src\xff\xfe");
    let src = common::Tree::new(scratch.path(name));
    src.file("f", b"x");
    haul([src.root(), &scratch.dst()]).ok();
    assert_same(src.root(), &scratch.dst().join(name));
    haul([src.contents(), scratch.path(bytes(b"dst\xfe"))]).ok();
    assert_same(src.root(), &scratch.path(bytes(b"dst\xfe")));
}

#[test]
fn names_of_255_bytes_that_differ_in_the_last_ones_arrive() {
    let scratch = Scratch::new();
    let src = scratch.src();
    let stem = "x".repeat(251);
    for index in 1000..1400 {
        src.file(format!("{stem}{index}"), index.to_string());
    }
    // Two-byte letters: a cut at a fixed length may fall inside one.
    src.file("\u{e9}".repeat(127), b"e")
        .file(format!("a{}", "\u{e9}".repeat(127)), b"f");
    let dir = "d".repeat(255);
    src.random(format!("{dir}/{}", "b".repeat(255)), 1, 9_000_000);
    src.random("c".repeat(255), 2, 9_000_000)
        .random("c".repeat(254), 3, 9_000_000);
    src.symlink("l".repeat(255), "t".repeat(255))
        .fifo("p".repeat(255));
    src.hard_link("c".repeat(255), "h".repeat(255))
        .dir("e".repeat(255));
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
    src.append(format!("{stem}1000"), b"more")
        .append("c".repeat(255), b"more");
    src.remove("l".repeat(255))
        .symlink("l".repeat(255), "other");
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn names_around_the_fields_of_a_tar_header_arrive() {
    let scratch = Scratch::new();
    let src = scratch.src();
    for len in [98, 99, 100, 101, 102, 154, 155, 156, 157, 253, 254, 255] {
        let name = "n".repeat(len);
        src.file(&name, len.to_string());
        let odd = format!("\u{e9}{}", "n".repeat(len - 3));
        src.file(
            Path::new("D").join(&name[1..]).join(&odd).join("f"),
            len.to_string(),
        );
        src.symlink(format!("D/{}L", &name[2..]), &name);
    }
    // Whole paths of each length around the split into prefix and name.
    for len in (90..110).chain(150..165).chain(250..262) {
        let path = format!(
            "P/{}/{}",
            "p".repeat(len / 2),
            "q".repeat(len - len / 2 - 3)
        );
        src.file(&path, len.to_string());
    }
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn a_path_longer_than_path_max_arrives_whole() {
    let scratch = Scratch::new();
    let src = scratch.src();
    let len = src.deeper_than_path_max(30);
    assert!(len > 4096 + 1000, "{len}");
    src.file("beside", b"x");
    for order in ["--order=none", "--order=physical"] {
        let dst = scratch.path(order);
        let ran = Haul::new().arg(order).copy(src.root(), &dst).run();
        ran.ok();
        assert_same(src.root(), &dst);
    }
    let before = Snapshot::of(&scratch.path("--order=none"));
    copy(src.root(), &scratch.path("--order=none")).ok();
    assert_untouched(&before, &Snapshot::of(&scratch.path("--order=none")));
    haul([
        Path::new("verify"),
        src.root(),
        &scratch.path("--order=none"),
    ])
    .ok();
}

#[test]
fn two_hundred_levels_arrive_with_few_descriptors() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.deeper_than_path_max(200);
    Haul::new()
        .open_files(64)
        .copy(src.root(), &scratch.dst())
        .run()
        .ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn files_named_like_leftovers_are_the_users() {
    let scratch = Scratch::new();
    let (src, dst) = (scratch.src(), scratch.tree("dst"));
    let names = [
        ".haul",
        ".haul.tmp",
        ".haul-state",
        ".haul.lock",
        ".haul.cache",
        ".haul.0",
        ".haul-1-1",
        ".f.AbCdEf",
        "f.partial",
        "f.tmp",
        "f~",
        ".f.swp",
        ".nfs0001",
        ".tmp.f",
        "..f",
        "..tmp",
        "...",
        "f.part",
        "#f",
        ".haul.part",
        ".haul-part",
        ".haul.1.0.tmp",
        ".haul-tmp-0",
    ];
    for name in names {
        src.file(name, name);
        dst.file(format!("own{name}"), b"mine")
            .file(name, b"older, and longer");
        // As other destination files that the source does not know.
        dst.file(format!("{name}.own"), b"mine");
    }
    src.file(".haul.d/x", b"1")
        .file(".haul-partial/k", b"k")
        .file("f", b"f");
    for _ in 0..2 {
        copy(src.root(), dst.root()).ok();
        for name in names {
            assert_eq!(
                fs::read(dst.path(name)).expect("copied"),
                name.as_bytes(),
                "{name}"
            );
            let own = [format!("own{name}"), format!("{name}.own")];
            for own in own {
                assert_eq!(
                    fs::read(dst.path(&own)).expect("the user's own"),
                    b"mine",
                    "{own}"
                );
            }
        }
        assert_eq!(names_in(dst.root()).len(), 3 * names.len() + 3);
    }
}

#[test]
fn hostile_names_reach_the_report_whole() {
    // Errors about them are lines of JSON, and one line each in words.
    let scratch = Scratch::new();
    let (src, dst) = (scratch.src(), scratch.tree("dst"));
    let names: [&[u8]; 4] = [b"new\nline", b"\xff\xfe", b"\x1b[2Jx", b"quote\"'\\"];
    for name in names {
        src.file(bytes(name).join("f"), b"x");
        // A file where a directory is to go.
        dst.file(bytes(name), b"in the way");
    }
    let ran = copy(src.root(), dst.root());
    ran.exits(&[23]);
    let errors = ran.of_type("error");
    assert!(errors.len() >= names.len(), "{errors:?}");
    for error in &errors {
        let path = &error["path"];
        assert!(
            path["text"].is_string() || !path["bytes"].is_null(),
            "{error}"
        );
        assert!(
            error["errno"].is_i64() || error["errno"].is_null(),
            "{error}"
        );
        assert!(
            error["during"].is_string() && error["message"].is_string(),
            "{error}"
        );
    }
    assert!(
        errors.iter().any(|error| !error["path"]["bytes"].is_null()),
        "{errors:?}"
    );
}

#[test]
fn two_names_for_the_same_letters_stay_two() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.file("README", b"1")
        .file("readme", b"2")
        .file("caf\u{e9}", b"3")
        .file("cafe\u{301}", b"4");
    src.file("\u{1e9e}", b"5")
        .file("\u{df}", b"6")
        .file("SS", b"7")
        .file("dir/a", b"8")
        .file("DIR/a", b"9");
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}

#[test]
fn a_deep_destination_longer_than_path_max_is_updated() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.deeper_than_path_max(25);
    copy(src.root(), &scratch.dst()).ok();
    // One change at the bottom, reached as the shell would: step by step.
    let name = "n".repeat(200);
    let script = format!("for i in $(seq 25); do cd {name} || exit 1; done; echo changed >f");
    let status = std::process::Command::new("sh")
        .args(["-c", &script])
        .current_dir(src.root())
        .status()
        .expect("sh");
    if !status.success() {
        return common::probe::skip("deep-cd", "this shell cannot go that deep");
    }
    copy(src.root(), &scratch.dst()).ok();
    assert_same(src.root(), &scratch.dst());
}
