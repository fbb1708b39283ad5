//! The published packages for sandboxes, unmodified, against `floe serve`: Python's in five versions,
//! each with both of its clients, and JavaScript's.
//!
//! What runs is in `tests/sdk`. The examples run word for word. Of the scenarios each runs with each
//! package, unless the package has no such feature: which those are is part of the test, so that
//! nothing is passed over in silence.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use floe_harness::command::program;
use floe_harness::{Output, Server, binary, packages};
use serde_json::Value;

/// The files with scenarios.
const FILES: [&str; 7] = [
    "files",
    "commands",
    "watch",
    "snapshots",
    "paging",
    "lifecycle",
    "errors",
];

/// Longest time for one client's scenarios; more is a hang.
const LIMIT: Duration = Duration::from_secs(400);

/// Features that came after the oldest version, with the scenarios that need them, as the scripts name
/// them.
const LATER: [(&str, &[&str]); 13] = [
    ("close_stdin", &["commands.input_is_closed"]),
    (
        "entry_events",
        &["watch.what_the_server_does_not_promise_is_not_asked_of_it"],
    ),
    (
        "fork",
        &[
            "errors.an_unknown_sandbox_is_not_forked",
            "snapshots.a_fork_is_a_sandbox_of_its_own",
        ],
    ),
    (
        "get_url",
        &["lifecycle.the_address_of_a_port_is_its_name_as_an_url"],
    ),
    ("gzip", &["files.contents_are_compressed_on_the_way"]),
    ("idempotency_key", &["lifecycle.a_key_makes_one_sandbox"]),
    (
        "list_order",
        &["lifecycle.sandboxes_are_listed_oldest_first_if_asked"],
    ),
    ("octet_stream", &["files.a_file_is_written_as_one_body"]),
    (
        "pause_result",
        &["lifecycle.whether_it_was_paused_already_is_said"],
    ),
    (
        "snapshot_mode",
        &["snapshots.a_snapshot_of_files_alone_is_one"],
    ),
    (
        "snapshot_names",
        &[
            "errors.a_bad_name_is_refused",
            "snapshots.a_name_moves_to_the_newest_snapshot",
        ],
    ),
    ("stream_input", &["commands.input_is_streamed"]),
    ("symlink_type", &["files.links_are_listed"]),
];

fn scripts() -> PathBuf {
    binary::repository().join("tests/sdk")
}

/// The names of all scenarios, read off the scripts.
fn scenarios() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in FILES {
        let path = scripts().join(format!("{file}.py"));
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if !line.starts_with("@scenario(") {
                continue;
            }
            let function = lines.next().expect("a function under its decorator");
            let name = function.strip_prefix("async def ").expect("a coroutine");
            let name = name.split('(').next().expect("a name");
            assert!(
                names.insert(format!("{file}.{name}")),
                "{name} is there twice"
            );
        }
    }
    assert!(names.len() > 60, "the scenarios were not found: {names:?}");
    names
}

/// What one run of the scenarios told.
#[derive(Default)]
struct Told {
    ran: BTreeSet<String>,
    /// Scenarios that were left out, by the feature that is missing.
    lacks: BTreeMap<String, BTreeSet<String>>,
}

fn told(output: &Output) -> Told {
    let mut told = Told::default();
    for line in output.text().lines() {
        let line: Value = serde_json::from_str(line)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {line}\n{output}"));
        let text = |key: &str| line[key].as_str().map(str::to_owned);
        if let Some(name) = text("ran") {
            assert!(told.ran.insert(name), "{line} ran twice");
        } else if let (Some(feature), Some(name)) = (text("lacks"), text("scenario")) {
            told.lacks.entry(feature).or_default().insert(name);
        } else {
            assert!(text("sandbox").is_some(), "{line}");
        }
    }
    told
}

/// Runs everything with one package, with both of its clients at once.
fn works(requirement: &str, module: &str, lacks: &[&str]) {
    let python = packages::python(requirement);
    let server = Server::start();
    let _watchdog = server.watch(2 * LIMIT);
    let client = |mode: &str, arguments: &[&str]| {
        let mut command = program(&python, server.store().base());
        command
            .env("FLOE_SDK", module)
            .env("FLOE_SDK_MODE", mode)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PYTHONUNBUFFERED", "1")
            .env("PYTHONWARNINGS", "ignore::DeprecationWarning")
            .arg(scripts().join(arguments[0]))
            .args(&arguments[1..]);
        server.client(&mut command, LIMIT)
    };
    let run = |mode: &str| {
        let printed = client(mode, &["examples.py"]).text();
        assert!(printed.starts_with("Snapshot ID: "), "{printed}");
        let mut arguments = vec!["run.py"];
        arguments.extend(FILES);
        let told = told(&client(mode, &arguments));
        let expected: BTreeMap<_, BTreeSet<_>> = LATER
            .iter()
            .filter(|(feature, _)| lacks.contains(feature))
            .map(|(feature, names)| {
                let names = names.iter().map(|&name| name.to_owned());
                ((*feature).to_owned(), names.collect())
            })
            .collect();
        assert_eq!(
            told.lacks, expected,
            "{requirement}, {mode}: what it does not have"
        );
        let left_out: BTreeSet<_> = expected.into_values().flatten().collect();
        let expected: BTreeSet<_> = scenarios().difference(&left_out).cloned().collect();
        assert_eq!(told.ran, expected, "{requirement}, {mode}: what ran");
        println!("{requirement}, {mode}: {} scenarios", told.ran.len());
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run("async"));
        run("sync");
        if let Err(panic) = other.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn ucloud_sandbox_1_5_0_works() {
    let lacks = ["idempotency_key", "snapshot_mode", "stream_input"];
    works("ucloud_sandbox==1.5.0", "ucloud_sandbox", &lacks);
}

#[test]
fn e2b_2_20_0_works() {
    let lacks = LATER.map(|(feature, _)| feature);
    works("e2b==2.20.0", "e2b", &lacks);
}

const LACKS_2_50: [&str; 4] = [
    "get_url",
    "idempotency_key",
    "snapshot_mode",
    "stream_input",
];

#[test]
fn e2b_2_50_0_works() {
    works("e2b==2.50.0", "e2b", &LACKS_2_50);
}

#[test]
fn e2b_2_51_0_works() {
    works("e2b==2.51.0", "e2b", &LACKS_2_50);
}

#[test]
fn the_newest_e2b_works() {
    works("e2b", "e2b", &["get_url"]);
}

/// The package is found beside the script that imports it.
#[test]
fn the_newest_e2b_for_javascript_works() {
    let dir = packages::npm("e2b");
    let node = packages::node();
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let modules = server.store().base().join("node_modules");
    std::os::unix::fs::symlink(dir.join("node_modules"), modules).expect("a link to the package");
    let script = server.store().base().join("roundtrip.mjs");
    fs::copy(scripts().join("roundtrip.mjs"), &script).expect("a copy of the script");
    let mut command = program(node, Path::new("/"));
    let printed = server.client(command.arg(script), LIMIT).text();
    let steps: Vec<_> = printed.lines().collect();
    let expected = [
        "create",
        "run",
        "files",
        "watch",
        "snapshot",
        "pause and connect",
        "kill",
    ];
    assert_eq!(steps, expected);
}
