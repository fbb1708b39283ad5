//! What hashing frozen contents, and storing equal ones once, asks of the catalog, and the rows that
//! it alone writes; and the settings that say how it is done.

use std::ops::Range;

use rusqlite::{Connection, OptionalExtension, params};

use super::apply::{DOOMED, LIVE, int};
use super::query::{damaged, unsigned};
use super::{Catalog, CatalogError};
use crate::change::{BLOCK_END, Row};
use crate::id::{Ino, LayerId, ObjectId};

/// An object that may have to be hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectRecord {
    pub(crate) id: ObjectId,
    pub(crate) ino: Ino,
    /// It may have been handed down since, and have no row.
    pub(crate) layer: LayerId,
    /// Whether its layer is neither live nor on its way out: what it holds stays so.
    pub(crate) frozen: bool,
    pub(crate) hashed: bool,
}

/// Which rows a query of [`ObjectRecord`]s gives.
const OBJECT: &str = "SELECT o.id, o.ino, o.layer, coalesce(l.state, -1), o.hashed FROM object o";
const ITS_LAYER: &str = "LEFT JOIN layer l ON l.id = o.layer";

/// Applies a row of hashing, or of a setting.
pub(super) fn apply(connection: &Connection, row: &Row) -> rusqlite::Result<usize> {
    let prepare = |sql| connection.prepare_cached(sql);
    match row {
        Row::PutChecksum {
            object,
            digest,
            blocks,
        } => {
            // It may have been given up meanwhile.
            let sql = "UPDATE object SET hashed = 1 WHERE id = ?1";
            if prepare(sql)?.execute([int(object.0)])? == 0 {
                return Ok(0);
            }
            prepare("INSERT OR REPLACE INTO checksum VALUES (?1,?2,?3)")?.execute(params![
                int(object.0),
                digest,
                blocks
            ])
        }
        Row::PutSetting {
            key,
            value: Some(value),
        } => prepare("INSERT OR REPLACE INTO meta VALUES (?1,?2)")?.execute(params![key, value]),
        Row::PutSetting { key, value: None } => {
            prepare("DELETE FROM meta WHERE key = ?1")?.execute([key])
        }
        _ => unreachable!("every other row is applied by apply.rs"),
    }
}

