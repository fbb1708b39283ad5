//! The REST API of the wire contract that the published `e2b` and `ucloud_sandbox` packages speak,
//! in both of its generations (`/sandboxes` and `/v2/sandboxes`).
//!
//! Where the contract leaves a choice, asking twice is safe: what is so already succeeds, or is
//! answered with the status that clients take for success.

mod create;
mod lifecycle;
mod logs;
mod metrics;
mod models;
mod network;
mod sandboxes;
mod snapshots;
mod templates;

use std::time::Duration;

use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::HttpError;
use super::state::Shared;
pub(super) use create::{check_env, check_metadata};
pub(super) use metrics::History;
pub(super) use models::ENVD_VERSION;

/// What a sandbox starts from when nothing is said.
pub(super) const DEFAULT_TEMPLATE: &str = "base";
/// A sandbox's time in seconds when nothing is said.
const TIMEOUT_S: u64 = 300;
/// The same of a fork, and of a refresh.
const FORK_TIMEOUT_S: u64 = 15;
/// Longest time of a sandbox in seconds: a year.
const TIMEOUT_S_MAX: i64 = 365 * 24 * 3600;

/// Its routes.
pub(super) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(create::create, sandboxes::list))
        .routes(routes!(create::create_v2, sandboxes::list_v2))
        .routes(routes!(metrics::of_many))
        .routes(routes!(sandboxes::show, sandboxes::kill))
        .routes(routes!(lifecycle::connect))
        .routes(routes!(lifecycle::connect_v2))
        .routes(routes!(lifecycle::resume))
        .routes(routes!(lifecycle::pause))
        .routes(routes!(lifecycle::set_timeout))
        .routes(routes!(lifecycle::refresh))
        .routes(routes!(lifecycle::fork))
        .routes(routes!(metrics::metrics))
        .routes(routes!(network::put_network))
        .routes(routes!(logs::logs))
        .routes(routes!(logs::logs_v2))
        .routes(routes!(snapshots::create))
        .routes(routes!(snapshots::list))
        .routes(routes!(snapshots::show))
        .routes(routes!(templates::list))
        .routes(routes!(templates::list_v2))
        .routes(routes!(templates::show, templates::delete))
        .routes(routes!(templates::by_alias))
}

/// Says that the daemon serves. Needs no key.
#[utoipa::path(get, path = "/health", tag = "health", security(()), responses((status = 200)))]
pub(super) async fn health() -> StatusCode {
    StatusCode::OK
}

/// A time that was given in seconds, or the usual one.
fn timeout(given: Option<i64>, usual_s: u64) -> Result<Duration, HttpError> {
    let Some(seconds) = given else {
        return Ok(Duration::from_secs(usual_s));
    };
    match u64::try_from(seconds) {
        Ok(positive) if seconds <= TIMEOUT_S_MAX => Ok(Duration::from_secs(positive)),
        _ => Err(HttpError::bad_request(format!(
            "{seconds} is not between 0 and {TIMEOUT_S_MAX} seconds"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_bounds() {
        assert_eq!(timeout(None, 300).unwrap().as_secs(), 300);
        assert_eq!(timeout(Some(0), 300).unwrap().as_secs(), 0);
        assert!(timeout(Some(TIMEOUT_S_MAX), 300).is_ok());
        for wrong in [-1, TIMEOUT_S_MAX + 1, i64::MAX, i64::MIN] {
            assert!(timeout(Some(wrong), 300).is_err(), "{wrong}");
        }
    }
}
