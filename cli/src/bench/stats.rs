//! Times: recording them, their percentiles, and how they spread.
//!
//! Times are kept in an HDR histogram with three significant digits, so that a percentile is wrong
//! by at most 0.1 %.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest time that is kept as it is; anything longer counts as this.
const LONGEST_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

/// Times of one thing done again and again.
#[derive(Clone, Debug)]
pub struct Times {
    histogram: Histogram<u64>,
}

impl Default for Times {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS);
        Self {
            histogram: histogram.expect("constant bounds in range"),
        }
    }
}

impl Times {
    /// Takes one time in.
    pub fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(LONGEST_NS);
        self.histogram.saturating_record(ns.max(1));
    }

    /// Does something and takes in how long it took, also when it failed.
    pub fn time<T>(&mut self, act: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = act();
        self.record(started.elapsed());
        result
    }

    /// How many were taken in.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.histogram.len()
    }

    /// Percentiles; `None` when nothing was taken in.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        if self.histogram.is_empty() {
            return None;
        }
        let at = |quantile| self.histogram.value_at_quantile(quantile);
        Some(Summary {
            samples: self.histogram.len(),
            min_ns: self.histogram.min(),
            p25_ns: at(0.25),
            p50_ns: at(0.5),
            p75_ns: at(0.75),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.histogram.max(),
            mean_ns: self.histogram.mean(),
        })
    }

    /// The times sorted into a readable number of classes, each somewhat longer than the one
    /// before.
    #[must_use]
    pub fn bars(&self) -> Vec<Bar> {
        let (Some(first), Some(last)) = self.range() else {
            return Vec::new();
        };
        let classes = SCALES.iter().map(|scale| classes(scale, first, last));
        let mut classes = classes.collect::<Vec<_>>();
        let fits = classes.iter().position(|c| c.len() <= BARS_MAX + 1);
        let bounds = classes.swap_remove(fits.unwrap_or(SCALES.len() - 1));
        let mut bars: Vec<Bar> = bounds
            .windows(2)
            .map(|pair| Bar {
                from_ns: pair[0],
                below_ns: pair[1],
                count: 0,
            })
            .collect();
        for value in self.histogram.iter_recorded() {
            let at = bars.partition_point(|bar| bar.below_ns <= value.value_iterated_to());
            if let Some(bar) = bars.get_mut(at) {
                bar.count += value.count_since_last_iteration();
            }
        }
        bars
    }

    fn range(&self) -> (Option<u64>, Option<u64>) {
        let mut values = self
            .histogram
            .iter_recorded()
            .map(|value| value.value_iterated_to());
        let first = values.next();
        (first, values.last().or(first))
    }
}

/// Percentiles of the times of one thing, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How many times it was done.
    pub samples: u64,
    /// Shortest time.
    pub min_ns: u64,
    /// A quarter took at most this long.
    pub p25_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// A quarter took longer.
    pub p75_ns: u64,
    /// One in 10 took longer.
    pub p90_ns: u64,
    /// One in 100 took longer.
    pub p99_ns: u64,
    /// One in 1,000 took longer.
    pub p999_ns: u64,
    /// Longest time.
    pub max_ns: u64,
    /// Mean.
    pub mean_ns: f64,
}

impl Summary {
    /// Half the distance between the quartiles, in per cent of the median.
    #[must_use]
    pub fn spread_percent(&self) -> u64 {
        (self.p75_ns - self.p25_ns) * 50 / self.p50_ns.max(1)
    }
}

/// A class of times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Shortest time in it.
    pub from_ns: u64,
    /// Shortest time beyond it.
    pub below_ns: u64,
    /// How many there are.
    pub count: u64,
}

const BARS_MAX: usize = 16;
/// Class bounds within a decade, in hundredths, from fine to coarse.
const SCALES: [&[u64]; 5] = [
    &[
        100, 112, 125, 140, 160, 180, 200, 224, 250, 280, 315, 355, 400, 450, 500, 560, 630, 710,
        800, 900,
    ],
    &[100, 125, 160, 200, 250, 315, 400, 500, 630, 800],
    &[100, 160, 250, 400, 630],
    &[100, 200, 500],
    &[100],
];

