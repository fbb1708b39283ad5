//! The one function through which every mutation reaches the catalog.

use rusqlite::{Connection, Statement, params};

use super::{CatalogError, hashing, retention, sandboxes, space, templates};
use crate::attr::Timestamp;
use crate::change::{Change, InodeRow, Row, SnapshotRow};
use crate::fault;
use crate::id::{Ino, LayerId, WorkspaceId};

/// Code of a deleted inode version in `inode.kind` and of a deleted name in `dentry.kind`.
pub(super) const GONE: u8 = 0;

/// `layer.state` of a live, frozen and doomed layer. Only on a frozen one can another stand.
pub(super) const LIVE: u8 = 0;
pub(super) const FROZEN: u8 = 1;
pub(super) const DOOMED: u8 = 2;
/// Of a frozen layer that is no snapshot any more.
pub(super) const LEFT: u8 = 3;

/// SQLite integers are signed; every number Floe stores is below 2^63 (sizes and block ends by
/// the limits of a file, ids by counting up from 1).
pub(super) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Device and inode numbers of the host are any 64 bits.
pub(super) fn bits(value: u64) -> i64 {
    value.cast_signed()
}

/// Applies the rows in one transaction.
pub(super) fn apply(connection: &mut Connection, change: &Change) -> Result<(), CatalogError> {
    let during = "applying a change";
    connection
        .prepare_cached("BEGIN IMMEDIATE")
        .and_then(|mut begin| begin.execute([]))
        .map_err(CatalogError::during(during))?;
    let begun = Begun(connection);
    let result = change
        .rows()
        .iter()
        .try_for_each(|row| apply_row(connection, row).map(|()| fault::point("rows")))
        .and_then(|()| connection.prepare_cached("COMMIT")?.execute([]).map(drop));
    if let Err(source) = result {
        begun.roll_back()?;
        return Err(CatalogError::Sqlite { during, source });
    }
    Ok(())
}

/// A transaction. One that is still open at the end, which takes a panic, is rolled back: the next
/// could not begin, and whoever reads through this connection would see half a change.
struct Begun<'a>(&'a Connection);

impl Begun<'_> {
    /// A failed COMMIT (disk full) leaves the transaction open as well; after some errors SQLite has
    /// rolled back by itself, which `is_autocommit` tells.
    fn roll_back(&self) -> Result<(), CatalogError> {
        if self.0.is_autocommit() {
            return Ok(());
        }
        self.0
            .execute_batch("ROLLBACK")
            .map_err(CatalogError::during("rolling back"))
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.roll_back() {
            tracing::error!(%error, "a change that was given up is still under way");
        }
    }
}

fn apply_row(connection: &Connection, row: &Row) -> rusqlite::Result<()> {
    let prepare = |sql| connection.prepare_cached(sql);
    match row {
        Row::PutInode {
            ino,
            layer,
            row: Some(row),
        } => put_inode(
            &mut *prepare(
                "INSERT OR REPLACE INTO inode VALUES \
                 (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21,?22)",
            )?,
            *ino,
            *layer,
            row,
        ),
        Row::PutInode {
            ino,
            layer,
            row: None,
        } => prepare(
            "INSERT OR REPLACE INTO inode VALUES (?1,?2,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0)",
        )?
        .execute(params![int(ino.0), int(layer.0)])
        .map(drop),
        Row::DropInode { ino, layer } => {
            prepare("DELETE FROM inode WHERE ino = ?1 AND layer = ?2")?
                .execute(params![int(ino.0), int(layer.0)])
                .map(drop)
        }
        Row::PutEntry {
            parent,
            name,
            layer,
            entry,
        } => {
            let (ino, kind, cookie, shadows) = match entry {
                Some(entry) => (
                    int(entry.ino.0),
                    entry.kind as u8,
                    int(entry.cookie),
                    entry.shadows,
                ),
                None => (0, GONE, 0, true),
            };
            prepare("INSERT OR REPLACE INTO dentry VALUES (?1,?2,?3,?4,?5,?6,?7)")?
                .execute(params![
                    int(parent.0),
                    &name[..],
                    int(layer.0),
                    ino,
                    kind,
                    cookie,
                    shadows
                ])
                .map(drop)
        }
        Row::DropEntry {
            parent,
            name,
            layer,
        } => prepare("DELETE FROM dentry WHERE parent = ?1 AND name = ?2 AND layer = ?3")?
            .execute(params![int(parent.0), &name[..], int(layer.0)])
            .map(drop),
        Row::PutXattr {
            ino,
            name,
            layer,
            value,
        } => prepare("INSERT OR REPLACE INTO xattr VALUES (?1,?2,?3,?4)")?
            .execute(params![
                int(ino.0),
                &name[..],
                int(layer.0),
                value.as_deref()
            ])
            .map(drop),
        Row::DropXattrs { ino, layer } => {
            prepare("DELETE FROM xattr WHERE ino = ?1 AND layer = ?2")?
                .execute(params![int(ino.0), int(layer.0)])
                .map(drop)
        }
        _ => apply_contents_row(connection, row),
    }
}

