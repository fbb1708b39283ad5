//! `floe template delete`.

use clap::Args;

use crate::commands::Context;
use crate::error::{ApiError, ErrorKind};
use crate::output::printable;
use crate::wire::DeleteTemplate;

/// Delete the names of templates
///
/// Sandboxes that were made from them go on, and their snapshots stay: delete those with
/// `floe snap delete`. `base` is made anew when it is next needed.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe template delete tools web:v1
  floe template delete --if-exists scratch

Under --json: an array of the templates.")]
pub(crate) struct Delete {
    /// Names
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Pass over names that do not exist
    #[arg(long)]
    if_exists: bool,
}

impl Delete {
    /// Carries it out.
    ///
    /// # Errors
    /// When there is no template of a name; those before it are deleted then.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let mut client = context.client()?;
        let mut deleted = Vec::new();
        for name in &self.names {
            match client.call(DeleteTemplate { name: name.clone() }) {
                Ok(template) => {
                    let (name, snapshot) = (printable(&template.name), &template.snapshot);
                    let what = format!("deleted '{name}'; snapshot {snapshot} stays");
                    context.output.note(&what);
                    deleted.push(template);
                }
                Err(error) if self.if_exists && error.kind == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        if context.output.json {
            return context.output.json(&deleted);
        }
        Ok(())
    }
}
