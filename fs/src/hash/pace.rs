//! How fast frozen contents are hashed, so that those who use the store do not notice. Pure, but for
//! the count of requests.
//!
//! After about a millisecond of work there is a pause. It is at least as long
//!
//! * as the bytes that were read are allowed to take (the setting `hash_rate`);
//! * as the work took, so that half of the time is everybody's;
//! * nine times as long if requests came in since the last pause began, and for what was spent looking
//!   for something to do: a tenth of the time is taken then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Requests of programs, of all stores of this process.
static SERVED: AtomicU64 = AtomicU64::new(0);

/// A request of a program is about to be served.
#[inline]
pub(crate) fn serving() {
    SERVED.fetch_add(1, Ordering::Relaxed);
}

/// Times as long as the work that a pause is when others are at work, or nothing was hashed.
const BUSY: u32 = 9;
/// Work that is worth a pause.
const ENOUGH: Duration = Duration::from_millis(1);

/// What tells when to pause, and for how long.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Requests when the last pause began.
    served: u64,
    /// Since then: how long was worked, how long of that to look for something to do, and the bytes
    /// that were read.
    worked: Duration,
    looked: Duration,
    read: u64,
}

impl Pace {
    /// Begins.
    pub(super) fn new() -> Self {
        Self {
            served: SERVED.load(Ordering::Relaxed),
            ..Self::default()
        }
    }

    /// A step took so long and read so many bytes, or only looked for something to do. Says whether to
    /// pause now, and for how long, if so many bytes may be read in a second.
    pub(super) fn after(
        &mut self,
        took: Duration,
        read: u64,
        looked: bool,
        rate: u64,
    ) -> Option<Duration> {
        self.worked += took;
        self.looked += if looked { took } else { Duration::ZERO };
        self.read += read;
        let micros = u128::from(self.read) * 1_000_000 / u128::from(rate.max(1));
        let allowed = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        if self.worked.max(allowed) < ENOUGH {
            return None;
        }
        let served = SERVED.load(Ordering::Relaxed);
        let share = if served == self.served {
            self.worked + self.looked * (BUSY - 1)
        } else {
            self.worked * BUSY
        };
        let pause = allowed.saturating_sub(self.worked).max(share);
        *self = Self {
            served,
            ..Self::default()
        };
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const FAST: u64 = u64::MAX;

    // Nothing that other tests of this program do serves a request of a program while these run, but
    // for one, and that is over before it would matter twice.
    fn quiet(took: Duration, read: u64, looked: bool, rate: u64) -> Option<Duration> {
        let first = Pace::new().after(took, read, looked, rate);
        let second = Pace::new().after(took, read, looked, rate);
        first.min(second)
    }

    #[test]
    fn no_more_is_read_than_allowed() {
        // 1 MiB at 64 MiB a second takes 15.6 ms, with the step itself.
        let pause = quiet(2 * MS, 1 << 20, false, 64 << 20).unwrap();
        assert_eq!(pause.as_micros(), 15_625 - 2_000);
        // Many small ones together as well.
        let mut pace = Pace::new();
        let paused: Duration = (0..1024)
            .filter_map(|_| pace.after(Duration::from_micros(1), 16 << 10, false, 16 << 20))
            .sum();
        assert!(paused > 950 * MS, "{paused:?}");
    }

    #[test]
    fn work_takes_half_of_the_time_and_looking_for_some_a_tenth() {
        assert_eq!(quiet(2 * MS, 1 << 20, false, FAST), Some(2 * MS));
        assert_eq!(quiet(2 * MS, 0, true, FAST), Some(18 * MS));
        assert_eq!(quiet(MS / 2, 4096, false, FAST), None);
    }

    #[test]
    fn when_requests_come_in_a_tenth_of_the_time_is_taken() {
        let mut pace = Pace::new();
        serving();
        assert_eq!(pace.after(2 * MS, 1 << 20, false, FAST), Some(18 * MS));
        let mut pace = Pace::new();
        serving();
        assert_eq!(
            pace.after(200 * MS, 1 << 20, false, 64 << 20),
            Some(1800 * MS)
        );
    }
}
