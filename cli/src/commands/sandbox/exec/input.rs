//! This command's input, on its way to the command in the sandbox.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use tracing::debug;

use super::descriptors::read_some;
use super::session::Steering;
use crate::error::{ApiError, ErrorKind};
use crate::wire::exec::{ExecInput, INPUT_CHUNK_MAX, INPUT_WINDOW};

/// How much input may still be sent before the daemon says that some was taken.
pub(super) struct Window {
    left: Mutex<usize>,
    grown: Condvar,
}

impl Window {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            left: Mutex::new(INPUT_WINDOW),
            grown: Condvar::new(),
        })
    }

    /// Waits until something may be sent, and says how much.
    fn wait(&self) -> usize {
        let mut left = self.left.lock();
        while *left == 0 {
            self.grown.wait(&mut left);
        }
        *left
    }

    fn shrink(&self, bytes: usize) {
        let mut left = self.left.lock();
        *left = left.saturating_sub(bytes);
    }

    /// Notes that so much has been taken.
    pub(super) fn grow(&self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut left = self.left.lock();
        *left = left.saturating_add(bytes).min(INPUT_WINDOW);
        self.grown.notify_all();
    }
}

/// Passes stdin on, on a thread of its own that ends with this process.
///
/// # Errors
/// When there is no thread to be had.
pub(super) fn start(steering: &Arc<Steering>, window: &Arc<Window>) -> Result<(), ApiError> {
    let (steering, window) = (Arc::clone(steering), Arc::clone(window));
    let pass_on = move || {
        let stdin = io::stdin();
        if let Err(error) = pass_on(stdin.as_fd(), &steering, &window) {
            debug!(%error, "the connection takes no more input");
        }
    };
    std::thread::Builder::new()
        .name("stdin".into())
        .spawn(pass_on)
        .map(drop)
        .map_err(|error| {
            ApiError::new(ErrorKind::Failed, "cannot start a thread").caused_by(&error)
        })
}

/// Passes everything on up to the end, then says that there is no more.
fn pass_on(from: BorrowedFd<'_>, steering: &Steering, window: &Window) -> io::Result<()> {
    let mut buffer = vec![0; INPUT_CHUNK_MAX];
    loop {
        let room = window.wait().min(INPUT_CHUNK_MAX);
        let count = match read_some(from, &mut buffer[..room]) {
            Ok(count) => count,
            // A terminal that is gone, or none that this process may read: as good as the end.
            Err(error) => {
                if error.raw_os_error() != Some(Errno::IO.raw_os_error()) {
                    debug!(%error, "cannot read the standard input");
                }
                0
            }
        };
        if count == 0 {
            return steering.send(&ExecInput::CloseStdin);
        }
        window.shrink(count);
        steering.send(&ExecInput::Stdin(buffer[..count].into()))?;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn no_more_is_on_the_way_than_the_window_and_nothing_is_lost() {
        let (near, far) = UnixStream::pair().unwrap();
        let steering = Steering::new(&near).unwrap();
        let window = Window::new();
        let (reader, mut writer) = io::pipe().unwrap();
        let sent: Vec<u8> = (0..=255).cycle().take(3 * INPUT_WINDOW + 7).collect();
        let mut seen: Vec<u8> = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| writer.write_all(&sent).map(|()| drop(writer)).unwrap());
            scope.spawn(|| pass_on(reader.as_fd(), &steering, &window).unwrap());
            let mut untaken = 0;
            for line in BufReader::new(&far).lines() {
                let bytes = match serde_json::from_str(&line.unwrap()).unwrap() {
                    ExecInput::Stdin(payload) => payload.into_bytes().unwrap(),
                    ExecInput::CloseStdin => break,
                    other => panic!("{other:?}"),
                };
                assert!(bytes.len() <= INPUT_CHUNK_MAX);
                untaken += bytes.len();
                assert!(untaken <= INPUT_WINDOW, "{untaken}");
                seen.extend(bytes);
                // Taken in portions, and only once all of the window is used.
                let is_full = untaken == INPUT_WINDOW;
                if is_full || seen.len() > 2 * INPUT_WINDOW {
                    window.grow(untaken.try_into().unwrap());
                    untaken = 0;
                }
            }
        });
        assert_eq!(seen.len(), sent.len());
        assert!(seen == sent);
    }

    #[test]
    fn a_daemon_that_says_too_much_does_not_widen_the_window() {
        let window = Window::new();
        window.grow(u64::MAX);
        assert_eq!(window.wait(), INPUT_WINDOW);
        window.shrink(INPUT_WINDOW - 1);
        assert_eq!(window.wait(), 1);
    }
}
