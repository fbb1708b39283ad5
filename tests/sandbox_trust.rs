//! What root of a sandbox leaves behind, shown on the host: it is root's there, too, and must not make
//! anybody root. Nor may a mount that was there before something of a sandbox came to be shown in it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use floe_harness::command::run;
use floe_harness::{Server, mounts};
use serde_json::json;

/// A user of the host that is nobody in particular.
const NOBODY: &str = "65534";
/// A time that no program here needs.
const LIMIT: Duration = Duration::from_secs(20);

/// Who a set-id program in a mount runs as when nobody in particular starts it.
#[track_caller]
fn runs_as(dir: &Path) -> String {
    let program = dir.join("workspace/id");
    let meta = fs::metadata(&program).expect("the program");
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (0, 0o6755));
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
        .arg(&program)
        .arg("-u");
    run(&mut command, LIMIT).expect_code(0).text()
}

fn is_nosuid(dir: &Path) -> bool {
    let mounts = mounts::all();
    let mount = mounts.iter().find(|mount| mount.dir == dir);
    let options = &mount.expect("a mount").options;
    options.iter().any(|option| option == "nosuid")
}

#[track_caller]
fn gives_nothing(dir: &Path) {
    let mounts = mounts::all();
    let mount = mounts.iter().find(|mount| mount.dir == dir);
    let options = &mount.expect("a mount").options;
    for option in ["nosuid", "nodev", "noatime"] {
        let there = options.iter().any(|one| one == option);
        assert!(there, "{}: no {option} in {options:?}", dir.display());
    }
    assert_eq!(runs_as(dir), NOBODY);
}

/// Mounts where others may look.
fn mount(server: &Server, what: &str, dir: &str) -> PathBuf {
    let dir = server.store().base().join(dir);
    let path = dir.display().to_string();
    server.store().ok(["mount", what, path.as_str()]);
    dir
}

#[test]
fn set_id_files_of_a_sandbox_make_nobody_root_on_the_host() {
    let mut server = Server::start();
    let clean = server.create(&json!({}));
    let clean = server.snapshot(&clean);
    let sandbox = server.create(&json!({ "templateID": clean }));
    let make = "cp /usr/bin/id /workspace/id && chown 0:0 /workspace/id && chmod 6755 /workspace/id \
                && chmod 755 /workspace";
    server.exec(&sandbox, make).expect_code(0);
    let snapshot = server.snapshot(&sandbox);
    let store = server.store();

    gives_nothing(&mount(&server, &snapshot, "snapshot"));
    store.ok(["fork", snapshot.as_str(), "fork"]);
    gives_nothing(&mount(&server, "fork", "forked"));
    // A second place, too.
    gives_nothing(&mount(&server, "fork", "again"));

    // Where there was nothing of a sandbox before, a local file system is what it is.
    store.ok(["ws", "create", "mine"]);
    let mine = mount(&server, "mine", "mine");
    fs::create_dir(mine.join("workspace")).expect("a directory");
    let local = "cp /usr/bin/id workspace/id && chmod 6755 workspace/id";
    let copied = run(
        Command::new("sh").args(["-c", local]).current_dir(&mine),
        LIMIT,
    );
    copied.expect_code(0);
    assert_eq!(runs_as(&mine), "0");
    let second = mount(&server, "mine", "second");
    store.ok(["rollback", "mine", snapshot.as_str()]);
    gives_nothing(&mine);
    gives_nothing(&second);
    // And so it stays when a later daemon mounts it.
    server.crash();
    server.serve();
    gives_nothing(&mine);
    server.store().ok(["umount", "mine"]);
    gives_nothing(&mount(&server, "mine", "mine"));
    for mounted in ["mine", "fork", snapshot.as_str()] {
        server.store().ok(["umount", mounted]);
    }
}

#[test]
fn what_lands_from_a_sandbox_makes_nobody_root_either() {
    let server = Server::start();
    let store = server.store();
    // Both stand on the template, which no sandbox could write to.
    let sandbox = server.create(&json!({}));
    let templates = store.json(["template", "list"]);
    let base = templates[0]["snapshot"].as_str().expect("the template");
    store.ok(["fork", base, "target"]);
    let dir = mount(&server, "target", "target");
    assert!(!is_nosuid(&dir));
    let make = "cp /usr/bin/id /workspace/id && chown 0:0 /workspace/id && chmod 6755 /workspace/id \
                && chmod 755 /workspace";
    server.exec(&sandbox, make).expect_code(0);
    let left = server.snapshot(&sandbox);
    store.ok(["fork", left.as_str(), "left"]);
    store.ok(["land", "left", "--onto", "target", "--dry-run"]);
    assert!(!is_nosuid(&dir));
    store.ok(["land", "left", "--onto", "target"]);
    gives_nothing(&dir);
    store.ok(["umount", "target"]);
}

#[test]
fn a_copy_of_what_a_sandbox_left_gives_nothing_either() {
    let server = Server::start();
    let store = server.store();
    let sandbox = server.create(&json!({}));
    let make = "cp /usr/bin/id /workspace/id && chown 0:0 /workspace/id && chmod 6755 /workspace/id \
                && chmod 755 /workspace && mkdir -p /srv/copied && mv /workspace /srv/copied/workspace";
    server.exec(&sandbox, make).expect_code(0);
    let left = server.snapshot(&sandbox);
    let shown = mount(&server, &left, "shown").join("srv/copied");
    let shown = shown.display().to_string();
    store.ok(["ws", "create", "copy", "--copy", "--from", shown.as_str()]);
    gives_nothing(&mount(&server, "copy", "copy"));
    for mounted in ["copy", left.as_str()] {
        store.ok(["umount", mounted]);
    }
}
