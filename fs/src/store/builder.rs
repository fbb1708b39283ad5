//! Filling a new base layer in bulk: imports, and later archives.
//!
//! Rows go to the catalog in batches. The layer belongs to no workspace until
//! [`Builder::finish`]; a crash before leaves a layer that the next opening of the store gives up.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::workspaces::directory_row;
use super::{Store, WorkspaceError, WorkspaceInfo};
use crate::attr::{Attr, FileKind, Timestamp};
use crate::catalog::CatalogError;
use crate::change::{BLOCK_END, Change, ContentKind, EntryRow, InodeRow, Name, Row};
use crate::contents::{ContentsError, CopyError, FileCopy, INLINE_MAX, copy_file};
use crate::dispatch::OpError;
use crate::engine::now_ns;
use crate::fault::write_all_at;
use crate::id::{Ino, LayerId, ObjectId, WorkspaceId, WorkspaceName};

/// Rows in one transaction: large enough to be fast, small enough that others are not kept
/// waiting for the writer longer than about a millisecond.
const BATCH: usize = 256;

/// What a file takes of the disk beside its contents: about a page of the catalog.
const NEW_NAME: u64 = 4096;

/// Name and value of an extended attribute.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// Attributes of a file to add.
#[derive(Clone, Debug)]
pub struct NewFile {
    /// Kind of file.
    pub kind: FileKind,
    /// Permission bits (`0o7777`).
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number for device nodes.
    pub rdev: u32,
    /// Access time.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
    /// Extended attributes.
    pub xattrs: Vec<Xattr>,
}

/// Contents of a file to add.
#[derive(Clone, Copy, Debug)]
pub enum NewContents<'a> {
    /// None, or nothing but a hole of this size.
    Hole(u64),
    /// These bytes (for a symbolic link: its target).
    Bytes(&'a [u8]),
    /// Everything in this open file, holes kept.
    File(&'a File),
}

/// Why a file could not be added.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The source could not be read.
    #[error("cannot read the source")]
    Source(#[source] std::io::Error),
    /// An object could not be written.
    #[error(transparent)]
    Contents(#[from] ContentsError),
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The disk has not enough room.
    #[error(transparent)]
    Room(#[from] OpError),
}

impl From<CopyError> for BuildError {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Source(error) => Self::Source(error),
            CopyError::Target(error) => Self::Contents(error),
            CopyError::Stopped => Self::Source(std::io::ErrorKind::Interrupted.into()),
        }
    }
}

/// A base layer being filled.
pub struct Builder<'a> {
    store: &'a Store,
    id: WorkspaceId,
    name: WorkspaceName,
    layer: LayerId,
    change: Change,
    /// Rows whose link count is still growing: directories and files with several names.
    open: HashMap<Ino, InodeRow>,
    bytes: i64,
    inodes: i64,
    buffer: Vec<u8>,
}

impl Store {
    /// Begins a workspace that is filled in bulk and appears when it is finished.
    ///
    /// # Errors
    /// [`WorkspaceError::Exists`], or a failure of the catalog.
    pub fn build_workspace(&self, name: &WorkspaceName) -> Result<Builder<'_>, WorkspaceError> {
        self.check_free(name)?;
        let (layer, id) = (self.core.numbers.layer(), self.core.numbers.workspace());
        let row = Row::AddLayer {
            id: layer,
            parent: None,
            workspace: id,
            created_at: now_ns(),
        };
        self.core.catalog.apply(&Change::from(row))?;
        let root = directory_row(layer, 0o755, 0, 0, Timestamp::now());
        Ok(Builder {
            store: self,
            id,
            name: name.clone(),
            layer,
            change: Change::new(),
            open: HashMap::from([(Ino::ROOT, root)]),
            bytes: 0,
            inodes: 1,
            buffer: Vec::new(),
        })
    }
}

