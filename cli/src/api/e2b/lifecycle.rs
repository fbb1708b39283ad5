//! What happens to a sandbox between its making and its end.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::error::{ErrorBody, HttpError};
use super::super::input::{Input, Name};
use super::super::state::{Api, Shared};
use super::models::Sandbox;
use super::{FORK_TIMEOUT_S, TIMEOUT_S, timeout};
use crate::wire::ForkSandbox;
use crate::wire::sandbox::{Attached, ForkedSandbox};

/// Most forks that one request may ask for.
const FORKS_MAX: u32 = 100;

/// How to go on with a sandbox.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Connect {
    /// Its time from now in seconds, 300 if nothing is said. That of one that runs is only ever made
    /// longer.
    timeout: Option<i64>,
    /// `false`: if it is paused, start its processes anew.
    memory: Option<bool>,
}

/// Has a sandbox run, and says how to reach it.
#[utoipa::path(
    post,
    path = "/sandboxes/{sandbox_id}/connect",
    tag = "sandboxes",
    params(("sandbox_id" = String, Path, description = "Its id")),
    request_body = Connect,
    responses(
        (status = 200, body = Sandbox, description = "It ran already"),
        (status = 201, body = Sandbox, description = "It was resumed"),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
    ),
)]
pub(super) async fn connect(
    State(api): State<Shared>,
    Name(id): Name,
    Input(how): Input<Connect>,
) -> Result<(StatusCode, Json<Sandbox>), HttpError> {
    go_on(&api, id, how).await
}

/// Has a sandbox run, and says how to reach it.
#[utoipa::path(
    post,
    path = "/v2/sandboxes/{sandbox_id}/connect",
    tag = "sandboxes",
    params(("sandbox_id" = String, Path, description = "Its id")),
    request_body = Connect,
    responses(
        (status = 200, body = Sandbox, description = "It ran already"),
        (status = 201, body = Sandbox, description = "It was resumed"),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
    ),
)]
pub(super) async fn connect_v2(
    State(api): State<Shared>,
    Name(id): Name,
    Input(how): Input<Connect>,
) -> Result<(StatusCode, Json<Sandbox>), HttpError> {
    go_on(&api, id, how).await
}

/// Has a sandbox run, as clients asked for it before there was `connect`.
#[utoipa::path(
    post,
    path = "/sandboxes/{sandbox_id}/resume",
    tag = "sandboxes",
    params(("sandbox_id" = String, Path, description = "Its id")),
    request_body = Connect,
    responses(
        (status = 201, body = Sandbox, description = "It runs"),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
    ),
)]
pub(super) async fn resume(
    State(api): State<Shared>,
    Name(id): Name,
    Input(how): Input<Connect>,
) -> Result<(StatusCode, Json<Sandbox>), HttpError> {
    let (_, sandbox) = go_on(&api, id, how).await?;
    Ok((StatusCode::CREATED, sandbox))
}

async fn go_on(
    api: &Api,
    id: String,
    how: Connect,
) -> Result<(StatusCode, Json<Sandbox>), HttpError> {
    let time = timeout(how.timeout, TIMEOUT_S)?;
    let cold = how.memory == Some(false);
    let (attached, token) = api
        .work(move |backend| {
            let attached = backend.resume(&id, Some(time), cold)?;
            Ok((attached, backend.access_token(&id)?))
        })
        .await?;
    let status = match attached.attached {
        Attached::Running => StatusCode::OK,
        Attached::Resumed | Attached::Restored | Attached::Created => StatusCode::CREATED,
    };
    Ok((status, Json(Sandbox::new(api, attached.sandbox, token))))
}

/// How to pause. Nothing of it has an effect: what is paused keeps its processes, frozen.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pause {
    /// Whether processes are to be kept.
    #[serde(rename = "memory")]
    _memory: Option<bool>,
}

/// Freezes a sandbox's processes.
#[utoipa::path(
    post,
    path = "/sandboxes/{sandbox_id}/pause",
    tag = "sandboxes",
    params(("sandbox_id" = String, Path, description = "Its id")),
    request_body = Pause,
    responses(
        (status = 204, description = "It is paused"),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
        (status = 409, body = ErrorBody, description = "It was paused already"),
    ),
)]
pub(super) async fn pause(
    State(api): State<Shared>,
    Name(id): Name,
    Input(_how): Input<Pause>,
) -> Result<StatusCode, HttpError> {
    let already = api.work(move |backend| backend.pause(&id)).await?;
    if already {
        return Err(HttpError::conflict("the sandbox is paused already"));
    }
    Ok(StatusCode::NO_CONTENT)
}

