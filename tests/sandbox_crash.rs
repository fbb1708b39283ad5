//! SIGKILL of the daemon at random moments while sandboxes are made, paused, resumed, snapshotted,
//! forked and killed. Each time it comes back with states that are true, and with everything that was
//! acknowledged; in the end nothing of any sandbox is left on the host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use floe_harness::api::Answer;
use floe_harness::random::Random;
use floe_harness::sandbox::eventually;
use floe_harness::{Api, Server, long_run};
use serde_json::{Value, json};

/// What the server has acknowledged, and so must stay true.
#[derive(Default)]
struct Acknowledged {
    alive: BTreeSet<String>,
    killed: BTreeSet<String>,
    snapshots: BTreeSet<String>,
    /// Files by their sandboxes. Each is written once: a write that is cut off leaves what it had written.
    files: BTreeMap<String, String>,
}

/// Does one thing after the other until the daemon is gone.
struct Worker<'a> {
    api: Api,
    known: &'a Mutex<Acknowledged>,
    /// The daemon is being killed.
    dying: &'a AtomicBool,
    random: Random,
}

/// The most sandboxes at once.
const SANDBOXES_MAX: usize = 8;

impl Worker<'_> {
    /// `None` once the daemon does not answer any more.
    fn step(&mut self) -> Option<()> {
        let alive: Vec<String> = {
            let known = self.known.lock().unwrap();
            known.alive.iter().cloned().collect()
        };
        if alive.len() < 2 {
            return self.create();
        }
        let id = &alive[self.random.index(alive.len())];
        match self.random.below(7) {
            0 | 1 if alive.len() < SANDBOXES_MAX => self.create(),
            0 | 1 => self.kill(id),
            2 => self.post(id, "pause", &[204, 409]).map(drop),
            3 => self.post(id, "connect", &[200, 201]).map(drop),
            4 => self.snapshot(id),
            5 if alive.len() < SANDBOXES_MAX => self.fork(id),
            _ => self.file(id),
        }
    }

    /// Whether it was done. That it could not be, because others did something else at the same time, is
    /// no failure; any other answer is. But for one of a daemon that is being killed: its threads do not end at
    /// once, and one may see how the processes of others end with them.
    #[track_caller]
    fn good(&self, answer: &Answer, expected: &[u16]) -> bool {
        let done = expected.contains(&answer.status);
        let excused = matches!(answer.status, 404 | 409 | 503)
            || answer.status == 500 && self.dying.load(Ordering::SeqCst);
        assert!(done || excused, "{answer}");
        done
    }

    fn create(&self) -> Option<()> {
        let body = json!({ "templateID": "base", "timeout": 3600 });
        let answer = self
            .api
            .attempt_json("POST", "/sandboxes", &[], Some(&body))?;
        if self.good(&answer, &[201]) {
            self.add(&answer.text("sandboxID"));
        }
        Some(())
    }

    fn add(&self, id: &str) {
        let mut known = self.known.lock().unwrap();
        // Somebody who saw it in the list may have killed it already.
        if !known.killed.contains(id) {
            known.alive.insert(id.to_owned());
        }
    }

    fn kill(&self, id: &str) -> Option<()> {
        // From here on it may be gone, acknowledged or not.
        self.known.lock().unwrap().alive.remove(id);
        let path = format!("/sandboxes/{id}");
        let answer = self.api.attempt("DELETE", &path, &[], &[])?;
        if self.good(&answer, &[204, 404]) {
            self.known.lock().unwrap().killed.insert(id.to_owned());
        }
        Some(())
    }

    fn snapshot(&self, id: &str) -> Option<()> {
        let answer = self.post(id, "snapshots", &[201])?;
        if answer.status == 201 {
            let taken = answer.text("snapshotID");
            self.known.lock().unwrap().snapshots.insert(taken);
        }
        Some(())
    }

    fn fork(&self, id: &str) -> Option<()> {
        let answer = self.post(id, "fork", &[201])?;
        if answer.status == 201
            && let Some(fork) = answer.json()[0]["sandbox"]["sandboxID"].as_str()
        {
            self.add(fork);
        }
        Some(())
    }

    /// A file that its sandbox must have from then on.
    fn file(&mut self, id: &str) -> Option<()> {
        let file = format!("/home/user/acknowledged-{}", self.random.bits());
        let path = format!("/files?path={file}");
        let info = self
            .api
            .attempt("GET", &format!("/sandboxes/{id}"), &[], &[])?;
        if info.status != 200 {
            return Some(());
        }
        let token = info.json()["envdAccessToken"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let headers = [
            ("E2b-Sandbox-Id", id),
            ("E2b-Sandbox-Port", "49983"),
            ("X-Access-Token", token.as_str()),
            ("Content-Type", "application/octet-stream"),
        ];
        let answer = self.api.attempt("POST", &path, &headers, id.as_bytes())?;
        // Paused or gone meanwhile: 502.
        assert!(matches!(answer.status, 200 | 502), "{answer}");
        if answer.status == 200 {
            let mut known = self.known.lock().unwrap();
            known.files.insert(id.to_owned(), file);
        }
        Some(())
    }

    fn post(&self, id: &str, verb: &str, expected: &[u16]) -> Option<Answer> {
        let path = format!("/sandboxes/{id}/{verb}");
        let body = json!({ "timeout": 3600, "count": 1 });
        let body = if verb == "fork" || verb == "connect" {
            body
        } else {
            json!({})
        };
        let answer = self.api.attempt_json("POST", &path, &[], Some(&body))?;
        self.good(&answer, expected);
        Some(answer)
    }
}

