//! A stream of input for one command.

use std::pin::pin;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;

use super::super::super::error::ErrorBody;
use super::super::super::state::{Api, Shared};
use super::super::access::Caller;
use super::super::connect::call::{Empty, Times, expect, parse};
use super::super::connect::envelope::Decoder;
use super::super::connect::error::{Code, RpcError};
use super::super::connect::live;
use super::messages::{ProcessInput, ProcessSelector, StreamInputRequest};
use crate::agent::{Agent, ProcessRef};

/// Gives a command input as it comes.
#[utoipa::path(
    post,
    path = "/process.Process/StreamInput",
    tag = "process",
    request_body(content = StreamInputRequest, content_type = "application/connect+json"),
    responses((status = 200, body = Empty, content_type = "application/connect+json"), (status = "default", body = ErrorBody)),
)]
pub(super) async fn stream_input(
    State(api): State<Shared>,
    caller: Caller,
    request: Request,
) -> Response {
    let times = expect(request.headers(), "application/connect+json")
        .and_then(|()| Times::of(request.headers()));
    let times = match times {
        Ok(times) => times,
        Err(error) => return error.into_response(),
    };
    let given = give(&api, &caller.agent, request.into_body());
    let given = tokio::select! {
        given = given => given,
        () = over(times.timeout) => {
            let what = "the time of the stream is over";
            Err(RpcError::new(Code::DeadlineExceeded, what))
        }
        () = api.ending.cancelled() => {
            Err(RpcError::new(Code::Unavailable, "the daemon is ending"))
        }
    };
    live::end(given.map(|()| Empty {}))
}

async fn over(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout).await,
        None => std::future::pending().await,
    }
}

async fn give(api: &Api, agent: &Agent, body: Body) -> Result<(), RpcError> {
    let mut decoder = Decoder::new(api.config.request_bytes_max);
    let mut chunks = pin!(body.into_data_stream());
    let mut process = None;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| {
            let what = format!("the stream of input broke off: {error}");
            RpcError::new(Code::InvalidArgument, what)
        })?;
        decoder.feed(&chunk);
        while let Some(data) = decoder.next()? {
            let taken = take(agent, &mut process, parse(&data)?);
            let taken = tokio::time::timeout(api.idle_time_max(), taken).await;
            taken.map_err(|_| {
                RpcError::new(Code::DeadlineExceeded, "the command takes no input")
            })??;
        }
    }
    Ok(decoder.finish()?)
}

async fn take(
    agent: &Agent,
    process: &mut Option<ProcessRef>,
    message: StreamInputRequest,
) -> Result<(), RpcError> {
    if let Some(start) = message.start {
        *process = Some(ProcessSelector::process(start.process)?);
    } else if let Some(data) = message.data {
        let missing = || RpcError::new(Code::InvalidArgument, "the first message names a process");
        let process = process.as_ref().ok_or_else(missing)?;
        agent
            .stdin(process, ProcessInput::bytes(data.input)?)
            .await?;
    } else if message.keepalive.is_none() {
        let what = "a message of a stream of input has `start`, `data` or `keepalive`";
        return Err(RpcError::new(Code::InvalidArgument, what));
    }
    Ok(())
}
