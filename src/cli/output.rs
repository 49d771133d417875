//! What is said: words on standard error, or JSON lines on standard output.
//!
//! Failures may number a million: each is written as it comes, through a
//! buffer, and none is dropped.

use std::io::{self, BufWriter, ErrorKind, IsTerminal, LineWriter, Write};
use std::path::Path;

use haul::{Error, Failure, Note, Outcome, Report};
use serde_json::{Value, json};

use super::args::Show;
use super::{FATAL, report_output, text};

/// Both streams, and what may be said on them.
pub(super) struct Output {
    pub(super) json: bool,
    pub(super) quiet: bool,
    pub(super) verbose: bool,
    terminal: bool,
    words: Box<dyn Write + Send>,
    lines: Box<dyn Write + Send>,
    /// Why JSON lines can no longer be written.
    lost: Option<io::Error>,
}

impl Output {
    pub(super) fn new(show: &Show) -> Output {
        let terminal = io::stderr().is_terminal();
        Output {
            json: show.json,
            quiet: show.quiet,
            verbose: show.verbose,
            terminal,
            // Who watches sees each line at once.
            words: if terminal {
                Box::new(LineWriter::new(io::stderr()))
            } else {
                Box::new(BufWriter::new(io::stderr()))
            },
            lines: Box::new(BufWriter::new(io::stdout())),
            lost: None,
        }
    }

    /// Writes words and a newline.
    pub(super) fn say(&mut self, line: &[u8]) {
        // Where standard error cannot be written, nobody is left to be told.
        self.words
            .write_all(line)
            .and_then(|()| self.words.write_all(b"\n"))
            .ok();
    }

    /// Writes words that may hold names.
    pub(super) fn say_plain(&mut self, line: &str) {
        let line = text::plain(line, self.terminal).into_owned();
        self.say(line.as_bytes());
    }

    /// Writes one JSON line.
    pub(super) fn put(&mut self, line: &Value) {
        if self.lost.is_none() {
            self.lost = writeln!(self.lines, "{line}").err();
        }
    }

    /// A path as words: quoted, and safe for where it goes.
    pub(super) fn quoted(&self, path: &Path) -> Vec<u8> {
        text::quoted(path, self.terminal)
    }

    /// Why the job could not start or go on.
    pub(super) fn fatal(&mut self, error: &Error) -> u8 {
        if self.json {
            let message = error.to_string();
            self.put(&json!({"type": "fatal", "message": message, "exit_code": FATAL}));
        } else if let Error::Path(failure) = error {
            self.failure(failure);
        } else {
            self.say_plain(&format!("haul: {error}"));
        }
        FATAL
    }

    /// One entry's end, for `-v`.
    pub(super) fn ended(&mut self, outcome: Outcome, path: &Path) {
        let word = match outcome {
            Outcome::Copied => "copied",
            Outcome::Unchanged => "unchanged",
            Outcome::Linked => "linked",
            Outcome::Skipped => "skipped",
            Outcome::Failed => "failed",
            Outcome::Deleted => "deleted",
        };
        if self.json {
            self.put(&json!({"type": "entry", "outcome": word, "path": path_value(path)}));
        } else {
            let line = [word.as_bytes(), b" ", &self.quoted(path)].concat();
            self.say(&line);
        }
    }

    /// One failure: `haul: cannot open "a/b": Permission denied (os error 13)`.
    pub(super) fn failure(&mut self, failure: &Failure) {
        if self.json {
            self.put(&json!({
                "type": "error",
                "during": failure.op.name(),
                "path": path_value(&failure.path),
                "detail": failure.detail,
                "errno": failure.source.raw_os_error(),
                "message": failure.source.to_string(),
            }));
            return;
        }
        let why = failure.source.to_string();
        let detail = failure.detail.as_ref().map(|detail| format!(" ({detail})"));
        let detail = detail.unwrap_or_default();
        let line = [
            format!("haul: cannot {} ", failure.op.verb()).as_bytes(),
            &self.quoted(&failure.path),
            text::plain(&detail, self.terminal).as_bytes(),
            b": ",
            text::plain(&why, self.terminal).as_bytes(),
        ]
        .concat();
        self.say(&line);
    }

