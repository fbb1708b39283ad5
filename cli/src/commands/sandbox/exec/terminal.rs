//! The terminal that this command runs in: its size, and the raw mode in which every key goes to the
//! command in the sandbox.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tracing::debug;

use crate::wire::exec::TerminalSize;

/// The size of a terminal that does not say.
const USUAL: TerminalSize = TerminalSize { cols: 80, rows: 24 };

/// The size of whichever standard descriptor is a terminal.
pub(super) fn size() -> TerminalSize {
    let sizes = [
        tcgetwinsize(io::stdin()),
        tcgetwinsize(io::stdout()),
        tcgetwinsize(io::stderr()),
    ];
    let mut known = sizes.into_iter().flatten();
    known
        .find(|size| size.ws_col > 0 && size.ws_row > 0)
        .map_or(USUAL, |size| TerminalSize {
            cols: size.ws_col,
            rows: size.ws_row,
        })
}

/// The terminal on stdin, and how it was.
pub(super) struct Terminal {
    before: Termios,
}

impl Terminal {
    /// Takes note of how it is; none if stdin is no terminal.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn take() -> io::Result<Option<Arc<Self>>> {
        match tcgetattr(io::stdin()) {
            Ok(before) => Ok(Some(Arc::new(Self { before }))),
            Err(Errno::NOTTY | Errno::BADF | Errno::INVAL) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes it raw for as long as the returned value lives.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn raw(self: Arc<Self>) -> io::Result<Raw> {
        self.make_raw()?;
        Ok(Raw { terminal: self })
    }

    /// Makes it raw.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn make_raw(&self) -> io::Result<()> {
        let mut raw = self.before.clone();
        raw.make_raw();
        Ok(tcsetattr(io::stdin(), OptionalActions::Now, &raw)?)
    }

    /// Makes it what it was.
    pub(super) fn restore(&self) {
        if let Err(error) = tcsetattr(io::stdin(), OptionalActions::Now, &self.before) {
            debug!(%error, "the terminal is gone");
        }
    }
}

/// A terminal that is raw. Dropping it, in a panic too, makes the terminal what it was.
pub(super) struct Raw {
    terminal: Arc<Terminal>,
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.terminal.restore();
    }
}
