//! A landing from its plan to its end, and what a crash left of one.

use std::path::{Path, PathBuf};

use super::STAGING;
use super::abandon::{given_up, go_back, lost, missing, unstage};
use super::apply::{self, Stop};
use super::check::Check;
use super::guard::Guard;
use super::keep::{self, Kept};
use super::root::Root;
use super::stage;
use super::steps::{Bytes, Kind, Part, Plan, Steps, VERSION};
use super::{HostLandError, HostPlan, HostReport, Source};
use crate::catalog::{CatalogError, HostLandingRecord};
use crate::change::{Change, EventRow, Row};
use crate::core::Core;
use crate::engine::now_ns;
use crate::fault;
use crate::id::{LayerId, WorkspaceId};

/// `landing.state`.
pub(super) mod state {
    pub(in super::super) const STAGING: u8 = 0;
    pub(in super::super) const APPLYING: u8 = 1;
    pub(in super::super) const GOING_BACK: u8 = 2;
    pub(in super::super) const APPLIED: u8 = 3;
    pub(in super::super) const DONE: u8 = 4;
    pub(in super::super) const REMEMBERED: u8 = 5;
}

/// What is landed besides the plan.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// Whose changes.
    pub(crate) workspace: WorkspaceId,
    /// The frozen layer whose state the directories have afterwards, but for single paths.
    pub(crate) layer: Option<LayerId>,
    /// The frozen layer that what is landed is of.
    pub(crate) from: Option<LayerId>,
    /// How much it is.
    pub(crate) kind: Kind,
    /// The landing that is undone by this one.
    pub(crate) undoes: Option<u64>,
    /// What is remembered of it, in words.
    pub(crate) message: Option<String>,
}

/// A landing that has a row.
#[derive(Clone, Debug)]
pub(super) struct Landing {
    pub(super) id: u64,
    pub(super) workspace: WorkspaceId,
    pub(super) state: u8,
    pub(super) plan: Plan,
}

impl Landing {
    /// Reads a row.
    pub(super) fn parse(record: &HostLandingRecord) -> Result<Self, HostLandError> {
        let damaged = |what: String| HostLandError::Damaged {
            id: record.id,
            what,
        };
        let plan: Plan =
            serde_json::from_str(&record.plan).map_err(|error| damaged(error.to_string()))?;
        if plan.version != VERSION {
            return Err(damaged(format!("version {}", plan.version)));
        }
        Ok(Self {
            id: record.id,
            workspace: record.workspace,
            state: record.state,
            plan,
        })
    }

    /// The row that says how far it is, with its plan if that has changed.
    pub(super) fn row(&self, state: u8, with_plan: bool) -> Result<Row, HostLandError> {
        Ok(Row::SetLanding {
            id: self.id,
            state,
            plan: with_plan.then(|| self.text()).transpose()?,
        })
    }

    fn text(&self) -> Result<String, HostLandError> {
        serde_json::to_string(&self.plan).map_err(|error| HostLandError::Damaged {
            id: self.id,
            what: error.to_string(),
        })
    }

    pub(super) fn root(&self) -> PathBuf {
        self.plan
            .parts
            .first()
            .map_or_else(PathBuf::new, |part| part.path())
    }
}

impl Part {
    pub(super) fn path(&self) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        Path::new(std::ffi::OsStr::from_bytes(&self.root.0)).to_owned()
    }

    /// Whether another directory is where the root was.
    fn is_replaced(&self) -> bool {
        let found = Root::open(&self.path()).and_then(|root| root.seen());
        found.is_ok_and(|found| !self.seen.is_same(&found))
    }

    /// Opens the root, if it is the directory that was seen.
    pub(super) fn open(&self) -> Result<Root, HostLandError> {
        let path = self.path();
        let failed = |source| HostLandError::Root {
            root: path.clone(),
            source,
        };
        let root = Root::open(&path).map_err(failed)?;
        if !self.seen.is_same(&root.seen().map_err(failed)?) {
            return Err(failed(std::io::Error::other("it is another directory now")));
        }
        Ok(root)
    }
}

/// Makes what was committed durable.
pub(super) fn sync(core: &Core) -> Result<(), HostLandError> {
    core.sync_catalog()
        .map_err(|error| HostLandError::Sync(Box::new(error)))
}

