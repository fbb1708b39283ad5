//! How a sandbox is: whether it runs, what it uses, what its commands find in their environment.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::super::error::{ErrorBody, HttpError};
use super::super::state::Shared;
use super::access::{Caller, sandbox};
use super::failure;
use crate::wire::sandbox::SandboxState;

/// Routes for everybody.
pub(super) fn open() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(health))
}

/// Routes for who has the token.
pub(super) fn guarded() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(metrics))
        .routes(routes!(envs))
}

/// Says whether the sandbox runs. Asking resumes nothing.
#[utoipa::path(
    get,
    path = "/health",
    tag = "status",
    security(()),
    responses(
        (status = 204, description = "It runs"),
        (status = 502, body = ErrorBody, description = "It does not"),
    ),
)]
async fn health(State(api): State<Shared>, parts: Parts) -> Result<StatusCode, HttpError> {
    let id = sandbox(&parts)?;
    let name = id.clone();
    let found = api.work(move |backend| backend.sandbox(&name)).await;
    let found = found.map_err(|error| match error.status {
        StatusCode::NOT_FOUND => HttpError::gone(&id),
        _ => error,
    })?;
    match found.state {
        SandboxState::Running | SandboxState::Snapshotting => Ok(StatusCode::NO_CONTENT),
        _ => Err(HttpError::gone(&id)),
    }
}

/// What a sandbox uses, as its own system says it.
#[derive(Debug, Serialize, ToSchema)]
struct Metrics {
    /// Seconds since 1970.
    ts: i64,
    /// Processors.
    cpu_count: u32,
    /// How much of them was used since the system started, in percent.
    cpu_used_pct: f64,
    /// Bytes of memory.
    mem_total: u64,
    /// Of them, in use.
    mem_used: u64,
    /// Of them, copies of files.
    mem_cache: u64,
    /// Bytes of the root's file system in use.
    disk_used: u64,
    /// Bytes of it.
    disk_total: u64,
}

/// Tells what the sandbox uses, as its own system says it. What is counted for the sandbox alone is at
/// `/sandboxes/{sandbox_id}/metrics`.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "status",
    responses((status = 200, body = Metrics), (status = "default", body = ErrorBody)),
)]
async fn metrics(caller: Caller) -> Result<Json<Metrics>, HttpError> {
    let told = caller.agent.metrics().await;
    let told = told.map_err(|error| failure::status(&caller.sandbox, &error))?;
    let hundredths = told.cpu_busy_us.saturating_mul(10_000) / told.cpu_total_us.max(1);
    Ok(Json(Metrics {
        ts: told.at_secs,
        cpu_count: told.cpu_count,
        cpu_used_pct: f64::from(u32::try_from(hundredths).unwrap_or(u32::MAX)) / 100.0,
        mem_total: told.memory_total,
        mem_used: told.memory_used,
        mem_cache: told.memory_cached,
        disk_used: told.disk_used,
        disk_total: told.disk_total,
    }))
}

/// Tells what every command finds in its environment, as the sandbox was made.
#[utoipa::path(
    get,
    path = "/envs",
    tag = "status",
    responses((status = 200, body = BTreeMap<String, String>), (status = "default", body = ErrorBody)),
)]
async fn envs(
    State(api): State<Shared>,
    caller: Caller,
) -> Result<Json<BTreeMap<String, String>>, HttpError> {
    let found = api
        .work(move |backend| backend.environment(&caller.sandbox))
        .await?;
    Ok(Json(found))
}
