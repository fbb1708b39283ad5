//! The catalog's tables and the ordered list of migrations. docs/format.md describes each column.
//!
//! `PRAGMA application_id` says that a file is a Floe catalog, `PRAGMA user_version` which format
//! it has; both are in the first 100 bytes of the file and readable without decoding the rest.

use rusqlite::Connection;

use super::CatalogError;

/// `application_id` of a catalog: "Floe" in ASCII.
pub(crate) const APPLICATION_ID: i32 = 0x466c_6f65;

/// Migrations in order: entry `n` brings a catalog from version `n` to `n + 1`. Entries are never
/// edited once released; fixtures of old versions stay in the tests.
const MIGRATIONS: &[&str] = &[V1, V2];

/// The format this program writes.
pub(crate) const FORMAT: u32 = 2;
const _: () = assert!(MIGRATIONS.len() == FORMAT as usize);

const V1: &str = "
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE layer (
    id         INTEGER PRIMARY KEY,
    parent     INTEGER REFERENCES layer(id),
    state      INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    inodes     INTEGER NOT NULL
) STRICT;
CREATE INDEX layer_by_parent ON layer(parent);

CREATE TABLE workspace (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    name        TEXT NOT NULL,
    layer       INTEGER REFERENCES layer(id),
    created_at  INTEGER NOT NULL,
    deleted_at  INTEGER,
    forked_from TEXT
) STRICT;
CREATE UNIQUE INDEX workspace_by_name ON workspace(name) WHERE deleted_at IS NULL;

