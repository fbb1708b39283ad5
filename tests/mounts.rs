//! Mounts and what others do around them: other mounts over them, a killed daemon, a copied store,
//! another mount namespace, many commands at once.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use floe_harness::command::{Output, run};
use floe_harness::{TestStore, mounts};

const LIMIT: Duration = Duration::from_secs(60);

fn with_workspace(name: &str) -> TestStore {
    let store = TestStore::new();
    store.ok(["ws", "create", name]);
    store
}

fn system<A: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = A>) -> Output {
    run(Command::new(program).args(args), LIMIT).expect_code(0)
}

/// Mounts a tmpfs with a file in it.
fn tmpfs(dir: &Path) {
    system(
        "mount",
        [
            "-t".as_ref(),
            "tmpfs".as_ref(),
            "none".as_ref(),
            dir.as_os_str(),
        ],
    );
    fs::write(dir.join("precious"), "not Floe's").unwrap();
}

fn types_at(dir: &Path) -> Vec<String> {
    let all = mounts::all().into_iter().filter(|mount| mount.dir == dir);
    all.map(|mount| mount.fs_type).collect()
}

fn on(command: &str, target: &str, dir: &Path) -> [OsString; 3] {
    [command.into(), target.into(), dir.into()]
}

#[test]
fn a_copy_of_a_store_leaves_the_mounts_of_the_original_alone() {
    // Once the copy's daemon detached them as if they were its own, and mounted over them.
    let store = with_workspace("w");
    let live = store.mount("w");
    fs::write(live.join("a"), "original").unwrap();
    let base = store.base().join("copied");
    fs::create_dir(&base).unwrap();
    system(
        "cp",
        [
            "-a".as_ref(),
            store.store_dir().as_os_str(),
            base.as_os_str(),
        ],
    );
    let copy = TestStore::adopt(&base);
    fs::create_dir_all(base.join("mnt")).unwrap();
    let table = mounts::below(store.base());

    let workspaces = copy.json(["ws", "list"]);
    assert_eq!(workspaces[0]["mounts"], serde_json::json!([]));
    assert_eq!(mounts::below(store.base()), table);
    let status = copy.json(["daemon", "status"]);
    assert_eq!(status["unrestored"], serde_json::json!([]));
    fs::write(live.join("a"), "still").unwrap();
    // It goes its own way from here.
    let other = copy.mount("w");
    assert_eq!(fs::read(other.join("a")).unwrap(), b"original");
    assert_eq!(fs::read(live.join("a")).unwrap(), b"still");
    copy.fails(4, on("mount", "w", &live));
    copy.kill_daemon();
    copy.ok(["daemon", "stop"]);
    assert_eq!(mounts::below(store.base()), table);
    let doctor = copy.run(["doctor"]).text();
    assert!(!doctor.contains("left behind"), "{doctor}");
    // The original restores its own mounts as before.
    store.kill_daemon();
    store.ok(["daemon", "start"]);
    assert_eq!(fs::read(live.join("a")).unwrap(), b"still");
}

#[test]
fn a_moved_store_does_not_mount_where_it_did() {
    let store = with_workspace("w");
    let live = store.mount("w");
    store.kill_daemon();
    let base = store.base().join("moved");
    fs::create_dir(&base).unwrap();
    fs::rename(store.store_dir(), base.join("store")).unwrap();
    let moved = TestStore::adopt(&base);
    fs::create_dir_all(base.join("mnt")).unwrap();
    moved.ok(["daemon", "start"]);
    // The dead mount is nobody's any more.
    assert_eq!(types_at(&live), Vec::<String>::new());
    moved.ok(on("mount", "w", &live));
    moved.kill_daemon();
    moved.ok(["daemon", "start"]);
    assert_eq!(types_at(&live), ["fuse.floe"]);
    moved.stop_daemon();
}

