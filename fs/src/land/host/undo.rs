//! Undoing the last landing of a workspace, and what is remembered of older ones.

use std::collections::{BTreeMap, HashMap};

use super::guard::Guard;
use super::keep;
use super::meta::Meta;
use super::run::{Landing, state};
use super::steps::{Bytes, Kind, Landed, Part, moved_to};
use super::{HostChange, HostLandError, HostPart, HostPlan, NewKind, NewThing};
use crate::catalog::{FamilyRecord, LayerRow};
use crate::change::{Change, Row};
use crate::core::Core;
use crate::fault;
use crate::id::{LayerId, WorkspaceId};

/// Of so many landings of a workspace, what they took away is kept.
const KEPT: usize = 8;
/// So many more are told apart: a fork knows of those before it.
const TOLD_APART: usize = 64;

/// All landings of a workspace that are done, oldest first.
pub(super) fn done(core: &Core, workspace: WorkspaceId) -> Result<Vec<Landing>, HostLandError> {
    let records = core.catalog.host_landings()?.into_iter();
    let own = records.filter(|one| one.workspace == workspace && one.state >= state::DONE);
    own.map(|record| Landing::parse(&record)).collect()
}

/// The plan that takes a landing back.
pub(super) fn reversed(core: &Core, landing: &Landing) -> Result<HostPlan, HostLandError> {
    let mut parts = Vec::new();
    for (at, part) in landing.plan.parts.iter().enumerate() {
        parts.push(HostPart {
            root: part.path(),
            changes: reversed_part(core, landing.id, at, part)?,
        });
    }
    Ok(HostPlan { parts })
}

fn reversed_part(
    core: &Core,
    id: u64,
    at: usize,
    part: &Part,
) -> Result<Vec<HostChange>, HostLandError> {
    let dir = keep::all(core).join(id.to_string());
    let kept = |staged: &str, was: &Guard| {
        let name = keep::name(at, staged);
        let meta =
            Meta::at(&dir.join(&name)).map_err(|source| HostLandError::Kept { id, source })?;
        let kind = NewKind::Kept {
            kind: was.kind(),
            landing: id,
            name,
        };
        Ok::<_, HostLandError>(NewThing { kind, meta })
    };
    let damaged = |path: &Bytes| HostLandError::Damaged {
        id,
        what: format!(
            "it does not say what is at '{}'",
            String::from_utf8_lossy(&path.0)
        ),
    };
    let mut changes = Vec::new();
    let mut moved: HashMap<&str, &Bytes> = HashMap::new();
    for take in &part.takes {
        if take.stays {
            moved.insert(&take.to, &take.path);
        } else {
            let (path, new) = (take.path.0.clone(), kept(&take.to, &take.was)?);
            changes.push(HostChange::Put { path, new });
        }
    }
    for swap in &part.swaps {
        let (path, was) = (
            swap.path.0.clone(),
            swap.is.ok_or_else(|| damaged(&swap.path))?,
        );
        let new = kept(&swap.with, &swap.was)?;
        changes.push(HostChange::Remove {
            path: path.clone(),
            was,
            seen: None,
        });
        changes.push(HostChange::Put { path, new });
    }
    for put in &part.puts {
        let (path, was) = (
            put.path.0.clone(),
            put.is.ok_or_else(|| damaged(&put.path))?,
        );
        changes.push(match moved.get(put.from.as_str()) {
            Some(from) => HostChange::Move {
                from: path,
                to: from.0.clone(),
                was,
            },
            None => HostChange::Remove {
                path,
                was,
                seen: None,
            },
        });
    }
    for meta in &part.metas {
        if let Some(before) = &meta.before {
            changes.push(HostChange::SetMeta {
                path: meta.from.0.clone(),
                was: meta.is.ok_or_else(|| damaged(&meta.path))?,
                seen: Some(meta.after.clone()),
                meta: before.clone(),
            });
        }
    }
    Ok(changes)
}

/// The layer that was landed last before a landing.
pub(super) fn layer_before(all: &[Landing], id: u64) -> Option<u64> {
    let before = all.iter().rev().find(|one| one.id < id);
    before.and_then(|one| one.plan.layer)
}

/// What an undo leaves in the catalog: no trace of the landing it undid, but what things are now. To
/// landings before, what was put back is what they left there.
pub(super) fn remember(
    core: &Core,
    undo: &mut Landing,
    undone: u64,
    change: &mut Change,
) -> Result<(), HostLandError> {
    let all = done(core, undo.workspace)?;
    if let Some(landing) = all.iter().find(|one| one.id == undone) {
        for earlier in all
            .iter()
            .filter(|one| one.id < undone && one.state == state::DONE)
        {
            let mut earlier = earlier.clone();
            for part in &mut earlier.plan.parts {
                renew(part, landing, undo);
            }
            change.push(earlier.row(state::DONE, true)?);
        }
    }
    only_landed(undo);
    change.push(undo.row(state::REMEMBERED, true)?);
    change.push(Row::DropLanding { id: undone });
    Ok(())
}

