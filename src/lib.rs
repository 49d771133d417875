//! haul copies large trees once, in the order in which the disk holds them, and
//! proves the copy.
//!
//! # The flow
//!
//! ```text
//! sources ─ scan ─▶ order ─▶ Plan
//! Plan ─ read (one ascending sweep a disk, a window of files ahead)
//!      ─▶ bundles and pieces ─▶ write (a pool) ─▶ look, or read back
//!      ─▶ finish (links, directories) ─▶ flush ─▶ read back from the medium ─▶ Report
//! ```
//!
//! [`run`] takes a [`Job`] through it and gives a [`Report`]; [`plan()`] stops at
//! the [`Plan`](plan::Plan) and writes nothing; [`verify_trees`] compares two
//! trees that are there. A program watches the [`Counters`] meanwhile.
//!
//! What a disk that seeks gets:
//!
//! - The scan keeps many requests in flight, each kind in ascending order. On XFS,
//!   as root, all inodes come in one pass (bulkstat) once most will be needed, and
//!   the walk stays in an allocation group while directories wait there.
//! - Reads are sorted by physical offset. A file in small fragments is read by
//!   extent: a small one into memory, a large one's pieces are written, and digested,
//!   as they come.
//! - The window asks the kernel for what comes next (`POSIX_FADV_WILLNEED`), some
//!   MiB and hundreds of files ahead of the reader.
//! - A destination on such a disk is flushed in the background all along. Where it
//!   is the source's own disk the two take turns: a memory-full is read, then written.
//!
//! A bundle becomes a tar stream where it leaves the machine; a local writer takes
//! what is in it as it lies in memory.
//!
//! Where a disk does not seek there is no plan and no barrier: every thread
//! lists, reads and writes a directory by itself, through the same writing,
//! verifying and counting. That way is taken only where what is in use on the
//! sources' filesystems surely fits the destination, since nothing may be
//! written before that is known.
//!
//! # What always holds
//!
//! - Every entry found has one [`Outcome`], so found = copied + unchanged +
//!   linked + skipped + failed. Whatever is not exact is a [`Failure`] with path, step and
//!   the kernel's error; one failure never stops the others.
//! - An existing inode is never written to, but where `inplace` asks for it and
//!   it has no other name. A new name is made exclusively, private and marked
//!   as unfinished (mode 01600); its mtime and mode come when it is complete, the
//!   mode last. A later run takes nothing that bears the mark for finished or
//!   newer; of a large file it goes on from what it can prove to be there.
//! - No symlink is followed below a source's or the destination's root.
//! - A file is copied as it was at one moment: if it changes while it is read it
//!   is read again, and named if it will not hold still.
//! - FIEMAP orders reads and decides nothing else; what is a hole is asked of
//!   SEEK_DATA, and believed only where the bytes or the allocation agree.
//! - Content on its way takes a bounded number of buffers, however large files
//!   are.
//!
//! # Who may use whom
//!
//! ```text
//! cli (binary)   the public API only
//! job            all stages: it alone knows the whole flow
//! finish verify  work's spot and run, plan's types, sys
//! work           plan's types, dest, verify::file, sys
//! dedup          asked by work before a write, told after it; dest, sys
//! delete         work's run, plan's types, dest, sys
//! dest           plan's types, sys
//! cache          sys; one SQLite file
//! plan           sys; scan asks dest what is there
//! sys            nix, libc, std: decides nothing, prints nothing
//! ```
//!
//! `order`, `bundle` and `filter` do no I/O. The library prints nothing and reads no
//! environment. `unsafe` is allowed under `sys` alone.
//!
//! # Example
//!
//! ```
//! use std::sync::atomic::AtomicBool;
//! # let dir = tempfile::tempdir()?;
//! # std::fs::create_dir(dir.path().join("photos"))?;
//! # std::fs::write(dir.path().join("photos/1.jpg"), "x")?;
//! let job = haul::Job {
//!     sources: vec![dir.path().join("photos")],
//!     dest: dir.path().join("backup"),
//!     options: haul::Options::default(),
//! };
//! let report = haul::run(&job, &haul::Counters::default(), &AtomicBool::new(false))?;
//! assert_eq!((report.copied, report.failed), (2, 0));
//! assert_eq!(report.verified_files, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod backup;
pub mod cache;
mod dedup;
mod delete;
mod dest;
mod error;
mod filter;
mod finish;
mod job;
pub mod plan;
mod report;
#[doc(hidden)]
pub mod stages;
mod sys;
mod verify;
mod work;

pub use dedup::tree::dedup_tree;
pub use error::{Error, Failure, Op};
pub use filter::Filter;
pub use filter::files::Files;
pub use job::{
    Backup, Dedup, DedupIgnore, Job, Options, Order, Reflink, Verify, plan, run, verify_trees,
};
pub use plan::preflight::Shortfall;
pub use report::{Counters, DiskChoice, Note, Outcome, Report};
pub use sys::memory::raise_open_files_limit;
