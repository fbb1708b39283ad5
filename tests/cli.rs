//! The command line as a script sees it: exit codes, JSON keys, errors, references, and what
//! mounting and forking say.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use floe_harness::process::Handle;
use floe_harness::{TestStore, mounts};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn with_workspace(name: &str) -> TestStore {
    let store = TestStore::new();
    store.ok(["ws", "create", name]);
    store
}

#[track_caller]
fn assert_keys(value: &Value, keys: &[&str]) {
    let object = value.as_object().unwrap_or_else(|| panic!("{value}"));
    for key in keys {
        assert!(object.contains_key(*key), "no {key:?} in {value}");
    }
}

/// Names of all workspaces, in the order in which they are listed.
fn workspaces(store: &TestStore) -> Vec<String> {
    let list = store.ok(["ws", "list", "--quiet"]);
    list.lines().map(str::to_owned).collect()
}

const WORKSPACE: [&str; 5] = ["name", "layer", "snapshot_count", "mounts", "bytes"];
const SNAPSHOT: [&str; 8] = [
    "id",
    "workspace",
    "name",
    "parent",
    "created_at",
    "elapsed_us",
    "durable",
    "fidelity",
];

#[test]
fn json_has_the_documented_keys() {
    let store = TestStore::new();
    assert_keys(&store.json(["ws", "create", "w"]), &WORKSPACE);
    let live = store.mount("w");
    fs::write(live.join("a"), vec![1; 5000]).unwrap();
    let first = store.json([
        "snapshot", "w", "--name", "n", "-m", "why", "--label", "k=v",
    ]);
    assert_keys(&first, &SNAPSHOT);
    assert_eq!(first["workspace"], "w");
    assert_eq!(first["name"], "n");
    assert_eq!(first["parent"], Value::Null);
    assert_eq!(first["durable"], false);
    assert_eq!(first["fidelity"], "filesystem");
    assert!(first["elapsed_us"].is_u64());
    let second = store.json(["snapshot", "w", "--durable"]);
    assert_eq!(second["parent"], first["id"]);
    assert_eq!(second["durable"], true);
    for snapshot in [
        &store.json(["snap", "show", "n"]),
        &store.json(["snap", "list"])[1],
    ] {
        assert_keys(snapshot, &SNAPSHOT);
        assert_eq!(snapshot["id"], first["id"]);
        assert_eq!(snapshot["labels"]["k"], "v");
    }
    assert_keys(&store.json(["snap", "tree"])[0], &SNAPSHOT);

    let shown = store.json(["ws", "show", "w"]);
    assert_keys(&shown, &WORKSPACE);
    assert_eq!(shown["snapshot_count"], 2);
    assert_eq!(shown["mounts"][0], live.to_str().unwrap());
    assert!(shown["bytes"].as_u64().unwrap() >= 5000, "{shown}");
    assert_eq!(store.json(["ws", "list"]), Value::from(vec![shown]));
    assert_keys(&store.json(["fork", "n", "f"]), &WORKSPACE);
    let several = store.json(["fork", "n", "g", "--count", "1"]);
    assert_keys(&several[0], &WORKSPACE);

    let back = store.json(["rollback", "w", "n"]);
    assert_keys(&back, &["workspace", "to", "kept", "elapsed_us"]);
    assert_eq!(back["to"], first["id"]);

    assert_keys(
        &store.json(["log", "w"])[0],
        &[
            "at",
            "kind",
            "snapshot",
            "name",
            "workspace",
            "workspace_deleted",
            "message",
            "automatic",
        ],
    );

    let status = store.json(["daemon", "status"]);
    assert_keys(
        &status,
        &["pid", "store", "version", "mounts", "unrestored"],
    );
    assert_eq!(status["store"], store.store_dir().to_str().unwrap());
    assert_eq!(status["mounts"][0]["workspace"], "w");
    assert_eq!(status["mounts"][0]["read_only"], false);
    assert_keys(&store.json(["store", "info"]), &["id", "dir", "format"]);
    assert_keys(
        &store.json(["check"]),
        &[
            "problems",
            "more",
            "layers",
            "inodes",
            "names",
            "objects",
            "elapsed_us",
        ],
    );
}