pub(super) fn commit(core: &Core, row: Row) -> Result<(), HostLandError> {
    core.catalog.apply(&Change::from(row))?;
    fault::step();
    Ok(())
}

/// Lands a plan, or only says what it would do. The caller holds the landing mutex.
pub(super) fn land(
    core: &Core,
    order: &Order,
    plan: &HostPlan,
    source: &dyn Source,
    dry_run: bool,
) -> Result<HostReport, HostLandError> {
    let mut opened = Vec::new();
    let mut conflicts = Vec::new();
    let kept = keep::all(core);
    for part in &plan.parts {
        let root = Root::open(&part.root).map_err(|source| HostLandError::Root {
            root: part.root.clone(),
            source,
        })?;
        let mut steps = Steps::new(&part.changes)?;
        let check = Check {
            root: &root,
            source,
            kept: &kept,
        };
        conflicts.extend(check.run(&mut steps)?);
        opened.push((root, steps));
    }
    if !conflicts.is_empty() {
        return Err(HostLandError::Conflicts(conflicts));
    }
    let report = opened
        .iter()
        .fold(HostReport::default(), |sum, (_, steps)| report(sum, steps));
    let nothing = opened.iter().all(|(_, steps)| steps.already.is_empty());
    if dry_run || (report.is_empty() && nothing && order.undoes.is_none()) {
        return Ok(report);
    }
    let mut landing = begin(core, order, &opened)?;
    if let Err(error) = stage_all(&landing, &mut opened, source, &kept) {
        return Err(given_up(core, &landing, error));
    }
    for (part, (_, steps)) in landing.plan.parts.iter_mut().zip(opened) {
        part.takes = steps.takes;
        part.swaps = steps.swaps;
        part.puts = steps.puts;
        part.metas = steps.metas;
        part.landed = steps.already;
    }
    let journaled = landing
        .row(state::APPLYING, true)
        .and_then(|row| commit(core, row))
        .and_then(|()| sync(core));
    if let Err(error) = journaled {
        return Err(given_up(core, &landing, error));
    }
    landing.state = state::APPLYING;
    go_on(core, landing, order.message.clone())?;
    Ok(report)
}

fn report(sum: HostReport, steps: &Steps) -> HostReport {
    let number = |count: usize| count as u64;
    let new = |path: &Bytes| steps.staged_at(&path.0).is_some();
    HostReport {
        added: sum.added + number(steps.puts.len()),
        modified: sum.modified + number(steps.swaps.len()),
        deleted: sum.deleted + number(steps.takes.len()),
        metadata: sum.metadata + number(steps.metas.iter().filter(|meta| !new(&meta.path)).count()),
    }
}

/// Notes that there will be staging directories.
fn begin(core: &Core, order: &Order, opened: &[(Root, Steps)]) -> Result<Landing, HostLandError> {
    use std::os::unix::ffi::OsStrExt;
    let mut parts = Vec::new();
    for (root, _) in opened {
        let failed = |source| HostLandError::Root {
            root: root.path.clone(),
            source,
        };
        let random = getrandom::u64().map_err(|error| failed(std::io::Error::other(error)))?;
        parts.push(Part {
            root: Bytes(root.path.as_os_str().as_bytes().to_vec()),
            seen: root.seen().map_err(failed)?,
            staging: format!("{STAGING}{random:016x}"),
            takes: Vec::new(),
            swaps: Vec::new(),
            puts: Vec::new(),
            metas: Vec::new(),
            landed: Vec::new(),
            moved: Vec::new(),
        });
    }
    let landing = Landing {
        id: core.catalog.next_landing()?,
        workspace: order.workspace,
        state: state::STAGING,
        plan: Plan {
            version: VERSION,
            layer: order.layer.map(|layer| layer.0),
            from: order.from.map(|layer| layer.0),
            kind: order.kind,
            undoes: order.undoes,
            parts,
        },
    };
    let row = Row::AddLanding {
        id: landing.id,
        workspace: landing.workspace,
        at: now_ns(),
        state: landing.state,
        plan: landing.text()?,
    };
    commit(core, row)?;
    sync(core)?;
    Ok(landing)
}

