//! Inputs of a fuzzer, run against a guest's connection to a store. **No public API**: behind the feature
//! `fuzzing`, for the target in `fuzz/` and for the test here that replays what it has found.

pub use crate::dispatch::wire::fuzzing::{Fuse, seeds};

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn replay(dir: &Path) -> usize {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut fuse = Fuse::new(&scratch.path().join("store"));
        let mut count = 0;
        for entry in std::fs::read_dir(dir).expect("a directory of inputs") {
            let path = entry.expect("an entry").path();
            // Shown if it fails.
            println!("{}", path.display());
            fuse.run(&std::fs::read(&path).expect("a readable input"));
            count += 1;
        }
        fuse.check();
        count
    }

    #[test]
    fn kept_inputs_do_no_harm() {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
        assert!(replay(&fuzz.join("corpus/fuse")) > 0, "the corpus is empty");
        let regressions = fuzz.join("regressions/fuse");
        if regressions.exists() {
            replay(&regressions);
        }
    }

    #[test]
    fn seeds_do_no_harm() {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut fuse = Fuse::new(&scratch.path().join("store"));
        for (_, name, bytes) in seeds() {
            println!("{name}");
            fuse.run(&bytes);
        }
        fuse.check();
    }
}
