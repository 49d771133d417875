//! Random trees, with everything that may be in one: copied whole, the same as `cp -a` and
//! `rsync -aHAX` leave, and brought up to date after random edits. Each prints its seed when it
//! fails; `HAUL_SEED=n` repeats it.

// Test values are small and known.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

mod common;

use common::edits::edit;
use common::random::{Kinds, Random, grow, seeds};
use common::snapshot::{Leave, NOTHING, Snapshot};
use common::{Ability, Haul, Scratch, Tree, can, copy, haul};
use std::path::Path;
use std::process::Command;

/// A tree of its own for a seed.
fn grown(scratch: &Scratch, seed: u64, count: usize) -> (Tree, Random, Kinds) {
    let kinds = Kinds::here(can(&[Ability::Xattr]), can(&[Ability::Acl]));
    let mut random = Random::new(seed);
    let tree = scratch.src();
    grow(&tree, &mut random, count, kinds);
    (tree, random, kinds)
}

#[track_caller]
fn assert_equal(what: &str, seed: u64, from: &Path, to: &Path, leave: Leave) {
    let lines = Snapshot::of(from).differences(&Snapshot::of(to), leave);
    assert!(
        lines.is_empty(),
        "HAUL_SEED={seed}: {what}: {} differences:\n{}",
        lines.len(),
        lines[..lines.len().min(12)].join("\n")
    );
}

#[test]
fn random_trees_arrive_whole_in_every_order() {
    for seed in seeds(6) {
        let scratch = Scratch::new();
        let (src, mut random, _) = grown(&scratch, seed, 300);
        let orders = [
            "--order=auto",
            "--order=physical",
            "--order=inode",
            "--order=none",
        ];
        let threads = ["--threads=1", "--threads=3", "--threads=8"];
        let verify = ["--verify=none", "--verify=read", "--verify=durable"];
        for order in orders {
            let dst = scratch.path(order);
            let ways = [order, *random.pick(&threads), *random.pick(&verify)];
            let ran = Haul::new().args(ways).copy(src.root(), &dst).run();
            assert_eq!(ran.code, 0, "HAUL_SEED={seed}: {ways:?}: {}", ran.words());
            assert_equal(order, seed, src.root(), &dst, NOTHING);
        }
        let ran = haul([
            Path::new("verify"),
            src.root(),
            &scratch.path("--order=none"),
        ]);
        assert_eq!(ran.code, 0, "HAUL_SEED={seed}: verify: {}", ran.words());
    }
}

#[test]
fn random_trees_arrive_as_with_cp() {
    for seed in seeds(4) {
        let scratch = Scratch::new();
        let (src, ..) = grown(&scratch, seed, 400);
        copy(src.root(), &scratch.dst()).ok();
        let status = Command::new("cp")
            .args(["-a", "--"])
            .args([src.root(), &scratch.path("cp")])
            .status()
            .expect("cp");
        assert!(status.success(), "HAUL_SEED={seed}: cp -a");
        // cp takes long runs of zeros for holes, and some of its versions leave out the
        // attributes of special files.
        let leave = Leave {
            holes: true,
            ..NOTHING
        };
        assert_equal(
            "against cp -a",
            seed,
            &scratch.path("cp"),
            &scratch.dst(),
            leave,
        );
    }
}

#[test]
fn random_trees_arrive_as_with_rsync() {
    if !can(&[Ability::Rsync]) {
        return;
    }
    for seed in seeds(4) {
        let scratch = Scratch::new();
        // Without ACLs: rsync changes the owning group's entry where there is a mask.
        let src = scratch.src();
        let kinds = Kinds::here(can(&[Ability::Xattr]), false);
        grow(&src, &mut Random::new(seed), 400, kinds);
        copy(src.root(), &scratch.dst()).ok();
        let status = Command::new("rsync")
            // Without the window it leaves times alone that differ by less than a second.
            .args(["-aHAX", "--numeric-ids", "--modify-window=-1", "--"])
            .args([src.contents(), scratch.path("rsync/")])
            .status()
            .expect("rsync");
        assert!(status.success(), "HAUL_SEED={seed}: rsync -aHAX");
        let leave = Leave {
            holes: true,
            ..NOTHING
        };
        assert_equal(
            "against rsync",
            seed,
            &scratch.path("rsync"),
            &scratch.dst(),
            leave,
        );
    }
}

