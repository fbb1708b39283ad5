//! Making images durable in the background, one after the other.
//!
//! Invariants: an image that was handed over is `sealed` when the daemon has ended in an orderly way, unless that
//! failed to the last; the next daemon looks at those that are neither `sealed` nor `failed`. What is `sealed` is durable with its files
//! and with its row.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use floe_fs::id::SnapshotId;
use floe_fs::{DeleteSelection, Fidelity, ImageError, ImageState, SnapshotFilter, Store};
use floe_vmm::snapshot::image::{Image, OpenError};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::Answer;

/// Images that wait to be sealed. Whoever takes more waits: a crash would lose all of them.
const WAITING_MAX: usize = 16;
/// How long to wait until what could not be sealed is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// An image that is captured, and where the one is that it was made over.
struct Job {
    id: SnapshotId,
    parent: Option<PathBuf>,
}

/// The thread that seals.
#[derive(Default)]
pub(super) struct Sealer {
    // Made with the first image.
    jobs: OnceLock<Mutex<Option<SyncSender<Job>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Sealer {
    /// Has an image sealed. When there is no thread for it, it is done at once.
    pub(super) fn push(&self, store: &Arc<Store>, id: SnapshotId, parent: Option<PathBuf>) {
        let job = Job { id, parent };
        let jobs = self
            .jobs
            .get_or_init(|| Mutex::new(self.start(store, AGAIN)));
        // Not under the lock, which the end takes too.
        let jobs = jobs.lock().clone();
        let unsent = match jobs {
            Some(jobs) => jobs.send(job).err().map(|unsent| unsent.0),
            None => Some(job),
        };
        if let Some(job) = unsent.and_then(|job| seal(store, job)) {
            warn!(snapshot = %job.id, "an image is not durable");
        }
    }

    fn start(&self, store: &Arc<Store>, again: Duration) -> Option<SyncSender<Job>> {
        let (jobs, todo) = sync_channel(WAITING_MAX);
        let store = Arc::clone(store);
        let thread = std::thread::Builder::new().name("floe-seal".to_owned());
        match thread.spawn(move || work(&store, &todo, again)) {
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

/// Seals what comes, and what could not be sealed again and again: a disk that is full has room later.
fn work(store: &Store, todo: &Receiver<Job>, again: Duration) {
    let mut unsealed: Vec<Job> = Vec::new();
    loop {
        let next = match unsealed.is_empty() {
            true => todo.recv().map_err(RecvTimeoutError::from),
            false => todo.recv_timeout(again),
        };
        match next {
            Ok(job) => unsealed.extend(seal(store, job)),
            Err(error) => {
                unsealed = unsealed
                    .into_iter()
                    .filter_map(|job| seal(store, job))
                    .collect();
                if error == RecvTimeoutError::Disconnected {
                    break;
                }
            }
        }
    }
    for job in unsealed {
        warn!(snapshot = %job.id, "an image is not durable: the next daemon will not use it");
    }
}

/// Seals an image; returns what has to be tried again.
fn seal(store: &Store, job: Job) -> Option<Job> {
    let dir = store.images_dir().join(job.id.as_str());
    let parent = job.parent.as_deref().and_then(|dir| Image::open(dir).ok());
    let warn = |error: &dyn std::error::Error| {
        warn!(snapshot = %job.id, %error, "an image cannot be made durable yet");
    };
    let sealed = match Image::open(&dir) {
        Ok(mut image) => image.seal(parent.as_ref()).map_err(|error| warn(&error)),
        Err(error @ OpenError::Read { .. }) => {
            warn(&error);
            Err(())
        }
        Err(error) => {
            // Either it went with its snapshot, or it is damaged, and will not get better.
            warn!(snapshot = %job.id, %error, "an image cannot be made durable");
            note(store, &job.id, ImageState::Failed);
            return None;
        }
    };
    // Files and memory are nothing without one another.
    let sealed = sealed.and_then(|()| store.sync().map_err(|error| warn(&error)));
    let state = match sealed {
        Ok(()) => ImageState::Sealed,
        Err(()) => ImageState::Captured,
    };
    let is_there = note(store, &job.id, state);
    (sealed.is_err() && is_there).then_some(job)
}

/// Notes how far an image has come. Whether its snapshot is there.
pub(super) fn note(store: &Store, id: &SnapshotId, state: ImageState) -> bool {
    match store.set_image(id, state) {
        Ok(()) => return true,
        Err(ImageError::NoSnapshot { .. }) => {
            info!(snapshot = %id, "an image went with its snapshot");
            return false;
        }
        Err(error) => warn!(snapshot = %id, %error, "the state of an image is not recorded"),
    }
    true
}

/// Finds out what became of images that a daemon left behind. A snapshot whose memory was still being captured
/// goes: nobody was told of it, and it has not what was asked for.
pub(super) fn recover(store: &Store) -> Answer<()> {
    let filter = SnapshotFilter {
        fidelity: Some(Fidelity::FilesystemMemory),
        ..SnapshotFilter::default()
    };
    for snapshot in store.snapshots(&filter)? {
        let Some(image) = snapshot
            .image
            .filter(|image| image.state != ImageState::Sealed)
        else {
            continue;
        };
        let left = sealed(&store.images_dir().join(snapshot.id.as_str()));
        info!(snapshot = %snapshot.id, state = image.state.word(), sealed = left.is_some(),
            "an image was left by a daemon");
        match left {
            Some(_) => {
                note(store, &snapshot.id, ImageState::Sealed);
            }
            None if image.state == ImageState::Capturing => {
                let these = DeleteSelection::These(vec![snapshot.id.to_string()]);
                // Somebody may have protected it meanwhile: then it has its files.
                if let Err(error) = store.delete_snapshots(&these, false) {
                    warn!(snapshot = %snapshot.id, %error, "a snapshot without its memory stays");
                    note(store, &snapshot.id, ImageState::Failed);
                }
            }
            None => {
                note(store, &snapshot.id, ImageState::Failed);
            }
        }
    }
    Ok(())
}

/// The image, if it is sealed: what is only in the page cache may be there in part after a power failure.
fn sealed(dir: &Path) -> Option<Image> {
    match Image::open(dir) {
        Ok(image) => Some(image).filter(Image::is_sealed),
        Err(error) => {
            warn!(image = %dir.display(), %error, "an image cannot be used");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use floe_fs::SnapshotOptions;
    use floe_fs::id::WorkspaceName;
    use floe_vmm::machine::memory::RamSize;
    use floe_vmm::snapshot::compat::Compat;
    use floe_vmm::snapshot::image::{ImageWriter, Taken};
    use floe_vmm::snapshot::pages::Pages;

    use super::*;

    const MIB: u32 = 64;

    /// A snapshot of `w` whose memory is being captured.
    fn snapshot(store: &Store) -> SnapshotId {
        let options = SnapshotOptions {
            memory: true,
            ..SnapshotOptions::default()
        };
        store.snapshot("w", &options).unwrap().id
    }

    fn image(store: &Store, id: &SnapshotId) -> Image {
        let ram = RamSize::from_mib(MIB).unwrap();
        let writer = ImageWriter::new(&store.images_dir(), id.as_str(), ram).unwrap();
        let taken = Taken {
            pages: Pages::none(usize::try_from(MIB).unwrap() << 8),
            ram_mib: MIB,
            vcpus: 1,
            host: Compat {
                vendor: "V".to_owned(),
                model: 1,
                kvm: "svm".to_owned(),
                kernel: "6".to_owned(),
                tsc_khz: 1,
                layout: 1,
            },
            created_at: 1,
            state: Vec::new(),
        };
        writer.capture(taken, None, Vec::new()).unwrap()
    }

    fn state(store: &Store, id: &SnapshotId) -> Option<ImageState> {
        let info = store.find_snapshot(id.as_str()).unwrap();
        info.image.map(|image| image.state)
    }

    fn new_store() -> (tempfile::TempDir, Arc<Store>) {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("store");
        Store::init(&dir).unwrap();
        let store = Store::open(&dir).unwrap();
        std::fs::create_dir(store.images_dir()).unwrap();
        let w = WorkspaceName::parse("w").unwrap();
        store.create_workspace(&w).unwrap();
        (scratch, store)
    }

    #[test]
    fn after_a_kill_what_is_sealed_stays_what_was_captured_fails_and_what_was_not_goes() {
        let (_scratch, store) = new_store();
        let never = snapshot(&store);
        let partly = snapshot(&store);
        std::fs::create_dir(store.images_dir().join(partly.as_str())).unwrap();
        let not_noted = snapshot(&store);
        drop(image(&store, &not_noted));
        let captured = snapshot(&store);
        drop(image(&store, &captured));
        note(&store, &captured, ImageState::Captured);
        let sealed = [snapshot(&store), snapshot(&store)];
        image(&store, &sealed[0]).seal(None).unwrap();
        image(&store, &sealed[1]).seal(None).unwrap();
        note(&store, &sealed[1], ImageState::Captured);

        recover(&store).unwrap();

        for gone in [&never, &partly, &not_noted] {
            assert!(store.find_snapshot(gone.as_str()).is_err(), "{gone}");
        }
        assert_eq!(state(&store, &captured), Some(ImageState::Failed));
        for sealed in &sealed {
            assert_eq!(state(&store, sealed), Some(ImageState::Sealed));
        }
        let left = std::fs::read_dir(store.images_dir()).unwrap();
        let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        let mut expected = sealed.map(|id| std::ffi::OsString::from(id.as_str()));
        expected.sort();
        assert_eq!(left, expected);
    }

    #[test]
    fn what_was_handed_over_is_sealed_when_the_daemon_has_ended() {
        let (_scratch, store) = new_store();
        let sealer = Sealer::default();
        let ids: Vec<SnapshotId> = (0..3).map(|_| snapshot(&store)).collect();
        for id in &ids {
            drop(image(&store, id));
            note(&store, id, ImageState::Captured);
            sealer.push(&store, id.clone(), None);
        }
        let gone = snapshot(&store);
        drop(image(&store, &gone));
        let these = DeleteSelection::These(vec![gone.to_string()]);
        store.delete_snapshots(&these, false).unwrap();
        sealer.push(&store, gone, None);
        sealer.finish();
        for id in &ids {
            assert_eq!(state(&store, id), Some(ImageState::Sealed));
            let dir = store.images_dir().join(id.as_str());
            Image::open(&dir).unwrap().verify().unwrap();
        }
        assert_eq!(std::fs::read_dir(store.images_dir()).unwrap().count(), 3);
    }

    #[test]
    fn what_cannot_be_sealed_stays_captured_and_is_sealed_when_that_is_over() {
        let (_scratch, store) = new_store();
        let sealer = Sealer::default();
        let jobs = sealer.start(&store, Duration::from_millis(20));
        assert!(sealer.jobs.set(Mutex::new(jobs)).is_ok());
        let (id, gone) = (snapshot(&store), snapshot(&store));
        for id in [&id, &gone] {
            let image = image(&store, id);
            note(&store, id, ImageState::Captured);
            // Where its file is to be written stands something else.
            std::fs::create_dir(image.dir().join("image.new")).unwrap();
            sealer.push(&store, id.clone(), None);
        }
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(state(&store, &id), Some(ImageState::Captured));
        let these = DeleteSelection::These(vec![gone.to_string()]);
        store.delete_snapshots(&these, false).unwrap();
        std::fs::remove_dir(store.images_dir().join(id.as_str()).join("image.new")).unwrap();
        sealer.finish();
        assert_eq!(state(&store, &id), Some(ImageState::Sealed));
        assert_eq!(std::fs::read_dir(store.images_dir()).unwrap().count(), 1);
    }
}
