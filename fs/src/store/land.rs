//! Landing a workspace on another: which states are merged, and the one transaction that shows the
//! result.

use std::collections::BTreeSet;
use std::time::Instant;

use super::control::Control;
use super::snapshots::new_spec;
use super::types::{SnapshotOptions, WorkspaceInfo};
use super::{FindError, SnapshotError, Store};
use crate::attr::Timestamp;
use crate::catalog::{CatalogError, LandedRecord, Pinned, WorkspaceRecord};
use crate::change::{EventRow, Row};
use crate::engine::{FreezeError, SnapshotSpec, Swapped, finish, land_closed};
use crate::id::{Ino, LayerId, SnapshotId, WorkspaceId};
use crate::land::apply::{Landed, rows};
use crate::land::plan::{Earlier, Input, Plan, plan};
use crate::land::{LandError, LandOptions, LandReport};
use crate::layers::Lineage;

/// How often a landing is planned while others change where it lands; the last time, they wait.
const TRIES: u32 = 4;

/// What lands, and what is known about it.
struct Source {
    workspace: WorkspaceRecord,
    layer: LayerId,
    /// None if it is only looked at.
    snapshot: Option<SnapshotId>,
}

impl Store {
    /// Merges what a workspace changed into another, or into the one that it was forked from: all of
    /// it, or nothing when there are conflicts. The state before is kept as an automatic snapshot.
    /// Mounts stay.
    ///
    /// # Errors
    /// [`LandError`]. Conflicts are none: the report has them.
    pub fn land(
        &self,
        workspace: &str,
        onto: Option<&str>,
        options: &LandOptions,
    ) -> Result<LandReport, LandError> {
        let started = Instant::now();
        let onto = self.land_target(workspace, onto)?.name;
        let source = self.source(workspace, &onto, options.dry_run)?;
        let _used = self.core.use_layer(source.layer);
        // Only now that it stays as it is: somebody may have deleted it.
        if let Some(kept) = &source.snapshot
            && !self.core.catalog.is_frozen(source.layer)?
        {
            let reference = kept.to_string();
            return Err(FindError::NotFound { reference }.into());
        }
        let _held = self.hold_base(source.layer)?;
        self.with_control(&onto, |record, control| {
            let landing = Landing {
                store: self,
                source: &source,
                onto: record,
                options,
                started,
            };
            landing.run(control)
        })
    }

    /// The workspace that a landing would be on.
    ///
    /// # Errors
    /// [`LandError`].
    pub fn land_target(
        &self,
        workspace: &str,
        onto: Option<&str>,
    ) -> Result<WorkspaceInfo, LandError> {
        let info = self.workspace_record(workspace)?;
        let onto = match onto {
            Some(onto) => onto.to_owned(),
            None => self.origin_of(&info)?,
        };
        let target = self.workspace(&onto)?;
        if info.id == target.id {
            return Err(LandError::Itself {
                workspace: workspace.to_owned(),
            });
        }
        Ok(target)
    }

    /// The workspace that another was forked from.
    fn origin_of(&self, workspace: &WorkspaceRecord) -> Result<String, LandError> {
        let Some(snapshot) = &workspace.forked_from else {
            return Err(LandError::NoTarget {
                workspace: workspace.name.clone(),
            });
        };
        match self.find_snapshot(snapshot.as_str()) {
            // It was deleted; whose it was is known all the same.
            Err(FindError::NotFound { reference }) => {
                let name = match workspace.origin {
                    Some(origin) => self.core.catalog.workspace_name(origin)?,
                    None => None,
                };
                Ok(name.ok_or(FindError::NotFound { reference })?)
            }
            found => Ok(found?.workspace),
        }
    }

    /// Whether a live layer was made on this very snapshot, and that was not deleted.
    fn stands_on(&self, live: LayerId, id: &SnapshotId) -> Result<bool, FindError> {
        match self.find_snapshot(id.as_str()) {
            Err(FindError::NotFound { .. }) => Ok(false),
            found => Ok(self.core.layers.parent(live) == Some(found?.layer)),
        }
    }

    /// Keeps the present state of what is to land, unless nothing was changed since it was kept.
    fn source(&self, workspace: &str, onto: &str, dry_run: bool) -> Result<Source, LandError> {
        let started = Instant::now();
        let (record, snapshot) = self.with_control(workspace, |record, control| {
            if let Some(view) = &control.view {
                view.push_dirty().map_err(|source| LandError::Freeze {
                    onto: record.name.clone(),
                    source,
                })?;
            }
            let unchanged = self.core.catalog.written(record.layer)?.is_empty();
            let kept = match &record.parent {
                Some(parent) if unchanged => self.stands_on(record.layer, parent)?,
                _ => false,
            };
            if dry_run || kept {
                return Ok::<_, LandError>((record.clone(), None));
            }
            let options = SnapshotOptions {
                message: Some(format!("to land on '{onto}'")),
                ..SnapshotOptions::default()
            };
            let taken = self.snapshot_locked(record, control, &options, Some("land"), started)?;
            Ok((record.clone(), Some(taken)))
        })?;
        let (layer, snapshot) = match (snapshot, &record.parent) {
            (Some(taken), _) => (taken.layer, Some(taken.id)),
            (None, Some(parent)) if !dry_run => {
                let kept = self.find_snapshot(parent.as_str())?;
                (kept.layer, Some(kept.id))
            }
            _ => (record.layer, None),
        };
        Ok(Source {
            workspace: record,
            layer,
            snapshot,
        })
    }
}

