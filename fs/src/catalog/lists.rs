//! Reads of what a store holds as a whole: layers, workspaces, snapshots, mounts, counters.

use std::collections::{BTreeMap, HashSet};

use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params_from_iter};

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
}

/// A row of `snapshot` with what belongs to it.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotRecord {
    pub(crate) id: SnapshotId,
    pub(crate) layer: LayerId,
    pub(crate) workspace: String,
    pub(crate) workspace_id: WorkspaceId,
    pub(crate) name: Option<String>,
    pub(crate) message: Option<String>,
    pub(crate) automatic: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) elapsed_us: u64,
    pub(crate) durable: bool,
    pub(crate) expires_at: Option<i64>,
    pub(crate) protected: bool,
    pub(crate) parent: Option<SnapshotId>,
    pub(crate) labels: BTreeMap<String, String>,
}

/// A row of `mount`.
#[derive(Clone, Debug)]
pub(crate) struct MountRow {
    pub(crate) dir: Vec<u8>,
    pub(crate) workspace: Option<WorkspaceId>,
    pub(crate) snapshot: Option<SnapshotId>,
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

/// Which snapshots to list; newest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct SnapshotQuery<'a> {
    pub(crate) id_prefix: Option<&'a str>,
    pub(crate) workspace: Option<WorkspaceId>,
    pub(crate) workspace_name: Option<&'a str>,
    /// Only of workspaces that were not deleted.
    pub(crate) of_live_ones: bool,
    pub(crate) name: Option<&'a str>,
    pub(crate) protected: Option<bool>,
    /// Taken by Floe, or by hand.
    pub(crate) automatic: Option<bool>,
    pub(crate) labels: Option<&'a BTreeMap<String, String>>,
    /// Taken before, in nanoseconds since the epoch.
    pub(crate) before: Option<i64>,
    /// Taken then or later.
    pub(crate) since: Option<i64>,
    pub(crate) oldest_first: bool,
    /// Only those behind the one of this time and layer.
    pub(crate) after: Option<(i64, LayerId)>,
    pub(crate) limit: Option<usize>,
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

/// Workspaces that were not deleted.
macro_rules! workspaces {
    () => {
        concat!(
            "SELECT w.id, w.name, w.layer, w.created_at, w.forked_from, l.bytes, ",
            parent_snapshot!(),
            ", w.origin, l.inodes, w.quota_bytes, w.quota_inodes FROM workspace w JOIN layer l ON l.id = w.layer WHERE w.deleted_at IS NULL"
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
            "SELECT dir, workspace, snapshot FROM mount",
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
                })
            },
        )
    }

    /// Snapshots that match, newest first unless asked otherwise.
    pub(crate) fn snapshots(
        &self,
        query: &SnapshotQuery<'_>,
    ) -> Result<Vec<SnapshotRecord>, CatalogError> {
        let (sql, values) = snapshot_list(query);
        let mut found = self.collect(
            "reading snapshots",
            &sql,
            params_from_iter(values),
            snapshot_record,
        )?;
        self.add_labels(&mut found)?;
        Ok(found)
    }

    fn add_labels(&self, found: &mut [SnapshotRecord]) -> Result<(), CatalogError> {
        let during = "reading labels";
        let reader = self.reader();
        let mut statement = reader
            .prepare_cached("SELECT key, value FROM label WHERE snapshot = ?1")
            .map_err(CatalogError::during(during))?;
        for snapshot in found {
            let labels = statement
                .query_map([snapshot.id.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
                .map_err(CatalogError::during(during))?;
            snapshot.labels = labels
                .collect::<Result<_, _>>()
                .map_err(CatalogError::during(during))?;
        }
        Ok(())
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

/// The statement that lists snapshots, and what is bound to it.
fn snapshot_list(query: &SnapshotQuery<'_>) -> (String, Vec<rusqlite::types::Value>) {
    // A text parameter per condition: what is absent is not in the statement, so that SQLite
    // picks the index that fits.
    let mut sql = format!(
        "SELECT s.id, s.layer, w.name, s.name, s.message, s.automatic, s.created_at, \
         s.elapsed_us, s.durable, {}, s.workspace, s.expires_at, s.protected FROM snapshot s JOIN layer l ON l.id = s.layer \
         JOIN workspace w ON w.id = s.workspace WHERE 1",
        parent_snapshot!()
    );
    let mut values: Vec<rusqlite::types::Value> = Vec::new();
    let mut condition = |sql: &mut String, text: &str, value: rusqlite::types::Value| {
        values.push(value);
        sql.push_str(&text.replace('?', &format!("?{}", values.len())));
    };
    if let Some(prefix) = query.id_prefix {
        condition(&mut sql, " AND s.id >= ?", prefix.to_owned().into());
        condition(&mut sql, " AND s.id < ?", format!("{prefix}g").into());
    }
    if let Some(workspace) = query.workspace {
        condition(&mut sql, " AND s.workspace = ?", int(workspace.0).into());
    }
    if let Some(name) = query.workspace_name {
        condition(&mut sql, " AND w.name = ?", name.to_owned().into());
    }
    if query.of_live_ones {
        sql.push_str(" AND w.deleted_at IS NULL");
    }
    if let Some(name) = query.name {
        condition(&mut sql, " AND s.name = ?", name.to_owned().into());
    }
    // No index has these: they are looked at in what the others find.
    if let Some(protected) = query.protected {
        condition(
            &mut sql,
            " AND s.protected = ?",
            i64::from(protected).into(),
        );
    }
    match query.automatic {
        Some(true) => sql.push_str(" AND s.automatic IS NOT NULL"),
        Some(false) => sql.push_str(" AND s.automatic IS NULL"),
        None => {}
    }
    if let Some(before) = query.before {
        condition(&mut sql, " AND s.created_at < ?", before.into());
    }
    if let Some(since) = query.since {
        condition(&mut sql, " AND s.created_at >= ?", since.into());
    }
    // In one workspace the order is that of the layers, and of the table.
    let by_layer = query.workspace.is_some();
    let behind = if query.oldest_first { ">" } else { "<" };
    match query.after {
        Some((_, layer)) if by_layer => {
            let text = format!(" AND s.layer {behind} ?");
            condition(&mut sql, &text, int(layer.0).into());
        }
        Some((at, layer)) => {
            let text = format!(" AND (s.created_at, s.layer) {behind} (?, ");
            condition(&mut sql, &text, at.into());
            condition(&mut sql, "?)", int(layer.0).into());
        }
        None => {}
    }
    for (key, value) in query.labels.into_iter().flatten() {
        let text = " AND EXISTS (SELECT 1 FROM label WHERE snapshot = s.id AND key = ?";
        condition(&mut sql, text, key.clone().into());
        condition(&mut sql, " AND value = ?)", value.clone().into());
    }
    sql.push_str(match (by_layer, query.oldest_first) {
        (true, false) => " ORDER BY s.layer DESC",
        (true, true) => " ORDER BY s.layer",
        (false, false) => " ORDER BY s.created_at DESC, s.layer DESC",
        (false, true) => " ORDER BY s.created_at, s.layer",
    });
    if let Some(limit) = query.limit {
        condition(
            &mut sql,
            " LIMIT ?",
            i64::try_from(limit).unwrap_or(i64::MAX).into(),
        );
    }
    (sql, values)
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
    })
}

fn snapshot_record(row: &SqlRow<'_>) -> Result<SnapshotRecord, CatalogError> {
    let during = "reading a snapshot";
    let id = |text: String| {
        SnapshotId::parse(&text).ok_or_else(|| damaged(format!("snapshot id {text:?}")))
    };
    let parent: Option<String> = row.get(9).map_err(CatalogError::during(during))?;
    Ok(SnapshotRecord {
        id: id(row.get(0).map_err(CatalogError::during(during))?)?,
        layer: LayerId(unsigned(row, 1)?),
        workspace: row.get(2).map_err(CatalogError::during(during))?,
        name: row.get(3).map_err(CatalogError::during(during))?,
        message: row.get(4).map_err(CatalogError::during(during))?,
        automatic: row.get(5).map_err(CatalogError::during(during))?,
        created_at: row.get(6).map_err(CatalogError::during(during))?,
        elapsed_us: unsigned(row, 7)?,
        durable: unsigned(row, 8)? != 0,
        parent: parent.map(id).transpose()?,
        workspace_id: WorkspaceId(unsigned(row, 10)?),
        expires_at: row.get(11).map_err(CatalogError::during(during))?,
        protected: row.get(12).map_err(CatalogError::during(during))?,
        labels: BTreeMap::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neither sorting nor a look at more than the page takes: what a filter has no index for is looked
    /// at on the way.
    #[test]
    fn a_list_is_read_in_the_order_of_an_index_whatever_it_leaves_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.db");
        Catalog::create(&path, "0", 0).unwrap();
        let catalog = Catalog::open(&path).unwrap();
        let reader = catalog.reader();
        let plan = |query: &SnapshotQuery<'_>| {
            let (sql, values) = snapshot_list(query);
            let mut plan = reader
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .unwrap();
            let steps = plan
                .query_map(params_from_iter(values), |row| row.get::<_, String>(3))
                .unwrap();
            steps.collect::<Result<Vec<_>, _>>().unwrap()
        };
        for oldest_first in [false, true] {
            for workspace in [None, Some(WorkspaceId(1))] {
                let base = SnapshotQuery {
                    workspace,
                    oldest_first,
                    after: Some((1, LayerId(1))),
                    limit: Some(10),
                    ..SnapshotQuery::default()
                };
                let filtered = SnapshotQuery {
                    protected: Some(true),
                    automatic: Some(false),
                    ..base.clone()
                };
                let steps = plan(&filtered);
                assert_eq!(steps, plan(&base));
                let sorts = steps.iter().filter(|step| step.contains("TEMP B-TREE"));
                // Those of one instant are put in order.
                let few = |step: &&String| !step.contains("LAST TERM");
                assert_eq!(sorts.filter(few).count(), 0, "{steps:#?}");
                assert!(
                    steps
                        .iter()
                        .all(|step| !step.starts_with("SCAN s") || step.contains("INDEX")),
                    "{steps:#?}"
                );
            }
        }
    }
}
