//! `floe sandbox create`.

use clap::{Args, ValueEnum};

use super::{by_key, pair};
use crate::commands::Context;
use crate::config::values;
use crate::error::{ApiError, ErrorKind};
use crate::output::printable;
use crate::wire::CreateSandbox;
use crate::wire::sandbox::{Attached, AttachedSandbox, Limits, OnTimeout, VmSpec};

/// Make a sandbox, start it and print its id
///
/// It starts from a template, or from a snapshot of a sandbox or workspace: with the files that were
/// there then. From a snapshot with memory it goes on: as a virtual machine, with every process that ran. Everything in it is ended when it is killed or its time is over, and its files go with
/// it; snapshots of it stay.
///
/// A session names a sandbox: if one of that session runs, it is the answer; if it was paused or
/// stopped it goes on; if it is gone, one starts from its last snapshot. However many callers do this
/// at once, they get one sandbox.
///
/// Limits that are not given are those of the configuration. Under --json: the sandbox as of
/// `floe sandbox show`, and attached: `created`, `running`, `resumed` or `restored`.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  id=$(floe sandbox create)
  floe sandbox create web/green --timeout 30m --on-timeout pause --auto-resume
  floe sandbox create python --cpus 1.5 --memory 512M --pids 100 --disk 2G
  floe sandbox create --vm --memory 1G --vcpus 2
  floe sandbox create --session agent-7 --metadata owner=ann --env LANG=C.UTF-8")]
pub(crate) struct Create {
    /// Template, or snapshot (id or its first 4 or more digits, name, or WORKSPACE/NAME) [default: base]
    #[arg(value_name = "TEMPLATE|SNAPSHOT")]
    template: Option<String>,
    /// Remember this of it; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
    /// Environment of every command in it; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// Its time is over after so long: `90s`, `10m`, `2h` [default: never]
    #[arg(long, value_name = "TIME", value_parser = values::length)]
    timeout: Option<u64>,
    /// What happens then
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    on_timeout: AtTimeout,
    /// Have it go on when a command is to run in it while it is paused
    #[arg(long)]
    auto_resume: bool,
    /// Share the host's network, if the configuration allows it
    #[arg(long)]
    network: bool,
    /// Processors it may use: `2`, `0.5`
    #[arg(long, value_name = "N", value_parser = values::cpus)]
    cpus: Option<u64>,
    /// Be a virtual machine, which boots the kernel of `floe guest install`
    #[arg(long)]
    vm: bool,
    /// With --vm: its virtual processors [default: 2]
    #[arg(long, value_name = "N", requires = "vm")]
    vcpus: Option<u8>,
    /// Memory its processes may use, with --vm all that it has: `512M`, `2G`
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    memory: Option<u64>,
    /// Processes and threads it may have at once
    #[arg(long, value_name = "N", value_parser = values::count)]
    pids: Option<u64>,
    /// What its workspace may hold: `2G`
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    disk: Option<u64>,
    /// The session it is for
    #[arg(long, value_name = "KEY")]
    session: Option<String>,
}

/// What happens when the time of a sandbox is over, as typed.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum AtTimeout {
    /// It is removed
    Kill,
    /// It is paused
    Pause,
}

impl From<AtTimeout> for OnTimeout {
    fn from(typed: AtTimeout) -> Self {
        match typed {
            AtTimeout::Kill => Self::Kill,
            AtTimeout::Pause => Self::Pause,
        }
    }
}

