//! Reads of what base layers over directories of the host stand for.

use std::collections::{BTreeMap, HashSet};

use rusqlite::{Row as SqlRow, params};

use super::apply::{bits, int};
use super::query::{bytes, damaged, small, time, unsigned};
use super::{Catalog, CatalogError};
use crate::change::{BaseState, HostRow, HostState, Name, Seen};
use crate::id::{Ino, LayerId, WorkspaceId};

/// A row of `base`.
#[derive(Clone, Debug)]
pub(crate) struct BaseRecord {
    pub(crate) layer: LayerId,
    pub(crate) boot: String,
    pub(crate) exclude: String,
    /// Whether only what everybody may read is taken in.
    pub(crate) public: bool,
    pub(crate) state: BaseState,
}

const HOST: &str = "parent, name, dev, inode, links, size, mtime, mtime_ns, ctime, ctime_ns, btime, \
    btime_ns, state, changed";

impl Catalog {
    /// Every base over directories of the host.
    pub(crate) fn bases(&self) -> Result<Vec<BaseRecord>, CatalogError> {
        let sql = "SELECT b.layer, b.boot, b.exclude, b.state, b.public FROM base b \
             JOIN layer l ON l.id = b.layer AND l.state <> 2 ORDER BY b.layer";
        self.collect("reading bases", sql, [], |row| {
            let text = |at| row.get(at).map_err(CatalogError::during("reading bases"));
            Ok(BaseRecord {
                layer: LayerId(unsigned(row, 0)?),
                boot: text(1)?,
                exclude: text(2)?,
                public: unsigned(row, 4)? != 0,
                state: BaseState::from_code(unsigned(row, 3)?)
                    .ok_or_else(|| damaged("base.state is unknown"))?,
            })
        })
    }

    /// What an inode stands for on the host, with the base; a file is in one only.
    pub(crate) fn host(&self, ino: Ino) -> Result<Vec<(LayerId, HostRow)>, CatalogError> {
        let sql = format!("SELECT layer, {HOST} FROM host WHERE ino = ?1");
        self.collect("reading what is on the host", &sql, [int(ino.0)], |row| {
            Ok((LayerId(unsigned(row, 0)?), host_row(row, 1)?))
        })
    }

    /// What an inode stands for on the host in one base.
    pub(crate) fn host_at(
        &self,
        ino: Ino,
        layer: LayerId,
    ) -> Result<Option<HostRow>, CatalogError> {
        let sql = format!("SELECT {HOST} FROM host WHERE ino = ?1 AND layer = ?2");
        let key = params![int(ino.0), int(layer.0)];
        let found = self.collect("reading what is on the host", &sql, key, |row| {
            host_row(row, 0)
        })?;
        Ok(found.into_iter().next())
    }

    /// The directories that were named when a base was made.
    pub(crate) fn host_roots(&self, layer: LayerId) -> Result<Vec<(Ino, HostRow)>, CatalogError> {
        // Their numbers were drawn first.
        let sql =
            format!("SELECT ino, {HOST} FROM host WHERE layer = ?1 AND parent = 0 ORDER BY ino");
        self.collect("reading base directories", &sql, [int(layer.0)], |row| {
            Ok((Ino(unsigned(row, 0)?), host_row(row, 1)?))
        })
    }

    /// Inodes of a base that may stand for the same file of the host under another name.
    pub(crate) fn host_links(
        &self,
        layer: LayerId,
        seen: &Seen,
    ) -> Result<Vec<(Ino, Seen)>, CatalogError> {
        let sql = format!(
            "SELECT ino, {HOST} FROM host \
             WHERE layer = ?1 AND inode = ?2 AND dev = ?3 AND links > 1"
        );
        let key = params![int(layer.0), bits(seen.inode), bits(seen.dev)];
        self.collect("reading links on the host", &sql, key, |row| {
            Ok((Ino(unsigned(row, 0)?), host_row(row, 1)?.seen))
        })
    }

    /// What of a base has one of these inode numbers on the host. Looks at all that was taken in.
    pub(crate) fn host_inodes(
        &self,
        layer: LayerId,
        inodes: &HashSet<u64>,
    ) -> Result<BTreeMap<u64, Ino>, CatalogError> {
        let during = "looking for other bases over the same files";
        let failed = |error| CatalogError::during(during)(error);
        let mut found = BTreeMap::new();
        let reader = self.reader();
        let sql = "SELECT inode, ino FROM host WHERE layer = ?1";
        let mut statement = reader.prepare_cached(sql).map_err(failed)?;
        let mut rows = statement.query([int(layer.0)]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let inode: i64 = row.get(0).map_err(failed)?;
            let inode = inode.cast_unsigned();
            if inodes.contains(&inode) {
                found.insert(inode, Ino(unsigned(row, 1)?));
            }
        }
        Ok(found)
    }

