//! The daemon: the one process that has a store open, serves its socket and its mounts.
//!
//! Life of one: take the store's lock, put the mounts of a killed predecessor back, listen, say
//! so, serve until a signal or a `stop` request, then unmount everything and end. Handlers are
//! plain functions from `&Daemon` and a request to an answer ([`handlers`]); [`server`] is only
//! one way to reach them.

mod adoptions;
pub mod guard;
pub mod handlers;
mod mounts;
pub mod server;
mod signals;
pub mod spawn;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use floe_fs::Store;
use rustix::process::{Resource, Rlimit};
use tracing::{error, info, warn};

use crate::error::{ApiError, ErrorKind};
use crate::output::Output;
use crate::store_dir::StoreDir;
use adoptions::Adoptions;
use mounts::Mounts;
pub(crate) use mounts::{Cleaned, clean};
use spawn::Outcome;

/// What the handlers work on.
pub struct Daemon {
    /// The open store.
    pub store: Arc<Store>,
    /// Everything mounted from it.
    pub(crate) mounts: Arc<Mounts>,
    pub(crate) adoptions: Adoptions,
    /// When this daemon started, RFC 3339.
    pub started_at: String,
    stop: SyncSender<String>,
}

impl Daemon {
    /// Asks the daemon to end, for a reason that the log will show. Asking again changes nothing.
    pub fn request_stop(&self, reason: &str) {
        // A full or closed channel means that it is stopping already.
        if self.stop.try_send(reason.to_owned()).is_err() {
            info!(reason, "already stopping");
        }
    }
}

/// Runs a daemon for the store until it is told to end. `detached` is how commands start one: its
/// stdout is then the pipe described in [`spawn`].
#[must_use]
pub fn run(store_dir: &StoreDir, detached: bool, output: &Output) -> ExitCode {
    log_to_stderr(output);
    let result = if detached { detach() } else { Ok(()) }.and_then(|()| start(store_dir));
    let running = match result {
        Ok(running) => running,
        Err(error) if detached => {
            error!(error = error.error, causes = ?error.causes, "cannot start");
            announce(&Outcome::Refused(error.clone()));
            return ExitCode::from(error.kind.exit_code());
        }
        Err(error) => return output.report(&error, store_dir.flag()),
    };
    if detached {
        announce(&Outcome::Ready {
            pid: std::process::id(),
            unrestored: handlers::unrestored(&running.daemon),
        });
    }
    let reason = running
        .stop
        .recv()
        .unwrap_or_else(|_| "internal".to_owned());
    info!(reason, "stopping");
    apart("ending", || running.end(store_dir));
    info!("ended");
    ExitCode::SUCCESS
}

struct Running {
    daemon: Arc<Daemon>,
    server: server::Server,
    stop: Receiver<String>,
    guard: guard::Guard,
}

fn start(store_dir: &StoreDir) -> Result<Running, ApiError> {
    raise_open_files();
    store_dir.ensure()?;
    let (stop_sender, stop) = sync_channel(1);
    // Before the first mount, so that there is no moment in which a signal would leave one behind.
    signals::watch(stop_sender.clone())?;
    let store = Store::open(store_dir.path())?;
    store_dir.make_run_dir()?;
    info!(
        store = %store_dir.path().display(),
        id = store.id(),
        version = env!("CARGO_PKG_VERSION"),
        pid = std::process::id(),
        "started"
    );
    let guard = guard::Guard::start()?;
    let mounts = Mounts::start(Arc::clone(&store), guard.told())?;
    apart("restoring mounts", || mounts.recover());
    let adoptions = Adoptions::start(&store);
    let daemon = Arc::new(Daemon {
        store,
        mounts,
        adoptions,
        started_at: jiff::Timestamp::now().to_string(),
        stop: stop_sender,
    });
    let listener = store_dir.listen().map_err(|source| {
        ApiError::new(ErrorKind::Failed, "cannot listen on the daemon's socket").caused_by(&source)
    })?;
    let server = server::Server::start(Arc::clone(&daemon), listener)?;
    Ok(Running {
        daemon,
        server,
        stop,
        guard,
    })
}

/// Does something on another thread and waits for its end. What mounts or unmounts waits for this
/// process's own answers, and killed while it waits, it stays; this thread's end is what the guard
/// hears of.
fn apart(what: &str, act: impl FnOnce() + Send) {
    if std::thread::scope(|scope| scope.spawn(act).join()).is_err() {
        error!("{what} panicked; see above");
    }
}

impl Running {
    /// The clean end: nobody new, those at work finish, everything unmounted, the store closed.
    fn end(self, store_dir: &StoreDir) {
        if let Err(error) = store_dir.remove_socket() {
            warn!(%error, "cannot remove the socket");
        }
        let finished = self.server.end();
        self.daemon.adoptions.end();
        self.daemon.mounts.end();
        // In a mount that was detached in use programs go on until this process ends.
        let quiet = finished && !self.guard.is_needed();
        let store = &self.daemon.store;
        if let Err(error) = if quiet { store.settle() } else { store.sync() } {
            warn!(%error, "what was acknowledged is safe from a kill, but not from a power failure");
        }
        if quiet {
            self.guard.end();
        }
    }
}

/// Makes this process independent of the terminal and directory of whoever started it.
fn detach() -> Result<(), ApiError> {
    let failed = |error: rustix::io::Errno| {
        ApiError::new(ErrorKind::DaemonUnreachable, "cannot detach the daemon").caused_by(&error)
    };
    rustix::process::setsid().map_err(failed)?;
    prefer_over_those_who_wait();
    // Of whoever happened to start it; mount points are made for everybody to look at.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    rustix::process::chdir("/").map_err(failed)
}

/// Asks for more processor time than the programs that wait for this daemon. Linux groups processes
/// by session and shares the processors out among the groups; two busy programs on a mount were
/// seen to keep a daemon in a session of its own from running for up to 20 s (ARCHITECTURE.md).
fn prefer_over_those_who_wait() {
    if let Err(error) = std::fs::write("/proc/self/autogroup", "-10") {
        // Not root, or a kernel without such groups.
        tracing::debug!(%error, "the daemon's session keeps its priority");
    }
}

/// Writes the outcome to the pipe that is stdout, then puts /dev/null there, so that whoever
/// started this sees the pipe end.
fn announce(outcome: &Outcome) {
    let told = serde_json::to_string(outcome)
        .map_err(std::io::Error::from)
        .and_then(|line| {
            let mut stdout = std::io::stdout().lock();
            writeln!(stdout, "{line}")?;
            stdout.flush()?;
            let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
            Ok(rustix::stdio::dup2_stdout(null)?)
        });
    if let Err(error) = told {
        warn!(%error, "whoever started the daemon did not wait for it");
    }
}

fn log_to_stderr(output: &Output) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("FLOE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // A log on a full disk is lost, silently: the complaint about it would go to stderr too,
        // fail as well, and panic in whichever thread had something to say.
        .log_internal_errors(false)
        .with_ansi(output.colors_stderr());
    if subscriber.try_init().is_err() {
        warn!("a log is set up already");
    }
}

/// Raises the limit of open files as far as it goes: every large file in use needs one.
fn raise_open_files() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
        warn!(%error, "cannot raise the limit of open files");
    }
}
