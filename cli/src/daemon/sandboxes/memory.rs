//! Snapshots of machines with their memory, and machines that go on from them.
//!
//! Invariant: a snapshot that was asked for with memory has it, or there is none: what fails after its files were
//! frozen takes them away again. A machine whose workspace is another than its root has no memory in its snapshots,
//! since they are of its root alone.

use floe_fs::id::SnapshotId;
use floe_fs::{DeleteSelection, Fidelity, ImageState, SandboxState, SnapshotInfo, SnapshotOptions};
use tracing::warn;

use super::engine::Engine;
use super::entry::{Entry, Inner};
use super::life::lost;
use super::seal::own_bytes;
use super::spec::Spec;
use super::vm::{MemoryError, WithMemory};
use super::{Answer, Sandboxes};
use crate::error::{ApiError, ErrorKind};
use crate::store_dir::make_private_dir;
use crate::wire::sandbox::VmSpec;

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
    /// Takes a snapshot of a machine that runs, with its memory. `before_it_goes_on` is called before anything
    /// can happen in it that is not in the snapshot.
    pub(super) fn with_memory(
        &self,
        entry: &Entry,
        inner: &mut Inner,
        workspace: &str,
        options: &SnapshotOptions,
        before_it_goes_on: &dyn Fn(),
    ) -> Answer<SnapshotInfo> {
        let images = self.store.images_dir();
        make_private_dir(&images).map_err(|error| super::unusable(&images, &error))?;
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
            ..options.clone()
        };
        let freeze = || {
            let taken = self.store.snapshot(workspace, &options)?;
            before_it_goes_on();
            Ok(taken)
        };
        let running = inner.running.as_ref().ok_or_else(|| lost(&entry.id))?;
        let taken = match &running.engine {
            Engine::Vm(vm) => vm.snapshot(&images, &id, freeze),
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

    /// Notes an image, and has it sealed.
    fn captured(
        &self,
        entry: &Entry,
        id: &SnapshotId,
        taken: WithMemory<SnapshotInfo>,
    ) -> Answer<SnapshotInfo> {
        let WithMemory {
            frozen,
            image,
            parent,
            stats,
        } = taken;
        let bytes = own_bytes(&image);
        if let Err(error) = self.store.set_image(id, ImageState::Captured, bytes) {
            self.take_away(&frozen);
            let what = "the memory of the virtual machine is not recorded";
            return Err(ApiError::new(ErrorKind::Failed, what).caused_by(&error));
        }
        let held = stats.pause.as_micros();
        let said = format!(
            "memory of the snapshot {id}: held for {held} us, {} pages of it copied meanwhile, {} before",
            stats.residual, stats.precopied
        );
        self.logs.note(&entry.id, "info", &said);
        self.sealer.push(&self.store, id.clone(), image, parent);
        Ok(self.store.find_snapshot(id.as_str())?)
    }

    /// Removes a snapshot that has not what was asked for.
    fn take_away(&self, taken: &SnapshotInfo) {
        let these = DeleteSelection::These(vec![taken.id.to_string()]);
        if let Err(error) = self.store.delete_snapshots(&these, false) {
            warn!(snapshot = %taken.id, %error, "a snapshot without its memory stays");
        }
    }

    /// The snapshot whose memory a new sandbox goes on from, and what machine that makes it. None when it has
    /// none, or another machine was asked for: that boots with the snapshot's files.
    pub(super) fn memory_for(
        &self,
        snapshot: &SnapshotId,
        vm: &mut Option<VmSpec>,
    ) -> Answer<Option<SnapshotId>> {
        let info = self.store.find_snapshot(snapshot.as_str())?;
        if info.fidelity != Fidelity::FilesystemMemory {
            return Ok(None);
        }
        let image = floe_vmm::snapshot::image::Image::open(
            &self.store.images_dir().join(snapshot.as_str()),
        );
        let image = image.map_err(|error| {
            let what = format!("the memory of the snapshot '{snapshot}' cannot be used");
            ApiError::new(ErrorKind::Failed, what).caused_by(&error)
        })?;
        let (ram_mib, vcpus) = (image.manifest().ram_mib, image.manifest().vcpus);
        let asked = vm.get_or_insert_with(VmSpec::default);
        let same = asked.memory_mib.is_none_or(|asked| asked == ram_mib)
            && asked.vcpus.is_none_or(|asked| asked == vcpus)
            && asked.kernel.is_none()
            && asked.workspace.is_none();
        if same {
            (asked.memory_mib, asked.vcpus) = (Some(ram_mib), Some(vcpus));
        }
        Ok(same.then_some(info.id))
    }
}
