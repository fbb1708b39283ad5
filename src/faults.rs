//! Asking the daemon of a debug build to go wrong in the middle of a request (`fs/src/fault.rs`). That of
//! a release build does not know how.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file in which a daemon is asked.
#[derive(Debug)]
pub struct Faults {
    file: PathBuf,
}

impl Faults {
    /// Of daemons that are started with [`Faults::allow`]; the file is in `dir`.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self {
            file: dir.join("fault"),
        }
    }

    /// Lets the daemon that a command starts be asked.
    pub fn allow(&self, command: &mut Command) {
        command.env("FLOE_TEST_PANIC", &self.file);
    }

    /// Has the next request of a kind go wrong at a point.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn ask(&self, operation: &str, point: &str) {
        // Whoever finds it finds all of it.
        let draft = self.file.with_extension("draft");
        fs::write(&draft, format!("{operation} {point}"))
            .and_then(|()| fs::rename(&draft, &self.file))
            .expect("a file in the test's directory");
    }

    /// Whether no request has come yet that was asked for.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.file.exists()
    }

    /// Asks no more.
    ///
    /// # Panics
    /// When a request has come meanwhile.
    pub fn take_back(&self) {
        fs::remove_file(&self.file).expect("nobody does what was asked for");
    }
}
