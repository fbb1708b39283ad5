//! What giving space back asks of the catalog, and the rows that it alone writes.
//!
//! Everything that a layer wrote is found by the inodes that it has versions of (docs/format.md,
//! section 5, invariant 8), and by the names that it removed.

use rusqlite::{Connection, params};

use super::apply::{DOOMED, FROZEN, LEFT, LIVE, int};
use super::query::{bytes, unsigned};
use super::{Catalog, CatalogError, Queries, ServedObject};
use crate::change::{Name, Row};
use crate::engine::Quota;
use crate::id::{Ino, LayerId, ObjectId, WorkspaceId};
use crate::space::LayerOwner;

/// What a layer is to whoever gives space back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerRow {
    /// A workspace's, or one that is being filled.
    Live,
    /// A snapshot's.
    Frozen,
    /// Over directories of the host: never a snapshot.
    Base,
    /// No snapshot any more.
    Left,
    /// Its rows are to be removed.
    Doomed,
}

/// A workspace, its name, its live layer, and how many snapshots it has.
pub(crate) type WorkspaceCount = (WorkspaceId, String, Option<LayerId>, u64);

/// A layer, its parent, and what it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FamilyRecord {
    pub(crate) id: LayerId,
    pub(crate) parent: Option<LayerId>,
    pub(crate) what: LayerRow,
}

/// Applies a row that only giving space back writes.
pub(super) fn apply(connection: &Connection, row: &Row) -> rusqlite::Result<usize> {
    let prepare = |sql: &str| connection.prepare_cached(sql);
    match row {
        Row::DropLayer { id, child } => {
            if let Some(child) = child {
                let sql = "UPDATE layer SET parent = (SELECT parent FROM layer WHERE id = ?1) \
                           WHERE id = ?2 AND parent = ?1";
                prepare(sql)?.execute(params![int(id.0), int(child.0)])?;
                let sql = "UPDATE event SET layer = ?2 WHERE layer = ?1";
                prepare(sql)?.execute(params![int(id.0), int(child.0)])?;
            }
            prepare("DELETE FROM base WHERE layer = ?1")?.execute([int(id.0)])?;
            prepare("DELETE FROM layer WHERE id = ?1")?.execute([int(id.0)])
        }
        Row::MoveInode { ino, from, to } => {
            let key = params![int(ino.0), int(from.0), int(to.0)];
            // Of its attributes the lower layer's version is the one that is seen.
            let sql = "DELETE FROM inode WHERE ino = ?1 AND layer = ?2 \
                       AND EXISTS (SELECT 1 FROM inode WHERE ino = ?1 AND layer = ?3)";
            prepare(sql)?.execute(key)?;
            for table in ["inode", "xattr", "inline", "extent"] {
                let sql = format!("UPDATE {table} SET layer = ?3 WHERE ino = ?1 AND layer = ?2");
                prepare(&sql)?.execute(key)?;
            }
            Ok(1)
        }
        Row::MoveEntry {
            parent,
            name,
            from,
            to,
        } => {
            prepare("UPDATE dentry SET layer = ?4 WHERE parent = ?1 AND name = ?2 AND layer = ?3")?
                .execute(params![int(parent.0), &name[..], int(from.0), int(to.0)])
        }
        Row::DropXattr { ino, name, layer } => {
            prepare("DELETE FROM xattr WHERE ino = ?1 AND name = ?2 AND layer = ?3")?
                .execute(params![int(ino.0), &name[..], int(layer.0)])
        }
        Row::SetQuota {
            workspace,
            bytes,
            inodes,
        } => prepare("UPDATE workspace SET quota_bytes = ?2, quota_inodes = ?3 WHERE id = ?1")?
            .execute(params![int(workspace.0), bytes.map(int), inodes.map(int)]),
        Row::DropSnapshot { id } => {
            prepare("DELETE FROM snapshot WHERE id = ?1")?.execute([id.as_str()])
        }
        _ => super::repair::apply(connection, row),
    }
}

