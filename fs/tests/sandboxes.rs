//! Rows about sandboxes and templates: what is written is there, and what they keep of snapshots.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use proptest::prelude::*;

use floe_fs::attr::FileKind;
use floe_fs::id::{Ino, SnapshotId, SnapshotName, TemplateName};
use floe_fs::{
    DeleteSelection, Edit, ForkSource, LandOptions, OnTimeout, RetentionRule, SandboxCursor,
    SandboxError, SandboxFilter, SandboxKind, SandboxRecord, SandboxState, SnapshotClass,
    SnapshotEdit, SnapshotFilter, SnapshotInfo, SnapshotOptions, Store, TemplateError,
};

use common::{name, new_store, sandbox};

fn store() -> (tempfile::TempDir, Arc<Store>) {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(&dir.path().join("s"));
    (dir, store)
}

fn ids(found: &[SandboxRecord]) -> Vec<&str> {
    found.iter().map(|one| &one.id[..]).collect()
}

fn take(store: &Store, workspace: &str) -> SnapshotInfo {
    store
        .snapshot(workspace, &SnapshotOptions::default())
        .unwrap()
}

fn template(text: &str) -> TemplateName {
    TemplateName::parse(text).unwrap()
}

fn listed(store: &Store, filter: &SnapshotFilter) -> Vec<SnapshotId> {
    let found = store.snapshots(filter).unwrap();
    found.into_iter().map(|info| info.id).collect()
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_nanos()).unwrap()
}

#[test]
fn a_sandbox_is_read_as_it_was_written_also_by_who_opens_the_store_next() {
    let (dir, store) = store();
    let workspace = store.create_workspace(&name("a")).unwrap().id;
    let taken = take(&store, "a");
    let mut full = SandboxRecord {
        kind: SandboxKind::Vm,
        state: SandboxState::Running,
        reason: Some("because".to_owned()),
        workspace: Some(workspace),
        snapshot: Some(taken.id),
        started_at: Some(7),
        ends_at: Some(i64::MAX),
        on_timeout: OnTimeout::Pause,
        auto_resume: true,
        generation: 3,
        slot: Some(u32::MAX),
        session: Some("session".to_owned()),
        idempotency_key: Some("key".to_owned()),
        spec: "{\"a\":\"'\u{e9}\"}".to_owned(),
        ..sandbox("a", 5)
    };
    store.put_sandbox(&full).unwrap();
    store.put_sandbox(&sandbox("b", 6)).unwrap();
    assert_eq!(store.sandbox("a").unwrap().as_ref(), Some(&full));
    full.state = SandboxState::Paused;
    full.slot = None;
    store.put_sandbox(&full).unwrap();
    drop(store);

    let store = Store::open(&dir.path().join("s")).unwrap();
    assert_eq!(store.sandbox("a").unwrap().as_ref(), Some(&full));
    assert_eq!(store.sandbox("b").unwrap(), Some(sandbox("b", 6)));
    assert_eq!(store.sandbox("c").unwrap(), None);
    let by_session = store.sandbox_of_session("session").unwrap();
    assert_eq!(by_session.as_ref(), Some(&full));
    assert_eq!(store.sandbox_of_key("key").unwrap(), Some(full));
    assert!(store.check().unwrap().is_clean());
}

#[test]
fn sessions_keys_and_slots_have_one_sandbox_at_a_time() {
    let (_dir, store) = store();
    let mut first = SandboxRecord {
        slot: Some(1),
        session: Some("s".to_owned()),
        idempotency_key: Some("k".to_owned()),
        ..sandbox("first", 1)
    };
    store.put_sandbox(&first).unwrap();
    let second = sandbox("second", 2);
    let with = |change: &dyn Fn(&mut SandboxRecord)| {
        let mut one = second.clone();
        change(&mut one);
        store.put_sandbox(&one)
    };
    let session = |one: &mut SandboxRecord| one.session = Some("s".to_owned());
    let key = |one: &mut SandboxRecord| one.idempotency_key = Some("k".to_owned());
    let slot = |one: &mut SandboxRecord| one.slot = Some(1);
    assert!(matches!(
        with(&session),
        Err(SandboxError::SessionTaken { key }) if key == "s"
    ));
    assert!(matches!(
        with(&key),
        Err(SandboxError::KeyTaken { key }) if key == "k"
    ));
    assert!(matches!(
        with(&slot),
        Err(SandboxError::SlotTaken { slot: 1 })
    ));
    assert_eq!(store.sandbox("second").unwrap(), None);
    // One that is deleted gives its session away, and keeps its key.
    first.deleted_at = Some(9);
    first.slot = None;
    store.put_sandbox(&first).unwrap();
    with(&session).unwrap();
    with(&slot).unwrap();
    assert!(matches!(with(&key), Err(SandboxError::KeyTaken { .. })));
    assert_eq!(store.sandbox_of_session("s").unwrap(), None);
    assert_eq!(store.sandbox_of_key("k").unwrap(), Some(first));
}

