//! Why a bench could not go on.

use std::error::Error;

/// Why a bench could not go on. What it had made is removed all the same.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The user or the system asked it to end.
    #[error("interrupted")]
    Interrupted,
    /// A step of the preparation or of the measured work failed.
    #[error("cannot {what}")]
    Step {
        /// What was being done.
        what: String,
        /// Why it failed.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// What was built is not what was to be measured.
    #[error("{what}")]
    Wrong {
        /// What is wrong.
        what: String,
    },
    /// A program ended with an error.
    #[error("`{command}` failed ({status})")]
    Command {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// What it printed on stderr, if anything.
        #[source]
        stderr: Option<Stderr>,
    },
}

/// What a failed program printed on its standard error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Stderr(pub String);

/// Says what failed.
pub(super) trait Step<T> {
    /// Turns an error into one that says what was being done, as in "cannot `what`".
    fn step(self, what: impl Into<String>) -> Result<T, BenchError>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> Step<T> for Result<T, E> {
    fn step(self, what: impl Into<String>) -> Result<T, BenchError> {
        self.map_err(|source| BenchError::Step {
            what: what.into(),
            source: source.into(),
        })
    }
}

impl BenchError {
    /// The error and its causes in one line, for the reason of something skipped.
    pub(super) fn in_one_line(&self) -> String {
        let mut text = self.to_string();
        let mut next = self.source();
        while let Some(error) = next {
            text.push_str(&format!(": {}", error.to_string().trim()));
            next = error.source();
        }
        text.replace('\n', "; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_something_skipped_is_one_line_with_its_causes() {
        let failed: Result<(), _> = Err(std::io::Error::other("disk\nfull"));
        let error = failed.step("write the image").unwrap_err();
        assert_eq!(error.in_one_line(), "cannot write the image: disk; full");
    }
}
