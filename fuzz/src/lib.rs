//! What the fuzz targets share: writing the inputs to begin with.

use std::path::Path;

/// Inputs to begin with, as (target, name, bytes).
pub type Seeds = Vec<(&'static str, &'static str, Vec<u8>)>;

/// Called once by each target. With `FLOE_FUZZ_SEEDS=DIR` in the environment, writes the target's inputs to
/// begin with into that directory and ends the process; no program apart, because whatever is built with
/// coverage needs the fuzzer to link.
///
/// # Panics
/// If they cannot be written.
pub fn begin(target: &str, seeds: fn() -> Seeds) {
    let Some(dir) = std::env::var_os("FLOE_FUZZ_SEEDS") else {
        return;
    };
    for (of, name, bytes) in seeds() {
        if of == target {
            std::fs::write(Path::new(&dir).join(name), bytes).expect("a writable directory");
        }
    }
    std::process::exit(0);
}
