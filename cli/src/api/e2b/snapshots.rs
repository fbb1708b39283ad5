//! Taking snapshots, and finding them.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::super::backend::{Answer, Backend, NamedSnapshot, SnapshotQuery};
use super::super::error::{ErrorBody, HttpError};
use super::super::input::{Input, Name, Params};
use super::super::paging::{self, List, Next};
use super::super::state::Shared;
use crate::error::ErrorKind;
use crate::wire::SnapshotSandbox;
use crate::wire::records::Snapshot;

/// A snapshot. Clients of the contract read the first two members; the others are Floe's own.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SnapshotInfo {
    /// Its id.
    #[serde(rename = "snapshotID")]
    snapshot_id: String,
    /// Its name, if it has one.
    names: Vec<String>,
    /// When it was taken.
    created_at: String,
    /// The sandbox it was taken of, which may be gone.
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    /// The snapshot before it.
    #[serde(rename = "parentID")]
    parent_id: Option<String>,
    /// What it brings back: `filesystem`.
    fidelity: String,
    /// What it alone takes of the disk; absent from lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    /// The message kept with it.
    message: Option<String>,
    /// The labels kept with it.
    labels: BTreeMap<String, String>,
}

impl SnapshotInfo {
    fn new(snapshot: Snapshot, names: Vec<String>) -> Self {
        Self {
            snapshot_id: snapshot.id,
            names,
            created_at: snapshot.created_at,
            sandbox_id: snapshot.workspace,
            parent_id: snapshot.parent,
            fidelity: snapshot.fidelity,
            size_bytes: None,
            message: snapshot.message,
            labels: snapshot.labels,
        }
    }
}

impl From<NamedSnapshot> for SnapshotInfo {
    fn from(found: NamedSnapshot) -> Self {
        Self::new(found.snapshot, found.names)
    }
}

/// What to keep with a snapshot.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct NewSnapshot {
    /// A name, under which sandboxes can be made from it. Given again, it moves on to the new one.
    name: Option<String>,
    /// Taken, and without effect: a snapshot brings files back.
    #[serde(rename = "memory")]
    _memory: Option<bool>,
    /// A message to keep with it.
    message: Option<String>,
    /// Labels to keep with it.
    labels: Option<BTreeMap<String, String>>,
}

/// Takes a snapshot of a sandbox. One that is being taken is the answer to everybody who asks
/// meanwhile.
#[utoipa::path(
    post,
    path = "/sandboxes/{sandbox_id}/snapshots",
    tag = "snapshots",
    params(("sandbox_id" = String, Path, description = "The sandbox's id")),
    request_body = NewSnapshot,
    responses(
        (status = 201, body = SnapshotInfo, description = "It is taken"),
        (status = 400, body = ErrorBody, description = "No such name"),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
        (status = 409, body = ErrorBody, description = "The sandbox's state stands against it"),
        (status = 503, body = ErrorBody, description = "Not at this moment"),
    ),
)]
pub(super) async fn create(
    State(api): State<Shared>,
    Name(id): Name,
    Input(new): Input<NewSnapshot>,
) -> Result<(StatusCode, Json<SnapshotInfo>), HttpError> {
    let request = SnapshotSandbox {
        sandbox: id,
        name: new.name.filter(|name| !name.is_empty()),
        message: new.message,
        labels: new.labels.unwrap_or_default(),
    };
    let (taken, name) = api
        .work(move |backend| Ok((backend.take_snapshot(&request)?, request.name)))
        .await?;
    // Written as it is kept: without the tag that every name has.
    let plain = |name: String| {
        name.strip_suffix(":default")
            .map(str::to_owned)
            .unwrap_or(name)
    };
    let names = name.map(plain).into_iter().collect();
    Ok((StatusCode::CREATED, Json(SnapshotInfo::new(taken, names))))
}

/// Which snapshots to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub(super) struct Filter {
    /// Only those of this sandbox.
    #[serde(rename = "sandboxID")]
    sandbox_id: Option<String>,
    /// Only the one of this name.
    name: Option<String>,
    /// At most this many: 100 if nothing is said, and at the most.
    limit: Option<u64>,
    /// Where the page before ended, as its `x-next-token` says.
    next_token: Option<String>,
}

/// Lists the snapshots that were asked for, newest first.
#[utoipa::path(
    get,
    path = "/snapshots",
    tag = "snapshots",
    params(Filter),
    responses(
        (status = 200, body = Vec<SnapshotInfo>, headers(("x-next-token" = String, description = "Where the next page begins; absent on the last one"))),
        (status = 400, body = ErrorBody, description = "No such token"),
    ),
)]
pub(super) async fn list(
    State(api): State<Shared>,
    Params(filter): Params<Filter>,
) -> Result<(Next, Json<Vec<SnapshotInfo>>), HttpError> {
    let limit = paging::limit(filter.limit)?;
    let query = SnapshotQuery {
        sandbox: filter.sandbox_id,
        name: filter.name,
        after: List::Snapshots.place(filter.next_token.as_deref())?,
        // One more tells whether there is another page.
        limit: limit + 1,
    };
    let found = api.work(move |backend| backend.snapshots(&query)).await?;
    let (next, page) = List::Snapshots.page(found, limit, |found| &found.snapshot.cursor);
    let infos = page.into_iter().map(SnapshotInfo::from);
    Ok((next, Json(infos.collect())))
}

/// Describes a snapshot, with its size.
#[utoipa::path(
    get,
    path = "/snapshots/{snapshot_id}",
    tag = "snapshots",
    params(("snapshot_id" = String, Path, description = "Its id")),
    responses(
        (status = 200, body = SnapshotInfo),
        (status = 404, body = ErrorBody, description = "No such snapshot"),
    ),
)]
pub(super) async fn show(
    State(api): State<Shared>,
    Name(id): Name,
) -> Result<Json<SnapshotInfo>, HttpError> {
    let (found, sizes) = api
        .work(move |backend| {
            let found = backend.snapshot(&id)?;
            let sizes = backend.snapshot_bytes(std::slice::from_ref(&found.snapshot.id))?;
            Ok((found, sizes))
        })
        .await?;
    Ok(Json(SnapshotInfo {
        size_bytes: sizes.first().copied(),
        ..found.into()
    }))
}

/// Deletes what a name or an id stands for. An id is a snapshot's, and never a part of one: what a
/// client deletes it has named in full.
pub(super) fn delete(backend: &dyn Backend, name: &str) -> Answer<()> {
    match backend.snapshot(name) {
        Ok(found) if found.snapshot.id == name => return backend.delete_snapshot(name),
        Ok(_) => {}
        Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Conflict) => {}
        Err(error) => return Err(error),
    }
    let template = backend.template(name)?;
    let found = backend.snapshot(&template.snapshot)?;
    // To clients a named snapshot and its name are one thing. What else a template may stand on is not theirs.
    if found.is_listed && found.names == [template.name.as_str()] {
        return backend.delete_snapshot(&template.snapshot);
    }
    backend.delete_template(&template.name)
}
