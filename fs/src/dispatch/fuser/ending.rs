//! The end of a session, and who wants to know of it.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

pub(super) type Callback = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    ended: bool,
    /// The file system is gone too, so its number may have been given to another one.
    gone: bool,
    callbacks: Vec<Callback>,
}

/// Tells when the session has ended.
#[derive(Default)]
pub(super) struct Ending {
    state: Mutex<State>,
    changed: Condvar,
}

impl Ending {
    /// The session has ended; with `gone`, its file system is gone as well.
    pub(super) fn end(&self, gone: bool) {
        let mut state = self.state.lock();
        state.gone = gone;
        while !state.callbacks.is_empty() {
            let callbacks = std::mem::take(&mut state.callbacks);
            drop(state);
            callbacks.into_iter().for_each(|callback| callback());
            state = self.state.lock();
        }
        state.ended = true;
        self.changed.notify_all();
    }

    pub(super) fn is_gone(&self) -> bool {
        self.state.lock().gone
    }

    /// Calls back once when the session has ended; at once if it has.
    pub(super) fn then(&self, callback: Callback) {
        let mut state = self.state.lock();
        if state.ended {
            drop(state);
            callback();
        } else {
            state.callbacks.push(callback);
        }
    }

    /// Waits for the end and for the callbacks registered before it; false if `timeout` is over
    /// first.
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.state.lock();
        while !state.ended {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return state.ended;
            }
        }
        true
    }
}