/// What a landing begins from.
struct Begun {
    /// The state that both come from.
    base: LayerId,
    /// Inodes of which there is a version between that and ours.
    changed: BTreeSet<Ino>,
    /// What landed there before.
    earlier: Vec<Earlier>,
}

struct Landing<'a> {
    store: &'a Store,
    source: &'a Source,
    onto: &'a WorkspaceRecord,
    options: &'a LandOptions,
    started: Instant,
}

impl Landing<'_> {
    fn freeze_error(&self, source: FreezeError) -> LandError {
        LandError::Freeze {
            onto: self.onto.name.clone(),
            source,
        }
    }

    fn run(&self, control: &mut Control) -> Result<LandReport, LandError> {
        let store = self.store;
        let _held = store.hold_base(self.onto.layer)?;
        let mut begun = self.begin()?;
        // Until it is what it was when it could not change any more.
        let _used = loop {
            let used = store.core.use_layer(begun.base);
            let again = self.begin()?;
            if again.base == begun.base {
                break used;
            }
            begun = again;
        };
        let mut left = TRIES;
        loop {
            left -= 1;
            let settled = match &control.view {
                Some(view) => {
                    view.push_dirty()
                        .map_err(|error| self.freeze_error(error))?;
                    Some(view.settled())
                }
                None => None,
            };
            let pinned = store.core.catalog.pin()?;
            let plan = self.plan(&begun, &pinned)?;
            let nothing = plan.steps.is_empty() || !plan.conflicts.is_empty();
            if nothing || self.options.dry_run {
                return Ok(self.report(plan, None));
            }
            let at = Timestamp::now();
            let spec = self.spec()?;
            let at_ns = at.nanoseconds();
            let swapped = match &control.view {
                None => {
                    let mut landed = self.rows(&pinned, &plan, at, &spec.id)?;
                    let done = land_closed(&store.core, &spec, self.onto.layer, &mut landed, at_ns);
                    match done {
                        Ok(_) => Swapped::Done,
                        Err(error) => {
                            landed.give_up(&store.core);
                            return Err(self.freeze_error(error));
                        }
                    }
                }
                Some(view) if left > 0 => {
                    let landed = self.rows(&pinned, &plan, at, &spec.id)?;
                    view.land(&spec, settled, at_ns, || Ok::<_, FreezeError>(landed))
                        .map_err(|error| self.freeze_error(error))?
                }
                Some(view) => {
                    // Whoever changes something waits, so that it comes to an end.
                    let mut last = None;
                    let made = view.land(&spec, None, at_ns, || {
                        let pinned = store.core.catalog.pin()?;
                        let plan = self.plan(&begun, &pinned)?;
                        if plan.steps.is_empty() || !plan.conflicts.is_empty() {
                            last = Some(plan);
                            return Err(Stop::Nothing);
                        }
                        let landed = self.rows(&pinned, &plan, at, &spec.id)?;
                        last = Some(plan);
                        Ok(landed)
                    });
                    match (made, last) {
                        (Ok(_), Some(plan)) => return self.done(plan, spec),
                        (Err(Stop::Nothing), Some(plan)) => return Ok(self.report(plan, None)),
                        (Err(Stop::Error(error)), _) => return Err(error),
                        (Err(Stop::Freeze(error)), _) => return Err(self.freeze_error(error)),
                        _ => continue,
                    }
                }
            };
            match swapped {
                Swapped::Done => return self.done(plan, spec),
                Swapped::Overtaken(landed) => landed.give_up(&store.core),
            }
        }
    }

    fn spec(&self) -> Result<SnapshotSpec, SnapshotError> {
        let options = SnapshotOptions {
            message: Some(format!("before '{}' landed", self.source.workspace.name)),
            ..SnapshotOptions::default()
        };
        new_spec(self.onto, &options, Some("land"), self.started)
    }

    fn done(&self, plan: Plan, spec: SnapshotSpec) -> Result<LandReport, LandError> {
        finish(&self.store.core, &spec, self.onto.layer)
            .map_err(|error| self.freeze_error(error))?;
        Ok(self.report(plan, Some(spec.id)))
    }

    fn report(&self, plan: Plan, kept: Option<SnapshotId>) -> LandReport {
        LandReport {
            workspace: self.source.workspace.name.clone(),
            onto: self.onto.name.clone(),
            landed: kept.is_some(),
            entries: plan.entries,
            conflicts: plan.conflicts,
            kept,
            source: self.source.snapshot.clone(),
            elapsed_us: u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX),
        }
    }

    fn lineage(&self, layer: LayerId) -> Result<Lineage<'_>, CatalogError> {
        self.store.core.layers.known(layer)
    }

    /// The state that both come from: where their layers part, or a later one that landed whole, is
    /// below one of the two, and is in the other by that landing.
    fn base(&self, common: LayerId) -> Result<LayerId, LandError> {
        let (ours, theirs) = (
            self.lineage(self.source.layer)?,
            self.lineage(self.onto.layer)?,
        );
        let landings = self.store.core.catalog.landed()?;
        let both_have = |one: &LandedRecord| {
            (ours.contains(one.source) && theirs.contains(one.landed_in))
                || (theirs.contains(one.source) && ours.contains(one.landed_in))
        };
        let later = landings.iter().filter(|one| both_have(one));
        let later = later.map(|one| one.source);
        Ok(later.max().map_or(common, |later| later.max(common)))
    }

    /// What the landing begins from. It cannot change while it goes on.
    fn begin(&self) -> Result<Begun, LandError> {
        let core = &self.store.core;
        let (ours, theirs) = (self.source.layer, self.onto.layer);
        let nothing_in_common = || LandError::NothingInCommon {
            workspace: self.source.workspace.name.clone(),
            onto: self.onto.name.clone(),
        };
        let parting = core.layers.parting(ours, theirs);
        let base = self.base(parting.ok_or_else(nothing_in_common)?.common)?;
        let parting = core.layers.parting(ours, base);
        let parting = parting.ok_or_else(nothing_in_common)?;
        let mut changed = BTreeSet::new();
        for &layer in parting.from_a.iter().chain(&parting.from_b) {
            changed.extend(core.catalog.written(layer)?);
        }
        let events = core.catalog.events_of(self.onto.id, None)?.into_iter();
        let landed = events.filter(|event| event.kind == "landed");
        let earlier = landed.filter_map(|event| {
            Some(Earlier {
                layer: event.layer?,
                at: event.at,
                workspace: event.other?.name,
            })
        });
        Ok(Begun {
            base,
            changed,
            earlier: earlier.collect(),
        })
    }

    fn plan(&self, begun: &Begun, pinned: &Pinned) -> Result<Plan, LandError> {
        plan(&Input {
            core: &self.store.core,
            queries: pinned.queries(),
            lineages: [
                self.lineage(begun.base)?,
                self.lineage(self.source.layer)?,
                self.lineage(self.onto.layer)?,
            ],
            changed: &begun.changed,
            only: &self.options.only,
            no_merge: self.options.no_merge,
            earlier: &begun.earlier,
        })
    }

    /// Makes what is planned, with the events that tell of it.
    fn rows(
        &self,
        pinned: &Pinned,
        plan: &Plan,
        at: Timestamp,
        kept: &SnapshotId,
    ) -> Result<Landed, LandError> {
        let core = &self.store.core;
        let theirs = self.lineage(self.onto.layer)?;
        let mut landed = rows(core, pinned.queries(), theirs, plan, at)?;
        let (layer, at) = (landed.layer, at.nanoseconds());
        if core.catalog.is_sandboxed(self.source.layer)? {
            landed.change.push(Row::MarkSandboxed { id: layer });
        }
        let message = plan.said();
        let mut event = |workspace: WorkspaceId, other, kind, snapshot: Option<&SnapshotId>| {
            landed.change.push(Row::AddEvent(Box::new(EventRow {
                snapshot: snapshot.cloned(),
                other: Some(other),
                layer: Some(layer),
                source: Some(self.source.layer),
                whole: self.options.only.is_empty(),
                message: Some(message.clone()),
                ..EventRow::new(workspace, at, kind)
            })));
        };
        let (from, to) = (self.source.workspace.id, self.onto.id);
        event(from, to, "land", self.source.snapshot.as_ref());
        event(to, from, "landed", Some(kept));
        Ok(landed)
    }
}

/// Why a landing that was planned with everybody waiting did not take place.
enum Stop {
    Nothing,
    Error(LandError),
    Freeze(FreezeError),
}

impl From<LandError> for Stop {
    fn from(error: LandError) -> Self {
        Self::Error(error)
    }
}

impl From<CatalogError> for Stop {
    fn from(error: CatalogError) -> Self {
        Self::Error(error.into())
    }
}

impl From<FreezeError> for Stop {
    fn from(error: FreezeError) -> Self {
        Self::Freeze(error)
    }
}
