//! `floe serve key ...`: the keys with which clients identify themselves to the API.

use clap::{Args, Subcommand};

use crate::api::keys::{FIRST, Key as ApiKey, Keys};
use crate::commands::Context;
use crate::error::{ApiError, ErrorKind};
use crate::output::{printable, table};
use crate::time;

/// Print the API key, or add, list and revoke keys
///
/// The first key is made with the first use of the API, or of this command. Keys are kept in the store,
/// where only its owner can read them. A daemon that serves minds a change at once.
///
/// Under --json: an object with name, key and created_at.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_long_help = "\
Examples:
  export E2B_API_KEY=$(floe serve key)
  floe serve key add ci
  floe serve key revoke ci")]
pub(crate) struct Key {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make another key and print it
    Add(Add),
    /// List the names of the keys
    #[command(visible_alias = "ls")]
    List(List),
    /// Take a key back: no later request with it is served
    #[command(visible_alias = "rm")]
    Revoke(Revoke),
}

#[derive(Args, Debug)]
struct Add {
    /// What to call it: letters, digits, '.', '_' and '-'
    name: String,
}

#[derive(Args, Debug)]
struct List {}

#[derive(Args, Debug)]
struct Revoke {
    /// Its name
    name: String,
}

impl Key {
    /// Carries it out.
    ///
    /// # Errors
    /// When the keys cannot be read or changed, or there is none of that name.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        context.store.ensure()?;
        let keys = Keys::open(context.store.path())?;
        let output = &context.output;
        let key = match &self.verb {
            None => usual(keys.list()?)?,
            Some(Verb::Add(command)) => keys.add(&command.name)?,
            Some(Verb::List(List {})) => return list(context, &keys.list()?),
            Some(Verb::Revoke(command)) => {
                let revoked = keys.revoke(&command.name)?;
                output.note(&format!("revoked the key '{}'", revoked.name));
                return match output.json {
                    true => output.json(&revoked),
                    false => Ok(()),
                };
            }
        };
        match output.json {
            true => output.json(&key),
            false => output.line(&key.key),
        }
    }
}

/// The first key, or else the oldest.
fn usual(keys: Vec<ApiKey>) -> Result<ApiKey, ApiError> {
    let at = keys.iter().position(|key| key.name == FIRST).unwrap_or(0);
    keys.into_iter().nth(at).ok_or_else(|| {
        ApiError::new(ErrorKind::NotFound, "all keys were revoked")
            .hint("make another with `floe serve key add NAME`")
    })
}

fn list(context: &Context, keys: &[ApiKey]) -> Result<(), ApiError> {
    if context.output.json {
        return context.output.json(&keys);
    }
    if context.output.quiet {
        let names: String = keys.iter().map(|key| format!("{}\n", key.name)).collect();
        return context.output.text(&names);
    }
    let rows: Vec<Vec<String>> = keys
        .iter()
        .map(|key| vec![printable(&key.name), time::ago(&key.created_at)])
        .collect();
    context.output.text(&table(&["NAME", "CREATED"], &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_key_is_the_first_one_while_it_is_there() {
        let key = |name: &str| ApiKey {
            name: name.to_owned(),
            key: format!("key of {name}"),
            created_at: String::new(),
        };
        let named = |names: &[&str]| usual(names.iter().map(|name| key(name)).collect());
        assert_eq!(named(&["ci", FIRST]).unwrap().name, FIRST);
        assert_eq!(named(&["ci", "other"]).unwrap().name, "ci");
        assert_eq!(named(&[]).unwrap_err().kind, ErrorKind::NotFound);
    }
}
