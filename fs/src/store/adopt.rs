//! Making workspaces independent of the directories of the host that they were made from.
//!
//! What is visible does not change: a file's contents get an object of the id that stood for the
//! file on the host all along (docs/format.md).

use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use thiserror::Error;

use super::types::{AdoptProgress, AdoptReport};
use super::{Store, WorkspaceError};
use crate::attr::FileKind;
use crate::base::{Base, host_object};
use crate::catalog::CatalogError;
use crate::change::{BaseState, Change, EventRow, HostState, Row};
use crate::contents::{ContentsError, CopyError, FileCopy, copy_file};
use crate::dispatch::OpError;
use crate::engine::now_ns;
use crate::id::{Ino, LayerId};

/// Files and directories looked for at a time.
const LOOK: usize = 1024;
/// Files, and bytes of them, in one transaction.
const BATCH: usize = 128;
const BATCH_BYTES: u64 = 64 << 20;

/// Why a workspace could not be made independent of the host. What was taken in stays so.
#[derive(Debug, Error)]
pub enum AdoptError {
    /// The workspace cannot be used.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The workspace was not made from a directory of the host in place.
    #[error("the workspace '{workspace}' does not depend on a directory of the host")]
    NoBase {
        /// The workspace.
        workspace: String,
    },
    /// Whoever wanted it does not want it any more.
    #[error("the adoption was interrupted; it goes on where it was when it is asked for again")]
    Interrupted,
    /// Some of it could not be taken in. The rest was.
    #[error("{count} files or directories could not be taken in, first {path}")]
    Incomplete {
        /// How many.
        count: u64,
        /// The first.
        path: PathBuf,
        /// Why not that one.
        #[source]
        source: Box<OpError>,
    },
    /// The store failed.
    #[error("cannot take the host's files in")]
    Store(#[source] Box<OpError>),
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl From<OpError> for AdoptError {
    fn from(error: OpError) -> Self {
        match error {
            OpError::Catalog(error) => Self::Catalog(error),
            error => Self::Store(Box::new(error)),
        }
    }
}

/// What could not be taken in.
#[derive(Default)]
struct Failures {
    count: u64,
    first: Option<(PathBuf, Box<OpError>)>,
}

fn is_of_host(error: &OpError) -> bool {
    matches!(error, OpError::Contents(error) if error.is_of_host())
}

struct Adoption<'a> {
    store: &'a Store,
    base: Arc<Base>,
    layer: LayerId,
    progress: &'a mut dyn FnMut(&AdoptProgress) -> ControlFlow<()>,
    so_far: AdoptProgress,
    failures: Failures,
    change: Change,
    batch: Vec<Ino>,
    batch_bytes: u64,
    buffer: Vec<u8>,
}

impl Store {
    /// The base that a workspace stands on, and that everything on the same base shares.
    ///
    /// # Errors
    /// [`AdoptError::NoBase`] if it was not made from a directory of the host in place.
    pub fn base_of(&self, workspace: &str) -> Result<LayerId, AdoptError> {
        let record = self.workspace_record(workspace)?;
        let base = self.core.host_base(record.layer);
        base.ok_or_else(|| AdoptError::NoBase {
            workspace: workspace.to_owned(),
        })
    }

    /// Bases whose adoption was begun and has not ended; whoever opens the store goes on with it.
    #[must_use]
    pub fn unfinished_adoptions(&self) -> Vec<LayerId> {
        self.core.bases.unfinished()
    }

