//! `floe land W` in the directories of the host that a workspace stands on: what differs between what
//! was landed last and the workspace now becomes a plan.
//!
//! A landing changes files that the base refers to in place, and that older snapshots still show. So
//! their contents are taken into the store first. The base's rows do not change; what a landing left
//! at each path is remembered with it, and is what the next one expects there ([`known`]).

mod changes;
mod known;
mod since;
mod source;

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use self::changes::Changes;
use self::known::Known;
pub(super) use self::known::path;
use self::source::ViewSource;
use super::{HostConflict, HostLandError, HostPlan, HostReport, Kind, Order, run};
use crate::change::HostRow;
use crate::diff::{DiffEntry, FileChange};
use crate::engine::{View, ViewTarget};
use crate::id::{Ino, LayerId, SnapshotId, WorkspaceId};
use crate::store::{SnapshotOptions, Store};

/// How to land in the directories that a workspace stands on.
#[derive(Clone, Debug, Default)]
pub struct HostLandOptions {
    /// Only these paths of the workspace and what lies under them; all if there is none.
    pub only: Vec<Vec<u8>>,
    /// Only in this one of the directories.
    pub dir: Option<PathBuf>,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// What was landed, or would be.
#[derive(Clone, Debug)]
pub struct HostLanded {
    /// The directories.
    pub dirs: Vec<PathBuf>,
    /// What differed, by path in the workspace.
    pub entries: Vec<DiffEntry>,
    /// What was done on the host. What was there already needed nothing.
    pub report: HostReport,
    /// What stands against it; nothing was done then.
    pub conflicts: Vec<HostConflict>,
    /// The automatic snapshot of what was landed; none if nothing was.
    pub snapshot: Option<SnapshotId>,
}

/// A landing in words, for the log.
fn told(landed: &HostLanded) -> String {
    let dirs: Vec<_> = landed
        .dirs
        .iter()
        .map(|dir| dir.display().to_string())
        .collect();
    let count = landed.entries.len();
    let files = if count == 1 { "file" } else { "files" };
    format!("{count} {files}, in {}", dirs.join(", "))
}

/// Conflicts as an answer.
fn may_conflict(
    done: Result<HostReport, HostLandError>,
) -> Result<(HostReport, Vec<HostConflict>), HostLandError> {
    match done {
        Err(HostLandError::Conflicts(conflicts)) => Ok((HostReport::default(), conflicts)),
        done => done.map(|report| (report, Vec::new())),
    }
}

/// A plan and what it was made from.
struct Planned {
    entries: Vec<DiffEntry>,
    plan: HostPlan,
    /// Files and directories of the base that will not be on the host any more as they were.
    touched: Vec<Ino>,
    /// The layer to which the next landing is to be compared, if not this one.
    since: LayerId,
}

impl Store {
    /// Lands what a workspace changed in the directories of the host that it stands on.
    ///
    /// # Errors
    /// [`HostLandError`]. Conflicts are none: what is returned has them, and nothing was touched.
    pub fn land_in_base(
        &self,
        workspace: &str,
        options: &HostLandOptions,
    ) -> Result<HostLanded, HostLandError> {
        let base = self.base_of(workspace)?;
        let _one = self.core.landing.lock();
        // Also while nothing is mounted: what is landed may still be read from there.
        let _held = self.core.bases.hold(base)?;
        let roots = self.core.catalog.host_roots(base)?;
        let dirs: Vec<PathBuf> = roots
            .iter()
            .map(|(_, row)| known::path(&row.name))
            .collect();
        let options = &self.in_dir(base, &roots, options)?;
        run::settle(&self.core, &dirs)?;
        self.settle_dirty(workspace)?;
        let info = self.workspace_record(workspace)?;
        let view = self.open_live(workspace)?;
        let planned = self.plan_landing(info.id, base, view.layer(), &options.only);
        let looked = planned.and_then(|planned| {
            let source = ViewSource(&view);
            let order = self.order(info.id, None);
            let looked = run::land(&self.core, &order, &planned.plan, &source, true);
            Ok((planned, may_conflict(looked)?))
        });
        self.close_view(&view);
        let (planned, (report, conflicts)) = looked?;
        let nothing = HostLanded {
            dirs,
            entries: planned.entries,
            report,
            conflicts,
            snapshot: None,
        };
        let is_same = nothing.report.is_empty() && nothing.entries.is_empty();
        if options.dry_run || is_same || !nothing.conflicts.is_empty() {
            return Ok(nothing);
        }
        let why = SnapshotOptions {
            message: Some(format!("landed in {}", nothing.dirs[0].display())),
            ..SnapshotOptions::default()
        };
        let taken = self.snapshot_for("land", workspace, &why)?;
        let _used = self.core.use_layer(taken.layer);
        if !self.core.catalog.is_frozen(taken.layer)? {
            let name = workspace.to_owned();
            return Err(HostLandError::Overtaken { name });
        }
        let planned = self.plan_landing(info.id, base, taken.layer, &options.only)?;
        self.adopt_some(base, &planned.touched)?;
        self.adopt_elsewhere(Some(base), &planned.plan)?;
        let view = View::new(
            self.core.clone(),
            ViewTarget::Frozen(taken.id.clone()),
            taken.layer,
        );
        // With a part of the changes landed, the others are still to be found the next time.
        let layer = if options.only.is_empty() {
            taken.layer
        } else {
            planned.since
        };
        let order = Order {
            message: Some(told(&nothing)),
            from: Some(taken.layer),
            kind: if options.only.is_empty() {
                Kind::Whole
            } else {
                Kind::Part
            },
            ..self.order(info.id, (layer != base).then_some(layer))
        };
        let landed = run::land(&self.core, &order, &planned.plan, &ViewSource(&view), false);
        let (report, conflicts) = may_conflict(landed)?;
        Ok(HostLanded {
            entries: planned.entries,
            report,
            snapshot: conflicts.is_empty().then_some(taken.id),
            conflicts,
            ..nothing
        })
    }

