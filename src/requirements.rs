//! What the integration tests need from the machine.
//!
//! A test that cannot run fails and says what is missing. A silent skip would let a run on the
//! wrong machine pass.

use std::path::Path;

/// Lists what is missing, one sentence each with the way to get it; empty when nothing is.
#[must_use]
pub fn missing() -> Vec<&'static str> {
    let mut missing = Vec::new();
    if !rustix::process::geteuid().is_root() {
        missing.push(
            "not root: mounting for other users, device nodes and set-id files need it; \
             run the tests as root, for example with sudo",
        );
    }
    if !Path::new("/dev/fuse").exists() {
        missing.push(
            "no /dev/fuse: load the module with `modprobe fuse`, or start the container with \
             `--device /dev/fuse --cap-add SYS_ADMIN`",
        );
    } else if let Err(_error) = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")
    {
        missing.push("/dev/fuse cannot be opened: the container needs permission for the device");
    }
    missing
}

/// Whether `FLOE_TEST_LONG=1` asks tests to take their long counts.
#[must_use]
pub fn long_run() -> bool {
    std::env::var_os("FLOE_TEST_LONG").is_some_and(|value| value == "1")
}

/// Fails the calling test unless it runs as root with a usable `/dev/fuse`.
///
/// # Panics
/// When either is missing, with the list of what is and how to get it.
#[track_caller]
pub fn require_root_and_fuse() {
    let missing = missing();
    assert!(
        missing.is_empty(),
        "this test cannot run on this machine:\n  - {}\n\
         (scripts/test --unit runs only the tests that need neither)",
        missing.join("\n  - ")
    );
}
