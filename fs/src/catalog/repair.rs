//! What verifying contents and repairing ask of the catalog, and the rows that repairing alone writes.
//!
//! No row here changes what a frozen layer shows, but that damaged bytes cannot be read any more.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use super::apply::int;
use super::connect::connect;
use super::query::unsigned;
use super::{Catalog, CatalogError, Peek};
use crate::change::Row;
use crate::contents::FAN_OUT;
use crate::id::{Ino, LayerId, ObjectId};

/// Labels of snapshots that do not exist.
const DANGLING_LABELS: &str = "DELETE FROM label WHERE snapshot NOT IN (SELECT id FROM snapshot)";

/// Rules of workspaces that never were, or of no class.
const DANGLING_RULES: &str = "DELETE FROM retention WHERE automatic NOT IN (0, 1) \
    OR (workspace <> 0 AND workspace NOT IN (SELECT id FROM workspace))";

/// Mounts of nothing, or of two things. To SQL nothing is not among nothing.
const DANGLING_MOUNTS: &str = "DELETE FROM mount WHERE (workspace IS NULL) = (snapshot IS NULL) \
    OR (workspace IS NOT NULL AND workspace NOT IN (SELECT id FROM workspace)) \
    OR (snapshot IS NOT NULL AND snapshot NOT IN (SELECT id FROM snapshot))";

/// Sandboxes with values that none has: nobody could tell what they are.
const WRONG_SANDBOXES: &str = concat!(
    "DELETE FROM sandbox WHERE NOT ",
    super::sandboxes::is_valid!()
);

/// Sandboxes whose workspaces never were.
const DANGLING_SANDBOXES: &str = "UPDATE sandbox SET workspace = NULL \
    WHERE workspace IS NOT NULL AND workspace NOT IN (SELECT id FROM workspace)";

/// Templates that no snapshot is.
const DANGLING_TEMPLATES: &str =
    "DELETE FROM template WHERE snapshot NOT IN (SELECT id FROM snapshot)";

/// Applies a row that only repairing writes.
pub(super) fn apply(connection: &Connection, row: &Row) -> rusqlite::Result<usize> {
    let prepare = |sql: &str| connection.prepare_cached(sql);
    match row {
        Row::AddDamaged { object, block } => {
            prepare("INSERT OR IGNORE INTO damaged VALUES (?1,?2)")?
                .execute(params![int(object.0), int(*block)])
        }
        Row::DropDamaged { object, block } => {
            prepare("DELETE FROM damaged WHERE object = ?1 AND block = ?2")?
                .execute(params![int(object.0), int(*block)])
        }
        Row::DropChecksum { object } => {
            prepare("DELETE FROM checksum WHERE object = ?1")?.execute([int(object.0)])?;
            prepare("UPDATE object SET hashed = 0 WHERE id = ?1")?.execute([int(object.0)])
        }
        Row::SetUsage {
            layer,
            bytes,
            inodes,
        } => {
            let sql = "UPDATE layer SET bytes = coalesce(?2, bytes), inodes = coalesce(?3, inodes) \
                       WHERE id = ?1";
            prepare(sql)?.execute(params![int(layer.0), bytes, inodes])
        }
        Row::MarkShadows { parent, name } => {
            prepare("UPDATE dentry SET shadows = 1 WHERE parent = ?1 AND name = ?2")?
                .execute(params![int(parent.0), &name[..]])
        }
        Row::DropDangling => {
            prepare(DANGLING_LABELS)?.execute([])?;
            prepare(DANGLING_RULES)?.execute([])?;
            prepare(WRONG_SANDBOXES)?.execute([])?;
            prepare(DANGLING_SANDBOXES)?.execute([])?;
            prepare(DANGLING_TEMPLATES)?.execute([])?;
            prepare(DANGLING_MOUNTS)?.execute([])
        }
        _ => unreachable!("every other row is applied by apply.rs, or by space.rs"),
    }
}

/// An object with the file it serves, as its row says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedObject {
    pub(crate) id: ObjectId,
    pub(crate) ino: Ino,
    /// The layer that it was made for; that may have been handed down since, and have no row.
    pub(crate) layer: LayerId,
}

/// Blocks of an object that a layer claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) layer: LayerId,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// What is said of the hash of an object.
#[derive(Clone, Debug)]
pub(crate) struct HashOf {
    /// Whether it says that it was hashed.
    pub(crate) hashed: bool,
    /// `checksum.digest` and `checksum.blocks`.
    pub(crate) checksum: Option<(i64, Vec<u8>)>,
}

impl Catalog {
    /// As [`super::Queries::objects_after`].
    pub(crate) fn objects_after(
        &self,
        after: ObjectId,
        limit: usize,
    ) -> Result<Vec<ServedObject>, CatalogError> {
        super::Queries(&self.reader()).objects_after(after, limit)
    }

    /// How many objects there are.
    pub(crate) fn object_count(&self) -> Result<u64, CatalogError> {
        let sql = "SELECT count(*) FROM object";
        let found = self.collect("counting objects", sql, [], |row| unsigned(row, 0))?;
        Ok(found.first().copied().unwrap_or(0))
    }

