//! Following a command.

use axum::response::Response;

use super::super::super::state::Api;
use super::super::connect::call::Times;
use super::super::connect::error::{Code, RpcError};
use super::super::connect::live::{self, Fed, Feed};
use super::super::failure;
use super::messages::{Event, EventResponse, Nothing};
use crate::agent::{Agent, ProcessEvent, ProcessRef, ProcessStream, StartProcess};

/// Starts a command and follows it.
pub(super) async fn start(
    api: &Api,
    agent: &Agent,
    command: Result<StartProcess, RpcError>,
    times: Times,
) -> Response {
    let started = match command {
        Ok(command) => agent.start(command).await.map_err(failure::not_started),
        Err(error) => Err(error),
    };
    follow(api, started, times)
}

/// Follows a command that runs.
pub(super) async fn attach(
    api: &Api,
    agent: &Agent,
    process: Result<ProcessRef, RpcError>,
    times: Times,
) -> Response {
    let attached = match process {
        Ok(process) => agent.attach(process).await.map_err(RpcError::from),
        Err(error) => Err(error),
    };
    follow(api, attached, times)
}

fn follow(api: &Api, process: Result<ProcessStream, RpcError>, times: Times) -> Response {
    match process {
        Ok(process) => {
            let first = Event::Start { pid: process.pid }.into();
            live::answer(first, Followed(process), times, api.ending.clone())
        }
        Err(error) => live::end::<EventResponse>(Err(error)),
    }
}

struct Followed(ProcessStream);

impl Feed for Followed {
    type Message = EventResponse;

    fn keepalive(&self) -> EventResponse {
        Event::Keepalive(Nothing {}).into()
    }

    async fn next(&mut self) -> Fed<EventResponse> {
        loop {
            let Some(event) = self.0.next().await else {
                let why = self.0.error().cloned().map(RpcError::from);
                let what = "the connection to the sandbox ended";
                let why = why.unwrap_or_else(|| RpcError::new(Code::Unavailable, what));
                return Fed::End(Err(why));
            };
            let last = matches!(event, ProcessEvent::End { .. });
            match Event::of(event) {
                Some(event) if last => return Fed::Last(event.into()),
                Some(event) => return Fed::More(event.into()),
                None => {}
            }
        }
    }
}
