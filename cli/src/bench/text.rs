//! A run as text for a terminal.

use super::conditions::Conditions;
use super::draw::{columns, histogram};
use super::goal::Goal;
use super::machine::Machine;
use super::report::{Amount, Group, Layout, Report, Section};
use super::stats::{Summary, grouped, shown};
use crate::output::{Output, Paint, size};

/// What stands above all figures: where and how they were taken.
#[must_use]
pub fn header(machine: &Machine, quick: bool, output: &Output) -> String {
    let cpu = machine.cpu.as_deref().unwrap_or("unknown processor");
    let memory = machine
        .memory_bytes
        .map_or_else(|| "unknown".to_owned(), size);
    let cores = if machine.cores == 1 { "core" } else { "cores" };
    let reflink = match machine.reflink {
        Some(true) => ", reflink",
        Some(false) => ", no reflink",
        None => "",
    };
    let load = machine.load.map_or_else(
        || "unknown".to_owned(),
        |[one, five, fifteen]| format!("{one:.2} {five:.2} {fifteen:.2}"),
    );
    let build = if machine.optimized {
        "optimised build"
    } else {
        "DEBUG BUILD"
    };
    let mut text = format!(
        "Floe {} ({build}) on {} {cores} of {cpu}, {memory} of memory, Linux {}\n\
         store on {}{reflink}, {} free; load average {load}; {}\n",
        machine.floe,
        machine.cores,
        machine.kernel,
        machine.disk,
        size(machine.disk_free_bytes),
        machine.started_at,
    );
    let mut warn = |what: &str| {
        text.push_str(&format!("{}: {what}\n", output.paint(Paint::Warn, "note")));
    };
    if !machine.optimized {
        warn("the build is not optimised; its figures say nothing about Floe");
    }
    if machine.load.is_some_and(|[one, ..]| one > 0.5) {
        warn("other programs are using this machine; expect long tails");
    }
    if quick {
        warn(
            "quick run: small sizes and few samples, so the goals are judged on less than promised",
        );
    }
    if !machine.root {
        warn("not root: mounts go through fusermount3, and some peers are left out");
    }
    text
}

/// One bench: tables, histograms, goals, and what was left out.
#[must_use]
pub fn section(section: &Section, output: &Output) -> String {
    let mut text = format!("\n{}\n", output.paint(Paint::Hint, section.name));
    text.push_str(&format!("{}\n", section.about));
    for group in &section.groups {
        text.push_str(&match group.layout {
            Layout::Percentiles => percentiles(group),
            Layout::Medians => medians(group),
        });
    }
    if !section.amounts.is_empty() {
        text.push_str(&amounts(&section.amounts));
    }
    for picture in &section.pictures {
        text.push_str(&histogram(picture));
    }
    if !section.goals.is_empty() {
        text.push_str(&goals(&section.goals, output));
    }
    for skipped in &section.skipped {
        let label = output.paint(Paint::Warn, "not measured");
        text.push_str(&format!("\n{label}: {}: {}", skipped.what, skipped.reason));
    }
    for note in &section.notes {
        text.push_str(&format!("\nnote: {note}"));
    }
    text.push_str(&format!("\n({})\n", conditions(&section.conditions)));
    text
}

fn conditions(conditions: &Conditions) -> String {
    let mut text = format!("{:.0} s", conditions.elapsed_s);
    if let Some(load) = conditions.load_before {
        text.push_str(&format!("; load average {load:.2} before"));
    }
    if let Some(percent) = conditions.others_percent {
        text.push_str(&format!("; others used {percent:.0}% of the processors"));
    }
    match conditions.stolen_percent {
        Some(percent) if percent >= 0.5 => {
            text.push_str(&format!(", the host took {percent:.0}%"));
        }
        _ => {}
    }
    let (before, after) = (conditions.pace_before_ns, conditions.pace_after_ns);
    let (before, after) = (shown(before), shown(after));
    text.push_str(&format!(
        "; a fixed computation took {before} before, {after} after"
    ));
    text
}

/// The last line of a run.
#[must_use]
pub fn footer(report: &Report) -> String {
    let met = |wanted| {
        let goals = report.sections.iter().flat_map(|section| &section.goals);
        goals.filter(|goal| goal.met == wanted).count()
    };
    let load = report
        .load_at_end
        .map_or_else(String::new, |load| format!("; load average {load:.2}"));
    format!(
        "\n{} goals met, {} missed, {} not measured; {:.0} s{load}\n",
        met(Some(true)),
        met(Some(false)),
        met(None),
        report.elapsed_s
    )
}

fn percentiles(group: &Group) -> String {
    let head = [
        &*group.title,
        "samples",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
    ];
    let row = |case: &str, summary: &Summary| {
        vec![
            format!("  {case}"),
            grouped(summary.samples),
            shown(summary.p50_ns),
            shown(summary.p90_ns),
            shown(summary.p99_ns),
            shown(summary.p999_ns),
            shown(summary.max_ns),
        ]
    };
    let rows = group.series.iter();
    let rows = rows.map(|series| row(&series.case, &series.summary));
    columns(&head, &rows.collect::<Vec<_>>())
}

