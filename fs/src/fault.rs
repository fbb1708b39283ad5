//! Panics that a test asks for in the middle of a request (tests/panics.rs). Debug builds only: in a
//! release build nothing of this exists.
//!
//! `$FLOE_TEST_PANIC` names a file. While it holds `OPERATION POINT`, the next request of that kind
//! which comes by that point removes the file and panics there. The points:
//!
//! | point | where |
//! |---|---|
//! | `begin` | before the operation |
//! | `stall` | as `begin`, but instead of a panic the request is never answered |
//! | `apply` | locks are held and contents prepared, nothing is written to the catalog |
//! | `rows` | the catalog's writer is held, the first row of the change is written |
//! | `done` | the change is committed, memory does not follow yet |
//!
//! `$FLOE_TEST_KILL_AT` has the process killed (SIGKILL) at its so manieth [`step`], of which there is one before and
//! after everything that a landing in a directory of the host does, and before and after each commit and each
//! step on the disk of storing equal contents once.
//!
//! Threads that serve no request, such as the one that reclaims files, never panic here.

/// A request that this thread serves, until dropped.
#[derive(Debug)]
pub(crate) struct Serving(());

#[cfg(debug_assertions)]
mod asked {
    use std::cell::Cell;
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    thread_local! {
        pub(super) static OPERATION: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Kills this process if a test asked for it here.
    pub(super) fn step() {
        static AT: OnceLock<Option<u64>> = OnceLock::new();
        static STEPS: AtomicU64 = AtomicU64::new(0);
        let at = AT.get_or_init(|| std::env::var("FLOE_TEST_KILL_AT").ok()?.parse().ok());
        if at.is_some_and(|at| STEPS.fetch_add(1, Ordering::Relaxed) + 1 == at) {
            let killed = kill_process(getpid(), Signal::KILL);
            unreachable!("this process was killed: {killed:?}");
        }
    }

    /// Panics if a test asked for it.
    pub(super) fn point(point: &str) {
        static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
        let file = FILE.get_or_init(|| std::env::var_os("FLOE_TEST_PANIC").map(PathBuf::from));
        let (Some(file), Some(operation)) = (file, OPERATION.get()) else {
            return;
        };
        // Whoever removes the file was the first.
        let asked = |wanted: &str| {
            std::fs::read(file).is_ok_and(|text| text == wanted.as_bytes())
                && std::fs::remove_file(file).is_ok()
        };
        let wanted = format!("{operation} {point}");
        assert!(!asked(&wanted), "a test asked for it: {wanted}");
        if point == "begin" && asked(&format!("{operation} stall")) {
            loop {
                std::thread::park();
            }
        }
    }
}

impl Serving {
    /// Begins to serve a request.
    pub(crate) fn begin(operation: &'static str) -> Self {
        #[cfg(debug_assertions)]
        asked::OPERATION.set(Some(operation));
        #[cfg(not(debug_assertions))]
        let _unused = operation;
        Self(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        asked::OPERATION.set(None);
    }
}

/// A place where a test can have a request panic.
#[inline]
pub(crate) fn point(name: &str) {
    #[cfg(debug_assertions)]
    asked::point(name);
    #[cfg(not(debug_assertions))]
    let _unused = name;
}

/// A place where a test can have the process killed.
#[inline]
pub(crate) fn step() {
    #[cfg(debug_assertions)]
    asked::step();
}
