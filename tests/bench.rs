//! `floe bench --quick` runs to its end and says what it measured. No times are asserted: what is
//! tested is that the benches work, on whatever machine.

use std::collections::BTreeSet;
use std::time::Duration;

use floe_harness::TestStore;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(180);

/// Runs one bench and returns its section.
fn quick(bench: &str) -> Value {
    let mut store = TestStore::without_init(&std::env::temp_dir());
    store.set_limit(LIMIT);
    let dir = store.base().to_str().expect("the test directory is text");
    let report = store.json(["bench", bench, "--quick", "--dir", dir]);
    assert_eq!(report["quick"], true, "{report}");
    let sections = report["sections"].as_array().expect("sections");
    assert_eq!(sections.len(), 1, "{report}");
    assert!(store.floe_mounts().is_empty());
    let left = std::fs::read_dir(store.base()).expect("the test directory");
    let left: BTreeSet<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    let made = ["home", "mnt", "run"].map(Into::into);
    assert_eq!(
        left,
        BTreeSet::from(made),
        "the bench left something behind"
    );
    sections[0].clone()
}

/// A section with figures in every group, and goals that do not claim more than was measured.
fn is_sound(bench: &str) {
    let section = quick(bench);
    assert_eq!(section["name"], bench);
    let groups = section["groups"].as_array().expect("groups");
    assert!(!groups.is_empty(), "{section}");
    for group in groups {
        let series = group["series"].as_array().expect("series");
        assert!(!series.is_empty(), "{group}");
    }
    for goal in section["goals"].as_array().expect("goals") {
        let missing = goal["missing"].as_array().expect("missing cases");
        assert!(missing.is_empty() || goal["met"] != true, "{goal}");
    }
}

#[test]
fn snapshot() {
    is_sound("snapshot");
}

#[test]
fn fork() {
    is_sound("fork");
}

/// Where there is no KVM its peers alone are measured, and the section says so.
#[test]
fn vm() {
    is_sound("vm");
}

#[test]
fn depth() {
    is_sound("depth");
}

#[test]
fn diff() {
    is_sound("diff");
}

#[test]
fn base() {
    is_sound("base");
}

#[test]
fn land() {
    is_sound("land");
}

#[test]
fn copy_up() {
    is_sound("copy-up");
}

#[test]
fn space() {
    is_sound("space");
}
