//! The entry of `cargo bench`: each bench as a program of its own.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use super::{Bench, Options, run};
use crate::output::{ColorWhen, Output, report_usage};

/// Arguments after `cargo bench --bench NAME --`.
#[derive(Debug, Parser)]
struct Arguments {
    /// Small sizes and few samples
    #[arg(long)]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Where the temporary stores go
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Given by `cargo bench` to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

/// Runs one bench with the arguments of this process; `floe` finds or builds the program that is
/// measured from outside. Without `--bench`, as in `cargo test --benches`, nothing is run.
#[must_use]
pub fn cargo_bench(bench: Bench, floe: impl FnOnce() -> PathBuf) -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let arguments = match Arguments::try_parse_from(&words) {
        Ok(arguments) => arguments,
        Err(error) => return report_usage(&error, &words),
    };
    let output = Output::new(arguments.json, false, ColorWhen::Auto);
    if !arguments.bench {
        output.note("a bench; run it with `cargo bench`");
        return ExitCode::SUCCESS;
    }
    let options = Options {
        benches: vec![bench],
        quick: arguments.quick,
        dir: arguments.dir,
        floe: Some(floe()),
    };
    match run(&options, &output) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => output.report(&error, None),
    }
}
