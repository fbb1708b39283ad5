//! Watchers that are asked again and again for what happened.
//!
//! A watcher lives in the daemon, under an id. It ends with the sandbox's processes, when it is removed,
//! and when nobody has asked it for ten minutes. There are at most [`OF_SANDBOX_MAX`] of a sandbox, and each keeps at most [`EVENTS_BYTES_MAX`] of events: what
//! does not fit is thrown away, oldest first, and whoever asks next is told so.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::super::state::{Api, Shared};
use super::super::access::Caller;
use super::super::connect::call::{Empty, Reply, Unary};
use super::super::connect::error::{Code, RpcError};
use super::messages::{
    CreateWatcherResponse, EventsResponse, FilesystemEvent, WatchRequest, WatcherRequest,
};
use super::watch::{LOST, ended};
use crate::agent::{Watch, WatchEvent};

/// Most watchers of a sandbox.
const OF_SANDBOX_MAX: usize = 64;
/// Most watchers at all.
const ALL_MAX: usize = 4096;
/// Most bytes of events that a watcher keeps.
const EVENTS_BYTES_MAX: usize = 1 << 20;
/// How long a watcher lives without being asked.
const UNUSED_MAX: Duration = Duration::from_secs(600);

/// All watchers of a daemon.
#[derive(Default)]
pub(in super::super::super) struct Watchers {
    all: Mutex<HashMap<String, Arc<Watcher>>>,
}

struct Watcher {
    sandbox: String,
    include_entry: bool,
    kept: Mutex<Kept>,
    removed: CancellationToken,
}

struct Kept {
    events: VecDeque<FilesystemEvent>,
    bytes: usize,
    /// Some were thrown away, or never told.
    lost: bool,
    /// Why no more will come.
    ended: Option<RpcError>,
    asked: Instant,
}

impl Watcher {
    fn new(sandbox: &str, include_entry: bool) -> Self {
        Self {
            sandbox: sandbox.to_owned(),
            include_entry,
            kept: Mutex::new(Kept {
                events: VecDeque::new(),
                bytes: 0,
                lost: false,
                ended: None,
                asked: Instant::now(),
            }),
            removed: CancellationToken::new(),
        }
    }

    fn keep(&self, event: WatchEvent) {
        let mut kept = self.kept.lock();
        let Some(event) = FilesystemEvent::of(event, self.include_entry) else {
            kept.lost = true;
            return;
        };
        kept.bytes += event.bytes();
        kept.events.push_back(event);
        while kept.bytes > EVENTS_BYTES_MAX
            && let Some(oldest) = kept.events.pop_front()
        {
            kept.bytes -= oldest.bytes();
            kept.lost = true;
        }
    }

    fn is_unused(&self) -> bool {
        self.kept.lock().asked + UNUSED_MAX <= Instant::now()
    }

    /// What happened since the last time. That something was lost is told once; so is the end, after
    /// all that happened before it.
    fn take(&self) -> Result<Vec<FilesystemEvent>, RpcError> {
        let mut kept = self.kept.lock();
        kept.asked = Instant::now();
        if std::mem::take(&mut kept.lost) {
            return Err(RpcError::new(Code::DataLoss, LOST));
        }
        match &kept.ended {
            Some(error) if kept.events.is_empty() => Err(error.clone()),
            _ => {
                kept.bytes = 0;
                Ok(kept.events.drain(..).collect())
            }
        }
    }
}

impl Watchers {
    fn add(&self, watcher: Arc<Watcher>) -> Result<String, RpcError> {
        let mut all = self.all.lock();
        let of_sandbox = all.values().filter(|one| one.sandbox == watcher.sandbox);
        if all.len() >= ALL_MAX || of_sandbox.count() >= OF_SANDBOX_MAX {
            let what = format!("a sandbox has at most {OF_SANDBOX_MAX} watchers");
            return Err(RpcError::new(Code::ResourceExhausted, what));
        }
        let random = getrandom::u64().map_err(|error| {
            RpcError::new(
                Code::Internal,
                format!("there are no random numbers: {error}"),
            )
        })?;
        let id = format!("w{random:016x}");
        all.insert(id.clone(), watcher);
        Ok(id)
    }

    fn get(&self, sandbox: &str, id: &str) -> Result<Arc<Watcher>, RpcError> {
        let all = self.all.lock();
        let found = all.get(id).filter(|watcher| watcher.sandbox == sandbox);
        found
            .cloned()
            .ok_or_else(|| RpcError::new(Code::NotFound, "there is no such watcher, or no longer"))
    }

    fn remove(&self, id: &str) {
        if let Some(watcher) = self.all.lock().remove(id) {
            watcher.removed.cancel();
        }
    }
}

/// Keeps what happens for as long as somebody asks for it.
async fn look(api: Weak<Api>, id: String, watcher: Arc<Watcher>, mut watch: Watch) {
    loop {
        let unused_at = watcher.kept.lock().asked + UNUSED_MAX;
        tokio::select! {
            () = watcher.removed.cancelled() => return,
            event = watch.next() => match event {
                Some(event) => watcher.keep(event),
                None => break,
            },
            () = tokio::time::sleep_until(unused_at) => {
                if watcher.is_unused() {
                    break;
                }
            }
        }
    }
    if watch.error().is_none() && !watcher.is_unused() {
        // The directory is gone. Whoever asks once more hears of it.
        watcher.kept.lock().ended = Some(ended(&watch));
        drop(watch);
        tokio::select! {
            () = watcher.removed.cancelled() => return,
            () = tokio::time::sleep(UNUSED_MAX) => {}
        }
    }
    if let Some(api) = api.upgrade() {
        api.watchers.remove(&id);
    }
}

