//! Which snapshots go, and why: docs/retention.md as a function. Nothing here reads a clock or a catalog.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::time::Duration;

use crate::id::WorkspaceId;

/// Who took a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SnapshotClass {
    /// Somebody asked for it.
    ByHand,
    /// Floe by itself, before a fork, a rollback or a landing.
    Automatic,
}

impl SnapshotClass {
    /// Both.
    pub const ALL: [Self; 2] = [Self::ByHand, Self::Automatic];

    /// The class of snapshots that were taken for this reason.
    pub(crate) fn of(automatic: Option<&str>) -> Self {
        match automatic {
            None => Self::ByHand,
            Some(_) => Self::Automatic,
        }
    }
}

/// Which snapshots of a workspace and class are kept: those for which one of the reasons holds. Without
/// any reason all are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionRule {
    /// They are among the newest so many.
    pub keep_last: Option<NonZeroU64>,
    /// They were taken less than so long ago.
    pub keep_within: Option<Duration>,
}

impl RetentionRule {
    /// Keeps all.
    pub const KEEP_ALL: Self = Self {
        keep_last: None,
        keep_within: None,
    };

    /// What holds where nobody set a rule: by hand all, of the automatic ones the newest 32 and those
    /// of the last 7 days.
    #[must_use]
    pub const fn built_in(class: SnapshotClass) -> Self {
        match class {
            SnapshotClass::ByHand => Self::KEEP_ALL,
            SnapshotClass::Automatic => Self {
                keep_last: NonZeroU64::new(32),
                keep_within: Some(Duration::from_secs(7 * 24 * 3600)),
            },
        }
    }

    /// Whether it deletes nothing.
    #[must_use]
    pub fn keeps_all(&self) -> bool {
        *self == Self::KEEP_ALL
    }
}

/// Who set a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleSource {
    /// Nobody.
    Default,
    /// It is for every workspace without one of its own.
    Store,
    /// It is the workspace's own.
    Workspace,
}

/// All rules that were set, by workspace; none: the store's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules(HashMap<(Option<WorkspaceId>, SnapshotClass), RetentionRule>);

impl Rules {
    pub(crate) fn set(
        &mut self,
        workspace: Option<WorkspaceId>,
        class: SnapshotClass,
        rule: RetentionRule,
    ) {
        self.0.insert((workspace, class), rule);
    }

    /// The rule that holds for a workspace; for none, for those without one of their own.
    pub(crate) fn of(
        &self,
        workspace: Option<WorkspaceId>,
        class: SnapshotClass,
    ) -> (RetentionRule, RuleSource) {
        if let Some(&own) = workspace.and_then(|id| self.0.get(&(Some(id), class))) {
            return (own, RuleSource::Workspace);
        }
        match self.0.get(&(None, class)) {
            Some(&stores) => (stores, RuleSource::Store),
            None => (RetentionRule::built_in(class), RuleSource::Default),
        }
    }

    /// Whether no rule deletes anything of a workspace.
    pub(crate) fn keep_all_of(&self, workspace: WorkspaceId) -> bool {
        SnapshotClass::ALL
            .iter()
            .all(|&class| self.of(Some(workspace), class).0.keeps_all())
    }
}

/// What is to be known of a snapshot. Times are nanoseconds since the epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) class: SnapshotClass,
    pub(crate) created_at: i64,
    pub(crate) expires_at: Option<i64>,
    pub(crate) protected: bool,
    pub(crate) in_use: bool,
}

/// Why a snapshot goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetireReason {
    /// Its expiry is past.
    Expired,
    /// No rule keeps it.
    Rule,
}

/// What becomes of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Stays,
    /// It would go if nobody used it.
    InUse,
    Goes(RetireReason),
}

/// What becomes of a workspace's snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// Of each, in the order in which they were given.
    pub(crate) verdicts: Vec<Verdict>,
    /// When the next is too old for its rule, if nothing else happens. Of expiries it says nothing.
    pub(crate) next: Option<i64>,
}

/// Whether a snapshot's expiry is past.
pub(crate) fn is_expired(expires_at: Option<i64>, now: i64) -> bool {
    expires_at.is_some_and(|at| at <= now)
}

