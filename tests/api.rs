//! The HTTP interface itself, byte by byte where the published packages look: both generations, errors
//! and what they say of trying again, lists in pages, names of hosts, limits.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use floe_harness::api::Answer;
use floe_harness::sandbox::eventually;
use floe_harness::{Api, Server};
use serde_json::json;

/// The headers by which a request finds the files and processes of a sandbox.
fn inside(server: &Server, id: &str) -> Vec<(&'static str, String)> {
    let info = server.api().get(&format!("/sandboxes/{id}")).expect(200);
    vec![
        ("E2b-Sandbox-Id", id.to_owned()),
        ("E2b-Sandbox-Port", "49983".to_owned()),
        ("X-Access-Token", info.text("envdAccessToken")),
    ]
}

fn call(
    server: &Server,
    method: &str,
    path: &str,
    headers: &[(&'static str, String)],
    body: &[u8],
) -> Answer {
    let headers: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    // The key of the REST interface is none of a sandbox's.
    let api = Api::new(server.url(), None);
    let answer = api.attempt(method, path, &headers, body);
    answer.unwrap_or_else(|| panic!("no answer to {method} {path}"))
}

/// An error has the members that generated clients insist on, and says whether to come again.
#[track_caller]
fn is_error(answer: Answer, status: u16) {
    let answer = answer.expect(status);
    let body = answer.json();
    assert_eq!(body["code"], status, "{answer}");
    let message = body["message"].as_str().unwrap_or_default();
    assert!(!message.is_empty(), "{answer}");
    assert!(
        !message.contains("panicked") && !message.contains("src/"),
        "{answer}"
    );
    assert_eq!(answer.header("should-retry"), Some("false"), "{answer}");
}

#[test]
fn both_generations_are_served() {
    let server = Server::start();
    for prefix in ["", "/v2"] {
        let body = json!({ "templateID": "base", "timeout": 600, "metadata": { "g": prefix } });
        let made = server
            .api()
            .post(&format!("{prefix}/sandboxes"), &body)
            .expect(201);
        let id = made.text("sandboxID");
        server.note(&id);
        for key in [
            "templateID",
            "clientID",
            "envdVersion",
            "envdAccessToken",
            "domain",
        ] {
            assert!(made.json()[key].is_string(), "no {key}\n{made}");
        }
        let connect = format!("{prefix}/sandboxes/{id}/connect");
        let again = server
            .api()
            .post(&connect, &json!({ "timeout": 600 }))
            .expect(200);
        assert_eq!(again.text("sandboxID"), id);
        assert_eq!(again.text("envdAccessToken"), made.text("envdAccessToken"));
        let info = server.api().get(&format!("/sandboxes/{id}")).expect(200);
        let info = info.json();
        for key in [
            "startedAt",
            "endAt",
            "state",
            "envdVersion",
            "clientID",
            "templateID",
        ] {
            assert!(info[key].is_string(), "no {key}: {info}");
        }
        for key in ["cpuCount", "memoryMB", "diskSizeMB"] {
            assert!(
                info[key].as_u64().is_some_and(|size| size > 0),
                "no {key}: {info}"
            );
        }
        let health = call(&server, "GET", "/health", &inside(&server, &id), b"");
        assert!(matches!(health.status, 200 | 204), "{health}");
    }
    let all = server.pages("/v2/sandboxes");
    let generations: BTreeSet<_> = all.iter().map(|s| s["metadata"]["g"].as_str()).collect();
    assert_eq!(generations, BTreeSet::from([Some(""), Some("/v2")]));
    let old = server.pages("/sandboxes");
    assert_eq!(old.len(), 2);
    let health = Api::new(server.url(), None).get("/health");
    assert!(matches!(health.status, 200 | 204), "{health}");
}

#[test]
fn what_is_wrong_is_said_in_the_form_that_clients_read() {
    let server = Server::start();
    let api = server.api();
    let id = server.create(&json!({}));
    is_error(api.get("/sandboxes/nothing"), 404);
    is_error(api.delete("/sandboxes/nothing"), 404);
    is_error(api.delete("/templates/nothing"), 404);
    is_error(api.delete("/templates/team%2Fname%3Atag"), 404);
    is_error(api.get("/no/such/path"), 404);
    is_error(api.post("/sandboxes/nothing/pause", &json!({})), 404);
    is_error(
        api.post("/v2/sandboxes", &json!({ "templateID": "nothing" })),
        404,
    );
    is_error(api.post("/v2/sandboxes", &json!({ "templateID": 5 })), 400);
    is_error(api.post("/v2/sandboxes", &json!([])), 400);
    is_error(
        api.post(
            &format!("/sandboxes/{id}/timeout"),
            &json!({ "timeout": -1 }),
        ),
        400,
    );
    is_error(api.get("/snapshots?limit=0"), 400);
    is_error(api.get("/snapshots?nextToken=nonsense"), 400);
    is_error(api.get("/v2/sandboxes?nextToken=nonsense"), 400);
    is_error(api.get("/v2/sandboxes?state=asleep"), 400);
    let bad = ("content-type", "application/json");
    let broken = api.attempt("POST", "/v2/sandboxes", &[bad], b"{\"templateID\":");
    is_error(broken.expect("an answer"), 400);
    for key in [None, Some(""), Some("wrong")] {
        let api = Api::new(server.url(), key);
        is_error(api.get("/v2/sandboxes"), 401);
        is_error(api.delete(&format!("/sandboxes/{id}")), 401);
        is_error(api.post("/floe/v1/sessions/a", &json!({})), 401);
    }
    assert_eq!(server.sandboxes(), [id.as_str()]);
    // What a request repeats in its body of hostile text comes back as text.
    let odd = api.post(
        "/v2/sandboxes",
        &json!({ "templateID": "<b>\"\n\u{1b}[2J" }),
    );
    assert!(matches!(odd.status, 400 | 404), "{odd}");
    assert!(odd.json()["message"].is_string(), "{odd}");
}

#[test]
fn lists_come_in_pages_with_a_token_behind_each() {
    let server = Server::start();
    let id = server.create(&json!({}));
    let taken: Vec<String> = (0..7).map(|_| server.snapshot(&id)).collect();
    let path = format!("/snapshots?sandboxID={id}&limit=3");
    let first = server.api().get(&path).expect(200);
    let page = first.json();
    let page = page.as_array().expect("a list");
    assert_eq!(page.len(), 3);
    let token = first.header("x-next-token").expect("a token");
    assert!(
        token
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    );
    let all: Vec<String> = server
        .pages(&path)
        .iter()
        .map(|item| item["snapshotID"].as_str().expect("an id").to_owned())
        .collect();
    let newest_first: Vec<String> = taken.iter().rev().cloned().collect();
    assert_eq!(all, newest_first);
    let last = server
        .api()
        .get(&format!("/snapshots?sandboxID={id}&limit=7"))
        .expect(200);
    assert!(
        last.header("x-next-token").unwrap_or_default().is_empty(),
        "{last}"
    );
    // More than clients of the contract know of.
    for item in page {
        assert_eq!(item["sandboxID"], json!(id), "{item}");
        assert_eq!(item["fidelity"], "filesystem");
        assert!(
            item["createdAt"].is_string() && item["names"].is_array(),
            "{item}"
        );
    }
    assert_eq!(page[0]["parentID"], page[1]["snapshotID"]);
}

/// An answer to a request that names a host, at the address of the server.
fn by_host(server: &Server, host: &str, path: &str) -> Answer {
    let api = Api::new(server.url(), None);
    let answer = api.attempt("GET", path, &[("Host", host)], &[]);
    answer.unwrap_or_else(|| panic!("no answer of {host}"))
}

#[test]
fn a_sandbox_is_reached_by_the_name_of_its_host() {
    let server = Server::start();
    let id = server.create(&json!({}));
    let domain = server.domain();
    let health = by_host(&server, &format!("49983-{id}.{domain}"), "/health");
    assert!(matches!(health.status, 200 | 204), "{health}");
    let line = "mkdir www; echo -n served > www/file; cd www; \
        setsid python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &";
    server.exec(&id, line).expect_code(0);
    let host = format!("8000-{id}.{domain}");
    eventually("the port to be open", || {
        by_host(&server, &host, "/file").status == 200
    });
    assert_eq!(by_host(&server, &host, "/file").body, b"served");
    // Upper case is the same name.
    assert_eq!(by_host(&server, &host.to_uppercase(), "/file").status, 200);
    let closed = by_host(&server, &format!("8001-{id}.{domain}"), "/").expect(502);
    assert!(
        closed.text("message").contains("port is not open"),
        "{closed}"
    );
    let gone = by_host(&server, &format!("8000-nothing.{domain}"), "/").expect(502);
    assert!(gone.text("message").contains("was not found"), "{gone}");
    // A port of the host is no port of the sandbox.
    let own = server.url().rsplit_once(':').expect("a port").1;
    by_host(&server, &format!("{own}-{id}.{domain}"), "/").expect(502);
    server.kill_sandbox(&id);
    let gone = by_host(&server, &host, "/file").expect(502);
    assert!(gone.text("message").contains("was not found"), "{gone}");
    let headers = [
        ("E2b-Sandbox-Id", id.clone()),
        ("E2b-Sandbox-Port", "49983".to_owned()),
    ];
    let gone = call(&server, "GET", "/health", &headers, b"").expect(502);
    assert!(gone.text("message").contains("was not found"), "{gone}");
}

#[test]
fn files_and_processes_need_the_sandboxs_own_token() {
    let server = Server::start();
    let id = server.create(&json!({}));
    let right = inside(&server, &id);
    assert_eq!(
        call(&server, "GET", "/files?path=/etc/passwd", &right, b"").status,
        200
    );
    for token in ["", "wrong", server.key()] {
        let headers = [
            ("E2b-Sandbox-Id", id.clone()),
            ("E2b-Sandbox-Port", "49983".to_owned()),
            ("X-Access-Token", token.to_owned()),
        ];
        for path in ["/files?path=/etc/passwd", "/metrics", "/envs"] {
            let answer = call(&server, "GET", path, &headers, b"");
            assert_eq!(answer.status, 401, "{answer}");
        }
        let answer = call(&server, "POST", "/process.Process/List", &headers, b"{}");
        assert_eq!(answer.status, 401, "{answer}");
    }
}

#[test]
fn a_request_that_is_too_large_or_too_slow_is_ended_and_others_are_served() {
    let server = Server::start();
    let big = json!({ "templateID": "base", "metadata": { "a": "x".repeat(8 << 20) } });
    let answer = server
        .api()
        .attempt_json("POST", "/v2/sandboxes", &[], Some(&big));
    // It may be cut off while it is being sent.
    assert!(answer.is_none_or(|answer| matches!(answer.status, 400 | 413)));
    let address = server
        .url()
        .strip_prefix("http://")
        .expect("HTTP")
        .to_owned();
    // Many that begin and say no more.
    let slow: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).expect("a connection");
            stream
                .write_all(b"POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\n")
                .expect("a beginning");
            stream
        })
        .collect();
    let id = server.create(&json!({}));
    server.exec(&id, "true").expect_code(0);
    drop(slow);
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01"[..],
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(&address).expect("a connection");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a timeout");
        stream.write_all(garbage).expect("garbage");
        let mut answer = Vec::new();
        // It is closed, with an error or without a word.
        let ended = stream.read_to_end(&mut answer);
        assert!(ended.is_ok() || answer.is_empty(), "{answer:?}");
    }
    server.exec(&id, "true").expect_code(0);
}

