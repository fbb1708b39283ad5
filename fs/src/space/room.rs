//! How much may still be added to the disk of the store: below a *minimum* of free space nothing is,
//! so that what removes, and other users of the disk, have room to work with.
//!
//! Invariant: what was granted since the disk was last asked is less than what was free above the
//! minimum then, or the disk is asked again.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::contents::ContentsError;
use crate::dispatch::OpError;

/// The minimum where none was set: this part of the disk ...
const DEFAULT_PART: u64 = 100;
/// ... but no more than this.
const DEFAULT_MAX: u64 = 256 << 20;
/// Others fill the disk as well: what it says is believed so long.
const BELIEVED: Duration = Duration::from_millis(20);
/// More is not granted without asking.
const ONE_GRANT: i64 = 16 << 20;
/// No minimum was set.
const UNSET: u64 = u64::MAX;

/// What is left of a disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// Free to us.
    pub(crate) free: u64,
    /// What has to stay free.
    pub(crate) min_free: u64,
}

impl Left {
    /// What may be added.
    pub(crate) fn available(self) -> u64 {
        self.free.saturating_sub(self.min_free)
    }
}

/// Hands out the free space of the disk that has the objects.
#[derive(Debug)]
pub(crate) struct Room {
    dir: PathBuf,
    began: Instant,
    min_free: AtomicU64,
    /// Bytes that can be granted without asking the disk.
    margin: AtomicI64,
    /// When the disk was asked last, in microseconds since `began`.
    asked: AtomicU64,
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The minimum of a disk of that size where none was set.
fn default_min_free(disk: u64) -> u64 {
    (disk / DEFAULT_PART).min(DEFAULT_MAX)
}

impl Room {
    /// `min_free`: bytes that have to stay free, if somebody said so.
    pub(crate) fn new(dir: &Path, min_free: Option<u64>) -> Self {
        Self {
            dir: dir.to_owned(),
            began: Instant::now(),
            min_free: AtomicU64::new(min_free.unwrap_or(UNSET)),
            margin: AtomicI64::new(0),
            asked: AtomicU64::new(0),
        }
    }

    /// Sets how many bytes have to stay free; none for what is usual.
    pub(crate) fn set_min_free(&self, min_free: Option<u64>) {
        self.min_free
            .store(min_free.unwrap_or(UNSET), Ordering::Relaxed);
        self.margin.store(0, Ordering::Relaxed);
    }

    /// Asks the disk.
    pub(crate) fn left(&self) -> Result<Left, ContentsError> {
        let disk = rustix::fs::statvfs(&self.dir).map_err(|errno| ContentsError::Directory {
            action: "look at the disk of",
            source: errno.into(),
        })?;
        let min_free = match self.min_free.load(Ordering::Relaxed) {
            UNSET => default_min_free(disk.f_blocks.saturating_mul(disk.f_frsize)),
            set => set,
        };
        let free = match disk.f_blocks {
            // It does not say: some file systems in memory have no limit of their own.
            0 => u64::MAX,
            _ => disk.f_bavail.saturating_mul(disk.f_frsize),
        };
        Ok(Left { free, min_free })
    }

    /// Grants that many bytes, if so many may be added.
    ///
    /// # Errors
    /// [`OpError::NoSpace`]; or the disk cannot be asked.
    pub(crate) fn take(&self, bytes: u64) -> Result<(), OpError> {
        let now = micros(self.began.elapsed());
        let fresh = now.saturating_sub(self.asked.load(Ordering::Relaxed)) < micros(BELIEVED);
        let small = i64::try_from(bytes)
            .ok()
            .filter(|&bytes| bytes <= ONE_GRANT);
        if fresh
            && let Some(bytes) = small
            && self.margin.fetch_sub(bytes, Ordering::Relaxed) >= bytes
        {
            return Ok(());
        }
        let left = self.left()?;
        if left.available() < bytes {
            self.margin.store(0, Ordering::Relaxed);
            return Err(OpError::NoSpace {
                free: left.free,
                min_free: left.min_free,
            });
        }
        // What others were granted meanwhile may not be in the answer: half of it is for those.
        let margin = i64::try_from((left.available() - bytes) / 2).unwrap_or(i64::MAX);
        self.margin.store(margin, Ordering::Relaxed);
        self.asked.store(now, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_minimum_is_a_part_of_the_disk_and_never_much() {
        assert_eq!(default_min_free(100 << 20), 1 << 20);
        assert_eq!(default_min_free(10 << 40), DEFAULT_MAX);
        assert_eq!(default_min_free(0), 0);
    }

    #[test]
    fn nothing_is_granted_that_the_minimum_needs() {
        let dir = tempfile::tempdir().unwrap();
        let room = Room::new(dir.path(), Some(0));
        let free = room.left().unwrap().free;
        assert!(free > 0);
        room.take(1).unwrap();
        assert!(room.take(free.saturating_mul(2)).is_err());
        room.set_min_free(Some(u64::MAX - 1));
        let refused = room.take(1);
        assert!(
            matches!(refused, Err(OpError::NoSpace { .. })),
            "{refused:?}"
        );
        room.set_min_free(None);
        room.take(1).unwrap();
    }

    /// Each grant is small enough, and all of them together are not.
    #[test]
    fn many_small_grants_end_where_one_large_one_does() {
        let dir = tempfile::tempdir().unwrap();
        let room = Room::new(dir.path(), Some(0));
        let part = room.left().unwrap().free / 4 + 1;
        let granted = (0..16).take_while(|_| room.take(part).is_ok()).count();
        // What is granted and not used is free again at the next question: but never more at once.
        assert!(granted > 0);
        assert!(room.margin.load(Ordering::Relaxed) <= i64::try_from(part * 4).unwrap());
    }
}
