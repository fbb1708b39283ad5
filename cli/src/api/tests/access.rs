//! Who is let in, and how far.

use axum::body::Body;
use axum::http::Request;

use super::Rig;
use super::fake::TOKEN;
use crate::wire::sandbox::SandboxState;

#[tokio::test]
async fn without_a_key_nobody_is_let_in() {
    let rig = Rig::new();
    for key in [
        None,
        Some(""),
        Some("e2b_0000"),
        Some(&*format!("{}0", rig.key)),
    ] {
        let mut request = Request::get("/v2/sandboxes");
        if let Some(key) = key {
            request = request.header("x-api-key", key);
        }
        let answered = rig.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answered.status, 401, "{key:?}");
        assert_eq!(answered.body["code"], 401);
        assert!(answered.body["message"].is_string());
        assert_eq!(answered.header("should-retry"), Some("false"));
    }
    assert_eq!(rig.get("/v2/sandboxes").await.status, 200);
}

#[tokio::test]
async fn health_and_the_documents_need_no_key() {
    let rig = Rig::new();
    for path in ["/health", "/openapi.json", "/openapi.envd.json"] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        assert_eq!(rig.send(request).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn a_revoked_key_ends_with_the_next_request() {
    let rig = Rig::new();
    rig.api.keys.add("other").unwrap();
    rig.api.keys.revoke("default").unwrap();
    assert_eq!(rig.get("/v2/sandboxes").await.status, 401);
}

fn to_sandbox(method: &str, path: &str, id: &str, token: Option<&str>) -> Request<Body> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("e2b-sandbox-id", id)
        .header("e2b-sandbox-port", "49983")
        .header("content-type", "application/json");
    if let Some(token) = token {
        request = request.header("x-access-token", token);
    }
    request.body(Body::from("{}")).unwrap()
}

#[tokio::test]
async fn files_and_processes_are_for_who_has_the_token() {
    let rig = Rig::new();
    rig.fake.add_sandbox("abc", SandboxState::Running);
    let paths = [
        ("POST", "/process.Process/List"),
        ("POST", "/filesystem.Filesystem/Stat"),
        ("POST", "/process.Process/Start"),
        ("GET", "/files?path=/etc/passwd"),
        ("POST", "/files?path=/etc/passwd"),
        ("GET", "/metrics"),
        ("GET", "/envs"),
    ];
    for (method, path) in paths {
        for token in [None, Some(""), Some("wrong"), Some(&TOKEN[1..])] {
            let answered = rig.send(to_sandbox(method, path, "abc", token)).await;
            assert_eq!(answered.status, 401, "{path} {token:?}");
        }
        // The key of the API is no token of a sandbox.
        let with_key = rig
            .send(to_sandbox(method, path, "abc", Some(&rig.key)))
            .await;
        assert_eq!(with_key.status, 401, "{path}");
    }
}

#[tokio::test]
async fn a_sandbox_that_is_gone_or_does_not_run_is_not_found() {
    let rig = Rig::new();
    rig.fake.add_sandbox("abc", SandboxState::Paused);
    for id in ["abc", "never"] {
        for (method, path) in [("GET", "/health"), ("POST", "/process.Process/List")] {
            let answered = rig.send(to_sandbox(method, path, id, Some(TOKEN))).await;
            assert_eq!(answered.status, 502, "{id} {path}");
            assert_eq!(answered.body["message"], "The sandbox was not found");
            assert_eq!(answered.body["code"], 502);
            assert_eq!(answered.body["sandboxId"], id);
            assert_eq!(answered.header("should-retry"), Some("false"));
        }
        let request = Request::get("/").header("host", format!("3000-{id}.localhost:8420"));
        let answered = rig.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(
            (answered.status, &answered.body["sandboxId"]),
            (502, &id.into())
        );
    }
}

#[tokio::test]
async fn the_health_of_a_sandbox_needs_no_token() {
    let rig = Rig::new();
    rig.fake.add_sandbox("abc", SandboxState::Running);
    rig.fake.add_sandbox("snap", SandboxState::Snapshotting);
    for id in ["abc", "snap"] {
        let answered = rig.send(to_sandbox("GET", "/health", id, None)).await;
        assert_eq!(answered.status, 204, "{id}");
    }
}

#[tokio::test]
async fn a_sandbox_does_not_serve_the_api_nor_the_api_a_sandboxs_files() {
    let rig = Rig::new();
    rig.fake.add_sandbox("abc", SandboxState::Running);
    let api = rig
        .send(to_sandbox("GET", "/v2/sandboxes", "abc", Some(TOKEN)))
        .await;
    assert_eq!(api.status, 404);
    let files = rig.ask("POST", "/process.Process/List", "{}").await;
    assert_eq!(files.status, 404);
}

#[tokio::test]
async fn a_signature_tells_which_sandbox_an_address_without_one_belongs_to() {
    let rig = Rig::new();
    rig.fake.add_sandbox("abc", SandboxState::Running);
    // sha256 of "/a:read::" and the token, as clients make it.
    let signature = "v1_rczD0gPfIMRfvja%2F4Trz9uo1QYXJCoXbgiveJhBV0A4";
    let ask = |signature: &str| {
        let path = format!("/files?path=/a&signature={signature}");
        Request::get(path).body(Body::empty()).unwrap()
    };
    // It is let in, and finds a sandbox without processes.
    let found = rig.send(ask(signature)).await;
    assert_eq!(
        (found.status, &found.body["sandboxId"]),
        (502, &"abc".into())
    );
    assert_eq!(rig.send(ask("v1_AAAA")).await.status, 401);
    let unsigned = Request::get("/files?path=/a").body(Body::empty()).unwrap();
    assert_eq!(rig.send(unsigned).await.status, 404);
}

/// Packages before 2.50 send nothing else once they have connected to a sandbox.
#[tokio::test]
async fn a_token_alone_tells_which_sandbox_a_request_is_for() {
    let rig = Rig::new();
    rig.fake.add_sandbox("abc", SandboxState::Running);
    let ask = |token: &str, method: &str, path: &str| {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("x-access-token", token);
        let request = request.header("content-type", "application/json");
        request.body(Body::from("{}")).unwrap()
    };
    let healthy = rig.send(ask(TOKEN, "GET", "/health")).await;
    assert_eq!(healthy.status, 204);
    for (method, path) in [("GET", "/files?path=/a"), ("GET", "/metrics")] {
        let found = rig.send(ask(TOKEN, method, path)).await;
        assert_eq!(
            (found.status, &found.body["sandboxId"]),
            (502, &"abc".into()),
            "{path}"
        );
        // What clients take for a sandbox that is gone.
        let other = rig.send(ask(&TOKEN.replace('0', "1"), method, path)).await;
        assert_eq!(other.status, 502, "{path}");
        assert_eq!(other.body["message"], "The sandbox was not found");
        // Nobody looks for what can be none.
        let none = rig.send(ask("other", method, path)).await;
        assert_eq!(none.status, 401, "{path}");
    }
    let found = rig.send(ask(TOKEN, "POST", "/process.Process/List")).await;
    assert_eq!(found.status, 502);
    // It opens nothing else.
    let api = rig.send(ask(TOKEN, "GET", "/v2/sandboxes")).await;
    assert_eq!(api.status, 401);
}
