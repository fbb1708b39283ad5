//! `floe store config`.

use clap::Args;

use crate::commands::Context;
use crate::error::ApiError;
use crate::output::table;
use crate::wire::StoreConfig;

/// Show settings of the store, or change one
///
/// Without a key, shows all of them; with a key, that one; with a value as well, sets it, which counts at
/// once. Sizes are typed as 4096, 64M or 1G.
///
/// Under --json: a list of objects with name, value (a number: bytes, bytes a second, or 1 for on), text
/// (as it is typed), is_default and meaning.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe store config
  floe store config dedup off           equal contents stay apart from now on
  floe store config hash-rate 16M
  floe store config hash-rate off       nothing is hashed in the background
  floe store config hash-rate --unset   back to the default")]
pub(crate) struct Config {
    /// The setting
    key: Option<String>,
    /// Its new value
    #[arg(requires = "key")]
    value: Option<String>,
    /// Take back what was set
    #[arg(long, requires = "key", conflicts_with = "value")]
    unset: bool,
}

impl Config {
    /// Carries it out.
    ///
    /// # Errors
    /// When there is no such setting, or it cannot have that value.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let found = context.client()?.call(StoreConfig {
            name: self.key.clone(),
            value: self.value.clone(),
            unset: self.unset,
        })?;
        if context.output.json {
            return context.output.json(&found);
        }
        if context.output.quiet && self.key.is_some() {
            let texts: String = found.iter().map(|one| format!("{}\n", one.text)).collect();
            return context.output.text(&texts);
        }
        let rows: Vec<Vec<String>> = found
            .into_iter()
            .map(|one| {
                let origin = if one.is_default { "default" } else { "set" };
                vec![one.name, one.text, origin.to_owned(), one.meaning]
            })
            .collect();
        context
            .output
            .text(&table(&["SETTING", "VALUE", "", "MEANING"], &rows))
    }
}