impl Create {
    /// Carries it out.
    ///
    /// # Errors
    /// When there is no such template or snapshot, or the sandbox cannot be started.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let made = context.client()?.call(self.request()?)?;
        if context.output.json {
            return context.output.json(&made);
        }
        context.output.line(&made.sandbox.id)?;
        context.output.note(&told(&made));
        if !made.sandbox.unenforced.is_empty() {
            let limits = made.sandbox.unenforced.join(", ");
            context.output.note(&printable(&format!(
                "warning: this host does not enforce: {limits}; see `floe doctor`"
            )));
        }
        Ok(())
    }

    fn request(&self) -> Result<CreateSandbox, ApiError> {
        let mib = |bytes: u64| {
            u32::try_from(bytes >> 20)
                .map_err(|_| ApiError::new(ErrorKind::Usage, "that is more memory than there is"))
        };
        let vm = match self.vm {
            false => None,
            true => Some(VmSpec {
                memory_mib: self.memory.map(mib).transpose()?,
                vcpus: self.vcpus,
                ..VmSpec::default()
            }),
        };
        Ok(CreateSandbox {
            template: self.template.clone(),
            metadata: by_key("the metadata key", &self.metadata)?,
            env: by_key("the variable", &self.env)?,
            timeout_s: self.timeout,
            on_timeout: self.on_timeout.into(),
            auto_resume: self.auto_resume,
            network: self.network,
            // Whoever reaches the API must not reach it without its token.
            secure: true,
            limits: Limits {
                cpu_millis: self.cpus,
                memory_bytes: self.memory.filter(|_| !self.vm),
                pids: self.pids,
                disk_bytes: self.disk,
            },
            idempotency_key: None,
            session: self.session.clone(),
            vm,
        })
    }
}

/// How a sandbox came to run, in a sentence.
pub(super) fn told(made: &AttachedSandbox) -> String {
    let AttachedSandbox { sandbox, attached } = made;
    printable(&match attached {
        Attached::Created => format!("sandbox of '{}' runs", sandbox.template),
        Attached::Running => "it runs already".to_owned(),
        Attached::Resumed => "it goes on".to_owned(),
        Attached::Restored => match &sandbox.snapshot {
            Some(snapshot) => format!("started from snapshot {snapshot}"),
            None => "started from its last snapshot".to_owned(),
        },
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        create: Create,
    }

    fn request(words: &[&str]) -> Result<CreateSandbox, String> {
        let words = std::iter::once("create").chain(words.iter().copied());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        line.create.request().map_err(|error| error.to_string())
    }

    #[test]
    fn every_flag_reaches_the_request() {
        let words = "web/green --metadata a=1 --metadata b=x=y --env LANG=C --timeout 10m \
                     --on-timeout pause --auto-resume --network --cpus 1.5 --memory 512M \
                     --pids 64 --disk 2G --session s1";
        let words: Vec<&str> = words.split_whitespace().collect();
        let read = request(&words).unwrap();
        let pairs = |pairs: &[(&str, &str)]| {
            let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            pairs.iter().map(owned).collect()
        };
        let expected = CreateSandbox {
            template: Some("web/green".to_owned()),
            metadata: pairs(&[("a", "1"), ("b", "x=y")]),
            env: pairs(&[("LANG", "C")]),
            timeout_s: Some(600),
            on_timeout: OnTimeout::Pause,
            auto_resume: true,
            network: true,
            secure: true,
            limits: Limits {
                cpu_millis: Some(1500),
                memory_bytes: Some(512 << 20),
                pids: Some(64),
                disk_bytes: Some(2 << 30),
            },
            idempotency_key: None,
            session: Some("s1".to_owned()),
            vm: None,
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn without_flags_nothing_is_asked_for_but_a_token() {
        let expected = CreateSandbox {
            secure: true,
            ..CreateSandbox::default()
        };
        assert_eq!(request(&[]).unwrap(), expected);
    }

    #[test]
    fn the_memory_of_a_machine_is_all_that_it_has() {
        let machine = request(&["--vm", "--memory", "1G", "--vcpus", "4"]).unwrap();
        let vm = VmSpec {
            memory_mib: Some(1024),
            vcpus: Some(4),
            ..VmSpec::default()
        };
        assert_eq!(machine.vm, Some(vm));
        assert_eq!(machine.limits, Limits::default());
        assert_eq!(request(&["--vm"]).unwrap().vm, Some(VmSpec::default()));
        assert!(request(&["--vcpus", "2"]).is_err(), "of what?");
    }

    #[test]
    fn nonsense_is_wrong_usage() {
        let wrong: [&[&str]; 9] = [
            &["--metadata", "a"],
            &["--metadata", "a=1", "--metadata", "a=2"],
            &["--env", "=x"],
            &["--timeout", "10"],
            &["--on-timeout", "sleep"],
            &["--cpus", "0"],
            &["--memory", "lots"],
            &["--pids", "0"],
            &["one", "two"],
        ];
        for words in wrong {
            assert!(request(words).is_err(), "{words:?}");
        }
    }
}
