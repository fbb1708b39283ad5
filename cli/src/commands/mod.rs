//! The verbs. One file each: the arguments, whose doc comments are the help, and `run`.

pub(crate) mod bench;
pub(crate) mod bisect;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod daemon;
pub(crate) mod dedup;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod du;
pub(crate) mod fork;
pub(crate) mod gc;
pub(crate) mod guest;
mod here;
pub(crate) mod land;
pub(crate) mod log;
pub(crate) mod man;
pub(crate) mod mount;
pub(crate) mod retention;
pub(crate) mod rollback;
pub(crate) mod sandbox;
pub(crate) mod serve;
pub(crate) mod snap;
pub(crate) mod snapshot;
pub(crate) mod store;
pub(crate) mod template;
pub(crate) mod umount;
pub(crate) mod vm;
pub(crate) mod ws;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::client::Client;
use crate::error::{ApiError, ErrorKind};
use crate::output::{ColorWhen, Output, printable};
use crate::store_dir::StoreDir;
use crate::wire::records::Unrestored;

/// Snapshots and forks of workspaces for AI agents
///
/// A workspace is a directory tree that Floe mounts. Taking a snapshot of it, forking a new
/// workspace from a snapshot, and rolling back to one take constant time, whatever its size.
#[derive(Debug, Parser)]
#[command(
    name = "floe",
    version,
    after_long_help = TOP_HELP,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    /// Flags that every command takes.
    #[command(flatten)]
    pub(crate) globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const TOP_HELP: &str = "\
Examples:
  floe ws create web --from ./web --copy    copy a directory into a new workspace
  cd \"$(floe mount web)\"                    work in it
  floe snapshot web --name green            freeze it
  floe fork web try --count 3 --mount       three copies to break
  floe rollback web green                   back to the snapshot, in place
  floe diff web/green web                   what was changed since
  floe land try                             merge a fork's changes into what it was forked from
  floe sandbox create web/green             a sandbox on it; prints its id
  floe sandbox exec ID -- make test         a command in it
  floe serve                                the same over HTTP

Environment:
  FLOE_STORE     the store, as --store
  FLOE_CONFIG    the configuration file, as --config
  FLOE_LOG       what the daemon logs: error, warn, info, debug, trace
  NO_COLOR       no colour, as --color never
  XDG_DATA_HOME  where the store of a user other than root is (floe below it)

Exit status:
  0 ok, 1 failed, 2 wrong usage, 3 not found, 4 conflict, 5 daemon unreachable,
  130 interrupted. Treat any other as failed. `floe sandbox exec` ends with the status of its command.";

/// Flags that every command takes.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Globals {
    /// Directory of the store [default: /var/lib/floe for root, else ~/.local/share/floe]
    ///
    /// It is made on first use if it does not exist or is empty.
    #[arg(long, global = true, value_name = "DIR", env = crate::store_dir::STORE_VARIABLE)]
    #[arg(hide_env_values = true, value_parser = store_dir())]
    pub(crate) store: Option<StoreArgument>,
    /// Print JSON: data on stdout, an error as one object on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print only names in lists, and no notes
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    #[arg(hide_possible_values = false)]
    pub(crate) color: ColorWhen,
}

/// What `--store` or the variable says. An empty variable counts as none, as for other programs.
#[derive(Clone, Debug)]
pub(crate) struct StoreArgument(PathBuf);

impl Globals {
    fn store(&self) -> Result<Option<&std::path::Path>, ApiError> {
        let Some(StoreArgument(dir)) = &self.store else {
            return Ok(None);
        };
        if !dir.as_os_str().is_empty() {
            return Ok(Some(dir));
        }
        let variable = std::env::var_os(crate::store_dir::STORE_VARIABLE);
        if variable.is_some_and(|value| value.is_empty()) {
            return Ok(None);
        }
        Err(
            ApiError::new(ErrorKind::Usage, "--store names no directory")
                .hint("leave it out to use the default store"),
        )
    }
}

