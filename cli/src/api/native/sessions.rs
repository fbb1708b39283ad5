//! Sessions: a key of the client's own, to which one running sandbox belongs at most.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::e2b::{DEFAULT_TEMPLATE, ENVD_VERSION, check_env, check_metadata};
use super::super::error::{ErrorBody, HttpError};
use super::super::input::{Input, Name};
use super::super::state::Shared;
use crate::wire::CreateSandbox;
use crate::wire::sandbox::{AttachedSandbox, Limits, OnTimeout, Sandbox};

/// Longest key of a session in bytes.
const KEY_BYTES_MAX: usize = 255;

/// What a session's sandbox is to be like, if it has to be made.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewSession {
    /// What to start from, if the session has no snapshot: a template's name, or a snapshot's id or name;
    /// `base` if nothing is said.
    template: Option<String>,
    /// What its maker says of it.
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    /// Environment of its processes.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Its time in seconds; it has no end if nothing is said.
    timeout_s: Option<u64>,
    /// What happens when its time is over: `kill` or `pause`.
    #[serde(default)]
    on_timeout: OnTimeout,
    /// Whether a request to it resumes it when it is paused.
    #[serde(default)]
    auto_resume: bool,
    /// Share the host's network, if the configuration allows it.
    #[serde(default)]
    network: bool,
    /// Guard its files and processes with a token of its own; so it is unless `false` is said.
    secure: Option<bool>,
    /// How much it may use.
    #[serde(default)]
    limits: Limits,
}

/// A session's sandbox, and how to reach it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Session {
    /// The sandbox, and how it came to run.
    #[serde(flatten)]
    sandbox: AttachedSandbox,
    /// What its files and processes are guarded with.
    access_token: Option<String>,
    /// The version of its side of the protocol.
    envd_version: &'static str,
    /// The domain below which its ports are found.
    domain: Option<String>,
}

/// Attaches to a session's sandbox. If it is paused it is resumed; if it is gone it is made anew from
/// the session's last snapshot; if there never was one it is made. However many ask at once, there is
/// one.
#[utoipa::path(
    post,
    path = "/floe/v1/sessions/{key}",
    tag = "floe",
    params(("key" = String, Path, description = "The session's key: 1 to 255 bytes")),
    request_body = NewSession,
    responses(
        (status = 200, body = Session, description = "It ran already, or was resumed"),
        (status = 201, body = Session, description = "It was made, new or from a snapshot"),
        (status = 400, body = ErrorBody, description = "The request makes no sense"),
        (status = 404, body = ErrorBody, description = "No such template or snapshot"),
        (status = 503, body = ErrorBody, description = "Not at this moment"),
    ),
)]
pub(super) async fn attach(
    State(api): State<Shared>,
    Name(key): Name,
    Input(new): Input<NewSession>,
) -> Result<(StatusCode, Json<Session>), HttpError> {
    use crate::wire::sandbox::Attached;
    check_key(&key)?;
    check_metadata(&new.metadata)?;
    check_env(&new.env)?;
    let request = CreateSandbox {
        template: Some(new.template.unwrap_or_else(|| DEFAULT_TEMPLATE.to_owned())),
        metadata: new.metadata,
        env: new.env,
        timeout_s: new.timeout_s,
        on_timeout: new.on_timeout,
        auto_resume: new.auto_resume,
        network: new.network,
        secure: new.secure != Some(false),
        limits: new.limits,
        idempotency_key: None,
        session: Some(key),
        vm: None,
    };
    let (sandbox, access_token) = api
        .work(move |backend| {
            let attached = backend.create(&request)?;
            let token = backend.access_token(&attached.sandbox.id)?;
            Ok((attached, token))
        })
        .await?;
    let status = match sandbox.attached {
        Attached::Running | Attached::Resumed => StatusCode::OK,
        Attached::Restored | Attached::Created => StatusCode::CREATED,
    };
    let session = Session {
        sandbox,
        access_token,
        envd_version: ENVD_VERSION,
        domain: api.domain.clone(),
    };
    Ok((status, Json(session)))
}

/// Describes a session's sandbox, and leaves it as it is.
#[utoipa::path(
    get,
    path = "/floe/v1/sessions/{key}",
    tag = "floe",
    params(("key" = String, Path, description = "The session's key")),
    responses(
        (status = 200, body = Sandbox),
        (status = 404, body = ErrorBody, description = "It has none now"),
    ),
)]
pub(super) async fn show(
    State(api): State<Shared>,
    Name(key): Name,
) -> Result<Json<Sandbox>, HttpError> {
    check_key(&key)?;
    Ok(Json(api.work(move |backend| backend.session(&key)).await?))
}

fn check_key(key: &str) -> Result<(), HttpError> {
    match key.len() {
        1..=KEY_BYTES_MAX => Ok(()),
        _ => Err(HttpError::bad_request(format!(
            "a session's key has 1 to {KEY_BYTES_MAX} bytes"
        ))),
    }
}
