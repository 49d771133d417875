//! `--delta`: of a large file only the blocks that differ are written, and its old state stays
//! until the new one is complete.

// Test values are small and known.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use common::random::{Random, seeds};
use common::snapshot::{Leave, NOTHING, assert_same_but, digest_of};
use common::{Haul, Ran, Scratch, Tree, assert_same, bytes_of, copy};

const ORDERS: [&str; 2] = ["--order=physical", "--order=none"];
const WAYS: [&[&str]; 2] = [&["--delta"], &["--delta", "--inplace"]];

fn delta(args: &[&str], order: &str, src: &Tree, dst: &Path) -> Ran {
    // Where source and destination could share extents there is nothing to be compared.
    let ran = Haul::new()
        .args(args)
        .args([order, "--reflink=never"])
        .copy(src.root(), dst)
        .run();
    ran.ok();
    ran
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).expect("stat").ino()
}

#[test]
fn one_flipped_byte_is_one_block() {
    for order in ORDERS {
        for way in WAYS {
            let scratch = Scratch::new();
            let src = scratch.src();
            src.random("f", 1, 10_000_000).random("small", 2, 1000);
            copy(src.root(), &scratch.dst()).ok();
            src.write_at("f", 5_000_001, b"!").random("small", 3, 1000);
            let ran = delta(way, order, &src, &scratch.dst());
            assert_same(src.root(), &scratch.dst());
            assert_eq!(ran.figure("delta_files"), 1);
            assert_eq!(ran.figure("literal_bytes"), 512);
            assert_eq!(ran.figure("matched_bytes"), 10_000_000 - 512);
        }
    }
}

#[test]
fn what_was_appended_is_all_that_differs() {
    for way in WAYS {
        let scratch = Scratch::new();
        let src = scratch.src();
        src.random("f", 1, 6 << 20);
        copy(src.root(), &scratch.dst()).ok();
        src.append("f", &bytes_of(9, 1 << 20));
        let ran = delta(way, "--order=auto", &src, &scratch.dst());
        assert_same(src.root(), &scratch.dst());
        assert_eq!(ran.figure("literal_bytes"), 1 << 20);
    }
}

#[test]
fn other_names_of_the_old_file_keep_its_content() {
    for way in WAYS {
        let scratch = Scratch::new();
        let src = scratch.src();
        src.random("f", 1, 3_000_000);
        let dst = scratch.dst();
        copy(src.root(), &dst).ok();
        let other = scratch.path("other");
        fs::hard_link(dst.join("f"), &other).expect("link");
        let before = digest_of(&other).expect("read");
        src.write_at("f", 77, b"!!");
        delta(way, "--order=auto", &src, &dst);
        assert_same(src.root(), &dst);
        assert_eq!(digest_of(&other).expect("read"), before, "{way:?}");
        assert_ne!(inode(&other), inode(&dst.join("f")));
    }
}

#[test]
fn in_place_only_where_asked_and_extents_cannot_be_shared() {
    let scratch = Scratch::new();
    let src = scratch.src();
    src.random("f", 1, 3_000_000);
    let dst = scratch.dst();
    copy(src.root(), &dst).ok();
    let old = inode(&dst.join("f"));
    src.write_at("f", 77, b"!!");
    delta(&["--delta"], "--order=auto", &src, &dst);
    let new = inode(&dst.join("f"));
    assert_ne!(old, new, "replaced as a whole");
    src.write_at("f", 78, b"??");
    let ran = delta(&["--delta", "--inplace"], "--order=auto", &src, &dst);
    assert_eq!(ran.figure("literal_bytes"), 512);
    assert_same(src.root(), &dst);
}

#[test]
fn random_edits_arrive() {
    for seed in seeds(4) {
        let scratch = Scratch::new();
        let src = scratch.src();
        let mut random = Random::new(seed);
        let dst = scratch.dst();
        src.random("f", seed, 5_000_000);
        src.sparse(
            "s",
            6 << 20,
            &[(1 << 20, b"x"), (4 << 20, &bytes_of(1, 300_000))],
        );
        copy(src.root(), &dst).ok();
        for turn in 0..8 {
            for name in ["f", "s"] {
                edit(&src.path(name), &mut random);
            }
            let way = *random.pick(&WAYS);
            let order = *random.pick(&ORDERS);
            let verify = *random.pick(&["--verify=read", "--verify", "--verify=none"]);
            let mut args = way.to_vec();
            args.push(verify);
            let ran = delta(&args, order, &src, &dst);
            let what = format!("HAUL_SEED={seed} turn {turn}: {args:?} {order}");
            for name in ["f", "s"] {
                let (a, b) = (digest_of(&src.path(name)), digest_of(&dst.join(name)));
                assert_eq!(a.expect("read"), b.expect("read"), "{what}: {name}");
            }
            let read = ran.figure("literal_bytes") + ran.figure("matched_bytes");
            assert!(read <= ran.figure("bytes"), "{what}: {}", ran.summary());
        }
        // XFS may give a reflink's hole back as data once pages around it are written out.
        let leave = Leave {
            holes: true,
            ..NOTHING
        };
        assert_same_but(src.root(), &dst, leave);
    }
}

/// Flips, inserts, appends, truncates or punches.
fn edit(path: &Path, random: &mut Random) {
    let mut bytes = fs::read(path).expect("read");
    let at = random.below(bytes.len() as u64 + 1) as usize;
    match random.below(5) {
        0 if at < bytes.len() => bytes[at] ^= 1,
        1 => drop(bytes.splice(at..at, bytes_of(random.next(), 100_000))),
        2 => bytes.extend(bytes_of(random.next(), 300_000)),
        3 => bytes.truncate(at.max(1_100_000)),
        _ => {
            let end = (at + 500_000).min(bytes.len());
            bytes[at..end].fill(0);
        }
    }
    // Written with holes where there are zeros, as a punched file has them.
    let file = fs::File::create(path).expect("create");
    file.set_len(bytes.len() as u64).expect("size");
    for (i, block) in bytes.chunks(65_536).enumerate() {
        if block.iter().any(|&b| b != 0) {
            let at = i as u64 * 65_536;
            std::os::unix::fs::FileExt::write_all_at(&file, block, at).expect("write");
        }
    }
}