#[test]
fn the_interface_describes_itself() {
    let server = Server::start();
    let api = Api::new(server.url(), None);
    let mut answer = api.get("/openapi.json");
    if answer.status == 401 {
        answer = server.api().get("/openapi.json");
    }
    let document = answer.expect(200).json();
    assert!(
        document["openapi"]
            .as_str()
            .is_some_and(|version| version.starts_with("3."))
    );
    let paths = document["paths"].as_object().expect("paths");
    for path in [
        "/sandboxes",
        "/v2/sandboxes",
        "/sandboxes/{sandbox_id}/snapshots",
        "/snapshots",
        "/floe/v1/sessions/{key}",
    ] {
        assert!(paths.contains_key(path), "no {path} in {:?}", paths.keys());
    }
}

#[test]
fn every_answer_has_the_id_of_its_request() {
    let server = Server::start();
    let one = server.api().get("/v2/sandboxes").expect(200);
    let other = server.api().get("/v2/sandboxes").expect(200);
    let id = |answer: &Answer| answer.header("x-request-id").map(str::to_owned);
    assert!(
        id(&one).is_some() && id(&one) != id(&other),
        "{one}\n{other}"
    );
    let missing = server.api().get("/sandboxes/nothing").expect(404);
    let id = id(&missing).expect("an id");
    eventually("the log to have it", || server.log().contains(&id));
}
