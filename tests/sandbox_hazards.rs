//! What goes wrong with sandboxes elsewhere: callers that ask at the same moment, requests that come
//! twice, ends that come from several sides.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use floe_harness::api::Answer;
use floe_harness::command::program;
use floe_harness::sandbox::eventually;
use floe_harness::{Api, Server, packages};
use serde_json::{Value, json};

/// How many ask at once.
const CALLERS: usize = 50;

/// A time that no test here needs; more is a hang.
const LIMIT: Duration = Duration::from_secs(240);

/// Has everybody ask at the same moment, and returns what each was answered.
fn all_at_once<T: Send>(callers: usize, ask: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(callers);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..callers)
            .map(|number| {
                let (start, ask) = (&start, &ask);
                scope.spawn(move || {
                    start.wait();
                    ask(number)
                })
            })
            .collect();
        let answers = threads.into_iter().map(|thread| thread.join());
        answers
            .map(|answer| answer.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn snapshots_of(server: &Server, sandbox: &str) -> Vec<String> {
    let items = server.pages(&format!("/snapshots?sandboxID={sandbox}"));
    let ids = items.iter().map(|item| item["snapshotID"].as_str());
    ids.map(|id| id.expect("an id").to_owned()).collect()
}

fn write(server: &Server, sandbox: &str, text: &str) {
    let line = format!("echo -n {text} > /workspace/state");
    server.exec(sandbox, &line).expect_code(0);
}

fn state(server: &Server, sandbox: &str) -> String {
    let output = server.exec(sandbox, "cat /workspace/state");
    output.expect_code(0).text()
}

/// Has all callers ask for a snapshot at once; the new ones, which are those that they were told of.
#[track_caller]
fn fifty_snapshots(
    server: &Server,
    sandbox: &str,
    known: &mut BTreeSet<String>,
) -> BTreeSet<String> {
    let path = format!("/sandboxes/{sandbox}/snapshots");
    let answers = all_at_once(CALLERS, |_| {
        let answer = server.api().post(&path, &json!({})).expect(201);
        answer.text("snapshotID")
    });
    let answered: BTreeSet<String> = answers.into_iter().collect();
    let listed: BTreeSet<String> = snapshots_of(server, sandbox).into_iter().collect();
    let new: BTreeSet<String> = listed.difference(known).cloned().collect();
    assert_eq!(new, answered, "what was answered is what is there");
    *known = listed;
    new
}

#[test]
fn fifty_snapshots_at_once_are_few_and_everybody_has_one() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let sandbox = server.create(&json!({}));
    let mut known = BTreeSet::new();
    for wave in 0..4 {
        write(&server, &sandbox, &format!("wave{wave}"));
        let new = fifty_snapshots(&server, &sandbox, &mut known);
        assert!(
            new.len() < CALLERS,
            "none of {CALLERS} callers has joined another"
        );
        println!("wave {wave}: {} snapshots for {CALLERS} callers", new.len());
        // Whoever asked after the file was written has it in the snapshot.
        let any = new.first().expect("a snapshot");
        let restored = server.create(&json!({ "templateID": any }));
        assert_eq!(state(&server, &restored), format!("wave{wave}"));
        server.kill_sandbox(&restored);
    }
}

/// Here the first is under way for so long that all others come meanwhile: processes that the kernel fills
/// memory for come to rest only when it has.
#[test]
fn fifty_snapshots_while_one_is_under_way_are_that_one() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let sandbox = server.create(&json!({}));
    let program = "import mmap\n\
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE\n\
        while True:\n mmap.mmap(-1, 1 << 29, flags=flags).close()\n open('/dev/shm/ready', 'w')";
    for _ in 0..3 {
        let line = format!("setsid python3 -c \"{program}\" >/dev/null 2>&1 &");
        server.exec(&sandbox, &line).expect_code(0);
    }
    eventually("memory to be filled", || {
        server.exec(&sandbox, "test -e /dev/shm/ready").code == Some(0)
    });
    let mut known = BTreeSet::new();
    // Where the machine is busy, a caller may come after all; but not each time.
    let is_one = (0..3).any(|_| fifty_snapshots(&server, &sandbox, &mut known).len() == 1);
    assert!(
        is_one,
        "{CALLERS} callers never got one snapshot: {known:?}"
    );
}

/// What a sandbox stands on goes with the sandbox and not before, and what has its name is not its.
#[test]
fn the_workspace_of_a_sandbox_is_not_deleted_from_under_it() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let sandbox = server.create(&json!({}));
    let store = server.store();
    store.fails(4, ["ws", "delete", sandbox.as_str()]);
    server.exec(&sandbox, "true").expect_code(0);
    store.ok(["ws", "rename", sandbox.as_str(), "renamed"]);
    store.ok(["ws", "create", sandbox.as_str()]);
    store.fails(4, ["ws", "delete", "renamed"]);
    assert!(!server.snapshot(&sandbox).is_empty());
    assert_eq!(server.kill_sandbox(&sandbox).status, 204);
    store.fails(3, ["ws", "show", "renamed"]);
    store.ok(["ws", "delete", sandbox.as_str()]);
}

