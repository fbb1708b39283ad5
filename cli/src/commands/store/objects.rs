//! `floe store objects`.

use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use floe_fs::{ObjectFile, Store};
use serde::Serialize;

use crate::commands::{Context, absolute};
use crate::error::ApiError;
use crate::output::{counted, printable, size, table};
use crate::progress::ImportBar;
use crate::time;
use crate::wire::{Progress, WirePath};

/// List the files that hold contents, also of a store that lost its catalog
///
/// Reads only, and needs neither the catalog nor a daemon. An object is a file with contents of one file
/// of a workspace as one snapshot, or several, show it; what is not in it is in older ones. Where the
/// catalog can still be read the file's last path is shown.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe store objects
  floe store objects --copy-to /srv/rescued

Under --json: an object with objects (a list of objects with id, size, allocated, modified_at, ino, path),
catalog (why it does not tell the paths, or null) and copied_to.")]
pub(crate) struct Objects {
    /// Copy each to a file of its name in this directory; nothing is written over
    #[arg(long, value_name = "DIR")]
    copy_to: Option<PathBuf>,
}

#[derive(Serialize)]
struct Listed {
    objects: Vec<Listing>,
    catalog: Option<String>,
    copied_to: Option<WirePath>,
}

#[derive(Serialize)]
struct Listing {
    id: String,
    size: u64,
    allocated: u64,
    modified_at: String,
    ino: Option<u64>,
    path: Option<WirePath>,
}

impl From<&ObjectFile> for Listing {
    fn from(file: &ObjectFile) -> Self {
        Self {
            id: format!("{:x}", file.id.0),
            size: file.size,
            allocated: file.allocated,
            modified_at: file.modified_at.clone(),
            ino: file.ino.map(|ino| ino.0),
            path: file.path.as_deref().map(WirePath::from),
        }
    }
}

impl Objects {
    /// Carries it out.
    ///
    /// # Errors
    /// When there are no objects, or they cannot be read or copied.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let found = Store::object_files(context.store.path())?;
        let output = &context.output;
        let copied_to = match &self.copy_to {
            Some(dir) => {
                let dir = absolute(dir)?;
                let mut bar = ImportBar::new("copying", !output.json && !output.quiet);
                let total = Some(found.objects.len() as u64);
                let copied = Store::copy_objects(&found.objects, &dir, &mut |files, bytes| {
                    bar.update(&Progress {
                        files,
                        bytes,
                        total,
                    });
                    ControlFlow::Continue(())
                });
                drop(bar);
                copied?;
                Some(dir)
            }
            None => None,
        };
        let objects: Vec<Listing> = found.objects.iter().map(Listing::from).collect();
        if output.json {
            return output.json(&Listed {
                objects,
                catalog: found.catalog,
                copied_to: copied_to.as_deref().map(WirePath::from),
            });
        }
        if let Some(why) = &found.catalog {
            output.note(&printable(&format!(
                "the catalog does not tell what they are of: {why}"
            )));
        }
        if let Some(dir) = copied_to {
            let count = counted(objects.len(), "object");
            let dir = printable(&dir.to_string_lossy());
            output.note(&format!("copied {count} to {dir}"));
            return Ok(());
        }
        if output.quiet {
            return objects
                .iter()
                .try_for_each(|object| output.line(&object.id));
        }
        let rows: Vec<Vec<String>> = objects.iter().map(row).collect();
        output.text(&table(
            &["OBJECT", "SIZE", "ON DISK", "MODIFIED", "PATH"],
            &rows,
        ))
    }
}

fn row(object: &Listing) -> Vec<String> {
    let path = object.path.as_ref();
    vec![
        object.id.clone(),
        size(object.size),
        size(object.allocated),
        time::ago(&object.modified_at),
        path.map_or_else(|| "-".to_owned(), |path| printable(&path.to_string())),
    ]
}