/// The time of a sandbox.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct Timeout {
    /// Seconds from now.
    timeout: i64,
}

/// Sets the time of a sandbox from now, longer or shorter.
#[utoipa::path(
    post,
    path = "/sandboxes/{sandbox_id}/timeout",
    tag = "sandboxes",
    params(("sandbox_id" = String, Path, description = "Its id")),
    request_body = Timeout,
    responses(
        (status = 204, description = "It is so"),
        (status = 400, body = ErrorBody, description = "No such time"),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
    ),
)]
pub(super) async fn set_timeout(
    State(api): State<Shared>,
    Name(id): Name,
    Input(given): Input<Timeout>,
) -> Result<StatusCode, HttpError> {
    let time = timeout(Some(given.timeout), TIMEOUT_S)?;
    api.work(move |backend| backend.set_timeout(&id, time, false))
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How much longer a sandbox is needed.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct Refresh {
    /// Seconds from now; 15 if nothing is said.
    duration: Option<i64>,
}

/// Makes the time of a sandbox longer, never shorter.
#[utoipa::path(
    post,
    path = "/sandboxes/{sandbox_id}/refreshes",
    tag = "sandboxes",
    params(("sandbox_id" = String, Path, description = "Its id")),
    request_body = Refresh,
    responses(
        (status = 204, description = "It is so"),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
    ),
)]
pub(super) async fn refresh(
    State(api): State<Shared>,
    Name(id): Name,
    Input(given): Input<Refresh>,
) -> Result<StatusCode, HttpError> {
    let time = timeout(given.duration, FORK_TIMEOUT_S)?;
    api.work(move |backend| backend.set_timeout(&id, time, true))
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How many further sandboxes to make.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct Fork {
    /// How many: 1 if nothing is said, 100 at the most.
    count: Option<u32>,
    /// Their time in seconds; 15 if nothing is said.
    timeout: Option<i64>,
}

/// One of the sandboxes that were asked for: it, or why there is none.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct ForkResult {
    /// It runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<Sandbox>,
    /// It could not be made.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody>,
}

/// Makes further sandboxes of a sandbox as it is now.
#[utoipa::path(
    post,
    path = "/sandboxes/{sandbox_id}/fork",
    tag = "sandboxes",
    params(("sandbox_id" = String, Path, description = "Its id")),
    request_body = Fork,
    responses(
        (status = 201, body = Vec<ForkResult>, description = "What came of each"),
        (status = 400, body = ErrorBody, description = "Too many"),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
    ),
)]
pub(super) async fn fork(
    State(api): State<Shared>,
    Name(id): Name,
    Input(how): Input<Fork>,
) -> Result<(StatusCode, Json<Vec<ForkResult>>), HttpError> {
    let count = how.count.unwrap_or(1);
    if !(1..=FORKS_MAX).contains(&count) {
        let what = format!("{count} is not between 1 and {FORKS_MAX} forks");
        return Err(HttpError::bad_request(what));
    }
    let request = ForkSandbox {
        sandbox: id,
        count,
        timeout_s: Some(timeout(how.timeout, FORK_TIMEOUT_S)?.as_secs()),
    };
    let made = api
        .work(move |backend| {
            let forks = backend.fork(&request)?.into_iter();
            Ok(forks
                .map(|fork| match fork {
                    ForkedSandbox::Sandbox(made) => {
                        let token = backend.access_token(&made.id)?;
                        Ok((*made, token))
                    }
                    ForkedSandbox::Error(error) => Err(error),
                })
                .collect::<Vec<_>>())
        })
        .await?;
    let results = made.into_iter().map(|one| match one {
        Ok((made, token)) => ForkResult {
            sandbox: Some(Sandbox::new(&api, made, token)),
            error: None,
        },
        Err(error) => ForkResult {
            sandbox: None,
            error: Some(HttpError::from(error).body()),
        },
    });
    Ok((StatusCode::CREATED, Json(results.collect())))
}
