//! Reads of versioned rows. Each takes the lineage of the layer that asks and returns, for each
//! key, the version of the nearest layer in it. The cost is the number of versions of that key.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Connection, Row as SqlRow, params};

use super::CatalogError;
use super::apply::{GONE, int};
use super::lists::collect;
use crate::attr::{Attr, FileKind, Timestamp};
use crate::change::{ContentKind, EntryRow, InodeRow, Name, Version};
use crate::id::{Ino, LayerId, ObjectId, WorkspaceId};
use crate::layers::Lineage;

/// One extent row, newest layer first in [`Queries::extents`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtentRow {
    pub(crate) layer: LayerId,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) object: Option<ObjectId>,
}

const INODE: &str = "SELECT layer, kind, perm, uid, gid, nlink, rdev, size, blocks, \
    atime, atime_ns, mtime, mtime_ns, ctime, ctime_ns, btime, btime_ns, \
    born, parent, content, xattr \
    FROM inode WHERE ino = ?1 AND layer <= ?2 ORDER BY layer DESC";

/// Reads on one connection.
#[derive(Clone, Copy)]
pub(crate) struct Queries<'c>(pub(super) &'c Connection);

impl Queries<'_> {
    /// The inode's version visible at the lineage.
    pub(crate) fn inode(
        &self,
        ino: Ino,
        at: Lineage<'_>,
    ) -> Result<Option<Version<InodeRow>>, CatalogError> {
        let during = "reading an inode";
        let mut statement = self
            .0
            .prepare_cached(INODE)
            .map_err(CatalogError::during(during))?;
        let mut rows = statement
            .query(params![int(ino.0), int(at.layer().0)])
            .map_err(CatalogError::during(during))?;
        while let Some(row) = rows.next().map_err(CatalogError::during(during))? {
            let layer = LayerId(unsigned(row, 0)?);
            if at.contains(layer) {
                return Ok(Some((layer, inode_row(row)?)));
            }
        }
        Ok(None)
    }

    /// How many links each of some inodes counts at the lineage; none for one that does not exist there.
    pub(crate) fn links(
        &self,
        inos: &[Ino],
        at: Lineage<'_>,
    ) -> Result<Vec<Option<u32>>, CatalogError> {
        let during = "looking for inodes";
        let sql = "SELECT layer, kind, nlink FROM inode WHERE ino = ?1 AND layer <= ?2 \
             ORDER BY layer DESC";
        let mut statement = self
            .0
            .prepare_cached(sql)
            .map_err(CatalogError::during(during))?;
        let mut links = Vec::with_capacity(inos.len());
        for ino in inos {
            let mut rows = statement
                .query(params![int(ino.0), int(at.layer().0)])
                .map_err(CatalogError::during(during))?;
            let mut found = None;
            while let Some(row) = rows.next().map_err(CatalogError::during(during))? {
                if at.contains(LayerId(unsigned(row, 0)?)) {
                    let kind: u8 = row.get(1).map_err(CatalogError::during(during))?;
                    found = (kind != GONE).then(|| small(row, 2)).transpose()?;
                    break;
                }
            }
            links.push(found);
        }
        Ok(links)
    }

    /// The version of an inode that this very layer wrote.
    pub(crate) fn inode_at(
        &self,
        ino: Ino,
        layer: LayerId,
    ) -> Result<Option<InodeRow>, CatalogError> {
        let during = "reading an inode";
        let mut statement = self
            .0
            .prepare_cached(INODE)
            .map_err(CatalogError::during(during))?;
        let mut rows = statement
            .query(params![int(ino.0), int(layer.0)])
            .map_err(CatalogError::during(during))?;
        match rows.next().map_err(CatalogError::during(during))? {
            Some(row) if unsigned(row, 0)? == layer.0 => inode_row(row),
            _ => Ok(None),
        }
    }

    /// The name's version visible at the lineage.
    pub(crate) fn entry(
        &self,
        parent: Ino,
        name: &[u8],
        at: Lineage<'_>,
    ) -> Result<Option<Version<EntryRow>>, CatalogError> {
        let during = "reading a directory entry";
        let mut statement = self
            .0
            .prepare_cached(
                "SELECT layer, ino, kind, cookie, shadows FROM dentry \
                 WHERE parent = ?1 AND name = ?2 AND layer <= ?3 ORDER BY layer DESC",
            )
            .map_err(CatalogError::during(during))?;
        let mut rows = statement
            .query(params![int(parent.0), name, int(at.layer().0)])
            .map_err(CatalogError::during(during))?;
        while let Some(row) = rows.next().map_err(CatalogError::during(during))? {
            let layer = LayerId(unsigned(row, 0)?);
            if at.contains(layer) {
                return Ok(Some((layer, entry_row(parent, row, 1)?)));
            }
        }
        Ok(None)
    }

    /// Every name of a directory that has a visible version, gone ones included.
    pub(crate) fn entries(
        &self,
        parent: Ino,
        at: Lineage<'_>,
    ) -> Result<Vec<(Name, Version<EntryRow>)>, CatalogError> {
        let during = "listing a directory";
        let mut statement = self
            .0
            .prepare_cached(
                "SELECT layer, ino, kind, cookie, shadows, name FROM dentry \
                 WHERE parent = ?1 AND layer <= ?2 ORDER BY name, layer DESC",
            )
            .map_err(CatalogError::during(during))?;
        let mut rows = statement
            .query(params![int(parent.0), int(at.layer().0)])
            .map_err(CatalogError::during(during))?;
        let mut found: Vec<(Name, Version<EntryRow>)> = Vec::new();
        while let Some(row) = rows.next().map_err(CatalogError::during(during))? {
            let name = bytes(row, 5)?;
            if found.last().is_some_and(|(last, _)| **last == *name) {
                continue;
            }
            let layer = LayerId(unsigned(row, 0)?);
            if at.contains(layer) {
                found.push((name, (layer, entry_row(parent, row, 1)?)));
            }
        }
        Ok(found)
    }

    /// Every extended attribute visible at the lineage.
    pub(crate) fn xattrs(
        &self,
        ino: Ino,
        at: Lineage<'_>,
    ) -> Result<BTreeMap<Name, Arc<[u8]>>, CatalogError> {
        let during = "reading extended attributes";
        let mut statement = self
            .0
            .prepare_cached(
                "SELECT layer, name, value FROM xattr \
                 WHERE ino = ?1 AND layer <= ?2 ORDER BY name, layer DESC",
            )
            .map_err(CatalogError::during(during))?;
        let mut rows = statement
            .query(params![int(ino.0), int(at.layer().0)])
            .map_err(CatalogError::during(during))?;
        let mut found: BTreeMap<Name, Option<Arc<[u8]>>> = BTreeMap::new();
        while let Some(row) = rows.next().map_err(CatalogError::during(during))? {
            let name = bytes(row, 1)?;
            if found.contains_key(&name) || !at.contains(LayerId(unsigned(row, 0)?)) {
                continue;
            }
            let gone = row
                .get_ref(2)
                .map_err(CatalogError::during(during))?
                .as_bytes_or_null();
            let value = gone
                .map_err(|_| damaged("a value in xattr is no blob"))?
                .map(Arc::from);
            found.insert(name, value);
        }
        Ok(found
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect())
    }

    /// Inline contents visible at the lineage.
    pub(crate) fn inline(
        &self,
        ino: Ino,
        at: Lineage<'_>,
    ) -> Result<Option<Arc<[u8]>>, CatalogError> {
        let during = "reading inline contents";
        let mut statement = self
            .0
            .prepare_cached(
                "SELECT layer, data FROM inline WHERE ino = ?1 AND layer <= ?2 \
                 ORDER BY layer DESC",
            )
            .map_err(CatalogError::during(during))?;
        let mut rows = statement
            .query(params![int(ino.0), int(at.layer().0)])
            .map_err(CatalogError::during(during))?;
        while let Some(row) = rows.next().map_err(CatalogError::during(during))? {
            if at.contains(LayerId(unsigned(row, 0)?)) {
                return bytes(row, 1).map(Some);
            }
        }
        Ok(None)
    }

    /// Extents of every layer in the lineage, newest layer first. `more` is asked after each row
    /// whether older rows can still matter.
    pub(crate) fn extents(
        &self,
        ino: Ino,
        at: Lineage<'_>,
        more: &mut dyn FnMut(ExtentRow) -> bool,
    ) -> Result<(), CatalogError> {
        let during = "reading extents";
        let mut statement = self
            .0
            .prepare_cached(
                "SELECT layer, start, end, object FROM extent WHERE ino = ?1 AND layer <= ?2 \
                 ORDER BY layer DESC, start DESC",
            )
            .map_err(CatalogError::during(during))?;
        let mut rows = statement
            .query(params![int(ino.0), int(at.layer().0)])
            .map_err(CatalogError::during(during))?;
        while let Some(row) = rows.next().map_err(CatalogError::during(during))? {
            let layer = LayerId(unsigned(row, 0)?);
            if !at.contains(layer) {
                continue;
            }
            let object: Option<i64> = row.get(3).map_err(CatalogError::during(during))?;
            let object = object.map(|id| u64::try_from(id).map(ObjectId)).transpose();
            let extent = ExtentRow {
                layer,
                start: unsigned(row, 1)?,
                end: unsigned(row, 2)?,
                object: object.map_err(|_| damaged("an object id is negative"))?,
            };
            if extent.start >= extent.end {
                return Err(damaged(format!(
                    "extent {extent:?} of inode {ino} is empty"
                )));
            }
            if !more(extent) {
                break;
            }
        }
        Ok(())
    }

    /// Inodes without a name that a layer itself wrote: what an interrupted session left behind.
    pub(crate) fn unlinked(&self, layer: LayerId) -> Result<Vec<Ino>, CatalogError> {
        let sql = "SELECT ino FROM inode WHERE layer = ?1 AND nlink = 0 AND kind <> 0";
        let during = "looking for unlinked inodes";
        collect(self.0, during, sql, [int(layer.0)], |row| {
            Ok(Ino(unsigned(row, 0)?))
        })
    }

    /// As [`Queries::unlinked`], of every layer up to one: the layer and the inode.
    pub(crate) fn unlinked_up_to(
        &self,
        layer: LayerId,
    ) -> Result<Vec<(LayerId, Ino)>, CatalogError> {
        // No other index has so few rows: those of inodes that were open when a layer was frozen.
        let sql = "SELECT layer, ino FROM inode INDEXED BY inode_unlinked \
             WHERE layer <= ?1 AND nlink = 0 AND kind <> 0";
        let during = "looking for unlinked inodes";
        collect(self.0, during, sql, [int(layer.0)], |row| {
            Ok((LayerId(unsigned(row, 0)?), Ino(unsigned(row, 1)?)))
        })
    }

    /// Objects that a layer's own version of an inode holds.
    pub(crate) fn objects_of(
        &self,
        ino: Ino,
        layer: LayerId,
    ) -> Result<Vec<ObjectId>, CatalogError> {
        let sql = "SELECT DISTINCT object FROM extent \
             WHERE ino = ?1 AND layer = ?2 AND object IS NOT NULL";
        let key = params![int(ino.0), int(layer.0)];
        let during = "reading an inode's objects";
        collect(self.0, during, sql, key, |row| {
            Ok(ObjectId(unsigned(row, 0)?))
        })
    }

    /// Inodes of which a layer wrote a version, gone ones included.
    pub(crate) fn written(&self, layer: LayerId) -> Result<Vec<Ino>, CatalogError> {
        let sql = "SELECT ino FROM inode INDEXED BY inode_by_layer WHERE layer = ?1";
        let during = "listing what a layer wrote";
        collect(self.0, during, sql, [int(layer.0)], |row| {
            Ok(Ino(unsigned(row, 0)?))
        })
    }

    /// Every name, with its directory, under which some layer has or had an inode.
    pub(crate) fn places(&self, ino: Ino) -> Result<Vec<(Ino, Name)>, CatalogError> {
        // Without the second condition the index, which has no others, would not be used.
        let sql = "SELECT DISTINCT parent, name FROM dentry INDEXED BY dentry_by_ino \
             WHERE ino = ?1 AND ino <> 0";
        let during = "looking an inode's names up";
        collect(self.0, during, sql, [int(ino.0)], |row| {
            Ok((Ino(unsigned(row, 0)?), bytes(row, 1)?))
        })
    }

    /// The live layer of a workspace that was not deleted.
    pub(crate) fn live_layer(&self, id: WorkspaceId) -> Result<Option<LayerId>, CatalogError> {
        let sql = "SELECT layer FROM workspace WHERE id = ?1 AND deleted_at IS NULL";
        self.number(sql, id.0).map(|found| found.map(LayerId))
    }

    /// Whether the names of a directory of the host are in the catalog.
    pub(crate) fn is_listed(&self, ino: Ino, base: LayerId) -> Result<bool, CatalogError> {
        let during = "looking a directory of the host up";
        self.0
            .prepare_cached("SELECT 1 FROM host WHERE ino = ?1 AND layer = ?2 AND state <> 0")
            .and_then(|mut statement| statement.exists(params![int(ino.0), int(base.0)]))
            .map_err(CatalogError::during(during))
    }

    fn number(&self, sql: &str, of: u64) -> Result<Option<u64>, CatalogError> {
        let during = "looking a layer up";
        let mut statement = self
            .0
            .prepare_cached(sql)
            .map_err(CatalogError::during(during))?;
        let mut rows = statement
            .query([int(of)])
            .map_err(CatalogError::during(during))?;
        let row = rows.next().map_err(CatalogError::during(during))?;
        row.map(|row| unsigned(row, 0)).transpose()
    }
}

