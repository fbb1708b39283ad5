//! The kernel's overlayfs, and fuse-overlayfs: a writable layer on a directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::{need_root, program, run};
use crate::bench::error::{BenchError, Step};
use crate::bench::room::{Room, complain};

/// Who makes the overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Kind {
    /// The kernel, by mount(2).
    Kernel,
    /// The program fuse-overlayfs, started anew for each mount.
    Fuse,
}

impl Kind {
    /// How it is called in a table.
    pub(in crate::bench) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel overlayfs",
            Self::Fuse => "fuse-overlayfs",
        }
    }

    /// Fails where it cannot be had.
    pub(in crate::bench) fn need(self) -> Result<(), BenchError> {
        need_root()?;
        match self {
            Self::Kernel => Ok(()),
            Self::Fuse => program("fuse-overlayfs", "fuse-overlayfs").map(drop),
        }
    }
}

/// A place for one overlay: its directories are made, nothing is mounted.
pub(in crate::bench) struct Place {
    options: String,
    dir: PathBuf,
}

impl Place {
    /// Makes the directories of one overlay on `lower`.
    pub(in crate::bench) fn new(room: &Room, name: &str, lower: &Path) -> Result<Self, BenchError> {
        let part = |part: &str| {
            let made = room.dir(&format!("{name}/{part}"));
            made.step("make the directories of an overlay")
        };
        let (upper, work, dir) = (part("upper")?, part("work")?, part("merged")?);
        Ok(Self {
            options: format!(
                "lowerdir={},upperdir={},workdir={}",
                lower.display(),
                upper.display(),
                work.display()
            ),
            dir,
        })
    }

    /// Where it will be mounted.
    pub(in crate::bench) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Mounts it.
    pub(in crate::bench) fn mount(&self, kind: Kind) -> Result<Overlay, BenchError> {
        match kind {
            Kind::Kernel => {
                let options =
                    std::ffi::CString::new(self.options.as_str()).step("mount an overlay")?;
                mount(
                    "floe-bench",
                    &self.dir,
                    "overlay",
                    MountFlags::empty(),
                    &*options,
                )
                .step("mount an overlay")?;
            }
            Kind::Fuse => run(Command::new("fuse-overlayfs")
                .args(["-o", &self.options])
                .arg(&self.dir))?,
        }
        Ok(Overlay {
            dir: self.dir.clone(),
        })
    }
}

/// A mounted overlay. Dropping it unmounts it.
pub(in crate::bench) struct Overlay {
    dir: PathBuf,
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let unmounted = match unmount(&self.dir, UnmountFlags::empty()) {
            Err(rustix::io::Errno::BUSY) => unmount(&self.dir, UnmountFlags::DETACH),
            other => other,
        };
        if let Err(error) = unmounted {
            complain(&format!("cannot unmount {}: {error}", self.dir.display()));
        }
    }
}
