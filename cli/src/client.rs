//! The client's end of the socket.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::daemon::spawn::{self, Started};
use crate::error::{ApiError, ErrorKind};
use crate::store_dir::StoreDir;
use crate::wire::line::{self, LineError, REPLY_BYTES_MAX};
use crate::wire::records::Unrestored;
use crate::wire::{Call, FirstLine, Greeting, Progress, Reply};

/// How long to wait for another process that is just starting or ending a daemon.
const OTHER_STARTER_WAIT: Duration = Duration::from_secs(10);
/// How long a daemon may take to greet.
const GREETING_WAIT: Duration = Duration::from_secs(20);

/// A connection to the daemon of a store.
pub struct Client {
    reader: BufReader<UnixStream>,
    buffer: Vec<u8>,
    greeting: Greeting,
    store: StoreDir,
    unrestored: Vec<Unrestored>,
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
        if let Some(client) = Self::connect(store)? {
            return Ok(client);
        }
        store.ensure()?;
        let give_up = Instant::now() + OTHER_STARTER_WAIT;
        let mut pause = Duration::from_millis(10);
        loop {
            let started = spawn::start(store)?;
            if let Some(mut client) = Self::connect(store)? {
                if let Started::Ready(unrestored) = started {
                    client.unrestored = unrestored;
                }
                return Ok(client);
            }
            // Whoever holds the lock is starting (its socket will appear) or ending (the lock
            // will become free); anything else is the end of it.
            let error = match started {
                Started::Refused(error) => error,
                Started::Ready(_) => ApiError::new(
                    ErrorKind::DaemonUnreachable,
                    "the daemon ended right after it started",
                )
                .hint(format!(
                    "read its log: `tail {}`",
                    store.log_path().display()
                )),
            };
            if error.kind != ErrorKind::Conflict || Instant::now() >= give_up {
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

    /// Sends a request and waits for its answer.
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
        line::write(self.reader.get_mut(), &request.into()).map_err(|error| self.lost(&error))?;
        loop {
            match line::read(&mut self.reader, &mut self.buffer, REPLY_BYTES_MAX) {
                Ok(Reply::Progress(progress)) => on_progress(&progress),
                Ok(Reply::Ok(answer)) => return Ok(answer),
                Ok(Reply::Error(error)) => return Err(error),
                Err(error) => return Err(self.lost(&error)),
            }
        }
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

    fn lost(&self, error: &dyn std::error::Error) -> ApiError {
        ApiError::new(ErrorKind::DaemonUnreachable, "the daemon did not answer")
            .caused_by(error)
            .hint(format!(
                "whether the request was carried out is not known; its log may tell: `tail {}`",
                self.store.log_path().display()
            ))
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
        .hint("only the owner of a store and root can use it; see `floe doctor`")
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
