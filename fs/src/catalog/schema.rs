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
const MIGRATIONS: &[&str] = &[V1, V2, V3, V4];

/// The format this program writes.
pub(crate) const FORMAT: u32 = 4;
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
INSERT INTO layer_2 SELECT id, parent, (SELECT workspace FROM snapshot WHERE layer = layer.id),
    state, created_at, bytes, inodes FROM layer ORDER BY id;
UPDATE layer_2 SET workspace = workspace.id FROM workspace WHERE workspace.layer = layer_2.id;
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

/// Directories of the host under a base layer; where an inode has names, so that a difference is
/// found from what changed; what happened to a workspace; changes to directories of the host; hashes of
/// contents; how long snapshots are kept; how much a workspace may hold.
const V3: &str = "
CREATE INDEX dentry_by_ino ON dentry(ino) WHERE ino <> 0;
ALTER TABLE workspace ADD COLUMN origin INTEGER;
UPDATE workspace SET origin = (SELECT s.workspace FROM snapshot s WHERE s.id = workspace.forked_from)
    WHERE forked_from IS NOT NULL;
CREATE INDEX dentry_gone ON dentry(layer) WHERE ino = 0;
CREATE INDEX workspace_by_source ON workspace(forked_from) WHERE forked_from IS NOT NULL;

CREATE TABLE base (
    layer   INTEGER PRIMARY KEY,
    boot    TEXT NOT NULL,
    exclude TEXT NOT NULL,
    state   INTEGER NOT NULL
) STRICT;

CREATE TABLE host (
    ino      INTEGER NOT NULL,
    layer    INTEGER NOT NULL,
    parent   INTEGER NOT NULL,
    name     BLOB NOT NULL,
    dev      INTEGER NOT NULL,
    inode    INTEGER NOT NULL,
    links    INTEGER NOT NULL,
    size     INTEGER NOT NULL,
    mtime    INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
    ctime    INTEGER NOT NULL, ctime_ns INTEGER NOT NULL,
    btime    INTEGER NOT NULL, btime_ns INTEGER NOT NULL,
    state    INTEGER NOT NULL,
    changed  INTEGER NOT NULL,
    PRIMARY KEY (ino, layer)
) STRICT, WITHOUT ROWID;
CREATE INDEX host_root ON host(layer, ino) WHERE parent = 0;
CREATE INDEX host_by_inode ON host(layer, inode, dev) WHERE links > 1;
CREATE INDEX host_changed ON host(layer, ino) WHERE changed <> 0;

CREATE TABLE event (
    id        INTEGER PRIMARY KEY,
    workspace INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    kind      TEXT NOT NULL,
    snapshot  TEXT,
    other     INTEGER,
    layer     INTEGER,
    source    INTEGER,
    whole     INTEGER NOT NULL,
    message   TEXT
) STRICT;
CREATE INDEX event_by_workspace ON event(workspace, id);
CREATE INDEX event_by_layer ON event(layer) WHERE layer IS NOT NULL;

CREATE TABLE landing (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    workspace INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    state     INTEGER NOT NULL,
    plan      TEXT NOT NULL
) STRICT;

ALTER TABLE object ADD COLUMN hashed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX object_unhashed ON object(id) WHERE hashed = 0;
CREATE TABLE checksum (
    object INTEGER PRIMARY KEY,
    digest INTEGER NOT NULL,
    blocks BLOB NOT NULL
) STRICT;
CREATE INDEX checksum_by_digest ON checksum(digest);
CREATE TABLE damaged (
    object INTEGER NOT NULL,
    block  INTEGER NOT NULL,
    PRIMARY KEY (object, block)
) STRICT, WITHOUT ROWID;

