//! What a run said and how it ended, and assertions about that.

use serde_json::Value;

/// What a finished command left behind.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
    /// The arguments, for failure messages.
    pub line: String,
}

impl Ran {
    #[track_caller]
    pub fn ok(&self) -> &Ran {
        self.exits(&[0])
    }

    #[track_caller]
    pub fn exits(&self, codes: &[i32]) -> &Ran {
        let Ran { code, line, .. } = self;
        assert!(
            codes.contains(code),
            "exit {code}, not {codes:?}: haul {line}\n{}",
            self.words()
        );
        self
    }

    /// The text stands in what was said: in words, or with `--json` in the lines of it.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Ran {
        assert!(
            self.said().contains(text),
            "no word of {text:?}: haul {}\n{}",
            self.line,
            self.words()
        );
        self
    }

    #[track_caller]
    pub fn says_one_of(&self, texts: &[&str]) -> &Ran {
        let found = texts.iter().any(|text| self.said().contains(text));
        assert!(
            found,
            "no word of {texts:?}: haul {}\n{}",
            self.line,
            self.words()
        );
        self
    }

    /// Both streams.
    pub fn said(&self) -> String {
        self.stderr.clone() + &self.output()
    }

    /// How many lines of what was said hold this text.
    pub fn count(&self, text: &str) -> usize {
        self.said()
            .lines()
            .filter(|line| line.contains(text))
            .count()
    }

    pub fn output(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The head of what was said, for failure messages.
    pub fn words(&self) -> String {
        let mut words: String = self.stderr.chars().take(3000).collect();
        if words.is_empty() {
            words = self.output().chars().take(1500).collect();
        }
        words
    }

    /// The lines of `--json`, each of which must be an object with a type.
    #[track_caller]
    pub fn json(&self) -> Vec<Value> {
        let text = std::str::from_utf8(&self.stdout).expect("JSON output is UTF-8");
        text.lines()
            .map(|line| {
                let value: Value = serde_json::from_str(line)
                    .unwrap_or_else(|error| panic!("not JSON: {line:?}: {error}"));
                assert!(value["type"].is_string(), "no type: {line}");
                value
            })
            .collect()
    }

    #[track_caller]
    pub fn of_type(&self, kind: &str) -> Vec<Value> {
        self.json()
            .into_iter()
            .filter(|value| value["type"] == kind)
            .collect()
    }

    #[track_caller]
    pub fn summary(&self) -> Value {
        let mut all = self.of_type("summary");
        assert_eq!(
            all.len(),
            1,
            "one summary: haul {}\n{}",
            self.line,
            self.words()
        );
        all.remove(0)
    }

    /// A figure of the summary.
    #[track_caller]
    pub fn figure(&self, name: &str) -> u64 {
        let summary = self.summary();
        summary[name]
            .as_u64()
            .unwrap_or_else(|| panic!("no figure {name} in {summary}"))
    }

    /// The sums add up, and the exit code, the errors told and the summary agree.
    #[track_caller]
    pub fn check_report(&self) {
        if ![0, 2, 23, 24].contains(&self.code) {
            return; // did not come to its end
        }
        let [found, copied, unchanged, linked, failed] =
            ["found", "copied", "unchanged", "linked", "failed"].map(|name| self.figure(name));
        let skipped = self.figure("skipped");
        let told = || format!("{}\n{}", self.summary(), self.words());
        assert_eq!(
            found,
            copied + unchanged + linked + skipped + failed,
            "sums: {}",
            told()
        );
        assert_eq!(
            self.figure("exit_code"),
            self.code as u64,
            "exit code: {}",
            told()
        );
        let errors = self.of_type("error").len();
        assert_eq!(
            self.code == 0,
            errors == 0,
            "errors told and exit code: {}",
            told()
        );
        // Not the other way round: a flush can fail that belongs to no one entry.
        assert!(
            self.code != 0 || failed == 0,
            "failed and exit code: {}",
            told()
        );
    }
}
