//! The socket: one thread a connection, one request at a time on each.
//!
//! Nothing that arrives is trusted: the peer must be the daemon's own user or root, a line has a
//! bound, what does not decode is answered with an error, and a handler that panics costs its
//! caller an `internal` error and nobody else anything.

mod answer;
mod exec;

use std::collections::HashMap;
use std::io::{self, BufReader};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags};
use tracing::{debug, error, info_span, warn};

use super::{Daemon, request};
use crate::error::{ApiError, ErrorKind};
use crate::wire::line::{self, LineError, REQUEST_BYTES_MAX};
use crate::wire::{Greeting, Reply, Request};
use exec::Then;

/// Most connections at once; one more is turned away with an error.
const CONNECTIONS_MAX: usize = 512;
/// How long a client may leave an answer unread before its connection is given up.
const WRITE_WAIT: Duration = Duration::from_secs(60);
/// How long requests at work may take to finish once the daemon is to end.
const FINISH_WAIT: Duration = Duration::from_secs(10);

/// A listening socket and the connections made on it.
pub struct Server {
    connections: Arc<Connections>,
    /// Closing this end wakes the thread that accepts.
    wake: UnixStream,
    acceptor: std::thread::JoinHandle<()>,
}

#[derive(Default)]
struct Connections {
    state: Mutex<State>,
    one_less: Condvar,
}

#[derive(Default)]
struct State {
    /// No request is begun any more.
    ending: bool,
    open: HashMap<u64, Connection>,
}

impl Connections {
    /// Notes that work on a request begins. Not so once the end has begun: either the end waits
    /// for a request, or its client is not told that it was accepted.
    fn begin(&self, number: u64) -> bool {
        let mut state = self.state.lock();
        let may = !state.ending;
        if let Some(connection) = state.open.get_mut(&number) {
            connection.busy = may;
        }
        may
    }

    /// Notes that a request has begun that goes on for as long as its client wants. The end hangs up on
    /// it, and waits for what is to be done then.
    fn streams(&self, number: u64) {
        let mut state = self.state.lock();
        let ending = state.ending;
        if let Some(connection) = state.open.get_mut(&number) {
            connection.streams = true;
            if ending {
                hang_up(&connection.stream);
            }
        }
    }

    fn finished(&self, number: u64) {
        let mut state = self.state.lock();
        let ending = state.ending;
        if let Some(connection) = state.open.get_mut(&number) {
            connection.busy = false;
            connection.streams = false;
            if ending {
                hang_up(&connection.stream);
            }
        }
        drop(state);
        self.one_less.notify_all();
    }

    fn remove(&self, number: u64) {
        self.state.lock().open.remove(&number);
        self.one_less.notify_all();
    }
}

struct Connection {
    stream: UnixStream,
    /// A request was accepted and is not answered yet.
    busy: bool,
    /// The request goes on for as long as its client wants.
    streams: bool,
}

impl Server {
    /// Starts to accept connections.
    ///
    /// # Errors
    /// When no thread or socket can be had.
    pub fn start(daemon: Arc<Daemon>, listener: UnixListener) -> Result<Self, ApiError> {
        let failed = |source: io::Error| {
            ApiError::new(ErrorKind::Failed, "cannot serve the socket").caused_by(&source)
        };
        let (wake, woken) = UnixStream::pair().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let connections = Arc::new(Connections::default());
        let acceptor = std::thread::Builder::new()
            .name("accept".into())
            .spawn({
                let connections = Arc::clone(&connections);
                move || accept(&daemon, &listener, &woken, &connections)
            })
            .map_err(failed)?;
        Ok(Self {
            connections,
            wake,
            acceptor,
        })
    }

    /// Stops accepting, lets requests at work finish for a while, closes every connection. Returns
    /// whether all of them have finished.
    pub fn end(self) -> bool {
        drop(self.wake);
        if self.acceptor.join().is_err() {
            error!("the accepting thread panicked");
        }
        let give_up = Instant::now() + FINISH_WAIT;
        let mut state = self.connections.state.lock();
        state.ending = true;
        for connection in state.open.values() {
            if !connection.busy || connection.streams {
                hang_up(&connection.stream);
            }
        }
        while state.open.values().any(|connection| connection.busy) {
            if self
                .connections
                .one_less
                .wait_until(&mut state, give_up)
                .timed_out()
            {
                warn!(
                    requests = state.open.values().filter(|one| one.busy).count(),
                    "not waiting any longer for requests at work"
                );
                return false;
            }
        }
        true
    }
}