fn stage_all(
    landing: &Landing,
    opened: &mut [(Root, Steps)],
    source: &dyn Source,
    kept: &Path,
) -> Result<(), HostLandError> {
    for (part, (root, steps)) in landing.plan.parts.iter().zip(opened) {
        let staging = stage::make(root, &part.staging)?;
        stage::fill(root, &staging, steps, source, kept)?;
        rustix::fs::fsync(root.fd()).map_err(HostLandError::step("sync", &root.path, b"."))?;
    }
    Ok(())
}

/// Finishes a landing, from wherever it is; or goes back.
pub(super) fn go_on(
    core: &Core,
    mut landing: Landing,
    message: Option<String>,
) -> Result<(), HostLandError> {
    // A directory that cannot be reached for now is no reason to go back.
    for part in &landing.plan.parts {
        part.open()?;
    }
    match landing.state {
        state::STAGING => unstage(core, &landing),
        state::APPLYING | state::GOING_BACK if !missing(&landing.plan)?.is_empty() => {
            lost(core, &landing)
        }
        state::APPLYING => match each(&landing.plan, &mut |steps| steps.forward()) {
            Ok(()) => {
                for part in &landing.plan.parts {
                    sync_changed(part)?;
                }
                commit(core, landing.row(state::APPLIED, false)?)?;
                sync(core)?;
                finish(core, landing, message)
            }
            Err(stop) => {
                commit(core, landing.row(state::GOING_BACK, false)?)?;
                landing.state = state::GOING_BACK;
                let others = go_back(core, &landing)?;
                Err(match stop {
                    Stop::Conflict(conflict) => {
                        let first = others.iter().all(|other| other.path != conflict.path);
                        let first = first.then_some(conflict).into_iter();
                        HostLandError::Conflicts(first.chain(others).collect())
                    }
                    Stop::Failed(error) => error,
                })
            }
        },
        state::GOING_BACK => go_back(core, &landing).map(drop),
        _ => finish(core, landing, message),
    }
}

/// Does something with the steps of each part.
pub(super) fn each(
    plan: &Plan,
    act: &mut dyn FnMut(&apply::Steps<'_>) -> Result<(), Stop>,
) -> Result<(), Stop> {
    for part in &plan.parts {
        let root = part.open()?;
        let name = part.staging.as_bytes();
        let staging = stage::open(&root, &part.staging)
            .map_err(HostLandError::step("open", &root.path, name))?;
        act(&apply::Steps {
            root: &root,
            staging: &staging,
            part,
        })?;
    }
    Ok(())
}

/// Makes the names durable that were changed.
pub(super) fn sync_changed(part: &Part) -> Result<(), HostLandError> {
    let root = part.open()?;
    rustix::fs::syncfs(root.fd()).map_err(HostLandError::step("sync", &root.path, b"."))
}

/// Keeps what was taken away, removes the staging directories, and notes what is there now.
fn finish(core: &Core, mut landing: Landing, message: Option<String>) -> Result<(), HostLandError> {
    let undoes = landing.plan.undoes;
    let is_undo = undoes.is_some();
    let has_originals = landing
        .plan
        .parts
        .iter()
        .any(|part| part.originals().next().is_some());
    let mut kept = if is_undo || !has_originals {
        None
    } else {
        Some(Kept::open(core, landing.id)?)
    };
    for (at, part) in landing.plan.parts.iter_mut().enumerate() {
        let root = part.open()?;
        match stage::open(&root, &part.staging) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            staging => {
                let name = part.staging.as_bytes();
                let staging = staging.map_err(HostLandError::step("open", &root.path, name))?;
                if let Some(kept) = &mut kept {
                    part.originals()
                        .try_for_each(|one| kept.take(&staging, one, &keep::name(at, one)))
                        .and_then(|()| kept.sync())
                        .map_err(|source| HostLandError::Kept {
                            id: landing.id,
                            source,
                        })?;
                }
                apply::clear(&root, &staging, &part.staging)?;
            }
        }
    }
    if let Some(undone) = undoes {
        // What was put back is linked to there, and changes when that goes.
        keep::forget(core, undone);
    }
    for part in &mut landing.plan.parts {
        note_present(&part.open()?, part)?;
    }
    let mut change = Change::new();
    let kind = if is_undo { "undo" } else { "land" };
    change.push(Row::AddEvent(Box::new(EventRow {
        message: message.or_else(|| Some(format!("into {}", landing.root().display()))),
        ..EventRow::new(landing.workspace, now_ns(), kind)
    })));
    match undoes {
        None => change.push(landing.row(state::DONE, true)?),
        Some(undone) => super::undo::remember(core, &mut landing, undone, &mut change)?,
    }
    core.catalog.apply(&change)?;
    fault::step();
    super::undo::drop_old(core)
}