ALTER TABLE snapshot ADD COLUMN expires_at INTEGER;
ALTER TABLE snapshot ADD COLUMN protected INTEGER NOT NULL DEFAULT 0;
CREATE INDEX snapshot_expiring ON snapshot(expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE retention (
    workspace   INTEGER NOT NULL,
    automatic   INTEGER NOT NULL,
    keep_last   INTEGER,
    keep_within INTEGER,
    PRIMARY KEY (workspace, automatic)
) STRICT, WITHOUT ROWID;

ALTER TABLE workspace ADD COLUMN quota_bytes INTEGER;
ALTER TABLE workspace ADD COLUMN quota_inodes INTEGER;
";

/// Sandboxes, and what they start from.
const V4: &str = "
CREATE TABLE sandbox (
    id              TEXT NOT NULL PRIMARY KEY,
    kind            INTEGER NOT NULL,
    state           TEXT NOT NULL,
    reason          TEXT,
    workspace       INTEGER REFERENCES workspace(id),
    template        TEXT NOT NULL,
    snapshot        TEXT,
    created_at      INTEGER NOT NULL,
    started_at      INTEGER,
    ends_at         INTEGER,
    on_timeout      INTEGER NOT NULL,
    auto_resume     INTEGER NOT NULL,
    generation      INTEGER NOT NULL,
    slot            INTEGER,
    session         TEXT,
    idempotency_key TEXT,
    spec            TEXT NOT NULL,
    deleted_at      INTEGER
) STRICT;
CREATE INDEX sandbox_by_time ON sandbox(created_at, id) WHERE deleted_at IS NULL;
CREATE INDEX sandbox_by_workspace ON sandbox(workspace) WHERE workspace IS NOT NULL;
CREATE INDEX sandbox_deleted ON sandbox(deleted_at) WHERE deleted_at IS NOT NULL;
CREATE UNIQUE INDEX sandbox_by_slot ON sandbox(slot) WHERE slot IS NOT NULL;
CREATE UNIQUE INDEX sandbox_by_session ON sandbox(session) WHERE session IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX sandbox_of_session ON sandbox(session) WHERE session IS NOT NULL;
CREATE UNIQUE INDEX sandbox_by_key ON sandbox(idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE template (
    name       TEXT PRIMARY KEY,
    snapshot   TEXT NOT NULL REFERENCES snapshot(id) ON DELETE CASCADE,
    updated_at INTEGER NOT NULL,
    recipe     TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX template_by_snapshot ON template(snapshot);
CREATE INDEX template_by_recipe ON template(recipe, updated_at) WHERE recipe IS NOT NULL;

ALTER TABLE base ADD COLUMN public INTEGER NOT NULL DEFAULT 0;
ALTER TABLE layer ADD COLUMN sandboxed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE mount ADD COLUMN read_only INTEGER NOT NULL DEFAULT 0;

ALTER TABLE snapshot ADD COLUMN image INTEGER;
ALTER TABLE snapshot ADD COLUMN image_bytes INTEGER;
CREATE INDEX snapshot_with_image ON snapshot(image) WHERE image IS NOT NULL;
";

/// Brings an open catalog from `from` to [`FORMAT`] in one transaction.
///
/// # Errors
/// SQLite's, with nothing changed.
pub(crate) fn migrate(connection: &mut Connection, from: u32) -> Result<(), CatalogError> {
    if from >= FORMAT {
        return Ok(());
    }
    let during = "migrating to a newer format";
    let enforce = |connection: &Connection, enforced: bool| {
        connection
            .pragma_update(None, "foreign_keys", enforced)
            .map_err(CatalogError::during(during))
    };
    // Or dropping a table to put a new one in its place removes what refers to its rows.
    enforce(connection, false)?;
    let migrated = in_one_transaction(connection, from).map_err(CatalogError::during(during));
    enforce(connection, true)?;
    migrated
}

fn in_one_transaction(connection: &mut Connection, from: u32) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for migration in &MIGRATIONS[from as usize..] {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "user_version", FORMAT)?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;

    /// A catalog of format 1 with a snapshot, a fork, and forks that were deleted.
    fn format_1(deleted: u32) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(V1).unwrap();
        let rows = "
            INSERT INTO layer VALUES (1, NULL, 1, 10, 512, 3), (2, 1, 0, 20, 512, 3), (3, 1, 0, 30, 512, 3);
            INSERT INTO layer VALUES (4, NULL, 0, 40, 0, 1);
            INSERT INTO workspace VALUES (1, 'w', 2, 10, NULL, NULL), (2, 'f', 3, 30, NULL, 'aa');
            INSERT INTO snapshot VALUES ('aa', 1, 1, 'n', NULL, NULL, 15, 7, 0);
            INSERT INTO label VALUES ('aa', 'k', 'v');
            INSERT INTO mount VALUES (x'2f61', NULL, 'aa'), (x'2f62', 2, NULL);";
        connection.execute_batch(rows).unwrap();
        for number in 0..deleted {
            let (layer, id) = (10 + number, 10 + number);
            let mut insert = connection
                .prepare_cached("INSERT INTO layer VALUES (?1, 1, 2, 50, 512, 3)")
                .unwrap();
            insert.execute([layer]).unwrap();
            let mut insert = connection
                .prepare_cached("INSERT INTO workspace VALUES (?1, 'd', NULL, 50, 60, 'aa')")
                .unwrap();
            insert.execute([id]).unwrap();
        }
        connection
    }

    fn all(connection: &Connection, sql: &str) -> Vec<String> {
        let mut statement = connection.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn what_refers_to_migrated_rows_stays_and_goes_with_them_later() {
        let mut connection = format_1(3);
        migrate(&mut connection, 1).unwrap();
        let owners = "SELECT id || ':' || coalesce(workspace, '-') FROM layer ORDER BY id";
        let expected = ["1:1", "2:1", "3:2", "4:-", "10:-", "11:-", "12:-"];
        assert_eq!(all(&connection, owners), expected);
        assert_eq!(all(&connection, "SELECT snapshot FROM label"), ["aa"]);
        let mounts = "SELECT hex(dir) FROM mount ORDER BY dir";
        assert_eq!(all(&connection, mounts), ["2F61", "2F62"]);
        assert!(
            all(
                &connection,
                "SELECT \"table\" FROM pragma_foreign_key_check"
            )
            .is_empty()
        );
        connection.execute("DELETE FROM snapshot", []).unwrap();
        assert!(all(&connection, "SELECT snapshot FROM label").is_empty());
        assert_eq!(all(&connection, mounts), ["2F62"]);
        let nobodys = "INSERT INTO label VALUES ('bb', 'k', 'v')";
        assert!(connection.execute(nobodys, []).is_err(), "not enforced");
    }

    /// Looking at every deleted workspace for each layer would take minutes.
    #[test]
    fn forks_that_were_deleted_do_not_hold_a_migration_up() {
        let connection = format_1(20_000);
        let enforced = connection.pragma_update(None, "foreign_keys", false);
        enforced.unwrap();
        let mut steps = 0;
        for sql in V2.split_inclusive(";\n") {
            let mut statement = connection.prepare(sql).unwrap();
            statement.execute([]).unwrap();
            steps += statement.get_status(StatementStatus::VmStep);
        }
        assert!(steps > 20_000);
        assert!(steps < 20_000 * 200, "{steps} steps of SQLite's machine");
    }
}
