//! Builds the agent and leaves it where `src/agent/image.rs` embeds it from, and the guest that `floe bench vm`
//! measures with (`src/bench/vm/guest.rs`).
//!
//! The agent runs in sandboxes that have no libraries, or others, so it is static. Cargo cannot yet
//! give a dependency another profile and other flags, so it is called again, with its own target
//! directory: the outer one is locked.

#[path = "../vmm/payload/compile.rs"]
mod payload;

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Static, and at a fixed address: nothing has to be relocated at the start.
const FLAGS: [&str; 2] = ["-Ctarget-feature=+crt-static", "-Crelocation-model=static"];

/// Settings of the outer build that must not reach the inner one: flags, wrappers (clippy is one), and
/// where things go.
const NOT_INHERITED: [&str; 10] = [
    "CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_ENCODED_RUSTDOCFLAGS",
    "CARGO_TARGET_DIR",
    "CLIPPY_ARGS",
    "LLVM_PROFILE_FILE",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
];

fn main() -> Result<(), Box<dyn Error>> {
    let workspace = variable("CARGO_MANIFEST_DIR")?.join("..").canonicalize()?;
    let out = variable("OUT_DIR")?;
    for path in [
        "vmm/guest/src",
        "vmm/guest/Cargo.toml",
        "vmm/payload",
        "Cargo.toml",
        "Cargo.lock",
        "cli/build.rs",
    ] {
        println!("cargo::rerun-if-changed={}", workspace.join(path).display());
    }
    let built = build(&workspace, &out.join("agent"))?;
    check_static(&built)?;
    fs::copy(&built, out.join("floe-guest"))?;
    payload::payload(&workspace.join("vmm/payload"), &out);
    Ok(())
}

fn variable(name: &str) -> Result<PathBuf, Box<dyn Error>> {
    let value = env::var_os(name).ok_or_else(|| format!("cargo has not set {name}"))?;
    Ok(value.into())
}

fn build(workspace: &Path, target_dir: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let target = env::var("TARGET")?;
    let mut cargo = Command::new(variable("CARGO")?);
    cargo
        .current_dir(workspace)
        .args(["build", "--package", "floe-guest", "--bin", "floe-guest"])
        .args(["--profile", "agent", "--target", &target])
        // What is needed was needed to come here.
        .args(["--locked", "--offline"])
        .arg("--target-dir")
        .arg(target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"));
    for name in NOT_INHERITED {
        cargo.env_remove(name);
    }
    let output = cargo.output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(explain(&text).into());
    }
    Ok(target_dir.join(target).join("agent").join("floe-guest"))
}

/// What the build said, and what to do about it where that is known.
fn explain(text: &str) -> String {
    let linker = text.contains("linking with");
    let no_library = ["-lc", "-lutil", "-lpthread", "-lgcc_eh", "libc.a"]
        .iter()
        .any(|library| text.contains(library));
    let hint = if linker && no_library {
        "\n\nhint: the agent is linked statically, which needs libc.a: on Debian, install libc6-dev; \
         on Fedora, glibc-static"
    } else {
        ""
    };
    format!("the agent (floe-guest) cannot be built:\n{text}{hint}")
}

/// A program that asks for an interpreter would not start in a sandbox that has none.
fn check_static(program: &Path) -> Result<(), Box<dyn Error>> {
    /// Kind of the program header that names the interpreter. Source: elf(5), PT_INTERP.
    const INTERPRETER: u32 = 3;
    let bytes = fs::read(program)?;
    let number = |at: usize, len: usize| -> Option<u64> {
        let mut value = [0; 8];
        value
            .get_mut(..len)?
            .copy_from_slice(bytes.get(at..at + len)?);
        Some(u64::from_le_bytes(value))
    };
    // Source: elf(5), Elf64_Ehdr: e_phoff, e_phentsize, e_phnum.
    let headers = (number(32, 8), number(54, 2), number(56, 2));
    let (Some(offset), Some(size), Some(count)) = headers else {
        return Err("the agent is no ELF program".into());
    };
    for index in 0..count {
        let at = usize::try_from(offset + index * size)?;
        if number(at, 4) == Some(u64::from(INTERPRETER)) {
            return Err("the agent was not linked statically".into());
        }
    }
    Ok(())
}
