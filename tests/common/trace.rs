//! strace around the command: what it asked of the kernel, and faults in chosen calls.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::ran::Ran;
use super::run::Haul;
use super::scratch::Scratch;

/// One call, with the paths that strace put behind the descriptors.
#[derive(Clone, Debug)]
pub struct Call {
    pub name: String,
    pub args: String,
    /// What it returned; `None` if it was still under way when the command ended.
    pub result: Option<i64>,
}

impl Call {
    /// The path behind the first descriptor: `read(5</a/b>, …)`.
    pub fn path(&self) -> Option<PathBuf> {
        let from = self.args.find('<')? + 1;
        let len = self.args[from..].find('>')?;
        Some(PathBuf::from(&self.args[from..from + len]))
    }

    /// The n-th argument as a number.
    pub fn number(&self, index: usize) -> Option<u64> {
        let args = top_level(&self.args);
        args.get(index)?.trim().parse().ok()
    }
}

/// Splits arguments at the commas outside brackets and quotes.
fn top_level(args: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    for letter in args.chars() {
        match letter {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '[' | '{' | '(' | '<' if !quoted => depth += 1,
            ']' | '}' | ')' | '>' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().expect("a part").push(letter);
    }
    parts
}

/// Runs the command and returns the calls named, in the order in which they began.
#[track_caller]
pub fn traced(scratch: &Scratch, haul: &Haul, calls: &str) -> (Ran, Vec<Call>) {
    let log = scratch.path("strace.log");
    let filter = format!("trace={calls}");
    let log_text = log.to_str().expect("UTF-8");
    // -s 0: no data in the log; -y: paths behind descriptors.
    let tracer = [
        "strace", "-f", "-y", "-qq", "-s", "0", "-o", log_text, "-e", &filter,
    ];
    let ran = haul.clone().under(tracer).run();
    let text = std::fs::read(&log).expect("strace's log");
    (ran, parse(&String::from_utf8_lossy(&text)))
}

fn parse(log: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    let mut open: Vec<(String, usize)> = Vec::new(); // thread, index of its unfinished call
    for line in log.lines() {
        let Some((thread, rest)) = line.split_once(' ') else {
            continue;
        };
        let rest = rest.trim_start();
        if rest.starts_with("<... ") {
            let Some(at) = open.iter().position(|(known, _)| known == thread) else {
                continue;
            };
            let (_, index) = open.swap_remove(at);
            let more = rest.split_once("resumed>").map_or("", |(_, more)| more);
            let (args, result) = split_result(more);
            calls[index].args += args;
            calls[index].result = result;
        } else if let Some((name, args)) = rest.split_once('(') {
            let unfinished = args.strip_suffix("<unfinished ...>");
            let (args, result) = split_result(unfinished.unwrap_or(args));
            if unfinished.is_some() {
                open.push((thread.to_owned(), calls.len()));
            }
            calls.push(Call {
                name: name.to_owned(),
                args: args.to_owned(),
                result,
            });
        }
    }
    calls
}

/// `…) = 17` or `…) = -1 EIO (Input/output error)`.
fn split_result(text: &str) -> (&str, Option<i64>) {
    let Some((args, result)) = text.rsplit_once(" = ") else {
        return (text, None);
    };
    let number = result
        .split(|c: char| c != '-' && !c.is_ascii_digit())
        .next();
    (
        args.trim_end().trim_end_matches(')'),
        number.and_then(|digits| digits.parse().ok()),
    )
}

/// Options of strace that make chosen calls fail, or kill: `inject` is what stands behind `-e
/// inject=`, for instance `read,pread64:error=EIO:when=1`. With paths, only calls that name
/// one of them, or a descriptor of one, are concerned.
pub fn injecting(inject: &str, paths: &[&Path]) -> Vec<OsString> {
    let mut words: Vec<OsString> = ["strace", "-f", "-qq", "-o", "/dev/null"]
        .iter()
        .map(OsString::from)
        .collect();
    for path in paths {
        words.push("-P".into());
        words.push(path.into());
    }
    words.push("-e".into());
    words.push(format!("inject={inject}").into());
    words
}

/// strace as a grandchild, so that the process started is the command itself and gets the
/// signals meant for it. Each of the calls named takes some milliseconds longer.
pub fn slowing(calls: &str, milliseconds: u32) -> Vec<OsString> {
    let inject = format!("inject={calls}:delay_enter={milliseconds}ms");
    let trace = format!("trace={calls}");
    [
        "strace",
        "-D",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        &trace,
        "-e",
        &inject,
    ]
    .iter()
    .map(OsString::from)
    .collect()
}
