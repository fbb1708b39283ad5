//! Templates: names under which sandboxes start from snapshots.
//!
//! Invariant: a snapshot that is a template goes by no rule and no expiry. Deleting it by hand removes the
//! names with it.

use thiserror::Error;

use super::Store;
use crate::catalog::CatalogError;
use crate::change::{Change, Row};
use crate::engine::now_ns;
use crate::id::{SnapshotId, TemplateName};

/// A row of the table `template`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateRecord {
    /// Its name, as [`TemplateName::as_str`].
    pub name: String,
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// When the name was given to it, in nanoseconds since the epoch.
    pub updated_at: i64,
    /// What the snapshot was made of, as whoever made it says it. The store does not read it.
    pub recipe: Option<String>,
}

/// Why a template was not changed.
#[derive(Debug, Error)]
pub enum TemplateError {
    /// There is no such snapshot.
    #[error("there is no snapshot '{snapshot}'")]
    NoSnapshot {
        /// Its id.
        snapshot: SnapshotId,
    },
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl Store {
    /// Gives a snapshot the name of a template; a snapshot that had it loses it. As long as it has one, no
    /// rule and no expiry deletes it.
    ///
    /// # Errors
    /// [`TemplateError`].
    pub fn set_template(
        &self,
        name: &TemplateName,
        snapshot: &SnapshotId,
        recipe: Option<&str>,
    ) -> Result<TemplateRecord, TemplateError> {
        let _deciding = self.core.deciding.lock();
        let before = self.core.catalog.template(name.as_str())?;
        let record = TemplateRecord {
            name: name.to_string(),
            snapshot: snapshot.clone(),
            updated_at: now_ns(),
            recipe: recipe.map(str::to_owned),
        };
        let row = Row::PutTemplate {
            name: record.name.clone(),
            snapshot: snapshot.clone(),
            updated_at: record.updated_at,
            recipe: record.recipe.clone(),
        };
        let applied = self.core.catalog.apply(&Change::from(row));
        applied.map_err(|error| match error.is_conflict() {
            true => TemplateError::NoSnapshot {
                snapshot: snapshot.clone(),
            },
            false => error.into(),
        })?;
        if let Some(before) = before
            && before.snapshot != *snapshot
        {
            self.may_go(&before.snapshot)?;
        }
        Ok(record)
    }

    /// The template of a name.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn template(&self, name: &TemplateName) -> Result<Option<TemplateRecord>, CatalogError> {
        self.core.catalog.template(name.as_str())
    }

    /// Every template, by name.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn templates(&self) -> Result<Vec<TemplateRecord>, CatalogError> {
        self.core.catalog.templates()
    }

    /// The templates that a snapshot is, by name.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn templates_of(&self, snapshot: &SnapshotId) -> Result<Vec<TemplateRecord>, CatalogError> {
        self.core.catalog.templates_of(snapshot)
    }

    /// The newest template that was made of this.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn template_by_recipe(&self, recipe: &str) -> Result<Option<TemplateRecord>, CatalogError> {
        self.core.catalog.template_by_recipe(recipe)
    }

    /// Takes the name of a template from its snapshot, which stays as long as rules keep it. Says whether
    /// there was such a template.
    ///
    /// # Errors
    /// When the catalog fails.
    pub fn delete_template(&self, name: &TemplateName) -> Result<bool, CatalogError> {
        let _deciding = self.core.deciding.lock();
        let Some(before) = self.core.catalog.template(name.as_str())? else {
            return Ok(false);
        };
        let row = Row::DropTemplate { name: before.name };
        self.core.catalog.apply(&Change::from(row))?;
        self.may_go(&before.snapshot)?;
        Ok(true)
    }

    /// A snapshot has one reason less to stay: whether a rule or an expiry deletes it now is for the thread
    /// to find out.
    fn may_go(&self, snapshot: &SnapshotId) -> Result<(), CatalogError> {
        let workspace = self.core.catalog.workspace_of_snapshot(snapshot)?;
        self.core.retain.changed();
        self.core.retain.expires(i64::MIN);
        if let Some(workspace) = workspace {
            self.core.retain.edited(workspace);
        }
        Ok(())
    }
}
