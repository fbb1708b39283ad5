//! The disk of the store is full while sandboxes are made, paused and resumed: what is said of them stays
//! true, and nothing of what failed stays.

use std::fs;
use std::time::Duration;

use floe_harness::{Disk, Server, TestStore};
use serde_json::{Value, json};

/// Most sandboxes that there may be.
const MOST: usize = 6;

/// A server whose store is on a disk of its own.
fn server(scratch: &tempfile::TempDir) -> (Disk, Server) {
    let disk = Disk::ext4(scratch.path(), "disk", 512 << 20);
    let config = scratch.path().join("config.toml");
    fs::write(&config, format!("[sandbox]\nmax = {MOST}\n")).expect("a configuration");
    let config = config.display().to_string();
    let server = Server::start_with(
        TestStore::new_in(disk.dir()),
        &["--config", config.as_str()],
    );
    (disk, server)
}

fn attempt(server: &Server) -> Option<String> {
    let answer = server.api().post("/sandboxes", &json!({ "timeout": 3600 }));
    assert!(matches!(answer.status, 201 | 500 | 503 | 507), "{answer}");
    (answer.status == 201).then(|| answer.text("sandboxID"))
}

#[test]
fn sandboxes_that_could_not_be_made_leave_room_for_others() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (disk, server) = server(&scratch);
    let _watchdog = server.watch(Duration::from_secs(120));
    let first = server.create(&json!({}));
    let filler = disk.fill();
    for _ in 0..3 * MOST {
        assert_eq!(attempt(&server), None);
    }
    let fork = format!("/sandboxes/{first}/fork");
    for _ in 0..3 {
        let forked = server.api().post(&fork, &json!({ "count": 2 }));
        assert_ne!(forked.status, 201, "{forked}");
    }
    assert_eq!(server.sandboxes(), std::slice::from_ref(&first));
    fs::remove_file(filler).expect("room again");
    let made: Vec<String> = (1..MOST).map(|_| attempt(&server).expect("room")).collect();
    assert_eq!(server.sandboxes().len(), MOST);
    assert_eq!(attempt(&server), None, "one more than there may be");
    server.exec(&made[0], "true").expect_code(0);
    server.kill_all();
    server.assert_nothing_left();
}

#[test]
fn a_sandbox_that_is_said_to_be_paused_is() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (disk, server) = server(&scratch);
    let _watchdog = server.watch(Duration::from_secs(120));
    let sandbox = server.create(&json!({ "timeout": 3600 }));
    let count = "i=0; while :; do i=$((i + 1)); echo $i >/dev/shm/count; sleep 0.02; done";
    let line = format!("setsid sh -c '{count}' >/dev/null 2>&1 &");
    server.exec(&sandbox, &line).expect_code(0);
    let paths = ["pause", "connect"].map(|verb| format!("/sandboxes/{sandbox}/{verb}"));
    let state = |server: &Server| -> Value {
        let shown = server.api().get(&format!("/sandboxes/{sandbox}"));
        shown.expect(200).json()["state"].clone()
    };
    assert_eq!(server.api().post(&paths[0], &json!({})).status, 204);
    let filler = disk.fill();
    let refused = server.api().post(&paths[1], &json!({ "timeout": 60 }));
    if !matches!(refused.status, 200 | 201) {
        assert_eq!(state(&server), "paused");
        assert!(is_frozen(&server, &sandbox), "its processes run");
    }
    fs::remove_file(filler).expect("room again");
    let resumed = server.api().post(&paths[1], &json!({ "timeout": 60 }));
    assert!(matches!(resumed.status, 200 | 201), "{resumed}");
    assert_eq!(state(&server), "running");
    assert!(!is_frozen(&server, &sandbox), "its processes stand still");
    // The same the other way round.
    let filler = disk.fill();
    let refused = server.api().post(&paths[0], &json!({}));
    if refused.status != 204 {
        assert!(!is_frozen(&server, &sandbox), "its processes stand still");
    }
    fs::remove_file(filler).expect("room again");
    // What was done the first time, with room that is kept back, is not done again.
    let paused = server.api().post(&paths[0], &json!({})).status;
    assert_eq!(paused, if refused.status == 204 { 409 } else { 204 });
    assert!(is_frozen(&server, &sandbox), "its processes run");
}

/// Whether the processes of a sandbox use no time any more.
fn is_frozen(server: &Server, sandbox: &str) -> bool {
    let used = || -> u64 {
        let pids = server.traces().processes_of(sandbox);
        assert!(!pids.is_empty(), "it has no processes");
        let switches = pids.iter().map(|pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let lines = status
                .lines()
                .filter_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            lines
                .filter_map(|count| count.trim().parse::<u64>().ok())
                .sum::<u64>()
        });
        switches.sum()
    };
    let before = used();
    std::thread::sleep(Duration::from_millis(400));
    used() == before
}
