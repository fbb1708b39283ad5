//! `floe snap ...`: snapshots.

pub(crate) mod delete;
mod draw;
pub(crate) mod edit;
mod graph;
pub(crate) mod label;
pub(crate) mod list;
mod matching;
pub(crate) mod protect;
#[cfg(test)]
mod samples;
pub(crate) mod show;
pub(crate) mod tree;

use clap::Subcommand;

use super::Context;
use crate::error::ApiError;
use crate::output::first_line;
use crate::wire::records::Snapshot;

/// Commands on snapshots.
#[derive(Debug, Subcommand)]
pub(crate) enum Snap {
    #[command(visible_alias = "ls")]
    List(list::List),
    Show(show::Show),
    Tree(tree::Tree),
    Protect(protect::Protect),
    Unprotect(protect::Unprotect),
    Label(label::Label),
    Edit(edit::Edit),
    #[command(visible_alias = "rm")]
    Delete(delete::Delete),
}

impl Snap {
    /// Carries the command out.
    ///
    /// # Errors
    /// What kept it from doing so.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        match self {
            Self::List(command) => command.run(context),
            Self::Show(command) => command.run(context),
            Self::Tree(command) => command.run(context),
            Self::Protect(command) => command.run(context),
            Self::Unprotect(command) => command.run(context),
            Self::Label(command) => command.run(context),
            Self::Edit(command) => command.run(context),
            Self::Delete(command) => command.run(context),
        }
    }
}

/// What to call a snapshot in one line: its name, else its message, else why Floe took it.
fn title(snapshot: &Snapshot) -> String {
    match (&snapshot.name, &snapshot.message, &snapshot.automatic) {
        (Some(name), Some(message), _) => format!("{name}: {}", first_line(message)),
        (Some(name), None, _) => name.clone(),
        (None, Some(message), _) => first_line(message).to_owned(),
        (None, None, Some(reason)) => format!("(automatic, before a {reason})"),
        (None, None, None) => "-".to_owned(),
    }
}