/// Passes connections on to a server, one request each, and counts the POSTs of snapshots.
struct Proxy {
    url: String,
    posts: Arc<AtomicUsize>,
}

/// What becomes of the first POST of a snapshot.
#[derive(Clone, Copy, PartialEq)]
enum First {
    /// It never arrives.
    Refused,
    /// It arrives, and is carried out, but the client is told that it was not.
    CarriedOut,
}

const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n\
    Content-Length: 29\r\nConnection: close\r\n\r\n{\"code\":503,\"message\":\"busy\"}";

impl Proxy {
    /// It runs until the test's process ends.
    fn start(server: &str, first: First) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let server = server.strip_prefix("http://").expect("HTTP").to_owned();
        let posts = Arc::new(AtomicUsize::new(0));
        let counted = posts.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (server, counted) = (server.clone(), counted.clone());
                thread::spawn(move || {
                    if let Err(error) = pass_on(&client, &server, &counted, first) {
                        eprintln!("a connection ended: {error}");
                    }
                });
            }
        });
        Self { url, posts }
    }
}

fn pass_on(
    mut client: &TcpStream,
    server: &str,
    posts: &AtomicUsize,
    first: First,
) -> io::Result<()> {
    let mut reader = BufReader::new(client);
    let mut head = String::new();
    let mut length = 0;
    while !head.ends_with("\r\n\r\n") {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let lower = line.to_lowercase();
        if lower.starts_with("connection:") {
            continue;
        }
        if let Some(text) = lower.strip_prefix("content-length:") {
            length = text.trim().parse().map_err(io::Error::other)?;
        }
        if line == "\r\n" {
            head.push_str("Connection: close\r\n");
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let is_post = head.starts_with("POST ") && head.contains("/snapshots ");
    let is_first = is_post && posts.fetch_add(1, Ordering::SeqCst) == 0;
    if !is_first || first == First::CarriedOut {
        let mut upstream = TcpStream::connect(server)?;
        upstream.write_all(head.as_bytes())?;
        upstream.write_all(&body)?;
        let mut answer = Vec::new();
        upstream.read_to_end(&mut answer)?;
        if !is_first {
            client.write_all(&answer)?;
            return client.shutdown(Shutdown::Both);
        }
    }
    client.write_all(BUSY)?;
    client.shutdown(Shutdown::Both)
}

/// The newest e2b sends a POST again that was answered with 503.
fn snapshot_through(proxy: &Proxy, server: &Server, sandbox: &str) -> String {
    let script = "import sys; from e2b import Sandbox; \
        print(Sandbox.create_snapshot(sys.argv[1], api_url=sys.argv[2]).snapshot_id)";
    let mut command = program(packages::python("e2b"), Path::new("/"));
    command.args(["-c", script, sandbox, &proxy.url]);
    server.client(&mut command, LIMIT).text()
}

#[test]
fn the_posts_of_one_503_are_one_snapshot() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let sandbox = server.create(&json!({}));
    let proxy = Proxy::start(server.url(), First::Refused);
    let id = snapshot_through(&proxy, &server, &sandbox);
    assert_eq!(proxy.posts.load(Ordering::SeqCst), 2, "it was sent again");
    assert_eq!(snapshots_of(&server, &sandbox), [id]);
}

#[test]
fn a_snapshot_whose_answer_was_lost_is_whole_and_listed() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let sandbox = server.create(&json!({}));
    write(&server, &sandbox, "kept");
    let proxy = Proxy::start(server.url(), First::CarriedOut);
    let id = snapshot_through(&proxy, &server, &sandbox);
    assert_eq!(proxy.posts.load(Ordering::SeqCst), 2, "it was sent again");
    let listed = snapshots_of(&server, &sandbox);
    assert!(listed.contains(&id) && listed.len() <= 2, "{listed:?}");
    for snapshot in listed {
        let restored = server.create(&json!({ "templateID": snapshot }));
        assert_eq!(state(&server, &restored), "kept");
    }
}

/// Has everybody attach to a session, and returns the one sandbox and how each came to it.
fn attach_all(server: &Server, key: &str) -> (String, Vec<String>) {
    let answers = all_at_once(CALLERS, |_| {
        let answer = server
            .api()
            .post(&format!("/floe/v1/sessions/{key}"), &json!({}));
        assert!(matches!(answer.status, 200 | 201), "{answer}");
        (answer.text("id"), answer.text("attached"))
    });
    let ids: BTreeSet<String> = answers.iter().map(|(id, _)| id.clone()).collect();
    assert_eq!(ids.len(), 1, "callers of one session got several sandboxes");
    let id = ids.into_iter().next().expect("a sandbox");
    server.note(&id);
    (id, answers.into_iter().map(|(_, how)| how).collect())
}

