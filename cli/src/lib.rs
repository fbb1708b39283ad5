//! Command line and daemon of Floe.
//!
//! A command (one file a verb under `commands`) turns its arguments into requests of [`wire`],
//! sends them with [`client`] over the store's Unix socket, and prints the answers with
//! [`output`]. The [`daemon`], which the first such command starts, owns the store: its handlers
//! are plain functions from request to answer, so that another front end can call them too.
//! [`error`] alone decides what an error means to the user: kind, exit code, hint.

#![forbid(unsafe_code)]

pub mod agent;
pub mod api;
pub mod bench;
pub mod client;
mod commands;
pub mod config;
pub mod daemon;
pub mod error;
pub mod output;
pub mod progress;
pub mod store_dir;
pub mod time;
pub mod wire;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use commands::{Cli, Context};

/// Runs one command line and returns the status to end the process with.
#[must_use]
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return output::report_usage(&error, &arguments),
    };
    let context = match Context::new(&cli.globals) {
        Ok(context) => context,
        Err(error) => return output::Output::plain(cli.globals.json).report(&error, None),
    };
    match cli.command.run(&context) {
        Ok(status) => status,
        Err(error) => context.output.report(&error, context.store.flag()),
    }
}