/// Takes any text, an empty one too; for clap, whose own parser of paths refuses that.
fn store_dir() -> impl clap::builder::TypedValueParser<Value = StoreArgument> {
    use clap::builder::{OsStringValueParser, TypedValueParser};
    OsStringValueParser::new().map(|text| StoreArgument(PathBuf::from(text)))
}

/// All commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Workspaces: create, list, show, rename, delete
    #[command(subcommand)]
    Ws(ws::Ws),
    Mount(mount::Mount),
    #[command(visible_alias = "unmount")]
    Umount(umount::Umount),
    Snapshot(snapshot::Snapshot),
    Fork(fork::Fork),
    Rollback(rollback::Rollback),
    Bisect(bisect::Bisect),
    Diff(diff::Diff),
    Land(land::Land),
    Log(log::Log),
    /// Snapshots: list, show, tree, protect, label, edit, delete
    #[command(subcommand)]
    Snap(snap::Snap),
    /// Sandboxes: create, list, show, exec, pause, resume, snapshot, fork, rollback, kill, logs
    #[command(subcommand, visible_alias = "sb")]
    Sandbox(sandbox::Sandbox),
    /// Virtual machines: run, list, show, console, stop
    #[command(subcommand)]
    Vm(vm::Vm),
    /// Kernels for virtual machines: install, show
    #[command(subcommand)]
    Guest(guest::Guest),
    /// Templates, from which sandboxes start: build, list, delete
    #[command(subcommand)]
    Template(template::Template),
    Serve(serve::Serve),
    /// How long snapshots are kept: show, set, clear, apply
    #[command(subcommand)]
    Retention(retention::Retention),
    /// The daemon: start, stop, status, run
    #[command(subcommand)]
    Daemon(daemon::Daemon),
    /// The store: init, info, config, objects
    #[command(subcommand)]
    Store(store::Store),
    Du(du::Du),
    Gc(gc::Gc),
    Dedup(dedup::Dedup),
    Check(check::Check),
    Doctor(doctor::Doctor),
    Bench(bench::Bench),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Command {
    /// Carries the command out.
    ///
    /// # Errors
    /// What kept it from doing so.
    pub(crate) fn run(&self, context: &Context) -> Result<ExitCode, ApiError> {
        // These have something to do first.
        let minds = match self {
            Self::Daemon(daemon::Daemon::Run(_) | daemon::Daemon::Guard(_))
            | Self::Bench(_)
            | Self::Bisect(_)
            | Self::Sandbox(sandbox::Sandbox::Exec(_))
            | Self::Vm(vm::Vm::Run(_) | vm::Vm::Monitor(_)) => true,
            Self::Serve(command) => command.is_daemon(),
            _ => false,
        };
        if !minds {
            end_on_interrupt()?;
        }
        let done = match self {
            Self::Ws(command) => command.run(context),
            Self::Mount(command) => command.run(context),
            Self::Umount(command) => command.run(context),
            Self::Snapshot(command) => command.run(context),
            Self::Fork(command) => command.run(context),
            Self::Rollback(command) => command.run(context),
            Self::Bisect(command) => command.run(context),
            Self::Diff(command) => command.run(context),
            Self::Land(command) => command.run(context),
            Self::Log(command) => command.run(context),
            Self::Snap(command) => command.run(context),
            Self::Sandbox(command) => return command.run(context),
            Self::Vm(command) => return command.run(context),
            Self::Guest(command) => command.run(context),
            Self::Template(command) => command.run(context),
            Self::Serve(command) => return command.run(context),
            Self::Retention(command) => command.run(context),
            Self::Daemon(command) => return command.run(context),
            Self::Store(command) => command.run(context),
            Self::Du(command) => command.run(context),
            Self::Gc(command) => command.run(context),
            Self::Dedup(command) => command.run(context),
            Self::Check(command) => return command.run(context),
            Self::Doctor(command) => return command.run(context),
            Self::Bench(command) => command.run(context),
            Self::Completions(command) => command.run(context),
            Self::Man(command) => command.run(context),
        };
        done.map(|()| ExitCode::SUCCESS)
    }
}

