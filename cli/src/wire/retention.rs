//! Answers about how long snapshots are kept.

use floe_fs::{RetentionReport, RetentionSetting, RetireReason, RuleSource, SnapshotClass};
use serde::{Deserialize, Serialize};

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetentionRule {
    /// Of which workspace; absent: of each without a rule of its own.
    pub workspace: Option<String>,
    /// Of snapshots taken `by_hand`, or `automatic` ones.
    pub class: String,
    /// So many of the newest are kept.
    pub keep_last: Option<u64>,
    /// Those taken in the last so many seconds are kept. If both are absent, all are.
    pub keep_within_s: Option<u64>,
    /// Who set it: `workspace`, `store`, or nobody: `default`.
    pub source: String,
}

impl From<RetentionSetting> for RetentionRule {
    fn from(setting: RetentionSetting) -> Self {
        let class = match setting.class {
            SnapshotClass::ByHand => "by_hand",
            SnapshotClass::Automatic => "automatic",
        };
        let source = match setting.source {
            RuleSource::Default => "default",
            RuleSource::Store => "store",
            RuleSource::Workspace => "workspace",
        };
        Self {
            workspace: setting.workspace,
            class: class.to_owned(),
            keep_last: setting.rule.keep_last.map(u64::from),
            keep_within_s: setting.rule.keep_within.map(|within| within.as_secs()),
            source: source.to_owned(),
        }
    }
}

/// What rules and expiries deleted, or would.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetentionApplied {
    /// False for a dry run.
    pub deleted: bool,
    /// The snapshots.
    pub snapshots: Vec<Retired>,
    /// How many more would go, were they not in use.
    pub in_use: usize,
    /// In a dry run: bytes of contents that would be freed on the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frees: Option<u64>,
}

/// A snapshot that has expired, or that no rule keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retired {
    /// Its id.
    pub id: String,
    /// The workspace it was taken of.
    pub workspace: String,
    /// Its name.
    pub name: Option<String>,
    /// Why Floe took it by itself; absent if somebody asked for it.
    pub automatic: Option<String>,
    /// When it was taken.
    pub created_at: String,
    /// When it expired.
    pub expires_at: Option<String>,
    /// `expired`, or `rule`: none keeps it.
    pub why: String,
}

impl RetentionApplied {
    /// What was done.
    #[must_use]
    pub fn new(report: RetentionReport, deleted: bool, frees: Option<u64>) -> Self {
        let retired = report.retired.into_iter().map(|one| Retired {
            id: one.id.to_string(),
            workspace: one.workspace,
            name: one.name,
            automatic: one.automatic,
            created_at: one.created_at,
            expires_at: one.expires_at,
            why: match one.why {
                RetireReason::Expired => "expired",
                RetireReason::Rule => "rule",
            }
            .to_owned(),
        });
        Self {
            deleted,
            snapshots: retired.collect(),
            in_use: report.in_use,
            frees,
        }
    }
}
