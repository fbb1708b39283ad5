//! Reads of what a store holds as a whole: layers, workspaces, mounts, counters.

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension, Row as SqlRow};

use super::apply::{LIVE, int};
use super::query::{damaged, unsigned};
use super::{Catalog, CatalogError, Queries};
use crate::engine::Quota;
use crate::id::{LayerId, ObjectId, SnapshotId, WorkspaceId};

/// A row of `layer`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerRecord {
    pub(crate) id: LayerId,
    pub(crate) parent: Option<LayerId>,
}

/// A row of `workspace` with what belongs to it.
#[derive(Clone, Debug)]
pub(crate) struct WorkspaceRecord {
    pub(crate) id: WorkspaceId,
    pub(crate) name: String,
    pub(crate) layer: LayerId,
    pub(crate) created_at: i64,
    pub(crate) forked_from: Option<SnapshotId>,
    pub(crate) bytes: u64,
    /// The snapshot that its live layer was made on.
    pub(crate) parent: Option<SnapshotId>,
    /// The workspace that it was forked from.
    pub(crate) origin: Option<WorkspaceId>,
    pub(crate) inodes: u64,
    pub(crate) quota: Quota,
    /// Whether a sandbox could write to it.
    pub(crate) sandboxed: bool,
}

/// A row of `mount`.
#[derive(Clone, Debug)]
pub(crate) struct MountRow {
    pub(crate) dir: Vec<u8>,
    pub(crate) workspace: Option<WorkspaceId>,
    pub(crate) snapshot: Option<SnapshotId>,
    pub(crate) read_only: bool,
}

/// Identity and counts of a store.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    pub(crate) store_id: String,
    pub(crate) created_at: i64,
    pub(crate) workspaces: u64,
    pub(crate) snapshots: u64,
    pub(crate) layers: u64,
    pub(crate) objects: u64,
    pub(crate) hashed: u64,
}

pub(super) fn summary(connection: &Connection) -> Result<Summary, CatalogError> {
    let during = "reading the store's summary";
    let count = |table: &str| -> Result<u64, CatalogError> {
        connection
            .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| {
                row.get::<_, i64>(0)
            })
            .map_err(CatalogError::during(during))
            .map(|count| u64::try_from(count).unwrap_or(0))
    };
    let meta = "SELECT value FROM meta WHERE key = ?1";
    // There is none in a catalog of an older format.
    let checksums = count("sqlite_master WHERE name = 'checksum'")?;
    Ok(Summary {
        store_id: connection
            .query_row(meta, ["store_id"], |row| row.get(0))
            .map_err(CatalogError::during(during))?,
        created_at: connection
            .query_row(meta, ["created_at"], |row| row.get(0))
            .map_err(CatalogError::during(during))?,
        workspaces: count("workspace WHERE deleted_at IS NULL")?,
        snapshots: count("snapshot")?,
        layers: count("layer")?,
        objects: count("object")?,
        hashed: match checksums {
            0 => 0,
            _ => count("checksum")?,
        },
    })
}

/// The snapshot that the layer `l` was made on; of one that was deleted, what that was made on.
macro_rules! parent_snapshot {
    () => {
        "coalesce(\
            (SELECT p.id FROM layer q JOIN snapshot p ON p.workspace = q.workspace \
                AND p.layer = q.id WHERE q.id = l.parent), \
            (WITH RECURSIVE up(id, parent, workspace) AS (\
                SELECT id, parent, workspace FROM layer WHERE id = l.parent AND state = 3 \
                UNION ALL SELECT a.id, a.parent, a.workspace FROM up JOIN layer a ON a.id = up.parent \
                WHERE NOT EXISTS (SELECT 1 FROM snapshot s \
                    WHERE s.workspace = up.workspace AND s.layer = up.id)) \
            SELECT p.id FROM up JOIN snapshot p ON p.workspace = up.workspace AND p.layer = up.id))"
    };
}

pub(super) use parent_snapshot;

/// Workspaces that were not deleted.
macro_rules! workspaces {
    () => {
        concat!(
            "SELECT w.id, w.name, w.layer, w.created_at, w.forked_from, l.bytes, ",
            parent_snapshot!(),
            ", w.origin, l.inodes, w.quota_bytes, w.quota_inodes, l.sandboxed FROM workspace w JOIN layer l ON l.id = w.layer WHERE w.deleted_at IS NULL"
        )
    };
}

