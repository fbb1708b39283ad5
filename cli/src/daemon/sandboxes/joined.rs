//! One piece of work for all who ask for it while it is being done.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Those who come together come within this time of one another.
const GATHER_STEP: Duration = Duration::from_millis(1);

/// Work by key. Whoever asks for a key that is being worked on gets that work's result.
pub(super) struct Joined<K, T> {
    under_way: Mutex<HashMap<K, Arc<Flight<T>>>>,
}

struct Flight<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

enum State<T> {
    UnderWay,
    Done(T),
    /// Whoever did it panicked.
    Lost,
}

impl<K, T> Default for Joined<K, T> {
    fn default() -> Self {
        Self {
            under_way: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash + Clone, T: Clone> Joined<K, T> {
    /// Does the work, or waits for whoever does it already. The work is handed the door by which others
    /// join. The second value: whether this caller did it. `None` if whoever does it panics.
    pub(super) fn run(
        &self,
        key: &K,
        work: impl FnOnce(&Door<'_, K, T>) -> T,
    ) -> Option<(T, bool)> {
        let mut under_way = self.under_way.lock();
        if let Some(flight) = under_way.get(key).cloned() {
            drop(under_way);
            return flight.wait().map(|result| (result, false));
        }
        let flight = Arc::new(Flight {
            state: Mutex::new(State::UnderWay),
            changed: Condvar::new(),
        });
        under_way.insert(key.clone(), Arc::clone(&flight));
        drop(under_way);
        // Also when the work panics, or those who wait would wait for ever.
        let ending = Ending {
            joined: self,
            key,
            flight: &flight,
        };
        let result = work(&Door {
            joined: self,
            key,
            flight: &flight,
        });
        *flight.state.lock() = State::Done(result.clone());
        drop(ending);
        Some((result, true))
    }

    fn close(&self, key: &K, flight: &Arc<Flight<T>>) {
        let mut under_way = self.under_way.lock();
        if is(&under_way, key, flight) {
            under_way.remove(key);
        }
    }

    fn is_open(&self, key: &K, flight: &Arc<Flight<T>>) -> bool {
        is(&self.under_way.lock(), key, flight)
    }
}

/// Whether this is what is under way of a key.
fn is<K: Eq + Hash, T>(
    under_way: &HashMap<K, Arc<Flight<T>>>,
    key: &K,
    flight: &Arc<Flight<T>>,
) -> bool {
    let now = under_way.get(key);
    now.is_some_and(|now| Arc::ptr_eq(now, flight))
}

/// By which others join work that is under way.
pub(super) struct Door<'a, K, T> {
    joined: &'a Joined<K, T>,
    key: &'a K,
    flight: &'a Arc<Flight<T>>,
}

impl<K: Eq + Hash + Clone, T: Clone> Door<'_, K, T> {
    /// Lets nobody in any more.
    pub(super) fn close(&self) {
        self.joined.close(self.key, self.flight);
    }

    /// Lets nobody in any more, unless somebody else waits for the result. Whether nobody does.
    pub(super) fn close_if_alone(&self) -> bool {
        // Who joins takes the flight under this lock.
        let mut under_way = self.joined.under_way.lock();
        let is_open = is(&under_way, self.key, self.flight);
        let alone = Arc::strong_count(self.flight) <= 1 + usize::from(is_open);
        if alone && is_open {
            under_way.remove(self.key);
        }
        alone
    }

    /// How many others have joined.
    fn others(&self) -> usize {
        // The worker has it, and the map as long as the door is open; the others take it as they join.
        let ours = 1 + usize::from(self.joined.is_open(self.key, self.flight));
        Arc::strong_count(self.flight).saturating_sub(ours)
    }

    /// If others have come, waits for more to come with them, for a moment and not longer than `wait_max`.
    /// Whoever is alone does not wait.
    pub(super) fn gather(&self, wait_max: Duration) {
        let give_up = Instant::now() + wait_max;
        let mut before = 0;
        while self.others() > before && Instant::now() < give_up {
            before = self.others();
            std::thread::sleep(GATHER_STEP);
        }
    }
}

impl<T: Clone> Flight<T> {
    fn wait(&self) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            match &*state {
                State::UnderWay => self.changed.wait(&mut state),
                State::Done(result) => return Some(result.clone()),
                State::Lost => return None,
            }
        }
    }
}

