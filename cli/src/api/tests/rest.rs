//! The REST API: statuses, bodies, and what clients may repeat.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use serde_json::json;

use super::Rig;
use super::fake::TOKEN;
use crate::config::ApiConfig;
use crate::error::ErrorKind;
use crate::wire::sandbox::SandboxState;

#[tokio::test]
async fn both_generations_make_sandboxes() {
    let rig = Rig::new();
    for path in ["/sandboxes", "/v2/sandboxes"] {
        let body = json!({"templateID": "a/b:c", "timeout": 7, "metadata": {"k": "v"}});
        let made = rig.ask("POST", path, &body.to_string()).await;
        assert_eq!(made.status, 201, "{path}");
        assert_eq!(made.body["templateID"], "a/b:c");
        assert_eq!(made.body["envdAccessToken"], TOKEN);
        assert_eq!(made.body["domain"], "localhost:8420");
        for member in ["sandboxID", "clientID", "envdVersion"] {
            assert!(made.body[member].is_string(), "{member}");
        }
    }
    let asked = rig.fake.created();
    assert_eq!(asked.len(), 2);
    assert!(
        asked
            .iter()
            .all(|one| one.timeout_s == Some(7) && one.secure)
    );
}

#[tokio::test]
async fn an_idempotency_key_arrives() {
    let rig = Rig::new();
    let request = Request::post("/v2/sandboxes")
        .header("x-api-key", &rig.key)
        .header("idempotency-key", "once-1")
        .body(Body::from("{}"));
    assert_eq!(rig.send(request.unwrap()).await.status, 201);
    assert_eq!(
        rig.fake.created()[0].idempotency_key.as_deref(),
        Some("once-1")
    );
}

#[tokio::test]
async fn what_is_so_already_has_the_status_that_clients_expect() {
    let rig = Rig::new();
    rig.fake.add_sandbox("abc", SandboxState::Running);
    let connect = |path: &'static str| rig.ask("POST", path, "{\"timeout\": 1}");
    assert_eq!(connect("/sandboxes/abc/connect").await.status, 200);
    assert_eq!(
        rig.ask("POST", "/sandboxes/abc/pause", "").await.status,
        204
    );
    let again = rig
        .ask("POST", "/sandboxes/abc/pause", "{\"memory\": true}")
        .await;
    assert_eq!(
        (again.status, again.header("should-retry")),
        (409, Some("false"))
    );
    assert_eq!(connect("/v2/sandboxes/abc/connect").await.status, 201);
    assert_eq!(connect("/v2/sandboxes/abc/connect").await.status, 200);
    assert_eq!(
        rig.ask("POST", "/sandboxes/abc/resume", "{}").await.status,
        201
    );
    assert_eq!(
        rig.ask("POST", "/sandboxes/abc/timeout", "{\"timeout\": 9}")
            .await
            .status,
        204
    );
    assert_eq!(
        rig.ask("POST", "/sandboxes/abc/refreshes", "{}")
            .await
            .status,
        204
    );
    assert_eq!(rig.ask("DELETE", "/sandboxes/abc", "").await.status, 204);
    assert_eq!(rig.ask("DELETE", "/sandboxes/abc", "").await.status, 404);
    assert_eq!(rig.get("/sandboxes/abc").await.status, 404);
}

#[tokio::test]
async fn a_stopped_sandbox_is_shown_as_paused_with_its_files_alone() {
    let rig = Rig::new();
    rig.fake.add_sandbox("abc", SandboxState::Stopped);
    let shown = rig.get("/sandboxes/abc").await.body;
    assert_eq!(
        (&shown["state"], &shown["pauseMode"]),
        (&json!("paused"), &json!("filesystem"))
    );
    assert_eq!(shown["floeState"], "stopped");
    assert_eq!(shown["reason"], "the daemon ended");
    assert_eq!(shown["cpuCount"], 4);
    assert_eq!(shown["memoryMB"], 8192);
    assert_eq!(shown["endAt"], "9999-01-01T00:00:00Z");
    assert_eq!(
        shown["lifecycle"],
        json!({"autoResume": false, "onTimeout": "kill"})
    );
}

