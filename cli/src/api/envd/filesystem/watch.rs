//! A stream that tells what happens in a directory.

use axum::extract::State;
use axum::response::Response;

use super::super::super::error::ErrorBody;
use super::super::super::state::Shared;
use super::super::access::Caller;
use super::super::connect::call::Streaming;
use super::super::connect::error::{Code, RpcError};
use super::super::connect::live::{self, Fed, Feed};
use super::messages::{FilesystemEvent, WatchDirResponse, WatchRequest};
use crate::agent::Watch;

/// What is said where so much changed that not all of it is known.
pub(super) const LOST: &str = "so much changed that some of it is not told";

/// Tells what happens in a directory.
#[utoipa::path(
    post,
    path = "/filesystem.Filesystem/WatchDir",
    tag = "filesystem",
    request_body(content = WatchRequest, content_type = "application/connect+json"),
    responses((status = 200, body = WatchDirResponse, content_type = "application/connect+json"), (status = "default", body = ErrorBody)),
)]
pub(super) async fn watch_dir(
    State(api): State<Shared>,
    caller: Caller,
    request: Streaming<WatchRequest>,
) -> Response {
    let started = match request.message {
        Ok(message) => {
            let WatchRequest {
                path,
                recursive,
                include_entry,
                ..
            } = message;
            let user = caller.user.as_deref();
            let watch = caller.agent.watch(&path, user, recursive).await;
            watch
                .map(|watch| Watched {
                    watch,
                    include_entry,
                })
                .map_err(RpcError::from)
        }
        Err(error) => Err(error),
    };
    match started {
        Ok(feed) => {
            let first = WatchDirResponse::Start {};
            live::answer(first, feed, request.times, api.ending.clone())
        }
        Err(error) => live::end::<WatchDirResponse>(Err(error)),
    }
}

struct Watched {
    watch: Watch,
    include_entry: bool,
}

impl Feed for Watched {
    type Message = WatchDirResponse;

    fn keepalive(&self) -> WatchDirResponse {
        WatchDirResponse::Keepalive {}
    }

    async fn next(&mut self) -> Fed<WatchDirResponse> {
        match self.watch.next().await {
            Some(event) => match FilesystemEvent::of(event, self.include_entry) {
                Some(event) => Fed::More(WatchDirResponse::Filesystem(Box::new(event))),
                None => Fed::End(Err(RpcError::new(Code::DataLoss, LOST))),
            },
            None => Fed::End(Err(ended(&self.watch))),
        }
    }
}

/// Why nothing more is told.
pub(super) fn ended(watch: &Watch) -> RpcError {
    match watch.error().cloned() {
        Some(error) => error.into(),
        None => RpcError::new(Code::NotFound, "what was watched is gone"),
    }
}