#[test]
fn an_error_is_one_json_object_with_exactly_the_documented_keys() {
    let store = with_workspace("web");
    let error = store.fails(3, ["ws", "show", "wbe", "--json"]).json_error();
    let keys: Vec<_> = error.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["causes", "error", "hint", "kind"]);
    assert_eq!(error["kind"], "not_found");
    assert!(
        error["error"].as_str().unwrap().contains("'wbe'"),
        "{error}"
    );
    assert!(error["causes"].is_array());
}

#[test]
fn exit_codes_tell_the_kinds_of_failure_apart() {
    let store = with_workspace("w");
    let live = store.mount("w");
    store.ok(["snapshot", "w", "--name", "n"]);
    // Usage.
    store.fails(2, ["bogus"]);
    store.fails(2, ["ws", "create"]);
    store.fails(2, ["land", "w", "--undo", "--only", "a"]);
    store.fails(2, ["bisect", "w", "--good", "n"]);
    store.fails(2, ["ws", "create", "a/b"]);
    store.fails(2, ["ws", "create", ".."]);
    store.fails(2, ["fork", "w", "f", "--count", "0"]);
    store.fails(2, ["snapshot", "w", "--label", "novalue"]);
    store.fails(2, ["ws", "create", "x", "--exclude", "y"]);
    store.fails(
        2,
        ["ws", "create", "x", "--from", "/tmp", "--exclude", "[z-a]"],
    );
    store.fails(2, ["ws", "create", "x", "--from", "/tmp=/a/../b"]);
    // Not found.
    store.fails(3, ["ws", "show", "nope"]);
    store.fails(3, ["snapshot", "nope"]);
    store.fails(3, ["snap", "show", "nope"]);
    store.fails(3, ["log", "nope"]);
    store.fails(3, ["land", "nope"]);
    store.fails(3, ["land", "w", "--undo"]);
    store.fails(3, ["bisect", "w", "--good", "nope", "--", "true"]);
    store.fails(3, ["rollback", "w", "nope"]);
    store.fails(3, ["rollback", "nope", "n"]);
    store.fails(3, ["fork", "nope", "f"]);
    store.fails(3, ["mount", "nope"]);
    store.fails(3, ["umount", "nope"]);
    store.fails(3, ["ws", "delete", "nope"]);
    store.fails(3, ["ws", "create", "x", "--from", "/nonexistent", "--copy"]);
    // Conflict.
    store.fails(4, ["ws", "create", "w"]);
    store.fails(4, ["snapshot", "w", "--name", "n"]);
    store.fails(4, ["fork", "n", "w"]);
    store.fails(4, ["store", "init"]);
    let busy = fs::File::open(&live).unwrap();
    store.fails(4, ["umount", "w"]);
    drop(busy);
    // Failed.
    fs::write(store.base().join("file"), "").unwrap();
    store.fails(1, ["mount", "w", "file"]);
    // Daemon unreachable.
    store.ok(["daemon", "stop"]);
    store.fails(5, ["daemon", "status"]);
    assert_eq!(workspaces(&store), ["w"], "nothing above made anything");
}

#[test]
fn an_interrupted_command_ends_with_130() {
    let store = with_workspace("w");
    let daemon = store.daemon().unwrap();
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap();
    let signal = |signal| kill_process(pid, signal).unwrap();
    signal(Signal::STOP);
    let mut child = store.command().args(["ws", "list"]).spawn().unwrap();
    let handle = Handle::of_child(&child);
    // The command waits for the stopped daemon's greeting once it has connected.
    assert!(!handle.wait_for_end(Duration::from_millis(500)));
    let own = Pid::from_child(&child);
    kill_process(own, Signal::INT).unwrap();
    let ended = handle.wait_for_end(Duration::from_secs(20));
    signal(Signal::CONT);
    if !ended {
        handle.kill();
    }
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(130), None));
    assert_eq!(workspaces(&store), ["w"], "the daemon is none the worse");
}

