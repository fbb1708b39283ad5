//! Landings that come to nothing: what was staged is removed, what was done is taken back.

use super::apply::{self, Stop};
use super::run::{Landing, commit, each, state, sync, sync_changed};
use super::stage;
use super::steps::{Part, Plan};
use super::{HostConflict, HostLandError};
use crate::change::{Change, EventRow, Row};
use crate::core::Core;
use crate::engine::now_ns;

/// Nothing visible was done: removes what was staged, and returns why.
pub(super) fn given_up(core: &Core, landing: &Landing, error: HostLandError) -> HostLandError {
    match forget(core, landing) {
        Ok(()) => error,
        Err(other) => {
            tracing::warn!(error = %other, "a staging directory stays for now");
            error
        }
    }
}

/// Nothing of a landing is visible, or not any more: that is noted, and durable, before the staging
/// directories go, whose absence means something else to a landing under way.
fn forget(core: &Core, landing: &Landing) -> Result<(), HostLandError> {
    commit(core, landing.row(state::STAGING, false)?)?;
    sync(core)?;
    unstage(core, landing)
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
    commit(core, Row::DropLanding { id: landing.id })
}

/// Takes back what is done, in every part that can be; says what has changed there meanwhile.
fn back(plan: &Plan) -> Result<Vec<HostConflict>, HostLandError> {
    let backwards = Plan {
        parts: plan.parts.iter().rev().cloned().collect(),
        ..plan.clone()
    };
    let mut conflicts = Vec::new();
    let done = each(&backwards, &mut |steps| {
        conflicts.extend(steps.back()?);
        Ok(())
    });
    match done {
        Err(Stop::Failed(error)) => return Err(error),
        Err(Stop::Conflict(conflict)) => conflicts.push(conflict),
        Ok(()) => {}
    }
    plan.parts.iter().try_for_each(sync_changed)?;
    Ok(conflicts)
}

pub(super) fn go_back(core: &Core, landing: &Landing) -> Result<Vec<HostConflict>, HostLandError> {
    let done = back(&landing.plan).and_then(|conflicts| {
        forget(core, landing)?;
        Ok(conflicts)
    });
    done.map_err(|error| HostLandError::Pending {
        id: landing.id,
        root: landing.root(),
        source: Box::new(error),
    })
}

/// The staging directories of a landing under way that are not there.
pub(super) fn missing(plan: &Plan) -> Result<Vec<&Part>, HostLandError> {
    let mut missing = Vec::new();
    for part in &plan.parts {
        let (root, name) = (part.open()?, part.staging.as_bytes());
        let found = root.look(name);
        if found
            .map_err(HostLandError::step("look at", &root.path, name))?
            .is_none()
        {
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
    forget(core, landing)?;
    Err(error)
}