#[test]
fn what_is_mounted_over_a_mount_stays() {
    let store = with_workspace("w");
    let live = store.mount("w");
    fs::write(live.join("a"), "1").unwrap();
    tmpfs(&live);
    for command in [vec!["umount", "w"], vec!["umount", "--lazy", "w"]] {
        let refused = store.fails(4, command).errors();
        let dir = live.display();
        assert!(
            refused.contains("something else is mounted over"),
            "{refused}"
        );
        assert!(refused.contains(&format!("`umount {dir}`")), "{refused}");
    }
    store.fails(4, on("mount", "w", &live));
    assert_eq!(types_at(&live), ["fuse.floe", "tmpfs"]);

    // Once the next daemon detached the tmpfs instead of the dead mount below it.
    store.kill_daemon();
    let started = store.run(["daemon", "start"]).expect_code(0).errors();
    assert!(started.contains("is not mounted again"), "{started}");
    assert_eq!(types_at(&live), ["fuse.floe", "tmpfs"]);
    assert_eq!(fs::read(live.join("precious")).unwrap(), b"not Floe's");
    let status = store.json(["daemon", "status"]);
    assert_eq!(status["mounts"], serde_json::json!([]));
    assert_eq!(status["unrestored"][0]["dir"], live.to_str().unwrap());
    assert!(store.ok(["daemon", "status"]).contains("something else"));
    store.fails(4, ["umount", "w"]);

    // Stopping says what stays, also when it is asked again.
    for _ in 0..2 {
        let stopped = store.fails(4, ["daemon", "stop"]).errors();
        assert!(stopped.contains(live.to_str().unwrap()), "{stopped}");
        assert!(store.daemon().is_none());
    }
    assert_eq!(types_at(&live), ["fuse.floe", "tmpfs"]);
    system("umount", [&live]);
    // The record is still there.
    store.ok(["daemon", "start"]);
    assert_eq!(fs::read(live.join("a")).unwrap(), b"1");
    assert_eq!(types_at(&live), ["fuse.floe"]);
}

#[test]
fn a_mount_over_a_directory_above_is_named() {
    // Once this was an error of the system's and a hint that could not be followed.
    let store = with_workspace("w");
    let above = store.base().join("above");
    let live = above.join("live");
    store.ok(on("mount", "w", &live));
    tmpfs(&above);
    let hint = format!("`umount {}`", above.display());
    let refused = store.fails(4, ["umount", "w"]).errors();
    assert!(refused.contains(&hint), "{refused}");
    let refused = store.fails(4, on("mount", "w", &live)).errors();
    assert!(refused.contains(&hint), "{refused}");
    assert!(!live.exists());
    let refused = store.fails(4, ["daemon", "stop"]).errors();
    assert!(refused.contains(&hint), "{refused}");
    system("umount", [&above]);
    store.ok(["daemon", "stop"]);
    assert!(!mounts::is_mounted(&live));
}

#[test]
fn stopping_a_daemon_that_leaves_a_covered_mount_is_an_error() {
    let store = with_workspace("w");
    let (live, other) = (store.mount("w"), store.mount("w"));
    tmpfs(&live);
    let stopped = store.fails(4, ["daemon", "stop"]).errors();
    assert!(stopped.contains(live.to_str().unwrap()), "{stopped}");
    assert!(!stopped.contains(other.to_str().unwrap()), "{stopped}");
    assert!(store.daemon().is_none() && !mounts::is_mounted(&other));
    system("umount", [&live]);
    let cleaned = store.json(["daemon", "stop"]);
    assert_eq!(cleaned["stopped"], false);
    assert_eq!(cleaned["detached"][0], live.to_str().unwrap());
    assert!(!mounts::is_mounted(&live));
}

#[test]
fn stopping_after_a_kill_removes_the_dead_mounts_for_good() {
    // Once it said "it was not running" and left them, to be mounted again later.
    let store = with_workspace("w");
    store.ok(["ws", "create", "v"]);
    let live = store.mount("w");
    fs::create_dir(live.join("v")).unwrap();
    store.ok(on("mount", "v", &live.join("v")));
    let own = PathBuf::from(store.ok(["mount", "w"]));
    store.kill_daemon();
    let said = store.run(["daemon", "stop"]).expect_code(0).errors();
    for dir in [&live, &live.join("v"), &own] {
        assert!(said.contains(dir.to_str().unwrap()), "{said}");
    }
    assert!(store.floe_mounts().is_empty());
    assert!(!own.exists() && fs::read_dir(&live).unwrap().next().is_none());
    assert_eq!(store.ok(["daemon", "stop"]), "");
    store.ok(["daemon", "start"]);
    assert!(store.floe_mounts().is_empty());
}