const LAST_WORKSPACE: &str = "SELECT coalesce(max(id), 0) FROM \
    (SELECT id FROM workspace UNION ALL SELECT workspace FROM layer)";

/// The one of a name.
pub(super) const WORKSPACE_BY_NAME: &str = concat!(workspaces!(), " AND w.name = ?1");

impl Catalog {
    /// Identity and counts.
    pub(crate) fn summary(&self) -> Result<Summary, CatalogError> {
        summary(&self.reader())
    }

    /// Where the store was when it was last opened.
    pub(crate) fn place(&self) -> Result<Option<String>, CatalogError> {
        self.reader()
            .query_row("SELECT value FROM meta WHERE key = 'place'", [], |row| {
                row.get(0)
            })
            .optional()
            .map_err(CatalogError::during("reading where the store was"))
    }

    /// A counter kept in `meta`; 0 when it was never written.
    pub(crate) fn counter(&self, key: &str) -> Result<u64, CatalogError> {
        let during = "reading a counter";
        let value: Option<i64> = self
            .reader()
            .query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| {
                row.get(0)
            })
            .optional()
            .map_err(CatalogError::during(during))?;
        let value = value.unwrap_or(0);
        u64::try_from(value).map_err(|_| damaged(format!("counter {key} is {value}")))
    }

    /// Every layer, parents before children.
    pub(crate) fn layers(&self) -> Result<Vec<LayerRecord>, CatalogError> {
        self.collect(
            "reading layers",
            "SELECT id, parent FROM layer ORDER BY id",
            [],
            |row| {
                let parent: Option<i64> = row
                    .get(1)
                    .map_err(CatalogError::during("reading a layer"))?;
                let parent = parent.map(|id| u64::try_from(id).map(LayerId)).transpose();
                Ok(LayerRecord {
                    id: LayerId(unsigned(row, 0)?),
                    parent: parent.map_err(|_| damaged("a layer's parent is negative"))?,
                })
            },
        )
    }

    /// Live layers that no workspace has: left behind by an import that did not finish.
    pub(crate) fn abandoned_layers(&self) -> Result<Vec<LayerId>, CatalogError> {
        self.collect(
            "reading layers",
            "SELECT id FROM layer WHERE state = ?1 \
             AND id NOT IN (SELECT layer FROM workspace WHERE layer IS NOT NULL)",
            [i64::from(LIVE)],
            |row| unsigned(row, 0).map(LayerId),
        )
    }

    /// The highest workspace id ever used; that of an import which was given up is in its layer only.
    pub(crate) fn last_workspace_id(&self) -> Result<u64, CatalogError> {
        let found = self.collect("counting workspaces", LAST_WORKSPACE, [], |row| {
            unsigned(row, 0)
        })?;
        Ok(found.first().copied().unwrap_or(0))
    }

    /// Workspaces by name, all of them or one.
    pub(crate) fn workspaces(
        &self,
        name: Option<&str>,
    ) -> Result<Vec<WorkspaceRecord>, CatalogError> {
        // Two statements: one for both would look at every workspace to find one.
        match name {
            None => self.collect(
                "reading workspaces",
                concat!(workspaces!(), " ORDER BY w.name"),
                [],
                workspace_record,
            ),
            // Asked before everything that is done with a workspace: the writer knows the answer
            // where a reader would have to read again what the last commit changed.
            Some(name) => collect(
                &self.quickest(),
                "reading a workspace",
                WORKSPACE_BY_NAME,
                [name],
                workspace_record,
            ),
        }
    }

    /// How many snapshots a workspace has. Grows with them: not for the snapshot path.
    pub(crate) fn snapshot_count(&self, id: WorkspaceId) -> Result<u64, CatalogError> {
        let sql = "SELECT count(*) FROM snapshot WHERE workspace = ?1";
        let found = self.collect("counting snapshots", sql, [int(id.0)], |row| {
            unsigned(row, 0)
        })?;
        Ok(found.first().copied().unwrap_or(0))
    }

    /// Whether an object belongs to a layer (and not to nobody, after a crash).
    pub(crate) fn has_object(&self, id: ObjectId) -> Result<bool, CatalogError> {
        let during = "looking an object up";
        self.reader()
            .prepare_cached("SELECT 1 FROM object WHERE id = ?1")
            .and_then(|mut statement| statement.exists([int(id.0)]))
            .map_err(CatalogError::during(during))
    }

    /// As [`Queries::doomed`].
    pub(crate) fn doomed_objects(&self) -> Result<Vec<ObjectId>, CatalogError> {
        Queries(&self.reader()).doomed()
    }

    /// Every object that belongs to a layer.
    pub(crate) fn object_ids(&self) -> Result<HashSet<ObjectId>, CatalogError> {
        let sql = "SELECT id FROM object UNION ALL SELECT id FROM doomed_object";
        let found = self.collect("reading objects", sql, [], |row| {
            unsigned(row, 0).map(ObjectId)
        })?;
        Ok(found.into_iter().collect())
    }

    /// Remembered mounts.
    pub(crate) fn mounts(&self) -> Result<Vec<MountRow>, CatalogError> {
        let during = "reading the mounts";
        self.collect(
            "reading mounts",
            "SELECT dir, workspace, snapshot, read_only FROM mount",
            [],
            |row| {
                let workspace: Option<i64> = row.get(1).map_err(CatalogError::during(during))?;
                let snapshot: Option<String> = row.get(2).map_err(CatalogError::during(during))?;
                Ok(MountRow {
                    dir: row.get(0).map_err(CatalogError::during(during))?,
                    workspace: workspace
                        .and_then(|id| u64::try_from(id).ok())
                        .map(WorkspaceId),
                    snapshot: snapshot.and_then(|id| SnapshotId::parse(&id)),
                    read_only: row.get(3).map_err(CatalogError::during(during))?,
                })
            },
        )
    }

    pub(super) fn collect<T>(
        &self,
        during: &'static str,
        sql: &str,
        params: impl rusqlite::Params,
        read: impl Fn(&SqlRow<'_>) -> Result<T, CatalogError>,
    ) -> Result<Vec<T>, CatalogError> {
        collect(&self.reader(), during, sql, params, read)
    }
}

