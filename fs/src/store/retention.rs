//! Rules of how long snapshots are kept: setting them, and applying them by hand.

use std::time::Duration;

use thiserror::Error;

use super::types::rfc3339;
use super::{Store, WorkspaceError};
use crate::catalog::{CatalogError, KeptRecord};
use crate::change::{Change, Row};
use crate::engine::now_ns;
use crate::id::{LayerId, SnapshotId, WorkspaceId};
use crate::retention::{
    Judging, RetentionRule, RetireReason, RuleSource, Rules, SnapshotClass, find, retire,
};
use crate::space::{CollectError, Estimate};

/// Why rules were not read, changed or applied. What was deleted before a failure stays so.
#[derive(Debug, Error)]
pub enum RetentionError {
    /// There is no such workspace, nor was there ever one.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// A rule, and what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionSetting {
    /// The workspace's name, perhaps its last; none: every workspace without a rule of its own.
    pub workspace: Option<String>,
    /// Which of its snapshots.
    pub class: SnapshotClass,
    /// What is kept.
    pub rule: RetentionRule,
    /// Who set it.
    pub source: RuleSource,
}

/// A snapshot that no rule keeps, or that has expired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetiredSnapshot {
    /// Its id.
    pub id: SnapshotId,
    /// The workspace it was taken of, by its present or last name.
    pub workspace: String,
    /// Its name.
    pub name: Option<String>,
    /// Why Floe took it by itself.
    pub automatic: Option<String>,
    /// When it was taken, RFC 3339.
    pub created_at: String,
    /// When it expired, RFC 3339.
    pub expires_at: Option<String>,
    /// Its layer.
    pub layer: LayerId,
    /// Why it goes.
    pub why: RetireReason,
}

/// What rules and expiries did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionReport {
    /// The snapshots that went, or would, by workspace and newest first.
    pub retired: Vec<RetiredSnapshot>,
    /// How many more would, were they not in use.
    pub in_use: usize,
}

impl Store {
    /// The rules: of a workspace those that hold for it; of none the store's, and those that workspaces
    /// have of their own.
    ///
    /// # Errors
    /// [`RetentionError`].
    pub fn retention_rules(
        &self,
        workspace: Option<&str>,
    ) -> Result<Vec<RetentionSetting>, RetentionError> {
        let id = workspace.map(|name| self.retained(name)).transpose()?;
        let rules = Rules::read(&self.core)?;
        let setting = |of: Option<WorkspaceId>, name: Option<String>, class| {
            let (rule, source) = rules.of(of, class);
            RetentionSetting {
                workspace: name,
                class,
                rule,
                source,
            }
        };
        let name = workspace.map(str::to_owned);
        let mut all: Vec<_> = SnapshotClass::ALL
            .map(|class| setting(id, name.clone(), class))
            .into();
        if workspace.is_none() {
            for record in self.core.catalog.retention()? {
                // Both are read one after the other: the store's are there already.
                if let (Some(of), Some(name)) = (record.workspace, record.name) {
                    let class = SnapshotClass::ALL[usize::from(record.automatic)];
                    all.push(setting(Some(of), Some(name), class));
                }
            }
        }
        Ok(all)
    }

    /// Sets what is kept of a workspace's snapshots of a class, or of those of each workspace without such a
    /// rule. The background thread applies it at once.
    ///
    /// # Errors
    /// [`RetentionError`].
    pub fn set_retention(
        &self,
        workspace: Option<&str>,
        class: SnapshotClass,
        rule: &RetentionRule,
    ) -> Result<(), RetentionError> {
        let nanos = |within: Duration| i64::try_from(within.as_nanos()).unwrap_or(i64::MAX);
        let row = Row::SetRetention {
            workspace: workspace.map(|name| self.retained(name)).transpose()?,
            automatic: class == SnapshotClass::Automatic,
            keep_last: rule.keep_last.map(u64::from),
            keep_within: rule.keep_within.map(nanos),
        };
        Ok(self.change_rules(row)?)
    }

    /// Takes a rule back: the store's holds again, or what is built in.
    ///
    /// # Errors
    /// [`RetentionError`].
    pub fn clear_retention(
        &self,
        workspace: Option<&str>,
        class: SnapshotClass,
    ) -> Result<(), RetentionError> {
        let row = Row::DropRetention {
            workspace: workspace.map(|name| self.retained(name)).transpose()?,
            automatic: class == SnapshotClass::Automatic,
        };
        Ok(self.change_rules(row)?)
    }

    fn change_rules(&self, row: Row) -> Result<(), CatalogError> {
        let _deciding = self.core.deciding.lock();
        self.core.catalog.apply(&Change::from(row))?;
        self.core.retain.rules_changed();
        Ok(())
    }

    /// The workspace of a name, or else the last one that had it: its snapshots are there still.
    fn retained(&self, name: &str) -> Result<WorkspaceId, RetentionError> {
        match self.core.catalog.life(name)? {
            Some(life) => Ok(life.id),
            // Says which names are like it.
            None => Ok(self.workspace_record(name)?.id),
        }
    }

    /// Deletes now what no rule keeps and what has expired, in all workspaces. A dry run only says which
    /// that is.
    ///
    /// # Errors
    /// [`RetentionError`].
    pub fn apply_retention(&self, dry_run: bool) -> Result<RetentionReport, RetentionError> {
        let core = &self.core;
        if !dry_run {
            core.retain.trust_clock();
        }
        // In this order: rules that are changed in between delete nothing.
        let generation = core.retain.generation();
        let rules = Rules::read(core)?;
        let (used, now) = (core.uses.all(), now_ns());
        let mut report = RetentionReport::default();
        for workspace in core.catalog.with_snapshots()? {
            let found = find(core, workspace, &rules, &used, now)?;
            report.in_use += found.in_use.len();
            let judging = Judging {
                workspace,
                rules: &rules,
                generation,
                now,
            };
            let going = match dry_run {
                true => found.going,
                false => retire(core, &found, Some(judging), &|| true)?,
            };
            if !going.is_empty() {
                let name = core.catalog.last_name(workspace)?.unwrap_or_default();
                let retired = going.into_iter().map(|(one, why)| retired(one, &name, why));
                report.retired.extend(retired);
            }
        }
        Ok(report)
    }

    /// Bytes of contents that would be free if this was deleted, as [`Store::would_free`] says it.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn would_free_retired(&self, report: &RetentionReport) -> Result<u64, CollectError> {
        let layers = report.retired.iter().map(|one| one.layer).collect();
        let images = self.images_would_free(report.retired.iter().map(|one| &one.id))?;
        Ok(Estimate::new(&self.core)?.would_free(&self.core, &layers)? + images)
    }
}

fn retired(record: KeptRecord, workspace: &str, why: RetireReason) -> RetiredSnapshot {
    RetiredSnapshot {
        id: record.id,
        workspace: workspace.to_owned(),
        name: record.name,
        automatic: record.automatic,
        created_at: rfc3339(record.created_at),
        expires_at: record.expires_at.map(rfc3339),
        layer: record.layer,
        why,
    }
}