/// Begins to watch a directory.
#[utoipa::path(
    post,
    path = "/filesystem.Filesystem/CreateWatcher",
    tag = "filesystem",
    request_body = WatchRequest,
    responses((status = 200, body = CreateWatcherResponse), (status = "default", body = RpcError)),
)]
pub(super) async fn create_watcher(
    State(api): State<Shared>,
    caller: Caller,
    Unary(request): Unary<WatchRequest>,
) -> Reply<CreateWatcherResponse> {
    let user = caller.user.as_deref();
    let watch = caller
        .agent
        .watch(&request.path, user, request.recursive)
        .await?;
    // From here on nothing waits: what is added is looked after.
    let watcher = Arc::new(Watcher::new(&caller.sandbox, request.include_entry));
    let id = api.watchers.add(Arc::clone(&watcher))?;
    tokio::spawn(look(Arc::downgrade(&api), id.clone(), watcher, watch));
    Ok(Json(CreateWatcherResponse { watcher_id: id }))
}

/// Tells what happened since the last time.
#[utoipa::path(
    post,
    path = "/filesystem.Filesystem/GetWatcherEvents",
    tag = "filesystem",
    request_body = WatcherRequest,
    responses((status = 200, body = EventsResponse), (status = "default", body = RpcError)),
)]
pub(super) async fn get_watcher_events(
    State(api): State<Shared>,
    caller: Caller,
    Unary(request): Unary<WatcherRequest>,
) -> Reply<EventsResponse> {
    let watcher = api.watchers.get(&caller.sandbox, &request.watcher_id)?;
    Ok(Json(EventsResponse {
        events: watcher.take()?,
    }))
}

/// Ends a watcher.
#[utoipa::path(
    post,
    path = "/filesystem.Filesystem/RemoveWatcher",
    tag = "filesystem",
    request_body = WatcherRequest,
    responses((status = 200, body = Empty), (status = "default", body = RpcError)),
)]
pub(super) async fn remove_watcher(
    State(api): State<Shared>,
    caller: Caller,
    Unary(request): Unary<WatcherRequest>,
) -> Reply<Empty> {
    api.watchers.get(&caller.sandbox, &request.watcher_id)?;
    api.watchers.remove(&request.watcher_id);
    Ok(Json(Empty {}))
}

#[cfg(test)]
mod tests {
    use super::super::messages::tests::event;
    use super::*;
    use crate::agent::WatchKind;

    #[test]
    fn events_are_told_once_and_in_their_order() {
        let watcher = Watcher::new("s", false);
        watcher.keep(event("a", WatchKind::Create));
        watcher.keep(event("b", WatchKind::Write));
        let names: Vec<_> = watcher
            .take()
            .unwrap()
            .into_iter()
            .map(|one| one.name)
            .collect();
        assert_eq!(names, ["a", "b"]);
        assert!(watcher.take().unwrap().is_empty());
    }

    #[test]
    fn what_is_lost_is_told_once_and_the_rest_after_it() {
        let watcher = Watcher::new("s", true);
        let name = "x".repeat(1000);
        for _ in 0..2000 {
            watcher.keep(event(&name, WatchKind::Write));
        }
        assert!(watcher.kept.lock().bytes <= EVENTS_BYTES_MAX);
        assert_eq!(watcher.take().unwrap_err().code, Code::DataLoss);
        let rest = watcher.take().unwrap();
        assert!(!rest.is_empty() && rest.len() < 2000);
        assert_eq!(watcher.kept.lock().bytes, 0);
        watcher.keep(event("", WatchKind::Overflow));
        assert_eq!(watcher.take().unwrap_err().code, Code::DataLoss);
        assert!(watcher.take().unwrap().is_empty());
    }

    #[test]
    fn the_end_is_told_after_what_happened_before_it() {
        let watcher = Watcher::new("s", false);
        watcher.keep(event("a", WatchKind::Remove));
        watcher.kept.lock().ended = Some(RpcError::new(Code::NotFound, "gone"));
        assert_eq!(watcher.take().unwrap().len(), 1);
        assert_eq!(watcher.take().unwrap_err().code, Code::NotFound);
    }

    #[test]
    fn a_watcher_belongs_to_its_sandbox_and_their_number_is_bounded() {
        let watchers = Watchers::default();
        let add = |sandbox| watchers.add(Arc::new(Watcher::new(sandbox, false)));
        let id = add("s").unwrap();
        assert!(watchers.get("s", &id).is_ok());
        assert!(watchers.get("other", &id).is_err());
        for _ in 1..OF_SANDBOX_MAX {
            add("s").unwrap();
        }
        assert_eq!(add("s").unwrap_err().code, Code::ResourceExhausted);
        assert!(add("other").is_ok());
        watchers.remove(&id);
        assert!(watchers.get("s", &id).is_err());
        assert!(add("s").is_ok());
    }
}
