//! A sandbox's files and processes, as clients expect them behind port 49983 of it.
//!
//! In the wire contract a program inside the sandbox answers here. With Floe it is the daemon, which
//! speaks to the agent in the sandbox: a stream survives a snapshot, and what is asked of a sandbox
//! that is gone has an answer.

mod access;
mod connect;
mod failure;
mod files;
mod filesystem;
mod json;
mod process;
mod status;
mod unnamed;

use axum::{Router, middleware};
use utoipa_axum::router::OpenApiRouter;

use super::error::HttpError;
use super::state::Shared;
use access::authenticate;
pub(super) use access::{SandboxId, reach};
pub(super) use filesystem::Watchers;
pub(super) use unnamed::name_sandbox;

/// What is served here.
pub(super) fn router(api: &Shared) -> (Router, utoipa::openapi::OpenApi) {
    let limit = middleware::from_fn_with_state(api.clone(), connect::call::limit_time);
    let unary = process::unary()
        .merge(filesystem::unary())
        .merge(status::guarded())
        .layer(limit);
    let guarded = unary.merge(process::streams()).merge(filesystem::streams());
    let guarded = guarded.layer(middleware::from_fn_with_state(api.clone(), authenticate));
    let (router, document) = OpenApiRouter::with_openapi(super::rest::described(
        "Floe: files and processes of a sandbox",
        "X-Access-Token",
    ))
    .merge(guarded)
    .merge(files::router())
    .merge(status::open())
    .split_for_parts();
    let router = router
        .fallback(async || HttpError::not_found("there is no such path"))
        .method_not_allowed_fallback(async || HttpError::method_not_allowed())
        .with_state(api.clone());
    (router, document)
}