#[test]
fn an_error_has_a_cause_and_a_hint_that_can_be_pasted() {
    let store = with_workspace("web");
    let missing = store.fails(3, ["ws", "show", "wbe"]).errors();
    assert!(missing.contains("did you mean 'web'"), "{missing}");
    let command = format!("floe --store {} ws list", store.store_dir().display());
    assert!(missing.contains(&command), "{missing}");
    assert!(store.fails(3, ["mount", "wbe"]).errors().contains("'web'"));
    assert!(
        store
            .fails(3, ["snapshot", "wbe"])
            .errors()
            .contains("'web'")
    );

    let dir = store.base().join("nonexistent");
    let import = [
        OsStr::new("ws"),
        OsStr::new("create"),
        OsStr::new("x"),
        OsStr::new("--copy"),
        OsStr::new("--from"),
        dir.as_os_str(),
    ];
    let text = store.fails(3, import).errors();
    assert!(text.contains(dir.to_str().unwrap()), "{text}");
    assert!(text.contains("No such file"), "the cause: {text}");
    let pattern = store
        .fails(
            2,
            ["ws", "create", "x", "--from", "/etc", "--exclude", "[z-a]"],
        )
        .errors();
    assert!(pattern.contains("'[z-a]'"), "{pattern}");
}

#[test]
fn a_snapshot_is_found_by_id_prefix_name_and_workspace_with_name() {
    let store = with_workspace("a");
    store.ok(["ws", "create", "b"]);
    let id = store.ok(["snapshot", "a", "--name", "same"]);
    let other = store.ok(["snapshot", "b", "--name", "same"]);
    let only = store.ok(["snapshot", "b", "--name", "only"]);
    let found = |reference: &str| {
        let shown = store.json(["snap", "show", reference]);
        shown["id"].as_str().unwrap().to_owned()
    };
    assert_eq!(found(&id), id);
    assert_eq!(found(&id[..12]), id);
    assert_eq!(found("a/same"), id);
    assert_eq!(found("b/same"), other);
    assert_eq!(found("only"), only);
    let ambiguous = store.fails(4, ["snap", "show", "same"]).errors();
    assert!(
        ambiguous.contains("a/same") && ambiguous.contains("b/same"),
        "{ambiguous}"
    );
    store.fails(3, ["snap", "show", "a/only"]);
    // A workspace called like a snapshot's id does not hide the snapshot.
    store.ok(["ws", "create", id.as_str()]);
    assert_eq!(found(&id), id);
}

#[test]
fn quiet_prints_names_only_and_notes_go_to_stderr() {
    let store = with_workspace("w");
    let taken = store.run(["snapshot", "w"]).expect_code(0);
    assert_eq!(taken.text().len(), 16);
    assert!(!taken.stderr.is_empty(), "{taken}");
    let quiet = store.run(["snapshot", "w", "--quiet"]).expect_code(0);
    assert_eq!(quiet.text().len(), 16);
    assert!(quiet.stderr.is_empty(), "{quiet}");
    let listed = store.ok(["snap", "list", "-q"]);
    assert_eq!(listed, format!("{}\n{}", quiet.text(), taken.text()));
    assert_eq!(workspaces(&store), ["w"]);
    let json = store.run(["ws", "create", "v", "--json"]).expect_code(0);
    assert!(json.stderr.is_empty(), "{json}");
    // Nobody reads what is printed: that is no failure.
    let script = "set -o pipefail; \"$0\" \"$@\" | true";
    let command = store.command();
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", script]).arg(command.get_program());
    shell.args(command.get_args()).args(["snap", "list"]);
    floe_harness::command::run(&mut shell, Duration::from_secs(60)).expect_code(0);
}

#[test]
fn stopping_twice_and_starting_twice_change_nothing() {
    let store = with_workspace("w");
    let first = store.json(["daemon", "start"]);
    let second = store.json(["daemon", "start"]);
    assert_eq!(first["pid"], second["pid"]);
    store.stop_daemon();
    store.ok(["daemon", "stop"]);
    assert!(store.daemon().is_none());
    assert_eq!(workspaces(&store), ["w"]);
}

