//! Landings whose process is killed at any step, and then that of the recovery.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use floe_fs::{HostLandError, HostPart, HostPlan, NewKind, Store};

use super::case::{self, Contents};
use super::host::{Host, NOTHING, conflicts};
use super::tree::{Tree, assert_same, file, meta, put, put_file, scan, set_meta, with_attributes};

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
    // Another directory in its place has nothing to do with it.
    fs::create_dir(&host.root).unwrap();
    let plan = host.plan(vec![put_file("a", 1, case::size(1), 0o644, 5)]);
    store.land_on_host("w", &plan, &NOTHING, false).unwrap();
    assert_eq!(host.scan().len(), 1);
    drop(store);
    fs::remove_dir_all(&host.root).unwrap();
    fs::rename(&aside, &host.root).unwrap();
    drop(host.open());
    assert_same(&host.scan(), &after, "finished");
}

/// A landing that was killed when everything was taken, but a move to `src/came-out` not done.
fn killed_while_putting() -> Host {
    (30..90)
        .find_map(|at| {
            let host = Host::with_everything();
            assert!(
                run_child(&host, "land", at).is_killed,
                "it has no step {at}"
            );
            let is_at = host.staging().is_some_and(|dir| dir.join("puts").exists())
                && host.scan().get("src/changed") != host.expected_before().get("src/changed")
                && !host.at("src/came-out").exists();
            is_at.then_some(host)
        })
        .expect("a step between")
}

/// What others put or change while a landing goes back is theirs, and what was there before is beside it.
#[test]
fn going_back_overwrites_nothing_and_waits_for_nothing() {
    let host = killed_while_putting();
    let mut expected = host.expected_before();
    file(&host.at("src/changed"), "theirs, longer", 0o644);
    file(&host.at("removed-link"), "theirs", 0o644);
    file(&host.at("src/came-out"), "theirs", 0o644);
    let store = host.open();
    let mut found = host.scan();
    for path in ["src/changed", "removed-link"] {
        let theirs = found.remove(path).unwrap();
        assert!(theirs.contains("theirs"), "{path}: {theirs}");
        let before = format!("{path}.before-");
        let saved = found.keys().find(|other| other.starts_with(&before));
        let saved = saved
            .cloned()
            .unwrap_or_else(|| panic!("{path}: {found:?}"));
        let was = expected.remove(path).unwrap();
        let saved_as = found.remove(&saved).unwrap().replace(&saved, path);
        assert_eq!(saved_as, was, "{path}");
    }
    assert!(found.remove("src/came-out").unwrap().contains("theirs"));
    assert_same(&found, &expected, "the rest");
    assert_eq!((host.staging(), host.kept()), (None, 0));
    host.assert_sound(&store);
    let plan = host.plan(vec![put_file("more", 1, case::size(1), 0o644, 5)]);
    store.land_on_host("w", &plan, &NOTHING, false).unwrap();
    let log = store.log("w", None).unwrap();
    let told = log.iter().filter_map(|one| one.message.as_deref());
    assert_eq!(
        told.filter(|message| message.contains(".before-")).count(),
        1
    );
}

#[test]
fn a_staging_directory_that_somebody_removed_is_told_and_what_can_be_is_taken_back() {
    let host = killed_while_putting();
    let aside = host.root.with_file_name("elsewhere");
    fs::rename(&host.root, &aside).unwrap();
    // It waits for the directory.
    let store = host.open();
    fs::rename(&aside, &host.root).unwrap();
    fs::remove_dir_all(host.staging().unwrap()).unwrap();
    let left = host.scan();
    let plan = host.plan(vec![put_file("more", 1, case::size(1), 0o644, 5)]);
    let lost = store.land_on_host("w", &plan, &NOTHING, false);
    assert!(matches!(lost, Err(HostLandError::Lost { .. })), "{lost:?}");
    assert_same(&host.scan(), &left, "nothing else was done");
    let log = store.log("w", Some(1)).unwrap();
    let told = log[0].message.clone().unwrap_or_default();
    assert!(told.contains("cannot be finished"), "{told}");
    // Said once.
    store.land_on_host("w", &plan, &NOTHING, false).unwrap();
    host.assert_sound(&store);
}

