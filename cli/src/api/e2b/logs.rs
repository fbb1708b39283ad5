//! What happened in and to a sandbox, in both shapes of the contract.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::super::error::{ErrorBody, HttpError};
use super::super::input::{Name, Params};
use super::super::state::Shared;
use crate::wire::sandbox::SandboxLogLine;

/// Most lines in an answer, and how many there are when nothing is said.
const LINES_MAX: usize = 1000;
/// Most lines that are looked through for those that were asked for.
const LINES_SEARCHED_MAX: usize = 100_000;

/// A line.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LogLine {
    /// When.
    timestamp: String,
    /// What happened.
    line: String,
}

/// A line and what is known of it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LogEntry {
    /// When.
    timestamp: String,
    /// What happened.
    message: String,
    /// `info`, `warn` or `error`.
    level: String,
    /// Always empty.
    fields: BTreeMap<String, String>,
}

/// Lines of a log, in two forms.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Logs {
    /// As plain text.
    logs: Vec<LogLine>,
    /// With what is known of them.
    log_entries: Vec<LogEntry>,
}

/// Lines of a log.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LogsV2 {
    /// With what is known of them.
    logs: Vec<LogEntry>,
}

/// Which lines.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct Since {
    /// Only those since then, in milliseconds since 1970.
    start: Option<i64>,
    /// At most this many: 1000 if nothing is said, and at the most.
    limit: Option<usize>,
}

/// Tells what happened in and to a sandbox, oldest first.
#[utoipa::path(
    get,
    path = "/sandboxes/{sandbox_id}/logs",
    tag = "sandboxes",
    params(("sandbox_id" = String, Path, description = "Its id"), Since),
    responses(
        (status = 200, body = Logs),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
    ),
)]
pub(super) async fn logs(
    State(api): State<Shared>,
    Name(id): Name,
    Params(since): Params<Since>,
) -> Result<Json<Logs>, HttpError> {
    let filter = Filter {
        cursor: since.start,
        limit: since.limit,
        ..Filter::default()
    };
    let lines = api
        .work(move |backend| backend.logs(&id, LINES_SEARCHED_MAX))
        .await?;
    let log_entries = filter.select(lines)?;
    let logs = log_entries.iter().map(|entry| LogLine {
        timestamp: entry.timestamp.clone(),
        line: entry.message.clone(),
    });
    Ok(Json(Logs {
        logs: logs.collect(),
        log_entries,
    }))
}

/// Which lines.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct Filter {
    /// Only those since then (forward) or until then (backward), in milliseconds since 1970.
    cursor: Option<i64>,
    /// At most this many: 1000 if nothing is said, and at the most.
    limit: Option<usize>,
    /// `forward` (oldest first, as when nothing is said) or `backward`.
    direction: Option<String>,
    /// Only those of this level or a worse one.
    level: Option<String>,
    /// Only those with this text in them.
    search: Option<String>,
}

/// Tells what happened in and to a sandbox.
#[utoipa::path(
    get,
    path = "/v2/sandboxes/{sandbox_id}/logs",
    tag = "sandboxes",
    params(("sandbox_id" = String, Path, description = "Its id"), Filter),
    responses(
        (status = 200, body = LogsV2),
        (status = 400, body = ErrorBody, description = "No such direction or level"),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
    ),
)]
pub(super) async fn logs_v2(
    State(api): State<Shared>,
    Name(id): Name,
    Params(filter): Params<Filter>,
) -> Result<Json<LogsV2>, HttpError> {
    let lines = api
        .work(move |backend| backend.logs(&id, LINES_SEARCHED_MAX))
        .await?;
    Ok(Json(LogsV2 {
        logs: filter.select(lines)?,
    }))
}

impl Filter {
    /// Those of the lines, which are oldest first, that were asked for.
    fn select(&self, lines: Vec<SandboxLogLine>) -> Result<Vec<LogEntry>, HttpError> {
        let forward = match self.direction.as_deref() {
            None | Some("forward") => true,
            Some("backward") => false,
            Some(_) => {
                let what = "the direction is `forward` or `backward`";
                return Err(HttpError::bad_request(what));
            }
        };
        let least = match self.level.as_deref() {
            None => 0,
            Some(word) => gravity(word).ok_or_else(|| {
                HttpError::bad_request("the level is `debug`, `info`, `warn` or `error`")
            })?,
        };
        let fits = |line: &SandboxLogLine| {
            let time = line.at.parse::<Timestamp>().map(Timestamp::as_millisecond);
            let in_time = match (self.cursor, time) {
                (Some(cursor), Ok(time)) if forward => time >= cursor,
                (Some(cursor), Ok(time)) => time <= cursor,
                _ => true,
            };
            let found = self
                .search
                .as_deref()
                .is_none_or(|text| line.message.contains(text));
            in_time && found && gravity(&line.level).unwrap_or(0) >= least
        };
        let entry = |line: SandboxLogLine| LogEntry {
            timestamp: line.at,
            message: line.message,
            level: line.level,
            fields: BTreeMap::new(),
        };
        let limit = self.limit.unwrap_or(LINES_MAX).min(LINES_MAX);
        let found = lines.into_iter().filter(fits).map(entry);
        Ok(match forward {
            true => found.take(limit).collect(),
            false => found.rev().take(limit).collect(),
        })
    }
}

/// How bad a level is.
fn gravity(level: &str) -> Option<u8> {
    ["debug", "info", "warn", "error"]
        .iter()
        .zip(0..)
        .find_map(|(word, gravity)| (*word == level).then_some(gravity))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(filter: &Filter) -> Vec<String> {
        let line = |second: u8, level: &str, message: &str| SandboxLogLine {
            at: format!("1970-01-01T00:00:0{second}Z"),
            level: level.to_owned(),
            message: message.to_owned(),
        };
        let lines = vec![
            line(1, "info", "started"),
            line(2, "warn", "low on memory"),
            line(3, "error", "killed"),
        ];
        let found = filter.select(lines).unwrap();
        found.into_iter().map(|entry| entry.message).collect()
    }

    #[test]
    fn lines_are_selected_as_asked_for() {
        let all = Filter::default();
        assert_eq!(select(&all), ["started", "low on memory", "killed"]);
        let filter = Filter {
            direction: Some("backward".to_owned()),
            cursor: Some(2000),
            ..Filter::default()
        };
        assert_eq!(select(&filter), ["low on memory", "started"]);
        let filter = Filter {
            cursor: Some(2000),
            limit: Some(1),
            ..Filter::default()
        };
        assert_eq!(select(&filter), ["low on memory"]);
        let filter = Filter {
            level: Some("warn".to_owned()),
            search: Some("kill".to_owned()),
            ..Filter::default()
        };
        assert_eq!(select(&filter), ["killed"]);
    }

    #[test]
    fn strange_words_are_refused() {
        for filter in [
            Filter {
                direction: Some("up".to_owned()),
                ..Filter::default()
            },
            Filter {
                level: Some("loud".to_owned()),
                ..Filter::default()
            },
        ] {
            assert_eq!(filter.select(Vec::new()).unwrap_err().status.as_u16(), 400);
        }
    }
}
