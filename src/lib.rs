//! haul copies trees.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod error;
mod finish;
mod job;
pub mod plan;
mod report;
mod sys;
mod verify;
mod work;

pub use error::{Error, Failure, Op};
pub use job::{Job, Options, Order, Reflink, Verify, plan, run, verify_trees};
pub use plan::preflight::Shortfall;
pub use report::{Counters, DiskChoice, Note, Outcome, Report};
pub use sys::memory::raise_open_files_limit;
