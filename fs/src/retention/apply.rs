//! Looking for snapshots that are to go, and deleting them.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::time::Duration;

use super::rules::{self, Candidate, RetentionRule, RetireReason, Rules, SnapshotClass, Verdict};
use crate::catalog::{CatalogError, KeptRecord};
use crate::core::Core;
use crate::id::{LayerId, WorkspaceId};
use crate::store::drop_snapshots;

/// Snapshots deleted in one transaction.
const BATCH: usize = 256;

/// What was found in a workspace.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// What is to go.
    pub(crate) going: Vec<(KeptRecord, RetireReason)>,
    /// What would, if it were not in use.
    pub(crate) in_use: Vec<LayerId>,
    /// [`super::Signal::changes`] when it was looked for.
    changes: u64,
    /// When rules have to be asked again, if nothing else happens.
    pub(crate) next: Option<i64>,
}

impl Rules {
    /// What the catalog says.
    pub(crate) fn read(core: &Core) -> Result<Self, CatalogError> {
        let mut rules = Self::default();
        for record in core.catalog.retention()? {
            let class = match record.automatic {
                true => SnapshotClass::Automatic,
                false => SnapshotClass::ByHand,
            };
            let rule = RetentionRule {
                keep_last: record.keep_last.and_then(NonZeroU64::new),
                keep_within: record.keep_within.map(Duration::from_nanos),
            };
            rules.set(record.workspace, class, rule);
        }
        Ok(rules)
    }
}

fn candidate(record: &KeptRecord, used: &HashSet<LayerId>) -> Candidate {
    Candidate {
        class: SnapshotClass::of(record.automatic.as_deref()),
        created_at: record.created_at,
        expires_at: record.expires_at,
        protected: record.protected,
        in_use: used.contains(&record.layer),
    }
}

/// Looks which snapshots of a workspace are to go.
pub(crate) fn find(
    core: &Core,
    workspace: WorkspaceId,
    rules: &Rules,
    used: &HashSet<LayerId>,
    now: i64,
) -> Result<Found, CatalogError> {
    let changes = core.retain.changes();
    let records = core.catalog.kept_of(workspace)?;
    let candidates: Vec<_> = records.iter().map(|one| candidate(one, used)).collect();
    let judged = rules::judge(&candidates, |class| rules.of(Some(workspace), class).0, now);
    let mut found = Found {
        next: judged.next,
        changes,
        ..Found::default()
    };
    for (record, verdict) in records.into_iter().zip(judged.verdicts) {
        match verdict {
            Verdict::Stays => {}
            Verdict::InUse => found.in_use.push(record.layer),
            Verdict::Goes(why) => found.going.push((record, why)),
        }
    }
    Ok(found)
}

/// Looks which snapshots have expired, whatever workspace they are of.
pub(super) fn find_expired(
    core: &Core,
    used: &HashSet<LayerId>,
    now: i64,
) -> Result<Found, CatalogError> {
    let (in_use, going): (Vec<_>, Vec<_>) = core
        .catalog
        .expired(now)?
        .into_iter()
        .partition(|record| used.contains(&record.layer));
    Ok(Found {
        going: going
            .into_iter()
            .map(|record| (record, RetireReason::Expired))
            .collect(),
        in_use: in_use.iter().map(|record| record.layer).collect(),
        ..Found::default()
    })
}

/// By what the snapshots of a workspace were judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judging<'a> {
    pub(crate) workspace: WorkspaceId,
    pub(crate) rules: &'a Rules,
    /// Of these rules.
    pub(crate) generation: u64,
    /// When, in nanoseconds since the epoch.
    pub(crate) now: i64,
}

/// Deletes what was found, a few in a transaction. What somebody has protected, edited, deleted or begun
/// to use meanwhile is passed over, and so is what other rules may keep; if snapshots were deleted or
/// edited since they were counted, they are counted again. Returns what was deleted; it stops early when
/// `go_on` says so.
pub(crate) fn retire(
    core: &Core,
    found: &Found,
    judging: Option<Judging<'_>>,
    go_on: &dyn Fn() -> bool,
) -> Result<Vec<(KeptRecord, RetireReason)>, CatalogError> {
    let mut retired = Vec::new();
    let mut changes = found.changes;
    for batch in found.going.chunks(BATCH) {
        if !go_on() {
            break;
        }
        let deciding = core.deciding.lock();
        let used = core.uses.all();
        let mut still_going = None;
        if let Some(by) = judging
            && core.retain.changes() != changes
        {
            let again = find(core, by.workspace, by.rules, &used, by.now)?;
            let going = again.going.iter().map(|(one, _)| one.layer);
            still_going = Some(going.collect::<HashSet<LayerId>>());
        }
        let rules_hold = judging.is_some_and(|by| by.generation == core.retain.generation());
        let by_rules = |layer: LayerId| {
            rules_hold
                && still_going
                    .as_ref()
                    .is_none_or(|going| going.contains(&layer))
        };
        let mut these = Vec::new();
        for (record, why) in batch {
            let is_due = *why == RetireReason::Expired || by_rules(record.layer);
            if is_due
                && !used.contains(&record.layer)
                && core.catalog.may_go(&record.id, record.expires_at)?
            {
                these.push((record.clone(), *why));
            }
        }
        let ids = these.iter().map(|(one, _)| (one.id.clone(), one.layer));
        drop_snapshots(core, &deciding, ids)?;
        changes = core.retain.changes();
        retired.extend(these);
    }
    Ok(retired)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::WorkspaceName;
    use crate::store::{DeleteSelection, SnapshotOptions, Store};

    #[test]
    fn what_is_left_is_counted_again_when_others_were_deleted_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        Store::init(&path).unwrap();
        let store = Store::open(&path).unwrap();
        let name = WorkspaceName::parse("w").unwrap();
        let workspace = store.create_workspace(&name).unwrap().id;
        let take = || store.snapshot("w", &SnapshotOptions::default()).unwrap();
        let taken: Vec<_> = (0..5).map(|_| take().id).collect();
        let core = &store.core;
        // Only here: the thread does not know of it.
        let mut rules = Rules::default();
        let rule = RetentionRule {
            keep_last: NonZeroU64::new(3),
            keep_within: None,
        };
        rules.set(None, SnapshotClass::ByHand, rule);
        let now = crate::engine::now_ns();
        let found = find(core, workspace, &rules, &HashSet::new(), now).unwrap();
        assert_eq!(found.going.len(), 2);
        let newest = DeleteSelection::These(vec![taken[4].to_string()]);
        store.delete_snapshots(&newest, false).unwrap();
        let judging = Judging {
            workspace,
            rules: &rules,
            generation: core.retain.generation(),
            now,
        };
        let retired = retire(core, &found, Some(judging), &|| true).unwrap();
        let retired: Vec<_> = retired.into_iter().map(|(one, _)| one.id).collect();
        assert_eq!(retired, taken[..1]);
    }
}