    /// What of a base was found to be another than was seen, at most so many.
    pub(crate) fn host_changed(
        &self,
        layer: LayerId,
        limit: usize,
    ) -> Result<Vec<Ino>, CatalogError> {
        let sql = "SELECT ino FROM host WHERE layer = ?1 AND changed <> 0 ORDER BY ino LIMIT ?2";
        let key = params![int(layer.0), int(limit as u64)];
        self.collect("reading what changed on the host", sql, key, |row| {
            Ok(Ino(unsigned(row, 0)?))
        })
    }

    /// What of a base is in place still, after a number, at most so many: whether it is a
    /// directory, and its size.
    pub(crate) fn host_in_place(
        &self,
        layer: LayerId,
        after: Ino,
        limit: usize,
    ) -> Result<Vec<(Ino, bool, u64)>, CatalogError> {
        let sql = "SELECT h.ino, i.kind = 2, h.size FROM host h \
             CROSS JOIN inode i ON i.ino = h.ino AND i.layer = h.layer \
             WHERE h.layer = ?1 AND h.ino > ?2 AND h.state = 0 ORDER BY h.ino LIMIT ?3";
        let key = params![int(layer.0), int(after.0), int(limit as u64)];
        self.collect("reading what is in place", sql, key, |row| {
            Ok((
                Ino(unsigned(row, 0)?),
                unsigned(row, 1)? != 0,
                unsigned(row, 2)?,
            ))
        })
    }

    /// The names in a directory that a layer itself wrote, and how many links each has on the host.
    pub(crate) fn names_of(
        &self,
        parent: Ino,
        layer: LayerId,
    ) -> Result<Vec<(Name, Ino, u64)>, CatalogError> {
        let sql = "SELECT d.name, d.ino, coalesce(h.links, 0) FROM dentry d \
             LEFT JOIN host h ON h.ino = d.ino AND h.layer = d.layer \
             WHERE d.parent = ?1 AND d.layer = ?2 AND d.ino <> 0";
        let key = params![int(parent.0), int(layer.0)];
        self.collect("reading a listing that was interrupted", sql, key, |row| {
            Ok((bytes(row, 0)?, Ino(unsigned(row, 1)?), unsigned(row, 2)?))
        })
    }

    /// The workspace that a base was made with.
    pub(crate) fn maker(&self, layer: LayerId) -> Result<Option<WorkspaceId>, CatalogError> {
        let sql = "SELECT workspace FROM layer WHERE id = ?1 AND workspace IS NOT NULL";
        let found = self.collect("reading a layer", sql, [int(layer.0)], |row| {
            Ok(WorkspaceId(unsigned(row, 0)?))
        })?;
        Ok(found.into_iter().next())
    }

    /// The name that an inode has in a directory, as a layer itself wrote it.
    pub(crate) fn name_in(
        &self,
        parent: Ino,
        ino: Ino,
        layer: LayerId,
    ) -> Result<Option<Name>, CatalogError> {
        let sql =
            "SELECT name FROM dentry WHERE ino = ?1 AND ino <> 0 AND parent = ?2 AND layer = ?3";
        let key = params![int(ino.0), int(parent.0), int(layer.0)];
        let found = self.collect("looking for a name", sql, key, |row| bytes(row, 0))?;
        Ok(found.into_iter().next())
    }
}

fn host_row(row: &SqlRow<'_>, at: usize) -> Result<HostRow, CatalogError> {
    let any = |at| -> Result<u64, CatalogError> {
        let value: i64 = row
            .get(at)
            .map_err(CatalogError::during("reading a number"))?;
        Ok(value.cast_unsigned())
    };
    let state = match unsigned(row, at + 12)? {
        0 => HostState::InPlace,
        1 => HostState::Taken,
        other => return Err(damaged(format!("host.state is {other}"))),
    };
    Ok(HostRow {
        parent: Ino(unsigned(row, at)?),
        name: bytes(row, at + 1)?,
        seen: Seen {
            dev: any(at + 2)?,
            inode: any(at + 3)?,
            links: unsigned(row, at + 4)?,
            size: unsigned(row, at + 5)?,
            mtime: time(row, at + 6)?,
            ctime: time(row, at + 8)?,
            btime: time(row, at + 10)?,
        },
        state,
        changed: small::<u8>(row, at + 13)? != 0,
    })
}
