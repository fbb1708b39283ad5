//! What deleting snapshots by rules asks of the catalog, and the rows about that and about what is said
//! of snapshots.

use rusqlite::{Connection, Row as SqlRow, params};

use super::apply::int;
use super::query::{damaged, unsigned};
use super::{Catalog, CatalogError};
use crate::change::Row;
use crate::id::{LayerId, SnapshotId, WorkspaceId};

/// A row of `retention`.
#[derive(Clone, Debug)]
pub(crate) struct RetentionRecord {
    /// None: of every workspace without one of its own.
    pub(crate) workspace: Option<WorkspaceId>,
    /// That one's name, perhaps its last.
    pub(crate) name: Option<String>,
    pub(crate) automatic: bool,
    pub(crate) keep_last: Option<u64>,
    /// Nanoseconds.
    pub(crate) keep_within: Option<u64>,
}

/// What rules have to know of a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct KeptRecord {
    pub(crate) id: SnapshotId,
    pub(crate) layer: LayerId,
    pub(crate) name: Option<String>,
    pub(crate) automatic: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) expires_at: Option<i64>,
    /// Or a template.
    pub(crate) protected: bool,
}

/// Whether the snapshot `s` is a template.
macro_rules! is_template {
    () => {
        "EXISTS (SELECT 1 FROM template t WHERE t.snapshot = s.id)"
    };
}

// What is still being captured (image 3) may come to nothing: it neither goes nor counts until it is there.
const OF_WORKSPACE: &str = concat!(
    "SELECT s.id, s.layer, s.name, s.automatic, s.created_at, s.expires_at, s.protected OR ",
    is_template!(),
    " FROM snapshot s WHERE s.workspace = ?1 AND s.image IS NOT 3 ORDER BY s.layer DESC"
);

const EXPIRED: &str = concat!(
    "SELECT s.id, s.layer, s.name, s.automatic, s.created_at, s.expires_at, s.protected \
     FROM snapshot s WHERE s.expires_at <= ?1 AND s.protected = 0 AND s.image IS NOT 3 AND NOT ",
    is_template!(),
    " ORDER BY s.expires_at"
);

const NEXT_EXPIRY: &str = concat!(
    "SELECT s.expires_at FROM snapshot s WHERE s.expires_at > ?1 AND s.protected = 0 AND NOT ",
    is_template!(),
    " ORDER BY s.expires_at LIMIT 1"
);

const MAY_GO: &str = concat!(
    "SELECT 1 FROM snapshot s WHERE s.id = ?1 AND s.protected = 0 AND s.expires_at IS ?2 AND NOT ",
    is_template!()
);

/// `retention.workspace`.
fn key(workspace: Option<WorkspaceId>) -> i64 {
    workspace.map_or(0, |id| int(id.0))
}

/// Applies a row about rules, or about what is said of a snapshot.
pub(super) fn apply(connection: &Connection, row: &Row) -> rusqlite::Result<usize> {
    let prepare = |sql: &str| connection.prepare_cached(sql);
    match row {
        Row::SetRetention {
            workspace,
            automatic,
            keep_last,
            keep_within,
        } => prepare("INSERT OR REPLACE INTO retention VALUES (?1,?2,?3,?4)")?.execute(params![
            key(*workspace),
            automatic,
            keep_last.map(int),
            keep_within,
        ]),
        Row::DropRetention {
            workspace,
            automatic,
        } => prepare("DELETE FROM retention WHERE workspace = ?1 AND automatic = ?2")?
            .execute(params![key(*workspace), automatic]),
        Row::RenameSnapshot { id, name } => prepare("UPDATE snapshot SET name = ?2 WHERE id = ?1")?
            .execute(params![id.as_str(), name]),
        Row::SetMessage { id, message } => {
            prepare("UPDATE snapshot SET message = ?2 WHERE id = ?1")?
                .execute(params![id.as_str(), message])
        }
        Row::SetExpiry { id, expires_at } => {
            prepare("UPDATE snapshot SET expires_at = ?2 WHERE id = ?1")?
                .execute(params![id.as_str(), expires_at])
        }
        Row::ProtectSnapshot { id, protected } => {
            prepare("UPDATE snapshot SET protected = ?2 WHERE id = ?1")?
                .execute(params![id.as_str(), protected])
        }
        Row::PutLabel {
            snapshot,
            key,
            value,
        } => prepare("INSERT OR REPLACE INTO label VALUES (?1,?2,?3)")?.execute(params![
            snapshot.as_str(),
            key,
            value
        ]),
        Row::DropLabel { snapshot, key } => {
            prepare("DELETE FROM label WHERE snapshot = ?1 AND key = ?2")?
                .execute(params![snapshot.as_str(), key])
        }
        _ => unreachable!("every other row is applied by apply.rs"),
    }
}

