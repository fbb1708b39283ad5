//! Inputs of a fuzzer, run against the devices. **No public API**: behind the feature `fuzzing`, for the
//! targets in `fuzz/` and for the test here that replays what they have found.
//!
//! Invariants: a function here takes any bytes, does the same for the same ones, leaves nothing behind,
//! and panics exactly if a device broke a rule. What the rules are is said at each.

use std::path::Path;

pub use crate::devices::virtio::fuzzing::{fs_reply, virtqueue};
pub use crate::devices::virtio::vsock::fuzzing::vsock;

/// Inputs to begin with, as (target, name, bytes): what a driver that keeps the rules does.
#[must_use]
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let mut all = crate::devices::virtio::fuzzing::seeds();
    all.extend(crate::devices::virtio::vsock::fuzzing::seeds());
    all
}

/// The files of a directory in order, with their contents.
///
/// # Errors
/// The system's, if it is not there or cannot be read.
pub fn inputs(dir: &Path) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        found.push((path.display().to_string(), std::fs::read(&path)?));
    }
    found.sort();
    Ok(found)
}

/// Takes values off the front of an input; when it is used up, zeros.
#[derive(Debug)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    pub(crate) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.u8()) % end.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was found once, and what reaches the most code: the same functions, without a fuzzer.
    fn replay(target: &str, run: fn(&[u8])) {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
        let corpus = inputs(&fuzz.join("corpus").join(target)).expect("a corpus");
        assert!(!corpus.is_empty(), "the corpus of {target} is empty");
        let regressions = fuzz.join("regressions").join(target);
        let found = if regressions.exists() {
            inputs(&regressions).expect("readable inputs")
        } else {
            Vec::new()
        };
        for (name, bytes) in corpus.into_iter().chain(found) {
            // Shown if it fails.
            println!("{name}");
            run(&bytes);
        }
    }

    #[test]
    fn kept_inputs_of_virtqueue_do_no_harm() {
        replay("virtqueue", virtqueue);
    }

    #[test]
    fn kept_inputs_of_fs_reply_do_no_harm() {
        replay("fs_reply", fs_reply);
    }

    #[test]
    fn kept_inputs_of_vsock_do_no_harm() {
        replay("vsock", vsock);
    }

    #[test]
    fn seeds_do_no_harm() {
        for (target, name, bytes) in seeds() {
            println!("{target} {name}");
            match target {
                "virtqueue" => virtqueue(&bytes),
                "vsock" => vsock(&bytes),
                "fs_reply" => fs_reply(&bytes),
                other => panic!("no target {other}"),
            }
        }
    }
}
