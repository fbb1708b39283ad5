//! Which snapshot to try next. Pure.

/// What a try said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    Bad,
    /// It cannot be told.
    Skip,
}

/// What is known of a row of snapshots, oldest first, of which the last is bad and the one before the
/// first is good.
pub(super) struct Search {
    verdicts: Vec<Option<Verdict>>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Try this one.
    Try(usize),
    /// This is the first bad one.
    Found(usize),
    /// It is one of these: between them are only such of which it cannot be told.
    OneOf(Vec<usize>),
}

impl Search {
    pub(super) fn new(count: usize) -> Self {
        let mut verdicts = vec![None; count];
        if let Some(last) = verdicts.last_mut() {
            *last = Some(Verdict::Bad);
        }
        Self { verdicts }
    }

    pub(super) fn note(&mut self, at: usize, verdict: Verdict) {
        self.verdicts[at] = Some(verdict);
    }

    pub(super) fn next(&self) -> Next {
        let is = |verdict| move |found: &Option<Verdict>| *found == Some(verdict);
        let bad = self.verdicts.iter().position(is(Verdict::Bad)).unwrap_or(0);
        // Those from here to the bad one are in question.
        let from = self.verdicts[..bad].iter().rposition(is(Verdict::Good));
        let from = from.map_or(0, |good| good + 1);
        if from == bad {
            return Next::Found(bad);
        }
        // Halves what is left if it is good as well as if it is bad.
        let middle = from + (bad - from - 1) / 2;
        let untried = (from..bad).filter(|&at| self.verdicts[at].is_none());
        match untried.min_by_key(|at| at.abs_diff(middle)) {
            Some(at) => Next::Try(at),
            None => Next::OneOf((from..=bad).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first bad one is found for any place and number, with as many tries as halving takes.
    #[test]
    fn the_first_bad_one_is_found_in_few_tries() {
        for count in 1..=70_usize {
            for first in 0..count {
                let mut search = Search::new(count);
                let mut tries = 0;
                loop {
                    match search.next() {
                        Next::Try(at) => {
                            let verdict = if at < first {
                                Verdict::Good
                            } else {
                                Verdict::Bad
                            };
                            search.note(at, verdict);
                            tries += 1;
                        }
                        found => {
                            assert_eq!(found, Next::Found(first));
                            break;
                        }
                    }
                }
                let most = usize::BITS - (count - 1).leading_zeros();
                assert!(tries <= most, "{tries} tries for {first} of {count}");
            }
        }
    }

    #[test]
    fn what_cannot_be_told_is_gone_round_or_named() {
        let run = |skipped: &[usize]| {
            let mut search = Search::new(8);
            loop {
                match search.next() {
                    Next::Try(at) if skipped.contains(&at) => search.note(at, Verdict::Skip),
                    Next::Try(at) if at < 5 => search.note(at, Verdict::Good),
                    Next::Try(at) => search.note(at, Verdict::Bad),
                    end => return end,
                }
            }
        };
        assert_eq!(run(&[3]), Next::Found(5));
        assert_eq!(run(&[2, 3, 6]), Next::Found(5));
        assert_eq!(run(&[4]), Next::OneOf(vec![4, 5]));
        assert_eq!(run(&[3, 4, 5]), Next::OneOf(vec![3, 4, 5, 6]));
    }
}