#[tokio::test]
async fn a_snapshot_has_what_clients_read_and_more() {
    let rig = Rig::new();
    rig.fake.add_sandbox("abc", SandboxState::Running);
    let plain = rig.ask("POST", "/sandboxes/abc/snapshots", "").await;
    assert_eq!((plain.status, &plain.body["names"]), (201, &json!([])));
    assert_eq!(plain.body["sandboxID"], "abc");
    assert_eq!(plain.body["fidelity"], "filesystem");
    let named = rig
        .ask("POST", "/sandboxes/abc/snapshots", "{\"name\": \"t\"}")
        .await;
    assert_eq!(named.body["names"], json!(["t"]));
    let id = named.body["snapshotID"].as_str().unwrap();
    let shown = rig.get(&format!("/snapshots/{id}")).await.body;
    assert_eq!(
        (&shown["snapshotID"], &shown["sizeBytes"]),
        (&json!(id), &json!(4096))
    );
    let native = rig.get("/floe/v1/snapshots/t").await.body;
    assert_eq!(
        (&native["id"], &native["names"]),
        (&json!(id), &json!(["t"]))
    );
}

#[tokio::test]
async fn one_path_deletes_snapshots_and_templates() {
    let rig = Rig::new();
    let plain = rig.fake.add_snapshot("abc");
    let named = rig.fake.add_snapshot("abc");
    rig.fake.name("team/name:tag", &named);
    let twice = rig.fake.add_snapshot("abc");
    rig.fake.name("one", &twice);
    rig.fake.name("other", &twice);
    let delete = |name: &str| {
        let path = format!("/templates/{name}");
        let rig = &rig;
        async move { rig.ask("DELETE", &path, "").await.status }
    };
    // The beginning of an id is not that id.
    assert_eq!(delete(&plain[..5]).await, 404);
    assert_eq!(delete(&plain).await, 204);
    assert_eq!(delete(&plain).await, 404);
    assert_eq!(delete("team%2Fname%3Atag").await, 204);
    assert!(!rig.fake.has_snapshot(&named));
    assert_eq!(delete("team%2Fname%3Atag").await, 404);
    // One with another name stays until that is gone too.
    assert_eq!(delete("one").await, 204);
    assert!(rig.fake.has_snapshot(&twice));
    assert_eq!(delete("other").await, 204);
    assert!(!rig.fake.has_snapshot(&twice));
}

#[tokio::test]
async fn a_fork_that_fails_is_one_of_the_answers() {
    let rig = Rig::new();
    rig.fake.add_sandbox("abc", SandboxState::Running);
    let forked = rig
        .ask("POST", "/sandboxes/abc/fork", "{\"count\": 2}")
        .await;
    assert_eq!(forked.status, 201);
    assert_eq!(forked.body[0]["sandbox"]["envdAccessToken"], TOKEN);
    assert_eq!(forked.body[1]["error"]["code"], 500);
    assert_eq!(forked.body[1]["error"]["message"], "no room");
    for count in ["0", "101", "-1"] {
        let body = format!("{{\"count\": {count}}}");
        let refused = rig.ask("POST", "/sandboxes/abc/fork", &body).await;
        assert_eq!(refused.status, 400, "{count}");
    }
}

#[tokio::test]
async fn sessions_have_one_sandbox() {
    let rig = Rig::new();
    let path = "/floe/v1/sessions/agent%2F7";
    assert_eq!(rig.get(path).await.status, 404);
    let made = rig.ask("POST", path, "{\"timeout_s\": 60}").await;
    assert_eq!(
        (made.status, &made.body["attached"]),
        (201, &json!("created"))
    );
    assert_eq!(made.body["access_token"], TOKEN);
    let again = rig.ask("POST", path, "").await;
    assert_eq!(
        (again.status, &again.body["attached"]),
        (200, &json!("running"))
    );
    assert_eq!(again.body["id"], made.body["id"]);
    assert_eq!(rig.get(path).await.body["session"], "agent/7");
    assert_eq!(rig.ask("POST", path, "{\"timeout\": 60}").await.status, 400);
}

#[tokio::test]
async fn metrics_and_logs_are_told_in_all_their_forms() {
    let rig = Rig::new();
    rig.fake.add_sandbox("abc", SandboxState::Running);
    let now = rig.get("/sandboxes/abc/metrics").await.body;
    assert_eq!(now[0]["cpuUsedPct"], 12.5);
    assert_eq!(now[0]["memTotal"], 8_u64 << 30);
    rig.get("/sandboxes/abc/metrics").await;
    let all = rig
        .get("/sandboxes/abc/metrics?start=0&end=99999999999")
        .await
        .body;
    assert_eq!(all.as_array().unwrap().len(), 3);
    let many = rig
        .get("/sandboxes/metrics?sandbox_ids=abc,gone")
        .await
        .body;
    assert_eq!(many["sandboxes"].as_object().unwrap().len(), 1);
    let logs = rig.get("/sandboxes/abc/logs").await.body;
    assert_eq!(
        (&logs["logs"][0]["line"], &logs["logEntries"][0]["level"]),
        (&json!("started"), &json!("info"))
    );
    let logs = rig
        .get("/v2/sandboxes/abc/logs?direction=backward")
        .await
        .body;
    assert_eq!(logs["logs"][0]["message"], "started");
}