#[test]
fn a_mount_that_cannot_be_restored_is_shown_and_tried_again() {
    // Once it was a line in the log, and forgotten.
    let store = with_workspace("w");
    let live = store.mount("w");
    fs::write(live.join("a"), "1").unwrap();
    store.kill_daemon();
    system("umount", ["-l".as_ref(), live.as_os_str()]);
    fs::remove_dir(&live).unwrap();
    fs::write(&live, "in the way").unwrap();
    for _ in 0..2 {
        let listed = store.run(["ws", "list"]).expect_code(0).errors();
        assert!(listed.contains("is not mounted again"), "{listed}");
        let status = store.json(["daemon", "status"]);
        assert_eq!(status["unrestored"][0]["dir"], live.to_str().unwrap());
        assert!(status["unrestored"][0]["error"].is_string());
        store.stop_daemon();
    }
    fs::remove_file(&live).unwrap();
    store.ok(["daemon", "start"]);
    assert_eq!(fs::read(live.join("a")).unwrap(), b"1");
    let status = store.json(["daemon", "status"]);
    assert_eq!(status["unrestored"], serde_json::json!([]));

    // It can be given up.
    store.kill_daemon();
    system("umount", ["-l".as_ref(), live.as_os_str()]);
    fs::remove_dir(&live).unwrap();
    fs::write(&live, "in the way").unwrap();
    store.ok(on("umount", "w", &live).split_at(2).0);
    fs::remove_file(&live).unwrap();
    store.stop_daemon();
    store.ok(["daemon", "start"]);
    assert!(!live.exists());
}

#[test]
fn a_daemon_in_another_mount_namespace_is_told() {
    // Once the directory was printed, and was a plain one.
    let store = with_workspace("w");
    store.stop_daemon();
    let command = store.command();
    let mut elsewhere = Command::new("unshare");
    elsewhere
        .arg("-m")
        .arg(command.get_program())
        .args(command.get_args());
    run(elsewhere.args(["daemon", "start"]), LIMIT).expect_code(0);
    let dir = store.base().join("mnt/w");
    let refused = store.fails(4, on("mount", "w", &dir)).errors();
    assert!(refused.contains("another mount namespace"), "{refused}");
    let pid = store.daemon().unwrap().pid().to_string();
    assert!(refused.contains(&format!("(pid {pid})")), "{refused}");
    let refused = store.fails(4, ["fork", "w", "f", "--mount"]).errors();
    assert!(refused.contains("another mount namespace"), "{refused}");
    store.ok(["daemon", "stop"]);
    store.ok(on("mount", "w", &dir));
    assert!(mounts::is_mounted(&dir));
}

#[test]
fn mounting_and_unmounting_one_place_at_once_fails_for_nobody() {
    // Once the directory of a mount that was about to be made was removed.
    let store = with_workspace("w");
    store.ok(["daemon", "start"]);
    std::thread::scope(|scope| {
        for command in ["mount", "umount", "mount"] {
            let store = &store;
            scope.spawn(move || {
                for _ in 0..40 {
                    let output = store.run([command, "w"]);
                    // Another command may be looking at the mount at this very moment.
                    let busy = output.code == Some(4) && output.errors().contains("busy");
                    assert!(busy || output.code == Some(0), "{output}");
                }
            });
        }
    });
    store.ok(["umount", "w"]);
    assert!(!store.store_dir().join("mnt/w").exists());
}

#[test]
fn a_refused_mount_leaves_no_directory() {
    let store = with_workspace("w");
    let inside = store.store_dir().join("foo/bar");
    let refused = store.fails(2, on("mount", "w", &inside)).errors();
    assert!(refused.contains("hide the store"), "{refused}");
    assert!(!store.store_dir().join("foo").exists());
    store.fails(3, on("mount", "none", &store.base().join("new/deep")));
    assert!(!store.base().join("new").exists());
}

#[test]
fn a_renamed_workspace_keeps_its_own_place_and_another_gets_a_free_one() {
    let store = with_workspace("w");
    let place = store.ok(["mount", "w"]);
    fs::write(format!("{place}/a"), "first").unwrap();
    store.ok(["ws", "rename", "w", "v"]);
    // Once this was a second mount of it, and the next a conflict.
    assert_eq!(store.ok(["mount", "v"]), place);
    store.ok(["ws", "create", "w"]);
    let other = store.ok(["mount", "w"]);
    assert_ne!(other, place);
    assert_eq!(store.ok(["mount", "w"]), other);
    assert!(!Path::new(&other).join("a").exists());
    assert_eq!(fs::read(format!("{place}/a")).unwrap(), b"first");
    assert_eq!(store.floe_mounts().len(), 2);
    store.ok(["umount", "v"]);
    store.ok(["umount", "w"]);
    assert_eq!(
        fs::read_dir(store.store_dir().join("mnt")).unwrap().count(),
        0
    );
}

