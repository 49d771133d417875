//! What all integration tests share: scratch directories, a builder of trees, a runner of the
//! command with a time limit, whole-tree comparison, and probes of what this machine can do.
//!
//! `HAUL_TEST_DIR` chooses the filesystem under test, `HAUL_REQUIRE` turns skips into failures,
//! `HAUL_SEED` repeats a random test.

// Each test crate uses a part of these helpers, and nothing here is anybody's public interface.
#![allow(dead_code, unused_imports, unreachable_pub)]
// Test values are small and known; a wrong cast shows up as a failed comparison.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

pub mod edits;
pub mod extents;
pub mod probe;
pub mod ran;
pub mod random;
pub mod run;
pub mod scratch;
pub mod snapshot;
pub mod sweep;
pub mod trace;
pub mod tree;

pub use probe::{Ability, can};
pub use ran::Ran;
pub use run::{Haul, copy, haul};
pub use scratch::{Scratch, USER};
pub use snapshot::{Snapshot, assert_same};
pub use tree::{Tree, bytes_of};