fn apply_contents_row(connection: &Connection, row: &Row) -> rusqlite::Result<()> {
    let prepare = |sql| connection.prepare_cached(sql);
    match row {
        Row::PutInline { ino, layer, data } => {
            prepare("INSERT OR REPLACE INTO inline VALUES (?1,?2,?3)")?.execute(params![
                int(ino.0),
                int(layer.0),
                &data[..]
            ])
        }
        Row::DropInline { ino, layer } => {
            prepare("DELETE FROM inline WHERE ino = ?1 AND layer = ?2")?
                .execute(params![int(ino.0), int(layer.0)])
        }
        Row::PutExtent {
            ino,
            layer,
            start,
            end,
            object,
        } => prepare("INSERT OR REPLACE INTO extent VALUES (?1,?2,?3,?4,?5)")?.execute(params![
            int(ino.0),
            int(layer.0),
            int(*start),
            int(*end),
            object.map(|object| int(object.0)),
        ]),
        Row::DropExtent { ino, layer, start } => {
            prepare("DELETE FROM extent WHERE ino = ?1 AND layer = ?2 AND start = ?3")?
                .execute(params![int(ino.0), int(layer.0), int(*start)])
        }
        Row::DropExtents { ino, layer } => {
            prepare("DELETE FROM extent WHERE ino = ?1 AND layer = ?2")?
                .execute(params![int(ino.0), int(layer.0)])
        }
        Row::AddObject { id, ino, layer } => {
            prepare("INSERT INTO object (id, ino, layer) VALUES (?1,?2,?3)")?.execute(params![
                int(id.0),
                int(ino.0),
                int(layer.0)
            ])
        }
        Row::DoomObject { id } => {
            prepare("DELETE FROM object WHERE id = ?1")?.execute([int(id.0)])?;
            prepare("DELETE FROM checksum WHERE object = ?1")?.execute([int(id.0)])?;
            prepare("INSERT OR IGNORE INTO doomed_object VALUES (?1)")?.execute([int(id.0)])
        }
        Row::ForgetDoomed { id } => {
            prepare("DELETE FROM doomed_object WHERE id = ?1")?.execute([int(id.0)])
        }
        Row::AddUsage {
            layer,
            bytes,
            inodes,
        } => prepare("UPDATE layer SET bytes = bytes + ?2, inodes = inodes + ?3 WHERE id = ?1")?
            .execute(params![int(layer.0), bytes, inodes]),
        Row::ReserveInos { below } => reserve(connection, "next_ino", *below),
        Row::ReserveObjects { below } => reserve(connection, "next_object", *below),
        _ => apply_store_row(connection, row),
    }
    .map(drop)
}

