//! Sizes as rsync takes them: `--max-size=1.5m-1`.

/// `K`, `KiB` are 1024 and `KB` is 1000, and so on; fractions count, and `+1`
/// or `-1` at the end is one byte more or less.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || "expected a size, as 4096, 1.5M or 10KB".to_string();
    let (text, more) = match text {
        _ if text.ends_with("+1") => (&text[..text.len() - 2], 1),
        _ if text.ends_with("-1") => (&text[..text.len() - 2], -1),
        _ => (text, 0),
    };
    let digits = text
        .bytes()
        .take_while(|b| b.is_ascii_digit() || *b == b'.')
        .count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.to_ascii_uppercase();
    let (letter, base) = match unit.as_bytes() {
        [] | [b'B'] => (b'B', 1024),
        [letter] | [letter, b'I', b'B'] => (*letter, 1024),
        [letter, b'B'] => (*letter, 1000),
        _ => return Err(wrong()),
    };
    let power = b"BKMGTP"
        .iter()
        .position(|&l| l == letter)
        .ok_or_else(wrong)?;
    let unit = u128::from(base_power(base, power));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.len() > 15 {
        return Err(wrong());
    }
    let digits = |text: &str| -> Result<u128, String> {
        match text {
            "" => Ok(0),
            text => text.parse().map_err(|_| wrong()),
        }
    };
    let scale = (0..fraction.len()).fold(1_u128, |scale, _| scale * 10);
    let bytes = digits(whole)?
        .checked_mul(unit)
        .ok_or_else(|| "too large".to_string())?
        + digits(fraction)? * unit / scale;
    u64::try_from(bytes)
        .ok()
        .and_then(|bytes| bytes.checked_add_signed(more))
        .ok_or_else(|| "too large, or below zero".to_string())
}

fn base_power(base: u64, power: usize) -> u64 {
    (0..power).fold(1, |unit, _| unit * base)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes_are_read_as_rsync_reads_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("10b", 10),
            ("1k", 1024),
            ("1KiB", 1024),
            ("1kb", 1000),
            ("1.5m", 1_572_864),
            ("2G-1", (2 << 30) - 1),
            ("1k+1", 1025),
            (".5K", 512),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "-1", "1x", "1.2.3", "0-1", "99999999P"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
