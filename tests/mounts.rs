//! Mounts and what others do around them: many commands at once, renames, refusals.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use floe_harness::TestStore;

fn with_workspace(name: &str) -> TestStore {
    let store = TestStore::new();
    store.ok(["ws", "create", name]);
    store
}

fn on(command: &str, target: &str, dir: &Path) -> [OsString; 3] {
    [command.into(), target.into(), dir.into()]
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
