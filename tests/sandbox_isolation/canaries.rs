//! Files on the host that no sandbox may ever show: where secrets are, or where they could be.

use std::fs;
use std::path::{Path, PathBuf};

/// Directories outside of what a sandbox's root is made of.
const DIRS: [&str; 10] = [
    "/root", "/home", "/etc", "/var/lib", "/var/tmp", "/srv", "/opt", "/tmp", "/run", "/mnt",
];

/// Files of a name and with a text that nothing else has. They are removed when this is dropped.
pub struct Canaries {
    name: String,
    paths: Vec<PathBuf>,
}

impl Canaries {
    /// Places them in every one of the directories that the host has.
    pub fn place() -> Self {
        let name = format!("floe-canary-{}", std::process::id());
        let mut canaries = Self {
            name,
            paths: Vec::new(),
        };
        for dir in DIRS.map(Path::new).into_iter().filter(|dir| dir.is_dir()) {
            let path = dir.join(&canaries.name);
            fs::write(&path, canaries.marker())
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            canaries.paths.push(path);
        }
        assert!(canaries.paths.len() > 5, "{:?}", canaries.paths);
        canaries
    }

    /// What they are called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is in them.
    pub fn marker(&self) -> String {
        format!("the text of {}", self.name)
    }

    /// Where they are, and files of the host that are secret by themselves.
    pub fn paths(&self) -> Vec<PathBuf> {
        let known = ["/root/.bash_history", "/root/.ssh/id_rsa", "/root/.netrc"];
        let mut paths = self.paths.clone();
        paths.extend(known.map(PathBuf::from));
        paths
    }
}

impl Drop for Canaries {
    fn drop(&mut self) {
        for path in &self.paths {
            if let Err(error) = fs::remove_file(path) {
                eprintln!("{}: {error}", path.display());
            }
        }
    }
}
