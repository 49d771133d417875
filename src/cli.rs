//! From the command line to an exit code: check what was typed, prepare the
//! process, run the verb under a progress bar, say how it ended.
//!
//! Only this part of the crate knows clap, JSON, signals and terminals.

mod args;
mod cache_output;
mod output;
mod plan_output;
mod progress;
mod report_output;
mod text;

use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::thread;

use haul::{Counters, Error, Files, Filter, Job, Report};
use nix::sys::stat::{Mode, umask};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use args::{Request, RuleArg, Selection, Show, Verb};
use output::Output;

/// Exit code of a command line that makes no sense.
const USAGE: u8 = 1;
/// Exit code where the job could not start or go on.
const FATAL: u8 = 11;
/// Exit code of a run that a signal ended.
const INTERRUPTED: i32 = 20;

/// Runs the command, returns its exit code.
pub(crate) fn main() -> u8 {
    let Request {
        verb,
        mut options,
        selection,
        show,
    } = match args::parse(std::env::args_os()) {
        Ok(request) => request,
        Err(answer) => return say(&answer),
    };
    // A copy has the modes of its source, whatever the umask says. Nothing is
    // open to others meanwhile: files are created 0600 and directories 0700,
    // explicitly, and get their mode when they are complete.
    let allowed = Mode::from_bits_truncate(0o777).difference(umask(Mode::empty()));
    options.dest_mode = Some(allowed.bits());
    haul::raise_open_files_limit();

    let mut out = Output::new(&show);
    if let Err(error) = select(&mut options.filter, &selection) {
        let code = out.fatal(&error);
        return out.finish(code);
    }
    let stop = match stop_on_signals() {
        Ok(stop) => stop,
        Err(e) => return out.fatal(&Error::Refused(format!("cannot catch signals: {e}"))),
    };
    let ended = match verb {
        Verb::Copy { sources, dest } => {
            let job = Job {
                sources,
                dest,
                options,
            };
            watch(&show, &mut out, |counters| haul::run(&job, counters, &stop))
                .map(|report| out.copied(&report))
        }
        Verb::Plan { sources, dest } => {
            let counters = Counters::default();
            progress::during(show.progress, &counters, || {
                haul::plan(&sources, dest.as_deref(), &options, &counters, &stop)
            })
            .map(|plan| plan_output::print(plan, stop.load(Relaxed), &mut out))
        }
        Verb::Verify { src, dst } => watch(&show, &mut out, |counters| {
            haul::verify_trees(&src, &dst, &options, counters, &stop)
        })
        .map(|report| out.compared(&report)),
        Verb::Dedup { path, dry_run } => watch(&show, &mut out, |counters| {
            haul::dedup_tree(&path, &options, dry_run, counters, &stop)
        })
        .map(|report| out.joined(&report)),
        Verb::Cache(verb) => cache_output::run(verb, args::cache_file().as_deref(), &mut out),
    };
    let code = ended.unwrap_or_else(|error| out.fatal(&error));
    out.finish(code)
}

/// Reads the filters' files and the list of paths.
fn select(filter: &mut Filter, selection: &Selection) -> Result<(), Error> {
    if selection
        .files()
        .filter(|path| path.as_os_str() == "-")
        .count()
        > 1
    {
        let why = "only one option can read standard input (-)";
        return Err(Error::Refused(why.into()));
    }
    for rule in &selection.rules {
        match rule {
            RuleArg::Pattern(pattern, true) => filter.include(pattern.as_bytes()),
            RuleArg::Pattern(pattern, false) => filter.exclude(pattern.as_bytes()),
            RuleArg::File(path, takes) => {
                let text = read_list(path, "patterns")?;
                filter.add_lines(&text, *takes, selection.from0);
            }
        }
    }
    if let Some(path) = &selection.files_from {
        let mut files = Files::default();
        files.recursive = selection.recursive;
        files.add_lines(&read_list(path, "paths")?, selection.from0);
        filter.files = Some(Arc::new(files));
    }
    Ok(())
}

/// A whole file, or standard input for `-`.
fn read_list(path: &Path, what: &str) -> Result<Vec<u8>, Error> {
    let read = match path.as_os_str() == "-" {
        true => {
            let mut text = Vec::new();
            io::stdin().read_to_end(&mut text).map(|_| text)
        }
        false => fs::read(path),
    };
    read.map_err(|e| {
        let path = path.display();
        Error::Refused(format!("cannot read the {what} in \"{path}\": {e}"))
    })
}

/// Runs a job under a progress bar, or under a list of what it does with each
/// entry, which is a progress of its own.
fn watch(
    show: &Show,
    out: &mut Output,
    work: impl FnOnce(&Counters) -> Result<Report, Error>,
) -> Result<Report, Error> {
    if !show.verbose {
        let counters = Counters::default();
        return progress::during(show.progress, &counters, || work(&counters));
    }
    // Bounded: a slow terminal holds up the job instead of filling memory.
    let (ended_tx, ended_rx) = sync_channel(1024);
    let mut counters = Counters {
        ended: Some(ended_tx),
        ..Counters::default()
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for (outcome, path) in ended_rx {
                out.ended(outcome, &path);
            }
        });
        let result = work(&counters);
        counters.ended = None; // ends the list
        result
    })
}

/// Prints clap's answer: help and version are no errors, everything else is
/// wrong usage (for which clap itself would exit 2, our code for bad content).
fn say(answer: &clap::Error) -> u8 {
    // Where even this cannot be written, the exit code says the rest.
    answer.print().ok();
    if answer.use_stderr() { USAGE } else { 0 }
}

/// A flag that the first signal sets; the second one ends the process at once.
fn stop_on_signals() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // `nohup haul …` must live on when its terminal goes.
        if signal == SIGHUP && is_ignored(signal) {
            continue;
        }
        // Handlers run in the order of registration: the first signal finds
        // the flag unset here and sets it below.
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    // A limit on file sizes (ulimit -f) is then an error of the file that is too
    // large, instead of the end of the process.
    flag::register(SIGXFSZ, Arc::default())?;
    Ok(stop)
}

/// Whether the parent had this signal ignored: proc_pid_status(5), `SigIgn`.
fn is_ignored(signal: i32) -> bool {
    fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        })
        .is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}
