//! What the frozen layers of a store hold, read straight from its catalog and its objects: neither
//! daemon nor mount nor engine is asked, so none of them can hide a change.
//!
//! A layer is known by a hash over its row, its rows in every table of versions, and the bytes of
//! its objects (docs/format.md). None of that may change once it is frozen, but that an object has a checksum. To a base over directories
//! of the host rows are added when somebody looks; those that it has may not change either. What stands
//! on a snapshot that was deleted is handed rows of it, and is not looked at any more: whether it shows
//! what it did is for each test to see.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use blake3::{Hash, Hasher};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row};
use rustix::fs::SeekFrom;

/// Bytes of an object that are read at once.
const BLOCK: usize = 4096;

/// Tables whose rows belong to layers.
const TABLES: [&str; 6] = ["dentry", "extent", "inline", "inode", "object", "xattr"];

/// What a layer held.
#[derive(Clone, Debug)]
enum Held {
    /// A hash over everything.
    All(Hash),
    /// Of a base over directories of the host: hashes of its rows.
    Rows(HashSet<Hash>),
}

impl Held {
    fn still(&self, now: &Self) -> bool {
        match (self, now) {
            (Self::All(before), Self::All(now)) => before == now,
            (Self::Rows(before), Self::Rows(now)) => before.is_subset(now),
            _ => false,
        }
    }
}

/// What is hashed of a layer.
enum Hashing {
    All(Box<Hasher>),
    Rows(HashSet<Hash>),
}

impl Hashing {
    fn add(
        &mut self,
        hash: impl FnOnce(&mut Hasher) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        match self {
            Self::All(hasher) => hash(hasher),
            Self::Rows(rows) => {
                let mut hasher = Hasher::new();
                hash(&mut hasher)?;
                rows.insert(hasher.finalize());
                Ok(())
            }
        }
    }
}

/// A layer: what it stands on, and what it held.
type Layer = (Option<i64>, Held);

/// Hashes by layer.
#[derive(Clone, Debug, Default)]
pub struct FrozenLayers(BTreeMap<i64, Layer>);

impl FrozenLayers {
    /// Reads the layers that were frozen since.
    ///
    /// # Panics
    /// When the store cannot be read.
    pub fn remember_new(&mut self, store: &Path) {
        let found = read(store, |layer| !self.0.contains_key(&layer));
        self.0.extend(found);
    }

    /// The layers that are not what they were, of those that are still there.
    ///
    /// # Panics
    /// When the store cannot be read.
    #[must_use]
    pub fn changed(&self, store: &Path) -> Vec<i64> {
        let found = read(store, |layer| self.0.contains_key(&layer));
        let changed = found.into_iter().filter(|(layer, (parent, now))| {
            let held = self.0.get(layer);
            !held.is_some_and(|(above, held)| above != parent || held.still(now))
        });
        changed.map(|(layer, _)| layer).collect()
    }
}

fn read(store: &Path, wanted: impl Fn(i64) -> bool) -> BTreeMap<i64, Layer> {
    read_layers(store, wanted).expect("the catalog of the store, as docs/format.md describes it")
}

fn read_layers(
    store: &Path,
    wanted: impl Fn(i64) -> bool,
) -> rusqlite::Result<BTreeMap<i64, Layer>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let catalog = Connection::open_with_flags(store.join("catalog.db"), flags)?;
    catalog.busy_timeout(Duration::from_secs(10))?;
    // One transaction: everything is of one moment.
    catalog.execute_batch("BEGIN")?;
    let mut bases = HashSet::new();
    each(&catalog, "SELECT layer FROM base", |_, layer| {
        bases.insert(layer);
        Ok(())
    })?;
    let mut layers: BTreeMap<i64, Hashing> = BTreeMap::new();
    let mut parents: BTreeMap<i64, Option<i64>> = BTreeMap::new();
    each(
        &catalog,
        "SELECT id AS layer, * FROM layer WHERE state = 1 \
         AND coalesce(parent, 0) NOT IN (SELECT id FROM layer WHERE state = 3)",
        |row, layer| {
            if wanted(layer) {
                parents.insert(layer, row.get("parent")?);
                let hashing = layers.entry(layer).or_insert_with(|| {
                    if bases.contains(&layer) {
                        Hashing::Rows(HashSet::new())
                    } else {
                        Hashing::All(Box::default())
                    }
                });
                hashing.add(|hasher| add(hasher, "layer", row))?;
            }
            Ok(())
        },
    )?;
    if layers.is_empty() {
        return Ok(BTreeMap::new());
    }
    for table in TABLES {
        let columns = match table {
            "object" => "id, ino, layer",
            _ => "*",
        };
        let sql = format!("SELECT {columns} FROM {table}");
        each(&catalog, &sql, |row, layer| {
            let Some(hashing) = layers.get_mut(&layer) else {
                return Ok(());
            };
            hashing.add(|hasher| {
                add(hasher, table, row)?;
                if table == "object" {
                    add_object(hasher, store, row.get("id")?);
                }
                Ok(())
            })
        })?;
    }
    let hashes = layers.into_iter();
    Ok(hashes
        .map(|(layer, hashing)| {
            let held = match hashing {
                Hashing::All(hasher) => Held::All(hasher.finalize()),
                Hashing::Rows(rows) => Held::Rows(rows),
            };
            (layer, (parents.get(&layer).copied().flatten(), held))
        })
        .collect())
}

