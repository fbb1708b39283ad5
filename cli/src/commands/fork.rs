//! `floe fork`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;

use super::{Context, absolute, here};
use crate::error::ApiError;
use crate::output::counted;
use crate::time;
use crate::wire::{self, WirePath};

/// Make a new workspace on a snapshot, or on the present state of a workspace
///
/// Takes constant time. Of a live workspace an automatic snapshot is taken first. With --count
/// the forks are called NEW-1, NEW-2 and so on, and are made all or none. Prints the new names or,
/// with --mount, the directories.
///
/// With --run each is the workspace of a new sandbox on the snapshot, whose id is printed. What a virtual machine was
/// in the middle of goes on in all of them, if the snapshot has its memory. If one cannot be made, those before it
/// stay.
///
/// Under --json: a workspace, or, if --count is given, an array of them; with --run the same of sandboxes.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe fork web try
  floe fork web/green try --mount          mounted inside the store
  floe fork 3f9c try --count 3 --run       sandboxes; of a snapshot with memory they go on
  floe fork web try --count 3 --mount /tmp/try
                                           on /tmp/try/try-1 to /tmp/try/try-3")]
pub(crate) struct Fork {
    /// Workspace, or snapshot (id or its first 4 or more digits, name, or WORKSPACE/NAME)
    #[arg(value_name = "WS|SNAP")]
    source: String,
    /// Name of the new workspace
    #[arg(value_name = "NEW")]
    name: String,
    /// Make this many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: Option<u32>,
    /// Mount what is made; with --count, each below DIR
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    mount: Option<Option<PathBuf>>,
    /// Start a sandbox on each; of a snapshot only
    #[arg(long, conflicts_with = "mount")]
    run: bool,
}

impl Fork {
    /// Carries it out.
    ///
    /// # Errors
    /// When the source does not exist, a name is taken, or a mount fails.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        if self.run {
            return self.run_sandboxes(context);
        }
        let dir = self
            .mount
            .iter()
            .flatten()
            .next()
            .map(|dir| absolute(dir))
            .transpose()?;
        let mut client = context.client()?;
        let made = client.call(wire::Fork {
            source: self.source.clone(),
            snapshot_only: false,
            name: self.name.clone(),
            count: self.count,
            mount: self.mount.is_some(),
            dir: dir.as_deref().map(WirePath::from),
        })?;
        // What is printed: directories, or else names.
        let named: Vec<PathBuf> = made
            .workspaces
            .iter()
            .map(|made| match made.mounts.first() {
                Some(dir) => dir.to_path(),
                None => PathBuf::from(&made.name),
            })
            .collect();
        if self.mount.is_some() {
            let dirs: Vec<&Path> = named.iter().map(|dir| &**dir).collect();
            here::check(client.daemon_pid(), &dirs)?;
        }
        let output = &context.output;
        if output.json {
            return match made.workspaces.as_slice() {
                [one] if self.count.is_none() => output.json(one),
                all => output.json(&all),
            };
        }
        output.paths(named.iter().map(|it| &**it))?;
        let forks = counted(made.workspaces.len(), "fork");
        output.note(&format!("{forks} in {}", time::elapsed(made.elapsed_us)));
        Ok(())
    }

    fn run_sandboxes(&self, context: &Context) -> Result<(), ApiError> {
        let started = Instant::now();
        let mut client = context.client()?;
        let snapshot = client.call(wire::ShowSnapshot {
            snapshot: self.source.clone(),
        })?;
        let names = match self.count {
            None => vec![self.name.clone()],
            Some(count) => (1..=count).map(|n| format!("{}-{n}", self.name)).collect(),
        };
        let mut made = Vec::new();
        for name in names {
            let request = wire::CreateSandbox {
                template: Some(snapshot.id.clone()),
                secure: true,
                ..wire::CreateSandbox::default()
            };
            let mut sandbox = client.call(request)?.sandbox;
            let renamed = client.call(wire::RenameWorkspace {
                name: sandbox.workspace.clone(),
                to: name,
            });
            match renamed {
                Ok(workspace) => sandbox.workspace = workspace.name,
                Err(error) => {
                    // It is nobody's yet.
                    client.call(wire::KillSandbox {
                        sandbox: sandbox.id.clone(),
                    })?;
                    return Err(error);
                }
            }
            if !context.output.json {
                context.output.line(&sandbox.id)?;
            }
            made.push(sandbox);
        }
        let output = &context.output;
        if output.json {
            return match made.as_slice() {
                [one] if self.count.is_none() => output.json(one),
                all => output.json(&all),
            };
        }
        let elapsed = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let sandboxes = counted(made.len(), "sandbox");
        output.note(&format!("{sandboxes} in {}", time::elapsed(elapsed)));
        Ok(())
    }
}
