//! `haul cache`: the file of remembered digests, shown, pruned, cleared, and refused where it
//! cannot be believed.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use common::{Ability, Haul, Ran, Scratch, USER, can};
use serde_json::Value;

/// Where `haul` under `base` as XDG_CACHE_HOME keeps its digests.
fn file_under(base: &Path) -> PathBuf {
    base.join("haul/digests.sqlite")
}

fn cache(base: &Path, args: &[&str]) -> Haul {
    let home = format!("XDG_CACHE_HOME={}", base.to_str().expect("UTF-8"));
    Haul::new().under(["env", &home]).arg("cache").args(args)
}

/// The summary of `haul cache --json ...`.
fn told(base: &Path, args: &[&str]) -> Value {
    let ran = ran(&cache(base, args).arg("--json"));
    ran.ok().summary()
}

/// Not `run`, which expects the sums of a copy.
fn ran(haul: &Haul) -> Ran {
    haul.start().wait()
}

/// Modes are given: the database must not be open to others.
fn put(base: &Path, bytes: &[u8]) {
    let file = file_under(base);
    fs::create_dir_all(file.parent().expect("parent")).expect("mkdir");
    fs::write(&file, bytes).expect("write");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("chmod");
}

/// A database as haul makes it in an empty file, with rows of one made-up filesystem.
fn filled(scratch: &Scratch) -> PathBuf {
    let base = scratch.path("cache");
    put(&base, b"");
    ran(&cache(&base, &[])).ok();
    sql(
        &base,
        "INSERT INTO filesystems VALUES(5, 'ext4', x'00112233445566778899aabbccddeeff');
         INSERT INTO dirs VALUES(5, 2, CAST('/nowhere/at/all' AS BLOB));
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
         INSERT INTO files SELECT 5, i * 7, 2, i, i, i, randomblob(24) FROM n;",
    );
    base
}

fn sql(base: &Path, text: &str) {
    let connection = rusqlite::Connection::open(file_under(base)).expect("open");
    connection.execute_batch(text).expect("SQL");
}

#[test]
fn where_there_is_no_cache_none_is_made() {
    let scratch = Scratch::new();
    let base = scratch.path("cache");
    for args in [&[][..], &["--prune"], &["--clear"]] {
        told(&base, args);
    }
    ran(&cache(&base, &[])).ok().says("digests of 0 files");
    assert!(!base.exists());
}

#[test]
fn without_a_home_there_is_no_place_for_one() {
    let haul = Haul::new().under(["env", "-u", "HOME", "XDG_CACHE_HOME=relative"]);
    ran(&haul.arg("cache")).exits(&[11]).says("HOME");
}

#[test]
fn what_is_in_it_is_shown() {
    let scratch = Scratch::new();
    let base = filled(&scratch);
    let summary = told(&base, &[]);
    assert_eq!(summary["files"], 2000);
    assert_eq!(summary["dirs"], 1);
    let it = &summary["filesystems"][0];
    assert_eq!(it["kind"], "ext4");
    assert_eq!(it["uuid"], "00112233-4455-6677-8899-aabbccddeeff");
    assert_eq!(it["files"], 2000);
    ran(&cache(&base, &[]))
        .ok()
        .says("2,000 files in 1 directory")
        .says("ext4 00112233-4455-6677-8899-aabbccddeeff: 2,000 files");
}

#[test]
fn what_lies_on_a_filesystem_that_is_not_mounted_is_kept() {
    let scratch = Scratch::new();
    let base = filled(&scratch);
    let summary = told(&base, &["--prune"]);
    assert_eq!(
        (&summary["removed"], &summary["files"]),
        (&0.into(), &2000.into())
    );
    // A filesystem in memory does not come back.
    sql(&base, "UPDATE filesystems SET kind = 'tmpfs'");
    let summary = told(&base, &["--prune"]);
    assert_eq!(
        (&summary["removed"], &summary["files"]),
        (&2000.into(), &0.into())
    );
    assert_eq!(told(&base, &[])["filesystems"], Value::Array(Vec::new()));
}