/// Ends the reading half: the connection's thread sees the end after its present answer.
fn hang_up(stream: &UnixStream) {
    if let Err(error) = stream.shutdown(Shutdown::Read) {
        debug!(%error, "a connection was gone already");
    }
}

fn accept(
    daemon: &Arc<Daemon>,
    listener: &UnixListener,
    woken: &UnixStream,
    connections: &Arc<Connections>,
) {
    for number in 0.. {
        let mut fds = [
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(woken.as_fd(), PollFlags::IN),
        ];
        if let Err(error) = rustix::event::poll(&mut fds, None)
            && error != rustix::io::Errno::INTR
        {
            error!(%error, "cannot wait for connections");
            daemon.request_stop("the socket failed");
            return;
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        match listener.accept() {
            Ok((stream, _)) => welcome(daemon, stream, number, connections),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // Out of descriptors, most likely: some connection must end first.
                warn!(%error, "cannot accept a connection");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn welcome(
    daemon: &Arc<Daemon>,
    mut stream: UnixStream,
    number: u64,
    connections: &Arc<Connections>,
) {
    let result = admit(&stream).and_then(|()| {
        let mut state = connections.state.lock();
        if state.open.len() >= CONNECTIONS_MAX {
            return Err(io::Error::other("too many connections"));
        }
        state.open.insert(
            number,
            Connection {
                stream: stream.try_clone()?,
                busy: false,
                streams: false,
            },
        );
        Ok(())
    });
    if let Err(error) = result {
        warn!(%error, "a connection was turned away");
        let refusal = ApiError::new(
            ErrorKind::DaemonUnreachable,
            "the daemon turned the connection away",
        )
        .caused_by(&error);
        if let Err(error) = line::write(&mut stream, &Reply::<()>::Error(refusal)) {
            debug!(%error, "and did not wait for the reason");
        }
        return;
    }
    let serve = {
        let (daemon, connections) = (Arc::clone(daemon), Arc::clone(connections));
        move || {
            if let Err(error) = serve(&daemon, stream, number, &connections) {
                debug!(%error, "a connection ended");
            }
            connections.remove(number);
        }
    };
    if let Err(error) = std::thread::Builder::new()
        .name("connection".into())
        .spawn(serve)
    {
        warn!(%error, "no thread for a connection");
        connections.remove(number);
    }
}

/// Lets in the daemon's own user and root.
fn admit(stream: &UnixStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(WRITE_WAIT))?;
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    if peer.uid.is_root() || peer.uid == rustix::process::geteuid() {
        return Ok(());
    }
    let uid = peer.uid.as_raw();
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("user {uid} is not the owner"),
    ))
}

fn serve(
    daemon: &Daemon,
    mut stream: UnixStream,
    number: u64,
    connections: &Connections,
) -> Result<(), LineError> {
    let lost = |source| LineError::Io { source };
    let mut reader = BufReader::new(stream.try_clone().map_err(lost)?);
    let version = env!("CARGO_PKG_VERSION").to_owned();
    line::write(
        &mut stream,
        &Greeting {
            version,
            pid: std::process::id(),
        },
    )
    .map_err(lost)?;
    let mut buffer = Vec::new();
    loop {
        let request = line::read::<Request>(&mut reader, &mut buffer, REQUEST_BYTES_MAX);
        match request {
            Ok(request) => {
                if !connections.begin(number) {
                    return Ok(());
                }
                let span = info_span!(
                    "request",
                    request = request::next_id(),
                    verb = request.verb()
                );
                // A client that went away meanwhile does not want it.
                let served = line::write(&mut stream, &Reply::<()>::Accepted).and_then(|()| {
                    span.in_scope(|| match request {
                        Request::SandboxExec(request) => {
                            let begins = || connections.streams(number);
                            exec::serve(daemon, request, &reader, &mut stream, &begins)
                        }
                        request => answer::catch(daemon, request, &mut stream).map(|()| Then::Next),
                    })
                });
                connections.finished(number);
                if served.map_err(lost)? == Then::Ended {
                    return Ok(());
                }
            }
            Err(LineError::Closed) => return Ok(()),
            Err(error) => {
                let refusal = ApiError::from_error(ErrorKind::Usage, &error)
                    .while_doing("the daemon does not understand the request");
                let refusal =
                    refusal.hint("if the daemon is an older build, end it with `floe daemon stop`");
                line::write(&mut stream, &Reply::<()>::Error(refusal)).map_err(lost)?;
                if !matches!(error, LineError::Malformed { .. }) {
                    return Err(error);
                }
            }
        }
    }
}