#[test]
fn mounting_again_changes_nothing_and_a_taken_directory_is_refused() {
    let store = with_workspace("w");
    store.ok(["ws", "create", "v"]);
    let live = store.mount("w");
    let dir = live.to_str().unwrap();
    assert_eq!(store.ok(["mount", "w", dir]), dir);
    assert_eq!(mounts::below(&live).len(), 1);
    let taken = store.fails(4, ["mount", "v", dir]).errors();
    assert!(taken.contains(dir), "{taken}");
    // Without a directory there is one place, inside the store.
    let place = store.ok(["mount", "w"]);
    assert_eq!(store.ok(["mount", "w"]), place);
    assert!(place.starts_with(store.store_dir().to_str().unwrap()));
    fs::write(live.join("a"), "1").unwrap();
    assert_eq!(fs::read(format!("{place}/a")).unwrap(), b"1");
    for hiding in [store.store_dir(), store.base().to_path_buf()] {
        let error = store.fails(
            2,
            [OsStr::new("mount"), OsStr::new("v"), hiding.as_os_str()],
        );
        assert!(error.errors().contains("hide"), "{error}");
    }
}

#[test]
fn unmounting_takes_a_name_a_directory_or_a_link_to_it() {
    let store = with_workspace("w");
    let (one, two, three) = (store.mount("w"), store.mount("w"), store.mount("w"));
    store.umount(&one);
    assert!(mounts::is_mounted(&two) && mounts::is_mounted(&three));
    std::os::unix::fs::symlink(&two, store.base().join("link")).unwrap();
    // Relative to the directory that the command runs in.
    store.ok(["umount", "link"]);
    assert!(!mounts::is_mounted(&two));
    let again = store.mount("w");
    store.ok(["umount", "w"]);
    assert!(!mounts::is_mounted(&three) && !mounts::is_mounted(&again));
    store.ok(["umount", "w"]);
    let id = store.snapshot("w");
    let frozen = store.mount(&id);
    store.ok(["umount", id.as_str()]);
    assert!(!mounts::is_mounted(&frozen));
    store.fails(3, [OsStr::new("umount"), store.base().as_os_str()]);
}

#[test]
fn a_busy_mount_stays_and_a_lazy_unmount_detaches_it() {
    let store = with_workspace("w");
    let live = store.mount("w");
    let mut file = fs::File::create(live.join("a")).unwrap();
    let busy = store.fails(4, ["umount", "w"]).errors();
    assert!(busy.contains("--lazy"), "{busy}");
    assert!(mounts::is_mounted(&live));
    store.ok(["umount", "--lazy", "w"]);
    assert!(!mounts::is_mounted(&live));
    std::io::Write::write_all(&mut file, b"still there").unwrap();
    drop(file);
    let again = store.mount("w");
    assert_eq!(fs::read(again.join("a")).unwrap(), b"still there");
}

#[test]
fn a_mount_directory_may_have_any_name() {
    let store = with_workspace("w");
    let names: [&[u8]; 4] = [
        b"not utf-8 \xff\xfe",
        b"new\nline\tand space",
        b"back\\slash",
        b"'q' \"q\"",
    ];
    for name in names {
        let dir = store.base().join("mnt").join(OsStr::from_bytes(name));
        let mounted = store.run([OsString::from("mount"), "w".into(), dir.clone().into()]);
        assert!(mounts::is_mounted(&dir), "{dir:?}");
        // Once control characters and other bytes were escaped, and `cd "$(floe mount w)"` failed.
        let line = [dir.as_os_str().as_bytes(), b"\n"].concat();
        assert_eq!(mounted.expect_code(0).stdout, line);
        fs::write(dir.join("a"), name).unwrap();
        assert_eq!(fs::read(dir.join("a")).unwrap(), name);
        let status = store.json(["daemon", "status"]);
        assert_eq!(status["mounts"].as_array().unwrap().len(), 1);
        store.ok(["daemon", "status"]);
        // It comes back after a crash, too.
        store.kill_daemon();
        store.ok(["daemon", "start"]);
        assert_eq!(fs::read(dir.join("a")).unwrap(), name);
        store.umount(&dir);
    }
}

