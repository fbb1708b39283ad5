//! Reads for checking a store: whole tables in key order, all in one read transaction, so that
//! they agree with each other whatever is written meanwhile.
//!
//! Unlike the reads of the engine these do not stop at a bad row: each row says whether all its
//! values are in the range that docs/format.md gives them, and is handed over either way.

use rusqlite::{Connection, OpenFlags, Row as SqlRow, Rows};

use super::{Catalog, CatalogError, connect};

/// A row of `layer`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerCheck {
    pub(crate) id: i64,
    pub(crate) parent: Option<i64>,
    pub(crate) state: i64,
    pub(crate) bytes: i64,
    pub(crate) inodes: i64,
}

/// What a row of `workspace` or `snapshot` says about layers.
#[derive(Clone, Debug)]
pub(crate) struct LayerUse {
    pub(crate) name: String,
    pub(crate) layer: Option<i64>,
    /// Of a workspace: not deleted. Of a snapshot: its workspace has a row.
    pub(crate) alive: bool,
    /// Whether the layer says that it belongs to the same workspace.
    pub(crate) owned: bool,
}

/// A version of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameVersion {
    pub(crate) layer: i64,
    pub(crate) ino: i64,
    pub(crate) kind: i64,
    pub(crate) cookie: i64,
    pub(crate) shadows: bool,
    pub(crate) valid: bool,
}

/// A version of an inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InodeVersion {
    pub(crate) layer: i64,
    pub(crate) kind: i64,
    pub(crate) nlink: i64,
    pub(crate) size: i64,
    pub(crate) blocks: i64,
    pub(crate) born: i64,
    pub(crate) parent: i64,
    pub(crate) content: i64,
    pub(crate) xattr: bool,
    pub(crate) valid: bool,
}

/// A row of `inline`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InlineVersion {
    pub(crate) layer: i64,
    pub(crate) len: i64,
}

/// A row of `extent`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentVersion {
    pub(crate) layer: i64,
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) object: Option<i64>,
}

/// A row of `xattr`.
#[derive(Clone, Debug)]
pub(crate) struct XattrVersion {
    pub(crate) name: Vec<u8>,
    pub(crate) layer: i64,
    pub(crate) gone: bool,
    pub(crate) valid: bool,
}

/// Every row about one inode number.
#[derive(Debug, Default)]
pub(crate) struct InodeRows {
    pub(crate) ino: i64,
    pub(crate) inodes: Vec<InodeVersion>,
    pub(crate) inline: Vec<InlineVersion>,
    pub(crate) extents: Vec<ExtentVersion>,
    pub(crate) xattrs: Vec<XattrVersion>,
}

/// Is told a directory, a name in it, and all versions of that name.
pub(crate) type NameVisitor<'a> = &'a mut dyn FnMut(i64, &[u8], &[NameVersion]);

/// Objects, and ids of those given up.
pub(crate) type Objects = (Vec<ObjectCheck>, Vec<i64>);

/// A row of `object`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectCheck {
    pub(crate) id: i64,
    pub(crate) ino: i64,
    pub(crate) layer: i64,
    pub(crate) hashed: bool,
}

/// A row of `checksum`.
#[derive(Clone, Debug)]
pub(crate) struct ChecksumCheck {
    pub(crate) object: i64,
    pub(crate) digest: i64,
    pub(crate) blocks: Vec<u8>,
}

const DURING: &str = "checking";

fn failed(source: rusqlite::Error) -> CatalogError {
    CatalogError::during(DURING)(source)
}

/// One state of the catalog, to be read as a whole.
pub(crate) struct Inspection(Connection);

