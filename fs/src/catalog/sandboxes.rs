//! Rows about sandboxes, and what is asked of them.

use rusqlite::types::Value;
use rusqlite::{Connection, Row as SqlRow, params, params_from_iter};

use super::apply::int;
use super::query::{damaged, unsigned};
use super::{Catalog, CatalogError};
use crate::change::Row;
use crate::id::{SnapshotId, WorkspaceId};
use crate::sandbox::{OnTimeout, SandboxKind, SandboxRecord, SandboxState};

/// Which sandboxes to list; newest first. Deleted ones are not.
#[derive(Clone, Debug, Default)]
pub(crate) struct SandboxQuery<'a> {
    /// In one of these states; none given: in any.
    pub(crate) states: &'a [SandboxState],
    /// Asked to start from this.
    pub(crate) template: Option<&'a str>,
    /// Made then or later, in nanoseconds since the epoch.
    pub(crate) since: Option<i64>,
    pub(crate) oldest_first: bool,
    /// Only those behind the one of this time and id.
    pub(crate) after: Option<(i64, &'a str)>,
    pub(crate) limit: Option<usize>,
}

/// The columns that [`record`] reads, of the table `b`.
macro_rules! columns {
    () => {
        "b.id, b.kind, b.state, b.reason, b.workspace, b.template, b.snapshot, b.created_at, \
         b.started_at, b.ends_at, b.on_timeout, b.auto_resume, b.generation, b.slot, b.session, \
         b.idempotency_key, b.spec, b.deleted_at"
    };
}

/// Whether the values of a row of `sandbox` are in the range that docs/format.md gives them.
macro_rules! is_valid {
    () => {
        "(length(id) > 0 AND kind IN (0, 1) AND state IN ('creating', 'running', 'pausing', 'paused', \
         'snapshotting', 'stopping', 'stopped', 'failed') AND on_timeout IN (0, 1) \
         AND auto_resume IN (0, 1) AND generation >= 0 AND ifnull(slot, 0) BETWEEN 0 AND 4294967295 \
         AND (snapshot IS NULL OR (length(snapshot) = 16 AND snapshot NOT GLOB '*[^0-9a-f]*')))"
    };
}
pub(super) use is_valid;

const PUT: &str = "INSERT INTO sandbox (id, kind, state, reason, workspace, template, snapshot, \
    created_at, started_at, ends_at, on_timeout, auto_resume, generation, slot, session, \
    idempotency_key, spec, deleted_at) \
    VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18) \
    ON CONFLICT (id) DO UPDATE SET kind = ?2, state = ?3, reason = ?4, workspace = ?5, \
    template = ?6, snapshot = ?7, created_at = ?8, started_at = ?9, ends_at = ?10, \
    on_timeout = ?11, auto_resume = ?12, generation = ?13, slot = ?14, session = ?15, \
    idempotency_key = ?16, spec = ?17, deleted_at = ?18";

const BY_ID: &str = concat!("SELECT ", columns!(), " FROM sandbox b WHERE b.id = ?1");

const BY_SESSION: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM sandbox b WHERE b.session = ?1 AND b.deleted_at IS NULL"
);

const BY_KEY: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM sandbox b WHERE b.idempotency_key = ?1"
);

/// Those that are not deleted, and deleted ones that still have a slot or a workspace. Three parts, or
/// all of the deleted ones would be looked at.
const LEFT: &str = concat!(
    "SELECT * FROM (SELECT ",
    columns!(),
    " FROM sandbox b WHERE b.deleted_at IS NULL UNION ALL SELECT ",
    columns!(),
    " FROM sandbox b WHERE b.slot IS NOT NULL AND b.deleted_at IS NOT NULL UNION ALL SELECT ",
    columns!(),
    " FROM workspace w CROSS JOIN sandbox b ON b.workspace = w.id AND b.workspace IS NOT NULL \
     WHERE w.deleted_at IS NULL AND b.slot IS NULL AND b.deleted_at IS NOT NULL) \
     ORDER BY created_at, id"
);

const FORGOTTEN: &str = "SELECT b.id FROM sandbox b WHERE b.deleted_at < ?1 AND NOT EXISTS \
    (SELECT 1 FROM snapshot s WHERE s.workspace = b.workspace) AND NOT EXISTS \
    (SELECT 1 FROM workspace w WHERE w.id = b.workspace AND w.deleted_at IS NULL)";

/// The newest snapshot of any sandbox of a session. The workspaces of a session are few, and so is
/// what is looked at of each: its last snapshot.
const LAST_OF_SESSION: &str = "SELECT s.id FROM sandbox b JOIN snapshot s ON s.workspace = b.workspace \
    AND s.layer = (SELECT max(layer) FROM snapshot WHERE workspace = b.workspace) \
    WHERE b.session = ?1 ORDER BY s.created_at DESC, s.layer DESC LIMIT 1";

const WORKSPACE: &str = "SELECT workspace FROM sandbox WHERE id = ?1 AND workspace IS NOT NULL";