fn apply_store_row(connection: &Connection, row: &Row) -> rusqlite::Result<usize> {
    let prepare = |sql| connection.prepare_cached(sql);
    match row {
        Row::AddLayer {
            id,
            parent,
            workspace,
            created_at,
        } => add_layer(connection, *id, *parent, *workspace, *created_at),
        Row::MarkSandboxed { id } => {
            prepare("UPDATE layer SET sandboxed = 1 WHERE id = ?1")?.execute([int(id.0)])
        }
        Row::FreezeLayer { id } => prepare("UPDATE layer SET state = ?2 WHERE id = ?1")?
            .execute(params![int(id.0), FROZEN]),
        // What it stood on may go before it.
        Row::DoomLayer { id } => {
            prepare("UPDATE layer SET state = ?2, parent = NULL WHERE id = ?1")?
                .execute(params![int(id.0), DOOMED])
        }
        Row::LeaveLayer { id } => {
            prepare("UPDATE layer SET state = ?2 WHERE id = ?1")?.execute(params![int(id.0), LEFT])
        }
        Row::AddWorkspace {
            id,
            name,
            layer,
            created_at,
            forked_from,
            origin,
        } => prepare(
            "INSERT INTO workspace (id, name, layer, created_at, forked_from, origin, \
             quota_bytes, quota_inodes) VALUES (?1,?2,?3,?4,?5,?6, \
             (SELECT quota_bytes FROM workspace WHERE id = ?6), \
             (SELECT quota_inodes FROM workspace WHERE id = ?6))",
        )?
        .execute(params![
            int(id.0),
            name,
            int(layer.0),
            created_at,
            forked_from.as_ref().map(|id| id.as_str()),
            origin.map(|id| int(id.0)),
        ]),
        Row::MoveWorkspace { id, layer } => {
            prepare("UPDATE workspace SET layer = ?2 WHERE id = ?1")?
                .execute(params![int(id.0), int(layer.0)])
        }
        Row::RenameWorkspace { id, name } => {
            prepare("UPDATE workspace SET name = ?2 WHERE id = ?1")?
                .execute(params![int(id.0), name])
        }
        Row::DeleteWorkspace { id, deleted_at } => {
            prepare("DELETE FROM mount WHERE workspace = ?1")?.execute([int(id.0)])?;
            prepare("UPDATE workspace SET layer = NULL, deleted_at = ?2 WHERE id = ?1")?
                .execute(params![int(id.0), deleted_at])
        }
        Row::AddSnapshot(snapshot) => add_snapshot(connection, snapshot),
        Row::SetImage { id, state, bytes } => {
            prepare("UPDATE snapshot SET image = ?2, image_bytes = ?3 WHERE id = ?1")?
                .execute(params![id.as_str(), *state as u8, int(*bytes)])
        }
        Row::SetElapsed { id, elapsed_us } => {
            prepare("UPDATE snapshot SET elapsed_us = ?2 WHERE id = ?1")?
                .execute(params![id.as_str(), int(*elapsed_us)])
        }
        Row::PutMount {
            dir,
            workspace,
            snapshot,
            read_only,
        } => prepare("INSERT OR REPLACE INTO mount VALUES (?1,?2,?3,?4)")?.execute(params![
            dir,
            workspace.map(|id| int(id.0)),
            snapshot.as_ref().map(|id| id.as_str()),
            read_only,
        ]),
        Row::DropMount {
            dir,
            workspace,
            snapshot,
        } => prepare("DELETE FROM mount WHERE dir = ?1 AND workspace IS ?2 AND snapshot IS ?3")?
            .execute(params![
                dir,
                workspace.map(|id| int(id.0)),
                snapshot.as_ref().map(|id| id.as_str()),
            ]),
        Row::DropMounts => prepare("DELETE FROM mount")?.execute([]),
        Row::SetPlace { place } => {
            prepare("INSERT OR REPLACE INTO meta VALUES ('place',?1)")?.execute([place])
        }
        _ => apply_base_row(connection, row),
    }
}

fn add_layer(
    connection: &Connection,
    id: LayerId,
    parent: Option<LayerId>,
    workspace: WorkspaceId,
    created_at: i64,
) -> rusqlite::Result<usize> {
    let prepare = |sql| connection.prepare_cached(sql);
    let Some(parent) = parent else {
        let sql = "INSERT INTO layer VALUES (?1, NULL, ?2, ?3, ?4, 0, 0, 0)";
        return prepare(sql)?.execute(params![int(id.0), int(workspace.0), LIVE, created_at]);
    };
    // What a sandbox has written to is never again taken for something that none has: not by a
    // rollback to before it, either, as the workspace may be mounted. In a change this row comes before
    // the one that moves the workspace here.
    let sql = "INSERT INTO layer SELECT ?1, ?2, ?3, ?4, ?5, bytes, inodes, max(sandboxed, ifnull( \
               (SELECT l.sandboxed FROM workspace w JOIN layer l ON l.id = w.layer WHERE w.id = ?3), \
               0)) FROM layer WHERE id = ?2 AND state = ?6";
    let key = params![
        int(id.0),
        int(parent.0),
        int(workspace.0),
        LIVE,
        created_at,
        FROZEN,
    ];
    match prepare(sql)?.execute(key)? {
        // Somebody has deleted the snapshot meanwhile.
        0 => Err(rusqlite::Error::StatementChangedRows(0)),
        added => Ok(added),
    }
}

