//! `floe log` and `floe snap tree` through the binary: what happened to a workspace is told, with all
//! that belongs to it, newest first.

use floe_harness::TestStore;
use serde_json::Value;

fn log(store: &TestStore, workspace: &str) -> Vec<Value> {
    let found = store.json(["log", workspace]);
    found.as_array().expect("an array").clone()
}

/// The kinds, oldest first, which is the order in which a test does things.
fn kinds(entries: &[Value]) -> Vec<&str> {
    let kinds = entries.iter().rev().map(|entry| entry["kind"].as_str());
    kinds.map(|kind| kind.expect("a word")).collect()
}

#[test]
fn all_that_happened_to_a_workspace_is_told() {
    let store = TestStore::new();
    store.ok(["ws", "create", "web"]);
    let green = store.ok(["snapshot", "web", "--name", "green", "-m", "all\npass"]);
    store.ok(["fork", "web", "try"]);
    store.ok(["fork", "green", "other"]);
    let kept = store.ok(["rollback", "web", "green"]);
    store.ok(["ws", "delete", "other"]);

    let entries = log(&store, "web");
    let expected = [
        "created", "snapshot", "snapshot", "fork", "fork", "snapshot", "rollback",
    ];
    assert_eq!(kinds(&entries), expected, "{entries:#?}");
    let [rollback, before, other, tried, automatic, first, created] = &entries[..] else {
        panic!("{entries:#?}");
    };
    assert_eq!(created["snapshot"], Value::Null);
    assert_eq!(first["snapshot"], green.as_str());
    assert_eq!(first["name"], "green");
    assert_eq!(first["message"], "all\npass");
    assert_eq!(first["automatic"], Value::Null);
    assert_eq!(automatic["automatic"], "fork");
    assert_eq!(tried["workspace"], "try");
    assert_eq!(tried["snapshot"], automatic["snapshot"]);
    assert_eq!(tried["workspace_deleted"], false);
    assert_eq!(other["workspace"], "other");
    assert_eq!(other["snapshot"], green.as_str());
    assert_eq!(other["workspace_deleted"], true);
    assert_eq!(before["automatic"], "rollback");
    assert_eq!(before["snapshot"], kept.as_str());
    assert_eq!(rollback["snapshot"], green.as_str());
    assert_eq!(rollback["name"], "green");

    // The fork's own history begins where it was forked.
    let fork = log(&store, "try");
    assert_eq!(kinds(&fork), ["created"]);
    assert_eq!(fork[0]["workspace"], "web");
    assert_eq!(fork[0]["snapshot"], automatic["snapshot"]);
    let text = store.ok(["log", "try"]);
    assert!(text.contains("forked from 'web'"), "{text}");

    let deleted = log(&store, "other");
    assert_eq!(kinds(&deleted), ["created", "deleted"]);
    assert_eq!(deleted[1]["name"], "green");
}

#[test]
fn a_limit_keeps_the_newest_and_quiet_prints_ids() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let ids: Vec<_> = (0..5).map(|_| store.snapshot("w")).collect();
    let newest = store.json(["log", "w", "--limit", "2"]);
    assert_eq!(newest.as_array().expect("an array").len(), 2);
    assert_eq!(newest[0]["snapshot"], ids[4].as_str());
    assert_eq!(newest[1]["snapshot"], ids[3].as_str());
    let quiet = store.ok(["log", "w", "-q", "--limit", "3"]);
    assert_eq!(
        quiet.lines().collect::<Vec<_>>(),
        [&ids[4], &ids[3], &ids[2]]
    );
    store.fails(2, ["log", "w", "--limit", "0"]);
    let missing = store.fails(3, ["log", "ww"]).errors();
    assert!(missing.contains("'w'"), "{missing}");
}

/// A name that is used again means the workspace that has it now.
#[test]
fn a_name_means_the_workspace_that_has_it() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    store.snapshot("w");
    store.ok(["ws", "delete", "w"]);
    assert_eq!(kinds(&log(&store, "w")), ["created", "snapshot", "deleted"]);
    store.ok(["ws", "create", "w"]);
    assert_eq!(kinds(&log(&store, "w")), ["created"]);
}

/// What others wrote into messages does not steer the terminal, and nothing is wider than 100.
#[test]
fn text_stays_in_its_lines() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let long = "n".repeat(128);
    store.ok(["snapshot", "w", "--name", &long, "-m", "\u{1b}[2J\ttab"]);
    store.ok(["snapshot", "w", "-m", &"日本語".repeat(80)]);
    for _ in 0..10 {
        store.ok(["snapshot", "w", "-m", "\n\nlate\r\nrest"]);
        store.ok(["rollback", "w", &long]);
    }
    store.ok(["fork", "w", &long, "--count", "3"].map(|word| &word[..word.len().min(120)]));
    for command in [&["log", "w"][..], &["snap", "tree"], &["snap", "list"]] {
        let text = store.ok(command);
        for line in text.lines() {
            // Each of these characters takes two columns.
            let wide = line.chars().filter(|c| *c > '\u{2e80}').count();
            assert!(line.chars().count() + wide <= 100, "{command:?}: {line}");
            assert!(!line.contains(char::is_control), "{command:?}: {line:?}");
        }
        assert!(text.contains("late"), "{command:?}: {text}");
    }
}