/// Exactly one caller did what had to be done; the others found it running.
#[track_caller]
fn once(how: &[String], word: &str) {
    let did = how.iter().filter(|how| *how == word).count();
    let found = how.iter().filter(|how| *how == "running").count();
    assert_eq!((did, found), (1, CALLERS - 1), "{how:?}");
}

#[test]
fn fifty_who_attach_or_restore_get_one_sandbox() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let (made, how) = attach_all(&server, "agent-7");
    once(&how, "created");
    assert_eq!(server.sandboxes(), [made.as_str()]);
    write(&server, &made, "session");

    let pause = format!("/sandboxes/{made}/pause");
    let pause = server.api().post(&pause, &json!({}));
    assert_eq!(pause.expect(204).body, b"");
    let (resumed, how) = attach_all(&server, "agent-7");
    once(&how, "resumed");
    assert_eq!(resumed, made);

    let snapshot = server.snapshot(&made);
    server.kill_sandbox(&made);
    let (restored, how) = attach_all(&server, "agent-7");
    once(&how, "restored");
    assert_eq!(state(&server, &restored), "session");
    let shown = server.api().get("/floe/v1/sessions/agent-7").expect(200);
    assert_eq!(shown.text("id"), restored);
    assert_eq!(shown.text("snapshot"), snapshot);
    assert_eq!(server.sandboxes(), [restored]);

    let (other, _) = attach_all(&server, "agent-8");
    assert_eq!(server.sandboxes().len(), 2);
    server.kill_sandbox(&other);
}

#[test]
fn a_key_that_comes_twice_makes_one_sandbox() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let create = |path: &str, key: &str| {
        let body = json!({ "templateID": "base", "timeout": 3600 });
        let headers = [("Idempotency-Key", key)];
        let answer = server.api().send_with("POST", path, &headers, Some(&body));
        let id = answer.expect(201).text("sandboxID");
        server.note(&id);
        id
    };
    let first = create("/v2/sandboxes", "key-1");
    assert_eq!(create("/v2/sandboxes", "key-1"), first);
    assert_eq!(create("/sandboxes", "key-1"), first);
    assert_eq!(server.sandboxes(), [first.as_str()]);
    let ids = all_at_once(20, |_| create("/v2/sandboxes", "key-2"));
    let ids: BTreeSet<String> = ids.into_iter().collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    assert!(!ids.contains(&first));
    assert_eq!(server.sandboxes().len(), 2);
    let body = json!({ "templateID": "base" });
    let headers = [("Idempotency-Key", "Not One")];
    let refused = server
        .api()
        .send_with("POST", "/v2/sandboxes", &headers, Some(&body));
    assert_eq!(refused.expect(400).json()["code"], 400);
}

#[test]
fn a_sandbox_that_is_stopped_from_three_sides_is_stopped_once() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    for round in 0..6 {
        let sandbox = server.create(&json!({}));
        server.exec(&sandbox, "setsid sleep 1000 &").expect_code(0);
        // Its time is over about when the others come.
        let timeout = format!("/sandboxes/{sandbox}/timeout");
        let timeout = server.api().post(&timeout, &json!({ "timeout": 1 }));
        assert_eq!(timeout.status, 204, "{timeout}");
        thread::sleep(Duration::from_millis(700 + round * 80));
        let ended = AtomicUsize::new(0);
        all_at_once(6, |caller| {
            if caller % 2 == 0 {
                let answer = server.api().delete(&format!("/sandboxes/{sandbox}"));
                assert!(matches!(answer.status, 204 | 404), "{answer}");
                ended.fetch_add(usize::from(answer.status == 204), Ordering::SeqCst);
            } else {
                let output = server.store().run(["sandbox", "kill", sandbox.as_str()]);
                assert!(matches!(output.code, Some(0 | 3)), "{output}");
                ended.fetch_add(usize::from(output.code == Some(0)), Ordering::SeqCst);
            }
        });
        // None where its time was over before.
        let ended = ended.load(Ordering::SeqCst);
        assert!(ended <= 1, "{ended} callers were told that they ended it");
        let show = format!("/sandboxes/{sandbox}");
        assert_eq!(server.api().get(&show).expect(404).json()["code"], 404);
        assert!(server.sandboxes().is_empty());
        server.assert_nothing_left();
    }
}

