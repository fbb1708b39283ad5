//! Reads of what happened to one workspace. Each costs what happened to it, whatever else there is
//! in the store.

use rusqlite::{OptionalExtension, Row as SqlRow, params};

use super::apply::int;
use super::query::{damaged, unsigned};
use super::{Catalog, CatalogError};
use crate::id::{LayerId, SnapshotId, WorkspaceId};

/// A workspace, deleted or not.
#[derive(Clone, Debug)]
pub(crate) struct LifeRecord {
    pub(crate) id: WorkspaceId,
    pub(crate) created_at: i64,
    pub(crate) deleted_at: Option<i64>,
    pub(crate) forked_from: Option<SnapshotId>,
}

/// A workspace that was forked from a snapshot of another.
#[derive(Clone, Debug)]
pub(crate) struct ForkRecord {
    pub(crate) name: String,
    pub(crate) created_at: i64,
    pub(crate) deleted: bool,
    pub(crate) from: SnapshotId,
    /// The snapshot's name.
    pub(crate) from_name: Option<String>,
}

/// A row of `event` with what belongs to it.
#[derive(Clone, Debug)]
pub(crate) struct EventRecord {
    pub(crate) at: i64,
    pub(crate) kind: String,
    pub(crate) snapshot: Option<SnapshotId>,
    pub(crate) other: Option<OtherRecord>,
    /// Of a landing: the layer that received it.
    pub(crate) layer: Option<LayerId>,
    pub(crate) message: Option<String>,
}

/// Another workspace that an event was about.
#[derive(Clone, Debug)]
pub(crate) struct OtherRecord {
    pub(crate) name: String,
    pub(crate) deleted: bool,
}

/// A row of `landing`.
#[derive(Clone, Debug)]
pub(crate) struct HostLandingRecord {
    pub(crate) id: u64,
    pub(crate) workspace: WorkspaceId,
    /// Whether the workspace was deleted.
    pub(crate) deleted: bool,
    pub(crate) state: u8,
    pub(crate) plan: String,
}

/// A snapshot and whose it is.
#[derive(Clone, Debug)]
pub(crate) struct OriginRecord {
    pub(crate) name: Option<String>,
    pub(crate) workspace: OtherRecord,
}

const LIFE: &str = "SELECT id, created_at, deleted_at, forked_from FROM workspace \
    WHERE name = ?1 AND deleted_at IS NULL";

/// Looks at all workspaces: for a name that no live one has.
const LAST_LIFE: &str = "SELECT id, created_at, deleted_at, forked_from FROM workspace \
    WHERE name = ?1 ORDER BY id DESC LIMIT 1";

const FORKS: &str = "SELECT w.name, w.created_at, w.deleted_at IS NOT NULL, s.id, s.name \
    FROM snapshot s CROSS JOIN workspace w ON w.forked_from = s.id \
    WHERE s.workspace = ?1 ORDER BY w.id DESC LIMIT ?2";

const EVENTS: &str = "SELECT e.at, e.kind, e.snapshot, e.message, w.name, w.deleted_at IS NOT NULL, \
    e.layer \
    FROM event e LEFT JOIN workspace w ON w.id = e.other \
    WHERE e.workspace = ?1 ORDER BY e.id DESC LIMIT ?2";

const ORIGIN: &str = "SELECT s.name, w.name, w.deleted_at IS NOT NULL FROM snapshot s \
    JOIN workspace w ON w.id = s.workspace WHERE s.id = ?1";