    pub(super) fn note(&mut self, note: &Note) {
        if self.json {
            self.put(&json!({"type": "note", "count": note.count, "text": note.text}));
        } else if !self.quiet && note.count == 0 {
            self.say_plain(&format!("note: {}", note.text));
        } else if !self.quiet {
            let count = text::counted(note.count, "entry", "entries");
            self.say_plain(&format!("note: {count}: {}", note.text));
        }
    }

    /// A copy's report. Returns its exit code.
    pub(super) fn copied(&mut self, report: &Report) -> u8 {
        self.report(report, report_output::copy_lines)
    }

    /// The report of a comparison. Returns its exit code.
    pub(super) fn compared(&mut self, report: &Report) -> u8 {
        self.report(report, report_output::compare_lines)
    }

    /// The report of `haul dedup`. Returns its exit code.
    pub(super) fn joined(&mut self, report: &Report) -> u8 {
        self.report(report, report_output::dedup_lines)
    }

    fn report(&mut self, report: &Report, words: fn(&Report) -> Vec<String>) -> u8 {
        for failure in &report.failures {
            self.failure(failure);
        }
        for note in &report.notes {
            self.note(note);
        }
        let exit_code = report.exit_code();
        if self.json {
            self.put(&report_output::object(report));
        } else if !self.quiet || exit_code != 0 {
            let lines = words(report);
            // Quiet keeps the last line, which says how many are missing.
            let skip = if self.quiet { lines.len() - 1 } else { 0 };
            for line in &lines[skip..] {
                self.say_plain(line);
            }
        }
        exit_code
    }

    /// Flushes. A reader of standard output that left early (`| head`) is no
    /// error; output lost otherwise is one.
    pub(super) fn finish(&mut self, code: u8) -> u8 {
        if self.lost.is_none() {
            self.lost = self.lines.flush().err();
        }
        let lost = self.lost.take();
        let lost = lost.filter(|e| e.kind() != ErrorKind::BrokenPipe);
        if let Some(e) = &lost {
            self.say_plain(&format!("haul: cannot write standard output: {e}"));
        }
        self.words.flush().ok();
        if lost.is_some() && code == 0 {
            FATAL
        } else {
            code
        }
    }
}

