//! Checking a store: every rule of docs/format.md that metadata can show.
//!
//! The catalog is read once, table by table, in one read transaction, so a store in use is seen at
//! one moment. Layers are numbered in the order of a walk through their tree; what a version
//! changes against the nearest version above it is then found with a stack, and what is visible at
//! a layer is the sum of the changes above it. So the cost is that of one pass over the tables,
//! however many layers there are; what is kept in memory is a few words for each version of a name
//! and for each directory.
//!
//! Every layer is looked at, frozen ones without a snapshot too, except those that belong to
//! nothing: given up ones, and those that an import is still filling.

mod contents;
mod data;
mod directories;
mod inodes;
mod names;
mod objects;
mod places;
mod report;
mod tree;

use std::collections::HashSet;
use std::path::Path;
use std::time::Instant;

pub use data::{CheckError, DataProgress, DataReport};
pub(crate) use places::add as add_places;
pub use places::{Place, Places, SeenIn};
pub use report::{CheckReport, Damage, Found, Problem, Table};

use self::inodes::Inodes;
use self::names::Names;
use self::objects::Objects;
use self::tree::{Layers, id};
use crate::base::host_inode;
use crate::catalog::CatalogError;
use crate::catalog::check::{Inspection, LayerUse};
use crate::change::HostState;
use crate::core::Core;
use crate::id::{Ino, LayerId, ObjectId};
use crate::store::Store;

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

fn ino(value: i64) -> Ino {
    Ino(unsigned(value))
}

fn object(value: i64) -> ObjectId {
    ObjectId(unsigned(value))
}

/// The number in the walk of the layer that a row is of; none if the row need not be looked at.
fn place(
    layers: &Layers,
    report: &mut CheckReport,
    table: Table,
    layer: i64,
    row: impl Fn() -> String,
) -> Option<u32> {
    match layers.get(layer) {
        Some(layer) if layer.hidden => None,
        Some(layer) => Some(layer.enter),
        None => {
            report.found(Problem::UnknownLayer {
                table,
                layer: id(layer),
                row: row(),
            });
            None
        }
    }
}

impl Store {
    /// Checks every rule of the format that metadata can show; contents are not read. Changes
    /// nothing. The store may be in use meanwhile; only if files in `objects/` and the catalog
    /// seem to differ, changes are held up for a moment to look again.
    ///
    /// # Errors
    /// When the catalog or the objects directory cannot be read. What is wrong with the store is
    /// no error, it is in the report.
    pub fn check(&self) -> Result<CheckReport, CatalogError> {
        let mut report = CheckReport::default();
        self.check_metadata(&mut report)?;
        places::add(&self.core, &mut report)?;
        Ok(report)
    }

    /// As [`Store::check`], but does not say where the files are.
    pub(crate) fn check_metadata(&self, report: &mut CheckReport) -> Result<(), CatalogError> {
        let started = Instant::now();
        // Unlinked files on their way out are no fault.
        self.core.wait_for_chores();
        let objects_dir = Core::objects_dir(self.dir());
        let listing = |source| CatalogError::Sync {
            path: objects_dir.clone(),
            source,
        };
        let mut open = self.open_layers();
        // Before the catalog: a file that is there by now and has no row then, nor later, is of
        // no use to anyone.
        let path_of = |id| self.core.objects.path(id);
        let is_passing = |path: &Path| self.core.objects.is_passing(path);
        let files = objects::files(&objects_dir, path_of, is_passing, report).map_err(listing)?;
        let catalog = self.core.catalog.inspection()?;
        open.extend(self.open_layers());
        let objects = check_catalog(&catalog, &open, report)?;
        let differences = objects.finish(&files, report);
        drop(catalog);
        self.look_again(differences, report)?;
        report.elapsed_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        Ok(())
    }

    /// Reports where rows and files still differ after every change that was under way has ended.
    fn look_again(
        &self,
        differences: objects::Differences,
        report: &mut CheckReport,
    ) -> Result<(), CatalogError> {
        let objects::Differences { orphans, missing } = differences;
        let (core, exists) = (&self.core, |id| self.core.objects.path(id).exists());
        for object in missing {
            // One that is known to be gone is among what is known.
            let known = core.objects.damaged().has_whole(object);
            if core.catalog.has_object(object)? && !exists(object) && !known {
                report.found(Problem::ObjectFileMissing { object });
            }
        }
        if orphans.is_empty() {
            return Ok(());
        }
        self.wait_for_changes();
        let importing = !core.catalog.abandoned_layers()?.is_empty();
        let doomed: HashSet<ObjectId> = core.catalog.doomed_objects()?.into_iter().collect();
        for object in orphans {
            // An import commits many files at once; until then theirs have no rows.
            // So does an adoption.
            let expected = core.catalog.has_object(object)?
                || doomed.contains(&object)
                || self.may_be_adopting(object)?;
            if !expected && !importing && exists(object) {
                report.found(Problem::ObjectFileOrphan { object });
            }
        }
        Ok(())
    }
}

