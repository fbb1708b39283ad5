//! What else went on while something was measured: how fast the processor was, who else used it.
//!
//! A virtual machine's processor may run at half its speed for minutes without any trace in the
//! load average. So a fixed computation is timed before and after each bench: figures of two runs
//! can be compared only where that took the same time.

use std::hint::black_box;
use std::time::Instant;

use serde::Serialize;

use super::fill::Noise;
use super::machine::load;
use super::stats::Times;

/// Steps of the fixed computation, and how often it is done.
const STEPS: u64 = 100_000;
const REPEATS: u32 = 21;

/// The circumstances of a bench.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Conditions {
    /// Load average over a minute before it.
    pub load_before: Option<f64>,
    /// How long the fixed computation took before it, in nanoseconds.
    pub pace_before_ns: u64,
    /// And after it.
    pub pace_after_ns: u64,
    /// Share of all processors' time that other processes and the kernel's own threads used.
    pub others_percent: Option<f64>,
    /// Share of it that the host gave to somebody else, if it says so.
    pub stolen_percent: Option<f64>,
    /// How long it took, in seconds.
    pub elapsed_s: f64,
}

/// A look at the clocks before a bench.
pub(super) struct Watch {
    started: Instant,
    conditions: Conditions,
    clocks: Option<Clocks>,
}

impl Watch {
    /// Begins to watch.
    pub(super) fn start() -> Self {
        Self {
            conditions: Conditions {
                load_before: load().map(|[one, ..]| one),
                pace_before_ns: pace(),
                ..Conditions::default()
            },
            clocks: Clocks::now(),
            started: Instant::now(),
        }
    }

    /// What went on since.
    pub(super) fn end(self) -> Conditions {
        let mut conditions = self.conditions;
        conditions.elapsed_s = self.started.elapsed().as_secs_f64();
        if let (Some(before), Some(after)) = (self.clocks, Clocks::now()) {
            let passed = after.since(&before);
            let all = passed.all.max(1) as f64;
            let others = passed.busy.saturating_sub(passed.own) as f64;
            conditions.others_percent = Some(others * 100.0 / all);
            conditions.stolen_percent = Some(passed.stolen as f64 * 100.0 / all);
        }
        conditions.pace_after_ns = pace();
        conditions
    }
}

/// Median time of the fixed computation.
fn pace() -> u64 {
    let mut times = Times::default();
    for _ in 0..REPEATS {
        times.time(|| {
            let mut noise = Noise::new(0);
            let sum = (0..STEPS).fold(0_u64, |sum, _| sum.wrapping_add(noise.number()));
            black_box(sum)
        });
    }
    times.summary().map_or(0, |summary| summary.p50_ns)
}

/// Processor time since the start of the machine, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Clocks {
    all: u64,
    busy: u64,
    stolen: u64,
    /// Of this process and of the children it has waited for.
    own: u64,
}

impl Clocks {
    fn now() -> Option<Self> {
        let machine = std::fs::read_to_string("/proc/stat").ok()?;
        let process = std::fs::read_to_string("/proc/self/stat").ok()?;
        Self::parse(&machine, &process)
    }

    fn parse(machine: &str, process: &str) -> Option<Self> {
        let line = machine.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = numbers(line);
        let &[user, nice, system, idle, iowait, irq, softirq, stolen, ..] = &*ticks else {
            return None;
        };
        // The name of the program may hold anything, but is followed by the last parenthesis.
        let (_, fields) = process.rsplit_once(')')?;
        let mut fields = fields.split_whitespace().skip(11);
        let mut next = || fields.next()?.parse::<u64>().ok();
        let own = next()? + next()? + next()? + next()?;
        let busy = user + nice + system + irq + softirq;
        Some(Self {
            all: busy + idle + iowait + stolen,
            busy,
            stolen,
            own,
        })
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            all: self.all.saturating_sub(before.all),
            busy: self.busy.saturating_sub(before.busy),
            stolen: self.stolen.saturating_sub(before.stolen),
            own: self.own.saturating_sub(before.own),
        }
    }
}

fn numbers(line: &str) -> Vec<u64> {
    let words = line.split_whitespace();
    words.map_while(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_read_from_proc() {
        let machine = "cpu  100 1 50 800 20 2 3 24 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        let process = "7 (a) b) S 1 7 7 0 -1 4194304 500 9 0 0 30 12 5 1 20 0 3 0 99";
        let clocks = Clocks::parse(machine, process).unwrap();
        let expected = Clocks {
            all: 1000,
            busy: 156,
            stolen: 24,
            own: 48,
        };
        assert_eq!(clocks, expected);
        assert_eq!(clocks.since(&expected).all, 0);
        assert_eq!(Clocks::parse("", process), None);
        assert_eq!(Clocks::parse(machine, "7 (x) S 1"), None);
    }

    #[test]
    fn a_watch_sees_this_machine() {
        let conditions = Watch::start().end();
        assert!(conditions.pace_before_ns > 0 && conditions.pace_after_ns > 0);
        assert!(conditions.others_percent.is_some() && conditions.load_before.is_some());
    }
}
