//! The daemon: the one process that has a store open, serves its socket and its mounts.
//!
//! Life of one: take the store's lock, put the mounts of a killed predecessor back, listen, say
//! so, serve until a signal or a `stop` request, then unmount everything and end. Handlers are
//! plain functions from `&Daemon` and a request to an answer ([`handlers`]); [`server`] is only
//! one way to reach them.

mod adoptions;
mod api;
pub mod guard;
pub mod handlers;
mod log;
mod mounts;
pub mod request;
pub mod sandboxes;
pub mod server;
mod signals;
pub mod spawn;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use floe_fs::Store;
use rustix::process::{Resource, Rlimit};
use serde::Serialize;
use tracing::{error, info, warn};

use crate::config::{self, Config, LogFormat};
use crate::error::{ApiError, ErrorKind};
use crate::output::Output;
use crate::store_dir::StoreDir;
use adoptions::Adoptions;
use api::ServedApi;
use mounts::Mounts;
pub(crate) use mounts::{Cleaned, clean};
use sandboxes::Sandboxes;
use spawn::Outcome;

/// How long what is left on the runtime may take to end.
const TASKS_WAIT: Duration = Duration::from_secs(2);

/// What the handlers work on.
pub struct Daemon {
    /// The open store.
    pub store: Arc<Store>,
    /// Everything mounted from it.
    pub(crate) mounts: Arc<Mounts>,
    pub(crate) adoptions: Adoptions,
    /// The sandboxes.
    pub sandboxes: Arc<Sandboxes>,
    /// What the configuration file said when this daemon started.
    pub config: Config,
    /// What runs whatever waits for many things at once.
    pub runtime: tokio::runtime::Handle,
    /// Where the HTTP API is, if it is served.
    pub(crate) api_url: OnceLock<String>,
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

/// How a daemon is to run.
#[derive(Debug, Default)]
pub struct RunOptions {
    /// As commands start one: its stdout is then the pipe described in [`spawn`].
    pub detached: bool,
    /// The configuration file, if one is named on the command line.
    pub config: Option<PathBuf>,
    /// How its log looks, whatever the configuration says.
    pub log_format: Option<LogFormat>,
    /// Serve the HTTP API too.
    pub api: Option<ApiOptions>,
}

/// How the HTTP API is to be served.
#[derive(Debug, Default)]
pub struct ApiOptions {
    /// Where, whatever the configuration says.
    pub addr: Option<SocketAddr>,
}

/// Runs a daemon for the store until it is told to end.
#[must_use]
pub fn run(store_dir: &StoreDir, options: &RunOptions, output: &Output) -> ExitCode {
    let configured = configuration(store_dir, options);
    let log = configured.as_ref().map(|config| config.log.clone());
    log::start(&log.unwrap_or_default(), output);
    let result = configured.and_then(|config| {
        if options.detached {
            detach()?;
        }
        start(store_dir, config, options.api.is_some())
    });
    let running = match result {
        Ok(running) => running,
        Err(error) if options.detached => {
            error!(error = error.error, causes = ?error.causes, "cannot start");
            announce(&Outcome::Refused(error.clone()));
            return ExitCode::from(error.kind.exit_code());
        }
        Err(error) => return output.report(&error, store_dir.flag()),
    };
    if options.detached {
        announce(&Outcome::Ready {
            pid: std::process::id(),
            unrestored: handlers::unrestored(&running.daemon),
        });
    }
    if let Some(api) = &running.api {
        tell_address(api, output);
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

/// What the configuration file says and the command line changes.
fn configuration(store_dir: &StoreDir, options: &RunOptions) -> Result<Config, ApiError> {
    // Before this process leaves the directory that a relative name starts from.
    let named = config::named(options.config.as_deref());
    let mut config = Config::load(named.as_deref(), store_dir)?;
    config.log.format = options.log_format.unwrap_or(config.log.format);
    let addr = options.api.as_ref().and_then(|api| api.addr);
    config.api.addr = addr.unwrap_or(config.api.addr);
    Ok(config)
}

/// What `floe serve --json` prints.
#[derive(Serialize)]
struct Listening<'a> {
    url: &'a str,
    domain: &'a str,
}

/// Says where the API is, on stdout: a script waits for this line.
fn tell_address(api: &ServedApi, output: &Output) {
    let told = if output.json {
        output.json(&Listening {
            url: &api.url,
            domain: &api.domain,
        })
    } else {
        output.line(format!("listening on {}", api.url))
    };
    if let Err(error) = told {
        warn!(%error, "nobody was told the address");
    }
}

struct Running {
    daemon: Arc<Daemon>,
    server: server::Server,
    api: Option<ServedApi>,
    runtime: tokio::runtime::Runtime,
    stop: Receiver<String>,
    guard: guard::Guard,
}

fn start(store_dir: &StoreDir, config: Config, with_api: bool) -> Result<Running, ApiError> {
    raise_open_files();
    // A daemon that cannot serve must not have mounted anything, nor unmount it again.
    let listener = with_api.then(|| api::listen(&config.api)).transpose()?;
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
    let runtime = start_runtime()?;
    let sandboxes = Sandboxes::start(
        Arc::clone(&store),
        Arc::clone(&mounts),
        runtime.handle().clone(),
        config.sandbox.clone(),
    )?;
    let daemon = Arc::new(Daemon {
        store,
        mounts,
        adoptions,
        sandboxes,
        config,
        runtime: runtime.handle().clone(),
        api_url: OnceLock::new(),
        started_at: jiff::Timestamp::now().to_string(),
        stop: stop_sender,
    });
    let socket = store_dir.listen().map_err(|source| {
        ApiError::new(ErrorKind::Failed, "cannot listen on the daemon's socket").caused_by(&source)
    })?;
    let server = server::Server::start(Arc::clone(&daemon), socket)?;
    let mut running = Running {
        daemon,
        server,
        api: None,
        runtime,
        stop,
        guard,
    };
    let Some(listener) = listener else {
        return Ok(running);
    };
    match api::serve_api(&running.daemon, listener, &running.daemon.config.api) {
        Ok(api) => {
            info!(url = api.url, domain = api.domain, "serving the API");
            running.daemon.api_url.get_or_init(|| api.url.clone());
            running.api = Some(api);
            Ok(running)
        }
        Err(error) => {
            apart("ending", || running.end(store_dir));
            Err(error)
        }
    }
}

/// The threads that wait for many things at once: the API's connections, what sandboxes say.
fn start_runtime() -> Result<tokio::runtime::Runtime, ApiError> {
    tokio::runtime::Builder::new_multi_thread()
        .thread_name("async")
        // Few: what blocks has threads of its own.
        .worker_threads(2)
        .max_blocking_threads(256)
        .enable_all()
        .build()
        .map_err(|source| {
            ApiError::new(ErrorKind::Failed, "cannot start threads").caused_by(&source)
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
        let served = self.api.is_none_or(ServedApi::end);
        let finished = self.server.end() && served;
        self.daemon.adoptions.end();
        self.daemon.sandboxes.end();
        self.daemon.mounts.end();
        self.runtime.shutdown_timeout(TASKS_WAIT);
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
