//! What an error means to whoever asked: the one place that gives errors a kind, an exit code and
//! a hint.
//!
//! Library errors arrive here as their own enums and leave as [`ApiError`], the object that goes
//! over the socket, is printed by the command line, and appears on stderr under `--json`.

mod config;
mod keys;
mod library;
mod sandbox;

use std::error::Error;

use serde::{Deserialize, Serialize};

/// The class of an error; decides the exit code. New kinds may appear, so a script should treat
/// one it does not know as `failed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The operation was tried and failed.
    Failed,
    /// The request makes no sense as given.
    Usage,
    /// Something named in the request does not exist.
    NotFound,
    /// The state of something stands against it: a name taken, a mount busy, a store in use.
    Conflict,
    /// It cannot be done at this moment, and nothing of it was done: trying again is right.
    Unavailable,
    /// No daemon could be reached or started.
    DaemonUnreachable,
    /// The daemon that answered is another version of Floe.
    VersionMismatch,
    /// The user interrupted it.
    Interrupted,
    /// A bug in Floe.
    Internal,
    /// Whoever read the output went away. Not a failure, and never printed.
    OutputClosed,
}

impl ErrorKind {
    /// The status a process ends with.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::OutputClosed => 0,
            Self::Failed | Self::Internal | Self::Unavailable => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Conflict => 4,
            Self::DaemonUnreachable | Self::VersionMismatch => 5,
            Self::Interrupted => 130,
        }
    }
}

/// An error as users and scripts see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{error}")]
pub struct ApiError {
    /// What did not work.
    pub error: String,
    /// Why, outermost reason first.
    pub causes: Vec<String>,
    /// What to do next; commands in it stand between backticks and can be pasted.
    pub hint: Option<String>,
    /// Its class.
    pub kind: ErrorKind,
}

impl ApiError {
    /// An error without causes or hint.
    #[must_use]
    pub fn new(kind: ErrorKind, error: impl Into<String>) -> Self {
        Self {
            error: error.into(),
            causes: Vec::new(),
            hint: None,
            kind,
        }
    }

    /// An error whose text and causes are those of a library error.
    #[must_use]
    pub fn from_error(kind: ErrorKind, error: &dyn Error) -> Self {
        let mut made = Self::new(kind, error.to_string());
        made.causes = chain(error.source());
        made
    }

    /// Appends an error and its own sources to the causes.
    #[must_use]
    pub fn caused_by(mut self, cause: &dyn Error) -> Self {
        self.causes.extend(chain(Some(cause)));
        self
    }

    /// Sets the hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Puts what was being done in front; the error so far becomes its first cause.
    #[must_use]
    pub fn while_doing(mut self, what: impl Into<String>) -> Self {
        let inner = std::mem::replace(&mut self.error, what.into());
        self.causes.insert(0, inner);
        self
    }
}

/// The texts of an error and its sources, without repeating one that its parent already shows.
fn chain(mut next: Option<&dyn Error>) -> Vec<String> {
    let mut causes: Vec<String> = Vec::new();
    while let Some(error) = next {
        let text = error.to_string();
        if causes.last() != Some(&text) {
            causes.push(text);
        }
        next = error.source();
    }
    causes
}

/// Quotes a word for a shell where it needs quotes, so that hints can be pasted.
#[must_use]
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_documented_exit_codes() {
        let documented = [
            (ErrorKind::Failed, 1),
            (ErrorKind::Internal, 1),
            (ErrorKind::Usage, 2),
            (ErrorKind::NotFound, 3),
            (ErrorKind::Conflict, 4),
            (ErrorKind::Unavailable, 1),
            (ErrorKind::DaemonUnreachable, 5),
            (ErrorKind::VersionMismatch, 5),
            (ErrorKind::Interrupted, 130),
        ];
        for (kind, code) in documented {
            assert_eq!(kind.exit_code(), code, "{kind:?}");
        }
    }

    #[test]
    fn context_moves_the_error_into_the_causes() {
        let inner = ApiError::new(ErrorKind::Failed, "disk full");
        let outer = inner.while_doing("cannot import '/x'");
        assert_eq!(outer.error, "cannot import '/x'");
        assert_eq!(outer.causes, ["disk full"]);
    }

    #[test]
    fn words_are_quoted_only_where_a_shell_would_split_them() {
        assert_eq!(shell_word("/mnt/a-b.c"), "/mnt/a-b.c");
        assert_eq!(shell_word("/mnt/it's"), r"'/mnt/it'\''s'");
        assert_eq!(shell_word(""), "''");
    }
}
