//! Mounts whose server is gone: told from live ones, and taken out of the way.
//!
//! Invariant: nothing is ever unmounted but the very mount that was looked at. What somebody
//! mounted over it is not ours, and a mount that answers has a server.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::table::{FoundMount, every_mount, fusermount_unmount};

/// How long a mount may take to say that it is there. One whose server is stopped says nothing.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

impl FoundMount {
    /// Whether it is what one finds at its directory: still there, and nothing mounted over it.
    ///
    /// # Errors
    /// When the directory cannot be looked at, for example because it is inside a dead mount.
    pub fn is_on_top(&self) -> io::Result<bool> {
        match look(&self.dir) {
            Ok(stat) => Ok(self.is(&stat)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    fn is(&self, stat: &Statx) -> bool {
        // Before Linux 5.8 there is no number of the mount.
        let numbered = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
        (stat.stx_dev_major, stat.stx_dev_minor) == self.device
            && (!numbered || stat.stx_mnt_id == self.id)
    }

    /// Whether its server is gone. Only of use while it is on top.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        let (sender, answer) = std::sync::mpsc::channel();
        let dir = self.dir.clone();
        // In a thread of its own, because a server that is stopped never answers.
        let asking = std::thread::Builder::new()
            .name("floe-ask".to_owned())
            .spawn(move || {
                if sender.send(rustix::fs::statfs(&dir).map(drop)).is_err() {
                    tracing::debug!(dir = %dir.display(), "a mount answered too late");
                }
            });
        if let Err(error) = asking {
            tracing::warn!(%error, "cannot ask whether a mount is dead");
            return false;
        }
        answer.recv_timeout(ANSWER_WAIT) == Ok(Err(Errno::NOTCONN))
    }

    /// Takes it out of the way, even while processes are in it, if it is on top; false if not.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn detach(&self) -> io::Result<bool> {
        if !self.is_on_top()? {
            return Ok(false);
        }
        detach(&self.dir)?;
        Ok(true)
    }
}

/// Takes the topmost mount at a directory out of the way; that there is none is fine.
pub(super) fn detach(dir: &Path) -> io::Result<()> {
    match rustix::mount::unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(Errno::PERM) => fusermount_unmount(dir, true),
        other => Ok(other?),
    }
}

/// The mount that one finds at a directory, if the directory is the root of one.
///
/// # Errors
/// When the kernel's table cannot be read.
pub fn mount_at(dir: &Path) -> io::Result<Option<FoundMount>> {
    // Asked first, because reading the table takes as long as it is long, for each of many mounts.
    let Ok(stat) = look(dir) else {
        return Ok(None);
    };
    let root = StatxAttributes::MOUNT_ROOT;
    if stat.stx_attributes_mask.contains(root) && !stat.stx_attributes.contains(root) {
        return Ok(None);
    }
    let found = every_mount()?.into_iter().rev();
    let mut here = found.filter(|mount| mount.dir == dir);
    Ok(here.find(|mount| mount.is(&stat)))
}

/// Where the mount is that one finds at a directory, or would find if the directory were there.
pub(super) fn covering(dir: &Path) -> PathBuf {
    let root = StatxAttributes::MOUNT_ROOT;
    let is_root = |at: &&Path| look(at).is_ok_and(|stat| stat.stx_attributes.contains(root));
    dir.ancestors().find(is_root).unwrap_or(dir).to_owned()
}

/// What the kernel knows of a directory without asking the file system, whose server may be gone.
fn look(dir: &Path) -> rustix::io::Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    // Asked for nothing, a file system tells even those who may not use it; the kernel adds the rest.
    rustix::fs::statx(CWD, dir, flags, StatxFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_told_from_other_directories_and_lives() {
        let scratch = tempfile::tempdir().unwrap();
        assert_eq!(mount_at(scratch.path()).unwrap(), None);
        assert_eq!(mount_at(&scratch.path().join("none")).unwrap(), None);
        let proc = mount_at(Path::new("/proc")).unwrap().unwrap();
        assert_eq!(proc.kind, "proc");
        assert!(proc.is_on_top().unwrap() && !proc.is_dead());
        assert_eq!(covering(Path::new("/proc/none/x")), Path::new("/proc"));
        // Another mount at the same place is not this one.
        let covered = FoundMount {
            id: proc.id + 1_000_000,
            ..proc
        };
        assert!(!covered.is_on_top().unwrap());
        assert!(!covered.detach().unwrap());
    }
}