/// What every command works with.
pub(crate) struct Context {
    /// The store.
    pub(crate) store: StoreDir,
    /// Where and how to print.
    pub(crate) output: Output,
}

impl Context {
    /// Turns the global flags into what they mean.
    ///
    /// # Errors
    /// When no store can be derived from them.
    pub(crate) fn new(globals: &Globals) -> Result<Self, ApiError> {
        Ok(Self {
            store: StoreDir::locate(globals.store()?)?,
            output: Output::new(globals.json, globals.quiet, globals.color),
        })
    }

    /// A connection to the daemon, which is started if need be. Says which mounts a new one could
    /// not restore.
    ///
    /// # Errors
    /// When it cannot be reached or started.
    pub(crate) fn client(&self) -> Result<Client, ApiError> {
        let client = Client::connect_or_start(&self.store)?;
        for Unrestored { dir, error } in client.unrestored() {
            self.output.note(&printable(&format!(
                "warning: '{dir}' is not mounted again: {error}"
            )));
        }
        Ok(client)
    }
}

/// Makes an interrupt end this process with status 130, rather than by the signal.
fn end_on_interrupt() -> Result<(), ApiError> {
    let always = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let status = i32::from(ErrorKind::Interrupted.exit_code());
    signal_hook::flag::register_conditional_shutdown(signal_hook::consts::SIGINT, status, always)
        .map(drop)
        .map_err(|error| {
            ApiError::new(ErrorKind::Failed, "cannot watch for interrupts").caused_by(&error)
        })
}

/// An absolute path, as text goes: without touching the directory, which may be a dead mount that
/// only the daemon can bring back.
fn absolute(path: &std::path::Path) -> Result<PathBuf, ApiError> {
    std::path::absolute(path).map_err(|error| {
        ApiError::new(
            ErrorKind::Usage,
            format!("'{}' is not a usable path", path.display()),
        )
        .caused_by(&error)
    })
}

/// Splits `KEY=VALUE`; for clap.
fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a label is KEY=VALUE".to_owned()),
    }
}

/// Labels by key. A key given twice is an error: one of its values would be lost.
///
/// # Errors
/// When a key is repeated.
fn labels(
    given: &[(String, String)],
) -> Result<std::collections::BTreeMap<String, String>, ApiError> {
    let mut labels = std::collections::BTreeMap::new();
    for (key, value) in given {
        if labels.insert(key.clone(), value.clone()).is_some() {
            let what = format!("the label '{key}' is given more than once");
            return Err(ApiError::new(ErrorKind::Usage, what).hint("give each key one value"));
        }
    }
    Ok(labels)
}

/// A number of things to show; for clap, which has no ranges of this type.
fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(error.to_string()),
    }
}

/// Lays `name: value` lines out.
fn facts(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 1;
    pairs
        .iter()
        .map(|(name, value)| format!("{:width$} {value}\n", format!("{name}:")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_a_one_line_help_that_ends_without_a_period() {
        fn check(command: &clap::Command) {
            for command in command.get_subcommands() {
                let name = command.get_name();
                let about = command
                    .get_about()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                assert!(
                    !about.is_empty() && !about.contains('\n'),
                    "{name}: {about:?}"
                );
                assert!(
                    !about.ends_with('.') && !about.starts_with("See "),
                    "{name}: {about:?}"
                );
                check(command);
            }
        }
        check(&Cli::command());
    }

    #[test]
    fn a_label_given_twice_is_wrong_usage() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(labels(&[pair("a", "1"), pair("b", "1")]).unwrap().len(), 2);
        let error = labels(&[pair("a", "1"), pair("a", "2")]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage);
        assert!(error.error.contains("'a'"), "{error}");
    }

    #[test]
    fn labels_are_split_at_the_first_equals_sign() {
        assert_eq!(label("k=v=w").unwrap(), ("k".to_owned(), "v=w".to_owned()));
        assert_eq!(label("k=").unwrap(), ("k".to_owned(), String::new()));
        assert!(label("=v").is_err() && label("k").is_err());
    }
}
