//! How long snapshots are kept, by rules, expiries and protection: docs/retention.md through the
//! library.
//!
//! The background thread applies rules as well, at any moment: what is looked at is what is left, which is the
//! same whoever deleted the rest. Where somebody has to be first, nothing is due until it is asked for.

mod common;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use floe_fs::attr::{FileKind, Timestamp};
use floe_fs::dispatch::Dispatch;
use floe_fs::id::{Ino, SnapshotName};
use floe_fs::{
    DeleteError, DeleteSelection, Edit, EditError, Fidelity, ForkSource, RetentionRule,
    RetireReason, RuleSource, SnapshotClass, SnapshotEdit, SnapshotFilter, SnapshotInfo,
    SnapshotOptions, Store,
};

use common::{make, name, new_store, write};

const BY_HAND: SnapshotClass = SnapshotClass::ByHand;
const AUTOMATIC: SnapshotClass = SnapshotClass::Automatic;
const HOUR: i64 = 3_600_000_000_000;

fn now() -> i64 {
    let now = Timestamp::now();
    now.secs * 1_000_000_000 + i64::from(now.nanos)
}

fn last(count: u64) -> RetentionRule {
    RetentionRule {
        keep_last: NonZeroU64::new(count),
        keep_within: None,
    }
}

fn within(time: Duration) -> RetentionRule {
    RetentionRule {
        keep_last: None,
        keep_within: Some(time),
    }
}

fn take(store: &Store, workspace: &str) -> SnapshotInfo {
    let options = SnapshotOptions::default();
    store.snapshot(workspace, &options).unwrap()
}

fn taken(store: &Store, workspace: &str, count: usize) -> Vec<String> {
    let each = (0..count).map(|_| take(store, workspace).id.to_string());
    each.collect()
}

fn edit(store: &Store, id: &str, edit: SnapshotEdit) -> SnapshotInfo {
    let edited = store.edit_snapshots(&[id.to_owned()], &edit);
    edited.unwrap().remove(0)
}

fn expiring(at: i64) -> SnapshotEdit {
    SnapshotEdit {
        expires_at: Edit::Set(at),
        ..SnapshotEdit::default()
    }
}

fn protected(is: bool) -> SnapshotEdit {
    SnapshotEdit {
        protected: Some(is),
        ..SnapshotEdit::default()
    }
}

/// Ids of all that are left of a workspace, or of all, oldest first.
fn left(store: &Store, workspace: Option<&str>) -> Vec<String> {
    let filter = SnapshotFilter {
        workspace: workspace.map(str::to_owned),
        oldest_first: true,
        ..SnapshotFilter::default()
    };
    let found = store.snapshots(&filter).unwrap();
    found.iter().map(|one| one.id.to_string()).collect()
}

