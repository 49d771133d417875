//! One pattern, with the meaning that rsync(1) gives it ("FILTER RULES").

/// A pattern, taken apart once.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    /// Without a leading and a trailing slash.
    text: Vec<u8>,
    /// Matches from the root of the transfer on.
    is_anchored: bool,
    /// Matches directories only.
    is_for_dirs: bool,
    /// Has `*`, `?` or `[`; without them a backslash is one.
    is_wild: bool,
    /// Has `**`, which goes across slashes.
    goes_deep: bool,
    slashes: usize,
}

impl Pattern {
    pub(super) fn new(pattern: &[u8]) -> Pattern {
        let is_anchored = pattern.first() == Some(&b'/');
        let text = pattern.strip_prefix(b"/").unwrap_or(pattern);
        let is_for_dirs = text.last() == Some(&b'/');
        let text = text.strip_suffix(b"/").unwrap_or(text);
        Pattern {
            is_wild: text.iter().any(|b| b"*?[".contains(b)),
            goes_deep: text.windows(2).any(|two| two == b"**"),
            slashes: text.iter().filter(|&&b| b == b'/').count(),
            text: text.to_vec(),
            is_anchored,
            is_for_dirs,
        }
    }

    pub(super) fn matches(&self, path: &[u8], is_dir: bool) -> bool {
        if self.is_for_dirs && !is_dir {
            return false;
        }
        if self.slashes == 0 && !self.goes_deep && !self.is_anchored {
            let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
            return self.fits(name);
        }
        let mut path = path.to_vec();
        // `dir/***` is the directory and all that is in it.
        if is_dir && self.text.ends_with(b"***") {
            path.push(b'/');
        }
        if self.is_anchored {
            return self.fits(&path);
        }
        // `**/x` is an `x` at the root as well.
        if self.text.starts_with(b"**") {
            path.insert(0, b'/');
            return self.fits(&path);
        }
        if self.goes_deep {
            return starts(&path).any(|at| self.fits(&path[at..]));
        }
        // As many last components as the pattern has.
        let components = path.iter().filter(|&&b| b == b'/').count();
        let Some(skipped) = components.checked_sub(self.slashes) else {
            return false;
        };
        starts(&path)
            .nth(skipped)
            .is_some_and(|at| self.fits(&path[at..]))
    }

    fn fits(&self, text: &[u8]) -> bool {
        if self.is_wild {
            wild(&self.text, text)
        } else {
            self.text == text
        }
    }
}

/// Where the components of a path begin.
fn starts(path: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let slashes = path.iter().enumerate().filter(|(_, b)| **b == b'/');
    std::iter::once(0).chain(slashes.map(|(at, _)| at + 1))
}

/// Matches shell wildcards: `*` and `?` stop at slashes, `**` does not.
fn wild(pattern: &[u8], text: &[u8]) -> bool {
    // Where a mismatch can go back to: the last `**`, and the last star behind.
    let (mut p, mut t) = (0, 0);
    let mut back: Vec<(usize, usize, bool)> = Vec::new();
    loop {
        let fits = match pattern.get(p) {
            None => t == text.len(),
            Some(b'*') => {
                let stars = pattern[p..].iter().take_while(|&&b| b == b'*').count();
                p += stars;
                // What an earlier star could still take, this one can as well;
                // but not across a slash, for which the last `**` is kept.
                match stars > 1 {
                    true => back.clear(),
                    false => back.retain(|(_, _, deep)| *deep),
                }
                back.push((p, t, stars > 1));
                continue;
            }
            Some(_) => match one(&pattern[p..], text.get(t).copied()) {
                Some(used) => {
                    p += used;
                    t += 1;
                    continue;
                }
                None => false,
            },
        };
        if fits {
            return true;
        }
        // Let the last star take one more byte.
        loop {
            let Some((after, at, deep)) = back.pop() else {
                return false;
            };
            match text.get(at) {
                Some(&b) if deep || b != b'/' => {
                    back.push((after, at + 1, deep));
                    (p, t) = (after, at + 1);
                    break;
                }
                _ => {}
            }
        }
    }
}

/// Matches one byte; gives the length of what stands for it in the pattern.
fn one(pattern: &[u8], byte: Option<u8>) -> Option<usize> {
    let byte = byte?;
    match *pattern.first()? {
        b'?' => (byte != b'/').then_some(1),
        b'[' => class(pattern, byte),
        // A backslash at the end stands for nothing.
        b'\\' => (*pattern.get(1)? == byte).then_some(2),
        literal => (literal == byte).then_some(1),
    }
}

