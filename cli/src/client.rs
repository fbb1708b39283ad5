//! The client's end of the socket.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use crate::daemon::spawn::{self, Started};
use crate::error::{ApiError, ErrorKind};
use crate::store_dir::StoreDir;
use crate::wire::line::{self, LineError, REPLY_BYTES_MAX};
use crate::wire::records::Unrestored;
use crate::wire::{Call, FirstLine, Greeting, Progress, Reply, Request};

/// How long to wait for another process that is just starting or ending a daemon.
const OTHER_STARTER_WAIT: Duration = Duration::from_secs(30);
/// How many daemons are started, and how many a request is sent to, if each is told to end before
/// it begins with it.
const ATTEMPTS_MAX: u32 = 20;
/// How long a daemon may take to greet.
const GREETING_WAIT: Duration = Duration::from_secs(20);

/// A connection to the daemon of a store.
pub struct Client {
    reader: BufReader<UnixStream>,
    buffer: Vec<u8>,
    greeting: Greeting,
    store: StoreDir,
    unrestored: Vec<Unrestored>,
    /// Whether another daemon will do if this one ends before it begins with a request.
    may_start: bool,
}

/// Why a request has no answer.
enum NoAnswer {
    /// The daemon answered with an error, or it may have done the work.
    Final(ApiError),
    /// The daemon ended before it began; the error is for whoever does not try again.
    NotBegun(ApiError),
}

impl Client {
    /// Connects to a running daemon of any version; `None` when none runs.
    ///
    /// # Errors
    /// When one listens but cannot be talked to.
    pub fn connect_any_version(store: &StoreDir) -> Result<Option<Self>, ApiError> {
        let stream = match store.connect() {
            Ok(stream) => stream,
            Err(error) if not_listening(&error) => return Ok(None),
            Err(error) => return Err(unreachable(store, &error)),
        };
        check_owner(store, &stream)?;
        stream
            .set_read_timeout(Some(GREETING_WAIT))
            .map_err(|error| unreachable(store, &error))?;
        let mut reader = BufReader::new(stream);
        let mut buffer = Vec::new();
        let greeting = match line::read(&mut reader, &mut buffer, REPLY_BYTES_MAX) {
            Ok(FirstLine::Greeting(greeting)) => greeting,
            Ok(FirstLine::Refusal { error }) => return Err(error),
            // Accepted by the kernel but no longer by a daemon that is ending.
            Err(LineError::Closed) => return Ok(None),
            Err(LineError::Io { source }) if source.kind() == io::ErrorKind::ConnectionReset => {
                return Ok(None);
            }
            Err(error) => return Err(unreachable(store, &error)),
        };
        reader
            .get_ref()
            .set_read_timeout(None)
            .map_err(|error| unreachable(store, &error))?;
        Ok(Some(Self {
            reader,
            buffer,
            greeting,
            store: store.clone(),
            unrestored: Vec::new(),
            may_start: false,
        }))
    }

    /// Connects to a running daemon of this very version; `None` when none runs.
    ///
    /// # Errors
    /// When one listens but is another version or cannot be talked to.
    pub fn connect(store: &StoreDir) -> Result<Option<Self>, ApiError> {
        let client = Self::connect_any_version(store)?;
        if let Some(client) = &client {
            check_version(&client.greeting)?;
        }
        Ok(client)
    }

    /// Connects to the daemon, starting it, and making the store, where needed.
    ///
    /// Two callers may do this at once: the store's lock decides who serves, and the other
    /// connects to it.
    ///
    /// # Errors
    /// What the new daemon says keeps it from starting.
    pub fn connect_or_start(store: &StoreDir) -> Result<Self, ApiError> {
        let mut client = Self::find_or_start(store)?;
        client.may_start = true;
        Ok(client)
    }

