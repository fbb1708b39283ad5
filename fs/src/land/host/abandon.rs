//! Landings that come to nothing: what was staged is removed, what was done is taken back.

use super::apply::{self, Stop};
use super::run::{Landing, commit, each, state, sync, sync_changed};
use super::stage;
use super::steps::{Kind, Landed, Part, Plan};
use super::{HostConflict, HostLandError};
use crate::change::{Change, EventRow, Row};
use crate::core::Core;
use crate::engine::now_ns;

/// Nothing visible was done: removes what was staged, and returns why.
pub(super) fn given_up(core: &Core, landing: &Landing, error: HostLandError) -> HostLandError {
    match forget(core, landing.clone()) {
        Ok(()) => error,
        Err(other) => {
            tracing::warn!(error = %other, "a staging directory stays for now");
            error
        }
    }
}

/// Nothing of a landing is visible, or not any more: that is noted, and durable, before the staging
/// directories go, whose absence means something else to a landing under way.
fn forget(core: &Core, mut landing: Landing) -> Result<(), HostLandError> {
    for part in &mut landing.plan.parts {
        part.landed = put_back(part)?;
        part.takes.clear();
        part.swaps.clear();
        part.puts.clear();
        part.metas.clear();
    }
    landing.plan.kind = Kind::Back;
    landing.plan.undoes = None;
    commit(core, landing.row(state::STAGING, true)?)?;
    sync(core)?;
    unstage(core, &landing)
}

/// What was moved away and back: that changed its `ctime`, which nobody else did.
fn put_back(part: &Part) -> Result<Vec<Landed>, HostLandError> {
    let root = part.open()?;
    let taken = part.takes.iter().map(|take| (&take.path, take.was));
    let swapped = part.swaps.iter().map(|swap| (&swap.path, swap.was));
    let set = part.metas.iter().filter(|meta| meta.before.is_some());
    let set = set.filter_map(|meta| Some((&meta.from, meta.is?)));
    let mut landed = Vec::new();
    for (path, was) in taken.chain(swapped).chain(set) {
        let found = root.find(&path.0)?;
        if let Some(found) = found.filter(|found| was.is_unchanged(found)) {
            landed.push(Landed {
                path: path.clone(),
                is: Some(found),
            });
        }
    }
    Ok(landed)
}

pub(super) fn unstage(core: &Core, landing: &Landing) -> Result<(), HostLandError> {
    for part in &landing.plan.parts {
        let root = part.open()?;
        match stage::open(&root, &part.staging) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            staging => {
                let name = part.staging.as_bytes();
                let staging = staging.map_err(HostLandError::step("open", &root.path, name))?;
                apply::clear(&root, &staging, &part.staging)?;
            }
        }
    }
    let went_back = landing
        .plan
        .parts
        .iter()
        .any(|part| !part.landed.is_empty());
    if went_back {
        commit(core, landing.row(state::REMEMBERED, false)?)
    } else {
        commit(core, Row::DropLanding { id: landing.id })
    }
}

/// Takes back what is done, in every part that can be; says what has changed there meanwhile.
fn back(plan: &Plan) -> Result<Vec<HostConflict>, HostLandError> {
    let mut conflicts = Vec::new();
    let mut failed = None;
    for part in plan.parts.iter().rev() {
        let one = Plan {
            parts: vec![part.clone()],
            ..plan.clone()
        };
        let done = each(&one, &mut |steps| {
            conflicts.extend(steps.back()?);
            Ok(())
        });
        match done {
            Err(Stop::Failed(error)) => {
                failed.get_or_insert(error);
            }
            Err(Stop::Conflict(conflict)) => conflicts.push(conflict),
            Ok(()) => {}
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    plan.parts.iter().try_for_each(sync_changed)?;
    Ok(conflicts)
}

pub(super) fn go_back(core: &Core, landing: &Landing) -> Result<Vec<HostConflict>, HostLandError> {
    let done = back(&landing.plan).and_then(|conflicts| {
        tell_saved(core, landing, &conflicts)?;
        forget(core, landing.clone())?;
        Ok(conflicts)
    });
    done.map_err(|error| HostLandError::Pending {
        id: landing.id,
        root: landing.root(),
        source: Box::new(error),
    })
}

/// Whoever asked may not be there any more.
fn tell_saved(
    core: &Core,
    landing: &Landing,
    conflicts: &[HostConflict],
) -> Result<(), HostLandError> {
    let saved = conflicts.iter().filter(|conflict| conflict.saved.is_some());
    let saved: Vec<String> = saved.map(ToString::to_string).collect();
    if saved.is_empty() {
        return Ok(());
    }
    let event = EventRow {
        message: Some(format!("went back: {}", saved.join("; "))),
        ..EventRow::new(landing.workspace, now_ns(), "land")
    };
    commit(core, Row::AddEvent(Box::new(event)))
}

/// The staging directories of a landing under way that are not there.
pub(super) fn missing(plan: &Plan) -> Result<Vec<&Part>, HostLandError> {
    let mut missing = Vec::new();
    for part in &plan.parts {
        if part.open()?.find(part.staging.as_bytes())?.is_none() {
            missing.push(part);
        }
    }
    Ok(missing)
}

/// Somebody removed a staging directory, and what had been taken away with it. What can be taken back
/// is; what the store has of the rest is in the workspace's snapshots.
pub(super) fn lost(core: &Core, landing: &Landing) -> Result<(), HostLandError> {
    let lost = missing(&landing.plan)?;
    let there = |part: &&Part| lost.iter().all(|lost| lost.root != part.root);
    let rest = Plan {
        parts: landing.plan.parts.iter().filter(there).cloned().collect(),
        ..landing.plan.clone()
    };
    back(&rest)?;
    let part = lost.first().map(|part| (part.path(), part.staging.clone()));
    let (root, staging) = part.unwrap_or_default();
    let error = HostLandError::Lost {
        id: landing.id,
        root,
        staging,
    };
    let event = EventRow {
        message: Some(error.to_string()),
        ..EventRow::new(landing.workspace, now_ns(), "land")
    };
    core.catalog
        .apply(&Change::from(Row::AddEvent(Box::new(event))))?;
    forget(core, landing.clone())?;
    Err(error)
}