impl Catalog {
    /// As [`Queries::families`].
    pub(crate) fn families(&self) -> Result<Vec<FamilyRecord>, CatalogError> {
        Queries(&self.reader()).families()
    }

    /// The workspaces and snapshots whose layers stand on others, by layer. Looks at all layers.
    pub(crate) fn standing(&self) -> Result<Vec<(LayerId, String)>, CatalogError> {
        let during = "looking for what stands on layers";
        let sql = "SELECT l.id, CASE WHEN s.id IS NULL THEN w.name ELSE s.id END FROM layer l \
                   LEFT JOIN snapshot s ON s.workspace = l.workspace AND s.layer = l.id \
                   LEFT JOIN workspace w ON w.layer = l.id \
                   WHERE l.parent IS NOT NULL AND (s.id IS NOT NULL OR w.id IS NOT NULL) \
                   ORDER BY l.id";
        self.collect(during, sql, [], |row| {
            let name = row.get(1).map_err(CatalogError::during(during))?;
            Ok((LayerId(unsigned(row, 0)?), name))
        })
    }

    /// Bytes and inodes visible in a layer.
    pub(crate) fn totals(&self, layer: LayerId) -> Result<(i64, i64), CatalogError> {
        let during = "reading a layer's totals";
        let sql = "SELECT bytes, inodes FROM layer WHERE id = ?1";
        let found = self.collect(during, sql, [int(layer.0)], |row| {
            let column = |at| row.get(at).map_err(CatalogError::during(during));
            Ok((column(0)?, column(1)?))
        })?;
        Ok(found.into_iter().next().unwrap_or_default())
    }

    /// How much a workspace may hold.
    pub(crate) fn quota(&self, id: WorkspaceId) -> Result<Quota, CatalogError> {
        let during = "reading a quota";
        let sql = "SELECT quota_bytes, quota_inodes FROM workspace WHERE id = ?1";
        let found = self.collect(during, sql, [int(id.0)], |row| {
            let column = |at| -> Result<Option<u64>, CatalogError> {
                let limit: Option<i64> = row.get(at).map_err(CatalogError::during(during))?;
                Ok(limit.map(i64::unsigned_abs))
            };
            Ok(Quota {
                bytes: column(0)?,
                inodes: column(1)?,
            })
        })?;
        Ok(found.into_iter().next().unwrap_or_default())
    }

    /// The name of a workspace that was not deleted, by its number.
    pub(crate) fn workspace_name(&self, id: WorkspaceId) -> Result<Option<String>, CatalogError> {
        let during = "looking a workspace up";
        let sql = "SELECT name FROM workspace WHERE id = ?1 AND deleted_at IS NULL";
        let found = self.collect(during, sql, [int(id.0)], |row| {
            row.get(0).map_err(CatalogError::during(during))
        })?;
        Ok(found.into_iter().next())
    }

    /// Whether a layer is live, or frozen and a snapshot's or a base.
    pub(crate) fn shows_what_it_did(&self, layer: LayerId) -> Result<bool, CatalogError> {
        let sql = "SELECT 1 FROM layer WHERE id = ?1 AND state IN (?2, ?3)";
        let key = params![int(layer.0), LIVE, FROZEN];
        let found = self.collect("looking a layer up", sql, key, |_| Ok(()))?;
        Ok(!found.is_empty())
    }

    /// As [`Queries::is_frozen`].
    pub(crate) fn is_frozen(&self, layer: LayerId) -> Result<bool, CatalogError> {
        Queries(&self.reader()).is_frozen(layer)
    }

    /// Whether a sandbox could write to a layer, or it holds what comes from one that could.
    pub(crate) fn is_sandboxed(&self, layer: LayerId) -> Result<bool, CatalogError> {
        let during = "looking a layer up";
        let sql = "SELECT sandboxed FROM layer WHERE id = ?1";
        let found = self.collect(during, sql, [int(layer.0)], |row| {
            row.get::<_, bool>(0).map_err(CatalogError::during(during))
        })?;
        Ok(found.into_iter().any(|sandboxed| sandboxed))
    }
}