/// Ranges in order, those that touch or overlap put together: in a damaged catalog they may.
pub(crate) fn union(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

impl Catalog {
    /// A setting; none if nobody has set it.
    pub(crate) fn setting(&self, key: &str) -> Result<Option<u64>, CatalogError> {
        let value: Option<i64> = self
            .reader()
            .query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| {
                row.get(0)
            })
            .optional()
            .map_err(CatalogError::during("reading a setting"))?;
        let value = value.map(u64::try_from).transpose();
        value.map_err(|_| damaged(format!("the setting {key} is negative")))
    }

    /// Objects that have no checksum, behind one, at most so many; also those of live layers.
    pub(crate) fn unhashed(
        &self,
        after: ObjectId,
        limit: usize,
    ) -> Result<Vec<ObjectRecord>, CatalogError> {
        let sql = format!(
            "{OBJECT} INDEXED BY object_unhashed {ITS_LAYER} \
             WHERE o.hashed = 0 AND o.id > ?1 ORDER BY o.id LIMIT ?2"
        );
        let key = params![int(after.0), int(limit as u64)];
        self.objects("looking for objects to hash", &sql, key)
    }

    /// Inodes of which a layer wrote a version, behind one, at most so many.
    pub(crate) fn written_after(
        &self,
        layer: LayerId,
        after: Ino,
        limit: usize,
    ) -> Result<Vec<Ino>, CatalogError> {
        super::Queries(&self.reader()).written_after(layer, after, limit)
    }

    /// Objects without a checksum that a layer's own extents name, of inodes in a range.
    pub(crate) fn unhashed_in(
        &self,
        layer: LayerId,
        inos: &Range<Ino>,
    ) -> Result<Vec<ObjectRecord>, CatalogError> {
        let sql = format!(
            "{OBJECT} {ITS_LAYER} WHERE o.hashed = 0 AND o.id IN \
             (SELECT e.object FROM inode i INDEXED BY inode_by_layer \
              CROSS JOIN extent e ON e.ino = i.ino AND e.layer = i.layer \
              WHERE i.layer = ?1 AND i.ino >= ?2 AND i.ino < ?3 AND e.object IS NOT NULL)"
        );
        let key = params![int(layer.0), int(inos.start.0), int(inos.end.0)];
        self.objects("looking for objects to hash", &sql, key)
    }

    /// Whether a layer has a row.
    pub(crate) fn has_layer(&self, layer: LayerId) -> Result<bool, CatalogError> {
        let sql = "SELECT 1 FROM layer WHERE id = ?1";
        let found = self.collect("looking a layer up", sql, [int(layer.0)], |_| Ok(()))?;
        Ok(!found.is_empty())
    }

    /// An object that belongs to a layer.
    pub(crate) fn object(&self, id: ObjectId) -> Result<Option<ObjectRecord>, CatalogError> {
        let sql = format!("{OBJECT} {ITS_LAYER} WHERE o.id = ?1");
        let found = self.objects("looking an object up", &sql, params![int(id.0)])?;
        Ok(found.into_iter().next())
    }

    fn objects(
        &self,
        during: &'static str,
        sql: &str,
        params: impl rusqlite::Params,
    ) -> Result<Vec<ObjectRecord>, CatalogError> {
        self.collect(during, sql, params, |row| {
            let state: i64 = row.get(3).map_err(CatalogError::during(during))?;
            Ok(ObjectRecord {
                id: ObjectId(unsigned(row, 0)?),
                ino: Ino(unsigned(row, 1)?),
                layer: LayerId(unsigned(row, 2)?),
                frozen: state != i64::from(LIVE) && state != i64::from(DOOMED),
                hashed: row.get(4).map_err(CatalogError::during(during))?,
            })
        })
    }

    /// The blocks that extents name an object for, in order, without overlaps.
    pub(crate) fn claimed(&self, object: &ObjectRecord) -> Result<Vec<Range<u64>>, CatalogError> {
        let during = "reading extents";
        let read = |row: &rusqlite::Row<'_>| Ok(unsigned(row, 0)?..unsigned(row, 1)?);
        // They are all of one layer, and mostly of the object's.
        let sql = "SELECT start, end FROM extent \
                   WHERE ino = ?1 AND layer = ?2 AND object = ?3 ORDER BY start";
        let (ino, id) = (int(object.ino.0), int(object.id.0));
        let own = self.collect(during, sql, params![ino, int(object.layer.0), id], read)?;
        if !own.is_empty() {
            return Ok(union(own));
        }
        let sql = "SELECT start, end FROM extent WHERE ino = ?1 AND object = ?2 ORDER BY start";
        Ok(union(self.collect(during, sql, params![ino, id], read)?))
    }

    /// Objects behind one, at most so many, each with whether extents may name only a part of it.
    pub(crate) fn objects_in_part(
        &self,
        after: ObjectId,
        limit: usize,
    ) -> Result<Vec<(ObjectId, bool)>, CatalogError> {
        let during = "looking for objects in part";
        let sql = "SELECT o.id, NOT EXISTS (SELECT 1 FROM extent e WHERE e.ino = o.ino \
                   AND e.layer = o.layer AND e.object = o.id AND e.start = 0 AND e.end = ?2) \
                   FROM object o WHERE o.id > ?1 ORDER BY o.id LIMIT ?3";
        let key = params![int(after.0), int(BLOCK_END), int(limit as u64)];
        self.collect(during, sql, key, |row| {
            let in_part = row.get(1).map_err(CatalogError::during(during))?;
            Ok((ObjectId(unsigned(row, 0)?), in_part))
        })
    }

    /// Objects whose checksum is that of another, the newest first, at most so many.
    pub(crate) fn hashed_alike(
        &self,
        id: ObjectId,
        limit: usize,
    ) -> Result<Vec<ObjectId>, CatalogError> {
        let sql = "SELECT c.object FROM checksum d JOIN checksum c ON c.digest = d.digest \
                   WHERE d.object = ?1 AND c.object <> ?1 AND c.blocks = d.blocks \
                   ORDER BY c.object DESC LIMIT ?2";
        let key = params![int(id.0), int(limit as u64)];
        self.collect("looking for equal objects", sql, key, |row| {
            Ok(ObjectId(unsigned(row, 0)?))
        })
    }

    /// Objects with their digests in the order of those, behind one, at most so many.
    pub(crate) fn digests(
        &self,
        after: (i64, ObjectId),
        limit: usize,
    ) -> Result<Vec<(i64, ObjectId)>, CatalogError> {
        let during = "looking for equal objects";
        let sql = "SELECT digest, object FROM checksum INDEXED BY checksum_by_digest \
                   WHERE (digest, object) > (?1, ?2) ORDER BY digest, object LIMIT ?3";
        let key = params![after.0, int(after.1.0), int(limit as u64)];
        self.collect(during, sql, key, |row| {
            let digest = row.get(0).map_err(CatalogError::during(during))?;
            Ok((digest, ObjectId(unsigned(row, 1)?)))
        })
    }
}