#[test]
fn random_trees_of_a_user_arrive_whole() {
    for seed in seeds(4) {
        let scratch = Scratch::new();
        let home = scratch.user_dir("home");
        let src = Tree::new(home.join("src"));
        let kinds = Kinds {
            root: false,
            ..Kinds::here(can(&[Ability::Xattr]), can(&[Ability::Acl]))
        };
        grow(&src, &mut Random::new(seed), 250, kinds);
        // Changing the owner clears setuid bits: the tree is what it is afterwards.
        scratch.give_to_user(&home);
        let dst = home.join("dst");
        let ran = Haul::new().by_user(&scratch).copy(src.root(), &dst).run();
        assert_eq!(ran.code, 0, "HAUL_SEED={seed}: {}", ran.words());
        assert_equal("as a user", seed, src.root(), &dst, NOTHING);
    }
}

#[test]
fn random_edits_are_followed_run_after_run() {
    for seed in seeds(4) {
        let scratch = Scratch::new();
        let (src, mut random, kinds) = grown(&scratch, seed, 150);
        let dst = scratch.dst();
        copy(src.root(), &dst).ok();
        assert_equal("first run", seed, src.root(), &dst, NOTHING);
        for round in 0..6 {
            let count = 1 + random.below(20) as usize;
            let edits = edit(&src, &mut random, count, kinds);
            let way = *random.pick(&["--order=auto", "--order=physical", "--order=none"]);
            let ran = Haul::new().arg(way).copy(src.root(), &dst).run();
            let what = format!("round {round}, {way}, after {edits:#?}");
            assert_eq!(ran.code, 0, "HAUL_SEED={seed}: {what}: {}", ran.words());
            assert_equal(&what, seed, src.root(), &dst, NOTHING);
            let before = Snapshot::of(&dst);
            copy(src.root(), &dst).ok();
            let touched = Snapshot::of(&dst).touched_since(&before);
            assert!(
                touched.is_empty(),
                "HAUL_SEED={seed}: {what}: idle run touched {touched:?}"
            );
        }
    }
}

#[test]
fn random_things_in_the_way_are_replaced_or_named_and_never_followed() {
    for seed in seeds(6) {
        let scratch = Scratch::new();
        let (src, mut random, _) = grown(&scratch, seed, 200);
        let outside = scratch.tree("outside");
        outside.file("f", b"keep").dir("d");
        let dst = scratch.tree("dst");
        let (_, all) = common::edits::listing(src.root());
        for path in &all {
            if random.chance(70) || in_the_way(&dst, path) {
                continue;
            }
            match random.below(6) {
                0 => dst.file(path, b"in the way"),
                1 => dst.dir(path),
                2 => dst.symlink(path, outside.root()),
                3 => dst.symlink(path, outside.path("f")),
                4 => dst.symlink(path, "dangling"),
                _ => dst.fifo(path),
            };
        }
        let before = Snapshot::of(outside.root());
        let ran = copy(src.root(), dst.root());
        assert!(
            [0, 23].contains(&ran.code),
            "HAUL_SEED={seed}: {}",
            ran.words()
        );
        common::snapshot::assert_untouched(&before, &Snapshot::of(outside.root()));
        let (from, after) = (Snapshot::of(src.root()), Snapshot::of(dst.root()));
        let mut wrong = 0;
        for (path, want) in &from.entries {
            let name = common::snapshot::show(path);
            let have = after.entries.get(path);
            let same =
                have.is_some_and(|have| (have.kind, have.digest) == (want.kind, want.digest));
            wrong += u64::from(!same);
            assert!(
                same || ran.code == 23,
                "HAUL_SEED={seed}: {name} did not arrive, and exit 0"
            );
        }
        let failed = ran.figure("failed");
        assert!(
            failed >= wrong,
            "HAUL_SEED={seed}: {wrong} wrong, {failed} counted"
        );
        for path in after.entries.keys() {
            let name = common::snapshot::show(path);
            assert!(
                from.entries.contains_key(path),
                "HAUL_SEED={seed}: {name} was left behind"
            );
        }
    }
}

/// Whether something that is no directory stands at the path or above it.
fn in_the_way(tree: &Tree, path: &Path) -> bool {
    path.ancestors()
        .filter(|above| !above.as_os_str().is_empty())
        .any(|above| {
            tree.path(above)
                .symlink_metadata()
                .is_ok_and(|meta| above == path || !meta.is_dir())
        })
}
