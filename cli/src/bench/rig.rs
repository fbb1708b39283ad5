//! A store of its own with a mounted workspace, in this process, as the daemon would have it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use floe_fs::dispatch::Dispatch;
use floe_fs::dispatch::fuser::{Mount, MountError, MountOptions};
use floe_fs::id::{SnapshotId, WorkspaceName};
use floe_fs::{Attachment, SnapshotInfo, SnapshotOptions, Store, View};

use super::error::{BenchError, Step};
use super::lab::Lab;
use super::room::{Room, complain};

/// The workspace that benches measure.
pub(super) const WORKSPACE: &str = "w";

/// How long an unmounted file system may take to end.
const END_WAIT: Duration = Duration::from_secs(10);
/// How often, and how long apart, unmounting what is in use is tried.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// Checks a name that a bench made up.
pub(super) fn workspace_name(text: &str) -> Result<WorkspaceName, BenchError> {
    WorkspaceName::parse(text).step("name a workspace")
}

/// A mounted view. Dropping it unmounts and closes the view, and so drops what it and the kernel
/// had cached.
pub(super) struct Mounted {
    /// The view.
    pub(super) view: Arc<View>,
    attachment: Option<Attachment>,
    mount: Mount,
    store: Arc<Store>,
    dir: PathBuf,
}

impl Mounted {
    /// Opens a workspace and mounts it.
    pub(super) fn live(
        store: &Arc<Store>,
        workspace: &str,
        dir: &Path,
    ) -> Result<Self, BenchError> {
        let view = store.open_live(workspace).step("open the workspace")?;
        Self::new(store, view, workspace, dir)
    }

    fn new(
        store: &Arc<Store>,
        view: Arc<View>,
        label: &str,
        dir: &Path,
    ) -> Result<Self, BenchError> {
        let root = rustix::process::geteuid().is_root();
        let options = MountOptions {
            read_only: view.is_frozen(),
            others_write: false,
            threads: MountOptions::default_threads(),
            source: format!("floe:{}:{label}", store.id()),
            allow_other: root,
            trusted: root,
            id_shift: None,
        };
        let dispatch: Arc<dyn Dispatch> = view.clone();
        let mount = Mount::new(dispatch, dir, &options, &mut |_| ()).step("mount the workspace")?;
        let attachment = view.attach(mount.kernel_cache());
        Ok(Self {
            view,
            attachment: Some(attachment),
            mount,
            store: store.clone(),
            dir: dir.to_owned(),
        })
    }

    /// Where it is mounted.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn unmount(&self) -> Result<(), MountError> {
        // The kernel closes files a little after their programs did.
        for _ in 0..BUSY_TRIES {
            match self.mount.unmount(&self.dir, false) {
                Err(MountError::Busy { .. }) => std::thread::sleep(BUSY_PAUSE),
                other => return other,
            }
        }
        self.mount.unmount(&self.dir, true)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        match self.unmount() {
            Ok(()) if self.mount.wait_end(END_WAIT) => {}
            Ok(()) => complain(&format!("{} is still in use", self.dir.display())),
            Err(error) => complain(&format!("{error}")),
        }
        self.attachment = None;
        self.store.close_view(&self.view);
    }
}

/// A new store with one workspace that is mounted. Dropping it unmounts and removes it all.
pub(super) struct Rig {
    /// The mounted workspace [`WORKSPACE`].
    pub(super) mounted: Mounted,
    /// The store.
    pub(super) store: Arc<Store>,
    /// Where both are; dropped last.
    pub(super) room: Room,
}

impl Rig {
    /// Makes a store, has `fill` make [`WORKSPACE`] in it, and mounts that.
    pub(super) fn new(
        lab: &Lab<'_>,
        name: &str,
        fill: impl FnOnce(&Store) -> Result<(), BenchError>,
    ) -> Result<Self, BenchError> {
        let room = lab.room(name)?;
        let store = new_store(&room)?;
        fill(&store)?;
        let dir = room.dir("mnt").step("make a mount point")?;
        Ok(Self {
            mounted: Mounted::live(&store, WORKSPACE, &dir)?,
            store,
            room,
        })
    }

    /// A path in the mounted workspace.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.mounted.dir().join(name)
    }

    /// Takes a snapshot.
    pub(super) fn snapshot(&self) -> Result<SnapshotInfo, BenchError> {
        let taken = self.store.snapshot(WORKSPACE, &SnapshotOptions::default());
        taken.step("take a snapshot")
    }

    /// Writes what is in memory to disk, so that it does not happen while something is measured.
    pub(super) fn settle(&self) -> Result<(), BenchError> {
        self.store.sync().step("sync the store")
    }
}

/// Makes a store in a room and opens it.
pub(super) fn new_store(room: &Room) -> Result<Arc<Store>, BenchError> {
    let dir = room.path().join("store");
    Store::init(&dir).step("make a store")?;
    Store::open(&dir).step("open the store")
}

/// Opens a snapshot without mounting it.
pub(super) fn frozen(store: &Arc<Store>, id: &SnapshotId) -> Result<Arc<View>, BenchError> {
    store.open_frozen(id).step("open a snapshot")
}
