//! Snapshots of machines with their memory, and machines that go on from them.
//!
//! Invariant: a snapshot that was asked for with memory has it, or there is none: what fails after its files were
//! frozen takes them away again; after a daemon that was killed the next does (`seal.rs`). A machine whose workspace is another than its root has no memory in its snapshots,
//! since they are of its root alone.

use std::fs::File;
use std::time::Duration;

use floe_fs::id::SnapshotId;
use floe_fs::{DeleteSelection, Fidelity, ImageState, SandboxState, SnapshotInfo, SnapshotOptions};
use tracing::warn;

use super::engine::Engine;
use super::entry::{Entry, Inner};
use super::life::lost;
use super::seal::note;
use super::spec::Spec;
use super::vm::{GoesOn, MemoryError, WithMemory};
use super::{Answer, Sandboxes};
use crate::error::{ApiError, ErrorKind};
use crate::store_dir::make_private_dir;
use crate::wire::sandbox::VmSpec;

/// How long a machine is held for somebody who does something else with its workspace.
const FREEZE_PATIENCE: Duration = Duration::from_millis(100);

/// A snapshot with memory, as somebody wants it.
pub(super) struct Wanted<'a> {
    pub(super) options: &'a SnapshotOptions,
    /// Whether it is only there to be forked.
    pub(super) to_fork: bool,
    /// Whether whoever wanted it is gone.
    pub(super) is_unwanted: &'a dyn Fn() -> bool,
    /// Called before anything can happen in the machine that is not in the snapshot.
    pub(super) before_it_goes_on: &'a dyn Fn(),
}

/// Whether snapshots of a sandbox have its memory.
pub(super) fn keeps_memory(inner: &Inner) -> Answer<bool> {
    let is_vm = matches!(
        inner.running.as_ref().map(|running| &running.engine),
        Some(Engine::Vm(_))
    );
    let vm = Spec::of(&inner.record)?.vm;
    Ok(is_vm && vm.is_some_and(|vm| vm.workspace.is_none()))
}

impl Sandboxes {
    /// Takes a snapshot of a machine that runs, with its memory. Given up when the sandbox is about to be ended.
    pub(super) fn with_memory(
        &self,
        entry: &Entry,
        inner: &mut Inner,
        workspace: &str,
        wanted: &Wanted<'_>,
    ) -> Answer<SnapshotInfo> {
        let images = self.images_dir()?;
        let id = SnapshotId::random().map_err(|error| {
            ApiError::new(ErrorKind::Failed, "the kernel has no random numbers").caused_by(&error)
        })?;
        let running = inner.running.as_ref().ok_or_else(|| lost(&entry.id))?;
        let Engine::Vm(vm) = &running.engine else {
            return Err(lost(&entry.id));
        };
        // Before anything is copied, or held.
        self.store
            .room_for_image(vm.memory_bytes())
            .map_err(|error| {
                let what = "there is no room for the memory of the virtual machine";
                ApiError::new(ErrorKind::Failed, what)
                    .caused_by(&error)
                    .hint("delete snapshots with `floe snap delete`, or see `floe du`")
            })?;
        inner.set(&self.store, SandboxState::Snapshotting, None)?;
        let options = SnapshotOptions {
            id: Some(id.clone()),
            memory: true,
            // The machine stands still meanwhile.
            patience: Some(FREEZE_PATIENCE),
            ..wanted.options.clone()
        };
        let freeze = || {
            let taken = match wanted.to_fork {
                true => self.store.snapshot_to_fork(workspace, &options)?,
                false => self.store.snapshot(workspace, &options)?,
            };
            (wanted.before_it_goes_on)();
            Ok(taken)
        };
        let is_unwanted = || entry.is_to_be_ended() || (wanted.is_unwanted)();
        let running = inner.running.as_ref().ok_or_else(|| lost(&entry.id))?;
        let taken = match &running.engine {
            Engine::Vm(vm) => {
                // Whoever boots from its files has them as if the machine had been switched off in an orderly way.
                self.write_back(&entry.id, &running.engine);
                vm.snapshot(&images, &id, &is_unwanted, freeze)
            }
            Engine::Process(_) => Err(MemoryError::Before(lost(&entry.id))),
        };
        // Whatever becomes of the row: the same lock is needed to find it behind.
        inner.put(&self.store, SandboxState::Running, None);
        match taken {
            Ok(taken) => self.captured(entry, &id, taken),
            Err(MemoryError::Before(error)) => Err(error),
            Err(MemoryError::After(taken, error)) => {
                self.take_away(&taken);
                Err(error)
            }
        }
    }

