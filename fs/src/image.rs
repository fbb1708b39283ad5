//! What the store knows of images of machines' memory: which snapshots have one, and where it is.
//!
//! An image is the directory `images/<id of the snapshot>` (docs/format.md, section 11), which somebody else
//! fills and reads. Invariant: a directory whose snapshot is gone or has no image is removed, at once when the
//! snapshot is deleted, else when the store is opened.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tracing::warn;

use crate::id::SnapshotId;

/// How far an image has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageState {
    /// Machines can start from it; a power failure would lose it.
    Captured = 0,
    /// It is durable, and damage in it would be found.
    Sealed = 1,
    /// There is none: it could not be finished.
    Failed = 2,
    /// The files are frozen, and memory is still being written down.
    Capturing = 3,
}

impl ImageState {
    pub(crate) fn of(number: u8) -> Option<Self> {
        [Self::Captured, Self::Sealed, Self::Failed, Self::Capturing]
            .into_iter()
            .find(|state| *state as u8 == number)
    }

    /// As it is shown.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Captured => "captured",
            Self::Sealed => "sealed",
            Self::Failed => "failed",
            Self::Capturing => "capturing",
        }
    }
}

/// Where a store keeps images.
pub(crate) fn dir(store: &Path) -> PathBuf {
    store.join("images")
}

/// Removes the images of snapshots that were deleted. What cannot be removed now is found when the store is
/// opened again.
pub(crate) fn remove<'a>(store: &Path, ids: impl IntoIterator<Item = &'a SnapshotId>) {
    let images = dir(store);
    for id in ids {
        remove_one(&images.join(id.as_str()));
    }
}

fn remove_one(image: &Path) {
    match std::fs::remove_dir_all(image) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            warn!(image = %image.display(), %error, "an image stays until the store is opened again");
        }
        _ => {}
    }
}

/// Bytes on the disk that removing the images of snapshots would give back: of files that no other image has a name
/// of.
pub(crate) fn would_free<'a>(
    store: &Path,
    ids: impl IntoIterator<Item = &'a SnapshotId>,
) -> io::Result<u64> {
    let images = dir(store);
    // By device and inode: bytes, and names that are left besides those seen.
    let mut files: HashMap<(u64, u64), (u64, u64)> = HashMap::new();
    for id in ids {
        let entries = match std::fs::read_dir(images.join(id.as_str())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let meta = match entry?.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                meta => meta?,
            };
            let file = files.entry((meta.dev(), meta.ino()));
            let (_, left) = file.or_insert((meta.blocks() * 512, meta.nlink()));
            *left = left.saturating_sub(1);
        }
    }
    let freed = files.into_values().filter(|(_, left)| *left == 0);
    Ok(freed.map(|(bytes, _)| bytes).sum())
}

/// Removes every image that is not one of `known`.
pub(crate) fn sweep(store: &Path, known: &HashSet<SnapshotId>) -> io::Result<()> {
    let entries = match std::fs::read_dir(dir(store)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let id = name.to_str().and_then(SnapshotId::parse);
        if !id.is_some_and(|id| known.contains(&id)) {
            tracing::info!(image = %entry.path().display(), "removing an image that belongs to nothing");
            remove_one(&entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_that_belong_to_nothing_are_swept_and_others_stay() {
        let store = tempfile::tempdir().unwrap();
        sweep(store.path(), &HashSet::new()).unwrap();
        let known = SnapshotId::random().unwrap();
        let gone = SnapshotId::random().unwrap();
        for name in [known.as_str(), gone.as_str(), "new"] {
            std::fs::create_dir_all(dir(store.path()).join(name)).unwrap();
        }
        sweep(store.path(), &HashSet::from([known.clone()])).unwrap();
        let left = std::fs::read_dir(dir(store.path())).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [known.as_str()]);
        remove(store.path(), [&known, &gone]);
        assert_eq!(std::fs::read_dir(dir(store.path())).unwrap().count(), 0);
    }

    #[test]
    fn what_several_images_have_is_free_when_all_of_them_go() {
        let store = tempfile::tempdir().unwrap();
        let ids: Vec<_> = (0..3).map(|_| SnapshotId::random().unwrap()).collect();
        let place = |id: &SnapshotId| dir(store.path()).join(id.as_str());
        for id in &ids[..2] {
            std::fs::create_dir_all(place(id)).unwrap();
            std::fs::write(place(id).join("memory"), [1; 100_000]).unwrap();
        }
        std::fs::hard_link(
            place(&ids[0]).join("memory"),
            place(&ids[1]).join("memory.1"),
        )
        .unwrap();
        let one = std::fs::metadata(place(&ids[0]).join("memory"))
            .unwrap()
            .blocks()
            * 512;
        let freed = |ids: &[SnapshotId]| would_free(store.path(), ids).unwrap();
        assert_eq!(freed(&ids[..1]), 0);
        assert_eq!(freed(&ids[1..]), one);
        assert_eq!(freed(&ids), 2 * one);
        // And so it is when the other has gone.
        remove(store.path(), &ids[1..2]);
        assert_eq!(freed(&ids[..1]), one);
    }

    #[test]
    fn states_are_what_they_are_stored_as() {
        use ImageState::{Captured, Capturing, Failed, Sealed};
        for (state, number) in [(Captured, 0), (Sealed, 1), (Failed, 2), (Capturing, 3)] {
            assert_eq!(state as u8, number);
            assert_eq!(ImageState::of(number), Some(state));
        }
        assert_eq!(ImageState::of(4), None);
    }
}
