//! Compiles the payload guest with the compiler that compiles the tests. It is no package: it has
//! no standard library and its own linker script, which `cargo build` of a workspace cannot give
//! one member alone.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// The payload guest as an ELF file, compiled if its `sources` are newer. `scratch` is a directory
/// that lives as long as the build's.
pub fn payload(sources: &Path, scratch: &Path) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    let elf = scratch.join("payload.elf");
    if is_current(sources, &elf) {
        return elf;
    }
    // Several test programs may be here at once: each builds its own and renames.
    let fresh = scratch.join(format!("payload-{}.elf", std::process::id()));
    let script = format!("-Clink-arg=-Wl,-T,{}", sources.join("link.ld").display());
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--edition=2024", "--crate-type=bin", "-Cpanic=abort"])
        .args(["-Copt-level=2", "-Crelocation-model=static"])
        .args(["-Ctarget-cpu=x86-64", "--target=x86_64-unknown-linux-gnu"])
        .args([
            "-Clink-arg=-nostdlib",
            "-Clink-arg=-static",
            "-Clink-arg=-no-pie",
        ])
        .args([
            "-Clink-arg=-Wl,--build-id=none",
            "-Clink-arg=-Wl,--defsym=rust_eh_personality=0",
        ])
        .arg(script)
        .arg("-o")
        .args([&fresh, &sources.join("main.rs")])
        .output()
        .expect("rustc runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::rename(&fresh, &elf).expect("the scratch directory is writable");
    elf
}

fn is_current(sources: &Path, elf: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|data| data.modified()).ok();
    let built = modified(elf);
    let mut files = std::fs::read_dir(sources).expect("the payload's sources are there");
    built.is_some()
        && files.all(|file| modified(&file.expect("a readable directory").path()) < built)
}
