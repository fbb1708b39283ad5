//! Failures as the daemon is told them: the one place that knows what an errno means.

use std::io;

use floe_guest::message::{Failure, FailureKind};
use rustix::io::Errno;

/// Longest text of a failure, in bytes.
const MAX_TEXT: usize = 8 * 1024;

/// A failure of that kind.
pub fn failure(kind: FailureKind, message: impl Into<String>) -> Failure {
    let mut message = message.into();
    if message.len() > MAX_TEXT {
        let mut end = MAX_TEXT;
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
    }
    Failure { kind, message }
}

/// The request makes no sense.
pub fn invalid(message: impl Into<String>) -> Failure {
    failure(FailureKind::InvalidArgument, message)
}

/// Something could not be done: `what` is a verb with its object, as "open '/x'".
pub fn failed(what: &str, error: impl Into<io::Error>) -> Failure {
    let error = error.into();
    failure(kind(&error), format!("cannot {what}: {}", text(&error)))
}

/// What the system calls it, without its number.
fn text(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

fn kind(error: &io::Error) -> FailureKind {
    let Some(errno) = Errno::from_io_error(error) else {
        return match error.kind() {
            io::ErrorKind::InvalidInput => FailureKind::InvalidArgument,
            _ => FailureKind::Other,
        };
    };
    match errno {
        Errno::NOENT => FailureKind::NotFound,
        Errno::EXIST | Errno::NOTEMPTY => FailureKind::AlreadyExists,
        Errno::NOTDIR => FailureKind::NotADirectory,
        Errno::ISDIR => FailureKind::IsADirectory,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => FailureKind::PermissionDenied,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => FailureKind::NoSpace,
        Errno::INVAL | Errno::NAMETOOLONG | Errno::LOOP | Errno::TOOBIG | Errno::NOEXEC => {
            FailureKind::InvalidArgument
        }
        Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE => FailureKind::Exhausted,
        Errno::SRCH => FailureKind::NoSuchProcess,
        Errno::CONNREFUSED => FailureKind::PortClosed,
        _ => FailureKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_what_and_why_without_numbers() {
        let made = failed("open '/x'", io::Error::from_raw_os_error(libc::ENOENT));
        assert_eq!(made.kind, FailureKind::NotFound);
        assert_eq!(made.message, "cannot open '/x': No such file or directory");
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let made = invalid("ü".repeat(MAX_TEXT));
        assert_eq!(made.message.len(), MAX_TEXT);
        let made = invalid(format!("x{}", "ü".repeat(MAX_TEXT)));
        assert_eq!(made.message.len(), MAX_TEXT - 1);
    }
}
