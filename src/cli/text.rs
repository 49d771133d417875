//! Numbers, sizes, times and file names for people. Pure: nothing is printed.

use std::borrow::Cow;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// `12347` as `12,347`.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 file`, `12,347 files`.
pub(super) fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// Bytes in decimal units, as disks are sold and rates are given: `110.9 MB`.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut unit_bytes: u128 = 1000;
    let mut units = UNITS.iter().peekable();
    loop {
        let unit = units.next().expect("u64 ends below 19 EB");
        let tenths = (u128::from(bytes) * 10 + unit_bytes / 2) / unit_bytes;
        if tenths < 10_000 || units.peek().is_none() {
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
        unit_bytes *= 1000;
    }
}

/// `42.7 MB/s`; none where there was no time to measure.
pub(super) fn rate(bytes: u64, elapsed: Duration) -> Option<String> {
    let micros = elapsed.as_micros();
    if micros == 0 {
        return None;
    }
    let per_second = u128::from(bytes) * 1_000_000 / micros;
    Some(format!(
        "{}/s",
        size(u64::try_from(per_second).unwrap_or(u64::MAX))
    ))
}

/// `2.6 s`, `3 min 05 s`, `2 h 03 min`.
pub(super) fn time(elapsed: Duration) -> String {
    // Rounded first, so that 59.96 s does not become "60.0 s".
    let tenths = (elapsed.as_millis() + 50) / 100;
    let seconds = (elapsed.as_millis() + 500) / 1000;
    if tenths < 600 {
        format!("{}.{} s", tenths / 10, tenths % 10)
    } else if seconds < 3600 {
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    } else {
        let minutes = (seconds + 30) / 60;
        format!("{} h {:02} min", minutes / 60, minutes % 60)
    }
}

/// A path in double quotes. For a terminal, everything that could act on it or
/// mislead its reader is escaped; elsewhere the bytes go out as they are, so
/// that a log loses nothing.
pub(super) fn quoted(path: &Path, terminal: bool) -> Vec<u8> {
    let bytes = path.as_os_str().as_bytes();
    let mut text = Vec::with_capacity(bytes.len() + 2);
    text.push(b'"');
    if terminal {
        text.extend_from_slice(escaped(bytes).as_bytes());
    } else {
        text.extend_from_slice(bytes);
    }
    text.push(b'"');
    text
}

fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' => {
                    text.push('\\');
                    text.push(c);
                }
                _ if acts(c) => text.extend(c.escape_default()),
                _ => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            write!(text, "\\x{byte:02x}").ok();
        }
    }
    text
}

/// A message of our own that may hold names: same care, quotes left alone.
pub(super) fn plain(message: &str, terminal: bool) -> Cow<'_, str> {
    if !terminal || !message.contains(acts) {
        return Cow::Borrowed(message);
    }
    let mut text = String::with_capacity(message.len());
    for c in message.chars() {
        if acts(c) {
            text.extend(c.escape_default());
        } else {
            text.push(c);
        }
    }
    Cow::Owned(text)
}

/// Whether a terminal would obey the character, or show nothing or another
/// order for it: control characters, line separators, bidirectional marks,
/// overrides and isolates, zero-width characters.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{2069}'
                | '\u{feff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn counts_have_commas_every_three_digits() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (12_347, "12,347"),
            (100_000, "100,000"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(count(n), text);
        }
    }

    #[test]
    fn sizes_never_show_four_digits_before_the_point() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (999_949, "999.9 kB"),
            (999_950, "1.0 MB"),
            (110_912_345, "110.9 MB"),
            (1_000_000_000_000, "1.0 TB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn times_round_into_the_next_unit() {
        for (ms, text) in [
            (0, "0.0 s"),
            (2_649, "2.6 s"),
            (59_949, "59.9 s"),
            (59_950, "1 min 00 s"),
            (185_000, "3 min 05 s"),
            (3_599_499, "59 min 59 s"),
            (3_600_000, "1 h 00 min"),
            (7_380_000, "2 h 03 min"),
        ] {
            assert_eq!(time(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn a_rate_needs_time() {
        assert_eq!(rate(1, Duration::ZERO), None);
        assert_eq!(
            rate(111_000_000, Duration::from_millis(2600)).as_deref(),
            Some("42.7 MB/s")
        );
        assert!(rate(u64::MAX, Duration::from_micros(1)).is_some());
    }

    fn on_terminal(name: &[u8]) -> String {
        String::from_utf8(quoted(Path::new(OsStr::from_bytes(name)), true)).unwrap()
    }

    #[test]
    fn hostile_names_are_harmless_on_a_terminal() {
        for (name, text) in [
            (&b"plain name"[..], "\"plain name\""),
            (b"new\nline\ttab\rreturn", r#""new\nline\ttab\rreturn""#),
            (b"\x1b[2Jgone", r#""\u{1b}[2Jgone""#),
            (b"\x7f", r#""\u{7f}""#),
            ("\u{9b}31m".as_bytes(), r#""\u{9b}31m""#),
            ("exe.\u{202e}gpj".as_bytes(), r#""exe.\u{202e}gpj""#),
            ("a\u{2066}b\u{200b}c".as_bytes(), r#""a\u{2066}b\u{200b}c""#),
            (b"quote\"back\\", r#""quote\"back\\""#),
            (b"latin1 \xe9\xff end", r#""latin1 \xe9\xff end""#),
            ("Grüße 日本".as_bytes(), "\"Grüße 日本\""),
        ] {
            assert_eq!(on_terminal(name), text);
        }
    }

    #[test]
    fn in_a_pipe_a_name_keeps_its_bytes() {
        let name = b"a\x1b\n\xff\"";
        let path = Path::new(OsStr::from_bytes(name));
        assert_eq!(quoted(path, false), b"\"a\x1b\n\xff\"\"");
    }

    #[test]
    fn messages_keep_their_quotes() {
        let message = "cannot use \"a\x1bb\"";
        assert_eq!(plain(message, true), "cannot use \"a\\u{1b}b\"");
        assert_eq!(plain(message, false), message);
    }
}
