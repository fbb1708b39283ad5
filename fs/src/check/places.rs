//! Where files are that something is wrong with: their paths, and which snapshots and workspaces show
//! them there.
//!
//! Looked up for what is wrong only, so the cost is that of the damage times the number of states. Of a
//! catalog that is damaged itself, what cannot be followed is left out.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::report::{CheckReport, Problem};
use crate::catalog::{CatalogError, Pinned, SnapshotQuery};
use crate::change::{BLOCK_END, ContentKind};
use crate::contents::{BLOCK, ExtentMap};
use crate::core::Core;
use crate::diff::side::Side;
use crate::id::{Ino, LayerId, ObjectId, SnapshotId};
use crate::layers::Lineage;

/// Paths of a file that are told, and states in which each is.
const LISTED: usize = 16;
/// Problems whose files are looked up.
const LOOKED_UP: usize = 256;
/// States that are looked at for each.
const STATES: usize = 4096;

/// A state that shows a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeenIn {
    /// A snapshot.
    Snapshot {
        /// Its id.
        id: SnapshotId,
        /// Its name, if it has one.
        name: Option<String>,
        /// The workspace it was taken of.
        workspace: String,
    },
    /// The present state of a workspace.
    Workspace {
        /// Its name.
        name: String,
    },
}

/// A path of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// From the root of the workspace.
    pub path: PathBuf,
    /// The first states in which it is there: workspaces, then snapshots from the newest on.
    pub seen: Vec<SeenIn>,
    /// How many more there are.
    pub more: u64,
}

/// Where a file is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Its first paths.
    pub list: Vec<Place>,
    /// How many more there are.
    pub more: u64,
    /// There are more states than were looked at.
    pub cut: bool,
}

/// Adds to a report where the files are that its problems are about.
pub(crate) fn add(core: &Core, report: &mut CheckReport) -> Result<(), CatalogError> {
    let about = |problem: &&Problem| {
        problem.subject().is_some()
            || matches!(
                problem,
                Problem::Damaged { .. } | Problem::ObjectFileMissing { .. }
            )
    };
    if report.known.is_empty() && !report.problems.iter().any(|problem| about(&problem)) {
        return Ok(());
    }
    let resolver = Resolver::new(core)?;
    for (at, problem) in report.problems.iter().enumerate().take(LOOKED_UP) {
        if !report.places.contains_key(&at)
            && let Some(places) = resolver.of(problem)?
        {
            report.places.insert(at, places);
        }
    }
    for found in report.known.iter_mut().take(LOOKED_UP) {
        found.places = resolver.of(&found.problem)?.unwrap_or_default();
    }
    Ok(())
}

/// Every state of a store, at one moment.
struct Resolver<'a> {
    core: &'a Core,
    views: Vec<(LayerId, SeenIn)>,
    pinned: Pinned,
}

impl<'a> Resolver<'a> {
    fn new(core: &'a Core) -> Result<Self, CatalogError> {
        let workspaces = core.catalog.workspaces(None)?.into_iter();
        let mut views: Vec<_> = workspaces
            .map(|record| (record.layer, SeenIn::Workspace { name: record.name }))
            .collect();
        let snapshots = core.catalog.snapshots(&SnapshotQuery::default())?;
        views.extend(snapshots.into_iter().map(|record| {
            let seen = SeenIn::Snapshot {
                id: record.id,
                name: record.name,
                workspace: record.workspace,
            };
            (record.layer, seen)
        }));
        Ok(Self {
            core,
            views,
            pinned: core.catalog.pin()?,
        })
    }

    /// Where the file is that a problem is about; none if it is about none.
    fn of(&self, problem: &Problem) -> Result<Option<Places>, CatalogError> {
        let of_blocks = |ino, object, blocks: Range<u64>| {
            let claims = self.core.catalog.claims(ino, object)?;
            let layers: Vec<LayerId> = claims.iter().map(|claim| claim.layer).collect();
            self.of_inode(ino, &layers, &|at| self.shows(ino, object, &blocks, at))
        };
        Ok(Some(match *problem {
            Problem::Damaged {
                object,
                ino,
                start,
                end,
                ..
            } => of_blocks(ino, object, start / BLOCK..end.div_ceil(BLOCK))?,
            Problem::ObjectFileMissing { object } => {
                match self.core.catalog.object(object)?.map(|one| one.ino) {
                    Some(ino) => of_blocks(ino, object, 0..BLOCK_END)?,
                    None => return Ok(None),
                }
            }
            _ => match problem.subject() {
                Some((layer, ino)) => self.of_inode(ino, &[layer], &|_| Ok(true))?,
                None => return Ok(None),
            },
        }))
    }

    /// Where an inode is in the states that stand on one of some layers and pass.
    fn of_inode(
        &self,
        ino: Ino,
        layers: &[LayerId],
        passes: &dyn Fn(Lineage<'_>) -> Result<bool, CatalogError>,
    ) -> Result<Places, CatalogError> {
        let mut found: BTreeMap<Vec<u8>, (Vec<SeenIn>, u64)> = BTreeMap::new();
        let (mut states, mut cut) = (0, false);
        for (layer, seen) in &self.views {
            let Some(lineage) = self.core.layers.lineage(*layer) else {
                continue;
            };
            if !layers.iter().any(|&layer| lineage.contains(layer)) {
                continue;
            }
            states += 1;
            if states > STATES {
                cut = true;
                break;
            }
            let known = passes(lineage).and_then(|passes| {
                let mut side = Side::new(self.pinned.queries(), lineage);
                if passes { side.known(ino) } else { Ok(None) }
            });
            let known = match known {
                // What is wrong is told elsewhere.
                Err(CatalogError::Damaged { .. }) => None,
                known => known?,
            };
            for place in known.into_iter().flat_map(|known| known.places) {
                let (list, more) = found.entry(place.path).or_default();
                if list.len() < LISTED {
                    list.push(seen.clone());
                } else {
                    *more += 1;
                }
            }
        }
        let more = found.len().saturating_sub(LISTED) as u64;
        let list = found.into_iter().take(LISTED);
        let list = list.map(|(path, (seen, more))| Place {
            path: absolute(path),
            seen,
            more,
        });
        Ok(Places {
            list: list.collect(),
            more,
            cut,
        })
    }

    /// Whether a state shows any of some blocks of an object.
    fn shows(
        &self,
        ino: Ino,
        object: ObjectId,
        blocks: &Range<u64>,
        at: Lineage<'_>,
    ) -> Result<bool, CatalogError> {
        let queries = self.pinned.queries();
        let Some((_, Some(row))) = queries.inode(ino, at)? else {
            return Ok(false);
        };
        if row.content != ContentKind::Extents {
            return Ok(false);
        }
        let mut map = ExtentMap::default();
        queries.extents(ino, at, &mut |extent| map.fill(extent))?;
        let shown = blocks.start..blocks.end.min(row.attr.size.div_ceil(BLOCK));
        let mut runs = map.runs(shown);
        Ok(runs.any(|(_, segment)| segment.is_some_and(|found| found.object == Some(object))))
    }
}

/// A path from the root.
fn absolute(path: Vec<u8>) -> PathBuf {
    let mut absolute = b"/".to_vec();
    if path != b"." {
        absolute.extend(path);
    }
    PathBuf::from(OsString::from_vec(absolute))
}
