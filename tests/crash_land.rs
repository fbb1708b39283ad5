//! SIGKILL of the daemon at random moments of a landing: where it lands, everything is as it was before
//! or as it is after.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use floe_harness::random::Random;
use floe_harness::{TestStore, long_run};

/// Moments in the middle of a landing at which the daemon is killed.
const KILLS: (usize, usize) = (200, 8);
const SMALL: usize = 60;
const LARGE: usize = 6;

/// Writes a number into every file, in place, as a new file, and into one more than before.
fn write(root: &Path, round: usize) {
    for number in 0..SMALL {
        let path = root.join(format!("dir{}/small{number}", number % 3));
        if number % 2 == 0 {
            fs::write(path, format!("{round}")).unwrap();
        } else {
            fs::write(root.join("aside"), format!("{round}")).unwrap();
            fs::rename(root.join("aside"), path).unwrap();
        }
    }
    for number in 0..LARGE {
        let text = format!("{round} ").repeat(40_000);
        fs::write(root.join(format!("large{number}")), text).unwrap();
    }
    fs::write(root.join(format!("new{round}")), format!("{round}")).unwrap();
    if round > 0 {
        fs::remove_file(root.join(format!("new{}", round - 1))).unwrap();
    }
}

/// The numbers that are found: one if the state is whole.
fn rounds(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut files = 0;
    let dirs = ["", "dir0", "dir1", "dir2"].map(|dir| root.join(dir));
    for dir in dirs {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                continue;
            }
            files += 1;
            let text = fs::read_to_string(&path).unwrap();
            found.extend(text.split_whitespace().map(str::to_owned));
        }
    }
    assert_eq!(files, SMALL + LARGE + 1);
    found
}

#[test]
fn a_landing_that_the_daemon_did_not_survive_took_place_or_did_not() {
    let kills = if long_run() { KILLS.0 } else { KILLS.1 };
    let seed = Random::seed_from_env(1);
    eprintln!("FLOE_TEST_SEED={seed}");
    let random = &mut Random::new(seed);
    let store = TestStore::new();
    store.ok(["ws", "create", "t"]);
    let theirs = store.mount("t");
    for dir in ["dir0", "dir1", "dir2"] {
        fs::create_dir(theirs.join(dir)).unwrap();
    }
    write(&theirs, 0);
    store.ok(["fork", "t", "w"]);
    let ours = store.mount("w");
    write(&ours, 1);
    let started = Instant::now();
    store.ok(["land", "w"]);
    // Before the daemon begins the next one would do it, and after it has ended nothing happens: the
    // moments in between are found by trying.
    let (mut least, mut most) = (started.elapsed() / 4, started.elapsed());
    let mut there = 1;
    let (mut early, mut late, mut landed, mut not) = (0, 0, 0, 0);
    for round in 2..kills * 5 + 2 {
        if landed + not == kills {
            break;
        }
        write(&ours, round);
        let daemon = store.daemon().unwrap();
        let mut command = store.command();
        let mut child = command.args(["land", "w", "--json"]);
        child = child
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        let mut child = child.spawn().unwrap();
        let more = most.saturating_sub(least).max(Duration::from_millis(1));
        let more = random.below(u64::try_from(more.as_micros()).unwrap());
        std::thread::sleep(least + Duration::from_micros(more));
        let ended = child.try_wait().unwrap().is_some();
        daemon.kill();
        assert!(daemon.wait_for_end(Duration::from_secs(30)));
        let status = child.wait().unwrap();
        // The next command puts everything in order and mounts it again.
        store.check();
        let found = rounds(&theirs);
        let [before, after] = [there, round].map(|round| BTreeSet::from([round.to_string()]));
        assert!(
            found == before || found == after,
            "round {round}: {found:?}, before {there}"
        );
        assert!(
            !status.success() || found == after,
            "round {round}: acknowledged and lost"
        );
        if found == after {
            there = round;
        }
        match (ended, status.success(), found == after) {
            (true, ..) => {
                late += 1;
                most = most.mul_f64(0.93);
            }
            (false, true, _) => {
                early += 1;
                least = least.mul_f64(1.07);
            }
            (false, false, true) => landed += 1,
            (false, false, false) => not += 1,
        }
        assert_eq!(rounds(&ours), BTreeSet::from([round.to_string()]));
    }
    eprintln!("killed in the middle: {landed} landed, {not} did not; {early} early, {late} late");
    assert!(landed + not > 0, "the moments are badly chosen");
    store.ok(["land", "w"]);
    assert_eq!(rounds(&theirs), rounds(&ours));
}
