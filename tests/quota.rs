//! Quotas as a user sees them, on a mount.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;

use floe_harness::TestStore;

const MIB: usize = 1 << 20;

fn is_quota(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::QuotaExceeded
}

#[test]
fn a_workspace_fills_to_its_quota_and_works_again_with_room() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let shown = store.json(["ws", "quota", "w", "--bytes", "8M", "--inodes", "200"]);
    assert_eq!(shown["quota_bytes"], 8 << 20);
    let live = store.mount("w");
    let disk = rustix::fs::statvfs(&live).unwrap();
    assert_eq!(disk.f_blocks * disk.f_frsize, 8 << 20);
    assert_eq!(disk.f_files, 200);
    fs::write(live.join("kept"), vec![1; 4 * MIB]).unwrap();
    let refused = fs::write(live.join("large"), vec![2; 8 * MIB]).unwrap_err();
    assert!(is_quota(&refused), "{refused}");
    let written = fs::metadata(live.join("large")).unwrap().len();
    assert!(written <= 4 * MIB as u64, "{written}");
    fs::remove_file(live.join("large")).unwrap();
    // Again and again: what was removed a moment ago is not in the way.
    for n in 0..50_u8 {
        let path = live.join("large");
        fs::write(&path, vec![n; 3 * MIB]).unwrap_or_else(|error| panic!("{n}: {error}"));
        fs::remove_file(&path).unwrap();
    }
    for n in 0..50 {
        fs::create_dir(live.join(format!("d{n}"))).unwrap();
    }
    let refused = (50..250).find_map(|n| fs::create_dir(live.join(format!("d{n}"))).err());
    assert!(is_quota(&refused.unwrap()));
    // One that is open counts, though it has no name.
    let open = File::create(live.join("d0/open"));
    assert!(is_quota(&open.unwrap_err()));
    fs::remove_dir(live.join("d1")).unwrap();
    let open = File::create(live.join("d0/open")).unwrap();
    fs::remove_file(live.join("d0/open")).unwrap();
    open.write_all_at(&vec![1; 3 * MIB], 0).unwrap();
    let refused = fs::write(live.join("d0/other"), vec![1; 3 * MIB]).unwrap_err();
    assert!(is_quota(&refused), "{refused}");
    drop(open);
    fs::remove_dir(live.join("d2")).unwrap();
    fs::write(live.join("d0/other"), vec![1; 3 * MIB]).unwrap();

    // It holds after a restart, for forks, and not any more when it was lifted.
    store.kill_daemon();
    store.ok(["ws", "list"]);
    let mut file = OpenOptions::new();
    let mut file = file.append(true).open(live.join("kept")).unwrap();
    let refused = file.write_all(&vec![1; 2 * MIB]).unwrap_err();
    assert!(is_quota(&refused), "{refused}");
    store.ok(["fork", "w", "f"]);
    assert_eq!(store.json(["ws", "quota", "f"])["quota_inodes"], 200);
    let text = store.ok(["ws", "quota", "w", "--bytes", "none"]);
    assert!(text.contains("of 200") && !text.contains("of 8"), "{text}");
    file.write_all(&vec![1; 8 * MIB]).unwrap();
    drop(file);
    store.check();
}

#[test]
fn what_is_no_quota_is_refused_and_changes_nothing() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    store.fails(3, ["ws", "quota", "x", "--bytes", "1M"]);
    let refused = store.fails(2, ["ws", "quota", "w", "--bytes", "many"]);
    assert!(refused.errors().contains("'many' is no size"), "{refused}");
    store.fails(2, ["ws", "quota", "w", "--inodes", "1k"]);
    let shown = store.json(["ws", "quota", "w"]);
    assert!(shown["quota_bytes"].is_null() && shown["quota_inodes"].is_null());
}
