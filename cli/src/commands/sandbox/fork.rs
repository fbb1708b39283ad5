//! `floe sandbox fork`.

use clap::Args;

use crate::commands::Context;
use crate::config::values;
use crate::error::{ApiError, ErrorKind};
use crate::output::counted;
use crate::wire::ForkSandbox;
use crate::wire::sandbox::ForkedSandbox;

/// Make further sandboxes of one as it is now, and print their ids
///
/// They start with its files, environment and limits, and no processes; those of a virtual machine go on with its
/// memory, every process included. A snapshot of it is taken for that, and it goes on. If some cannot be made, those that were stay, and the command ends with status 1.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe sandbox fork sb3f9c --count 3 --timeout 10m

Under --json: an array; each has sandbox, or else error.")]
pub(crate) struct Fork {
    /// Sandbox (id or its first 4 or more characters)
    #[arg(value_name = "SB")]
    sandbox: String,
    /// Make this many
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Their time: `90s`, `10m`, `2h` [default: no end]
    #[arg(long, value_name = "TIME", value_parser = values::length)]
    timeout: Option<u64>,
}

impl Fork {
    /// Carries it out.
    ///
    /// # Errors
    /// When the reference fits none, or a fork could not be made.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let forks = context.client()?.call(ForkSandbox {
            sandbox: self.sandbox.clone(),
            count: self.count,
            timeout_s: self.timeout,
        })?;
        if context.output.json {
            context.output.json(&forks)?;
        } else {
            let ids = forks.iter().filter_map(|fork| match fork {
                ForkedSandbox::Sandbox(sandbox) => Some(format!("{}\n", sandbox.id)),
                ForkedSandbox::Error(_) => None,
            });
            context.output.text(&ids.collect::<String>())?;
        }
        missing(&forks)
    }
}

/// The error that not all forks are there.
fn missing(forks: &[ForkedSandbox]) -> Result<(), ApiError> {
    let errors = forks.iter().filter_map(|fork| match fork {
        ForkedSandbox::Error(error) => Some(error),
        ForkedSandbox::Sandbox(_) => None,
    });
    let errors: Vec<&ApiError> = errors.collect();
    let Some(first) = errors.first() else {
        return Ok(());
    };
    let all = counted(forks.len(), "fork");
    let what = format!("{} of {all} could not be made", errors.len());
    let mut error = ApiError::new(ErrorKind::Failed, what);
    error.causes.push(first.error.clone());
    error.causes.extend(first.causes.clone());
    error.hint.clone_from(&first.hint);
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::super::samples::sandbox;
    use super::*;
    use crate::wire::sandbox::SandboxState;

    #[test]
    fn forks_that_are_missing_are_counted_and_the_first_reason_given() {
        let made = || ForkedSandbox::Sandbox(Box::new(sandbox("sb1", SandboxState::Running)));
        let not = |why: &str| ForkedSandbox::Error(ApiError::new(ErrorKind::Unavailable, why));
        assert!(missing(&[made(), made()]).is_ok());
        let error = missing(&[made(), not("no room"), not("no memory")]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Failed);
        assert_eq!(error.error, "2 of 3 forks could not be made");
        assert_eq!(error.causes, ["no room"]);
    }
}
