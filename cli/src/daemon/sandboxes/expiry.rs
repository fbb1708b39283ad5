//! The threads that end or pause sandboxes whose time is over.
//!
//! Times are those of the wall clock, as the catalog has them, and looked at again at least every
//! few seconds, so that a clock that was set is noticed. One thread looks, and each sandbox is dealt with on
//! one of its own: what runs in it may not come to rest for a long time, and the time of the others is over
//! meanwhile.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use floe_fs::{OnTimeout, SandboxState};
use parking_lot::{Condvar, Mutex};
use tracing::{info, warn};

use super::entry::{Entry, Inner};
use super::life::Unpaused;
use super::{Answer, Sandboxes, is_up, life};
use crate::error::{ApiError, ErrorKind};

/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(5);
/// How often rows of sandboxes that were killed long ago are forgotten.
const TIDY_EVERY: Duration = Duration::from_secs(3600);
/// After what could not be ended, it is tried again.
const AGAIN: Duration = Duration::from_secs(10);
/// When it is looked again whether one has been given time that somebody was about to give it.
const SOON: Duration = Duration::from_millis(200);
/// How often it is tried to pause one that does not come to rest, before it is ended instead.
const PAUSES_TRIED: u32 = 3;
/// Most that are dealt with at once.
const AT_ONCE: usize = 64;

/// When whose time is over.
#[derive(Default)]
pub(super) struct Clock {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ends: HashMap<String, i64>,
    /// How many are being dealt with.
    taken: usize,
    ended: bool,
}

impl Clock {
    /// Sets when a sandbox's time is over; `None`: never.
    pub(super) fn set(&self, id: &str, ends_at: Option<i64>) {
        let mut state = self.state.lock();
        match ends_at {
            Some(at) => state.ends.insert(id.to_owned(), at),
            None => state.ends.remove(id),
        };
        drop(state);
        self.changed.notify_one();
    }

    /// One that was taken out has been dealt with.
    fn done(&self) {
        self.state.lock().taken -= 1;
        self.changed.notify_one();
    }

    /// Ends the thread.
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_one();
    }

    /// Waits for one whose time is over, and takes it out, but no longer than that. `None` at the end. Whoever
    /// has dealt with it calls [`Clock::done`].
    fn next(&self, until: Instant) -> Option<Option<String>> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            let now = life::now();
            let first = state
                .ends
                .iter()
                .min_by_key(|(_, at)| **at)
                .map(|(id, at)| (id.clone(), *at));
            let wait = match first {
                Some((id, at)) if at <= now && state.taken < AT_ONCE => {
                    state.ends.remove(&id);
                    state.taken += 1;
                    return Some(Some(id));
                }
                // Until another one is done.
                Some((_, at)) if at <= now => SLEEP_MAX,
                Some((_, at)) => {
                    Duration::from_nanos(u64::try_from(at - now).unwrap_or(0)).min(SLEEP_MAX)
                }
                None => SLEEP_MAX,
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(None);
            }
            self.changed.wait_for(&mut state, wait.min(left));
        }
    }
}

/// Starts the thread that looks.
pub(super) fn start(sandboxes: &Arc<Sandboxes>) -> Answer<()> {
    let me = Arc::downgrade(sandboxes);
    let run = move || {
        let mut tidy_at = Instant::now() + TIDY_EVERY;
        loop {
            let Some(sandboxes) = me.upgrade() else {
                return;
            };
            let Some(next) = sandboxes.expiry.next(tidy_at) else {
                return;
            };
            match next {
                Some(id) => expire_apart(&sandboxes, &id),
                None => {
                    sandboxes.forget_deleted();
                    tidy_at = Instant::now() + TIDY_EVERY;
                }
            }
        }
    };
    let thread = std::thread::Builder::new().name("expiry".into()).spawn(run);
    thread.map(drop).map_err(|error| {
        ApiError::new(ErrorKind::Failed, "cannot start a thread").caused_by(&error)
    })
}

/// One that was taken out, until it has been dealt with, however that ends.
struct Dealt<'a>(&'a Clock);

impl Drop for Dealt<'_> {
    fn drop(&mut self) {
        self.0.done();
    }
}

/// Deals with one on a thread of its own; on this one if there is none to be had.
fn expire_apart(sandboxes: &Arc<Sandboxes>, id: &str) {
    let expire = |sandboxes: &Sandboxes, id: &str| {
        let _dealt = Dealt(&sandboxes.expiry);
        sandboxes.expire(id);
    };
    let thread = std::thread::Builder::new().name("expire".into()).spawn({
        let (sandboxes, id) = (Arc::clone(sandboxes), id.to_owned());
        move || expire(&sandboxes, &id)
    });
    if let Err(error) = thread {
        warn!(%error, "no thread for a sandbox whose time is over");
        expire(sandboxes, id);
    }
}

