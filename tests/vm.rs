//! `floe vm` and `floe guest` where no machine boots: what is missing is said, and nothing is left.

use std::fs;

use floe_harness::TestStore;
use serde_json::json;

#[test]
fn without_a_kernel_it_is_said_how_to_get_one() {
    let store = TestStore::new();
    let error = store.fails(3, ["vm", "run", "--", "true"]).errors();
    assert!(error.contains("guest install"), "{error}");
    let error = store.fails(3, ["guest", "show"]).errors();
    assert!(error.contains("guest install"), "{error}");
    assert_eq!(store.json(["vm", "list"]), json!([]));
    // Nothing was left of it, its workspace neither.
    let workspaces = store.json(["ws", "list"]);
    let names = workspaces.as_array().expect("a list").iter();
    let left: Vec<_> = names.filter(|one| one["name"] != "template-base").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_is_no_kernel_is_refused_and_the_one_that_is_installed_stays() {
    let store = TestStore::new();
    let file = store.base().join("file");
    fs::write(&file, "no kernel").expect("a file");
    let file = file.display().to_string();
    for command in [
        &["guest", "install", "--kernel", &file][..],
        &["vm", "run", "--kernel", &file, "--", "true"],
        &["guest", "install", "--kernel", "/nonexistent"],
    ] {
        let error = store.fails(1, command).errors();
        let names_it = error.contains("kernel") || error.contains("/nonexistent");
        assert!(names_it, "{error}");
    }
    store.fails(3, ["guest", "show"]);
    // Modules are of a kernel.
    store.fails(2, ["guest", "install", "--modules", "/lib/modules"]);
}

#[test]
fn a_machine_that_cannot_be_is_refused_before_anything_is_made() {
    let store = TestStore::new();
    store.fails(3, ["vm", "run", "--workspace", "none", "--", "true"]);
    store.fails(2, ["vm", "run", "--vcpus", "many"]);
    store.fails(3, ["vm", "show", "none"]);
    store.fails(3, ["vm", "stop", "none"]);
    store.fails(3, ["vm", "console", "none"]);
}
