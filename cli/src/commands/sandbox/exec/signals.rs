//! What signals to this command mean to the one in the sandbox.

use std::sync::Arc;

use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;
use tracing::debug;

use super::session::Steering;
use super::terminal::{self, Terminal};
use crate::error::{ApiError, ErrorKind};
use crate::wire::exec::ExecInput;

/// How often one may press Ctrl-C before this command ends, whatever the other does.
const INTERRUPTS_MAX: u32 = 2;

/// What to do about a signal.
#[derive(Debug, PartialEq, Eq)]
enum Act {
    /// Pass it on.
    PassOn(i32),
    /// Tell the size of the terminal.
    Resize,
    /// Take the terminal again, which the shell had meanwhile.
    Retake,
    /// End, with this status.
    Leave(i32),
    /// Nothing.
    Nothing,
}

/// What a signal means. `raw`: whether keys go to the command's terminal, and signals come from
/// elsewhere; `tty`: whether it has one.
fn meaning(signal: i32, raw: bool, tty: bool, interrupts: &mut u32) -> Act {
    match signal {
        SIGWINCH if tty => Act::Resize,
        SIGCONT if raw => Act::Retake,
        SIGWINCH | SIGCONT => Act::Nothing,
        SIGHUP => Act::Leave(128 + signal),
        _ if raw => Act::Leave(128 + signal),
        SIGINT if *interrupts == INTERRUPTS_MAX => Act::Leave(128 + signal),
        SIGINT => {
            *interrupts += 1;
            Act::PassOn(signal)
        }
        _ => Act::PassOn(signal),
    }
}

/// Begins to watch, on a thread of its own that ends with this process.
///
/// # Errors
/// When signals cannot be watched.
pub(super) fn watch(
    steering: &Arc<Steering>,
    terminal: Option<&Arc<Terminal>>,
    tty: bool,
) -> Result<(), ApiError> {
    let failed = |error: std::io::Error| {
        ApiError::new(ErrorKind::Failed, "cannot watch for signals").caused_by(&error)
    };
    let all = [SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGWINCH, SIGCONT];
    let mut signals = Signals::new(all).map_err(failed)?;
    let (steering, terminal) = (Arc::clone(steering), terminal.cloned());
    let watch = move || {
        let mut interrupts = 0;
        for signal in signals.forever() {
            let act = meaning(signal, terminal.is_some(), tty, &mut interrupts);
            if act == Act::Retake
                && let Some(terminal) = &terminal
                && let Err(error) = terminal.make_raw()
            {
                debug!(%error, "the terminal cannot be taken again");
            }
            let sent = match act {
                Act::PassOn(signal) => steering.send(&ExecInput::Signal(signal)),
                Act::Resize | Act::Retake => steering.send(&ExecInput::Resize(terminal::size())),
                Act::Nothing => Ok(()),
                Act::Leave(status) => {
                    if let Some(terminal) = &terminal {
                        terminal.restore();
                    }
                    std::process::exit(status);
                }
            };
            if let Err(error) = sent {
                debug!(%error, "the connection takes no more signals");
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(watch)
        .map(drop)
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_terminal_signals_are_passed_on_and_the_third_interrupt_leaves() {
        let mut interrupts = 0;
        let mut of = |signal| meaning(signal, false, false, &mut interrupts);
        assert_eq!(of(SIGINT), Act::PassOn(SIGINT));
        assert_eq!(of(SIGTERM), Act::PassOn(SIGTERM));
        assert_eq!(of(SIGQUIT), Act::PassOn(SIGQUIT));
        assert_eq!(of(SIGINT), Act::PassOn(SIGINT));
        assert_eq!(of(SIGINT), Act::Leave(130));
        assert_eq!(of(SIGHUP), Act::Leave(129));
        assert_eq!(of(SIGWINCH), Act::Nothing);
        assert_eq!(of(SIGCONT), Act::Nothing);
    }

    #[test]
    fn with_a_raw_terminal_signals_are_for_this_command_and_sizes_for_the_other() {
        let mut interrupts = 0;
        let mut of = |signal| meaning(signal, true, true, &mut interrupts);
        assert_eq!(of(SIGINT), Act::Leave(130));
        assert_eq!(of(SIGTERM), Act::Leave(143));
        assert_eq!(of(SIGHUP), Act::Leave(129));
        assert_eq!(of(SIGWINCH), Act::Resize);
        assert_eq!(of(SIGCONT), Act::Retake);
    }
}