impl Sandboxes {
    /// A sandbox's time is over, or was when this was found.
    fn expire(&self, id: &str) {
        let Ok(entry) = self.entry(id) else {
            return;
        };
        // A snapshot under way is given up for its end, but not for a pause, or when it gets more time.
        let to_end = self.is_to_be_killed(id) && !entry.is_to_be_extended();
        let _ends = to_end.then(|| entry.to_be_ended());
        // One lock from the look to the deed: whoever gives it time was before, or comes too late.
        let Ok(mut inner) = self.locked(&entry) else {
            return;
        };
        if entry.is_to_be_extended() {
            // They asked before, and wait for this lock.
            drop(inner);
            self.expiry.set(id, life::ends_at(Some(SOON)));
            return;
        }
        let (ends_at, state) = (inner.record.ends_at, inner.record.state);
        // It was given more time meanwhile.
        if ends_at.is_none_or(|at| at > life::now()) {
            self.expiry.set(id, ends_at);
            return;
        }
        let pauses = inner.record.on_timeout == OnTimeout::Pause;
        let done = match pauses {
            true if is_up(state) || state == SandboxState::Pausing => {
                self.pause_or_end(&entry, &mut inner)
            }
            // Without processes there is nothing to pause, and its files were to stay.
            true => return,
            false => self.kill_locked(&entry, &mut inner).map(drop),
        };
        drop(inner);
        match done {
            Ok(()) => info!(sandbox = id, pauses, "the time of a sandbox was over"),
            Err(error) if error.kind == ErrorKind::NotFound => {}
            Err(error) => {
                warn!(sandbox = id, error = error.error, causes = ?error.causes,
                    "a sandbox whose time is over cannot be ended yet");
                self.expiry.set(id, life::ends_at(Some(AGAIN)));
            }
        }
    }

    /// Whether it is killed when its time is over, as far as can be told without waiting for anybody.
    fn is_to_be_killed(&self, id: &str) -> bool {
        match self.store.sandbox(id) {
            Ok(record) => record.is_some_and(|record| record.on_timeout == OnTimeout::Kill),
            Err(error) => {
                warn!(sandbox = id, %error, "it is not known what becomes of a sandbox whose time is over");
                false
            }
        }
    }

    /// Pauses one whose time is over. What does not come to rest, time after time, must not run for ever: it
    /// is ended, and its files stay.
    fn pause_or_end(&self, entry: &Entry, inner: &mut Inner) -> Answer<()> {
        let error = match self.freeze_for_pause(entry, inner) {
            Err(Unpaused::Restless(error)) => error,
            Err(Unpaused::Failed(error)) => return Err(error),
            Ok(()) => return Ok(()),
        };
        inner.restless += 1;
        if inner.restless < PAUSES_TRIED {
            return Err(error);
        }
        self.halt(entry, inner);
        let reason = std::iter::once(&error.error).chain(&error.causes);
        let reason: Vec<&str> = reason.map(String::as_str).collect();
        let reason = format!(
            "its time was over and it could not be paused: {}",
            reason.join(": ")
        );
        self.logs.note(&entry.id, "error", &reason);
        warn!(sandbox = entry.id, reason, "ended a sandbox");
        self.expiry.set(&entry.id, None);
        inner.put(&self.store, SandboxState::Failed, Some(reason));
        inner.write(&self.store, |record| record.ends_at = None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_dealt_with_at_once_and_the_next_when_one_is_done() {
        let clock = Clock::default();
        for number in 0..=AT_ONCE {
            clock.set(&number.to_string(), Some(10));
        }
        let now = Instant::now;
        let taken = (0..=AT_ONCE).filter(|_| clock.next(now()) != Some(None));
        assert_eq!(taken.count(), AT_ONCE);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| clock.next(now() + TIDY_EVERY));
            clock.done();
            assert!(matches!(waiting.join().unwrap(), Some(Some(_))));
        });
        assert_eq!(clock.next(now()), Some(None));
    }

    #[test]
    fn those_whose_time_is_over_come_in_their_order_and_the_end_wakes_who_waits() {
        let clock = Clock::default();
        clock.set("late", Some(20));
        clock.set("early", Some(10));
        clock.set("never", Some(5));
        clock.set("never", None);
        clock.set("far", Some(i64::MAX));
        let until = Instant::now() + TIDY_EVERY;
        assert_eq!(clock.next(until), Some(Some("early".to_owned())));
        assert_eq!(clock.next(until), Some(Some("late".to_owned())));
        assert_eq!(clock.next(Instant::now()), Some(None));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| clock.next(until));
            clock.end();
            assert_eq!(waiting.join().unwrap(), None);
        });
    }
}
