//! `floe sandbox exec`.

mod descriptors;
mod input;
mod session;
mod signals;
mod sink;
mod terminal;

use std::process::ExitCode;

use clap::Args;

use self::input::Window;
use self::session::{Ended, Steering};
use self::terminal::Terminal;
use super::{by_key, pair};
use crate::commands::Context;
use crate::config::values;
use crate::error::{ApiError, ErrorKind, shell_word};
use crate::output::printable;
use crate::time;
use crate::wire::SandboxExec;

/// Run a command in a sandbox
///
/// What it prints goes to stdout and stderr as it comes. Without -i it has no input. It does not run in
/// a shell: for pipes and variables say `-- sh -c '...'`.
///
/// Ctrl-C sends it SIGINT; SIGTERM and SIGQUIT to this command are passed on too. The third Ctrl-C
/// ends this command. When it ends before the command in the sandbox does, that one gets SIGHUP, as
/// when a terminal is closed; what is to go on is started with nohup(1) or setsid(1). With -t keys go to
/// the command's terminal, Ctrl-C too.
///
/// Ends with the command's exit code, or 128 and the signal that ended it. 124: its time was over; 125:
/// Floe could not do it, or how it ended is not known; 126: the command cannot be run; 127: it is not
/// there; 141: nobody reads the output any more.
///
/// Under --json: a line for each piece of output, with stdout or stderr (a text, or an object with
/// base64), and last one with end: exit_code, signal, timed_out and error.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe sandbox exec sb3f9c -- python3 -c 'print(6 * 7)'
  floe sandbox exec sb3f9c -t -- bash
  tar c . | floe sandbox exec sb3f9c -i --cwd /workspace -- tar x
  floe sandbox exec sb3f9c --user root --timeout 10m --env DEBIAN_FRONTEND=noninteractive \\
      -- apt-get install -y jq")]
pub(crate) struct Exec {
    /// Sandbox (id or its first 4 or more characters)
    #[arg(value_name = "SB")]
    sandbox: String,
    /// Run it as this user [default: the sandbox's usual user]
    #[arg(long, short, value_name = "USER")]
    user: Option<String>,
    /// Run it in this directory [default: the user's home]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Environment it gets besides that of the sandbox; may be repeated
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// Pass stdin on to it
    #[arg(long, short)]
    interactive: bool,
    /// Give it a terminal, of the size of this one, and pass stdin on to it
    #[arg(long = "tty", short)]
    tty: bool,
    /// End it after so long: `90s`, `10m`
    #[arg(long, value_name = "TIME", value_parser = values::length)]
    timeout: Option<u64>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
    /// Have the sandbox end with it
    #[arg(skip)]
    ends_sandbox: bool,
}

/// What another command asks for.
pub(crate) struct Asked {
    pub(crate) sandbox: String,
    pub(crate) user: Option<String>,
    pub(crate) cwd: Option<String>,
    pub(crate) interactive: bool,
    pub(crate) tty: bool,
    pub(crate) command: Vec<String>,
    /// The sandbox ends with the command, or when this client is gone.
    pub(crate) ends_sandbox: bool,
}

/// The status that says that Floe failed, not the command.
const FLOE_FAILED: u8 = 125;
/// The status of a command that is not there.
const NOT_THERE: u8 = 127;
/// The status of a command whose output nobody reads any more: 128 and SIGPIPE.
const OUTPUT_CLOSED: u8 = 141;

impl Exec {
    /// What another command asks for.
    pub(crate) fn of(asked: Asked) -> Self {
        Self {
            sandbox: asked.sandbox,
            user: asked.user,
            cwd: asked.cwd,
            env: Vec::new(),
            interactive: asked.interactive,
            tty: asked.tty,
            timeout: None,
            command: asked.command,
            ends_sandbox: asked.ends_sandbox,
        }
    }

