//! The service `filesystem.Filesystem`: what is where in a sandbox, and what changes there.

mod messages;
mod watch;
mod watchers;

use axum::Json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::super::state::Shared;
use super::access::Caller;
use super::connect::call::{Empty, Reply, Unary};
use super::connect::error::RpcError;
use crate::agent::AgentError;
use messages::{
    EntryInfo, EntryResponse, ListDirRequest, ListDirResponse, MoveRequest, PathRequest,
};
pub(in super::super) use watchers::Watchers;

/// Its single requests.
pub(super) fn unary() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(stat))
        .routes(routes!(make_dir))
        .routes(routes!(rename))
        .routes(routes!(list_dir))
        .routes(routes!(remove))
        .routes(routes!(watchers::create_watcher))
        .routes(routes!(watchers::get_watcher_events))
        .routes(routes!(watchers::remove_watcher))
}

/// Its stream.
pub(super) fn streams() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(watch::watch_dir))
}

/// Tells what is at a path. A link is not followed.
#[utoipa::path(
    post,
    path = "/filesystem.Filesystem/Stat",
    tag = "filesystem",
    request_body = PathRequest,
    responses((status = 200, body = EntryResponse), (status = "default", body = RpcError)),
)]
async fn stat(caller: Caller, Unary(request): Unary<PathRequest>) -> Reply<EntryResponse> {
    let user = caller.user.as_deref();
    Ok(Json(caller.agent.stat(&request.path, user).await?.into()))
}

/// Makes a directory, with those above it.
#[utoipa::path(
    post,
    path = "/filesystem.Filesystem/MakeDir",
    tag = "filesystem",
    request_body = PathRequest,
    responses((status = 200, body = EntryResponse), (status = "default", body = RpcError)),
)]
async fn make_dir(caller: Caller, Unary(request): Unary<PathRequest>) -> Reply<EntryResponse> {
    let user = caller.user.as_deref();
    let made = caller.agent.make_dir(&request.path, user).await?;
    Ok(Json(made.into()))
}

/// Gives something another path.
#[utoipa::path(
    post,
    path = "/filesystem.Filesystem/Move",
    tag = "filesystem",
    request_body = MoveRequest,
    responses((status = 200, body = EntryResponse), (status = "default", body = RpcError)),
)]
async fn rename(caller: Caller, Unary(request): Unary<MoveRequest>) -> Reply<EntryResponse> {
    let MoveRequest {
        source,
        destination,
    } = request;
    let user = caller.user.as_deref();
    let moved = caller.agent.rename(&source, &destination, user).await?;
    Ok(Json(moved.into()))
}

/// Lists what is in a directory.
#[utoipa::path(
    post,
    path = "/filesystem.Filesystem/ListDir",
    tag = "filesystem",
    request_body = ListDirRequest,
    responses((status = 200, body = ListDirResponse), (status = "default", body = RpcError)),
)]
async fn list_dir(caller: Caller, Unary(request): Unary<ListDirRequest>) -> Reply<ListDirResponse> {
    let (user, depth) = (caller.user.as_deref(), request.depth.max(1));
    let found = caller.agent.list(&request.path, user, depth).await?;
    Ok(Json(ListDirResponse {
        entries: found.into_iter().map(EntryInfo::from).collect(),
    }))
}

/// Removes what is at a path, with everything below it. What is gone already is fine.
#[utoipa::path(
    post,
    path = "/filesystem.Filesystem/Remove",
    tag = "filesystem",
    request_body = PathRequest,
    responses((status = 200, body = Empty), (status = "default", body = RpcError)),
)]
async fn remove(caller: Caller, Unary(request): Unary<PathRequest>) -> Reply<Empty> {
    let user = caller.user.as_deref();
    match caller.agent.remove(&request.path, user).await {
        Ok(()) | Err(AgentError::NotFound { .. }) => Ok(Json(Empty {})),
        Err(error) => Err(error.into()),
    }
}
