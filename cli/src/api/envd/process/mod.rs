//! The service `process.Process`: commands in a sandbox.

mod input;
mod messages;
mod stream;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::super::error::ErrorBody;
use super::super::state::Shared;
use super::access::Caller;
use super::connect::call::{Empty, Reply, Streaming, Unary};
use super::connect::error::RpcError;
use messages::{
    EventResponse, ListResponse, ProcessInput, ProcessSelector, SelectRequest, SendInputRequest,
    SendSignalRequest, Signal, StartRequest, UpdateRequest,
};

/// Its single requests.
pub(super) fn unary() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(send_input))
        .routes(routes!(close_stdin))
        .routes(routes!(update))
        .routes(routes!(send_signal))
}

/// Its streams.
pub(super) fn streams() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(start))
        .routes(routes!(connect))
        .routes(routes!(input::stream_input))
}

/// Starts a command and follows it. When the client goes away, or the time of the stream is over, the command
/// goes on.
#[utoipa::path(
    post,
    path = "/process.Process/Start",
    tag = "process",
    request_body(content = StartRequest, content_type = "application/connect+json"),
    responses((status = 200, body = EventResponse, content_type = "application/connect+json"), (status = "default", body = ErrorBody)),
)]
async fn start(
    State(api): State<Shared>,
    caller: Caller,
    request: Streaming<StartRequest>,
) -> Response {
    let command = request
        .message
        .and_then(|message| message.into_start(caller.user));
    stream::start(&api, &caller.agent, command, request.times).await
}

/// Follows a command that runs: what is kept of its output comes first.
#[utoipa::path(
    post,
    path = "/process.Process/Connect",
    tag = "process",
    request_body(content = SelectRequest, content_type = "application/connect+json"),
    responses((status = 200, body = EventResponse, content_type = "application/connect+json"), (status = "default", body = ErrorBody)),
)]
async fn connect(
    State(api): State<Shared>,
    caller: Caller,
    request: Streaming<SelectRequest>,
) -> Response {
    let selected = request.message.map(|message| message.process);
    let process = selected.and_then(ProcessSelector::process);
    stream::attach(&api, &caller.agent, process, request.times).await
}

/// Lists the commands that run.
#[utoipa::path(
    post,
    path = "/process.Process/List",
    tag = "process",
    request_body = Empty,
    responses((status = 200, body = ListResponse), (status = "default", body = RpcError)),
)]
async fn list(caller: Caller, Unary(_nothing): Unary<messages::Nothing>) -> Reply<ListResponse> {
    Ok(Json(caller.agent.processes().await?.into()))
}

/// Gives a command input; waits while it does not read.
#[utoipa::path(
    post,
    path = "/process.Process/SendInput",
    tag = "process",
    request_body = SendInputRequest,
    responses((status = 200, body = Empty), (status = "default", body = RpcError)),
)]
async fn send_input(caller: Caller, Unary(request): Unary<SendInputRequest>) -> Reply<Empty> {
    let process = ProcessSelector::process(request.process)?;
    let bytes = ProcessInput::bytes(request.input)?;
    caller.agent.stdin(&process, bytes).await?;
    Ok(Json(Empty {}))
}

/// Ends the input of a command, after all that was given before.
#[utoipa::path(
    post,
    path = "/process.Process/CloseStdin",
    tag = "process",
    request_body = SelectRequest,
    responses((status = 200, body = Empty), (status = "default", body = RpcError)),
)]
async fn close_stdin(caller: Caller, Unary(request): Unary<SelectRequest>) -> Reply<Empty> {
    let process = ProcessSelector::process(request.process)?;
    caller.agent.close_stdin(&process).await?;
    Ok(Json(Empty {}))
}

/// Changes the size of a command's terminal.
#[utoipa::path(
    post,
    path = "/process.Process/Update",
    tag = "process",
    request_body = UpdateRequest,
    responses((status = 200, body = Empty), (status = "default", body = RpcError)),
)]
async fn update(caller: Caller, Unary(request): Unary<UpdateRequest>) -> Reply<Empty> {
    let process = ProcessSelector::process(request.process)?;
    if let Some(pty) = request.pty {
        caller.agent.resize(&process, pty.size()?).await?;
    }
    Ok(Json(Empty {}))
}

/// Sends a signal to a command and its group.
#[utoipa::path(
    post,
    path = "/process.Process/SendSignal",
    tag = "process",
    request_body = SendSignalRequest,
    responses((status = 200, body = Empty), (status = "default", body = RpcError)),
)]
async fn send_signal(caller: Caller, Unary(request): Unary<SendSignalRequest>) -> Reply<Empty> {
    let process = ProcessSelector::process(request.process)?;
    let signal = Signal::number(request.signal.as_ref())?;
    caller.agent.signal(&process, signal).await?;
    Ok(Json(Empty {}))
}
