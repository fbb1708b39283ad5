//! `floe bisect` through the binary: the first bad snapshot is found in few runs, and nothing is left.

use std::fs;
use std::time::Duration;

use floe_harness::TestStore;
use floe_harness::process::Handle;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A workspace with so many snapshots, of which those from `first` on have a file `broken`.
fn broken_from(first: usize, count: usize) -> (TestStore, Vec<String>) {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    let mut ids = Vec::new();
    for n in 0..count {
        fs::write(live.join("step"), n.to_string()).unwrap();
        if n == first {
            fs::write(live.join("broken"), "").unwrap();
        }
        ids.push(store.ok([
            "snapshot",
            "w",
            "--name",
            &format!("s{n}"),
            "-m",
            &format!("step {n}"),
        ]));
    }
    (store, ids)
}

/// The search leaves no fork, and no mount but that of the workspace.
#[track_caller]
fn assert_nothing_left(store: &TestStore) {
    assert_eq!(store.ok(["ws", "list", "-q"]), "w");
    assert_eq!(store.floe_mounts().len(), 1);
}

const TEST: &str = "test ! -e broken";

fn bisect<'a>(good: &'a str, script: &'a str) -> Vec<&'a str> {
    vec![
        "bisect", "w", "--good", good, "--json", "--", "sh", "-c", script,
    ]
}

#[test]
fn the_first_bad_snapshot_is_named_with_its_diff() {
    for first in [1, 9, 16] {
        let (store, ids) = broken_from(first, 17);
        let found = store.json(bisect("s0", TEST));
        assert_eq!(found["first_bad"]["id"], ids[first].as_str(), "{found:#}");
        assert_eq!(found["previous"]["id"], ids[first - 1].as_str());
        assert_eq!(found["first_bad"]["message"], format!("step {first}"));
        let changes: Vec<_> = found["changes"].as_array().unwrap().iter().collect();
        assert_eq!(changes.len(), 2, "{changes:?}");
        assert_eq!(
            (&changes[0]["path"], &changes[0]["change"]),
            (&Value::from("broken"), &Value::from("added"))
        );
        // The good one, the present state, and those that halving takes.
        let runs = found["runs"].as_array().unwrap();
        assert!(runs.len() <= 2 + 5, "{runs:#?}");
        assert_eq!(
            (&runs[0]["verdict"], &runs[1]["verdict"]),
            (&Value::from("good"), &Value::from("bad"))
        );
        assert_nothing_left(&store);
    }
}

#[test]
fn text_names_it_and_the_command_knows_where_it_is() {
    let (store, ids) = broken_from(2, 5);
    let script =
        "echo \"$FLOE_WORKSPACE $FLOE_SNAPSHOT\" >> \"$OUT\"; echo noise; test ! -e broken";
    let out = store.base().join("out");
    let mut command = store.command();
    command.args([
        "bisect", "w", "--good", &ids[0], "--bad", "s4", "--", "sh", "-c", script,
    ]);
    command.env("OUT", &out);
    let output = floe_harness::command::run(&mut command, Duration::from_secs(60)).expect_code(0);
    let text = output.text();
    assert!(
        text.starts_with(&format!(
            "{} (s2) \"step 2\" is the first bad snapshot",
            ids[2]
        )),
        "{output}"
    );
    assert!(text.ends_with("A\tbroken\nM\tstep"), "{output}");
    assert!(
        !text.contains("noise") && output.errors().contains("noise"),
        "{output}"
    );
    let seen = fs::read_to_string(out).unwrap();
    assert!(
        seen.starts_with("bisect-") && seen.contains(&ids[4]),
        "{seen}"
    );
    assert_nothing_left(&store);
}

#[test]
fn good_that_fails_and_bad_that_passes_are_errors() {
    let (store, _) = broken_from(1, 4);
    let good = store.fails(1, bisect("s2", TEST)).json_error();
    assert!(
        good["error"].as_str().unwrap().contains("was to be good"),
        "{good}"
    );
    let bad = store.fails(1, bisect("s0", "true")).json_error();
    assert!(
        bad["error"].as_str().unwrap().contains("'w' as it is now"),
        "{bad}"
    );
    let aborted = store.fails(1, bisect("s0", "exit 200")).json_error();
    assert!(
        aborted["error"].as_str().unwrap().contains("200"),
        "{aborted}"
    );
    store.fails(1, ["bisect", "w", "--good", "s0", "--", "/nonexistent"]);
    store.fails(3, bisect("nope", TEST));
    store.fails(2, ["bisect", "w", "--good", "s0"]);
    // Not before the bad one.
    let order = ["--good", "s1", "--bad", "s0", "--", "true"];
    let order = [&["bisect", "w"][..], &order].concat();
    assert!(
        store
            .fails(2, order)
            .errors()
            .contains("is not among the snapshots")
    );
    assert_nothing_left(&store);
}

#[test]
fn what_cannot_be_told_is_gone_round_or_named() {
    let (store, ids) = broken_from(5, 9);
    let found = store.json(bisect("s0", "grep -q 3 step && exit 125; test ! -e broken"));
    assert_eq!(found["first_bad"]["id"], ids[5].as_str(), "{found:#}");
    // Between the last good and the first bad one.
    let script = "grep -q 4 step && exit 125; test ! -e broken";
    let error = store.fails(1, bisect("s0", script)).json_error();
    let causes: Vec<_> = error["causes"].as_array().unwrap().iter().collect();
    assert_eq!(causes.len(), 2, "{error:#}");
    assert!(
        causes[0].as_str().unwrap().starts_with(&ids[4]),
        "{error:#}"
    );
    assert_nothing_left(&store);
}

/// What the command started is ended with it, and the fork goes.
#[test]
fn an_interrupt_leaves_nothing_behind() {
    let (store, _) = broken_from(1, 3);
    let started = store.base().join("started");
    let script = format!(
        "sleep 600 & echo $$ $! > {}; exec sleep 600",
        started.display()
    );
    let mut child = store.command().args(bisect("s0", &script)).spawn().unwrap();
    let handle = Handle::of_child(&child);
    let pids = loop {
        let pid = fs::read_to_string(&started).unwrap_or_default();
        if pid.ends_with('\n') {
            break pid.trim().to_owned();
        }
        assert!(
            !handle.wait_for_end(Duration::from_millis(20)),
            "it ended by itself"
        );
    };
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ended = handle.wait_for_end(Duration::from_secs(30));
    if !ended {
        handle.kill();
    }
    let status = child.wait().unwrap();
    assert!(ended, "it goes on");
    assert_eq!(status.code(), Some(130));
    assert_eq!(pids.split(' ').count(), 2, "{pids}");
    for pid in pids.split(' ') {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    }
    assert_nothing_left(&store);
}
