//! How fast frozen contents are hashed, so that those who use the store do not notice. Pure, but for
//! the count of requests.
//!
//! After each step there is a pause. It is at least as long
//!
//! * as the bytes that were read are allowed to take (the setting `hash_rate`);
//! * as the step took, so that half of the time is everybody's;
//! * as nine times that after a step that only looked for something to do, or if requests came in since
//!   the last pause began: a tenth of the time is taken then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Requests of programs, of all stores of this process.
static SERVED: AtomicU64 = AtomicU64::new(0);

/// A request of a program is about to be served.
#[inline]
pub(crate) fn serving() {
    SERVED.fetch_add(1, Ordering::Relaxed);
}

/// Times as long as a step that a pause is when others are at work, or nothing was hashed.
const BUSY: u32 = 9;

/// What tells how long to pause.
#[derive(Debug)]
pub(super) struct Pace {
    /// Requests when the last pause began.
    served: u64,
}

impl Pace {
    /// Begins.
    pub(super) fn new() -> Self {
        Self {
            served: SERVED.load(Ordering::Relaxed),
        }
    }

    /// The pause after a step that took so long and read so many bytes.
    pub(super) fn after(&mut self, took: Duration, bytes: u64, rate: u64) -> Duration {
        let served = SERVED.load(Ordering::Relaxed);
        let busy = std::mem::replace(&mut self.served, served) != served;
        pause(took, bytes, rate, busy)
    }
}

fn pause(took: Duration, bytes: u64, rate: u64, busy: bool) -> Duration {
    let micros = u128::from(bytes) * 1_000_000 / u128::from(rate.max(1));
    let allowed = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
    let times = if busy || bytes == 0 { BUSY } else { 1 };
    allowed.saturating_sub(took).max(took * times)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn no_more_is_read_than_allowed() {
        // 1 MiB at 64 MiB a second takes 15.6 ms, with the step itself.
        let pause = pause(2 * MS, 1 << 20, 64 << 20, false);
        assert_eq!(pause.as_micros(), 15_625 - 2_000);
    }

    #[test]
    fn a_step_takes_half_of_the_time_at_most_and_a_tenth_when_others_are_at_work() {
        let fast = u64::MAX;
        assert_eq!(pause(2 * MS, 1 << 20, fast, false), 2 * MS);
        assert_eq!(pause(2 * MS, 1 << 20, fast, true), 18 * MS);
        // Looking for something to do.
        assert_eq!(pause(2 * MS, 0, fast, false), 18 * MS);
        assert_eq!(pause(200 * MS, 1 << 20, 64 << 20, true), 1800 * MS);
    }

    #[test]
    fn requests_since_the_last_pause_count_once() {
        // Other tests of this program serve nothing through an adapter while this one runs, or if they
        // do only the second look could see it.
        let mut pace = Pace::new();
        serving();
        assert_eq!(pace.after(MS, 1, u64::MAX), 9 * MS);
        assert_eq!(pace.after(MS, 0, u64::MAX), 9 * MS);
    }
}
