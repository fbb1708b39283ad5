//! Packages installed by npm and pip from their registries in a mounted fork, used and removed, again
//! and again, while a hundred snapshots are taken, none of which changes.

#![cfg(feature = "long")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use floe_harness::command::{program, run};
use floe_harness::{Load, Output, Snapshots, TestStore};

const SNAPSHOTS: usize = 100;

fn ok(command: &mut Command) -> Output {
    run(command, Duration::from_secs(600)).expect_code(0)
}

fn npm(root: &Path) {
    let install = ["install", "--no-audit", "--no-fund", "--prefer-offline"];
    let mut command = program("npm", root);
    // The cache is in the mount too, where npm links and renames.
    command.args(install).args(["--cache", "cache"]);
    ok(command.args(["express@4.21.2", "semver@7.6.3", "typescript@5.4.5"]));
    ok(program("npm", root).args(["ls", "--all"]));
    fs::write(
        root.join("a.ts"),
        "const a: number = 40 + 2; console.log(a);",
    )
    .unwrap();
    ok(program("./node_modules/.bin/tsc", root).arg("a.ts"));
    let used = "const e = require('express')(); require('semver'); require('./a.js')";
    assert_eq!(ok(program("node", root).args(["-e", used])).text(), "42");
    fs::remove_dir_all(root.join("node_modules")).unwrap();
}

fn pip(root: &Path) {
    ok(program("python3", root).args(["-m", "venv", "environment"]));
    let python = root.join("environment/bin/python");
    let install = [
        "-m",
        "pip",
        "install",
        "-q",
        "flask==3.0.3",
        "pyyaml==6.0.2",
    ];
    ok(program("env", root).arg(&python).args(install));
    ok(program("env", root)
        .arg(&python)
        .args(["-m", "pip", "check"]));
    let used = "import flask, yaml, sys; print(yaml.safe_load('[42]')[0], sys.prefix)";
    let printed = ok(program("env", root).arg(&python).args(["-c", used])).text();
    let prefix = root.join("environment");
    assert_eq!(printed, format!("42 {}", prefix.display()));
    fs::remove_dir_all(prefix).unwrap();
}

/// Repeats `install` in a fork of a snapshot until enough snapshots were taken.
fn while_snapshots_are_taken(install: fn(&Path)) {
    let store = TestStore::new();
    store.ok(["ws", "create", "base"]);
    let base = store.mount("base");
    fs::write(
        base.join("package.json"),
        r#"{"name": "t", "version": "1.0.0"}"#,
    )
    .unwrap();
    let origin = store.snapshot("base");
    store.ok(["fork", origin.as_str(), "work"]);
    let root: PathBuf = store.mount("work");
    let load = Load::start(1, move |_| install(&root));
    let mut snapshots = Snapshots::of(&store);
    for _ in 0..SNAPSHOTS {
        snapshots.take("work");
        std::thread::sleep(Duration::from_millis(50));
    }
    let rounds = load.stop();
    assert!(rounds > 0);
    println!("{rounds} installations, {SNAPSHOTS} snapshots");
    snapshots.assert_unchanged();
    store.check();
}

#[test]
fn npm_installs_while_a_hundred_snapshots_are_taken() {
    while_snapshots_are_taken(npm);
}

#[test]
fn pip_installs_while_a_hundred_snapshots_are_taken() {
    while_snapshots_are_taken(pip);
}
