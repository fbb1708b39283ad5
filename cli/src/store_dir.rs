//! Which store, and where things are in it.
//!
//! ```text
//! <store>/run/daemon.sock   the daemon's socket
//! <store>/run/daemon.log    its log, with the one before in daemon.log.1
//! <store>/mnt/NAME          where a workspace is mounted when no directory is given (NAME@2 and so
//!                           on if another has that place)
//! <store>/mnt/@ID           the same for a snapshot
//! ```
//! Everything else in it belongs to `floe-fs`.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use floe_fs::{OpenError, Store, StoreInfo};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::{ApiError, ErrorKind};

/// The variable that names the store when `--store` does not.
pub const STORE_VARIABLE: &str = "FLOE_STORE";

/// Longest path a Unix socket can be bound to or connected by, without the final NUL.
const SUN_PATH_MAX: usize = 107;
/// A log beyond this size is set aside when the next daemon starts.
const LOG_BYTES_MAX: u64 = 8 << 20;

/// The store a command works on. It need not exist yet.
#[derive(Clone, Debug)]
pub struct StoreDir {
    path: PathBuf,
    from_flag: bool,
}

impl StoreDir {
    /// The store named on the command line or by the environment, or else the user's own.
    ///
    /// # Errors
    /// When no directory can be derived, as for a user without a home.
    pub fn locate(given: Option<&Path>) -> Result<Self, ApiError> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let root = rustix::process::geteuid().is_root();
        let (path, from_flag) = match given {
            Some(path) => (
                path.to_owned(),
                variable(STORE_VARIABLE).as_deref() != Some(path.as_os_str()),
            ),
            None => (default_path(root, variable)?, false),
        };
        let path = std::path::absolute(&path).map_err(|source| {
            ApiError::new(
                ErrorKind::Usage,
                format!("'{}' is not a usable path", path.display()),
            )
            .caused_by(&source)
        })?;
        Ok(Self { path, from_flag })
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory, if it was named by `--store`, so that commands in hints must name it too.
    #[must_use]
    pub fn flag(&self) -> Option<&Path> {
        self.from_flag.then_some(&*self.path)
    }

