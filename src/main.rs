//! The command: copies trees, prints plans, compares trees. See `haul --help`.
//!
//! It uses the library's public API alone. What is typed, drawn and printed is
//! decided in [`cli`]; everything else in the library.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(cli::main())
}
