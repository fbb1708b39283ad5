//! A disk that remembers every write and every flush, to ask later what it would hold had the power
//! failed at any moment in between.
//!
//! A FUSE file system with one file, [`Recorder::image`], meant to be mounted through a loop device:
//! the host's own file system on it turns `fsync` into flushes as on a real disk. What a disk
//! promises is that everything written before a flush is kept; of later writes each 4 KiB may have
//! reached the platters or not, in any order. [`Recorder::after_power_loss`] draws such a state.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    Generation, INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use crate::random::Random;

const NAME: &str = "disk";
const FILE: INodeNo = INodeNo(2);
/// What a disk writes whole.
const SECTOR: usize = 4096;
const TTL: Duration = Duration::from_secs(3600);

enum Record {
    Write { offset: usize, data: Vec<u8> },
    Flush,
}

struct Disk {
    image: Vec<u8>,
    records: Vec<Record>,
}

/// The mounted disk. Dropping it unmounts it.
pub struct Recorder {
    dir: PathBuf,
    disk: Arc<Mutex<Disk>>,
    session: Option<BackgroundSession>,
}

fn locked(disk: &Mutex<Disk>) -> MutexGuard<'_, Disk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    /// An empty disk of `bytes` bytes, as a file in `dir`, an empty directory.
    ///
    /// # Panics
    /// When it cannot be mounted.
    #[must_use]
    #[track_caller]
    pub fn start(dir: &Path, bytes: usize) -> Self {
        let disk = Arc::new(Mutex::new(Disk {
            image: vec![0; bytes],
            records: Vec::new(),
        }));
        let served = Served(disk.clone());
        let session = fuser::spawn_mount(served, dir, &Config::default());
        Self {
            dir: dir.to_path_buf(),
            disk,
            session: Some(session.expect("a FUSE mount for the recorded disk")),
        }
    }

    /// The file that is the disk.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        self.dir.join(NAME)
    }

    /// Writes and flushes so far: a moment in the disk's life.
    #[must_use]
    pub fn now(&self) -> usize {
        locked(&self.disk).records.len()
    }

    /// What the disk holds if the power fails at a moment: everything before the last flush, and
    /// of what was written after it whatever chance says.
    ///
    /// # Panics
    /// When the moment has not come yet.
    #[must_use]
    pub fn after_power_loss(&self, moment: usize, random: &mut Random) -> Vec<u8> {
        let disk = locked(&self.disk);
        let records = &disk.records[..moment];
        let flushed = records
            .iter()
            .rposition(|record| matches!(record, Record::Flush))
            .unwrap_or(0);
        // Sometimes all or none of the rest, which chance alone would never give.
        let keep = [0, 1, 2, 2, 2, 3][random.index(6)];
        let mut image = vec![0; disk.image.len()];
        for (number, record) in records.iter().enumerate() {
            let Record::Write { offset, data } = record else {
                continue;
            };
            for (index, sector) in data.chunks(SECTOR).enumerate() {
                if number < flushed || random.below(4) < keep || keep == 3 {
                    let at = offset + index * SECTOR;
                    image[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        image
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(session) = self.session.take()
            && let Err(error) = session.umount_and_join()
        {
            let text = format!("unmounting the recorded disk: {error}");
            assert!(std::thread::panicking(), "{text}");
            eprintln!("{text}");
        }
    }
}

struct Served(Arc<Mutex<Disk>>);

impl Served {
    fn attr(&self, ino: INodeNo) -> FileAttr {
        let file = ino == FILE;
        let time = SystemTime::UNIX_EPOCH;
        let size = if file { locked(&self.0).image.len() } else { 0 };
        FileAttr {
            ino,
            size: size as u64,
            blocks: size as u64 / 512,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: if file {
                FileType::RegularFile
            } else {
                FileType::Directory
            },
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&TTL, &self.attr(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr(ino));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let attr = self.attr(ino);
        // Times do not matter; a disk has one size.
        if size.is_some_and(|size| size != attr.size) {
            reply.error(Errno::EPERM);
        } else {
            reply.attr(&TTL, &attr);
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let disk = locked(&self.0);
        let end = disk.image.len();
        let from = usize::try_from(offset).map_or(end, |from| from.min(end));
        let to = from.saturating_add(size as usize).min(end);
        reply.data(&disk.image[from..to]);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut disk = locked(&self.0);
        let place = usize::try_from(offset).ok();
        let place = place.and_then(|from| Some(from..from.checked_add(data.len())?));
        let Some(place) = place.filter(|place| place.end <= disk.image.len()) else {
            return reply.error(Errno::ENOSPC);
        };
        disk.image[place.clone()].copy_from_slice(data);
        disk.records.push(Record::Write {
            offset: place.start,
            data: data.to_vec(),
        });
        reply.written(u32::try_from(data.len()).unwrap_or(0));
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        locked(&self.0).records.push(Record::Flush);
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_flushed_is_kept_and_the_rest_may_be() {
        let write = |offset: usize, byte: u8| Record::Write {
            offset: offset * SECTOR,
            data: vec![byte; SECTOR],
        };
        let recorder = Recorder {
            dir: PathBuf::new(),
            disk: Arc::new(Mutex::new(Disk {
                image: vec![0; 4 * SECTOR],
                records: vec![
                    write(0, 1),
                    write(1, 1),
                    Record::Flush,
                    write(1, 2),
                    write(2, 2),
                ],
            })),
            session: None,
        };
        let mut random = Random::new(1);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let image = recorder.after_power_loss(5, &mut random);
            assert_eq!(image[0], 1);
            seen.insert((image[SECTOR], image[2 * SECTOR]));
        }
        let all = [(1, 0), (1, 2), (2, 0), (2, 2)];
        assert_eq!(seen, all.into());
        let early = recorder.after_power_loss(0, &mut random);
        assert!(early.iter().all(|&byte| byte == 0));
    }
}
