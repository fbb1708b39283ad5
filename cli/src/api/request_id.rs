//! The id of a request: in its answer, in errors, and in everything the log says while it is served.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tracing::{Instrument, error, info, info_span, warn};

use super::error::HttpError;

/// The header of a request and of its answer.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id that is taken from a client.
const BYTES_MAX: usize = 128;

tokio::task_local! {
    static CURRENT: String;
}

/// The id of the request that is being served here, if one is.
pub(super) fn current() -> Option<String> {
    CURRENT.try_with(Clone::clone).ok()
}

/// Gives a request its id: the client's, if that is a sane one. A handler that panics costs its caller
/// an error and nobody else anything.
pub(super) async fn identify(request: Request, next: Next) -> Response {
    let given = request.headers().get(REQUEST_ID);
    let id = match given
        .and_then(|value| value.to_str().ok())
        .filter(|id| is_sane(id))
    {
        Some(id) => id.to_owned(),
        None => made(),
    };
    let span = info_span!("request", request = id, method = %request.method(), path = request.uri().path());
    let served = async {
        // Nothing is shared with the handler that a panic could leave half done: what it works on is
        // behind locks that do not poison, or in the store.
        let caught = std::panic::AssertUnwindSafe(next.run(request)).catch_unwind();
        let response = caught.await.unwrap_or_else(|_| {
            error!("a handler panicked; see above");
            HttpError::internal().into_response()
        });
        match response.status().as_u16() {
            status @ (500 | 504) => warn!(status, "failed"),
            status => info!(status, "answered"),
        }
        response
    };
    let mut response = CURRENT.scope(id.clone(), served.instrument(span)).await;
    if let Ok(value) = HeaderValue::try_from(id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

fn is_sane(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    !id.is_empty() && id.len() <= BYTES_MAX && id.bytes().all(allowed)
}

fn made() -> String {
    // Without random numbers an id is worth less, but not the request.
    let random = getrandom::u64().unwrap_or_default();
    format!("{random:016x}")
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::get;
    use axum::{Router, middleware};
    use tower::ServiceExt;

    use super::*;

    async fn answer(id: Option<&str>, path: &str) -> Response {
        let router = Router::new()
            .route("/id", get(async || current().unwrap_or_default()))
            .route("/panic", get(async || -> () { panic!("on purpose") }))
            .layer(middleware::from_fn(identify));
        let mut request = Request::builder().uri(path);
        if let Some(id) = id {
            request = request.header("x-request-id", id);
        }
        router
            .oneshot(request.body(Body::empty()).unwrap())
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn the_clients_id_is_kept_if_it_is_sane() {
        let response = answer(Some("abc-1.2:3_4"), "/id").await;
        assert_eq!(response.headers()["x-request-id"], "abc-1.2:3_4");
        let body = axum::body::to_bytes(response.into_body(), 100)
            .await
            .unwrap();
        assert_eq!(body, "abc-1.2:3_4");
        for id in [
            None,
            Some(""),
            Some("a b"),
            Some("a\"b"),
            Some(&*"x".repeat(129)),
        ] {
            let response = answer(id, "/id").await;
            let made = response.headers()["x-request-id"].to_str().unwrap();
            assert!(
                made.len() == 16 && made.bytes().all(|b| b.is_ascii_hexdigit()),
                "{made}"
            );
        }
    }

    #[tokio::test]
    async fn a_panic_becomes_an_error_with_the_id() {
        let response = answer(Some("abc"), "/panic").await;
        assert_eq!(response.status().as_u16(), 500);
        let body = axum::body::to_bytes(response.into_body(), 1000)
            .await
            .unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (&body["code"], &body["requestID"]),
            (&500.into(), &"abc".into())
        );
    }
}
