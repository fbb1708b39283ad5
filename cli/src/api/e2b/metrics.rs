//! What sandboxes use.
//!
//! Usage is measured when somebody asks. What was measured is kept for a while, so that whoever
//! asks again and again, as a dashboard does, sees a course.

use std::collections::{BTreeMap, HashMap, VecDeque};

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::super::backend::{Answer, Backend, Host};
use super::super::error::{ErrorBody, HttpError};
use super::super::input::{Name, Params};
use super::super::state::Shared;
use super::models::cpus;
use crate::error::ErrorKind;

/// Measurements that are kept of a sandbox.
const KEPT_MAX: usize = 720;
/// Sandboxes of which some are kept.
const SANDBOXES_MAX: usize = 1024;
/// Most sandboxes that one request may ask for.
const ASKED_MAX: usize = 100;

/// What a sandbox used at one time.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in super::super) struct Metric {
    /// When.
    timestamp: String,
    /// The same, in seconds since 1970.
    timestamp_unix: i64,
    /// Processors it may use.
    cpu_count: u64,
    /// How much of them it used of late, in percent.
    cpu_used_pct: f64,
    /// Bytes of memory in use.
    mem_used: u64,
    /// Bytes of memory it may use.
    mem_total: u64,
    /// Bytes of memory that hold copies of files.
    mem_cache: u64,
    /// Bytes its files take.
    disk_used: u64,
    /// Bytes its files may take.
    disk_total: u64,
}

impl Metric {
    fn measure(backend: &dyn Backend, host: Host, id: &str) -> Answer<(Self, Counted)> {
        let (sandbox, usage) = (backend.sandbox(id)?, backend.usage(id)?);
        let limits = &sandbox.limits;
        let cpu_count = cpus(host, limits);
        let allowed_millis = limits.cpu_millis.unwrap_or(host.cpus.saturating_mul(1000));
        let time: Timestamp = usage.at.parse().unwrap_or_else(|_| Timestamp::now());
        let started = sandbox.started_at.as_deref().and_then(|at| at.parse().ok());
        let counted = Counted {
            at_us: time.as_microsecond(),
            started_us: started.map(Timestamp::as_microsecond),
            cpu_us: usage.cpu_us.unwrap_or(0),
            allowed_millis,
        };
        let metric = Self {
            timestamp: time.to_string(),
            timestamp_unix: time.as_second(),
            cpu_count,
            // Only the course tells.
            cpu_used_pct: 0.0,
            mem_used: usage.memory_bytes.unwrap_or(0),
            mem_total: limits.memory_bytes.unwrap_or(host.memory_bytes),
            mem_cache: usage.cache_bytes.unwrap_or(0),
            disk_used: usage.disk_bytes,
            disk_total: limits.disk_bytes.unwrap_or(host.disk_bytes),
        };
        Ok((metric, counted))
    }
}

/// Processor time since the sandbox was started, as it stood at one time.
#[derive(Clone, Copy, Debug)]
struct Counted {
    at_us: i64,
    started_us: Option<i64>,
    cpu_us: u64,
    allowed_millis: u64,
}

impl Counted {
    /// How much of what it may use was used since an earlier count, in percent; without one, since it was
    /// started.
    fn used_since(self, before: Option<Self>) -> f64 {
        // A sandbox that was started anew counts from 0 again.
        let before = before.filter(|before| before.cpu_us <= self.cpu_us);
        let (from_us, spent_us) = match before {
            Some(before) => (before.at_us, self.cpu_us - before.cpu_us),
            None => (self.started_us.unwrap_or(self.at_us), self.cpu_us),
        };
        let passed_us = u64::try_from(self.at_us.saturating_sub(from_us)).unwrap_or(0);
        let allowed_us = passed_us.saturating_mul(self.allowed_millis) / 1000;
        match allowed_us {
            0 => 0.0,
            allowed_us => percent(spent_us, allowed_us),
        }
    }
}

/// A part of a whole in percent, to two places.
fn percent(part: u64, whole: u64) -> f64 {
    let hundredths = part.saturating_mul(10_000) / whole.max(1);
    f64::from(u32::try_from(hundredths).unwrap_or(u32::MAX)) / 100.0
}

/// What was measured of late.
#[derive(Default)]
pub(in super::super) struct History {
    kept: Mutex<HashMap<String, Course>>,
}

/// What was measured of one sandbox.
#[derive(Default)]
struct Course {
    metrics: VecDeque<Metric>,
    counted: Option<Counted>,
}

impl History {
    /// Keeps what was measured, and adds what only the course tells.
    fn keep(&self, id: &str, mut metric: Metric, counted: Counted) -> Metric {
        let mut kept = self.kept.lock();
        if !kept.contains_key(id) && kept.len() >= SANDBOXES_MAX {
            let newest = |course: &Course| course.metrics.back().map(|one| one.timestamp_unix);
            let oldest = kept.iter().min_by_key(|(_, course)| newest(course));
            if let Some(id) = oldest.map(|(id, _)| id.clone()) {
                kept.remove(&id);
            }
        }
        let course = kept.entry(id.to_owned()).or_default();
        metric.cpu_used_pct = counted.used_since(course.counted);
        course.counted = Some(counted);
        if course.metrics.len() >= KEPT_MAX {
            course.metrics.pop_front();
        }
        course.metrics.push_back(metric.clone());
        metric
    }

    fn between(&self, id: &str, start: i64, end: i64) -> Vec<Metric> {
        let kept = self.kept.lock();
        let all = kept.get(id).map(|course| course.metrics.iter());
        all.into_iter()
            .flatten()
            .filter(|one| (start..=end).contains(&one.timestamp_unix))
            .cloned()
            .collect()
    }

