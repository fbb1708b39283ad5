//! `floe land W` in the directories of the host that a workspace stands on: what differs between what
//! was landed last and the workspace now becomes a plan.
//!
//! A landing changes files that the base refers to in place, and that older snapshots still show. So
//! their contents are taken into the store first. The base's rows do not change; what a landing left
//! at each path is remembered with it, and is what the next one expects there ([`known`]).

mod changes;
mod known;
mod source;

use std::path::PathBuf;

use self::changes::Changes;
use self::known::Known;
use self::source::ViewSource;
use super::{HostLandError, HostPlan, HostReport, Order, run};
use crate::diff::{DiffEntry, DiffOptions, FileChange};
use crate::engine::{View, ViewTarget};
use crate::id::{Ino, LayerId, SnapshotId, WorkspaceId};
use crate::store::{SnapshotOptions, Store};

/// How to land in the directories that a workspace stands on.
#[derive(Clone, Debug, Default)]
pub struct HostLandOptions {
    /// Only these paths of the workspace and what lies under them; all if there is none.
    pub only: Vec<Vec<u8>>,
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
    /// [`HostLandError::Conflicts`] if somebody else changed the same there; nothing was touched then.
    pub fn land_in_base(
        &self,
        workspace: &str,
        options: &HostLandOptions,
    ) -> Result<HostLanded, HostLandError> {
        let base = self.base_of(workspace)?;
        let _one = self.core.landing.lock();
        let roots = self.core.catalog.host_roots(base)?;
        let dirs: Vec<PathBuf> = roots
            .iter()
            .map(|(_, row)| known::path(&row.name))
            .collect();
        run::settle(&self.core, &dirs)?;
        self.settle_dirty(workspace)?;
        let info = self.workspace(workspace)?;
        let view = self.open_live(workspace)?;
        let planned = self.plan_landing(info.id, base, view.layer(), &options.only);
        let looked = planned.and_then(|planned| {
            let source = ViewSource(&view);
            let order = self.order(info.id, None);
            let report = run::land(&self.core, &order, &planned.plan, &source, true)?;
            Ok((planned, report))
        });
        self.close_view(&view);
        let (planned, report) = looked?;
        let nothing = HostLanded {
            dirs,
            entries: planned.entries,
            report,
            snapshot: None,
        };
        if options.dry_run || nothing.report.is_empty() {
            return Ok(nothing);
        }
        let why = SnapshotOptions {
            message: Some(format!("landed in {}", nothing.dirs[0].display())),
            ..SnapshotOptions::default()
        };
        let taken = self.snapshot_for("land", workspace, &why)?;
        let planned = self.plan_landing(info.id, base, taken.layer, &options.only)?;
        self.take_in(base, &planned.touched)?;
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
            ..self.order(info.id, (layer != base).then_some(layer))
        };
        let report = run::land(&self.core, &order, &planned.plan, &ViewSource(&view), false)?;
        Ok(HostLanded {
            entries: planned.entries,
            report,
            snapshot: Some(taken.id),
            ..nothing
        })
    }

    fn order(&self, workspace: WorkspaceId, layer: Option<LayerId>) -> Order {
        Order {
            workspace,
            layer,
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
        let options = DiffOptions {
            paths: only.to_vec(),
            each_file: true,
        };
        let entries = self.diff_layers(known.since, layer, &options)?;
        let mut changes = Changes::new(&self.core, &known, base, layer)?;
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

    /// Takes files and directories of a base into the store, before they change on the host.
    fn take_in(&self, base: LayerId, touched: &[Ino]) -> Result<(), HostLandError> {
        self.core.bases.hold(base)?;
        Ok(self.adopt_some(base, touched)?)
    }
}
