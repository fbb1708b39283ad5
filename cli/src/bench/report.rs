//! What a run measured, as data. Serialised it is the JSON of `floe bench --json`: fields are only
//! ever added. Nothing stands here that was not measured in this run.

use std::path::PathBuf;

use serde::Serialize;

use super::conditions::Conditions;
use super::goal::Goal;
use super::machine::Machine;
use super::stats::{Bar, Summary, Times};

/// A whole run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The machine it ran on.
    pub machine: Machine,
    /// Whether sizes and counts were the small ones.
    pub quick: bool,
    /// Where the temporary stores were.
    pub dir: PathBuf,
    /// What was measured.
    pub sections: Vec<Section>,
    /// How long all of it took, in seconds.
    pub elapsed_s: f64,
    /// Load average over a minute at the end.
    pub load_at_end: Option<f64>,
}

/// One bench.
#[derive(Debug, Serialize)]
pub struct Section {
    /// Its name, as in `floe bench NAME`.
    pub name: &'static str,
    /// What is measured, and how.
    pub about: &'static str,
    /// Times, by circumstances.
    pub groups: Vec<Group>,
    /// What was counted and not timed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub amounts: Vec<Amount>,
    /// Times drawn as histograms.
    #[serde(skip)]
    pub pictures: Vec<Picture>,
    /// Promises and what became of them.
    pub goals: Vec<Goal>,
    /// What was not measured.
    pub skipped: Vec<Skipped>,
    /// What a reader must know besides.
    pub notes: Vec<String>,
    /// What else went on meanwhile.
    pub conditions: Conditions,
}

impl Section {
    /// A section with nothing in it yet.
    #[must_use]
    pub fn new(name: &'static str, about: &'static str) -> Self {
        Self {
            name,
            about,
            groups: Vec::new(),
            amounts: Vec::new(),
            pictures: Vec::new(),
            goals: Vec::new(),
            skipped: Vec::new(),
            notes: Vec::new(),
            conditions: Conditions::default(),
        }
    }

    /// Adds something that was counted again and again; nothing if it was not.
    pub fn amount(&mut self, what: impl Into<String>, unit: &'static str, mut values: Vec<u64>) {
        values.sort_unstable();
        let at = |percent: usize| {
            let rank = (values.len() * percent).div_ceil(100).max(1);
            values.get(rank - 1).copied()
        };
        if let (Some(p50), Some(p99), Some(max)) = (at(50), at(99), at(100)) {
            self.amounts.push(Amount {
                what: what.into(),
                unit,
                samples: values.len(),
                p50,
                p99,
                max,
            });
        }
    }

    /// Notes that something was not measured.
    pub fn skip(&mut self, what: impl Into<String>, reason: impl Into<String>) {
        self.skipped.push(Skipped {
            what: what.into(),
            reason: reason.into(),
        });
    }

    /// Adds times, if any were taken.
    pub fn group(&mut self, group: Group) {
        if !group.series.is_empty() {
            self.groups.push(group);
        }
    }

    /// Adds a histogram, if there is anything to draw.
    pub fn picture(&mut self, title: impl Into<String>, times: &Times) {
        if let Some(summary) = times.summary() {
            self.pictures.push(Picture {
                title: title.into(),
                bars: times.bars(),
                summary,
            });
        }
    }
}

/// Something counted, as bytes on disk.
#[derive(Debug, Serialize)]
pub struct Amount {
    /// What.
    pub what: String,
    /// What is counted: `bytes`, or nothing where `what` says it.
    pub unit: &'static str,
    /// How often.
    pub samples: usize,
    /// The median.
    pub p50: u64,
    /// The value that 99 of 100 do not exceed.
    pub p99: u64,
    /// The largest.
    pub max: u64,
}

/// Times taken under the same circumstances.
#[derive(Debug, Serialize)]
pub struct Group {
    /// The circumstances.
    pub title: String,
    /// How a reader compares them.
    pub layout: Layout,
    /// The times.
    pub series: Vec<Series>,
}

/// How the times of a group are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// A row for each case, with its percentiles.
    Percentiles,
    /// A row for each case, a column of medians for each value of `at`.
    Medians,
}

impl Group {
    /// A group without times.
    #[must_use]
    pub fn new(title: impl Into<String>, layout: Layout) -> Self {
        Self {
            title: title.into(),
            layout,
            series: Vec::new(),
        }
    }

    /// Adds the times of a case; nothing if there are none.
    pub fn add(&mut self, case: impl Into<String>, at: Option<u64>, times: &Times) {
        if let Some(summary) = times.summary() {
            self.series.push(Series {
                case: case.into(),
                at,
                summary,
            });
        }
    }

    /// The percentiles of a case.
    #[must_use]
    pub fn summary(&self, case: &str) -> Option<&Summary> {
        let found = self.series.iter().find(|series| series.case == case);
        found.map(|series| &series.summary)
    }
}

/// Times of one case.
#[derive(Debug, Serialize)]
pub struct Series {
    /// What was done, or to what.
    pub case: String,
    /// The size that varies, where one does: the depth of a chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// The percentiles.
    #[serde(flatten)]
    pub summary: Summary,
}

/// A histogram to draw.
#[derive(Debug)]
pub struct Picture {
    /// What it shows.
    pub title: String,
    /// The classes.
    pub bars: Vec<Bar>,
    /// Where the percentiles are.
    pub summary: Summary,
}

/// What was not measured, and why.
#[derive(Debug, Serialize)]
pub struct Skipped {
    /// What.
    pub what: String,
    /// Why.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn amounts_are_sorted_and_nothing_is_no_amount() {
        let mut section = Section::new("vm", "");
        section.amount("nothing", "bytes", Vec::new());
        section.amount("one", "bytes", vec![7]);
        section.amount("many", "", (0..=100).rev().collect());
        let found = section.amounts.iter();
        let found: Vec<_> = found
            .map(|amount| (amount.p50, amount.p99, amount.max))
            .collect();
        assert_eq!(found, [(7, 7, 7), (50, 99, 100)]);
        let json = serde_json::to_value(&section).unwrap();
        assert_eq!(json["amounts"][0]["unit"], "bytes");
    }

    #[test]
    fn json_has_the_percentiles_of_every_case() {
        let mut times = Times::default();
        times.record(Duration::from_micros(50));
        let mut group = Group::new("idle", Layout::Percentiles);
        group.add("10 files", None, &times);
        group.add("nothing", None, &Times::default());
        let json = serde_json::to_value(&group).unwrap();
        assert_eq!(json["layout"], "percentiles");
        assert_eq!(json["series"].as_array().unwrap().len(), 1);
        assert_eq!(json["series"][0]["case"], "10 files");
        assert_eq!(json["series"][0]["samples"], 1);
        assert!(json["series"][0]["p999_ns"].as_u64().unwrap() >= 50_000);
    }
}
