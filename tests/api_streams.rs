//! Requests to the processes and files inside a sandbox, byte by byte: single messages, streams of them, and
//! what makes no sense.

use floe_harness::api::Answer;
use floe_harness::{Api, Server};
use serde_json::{Value, json};

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

fn unary(server: &Server, id: &str, method: &str, message: &Value) -> Answer {
    let mut headers = inside(server, id);
    headers.push(("Content-Type", "application/json".to_owned()));
    headers.push(("Connect-Protocol-Version", "1".to_owned()));
    call(
        server,
        "POST",
        &format!("/{method}"),
        &headers,
        message.to_string().as_bytes(),
    )
}

/// One message of a stream: flags, length, and JSON.
fn envelope(message: &Value) -> Vec<u8> {
    let text = message.to_string();
    let length = u32::try_from(text.len()).expect("a short message");
    let mut bytes = vec![0];
    bytes.extend(length.to_be_bytes());
    bytes.extend(text.bytes());
    bytes
}

/// The messages of a stream, each with its flags.
fn envelopes(mut bytes: &[u8]) -> Vec<(u8, Value)> {
    let mut messages = Vec::new();
    while let [flags, a, b, c, d, rest @ ..] = bytes {
        let length = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).expect("a length");
        let (text, tail) = rest.split_at(length);
        messages.push((*flags, serde_json::from_slice(text).expect("JSON")));
        bytes = tail;
    }
    assert!(bytes.is_empty(), "half a message: {bytes:?}");
    messages
}

fn stream(server: &Server, id: &str, method: &str, body: &[u8]) -> Answer {
    let mut headers = inside(server, id);
    headers.push(("Content-Type", "application/connect+json".to_owned()));
    headers.push(("Connect-Protocol-Version", "1".to_owned()));
    call(server, "POST", &format!("/{method}"), &headers, body)
}

#[test]
fn a_process_is_a_stream_of_envelopes() {
    let server = Server::start();
    let id = server.create(&json!({}));
    let request = json!({
        "process": { "cmd": "/bin/bash", "args": ["-c", "echo out; echo err >&2; exit 3"] },
        "stdin": false,
    });
    let answer = stream(&server, &id, "process.Process/Start", &envelope(&request)).expect(200);
    assert_eq!(
        answer.header("content-type"),
        Some("application/connect+json")
    );
    let messages = envelopes(&answer.body);
    let (flags, last) = messages.last().expect("an end of the stream");
    assert_eq!((*flags, last), (2, &json!({})));
    let events: Vec<&Value> = messages
        .iter()
        .map(|(_, message)| &message["event"])
        .collect();
    assert!(
        events[0]["start"]["pid"]
            .as_u64()
            .is_some_and(|pid| pid > 0),
        "{messages:?}"
    );
    let data = |stream: &str| {
        events
            .iter()
            .find_map(|event| event["data"][stream].as_str())
    };
    assert_eq!(
        (data("stdout"), data("stderr")),
        (Some("b3V0Cg=="), Some("ZXJyCg=="))
    );
    let end = &events[events.len() - 2]["end"];
    assert_eq!(
        (&end["exitCode"], &end["exited"]),
        (&json!(3), &json!(true)),
        "{end}"
    );

    let missing = json!({ "process": { "cmd": "/bin/true" }, "cwd": 5 });
    let refused = stream(&server, &id, "process.Process/Start", &envelope(&missing));
    assert!(matches!(refused.status, 200 | 400), "{refused}");
    let missing = json!({ "process": { "pid": 999_999 } });
    let refused = stream(&server, &id, "process.Process/Connect", &envelope(&missing));
    let (_, last) = envelopes(&refused.expect(200).body).pop().expect("an end");
    assert_eq!(last["error"]["code"], "not_found");

    let signal = json!({ "process": { "pid": 999_999 }, "signal": "SIGNAL_SIGKILL" });
    let answer = unary(&server, &id, "process.Process/SendSignal", &signal).expect(404);
    assert_eq!(answer.text("code"), "not_found");
    let stat = json!({ "path": "/no/such" });
    let answer = unary(&server, &id, "filesystem.Filesystem/Stat", &stat).expect(404);
    assert_eq!(answer.text("code"), "not_found");
    let made = json!({ "path": "/etc" });
    let answer = unary(&server, &id, "filesystem.Filesystem/MakeDir", &made).expect(409);
    assert_eq!(answer.text("code"), "already_exists");
    let answer = unary(&server, &id, "filesystem.Filesystem/NoSuch", &made);
    assert!(matches!(answer.status, 404 | 501), "{answer}");
}

#[test]
fn a_stream_that_makes_no_sense_is_refused_and_hurts_nobody() {
    let server = Server::start();
    let id = server.create(&json!({}));
    let mut too_long = vec![0];
    too_long.extend(u32::MAX.to_be_bytes());
    too_long.extend(b"{}");
    let mut not_json = vec![0, 0, 0, 0, 3];
    not_json.extend(b"\xff\xfe{");
    for body in [
        &too_long[..],
        &not_json,
        b"\x00\x00",
        b"",
        b"\x01\x00\x00\x00\x02{}",
    ] {
        for method in ["process.Process/Start", "filesystem.Filesystem/WatchDir"] {
            let answer = stream(&server, &id, method, body);
            let refused = match answer.status {
                200 => {
                    let (_, last) = envelopes(&answer.body).pop().expect("an end");
                    last["error"]["code"].is_string()
                }
                status => (400..500).contains(&status),
            };
            assert!(refused, "{answer}");
        }
    }
    server.exec(&id, "true").expect_code(0);
}