    /// Where the daemon's socket and log are.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.path.join("run")
    }

    /// The log of a daemon that was started by a command.
    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        self.run_dir().join(LOG)
    }

    /// Makes the store unless it exists: in a new or empty directory only. What is no store, or
    /// one this version cannot use, is refused before anything is written there, even a log.
    ///
    /// # Errors
    /// As [`Store::init`] and [`Store::inspect`]; what only an open store can show is not one.
    pub fn ensure(&self) -> Result<(), ApiError> {
        match Store::inspect(&self.path) {
            Err(OpenError::NotFound { .. }) => {}
            Err(
                error @ (OpenError::Newer { .. }
                | OpenError::CatalogLost { .. }
                | OpenError::Damaged { .. }
                | OpenError::Foreign { .. }
                | OpenError::Writable { .. }
                | OpenError::Symlink { .. }),
            ) => return Err(error.into()),
            Ok(_) | Err(_) => return Ok(()),
        }
        match self.init() {
            Ok(_) | Err(OpenError::Exists { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the store. Of several commands that do so at once, one makes it and the others find
    /// that it exists.
    ///
    /// # Errors
    /// As [`Store::init`].
    pub fn init(&self) -> Result<StoreInfo, OpenError> {
        let failed = |source| OpenError::Access {
            action: "lock the directory",
            path: self.path.clone(),
            source,
        };
        make_private_dir(&self.path).map_err(failed)?;
        // Somebody else's directory is refused before waiting for a lock that they could hold.
        Store::check_owner(&self.path)?;
        let dir = File::open(&self.path).map_err(failed)?;
        dir.lock().map_err(failed)?;
        Store::init(&self.path)
    }

    /// Makes the run directory, private to the owner. The store must exist.
    ///
    /// # Errors
    /// When it cannot be made, or belongs to somebody else.
    pub fn make_run_dir(&self) -> Result<(), ApiError> {
        make_private_dir(&self.run_dir())
            .and_then(|()| self.open_run_dir())
            .map(drop)
            .map_err(|error| self.unusable(&error))
    }

    /// The run directory itself, whatever its name leads to later: what is made through it cannot
    /// land elsewhere. A symbolic link, or a directory of somebody else, is refused.
    fn open_run_dir(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(self.run_dir(), flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&dir)?;
        let user = rustix::process::geteuid().as_raw();
        if stat.st_uid != user {
            let what = format!(
                "{} belongs to user {}, and this is user {user}",
                self.run_dir().display(),
                stat.st_uid
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        if stat.st_mode & 0o7777 != 0o700 {
            rustix::fs::fchmod(&dir, Mode::RWXU)?;
        }
        Ok(dir)
    }

    /// Opens the log for appending, after setting a very long one aside. On a full disk that has
    /// no room for one, nothing is logged.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open_log(&self) -> Result<File, ApiError> {
        let open = || {
            let dir = self.open_run_dir()?;
            let nofollow = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            match rustix::fs::statat(&dir, LOG, nofollow) {
                Ok(stat) if u64::try_from(stat.st_size).unwrap_or(0) > LOG_BYTES_MAX => {
                    rustix::fs::renameat(&dir, LOG, &dir, LOG_BEFORE)?;
                }
                _ => {}
            }
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::RUSR | Mode::WUSR;
            match rustix::fs::openat(&dir, LOG, flags, mode) {
                Err(Errno::NOSPC | Errno::DQUOT) => File::options().append(true).open("/dev/null"),
                other => Ok(File::from(other?)),
            }
        };
        open().map_err(|error: io::Error| self.unusable(&error))
    }

    /// Connects to the daemon's socket.
    ///
    /// # Errors
    /// The system's: `NotFound` or `ConnectionRefused` when no daemon listens.
    pub fn connect(&self) -> io::Result<UnixStream> {
        with_socket_path(&self.run_dir(), |path| UnixStream::connect(path))
    }

    /// Listens on the daemon's socket, replacing a socket that a killed daemon left. Only whoever
    /// holds the store's lock may call it, after [`StoreDir::make_run_dir`].
    ///
    /// # Errors
    /// The system's.
    pub fn listen(&self) -> io::Result<UnixListener> {
        self.remove_socket()?;
        let dir = self.open_run_dir()?;
        UnixListener::bind(through(&dir))
    }

    /// Removes the daemon's socket; one that is not there is fine.
    ///
    /// # Errors
    /// The system's.
    pub fn remove_socket(&self) -> io::Result<()> {
        match fs::remove_file(self.run_dir().join(SOCKET)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn unusable(&self, error: &io::Error) -> ApiError {
        ApiError::new(
            ErrorKind::Failed,
            format!("cannot use the store '{}'", self.path.display()),
        )
        .caused_by(error)
        .hint("check the host and the store with `floe doctor`, or name another with --store")
    }
}

const SOCKET: &str = "daemon.sock";
const LOG: &str = "daemon.log";
/// The log before, once it was too long.
const LOG_BEFORE: &str = "daemon.log.1";

/// Calls `open` with a path to the socket that fits into a socket address. A path that is too
/// long is replaced by one through this process's descriptor of the directory.
fn with_socket_path<T>(run_dir: &Path, open: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let path = run_dir.join(SOCKET);
    if path.as_os_str().len() <= SUN_PATH_MAX {
        return open(&path);
    }
    let dir = File::open(run_dir)?;
    open(&through(&dir))
}

/// A path to the socket through this process's descriptor of its directory.
fn through(run_dir: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", run_dir.as_raw_fd()))
}

/// Makes a directory with mode 0700 and, below an existing one, its parents.
///
/// # Errors
/// The system's.
pub fn make_private_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn default_path(
    root: bool,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<PathBuf, ApiError> {
    if root {
        return Ok(PathBuf::from("/var/lib/floe"));
    }
    let absolute = |value: &OsString| Path::new(value).is_absolute();
    if let Some(data) = variable("XDG_DATA_HOME").filter(absolute) {
        return Ok(Path::new(&data).join("floe"));
    }
    match variable("HOME") {
        Some(home) => Ok(Path::new(&home).join(OsStr::new(".local/share/floe"))),
        None => Err(
            ApiError::new(ErrorKind::Usage, "no store is named and there is no HOME")
                .hint("name a directory with --store, or with FLOE_STORE"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_store_follows_user_and_environment() {
        let with = |pairs: &'static [(&str, &str)]| {
            move |name: &str| {
                pairs
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| OsString::from(value))
            }
        };
        let path = |root, pairs| default_path(root, with(pairs)).unwrap();
        assert_eq!(path(true, &[("HOME", "/root")]), Path::new("/var/lib/floe"));
        assert_eq!(
            path(false, &[("HOME", "/h")]),
            Path::new("/h/.local/share/floe")
        );
        let both: &[_] = &[("HOME", "/h"), ("XDG_DATA_HOME", "/x")];
        assert_eq!(path(false, both), Path::new("/x/floe"));
        // The XDG specification says that a relative path must be ignored.
        let relative: &[_] = &[("HOME", "/h"), ("XDG_DATA_HOME", "x")];
        assert_eq!(path(false, relative), Path::new("/h/.local/share/floe"));
        assert_eq!(
            default_path(false, with(&[])).unwrap_err().kind,
            ErrorKind::Usage
        );
    }

    #[test]
    fn a_socket_works_below_a_path_that_is_too_long_for_an_address() {
        let scratch = tempfile::tempdir().unwrap();
        let store = StoreDir {
            path: scratch.path().join("x".repeat(100)).join("y".repeat(100)),
            from_flag: false,
        };
        store.make_run_dir().unwrap();
        assert_eq!(store.connect().unwrap_err().kind(), io::ErrorKind::NotFound);
        let listener = store.listen().unwrap();
        store.connect().unwrap();
        drop(listener);
        assert_eq!(
            store.connect().unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        let _second = store.listen().unwrap();
        store.connect().unwrap();
    }
}
