//! What of the host's directories is left out of a base: lines as in a `.gitignore`, relative to
//! the root of the workspace.

use std::path::Path;

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use thiserror::Error;

use crate::attr::FileKind;

/// A pattern that cannot be understood.
#[derive(Debug, Error)]
#[error("the pattern '{pattern}' cannot be understood: {reason}")]
pub struct ExcludeError {
    /// The pattern.
    pub pattern: String,
    /// Why.
    pub reason: String,
}

/// What is left out.
#[derive(Debug)]
pub(crate) struct Exclude {
    patterns: Gitignore,
    /// Also what not everybody on the host may read.
    private: bool,
}

impl Exclude {
    /// Parses patterns, one a line. `private`: leave out what not everybody may read as well.
    ///
    /// # Errors
    /// [`ExcludeError`] names the first one that cannot be understood.
    pub(crate) fn parse(lines: &str, private: bool) -> Result<Self, ExcludeError> {
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
        let patterns = built.map_err(|error| failed(lines, &error))?;
        Ok(Self { patterns, private })
    }

    /// Whether there are no patterns.
    pub(super) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Whether a file or directory is left out; what lies in a directory that is goes with it.
    pub(super) fn leaves_out(&self, path: &Path, directory: bool) -> bool {
        self.patterns.matched(path, directory).is_ignore()
    }

    /// Whether something of these permissions is left out, because not everybody on the host may read
    /// it, or reading is not what it is there for.
    pub(super) fn hides(&self, kind: FileKind, mode: u32) -> bool {
        let needed = match kind {
            FileKind::Symlink => return false,
            FileKind::Directory => 0o005,
            FileKind::File => 0o004,
            _ => return self.private,
        };
        self.private && mode & needed != needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_in_a_gitignore() {
        let exclude = Exclude::parse("target/\n/usr/share\n*.log\n!keep.log\n", false).unwrap();
        let out = |path: &str, directory| exclude.leaves_out(Path::new(path), directory);
        assert!(out("/a/target", true) && !out("/a/target", false));
        assert!(out("/usr/share", true) && !out("/a/usr/share", true));
        assert!(out("/x.log", false) && !out("/keep.log", false));
        assert!(!out("/usr", true));
        assert!(Exclude::parse("", false).unwrap().is_empty());
        let error = Exclude::parse("ok\n[z-a]", false).unwrap_err();
        assert_eq!(error.pattern, "[z-a]");
    }

    #[test]
    fn what_not_everybody_may_read_is_hidden_where_that_was_asked_for() {
        let public = Exclude::parse("", true).unwrap();
        assert!(public.hides(FileKind::File, 0o640) && !public.hides(FileKind::File, 0o604));
        assert!(
            public.hides(FileKind::Directory, 0o754) && !public.hides(FileKind::Directory, 0o555)
        );
        assert!(public.hides(FileKind::Fifo, 0o666) && !public.hides(FileKind::Symlink, 0o777));
        let all = Exclude::parse("", false).unwrap();
        assert!(!all.hides(FileKind::File, 0) && !all.hides(FileKind::Fifo, 0));
    }
}