/// Applies a row about a sandbox.
pub(super) fn apply(connection: &Connection, row: &Row) -> rusqlite::Result<usize> {
    match row {
        Row::PutSandbox(sandbox) => put(connection, sandbox),
        Row::DropSandbox { id } => connection
            .prepare_cached("DELETE FROM sandbox WHERE id = ?1 AND deleted_at IS NOT NULL")?
            .execute([id]),
        _ => unreachable!("every other row is applied by apply.rs"),
    }
}

const MARK: &str = "UPDATE layer SET sandboxed = 1 WHERE sandboxed = 0 \
    AND id = (SELECT layer FROM workspace WHERE id = ?1)";

fn put(connection: &Connection, sandbox: &SandboxRecord) -> rusqlite::Result<usize> {
    if let Some(workspace) = sandbox.workspace {
        connection
            .prepare_cached(MARK)?
            .execute([int(workspace.0)])?;
    }
    connection.prepare_cached(PUT)?.execute(params![
        sandbox.id,
        sandbox.kind as u8,
        sandbox.state.word(),
        sandbox.reason,
        sandbox.workspace.map(|id| int(id.0)),
        sandbox.template,
        sandbox.snapshot.as_ref().map(SnapshotId::as_str),
        sandbox.created_at,
        sandbox.started_at,
        sandbox.ends_at,
        sandbox.on_timeout as u8,
        sandbox.auto_resume,
        int(sandbox.generation),
        sandbox.slot,
        sandbox.session,
        sandbox.idempotency_key,
        sandbox.spec,
        sandbox.deleted_at,
    ])
}

impl Catalog {
    /// A sandbox, deleted or not.
    pub(crate) fn sandbox(&self, id: &str) -> Result<Option<SandboxRecord>, CatalogError> {
        self.one_sandbox(BY_ID, id)
    }

    /// The sandbox of a session that is not deleted.
    pub(crate) fn sandbox_of_session(
        &self,
        session: &str,
    ) -> Result<Option<SandboxRecord>, CatalogError> {
        self.one_sandbox(BY_SESSION, session)
    }

    /// The sandbox that a request of this key made, deleted or not.
    pub(crate) fn sandbox_of_key(&self, key: &str) -> Result<Option<SandboxRecord>, CatalogError> {
        self.one_sandbox(BY_KEY, key)
    }

    fn one_sandbox(&self, sql: &str, key: &str) -> Result<Option<SandboxRecord>, CatalogError> {
        let found = self.collect("reading a sandbox", sql, [key], record)?;
        Ok(found.into_iter().next())
    }

    /// Sandboxes that match and are not deleted, newest first unless asked otherwise.
    pub(crate) fn sandboxes(
        &self,
        query: &SandboxQuery<'_>,
    ) -> Result<Vec<SandboxRecord>, CatalogError> {
        let (sql, values) = sandbox_list(query);
        self.collect("reading sandboxes", &sql, params_from_iter(values), record)
    }

    /// Those that are not deleted, and deleted ones that still have a slot or a workspace, oldest first.
    pub(crate) fn sandboxes_left(&self) -> Result<Vec<SandboxRecord>, CatalogError> {
        self.collect("reading sandboxes", LEFT, [], record)
    }

    /// Ids of sandboxes that were deleted before then, in nanoseconds since the epoch, and of whose
    /// workspaces nothing is left.
    pub(crate) fn forgotten_sandboxes(&self, before: i64) -> Result<Vec<String>, CatalogError> {
        let during = "looking for deleted sandboxes";
        self.collect(during, FORGOTTEN, [before], |row| {
            row.get(0).map_err(CatalogError::during(during))
        })
    }

    /// The newest snapshot of the sandboxes of a session, deleted ones too.
    pub(crate) fn last_snapshot_of_session(
        &self,
        session: &str,
    ) -> Result<Option<SnapshotId>, CatalogError> {
        let during = "looking for the last snapshot of a session";
        let found = self.collect(during, LAST_OF_SESSION, [session], |row| {
            let id: String = row.get(0).map_err(CatalogError::during(during))?;
            SnapshotId::parse(&id).ok_or_else(|| damaged("a snapshot's id"))
        })?;
        Ok(found.into_iter().next())
    }

    /// The workspace of a sandbox, deleted or not.
    pub(crate) fn workspace_of_sandbox(
        &self,
        id: &str,
    ) -> Result<Option<WorkspaceId>, CatalogError> {
        let during = "looking a sandbox up";
        let found = self.collect(during, WORKSPACE, [id], |row| {
            unsigned(row, 0).map(WorkspaceId)
        })?;
        Ok(found.into_iter().next())
    }
}

