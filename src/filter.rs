//! Which entries of the sources are copied: patterns with rsync's meaning,
//! sizes, and lists of paths ([`files`]). Pure: nothing is asked of a disk here.
//!
//! Patterns are tried in their order and the first that matches decides; what
//! none matches is taken. A path is the one below the destination's root: the
//! names inside of a source `a/`, and beginning with `a` for a source `a`.

pub(crate) mod files;
mod pattern;

use std::sync::Arc;

use files::Files;
use pattern::Pattern;

/// What is left out of a copy, and protected from being deleted.
///
/// ```
/// let mut filter = haul::Filter::default();
/// filter.include(b"*.keep");
/// filter.exclude(b"/tmp/");
/// filter.exclude(b"*.o");
/// assert!(filter.takes(b"a/tmp", true) && !filter.takes(b"tmp", true));
/// assert!(!filter.takes(b"a/b.o", false));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Filter {
    rules: Vec<Rule>,
    /// Regular files below are left as they are, or not made.
    pub min_size: Option<u64>,
    /// Regular files above are left as they are, or not made.
    pub max_size: Option<u64>,
    /// The paths that are copied, and nothing else; all where none.
    pub files: Option<Arc<Files>>,
}

#[derive(Clone, Debug)]
struct Rule {
    takes: bool,
    pattern: Pattern,
}

impl Filter {
    /// Leaves out what `pattern` matches, unless an earlier one takes it. As in
    /// rsync, `+ PATTERN` and `- PATTERN` say which of both is meant, and `!`
    /// drops the patterns so far.
    pub fn exclude(&mut self, pattern: &[u8]) {
        self.add(pattern, false);
    }

    /// Takes what `pattern` matches, unless an earlier one leaves it out.
    pub fn include(&mut self, pattern: &[u8]) {
        self.add(pattern, true);
    }

    /// Adds a file's lines as [`Filter::exclude`] or, with `takes`,
    /// [`Filter::include`]; with `nul`, what lies between NULs. Without, lines
    /// that are empty or begin with `;` or `#` are comments.
    pub fn add_lines(&mut self, text: &[u8], takes: bool, nul: bool) {
        for line in lines(text, nul) {
            self.add(line, takes);
        }
    }

    fn add(&mut self, pattern: &[u8], takes: bool) {
        let (pattern, takes) = match pattern {
            b"!" => return self.rules.clear(),
            [b'+', b' ', rest @ ..] => (rest, true),
            [b'-', b' ', rest @ ..] => (rest, false),
            _ => (pattern, takes),
        };
        if !pattern.is_empty() {
            let pattern = Pattern::new(pattern);
            self.rules.push(Rule { takes, pattern });
        }
    }

    /// Whether an entry counts. A directory that does not is not entered.
    pub fn takes(&self, path: &[u8], is_dir: bool) -> bool {
        let first = self
            .rules
            .iter()
            .find(|rule| rule.pattern.matches(path, is_dir));
        first.is_none_or(|rule| rule.takes)
    }

    /// Whether a name of the destination must not be removed.
    pub(crate) fn protects(&self, path_below_dest_root: &[u8], is_dir: bool) -> bool {
        !self.takes(path_below_dest_root, is_dir)
    }

    /// Whether a regular file's size is one that counts.
    pub fn takes_size(&self, bytes: u64) -> bool {
        self.min_size.is_none_or(|least| bytes >= least)
            && self.max_size.is_none_or(|most| bytes <= most)
    }

    /// Whether every name counts.
    pub(crate) fn takes_all_names(&self) -> bool {
        self.rules.is_empty()
    }
}

/// The entries of a list that are no comments.
fn lines(text: &[u8], nul: bool) -> impl Iterator<Item = &[u8]> {
    let is_end = move |&b: &u8| match nul {
        true => b == 0,
        false => b == b'\n' || b == b'\r',
    };
    let is_comment = move |line: &[u8]| !nul && matches!(line.first(), Some(b';' | b'#'));
    text.split(is_end)
        .filter(move |line| !line.is_empty() && !is_comment(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_matches_decides() {
        let mut filter = Filter::default();
        filter.add_lines(b"# comment\n\n+ a/*.c\n; another\n- *.c\n", false, false);
        assert!(filter.takes(b"a/x.c", false));
        assert!(!filter.takes(b"b/x.c", false));
        assert!(filter.takes(b"b/x.h", false));
        filter.exclude(b"!");
        assert!(filter.takes(b"b/x.c", false));
        assert!(filter.takes_all_names());
    }
}