    /// Carries it out.
    ///
    /// # Errors
    /// When the arguments make no sense. Any other failure is reported here, as status 3, say, may be the
    /// command's own.
    pub(crate) fn run(&self, context: &Context) -> Result<ExitCode, ApiError> {
        if self.tty && context.output.json {
            let what = "what a terminal shows is no JSON";
            return Err(ApiError::new(ErrorKind::Usage, what).hint("leave out --tty, or --json"));
        }
        let request = self.request()?;
        let code = match self.run_in(context, request) {
            Ok(ended) => self.report(context, &ended),
            Err(error) if error.kind == ErrorKind::OutputClosed => OUTPUT_CLOSED,
            Err(error) => {
                context.output.report(&error, context.store.flag());
                FLOE_FAILED
            }
        };
        Ok(ExitCode::from(code))
    }

    fn request(&self) -> Result<SandboxExec, ApiError> {
        let (cmd, args) = self
            .command
            .split_first()
            .ok_or_else(|| ApiError::new(ErrorKind::Usage, "a command is missing"))?;
        let mut env = by_key("the variable", &self.env)?;
        if self.tty
            && let Ok(term) = std::env::var("TERM")
        {
            env.entry("TERM".to_owned()).or_insert(term);
        }
        Ok(SandboxExec {
            sandbox: self.sandbox.clone(),
            cmd: cmd.clone(),
            args: args.to_vec(),
            env,
            cwd: self.cwd.clone(),
            user: self.user.clone(),
            stdin: self.interactive || self.tty,
            terminal: self.tty.then(terminal::size),
            timeout_s: self.timeout,
            ends_sandbox: self.ends_sandbox,
        })
    }

    fn run_in(&self, context: &Context, request: SandboxExec) -> Result<Ended, ApiError> {
        let with_input = request.stdin;
        let mut client = context.client()?;
        client.call(request)?;
        let mut connection = client.into_connection();
        let steering = Steering::new(connection.get_ref()).map_err(failed("use the connection"))?;
        let terminal = match self.tty {
            true => Terminal::take().map_err(failed("use the terminal"))?,
            false => None,
        };
        // From here on a signal puts the terminal back; so does this function's end.
        signals::watch(&steering, terminal.as_ref(), self.tty)?;
        let raw = terminal.map(|terminal| terminal.raw());
        let _raw = raw.transpose().map_err(failed("use the terminal"))?;
        let window = Window::new();
        if with_input {
            input::start(&steering, &window)?;
        }
        let mut sink = sink::to(&context.output);
        session::follow(&mut connection, &mut *sink, &window)
    }

    /// Says what has to be said of an end, and which status this is.
    fn report(&self, context: &Context, ended: &Ended) -> u8 {
        let end = &ended.end;
        if let Some(why) = &end.error {
            let command = self.command.first().map_or("", String::as_str);
            let kind = match end.exit_code {
                NOT_THERE => ErrorKind::NotFound,
                _ => ErrorKind::Failed,
            };
            let mut error = match ended.started {
                false => ApiError::new(kind, format!("cannot run '{command}'")),
                true => ApiError::new(kind, format!("how '{command}' ended is not known")),
            };
            // Of one that ended with the command nothing is left to look at.
            if ended.started && !self.ends_sandbox {
                let sandbox = shell_word(&self.sandbox);
                error = error.hint(format!(
                    "see what became of it with `floe sandbox logs {sandbox}`"
                ));
            }
            error.causes.push(why.clone());
            context.output.report(&error, context.store.flag());
        } else if end.timed_out {
            let after = time::span(self.timeout.unwrap_or_default());
            let what = format!("ended after {after}: its time was over");
            context.output.note(&printable(&what));
        }
        end.exit_code
    }
}

fn failed(to: &'static str) -> impl Fn(std::io::Error) -> ApiError {
    move |error| ApiError::new(ErrorKind::Failed, format!("cannot {to}")).caused_by(&error)
}

#[cfg(test)]
mod tests;