#[test]
fn a_list_has_what_matches_and_no_deleted_ones() {
    let (_dir, store) = store();
    for (id, at, state, from) in [
        ("a", 1, SandboxState::Running, "base"),
        ("b", 2, SandboxState::Paused, "base"),
        ("c", 2, SandboxState::Running, "other"),
        ("d", 3, SandboxState::Running, "base"),
        ("e", 4, SandboxState::Failed, "base"),
    ] {
        let deleted_at = (id == "d").then_some(9);
        store
            .put_sandbox(&SandboxRecord {
                state,
                template: from.to_owned(),
                deleted_at,
                ..sandbox(id, at)
            })
            .unwrap();
    }
    let list = |filter: SandboxFilter| {
        let found = store.sandboxes(&filter).unwrap();
        ids(&found).join(" ")
    };
    let any = SandboxFilter::default;
    assert_eq!(list(any()), "e c b a");
    let oldest_first = SandboxFilter {
        oldest_first: true,
        since: Some(2),
        ..any()
    };
    assert_eq!(list(oldest_first), "b c e");
    let states = SandboxFilter {
        states: vec![SandboxState::Running, SandboxState::Paused],
        template: Some("base".to_owned()),
        ..any()
    };
    assert_eq!(list(states), "b a");
    let limited = SandboxFilter {
        limit: Some(1),
        ..any()
    };
    assert_eq!(list(limited), "e");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// What is added and deleted while somebody turns pages moves nothing else.
    #[test]
    fn pages_have_everything_that_was_there_all_the_time_once(
        times in prop::collection::vec(0_i64..6, 1..24),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0_i64..6), 0..24),
        limit in 1_usize..5,
        oldest_first in any::<bool>(),
    ) {
        let (_dir, store) = store();
        for (number, at) in times.iter().enumerate() {
            store.put_sandbox(&sandbox(&format!("s{number}"), *at)).unwrap();
        }
        let mut stayed: BTreeSet<String> = (0..times.len()).map(|n| format!("s{n}")).collect();
        let mut changes = changes.into_iter();
        let (mut seen, mut after) = (Vec::new(), None::<SandboxCursor>);
        loop {
            // As text, as a client hands it back.
            let after_text = after.as_ref().map(|cursor| cursor.to_string().parse().unwrap());
            let filter = SandboxFilter { after: after_text, limit: Some(limit), oldest_first, ..SandboxFilter::default() };
            let page = store.sandboxes(&filter).unwrap();
            let Some(last) = page.last() else { break };
            after = Some(SandboxCursor::behind(last));
            seen.extend(page);
            if let Some((which, at)) = changes.next() {
                let id = format!("s{}", which.index(times.len()));
                let mut gone = store.sandbox(&id).unwrap().unwrap();
                gone.deleted_at = Some(1);
                store.put_sandbox(&gone).unwrap();
                stayed.remove(&id);
                store.put_sandbox(&sandbox(&format!("new{}", seen.len()), at)).unwrap();
            }
        }
        let mut in_order = seen.clone();
        in_order.sort_by_key(|one| (one.created_at, one.id.clone()));
        if !oldest_first {
            in_order.reverse();
        }
        prop_assert_eq!(&in_order, &seen);
        let all: BTreeSet<&str> = seen.iter().map(|one| &one.id[..]).collect();
        prop_assert_eq!(all.len(), seen.len());
        prop_assert!(stayed.iter().all(|id| all.contains(&id[..])));
    }
}