#[test]
fn clearing_forgets_everything_and_keeps_the_file_private() {
    let scratch = Scratch::new();
    let base = filled(&scratch);
    let before = told(&base, &[])["bytes"].as_u64().expect("bytes");
    ran(&cache(&base, &["--clear"])).ok();
    let summary = told(&base, &[]);
    assert_eq!(summary["files"], 0);
    assert!(summary["bytes"].as_u64().expect("bytes") < before);
    let mode = fs::metadata(file_under(&base))
        .expect("stat")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_damaged_file_is_named_and_can_be_cleared() {
    type Damage = (&'static str, fn(&mut Vec<u8>));
    let scratch = Scratch::new();
    let whole = fs::read(file_under(&filled(&scratch))).expect("read");
    assert!(whole.len() > 60_000, "{} bytes", whole.len());
    let damages: [Damage; 8] = [
        ("zeros all over", |bytes| bytes.fill(0)),
        ("no magic", |bytes| bytes[..16].fill(b'x')),
        ("zeros in the schema", |bytes| bytes[100..4096].fill(0)),
        ("zeros in the middle", |bytes| bytes[40_960..45_056].fill(0)),
        ("noise in the middle", |bytes| {
            bytes[40_960..40_990].fill(0x5a)
        }),
        ("zeros at the end", |bytes| {
            let at = bytes.len() - 4096;
            bytes[at..].fill(0);
        }),
        ("half of it", |bytes| bytes.truncate(bytes.len() / 2)),
        ("a head alone", |bytes| bytes.truncate(50)),
    ];
    for (what, damage) in damages {
        let base = scratch.path(what);
        let mut bytes = whole.clone();
        damage(&mut bytes);
        put(&base, &bytes);
        for args in [&[][..], &["--json"]] {
            let ran = ran(&cache(&base, args));
            assert_eq!(ran.code, 11, "{what}: {}", ran.said());
            ran.says("damaged").says("haul cache --clear");
        }
        ran(&cache(&base, &["--clear"])).ok();
        assert_eq!(told(&base, &[])["files"], 0, "{what}");
    }
}

#[test]
fn a_file_cut_to_nothing_is_an_empty_cache() {
    let scratch = Scratch::new();
    let base = scratch.path("cache");
    put(&base, b"");
    assert_eq!(told(&base, &[])["files"], 0);
}

#[test]
fn what_is_not_haul_s_is_left_alone() {
    let scratch = Scratch::new();
    for (name, change, word) in [
        (
            "later",
            "PRAGMA user_version = 2",
            "a later version of haul",
        ),
        ("other", "PRAGMA application_id = 77", "another program"),
        ("unmarked", "PRAGMA application_id = 0", "another program"),
    ] {
        let whole = filled(&scratch);
        sql(&whole, change);
        let bytes = fs::read(file_under(&whole)).expect("read");
        let base = scratch.path(name);
        put(&base, &bytes);
        for args in [&[][..], &["--prune"], &["--clear"]] {
            ran(&cache(&base, args)).exits(&[11]).says(word);
        }
        let after = fs::read(file_under(&base)).expect("read");
        assert!(after == bytes, "{name} was written to");
        fs::remove_dir_all(&whole).expect("rm");
    }
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let scratch = Scratch::new();
    let base = scratch.path("cache");
    fs::create_dir_all(base.join("haul")).expect("mkdir");
    nix::unistd::mkfifo(&file_under(&base), nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
    for args in [&[][..], &["--prune"], &["--clear"]] {
        ran(&cache(&base, args))
            .exits(&[11])
            .says("no regular file");
    }
}

#[test]
fn a_file_that_this_user_cannot_write_is_not_used() {
    if !can(&[Ability::Root]) {
        return;
    }
    let scratch = Scratch::new();
    let base = filled(&scratch);
    for dir in [&base, &base.join("haul")] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("chmod");
    }
    for mode in [0o644, 0o600] {
        fs::set_permissions(file_under(&base), fs::Permissions::from_mode(mode)).expect("chmod");
        for args in [&[][..], &["--prune"], &["--clear"]] {
            let haul = cache(&base, args).by_user(&scratch);
            ran(&haul).exits(&[11]).says("cannot be written");
        }
    }
    assert_eq!(told(&base, &[])["files"], 2000);
}

#[test]
fn a_file_of_another_user_is_not_believed_by_root() {
    if !can(&[Ability::Root]) {
        return;
    }
    let scratch = Scratch::new();
    let base = filled(&scratch);
    scratch.give_to_user(&base);
    ran(&cache(&base, &[]))
        .exits(&[11])
        .says("others than its user");
    ran(&cache(&base, &[]).by_user(&scratch)).ok();
}

/// They could put a log of their own making beside it.
#[test]
fn a_file_in_a_directory_of_another_user_is_not_believed_by_root() {
    if !can(&[Ability::Root]) {
        return;
    }
    let scratch = Scratch::new();
    let base = filled(&scratch);
    std::os::unix::fs::chown(base.join("haul"), Some(USER), Some(USER)).unwrap();
    ran(&cache(&base, &[]))
        .exits(&[11])
        .says("others than its user");
}

#[test]
fn many_at_once_do_not_disturb_each_other() {
    let scratch = Scratch::new();
    let base = scratch.path("cache");
    put(&base, b"");
    let all = ["--json", "--clear", "--prune", "-q"].repeat(4);
    let all: Vec<_> = all.iter().map(|arg| cache(&base, &[arg]).start()).collect();
    for one in all {
        one.wait().ok();
    }
    assert_eq!(told(&base, &[])["files"], 0);
}

#[test]
fn a_locked_file_is_given_up_after_a_while() {
    let scratch = Scratch::new();
    let base = filled(&scratch);
    let holder = rusqlite::Connection::open(file_under(&base)).expect("open");
    holder
        .execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE; DELETE FROM dirs; COMMIT")
        .expect("lock");
    ran(&cache(&base, &[])).exits(&[11]).says("locked");
    drop(holder);
    assert_eq!(told(&base, &[])["files"], 2000);
}