/// A path without loss: `{"text": ...}`, or `{"bytes": [...]}` where it is not
/// UTF-8.
pub(super) fn path_value(path: &Path) -> Value {
    match path.to_str() {
        Some(text) => json!({"text": text}),
        None => json!({"bytes": path.as_os_str().as_encoded_bytes()}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use haul::{DiskChoice, Op};

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A stream on which every write fails with this errno.
    struct Fails(i32);

    impl Write for Fails {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from_raw_os_error(self.0))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What `talk` writes: (words, lines).
    fn said(json: bool, quiet: bool, talk: impl FnOnce(&mut Output)) -> (String, String) {
        let (words, lines) = (Page::default(), Page::default());
        let mut out = Output {
            json,
            quiet,
            verbose: false,
            terminal: true,
            words: Box::new(words.clone()),
            lines: Box::new(lines.clone()),
            lost: None,
        };
        talk(&mut out);
        let text = |page: Page| String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
        (text(words), text(lines))
    }

    fn failure(op: Op, path: &[u8], errno: i32) -> Failure {
        Failure {
            detail: None,
            path: OsStr::from_bytes(path).into(),
            op,
            source: io::Error::from_raw_os_error(errno),
        }
    }

    fn report() -> Report {
        Report {
            found: 12_347,
            copied: 12_000,
            unchanged: 300,
            linked: 40,
            failed: 7,
            copied_files: 11_800,
            copied_bytes: 110_900_000,
            verified_files: 11_800,
            verified_bytes: 110_900_000,
            failures: vec![failure(Op::Open, b"a/b", 13)],
            notes: vec![Note {
                count: 3,
                text: "owners were not kept".into(),
            }],
            disks: vec![DiskChoice {
                disk: "sda".into(),
                order: "physical",
                why: "rotational".into(),
            }],
            elapsed: Duration::from_millis(2600),
            ..Report::default()
        }
    }

    #[test]
    fn a_report_in_words_adds_up_and_ends_with_what_is_missing() {
        let (words, lines) = said(false, false, |out| assert_eq!(out.copied(&report()), 23));
        assert_eq!(
            words,
            "haul: cannot open \"a/b\": Permission denied (os error 13)\n\
             note: 3 entries: owners were not kept\n\
             found 12,347 = copied 12,000 + unchanged 300 + linked 40 + failed 7\n\
             copied 11,800 files, 110.9 MB in 2.6 s (42.7 MB/s)\n\
             verified 11,800 files, 110.9 MB: read back from the destination \
             (the kernel may answer from its cache)\n\
             sda read in physical order: rotational\n\
             not copied exactly: 7 of 12,347 entries\n"
        );
        assert_eq!(lines, "");
    }

    #[test]
    fn quiet_says_failures_and_their_number_alone() {
        let (words, _) = said(false, true, |out| assert_eq!(out.copied(&report()), 23));
        assert_eq!(
            words,
            "haul: cannot open \"a/b\": Permission denied (os error 13)\n\
             not copied exactly: 7 of 12,347 entries\n"
        );
        let (words, _) = said(false, true, |out| {
            assert_eq!(out.copied(&Report::default()), 0)
        });
        assert_eq!(words, "");
    }

    #[test]
    fn an_interrupted_run_names_what_it_did_not_come_to() {
        let report = Report {
            found: 10,
            copied: 4,
            interrupted: true,
            ..Report::default()
        };
        let (words, _) = said(false, false, |out| assert_eq!(out.copied(&report), 20));
        assert!(words.contains("+ failed 0 + not reached 6\n"), "{words}");
        assert!(words.ends_with("interrupted; not copied exactly: 6 of 10 entries\n"));
    }

    #[test]
    fn json_is_one_object_a_line_and_the_summary_comes_last() {
        let (words, lines) = said(true, false, |out| {
            assert_eq!(out.copied(&report()), 23);
        });
        assert_eq!(words, "");
        let lines: Vec<Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(
            lines[0],
            json!({"type": "error", "during": "open", "path": {"text": "a/b"}, "detail": null, "errno": 13,
                   "message": "Permission denied (os error 13)"})
        );
        assert_eq!(lines[1]["type"], "note");
        let last = &lines[2];
        assert_eq!(
            (&last["type"], &last["found"]),
            (&json!("summary"), &json!(12_347))
        );
        assert_eq!(
            (&last["verify"], &last["exit_code"]),
            (&json!("read"), &json!(23))
        );
        assert_eq!(last["disks"][0]["order"], "physical");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn a_name_that_is_not_utf8_survives_json() {
        assert_eq!(
            path_value(Path::new(OsStr::from_bytes(b"a\xff"))),
            json!({"bytes": [97, 255]})
        );
    }

    #[test]
    fn a_failure_without_an_errno_has_null() {
        let mut odd = failure(Op::Verify, b"x", 5);
        odd.source = io::Error::other("content differs");
        let (_, lines) = said(true, false, |out| out.failure(&odd));
        let line: Value = serde_json::from_str(&lines).unwrap();
        assert_eq!(
            (&line["errno"], &line["during"]),
            (&Value::Null, &json!("verify"))
        );
    }

    #[test]
    fn a_fatal_error_is_a_line_too() {
        let error = Error::Refused("no\x1b".into());
        let (words, _) = said(false, true, |out| assert_eq!(out.fatal(&error), 11));
        assert_eq!(words, "haul: no\\u{1b}\n");
        let (words, lines) = said(true, false, |out| assert_eq!(out.fatal(&error), 11));
        assert_eq!(words, "");
        assert!(lines.contains(r#""type":"fatal""#) && lines.contains(r#""exit_code":11"#));
    }

    #[test]
    fn only_a_reader_that_left_is_no_error() {
        for (errno, code, want) in [(32, 0, 0), (32, 23, 23), (28, 0, 11), (28, 23, 23)] {
            let (words, _) = said(true, false, |out| {
                out.lines = Box::new(Fails(errno));
                out.put(&json!({}));
                assert_eq!(out.finish(code), want);
            });
            assert_eq!(words.contains("cannot write standard output"), errno == 28);
        }
    }
}
