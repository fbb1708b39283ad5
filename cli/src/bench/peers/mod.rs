//! Other ways to do the same, measured in the same run. Each needs a program or a kernel feature;
//! where that is missing, the reason is noted in place of figures.

pub(super) mod btrfs;
pub(super) mod copies;
pub(super) mod memory_fork;
pub(super) mod overlay;
pub(super) mod qemu;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::error::{BenchError, Stderr, Step};

/// Runs a program to its end; what it prints on stdout is not looked at.
pub(super) fn run(command: &mut Command) -> Result<(), BenchError> {
    let shown = format!("{command:?}").replace('"', "");
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .step(format!("run `{shown}`"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(BenchError::Command {
        command: shown,
        status: output.status.to_string(),
        stderr: (!stderr.is_empty()).then_some(Stderr(stderr)),
    })
}

/// Finds a program, or says how to get it.
pub(super) fn program(name: &str, package: &str) -> Result<PathBuf, BenchError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    dirs.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let mut found = dirs.into_iter().map(|dir| dir.join(name));
    found
        .find(|path| path.is_file())
        .ok_or_else(|| BenchError::Wrong {
            what: format!("{name} is not installed (Debian package {package})"),
        })
}

/// What keeps something from being measured, in words.
pub(super) fn say_why(what: String) -> BenchError {
    BenchError::Wrong { what }
}

/// Fails unless this process is root.
pub(super) fn need_root() -> Result<(), BenchError> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(BenchError::Wrong {
        what: "only root can mount it".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_program_is_named_with_what_it_said() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such thing >&2; exit 3"]);
        let text = run(&mut command).unwrap_err().in_one_line();
        assert!(text.contains("exit status: 3"), "{text}");
        assert!(text.ends_with("no such thing"), "{text}");
        assert!(run(&mut Command::new("true")).is_ok());
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        assert!(program("sh", "dash").unwrap().is_file());
        let error = program("no-such-program", "some-package").unwrap_err();
        assert!(error.to_string().contains("some-package"));
    }
}