#[test]
fn a_workspace_is_looked_at_on_another_directory_and_shows_each_change_at_once() {
    let store = with_workspace("w");
    let live = store.mount("w");
    let seen = store.base().join("mnt/seen");
    fs::write(live.join("file"), "first").unwrap();
    fs::create_dir(live.join("dir")).unwrap();
    let look = |dir: &Path| {
        store.ok([
            "mount".as_ref(),
            "--read-only".as_ref(),
            "w".as_ref(),
            dir.as_os_str(),
        ])
    };
    look(&seen);
    look(&seen);
    let names = || {
        let names = fs::read_dir(seen.join("dir")).unwrap();
        let mut names: Vec<_> = names.map(|name| name.unwrap().file_name()).collect();
        names.sort();
        names
    };
    // Each thing is looked at before and after, so that the kernel could believe what it knows.
    for round in 0..50 {
        let text = format!("{round} and what is written in round {round}");
        fs::write(live.join("file"), &text).unwrap();
        assert_eq!(fs::read_to_string(seen.join("file")).unwrap(), text);
        let name = format!("{round}");
        assert!(!seen.join("dir").join(&name).exists());
        fs::write(live.join("dir").join(&name), "").unwrap();
        assert!(seen.join("dir").join(&name).exists());
        assert_eq!(names().len(), round + 1);
    }
    fs::rename(live.join("dir/0"), live.join("dir/renamed")).unwrap();
    fs::remove_file(live.join("dir/1")).unwrap();
    assert!(!names().contains(&OsString::from("0")) && !names().contains(&OsString::from("1")));
    assert!(names().contains(&OsString::from("renamed")));
    // A change of the same length, within one tick of a clock perhaps.
    fs::write(live.join("file"), "aaaa").unwrap();
    assert_eq!(fs::read(seen.join("file")).unwrap(), b"aaaa");
    fs::write(live.join("file"), "bbbb").unwrap();
    assert_eq!(fs::read(seen.join("file")).unwrap(), b"bbbb");
    let refused = fs::write(seen.join("file"), "mine").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    let refused = fs::remove_file(seen.join("file")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));

    // What it holds of a removed file is its own, and no more.
    let held = fs::File::open(seen.join("file")).unwrap();
    fs::remove_file(live.join("file")).unwrap();
    assert_eq!(held.metadata().unwrap().len(), 4);
    drop(held);

    // A snapshot and a rollback go on beside it.
    let id = store.snapshot("w");
    fs::write(live.join("later"), "").unwrap();
    assert!(seen.join("later").exists());
    store.ok(["rollback", "w", &id]);
    assert!(!seen.join("later").exists() && !live.join("later").exists());

    // Each goes without the other, and both come back after a kill, as they were.
    store.ok(["umount".as_ref(), live.as_os_str()]);
    assert!(seen.join("dir/renamed").exists());
    store.ok(["mount".as_ref(), "w".as_ref(), live.as_os_str()]);
    fs::write(live.join("again"), "").unwrap();
    assert!(seen.join("again").exists());
    store.kill_daemon();
    // Any command brings everything back.
    store.ok(["ws", "list"]);
    let access = || {
        let status = store.json(["daemon", "status"]);
        let of = |dir: &Path| {
            let mounts = status["mounts"].as_array().unwrap().iter();
            let mut found = mounts.filter(|mount| mount["dir"] == dir.to_str().unwrap());
            found
                .next()
                .map(|mount| mount["read_only"].as_bool().unwrap())
        };
        (of(&live), of(&seen))
    };
    assert_eq!(access(), (Some(false), Some(true)));
    fs::write(live.join("after"), "").unwrap();
    assert!(seen.join("after").exists());
    let refused = fs::write(seen.join("after"), "mine").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    store.fails(4, ["mount".as_ref(), "w".as_ref(), seen.as_os_str()]);

    store.ok(["umount".as_ref(), seen.as_os_str()]);
    assert_eq!(access(), (Some(false), None));
    store.ok(["umount", "w"]);
    assert!(mounts::below(store.base()).is_empty());
    store.check();
}

#[test]
fn without_a_directory_a_workspace_is_looked_at_in_a_place_of_its_own() {
    let store = with_workspace("w");
    let own = |arguments: &[&str]| store.ok(arguments).trim().to_owned();
    let live = own(&["mount", "w"]);
    let seen = own(&["mount", "--read-only", "w"]);
    assert_ne!(live, seen);
    assert_eq!(own(&["mount", "--read-only", "w"]), seen);
    assert_eq!(own(&["mount", "w"]), live);
    let unmounted = store.json(["umount", "w"]);
    assert_eq!(unmounted["unmounted"].as_array().unwrap().len(), 2);
    assert!(!Path::new(&seen).exists());
}