#[test]
fn after_a_crash_deleted_ones_that_still_hold_something_are_looked_at() {
    let (_dir, store) = store();
    let workspace = store.create_workspace(&name("w")).unwrap().id;
    let gone = store.create_workspace(&name("gone")).unwrap().id;
    store.delete_workspace("gone").unwrap();
    let deleted = |id, at| SandboxRecord {
        deleted_at: Some(9),
        ..sandbox(id, at)
    };
    for one in [
        sandbox("lives", 5),
        SandboxRecord {
            slot: Some(4),
            ..deleted("slot", 4)
        },
        SandboxRecord {
            slot: Some(3),
            workspace: Some(workspace),
            ..deleted("both", 3)
        },
        SandboxRecord {
            workspace: Some(workspace),
            ..deleted("workspace", 2)
        },
        SandboxRecord {
            workspace: Some(gone),
            ..deleted("nothing", 1)
        },
    ] {
        store.put_sandbox(&one).unwrap();
    }
    let left = store.all_sandboxes().unwrap();
    assert_eq!(ids(&left), ["workspace", "both", "slot", "lives"]);
}

#[test]
fn a_deleted_sandbox_is_forgotten_with_the_last_snapshot_of_it() {
    let (_dir, store) = store();
    let mut made = Vec::new();
    for (number, id) in ["kept", "empty", "late"].into_iter().enumerate() {
        let workspace = store.create_workspace(&name(id)).unwrap().id;
        let deleted_at = Some(if id == "late" { 50 } else { 10 });
        made.push(SandboxRecord {
            workspace: Some(workspace),
            deleted_at,
            ..sandbox(id, i64::try_from(number).unwrap())
        });
    }
    let taken = take(&store, "kept");
    store.put_sandbox(&sandbox("lives", 1)).unwrap();
    for one in &made {
        store.put_sandbox(one).unwrap();
    }
    // Somebody has to remove their workspaces first.
    assert_eq!(store.forget_deleted_sandboxes(50).unwrap(), 0);
    for one in &made {
        store.delete_workspace(&one.id).unwrap();
    }
    assert_eq!(store.forget_deleted_sandboxes(50).unwrap(), 1);
    let there = |id| store.sandbox(id).unwrap().is_some();
    assert!(there("kept") && !there("empty") && there("late") && there("lives"));
    let these = DeleteSelection::These(vec![taken.id.to_string()]);
    store.delete_snapshots(&these, false).unwrap();
    assert_eq!(store.forget_deleted_sandboxes(51).unwrap(), 2);
    assert!(!there("kept") && !there("late") && there("lives"));
}

#[test]
fn snapshots_are_listed_by_sandbox_and_by_template() {
    let (_dir, store) = store();
    let mut of = Vec::new();
    for id in ["a", "b", "plain"] {
        let workspace = store.create_workspace(&name(id)).unwrap().id;
        if id != "plain" {
            store
                .put_sandbox(&SandboxRecord {
                    workspace: Some(workspace),
                    ..sandbox(id, 1)
                })
                .unwrap();
        }
        of.push((take(&store, id), take(&store, id)));
    }
    let ids = |infos: &[&SnapshotInfo]| -> Vec<SnapshotId> {
        infos.iter().map(|info| info.id.clone()).collect()
    };
    let of_sandboxes = SnapshotFilter {
        of_sandboxes: true,
        ..SnapshotFilter::default()
    };
    let expected = ids(&[&of[1].1, &of[1].0, &of[0].1, &of[0].0]);
    assert_eq!(listed(&store, &of_sandboxes), expected);
    let of_a = SnapshotFilter {
        sandbox: Some("a".to_owned()),
        ..SnapshotFilter::default()
    };
    assert_eq!(listed(&store, &of_a), ids(&[&of[0].1, &of[0].0]));
    // Also when it is gone.
    let mut a = store.sandbox("a").unwrap().unwrap();
    a.deleted_at = Some(9);
    store.put_sandbox(&a).unwrap();
    store.delete_workspace("a").unwrap();
    assert_eq!(listed(&store, &of_a), ids(&[&of[0].1, &of[0].0]));
    assert_eq!(listed(&store, &of_sandboxes), expected);
    let page = SnapshotFilter {
        after: Some(of[1].0.cursor),
        limit: Some(1),
        ..of_sandboxes.clone()
    };
    assert_eq!(listed(&store, &page), ids(&[&of[0].1]));
    for (sandbox, workspace) in [("plain", None), ("a", Some("b"))] {
        let none = SnapshotFilter {
            sandbox: Some(sandbox.to_owned()),
            workspace: workspace.map(str::to_owned),
            ..SnapshotFilter::default()
        };
        assert!(listed(&store, &none).is_empty());
    }

    store
        .set_template(&template("base"), &of[2].0.id, None)
        .unwrap();
    let of_template = |name: &str| SnapshotFilter {
        template: Some(name.to_owned()),
        ..SnapshotFilter::default()
    };
    assert_eq!(listed(&store, &of_template("base")), ids(&[&of[2].0]));
    assert!(listed(&store, &of_template("other")).is_empty());
    let both = SnapshotFilter {
        of_sandboxes: true,
        ..of_template("base")
    };
    assert!(listed(&store, &both).is_empty());
}