#[test]
fn several_forks_are_made_all_or_none() {
    let store = with_workspace("w");
    store.ok(["ws", "create", "f-3"]);
    let taken = store.fails(4, ["fork", "w", "f", "--count", "5"]).errors();
    assert!(taken.contains("'f-3'"), "{taken}");
    assert_eq!(workspaces(&store), ["f-3", "w"]);
    assert_eq!(store.json(["ws", "show", "w"])["snapshot_count"], 0);
    store.ok(["ws", "delete", "f-3"]);
    let base = store.base().join("forks");
    let made = store.ok([
        OsStr::new("fork"),
        OsStr::new("w"),
        OsStr::new("f"),
        OsStr::new("--count"),
        OsStr::new("5"),
        OsStr::new("--mount"),
        base.as_os_str(),
    ]);
    let dirs: Vec<_> = (1..=5).map(|n| base.join(format!("f-{n}"))).collect();
    let lines: Vec<_> = made.lines().map(std::path::PathBuf::from).collect();
    assert_eq!(lines, dirs);
    for (number, dir) in dirs.iter().enumerate() {
        assert!(mounts::is_mounted(dir));
        fs::write(dir.join("mine"), number.to_string()).unwrap();
    }
    for (number, dir) in dirs.iter().enumerate() {
        assert_eq!(
            fs::read_to_string(dir.join("mine")).unwrap(),
            number.to_string()
        );
    }
    assert_eq!(workspaces(&store).len(), 6);
}

#[test]
fn a_workspace_is_renamed_under_its_mount_and_deleted_without_its_snapshots() {
    let store = with_workspace("old");
    let live = store.mount("old");
    fs::write(live.join("a"), "1").unwrap();
    let id = store.snapshot("old");
    store.ok(["ws", "rename", "old", "new"]);
    store.fails(3, ["ws", "show", "old"]);
    assert_eq!(fs::read(live.join("a")).unwrap(), b"1");
    let preview = store.json(["ws", "delete", "--dry-run", "new"]);
    assert_eq!(preview[0]["deleted"], false);
    store.umount(&live);
    assert_eq!(store.json(["ws", "delete", "new"])[0]["deleted"], true);
    store.ok(["ws", "delete", "--if-exists", "new"]);
    assert!(workspaces(&store).is_empty());
    let frozen = store.mount(&id);
    assert_eq!(fs::read(frozen.join("a")).unwrap(), b"1");
}

/// Half of the names were once deleted before a wrong one was found, and nothing was printed.
#[test]
fn several_workspaces_are_deleted_all_or_none() {
    let store = TestStore::new();
    store.ok(["ws", "create", "a"]);
    store.ok(["ws", "create", "b"]);
    store.fails(3, ["ws", "delete", "a", "missing", "--json"]);
    assert_eq!(store.ok(["ws", "list", "-q"]), "a\nb");
    let deleted = store.json(["ws", "delete", "a", "missing", "b", "--if-exists"]);
    assert_eq!(deleted.as_array().unwrap().len(), 2);
    assert_eq!(store.ok(["ws", "list", "-q"]), "");
}

#[test]
fn what_was_once_taken_silently_is_wrong_usage() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let labels = ["snapshot", "w", "--label", "k=1", "--label", "k=2"];
    assert!(store.fails(2, labels).errors().contains("'k'"));
    store.fails(2, ["snap", "list", "--limit", "0"]);
    // A command is missing: clap's whole help was once the list of causes.
    let error = store.fails(2, ["--json", "ws"]).json_error();
    assert_eq!(error["error"], "a command is missing");
    assert_eq!(error["causes"], serde_json::json!([]));
}

/// The home directory of the test has no store yet; root's own default must not be touched.
#[test]
fn an_empty_variable_names_no_store() {
    let help = |variable: &str| {
        let mut command = std::process::Command::new(floe_harness::binary::floe());
        command
            .env("FLOE_STORE", variable)
            .args(["completions", "bash"]);
        floe_harness::command::run(&mut command, std::time::Duration::from_secs(20))
    };
    help("").expect_code(0);
    help("/nowhere").expect_code(0);
    let mut given = std::process::Command::new(floe_harness::binary::floe());
    given
        .env_remove("FLOE_STORE")
        .args(["--store", "", "store", "info"]);
    floe_harness::command::run(&mut given, std::time::Duration::from_secs(20)).expect_code(2);
}
