//! Rows about templates, and what is asked of them.

use rusqlite::{Connection, Row as SqlRow, params};

use super::query::damaged;
use super::{Catalog, CatalogError};
use crate::change::Row;
use crate::id::SnapshotId;
use crate::store::TemplateRecord;

const BY_NAME: &str = "SELECT name, snapshot, updated_at, recipe FROM template WHERE name = ?1";

const ALL: &str = "SELECT name, snapshot, updated_at, recipe FROM template ORDER BY name";

const OF_SNAPSHOT: &str =
    "SELECT name, snapshot, updated_at, recipe FROM template WHERE snapshot = ?1 ORDER BY name";

const BY_RECIPE: &str = "SELECT name, snapshot, updated_at, recipe FROM template \
    WHERE recipe = ?1 ORDER BY updated_at DESC LIMIT 1";

/// Applies a row about a template.
pub(super) fn apply(connection: &Connection, row: &Row) -> rusqlite::Result<usize> {
    match row {
        Row::PutTemplate {
            name,
            snapshot,
            updated_at,
            recipe,
        } => connection
            .prepare_cached("INSERT OR REPLACE INTO template VALUES (?1,?2,?3,?4)")?
            .execute(params![name, snapshot.as_str(), updated_at, recipe]),
        Row::DropTemplate { name } => connection
            .prepare_cached("DELETE FROM template WHERE name = ?1")?
            .execute([name]),
        _ => unreachable!("every other row is applied by apply.rs"),
    }
}

impl Catalog {
    /// The template of a name.
    pub(crate) fn template(&self, name: &str) -> Result<Option<TemplateRecord>, CatalogError> {
        let found = self.collect("reading a template", BY_NAME, [name], record)?;
        Ok(found.into_iter().next())
    }

    /// Every template, by name.
    pub(crate) fn templates(&self) -> Result<Vec<TemplateRecord>, CatalogError> {
        self.collect("reading templates", ALL, [], record)
    }

    /// The templates that a snapshot is, by name.
    pub(crate) fn templates_of(
        &self,
        id: &SnapshotId,
    ) -> Result<Vec<TemplateRecord>, CatalogError> {
        self.collect("reading templates", OF_SNAPSHOT, [id.as_str()], record)
    }

    /// The newest template that was made of this.
    pub(crate) fn template_by_recipe(
        &self,
        recipe: &str,
    ) -> Result<Option<TemplateRecord>, CatalogError> {
        let found = self.collect("looking for a template", BY_RECIPE, [recipe], record)?;
        Ok(found.into_iter().next())
    }
}

fn record(row: &SqlRow<'_>) -> Result<TemplateRecord, CatalogError> {
    let during = "reading a template";
    let snapshot: String = row.get(1).map_err(CatalogError::during(during))?;
    Ok(TemplateRecord {
        name: row.get(0).map_err(CatalogError::during(during))?,
        snapshot: SnapshotId::parse(&snapshot)
            .ok_or_else(|| damaged(format!("snapshot id {snapshot:?}")))?,
        updated_at: row.get(2).map_err(CatalogError::during(during))?,
        recipe: row.get(3).map_err(CatalogError::during(during))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_found_by_indexes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.db");
        Catalog::create(&path, "0", 0).unwrap();
        let catalog = Catalog::open(&path).unwrap();
        let reader = catalog.reader();
        for sql in [BY_NAME, OF_SNAPSHOT, BY_RECIPE] {
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