    /// The same options, with the place where a directory is shown instead of the directory.
    fn in_dir(
        &self,
        base: LayerId,
        roots: &[(Ino, HostRow)],
        options: &HostLandOptions,
    ) -> Result<HostLandOptions, HostLandError> {
        let mut options = options.clone();
        let Some(dir) = &options.dir else {
            return Ok(options);
        };
        // It may be named through links.
        let real = dir.canonicalize();
        let real = real.map_err(HostLandError::root(dir))?;
        let found = roots.iter().find(|(_, row)| known::path(&row.name) == real);
        let Some((ino, _)) = found else {
            return Err(HostLandError::OtherDir { dir: dir.clone() });
        };
        if roots.len() > 1 {
            let at = self.core.bases.shown_at_root(base, *ino)?;
            let at = &at.as_os_str().as_bytes()[1..];
            let inside = |only: &Vec<u8>| {
                let rest = only.strip_prefix(at);
                rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
            };
            if !options.only.iter().all(inside) {
                return Err(HostLandError::OtherDir { dir: dir.clone() });
            }
            if options.only.is_empty() {
                options.only.push(at.to_vec());
            }
        }
        Ok(options)
    }

    fn order(&self, workspace: WorkspaceId, layer: Option<LayerId>) -> Order {
        Order {
            workspace,
            layer,
            from: None,
            kind: Kind::Part,
            undoes: None,
            message: None,
        }
    }

    fn plan_landing(
        &self,
        workspace: WorkspaceId,
        base: LayerId,
        layer: LayerId,
        only: &[Vec<u8>],
    ) -> Result<Planned, HostLandError> {
        let known = Known::new(&self.core, workspace, base, layer)?;
        let mut changes = Changes::new(&self.core, &known, base, layer)?;
        let partly = since::partly(&known, |root| changes.shown_at(root));
        let entries = since::differences(self, known.since, &partly, layer, only)?;
        for entry in &entries {
            if entry.change == FileChange::Renamed {
                changes.rename(entry);
            }
        }
        for entry in &entries {
            changes.add(entry)?;
        }
        let entries = entries
            .into_iter()
            .filter(|entry| !changes.is_implied(entry))
            .collect();
        let (plan, touched) = changes.finish();
        Ok(Planned {
            entries,
            plan,
            touched,
            since: known.since,
        })
    }
}
