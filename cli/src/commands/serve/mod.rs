//! `floe serve`.

pub(crate) mod key;

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::Context;
use super::daemon::DaemonFlags;
use crate::client::Client;
use crate::daemon::{self, ApiOptions, RunOptions};
use crate::error::{ApiError, ErrorKind};

/// Serve the HTTP API: run the daemon with it in the foreground, logging to stderr
///
/// Prints `listening on URL` on stdout once it serves. Clients need a key: `floe serve key` prints it.
/// Traffic is not encrypted, so it listens on this machine only, unless the configuration says
/// otherwise. It ends on SIGTERM or SIGINT, after stopping all sandboxes and unmounting everything.
///
/// Under --json: an object with url, and domain: port P of the sandbox ID is P-ID.DOMAIN.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_long_help = "\
Examples:
  floe serve
  floe serve --addr 127.0.0.1:0 --json          on a free port, and says which
  E2B_API_URL=http://127.0.0.1:8090 E2B_SANDBOX_URL=http://127.0.0.1:8090 \\
      E2B_API_KEY=$(floe serve key) python3 agent.py")]
pub(crate) struct Serve {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Address and port to listen on [default: as configured, else 127.0.0.1:8090]
    #[arg(long, value_name = "ADDRESS")]
    addr: Option<SocketAddr>,
    #[command(flatten)]
    flags: DaemonFlags,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Key(key::Key),
}

impl Serve {
    /// Carries it out.
    ///
    /// # Errors
    /// When a daemon runs already.
    pub(crate) fn run(&self, context: &Context) -> Result<ExitCode, ApiError> {
        if let Some(Verb::Key(key)) = &self.verb {
            return key.run(context).map(|()| ExitCode::SUCCESS);
        }
        if let Some(client) = Client::connect_any_version(&context.store)? {
            return Err(runs_already(client.daemon_pid()));
        }
        let options = RunOptions {
            api: Some(ApiOptions { addr: self.addr }),
            ..self.flags.options()
        };
        Ok(daemon::run(&context.store, &options, &context.output))
    }

    /// Whether it runs until it is told to end, and watches for signals itself.
    pub(crate) fn is_daemon(&self) -> bool {
        self.verb.is_none()
    }
}

fn runs_already(pid: u32) -> ApiError {
    let what = format!("a daemon (pid {pid}) serves this store already");
    ApiError::new(ErrorKind::Conflict, what).hint(
        "end it with `floe daemon stop`, which unmounts everything, and then start this one: \
         `floe serve`",
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::commands::{Cli, Command};

    const UNIT: &str = include_str!("../../../../packaging/floe.service");

    fn parsed(line: &str) -> Result<Serve, clap::Error> {
        match Cli::try_parse_from(line.split_whitespace())?.command {
            Command::Serve(serve) => Ok(serve),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_service_starts_it_with_flags_that_there_are() {
        let starts: Vec<&str> = UNIT
            .lines()
            .filter_map(|line| line.strip_prefix("ExecStart="))
            .collect();
        let [start] = starts.as_slice() else {
            panic!("{starts:?}");
        };
        assert!(parsed(start).unwrap().is_daemon());
    }

    #[test]
    fn flags_reach_the_daemon_and_keys_are_another_verb() {
        let serve = parsed("floe serve --addr [::1]:0 --config /x.toml --log-format json").unwrap();
        assert!(serve.is_daemon());
        assert_eq!(serve.addr.unwrap().to_string(), "[::1]:0");
        let options = serve.flags.options();
        assert_eq!(options.config.unwrap(), std::path::Path::new("/x.toml"));
        assert!(options.log_format.is_some() && !options.detached);
        for key in [
            "key",
            "key add ci",
            "key list",
            "key revoke ci",
            "key --json",
        ] {
            assert!(!parsed(&format!("floe serve {key}")).unwrap().is_daemon());
        }
        for wrong in [
            "--addr localhost",
            "--log-format xml",
            "--addr 1.2.3.4:5 key",
        ] {
            assert!(parsed(&format!("floe serve {wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_daemon_that_runs_is_a_conflict_with_the_command_that_ends_it() {
        let error = runs_already(7);
        assert_eq!(error.kind, ErrorKind::Conflict);
        assert!(error.hint.unwrap().contains("`floe daemon stop`"));
    }
}