#[test]
fn the_name_of_a_template_moves_and_goes_with_its_snapshot() {
    let (_dir, store) = store();
    store.create_workspace(&name("w")).unwrap();
    let (first, second) = (take(&store, "w").id, take(&store, "w").id);
    let base = template("base");
    assert!(store.template(&base).unwrap().is_none());
    let set = store.set_template(&base, &first, None).unwrap();
    assert_eq!((&set.name[..], &set.snapshot), ("base", &first));
    assert_eq!(store.template(&base).unwrap().as_ref(), Some(&set));
    let step = template("steps/1");
    store.set_template(&step, &first, Some("recipe")).unwrap();
    store
        .set_template(&template("steps/2"), &second, Some("recipe"))
        .unwrap();
    let newest = store.template_by_recipe("recipe").unwrap().unwrap();
    assert_eq!(&newest.name[..], "steps/2");
    assert!(store.template_by_recipe("other").unwrap().is_none());
    store.set_template(&base, &second, None).unwrap();
    let names = |of: Vec<floe_fs::TemplateRecord>| {
        let names: Vec<_> = of.into_iter().map(|one| one.name).collect();
        names.join(" ")
    };
    assert_eq!(names(store.templates().unwrap()), "base steps/1 steps/2");
    assert_eq!(names(store.templates_of(&first).unwrap()), "steps/1");
    assert_eq!(names(store.templates_of(&second).unwrap()), "base steps/2");
    let these = DeleteSelection::These(vec![second.to_string()]);
    store.delete_snapshots(&these, false).unwrap();
    assert_eq!(names(store.templates().unwrap()), "steps/1");
    let refused = store.set_template(&base, &second, None);
    assert!(matches!(
        refused,
        Err(TemplateError::NoSnapshot { snapshot }) if snapshot == second
    ));
    assert!(store.delete_template(&step).unwrap());
    assert!(!store.delete_template(&step).unwrap());
    assert!(store.templates().unwrap().is_empty());
    assert!(store.check().unwrap().is_clean());
}

/// Rules and an expiry in the past, with as many templates as snapshots in all.
#[test]
fn no_rule_and_no_expiry_deletes_a_template() {
    let (_dir, store) = store();
    store.create_workspace(&name("w")).unwrap();
    let [old, expired, newest] = [(); 3].map(|()| take(&store, "w").id);
    store.set_template(&template("old"), &old, None).unwrap();
    store
        .set_template(&template("expired"), &expired, None)
        .unwrap();
    let edit = SnapshotEdit {
        expires_at: Edit::Set(now() - 1),
        ..SnapshotEdit::default()
    };
    store.edit_snapshots(&[expired.to_string()], &edit).unwrap();
    let last = RetentionRule {
        keep_last: std::num::NonZeroU64::new(1),
        keep_within: None,
    };
    store
        .set_retention(None, SnapshotClass::ByHand, &last)
        .unwrap();
    let retired = |store: &Store| -> BTreeSet<SnapshotId> {
        let report = store.apply_retention(true).unwrap();
        report.retired.into_iter().map(|one| one.id).collect()
    };
    assert!(retired(&store).is_empty());
    assert!(store.apply_retention(false).unwrap().retired.is_empty());
    let all = listed(&store, &SnapshotFilter::default());
    assert_eq!(all.len(), 3);
    // Names that move on or go leave snapshots to the rules.
    store.set_template(&template("old"), &newest, None).unwrap();
    store.delete_template(&template("expired")).unwrap();
    // Somebody else may be faster.
    store.apply_retention(false).unwrap();
    assert_eq!(listed(&store, &SnapshotFilter::default()), [newest]);
}

