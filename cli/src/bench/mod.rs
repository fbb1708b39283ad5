//! The bench suite: what `floe bench` and `cargo bench` measure and how they show it.
//!
//! [`run`] does it all. Each bench is one file ([`snapshot`], [`fork`], [`depth`], [`copy_up`], [`base`], [`diff`],
//! [`land`], [`space`], [`api`], [`vm`]) that builds what it measures in a temporary store on the disk in question ([`fill`], [`rig`]), does the
//! thing again and again ([`stats`]), and returns a [`report::Section`] with percentiles, the
//! promises of the design and whether they were kept. [`peers`] does the same by other means in the
//! same run.
//!
//! Rules: nothing is printed that was not measured in this run; what could not be measured stands
//! there with the reason; every mount, process and file is removed by a guard, also after an error
//! or an interrupt. No test asserts a time.

mod api;
mod base;
mod cargo;
pub mod conditions;
mod copy_up;
mod depth;
mod diff;
mod draw;
mod error;
mod fill;
mod fork;
pub mod goal;
mod lab;
mod land;
mod load;
pub mod machine;
mod peers;
pub mod report;
mod rig;
mod room;
mod server;
mod snapshot;
mod space;
pub mod stats;
mod text;
mod vm;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub use cargo::cargo_bench;
pub use error::{BenchError, Stderr};

use crate::error::ApiError;
use crate::output::Output;
use error::Step;
use lab::Lab;
use machine::Machine;
use report::{Report, Section};

/// A bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Bench {
    /// Snapshots, by size and load.
    Snapshot,
    /// Forks, mounted and not.
    Fork,
    /// Reading through long chains of snapshots.
    Depth,
    /// Writing into large frozen files.
    CopyUp,
    /// Beginning on a directory in place.
    Base,
    /// Finding what was changed, by size.
    Diff,
    /// Landing changes, by their number.
    Land,
    /// Looking after a store of many objects, and working meanwhile.
    Space,
    /// Calls of the HTTP API: create, exec, snapshot, fork, kill.
    Api,
    /// Snapshots of running virtual machines, and machines that go on from them.
    Vm,
}

/// What to measure, and where.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The benches; none means all.
    pub benches: Vec<Bench>,
    /// Small sizes and few samples.
    pub quick: bool,
    /// Where the temporary stores go.
    pub dir: Option<PathBuf>,
    /// The `floe` program, for what is measured from outside.
    pub floe: Option<PathBuf>,
}

impl Bench {
    fn run(self, lab: &Lab<'_>) -> Result<Section, BenchError> {
        match self {
            Self::Snapshot => snapshot::run(lab),
            Self::Fork => fork::run(lab),
            Self::Depth => depth::run(lab),
            Self::CopyUp => copy_up::run(lab),
            Self::Base => base::run(lab),
            Self::Diff => diff::run(lab),
            Self::Land => land::run(lab),
            Self::Space => space::run(lab),
            Self::Api => api::run(lab),
            Self::Vm => vm::run(lab),
        }
    }
}

/// Runs benches and prints what they measured: each as it ends, or all at the end as JSON.
///
/// # Errors
/// When a bench cannot be run or was interrupted, or the output cannot be written.
pub fn run(options: &Options, output: &Output) -> Result<Report, ApiError> {
    let started = Instant::now();
    let progress = Progress::new(output);
    let say = |what: &str| progress.say(what);
    let dir = options.dir.clone().unwrap_or_else(default_dir);
    let lab = Lab::new(&dir, options.quick, options.floe.clone(), &say)?;
    let mut report = Report {
        machine: Machine::look(lab.dir(), Some(probe(&lab)?)),
        quick: options.quick,
        dir,
        sections: Vec::new(),
        elapsed_s: 0.0,
        load_at_end: None,
    };
    let print = |text: &str| {
        if output.json {
            Ok(())
        } else {
            progress.hide(|| output.text(text))
        }
    };
    print(&text::header(&report.machine, options.quick, output))?;
    let all = Bench::value_variants();
    for bench in all {
        if options.benches.is_empty() || options.benches.contains(bench) {
            let section = bench.run(&lab)?;
            print(&text::section(&section, output))?;
            report.sections.push(section);
        }
    }
    drop(lab);
    report.elapsed_s = started.elapsed().as_secs_f64();
    report.load_at_end = machine::load().map(|[one, ..]| one);
    print(&text::footer(&report))?;
    progress.hide(|| {
        if output.json {
            output.json(&report)
        } else {
            Ok(())
        }
    })?;
    Ok(report)
}

/// A disk if possible: `$TMPDIR`, or `/var/tmp`, which unlike `/tmp` is not in memory.
fn default_dir() -> PathBuf {
    let given = std::env::var_os("TMPDIR").filter(|value| !value.is_empty());
    given.map_or_else(|| Path::new("/var/tmp").to_owned(), PathBuf::from)
}

/// Makes a store to see that one can be made, and whether its disk can share extents.
fn probe(lab: &Lab<'_>) -> Result<bool, BenchError> {
    let room = lab.room("probe")?;
    let info = rig::new_store(&room)?.info().step("look at the store")?;
    Ok(info.reflink.unwrap_or(false))
}

/// How often the progress line is drawn: seldom, as that happens while something is measured.
const TICK: Duration = Duration::from_secs(1);

/// A line on stderr, if that is a terminal, that says what is being done.
struct Progress(Option<ProgressBar>);

impl Progress {
    fn new(output: &Output) -> Self {
        use std::io::IsTerminal;
        if output.quiet || !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
        let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.enable_steady_tick(TICK);
        Self(Some(bar))
    }

    fn say(&self, what: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(what.to_owned());
        }
    }

    /// Wipes the line while something is printed.
    fn hide<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