impl Catalog {
    /// All rules, the store's first, then those of workspaces by name.
    pub(crate) fn retention(&self) -> Result<Vec<RetentionRecord>, CatalogError> {
        let during = "reading how long snapshots are kept";
        let sql = "SELECT r.workspace, w.name, r.automatic, r.keep_last, r.keep_within \
                   FROM retention r LEFT JOIN workspace w ON w.id = r.workspace \
                   ORDER BY r.workspace <> 0, w.name, r.workspace, r.automatic";
        self.collect(during, sql, [], |row| {
            let count = |at| {
                let value: Option<i64> = row.get(at).map_err(CatalogError::during(during))?;
                let value = value.map(u64::try_from).transpose();
                value.map_err(|_| damaged("a rule of retention is negative"))
            };
            Ok(RetentionRecord {
                workspace: Some(WorkspaceId(unsigned(row, 0)?)).filter(|id| id.0 != 0),
                name: row.get(1).map_err(CatalogError::during(during))?,
                automatic: row.get(2).map_err(CatalogError::during(during))?,
                keep_last: count(3)?,
                keep_within: count(4)?,
            })
        })
    }

    /// The snapshots of a workspace, newest first.
    pub(crate) fn kept_of(&self, workspace: WorkspaceId) -> Result<Vec<KeptRecord>, CatalogError> {
        let during = "reading a workspace's snapshots";
        self.collect(during, OF_WORKSPACE, [int(workspace.0)], kept_record)
    }

    /// Snapshots whose expiry is past, that nothing protects and that are no templates, the first to
    /// expire first.
    pub(crate) fn expired(&self, now: i64) -> Result<Vec<KeptRecord>, CatalogError> {
        self.collect("reading what expired", EXPIRED, [now], kept_record)
    }

    /// When the next snapshot expires.
    pub(crate) fn next_expiry(&self, now: i64) -> Result<Option<i64>, CatalogError> {
        let during = "looking for what expires next";
        let found = self.collect(during, NEXT_EXPIRY, [now], |row| {
            row.get(0).map_err(CatalogError::during(during))
        })?;
        Ok(found.into_iter().next())
    }

    /// Workspaces that have snapshots, deleted ones as well. Looks at all snapshots.
    pub(crate) fn with_snapshots(&self) -> Result<Vec<WorkspaceId>, CatalogError> {
        let sql = "SELECT DISTINCT workspace FROM snapshot ORDER BY workspace";
        self.collect("reading workspaces", sql, [], |row| {
            unsigned(row, 0).map(WorkspaceId)
        })
    }

    /// Whether a snapshot is there, is neither protected nor a template and has this expiry.
    pub(crate) fn may_go(
        &self,
        id: &SnapshotId,
        expires_at: Option<i64>,
    ) -> Result<bool, CatalogError> {
        let during = "looking a snapshot up";
        let found = self.collect(during, MAY_GO, params![id.as_str(), expires_at], |_| Ok(()))?;
        Ok(!found.is_empty())
    }

    /// Of which workspace a snapshot is.
    pub(crate) fn workspace_of_snapshot(
        &self,
        id: &SnapshotId,
    ) -> Result<Option<WorkspaceId>, CatalogError> {
        let during = "looking a snapshot up";
        let sql = "SELECT workspace FROM snapshot WHERE id = ?1";
        let found = self.collect(during, sql, [id.as_str()], |row| {
            unsigned(row, 0).map(WorkspaceId)
        })?;
        Ok(found.into_iter().next())
    }

    /// The present or last name of a workspace.
    pub(crate) fn last_name(&self, id: WorkspaceId) -> Result<Option<String>, CatalogError> {
        let during = "looking a workspace up";
        let sql = "SELECT name FROM workspace WHERE id = ?1";
        let found = self.collect(during, sql, [int(id.0)], |row| {
            row.get(0).map_err(CatalogError::during(during))
        })?;
        Ok(found.into_iter().next())
    }
}

fn kept_record(row: &SqlRow<'_>) -> Result<KeptRecord, CatalogError> {
    let during = "reading a snapshot";
    let id: String = row.get(0).map_err(CatalogError::during(during))?;
    Ok(KeptRecord {
        id: SnapshotId::parse(&id).ok_or_else(|| damaged(format!("snapshot id {id:?}")))?,
        layer: LayerId(unsigned(row, 1)?),
        name: row.get(2).map_err(CatalogError::during(during))?,
        automatic: row.get(3).map_err(CatalogError::during(during))?,
        created_at: row.get(4).map_err(CatalogError::during(during))?,
        expires_at: row.get(5).map_err(CatalogError::during(during))?,
        protected: row.get(6).map_err(CatalogError::during(during))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each look of the background thread asks these: the rest of 100,000 snapshots is not read.
    #[test]
    fn what_is_due_is_found_by_indexes_and_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.db");
        Catalog::create(&path, "0", 0).unwrap();
        let catalog = Catalog::open(&path).unwrap();
        let reader = catalog.reader();
        for sql in [OF_WORKSPACE, EXPIRED, NEXT_EXPIRY] {
            let mut plan = reader
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .unwrap();
            let steps = plan.query_map([1], |row| row.get::<_, String>(3)).unwrap();
            for step in steps {
                let step = step.unwrap();
                assert!(
                    !step.starts_with("SCAN") && !step.contains("B-TREE"),
                    "{step}: {sql}"
                );
            }
        }
    }
}