/// Not by `apply_retention`, but by itself.
#[test]
fn a_snapshot_that_is_no_template_any_more_goes_by_itself() {
    let (_dir, store) = store();
    store.create_workspace(&name("w")).unwrap();
    let options = SnapshotOptions {
        name: Some(SnapshotName::parse("n").unwrap()),
        ..SnapshotOptions::default()
    };
    let taken = store.snapshot("w", &options).unwrap().id;
    let base = template("base");
    store.set_template(&base, &taken, None).unwrap();
    let edit = SnapshotEdit {
        expires_at: Edit::Set(now() - 1),
        ..SnapshotEdit::default()
    };
    store.edit_snapshots(&[taken.to_string()], &edit).unwrap();
    assert_eq!(listed(&store, &SnapshotFilter::default()), [taken]);
    store.delete_template(&base).unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !listed(&store, &SnapshotFilter::default()).is_empty() {
        assert!(std::time::Instant::now() < until, "it stays");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Whoever is root in a sandbox leaves files of root's behind. What they could write to is known by that
/// wherever it is shown, or the set-id bits of those files would count on the host.
#[test]
fn what_a_sandbox_could_write_to_is_known_wherever_it_goes() {
    let (_dir, store) = store();
    let base = store.create_workspace(&name("base")).unwrap();
    let clean = take(&store, "base");
    assert!(!base.sandboxed && !clean.sandboxed);
    let from = |id: &SnapshotId| ForkSource::Snapshot(id.clone());
    let forked = |source: &ForkSource, as_name: &str| {
        store.fork(source, &[name(as_name)]).unwrap().remove(0)
    };
    let other = forked(&from(&clean.id), "other");
    let inside = forked(&from(&clean.id), "inside");
    assert!(!other.sandboxed && !inside.sandboxed && !take(&store, "inside").sandboxed);
    store
        .put_sandbox(&SandboxRecord {
            workspace: Some(inside.id),
            ..sandbox("s", 1)
        })
        .unwrap();
    let sandboxed = |workspace: &str| store.workspace(workspace).unwrap().sandboxed;
    assert!(sandboxed("inside") && !sandboxed("base") && !sandboxed("other"));
    let view = store.open_live("inside").unwrap();
    common::make(&view, Ino::ROOT, "left", FileKind::File);
    let taken = take(&store, "inside");
    assert!(taken.sandboxed);
    // In a snapshot, in what is made from it, and in what goes back to it or has it landed.
    assert!(store.find_snapshot(taken.id.as_str()).unwrap().sandboxed);
    assert!(forked(&from(&taken.id), "fork").sandboxed);
    assert!(!forked(&from(&clean.id), "back").sandboxed);
    store.rollback("back", taken.id.as_str()).unwrap();
    assert!(sandboxed("back"));
    let landed = store.land("fork", Some("other"), &LandOptions::default());
    assert!(landed.unwrap().landed);
    assert!(sandboxed("other") && !sandboxed("base"));
    // Not even after a way back: a mount may show it still, and what was landed is in a snapshot.
    store.rollback("back", clean.id.as_str()).unwrap();
    assert!(sandboxed("back"));
    assert!(!forked(&from(&clean.id), "again").sandboxed);
    // As for a virtual machine that has somebody's workspace.
    store
        .snapshot("again", &SnapshotOptions::default())
        .unwrap();
    store.distrust("again").unwrap();
    assert!(sandboxed("again") && take(&store, "again").sandboxed);
    drop(view);
    assert!(store.check().unwrap().is_clean());
}
