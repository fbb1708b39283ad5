//! Values as people write them, in the file and on the command line: sizes, lengths of time, shares
//! of processors, `none` for no limit.

use std::fmt;
use std::marker::PhantomData;

use floe_fs::units;
use serde::Deserializer;
use serde::de::{Error, Visitor};
use tracing_subscriber::EnvFilter;

use crate::time;

/// Most processors of a sandbox.
const CPUS_MAX: u64 = 4096;
/// Least share of a processor, in thousandths: the kernel enforces no less than 1 ms of 100 ms.
const CPU_MILLIS_MIN: u64 = 10;
/// Longest time of a sandbox or a request, in seconds.
pub const SECONDS_MAX: u64 = 30 * 86_400;

/// Processors, in thousandths: `2`, `1.5`, `0.25`.
///
/// # Errors
/// When it is no such number, or too small or large.
pub fn cpus(text: &str) -> Result<u64, String> {
    let refused = || format!("'{text}' is no number of processors: say 2, 1.5 or 0.25");
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 3 {
        return Err(refused());
    }
    let whole: u64 = whole.parse().map_err(|_| refused())?;
    let thousandths: u64 = format!("{part:0<3}").parse().map_err(|_| refused())?;
    let millis = whole.checked_mul(1000).ok_or_else(refused)? + thousandths;
    if !(CPU_MILLIS_MIN..=CPUS_MAX * 1000).contains(&millis) {
        return Err(format!("{text} is not between 0.01 and {CPUS_MAX}"));
    }
    Ok(millis)
}

/// A length of time in seconds: `10m`, `2h 30m`.
///
/// # Errors
/// When it is none, or too short or long.
pub fn length(text: &str) -> Result<u64, String> {
    let seconds = time::seconds(text)
        .map_err(|_| format!("'{text}' is no length of time: say 90s, 10m or '1d 12h'"))?;
    if seconds > SECONDS_MAX {
        return Err("longer than 30 days".to_owned());
    }
    Ok(seconds)
}

/// A size of more than nothing.
///
/// # Errors
/// When it is no size.
pub fn size(text: &str) -> Result<u64, String> {
    match units::bytes(text)? {
        0 => Err("a size of nothing".to_owned()),
        bytes => Ok(bytes),
    }
}

/// A number of things, of which there is one at least.
///
/// # Errors
/// When it is none.
pub fn count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("at least 1".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err(format!("'{text}' is no number")),
    }
}

fn or_none<T>(parse: fn(&str) -> Result<T, String>, text: &str) -> Result<Option<T>, String> {
    match text {
        "none" => Ok(None),
        text => parse(text).map(Some),
    }
}

fn domain_name(text: &str) -> Result<String, String> {
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, port.parse::<u16>().is_ok_and(|port| port > 0)),
        None => (text, true),
    };
    let label = |label: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if port && host.len() <= 180 && host.split('.').all(label) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "'{text}' is no domain: say sandboxes.example.org or localhost:8090"
    ))
}

fn filter(text: &str) -> Result<String, String> {
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("'{text}' is no filter: {error}")),
    }
}

fn fitting(number: u64) -> Result<usize, String> {
    usize::try_from(number).map_err(|error| error.to_string())
}

/// Reads a value from a string, or from a number as it would be typed.
struct Typed<T, F> {
    expected: &'static str,
    parse: F,
    value: PhantomData<T>,
}

impl<T, F: Fn(&str) -> Result<T, String>> Visitor<'_> for Typed<T, F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

fn typed<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &'static str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    deserializer.deserialize_any(Typed {
        expected,
        parse,
        value: PhantomData,
    })
}

macro_rules! fields {
    ($($name:ident -> $type:ty: $expected:literal, $parse:expr;)*) => {
        $(pub(super) fn $name<'de, D: Deserializer<'de>>(value: D) -> Result<$type, D::Error> {
            typed(value, $expected, $parse)
        })*
    };
}

fields! {
    bytes -> usize: "a size", |text| fitting(size(text)?);
    bytes_or_none -> Option<u64>: "a size or \"none\"", |text| or_none(size, text);
    cpus_or_none -> Option<u64>: "a number of processors or \"none\"", |text| or_none(cpus, text);
    count_or_none -> Option<u64>: "a number or \"none\"", |text| or_none(count, text);
    at_least_one -> usize: "a number", |text| fitting(count(text)?);
    seconds -> u64: "a length of time", length;
    domain -> Option<String>: "a domain", |text| domain_name(text).map(Some);
    log_filter -> String: "a filter", filter;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_processors_are_read_to_the_thousandth() {
        let all = [
            ("2", 2000),
            ("1.5", 1500),
            ("0.25", 250),
            ("0.01", 10),
            ("4096", 4_096_000),
        ];
        for (text, expected) in all {
            assert_eq!(cpus(text), Ok(expected), "{text}");
        }
        for wrong in [
            "",
            "0",
            "0.009",
            "-1",
            "1.",
            ".5",
            "1.2345",
            "4097",
            "1e3",
            "NaN",
            "inf",
            "2 cpus",
            "99999999999999999999",
        ] {
            assert!(cpus(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_sizes_and_counts_of_nothing_are_refused() {
        assert_eq!(length("10m"), Ok(600));
        assert_eq!(size("1K"), Ok(1024));
        assert_eq!(count("1"), Ok(1));
        for wrong in ["300", "0s", "-1m", "31d", "soon"] {
            assert!(length(wrong).is_err(), "{wrong}");
        }
        assert!(size("0").is_err() && count("0").is_err() && count("-1").is_err());
    }

    #[test]
    fn a_domain_can_stand_in_a_url() {
        for good in ["localhost", "localhost:8090", "sb.example.org", "a-b.c"] {
            assert!(domain_name(good).is_ok(), "{good}");
        }
        let long = format!("{}.org", "a".repeat(64));
        for bad in [
            "", ".", "a..b", "-a", "a-", "a/b", "A.org", "a:0", "a:x", "a:1:2", "a b", &long,
        ] {
            assert!(domain_name(bad).is_err(), "{bad}");
        }
    }
}