pub(super) fn damaged(what: impl Into<String>) -> CatalogError {
    CatalogError::Damaged { what: what.into() }
}

pub(super) fn unsigned(row: &SqlRow<'_>, at: usize) -> Result<u64, CatalogError> {
    let value: i64 = row
        .get(at)
        .map_err(CatalogError::during("reading a number"))?;
    u64::try_from(value).map_err(|_| damaged(format!("column {at} holds {value}")))
}

pub(super) fn small<T: TryFrom<i64>>(row: &SqlRow<'_>, at: usize) -> Result<T, CatalogError> {
    let value: i64 = row
        .get(at)
        .map_err(CatalogError::during("reading a number"))?;
    T::try_from(value).map_err(|_| damaged(format!("column {at} holds {value}")))
}

pub(super) fn bytes(row: &SqlRow<'_>, at: usize) -> Result<Arc<[u8]>, CatalogError> {
    let value = row
        .get_ref(at)
        .map_err(CatalogError::during("reading bytes"))?;
    let value = value
        .as_blob()
        .map_err(|_| damaged(format!("column {at} is no blob")))?;
    Ok(Arc::from(value))
}

pub(super) fn time(row: &SqlRow<'_>, at: usize) -> Result<Timestamp, CatalogError> {
    let secs: i64 = row
        .get(at)
        .map_err(CatalogError::during("reading a time"))?;
    Ok(Timestamp {
        secs,
        nanos: small(row, at + 1)?,
    })
}

