//! The API in front of a daemon that is a few maps: what goes in and what comes out.

mod access;
mod document;
mod fake;
mod pages;
mod rest;
mod server;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request};
use serde_json::Value;
use tower::ServiceExt;

use super::dispatch;
use super::keys::Keys;
use super::state::{Api, Shared};
use crate::config::ApiConfig;
use fake::Fake;

/// The API of a fake daemon, and a key to it.
struct Rig {
    fake: Arc<Fake>,
    api: Shared,
    router: Router,
    key: String,
    _dir: tempfile::TempDir,
}

/// What was answered.
struct Answered {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl Answered {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

impl Rig {
    fn new() -> Self {
        Self::with(ApiConfig::default())
    }

    fn with(config: ApiConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(dir.path()).unwrap();
        let key = keys.list().unwrap()[0].key.clone();
        let fake = Arc::new(Fake::default());
        let api = Arc::new(Api::new(fake.clone(), config, keys, 8420));
        Self {
            fake,
            router: dispatch::router(&api),
            api,
            key,
            _dir: dir,
        }
    }

    /// Sends a request with the key.
    async fn ask(&self, method: &str, path: &str, body: &str) -> Answered {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("x-api-key", &self.key);
        self.send(request.body(Body::from(body.to_owned())).unwrap())
            .await
    }

    async fn get(&self, path: &str) -> Answered {
        self.ask("GET", path, "").await
    }

    async fn send(&self, request: Request<Body>) -> Answered {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, 16 << 20).await.unwrap();
        Answered {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        }
    }
}