    fn find_or_start(store: &StoreDir) -> Result<Self, ApiError> {
        if let Some(client) = Self::connect(store)? {
            return Ok(client);
        }
        store.ensure()?;
        let give_up = Instant::now() + OTHER_STARTER_WAIT;
        let mut pause = Duration::from_millis(10);
        let mut starts_left = ATTEMPTS_MAX;
        loop {
            let started = spawn::start(store)?;
            if let Some(mut client) = Self::connect(store)? {
                if let Started::Ready(unrestored) = started {
                    client.unrestored = unrestored;
                }
                return Ok(client);
            }
            // Whoever holds the lock is starting (its socket will appear) or ending (the lock
            // will become free); a daemon that was ready was told to end. Anything else is final.
            let error = match started {
                Started::Refused(error) if error.kind == ErrorKind::Conflict => error,
                Started::Refused(error) => return Err(error),
                Started::Ready(_) => {
                    starts_left -= 1;
                    ApiError::new(
                        ErrorKind::DaemonUnreachable,
                        "the daemon ended right after it started",
                    )
                    .hint(format!(
                        "read its log: `tail {}`",
                        store.log_path().display()
                    ))
                }
            };
            if starts_left == 0 || Instant::now() >= give_up {
                return Err(error);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }

    /// What a killed daemon had mounted and the one that was just started for this connection
    /// could not mount again.
    #[must_use]
    pub fn unrestored(&self) -> &[Unrestored] {
        &self.unrestored
    }

    /// The daemon's process.
    #[must_use]
    pub fn daemon_pid(&self) -> u32 {
        self.greeting.pid
    }

    /// The daemon's version.
    #[must_use]
    pub fn daemon_version(&self) -> &str {
        &self.greeting.version
    }

    /// Sends a request and waits for its answer. If the daemon ends before it begins with it, the
    /// request goes to the next daemon, which is started where needed.
    ///
    /// # Errors
    /// What the daemon answered, or that it could not.
    pub fn call<C: Call>(&mut self, request: C) -> Result<C::Answer, ApiError> {
        self.call_with_progress(request, &mut |_| ())
    }

    /// As [`Client::call`], handing on what the daemon reports meanwhile.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn call_with_progress<C: Call>(
        &mut self,
        request: C,
        on_progress: &mut dyn FnMut(&Progress),
    ) -> Result<C::Answer, ApiError> {
        let request = request.into();
        let mut left = ATTEMPTS_MAX;
        loop {
            left -= 1;
            match self.attempt(&request, on_progress) {
                Ok(answer) => return Ok(answer),
                Err(NoAnswer::NotBegun(_)) if self.may_start && left > 0 => {
                    *self = Self::connect_or_start(&self.store)?;
                }
                Err(NoAnswer::Final(error) | NoAnswer::NotBegun(error)) => return Err(error),
            }
        }
    }

    fn attempt<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        on_progress: &mut dyn FnMut(&Progress),
    ) -> Result<T, NoAnswer> {
        let written = line::write(self.reader.get_mut(), request);
        let mut begun = false;
        loop {
            // Even if the request could not be written: the daemon may say why.
            match line::read(&mut self.reader, &mut self.buffer, REPLY_BYTES_MAX) {
                Ok(Reply::Accepted) => begun = true,
                Ok(Reply::Progress(progress)) => on_progress(&progress),
                Ok(Reply::Ok(answer)) => return Ok(answer),
                Ok(Reply::Error(error)) => return Err(NoAnswer::Final(error)),
                Err(error) if !begun && closed(&error) => {
                    let error = match &written {
                        Err(not_written) => self.ended(not_written),
                        Ok(()) => self.ended(&error),
                    };
                    return Err(NoAnswer::NotBegun(error));
                }
                Err(error) => return Err(NoAnswer::Final(self.lost(&error))),
            }
        }
    }

    /// The connection itself, for what is not request and answer.
    #[must_use]
    pub fn into_connection(self) -> BufReader<UnixStream> {
        self.reader
    }

    /// Waits until the daemon closes the connection.
    pub fn wait_for_close(&mut self) {
        while line::read::<serde::de::IgnoredAny>(
            &mut self.reader,
            &mut self.buffer,
            REPLY_BYTES_MAX,
        )
        .is_ok()
        {}
    }

    fn ended(&self, error: &dyn std::error::Error) -> ApiError {
        let what = "the daemon ended before it began with the request";
        ApiError::new(ErrorKind::DaemonUnreachable, what)
            .caused_by(error)
            .hint(format!(
                "nothing was done; try again, or read its log: `tail {}`",
                self.store.log_path().display()
            ))
    }

    fn lost(&self, error: &dyn std::error::Error) -> ApiError {
        ApiError::new(ErrorKind::DaemonUnreachable, "the daemon did not answer")
            .caused_by(error)
            .hint(format!(
                "whether the request was carried out is not known; its log may tell: `tail {}`",
                self.store.log_path().display()
            ))
    }
}

/// Whether the daemon closed the connection between two lines.
fn closed(error: &LineError) -> bool {
    match error {
        LineError::Closed => true,
        LineError::Io { source } => matches!(
            source.kind(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
        ),
        _ => false,
    }
}

fn not_listening(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory
    )
}

fn unreachable(store: &StoreDir, error: &dyn std::error::Error) -> ApiError {
    let what = format!("cannot reach the daemon of '{}'", store.path().display());
    ApiError::new(ErrorKind::DaemonUnreachable, what)
        .caused_by(error)
        .hint("only the owner of a store can use it; see `floe doctor`")
}

/// Refuses to talk to a daemon of another user: what it answers is printed, and scripts act on it.
fn check_owner(store: &StoreDir, stream: &UnixStream) -> Result<(), ApiError> {
    let peer = rustix::net::sockopt::socket_peercred(stream)
        .map_err(|error| unreachable(store, &error))?;
    if peer.uid == rustix::process::geteuid() {
        return Ok(());
    }
    let (owner, dir) = (peer.uid.as_raw(), store.path().display());
    let what = format!("the daemon of '{dir}' runs as user {owner}");
    Err(ApiError::new(ErrorKind::Failed, what).hint(format!(
        "only the owner of a store can use it: run the command as user {owner}, or name another \
         store with --store, or with FLOE_STORE"
    )))
}

/// Refuses to talk to a daemon of another version.
fn check_version(greeting: &Greeting) -> Result<(), ApiError> {
    let mine = env!("CARGO_PKG_VERSION");
    if greeting.version == mine {
        return Ok(());
    }
    let what = format!(
        "the daemon (pid {}) is version {}, this command is version {mine}",
        greeting.pid, greeting.version
    );
    Err(ApiError::new(ErrorKind::VersionMismatch, what).hint(
        "end it with `floe daemon stop`, which unmounts everything; the next command starts the \
         right one",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_refused_with_the_command_that_ends_it() {
        let greeting = |version: &str| Greeting {
            version: version.to_owned(),
            pid: 9,
        };
        assert!(check_version(&greeting(env!("CARGO_PKG_VERSION"))).is_ok());
        let error = check_version(&greeting("9.9.9")).unwrap_err();
        assert_eq!(error.kind, ErrorKind::VersionMismatch);
        assert!(error.error.contains("9.9.9"));
        assert!(error.hint.unwrap().contains("`floe daemon stop`"));
    }
}