fn inode_row(row: &SqlRow<'_>) -> Result<Option<InodeRow>, CatalogError> {
    let kind: u8 = small(row, 1)?;
    if kind == GONE {
        return Ok(None);
    }
    let kind = FileKind::from_code(kind)
        .ok_or_else(|| damaged(format!("an inode has the unknown kind {kind}")))?;
    let content = match small::<u8>(row, 19)? {
        0 => ContentKind::Empty,
        1 => ContentKind::Inline,
        2 => ContentKind::Extents,
        3 => ContentKind::Host,
        other => {
            return Err(damaged(format!(
                "an inode has the unknown content kind {other}"
            )));
        }
    };
    Ok(Some(InodeRow {
        attr: Attr {
            kind,
            perm: small(row, 2)?,
            uid: small(row, 3)?,
            gid: small(row, 4)?,
            nlink: small(row, 5)?,
            rdev: small(row, 6)?,
            size: unsigned(row, 7)?,
            blocks: unsigned(row, 8)?,
            atime: time(row, 9)?,
            mtime: time(row, 11)?,
            ctime: time(row, 13)?,
            btime: time(row, 15)?,
        },
        born: LayerId(unsigned(row, 17)?),
        parent: Ino(unsigned(row, 18)?),
        content,
        has_xattr: small::<u8>(row, 20)? != 0,
    }))
}

fn entry_row(parent: Ino, row: &SqlRow<'_>, at: usize) -> Result<Option<EntryRow>, CatalogError> {
    let kind: u8 = small(row, at + 1)?;
    if kind == GONE {
        return Ok(None);
    }
    let kind = FileKind::from_code(kind)
        .ok_or_else(|| damaged(format!("a directory entry has the unknown kind {kind}")))?;
    let ino = Ino(unsigned(row, at)?);
    if ino == parent {
        return Err(damaged(format!("directory {parent} is in itself")));
    }
    Ok(Some(EntryRow {
        ino,
        kind,
        cookie: unsigned(row, at + 2)?,
        shadows: small::<u8>(row, at + 3)? != 0,
    }))
}
