//! Snapshots of a machine with its memory, and what a machine needs that goes on from one.
//!
//! The monitor fills a file that it is handed and says which pages it wrote; the image is made of that here,
//! since only the daemon can reach other images. While the machine is held its files are frozen and what their
//! servers know is copied, so that memory and files are of one moment.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use floe_fs::SnapshotHold;
use floe_fs::dispatch::wire::{Captured, ServerState};
use floe_fs::id::SnapshotId;
use floe_vmm::machine::memory::RamSize;
use floe_vmm::snapshot::image::{Image, ImageWriter, Taken};
use floe_vmm::snapshot::{Stats, WorkingSet};
use rustix::fs::{MemfdFlags, memfd_create};
use tracing::debug;

use super::monitor::Wanted;
use super::saved;
use super::{Vm, VmError};
use crate::error::{ApiError, ErrorKind};

/// Longest that a monitor may say of what it took: more than the state and the set of pages of any machine.
const TAKEN_MAX: u64 = 80 << 20;

/// A snapshot that was taken, with its memory.
pub(in crate::daemon::sandboxes) struct WithMemory<T> {
    /// What freezing the files gave.
    pub(in crate::daemon::sandboxes) frozen: T,
    /// Where the image is that it was made over.
    pub(in crate::daemon::sandboxes) parent: Option<PathBuf>,
    /// What it cost.
    pub(in crate::daemon::sandboxes) stats: Stats,
}

/// Why there is no snapshot with memory.
pub(in crate::daemon::sandboxes) enum MemoryError<T> {
    /// Nothing was frozen.
    Before(ApiError),
    /// The files were frozen, and then something failed.
    After(T, ApiError),
}

/// What the servers of a machine's file systems know, by tag.
type Servers = Vec<(String, Captured)>;

/// The image that one can be made over, whose files it has from now on: somebody may delete that at any time. Without
/// it, the new one has everything.
fn kept(writer: &mut ImageWriter, dir: &Path) -> Option<Image> {
    let unusable = |error: &dyn std::error::Error| {
        debug!(image = %dir.display(), %error, "an image cannot be made over another");
    };
    let image = Image::open(dir).map_err(|error| unusable(&error)).ok()?;
    let kept = writer.keep_files_of(&image);
    kept.map_err(|error| unusable(&error)).ok()?;
    Some(image)
}

fn failed(error: &dyn std::error::Error) -> ApiError {
    ApiError::from_error(ErrorKind::Failed, error)
}

impl Vm {
    /// Takes a snapshot: `freeze` is called while the machine is held, and freezes its files. It is given up
    /// when it `is_unwanted`.
    pub(in crate::daemon::sandboxes) fn snapshot<T>(
        &self,
        images: &Path,
        id: &SnapshotId,
        is_unwanted: &dyn Fn() -> bool,
        freeze: impl FnOnce() -> Result<T, ApiError>,
    ) -> Result<WithMemory<T>, MemoryError<T>> {
        let mut base = self.base.lock();
        // Whatever fails, what it failed at is no base.
        let over = base.take();
        let mut freeze = Some(freeze);
        let mut frozen: Option<(T, Servers)> = None;
        let mut held = || {
            let Some(freeze) = freeze.take() else {
                let what = "the monitor has its machine's files frozen twice";
                return Err(ApiError::new(ErrorKind::Internal, what));
            };
            let done = freeze()?;
            let servers = self.lent.iter();
            let servers = servers.map(|(tag, lent)| (tag.clone(), lent.capture()));
            frozen = Some((done, servers.collect()));
            Ok(())
        };
        let mut writer = RamSize::from_mib(self.memory_mib)
            .map_err(|error| failed(&error))
            .and_then(|ram| {
                ImageWriter::new(images, id.as_str(), ram).map_err(|error| failed(&error))
            })
            .map_err(MemoryError::Before)?;
        let over = over.and_then(|over| kept(&mut writer, &images.join(over.as_str())));
        let taken = self.take(&writer, id, over.as_ref(), is_unwanted, &mut held);
        match (taken, frozen) {
            (Ok((taken, stats)), Some((frozen, servers))) => {
                let states = servers.into_iter().map(|(tag, captured)| {
                    let state = ServerState::from(captured);
                    (tag, state.to_bytes())
                });
                let extra = saved::encode(&states.collect::<Vec<_>>());
                let go_on = || !is_unwanted();
                match writer.capture_while(taken, over.as_ref(), extra, &go_on) {
                    Ok(_) => {
                        *base = Some(id.clone());
                        Ok(WithMemory {
                            frozen,
                            parent: over.map(|over| over.dir().to_owned()),
                            stats,
                        })
                    }
                    Err(error) => {
                        let error = ApiError::from_error(ErrorKind::Failed, &error);
                        Err(MemoryError::After(frozen, error))
                    }
                }
            }
            (Ok(_), None) => Err(MemoryError::Before(ApiError::new(
                ErrorKind::Internal,
                "the monitor took a snapshot without having the files frozen",
            ))),
            (Err(error), None) => Err(MemoryError::Before(error)),
            (Err(error), Some((frozen, _))) => Err(MemoryError::After(frozen, error)),
        }
    }