/// Matches `[a-z]`, `[!...]`, `[^...]`, `[[:alpha:]]`; the length of the class.
fn class(pattern: &[u8], byte: u8) -> Option<usize> {
    let mut at = 1;
    let negated = matches!(pattern.get(1)?, b'!' | b'^');
    at += usize::from(negated);
    let first = at;
    let mut found = false;
    loop {
        let mut low = *pattern.get(at)?;
        if low == b']' && at > first {
            break;
        }
        if low == b'[' && pattern.get(at + 1) == Some(&b':') {
            let rest = pattern.get(at + 2..)?;
            if let Some(len) = rest.windows(2).position(|two| two == b":]") {
                found |= is_of(&rest[..len], byte)?;
                at += len + 4;
                continue;
            }
        }
        if low == b'\\' {
            at += 1;
            low = *pattern.get(at)?;
        }
        let mut high = low;
        if pattern.get(at + 1) == Some(&b'-') && !matches!(pattern.get(at + 2), None | Some(b']')) {
            at += 2;
            high = *pattern.get(at)?;
            if high == b'\\' {
                at += 1;
                high = *pattern.get(at)?;
            }
        }
        found |= (low..=high).contains(&byte);
        at += 1;
    }
    (found != negated && byte != b'/').then_some(at + 1)
}

/// POSIX classes; none for an unknown one, which matches nothing.
fn is_of(name: &[u8], byte: u8) -> Option<bool> {
    Some(match name {
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"alpha" => byte.is_ascii_alphabetic(),
        b"blank" => byte == b' ' || byte == b'\t',
        b"cntrl" => byte.is_ascii_control(),
        b"digit" => byte.is_ascii_digit(),
        b"graph" => byte.is_ascii_graphic(),
        b"lower" => byte.is_ascii_lowercase(),
        b"print" => byte.is_ascii_graphic() || byte == b' ',
        b"punct" => byte.is_ascii_punctuation(),
        b"space" => byte.is_ascii_whitespace() || byte == 0x0b,
        b"upper" => byte.is_ascii_uppercase(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        Pattern::new(pattern.as_bytes()).matches(path.as_bytes(), false)
    }

    #[test]
    fn a_name_matches_anywhere_and_an_anchor_at_the_root() {
        assert!(matches("foo", "foo") && matches("foo", "a/b/foo"));
        assert!(!matches("foo", "foobar") && !matches("foo", "foo/bar"));
        assert!(matches("/foo", "foo") && !matches("/foo", "a/foo"));
        assert!(matches("a/foo", "x/a/foo") && !matches("a/foo", "xa/foo"));
        assert!(matches("/a/*/c", "a/b/c") && !matches("/a/*/c", "a/b/b/c"));
        let dirs = Pattern::new(b"foo/");
        assert!(dirs.matches(b"x/foo", true) && !dirs.matches(b"x/foo", false));
    }

    #[test]
    fn stars_and_what_they_cross() {
        assert!(matches("*.o", "a/b.o") && !matches("/*.o", "a/b.o"));
        assert!(matches("a**z", "x/a/b/z") && matches("/a/**", "a/b/c"));
        assert!(matches("**/z", "z") && matches("**/z", "a/b/z"));
        assert!(!matches("/a/**", "a"));
        let all = Pattern::new(b"a/***");
        assert!(all.matches(b"a", true) && all.matches(b"a/b/c", false));
        assert!(matches("a*b*c", "aXbYbZc") && !matches("a*b*c", "aXbYbZ"));
        assert!(!matches(&"*a".repeat(30), &"a".repeat(29)), "and quickly");
    }

    #[test]
    fn classes_and_backslashes() {
        assert!(matches("[a-c]x", "bx") && !matches("[!a-c]x", "bx"));
        assert!(matches("[]x]", "]") && matches("[[:digit:]-]", "-"));
        assert!(matches("\\*", "*") && !matches("\\*", "x"));
        assert!(
            matches("a\\b", "a\\b"),
            "no wildcard, so a backslash is one"
        );
        assert!(matches("a\\**", "a*z") && !matches("a\\**", "abz"));
        assert!(!matches("[", "["));
    }
}