/// Every row of a query.
pub(super) fn collect<T>(
    connection: &Connection,
    during: &'static str,
    sql: &str,
    params: impl rusqlite::Params,
    read: impl Fn(&SqlRow<'_>) -> Result<T, CatalogError>,
) -> Result<Vec<T>, CatalogError> {
    let mut statement = connection
        .prepare_cached(sql)
        .map_err(CatalogError::during(during))?;
    let mut rows = statement
        .query(params)
        .map_err(CatalogError::during(during))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(CatalogError::during(during))? {
        found.push(read(row)?);
    }
    Ok(found)
}

fn workspace_record(row: &SqlRow<'_>) -> Result<WorkspaceRecord, CatalogError> {
    let during = "reading a workspace";
    let snapshot = |at| {
        let id: Option<String> = row.get(at).map_err(CatalogError::during(during))?;
        Ok::<_, CatalogError>(id.and_then(|id| SnapshotId::parse(&id)))
    };
    let limit = |at| {
        let limit: Option<i64> = row.get(at).map_err(CatalogError::during(during))?;
        Ok::<_, CatalogError>(limit.map(i64::unsigned_abs))
    };
    let origin: Option<i64> = row.get(7).map_err(CatalogError::during(during))?;
    Ok(WorkspaceRecord {
        id: WorkspaceId(unsigned(row, 0)?),
        name: row.get(1).map_err(CatalogError::during(during))?,
        layer: LayerId(unsigned(row, 2)?),
        created_at: row.get(3).map_err(CatalogError::during(during))?,
        forked_from: snapshot(4)?,
        bytes: unsigned(row, 5)?,
        parent: snapshot(6)?,
        origin: origin.map(|id| WorkspaceId(id.unsigned_abs())),
        inodes: unsigned(row, 8)?,
        quota: Quota {
            bytes: limit(9)?,
            inodes: limit(10)?,
        },
        sandboxed: row.get(11).map_err(CatalogError::during(during))?,
    })
}
