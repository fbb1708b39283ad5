//! A file system of its own in an image file: small enough to fill, or of a kind that the host's
//! is not.
//!
//! Needs root, a loop device and the Debian packages `e2fsprogs` and `xfsprogs`. Dropping a
//! [`Disk`] unmounts it; the loop device goes with the mount, the image with the directory it is
//! in.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};

use crate::command;

/// Longest time one of the tools may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A mounted image.
#[derive(Debug)]
pub struct Disk {
    dir: PathBuf,
}

impl Disk {
    /// An ext4 file system of `bytes` bytes, which has no reflink.
    ///
    /// # Panics
    /// When it cannot be made or mounted.
    #[must_use]
    #[track_caller]
    pub fn ext4(below: &Path, name: &str, bytes: u64) -> Self {
        // No blocks kept for root: full is full.
        let make = ["mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0"];
        Self::new(below, name, bytes, &make)
    }

    /// An XFS file system, which has reflink. XFS wants at least 300 MiB; the image is sparse.
    ///
    /// # Panics
    /// When it cannot be made or mounted.
    #[must_use]
    #[track_caller]
    pub fn xfs(below: &Path, name: &str, bytes: u64) -> Self {
        Self::new(below, name, bytes, &["mkfs.xfs", "-q", "-m", "reflink=1"])
    }

    #[track_caller]
    fn new(below: &Path, name: &str, bytes: u64, make: &[&str]) -> Self {
        let (image, dir) = (below.join(format!("{name}.img")), below.join(name));
        let file = File::create_new(&image).expect("an image file");
        file.set_len(bytes).expect("an image file");
        fs::create_dir(&dir).expect("a mount point");
        let mut tool = Command::new(make[0]);
        tool.args(&make[1..]).arg(&image);
        command::run(&mut tool, LIMIT).expect_code(0);
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).arg(&image).arg(&dir);
        command::run(&mut mount, LIMIT).expect_code(0);
        Self { dir }
    }

    /// Where it is mounted.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bytes in use.
    ///
    /// # Panics
    /// When the file system does not say.
    #[must_use]
    pub fn used(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.dir).expect("statvfs of the disk");
        (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    }

    /// Fills what is left with a file, which can be removed to make room again.
    ///
    /// # Panics
    /// When the disk fails otherwise than by being full.
    #[must_use]
    pub fn fill(&self) -> PathBuf {
        let path = self.dir.join("filling");
        let file = File::options().append(true).create(true).open(&path);
        let mut file = file.expect("a file to fill the disk with");
        for size in [1 << 20, 4096, 1] {
            let piece = vec![0xff; size];
            loop {
                let written = std::io::Write::write_all(&mut file, &piece)
                    .and_then(|()| if size == 1 { file.sync_all() } else { Ok(()) });
                match written {
                    Ok(()) if size == 1 => break,
                    Ok(()) => {}
                    Err(error) => {
                        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
                        break;
                    }
                }
            }
        }
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let give_up = Instant::now() + Duration::from_secs(5);
        loop {
            match unmount(&self.dir, UnmountFlags::empty()) {
                Ok(()) => return,
                Err(rustix::io::Errno::BUSY) if Instant::now() < give_up => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => {
                    let detached = unmount(&self.dir, UnmountFlags::DETACH);
                    let text = format!("unmounting {}: {error}", self.dir.display());
                    assert!(std::thread::panicking(), "{text} (detached: {detached:?})");
                    eprintln!("{text} (detached: {detached:?})");
                    return;
                }
            }
        }
    }
}