impl Queries<'_> {
    /// Every layer with what it is, parents before children.
    pub(crate) fn families(&self) -> Result<Vec<FamilyRecord>, CatalogError> {
        let sql = "SELECT l.id, l.parent, l.state, b.layer IS NOT NULL FROM layer l \
                   LEFT JOIN base b ON b.layer = l.id ORDER BY l.id";
        let during = "reading layers";
        self.rows(during, sql, [], |row| {
            let parent: Option<i64> = row.get(1).map_err(CatalogError::during(during))?;
            let base: bool = row.get(3).map_err(CatalogError::during(during))?;
            let state: u8 = row.get(2).map_err(CatalogError::during(during))?;
            Ok(FamilyRecord {
                id: LayerId(unsigned(row, 0)?),
                parent: parent.map(|id| LayerId(id.unsigned_abs())),
                what: match state {
                    DOOMED => LayerRow::Doomed,
                    LIVE => LayerRow::Live,
                    FROZEN | LEFT if base => LayerRow::Base,
                    LEFT => LayerRow::Left,
                    FROZEN => LayerRow::Frozen,
                    state => {
                        let what = format!("layer.state is {state}");
                        return Err(CatalogError::Damaged { what });
                    }
                },
            })
        })
    }

    /// Objects whose files wait for removal. Whatever it says there, the file of an object in use stays.
    pub(crate) fn doomed(&self) -> Result<Vec<ObjectId>, CatalogError> {
        let sql = "SELECT id FROM doomed_object WHERE id NOT IN (SELECT id FROM object)";
        self.rows("reading objects", sql, [], |row| {
            Ok(ObjectId(unsigned(row, 0)?))
        })
    }

    /// Every layer with whose it is.
    pub(crate) fn layer_owners(&self) -> Result<Vec<LayerOwner>, CatalogError> {
        let during = "reading layers";
        let sql = "SELECT l.id, l.workspace, w.id IS NOT NULL OR s.id IS NOT NULL, l.bytes \
                   FROM layer l LEFT JOIN workspace w ON w.layer = l.id AND w.id = l.workspace \
                   LEFT JOIN snapshot s ON s.workspace = l.workspace AND s.layer = l.id \
                   ORDER BY l.id";
        self.rows(during, sql, [], |row| {
            let workspace: Option<i64> = row.get(1).map_err(CatalogError::during(during))?;
            Ok(LayerOwner {
                id: LayerId(unsigned(row, 0)?),
                workspace: workspace.map(|id| WorkspaceId(id.unsigned_abs())),
                is_view: row.get(2).map_err(CatalogError::during(during))?,
                bytes: row.get(3).map_err(CatalogError::during(during))?,
            })
        })
    }

    /// Every workspace, its live layer if it was not deleted, and how many snapshots it has.
    pub(crate) fn workspaces_with_snapshots(&self) -> Result<Vec<WorkspaceCount>, CatalogError> {
        let during = "reading workspaces";
        let sql = "SELECT w.id, w.name, w.layer, \
                   (SELECT count(*) FROM snapshot s WHERE s.workspace = w.id) FROM workspace w";
        self.rows(during, sql, [], |row| {
            let live: Option<i64> = row.get(2).map_err(CatalogError::during(during))?;
            let name = row.get(1).map_err(CatalogError::during(during))?;
            let live = live.map(|id| LayerId(id.unsigned_abs()));
            Ok((
                WorkspaceId(unsigned(row, 0)?),
                name,
                live,
                unsigned(row, 3)?,
            ))
        })
    }

    /// Objects in the order of their numbers, behind one, at most so many.
    pub(crate) fn objects_after(
        &self,
        after: ObjectId,
        limit: usize,
    ) -> Result<Vec<ServedObject>, CatalogError> {
        let sql = "SELECT id, ino, layer FROM object WHERE id > ?1 ORDER BY id LIMIT ?2";
        let key = params![int(after.0), int(limit as u64)];
        self.rows("reading objects", sql, key, |row| {
            Ok(ServedObject {
                id: ObjectId(unsigned(row, 0)?),
                ino: Ino(unsigned(row, 1)?),
                layer: LayerId(unsigned(row, 2)?),
            })
        })
    }

    /// The layer whose extents name an object of an inode.
    pub(crate) fn holder(
        &self,
        ino: Ino,
        object: ObjectId,
    ) -> Result<Option<LayerId>, CatalogError> {
        let sql = "SELECT layer FROM extent WHERE ino = ?1 AND object = ?2 LIMIT 1";
        let key = params![int(ino.0), int(object.0)];
        let found = self.rows("looking an object up", sql, key, |row| {
            Ok(LayerId(unsigned(row, 0)?))
        })?;
        Ok(found.into_iter().next())
    }

    /// Whether a layer is frozen and a snapshot's.
    pub(crate) fn is_frozen(&self, layer: LayerId) -> Result<bool, CatalogError> {
        let sql = "SELECT 1 FROM layer WHERE id = ?1 AND state = ?2";
        let key = params![int(layer.0), FROZEN];
        let found = self.rows("looking a layer up", sql, key, |_| Ok(()))?;
        Ok(!found.is_empty())
    }

    /// Inodes of which a layer wrote a version, after a number, at most so many.
    pub(crate) fn written_after(
        &self,
        layer: LayerId,
        after: Ino,
        limit: usize,
    ) -> Result<Vec<Ino>, CatalogError> {
        let sql = "SELECT ino FROM inode INDEXED BY inode_by_layer \
                   WHERE layer = ?1 AND ino > ?2 ORDER BY ino LIMIT ?3";
        let key = params![int(layer.0), int(after.0), int(limit as u64)];
        self.rows("listing what a layer wrote", sql, key, |row| {
            Ok(Ino(unsigned(row, 0)?))
        })
    }

    /// Names that a layer removed, at most so many, from a place on.
    pub(crate) fn removed_names(
        &self,
        layer: LayerId,
        after: &(Ino, Name),
        limit: usize,
    ) -> Result<Vec<(Ino, Name)>, CatalogError> {
        let sql = "SELECT parent, name FROM dentry INDEXED BY dentry_gone \
                   WHERE layer = ?1 AND ino = 0 AND (parent, name) > (?2, ?3) \
                   ORDER BY parent, name LIMIT ?4";
        let (parent, name) = after;
        let key = params![int(layer.0), int(parent.0), &name[..], int(limit as u64)];
        self.rows("listing removed names", sql, key, |row| {
            Ok((Ino(unsigned(row, 0)?), bytes(row, 1)?))
        })
    }

    /// The names by which a layer's own rows lead to an inode.
    pub(crate) fn names_in(
        &self,
        ino: Ino,
        layer: LayerId,
    ) -> Result<Vec<(Ino, Name)>, CatalogError> {
        let sql = "SELECT parent, name FROM dentry INDEXED BY dentry_by_ino \
                   WHERE ino = ?1 AND ino <> 0 AND layer = ?2";
        let key = params![int(ino.0), int(layer.0)];
        self.rows("looking an inode's names up", sql, key, |row| {
            Ok((Ino(unsigned(row, 0)?), bytes(row, 1)?))
        })
    }

    /// Visits the layers that have a version of an inode, below a layer, nearest first, as long as
    /// that wants more.
    pub(crate) fn inode_layers(
        &self,
        ino: Ino,
        below: LayerId,
        visit: &mut dyn FnMut(LayerId) -> bool,
    ) -> Result<(), CatalogError> {
        let sql = "SELECT layer FROM inode WHERE ino = ?1 AND layer < ?2 ORDER BY layer DESC";
        self.layers(sql, params![int(ino.0), int(below.0)], visit)
    }

    /// As [`Queries::inode_layers`], of a name.
    pub(crate) fn entry_layers(
        &self,
        parent: Ino,
        name: &[u8],
        below: LayerId,
        visit: &mut dyn FnMut(LayerId) -> bool,
    ) -> Result<(), CatalogError> {
        let sql = "SELECT layer FROM dentry WHERE parent = ?1 AND name = ?2 AND layer < ?3 \
                   ORDER BY layer DESC";
        self.layers(sql, params![int(parent.0), name, int(below.0)], visit)
    }

    fn layers(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        visit: &mut dyn FnMut(LayerId) -> bool,
    ) -> Result<(), CatalogError> {
        let failed = |error| CatalogError::during("looking versions up")(error);
        let mut statement = self.0.prepare_cached(sql).map_err(failed)?;
        let mut rows = statement.query(params).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            if !visit(LayerId(unsigned(row, 0)?)) {
                break;
            }
        }
        Ok(())
    }

    /// Every version of an inode's extended attributes: name, layer, and whether it is gone there.
    pub(crate) fn xattr_versions(
        &self,
        ino: Ino,
    ) -> Result<Vec<(Name, LayerId, bool)>, CatalogError> {
        let during = "reading extended attributes";
        let sql = "SELECT name, layer, value IS NULL FROM xattr WHERE ino = ?1";
        self.rows(during, sql, [int(ino.0)], |row| {
            let gone = row.get(2).map_err(CatalogError::during(during))?;
            Ok((bytes(row, 0)?, LayerId(unsigned(row, 1)?), gone))
        })
    }

    /// Layers that have inline contents of an inode.
    pub(crate) fn inline_layers(&self, ino: Ino) -> Result<Vec<LayerId>, CatalogError> {
        let sql = "SELECT layer FROM inline WHERE ino = ?1";
        self.rows("reading inline contents", sql, [int(ino.0)], |row| {
            Ok(LayerId(unsigned(row, 0)?))
        })
    }

    /// The extents that a layer itself has of an inode, in order, at most so many: start, end, object.
    pub(crate) fn extents_in(
        &self,
        ino: Ino,
        layer: LayerId,
        limit: usize,
    ) -> Result<Vec<(u64, u64, Option<ObjectId>)>, CatalogError> {
        let during = "reading extents";
        let sql = "SELECT start, end, object FROM extent WHERE ino = ?1 AND layer = ?2 \
                   ORDER BY start LIMIT ?3";
        let key = params![int(ino.0), int(layer.0), int(limit as u64)];
        self.rows(during, sql, key, |row| {
            let object: Option<i64> = row.get(2).map_err(CatalogError::during(during))?;
            let object = object.map(|id| ObjectId(id.unsigned_abs()));
            Ok((unsigned(row, 0)?, unsigned(row, 1)?, object))
        })
    }

    /// Objects that a layer's own extents of an inode name behind a block.
    pub(crate) fn objects_behind(
        &self,
        ino: Ino,
        layer: LayerId,
        start: u64,
    ) -> Result<Vec<ObjectId>, CatalogError> {
        let sql = "SELECT DISTINCT object FROM extent \
                   WHERE ino = ?1 AND layer = ?2 AND start > ?3 AND object IS NOT NULL";
        let key = params![int(ino.0), int(layer.0), int(start)];
        self.rows("reading an inode's objects", sql, key, |row| {
            Ok(ObjectId(unsigned(row, 0)?))
        })
    }

    fn rows<T>(
        &self,
        during: &'static str,
        sql: &str,
        params: impl rusqlite::Params,
        read: impl Fn(&rusqlite::Row<'_>) -> Result<T, CatalogError>,
    ) -> Result<Vec<T>, CatalogError> {
        super::lists::collect(self.0, during, sql, params, read)
    }
}
