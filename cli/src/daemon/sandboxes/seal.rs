//! Making images durable in the background, one after the other.
//!
//! Invariant: an image that was handed over is `sealed` or `failed` when the daemon has ended in an orderly way;
//! after another end, the next daemon looks at those that are neither.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use floe_fs::id::SnapshotId;
use floe_fs::{Fidelity, ImageError, ImageState, SnapshotFilter, Store};
use floe_vmm::snapshot::image::Image;
use parking_lot::Mutex;
use tracing::{info, warn};

use super::Answer;

/// An image that is captured, and where the one is that it was made over.
struct Job {
    id: SnapshotId,
    image: Image,
    parent: Option<PathBuf>,
}

/// The thread that seals.
#[derive(Default)]
pub(super) struct Sealer {
    // Made with the first image.
    jobs: OnceLock<Mutex<Option<Sender<Job>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Sealer {
    /// Has an image sealed. When there is no thread for it, it is done at once.
    pub(super) fn push(
        &self,
        store: &Arc<Store>,
        id: SnapshotId,
        image: Image,
        parent: Option<PathBuf>,
    ) {
        let job = Job { id, image, parent };
        let jobs = self.jobs.get_or_init(|| Mutex::new(self.start(store)));
        let sent = match &*jobs.lock() {
            Some(jobs) => jobs.send(job).map_err(|unsent| unsent.0),
            None => Err(job),
        };
        if let Err(job) = sent {
            seal(store, job);
        }
    }

    fn start(&self, store: &Arc<Store>) -> Option<Sender<Job>> {
        let (jobs, todo) = channel();
        let store = Arc::clone(store);
        let thread = std::thread::Builder::new().name("floe-seal".to_owned());
        let work = move |todo: Receiver<Job>| todo.into_iter().for_each(|job| seal(&store, job));
        match thread.spawn(move || work(todo)) {
            Ok(thread) => {
                *self.thread.lock() = Some(thread);
                Some(jobs)
            }
            Err(error) => {
                warn!(%error, "images are sealed by whoever takes them");
                None
            }
        }
    }

    /// Waits until everything that was handed over is done.
    pub(super) fn finish(&self) {
        if let Some(jobs) = self.jobs.get() {
            drop(jobs.lock().take());
        }
        let thread = self.thread.lock().take();
        if let Some(Err(_)) = thread.map(JoinHandle::join) {
            warn!("the thread that seals images panicked");
        }
    }
}

fn seal(store: &Store, job: Job) {
    let Job {
        id,
        mut image,
        parent,
    } = job;
    let parent = parent.and_then(|dir| Image::open(&dir).ok());
    let state = match image.seal(parent.as_ref()) {
        Ok(()) => ImageState::Sealed,
        Err(error) => {
            warn!(snapshot = %id, %error, "an image cannot be made durable");
            ImageState::Failed
        }
    };
    note(store, &id, state, own_bytes(&image));
}

/// What an image takes on disk, of which no other has a part.
pub(super) fn own_bytes(image: &Image) -> u64 {
    image.own_bytes().unwrap_or_else(|error| {
        warn!(image = %image.dir().display(), %error, "cannot tell how large an image is");
        0
    })
}

fn note(store: &Store, id: &SnapshotId, state: ImageState, bytes: u64) {
    match store.set_image(id, state, bytes) {
        Ok(()) => {}
        Err(ImageError::NoSnapshot { .. }) => {
            info!(snapshot = %id, "an image went with its snapshot")
        }
        Err(error) => warn!(snapshot = %id, %error, "the state of an image is not recorded"),
    }
}

/// Finds out what became of images that a daemon left behind as captured.
pub(super) fn recover(store: &Store) -> Answer<()> {
    let filter = SnapshotFilter {
        fidelity: Some(Fidelity::FilesystemMemory),
        ..SnapshotFilter::default()
    };
    for snapshot in store.snapshots(&filter)? {
        let captured = snapshot
            .image
            .is_some_and(|image| image.state == ImageState::Captured);
        if captured {
            let state = left_as(&store.images_dir().join(snapshot.id.as_str()));
            let bytes = snapshot.image.map_or(0, |image| image.bytes);
            info!(snapshot = %snapshot.id, state = state.word(), "an image was left by a daemon");
            note(store, &snapshot.id, state, bytes);
        }
    }
    Ok(())
}

/// What is only in the page cache may be there in part after a power failure, so only what is sealed counts.
fn left_as(dir: &Path) -> ImageState {
    match Image::open(dir) {
        Ok(image) if image.is_sealed() => ImageState::Sealed,
        Ok(_) => ImageState::Failed,
        Err(error) => {
            warn!(image = %dir.display(), %error, "an image cannot be used");
            ImageState::Failed
        }
    }
}
