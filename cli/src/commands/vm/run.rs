//! `floe vm run`.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::commands::sandbox::exec::{Asked, Exec};
use crate::commands::{Context, absolute};
use crate::config::values;
use crate::error::{ApiError, ErrorKind};
use crate::output::printable;
use crate::wire::sandbox::{Limits, OnTimeout, VmSpec};
use crate::wire::{CreateSandbox, KillSandbox};

/// How long a machine that runs waits for its command, which it then ends with. Of whoever has gone while it
/// was started, nothing stays longer.
const BEGIN_WITHIN_S: u64 = 60;

/// Boot a virtual machine, run a command in it, and switch it off
///
/// Its root is a fork of a template or snapshot, as of `floe sandbox create`; what is changed there goes
/// with the machine. A workspace at /workspace stays, with every change: each write in the machine is in
/// the workspace when it has returned. Nobody else can mount that meanwhile.
///
/// The command runs at /workspace with this terminal, if there is one, as in `floe sandbox exec`: keys,
/// sizes and signals reach it, and this command ends as it ends. When the terminal is gone, so is the
/// machine.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe guest install
  floe vm run -- uname -a
  floe vm run --workspace web --memory 2G --vcpus 4 -- make test
  floe vm run --kernel ./vmlinux -- python3 --version")]
pub(crate) struct Run {
    /// Template or snapshot that is its root [default: base]
    #[arg(long, value_name = "TEMPLATE|SNAPSHOT")]
    root: Option<String>,
    /// Workspace at /workspace
    #[arg(long, short, value_name = "WS")]
    workspace: Option<String>,
    /// Linux kernel (vmlinux or bzImage) [default: the one of `floe guest install`]
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Directory of its modules, with modules.dep in it
    #[arg(long, value_name = "DIR", requires = "kernel")]
    modules: Option<PathBuf>,
    /// Memory: `512M`, `2G` [default: 512M]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    memory: Option<u64>,
    /// vCPUs [default: 2]
    #[arg(long, value_name = "N")]
    vcpus: Option<u8>,
    /// Run it as this user
    #[arg(long, short, value_name = "USER", default_value = "root")]
    user: String,
    /// The command and its arguments [default: a shell]
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Run {
    /// Carries it out.
    ///
    /// # Errors
    /// When the machine cannot be started. What becomes of the command is its own status.
    pub(crate) fn run(&self, context: &Context) -> Result<ExitCode, ApiError> {
        let made = context.client()?.call(self.request()?)?;
        let id = made.sandbox.id;
        let tty = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let shell = || vec!["/bin/bash".to_owned(), "-l".to_owned()];
        let exec = Exec::of(Asked {
            sandbox: id.clone(),
            user: Some(self.user.clone()),
            cwd: Some("/workspace".to_owned()),
            interactive: !tty,
            tty: tty && !context.output.json,
            command: match self.command.is_empty() {
                true => shell(),
                false => self.command.clone(),
            },
            ends_sandbox: true,
        });
        let ended = exec.run(context);
        // It has ended with the command, unless that was never begun.
        match context.client()?.call(KillSandbox { sandbox: id }) {
            Ok(_) => {}
            Err(error) if error.kind == ErrorKind::NotFound => {}
            Err(error) => context.output.note(&printable(&error.to_string())),
        }
        ended
    }

    fn request(&self) -> Result<CreateSandbox, ApiError> {
        let path = |path: &Option<PathBuf>| -> Result<Option<String>, ApiError> {
            let path = path.as_deref().map(absolute).transpose()?;
            path.map(|path| {
                let text = path.to_str().map(str::to_owned);
                let what = || format!("'{}' is not UTF-8", path.display());
                text.ok_or_else(|| ApiError::new(ErrorKind::Usage, what()))
            })
            .transpose()
        };
        let memory_mib = self.memory.map(|bytes| {
            u32::try_from(bytes >> 20)
                .map_err(|_| ApiError::new(ErrorKind::Usage, "that is more memory than there is"))
        });
        Ok(CreateSandbox {
            template: self.root.clone(),
            metadata: BTreeMap::new(),
            env: BTreeMap::new(),
            timeout_s: Some(BEGIN_WITHIN_S),
            on_timeout: OnTimeout::Kill,
            auto_resume: false,
            network: false,
            secure: true,
            limits: Limits::default(),
            idempotency_key: None,
            session: None,
            vm: Some(VmSpec {
                memory_mib: memory_mib.transpose()?,
                vcpus: self.vcpus,
                workspace: self.workspace.clone(),
                kernel: path(&self.kernel)?,
                modules: path(&self.modules)?,
            }),
        })
    }
}
