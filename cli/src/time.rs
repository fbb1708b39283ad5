//! Times as people read them. On the wire and under `--json` they are RFC 3339.

use jiff::{Span, Timestamp};

/// How long ago an RFC 3339 time was: `just now`, `5 min ago`, `3 h ago`, `2 days ago`. A text
/// that is no time is returned as it is.
#[must_use]
pub fn ago(text: &str) -> String {
    match text.parse::<Timestamp>() {
        Ok(time) => ago_between(time, Timestamp::now()),
        Err(_) => text.to_owned(),
    }
}

fn ago_between(time: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(time.as_second());
    match seconds {
        ..5 => "just now".to_owned(),
        5..60 => format!("{seconds} s ago"),
        60..3_600 => format!("{} min ago", seconds / 60),
        3_600..86_400 => format!("{} h ago", seconds / 3_600),
        86_400..172_800 => "1 day ago".to_owned(),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

/// An RFC 3339 time where this machine is, to the second. A text that is no time is returned as it
/// is.
#[must_use]
pub fn local(text: &str) -> String {
    match text.parse::<Timestamp>() {
        Ok(time) => shown_in(time, jiff::tz::TimeZone::system()),
        Err(_) => text.to_owned(),
    }
}

fn shown_in(time: Timestamp, zone: jiff::tz::TimeZone) -> String {
    time.to_zoned_datetime(zone)
        .strftime("%Y-%m-%d %H:%M:%S")
        .to_string()
}

/// A duration: `38 us`, `1.2 ms`, `3.4 s`, `2 min 5 s`.
#[must_use]
pub fn elapsed(us: u64) -> String {
    match us {
        ..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        1_000_000..60_000_000 => format!("{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000),
        _ => format!("{} min {} s", us / 60_000_000, us / 1_000_000 % 60),
    }
}

/// The time so long ago: `7d`, `12h`, `1w 2d`.
///
/// # Errors
/// When it is no age.
pub fn long_ago(text: &str) -> Result<Timestamp, String> {
    let now = Timestamp::now().to_zoned_datetime(jiff::tz::TimeZone::UTC);
    let then = now.checked_sub(length(text)?);
    Ok(then.map_err(|error| error.to_string())?.timestamp())
}

fn length(text: &str) -> Result<Span, String> {
    let span: Span = text
        .parse()
        .map_err(|_| "an age is like 7d, 12h or '1w 2d'".to_owned())?;
    if !span.is_positive() {
        return Err("an age is more than nothing".to_owned());
    }
    Ok(span)
}

/// The time so much later than now: `7d`, `12h`, `1w 2d`.
///
/// # Errors
/// When it is no duration.
pub fn from_now(text: &str) -> Result<Timestamp, String> {
    let now = Timestamp::now().to_zoned_datetime(jiff::tz::TimeZone::UTC);
    let then = now.checked_add(length(text)?);
    Ok(then.map_err(|error| error.to_string())?.timestamp())
}

/// A length of time in whole seconds; for clap.
///
/// # Errors
/// When it is none, or too short.
pub fn seconds(text: &str) -> Result<u64, String> {
    let now = Timestamp::now().to_zoned_datetime(jiff::tz::TimeZone::UTC);
    let exact = length(text)?.to_duration(&now);
    let seconds = exact.map_err(|error| error.to_string())?.as_secs();
    match u64::try_from(seconds).map_err(|error| error.to_string())? {
        0 => Err("at least a second".to_owned()),
        seconds => Ok(seconds),
    }
}

/// A length of time: `7 d`, `1 d 12 h`, `90 s`.
#[must_use]
pub fn span(seconds: u64) -> String {
    let parts = [
        (seconds / 86_400, "d"),
        (seconds / 3_600 % 24, "h"),
        (seconds / 60 % 60, "min"),
        (seconds % 60, "s"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let texts: Vec<_> = parts
        .map(|(count, unit)| format!("{count} {unit}"))
        .collect();
    texts.join(" ")
}

/// How far away an RFC 3339 time is: `in 3 h`. A text that is no time is returned as it is.
#[must_use]
pub fn until(text: &str) -> String {
    let Ok(time) = text.parse::<Timestamp>() else {
        return text.to_owned();
    };
    let left = time.duration_since(Timestamp::now()).as_secs();
    match u64::try_from(left).unwrap_or(0) {
        0 => "now".to_owned(),
        seconds @ 1..60 => format!("in {seconds} s"),
        seconds @ 60..3_600 => format!("in {} min", seconds / 60),
        seconds @ 3_600..172_800 => format!("in {} h", seconds / 3_600),
        seconds => format!("in {} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_pick_one_unit() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let at =
            |seconds: i64| ago_between(Timestamp::from_second(1_000_000 - seconds).unwrap(), now);
        assert_eq!(at(-10), "just now");
        assert_eq!(at(59), "59 s ago");
        assert_eq!(at(3_599), "59 min ago");
        assert_eq!(at(86_399), "23 h ago");
        assert_eq!(at(86_400), "1 day ago");
        assert_eq!(at(200_000), "2 days ago");
        assert_eq!(ago("yesterday"), "yesterday");
    }

    #[test]
    fn times_are_shown_where_one_is() {
        let time = "2026-01-02T03:04:05.678901Z".parse().unwrap();
        let zone = jiff::tz::TimeZone::fixed(jiff::tz::offset(-4));
        assert_eq!(shown_in(time, zone), "2026-01-01 23:04:05");
        assert_eq!(local("yesterday"), "yesterday");
    }

    #[test]
    fn durations_pick_one_unit() {
        assert_eq!(elapsed(38), "38 us");
        assert_eq!(elapsed(1_250), "1.2 ms");
        assert_eq!(elapsed(3_450_000), "3.4 s");
        assert_eq!(elapsed(125_000_000), "2 min 5 s");
    }

    #[test]
    fn lengths_of_time_are_read_and_shown() {
        for (text, shown) in [
            ("7d", "7 d"),
            ("1w 2d", "9 d"),
            ("36h", "1 d 12 h"),
            ("90s", "1 min 30 s"),
            ("1 d 12 h", "1 d 12 h"),
        ] {
            assert_eq!(span(seconds(text).unwrap()), shown, "{text}");
        }
        for wrong in ["", "7", "-1d", "0s", "999 ms", "never"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        let hour = from_now("1h").unwrap().duration_since(Timestamp::now());
        assert!((3_590..=3_600).contains(&hour.as_secs()));
        assert_eq!(until(&from_now("90 min").unwrap().to_string()), "in 1 h");
        assert_eq!(until("2026-01-02T03:04:05Z"), "now");
        assert_eq!(until("tomorrow"), "tomorrow");
    }

    #[test]
    fn an_age_is_a_time_in_the_past() {
        let day = Timestamp::now() - jiff::SignedDuration::from_hours(24);
        let parsed = long_ago("1d").unwrap();
        assert!((parsed.as_second() - day.as_second()).abs() < 5);
        assert!(long_ago("2w 1h").is_ok());
        for wrong in ["", "7", "yesterday", "-1d", "0s"] {
            assert!(long_ago(wrong).is_err(), "{wrong}");
        }
    }
}
