//! Finds the `floe` binary that is tested.
//!
//! `$FLOE_BIN` names one. Otherwise it is built by cargo, in the same target directory and
//! profile as the running test, once per process: cargo does not build another package's binary
//! for an integration test, and a stale one would test yesterday's code.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Path of the `floe` binary under test.
///
/// # Panics
/// When `$FLOE_BIN` names no file, or the build fails (with cargo's output).
#[must_use]
pub fn floe() -> &'static Path {
    static FLOE: OnceLock<PathBuf> = OnceLock::new();
    FLOE.get_or_init(|| match std::env::var_os("FLOE_BIN") {
        Some(path) => {
            let path = PathBuf::from(path);
            path.canonicalize()
                .unwrap_or_else(|error| panic!("FLOE_BIN={}: {error}", path.display()))
        }
        None => build(),
    })
}

/// The root of the repository. Asked at run time: with a target directory shared by two clones, the
/// compiled-in path may be the other's.
#[must_use]
pub fn repository() -> PathBuf {
    let compiled_in = || env!("CARGO_MANIFEST_DIR").into();
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(compiled_in, Into::into)
}

/// cargo's target directory, where things that tests need may be kept.
#[must_use]
pub fn target() -> PathBuf {
    target_and_profile().0
}

fn build() -> PathBuf {
    let (target, profile) = target_and_profile();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--package", "floe", "--bin", "floe"])
        .args(["--profile", profile])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(repository());
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("cannot run cargo: {error}"));
    assert!(
        output.status.success(),
        "building the floe binary failed ({command:?}):\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let path = target
        .join(if profile == "dev" { "debug" } else { profile })
        .join("floe");
    assert!(path.is_file(), "cargo built no {}", path.display());
    path
}

/// Reads both off the running executable: `TARGET/PROFILE/deps/NAME-HASH`.
fn target_and_profile() -> (PathBuf, &'static str) {
    let exe = std::env::current_exe().expect("the running test has a path");
    for dir in exe.ancestors() {
        let profile = match dir.file_name().and_then(|name| name.to_str()) {
            Some("debug") => "dev",
            Some("release") => "release",
            _ => continue,
        };
        if let Some(target) = dir.parent() {
            return (target.to_path_buf(), profile);
        }
    }
    (repository().join("target"), "dev")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_directory_is_an_ancestor_of_the_running_test() {
        let (target, profile) = target_and_profile();
        assert!(std::env::current_exe().unwrap().starts_with(&target));
        assert!(matches!(profile, "dev" | "release"));
    }
}