/// Mounts a workspace to look at, on a directory of the test's.
fn looked_at(store: &TestStore, name: &str) -> PathBuf {
    let seen = store.base().join("mnt/seen");
    let arguments = ["mount", "--read-only", name].map(OsStr::new);
    store.ok(arguments.into_iter().chain([seen.as_os_str()]));
    seen
}

#[test]
fn a_change_that_puts_the_time_back_is_seen_by_who_looks_on() {
    // Once the kernel kept pages and listings as long as time and size were the same.
    let store = with_workspace("w");
    let live = store.mount("w");
    let file = live.join("file");
    fs::create_dir(live.join("dir")).unwrap();
    fs::write(&file, "old").unwrap();
    let seen = looked_at(&store, "w");
    let names = || fs::read_dir(seen.join("dir")).unwrap().count();
    for round in 0..10 {
        let text = format!("{round}xx");
        let times = |path: &Path| {
            let told = fs::metadata(path).unwrap();
            let times = fs::FileTimes::new();
            let times = times.set_modified(told.modified().unwrap());
            times.set_accessed(told.accessed().unwrap())
        };
        // Read, so that there is something to be kept.
        assert_eq!(fs::read(seen.join("file")).unwrap().len(), 3);
        assert_eq!(names(), round);
        let (of_file, of_dir) = (times(&file), times(&live.join("dir")));
        fs::write(&file, &text).unwrap();
        fs::write(live.join("dir").join(&text), "").unwrap();
        let put_back = |path: &Path, times| fs::File::open(path).unwrap().set_times(times);
        put_back(&file, of_file).unwrap();
        put_back(&live.join("dir"), of_dir).unwrap();
        assert_eq!(fs::read_to_string(seen.join("file")).unwrap(), text);
        assert_eq!(names(), round + 1);
    }
}

#[test]
fn who_looks_on_and_was_detached_while_in_use_holds_nobody_up() {
    // Once every mount and unmount of the workspace waited two seconds for it.
    let store = with_workspace("w");
    let live = store.mount("w");
    fs::write(live.join("file"), "kept").unwrap();
    let seen = looked_at(&store, "w");
    let held = fs::File::open(seen.join("file")).unwrap();
    store.ok(["umount".as_ref(), "--lazy".as_ref(), seen.as_os_str()]);
    let begun = std::time::Instant::now();
    for _ in 0..4 {
        store.ok(["umount", "w"]);
        store.ok(on("mount", "w", &live));
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
    // What it holds is there, and goes with it: removed files keep no space for it.
    fs::remove_file(live.join("file")).unwrap();
    assert_eq!(held.metadata().unwrap().len(), 4);
    drop(held);
    looked_at(&store, "w");
    store.check();
}

#[test]
fn a_snapshot_of_very_many_open_files_takes_few_descriptors() {
    // Once every file that could be mapped was opened at once, and once more for who looked on: a sandbox
    // could leave the daemon without descriptors.
    const FILES: u64 = 8000;
    /// Those that are kept, those of one round, and what the daemon has anyway.
    const MOST: usize = 1024 + 1024 + 500;
    let nofile = rustix::process::Resource::Nofile;
    let mut limit = rustix::process::getrlimit(nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(nofile, limit).unwrap();
    assert!(limit.current.is_none_or(|most| most > FILES + 100));
    let store = with_workspace("w");
    let live = store.mount("w");
    let seen = looked_at(&store, "w");
    let open = |at: u64| {
        let mut options = fs::File::options();
        let options = options.read(true).write(true).create(true);
        options.open(live.join(at.to_string())).unwrap()
    };
    let files: Vec<_> = (0..FILES).map(open).collect();
    let descriptors = format!("/proc/{}/fd", store.daemon().unwrap().pid());
    let count = || fs::read_dir(&descriptors).unwrap().count();
    let most = std::thread::scope(|scope| {
        let taken = scope.spawn(|| store.snapshot("w"));
        let mut most = 0;
        while !taken.is_finished() {
            most = most.max(count());
        }
        taken.join().unwrap();
        most
    });
    assert!(most <= MOST, "{most} descriptors at once");
    assert!(seen.join("0").exists());
    drop(files);
}