    /// Takes in everything that a base shows of the host, so that the directories are not needed
    /// any more. Goes on where an earlier call stopped. `progress` is told after each step, and says
    /// whether to go on. When it returns, everything survives power loss.
    ///
    /// # Errors
    /// [`AdoptError::Incomplete`] when some files were changed meanwhile or cannot be read.
    pub fn adopt(
        &self,
        layer: LayerId,
        progress: &mut dyn FnMut(&AdoptProgress) -> ControlFlow<()>,
    ) -> Result<AdoptReport, AdoptError> {
        let started = Instant::now();
        let core = &self.core;
        let base = core.bases.known(layer)?;
        let adopting = base.clone();
        let alone = adopting.adopting.lock();
        if !adopting.is_wanted() {
            return Err(AdoptError::Interrupted);
        }
        let mut adoption = Adoption::new(self, base, layer, progress);
        if !adoption.base.is_adopted() {
            let _held = core.bases.hold(layer)?;
            core.bases.set_state(layer, BaseState::Adopting)?;
            let taken = adoption.all();
            if taken.is_err() {
                adoption.give_up();
            }
            if !adopting.is_wanted() {
                drop(alone);
                // Whoever gives its space back waits for this.
                core.collect.ask();
                return Err(AdoptError::Interrupted);
            }
            if let Err(error) = &taken
                && !matches!(error, AdoptError::Interrupted)
            {
                core.bases.set_state(layer, BaseState::InPlace)?;
            }
            taken?;
        }
        Ok(AdoptReport {
            directories: adoption.so_far.directories,
            files: adoption.so_far.files,
            bytes: adoption.so_far.bytes,
            elapsed_us: u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
        })
    }
}

impl Store {
    /// Takes some files and directories of a base in, as far as they are not yet: they are about to
    /// change on the host. When it returns, their contents survive power loss.
    ///
    /// # Errors
    /// As [`Store::adopt`].
    pub(crate) fn adopt_some(&self, layer: LayerId, inos: &[Ino]) -> Result<(), AdoptError> {
        let core = &self.core;
        let Some(base) = core.bases.get(layer).filter(|base| !base.is_adopted()) else {
            return Ok(());
        };
        let adopting = base.clone();
        let _alone = adopting.adopting.lock();
        if !adopting.is_wanted() {
            return Ok(());
        }
        let _held = core.bases.hold(layer)?;
        let mut go_on = |_: &AdoptProgress| ControlFlow::Continue(());
        let mut adoption = Adoption::new(self, base, layer, &mut go_on);
        let taken = adoption.some(inos);
        if taken.is_err() {
            adoption.give_up();
        }
        taken
    }
}

impl<'a> Adoption<'a> {
    fn new(
        store: &'a Store,
        base: Arc<Base>,
        layer: LayerId,
        progress: &'a mut dyn FnMut(&AdoptProgress) -> ControlFlow<()>,
    ) -> Self {
        Self {
            store,
            base,
            layer,
            progress,
            so_far: AdoptProgress::default(),
            failures: Failures::default(),
            change: Change::new(),
            batch: Vec::new(),
            batch_bytes: 0,
            buffer: Vec::new(),
        }
    }

    fn some(&mut self, inos: &[Ino]) -> Result<(), AdoptError> {
        let core = &self.store.core;
        for &ino in inos {
            let row = core.catalog.host_at(ino, self.layer)?;
            let Some(row) = row.filter(|row| row.state == HostState::InPlace) else {
                continue;
            };
            let inode = core.catalog.inode_at(ino, self.layer)?;
            match inode.map(|inode| inode.attr.kind) {
                Some(FileKind::Directory) => self.one(ino, true, 0)?,
                Some(FileKind::File) => self.one(ino, false, row.seen.size)?,
                _ => {}
            }
            // What is lost already is not lost by what is about to be done.
            let lost = |error: &OpError| {
                matches!(error, OpError::Contents(ContentsError::HostChanged { .. }))
            };
            if self
                .failures
                .first
                .as_ref()
                .is_some_and(|(_, error)| lost(error))
            {
                self.failures = Failures::default();
            }
        }
        self.commit()?;
        core.sync_catalog()?;
        self.complete()
    }

    /// An error if something could not be taken in.
    fn complete(&mut self) -> Result<(), AdoptError> {
        match self.failures.first.take() {
            None => Ok(()),
            Some((path, source)) => Err(AdoptError::Incomplete {
                count: self.failures.count,
                path,
                source,
            }),
        }
    }

    fn all(&mut self) -> Result<(), AdoptError> {
        let core = &self.store.core;
        let mut after = Ino(0);
        // A directory's own number is smaller than those of what is found in it, so one pass meets
        // everything.
        loop {
            let found = core.catalog.host_in_place(self.layer, after, LOOK)?;
            let Some((last, ..)) = found.last() else {
                break;
            };
            after = *last;
            for (ino, directory, size) in found {
                self.one(ino, directory, size)?;
                // Nobody wants it any more, or nothing shows it any more.
                let wanted = self.base.is_wanted();
                if (self.progress)(&self.so_far).is_break() || !wanted {
                    self.commit()?;
                    return Err(AdoptError::Interrupted);
                }
            }
        }
        self.commit()?;
        // Before anybody is told that the host is not needed.
        core.sync_catalog()?;
        self.complete()?;
        core.bases.set_state(self.layer, BaseState::Adopted)?;
        core.hashing.frozen(self.layer);
        if let Some(workspace) = core.catalog.maker(self.layer)? {
            let event = Row::AddEvent(Box::new(EventRow {
                message: Some(format!("{} files", self.so_far.files)),
                ..EventRow::new(workspace, now_ns(), "adopt")
            }));
            core.catalog.apply(&Change::from(event))?;
        }
        Ok(core.sync_catalog()?)
    }

