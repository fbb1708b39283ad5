//! `floe_fs::fuzzing::Fuse` says what is tried and what must hold.

#![no_main]

use std::cell::RefCell;

use floe_fs::fuzzing::Fuse;

thread_local! {
    static FUSE: RefCell<Option<(Fuse, tempfile::TempDir)>> = const { RefCell::new(None) };
}

/// A store that was used for long is slower, and says less about what the one input did.
fn run(data: &[u8]) {
    FUSE.with_borrow_mut(|kept| {
        if kept.as_ref().is_some_and(|(fuse, _)| fuse.is_used_up()) {
            *kept = None;
        }
        let (fuse, _) = kept.get_or_insert_with(|| {
            let dir = tempfile::tempdir().expect("a directory");
            (Fuse::new(&dir.path().join("store")), dir)
        });
        fuse.run(data);
    });
}

libfuzzer_sys::fuzz_target!(
    init: floe_fuzz::begin("fuse", floe_fs::fuzzing::seeds),
    |data: &[u8]| run(data)
);