/// Waits until only these are left, which the background thread sees to.
fn comes_to(store: &Store, expected: &[String]) {
    let waited = Instant::now();
    while left(store, None) != expected {
        let found = left(store, None);
        assert!(
            waited.elapsed() < Duration::from_secs(60),
            "{found:?}, not {expected:?}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn check(store: &Store) {
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

/// Changes rows of a closed store's catalog.
fn sql(store: Arc<Store>, dir: &Path, sql: &str) -> Arc<Store> {
    drop(Arc::try_unwrap(store).ok().unwrap());
    let catalog = rusqlite::Connection::open(dir.join("catalog.db")).unwrap();
    catalog.execute_batch(sql).unwrap();
    drop(catalog);
    Store::open(dir).unwrap()
}

fn scratch() -> (tempfile::TempDir, Arc<Store>) {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(&dir.path().join("s"));
    (dir, store)
}

#[test]
fn each_workspace_is_counted_for_itself_and_its_own_rule_comes_first() {
    let (_dir, store) = scratch();
    let mut ids = BTreeMap::new();
    for ws in ["a", "b", "c", "gone"] {
        store.create_workspace(&name(ws)).unwrap();
        ids.insert(ws, taken(&store, ws, 5));
    }
    store.delete_workspace("gone").unwrap();
    store.set_retention(Some("b"), BY_HAND, &last(4)).unwrap();
    store
        .set_retention(Some("c"), BY_HAND, &RetentionRule::KEEP_ALL)
        .unwrap();
    store.set_retention(None, BY_HAND, &last(2)).unwrap();
    store.apply_retention(false).unwrap();
    for (ws, count) in [("a", 2), ("b", 4), ("c", 5), ("gone", 2)] {
        assert_eq!(left(&store, Some(ws)), ids[ws][5 - count..], "{ws}");
    }
    // One that was deleted can have a rule of its own.
    store
        .set_retention(Some("gone"), BY_HAND, &last(1))
        .unwrap();
    store.apply_retention(false).unwrap();
    assert_eq!(left(&store, Some("gone")), ids["gone"][4..]);
    assert!(
        store
            .set_retention(Some("none"), BY_HAND, &last(1))
            .is_err()
    );
    check(&store);
}

#[test]
fn rules_are_shown_with_who_set_them() {
    let (_dir, store) = scratch();
    store.create_workspace(&name("w")).unwrap();
    let seen = |workspace: Option<&str>| {
        let rules = store.retention_rules(workspace).unwrap();
        let seen = rules
            .into_iter()
            .map(|one| (one.workspace, one.class, one.rule, one.source));
        seen.collect::<Vec<_>>()
    };
    let built_in = RetentionRule::built_in(AUTOMATIC);
    assert_eq!(
        (built_in.keep_last, built_in.keep_within),
        (NonZeroU64::new(32), Some(Duration::from_secs(604_800)))
    );
    let default = RuleSource::Default;
    assert_eq!(
        seen(None),
        [
            (None, BY_HAND, RetentionRule::KEEP_ALL, default),
            (None, AUTOMATIC, built_in, default)
        ]
    );
    store.set_retention(Some("w"), AUTOMATIC, &last(3)).unwrap();
    let day = within(Duration::from_secs(86_400));
    store.set_retention(None, BY_HAND, &day).unwrap();
    let w = || Some("w".to_owned());
    let (stores, own) = (RuleSource::Store, RuleSource::Workspace);
    assert_eq!(
        seen(None),
        [
            (None, BY_HAND, day, stores),
            (None, AUTOMATIC, built_in, default),
            (w(), AUTOMATIC, last(3), own)
        ]
    );
    assert_eq!(
        seen(Some("w")),
        [(w(), BY_HAND, day, stores), (w(), AUTOMATIC, last(3), own)]
    );
    store.clear_retention(Some("w"), AUTOMATIC).unwrap();
    store.clear_retention(None, BY_HAND).unwrap();
    assert_eq!(seen(None).len(), 2);
    assert!(seen(None).iter().all(|one| one.3 == default));
}

#[test]
fn classes_have_rules_of_their_own_and_a_dry_run_deletes_nothing() {
    let (_dir, store) = scratch();
    store.create_workspace(&name("w")).unwrap();
    let by_hand = taken(&store, "w", 3);
    for fork in ["f1", "f2", "f3"] {
        let source = ForkSource::Workspace("w".to_owned());
        store.fork(&source, &[name(fork)]).unwrap();
    }
    assert_eq!(left(&store, None).len(), 6);
    // Nothing is old enough for what is built in.
    assert_eq!(store.apply_retention(true).unwrap().retired, []);
    store.set_retention(Some("w"), AUTOMATIC, &last(1)).unwrap();
    store.apply_retention(false).unwrap();
    let rest = left(&store, Some("w"));
    assert_eq!(rest[..3], by_hand);
    assert_eq!(rest.len(), 4);
    // They show what they did, without the snapshots that they come from.
    for fork in ["f1", "f2", "f3"] {
        store.open_live(fork).unwrap();
    }
    check(&store);
}

#[test]
fn an_expiry_counts_alone_and_goes_by_itself() {
    let (_dir, store) = scratch();
    store.create_workspace(&name("w")).unwrap();
    let ids = taken(&store, "w", 3);
    let options = |at| SnapshotOptions {
        expires_at: Some(at),
        ..SnapshotOptions::default()
    };
    let later = store.snapshot("w", &options(now() + HOUR)).unwrap();
    assert!(later.expires_at.is_some());
    let shown = store.find_snapshot(later.id.as_str()).unwrap();
    assert_eq!(shown.expires_at, later.expires_at);
    let soon = store.snapshot("w", &options(now() + 300_000_000)).unwrap();
    store.set_retention(None, BY_HAND, &last(2)).unwrap();
    // It does not count among the newest, and is not deleted by the rule.
    let expected = [&ids[1..], &[later.id.to_string()]].concat();
    comes_to(&store, &expected);
    assert!(store.find_snapshot(soon.id.as_str()).is_err());
    // One that had none gets one, and another loses it.
    edit(&store, &ids[2], expiring(now() - 1));
    let kept = SnapshotEdit {
        expires_at: Edit::Clear,
        ..SnapshotEdit::default()
    };
    assert_eq!(edit(&store, later.id.as_str(), kept).expires_at, None);
    comes_to(&store, &[ids[1].clone(), later.id.to_string()]);
    // Now it counts.
    let newest = take(&store, "w").id.to_string();
    comes_to(&store, &[later.id.to_string(), newest]);
    check(&store);
}

#[test]
fn nothing_deletes_what_is_protected() {
    let (_dir, store) = scratch();
    store.create_workspace(&name("w")).unwrap();
    let options = SnapshotOptions {
        protected: true,
        name: Some(SnapshotName::parse("kept").unwrap()),
        ..SnapshotOptions::default()
    };
    let kept = store.snapshot("w", &options).unwrap();
    assert!(kept.protected);
    let ids = taken(&store, "w", 3);
    assert!(edit(&store, &ids[1], protected(true)).protected);
    edit(&store, &ids[1], expiring(now() - 1));
    store.set_retention(None, BY_HAND, &last(1)).unwrap();
    let expected = [kept.id.to_string(), ids[1].clone(), ids[2].clone()];
    comes_to(&store, &expected);
    assert_eq!(store.apply_retention(false).unwrap().retired, []);
    // By reference it is named, and none is deleted.
    let these = DeleteSelection::These(vec![ids[2].clone(), "w/kept".to_owned()]);
    match store.delete_snapshots(&these, false) {
        Err(DeleteError::Protected { references }) => assert_eq!(references, ["w/kept"]),
        other => panic!("{other:?}"),
    }
    assert_eq!(left(&store, None), expected);
    let all = DeleteSelection::Matching {
        filter: SnapshotFilter::default(),
        keep_last: 0,
    };
    let dry = store.delete_snapshots(&all, true).unwrap();
    assert_eq!((dry.deleted.len(), dry.protected), (1, 2));
    let done = store.delete_snapshots(&all, false).unwrap();
    assert_eq!(done.deleted[0].snapshot.id.as_str(), ids[2]);
    assert_eq!((done.deleted.len(), done.protected), (1, 2));
    // An expiry that went by meanwhile takes effect.
    edit(&store, &ids[1], protected(false));
    comes_to(&store, &expected[..1]);
    store.delete_workspace("w").unwrap();
    comes_to(&store, &expected[..1]);
    check(&store);
}

#[test]
fn what_is_in_use_goes_when_that_has_ended() {
    let (_dir, store) = scratch();
    store.create_workspace(&name("w")).unwrap();
    let view = store.open_live("w").unwrap();
    let file = make(&view, Ino::ROOT, "f", FileKind::File);
    write(&view, file, 0, b"text");
    let ids: Vec<_> = (0..3).map(|_| take(&store, "w").id).collect();
    let text: Vec<_> = ids.iter().map(ToString::to_string).collect();
    let (by_rule, by_expiry) = (
        store.open_frozen(&ids[0]).unwrap(),
        store.open_frozen(&ids[1]).unwrap(),
    );
    edit(&store, &text[1], expiring(now() - 1));
    store.set_retention(None, BY_HAND, &last(1)).unwrap();
    let report = store.apply_retention(false).unwrap();
    assert_eq!((report.retired.len(), report.in_use), (0, 2));
    assert_eq!(left(&store, None), text);
    drop(by_expiry);
    comes_to(&store, &[text[0].clone(), text[2].clone()]);
    assert_eq!(by_rule.getattr(file).unwrap().size, 4);
    drop(by_rule);
    comes_to(&store, &text[2..]);
    // By hand it is deleted all the same.
    let used = store.open_frozen(&ids[2]).unwrap();
    let these = DeleteSelection::These(vec![text[2].clone()]);
    store.delete_snapshots(&these, false).unwrap();
    assert_eq!(used.getattr(file).unwrap().size, 4);
    check(&store);
}

/// Snapshots taken while the clock was wrong: the rows say other times.
#[test]
fn a_clock_that_was_wrong_does_not_delete_more() {
    let (dir, store) = scratch();
    let path = dir.path().join("s");
    store.create_workspace(&name("w")).unwrap();
    let ids = taken(&store, "w", 4);
    let at =
        |at: i64, id: &str| format!("UPDATE snapshot SET created_at = {at} WHERE id = '{id}';");
    // The oldest from the future, the newest from long ago.
    let changes = at(now() + 1000 * HOUR, &ids[0]) + &at(now() - 1000 * HOUR, &ids[3]);
    let store = sql(store, &path, &changes);
    store.set_retention(None, BY_HAND, &last(2)).unwrap();
    store.apply_retention(false).unwrap();
    assert_eq!(left(&store, Some("w")), ids[2..], "by the order of taking");
    let day = within(Duration::from_secs(86_400));
    store.set_retention(None, BY_HAND, &day).unwrap();
    store.apply_retention(false).unwrap();
    assert_eq!(left(&store, Some("w")), ids[2..3]);
    // From the future, so it is new.
    let store = sql(store, &path, &at(now() + 1000 * HOUR, &ids[2]));
    assert_eq!(store.apply_retention(false).unwrap().retired, []);
    assert_eq!(left(&store, Some("w")), ids[2..3]);
}

/// Which is the newest is for the order of taking to say, also where several workspaces are looked at.
#[test]
fn the_newest_stay_whatever_the_clock_said() {
    let (dir, store) = scratch();
    let path = dir.path().join("s");
    let mut changes = String::new();
    let mut ids = Vec::new();
    for ws in ["a", "b"] {
        store.create_workspace(&name(ws)).unwrap();
        let of = taken(&store, ws, 3);
        let back = now() - 1000 * HOUR;
        changes += &format!(
            "UPDATE snapshot SET created_at = {back} WHERE id = '{}';",
            of[2]
        );
        ids.push(of);
    }
    let store = sql(store, &path, &changes);
    for oldest_first in [false, true] {
        let selection = DeleteSelection::Matching {
            filter: SnapshotFilter {
                oldest_first,
                ..SnapshotFilter::default()
            },
            keep_last: 1,
        };
        store.delete_snapshots(&selection, false).unwrap();
        assert_eq!(left(&store, Some("a")), ids[0][2..]);
        assert_eq!(left(&store, Some("b")), ids[1][2..]);
    }
}

#[test]
fn what_is_due_is_deleted_when_the_store_is_opened() {
    let (dir, store) = scratch();
    let path = dir.path().join("s");
    store.create_workspace(&name("w")).unwrap();
    let ids = taken(&store, "w", 40);
    edit(&store, &ids[0], expiring(now() + HOUR));
    // All automatic and too old for what is built in, but for those of the newest 32.
    let long_ago = now() - 24 * 8 * HOUR;
    let changes = format!(
        "UPDATE snapshot SET expires_at = {}, protected = 0 WHERE expires_at IS NOT NULL;
         UPDATE snapshot SET automatic = 'land', created_at = {long_ago} WHERE expires_at IS NULL;",
        now() - 1
    );
    let store = sql(store, &path, &changes);
    comes_to(&store, &ids[8..]);
    // The reasons are told by hand.
    let store = sql(
        store,
        &path,
        &format!(
            "UPDATE snapshot SET protected = 1, expires_at = {long_ago} WHERE id = '{}'",
            ids[8]
        ),
    );
    assert_eq!(store.apply_retention(true).unwrap().retired, []);
    drop(edit(&store, &ids[8], protected(false)));
    comes_to(&store, &ids[9..]);
    check(&store);
}

#[test]
fn a_report_says_which_and_why() {
    let (_dir, store) = scratch();
    store.create_workspace(&name("w")).unwrap();
    let ids = taken(&store, "w", 3);
    // Only a moment passes between what makes them due and the question; whoever is first, one of both
    // tells of each, or the thread has deleted it.
    edit(&store, &ids[0], expiring(now() - 1));
    let report = store.apply_retention(true).unwrap();
    for one in &report.retired {
        assert_eq!(
            (one.id.as_str(), one.why),
            (&*ids[0], RetireReason::Expired)
        );
        assert_eq!((&*one.workspace, &one.automatic), ("w", &None));
        assert!(one.expires_at.is_some());
    }
    store.set_retention(None, BY_HAND, &last(1)).unwrap();
    for one in store.apply_retention(false).unwrap().retired {
        let expected = match one.why {
            RetireReason::Expired => &ids[0],
            RetireReason::Rule => &ids[1],
        };
        assert_eq!(one.id.as_str(), expected);
    }
    assert_eq!(left(&store, None), ids[2..]);
}

/// More than go in one transaction, with somebody who takes snapshots all the time.
#[test]
fn many_are_deleted_while_others_are_taken() {
    let (_dir, store) = scratch();
    for ws in ["a", "b"] {
        store.create_workspace(&name(ws)).unwrap();
    }
    taken(&store, "a", 600);
    store.set_retention(None, BY_HAND, &last(3)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| taken(&store, "b", 100));
        scope.spawn(|| store.apply_retention(false).unwrap());
        scope.spawn(|| store.apply_retention(false).unwrap());
    });
    let last_of_b = taken(&store, "b", 3);
    store.apply_retention(false).unwrap();
    assert_eq!(left(&store, Some("a")).len(), 3);
    assert_eq!(left(&store, Some("b")), last_of_b);
    store
        .collect(&mut |_| std::ops::ControlFlow::Continue(()))
        .unwrap();
    check(&store);
}

#[test]
fn what_is_said_of_a_snapshot_is_changed_whole_or_not_at_all() {
    let (_dir, store) = scratch();
    store.create_workspace(&name("w")).unwrap();
    let ids = taken(&store, "w", 2);
    let named = |text| SnapshotEdit {
        name: Edit::Set(SnapshotName::parse(text).unwrap()),
        message: Edit::Set("why".to_owned()),
        labels: [
            ("k".to_owned(), "1".to_owned()),
            ("l".to_owned(), "2".to_owned()),
        ]
        .into(),
        ..SnapshotEdit::default()
    };
    let first = edit(&store, &ids[0], named("n"));
    assert_eq!(first.name.as_deref(), Some("n"));
    assert_eq!(first.labels.len(), 2);
    match store.edit_snapshots(&[ids[1].clone()], &named("n")) {
        Err(EditError::NameTaken { workspace, name }) => {
            assert_eq!((&*workspace, &*name), ("w", "n"));
        }
        other => panic!("{other:?}"),
    }
    let second = store.find_snapshot(&ids[1]).unwrap();
    assert_eq!((second.message, second.labels.len()), (None, 0));
    let these = [ids[1].clone(), "none".to_owned()];
    assert!(store.edit_snapshots(&these, &protected(true)).is_err());
    assert!(!store.find_snapshot(&ids[1]).unwrap().protected);
    let changed = SnapshotEdit {
        name: Edit::Clear,
        message: Edit::Clear,
        labels: [("k".to_owned(), "3".to_owned())].into(),
        without: vec!["l".to_owned(), "none".to_owned()],
        ..SnapshotEdit::default()
    };
    let first = edit(&store, "w/n", changed);
    assert_eq!((first.name, first.message), (None, None));
    assert_eq!(first.labels, [("k".to_owned(), "3".to_owned())].into());
    edit(&store, &ids[1], named("n"));
    check(&store);
}

#[test]
fn lists_are_filtered_in_pages() {
    let (_dir, store) = scratch();
    store.create_workspace(&name("w")).unwrap();
    for n in 0..12 {
        if n % 3 == 0 {
            let source = ForkSource::Workspace("w".to_owned());
            store.fork(&source, &[name(&format!("f{n}"))]).unwrap();
        } else {
            let info = take(&store, "w");
            edit(&store, info.id.as_str(), protected(n % 2 == 0));
        }
    }
    let all = |filter: &SnapshotFilter| store.snapshots(filter).unwrap();
    for workspace in [None, Some("w".to_owned())] {
        for (protected, automatic, count) in [
            (Some(true), None, 4),
            (None, Some(true), 4),
            (Some(false), Some(false), 4),
            (None, Some(false), 8),
            (Some(true), Some(true), 0),
        ] {
            let filter = SnapshotFilter {
                workspace: workspace.clone(),
                protected,
                automatic,
                ..SnapshotFilter::default()
            };
            let found = all(&filter);
            assert_eq!(found.len(), count, "{filter:?}");
            for one in &found {
                assert!(protected.is_none_or(|is| is == one.protected));
                assert!(automatic.is_none_or(|is| is == one.automatic.is_some()));
            }
            let mut paged: Vec<SnapshotInfo> = Vec::new();
            loop {
                let page = all(&SnapshotFilter {
                    after: paged.last().map(|one| one.cursor),
                    limit: Some(3),
                    ..filter.clone()
                });
                if page.is_empty() {
                    break;
                }
                paged.extend(page);
            }
            let ids = |list: &[SnapshotInfo]| -> Vec<String> {
                list.iter().map(|one| one.id.to_string()).collect()
            };
            assert_eq!(ids(&paged), ids(&found));
        }
    }
    for (fidelity, count) in [(Fidelity::Filesystem, 12), (Fidelity::FilesystemMemory, 0)] {
        let fidelity = Some(fidelity);
        let filter = SnapshotFilter {
            fidelity,
            ..SnapshotFilter::default()
        };
        assert_eq!(all(&filter).len(), count);
    }
}

/// A rule of a workspace that there never was, or of no class.
#[test]
fn the_check_names_rules_of_nothing() {
    let (dir, store) = scratch();
    let path = dir.path().join("s");
    store.create_workspace(&name("w")).unwrap();
    store.set_retention(Some("w"), BY_HAND, &last(1)).unwrap();
    store.set_retention(None, AUTOMATIC, &last(1)).unwrap();
    check(&store);
    let store = sql(
        store,
        &path,
        "INSERT INTO retention VALUES (77, 0, 1, NULL), (0, 2, 1, NULL)",
    );
    let report = store.check().unwrap();
    let found: Vec<_> = report.problems.iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found.iter().all(|text| text.contains("retention")),
        "{found:?}"
    );
}