    /// Where images are, made if it is not there.
    fn images_dir(&self) -> Answer<std::path::PathBuf> {
        let images = self.store.images_dir();
        if images.exists() {
            return Ok(images);
        }
        // Or what is in it would be gone after a power failure, however durable itself.
        let made =
            make_private_dir(&images).and_then(|()| File::open(self.store.dir())?.sync_all());
        made.map_err(|error| super::unusable(&images, &error))?;
        Ok(images)
    }

    /// Notes an image, and has it sealed.
    fn captured(
        &self,
        entry: &Entry,
        id: &SnapshotId,
        taken: WithMemory<SnapshotInfo>,
    ) -> Answer<SnapshotInfo> {
        let WithMemory {
            frozen,
            parent,
            stats,
        } = taken;
        if let Err(error) = self.store.set_image(id, ImageState::Captured) {
            self.take_away(&frozen);
            let what = "the memory of the virtual machine is not recorded";
            return Err(ApiError::new(ErrorKind::Failed, what).caused_by(&error));
        }
        let held = stats.pause.as_micros();
        let mut said = format!(
            "memory of the snapshot {id}: held for {held} us, {} pages of it copied meanwhile, {} before",
            stats.residual, stats.precopied
        );
        if !stats.slowed.is_zero() {
            let slowed = stats.slowed.as_millis();
            said += &format!("; slowed down for {slowed} ms");
        }
        self.logs.note(&entry.id, "info", &said);
        self.sealer.push(&self.store, id.clone(), parent);
        Ok(self.store.find_snapshot(id.as_str())?)
    }

    /// Removes a snapshot that has not what was asked for, or that nobody has any use for.
    pub(super) fn take_away(&self, taken: &SnapshotInfo) {
        let these = DeleteSelection::These(vec![taken.id.to_string()]);
        if let Err(error) = self.store.delete_snapshots(&these, false) {
            warn!(snapshot = %taken.id, %error, "a snapshot that was to be removed stays");
            // Somebody has protected it meanwhile: then it has its files, and no memory.
            if taken.is_capturing() {
                note(&self.store, &taken.id, ImageState::Failed);
            }
        }
    }

    /// The snapshot whose memory a new sandbox goes on from, and what machine that makes it. None when it has
    /// none, or another machine was asked for: that boots with the snapshot's files.
    pub(super) fn memory_for(
        &self,
        snapshot: &SnapshotId,
        vm: &mut Option<VmSpec>,
    ) -> Answer<Option<GoesOn>> {
        let info = self.store.find_snapshot(snapshot.as_str())?;
        if info.fidelity != Fidelity::FilesystemMemory {
            return Ok(None);
        }
        if info.is_capturing() {
            let what = format!("the memory of the snapshot '{snapshot}' is still being written");
            return Err(ApiError::new(ErrorKind::Unavailable, what).hint("try again in a moment"));
        }
        let image = self.goes_on(&info)?;
        let asked = vm.get_or_insert_with(VmSpec::default);
        let same = asked
            .memory_mib
            .is_none_or(|asked| asked == image.memory_mib)
            && asked.vcpus.is_none_or(|asked| asked == image.vcpus)
            && asked.kernel.is_none()
            && asked.workspace.is_none();
        if same {
            (asked.memory_mib, asked.vcpus) = (Some(image.memory_mib), Some(image.vcpus));
        }
        Ok(same.then_some(image))
    }

    /// What machines need to go on from a snapshot.
    pub(super) fn goes_on(&self, snapshot: &SnapshotInfo) -> Answer<GoesOn> {
        // Rules may let it go as soon as another is taken.
        let hold = self.store.hold_snapshot(snapshot)?;
        Ok(GoesOn::of(&self.store.images_dir(), &snapshot.id, hold)?)
    }
}
