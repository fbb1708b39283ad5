//! Threads of an open store that work beside those who use it.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::core::Core;

/// A running thread. Dropping it has the thread end, and waits for that.
pub(crate) struct Background {
    core: Arc<Core>,
    name: &'static str,
    /// Tells the thread to end.
    end: fn(&Core),
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts a thread that does `work` until `end` was called.
    pub(crate) fn start(
        core: &Arc<Core>,
        name: &'static str,
        work: impl FnOnce(&Core) + Send + 'static,
        end: fn(&Core),
    ) -> io::Result<Self> {
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn({
            let core = core.clone();
            move || work(&core)
        })?;
        Ok(Self {
            core: core.clone(),
            name,
            end,
            thread: Some(thread),
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        (self.end)(&self.core);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(thread = self.name, "a thread in the background panicked");
        }
    }
}