impl Store {
    /// Whether an object stands for a file of the host that may be taken in right now.
    fn may_be_adopting(&self, object: ObjectId) -> Result<bool, CatalogError> {
        let Some(ino) = host_inode(object) else {
            return Ok(false);
        };
        let of = self.core.catalog.host(ino)?;
        Ok(of.iter().any(|(_, row)| row.state == HostState::InPlace))
    }
}

/// Everything but the files.
fn check_catalog(
    catalog: &Inspection,
    open: &HashSet<LayerId>,
    report: &mut CheckReport,
) -> Result<Objects, CatalogError> {
    let bases: HashSet<i64> = catalog.bases()?.into_iter().collect();
    let mut layers = Layers::new(&catalog.layers()?, &bases, report);
    report.layers = layers.all.len() as u64;
    check_uses(&mut layers, catalog, report)?;
    for (table, key) in catalog.dangling()? {
        report.found(Problem::Dangling { table, key });
    }
    for row in catalog.wrong_sandboxes()? {
        let table = Table::Sandbox;
        report.found(Problem::Value { table, row });
    }
    let next_ino = catalog.counter("next_ino")?;
    let mut names = Names::new(&layers, report, next_ino);
    catalog.names(&mut |parent, name, versions| names.visit(parent, name, versions))?;
    let events = names.finish();
    for (number, layer, contents) in catalog.wrong_hosts()? {
        let (layer, ino) = (id(layer), ino(number));
        report.found(if contents {
            Problem::HostContents { layer, ino }
        } else {
            Problem::Host { layer, ino }
        });
    }
    let (objects, doomed) = catalog.objects()?;
    let next_object = catalog.counter("next_object")?;
    let mut objects = Objects::new(&objects, doomed, next_object, report);
    objects.checksums(catalog, report)?;
    objects.known(&catalog.damaged()?, report);
    let mut inodes = Inodes::new(&layers, report, events, next_ino, open, bases, objects);
    catalog.inodes(&mut |rows| inodes.visit(&rows))?;
    Ok(inodes.finish())
}

/// Workspaces are on live layers of their own, snapshots of frozen ones. Live layers without a
/// workspace are hidden: an import is filling them.
fn check_uses(
    layers: &mut Layers,
    catalog: &Inspection,
    report: &mut CheckReport,
) -> Result<(), CatalogError> {
    let mut taken = HashSet::new();
    for found in catalog.workspaces()? {
        check_owner(layers, &found, report);
        let workspace = found.name;
        match (found.alive, found.layer) {
            (true, None) => report.found(Problem::WorkspaceWithoutLayer { workspace }),
            (false, None) => {}
            (false, Some(layer)) => report.found(Problem::DeletedWorkspaceLayer {
                workspace,
                layer: id(layer),
            }),
            (true, Some(layer)) => {
                let live = layers.get(layer).is_some_and(|found| found.is_live());
                let layer_id = id(layer);
                if !taken.insert(layer_id) {
                    report.found(Problem::WorkspaceLayerShared {
                        workspace,
                        layer: layer_id,
                    });
                } else if !live {
                    report.found(Problem::WorkspaceLayer {
                        workspace,
                        layer: layer_id,
                    });
                }
            }
        }
    }
    for found in catalog.snapshots()? {
        check_owner(layers, &found, report);
        let (snapshot, layer) = (found.name, found.layer);
        let frozen = layer
            .and_then(|layer| layers.get(layer))
            .is_some_and(|found| found.is_frozen());
        if !frozen {
            report.found(Problem::SnapshotLayer {
                snapshot: snapshot.clone(),
                layer: id(layer.unwrap_or(0)),
            });
        }
        if !found.alive {
            report.found(Problem::SnapshotWorkspace { snapshot });
        }
    }
    for layer in &mut layers.all {
        layer.hidden |= layer.is_live() && !taken.contains(&layer.id);
    }
    Ok(())
}

/// Snapshots are found by the workspace that their layer names.
fn check_owner(layers: &Layers, found: &LayerUse, report: &mut CheckReport) {
    if let Some(layer) = found.layer
        && !found.owned
        && layers.get(layer).is_some()
    {
        report.found(Problem::LayerOwner {
            layer: id(layer),
            user: found.name.clone(),
        });
    }
}
