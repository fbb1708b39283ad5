//! What every handler of the API has at hand, and how it gets work done that blocks.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;
use tracing::{Span, error};

use super::backend::{Answer, Backend, Host};
use super::e2b::History;
use super::envd::Watchers;
use super::error::HttpError;
use super::keys::Keys;
use crate::config::ApiConfig;

/// How long a request waits for its turn before it is turned away.
const TURN_WAIT: Duration = Duration::from_secs(5);

/// Most requests at once that look through all sandboxes, for whoever has shown no key yet.
const SEARCHES_MAX: usize = 4;

/// What the handlers share.
pub(super) type Shared = Arc<Api>;

/// The API of a daemon.
pub(super) struct Api {
    /// The daemon.
    pub(super) backend: Arc<dyn Backend>,
    /// How it is served.
    pub(super) config: ApiConfig,
    /// Who may use it.
    pub(super) keys: Keys,
    /// The domain that clients are told.
    pub(super) domain: Option<String>,
    /// The domains below which sandboxes are found.
    pub(super) domains: Vec<String>,
    /// How large the machine is.
    pub(super) host: Host,
    /// Cancelled when the daemon is to end: no stream goes on then.
    pub(super) ending: CancellationToken,
    /// What was measured of sandboxes.
    pub(super) history: History,
    /// Who waits for changes of files.
    pub(super) watchers: Watchers,
    turns: Arc<Semaphore>,
    searches: Semaphore,
}

impl Api {
    /// The API of a daemon that is served on a port.
    pub(super) fn new(backend: Arc<dyn Backend>, config: ApiConfig, keys: Keys, port: u16) -> Self {
        // Every name below `localhost` leads to the machine it is looked up on (RFC 6761, section 6.3).
        let local = format!("localhost:{port}");
        let domain = match &config.domain {
            Some(domain) => Some(domain.clone()),
            None => config.addr.ip().is_loopback().then(|| local.clone()),
        };
        let mut domains: Vec<String> = config.domain.iter().cloned().collect();
        domains.push(local);
        Self {
            host: backend.host(),
            turns: Arc::new(Semaphore::new(config.requests_max)),
            searches: Semaphore::new(SEARCHES_MAX),
            ending: CancellationToken::new(),
            history: History::default(),
            watchers: Watchers::default(),
            backend,
            config,
            keys,
            domain,
            domains,
        }
    }

    /// Does something that blocks, on a thread for that. It goes on to its end even if nobody waits any
    /// longer.
    pub(super) async fn work<T: Send + 'static>(
        &self,
        act: impl FnOnce(&dyn Backend) -> Answer<T> + Send + 'static,
    ) -> Result<T, HttpError> {
        let turn = tokio::time::timeout(TURN_WAIT, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            return Err(HttpError::unavailable("the daemon has too much to do"));
        };
        let (backend, span) = (Arc::clone(&self.backend), Span::current());
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            span.in_scope(|| act(&*backend))
        });
        match done.await {
            Ok(answer) => Ok(answer?),
            Err(failure) if failure.is_panic() => {
                error!("a handler panicked; see above");
                Err(HttpError::internal())
            }
            // The runtime ends, and did not begin.
            Err(_) => Err(HttpError::unavailable("the daemon is ending")),
        }
    }

    /// A turn to look through all sandboxes.
    pub(super) async fn turn_to_search(&self) -> Result<SemaphorePermit<'_>, HttpError> {
        match tokio::time::timeout(TURN_WAIT, self.searches.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(HttpError::unavailable("the daemon has too much to do")),
        }
    }

    /// How long an upload or download may stand still.
    pub(super) fn idle_time_max(&self) -> Duration {
        Duration::from_secs(self.config.idle_time_max_s)
    }
}