CREATE TABLE snapshot (
    id         TEXT PRIMARY KEY,
    layer      INTEGER NOT NULL UNIQUE REFERENCES layer(id),
    workspace  INTEGER NOT NULL REFERENCES workspace(id),
    name       TEXT,
    message    TEXT,
    automatic  TEXT,
    created_at INTEGER NOT NULL,
    elapsed_us INTEGER NOT NULL,
    durable    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX snapshot_by_name ON snapshot(name, workspace) WHERE name IS NOT NULL;
CREATE INDEX snapshot_by_time ON snapshot(created_at, layer);
CREATE INDEX snapshot_by_workspace ON snapshot(workspace, created_at, layer);

CREATE TABLE label (
    snapshot TEXT NOT NULL REFERENCES snapshot(id) ON DELETE CASCADE,
    key      TEXT NOT NULL,
    value    TEXT NOT NULL,
    PRIMARY KEY (snapshot, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE mount (
    dir       BLOB PRIMARY KEY,
    workspace INTEGER REFERENCES workspace(id),
    snapshot  TEXT REFERENCES snapshot(id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE TABLE inode (
    ino     INTEGER NOT NULL,
    layer   INTEGER NOT NULL,
    kind    INTEGER NOT NULL,
    perm    INTEGER NOT NULL,
    uid     INTEGER NOT NULL,
    gid     INTEGER NOT NULL,
    nlink   INTEGER NOT NULL,
    rdev    INTEGER NOT NULL,
    size    INTEGER NOT NULL,
    blocks  INTEGER NOT NULL,
    atime   INTEGER NOT NULL, atime_ns INTEGER NOT NULL,
    mtime   INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
    ctime   INTEGER NOT NULL, ctime_ns INTEGER NOT NULL,
    btime   INTEGER NOT NULL, btime_ns INTEGER NOT NULL,
    born    INTEGER NOT NULL,
    parent  INTEGER NOT NULL,
    content INTEGER NOT NULL,
    xattr   INTEGER NOT NULL,
    PRIMARY KEY (ino, layer)
) STRICT, WITHOUT ROWID;
CREATE INDEX inode_by_layer ON inode(layer);
CREATE INDEX inode_unlinked ON inode(layer, ino) WHERE nlink = 0 AND kind <> 0;

CREATE TABLE dentry (
    parent  INTEGER NOT NULL,
    name    BLOB NOT NULL,
    layer   INTEGER NOT NULL,
    ino     INTEGER NOT NULL,
    kind    INTEGER NOT NULL,
    cookie  INTEGER NOT NULL,
    shadows INTEGER NOT NULL,
    PRIMARY KEY (parent, name, layer)
) STRICT, WITHOUT ROWID;

CREATE TABLE xattr (
    ino   INTEGER NOT NULL,
    name  BLOB NOT NULL,
    layer INTEGER NOT NULL,
    value BLOB,
    PRIMARY KEY (ino, name, layer)
) STRICT, WITHOUT ROWID;

CREATE TABLE inline (
    ino   INTEGER NOT NULL,
    layer INTEGER NOT NULL,
    data  BLOB NOT NULL,
    PRIMARY KEY (ino, layer)
) STRICT, WITHOUT ROWID;

CREATE TABLE extent (
    ino    INTEGER NOT NULL,
    layer  INTEGER NOT NULL,
    start  INTEGER NOT NULL,
    end    INTEGER NOT NULL,
    object INTEGER,
    PRIMARY KEY (ino, layer, start)
) STRICT, WITHOUT ROWID;

CREATE TABLE object (
    id    INTEGER PRIMARY KEY,
    ino   INTEGER NOT NULL,
    layer INTEGER NOT NULL
) STRICT;

CREATE TABLE doomed_object (
    id INTEGER PRIMARY KEY
) STRICT;
";

/// Fewer trees to write to in a snapshot, whose time is the number of pages that it changes. Layers say whose they are, so that a snapshot is found by its
/// layer without an index. What a layer or a snapshot refers to is checked by `Store::check`: a
/// foreign key would have the removal of a layer look at all others.
const V2: &str = "
CREATE TABLE layer_2 (
    id         INTEGER PRIMARY KEY,
    parent     INTEGER,
    workspace  INTEGER,
    state      INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    inodes     INTEGER NOT NULL
) STRICT;
INSERT INTO layer_2 SELECT l.id, l.parent, coalesce(
    (SELECT s.workspace FROM snapshot s WHERE s.layer = l.id),
    (SELECT w.id FROM workspace w WHERE w.layer = l.id)
), l.state, l.created_at, l.bytes, l.inodes FROM layer l ORDER BY l.id;
DROP TABLE layer;
ALTER TABLE layer_2 RENAME TO layer;

CREATE TABLE snapshot_2 (
    workspace  INTEGER NOT NULL REFERENCES workspace(id),
    layer      INTEGER NOT NULL,
    id         TEXT NOT NULL UNIQUE,
    name       TEXT,
    message    TEXT,
    automatic  TEXT,
    created_at INTEGER NOT NULL,
    elapsed_us INTEGER NOT NULL,
    durable    INTEGER NOT NULL,
    PRIMARY KEY (workspace, layer)
) STRICT, WITHOUT ROWID;
INSERT INTO snapshot_2 SELECT workspace, layer, id, name, message, automatic, created_at, elapsed_us,
    durable FROM snapshot ORDER BY workspace, layer;
DROP TABLE snapshot;
ALTER TABLE snapshot_2 RENAME TO snapshot;
CREATE UNIQUE INDEX snapshot_by_name ON snapshot(name, workspace) WHERE name IS NOT NULL;
CREATE INDEX snapshot_by_time ON snapshot(created_at);
";

/// Brings an open catalog from `from` to [`FORMAT`] in one transaction. References between tables
/// are not enforced from then on, until the caller turns that on.
///
/// # Errors
/// SQLite's, with nothing changed.
pub(crate) fn migrate(connection: &mut Connection, from: u32) -> Result<(), CatalogError> {
    if from >= FORMAT {
        return Ok(());
    }
    let during = "migrating to a newer format";
    // Or dropping a table to put a new one in its place removes what refers to its rows.
    connection
        .pragma_update(None, "foreign_keys", false)
        .map_err(CatalogError::during(during))?;
    let transaction = connection
        .transaction()
        .map_err(CatalogError::during(during))?;
    for migration in &MIGRATIONS[from as usize..] {
        transaction
            .execute_batch(migration)
            .map_err(CatalogError::during(during))?;
    }
    transaction
        .pragma_update(None, "user_version", FORMAT)
        .map_err(CatalogError::during(during))?;
    transaction.commit().map_err(CatalogError::during(during))
}
