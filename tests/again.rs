//! Sequences of edits, deletions and renames, each followed by a run with options of its own: the
//! destination is level with the source after each, and no other name's content ever changes.

// Test values are small and known.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

mod common;

use std::fs;
use std::path::PathBuf;

use common::edits::{edit, listing};
use common::random::{Kinds, Random, grow, seeds};
use common::snapshot::{Leave, NOTHING, Snapshot, digest_of};
use common::{Ability, Haul, Scratch, Tree, can};

/// Copies some files over others of the tree, with all metadata or with less.
fn double(src: &Tree, random: &mut Random) {
    let (files, _) = listing(src.root());
    let files: Vec<PathBuf> = files
        .into_iter()
        .filter(|path| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file()))
        .collect();
    for _ in 0..random.below(6) {
        if files.is_empty() {
            return;
        }
        let from = random.pick(&files);
        let to = src.path(format!("twin-{}", random.below(12)));
        let how = *random.pick(&["-a", "-a", "-p", "--sparse=always"]);
        let copied = std::process::Command::new("cp")
            .args([how, "--remove-destination", "--"])
            .args([from, &to])
            .status();
        // Both may be one file.
        copied.expect("cp");
    }
}

#[test]
fn random_runs_keep_the_destination_level() {
    for seed in seeds(5) {
        let scratch = Scratch::new();
        let kinds = Kinds::here(can(&[Ability::Xattr]), can(&[Ability::Acl]));
        let mut random = Random::new(seed);
        let src = scratch.src();
        grow(&src, &mut random, 120, kinds);
        src.random("large", seed, 3_000_000);
        let dst = scratch.dst();
        for round in 0..8 {
            double(&src, &mut random);
            // Names outside of the tree, of inodes that are in it.
            let outside = scratch.path(format!("outside-{round}"));
            let watched = dst.join("large");
            let had = watched.is_file() && fs::hard_link(&watched, &outside).is_ok();
            let was = had.then(|| digest_of(&outside).expect("read"));
            let mut args = vec!["--delete", "--no-cache"];
            let choices = [
                "--dedup",
                "--dedup",
                "--delta",
                "--checksum",
                "--verify",
                "--reflink=never",
            ];
            for choice in choices {
                if random.chance(40) && !args.contains(&choice) {
                    args.push(choice);
                }
            }
            args.push(*random.pick(&["--order=auto", "--order=physical", "--order=none"]));
            let ran = Haul::new().args(&args).copy(src.root(), &dst).run();
            let what = format!("HAUL_SEED={seed} round {round}: {args:?}");
            assert_eq!(ran.code, 0, "{what}: {}", ran.words());
            // Shared extents and inodes bring the holes of another file of that content, and XFS
            // rounds those of a reflink; holes have tests of their own.
            let leave = Leave {
                links: args.contains(&"--dedup") || had,
                holes: true,
                ..NOTHING
            };
            let lines = Snapshot::of(src.root()).differences(&Snapshot::of(&dst), leave);
            assert!(lines.is_empty(), "{what}:\n{}", lines.join("\n"));
            if let Some(was) = was {
                assert_eq!(digest_of(&outside).expect("read"), was, "{what}: outside");
            }
            let count = 1 + random.below(15) as usize;
            edit(&src, &mut random, count, kinds);
            if src.path("large").is_file() && random.chance(60) {
                src.write_at("large", random.below(2_000_000), b"!");
            }
        }
    }
}
