//! Snapshots, in Floe's own words.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::super::error::{ErrorBody, HttpError};
use super::super::input::Name;
use super::super::state::Shared;
use crate::wire::records::Snapshot;

/// A snapshot, and what it takes.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SizedSnapshot {
    /// The snapshot.
    #[serde(flatten)]
    snapshot: Snapshot,
    /// The names under which sandboxes can be made from it.
    names: Vec<String>,
    /// What it alone takes of the disk, in bytes: what deleting it would free.
    exclusive_bytes: Option<u64>,
}

/// Describes a snapshot, by id or name.
#[utoipa::path(
    get,
    path = "/floe/v1/snapshots/{snapshot}",
    tag = "floe",
    params(("snapshot" = String, Path, description = "Its id or name")),
    responses(
        (status = 200, body = SizedSnapshot),
        (status = 404, body = ErrorBody, description = "No such snapshot"),
        (status = 409, body = ErrorBody, description = "More than one fits"),
    ),
)]
pub(super) async fn show(
    State(api): State<Shared>,
    Name(reference): Name,
) -> Result<Json<SizedSnapshot>, HttpError> {
    let (found, sizes) = api
        .work(move |backend| {
            let found = backend.snapshot(&reference)?;
            let sizes = backend.snapshot_bytes(std::slice::from_ref(&found.snapshot.id))?;
            Ok((found, sizes))
        })
        .await?;
    Ok(Json(SizedSnapshot {
        snapshot: found.snapshot,
        names: found.names,
        exclusive_bytes: sizes.first().copied(),
    }))
}
