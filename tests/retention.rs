//! How long snapshots are kept, as a user sees it: rules, expiries, protection, and changing what is said
//! of a snapshot.

use std::fs;
use std::time::{Duration, Instant};

use floe_harness::TestStore;
use serde_json::{Value, json};

/// Ids of all snapshots that match, newest first.
fn ids(store: &TestStore, arguments: &[&str]) -> Vec<String> {
    let found = store.ok([&["snap", "list", "--quiet"], arguments].concat());
    found.lines().map(str::to_owned).collect()
}

/// Waits until only these are left, which the daemon sees to.
fn comes_to(store: &TestStore, expected: &[&str]) {
    let waited = Instant::now();
    loop {
        let found = ids(store, &[]);
        if found == expected {
            return;
        }
        assert!(
            waited.elapsed() < Duration::from_secs(60),
            "{found:?}, not {expected:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn store_with(workspaces: &[&str]) -> TestStore {
    let store = TestStore::new();
    for name in workspaces {
        store.ok(["ws", "create", name]);
    }
    store
}

#[test]
fn what_expires_goes_by_itself_also_after_a_restart() {
    let store = store_with(&["w"]);
    let kept = store.snapshot("w");
    let soon = store.json(["snapshot", "w", "--expires", "1s"]);
    assert!(soon["expires_at"].is_string(), "{soon:#}");
    comes_to(&store, &[&kept]);
    store.fails(3, ["snap", "show", soon["id"].as_str().unwrap()]);
    // Mounted, it waits.
    let used = store.snapshot("w");
    let dir = store.mount(&used);
    store.ok(["snap", "edit", &used, "--expires", "1s"]);
    let applied = || store.json(["retention", "apply", "--dry-run"]);
    let waited = Instant::now();
    while applied()["in_use"] != 1 {
        assert!(waited.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(ids(&store, &[]), [used.as_str(), &kept]);
    store.umount(&dir);
    comes_to(&store, &[&kept]);
    // What comes due while no daemon runs.
    let late = store.snapshot("w");
    store.ok(["snap", "edit", &late, "--expires", "300 ms"]);
    store.kill_daemon();
    store.ok(["daemon", "start"]);
    comes_to(&store, &[&kept]);
    store.ok(["snap", "edit", &kept, "--expires", "1h"]);
    let shown = store.ok(["snap", "show", &kept]);
    assert!(shown.contains("expires:"), "{shown}");
    store.ok(["snap", "edit", &kept, "--expires", "never"]);
    let shown = store.json(["snap", "show", &kept]);
    assert_eq!(shown["expires_at"], Value::Null);
    store.fails(2, ["snapshot", "w", "--expires", "soon"]);
    store.fails(2, ["snap", "edit", &kept]);
    store.check();
}

#[test]
fn what_is_protected_is_refused_by_reference_and_else_passed_over() {
    let store = store_with(&["w"]);
    let first = store.ok(["snapshot", "w", "--name", "green", "--protect"]);
    let first = first.trim();
    let second = store.snapshot("w");
    let third = store.snapshot("w");
    let failed = store.fails(4, ["snap", "delete", &second, "w/green"]);
    let told = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(
        told.contains("w/green") && !told.contains(&second),
        "{told}"
    );
    assert!(told.contains("snap unprotect w/green"), "{told}");
    assert_eq!(ids(&store, &[]), [third.as_str(), &second, first]);
    store.ok(["snap", "protect", &third, first]);
    assert_eq!(ids(&store, &["--protected"]), [third.as_str(), first]);
    let done = store.run(["snap", "delete", "--ws", "w"]);
    assert!(done.status.success());
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        told.contains("2 snapshots passed over: protected"),
        "{told}"
    );
    assert_eq!(ids(&store, &[]), [third.as_str(), first]);
    let done = store.json(["snap", "delete", "--ws", "w"]);
    assert_eq!(
        (&done["protected"], &done["snapshots"]),
        (&json!(2), &json!([]))
    );
    store.ok(["retention", "set", "w", "--keep-last", "1"]);
    store.ok(["retention", "apply"]);
    store.ok(["ws", "delete", "w"]);
    assert_eq!(ids(&store, &[]), [third.as_str(), first]);
    // It shows what it did.
    let dir = store.mount(first);
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
    store.fails(3, ["snap", "unprotect", &third, "none"]);
    assert_eq!(store.json(["snap", "show", &third])["protected"], true);
    let done = store.ok(["snap", "unprotect", &third]);
    assert_eq!(done.trim(), third);
    store.ok(["snap", "delete", &third]);
    store.check();
}

#[test]
fn rules_are_set_shown_applied_and_taken_back() {
    let store = store_with(&["a", "b"]);
    let rules = store.json(["retention", "show"]);
    let by_default = json!([
        {"workspace": null, "class": "by_hand", "keep_last": null, "keep_within_s": null, "source": "default"},
        {"workspace": null, "class": "automatic", "keep_last": 32, "keep_within_s": 604_800, "source": "default"},
    ]);
    assert_eq!(rules, by_default);
    let text = store.ok(["retention", "show", "a"]);
    assert!(text.contains("the last 32, and those of 7 d"), "{text}");
    assert!(text.contains("default"), "{text}");
    for arguments in [
        &["set"][..],
        &["set", "--keep-last", "0"],
        &["set", "--keep-within", "soon"],
        &["set", "--keep-all", "--keep-last", "3"],
    ] {
        store.fails(2, [&["retention"], arguments].concat());
    }
    store.fails(3, ["retention", "set", "c", "--keep-all"]);
    let of = |ws| -> Vec<String> { (0..4).map(|_| store.snapshot(ws)).collect() };
    let (a, b) = (of("a"), of("b"));
    store.ok(["retention", "set", "a", "--keep-all"]);
    let set = store.json([
        "retention",
        "set",
        "--keep-last",
        "2",
        "--keep-within",
        "1s",
    ]);
    assert_eq!(set[0]["source"], "store");
    assert_eq!(set[2]["workspace"], "a");
    // The daemon does it as well, by itself.
    let expected = [&b[3], &b[2], &a[3], &a[2], &a[1], &a[0]];
    comes_to(&store, &expected.map(|id| &**id));
    store.kill_daemon();
    store.ok(["daemon", "start"]);
    let shown = store.json(["retention", "show", "b"]);
    assert_eq!(
        shown[0],
        json!({"workspace": "b", "class": "by_hand", "keep_last": 2, "keep_within_s": 1, "source": "store"})
    );
    store.ok(["retention", "clear", "a"]);
    let applied = store.json(["retention", "apply"]);
    assert_eq!(applied["deleted"], true);
    let expected = [&b[3], &b[2], &a[3], &a[2]];
    assert_eq!(ids(&store, &[]), expected.map(String::clone));
    store.ok(["retention", "clear"]);
    assert_eq!(store.json(["retention", "show"]), by_default);
    // Now and then is looked at what is left of old ones.
    store.ok(["retention", "set", "b", "--keep-last", "1"]);
    store.ok(["gc"]);
    assert_eq!(ids(&store, &["--ws", "b"]), [b[3].as_str()]);
    assert_eq!(store.json(["gc", "--dry-run"])["snapshots"], 0);
    store.check();
}

/// Whatever a rule says, what a fork or a rollback left behind can be used as long as it is kept.
#[test]
fn automatic_snapshots_have_rules_of_their_own() {
    let store = store_with(&["w"]);
    let live = store.mount("w");
    store.ok(["retention", "set", "--automatic", "--keep-last", "2"]);
    let kept = store.snapshot("w");
    for n in 0..5 {
        fs::write(live.join("file"), format!("{n}")).unwrap();
        store.ok(["fork", "w", &format!("f{n}")]);
    }
    store.ok(["retention", "apply"]);
    assert_eq!(ids(&store, &["--ws", "w", "--automatic"]).len(), 2);
    assert_eq!(ids(&store, &["--ws", "w", "--by-hand"]), [kept.as_str()]);
    for n in 0..5 {
        let fork = store.mount(&format!("f{n}"));
        let text = fs::read_to_string(fork.join("file")).unwrap();
        assert_eq!(text, n.to_string());
    }
    let back = store.json(["rollback", "w", &kept]);
    store.ok(["rollback", "w", back["kept"].as_str().unwrap()]);
    assert_eq!(fs::read_to_string(live.join("file")).unwrap(), "4");
    store.ok(["retention", "apply"]);
    assert_eq!(ids(&store, &["--automatic"]).len(), 2);
    store.ok(["gc"]);
    store.check();
}

#[test]
fn what_is_said_of_a_snapshot_can_be_changed() {
    let store = store_with(&["w"]);
    let first = store.snapshot("w");
    let second = store.ok(["snapshot", "w", "--name", "two", "--label", "a=1"]);
    let second = second.trim();
    let edited = store.json(["snap", "edit", &first, "--name", "one", "-m", "why"]);
    assert_eq!(
        (&edited["name"], &edited["message"]),
        (&json!("one"), &json!("why"))
    );
    let failed = store.fails(4, ["snap", "edit", "w/two", "--name", "one", "-m", "other"]);
    assert!(String::from_utf8_lossy(&failed.stderr).contains("snap show w/one"));
    assert_eq!(store.json(["snap", "show", second])["message"], Value::Null);
    store.fails(2, ["snap", "edit", "w/one", "--name", "a/b"]);
    store.fails(2, ["snap", "edit", "w/one", "--name", "x", "--no-name"]);
    store.ok(["snap", "edit", "w/one", "--no-name", "-m", ""]);
    let shown = store.json(["snap", "show", &first]);
    assert_eq!(
        (&shown["name"], &shown["message"]),
        (&Value::Null, &Value::Null)
    );
    let labels = store.ok(["snap", "label", "two", "b=2", "a=x=y"]);
    assert_eq!(labels.trim_end(), "a=x=y\nb=2");
    let removed = store.ok(["snap", "label", "two", "--remove", "a"]);
    assert_eq!(removed.trim_end(), "b=2");
    assert_eq!(store.ok(["snap", "label", "two"]).trim_end(), "b=2");
    assert_eq!(ids(&store, &["--label", "b=2"]), [second]);
    store.fails(2, ["snap", "label", "two", "c"]);
    store.fails(
        2,
        ["snap", "label", "two", &format!("k={}", "v".repeat(2000))],
    );
    assert_eq!(ids(&store, &["--fidelity", "filesystem"]).len(), 2);
    assert!(ids(&store, &["--fidelity", "filesystem+memory"]).is_empty());
    store.fails(2, ["snap", "list", "--fidelity", "memory"]);
    store.fails(2, ["snap", "list", "--automatic", "--by-hand"]);
    store.check();
}
