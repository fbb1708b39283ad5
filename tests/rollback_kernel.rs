//! A rollback under programs that are at work: what the kernel still has of the state that was left
//! neither shows nor gets into the one that is there now.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use floe_harness::python::path;
use floe_harness::{Python, TestStore, Watchdog};

fn mounted() -> (TestStore, PathBuf) {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    (store, live)
}

/// A process stores one byte after the other through a shared mapping while the workspace is rolled
/// back: none of the pages it had may end up in the target.
#[test]
fn pages_of_the_state_that_was_left_do_not_reach_the_target() {
    let (store, live) = mounted();
    let _watchdog = Watchdog::start(store.daemon().unwrap(), Duration::from_secs(100));
    let file = live.join("file");
    fs::write(&file, vec![b'A'; 64 << 10]).unwrap();
    let target = store.snapshot("w");
    for round in 0..5 {
        fs::write(&file, vec![b'B'; 1 << 20]).unwrap();
        let mut writer = Command::new("python3")
            .args([
                "-c",
                "import mmap, os, sys
m = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 1 << 20)
while True:
    for at in range(0, 1 << 20, 4096): m[at] = 66",
            ])
            .arg(&file)
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(100));
        store.ok(["rollback", "w", target.as_str()]);
        // Pages past the new end are gone for the process as well: SIGBUS ends it.
        std::thread::sleep(Duration::from_millis(50));
        if writer.try_wait().unwrap().is_none() {
            writer.kill().unwrap();
            writer.wait().unwrap();
        }
        let bytes = fs::read(&file).unwrap();
        assert_eq!(bytes.len(), 64 << 10, "round {round}");
        // What it stored after the rollback is its own; only the first byte of a page is.
        for (at, &byte) in bytes.iter().enumerate() {
            let expected = if at % 4096 == 0 {
                byte == b'A' || byte == b'B'
            } else {
                byte == b'A'
            };
            assert!(expected, "round {round}: {byte} at {at}");
        }
        store.ok(["rollback", "w", target.as_str()]);
    }
}

#[test]
fn a_descriptor_that_appends_goes_on_at_the_end_of_the_target() {
    let (store, live) = mounted();
    let file = live.join("log");
    fs::write(&file, vec![b'A'; 100_000]).unwrap();
    let target = store.snapshot("w");
    fs::write(&file, vec![b'B'; 40_960]).unwrap();
    let mut python = Python::start();
    python.ok(&format!(
        "fd = os.open({}, os.O_WRONLY | os.O_APPEND)",
        path(&file)
    ));
    store.ok(["rollback", "w", target.as_str()]);
    python.ok("os.write(fd, b'C' * 8192)");
    let expected = [vec![b'A'; 100_000], vec![b'C'; 8192]].concat();
    assert!(fs::read(&file).unwrap() == expected);
    let id = store.snapshot("w");
    assert!(fs::read(store.mount(&id).join("log")).unwrap() == expected);
}

#[test]
fn a_removed_directory_that_is_in_use_can_be_used_again_after_it_came_back() {
    let (store, live) = mounted();
    let build = live.join("build");
    fs::create_dir(&build).unwrap();
    fs::write(build.join("file"), "here").unwrap();
    let target = store.snapshot("w");
    let mut python = Python::start();
    python.ok(&format!("os.chdir({})", path(&build)));
    for round in 0..3 {
        fs::remove_dir_all(&build).unwrap();
        store.ok(["rollback", "w", target.as_str()]);
        assert_eq!(
            fs::read_to_string(build.join("file")).unwrap(),
            "here",
            "round {round}"
        );
        fs::write(build.join("new"), "x").unwrap();
        assert_eq!(fs::read_dir(&build).unwrap().count(), 2);
        if round == 0 {
            assert_eq!(python.errno("os.listdir('.')"), libc::EIO);
            python.ok(&format!("os.chdir({})", path(&build)));
            assert_eq!(
                python.ok("result = sorted(os.listdir('.'))"),
                serde_json::json!(["file", "new"])
            );
        }
        store.ok(["rollback", "w", target.as_str()]);
    }
}

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Somebody lists and looks at everything all the while.
#[test]
fn a_name_that_the_target_does_not_have_is_gone_when_the_rollback_returns() {
    let (store, live) = mounted();
    fs::write(live.join("kept"), "1").unwrap();
    let target = store.snapshot("w");
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (live, stop) = (live.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    for entry in fs::read_dir(&live).unwrap() {
                        // Gone meanwhile, perhaps.
                        if let Ok(entry) = entry
                            && let Ok(meta) = entry.metadata()
                        {
                            assert!(meta.is_file());
                        }
                    }
                }
            })
        })
        .collect();
    for round in 0..40 {
        for number in 0..100 {
            fs::write(live.join(format!("gone{number}")), "x").unwrap();
        }
        store.ok(["rollback", "w", target.as_str()]);
        let still: Vec<_> = (0..100)
            .filter(|number| live.join(format!("gone{number}")).exists())
            .collect();
        assert!(still.is_empty(), "round {round}: {still:?}");
        assert_eq!(names(&live), BTreeSet::from(["kept".to_owned()]));
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
}