/// Has workers at it for a while, then kills the daemon.
fn work_until_killed(server: &mut Server, known: &Mutex<Acknowledged>, random: &mut Random) {
    let (stop, dying) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut workers: Vec<Worker> = (0..3)
        .map(|_| Worker {
            api: server.api().clone(),
            known,
            dying: &dying,
            random: Random::new(random.bits()),
        })
        .collect();
    let pause = Duration::from_millis(20 + random.below(600));
    thread::scope(|scope| {
        for worker in &mut workers {
            let stop = &stop;
            scope.spawn(
                move || {
                    while !stop.load(Ordering::Relaxed) && worker.step().is_some() {}
                },
            );
        }
        thread::sleep(pause);
        dying.store(true, Ordering::SeqCst);
        server.crash();
        stop.store(true, Ordering::Relaxed);
    });
}

/// What the list says must be so.
fn states_are_true(server: &Server, known: &Mutex<Acknowledged>, random: &mut Random) {
    let in_between = ["creating", "pausing", "snapshotting", "stopping"];
    let listed = || {
        let all = server.store().json(["sandbox", "list"]);
        all.as_array().expect("a list").clone()
    };
    eventually("every state to be one that lasts", || {
        let states = listed();
        let state = |sandbox: &Value| sandbox["state"].as_str().map(str::to_owned);
        states
            .iter()
            .all(|s| state(s).is_some_and(|state| !in_between.contains(&state.as_str())))
    });
    let all = listed();
    let ids: BTreeSet<String> = all.iter().map(|s| text(s, "id")).collect();
    {
        let known = known.lock().unwrap();
        let lost: Vec<_> = known.alive.difference(&ids).collect();
        assert!(lost.is_empty(), "sandboxes are lost: {lost:?}");
        let back: Vec<_> = known.killed.intersection(&ids).collect();
        assert!(back.is_empty(), "killed sandboxes are back: {back:?}");
        let snapshots: BTreeSet<String> = server
            .pages("/snapshots")
            .iter()
            .map(|snapshot| text(snapshot, "snapshotID"))
            .collect();
        let lost: Vec<_> = known.snapshots.difference(&snapshots).collect();
        assert!(lost.is_empty(), "snapshots are lost: {lost:?}");
    }
    let traces = server.traces();
    for sandbox in &all {
        let id = text(sandbox, "id");
        server.note(&id);
        let processes = traces.processes_of(&id);
        match text(sandbox, "state").as_str() {
            "running" => {
                server.exec(&id, "true").expect_code(0);
            }
            "paused" => assert!(!processes.is_empty(), "{sandbox} has no processes"),
            "stopped" | "failed" => {
                assert!(
                    processes.is_empty(),
                    "{sandbox} has processes: {processes:?}"
                );
                let reason = sandbox["reason"].as_str().unwrap_or_default();
                assert!(!reason.is_empty(), "{sandbox} does not say why");
            }
            other => panic!("{other}: {sandbox}"),
        }
    }
    // One of them goes on, with its files.
    let stopped: Vec<String> = all
        .iter()
        .filter(|sandbox| sandbox["state"] == "stopped")
        .map(|sandbox| text(sandbox, "id"))
        .collect();
    if !stopped.is_empty() {
        let id = &stopped[random.index(stopped.len())];
        let path = format!("/sandboxes/{id}/connect");
        let answer = server.api().post(&path, &json!({ "timeout": 3600 }));
        assert_eq!(answer.status, 201, "{answer}");
        let file = known.lock().unwrap().files.get(id).cloned();
        let line = file.map_or_else(|| format!("echo -n {id}"), |file| format!("cat {file}"));
        let read = server.exec(id, &line).expect_code(0).text();
        assert_eq!(&read, id, "a file is lost");
    }
    known.lock().unwrap().alive.extend(ids);
}

#[track_caller]
fn text(object: &Value, key: &str) -> String {
    let text = object[key].as_str();
    text.unwrap_or_else(|| panic!("no `{key}` in {object}"))
        .to_owned()
}

#[test]
fn a_daemon_killed_anywhere_comes_back_truthful_and_nothing_is_leaked() {
    let (points, per_store) = if long_run() { (200, 20) } else { (12, 12) };
    let seeds = Random::seed_from_env(6)..;
    for seed in seeds.take(points / per_store) {
        eprintln!("FLOE_TEST_SEED={seed}");
        let random = &mut Random::new(seed);
        let known = Mutex::new(Acknowledged::default());
        let mut server = Server::start();
        for point in 0..per_store {
            work_until_killed(&mut server, &known, random);
            if point % 4 == 3 {
                // A second kill, while the store is put in order.
                server.serve();
                server.crash();
            }
            server.serve();
            states_are_true(&server, &known, random);
            if point % 6 == 5 {
                server.kill_all();
                server.assert_nothing_left();
                let mut known = known.lock().unwrap();
                let alive = std::mem::take(&mut known.alive);
                known.killed.extend(alive);
            }
        }
    }
}

