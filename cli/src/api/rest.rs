//! The REST API: its routes with what stands before them all (who asks, and how long it may take),
//! and the document that describes it.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tracing::error;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, InfoBuilder, OpenApi, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::HttpError;
use super::state::Shared;
use super::{e2b, native};

/// The header with a client's key.
const API_KEY: &str = "x-api-key";

/// The REST API, and what describes it. It also serves what describes the files and processes of a
/// sandbox.
pub(super) fn router(api: &Shared, envd: &OpenApi) -> (Router, OpenApi) {
    let guarded = e2b::router().merge(native::router());
    let guarded = guarded.layer(middleware::from_fn_with_state(api.clone(), authenticate));
    let described = described("Floe: sandboxes, snapshots and templates", "X-API-KEY");
    let open = OpenApiRouter::with_openapi(described).routes(routes!(e2b::health));
    let (router, document) = open.merge(guarded).split_for_parts();
    let (rest, envd) = (document.clone(), envd.clone());
    let router = router
        .route("/openapi.json", get(async move || Json(rest)))
        .route("/openapi.envd.json", get(async move || Json(envd)))
        .fallback(async || HttpError::not_found("there is no such path"))
        .method_not_allowed_fallback(async || HttpError::method_not_allowed())
        .layer(middleware::from_fn_with_state(api.clone(), limit_time))
        .with_state(api.clone());
    (router, document)
}

/// The beginning of a document: what it is about, and the header with what lets a client in.
pub(super) fn described(title: &str, header: &str) -> OpenApi {
    let info = InfoBuilder::new()
        .title(title)
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("What cannot be said here is in docs/api.md."));
    let mut components = Components::new();
    let key = ApiKey::Header(ApiKeyValue::new(header));
    components.add_security_scheme("key", SecurityScheme::ApiKey(key));
    OpenApiBuilder::new()
        .info(info.build())
        .components(Some(components))
        .security(Some([SecurityRequirement::new::<_, _, &str>("key", [])]))
        .build()
}

/// Lets in who has a key.
async fn authenticate(
    State(api): State<Shared>,
    headers: HeaderMap,
    request: Request,
    next: Next,
) -> Response {
    let Some(key) = headers.get(API_KEY) else {
        return HttpError::unauthorized("there is no `X-API-KEY`").into_response();
    };
    match api.keys.check(key.as_bytes()) {
        Ok(Some(name)) => {
            tracing::debug!(key = name, "let in");
            next.run(request).await
        }
        Ok(None) => HttpError::unauthorized("that key is not known").into_response(),
        Err(error) => {
            error!(%error, "nobody is let in");
            HttpError::failed("the keys cannot be read").into_response()
        }
    }
}

/// Answers in time. What was begun goes on: it cannot be taken back half way.
pub(super) async fn limit_time(
    State(api): State<Shared>,
    request: Request,
    next: Next,
) -> Response {
    let limit = Duration::from_secs(api.config.request_time_max_s);
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let what = "it takes too long; it may still happen, or have happened";
            HttpError::timed_out(what).into_response()
        }
    }
}