impl Catalog {
    /// Begins a read transaction on a connection of its own.
    pub(crate) fn inspection(&self) -> Result<Inspection, CatalogError> {
        let connection = connect(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        // The state is taken by the first read, not by BEGIN.
        connection
            .execute_batch("BEGIN; SELECT count(*) FROM meta")
            .map_err(failed)?;
        Ok(Inspection(connection))
    }
}

const NAMES: &str = "SELECT parent, name, layer, ino, kind, cookie, shadows, \
    parent > 0 AND length(name) BETWEEN 1 AND 255 AND name NOT IN (x'2e', x'2e2e') \
    AND instr(name, x'2f') = 0 AND instr(name, x'00') = 0 \
    AND CASE kind WHEN 0 THEN ino = 0 AND cookie = 0 AND shadows = 1 \
        ELSE kind BETWEEN 1 AND 7 AND ino > 0 AND cookie > 2 AND shadows IN (0, 1) END \
    FROM dentry ORDER BY parent, name, layer";

const INODES: &str = "SELECT ino, layer, kind, nlink, size, blocks, born, parent, content, xattr, \
    ino > 0 AND CASE kind WHEN 0 THEN \
        NOT (perm OR uid OR gid OR nlink OR rdev OR size OR blocks OR atime OR atime_ns OR mtime \
        OR mtime_ns OR ctime OR ctime_ns OR btime OR btime_ns OR born OR parent OR content OR xattr) \
    ELSE kind BETWEEN 1 AND 7 AND perm BETWEEN 0 AND 4095 AND uid BETWEEN 0 AND 4294967295 \
        AND gid BETWEEN 0 AND 4294967295 AND nlink BETWEEN 0 AND 4294967295 \
        AND rdev BETWEEN 0 AND 4294967295 AND size >= 0 AND blocks >= 0 \
        AND atime_ns BETWEEN 0 AND 999999999 AND mtime_ns BETWEEN 0 AND 999999999 \
        AND ctime_ns BETWEEN 0 AND 999999999 AND btime_ns BETWEEN 0 AND 999999999 \
        AND born > 0 AND parent >= 0 AND content BETWEEN 0 AND 3 AND xattr IN (0, 1) \
        AND (kind = 2) = (parent > 0) AND (kind IN (6, 7) OR rdev = 0) \
        AND (content = 0 OR (kind = 1 AND content < 3) OR (kind = 3 AND content = 1) \
            OR (kind = 2 AND content = 3)) END \
    FROM inode ORDER BY ino, layer";

const WRONG_HOSTS: &str = "SELECT ino, layer, 0 FROM host \
    WHERE layer NOT IN (SELECT layer FROM base) \
    UNION ALL SELECT i.ino, i.layer, 0 FROM base b JOIN layer l ON l.id = b.layer AND l.state <> 2 JOIN inode i ON i.layer = b.layer \
    LEFT JOIN host h ON h.ino = i.ino AND h.layer = i.layer \
    WHERE i.content IN (2, 3) AND h.ino IS NULL \
    UNION ALL SELECT h.ino, h.layer, 1 FROM host h \
    JOIN inode i ON i.ino = h.ino AND i.layer = h.layer \
    JOIN layer l ON l.id = h.layer AND l.state <> 2 \
    WHERE h.state = 1 AND i.content = 2 AND h.ino + 4611686018427387904 NOT IN (SELECT id FROM object)";

const XATTRS: &str = "SELECT ino, name, layer, value IS NULL, \
    length(name) BETWEEN 1 AND 255 AND (value IS NULL OR length(value) <= 65536) \
    FROM xattr ORDER BY ino, name, layer";

impl Inspection {
    /// A counter; 0 when it was never written.
    pub(crate) fn counter(&self, key: &str) -> Result<i64, CatalogError> {
        self.0
            .query_row(
                "SELECT coalesce((SELECT value FROM meta WHERE key = ?1), 0)",
                [key],
                |row| row.get(0),
            )
            .map_err(failed)
    }

    /// Every layer, by id.
    pub(crate) fn layers(&self) -> Result<Vec<LayerCheck>, CatalogError> {
        self.list(
            "SELECT id, parent, state, bytes, inodes FROM layer ORDER BY id",
            |row| {
                Ok(LayerCheck {
                    id: row.get(0)?,
                    parent: row.get(1)?,
                    state: row.get(2)?,
                    bytes: row.get(3)?,
                    inodes: row.get(4)?,
                })
            },
        )
    }

    /// Layers that are bases over directories of the host.
    pub(crate) fn bases(&self) -> Result<Vec<i64>, CatalogError> {
        self.list("SELECT layer FROM base", |row| row.get(0))
    }