/// Whoever is not root may not set attributes of what may not be written to.
#[test]
fn attributes_of_what_is_read_only_are_landed_and_undone() {
    let host = Host::with_everything();
    host.give_to(NOBODY);
    let before = host.scan();
    run_child_as(&host, "attributes", 0, Some(NOBODY));
    assert_same(&host.scan(), &before, "undone");
}

/// Whoever is not root cannot take directories away that nobody may write to.
#[test]
fn new_directories_that_are_read_only_do_not_keep_a_landing_from_going_back() {
    let host = Host::with_everything();
    host.give_to(NOBODY);
    let before = host.scan();
    let child = run_child_as(&host, "read-only", 0, Some(NOBODY));
    assert!(!child.is_killed);
    fs::set_permissions(host.at("empty"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_same(&host.scan(), &before, "gone back");
}

/// The user that owns nothing.
const NOBODY: u32 = 65534;

struct Child {
    is_killed: bool,
}

/// Runs this program again, to do something with the host and be killed at a step.
fn run_child(host: &Host, act: &str, kill_at: u64) -> Child {
    run_child_as(host, act, kill_at, None)
}

/// As [`run_child`], as another user, to whom the host was given.
fn run_child_as(host: &Host, act: &str, kill_at: u64, user: Option<u32>) -> Child {
    let mut program = std::env::current_exe().unwrap();
    if user.is_some() {
        let copy = host.root.with_file_name("program");
        fs::copy(&program, &copy).unwrap();
        program = copy;
    }
    let mut command = Command::new(program);
    if let Some(user) = user.filter(|_| rustix::process::geteuid().is_root()) {
        std::os::unix::process::CommandExt::uid(&mut command, user);
        std::os::unix::process::CommandExt::gid(&mut command, user);
    }
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
        "read-only" => {
            let directory = |path| put(path, NewKind::Directory, meta(0o555, 5));
            let (empty, theirs) = (root.join("empty"), fs::Permissions::from_mode(0o711));
            let change = || fs::set_permissions(&empty, theirs.clone()).unwrap();
            let changes = vec![
                directory("a"),
                directory("a/b"),
                put_file("a/b/c", 1, case::size(1), 0o444, 5),
                set_meta(&root, "empty", "empty", meta(0o500, 5)),
            ];
            let parts = vec![HostPart {
                root: root.clone(),
                changes,
            }];
            let plan = HostPlan { parts };
            // Their change is found when the new directories are read-only already.
            let found = conflicts(store.land_on_host("w", &plan, &Contents(&change), false));
            assert_eq!(
                (found.len(), found[0].0.as_str()),
                (1, "empty"),
                "{found:?}"
            );
            assert!(matches!(
                store.undo_on_host("w", false),
                Err(HostLandError::NothingToUndo)
            ));
        }
        "attributes" => {
            let with = |perm, value: &[u8]| with_attributes(perm, 5, &[value]);
            let (contents, size) = (1, case::size(1));
            let changes = vec![
                put("new", NewKind::File { contents, size }, with(0o444, b"a")),
                set_meta(&root, "src/script", "src/script", with(0o400, b"b")),
            ];
            let parts = vec![HostPart {
                root: root.clone(),
                changes,
            }];
            let plan = HostPlan { parts };
            store.land_on_host("w", &plan, &NOTHING, false).unwrap();
            let found = scan(&root);
            assert!(
                found["new"].ends_with("0444 65534:65534 \"a\""),
                "{found:?}"
            );
            assert!(
                found["src/script"].ends_with("0400 65534:65534 \"b\""),
                "{found:?}"
            );
            store.undo_on_host("w", false).unwrap();
        }
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