/// Bounds of the classes of a scale that hold everything from `first` to `last`.
fn classes(scale: &[u64], first: u64, last: u64) -> Vec<u64> {
    let mut bounds = vec![0];
    let mut decade = 1_u64;
    while decade < LONGEST_NS {
        bounds.extend(scale.iter().map(|part| part * decade));
        decade *= 10;
    }
    let from = bounds.partition_point(|&bound| bound <= first).max(1) - 1;
    let end = bounds.partition_point(|&bound| bound <= last);
    bounds.truncate(end + 1);
    bounds.split_off(from)
}

/// A time in three digits: `850 ns`, `3.42 us`, `87.2 us`, `1.20 ms`, `4.00 s`.
#[must_use]
pub fn shown(ns: u64) -> String {
    let (unit, name) = match ns {
        ..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    match ns / unit {
        ..10 => format!("{}.{:02} {name}", ns / unit, ns % unit * 100 / unit),
        10..100 => format!("{}.{} {name}", ns / unit, ns % unit * 10 / unit),
        _ => format!("{} {name}", ns / unit),
    }
}

/// A number with its digits in groups of three: `10,000`.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(us: impl IntoIterator<Item = u64>) -> Times {
        let mut times = Times::default();
        us.into_iter()
            .for_each(|us| times.record(Duration::from_micros(us)));
        times
    }

    fn near(value: u64, expected: u64) {
        let off = value.abs_diff(expected);
        assert!(off * 1000 <= expected, "{value} is not near {expected}");
    }

    #[test]
    fn percentiles_are_within_a_thousandth() {
        let summary = times(1..=10_000).summary().unwrap();
        assert_eq!(summary.samples, 10_000);
        near(summary.min_ns, 1_000);
        near(summary.p25_ns, 2_500_000);
        near(summary.p50_ns, 5_000_000);
        near(summary.p99_ns, 9_900_000);
        near(summary.p999_ns, 9_990_000);
        near(summary.max_ns, 10_000_000);
        assert_eq!(summary.spread_percent(), 50);
        assert_eq!(Times::default().summary(), None);
    }

    #[test]
    fn times_out_of_range_are_kept_at_its_ends() {
        let mut times = Times::default();
        times.record(Duration::ZERO);
        times.record(Duration::from_secs(1_000_000));
        let summary = times.summary().unwrap();
        assert_eq!(summary.min_ns, 1);
        near(summary.max_ns, LONGEST_NS);
    }

    #[test]
    fn every_time_is_in_exactly_one_bar() {
        for us in [vec![5], vec![80, 81, 95, 4_000], (1..2_000).collect()] {
            let times = times(us.clone());
            let bars = times.bars();
            assert!(!bars.is_empty() && bars.len() <= BARS_MAX, "{bars:?}");
            let counted: u64 = bars.iter().map(|bar| bar.count).sum();
            assert_eq!(counted, us.len() as u64, "{bars:?}");
            assert!(bars.windows(2).all(|two| two[0].below_ns == two[1].from_ns));
            assert!(bars[0].count > 0 && bars[bars.len() - 1].count > 0);
        }
        assert_eq!(Times::default().bars(), []);
    }

    #[test]
    fn times_have_three_digits() {
        let all = [
            (0, "0 ns"),
            (999, "999 ns"),
            (3_429, "3.42 us"),
            (87_250, "87.2 us"),
            (100_999, "100 us"),
            (1_200_000, "1.20 ms"),
            (2_000_000_000, "2.00 s"),
            (75_000_000_000, "75.0 s"),
        ];
        for (ns, text) in all {
            assert_eq!(shown(ns), text);
        }
    }

    #[test]
    fn digits_are_grouped_from_the_right() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }
}