    /// What stands for something on the host and does not say so, or the other way round: inode,
    /// layer, and whether contents are missing that were taken.
    pub(crate) fn wrong_hosts(&self) -> Result<Vec<(i64, i64, bool)>, CatalogError> {
        self.list(WRONG_HOSTS, |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
    }

    /// Every workspace, deleted ones included.
    pub(crate) fn workspaces(&self) -> Result<Vec<LayerUse>, CatalogError> {
        self.list(
            "SELECT w.name, w.layer, w.deleted_at IS NULL, l.workspace IS w.id \
             FROM workspace w LEFT JOIN layer l ON l.id = w.layer ORDER BY w.id",
            layer_use,
        )
    }

    /// Every snapshot.
    pub(crate) fn snapshots(&self) -> Result<Vec<LayerUse>, CatalogError> {
        self.list(
            "SELECT s.id, s.layer, s.workspace IN (SELECT id FROM workspace), \
             l.workspace IS s.workspace FROM snapshot s LEFT JOIN layer l ON l.id = s.layer",
            layer_use,
        )
    }

    /// Labels, mounts, rules, sandboxes and templates of something that does not exist: the table, and what it names. To SQL
    /// nothing is not among nothing: in a store without snapshots that holds for every mount.
    pub(crate) fn dangling(&self) -> Result<Vec<(String, String)>, CatalogError> {
        self.list(
            "SELECT 'label', snapshot || ' ' || key FROM label \
             WHERE snapshot NOT IN (SELECT id FROM snapshot) \
             UNION ALL SELECT 'mount', hex(dir) FROM mount \
             WHERE (workspace IS NULL) = (snapshot IS NULL) \
             OR (workspace IS NOT NULL AND workspace NOT IN (SELECT id FROM workspace)) \
             OR (snapshot IS NOT NULL AND snapshot NOT IN (SELECT id FROM snapshot)) \
             UNION ALL SELECT 'retention', workspace || ' ' || automatic FROM retention \
             WHERE automatic NOT IN (0, 1) \
             OR (workspace <> 0 AND workspace NOT IN (SELECT id FROM workspace)) \
             UNION ALL SELECT 'sandbox', id FROM sandbox \
             WHERE workspace IS NOT NULL AND workspace NOT IN (SELECT id FROM workspace) \
             UNION ALL SELECT 'template', name FROM template \
             WHERE snapshot NOT IN (SELECT id FROM snapshot)",
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
    }

    /// Sandboxes with values that none has.
    pub(crate) fn wrong_sandboxes(&self) -> Result<Vec<String>, CatalogError> {
        let sql = concat!(
            "SELECT id FROM sandbox WHERE NOT ",
            super::sandboxes::is_valid!()
        );
        self.list(sql, |row| row.get(0))
    }

    /// Every object, and the ids of those given up.
    pub(crate) fn objects(&self) -> Result<Objects, CatalogError> {
        let objects = self.list("SELECT id, ino, layer, hashed FROM object", |row| {
            Ok(ObjectCheck {
                id: row.get(0)?,
                ino: row.get(1)?,
                layer: row.get(2)?,
                hashed: row.get::<_, i64>(3)? != 0,
            })
        })?;
        let doomed = self.list("SELECT id FROM doomed_object", |row| row.get(0))?;
        Ok((objects, doomed))
    }

    /// Every row of `checksum`, one after the other: together they may be large.
    pub(crate) fn checksums(
        &self,
        visit: &mut dyn FnMut(ChecksumCheck),
    ) -> Result<(), CatalogError> {
        let sql = "SELECT object, digest, blocks FROM checksum ORDER BY object";
        let mut statement = self.0.prepare(sql).map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            visit(ChecksumCheck {
                object: row.get(0).map_err(failed)?,
                digest: row.get(1).map_err(failed)?,
                blocks: blob(row, 2).map_err(failed)?.to_vec(),
            });
        }
        Ok(())
    }

    /// Every damaged block that is known: object and block.
    pub(crate) fn damaged(&self) -> Result<Vec<(i64, i64)>, CatalogError> {
        self.list(
            "SELECT object, block FROM damaged ORDER BY object, block",
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
    }

    /// Every name of every directory, all versions of a name at once.
    pub(crate) fn names(&self, visit: NameVisitor<'_>) -> Result<(), CatalogError> {
        let mut statement = self.0.prepare(NAMES).map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        let (mut parent, mut name, mut versions) = (0, Vec::new(), Vec::new());
        while let Some(row) = rows.next().map_err(failed)? {
            let (row_parent, version) = name_version(row).map_err(failed)?;
            let row_name = blob(row, 1).map_err(failed)?;
            if row_parent != parent || row_name != name {
                if !versions.is_empty() {
                    visit(parent, &name, &versions);
                }
                (parent, name) = (row_parent, row_name.to_vec());
                versions.clear();
            }
            versions.push(version);
        }
        if !versions.is_empty() {
            visit(parent, &name, &versions);
        }
        Ok(())
    }

    /// Everything about each inode number, in order.
    pub(crate) fn inodes(&self, visit: &mut dyn FnMut(InodeRows)) -> Result<(), CatalogError> {
        let prepare = |sql| self.0.prepare(sql).map_err(failed);
        let mut inodes = prepare(INODES)?;
        let mut inline =
            prepare("SELECT ino, layer, length(data) FROM inline ORDER BY ino, layer")?;
        let mut extents = prepare(
            "SELECT ino, layer, start, end, object FROM extent ORDER BY ino, layer, start",
        )?;
        let mut xattrs = prepare(XATTRS)?;
        let mut inodes = Cursor::open(inodes.query([]).map_err(failed)?, inode_version)?;
        let mut inline = Cursor::open(inline.query([]).map_err(failed)?, |row| {
            Ok(InlineVersion {
                layer: row.get(1)?,
                len: row.get(2)?,
            })
        })?;
        let mut extents = Cursor::open(extents.query([]).map_err(failed)?, |row| {
            Ok(ExtentVersion {
                layer: row.get(1)?,
                start: row.get(2)?,
                end: row.get(3)?,
                object: row.get(4)?,
            })
        })?;
        let mut xattrs = Cursor::open(xattrs.query([]).map_err(failed)?, |row| {
            Ok(XattrVersion {
                name: blob(row, 1)?.to_vec(),
                layer: row.get(2)?,
                gone: row.get(3)?,
                valid: row.get(4)?,
            })
        })?;
        loop {
            let heads = [inodes.ino(), inline.ino(), extents.ino(), xattrs.ino()];
            let Some(ino) = heads.into_iter().flatten().min() else {
                return Ok(());
            };
            visit(InodeRows {
                ino,
                inodes: inodes.take(ino)?,
                inline: inline.take(ino)?,
                extents: extents.take(ino)?,
                xattrs: xattrs.take(ino)?,
            });
        }
    }

    fn list<T>(
        &self,
        sql: &str,
        read: impl FnMut(&SqlRow<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, CatalogError> {
        let mut statement = self.0.prepare(sql).map_err(failed)?;
        let rows = statement.query_map([], read).map_err(failed)?;
        rows.collect::<Result<_, _>>().map_err(failed)
    }
}

/// Rows of one table in the order of the inode number in their first column.
struct Cursor<'a, T, F> {
    rows: Rows<'a>,
    read: F,
    head: Option<(i64, T)>,
}

impl<'a, T, F: FnMut(&SqlRow<'_>) -> rusqlite::Result<T>> Cursor<'a, T, F> {
    fn open(rows: Rows<'a>, read: F) -> Result<Self, CatalogError> {
        let mut cursor = Self {
            rows,
            read,
            head: None,
        };
        cursor.advance()?;
        Ok(cursor)
    }

    fn advance(&mut self) -> Result<(), CatalogError> {
        self.head = match self.rows.next().map_err(failed)? {
            Some(row) => Some((
                row.get(0).map_err(failed)?,
                (self.read)(row).map_err(failed)?,
            )),
            None => None,
        };
        Ok(())
    }

    fn ino(&self) -> Option<i64> {
        self.head.as_ref().map(|(ino, _)| *ino)
    }

    /// Takes all rows of an inode number that is next.
    fn take(&mut self, ino: i64) -> Result<Vec<T>, CatalogError> {
        let mut taken = Vec::new();
        while self.ino() == Some(ino) {
            taken.extend(self.head.take().map(|(_, row)| row));
            self.advance()?;
        }
        Ok(taken)
    }
}

fn layer_use(row: &SqlRow<'_>) -> rusqlite::Result<LayerUse> {
    Ok(LayerUse {
        name: row.get(0)?,
        layer: row.get(1)?,
        alive: row.get(2)?,
        owned: row.get(3)?,
    })
}

fn name_version(row: &SqlRow<'_>) -> rusqlite::Result<(i64, NameVersion)> {
    let version = NameVersion {
        layer: row.get(2)?,
        ino: row.get(3)?,
        kind: row.get(4)?,
        cookie: row.get(5)?,
        shadows: row.get::<_, i64>(6)? != 0,
        valid: row.get(7)?,
    };
    Ok((row.get(0)?, version))
}

fn inode_version(row: &SqlRow<'_>) -> rusqlite::Result<InodeVersion> {
    Ok(InodeVersion {
        layer: row.get(1)?,
        kind: row.get(2)?,
        nlink: row.get(3)?,
        size: row.get(4)?,
        blocks: row.get(5)?,
        born: row.get(6)?,
        parent: row.get(7)?,
        content: row.get(8)?,
        xattr: row.get::<_, i64>(9)? != 0,
        valid: row.get(10)?,
    })
}

fn blob<'a>(row: &'a SqlRow<'_>, at: usize) -> rusqlite::Result<&'a [u8]> {
    Ok(row.get_ref(at)?.as_blob()?)
}