impl Builder<'_> {
    /// Sets the attributes of the root directory.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn root(&mut self, file: &NewFile) -> Result<(), BuildError> {
        let row = self.row(file, Ino::ROOT, 4096);
        let nlink = self.open.get(&Ino::ROOT).map_or(2, |row| row.attr.nlink);
        let row = InodeRow {
            attr: Attr { nlink, ..row.attr },
            ..row
        };
        self.open.insert(Ino::ROOT, row);
        self.xattrs(Ino::ROOT, file)
    }

    /// Adds a file of any kind under a directory added before.
    ///
    /// # Errors
    /// [`BuildError`]; the builder should be given up then.
    pub fn add(
        &mut self,
        parent: Ino,
        name: &[u8],
        file: &NewFile,
        contents: NewContents<'_>,
    ) -> Result<(Ino, u64), BuildError> {
        let ino = self.store.core.numbers.ino()?;
        let mut row = self.row(file, parent, 0);
        self.fill(ino, &mut row, contents)?;
        if file.kind == FileKind::Directory {
            row.attr.size = 4096;
            self.open.insert(ino, row);
            if let Some(parent) = self.open.get_mut(&parent) {
                parent.attr.nlink += 1;
            }
        } else {
            self.change.push(Row::PutInode {
                ino,
                layer: self.layer,
                row: Some(row),
            });
        }
        self.xattrs(ino, file)?;
        self.name(parent, name, ino, file.kind)?;
        self.inodes += 1;
        self.bytes += i64::try_from(row.attr.blocks)
            .unwrap_or(i64::MAX)
            .saturating_mul(512);
        self.flush_if_full()?;
        Ok((ino, row.attr.size))
    }

    /// Adds a further name for a file that is not a directory.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn link(&mut self, parent: Ino, name: &[u8], ino: Ino) -> Result<(), BuildError> {
        let mut row = match self.open.get(&ino) {
            Some(row) => *row,
            None => {
                self.flush()?;
                let missing = || CatalogError::Damaged {
                    what: format!("inode {ino} is missing"),
                };
                let core = &self.store.core;
                let version = core.catalog.inode_at(ino, self.layer)?;
                version.ok_or_else(missing)?
            }
        };
        row.attr.nlink += 1;
        let kind = row.attr.kind;
        self.open.insert(ino, row);
        self.name(parent, name, ino, kind)?;
        self.flush_if_full()
    }

    /// What was added comes from where set-id bits and device nodes were not honoured.
    pub(super) fn distrust(&mut self) {
        self.change.push(Row::MarkSandboxed { id: self.layer });
    }

    /// Makes the workspace appear.
    ///
    /// # Errors
    /// [`WorkspaceError::Exists`] if the name was taken meanwhile, or a failure of the catalog.
    pub fn finish(mut self) -> Result<WorkspaceInfo, WorkspaceError> {
        for (ino, row) in std::mem::take(&mut self.open) {
            self.change.push(Row::PutInode {
                ino,
                layer: self.layer,
                row: Some(row),
            });
            if self.change.len() >= BATCH {
                self.flush()?;
            }
        }
        let (core, layer) = (&self.store.core, self.layer);
        self.change.push(Row::AddUsage {
            layer,
            bytes: self.bytes,
            inodes: self.inodes,
        });
        self.change.push(Row::AddWorkspace {
            id: self.id,
            name: self.name.to_string(),
            layer,
            created_at: now_ns(),
            forked_from: None,
            origin: None,
        });
        core.layers.add(layer, None)?;
        self.store.apply_new(&self.change, &self.name)?;
        self.store.workspace(self.name.as_str())
    }

    /// Gives the layer up.
    ///
    /// # Errors
    /// When the catalog fails; the next opening of the store gives it up then.
    pub fn abandon(self) -> Result<(), CatalogError> {
        let core = &self.store.core;
        for row in self.change.rows() {
            if let Row::AddObject { id, .. } = row
                && let Err(error) = core.objects.remove(*id)
            {
                tracing::warn!(%error, "an unused object stays on disk");
            }
        }
        let row = Row::DoomLayer { id: self.layer };
        core.catalog.apply(&Change::from(row))?;
        core.collect.ask();
        Ok(())
    }

    fn row(&self, file: &NewFile, parent: Ino, size: u64) -> InodeRow {
        let directory = file.kind == FileKind::Directory;
        let now = Timestamp::now();
        InodeRow {
            attr: Attr {
                kind: file.kind,
                perm: file.perm,
                uid: file.uid,
                gid: file.gid,
                nlink: if directory { 2 } else { 1 },
                rdev: file.rdev,
                size,
                blocks: 0,
                atime: file.atime,
                mtime: file.mtime,
                ctime: now,
                btime: now,
            },
            born: self.layer,
            parent: if directory { parent } else { Ino(0) },
            content: ContentKind::Empty,
            has_xattr: !file.xattrs.is_empty(),
        }
    }

    fn name(
        &mut self,
        parent: Ino,
        name: &[u8],
        ino: Ino,
        kind: FileKind,
    ) -> Result<(), BuildError> {
        let cookie = self.store.core.numbers.cookie()?;
        self.change.push(Row::PutEntry {
            parent,
            name: Name::from(name),
            layer: self.layer,
            entry: Some(EntryRow {
                ino,
                kind,
                cookie,
                shadows: false,
            }),
        });
        Ok(())
    }

    fn xattrs(&mut self, ino: Ino, file: &NewFile) -> Result<(), BuildError> {
        for (name, value) in &file.xattrs {
            self.change.push(Row::PutXattr {
                ino,
                name: Name::from(&name[..]),
                layer: self.layer,
                value: Some(Arc::from(&value[..])),
            });
        }
        self.flush_if_full()
    }

    fn fill(
        &mut self,
        ino: Ino,
        row: &mut InodeRow,
        contents: NewContents<'_>,
    ) -> Result<(), BuildError> {
        self.store.core.room.take(match contents {
            NewContents::Hole(_) => NEW_NAME,
            NewContents::Bytes(data) => NEW_NAME + data.len() as u64,
            NewContents::File(from) => {
                let meta = from.metadata().map_err(BuildError::Source)?;
                NEW_NAME + meta.len().min(meta.blocks().saturating_mul(512))
            }
        })?;
        match contents {
            NewContents::Hole(size) => row.attr.size = size,
            NewContents::Bytes(data) if data.len() as u64 <= INLINE_MAX => {
                self.inline(ino, row, Arc::from(data));
            }
            NewContents::Bytes(data) => {
                let (object, to) = self.object(ino, row)?;
                write_all_at(&to, data, 0).map_err(ContentsError::object("write to", object))?;
                row.attr.size = data.len() as u64;
                row.attr.blocks = blocks(&to, object)?;
            }
            NewContents::File(from) => {
                let size = from.metadata().map_err(BuildError::Source)?.len();
                if size <= INLINE_MAX {
                    let mut data = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
                    from.take(INLINE_MAX)
                        .read_to_end(&mut data)
                        .map_err(BuildError::Source)?;
                    self.inline(ino, row, Arc::from(data));
                } else {
                    let (object, to) = self.object(ino, row)?;
                    let copy = FileCopy {
                        from,
                        to: &to,
                        object,
                        size,
                        reflink: self.store.core.objects.can_reflink(),
                    };
                    copy_file(&copy, &mut self.buffer, &mut || true)?;
                    row.attr.size = size;
                    row.attr.blocks = blocks(&to, object)?;
                }
            }
        }
        Ok(())
    }

    fn inline(&mut self, ino: Ino, row: &mut InodeRow, data: Arc<[u8]>) {
        row.attr.size = data.len() as u64;
        if data.is_empty() {
            return;
        }
        row.content = ContentKind::Inline;
        if row.attr.kind == FileKind::File {
            row.attr.blocks = row.attr.size.div_ceil(512);
        }
        self.change.push(Row::PutInline {
            ino,
            layer: self.layer,
            data,
        });
    }

    fn object(
        &mut self,
        ino: Ino,
        row: &mut InodeRow,
    ) -> Result<(ObjectId, Arc<File>), BuildError> {
        let core = &self.store.core;
        let (id, layer) = (core.numbers.object()?, self.layer);
        let file = core.objects.create(id)?;
        core.objects.mark_dirty(ino, id);
        row.content = ContentKind::Extents;
        self.change.push(Row::AddObject { id, ino, layer });
        self.change.push(Row::PutExtent {
            ino,
            layer,
            start: 0,
            end: BLOCK_END,
            object: Some(id),
        });
        Ok((id, file))
    }

    fn flush_if_full(&mut self) -> Result<(), BuildError> {
        if self.change.len() >= BATCH {
            Ok(self.flush()?)
        } else {
            Ok(())
        }
    }

    fn flush(&mut self) -> Result<(), CatalogError> {
        self.store.core.catalog.apply(&self.change)?;
        // Not before: giving up needs to know what was not written.
        self.change = Change::new();
        Ok(())
    }
}

fn blocks(file: &File, object: ObjectId) -> Result<u64, ContentsError> {
    file.metadata()
        .map(|meta| meta.blocks())
        .map_err(ContentsError::object("stat", object))
}