fn apply_base_row(connection: &Connection, row: &Row) -> rusqlite::Result<usize> {
    let prepare = |sql| connection.prepare_cached(sql);
    match row {
        Row::AddBase {
            layer,
            boot,
            exclude,
            public,
        } => prepare("INSERT INTO base VALUES (?1,?2,?3,0,?4)")?.execute(params![
            int(layer.0),
            boot,
            exclude,
            public
        ]),
        Row::SetBaseState { layer, state } => {
            prepare("UPDATE base SET state = ?2 WHERE layer = ?1")?
                .execute(params![int(layer.0), *state as u8])
        }
        Row::PutHost { ino, layer, host } => {
            let seen = &host.seen;
            prepare(
                "INSERT OR REPLACE INTO host VALUES \
                 (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16)",
            )?
            .execute(params![
                int(ino.0),
                int(layer.0),
                int(host.parent.0),
                &host.name[..],
                bits(seen.dev),
                bits(seen.inode),
                int(seen.links),
                int(seen.size),
                seen.mtime.secs,
                seen.mtime.nanos,
                seen.ctime.secs,
                seen.ctime.nanos,
                seen.btime.secs,
                seen.btime.nanos,
                host.state as u8,
                host.changed,
            ])
        }
        Row::DropHost { ino, layer } => prepare("DELETE FROM host WHERE ino = ?1 AND layer = ?2")?
            .execute(params![int(ino.0), int(layer.0)]),
        Row::SetHostState { ino, layer, state } => {
            prepare("UPDATE host SET state = ?3 WHERE ino = ?1 AND layer = ?2")?.execute(params![
                int(ino.0),
                int(layer.0),
                *state as u8
            ])
        }
        Row::SetHostChanged { ino, layer } => {
            prepare("UPDATE host SET changed = 1 WHERE ino = ?1 AND layer = ?2")?
                .execute(params![int(ino.0), int(layer.0)])
        }
        Row::DropEntries { parent, layer } => {
            prepare("DELETE FROM dentry WHERE parent = ?1 AND layer = ?2")?
                .execute(params![int(parent.0), int(layer.0)])
        }
        Row::AddEvent(event) => {
            prepare("INSERT INTO event VALUES (NULL,?1,?2,?3,?4,?5,?6,?7,?8,?9)")?.execute(params![
                int(event.workspace.0),
                event.at,
                event.kind,
                event.snapshot.as_ref().map(|id| id.as_str()),
                event.other.map(|id| int(id.0)),
                event.layer.map(|id| int(id.0)),
                event.source.map(|id| int(id.0)),
                event.whole,
                event.message,
            ])
        }
        Row::AddLanding {
            id,
            workspace,
            at,
            state,
            plan,
        } => prepare("INSERT INTO landing VALUES (?1,?2,?3,?4,?5)")?.execute(params![
            int(*id),
            int(workspace.0),
            at,
            state,
            plan
        ]),
        Row::SetLanding { id, state, plan } => {
            prepare("UPDATE landing SET state = ?2, plan = coalesce(?3, plan) WHERE id = ?1")?
                .execute(params![int(*id), state, plan])
        }
        Row::DropLanding { id } => {
            prepare("DELETE FROM landing WHERE id = ?1")?.execute([int(*id)])
        }
        Row::SetRetention { .. }
        | Row::DropRetention { .. }
        | Row::RenameSnapshot { .. }
        | Row::SetMessage { .. }
        | Row::SetExpiry { .. }
        | Row::ProtectSnapshot { .. }
        | Row::PutLabel { .. }
        | Row::DropLabel { .. } => retention::apply(connection, row),
        Row::PutChecksum { .. } | Row::PutSetting { .. } => hashing::apply(connection, row),
        Row::PutSandbox(_) | Row::DropSandbox { .. } => sandboxes::apply(connection, row),
        Row::PutTemplate { .. } | Row::DropTemplate { .. } => templates::apply(connection, row),
        _ => space::apply(connection, row),
    }
}

fn put_inode(
    statement: &mut Statement<'_>,
    ino: Ino,
    layer: LayerId,
    row: &InodeRow,
) -> rusqlite::Result<()> {
    let attr = &row.attr;
    let time = |time: Timestamp| (time.secs, time.nanos);
    let (atime, mtime) = (time(attr.atime), time(attr.mtime));
    let (ctime, btime) = (time(attr.ctime), time(attr.btime));
    statement
        .execute(params![
            int(ino.0),
            int(layer.0),
            attr.kind as u8,
            attr.perm,
            attr.uid,
            attr.gid,
            attr.nlink,
            attr.rdev,
            int(attr.size),
            int(attr.blocks),
            atime.0,
            atime.1,
            mtime.0,
            mtime.1,
            ctime.0,
            ctime.1,
            btime.0,
            btime.1,
            int(row.born.0),
            int(row.parent.0),
            row.content as u8,
            row.has_xattr,
        ])
        .map(drop)
}

fn reserve(connection: &Connection, key: &str, below: u64) -> rusqlite::Result<usize> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO meta VALUES (?1,?2)")?
        .execute(params![key, int(below)])
}

fn add_snapshot(connection: &Connection, row: &SnapshotRow) -> rusqlite::Result<usize> {
    connection
        .prepare_cached(
            "INSERT INTO snapshot (workspace, layer, id, name, message, automatic, created_at, \
             elapsed_us, durable, expires_at, protected, image, image_bytes) \
             VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13)",
        )?
        .execute(params![
            int(row.workspace.0),
            int(row.layer.0),
            row.id.as_str(),
            row.name,
            row.message,
            row.automatic,
            row.created_at,
            int(row.elapsed_us),
            row.durable,
            row.expires_at,
            row.protected,
            row.image.map(|state| state as u8),
            row.image.map(|_| 0),
        ])?;
    for (key, value) in &row.labels {
        connection
            .prepare_cached("INSERT INTO label VALUES (?1,?2,?3)")?
            .execute(params![row.id.as_str(), key, value])?;
    }
    Ok(1)
}
