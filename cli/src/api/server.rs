//! The listener: accepts connections, serves HTTP/1.1 on each, and ends in an orderly way.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::Request;
use axum::{Router, middleware};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tracing::{debug, error, info, warn};

use super::backend::Backend;
use super::dispatch;
use super::keys::Keys;
use super::state::{Api, Shared};
use super::timed::Timed;
use crate::config::ApiConfig;
use crate::daemon::Daemon;
use crate::error::{ApiError, ErrorKind};

/// How long a connection may wait for the next request, and a request for the end of its headers.
/// Clients of the contract keep a connection for 300 s, and should be the ones to close it: one that
/// is closed just when a request is sent looks like a failure of that request.
const HEADERS_WAIT: Duration = Duration::from_secs(320);
/// How long a client that has just connected has for its first request. There are only so many
/// connections.
const FIRST_WAIT: Duration = Duration::from_secs(20);
/// Most bytes of a request's line and headers.
const HEADERS_BYTES_MAX: usize = 64 << 10;
/// How long to rest when no connection can be accepted.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// The API, being served.
pub struct ApiServer {
    address: SocketAddr,
    api: Shared,
    runtime: Handle,
    acceptor: JoinHandle<()>,
}

impl ApiServer {
    /// Serves the API of the daemon, on the daemon's runtime, to whoever connects.
    ///
    /// # Errors
    /// When the listener cannot be used.
    pub fn start(
        daemon: Arc<Daemon>,
        listener: std::net::TcpListener,
        config: &ApiConfig,
        keys: Keys,
    ) -> Result<Self, ApiError> {
        let runtime = daemon.runtime.clone();
        Self::start_on(&runtime, daemon, listener, config, keys)
    }

    /// The same for anything that answers as the daemon does.
    pub(super) fn start_on(
        runtime: &Handle,
        backend: Arc<dyn Backend>,
        listener: std::net::TcpListener,
        config: &ApiConfig,
        keys: Keys,
    ) -> Result<Self, ApiError> {
        let failed = |source: std::io::Error| {
            ApiError::new(
                ErrorKind::Failed,
                format!("cannot listen on {}", config.addr),
            )
            .caused_by(&source)
        };
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let api = Arc::new(Api::new(backend, config.clone(), keys, address.port()));
        let router = dispatch::router(&api);
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener).map_err(failed)?
        };
        let acceptor = runtime.spawn(accept(Arc::clone(&api), listener, router));
        info!(%address, "serving the API");
        Ok(Self {
            address,
            api,
            runtime: runtime.clone(),
            acceptor,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops listening, ends streams, lets requests at work finish for a while, and closes every
    /// connection. Returns whether all of them have finished. Not for a thread of the runtime.
    #[must_use]
    pub fn end(self) -> bool {
        self.api.ending.cancel();
        let wait = Duration::from_secs(self.api.config.end_time_max_s);
        let abort = self.acceptor.abort_handle();
        let ended = async { tokio::time::timeout(wait, self.acceptor).await };
        match self.runtime.block_on(ended) {
            Ok(Ok(())) => true,
            Ok(Err(failure)) => {
                error!(%failure, "the listener failed");
                false
            }
            Err(_) => {
                warn!("not waiting any longer for requests at work");
                abort.abort();
                false
            }
        }
    }
}

/// Accepts connections until the end is near, then waits for those that are there. Dropped before that, it
/// closes them all.
async fn accept(api: Shared, listener: TcpListener, router: Router) {
    let room = Arc::new(Semaphore::new(api.config.connections_max));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let place = Arc::clone(&room).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            () = api.ending.cancelled() => break,
            Some(ended) = connections.join_next() => {
                report(ended);
                continue;
            }
            next = next => next,
        };
        match accepted {
            Ok((stream, _)) => {
                let served = serve(api.clone(), stream, router.clone());
                connections.spawn(async move {
                    served.await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: some connection must end first.
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        report(ended);
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        error!(%error, "a connection failed");
    }
}

async fn serve(api: Shared, stream: TcpStream, router: Router) {
    // Small answers should not wait for one another.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "a connection was gone already");
        return;
    }
    let has_come = Arc::new(AtomicBool::new(false));
    let timed = Timed::new(stream, api.idle_time_max()).with_first(FIRST_WAIT, has_come.clone());
    let router = router.layer(middleware::map_request(move |request: Request| {
        has_come.store(true, Ordering::Relaxed);
        std::future::ready(request)
    }));
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WAIT)
        .max_header_size(HEADERS_BYTES_MAX)
        .serve_connection(TokioIo::new(timed), TowerToHyperService::new(router))
        .with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = api.ending.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection ended");
    }
}