/// Files that were acknowledged are there when a sandbox goes on, and so is what it was asked to be.
#[test]
fn a_sandbox_stopped_by_a_crash_says_so_and_goes_on_with_its_files() {
    let mut server = Server::start();
    let request = json!({ "metadata": { "a": "b" }, "envVars": { "KEPT": "yes" } });
    let running = server.create(&request);
    let paused = server.create(&request);
    for id in [&running, &paused] {
        let line = "echo -n acknowledged > /home/user/file; setsid sleep 1000 >/dev/null 2>&1 &";
        server.exec(id, line).expect_code(0);
    }
    let path = format!("/sandboxes/{paused}/pause");
    let answer = server.api().post(&path, &json!({}));
    assert_eq!(answer.status, 204, "{answer}");
    let snapshot = server.snapshot(&running);
    server.crash();
    server.serve();
    for id in [&running, &paused] {
        let shown = server.store().json(["sandbox", "show", id]);
        assert_eq!(shown["state"], "stopped", "{shown}");
        assert!(!text(&shown, "reason").is_empty());
        assert_eq!(shown["metadata"], json!({ "a": "b" }));
        assert!(server.traces().processes_of(id).is_empty());
        // To clients of the wire contract it is one that can be connected to.
        let info = server.api().get(&format!("/sandboxes/{id}")).expect(200);
        assert_eq!(info.text("state"), "paused");
        let path = format!("/sandboxes/{id}/connect");
        let answer = server.api().post(&path, &json!({ "timeout": 3600 }));
        assert_eq!(answer.status, 201, "{answer}");
        let line = "cat /home/user/file; echo -n -$KEPT; ! grep -sqx sleep /proc/[0-9]*/comm";
        let output = server.exec(id, line).expect_code(0);
        assert_eq!(output.text(), "acknowledged-yes");
    }
    let restored = server.create(&json!({ "templateID": snapshot }));
    let output = server.exec(&restored, "cat /home/user/file").expect_code(0);
    assert_eq!(output.text(), "acknowledged");
}

/// The end of the daemon in order is one too: nothing runs then, and it is said why.
#[test]
fn a_daemon_that_ends_stops_its_sandboxes_and_leaves_nothing_running() {
    let mut server = Server::start();
    let ids: Vec<String> = (0..3).map(|_| server.create(&json!({}))).collect();
    server
        .exec(&ids[0], "setsid sleep 1000 >/dev/null 2>&1 &")
        .expect_code(0);
    let path = format!("/sandboxes/{}/pause", ids[1]);
    assert_eq!(server.api().post(&path, &json!({})).status, 204);
    server.stop();
    assert!(server.traces().processes().is_empty());
    assert!(server.store().floe_mounts().is_empty());
    server.serve();
    for id in &ids {
        let shown = server.store().json(["sandbox", "show", id]);
        assert_eq!(shown["state"], "stopped", "{shown}");
        assert!(!text(&shown, "reason").is_empty());
    }
}

/// Whether a process is the first of its namespace.
fn is_first(pid: &u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    ids.and_then(|ids| ids.split_whitespace().last()) == Some("1")
}

/// A sandbox may end itself: its processes are nothing that the daemon can rely on. Who waits for a command in it was
/// once told no more than that it is not known how that ended.
#[test]
fn a_sandbox_whose_first_process_is_killed_from_outside_is_not_said_to_run_and_says_why() {
    let server = Server::start();
    let id = server.create(&json!({}));
    let waits = "touch /home/user/waits; sleep 1000";
    let command = ["sandbox", "exec", &id, "--", "sh", "-c", waits];
    thread::scope(|scope| {
        let waiting = scope.spawn(|| server.store().run(command));
        eventually("the command to run", || {
            server.exec(&id, "test -e /home/user/waits").code == Some(0)
        });
        let mut processes = server.traces().processes_of(&id);
        processes.retain(is_first);
        assert!(!processes.is_empty());
        for process in processes
            .into_iter()
            .filter_map(floe_harness::process::Handle::open)
        {
            process.kill();
        }
        let told = waiting.join().unwrap().expect_code(125).errors();
        assert!(told.contains("its first process ended"), "{told}");
    });
    eventually("its end to be noticed", || {
        let shown = server.store().json(["sandbox", "show", id.as_str()]);
        matches!(shown["state"].as_str(), Some("stopped" | "failed"))
    });
    let path = format!("/sandboxes/{id}/connect");
    let answer = server.api().post(&path, &json!({ "timeout": 3600 }));
    assert_eq!(answer.status, 201, "{answer}");
    server.exec(&id, "true").expect_code(0);
}