    fn take(
        &self,
        writer: &ImageWriter,
        id: &SnapshotId,
        over: Option<&Image>,
        is_unwanted: &dyn Fn() -> bool,
        held: &mut dyn FnMut() -> Result<(), ApiError>,
    ) -> Result<(Taken, Stats), ApiError> {
        let said = memfd_create("taken", MemfdFlags::CLOEXEC).map(File::from);
        let mut said = said.map_err(|error| failed(&io::Error::from(error)))?;
        let wanted = Wanted {
            id: id.as_str(),
            over: over.map(|over| over.manifest().id.as_str()),
            files: [writer.memory(), &said],
            is_unwanted,
        };
        let stats = self.monitor.snapshot(wanted, held)?;
        let mut bytes = Vec::new();
        said.rewind()
            .and_then(|()| said.take(TAKEN_MAX).read_to_end(&mut bytes))
            .map_err(|error| failed(&error))?;
        let taken = Taken::decode(&bytes).map_err(|error| failed(&error))?;
        if (taken.ram_mib, taken.vcpus) != (self.memory_mib, self.vcpus) {
            let what = "the monitor took a snapshot of another machine than it has";
            return Err(ApiError::new(ErrorKind::Internal, what));
        }
        Ok((taken, stats))
    }
}

impl Vm {
    /// Writes down which pages of its image the machine has touched, if nobody has before. That is a hint for
    /// those that start from it later.
    pub(in crate::daemon::sandboxes) fn note_working_set(&self) -> Result<(), VmError> {
        let Some(image) = &self.image else {
            return Ok(());
        };
        let (path, new) = (
            image.join(WorkingSet::FILE),
            image.join(format!("{}.new", WorkingSet::FILE)),
        );
        if path.exists() {
            return Ok(());
        }
        let failed = |source| VmError::Monitor { source };
        let said = memfd_create("touched", MemfdFlags::CLOEXEC).map(File::from);
        let mut said = said.map_err(|error| failed(error.into()))?;
        self.monitor.touched(&said)?;
        let mut bytes = Vec::new();
        said.rewind()
            .and_then(|()| said.take(WorkingSet::BYTES_MAX).read_to_end(&mut bytes))
            .map_err(failed)?;
        // Not that anything depends on it.
        let pages = usize::try_from(self.memory_bytes() / 4096).unwrap_or(usize::MAX);
        WorkingSet::decode(&bytes, pages).map_err(|error| failed(io::Error::other(error)))?;
        fs::write(&new, &bytes)
            .and_then(|()| fs::rename(&new, &path))
            .map_err(VmError::file(&path))
    }
}

/// What a machine is that goes on from an image: read once, for however many do.
pub(in crate::daemon::sandboxes) struct GoesOn {
    pub(super) dir: PathBuf,
    pub(super) id: SnapshotId,
    pub(in crate::daemon::sandboxes) memory_mib: u32,
    pub(in crate::daemon::sandboxes) vcpus: u8,
    servers: Vec<(String, ServerState)>,
    // Until they have started: then they have the files open.
    _hold: SnapshotHold,
}

impl GoesOn {
    /// Reads the image of a snapshot, all but its memory.
    ///
    /// # Errors
    /// [`VmError::Image`].
    pub(in crate::daemon::sandboxes) fn of(
        images: &Path,
        id: &SnapshotId,
        hold: SnapshotHold,
    ) -> Result<Self, VmError> {
        let dir = images.join(id.as_str());
        let unusable = |source: Box<dyn std::error::Error + Send + Sync>| VmError::Image {
            snapshot: id.clone(),
            source,
        };
        let image = Image::open(&dir).map_err(|error| unusable(error.into()))?;
        let saved = saved::decode(image.extra());
        let saved =
            saved.ok_or_else(|| unusable("its file systems' part cannot be read".into()))?;
        let state = |(tag, bytes): (String, Vec<u8>)| match ServerState::from_bytes(&bytes) {
            Ok(state) => Ok((tag, state)),
            Err(error) => Err(unusable(error.into())),
        };
        Ok(Self {
            id: id.clone(),
            memory_mib: image.manifest().ram_mib,
            vcpus: image.manifest().vcpus,
            servers: saved.into_iter().map(state).collect::<Result<_, _>>()?,
            dir,
            _hold: hold,
        })
    }

    /// What the server of a file system knew.
    pub(super) fn server(&self, tag: &str) -> Option<&ServerState> {
        let mut found = self.servers.iter().filter(|(of, _)| of == tag);
        found.next().map(|(_, state)| state)
    }
}