/// Tells those who wait when the work ends, however it does.
struct Ending<'a, K: Eq + Hash + Clone, T: Clone> {
    joined: &'a Joined<K, T>,
    key: &'a K,
    flight: &'a Arc<Flight<T>>,
}

impl<K: Eq + Hash + Clone, T: Clone> Drop for Ending<'_, K, T> {
    fn drop(&mut self) {
        self.joined.close(self.key, self.flight);
        let mut state = self.flight.state.lock();
        if matches!(*state, State::UnderWay) {
            *state = State::Lost;
        }
        drop(state);
        self.flight.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    fn until(is_so: impl Fn() -> bool) {
        while !is_so() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn those_who_ask_before_the_door_is_closed_get_the_same_result() {
        let joined = Joined::<&str, usize>::default();
        let count = AtomicUsize::new(0);
        let next = || count.fetch_add(1, Ordering::SeqCst);
        let (go_on, wait) = channel::<()>();
        let (closed, is_closed) = channel::<()>();
        std::thread::scope(|scope| {
            let (joined, next) = (&joined, &next);
            let first = scope.spawn(move || {
                joined.run(&"a", |door| {
                    wait.recv().unwrap();
                    door.close();
                    closed.send(()).unwrap();
                    wait.recv().unwrap();
                    next()
                })
            });
            until(|| !joined.under_way.lock().is_empty());
            let flight = Arc::clone(&joined.under_way.lock()["a"]);
            let others: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| joined.run(&"a", |_| panic!("not joined"))))
                .collect();
            // The map, the worker and this have it; the others take it as they join.
            until(|| Arc::strong_count(&flight) >= 3 + others.len());
            assert_eq!(joined.run(&"b", |_| 7), Some((7, true)));
            go_on.send(()).unwrap();
            is_closed.recv().unwrap();
            assert_eq!(joined.run(&"a", |_| next()), Some((0, true)));
            go_on.send(()).unwrap();
            assert_eq!(first.join().unwrap(), Some((1, true)));
            for other in others {
                assert_eq!(other.join().unwrap(), Some((1, false)));
            }
        });
        assert_eq!(joined.run(&"a", |_| next()), Some((2, true)));
    }

    #[test]
    fn whoever_is_alone_closes_the_door_and_with_others_it_stays_open() {
        let joined = Joined::<u8, u8>::default();
        let (go_on, wait) = channel::<()>();
        std::thread::scope(|scope| {
            let joined = &joined;
            let first = scope.spawn(move || {
                joined.run(&1, |door| {
                    wait.recv().unwrap();
                    u8::from(door.close_if_alone())
                })
            });
            until(|| !joined.under_way.lock().is_empty());
            let flight = Arc::clone(&joined.under_way.lock()[&1]);
            let other = scope.spawn(|| joined.run(&1, |_| 5));
            until(|| Arc::strong_count(&flight) >= 4);
            drop(flight);
            go_on.send(()).unwrap();
            assert_eq!(first.join().unwrap(), Some((0, true)));
            assert_eq!(other.join().unwrap(), Some((0, false)));
        });
        let alone = joined.run(&1, |door| {
            assert!(door.close_if_alone());
            // Who comes now does it anew.
            assert_eq!(joined.run(&1, |_| 7), Some((7, true)));
            u8::from(door.close_if_alone())
        });
        assert_eq!(alone, Some((1, true)));
    }

    #[test]
    fn a_panic_leaves_nobody_waiting() {
        let joined = Joined::<u8, u8>::default();
        let (go_on, wait) = channel::<()>();
        std::thread::scope(|scope| {
            let joined = &joined;
            let failing = scope.spawn(move || {
                joined.run(&1, |_| {
                    wait.recv().unwrap();
                    panic!("on purpose")
                })
            });
            until(|| !joined.under_way.lock().is_empty());
            let flight = Arc::clone(&joined.under_way.lock()[&1]);
            let other = scope.spawn(|| joined.run(&1, |_| 5));
            until(|| Arc::strong_count(&flight) >= 4);
            go_on.send(()).unwrap();
            assert!(failing.join().is_err());
            assert_eq!(other.join().unwrap(), None);
        });
        assert_eq!(joined.run(&1, |_| 6), Some((6, true)));
    }
}
