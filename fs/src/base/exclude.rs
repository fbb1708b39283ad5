//! What of the host's directories is left out of a base: lines as in a `.gitignore`, relative to
//! the root of the workspace.

use std::path::Path;

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use thiserror::Error;

/// A pattern that cannot be understood.
#[derive(Debug, Error)]
#[error("the pattern '{pattern}' cannot be understood: {reason}")]
pub struct ExcludeError {
    /// The pattern.
    pub pattern: String,
    /// Why.
    pub reason: String,
}

/// Patterns.
#[derive(Debug)]
pub(crate) struct Exclude(Gitignore);

impl Exclude {
    /// Parses patterns, one a line.
    ///
    /// # Errors
    /// [`ExcludeError`] names the first one that cannot be understood.
    pub(crate) fn parse(lines: &str) -> Result<Self, ExcludeError> {
        let mut builder = GitignoreBuilder::new("/");
        let failed = |pattern: &str, error: &ignore::Error| ExcludeError {
            pattern: pattern.to_owned(),
            reason: error.to_string(),
        };
        for line in lines.lines() {
            builder
                .add_line(None, line)
                .map_err(|error| failed(line, &error))?;
        }
        let built = builder.build();
        Ok(Self(built.map_err(|error| failed(lines, &error))?))
    }

    /// Whether there is anything to leave out.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a file or directory is left out; what lies in a directory that is goes with it.
    pub(super) fn leaves_out(&self, path: &Path, directory: bool) -> bool {
        self.0.matched(path, directory).is_ignore()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_in_a_gitignore() {
        let exclude = Exclude::parse("target/\n/usr/share\n*.log\n!keep.log\n").unwrap();
        let out = |path: &str, directory| exclude.leaves_out(Path::new(path), directory);
        assert!(out("/a/target", true) && !out("/a/target", false));
        assert!(out("/usr/share", true) && !out("/a/usr/share", true));
        assert!(out("/x.log", false) && !out("/keep.log", false));
        assert!(!out("/usr", true));
        assert!(Exclude::parse("").unwrap().is_empty());
        let error = Exclude::parse("ok\n[z-a]").unwrap_err();
        assert_eq!(error.pattern, "[z-a]");
    }
}