/// Visits every row with its layer, in the order of the table's key.
fn each(
    catalog: &Connection,
    sql: &str,
    mut visit: impl FnMut(&Row<'_>, i64) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let mut statement = catalog.prepare(sql)?;
    let at = statement.column_index("layer")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        visit(row, row.get(at)?)?;
    }
    Ok(())
}

fn add(hasher: &mut Hasher, table: &str, row: &Row<'_>) -> rusqlite::Result<()> {
    hasher.update(table.as_bytes());
    for column in 0..row.as_ref().column_count() {
        match row.get_ref(column)? {
            ValueRef::Null => hasher.update(b"n"),
            ValueRef::Integer(number) => hasher.update(b"i").update(&number.to_le_bytes()),
            ValueRef::Real(number) => hasher.update(b"r").update(&number.to_le_bytes()),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => hasher
                .update(b"b")
                .update(&(bytes.len() as u64).to_le_bytes())
                .update(bytes),
        };
    }
    Ok(())
}

/// Adds size and bytes of an object; that it has no file is something to know as well.
fn add_object(hasher: &mut Hasher, store: &Path, id: i64) {
    let path = store.join(format!("objects/{:x}/{id:x}", id / 4096));
    match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            hasher.update(b"no file");
        }
        opened => opened
            .and_then(|file| add_data(hasher, &file))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display())),
    }
}

/// Where data begins and ends is not the same from one moment to the next: reserved space counts as
/// data while zeros of it are in memory. So blocks of zeros are taken for holes.
fn add_data(hasher: &mut Hasher, file: &File) -> io::Result<()> {
    let len = file.metadata()?.len();
    hasher.update(&len.to_le_bytes());
    let mut block = vec![0; BLOCK];
    let mut at = 0;
    loop {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Err(rustix::io::Errno::NXIO) => return Ok(()),
            found => found?,
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        let first = start - start % BLOCK as u64;
        for offset in (first..at).step_by(BLOCK) {
            let read = file.read_at(&mut block, offset)?;
            if block[..read].iter().any(|&byte| byte != 0) {
                hasher.update(&offset.to_le_bytes()).update(&block[..read]);
            }
        }
        at = at.next_multiple_of(BLOCK as u64);
    }
}

#[cfg(test)]
mod tests {
    use floe_fs::dispatch::{Caller, Dispatch, NewNode, Write};
    use floe_fs::id::{Ino, WorkspaceName};
    use floe_fs::{SnapshotOptions, Store};

    use super::*;

    #[test]
    fn a_changed_byte_or_row_of_a_frozen_layer_is_noticed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        Store::init(&path).unwrap();
        let store = Store::open(&path).unwrap();
        let name = WorkspaceName::parse("w").unwrap();
        store.create_workspace(&name).unwrap();
        let view = store.open_live("w").unwrap();
        let node = NewNode {
            kind: floe_fs::attr::FileKind::File,
            perm: 0o644,
            umask: 0,
            rdev: 0,
            target: b"",
        };
        let caller = Caller { uid: 0, gid: 0 };
        let file = view.make(caller, Ino::ROOT, b"a", node).unwrap().ino;
        let write = |offset| {
            let data = &[7; 100_000];
            let write = Write {
                offset,
                data,
                append: false,
                kill_set_id: false,
            };
            view.write(file, write).unwrap();
        };
        write(0);
        let options = SnapshotOptions::default();
        let first = store.snapshot("w", &options).unwrap();
        let mut frozen = FrozenLayers::default();
        frozen.remember_new(&path);
        write(50_000);
        view.unlink(Ino::ROOT, b"a").unwrap();
        store.snapshot("w", &options).unwrap();
        frozen.remember_new(&path);
        assert_eq!(frozen.0.len(), 2);
        assert!(frozen.changed(&path).is_empty());

        let object = File::options().write(true).open(path.join("objects/0/1"));
        let object = object.unwrap();
        object.write_all_at(&[8], 99_999).unwrap();
        let layer = i64::try_from(first.layer.0).unwrap();
        assert_eq!(frozen.changed(&path), [layer]);
        object.write_all_at(&[7], 99_999).unwrap();
        assert!(frozen.changed(&path).is_empty());

        let catalog = Connection::open(path.join("catalog.db")).unwrap();
        let touch = "UPDATE inode SET mtime = mtime + 1 WHERE ino = 1 AND layer = ?1";
        assert_eq!(catalog.execute(touch, [layer]).unwrap(), 1);
        assert_eq!(frozen.changed(&path), [layer]);
    }
}
