//! Making, opening and inspecting a store.

use std::collections::HashSet;
use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use thiserror::Error;
use tracing::warn;

use super::owner::{LOCK, Lock};
use super::place::{Place, boot_id, settle_in};
use super::recover::recover;
use super::types::{StoreInfo, rfc3339};
use super::{Store, chores, control, settings, trust};
use crate::background::Background;
use crate::base::{Bases, HostFiles};
use crate::catalog::{APPLICATION_ID, Catalog, CatalogError, FORMAT, size_on_disk};
use crate::contents::{ContentsError, Objects};
use crate::core::{Core, Numbers, note_clean_end};
use crate::dispatch::OpError;
use crate::elapsed::Elapsed;
use crate::engine::now_ns;
use crate::id::LayerId;
use crate::layers::{SharedLayers, TreeError};
use crate::lock::{Mutex, RwLock};
use crate::space::{Collecting, Room};
use crate::{hash, retention, space};

/// Name of the catalog file in a store.
pub(super) const CATALOG: &str = "catalog.db";
/// Directories that every store has.
pub(super) const PARTS: [&str; 2] = ["objects", "run"];

/// Why a store could not be made or opened. It was not changed.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is a store already.
    #[error("{dir} is a store already")]
    Exists {
        /// Where.
        dir: PathBuf,
    },
    /// The directory holds something else.
    #[error("{dir} is not empty and not a store")]
    NotEmpty {
        /// Where.
        dir: PathBuf,
    },
    /// There is no store.
    #[error("there is no store in {dir}")]
    NotFound {
        /// Where.
        dir: PathBuf,
    },
    /// There was a store: its contents are there, and its catalog is not.
    #[error("the store {dir} has lost its catalog")]
    CatalogLost {
        /// Where.
        dir: PathBuf,
    },
    /// Another process has the store open.
    #[error("the store {dir} is in use by process {}", pid.map_or("unknown".into(), |pid| pid.to_string()))]
    Locked {
        /// Where.
        dir: PathBuf,
        /// Who, if it says.
        pid: Option<u32>,
    },
    /// The catalog was written by a newer Floe.
    #[error("the store {dir} has format {found}; this program knows formats up to {known}")]
    Newer {
        /// Where.
        dir: PathBuf,
        /// Format of the catalog.
        found: u32,
        /// Newest format known.
        known: u32,
    },
    /// The catalog is no catalog.
    #[error("the catalog of the store {dir} is damaged: {what}")]
    Damaged {
        /// Where.
        dir: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The store cannot be read or written.
    #[error("cannot {action} {path}")]
    Access {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The catalog failed.
    #[error("cannot open the catalog of the store {dir}")]
    Catalog {
        /// Where.
        dir: PathBuf,
        /// Why.
        #[source]
        source: CatalogError,
    },
    /// The objects directory failed.
    #[error("cannot use the objects of the store {dir}")]
    Contents {
        /// Where.
        dir: PathBuf,
        /// Why.
        #[source]
        source: ContentsError,
    },
    /// Part of the store belongs to somebody else.
    #[error("{path} belongs to user {owner}, and this is user {user}")]
    Foreign {
        /// Which file or directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// Part of the store can be changed by others than its owner.
    #[error("{path} can be written by others than its owner: its mode is {mode:04o}")]
    Writable {
        /// Which file or directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Part of the store is a symbolic link.
    #[error("{path} is a symbolic link, which Floe never makes there")]
    Symlink {
        /// Which.
        path: PathBuf,
    },
    /// What a crash left behind could not be put in order.
    #[error("cannot recover the store {dir}")]
    Recover {
        /// Where.
        dir: PathBuf,
        /// Why.
        #[source]
        source: Box<OpError>,
    },
}

pub(super) fn access(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Access {
        action,
        path,
        source,
    }
}

/// What the first 100 bytes of a catalog say, without SQLite, which might write to it.
struct Header;

impl Header {
    fn read(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join(CATALOG);
        let damaged = |what: &str| OpenError::Damaged {
            dir: dir.to_owned(),
            what: what.to_owned(),
        };
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(no_catalog(dir.to_owned()));
            }
            other => other.map_err(access("read", &path))?,
        };
        let mut header = [0_u8; 100];
        file.read_exact_at(&mut header, 0)
            .map_err(|_| damaged("it is too short"))?;
        let number = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        if &header[..16] != b"SQLite format 3\0" {
            return Err(damaged("it is not an SQLite database"));
        }
        if number(68) != APPLICATION_ID.cast_unsigned() {
            return Err(damaged("it is the database of another program"));
        }
        let format = number(60);
        if format == 0 {
            return Err(damaged("it has no format number"));
        }
        if format > FORMAT {
            return Err(OpenError::Newer {
                dir: dir.to_owned(),
                found: format,
                known: FORMAT,
            });
        }
        Ok(Self)
    }
}

impl Store {
    /// Makes a store in a directory that does not exist or is empty. What an interrupted attempt
    /// left in it does not count.
    ///
    /// # Errors
    /// [`OpenError::Exists`], [`OpenError::NotEmpty`], [`OpenError::Foreign`], or what the system
    /// says.
    pub fn init(dir: &Path) -> Result<StoreInfo, OpenError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(access("make the directory", dir))?;
        let dir = &trust::own_directory(dir)?;
        if foreign_content(dir)? {
            return Err(match Self::inspect(dir) {
                Ok(_) | Err(OpenError::Newer { .. }) => OpenError::Exists { dir: dir.clone() },
                Err(OpenError::NotFound { .. }) => OpenError::NotEmpty { dir: dir.clone() },
                Err(error) => error,
            });
        }
        trust::check_parts(dir)?;
        // From here on nobody else can put anything in it.
        std::fs::set_permissions(dir, Permissions::from_mode(0o700))
            .map_err(access("set the mode of", dir))?;
        trust::check(dir)?;
        match Header::read(dir) {
            Err(OpenError::NotFound { .. }) => {}
            Ok(_) | Err(OpenError::Newer { .. }) => {
                return Err(OpenError::Exists { dir: dir.clone() });
            }
            Err(error) => return Err(error),
        }
        let lock = Lock::take(dir)?;
        if dir.join(CATALOG).exists() {
            // Somebody else's init finished while this one waited for nothing.
            return Err(OpenError::Exists { dir: dir.clone() });
        }
        for part in PARTS {
            let part = dir.join(part);
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&part);
            made.map_err(access("make the directory", &part))?;
        }
        let id = getrandom::u64().map_err(|source| {
            access("draw random bytes for", dir)(io::Error::other(source.to_string()))
        })?;
        let catalog = |source| OpenError::Catalog {
            dir: dir.clone(),
            source,
        };
        let path = dir.join(CATALOG);
        Catalog::create(&path, &format!("{id:016x}"), now_ns()).map_err(catalog)?;
        make_private(&path)?;
        note_clean_end(&lock.file).map_err(access("write to", &dir.join(LOCK)))?;
        File::open(dir)
            .and_then(|dir| dir.sync_all())
            .map_err(access("sync", dir))?;
        Self::inspect(dir)
    }

    /// Makes sure that a directory belongs to the user of this process.
    ///
    /// # Errors
    /// [`OpenError::Foreign`], or what the system says.
    pub fn check_owner(dir: &Path) -> Result<(), OpenError> {
        trust::own_directory(dir).map(drop)
    }

    /// Reads a store's identity and counts without opening it; another process may be using it.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn inspect(dir: &Path) -> Result<StoreInfo, OpenError> {
        let dir = &find_trusted(dir)?;
        Header::read(dir)?;
        let path = dir.join(CATALOG);
        let catalog = |source| catalog_error(dir, source);
        let peek = Catalog::peek(&path).map_err(catalog)?;
        let summary = peek.summary().map_err(catalog)?;
        Ok(StoreInfo {
            id: summary.store_id,
            dir: dir.to_owned(),
            format: peek.format,
            created_at: rfc3339(summary.created_at),
            workspaces: summary.workspaces,
            snapshots: summary.snapshots,
            layers: summary.layers,
            objects: summary.objects,
            hashed: summary.hashed,
            catalog_bytes: size_on_disk(&path),
            reflink: None,
        })
    }

    /// Opens a store for this process alone, and puts in order what a crash left behind.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(dir: &Path) -> Result<Arc<Self>, OpenError> {
        let dir = find_trusted(dir)?;
        Header::read(&dir)?;
        let lock = Lock::take(&dir)?;
        // Again, now that nobody else can be migrating it.
        Header::read(&dir)?;
        let path = dir.join(CATALOG);
        let catalog_error = |source| catalog_error(&dir, source);
        let contents_error = |source| OpenError::Contents {
            dir: dir.clone(),
            source,
        };
        // SQLite gives the files it makes beside the catalog the same mode.
        make_private(&path)?;
        let catalog = Arc::new(Catalog::open(&path).map_err(catalog_error)?);
        let summary = catalog.summary().map_err(catalog_error)?;
        let objects = Arc::new(Objects::open(&Core::objects_dir(&dir)).map_err(contents_error)?);
        let layers = SharedLayers::default();
        let mut last = LayerId(0);
        for layer in catalog.layers().map_err(catalog_error)? {
            layers
                .add(layer.id, layer.parent)
                .map_err(|error: TreeError| OpenError::Damaged {
                    dir: dir.clone(),
                    what: error.to_string(),
                })?;
            last = layer.id;
        }
        let migrated = catalog.migrate().map_err(catalog_error)?;
        for (object, block) in catalog.damaged_blocks().map_err(catalog_error)? {
            objects.damaged().add(object, block);
        }
        if lock.crashed || migrated {
            // Which objects the last process had written and not synced is not known any more; they
            // come before the log.
            objects.sync_all().map_err(contents_error)?;
        }
        if let Err(error) = catalog.shorten_log(migrated) {
            // On a full disk, for example. It only takes longer the next time.
            warn!(%error, "the log of the catalog stays as it is");
        }
        let before = objects.clone();
        catalog
            .start_checkpoints(Arc::new(move || before.sync_inherited(true)))
            .map_err(catalog_error)?;
        let numbers = Numbers::open(&catalog, last).map_err(catalog_error)?;
        let hashing = settings::hashing(&catalog, lock.crashed).map_err(catalog_error)?;
        let bases = Arc::new(bases(&dir, &catalog)?);
        objects.serve_host(Box::new(HostFiles(Arc::downgrade(&bases))));
        let min_free = settings::min_free(&catalog).map_err(catalog_error)?;
        let room = Room::new(&Core::objects_dir(&dir), min_free);
        let core = Arc::new(Core {
            dir: dir.clone(),
            catalog,
            objects,
            bases,
            layers,
            numbers,
            moving: RwLock::new(0),
            syncs: AtomicU64::new(0),
            elapsed: Elapsed::default(),
            landing: Mutex::new(()),
            room,
            uses: Arc::default(),
            collect: Arc::default(),
            collecting: Mutex::new(Collecting::new(lock.crashed)),
            retain: Arc::default(),
            deciding: Mutex::default(),
            hashing,
            chores: Mutex::new(None),
            lock: lock.file,
        });
        recover(&core, lock.crashed).map_err(|source| OpenError::Recover {
            dir: dir.clone(),
            source: Box::new(source),
        })?;
        let place = Place::of(&dir).map_err(access("look at", &dir))?;
        settle_in(&core.catalog, &place).map_err(catalog_error)?;
        crate::land::host::recover(&core);
        let started = |background: io::Result<Background>| {
            background.map_err(access("start a thread for", &dir))
        };
        let chores = started(chores::start(&core))?;
        let collector = started(space::start(&core))?;
        core.collect.ask();
        let retainer = started(retention::start(&core))?;
        let hasher = started(hash::start(&core))?;
        Ok(Arc::new(Self {
            id: summary.store_id,
            created_at: summary.created_at,
            controls: control::Controls::default(),
            background: [retainer, hasher, collector, chores],
            repairing: std::sync::atomic::AtomicBool::new(false),
            core,
        }))
    }
}