fn amounts(amounts: &[Amount]) -> String {
    let row = |amount: &Amount| {
        let shown = |value| match amount.unit {
            "bytes" => size(value),
            _ => grouped(value),
        };
        vec![
            format!("  {}", amount.what),
            grouped(amount.samples as u64),
            shown(amount.p50),
            shown(amount.p99),
            shown(amount.max),
        ]
    };
    let head = ["how much", "samples", "p50", "p99", "max"];
    columns(&head, &amounts.iter().map(row).collect::<Vec<_>>())
}

fn medians(group: &Group) -> String {
    let mut cases: Vec<&str> = Vec::new();
    let mut places: Vec<u64> = Vec::new();
    for series in &group.series {
        if !cases.contains(&&*series.case) {
            cases.push(&series.case);
        }
        if let Some(at) = series.at
            && !places.contains(&at)
        {
            places.push(at);
        }
    }
    let mut head = vec![group.title.clone()];
    head.extend(places.iter().map(|&at| grouped(at)));
    head.push("worst ratio".to_owned());
    let row = |case: &&str| {
        let found = |at: u64| {
            let mut all = group.series.iter();
            all.find(|series| series.case == **case && series.at == Some(at))
                .map(|series| &series.summary)
        };
        let first = places.first().and_then(|&at| found(at));
        let mut row = vec![format!("  {case}")];
        let mut worst = 0.0_f64;
        for &at in &places {
            row.push(match found(at) {
                Some(summary) => {
                    let base = first.map_or(summary.p50_ns, |first| first.p50_ns).max(1);
                    worst = worst.max(summary.p50_ns as f64 / base as f64);
                    format!("{} ±{}%", shown(summary.p50_ns), summary.spread_percent())
                }
                None => "-".to_owned(),
            });
        }
        row.push(format!("{worst:.2}x"));
        row
    };
    let rows: Vec<_> = cases.iter().map(row).collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    columns(&head, &rows)
}

fn goals(goals: &[Goal], output: &Output) -> String {
    let verdicts: Vec<String> = goals.iter().map(Goal::verdict).collect();
    let width = verdicts.iter().map(String::len).max().unwrap_or(0);
    let mut text = "\ngoals\n".to_owned();
    for (goal, verdict) in goals.iter().zip(verdicts) {
        let paint = match goal.met {
            Some(true) => Paint::Good,
            Some(false) => Paint::Bad,
            None => Paint::Warn,
        };
        let verdict = output.paint(paint, &format!("{verdict:width$}"));
        let figure = goal.figure();
        let colon = if figure.is_empty() { "" } else { ": " };
        text.push_str(&format!("  {verdict}  {}{colon}{figure}\n", goal.promise));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::stats::Times;
    use std::time::Duration;

    fn times(us: &[u64]) -> Times {
        let mut times = Times::default();
        us.iter()
            .for_each(|&us| times.record(Duration::from_micros(us)));
        times
    }

    #[test]
    fn figures_stand_below_each_other() {
        let mut group = Group::new("idle", Layout::Percentiles);
        group.add("10 files", None, &times(&[80, 80, 80]));
        group.add("a", None, &times(&[1_500]));
        let text = percentiles(&group);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "");
        assert!(lines[1].starts_with("idle        samples"), "{text}");
        assert_eq!(lines[1].len(), lines[2].len(), "{text}");
        assert_eq!(lines[2].len(), lines[3].len(), "{text}");
        assert!(lines[2].starts_with("  10 files        3  80."), "{text}");
    }

    #[test]
    fn medians_are_compared_with_the_first_column() {
        let mut group = Group::new("cold", Layout::Medians);
        group.add("stat", Some(1), &times(&[100]));
        group.add("stat", Some(10_000), &times(&[150]));
        group.add("read", Some(1), &times(&[10]));
        let text = medians(&group);
        assert!(text.contains("10,000  worst ratio"), "{text}");
        assert!(text.contains("1.50x"), "{text}");
        let read = text.lines().find(|line| line.contains("read")).unwrap();
        assert!(read.contains(" - ") && read.ends_with("1.00x"), "{text}");
    }

    #[test]
    fn goals_say_how_they_went_without_colour() {
        let limit = Duration::from_micros(100);
        let all = [
            Goal::time("p50 < 100 us", limit, [("10 files", 90_000)]),
            Goal::time("p99 < 100 us", limit, [("10 files", 190_000)]),
            Goal::time("later", limit, None::<(&str, u64)>),
        ];
        let text = goals(&all, &Output::plain(false));
        assert!(text.contains("  met "), "{text}");
        assert!(
            text.contains("missed by 90.0 us (1.9x)  p99 < 100 us: 190 us (10 files)"),
            "{text}"
        );
        assert!(text.contains("not measured "), "{text}");
        assert!(text.ends_with("later\n"), "{text}");
    }
}