    /// Which blocks of an object are claimed, by which layers.
    pub(crate) fn claims(&self, ino: Ino, object: ObjectId) -> Result<Vec<Claim>, CatalogError> {
        let sql = "SELECT layer, start, end FROM extent WHERE ino = ?1 AND object = ?2";
        let key = params![int(ino.0), int(object.0)];
        self.collect("reading the extents of an object", sql, key, |row| {
            Ok(Claim {
                layer: LayerId(unsigned(row, 0)?),
                start: unsigned(row, 1)?,
                end: unsigned(row, 2)?,
            })
        })
    }

    /// What is said of the hash of an object; none if it has no row.
    pub(crate) fn hash_of(&self, object: ObjectId) -> Result<Option<HashOf>, CatalogError> {
        let sql = "SELECT o.hashed, c.digest, c.blocks FROM object o \
                   LEFT JOIN checksum c ON c.object = o.id WHERE o.id = ?1";
        let hash_of = |row: &rusqlite::Row<'_>| {
            let digest: Option<i64> = row.get(1)?;
            let blocks: Option<Vec<u8>> = row.get(2)?;
            Ok(HashOf {
                hashed: row.get(0)?,
                checksum: digest.zip(blocks),
            })
        };
        self.reader()
            .query_row(sql, [int(object.0)], hash_of)
            .optional()
            .map_err(CatalogError::during("reading a checksum"))
    }

    /// Every object that an extent names.
    pub(crate) fn named_objects(&self) -> Result<HashSet<ObjectId>, CatalogError> {
        let sql = "SELECT DISTINCT object FROM extent WHERE object IS NOT NULL";
        let found = self.collect("reading extents", sql, [], |row| {
            unsigned(row, 0).map(ObjectId)
        })?;
        Ok(found.into_iter().collect())
    }

    /// How many objects each directory of them holds, by its number.
    pub(crate) fn objects_by_directory(&self) -> Result<HashMap<u64, u64>, CatalogError> {
        let sql = "SELECT id / ?1, count(*) FROM object GROUP BY 1";
        let key = [int(FAN_OUT)];
        let found = self.collect("counting objects", sql, key, |row| {
            Ok((unsigned(row, 0)?, unsigned(row, 1)?))
        })?;
        Ok(found.into_iter().collect())
    }

    /// Every damaged block that is known.
    pub(crate) fn damaged_blocks(&self) -> Result<Vec<(ObjectId, u64)>, CatalogError> {
        let sql = "SELECT object, block FROM damaged";
        self.collect("reading damaged blocks", sql, [], |row| {
            Ok((ObjectId(unsigned(row, 0)?), unsigned(row, 1)?))
        })
    }

    /// Writes a copy of the whole catalog, as it is now, to a new file.
    pub(crate) fn copy_to(&self, to: &Path) -> Result<(), CatalogError> {
        use std::os::unix::ffi::OsStrExt;
        // A connection for reading may not make the file.
        let connection = connect(&self.path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let during = "copying the catalog";
        let name = std::str::from_utf8(to.as_os_str().as_bytes());
        let name = name.map_err(|error| CatalogError::Sync {
            path: to.to_owned(),
            source: std::io::Error::other(error),
        })?;
        connection
            .execute("VACUUM INTO ?1", [name])
            .map(drop)
            .map_err(CatalogError::during(during))
    }
}

/// Deepest directory that is believed.
const DEPTH_MAX: usize = 4096;

impl Peek {
    /// The inode that an object serves.
    pub(crate) fn ino_of(&self, id: ObjectId) -> Result<Option<Ino>, CatalogError> {
        let found = self
            .connection
            .prepare_cached("SELECT ino FROM object WHERE id = ?1")
            .and_then(|mut statement| {
                statement
                    .query_row([int(id.0)], |row| row.get::<_, i64>(0))
                    .optional()
            })
            .map_err(CatalogError::during("looking an object up"))?;
        Ok(found.map(|ino| Ino(ino.unsigned_abs())))
    }

    /// A path that an inode had, by its newest names, whatever layer they are of.
    pub(crate) fn last_path(&self, ino: Ino) -> Result<Option<PathBuf>, CatalogError> {
        use std::os::unix::ffi::OsStringExt;
        let during = "looking an inode's names up";
        // Without the second condition the index, which has no others, would not be used.
        let sql = "SELECT parent, name FROM dentry WHERE ino = ?1 AND ino <> 0 \
                   ORDER BY layer DESC LIMIT 1";
        let mut statement = self
            .connection
            .prepare_cached(sql)
            .map_err(CatalogError::during(during))?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = int(ino.0);
        while at != int(Ino::ROOT.0) {
            let above = statement
                .query_row([at], |row| Ok((row.get::<_, i64>(0)?, row.get(1)?)))
                .optional()
                .map_err(CatalogError::during(during))?;
            let Some((parent, name)) = above else {
                return Ok(None);
            };
            names.push(name);
            at = parent;
            if names.len() > DEPTH_MAX {
                return Ok(None);
            }
        }
        names.push(Vec::new());
        names.reverse();
        Ok(Some(PathBuf::from(OsString::from_vec(names.join(&b'/')))))
    }
}