/// What the store has of directories of the host.
fn bases(dir: &Path, catalog: &Arc<Catalog>) -> Result<Bases, OpenError> {
    let boot = boot_id().map_err(access("look at", dir))?;
    let mut own = HashSet::new();
    for part in [""].into_iter().chain(PARTS) {
        let part = dir.join(part);
        match std::fs::metadata(&part) {
            Ok(meta) => drop(own.insert((meta.dev(), meta.ino()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(access("look at", &part)(error)),
        }
    }
    Bases::open(catalog, own, boot).map_err(|source| catalog_error(dir, source))
}

/// Finds a store that exists, and refuses one that cannot be trusted.
fn find_trusted(dir: &Path) -> Result<PathBuf, OpenError> {
    let dir = trust::own_directory(dir)?;
    match dir.join(CATALOG).symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(no_catalog(dir));
        }
        _ => trust::check(&dir)?,
    }
    Ok(dir)
}

/// What it means that there is no catalog.
fn no_catalog(dir: PathBuf) -> OpenError {
    // A store that was never finished has no objects.
    let contents = std::fs::read_dir(Core::objects_dir(&dir));
    if contents.is_ok_and(|mut contents| contents.next().is_some()) && dir.join(LOCK).exists() {
        return OpenError::CatalogLost { dir };
    }
    OpenError::NotFound { dir }
}

/// Lets only the owner read a file.
fn make_private(path: &Path) -> Result<(), OpenError> {
    let meta = std::fs::metadata(path).map_err(access("look at", path))?;
    if meta.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    std::fs::set_permissions(path, Permissions::from_mode(0o600))
        .map_err(access("set the mode of", path))
}

/// Whether a directory holds anything but a store or what an interrupted init leaves: a lock, a
/// catalog under its first name, empty directories.
fn foreign_content(dir: &Path) -> Result<bool, OpenError> {
    let mut files = vec![LOCK.to_owned(), CATALOG.to_owned()];
    for end in ["", "-wal", "-shm", "-journal"] {
        files.push(format!("catalog.new{end}"));
    }
    for entry in std::fs::read_dir(dir).map_err(access("read", dir))? {
        let entry = entry.map_err(access("read", dir))?;
        let (name, path) = (entry.file_name(), entry.path());
        if files.iter().any(|ours| name == **ours) {
            continue;
        }
        let kind = entry.file_type().map_err(access("look at", &path))?;
        if !PARTS.iter().any(|part| name == *part) || !kind.is_dir() {
            return Ok(true);
        }
        let mut inside = std::fs::read_dir(&path).map_err(access("read", &path))?;
        if inside.next().is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What an error of the catalog means for opening the store.
fn catalog_error(dir: &Path, source: CatalogError) -> OpenError {
    let dir = dir.to_owned();
    match source {
        CatalogError::Sqlite { source: sqlite, .. }
            if matches!(
                sqlite.sqlite_error_code(),
                Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase)
            ) =>
        {
            let what = sqlite.to_string();
            OpenError::Damaged { dir, what }
        }
        CatalogError::Damaged { what } => OpenError::Damaged { dir, what },
        CatalogError::Newer { found, known } => OpenError::Newer { dir, found, known },
        source => OpenError::Catalog { dir, source },
    }
}