impl Catalog {
    /// The workspace of a name, or if there is none the last one that had it.
    pub(crate) fn life(&self, name: &str) -> Result<Option<LifeRecord>, CatalogError> {
        for sql in [LIFE, LAST_LIFE] {
            if let Some(found) = self
                .collect("reading a workspace", sql, [name], life_record)?
                .pop()
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The workspaces that were forked from snapshots of this one, newest first.
    pub(crate) fn forks_of(
        &self,
        workspace: WorkspaceId,
        limit: Option<usize>,
    ) -> Result<Vec<ForkRecord>, CatalogError> {
        let during = "reading forks";
        let params = params![int(workspace.0), most(limit)];
        self.collect(during, FORKS, params, |row| {
            Ok(ForkRecord {
                name: row.get(0).map_err(CatalogError::during(during))?,
                created_at: row.get(1).map_err(CatalogError::during(during))?,
                deleted: row.get(2).map_err(CatalogError::during(during))?,
                from: snapshot_id(row, 3)?.ok_or_else(|| damaged("a snapshot without an id"))?,
                from_name: row.get(4).map_err(CatalogError::during(during))?,
            })
        })
    }

    /// What happened to a workspace and no other row tells, newest first.
    pub(crate) fn events_of(
        &self,
        workspace: WorkspaceId,
        limit: Option<usize>,
    ) -> Result<Vec<EventRecord>, CatalogError> {
        let during = "reading events";
        let params = params![int(workspace.0), most(limit)];
        self.collect(during, EVENTS, params, |row| {
            let name: Option<String> = row.get(4).map_err(CatalogError::during(during))?;
            let deleted = row.get(5).map_err(CatalogError::during(during))?;
            let layer: Option<i64> = row.get(6).map_err(CatalogError::during(during))?;
            Ok(EventRecord {
                at: row.get(0).map_err(CatalogError::during(during))?,
                kind: row.get(1).map_err(CatalogError::during(during))?,
                snapshot: snapshot_id(row, 2)?,
                message: row.get(3).map_err(CatalogError::during(during))?,
                other: name.map(|name| OtherRecord { name, deleted }),
                layer: layer.map(|layer| LayerId(layer.unsigned_abs())),
            })
        })
    }

    /// Landings in directories of the host, oldest first.
    pub(crate) fn host_landings(&self) -> Result<Vec<HostLandingRecord>, CatalogError> {
        let during = "reading the landings";
        let sql = "SELECT l.id, l.workspace, l.state, l.plan, w.deleted_at IS NOT NULL \
                   FROM landing l LEFT JOIN workspace w ON w.id = l.workspace ORDER BY l.id";
        self.collect(during, sql, [], |row| {
            Ok(HostLandingRecord {
                id: unsigned(row, 0)?,
                workspace: WorkspaceId(unsigned(row, 1)?),
                state: row.get(2).map_err(CatalogError::during(during))?,
                plan: row.get(3).map_err(CatalogError::during(during))?,
                deleted: row.get(4).map_err(CatalogError::during(during))?,
            })
        })
    }

    /// The number of the next landing; none was ever used twice.
    pub(crate) fn next_landing(&self) -> Result<u64, CatalogError> {
        let sql = "SELECT seq + 1 FROM sqlite_sequence WHERE name = 'landing'";
        let found = self.collect("numbering a landing", sql, [], |row| unsigned(row, 0))?;
        Ok(found.first().copied().unwrap_or(1))
    }

    /// Whose a snapshot is; none if it is gone.
    pub(crate) fn origin(&self, id: &SnapshotId) -> Result<Option<OriginRecord>, CatalogError> {
        let during = "looking a snapshot up";
        self.reader()
            .prepare_cached(ORIGIN)
            .and_then(|mut statement| {
                let read = |row: &SqlRow<'_>| {
                    Ok(OriginRecord {
                        name: row.get(0)?,
                        workspace: OtherRecord {
                            name: row.get(1)?,
                            deleted: row.get(2)?,
                        },
                    })
                };
                statement.query_row([id.as_str()], read).optional()
            })
            .map_err(CatalogError::during(during))
    }
}

/// A limit as SQLite takes it.
fn most(limit: Option<usize>) -> i64 {
    limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX))
}

fn snapshot_id(row: &SqlRow<'_>, at: usize) -> Result<Option<SnapshotId>, CatalogError> {
    let text: Option<String> = row
        .get(at)
        .map_err(CatalogError::during("reading a snapshot's id"))?;
    text.map(|text| {
        SnapshotId::parse(&text).ok_or_else(|| damaged(format!("snapshot id {text:?}")))
    })
    .transpose()
}

fn life_record(row: &SqlRow<'_>) -> Result<LifeRecord, CatalogError> {
    let during = "reading a workspace";
    Ok(LifeRecord {
        id: WorkspaceId(unsigned(row, 0)?),
        created_at: row.get(1).map_err(CatalogError::during(during))?,
        deleted_at: row.get(2).map_err(CatalogError::during(during))?,
        forked_from: snapshot_id(row, 3)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happened to other workspaces must not be looked at.
    #[test]
    fn a_history_is_found_by_indexes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.db");
        Catalog::create(&path, "0", 0).unwrap();
        let catalog = Catalog::open(&path).unwrap();
        let reader = catalog.reader();
        for sql in [LIFE, FORKS, EVENTS, ORIGIN] {
            let mut plan = reader
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .unwrap();
            let count = plan.parameter_count();
            let steps = plan
                .query_map(rusqlite::params_from_iter(vec![1; count]), |row| {
                    row.get::<_, String>(3)
                })
                .unwrap();
            for step in steps {
                let step = step.unwrap();
                assert!(!step.starts_with("SCAN"), "{step}: {sql}");
            }
        }
    }
}
