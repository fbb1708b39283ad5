//! `floe template build`.

use std::path::PathBuf;

use clap::Args;

use crate::commands::{Context, absolute};
use crate::error::ApiError;
use crate::output::{first_line, printable, shortened};
use crate::wire::sandbox::BuiltTemplate;
use crate::wire::{BuildTemplate, WirePath};

/// Make a template, from which sandboxes start
///
/// It begins with a directory of the host that is a whole system (as of debootstrap, or a container
/// image unpacked), with a snapshot or another template, or else with `base`: the host's own programs.
/// Then each command runs in it, in a sandbox, as root, and leaves a snapshot. A command is skipped if it
/// ran before on the very same and nothing before it changed, so building again costs little.
///
/// Prints the template's snapshot. A name that is taken moves to the new snapshot once all has been
/// done; sandboxes that were made before go on. It goes on when this command is interrupted.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe template build tools --run 'pip install --target /opt/py requests'
  floe template build bookworm --from-dir /srv/bookworm
  floe template build web:v2 --from-snap web --run 'make -C /workspace install'

Under --json: the template (name, snapshot, updated_at), and steps: an array of objects with run,
snapshot and skipped.")]
pub(crate) struct Build {
    /// Name, with :TAG if there are to be several of it
    name: String,
    /// Begin with this directory of the host
    #[arg(long, value_name = "DIR", conflicts_with = "from_snap")]
    from_dir: Option<PathBuf>,
    /// Begin with this snapshot or template
    #[arg(long, value_name = "SNAP|TEMPLATE")]
    from_snap: Option<String>,
    /// Run this with a shell, as root; may be repeated
    #[arg(long, value_name = "CMD")]
    run: Vec<String>,
}

impl Build {
    /// Carries it out.
    ///
    /// # Errors
    /// When what it begins with is not there, or a command fails: then no name is changed.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let from_dir = self.from_dir.as_deref().map(absolute).transpose()?;
        let built = context.client()?.call(BuildTemplate {
            name: self.name.clone(),
            from_dir: from_dir.as_deref().map(WirePath::from),
            from_snapshot: self.from_snap.clone(),
            run: self.run.clone(),
        })?;
        if context.output.json {
            return context.output.json(&built);
        }
        context.output.line(&built.template.snapshot)?;
        for line in told(&built) {
            context.output.note(&line);
        }
        Ok(())
    }
}

/// Widest command in a line.
const STEP_COLUMNS_MAX: usize = 80;

/// What was done, line by line.
fn told(built: &BuiltTemplate) -> Vec<String> {
    let mut lines: Vec<String> = built
        .steps
        .iter()
        .map(|step| {
            let done = if step.skipped { "skipped" } else { "ran" };
            let command = first_line(&step.run);
            let more = if command.len() < step.run.trim().len() {
                " ..."
            } else {
                ""
            };
            let command = shortened(&printable(command), STEP_COLUMNS_MAX);
            format!("{done:7}  {}  {command}{more}", step.snapshot)
        })
        .collect();
    let name = printable(&built.template.name);
    let skipped = built.steps.iter().filter(|step| step.skipped).count();
    lines.push(match (built.steps.len(), skipped) {
        (0, _) => format!("template '{name}'"),
        (all, 0) => format!("template '{name}' in {all} steps"),
        (all, skipped) => format!("template '{name}' in {all} steps, {skipped} skipped"),
    });
    lines
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::wire::sandbox::{BuiltStep, Template};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        build: Build,
    }

    #[test]
    fn a_template_has_one_beginning_and_any_number_of_steps() {
        let words = ["build", "t", "--run", "a b", "--run", "c"];
        let line = Line::try_parse_from(words).unwrap();
        assert_eq!(line.build.run, ["a b", "c"]);
        let both = ["build", "t", "--from-dir", "/x", "--from-snap", "y"];
        assert!(Line::try_parse_from(both).is_err());
        assert!(Line::try_parse_from(["build"]).is_err());
    }

    #[test]
    fn steps_that_were_skipped_are_told_apart() {
        let step = |run: &str, skipped| BuiltStep {
            run: run.to_owned(),
            snapshot: "0123456789abcdef".to_owned(),
            skipped,
        };
        let mut built = BuiltTemplate {
            template: Template {
                name: "t".to_owned(),
                snapshot: "0123456789abcdef".to_owned(),
                updated_at: String::new(),
            },
            steps: vec![step("apt-get update", true), step("make\nmake test", false)],
        };
        let expected = [
            "skipped  0123456789abcdef  apt-get update",
            "ran      0123456789abcdef  make ...",
            "template 't' in 2 steps, 1 skipped",
        ];
        assert_eq!(told(&built), expected);
        built.steps.clear();
        assert_eq!(told(&built), ["template 't'"]);
    }
}