/// The statement that lists sandboxes, and what is bound to it.
fn sandbox_list(query: &SandboxQuery<'_>) -> (String, Vec<Value>) {
    let mut sql = concat!(
        "SELECT ",
        columns!(),
        " FROM sandbox b WHERE b.deleted_at IS NULL"
    )
    .to_owned();
    let mut values: Vec<Value> = Vec::new();
    let mut condition = |sql: &mut String, text: &str, value: Value| {
        values.push(value);
        sql.push_str(&text.replace('?', &format!("?{}", values.len())));
    };
    // No index has these: they are looked at in what the order finds.
    for (number, state) in query.states.iter().enumerate() {
        let text = if number == 0 {
            " AND b.state IN (?"
        } else {
            ", ?"
        };
        condition(&mut sql, text, state.word().to_owned().into());
    }
    if !query.states.is_empty() {
        sql.push(')');
    }
    if let Some(template) = query.template {
        condition(&mut sql, " AND b.template = ?", template.to_owned().into());
    }
    if let Some(since) = query.since {
        condition(&mut sql, " AND b.created_at >= ?", since.into());
    }
    if let Some((at, id)) = query.after {
        let behind = if query.oldest_first { ">" } else { "<" };
        let text = format!(" AND (b.created_at, b.id) {behind} (?, ");
        condition(&mut sql, &text, at.into());
        condition(&mut sql, "?)", id.to_owned().into());
    }
    sql.push_str(match query.oldest_first {
        false => " ORDER BY b.created_at DESC, b.id DESC",
        true => " ORDER BY b.created_at, b.id",
    });
    if let Some(limit) = query.limit {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        condition(&mut sql, " LIMIT ?", limit.into());
    }
    (sql, values)
}

fn record(row: &SqlRow<'_>) -> Result<SandboxRecord, CatalogError> {
    let during = "reading a sandbox";
    let id: String = row.get(0).map_err(CatalogError::during(during))?;
    let wrong = |what: &str| damaged(format!("the {what} of the sandbox {id:?}"));
    let number = |at, what| {
        let number: Option<i64> = row.get(at).map_err(CatalogError::during(during))?;
        let number = number.map(u64::try_from).transpose();
        number.map_err(|_| wrong(what))
    };
    let flag = |at| row.get::<_, i64>(at).map_err(CatalogError::during(during));
    let state: String = row.get(2).map_err(CatalogError::during(during))?;
    let snapshot: Option<String> = row.get(6).map_err(CatalogError::during(during))?;
    let snapshot = snapshot.map(|id| SnapshotId::parse(&id).ok_or_else(|| wrong("snapshot")));
    let slot = number(13, "slot")?.map(u32::try_from).transpose();
    Ok(SandboxRecord {
        kind: SandboxKind::from_code(flag(1)?).ok_or_else(|| wrong("kind"))?,
        state: SandboxState::parse(&state).ok_or_else(|| wrong("state"))?,
        reason: row.get(3).map_err(CatalogError::during(during))?,
        workspace: number(4, "workspace")?.map(WorkspaceId),
        template: row.get(5).map_err(CatalogError::during(during))?,
        snapshot: snapshot.transpose()?,
        created_at: row.get(7).map_err(CatalogError::during(during))?,
        started_at: row.get(8).map_err(CatalogError::during(during))?,
        ends_at: row.get(9).map_err(CatalogError::during(during))?,
        on_timeout: OnTimeout::from_code(flag(10)?).ok_or_else(|| wrong("end"))?,
        auto_resume: flag(11)? != 0,
        generation: number(12, "generation")?.ok_or_else(|| wrong("generation"))?,
        slot: slot.map_err(|_| wrong("slot"))?,
        session: row.get(14).map_err(CatalogError::during(during))?,
        idempotency_key: row.get(15).map_err(CatalogError::during(during))?,
        spec: row.get(16).map_err(CatalogError::during(during))?,
        deleted_at: row.get(17).map_err(CatalogError::during(during))?,
        id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(connection: &Connection, sql: &str, values: Vec<Value>) -> Vec<String> {
        let mut plan = connection
            .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
            .unwrap();
        let steps = plan
            .query_map(params_from_iter(values), |row| row.get(3))
            .unwrap();
        steps.collect::<Result<_, _>>().unwrap()
    }

    /// Deleted sandboxes stay as long as snapshots of them do, and may be many.
    #[test]
    fn sandboxes_are_found_by_indexes_and_listed_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.db");
        Catalog::create(&path, "0", 0).unwrap();
        let catalog = Catalog::open(&path).unwrap();
        let reader = catalog.reader();
        for sql in [
            BY_ID,
            BY_SESSION,
            BY_KEY,
            FORGOTTEN,
            WORKSPACE,
            LAST_OF_SESSION,
        ] {
            for step in steps(&reader, sql, vec![1.into()]) {
                assert!(!step.starts_with("SCAN"), "{step}: {sql}");
            }
        }
        let left = steps(&reader, LEFT, Vec::new());
        let whole = left.iter().filter(|step| step.starts_with("SCAN b"));
        assert_eq!(
            whole.filter(|step| !step.contains("INDEX")).count(),
            0,
            "{left:#?}"
        );
        for oldest_first in [false, true] {
            let query = SandboxQuery {
                states: &[SandboxState::Running, SandboxState::Paused],
                template: Some("base"),
                since: Some(1),
                oldest_first,
                after: Some((5, "b")),
                limit: Some(10),
            };
            let (sql, values) = sandbox_list(&query);
            let steps = steps(&reader, &sql, values);
            assert_eq!(steps.len(), 1, "{steps:#?}");
            assert!(
                steps[0].starts_with("SEARCH b USING INDEX sandbox_by_time"),
                "{steps:#?}"
            );
        }
    }
}
