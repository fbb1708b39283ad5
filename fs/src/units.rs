//! Amounts as people type them.

/// A number of bytes: `4096`, `512M`, `1.5GiB`, `10 GB`. One letter, or one with `iB`, counts in
/// powers of 1,024 as du(1) and truncate(1) do; one with `B` in powers of 1,000.
///
/// # Errors
/// When it is no number of bytes, or too large for one.
pub fn bytes(text: &str) -> Result<u64, String> {
    let refused = || format!("'{text}' is no size: say 4096, 512M or 1.5GiB");
    let trimmed = text.trim();
    let digits = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let unit = unit.trim_start().to_ascii_lowercase();
    if !unit.is_ascii() {
        return Err(refused());
    }
    let (letter, rest) = unit.split_at(usize::from(!unit.is_empty() && unit != "b"));
    let power = match letter {
        "" => 0,
        letter => 1 + "kmgtpe".find(letter).ok_or_else(refused)?,
    };
    let base: u128 = match (letter, rest) {
        (_, "" | "ib") | ("", "b") => 1024,
        (_, "b") => 1000,
        _ => return Err(refused()),
    };
    let factor = base.pow(u32::try_from(power).unwrap_or(0));
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || part.len() > 9 {
        return Err(refused());
    }
    let parse = |digits: &str| digits.parse::<u128>().map_err(|_| refused());
    let mut total = parse(whole)?.checked_mul(factor).ok_or_else(refused)?;
    if !part.is_empty() {
        let scale = 10_u128.pow(u32::try_from(part.len()).unwrap_or(0));
        total += parse(part)? * factor / scale;
    }
    // The catalog's numbers are signed.
    let total = i64::try_from(total).map_err(|_| refused())?;
    Ok(total.unsigned_abs())
}

/// A limit: a number of bytes, or `none`.
///
/// # Errors
/// As [`bytes`].
pub fn bytes_or_none(text: &str) -> Result<Option<u64>, String> {
    match text {
        "none" => Ok(None),
        text => bytes(text).map(Some),
    }
}

/// A limit: a number, or `none`.
///
/// # Errors
/// When it is neither.
pub fn count_or_none(text: &str) -> Result<Option<u64>, String> {
    match text {
        "none" => Ok(None),
        text => text
            .parse()
            .map(Some)
            .map_err(|_| format!("'{text}' is neither a number nor 'none'")),
    }
}

/// Letters of units, each with the power of two that it stands for.
const LETTERS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// The shortest that [`bytes`] reads as this.
#[must_use]
pub fn text(bytes: u64) -> String {
    for (letter, shift) in LETTERS {
        if bytes != 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{letter}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let all = [
            ("0", 0),
            ("4096", 4096),
            ("17b", 17),
            ("1k", 1 << 10),
            ("512M", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("10 GB", 10_000_000_000),
            ("2t", 2 << 40),
            ("7.5E", 15 << 59),
        ];
        for (text, expected) in all {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for (shown, size) in [
            ("1", 1),
            ("64M", 64 << 20),
            ("1G", 1 << 30),
            ("1025K", 1025 << 10),
        ] {
            assert_eq!((text(size).as_str(), bytes(shown)), (shown, Ok(size)));
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        let all = [
            "",
            "M",
            "-1",
            "1x",
            "1.2.3",
            "8E",
            "1e9",
            "1 iB",
            "1bb",
            ".5G",
            "0x10",
            "5µ",
            "5 MÜ",
            "1.0000000001G",
            "9999999999999999999999",
            "99999999999999999999999999999999999999999E",
        ];
        for text in all {
            assert!(bytes(text).is_err(), "{text}: {:?}", bytes(text));
        }
        assert_eq!(bytes_or_none("none"), Ok(None));
        assert_eq!(count_or_none("12"), Ok(Some(12)));
        assert!(count_or_none("12k").is_err());
    }
}
