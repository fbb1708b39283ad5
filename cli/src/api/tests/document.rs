//! The documents that describe the API, against the API itself.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::Request;
use serde_json::Value;

use super::Rig;

/// Everything that a document says is served: method and path.
fn described(document: &Value) -> Vec<(String, String)> {
    let paths = document["paths"].as_object().unwrap();
    let each = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().keys();
        methods.map(move |method| (method.to_uppercase(), path.clone()))
    });
    each.collect()
}

/// The routes of the wire contract and of Floe's own part.
const ROUTES: [&str; 29] = [
    "GET /health",
    "POST /sandboxes",
    "GET /sandboxes",
    "POST /v2/sandboxes",
    "GET /v2/sandboxes",
    "GET /sandboxes/metrics",
    "GET /sandboxes/{sandbox_id}",
    "DELETE /sandboxes/{sandbox_id}",
    "POST /sandboxes/{sandbox_id}/connect",
    "POST /v2/sandboxes/{sandbox_id}/connect",
    "POST /sandboxes/{sandbox_id}/resume",
    "POST /sandboxes/{sandbox_id}/pause",
    "POST /sandboxes/{sandbox_id}/timeout",
    "POST /sandboxes/{sandbox_id}/refreshes",
    "POST /sandboxes/{sandbox_id}/fork",
    "GET /sandboxes/{sandbox_id}/metrics",
    "PUT /sandboxes/{sandbox_id}/network",
    "GET /sandboxes/{sandbox_id}/logs",
    "GET /v2/sandboxes/{sandbox_id}/logs",
    "POST /sandboxes/{sandbox_id}/snapshots",
    "GET /snapshots",
    "GET /snapshots/{snapshot_id}",
    "GET /templates",
    "GET /v2/templates",
    "GET /templates/{template_id}",
    "DELETE /templates/{template_id}",
    "GET /templates/aliases/{alias}",
    "POST /floe/v1/sessions/{key}",
    "GET /floe/v1/sessions/{key}",
];

#[tokio::test]
async fn every_route_is_described() {
    let rig = Rig::new();
    let document = rig.get("/openapi.json").await.body;
    let found = described(&document).into_iter();
    let found: BTreeSet<String> = found
        .map(|(method, path)| format!("{method} {path}"))
        .collect();
    for route in ROUTES {
        assert!(found.contains(route), "{route} is not described");
    }
    assert_eq!(
        document["openapi"].as_str().map(|version| &version[..2]),
        Some("3.")
    );
    assert_eq!(
        document["components"]["securitySchemes"]["key"]["name"],
        "X-API-KEY"
    );
}

#[tokio::test]
async fn every_described_route_answers() {
    let rig = Rig::new();
    let rest = rig.get("/openapi.json").await.body;
    let envd = rig.get("/openapi.envd.json").await.body;
    assert_eq!(described(&envd).len(), 22, "{:?}", described(&envd));
    for (document, sandbox) in [(rest, None), (envd, Some("abc"))] {
        for (method, path) in described(&document) {
            let path = path.replace(['{', '}'], "");
            let mut request = Request::builder()
                .method(method.as_str())
                .uri(&path)
                .header("x-api-key", &rig.key)
                .header("content-type", "application/json");
            if let Some(sandbox) = sandbox {
                request = request.header("e2b-sandbox-id", sandbox);
            }
            let answered = rig.send(request.body(Body::from("{}")).unwrap()).await;
            // Whatever it says of things that there are not, it is not that there is no such route.
            assert_ne!(answered.status, 405, "{method} {path}");
            let no_route = answered.body["message"] == "there is no such path";
            assert!(!no_route, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn everything_that_is_referred_to_is_there() {
    let rig = Rig::new();
    for path in ["/openapi.json", "/openapi.envd.json"] {
        let document = rig.get(path).await.body;
        let mut waiting = vec![&document];
        while let Some(value) = waiting.pop() {
            match value {
                Value::Object(members) => {
                    if let Some(Value::String(reference)) = members.get("$ref") {
                        let pointer = reference.strip_prefix('#').unwrap();
                        assert!(document.pointer(pointer).is_some(), "{path}: {reference}");
                    }
                    waiting.extend(members.values());
                }
                Value::Array(items) => waiting.extend(items),
                _ => {}
            }
        }
    }
}
