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
//! [`fail_writes`] has writes of the store fail as on a full disk: to objects and to the catalog. It is for
//! tests of the library; `$FLOE_TEST_FULL_AT` does the same for a process, from its so manieth write on.
//!
//! Threads that serve no request, such as the one that reclaims files, never panic here.

/// A request that this thread serves, until dropped.
#[derive(Debug)]
pub(crate) struct Serving(());

#[cfg(debug_assertions)]
mod asked {
    use std::cell::Cell;
    use std::io;
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    thread_local! {
        pub(super) static OPERATION: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Which writes fail: the first, how many, and how many there were.
    pub(super) struct Full {
        pub(super) first: AtomicU64,
        pub(super) count: AtomicU64,
        pub(super) so_far: AtomicU64,
    }

    pub(super) fn full() -> &'static Full {
        static FULL: OnceLock<Full> = OnceLock::new();
        FULL.get_or_init(|| {
            let asked = std::env::var("FLOE_TEST_FULL_AT").ok();
            let first: Option<u64> = asked.and_then(|at| at.parse().ok());
            Full {
                first: AtomicU64::new(first.unwrap_or(0)),
                count: AtomicU64::new(u64::MAX),
                so_far: AtomicU64::new(0),
            }
        })
    }

    /// Fails if a test asked for it.
    pub(super) fn write() -> io::Result<()> {
        let full = full();
        let first = full.first.load(Ordering::SeqCst);
        let number = full.so_far.fetch_add(1, Ordering::SeqCst) + 1;
        let until = first.saturating_add(full.count.load(Ordering::SeqCst));
        if first > 0 && (first..until).contains(&number) {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        Ok(())
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

/// Has `count` writes to the stores of this process fail as on a full disk, from the `first` on (none if that is 0), and
/// returns how many writes there were since this was called last. Debug builds only.
#[cfg(debug_assertions)]
pub fn fail_writes(first: u64, count: u64) -> u64 {
    use std::sync::atomic::Ordering;
    let full = asked::full();
    full.first.store(0, Ordering::SeqCst);
    let so_far = full.so_far.swap(0, Ordering::SeqCst);
    full.count.store(count, Ordering::SeqCst);
    full.first.store(first, Ordering::SeqCst);
    so_far
}

/// A place where a test can have a write fail for want of room. Comes before the write.
#[inline]
pub(crate) fn write() -> std::io::Result<()> {
    #[cfg(debug_assertions)]
    return asked::write();
    #[cfg(not(debug_assertions))]
    Ok(())
}

/// As [`std::os::unix::fs::FileExt::write_all_at`]; one that a test has fail writes half of the bytes.
pub(crate) fn write_all_at(file: &std::fs::File, data: &[u8], offset: u64) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    if let Err(full) = write() {
        file.write_all_at(&data[..data.len() / 2], offset)?;
        return Err(full);
    }
    file.write_all_at(data, offset)
}