    fn one(&mut self, ino: Ino, directory: bool, size: u64) -> Result<(), AdoptError> {
        let core = &self.store.core;
        let taken = if directory {
            let taken = core.bases.take_in(core, ino, self.layer);
            self.so_far.directories += u64::from(taken.is_ok());
            taken.map_err(AdoptError::from)
        } else {
            self.file(ino, size)
        };
        match taken {
            Err(AdoptError::Store(source)) if is_of_host(&source) => {
                self.failures.count += 1;
                if self.failures.first.is_none() {
                    let path = core.bases.path(ino, self.layer)?;
                    self.failures.first = Some((path, source));
                }
            }
            other => other?,
        }
        if self.batch.len() >= BATCH || self.batch_bytes >= BATCH_BYTES {
            self.commit()?;
        }
        Ok(())
    }

    /// Copies a file's contents into the object that stands for it.
    fn file(&mut self, ino: Ino, size: u64) -> Result<(), AdoptError> {
        let core = &self.store.core;
        let (objects, object) = (&core.objects, host_object(ino));
        let failed = |error: ContentsError| AdoptError::from(OpError::from(error));
        let from = objects.read(object).map_err(failed)?;
        from.check().map_err(failed)?;
        let meta = from.file.metadata();
        let meta = meta.map_err(|error| failed(ContentsError::object("look at", object)(error)))?;
        core.room
            .take(size.min(meta.blocks().saturating_mul(512)))?;
        // What an interrupted adoption left.
        objects.remove(object).map_err(failed)?;
        let to = objects.create(object).map_err(failed)?;
        let copy = FileCopy {
            from: &from.file,
            to: &to,
            object,
            size,
            reflink: objects.can_reflink(),
        };
        let (progress, so_far) = (&mut self.progress, self.so_far);
        let copied = copy_file(&copy, &mut self.buffer, &mut || {
            progress(&so_far).is_continue()
        });
        let copied = match copied {
            Ok(()) => Ok(()),
            Err(CopyError::Stopped) => Err(AdoptError::Interrupted),
            Err(CopyError::Target(error)) => Err(failed(error)),
            Err(CopyError::Source(source)) => {
                let path = core.bases.path(ino, self.layer)?;
                Err(failed(ContentsError::host("read", &path)(source)))
            }
        };
        // Only now is it known that what was copied is what was seen.
        if let Err(error) = copied.and_then(|()| from.check().map_err(failed)) {
            objects.remove(object).map_err(failed)?;
            return Err(error);
        }
        objects.mark_dirty(ino, object);
        self.batch.push(ino);
        self.batch_bytes += size;
        self.change.push(Row::AddObject {
            id: object,
            ino,
            layer: self.layer,
        });
        self.change.push(Row::SetHostState {
            ino,
            layer: self.layer,
            state: HostState::Taken,
        });
        Ok(())
    }

    /// Has the catalog know of the files copied since the last time.
    fn commit(&mut self) -> Result<(), OpError> {
        let core = &self.store.core;
        {
            // Their bytes are on the disk before a log is that says so.
            let _moving = core.moving.read();
            for &ino in &self.batch {
                core.objects.mark_inherited(host_object(ino));
            }
            core.catalog.apply(&self.change)?;
        }
        self.change = Change::new();
        for ino in std::mem::take(&mut self.batch) {
            // From now on it is read here.
            core.objects.reopen(host_object(ino));
            self.so_far.files += 1;
        }
        self.so_far.bytes += std::mem::take(&mut self.batch_bytes);
        Ok(())
    }

    /// Removes the copies that the catalog does not know of.
    fn give_up(&mut self) {
        for ino in std::mem::take(&mut self.batch) {
            if let Err(error) = self.store.core.objects.remove(host_object(ino)) {
                tracing::warn!(%error, "an unused object stays on disk");
            }
        }
    }
}