#[test]
fn stopping_what_is_stopped_says_so_and_does_nothing() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let sandbox = server.create(&json!({}));
    let post = |verb: &str| {
        let path = format!("/sandboxes/{sandbox}/{verb}");
        server.api().post(&path, &json!({})).status
    };
    assert_eq!((post("pause"), post("pause")), (204, 409));
    let id = sandbox.as_str();
    server.store().ok(["sandbox", "pause", id]);
    assert_eq!((post("connect"), post("connect")), (201, 200));
    server.store().ok(["sandbox", "resume", id]);
    let kill = || server.api().delete(&format!("/sandboxes/{id}")).status;
    assert_eq!((kill(), kill()), (204, 404));
    server.store().fails(3, ["sandbox", "kill", id]);
    server.store().ok(["sandbox", "kill", "--if-exists", id]);
    assert_eq!(post("pause"), 404);
    assert_eq!(post("snapshots"), 404);
    server.assert_nothing_left();
}

/// A request that came at the wrong moment is refused in words, and says whether to come again.
#[track_caller]
fn fits(answer: &Answer, good: u16) {
    let refused = matches!(answer.status, 409 | 503);
    assert!(answer.status == good || refused, "{answer}");
    if answer.status != good {
        let again = answer.status == 503;
        assert_eq!(
            answer.header("should-retry"),
            Some(if again { "true" } else { "false" })
        );
        assert_eq!(answer.json()["code"], answer.status);
    }
}

#[test]
fn what_is_asked_for_while_a_snapshot_is_taken_is_done_or_refused_whole() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let sandbox = server.create(&json!({}));
    write(&server, &sandbox, "whole");
    let forks = Mutex::new(Vec::new());
    for _ in 0..3 {
        all_at_once(8, |caller| {
            let post = |verb: &str, body: Value| {
                server
                    .api()
                    .post(&format!("/sandboxes/{sandbox}/{verb}"), &body)
            };
            match caller % 4 {
                0 => fits(&post("pause", json!({})), 204),
                1 => {
                    let answer = post("connect", json!({ "timeout": 3600 }));
                    assert!(matches!(answer.status, 200 | 201 | 503), "{answer}");
                }
                2 => {
                    let answer = post("fork", json!({ "count": 1, "timeout": 3600 }));
                    fits(&answer, 201);
                    let made = answer.json()[0]["sandbox"]["sandboxID"]
                        .as_str()
                        .map(str::to_owned);
                    if let Some(id) = made {
                        server.note(&id);
                        forks.lock().expect("no other thread has failed").push(id);
                    }
                }
                _ => fits(&post("snapshots", json!({})), 201),
            }
        });
    }
    let connect = format!("/sandboxes/{sandbox}/connect");
    let connect = server.api().post(&connect, &json!({}));
    assert!(matches!(connect.status, 200 | 201), "{connect}");
    assert_eq!(state(&server, &sandbox), "whole");
    for snapshot in snapshots_of(&server, &sandbox) {
        let restored = server.create(&json!({ "templateID": snapshot }));
        assert_eq!(state(&server, &restored), "whole");
        server.kill_sandbox(&restored);
    }
    for fork in forks.into_inner().expect("no thread has failed") {
        assert_eq!(state(&server, &fork), "whole");
    }
}

#[test]
fn a_restore_beside_the_live_sandbox_leaves_both_alone() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let live = server.create(&json!({}));
    write(&server, &live, "one");
    let daemon =
        "setsid sh -c 'while true; do date > /tmp/alive; sleep 0.05; done' >/dev/null 2>&1 &";
    server.exec(&live, daemon).expect_code(0);
    let snapshot = server.snapshot(&live);
    let restored = server.create(&json!({ "templateID": snapshot }));
    write(&server, &live, "live");
    write(&server, &restored, "restored");
    assert_eq!(state(&server, &live), "live");
    assert_eq!(state(&server, &restored), "restored");
    // What ran in one goes on in that one alone.
    let runs = "rm -f /tmp/alive; sleep 0.5; test -e /tmp/alive";
    server.exec(&live, runs).expect_code(0);
    server.exec(&restored, runs).expect_code(1);
    server
        .exec_as("user", &restored, "sleep 60 & kill -9 -1", LIMIT)
        .expect_code(0);
    server.exec(&live, runs).expect_code(0);
    let (live_pids, restored_pids) = {
        let traces = server.traces();
        (traces.processes_of(&live), traces.processes_of(&restored))
    };
    assert!(!live_pids.is_empty() && !restored_pids.is_empty());
    assert!(live_pids.iter().all(|pid| !restored_pids.contains(pid)));
    server.kill_sandbox(&live);
    assert_eq!(state(&server, &restored), "restored");
    let api: &Api = server.api();
    eventually("the killed one to be gone", || {
        api.get(&format!("/sandboxes/{live}")).status == 404
    });
}
