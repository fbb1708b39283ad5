//! What is done to the oldest file, through a mount and by the engine's own calls.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use floe_fs::View;
use floe_fs::dispatch::{Dispatch, OpError, OpenMode};
use floe_fs::id::Ino;

use super::{OLD, SMALL};

/// What is done to the oldest file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Stat,
    ReadSmall,
    ReadLarge,
    Missing,
    List,
}

impl Operation {
    pub(super) const ALL: [Self; 5] = [
        Self::Stat,
        Self::ReadSmall,
        Self::ReadLarge,
        Self::Missing,
        Self::List,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stat => "stat",
            Self::ReadSmall => "read 4 KiB of a 4 KiB file",
            Self::ReadLarge => "read 4 KiB of a 64 KiB file",
            Self::Missing => "stat a missing name",
            Self::List => "list its directory of 100",
        }
    }

    /// Through a mount.
    pub(super) fn on_mount(self, root: &Path, buffer: &mut [u8]) -> io::Result<()> {
        let old = root.join("old");
        let read = |name: &str, buffer: &mut [u8]| {
            let file = File::open(old.join(name))?;
            file.read_exact_at(buffer, 0)
        };
        match self {
            Self::Stat => fs::symlink_metadata(old.join("small")).map(drop),
            Self::ReadSmall => read("small", buffer),
            Self::ReadLarge => read("large", buffer),
            Self::Missing => match fs::symlink_metadata(old.join("nothing")) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
                Ok(_) => Err(io::Error::other("a missing name was found")),
            },
            Self::List => match fs::read_dir(old)?.count() as u64 {
                OLD => Ok(()),
                other => Err(io::Error::other(format!("{other} names in the directory"))),
            },
        }
    }

    /// By the engine's own operations, as a mount would call them.
    pub(super) fn on_view(self, view: &View, buffer: &mut Vec<u8>) -> Result<(), OpError> {
        let find = |parent: Ino, name: &str| match view.lookup(parent, name.as_bytes())? {
            Some(entry) => Ok(entry.ino),
            None => Err(OpError::NoEntry { parent }),
        };
        let mode = OpenMode::Read;
        let old = find(Ino::ROOT, "old")?;
        match self {
            Self::Stat => view.getattr(find(old, "small")?).map(drop),
            Self::ReadSmall | Self::ReadLarge => {
                let name = if self == Self::ReadSmall {
                    "small"
                } else {
                    "large"
                };
                let ino = find(old, name)?;
                view.open(ino, mode)?;
                view.read(ino, 0, SMALL, buffer)?;
                view.release(ino, mode);
                Ok(())
            }
            Self::Missing => match view.lookup(old, b"nothing")? {
                Some(entry) => Err(OpError::Exists { parent: entry.ino }),
                None => Ok(()),
            },
            Self::List => view.readdir(old, 0, true, &mut |_| true),
        }
    }
}
