//! Sandboxes, in Floe's own words.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::super::error::{ErrorBody, HttpError};
use super::super::input::{Input, Name, Params};
use super::super::paging::{self, List, Next};
use super::super::state::Shared;
use crate::wire::ListSandboxes;
use crate::wire::sandbox::{Sandbox, SandboxState};

/// Which sandboxes to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct Filter {
    /// Only those in one of these states, with commas between them.
    state: Option<String>,
    /// Only those started from this, as it was asked for.
    template: Option<String>,
    /// Only those made at this time or later, RFC 3339.
    since: Option<String>,
    /// Oldest first.
    oldest_first: bool,
    /// At most this many: 100 if nothing is said, and at the most.
    limit: Option<u64>,
    /// Where the page before ended, as its `x-next-token` says.
    next_token: Option<String>,
}

/// Lists sandboxes, newest first unless asked otherwise.
#[utoipa::path(
    get,
    path = "/floe/v1/sandboxes",
    tag = "floe",
    params(Filter),
    responses(
        (status = 200, body = Vec<Sandbox>, headers(("x-next-token" = String, description = "Where the next page begins; absent on the last one"))),
        (status = 400, body = ErrorBody, description = "No such state, time or token"),
    ),
)]
pub(super) async fn list(
    State(api): State<Shared>,
    Params(filter): Params<Filter>,
) -> Result<(Next, Json<Vec<Sandbox>>), HttpError> {
    let limit = paging::limit(filter.limit)?;
    let list = match filter.oldest_first {
        true => List::SandboxesOldest,
        false => List::SandboxesNewest,
    };
    let words = filter.state.unwrap_or_default();
    let states: Option<Vec<SandboxState>> = words
        .split(',')
        .filter(|word| !word.is_empty())
        .map(SandboxState::parse)
        .collect();
    let request = ListSandboxes {
        states: states.ok_or_else(|| HttpError::bad_request("there is no such state"))?,
        metadata: BTreeMap::new(),
        template: filter.template,
        since: filter.since,
        oldest_first: filter.oldest_first,
        after: list.place(filter.next_token.as_deref())?,
        limit: Some(limit + 1),
    };
    let found = api.work(move |backend| backend.sandboxes(&request)).await?;
    let (next, page) = list.page(found, limit, |sandbox| &sandbox.cursor);
    Ok((next, Json(page)))
}

/// Describes a sandbox.
#[utoipa::path(
    get,
    path = "/floe/v1/sandboxes/{sandbox_id}",
    tag = "floe",
    params(("sandbox_id" = String, Path, description = "Its id")),
    responses(
        (status = 200, body = Sandbox),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
    ),
)]
pub(super) async fn show(
    State(api): State<Shared>,
    Name(id): Name,
) -> Result<Json<Sandbox>, HttpError> {
    Ok(Json(api.work(move |backend| backend.sandbox(&id)).await?))
}

/// Where to put a sandbox back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Rollback {
    /// A snapshot, by id or name.
    snapshot: String,
}

/// Puts a sandbox back on a snapshot: its processes are ended, and it is started again.
#[utoipa::path(
    post,
    path = "/floe/v1/sandboxes/{sandbox_id}/rollback",
    tag = "floe",
    params(("sandbox_id" = String, Path, description = "Its id")),
    request_body = Rollback,
    responses(
        (status = 200, body = Sandbox, description = "It runs on the snapshot"),
        (status = 404, body = ErrorBody, description = "No such sandbox or snapshot"),
        (status = 409, body = ErrorBody, description = "The sandbox's state stands against it"),
    ),
)]
pub(super) async fn rollback(
    State(api): State<Shared>,
    Name(id): Name,
    Input(to): Input<Rollback>,
) -> Result<Json<Sandbox>, HttpError> {
    let done = api
        .work(move |backend| backend.rollback(&id, &to.snapshot))
        .await?;
    Ok(Json(done))
}
