//! The time by which snapshots are too old or expired. Pure.
//!
//! A clock that jumps forward would have everything that is kept for some time deleted within a second.
//! So it is held against one that cannot be set: what it gains at once does not count for a while, and
//! somebody can set it right.

/// Gaining more than this between two looks is a jump, in nanoseconds.
const JUMP: i64 = 60_000_000_000;
/// How long a jump does not count, in nanoseconds.
const HOLD: i64 = 3_600_000_000_000;

/// Two clocks, one beside the other; times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// That which nobody can set, which goes on in sleep.
    pub(super) steady: i64,
    /// Since the epoch.
    pub(super) real: i64,
}

impl Reading {
    /// What they say now.
    pub(super) fn now() -> Self {
        let steady = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Self {
            steady: steady
                .tv_sec
                .saturating_mul(1_000_000_000)
                .saturating_add(steady.tv_nsec),
            real: crate::engine::now_ns(),
        }
    }

    /// The time that the steady clock makes of this one.
    fn at(self, steady: i64) -> i64 {
        self.real.saturating_add(steady.saturating_sub(self.steady))
    }
}

/// Which time counts.
#[derive(Debug, Default)]
pub(super) struct Clock {
    last: Option<Reading>,
    /// The last reading before a jump, and until when that one counts.
    held: Option<(Reading, i64)>,
}

impl Clock {
    /// The time that counts, and whether the clock has just jumped.
    pub(super) fn look(&mut self, now: Reading) -> (i64, bool) {
        let before = self.last.replace(now);
        let before = before.filter(|last| now.real.saturating_sub(last.at(now.steady)) > JUMP);
        if let Some(last) = before {
            let (from, _) = self.held.unwrap_or((last, 0));
            self.held = Some((from, now.steady.saturating_add(HOLD)));
        }
        self.held = self.held.filter(|&(_, until)| now.steady < until);
        let counts = self
            .held
            .map_or(now.real, |(from, _)| now.real.min(from.at(now.steady)));
        (counts, before.is_some())
    }

    /// Somebody says that the clock is right.
    pub(super) fn trust(&mut self) {
        self.held = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;
    const DAY: i64 = 24 * HOLD;

    fn at(steady: i64, real: i64) -> Reading {
        Reading {
            steady: steady * SECOND,
            real: real * SECOND + DAY,
        }
    }

    #[test]
    fn what_the_clock_gains_at_once_does_not_count_for_an_hour() {
        let mut clock = Clock::default();
        let mut look = |steady, real| {
            let (counts, jumped) = clock.look(at(steady, real));
            ((counts - DAY) / SECOND, jumped)
        };
        assert_eq!(look(0, 0), (0, false));
        // A long sleep is no jump, nor is a little.
        assert_eq!(look(9000, 9000), (9000, false));
        assert_eq!(look(9001, 9050), (9050, false));
        assert_eq!(look(9002, 99_999), (9051, true));
        assert_eq!(look(9003, 100_000), (9052, false));
        // Again, and then it is set right.
        assert_eq!(look(9010, 999_999), (9059, true));
        assert_eq!(look(9020, 9060), (9060, false));
        assert_eq!(look(9030, 999_999), (9079, true));
        assert_eq!(look(12_629, 1_003_598), (12_678, false));
        assert_eq!(look(12_630, 1_003_599), (1_003_599, false));
    }

    #[test]
    fn somebody_can_say_that_it_is_right() {
        let mut clock = Clock::default();
        clock.look(at(0, 0));
        assert_eq!(clock.look(at(1, 9000)), (SECOND + DAY, true));
        clock.trust();
        assert_eq!(clock.look(at(2, 9001)), (9001 * SECOND + DAY, false));
    }
}