/// Lets an earlier landing know what was put back of what it had left.
fn renew(part: &mut Part, undone: &Landing, undo: &Landing) {
    let same = |one: &&Part| one.root == part.root;
    let Some(undone) = undone.plan.parts.iter().find(same) else {
        return;
    };
    let Some(undo) = undo.plan.parts.iter().find(same) else {
        return;
    };
    let swapped = undone.swaps.iter().map(|swap| (&swap.path, swap.was));
    let taken = undone.takes.iter().map(|take| (&take.path, take.was));
    let was: HashMap<&Bytes, Guard> = swapped.chain(taken).collect();
    let now: HashMap<Bytes, Option<Guard>> = undo
        .after()
        .into_iter()
        .map(|one| (one.path, one.is))
        .collect();
    let metas: HashMap<&Bytes, &Meta> = undone
        .metas
        .iter()
        .filter_map(|meta| Some((&meta.from, meta.before.as_ref()?)))
        .collect();
    let renewed = |path: &Bytes, is: &mut Option<Guard>| {
        let (Some(left), Some(Some(now))) = (*is, now.get(path)) else {
            return;
        };
        let by_move = was.get(path).is_some_and(|was| left.is_unchanged(was));
        let by_meta = metas
            .get(path)
            .is_some_and(|meta| meta.dated(left).is_unchanged(now));
        if by_move || by_meta {
            *is = Some(*now);
        }
    };
    for swap in &mut part.swaps {
        renewed(&swap.path, &mut swap.is);
    }
    for put in &mut part.puts {
        renewed(&put.path, &mut put.is);
    }
    for meta in &mut part.metas {
        renewed(&meta.path, &mut meta.is);
    }
}

/// Keeps of a landing only what things were after it.
fn only_landed(landing: &mut Landing) {
    landing.plan.undoes = None;
    for part in &mut landing.plan.parts {
        let landed: BTreeMap<Bytes, Option<Guard>> = part
            .after()
            .into_iter()
            .map(|one| (one.path, one.is))
            .collect();
        let landed = landed.into_iter().map(|(path, is)| Landed { path, is });
        part.landed = landed.collect();
        part.moved = part.moves();
        part.takes.clear();
        part.swaps.clear();
        part.puts.clear();
        part.metas.clear();
    }
}

/// Gives up what older landings took away, and all of those of deleted workspaces; and landings of
/// which no layer is left that could know of them.
pub(super) fn drop_old(core: &Core) -> Result<(), HostLandError> {
    let records = core.catalog.host_landings()?;
    let mut by_workspace: BTreeMap<WorkspaceId, Vec<Landing>> = BTreeMap::new();
    let mut change = Change::new();
    let mut forgotten = Vec::new();
    let shown = if records.iter().any(|one| one.deleted) {
        core.catalog.families()?
    } else {
        Vec::new()
    };
    for record in records.iter().filter(|one| one.state >= state::DONE) {
        let mut landing = Landing::parse(record)?;
        if record.deleted {
            // Nobody can undo it. What was forked from there still knows of it.
            let from = landing.plan.from.map(LayerId);
            if !from.is_some_and(|from| is_known(core, &shown, from)) {
                change.push(Row::DropLanding { id: record.id });
                forgotten.push(record.id);
                continue;
            }
            if landing.state == state::DONE {
                only_landed(&mut landing);
                landing.state = state::REMEMBERED;
                change.push(landing.row(state::REMEMBERED, true)?);
                forgotten.push(landing.id);
            }
        }
        by_workspace
            .entry(landing.workspace)
            .or_default()
            .push(landing);
    }
    for landings in by_workspace.values_mut() {
        let done = landings.iter_mut().filter(|one| one.state == state::DONE);
        for old in done.rev().skip(KEPT) {
            only_landed(old);
            old.state = state::REMEMBERED;
            change.push(old.row(state::REMEMBERED, true)?);
            forgotten.push(old.id);
        }
        merge(landings, &mut change)?;
    }
    core.catalog.apply(&change)?;
    fault::step();
    for id in forgotten {
        keep::forget(core, id);
    }
    Ok(())
}

/// Whether a workspace or a snapshot comes from a layer.
fn is_known(core: &Core, layers: &[FamilyRecord], from: LayerId) -> bool {
    let shown = layers
        .iter()
        .filter(|layer| matches!(layer.what, LayerRow::Live | LayerRow::Frozen));
    let mut lineages = shown.filter_map(|layer| core.layers.lineage(layer.id));
    lineages.any(|lineage| lineage.contains(from))
}

/// Makes one of those at the beginning of which nothing but what they left is known.
fn merge(landings: &[Landing], change: &mut Change) -> Result<(), HostLandError> {
    let count = landings
        .iter()
        .take_while(|one| one.state == state::REMEMBERED)
        .count()
        .saturating_sub(TOLD_APART);
    let [first, rest @ ..] = &landings[..count] else {
        return Ok(());
    };
    let Some(last) = rest.last() else {
        return Ok(());
    };
    // Only what a whole landing covered is told by it; single paths and what was taken back are not.
    if last.plan.kind != Kind::Whole {
        return Ok(());
    }
    let mut merged = last.clone();
    let mut left: BTreeMap<Bytes, (Part, BTreeMap<Bytes, Option<Guard>>)> = BTreeMap::new();
    for landing in &landings[..count] {
        for part in &landing.plan.parts {
            let known = left
                .entry(part.root.clone())
                .or_insert_with(|| (part.clone(), BTreeMap::new()));
            known.0 = part.clone();
            let moves = part.moves();
            let there = std::mem::take(&mut known.1).into_iter();
            let new = |path: Bytes| moved_to(&moves, &path.0).map_or(path, Bytes);
            known.1 = there.map(|(path, is)| (new(path), is)).collect();
            known
                .1
                .extend(part.landed.iter().map(|one| (one.path.clone(), one.is)));
        }
    }
    merged.plan.parts = left
        .into_values()
        .map(|(part, landed)| Part {
            landed: landed
                .into_iter()
                .map(|(path, is)| Landed { path, is })
                .collect(),
            ..part
        })
        .collect();
    change.push(merged.row(state::REMEMBERED, true)?);
    change.push(Row::DropLanding { id: first.id });
    for middle in &rest[..rest.len() - 1] {
        change.push(Row::DropLanding { id: middle.id });
    }
    Ok(())
}