/// Judges the snapshots of one workspace, newest first.
pub(crate) fn judge(
    newest_first: &[Candidate],
    rule: impl Fn(SnapshotClass) -> RetentionRule,
    now: i64,
) -> Judgement {
    let rules = SnapshotClass::ALL.map(rule);
    let mut seen = [0_u64; 2];
    let mut next: Option<i64> = None;
    let verdicts = newest_first.iter().map(|one| {
        let at = one.class as usize;
        let rule = &rules[at];
        let goes = if one.expires_at.is_some() {
            // Its own word counts.
            is_expired(one.expires_at, now).then_some(RetireReason::Expired)
        } else {
            seen[at] += 1;
            let is_newest = rule.keep_last.is_some_and(|last| seen[at] <= last.get());
            // Too far away to be told is for ever.
            let until = rule.keep_within.map(|within| {
                let within = i64::try_from(within.as_nanos()).unwrap_or(i64::MAX);
                one.created_at.saturating_add(within)
            });
            let is_young = until.is_some_and(|until| until > now);
            if is_young && !is_newest && !one.protected {
                next = [next, until].into_iter().flatten().min();
            }
            let is_kept = rule.keeps_all() || is_newest || is_young;
            (!is_kept).then_some(RetireReason::Rule)
        };
        match goes {
            Some(_) if one.protected => Verdict::Stays,
            Some(_) if one.in_use => Verdict::InUse,
            Some(why) => Verdict::Goes(why),
            None => Verdict::Stays,
        }
    });
    let verdicts = verdicts.collect();
    Judgement { verdicts, next }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(keep_last: Option<u64>, keep_within: Option<u64>) -> RetentionRule {
        RetentionRule {
            keep_last: keep_last.and_then(NonZeroU64::new),
            keep_within: keep_within.map(Duration::from_nanos),
        }
    }

    fn by_hand(created_at: i64) -> Candidate {
        Candidate {
            class: SnapshotClass::ByHand,
            created_at,
            expires_at: None,
            protected: false,
            in_use: false,
        }
    }

    fn verdicts(of: &[Candidate], rule: RetentionRule, now: i64) -> Vec<Verdict> {
        judge(of, |_| rule, now).verdicts
    }

    const RULE: Verdict = Verdict::Goes(RetireReason::Rule);
    const EXPIRED: Verdict = Verdict::Goes(RetireReason::Expired);
    const STAYS: Verdict = Verdict::Stays;

    #[test]
    fn one_reason_is_enough_and_none_keeps_all() {
        let all = [by_hand(90), by_hand(80), by_hand(70)];
        assert_eq!(
            verdicts(&all, rule(Some(1), None), 100),
            [STAYS, RULE, RULE]
        );
        assert_eq!(
            verdicts(&all, rule(None, Some(25)), 100),
            [STAYS, STAYS, RULE]
        );
        // Exactly so old is too old.
        assert_eq!(
            verdicts(&all, rule(Some(1), Some(20)), 100),
            [STAYS, RULE, RULE]
        );
        assert_eq!(verdicts(&all, RetentionRule::KEEP_ALL, 100), [STAYS; 3]);
    }

    #[test]
    fn classes_are_counted_apart() {
        let automatic = Candidate {
            class: SnapshotClass::Automatic,
            ..by_hand(85)
        };
        let all = [by_hand(90), automatic, by_hand(80), automatic];
        let judged = judge(
            &all,
            |class| match class {
                SnapshotClass::ByHand => RetentionRule::KEEP_ALL,
                SnapshotClass::Automatic => rule(Some(1), None),
            },
            100,
        );
        assert_eq!(judged.verdicts, [STAYS, STAYS, STAYS, RULE]);
    }

    #[test]
    fn an_expiry_counts_alone_and_protection_before_all() {
        let expiring = |at| Candidate {
            expires_at: Some(at),
            ..by_hand(10)
        };
        let protected = |of: Candidate| Candidate {
            protected: true,
            ..of
        };
        let used = |of: Candidate| Candidate { in_use: true, ..of };
        let all = [
            expiring(100),
            expiring(101),
            protected(expiring(50)),
            protected(by_hand(40)),
            by_hand(30),
            used(by_hand(20)),
            used(expiring(99)),
            protected(used(by_hand(10))),
        ];
        let in_use = Verdict::InUse;
        assert_eq!(
            verdicts(&all, rule(Some(1), None), 100),
            [EXPIRED, STAYS, STAYS, STAYS, RULE, in_use, in_use, STAYS]
        );
        assert_eq!(
            verdicts(&all, RetentionRule::KEEP_ALL, 100),
            [EXPIRED, STAYS, STAYS, STAYS, STAYS, STAYS, in_use, STAYS]
        );
    }

    #[test]
    fn a_workspaces_rule_comes_before_the_stores_and_that_before_what_is_built_in() {
        let (web, other) = (WorkspaceId(1), WorkspaceId(2));
        let mut rules = Rules::default();
        let class = SnapshotClass::Automatic;
        let built_in = RetentionRule::built_in(class);
        assert_eq!(rules.of(Some(web), class), (built_in, RuleSource::Default));
        assert!(!rules.keep_all_of(web));
        rules.set(None, class, RetentionRule::KEEP_ALL);
        rules.set(Some(web), class, rule(Some(3), None));
        assert_eq!(
            rules.of(Some(web), class),
            (rule(Some(3), None), RuleSource::Workspace)
        );
        assert_eq!(
            rules.of(Some(other), class),
            (RetentionRule::KEEP_ALL, RuleSource::Store)
        );
        assert!(rules.keep_all_of(other) && !rules.keep_all_of(web));
        let by_hand = SnapshotClass::ByHand;
        assert_eq!(rules.of(None, by_hand).1, RuleSource::Default);
    }

    #[test]
    fn times_that_cannot_be_told_keep() {
        let all = [by_hand(i64::MAX), by_hand(i64::MIN)];
        let long = RetentionRule {
            keep_last: None,
            keep_within: Some(Duration::MAX),
        };
        assert_eq!(verdicts(&all[..1], long, i64::MAX - 1), [STAYS]);
        assert_eq!(verdicts(&all, rule(None, Some(1)), 0), [STAYS, RULE]);
    }

    fn candidate() -> impl Strategy<Value = Candidate> {
        let expiry = prop::option::weighted(0.2, 0_i64..200);
        (any::<bool>(), 0_i64..200, expiry, 0_u8..8).prop_map(
            |(automatic, created_at, expires_at, more)| Candidate {
                class: if automatic {
                    SnapshotClass::Automatic
                } else {
                    SnapshotClass::ByHand
                },
                created_at,
                expires_at,
                protected: more == 0,
                in_use: more == 1,
            },
        )
    }

    fn any_rule() -> impl Strategy<Value = RetentionRule> {
        (prop::option::of(1_u64..6), prop::option::of(0_u64..120))
            .prop_map(|(last, within)| rule(last, within))
    }

    /// As docs/retention.md says it, one snapshot at a time.
    fn naive(all: &[Candidate], at: usize, rules: [RetentionRule; 2], now: i64) -> Verdict {
        let one = all[at];
        let rule = rules[one.class as usize];
        let newer = all[..at]
            .iter()
            .filter(|other| other.class == one.class && other.expires_at.is_none())
            .count() as u64;
        let kept = match (one.expires_at, rule.keep_last, rule.keep_within) {
            (Some(expiry), ..) => now < expiry,
            (None, None, None) => true,
            (None, last, within) => {
                last.is_some_and(|last| newer < last.get())
                    || within.is_some_and(|within| {
                        i128::from(now) - i128::from(one.created_at)
                            < i128::try_from(within.as_nanos()).unwrap()
                    })
            }
        };
        match one {
            _ if kept || one.protected => Verdict::Stays,
            Candidate { in_use: true, .. } => Verdict::InUse,
            _ if one.expires_at.is_some() => EXPIRED,
            _ => RULE,
        }
    }

    proptest! {
        #[test]
        fn every_snapshot_is_judged_as_the_document_says(
            all in prop::collection::vec(candidate(), 0..40),
            rules in [any_rule(), any_rule()],
            now in 0_i64..200,
        ) {
            let judged = judge(&all, |class| rules[class as usize], now);
            for at in 0..all.len() {
                prop_assert_eq!(judged.verdicts[at], naive(&all, at, rules, now), "{}", at);
            }
        }

        /// Until the time that it names, no rule deletes more; then one does.
        #[test]
        fn nothing_becomes_too_old_before_it_is_looked_at_again(
            all in prop::collection::vec(candidate(), 0..40),
            rules in [any_rule(), any_rule()],
            now in 0_i64..200,
        ) {
            let gone = |now| {
                let judged = judge(&all, |class| rules[class as usize], now);
                let by_rule = judged.verdicts.iter().zip(&all).filter(|(verdict, one)| {
                    **verdict != STAYS && one.expires_at.is_none()
                });
                (by_rule.count(), judged.next)
            };
            let (count, next) = gone(now);
            let until = next.unwrap_or(1000);
            prop_assert!(until > now);
            prop_assert_eq!(gone(until - 1).0, count);
            if next.is_some() {
                prop_assert!(gone(until).0 > count);
            }
        }

        /// A clock that is set back deletes nothing that stayed before.
        #[test]
        fn earlier_never_deletes_more(
            all in prop::collection::vec(candidate(), 0..40),
            rules in [any_rule(), any_rule()],
            (now, back) in (0_i64..200, 0_i64..200),
        ) {
            let at = |now| judge(&all, |class| rules[class as usize], now).verdicts;
            for (later, earlier) in at(now).into_iter().zip(at(now - back)) {
                prop_assert!(earlier == STAYS || later == earlier);
            }
        }
    }
}