/// What is at the changed paths now, if nobody has changed it since.
fn note_present(root: &Root, part: &mut Part) -> Result<(), HostLandError> {
    let metas: std::collections::HashMap<_, _> = part
        .metas
        .iter()
        .map(|meta| (meta.path.clone(), meta.after.clone()))
        .collect();
    let note = |path: &Bytes, is: &mut Option<Guard>| {
        let found = root.find(&path.0)?;
        if let (Some(was), Some(found)) = (*is, found) {
            let expected = metas.get(path).map_or(was, |meta| meta.dated(was));
            if expected.is_unchanged(&found) {
                *is = Some(found);
            }
        }
        Ok::<_, HostLandError>(())
    };
    for swap in &mut part.swaps {
        note(&swap.path, &mut swap.is)?;
    }
    for put in &mut part.puts {
        note(&put.path, &mut put.is)?;
    }
    for meta in &mut part.metas {
        note(&meta.path, &mut meta.is)?;
    }
    Ok(())
}

/// Tries to finish what is not finished. What cannot be waits; an error only if it is in the way of
/// a landing in these directories.
pub(super) fn settle(core: &Core, roots: &[PathBuf]) -> Result<(), HostLandError> {
    for record in core.catalog.host_landings()? {
        if record.state >= state::DONE {
            continue;
        }
        let landing = Landing::parse(&record)?;
        let (id, root) = (landing.id, landing.root());
        let is_in_the_way = landing.plan.parts.iter().any(|part| {
            let path = part.path();
            let overlaps = |root: &PathBuf| root.starts_with(&path) || path.starts_with(root);
            // What is in the place of the directory that it was about is another matter.
            !part.is_replaced() && roots.iter().any(overlaps)
        });
        match go_on(core, landing, None) {
            Ok(()) => {}
            // It went back, as the state before is as good as that after.
            Err(HostLandError::Conflicts(conflicts)) => {
                tracing::warn!(id, root = %root.display(), ?conflicts, "a landing was taken back");
            }
            Err(error) if is_in_the_way => {
                return Err(match error {
                    HostLandError::Pending { .. } | HostLandError::Lost { .. } => error,
                    error => HostLandError::Pending {
                        id,
                        root,
                        source: Box::new(error),
                    },
                });
            }
            Err(error) => {
                tracing::warn!(id, root = %root.display(), %error, "a landing is not finished");
            }
        }
    }
    Ok(())
}

/// Finishes what a crash interrupted, as far as it can be.
pub(crate) fn recover(core: &Core) {
    let _one = core.landing.lock();
    let done = settle(core, &[]).and_then(|()| {
        let known = core.catalog.host_landings()?.into_iter();
        let known = known.filter(|one| (state::APPLYING..=state::DONE).contains(&one.state));
        let known: Vec<u64> = known.map(|one| one.id).collect();
        keep::sweep(core, &known).map_err(|source| HostLandError::Root {
            root: keep::all(core),
            source,
        })?;
        super::undo::drop_old(core)
    });
    if let Err(error) = done {
        tracing::warn!(%error, "landings are not in order");
    }
}

/// Forgets landings of deleted workspaces that nothing comes from any more. Not now if somebody lands.
pub(crate) fn forget_unknown(core: &Core) {
    if let Some(_one) = core.landing.try_lock()
        && let Err(error) = super::undo::drop_old(core)
    {
        tracing::warn!(%error, "landings are not in order");
    }
}

/// Layers that landings know the directories by: those that were landed, and those that they were of.
pub(crate) fn layers_known(core: &Core) -> Result<Vec<LayerId>, CatalogError> {
    let mut layers = Vec::new();
    for record in core.catalog.host_landings()? {
        let landing = Landing::parse(&record).map_err(|error| CatalogError::Damaged {
            what: error.to_string(),
        })?;
        let known = [landing.plan.layer, landing.plan.from];
        layers.extend(known.into_iter().flatten().map(LayerId));
    }
    Ok(layers)
}