    fn forget(&self, id: &str) {
        self.kept.lock().remove(id);
    }
}

/// Which time.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct Span {
    /// Since then, in seconds since 1970; if neither is said, only now.
    start: Option<i64>,
    /// Until then.
    end: Option<i64>,
}

/// Tells what a sandbox uses now, and what was measured of it before.
#[utoipa::path(
    get,
    path = "/sandboxes/{sandbox_id}/metrics",
    tag = "sandboxes",
    params(("sandbox_id" = String, Path, description = "Its id"), Span),
    responses(
        (status = 200, body = Vec<Metric>),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
    ),
)]
pub(super) async fn metrics(
    State(api): State<Shared>,
    Name(id): Name,
    Params(span): Params<Span>,
) -> Result<Json<Vec<Metric>>, HttpError> {
    let (host, name) = (api.host, id.clone());
    let measured = api
        .work(move |backend| Metric::measure(backend, host, &name))
        .await;
    let (measured, counted) = measured.inspect_err(|error| {
        if error.status == axum::http::StatusCode::NOT_FOUND {
            api.history.forget(&id);
        }
    })?;
    let measured = api.history.keep(&id, measured, counted);
    if span.start.is_none() && span.end.is_none() {
        return Ok(Json(vec![measured]));
    }
    let (start, end) = (span.start.unwrap_or(0), span.end.unwrap_or(i64::MAX));
    Ok(Json(api.history.between(&id, start, end)))
}

/// What several sandboxes use.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Metrics {
    /// By their ids; those that are gone are not there.
    sandboxes: BTreeMap<String, Metric>,
}

/// Which sandboxes.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Their ids, with commas between them; 100 at the most.
    sandbox_ids: String,
}

/// Tells what several sandboxes use now.
#[utoipa::path(
    get,
    path = "/sandboxes/metrics",
    tag = "sandboxes",
    params(Which),
    responses(
        (status = 200, body = Metrics),
        (status = 400, body = ErrorBody, description = "Too many"),
    ),
)]
pub(super) async fn of_many(
    State(api): State<Shared>,
    Params(which): Params<Which>,
) -> Result<Json<Metrics>, HttpError> {
    let ids: Vec<String> = which.sandbox_ids.split(',').map(str::to_owned).collect();
    if ids.len() > ASKED_MAX {
        let what = format!("that are more than {ASKED_MAX} sandboxes");
        return Err(HttpError::bad_request(what));
    }
    let host = api.host;
    let sandboxes = api
        .work(move |backend| {
            let mut found = BTreeMap::new();
            for id in ids.into_iter().filter(|id| !id.is_empty()) {
                match Metric::measure(backend, host, &id) {
                    Ok(measured) => drop(found.insert(id, measured)),
                    Err(error) if error.kind == ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(found)
        })
        .await?;
    let each = sandboxes.into_iter().map(|(id, (metric, counted))| {
        let metric = api.history.keep(&id, metric, counted);
        (id, metric)
    });
    Ok(Json(Metrics {
        sandboxes: each.collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(timestamp_unix: i64) -> Metric {
        Metric {
            timestamp: String::new(),
            timestamp_unix,
            cpu_count: 1,
            cpu_used_pct: 0.0,
            mem_used: 0,
            mem_total: 0,
            mem_cache: 0,
            disk_used: 0,
            disk_total: 0,
        }
    }

    fn counted(second: i64, cpu_us: u64) -> Counted {
        Counted {
            at_us: second * 1_000_000,
            started_us: Some(0),
            cpu_us,
            allowed_millis: 2000,
        }
    }

    #[test]
    fn use_of_processors_is_told_from_one_time_to_the_next() {
        let history = History::default();
        let used = |second, cpu_us| {
            history
                .keep("a", metric(second), counted(second, cpu_us))
                .cpu_used_pct
        };
        // One of two processors since the start, then both of them, then none.
        assert!((used(10, 10_000_000) - 50.0).abs() < f64::EPSILON);
        assert!((used(20, 30_000_000) - 100.0).abs() < f64::EPSILON);
        assert!(used(30, 30_000_000).abs() < f64::EPSILON);
        // Started anew; and asked twice at the same time.
        assert!((used(40, 8_000_000) - 10.0).abs() < f64::EPSILON);
        assert!(used(40, 8_000_000).abs() < f64::EPSILON);
    }

    #[test]
    fn the_course_is_bounded_and_goes_by_time() {
        let history = History::default();
        let last = i64::try_from(KEPT_MAX).unwrap();
        for second in 0..=last {
            history.keep("a", metric(second), counted(second, 0));
        }
        assert_eq!(history.between("a", 0, i64::MAX).len(), KEPT_MAX);
        assert_eq!(history.between("a", 0, 0).len(), 0);
        assert_eq!(history.between("a", 5, 7).len(), 3);
        history.forget("a");
        assert!(history.between("a", 0, i64::MAX).is_empty());
    }

    #[test]
    fn sandboxes_that_nobody_asks_for_give_way() {
        let history = History::default();
        for number in 0..=SANDBOXES_MAX {
            let second = i64::try_from(number).unwrap();
            history.keep(&number.to_string(), metric(second), counted(second, 0));
        }
        assert!(history.between("0", 0, i64::MAX).is_empty());
        assert_eq!(history.between("1", 0, i64::MAX).len(), 1);
        assert_eq!(history.kept.lock().len(), SANDBOXES_MAX);
    }

    #[test]
    fn parts_are_told_in_percent() {
        assert!((percent(500, 2000) - 25.0).abs() < f64::EPSILON);
        assert!((percent(1, 3) - 33.33).abs() < f64::EPSILON);
        assert!(percent(0, 0).abs() < f64::EPSILON);
    }
}
