//! `floe store ...`.

pub(crate) mod config;
pub(crate) mod info;
pub(crate) mod init;
pub(crate) mod objects;

use clap::Subcommand;

use super::{Context, facts};
use crate::error::ApiError;
use crate::output::{printable, size};

/// Commands on the store.
#[derive(Debug, Subcommand)]
pub(crate) enum Store {
    Init(init::Init),
    Info(info::Info),
    Config(config::Config),
    Objects(objects::Objects),
}

impl Store {
    /// Carries the command out.
    ///
    /// # Errors
    /// What kept it from doing so.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        match self {
            Self::Init(command) => command.run(context),
            Self::Info(command) => command.run(context),
            Self::Config(command) => command.run(context),
            Self::Objects(command) => command.run(context),
        }
    }
}

fn show(context: &Context, info: &floe_fs::StoreInfo) -> Result<(), ApiError> {
    if context.output.json {
        return context.output.json(info);
    }
    let reflink = match info.reflink {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    };
    context.output.text(&facts(&[
        ("store", printable(&info.dir.to_string_lossy())),
        ("id", info.id.clone()),
        ("format", info.format.to_string()),
        ("created", info.created_at.clone()),
        ("workspaces", info.workspaces.to_string()),
        ("snapshots", info.snapshots.to_string()),
        ("layers", info.layers.to_string()),
        (
            "objects",
            format!("{}, {} of them hashed", info.objects, info.hashed),
        ),
        ("catalog", size(info.catalog_bytes)),
        ("reflink", reflink.to_owned()),
    ]))
}
