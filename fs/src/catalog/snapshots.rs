//! Lists of snapshots: which there are, in the order of an index.

use std::collections::BTreeMap;

use rusqlite::{Row as SqlRow, params_from_iter};

use super::apply::int;
use super::lists::parent_snapshot;
use super::query::{damaged, unsigned};
use super::{Catalog, CatalogError};
use crate::id::{LayerId, SnapshotId, WorkspaceId};
use crate::image::ImageState;

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
    /// Whether a sandbox could write to it.
    pub(crate) sandboxed: bool,
    /// The image of a machine's memory, and its bytes on disk.
    pub(crate) image: Option<(ImageState, u64)>,
    pub(crate) parent: Option<SnapshotId>,
    pub(crate) labels: BTreeMap<String, String>,
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
    /// Of a workspace that a sandbox has or had.
    pub(crate) of_sandboxes: bool,
    /// With the name of this template.
    pub(crate) template: Option<&'a str>,
    pub(crate) protected: Option<bool>,
    /// Taken by Floe, or by hand.
    pub(crate) automatic: Option<bool>,
    /// With an image that brings memory back, or without.
    pub(crate) memory: Option<bool>,
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

impl Catalog {
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
}

/// The statement that lists snapshots, and what is bound to it.
fn snapshot_list(query: &SnapshotQuery<'_>) -> (String, Vec<rusqlite::types::Value>) {
    // A text parameter per condition: what is absent is not in the statement, so that SQLite
    // picks the index that fits.
    let mut sql = format!(
        "SELECT s.id, s.layer, w.name, s.name, s.message, s.automatic, s.created_at, \
         s.elapsed_us, s.durable, {}, s.workspace, s.expires_at, s.protected, l.sandboxed, s.image, s.image_bytes FROM snapshot s JOIN layer l ON l.id = s.layer \
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
    if let Some(template) = query.template {
        let text = " AND s.id = (SELECT snapshot FROM template WHERE name = ?)";
        condition(&mut sql, text, template.to_owned().into());
    }
    // No index has these: they are looked at in what the others find.
    if query.of_sandboxes {
        // As a term of its own, not of a join: that could begin with the sandboxes.
        sql.push_str(" AND +EXISTS (SELECT 1 FROM sandbox b WHERE b.workspace = s.workspace)");
    }
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
    match query.memory {
        Some(true) => sql.push_str(" AND s.image IN (0, 1, 3)"),
        Some(false) => sql.push_str(" AND (s.image IS NULL OR s.image NOT IN (0, 1, 3))"),
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
        sandboxed: row.get(13).map_err(CatalogError::during(during))?,
        image: image(row)?,
        labels: BTreeMap::new(),
    })
}

fn image(row: &SqlRow<'_>) -> Result<Option<(ImageState, u64)>, CatalogError> {
    let during = "reading a snapshot";
    let state: Option<u8> = row.get(14).map_err(CatalogError::during(during))?;
    let Some(state) = state else {
        return Ok(None);
    };
    let known = ImageState::of(state).ok_or_else(|| damaged(format!("image state {state}")))?;
    Ok(Some((known, unsigned(row, 15)?)))
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
                let of_sandboxes = SnapshotQuery {
                    of_sandboxes: true,
                    ..filtered.clone()
                };
                // The same, with a look at an index for each that is on the way.
                let mut looked_at = plan(&of_sandboxes);
                looked_at.retain(|step| {
                    !step.starts_with("SEARCH b USING COVERING INDEX sandbox_by_workspace")
                });
                let is_plain = |step: &&String| !step.starts_with("CORRELATED");
                assert!(
                    looked_at
                        .iter()
                        .filter(is_plain)
                        .eq(steps.iter().filter(is_plain)),
                    "{looked_at:#?}"
                );
                let template = SnapshotQuery {
                    template: Some("base"),
                    ..base.clone()
                };
                let found = plan(&template);
                assert!(
                    found[0].contains("SEARCH s USING INDEX sqlite_autoindex_snapshot"),
                    "{found:#?}"
                );
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
