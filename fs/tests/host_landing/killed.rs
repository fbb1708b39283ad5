//! Landings whose process is killed at any step, and then that of the recovery.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use floe_fs::{HostLandError, Store};

use super::case::{self, Contents};
use super::host::{Host, NOTHING, conflicts};
use super::tree::{Tree, assert_same, file, put_file};

#[test]
fn a_landing_whose_directory_is_gone_waits_and_the_store_opens() {
    let host = Host::with_everything();
    let after = host.expected();
    let child = run_child(&host, "land", 45);
    assert!(child.is_killed);
    let is_staging = |path: &String| path.starts_with(".floe-land-") && path.ends_with("puts");
    assert!(
        host.scan().keys().any(is_staging),
        "it was killed elsewhere"
    );
    let aside = host.root.with_file_name("elsewhere");
    fs::rename(&host.root, &aside).unwrap();
    let store = host.open();
    let missing = store.undo_on_host("w", false);
    assert!(
        matches!(missing, Err(HostLandError::NothingToUndo)),
        "{missing:?}"
    );
    // Another directory in its place is left alone.
    fs::create_dir(&host.root).unwrap();
    let plan = host.plan(vec![put_file("a", 1, case::size(1), 0o644, 5)]);
    let pending = store.land_on_host("w", &plan, &NOTHING, false);
    assert!(
        matches!(pending, Err(HostLandError::Pending { .. })),
        "{pending:?}"
    );
    assert!(host.scan().is_empty());
    drop(store);
    fs::remove_dir(&host.root).unwrap();
    fs::rename(&aside, &host.root).unwrap();
    drop(host.open());
    assert_same(&host.scan(), &after, "finished");
}

struct Child {
    is_killed: bool,
}

/// Runs this program again, to do something with the host and be killed at a step.
fn run_child(host: &Host, act: &str, kill_at: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "killed::what_a_child_does", "--nocapture"]);
    command.env("FLOE_TEST_CHILD", act);
    command.env("FLOE_TEST_CHILD_STORE", &host.store);
    command.env("FLOE_TEST_CHILD_ROOT", &host.root);
    command.env("FLOE_TEST_KILL_AT", kill_at.to_string());
    let output = command.output().unwrap();
    let is_killed = std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(9);
    assert!(is_killed || output.status.success(), "{output:?}");
    Child { is_killed }
}

/// Not a test by itself: what the children of the tests do.
#[test]
fn what_a_child_does() {
    let Ok(act) = std::env::var("FLOE_TEST_CHILD") else {
        return;
    };
    let path = |name| PathBuf::from(std::env::var_os(name).unwrap());
    let (store, root) = (path("FLOE_TEST_CHILD_STORE"), path("FLOE_TEST_CHILD_ROOT"));
    let store = Store::open(&store).unwrap();
    match act.as_str() {
        "open" => {}
        "undo" => drop(store.undo_on_host("w", false).unwrap()),
        "land" => drop(
            store
                .land_on_host("w", &case::plan(&root), &NOTHING, false)
                .unwrap(),
        ),
        _ => {
            let change = || file(&root.join("src/came-out"), "theirs", 0o644);
            conflicts(store.land_on_host("w", &case::plan(&root), &Contents(&change), false));
        }
    }
}

/// Kills a child at many of the steps of what it does, from a directory as `make` leaves it. A second one, that
/// opens the store after it, is killed as well. `check` sees the outcome.
fn killed_everywhere(act: &str, make: impl Fn() -> Host, check: impl Fn(&Host, &Tree, u64)) {
    let run = |at: u64, again: u64| {
        let host = make();
        let before = host.scan();
        let is_killed = run_child(&host, act, at).is_killed;
        if is_killed && again > 0 {
            run_child(&host, "open", again);
        }
        check(&host, &before, at);
        is_killed
    };
    let mut steps = 64;
    while run(steps, 0) {
        steps *= 2;
    }
    let mut killed = steps / 2;
    while steps - killed > 4 {
        let middle = (steps + killed) / 2;
        if run(middle, 0) {
            killed = middle
        } else {
            steps = middle
        }
    }
    let long = std::env::var("FLOE_TEST_LONG").is_ok_and(|value| value == "1");
    let stride = if long { 1 } else { (steps / 12).max(1) };
    let mut points = 0;
    for at in (1..steps).step_by(stride as usize) {
        let again = [0, 1 + at % 23, 1 + at % 7];
        for &again in if long {
            &again[..]
        } else {
            &again[(at % 2) as usize..][..1]
        } {
            run(at, again);
            points += 1;
        }
    }
    eprintln!("{act}: killed {points} times at {steps} steps");
}

fn is_whole(host: &Host, before: &Tree, after: &Tree, at: u64) {
    let store = host.open();
    let found = host.scan();
    if found != *before {
        assert_same(&found, after, at);
        store.undo_on_host("w", false).unwrap();
        assert_same(&host.scan(), before, ("undone", at));
    }
    assert_eq!(host.kept(), 0, "{at}");
    host.assert_sound(&store);
}

#[test]
fn a_landing_that_is_killed_is_finished_or_was_not_begun() {
    let after = Host::with_everything().expected();
    killed_everywhere("land", Host::with_everything, |host, before, at| {
        is_whole(host, before, &after, at);
    });
}

#[test]
fn an_undo_that_is_killed_is_finished_or_was_not_begun() {
    let original = Host::with_everything().scan();
    let landed = || {
        let host = Host::with_everything();
        let plan = case::plan(&host.root);
        host.open()
            .land_on_host("w", &plan, &NOTHING, false)
            .unwrap();
        host
    };
    killed_everywhere("undo", landed, |host, before, at| {
        let store = host.open();
        if host.scan() == *before {
            store.undo_on_host("w", false).unwrap();
        }
        assert_same(&host.scan(), &original, at);
        assert_eq!(host.kept(), 0, "{at}");
    });
}

#[test]
fn going_back_that_is_killed_is_finished() {
    killed_everywhere("conflict", Host::with_everything, |host, before, at| {
        drop(host.open());
        let mut found = host.scan();
        // The other's file, from whose appearance on the landing cannot be finished.
        let theirs = found.remove("src/came-out");
        assert!(theirs.is_none_or(|what| what.contains("theirs")), "{at}");
        assert_same(&found, before, at);
        assert_eq!(host.kept(), 0, "{at}");
    });
}