#[tokio::test]
async fn errors_say_what_happened_and_whether_to_repeat() {
    let rig = Rig::new();
    for (kind, status, again) in [
        (ErrorKind::Unavailable, 503, "true"),
        (ErrorKind::Failed, 500, "false"),
        (ErrorKind::Conflict, 409, "false"),
        (ErrorKind::Usage, 400, "false"),
        (ErrorKind::NotFound, 404, "false"),
    ] {
        rig.fake.fail(kind);
        let answered = rig.ask("POST", "/sandboxes/abc/snapshots", "").await;
        assert_eq!(
            (answered.status, answered.header("should-retry")),
            (status, Some(again))
        );
        assert_eq!(answered.header("retry-after").is_some(), again == "true");
        assert_eq!(
            (&answered.body["code"], &answered.body["message"]),
            (&json!(status), &json!("on purpose"))
        );
        assert_eq!(
            answered.body["requestID"].as_str(),
            answered.header("x-request-id")
        );
    }
}

#[tokio::test]
async fn a_panic_costs_its_caller_an_error_and_nobody_else_anything() {
    let rig = Rig::new();
    rig.fake.add_sandbox("abc", SandboxState::Running);
    rig.fake.panic();
    let answered = rig.get("/sandboxes/abc").await;
    assert_eq!(
        (answered.status, &answered.body["code"]),
        (500, &json!(500))
    );
    assert_eq!(rig.get("/sandboxes/abc").await.status, 200);
}

#[tokio::test]
async fn what_takes_too_long_is_told_and_must_not_be_repeated() {
    let rig = Rig::with(ApiConfig {
        request_time_max_s: 0,
        ..ApiConfig::default()
    });
    rig.fake.add_sandbox("abc", SandboxState::Running);
    rig.fake.slow(Duration::from_millis(300));
    let answered = rig.ask("POST", "/sandboxes/abc/snapshots", "").await;
    assert_eq!(
        (answered.status, answered.header("should-retry")),
        (504, Some("false"))
    );
    assert_eq!(answered.body["error_code"], "timed_out");
}

#[tokio::test]
async fn one_too_many_is_turned_away_with_nothing_done() {
    let rig = Rig::with(ApiConfig {
        requests_max: 0,
        ..ApiConfig::default()
    });
    tokio::time::pause();
    let answered = rig.ask("POST", "/v2/sandboxes", "{}").await;
    assert_eq!(
        (answered.status, answered.header("should-retry")),
        (503, Some("true"))
    );
    assert!(rig.fake.created().is_empty());
}

#[tokio::test]
async fn bodies_are_bounded_and_must_make_sense() {
    let rig = Rig::with(ApiConfig {
        request_bytes_max: 100,
        ..ApiConfig::default()
    });
    let long = format!("{{\"templateID\": \"{}\"}}", "x".repeat(200));
    for (body, status) in [
        (long.as_str(), 413),
        ("{", 400),
        ("[]", 400),
        ("{\"timeout\": \"x\"}", 400),
        ("{\"timeout\": 1e99}", 400),
        ("{\"metadata\": {\"k\": 1}}", 400),
        ("\u{0}", 400),
    ] {
        let answered = rig.ask("POST", "/v2/sandboxes", body).await;
        assert_eq!(
            (answered.status, &answered.body["code"]),
            (status, &json!(status)),
            "{body}"
        );
    }
    assert!(rig.fake.created().is_empty());
}

#[tokio::test]
async fn paths_and_methods_that_there_are_not_have_errors_as_well() {
    let rig = Rig::new();
    let missing = rig.get("/v9/sandboxes").await;
    assert_eq!((missing.status, &missing.body["code"]), (404, &json!(404)));
    let method = rig.ask("PATCH", "/v2/sandboxes", "").await;
    assert_eq!((method.status, &method.body["code"]), (405, &json!(405)));
    let name = rig.get("/sandboxes/%FF").await;
    assert_eq!((name.status, &name.body["code"]), (400, &json!(400)));
    let number = rig.get("/snapshots?limit=many").await;
    assert_eq!((number.status, &number.body["code"]), (400, &json!(400)));
}
