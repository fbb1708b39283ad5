//! The promises of the design, and what became of them in a run.

use std::time::Duration;

use serde::Serialize;

use super::stats::shown;

/// A promise of the design and what was measured.
#[derive(Debug, Serialize)]
pub struct Goal {
    /// The promise.
    pub promise: String,
    /// The limit, in `unit`.
    pub limit: f64,
    /// What was measured, in `unit`; absent if it was not.
    pub measured: Option<f64>,
    /// What the figures count.
    pub unit: Unit,
    /// The case the figure comes from.
    pub case: String,
    /// Whether the promise was kept; absent if it was not measured, or not in all of its cases.
    pub met: Option<bool>,
    /// Cases that the promise is about and that were not measured.
    pub missing: Vec<String>,
}

/// What a goal's figures count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Nanoseconds.
    Ns,
    /// How many times as long.
    Ratio,
}

impl Goal {
    /// A promise about a time, for the worst of several cases. A promise is kept strictly below
    /// its limit.
    #[must_use]
    pub fn time<C: Into<String>>(
        promise: impl Into<String>,
        limit: Duration,
        cases: impl IntoIterator<Item = (C, u64)>,
    ) -> Self {
        let worst = cases.into_iter().max_by_key(|(_, ns)| *ns);
        let worst = worst.map(|(case, ns)| (case.into(), ns as f64));
        let limit = limit.as_nanos() as f64;
        let (case, measured) = worst.unzip();
        Self {
            promise: promise.into(),
            limit,
            measured,
            unit: Unit::Ns,
            case: case.unwrap_or_default(),
            met: measured.map(|ns| ns < limit),
            missing: Vec::new(),
        }
    }

    /// A promise about how many times as long the second of two takes, for the worst of several
    /// pairs. The limit itself keeps it.
    #[must_use]
    pub fn ratio<C: Into<String>>(
        promise: impl Into<String>,
        limit: f64,
        cases: impl IntoIterator<Item = (C, u64, u64)>,
    ) -> Self {
        let ratios = cases.into_iter();
        let ratios = ratios.map(|(case, base, other)| (case, other as f64 / base.max(1) as f64));
        let worst = ratios.max_by(|(_, a), (_, b)| a.total_cmp(b));
        let (case, measured) = worst.map(|(case, ratio)| (case.into(), ratio)).unzip();
        Self {
            promise: promise.into(),
            limit,
            measured,
            unit: Unit::Ratio,
            case: case.unwrap_or_default(),
            met: measured.map(|ratio| ratio <= limit),
            missing: Vec::new(),
        }
    }

    /// Names the cases that the promise is about and that were not measured. With one of them
    /// missing it is not known to be kept; that it is not kept, the other cases can show.
    #[must_use]
    pub fn without(mut self, missing: impl IntoIterator<Item = String>) -> Self {
        self.missing.extend(missing);
        if !self.missing.is_empty() && self.met == Some(true) {
            self.met = None;
        }
        self
    }

    /// `met`, `missed by 31.0 us (1.3x)`, or `not measured`.
    #[must_use]
    pub fn verdict(&self) -> String {
        let (Some(met), Some(measured)) = (self.met, self.measured) else {
            return "not measured".to_owned();
        };
        if met {
            return "met".to_owned();
        }
        let over = measured - self.limit;
        match self.unit {
            Unit::Ns => {
                let over = Duration::from_secs_f64(over.max(0.0) / 1e9);
                let ns = u64::try_from(over.as_nanos()).unwrap_or(u64::MAX);
                let times = measured / self.limit;
                format!("missed by {} ({times:.1}x)", shown(ns))
            }
            Unit::Ratio => format!("missed by {over:.2}"),
        }
    }

    /// The measured figure and where it comes from.
    #[must_use]
    pub fn figure(&self) -> String {
        let Some(measured) = self.measured else {
            return String::new();
        };
        let figure = match self.unit {
            Unit::Ns => {
                let time = Duration::from_secs_f64(measured.max(0.0) / 1e9);
                shown(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
            }
            Unit::Ratio => format!("{measured:.2}x"),
        };
        let mut words = vec![self.case.clone()];
        if let [first, more @ ..] = self.missing.as_slice() {
            let more = match more.len() {
                0 => String::new(),
                count => format!(" and {count} more"),
            };
            words.push(format!("without {first}{more}"));
        }
        words.retain(|word| !word.is_empty());
        if words.is_empty() {
            figure
        } else {
            format!("{figure} ({})", words.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(100);

    #[test]
    fn a_goal_is_judged_by_its_worst_case() {
        let goal = Goal::time("p50 < 100 us", LIMIT, [("a", 80_000), ("b", 99_999)]);
        assert_eq!((goal.met, goal.verdict().as_str()), (Some(true), "met"));
        assert_eq!(goal.figure(), "99.9 us (b)");
        let goal = Goal::time("p50 < 100 us", LIMIT, [("a", 131_000), ("b", 90_000)]);
        assert_eq!(goal.verdict(), "missed by 31.0 us (1.3x)");
        assert_eq!(goal.case, "a");
    }

    #[test]
    fn a_time_at_its_limit_misses_and_a_ratio_at_its_limit_keeps_it() {
        assert_eq!(Goal::time("", LIMIT, [("a", 100_000)]).met, Some(false));
        assert_eq!(Goal::ratio("", 1.5, [("a", 100, 150)]).met, Some(true));
        let goal = Goal::ratio("", 1.2, [("a", 100, 110), ("b", 100, 147)]);
        assert_eq!(goal.verdict(), "missed by 0.27");
        assert_eq!(goal.figure(), "1.47x (b)");
    }

    /// A goal for 10 GiB was once reported as met where the disk had room for 1 GiB only.
    #[test]
    fn a_goal_is_not_met_while_one_of_its_cases_is_missing() {
        let missing = || ["c".to_owned(), "d".to_owned()];
        let goal = Goal::time("", LIMIT, [("a", 80_000)]).without(missing());
        assert_eq!(goal.met, None);
        assert_eq!(goal.verdict(), "not measured");
        assert_eq!(goal.figure(), "80.0 us (a; without c and 1 more)");
        let goal = Goal::time("", LIMIT, [("a", 180_000)]).without(missing());
        assert_eq!(goal.met, Some(false));
        let goal = Goal::ratio("", 1.5, [("a", 100, 110)]).without([]);
        assert_eq!(goal.met, Some(true));
    }

    #[test]
    fn what_was_not_measured_is_neither_met_nor_missed() {
        let none: [(&str, u64); 0] = [];
        let no_pairs: [(&str, u64, u64); 0] = [];
        for goal in [Goal::time("", LIMIT, none), Goal::ratio("", 1.0, no_pairs)] {
            assert_eq!((goal.met, goal.measured), (None, None));
            assert_eq!(goal.verdict(), "not measured");
            assert_eq!(goal.figure(), "");
        }
    }
}
