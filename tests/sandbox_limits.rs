//! Limits of a sandbox: whatever is done inside it, others go on, and so does the daemon.

use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use floe_harness::command::run;
use floe_harness::{Output, Server, long_run};
use serde_json::json;

/// A time that no test here needs; more is a hang.
const LIMIT: Duration = Duration::from_secs(240);

/// A sandbox with these limits, all of which this host must enforce.
fn limited(server: &Server, limits: &[&str]) -> String {
    let mut arguments = vec!["sandbox", "create"];
    arguments.extend(limits);
    let made = server.store().json(arguments);
    assert_eq!(
        made["unenforced"],
        json!([]),
        "this test needs a host that enforces limits"
    );
    let id = made["id"].as_str().expect("an id").to_owned();
    server.note(&id);
    id
}

/// Runs `harm` in a sandbox with limits while another works and further ones are made.
fn others_go_on_during(limits: &[&str], harm: &str, meanwhile: impl Fn(&Server, &str)) -> Output {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let other = server.create(&json!({}));
    let harmful = limited(&server, limits);
    let output = thread::scope(|scope| {
        let work = scope.spawn(|| server.exec_as("user", &harmful, harm, LIMIT));
        for number in 0..5 {
            let line = format!("echo {number} > /home/user/{number}; cat /home/user/{number}");
            let output = server.exec(&other, &line).expect_code(0);
            assert_eq!(output.text(), number.to_string());
            let made = server.create(&json!({}));
            server.exec(&made, "true").expect_code(0);
            server.kill_sandbox(&made);
            meanwhile(&server, &harmful);
        }
        work.join().expect("its output")
    });
    // It takes nobody's help to end it, and what it has done is gone with it.
    server.kill_sandbox(&harmful);
    server.exec(&other, "true").expect_code(0);
    let info = server.api().get("/health");
    assert!(matches!(info.status, 200 | 204), "{info}");
    output
}

#[test]
fn a_fork_bomb_is_kept_small() {
    // Every process makes others, until their time is over.
    let harm = "exec python3 -c '
import os, time
end = time.monotonic() + 5
while time.monotonic() < end:
    try:
        os.fork()
    except OSError:
        time.sleep(0.01)
'";
    let most = AtomicUsize::new(0);
    others_go_on_during(&["--pids", "64"], harm, |server, sandbox| {
        let count = server.traces().processes_of(sandbox).len();
        assert!(count <= 64, "{count} processes");
        most.fetch_max(count, Ordering::Relaxed);
    });
    let most = most.into_inner();
    assert!(most > 32, "{most} processes at most: it was no bomb");
}

#[test]
fn a_memory_hog_is_ended_and_nobody_else() {
    let harm = r#"
for _ in 1 2 3; do
    python3 -c 'x = bytearray(1 << 30); print("took", len(x))'
done
head -c 1G /dev/zero | tail -c 1G > /dev/null && echo took
head -c 1G /dev/zero > /dev/shm/fill && echo took
true"#;
    let output = others_go_on_during(&["--memory", "192M"], harm, |_, _| {});
    assert!(!output.text().contains("took"), "{output}");
}

#[test]
fn a_disk_filler_fills_its_own_share() {
    let harm = r#"
cd /home/user
head -c 200M /dev/urandom > one && echo took
for i in $(seq 100); do head -c 4M /dev/urandom > part$i || break; done
du -sm . | cut -f 1
true"#;
    let output = others_go_on_during(&["--disk", "64M"], harm, |server, _| {
        let mut file = fs::File::create(server.store().base().join("mnt/host")).expect("a file");
        file.write_all(&[1; 1 << 20]).expect("room on the host");
    });
    assert!(!output.text().contains("took"), "{output}");
    let used: u64 = output.text().parse().expect("a number of megabytes");
    // du(1) rounds up.
    assert!(used <= 65, "{used} MB in a share of 64");
    assert!(output.errors().contains("No space left") || output.errors().contains("quota"));
}

/// A FUSE file system whose server never says a word: whoever asks it for anything waits, and is neither
/// stopped nor comes to rest meanwhile. Unmounted and ended when dropped.
struct Silent {
    dir: PathBuf,
    waiting: Child,
    device: Option<fs::File>,
}

impl Silent {
    fn new(dir: PathBuf) -> Self {
        fs::create_dir_all(&dir).expect("a directory");
        let mut device = fs::File::options();
        let device = device.read(true).write(true).open("/dev/fuse");
        let device = device.expect("/dev/fuse");
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let options = CString::new(options).expect("no NUL");
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("none", &dir, "fuse", flags, &*options).expect("a mount");
        let mut stat = Command::new("stat");
        stat.arg(dir.join("nothing")).stdout(Stdio::null());
        let waiting = stat.spawn().expect("a process");
        Self {
            dir,
            waiting,
            device: Some(device),
        }
    }

    /// Makes who waits a process of a sandbox.
    fn join(&self, sandbox: &str) {
        let found = run(
            Command::new("find").args(["/sys/fs/cgroup", "-type", "d", "-name", sandbox]),
            Duration::from_secs(30),
        );
        let groups = found.text();
        assert!(!groups.is_empty(), "the sandbox has no control group");
        for group in groups.lines() {
            let procs = Path::new(group).join("cgroup.procs");
            fs::write(procs, self.waiting.id().to_string()).expect("a group of the sandbox");
        }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // It may have been ended with the sandbox.
        self.waiting.kill().unwrap_or_default();
        self.device = None;
        self.waiting.wait().map(drop).unwrap_or_default();
        rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH).unwrap_or_default();
    }
}

#[test]
fn one_that_cannot_be_paused_holds_nobody_up_and_does_not_run_for_ever() {
    // Once one thread did it for all, one after the other, and tried this one again for ever.
    let server = Server::start();
    let store = server.store();
    let create = |arguments: &[&str]| {
        let made = store.json(["sandbox", "create"].iter().chain(arguments));
        let id = made["id"].as_str().expect("an id").to_owned();
        server.note(&id);
        id
    };
    // The template is made with the first one, which takes its time.
    create(&[]);
    let silent = Silent::new(store.base().join("silent"));
    let begun = Instant::now();
    let restless = create(&["--timeout", "4s", "--on-timeout", "pause"]);
    silent.join(&restless);
    let others = [create(&["--timeout", "5s"]), create(&["--timeout", "5s"])];
    assert!(begun.elapsed() < Duration::from_secs(4), "a slow machine");
    let listed = || store.ok(["sandbox", "list", "-q"]);
    while others.iter().any(|id| listed().contains(id)) {
        // The first try to pause it takes ten seconds.
        assert!(begun.elapsed() < Duration::from_secs(13), "held up");
        thread::sleep(Duration::from_millis(50));
    }
    let shown = || store.json(["sandbox", "show", restless.as_str()]);
    if long_run() {
        while shown()["state"] != "failed" {
            assert!(begun.elapsed() < Duration::from_secs(120), "{}", shown());
            thread::sleep(Duration::from_millis(500));
        }
        let reason = shown()["reason"].to_string();
        assert!(reason.contains("could not be paused"), "{reason}");
        drop(silent);
        // Its files are there.
        store.ok(["sandbox", "resume", restless.as_str()]);
    }
    store.ok(["sandbox", "kill", restless.as_str()]);
}
