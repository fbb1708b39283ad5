//! Disk space kept back, so that a full disk can be emptied: removing a file writes to the catalog
//! before it gives anything back.
//!
//! A file beside the catalog holds the space. A change that only removes things may have it once
//! the disk is full; until the file has its space again, nothing that adds to the store is accepted,
//! or it would take the room that the next removal needs.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FallocateFlags;

use crate::change::{Change, Row};
use crate::private::open_private;
use crate::sandbox::{SandboxRecord, SandboxState};

/// What is kept back. Copying the log back into the database, which makes the log's own space
/// free again, may need as much as a log has when that is due.
const BYTES: u64 = 16 << 20;

/// With less than this free a catalog may fail to open: its log and the log's index need some.
const TO_OPEN: u64 = 1 << 20;

/// The space kept back for a catalog.
pub(super) struct Reserve {
    /// Absent where the disk cannot keep space back.
    file: Option<File>,
    /// Whether the file has its space.
    held: AtomicBool,
}

impl Reserve {
    /// Takes the space, if there is that much.
    pub(super) fn open(catalog: &Path) -> Self {
        let opened = open_private(&catalog.with_file_name("reserve"));
        let mut reserve = Self {
            file: None,
            held: AtomicBool::new(true),
        };
        match opened.and_then(|file| take(&file).map(|held| (file, held))) {
            Ok((file, held)) => {
                reserve.file = Some(file);
                reserve.held = AtomicBool::new(held);
                if !held {
                    tracing::warn!("the disk is full: files can be removed, but nothing be added");
                }
            }
            Err(error) => tracing::warn!(%error, "no space is kept back for a full disk"),
        }
        reserve
    }

    /// Gives away what was kept back if the disk is so full that the catalog may fail to open; false
    /// if there was nothing, or no need.
    pub(super) fn make_room(catalog: &Path) -> bool {
        let given = open_private(&catalog.with_file_name("reserve")).and_then(|file| {
            let disk = rustix::fs::fstatvfs(&file)?;
            let needed = disk.f_bavail.saturating_mul(disk.f_frsize) < TO_OPEN;
            let kept = file.metadata()?.len() > 0;
            if needed && kept {
                file.set_len(0)?;
            }
            Ok(needed && kept)
        });
        given.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot give away what was kept back");
            false
        })
    }

    /// Gives the space away; false if it is given away already.
    pub(super) fn release(&self) -> bool {
        let Some(file) = &self.file else {
            return false;
        };
        if !self.held.swap(false, Ordering::Relaxed) {
            return false;
        }
        match file.set_len(0) {
            Ok(()) => {
                tracing::warn!("the disk is full: what was kept back goes to removals");
                true
            }
            Err(error) => {
                tracing::warn!(%error, "cannot give away what was kept back");
                false
            }
        }
    }

    /// Whether something may be added: takes the space back where it was given away.
    pub(super) fn may_add(&self) -> bool {
        let Some(file) = &self.file else {
            return true;
        };
        if !self.held.load(Ordering::Relaxed) {
            let held = take(file).unwrap_or_else(|error| {
                tracing::warn!(%error, "no space is kept back for a full disk any more");
                true
            });
            self.held.store(held, Ordering::Relaxed);
        }
        self.held.load(Ordering::Relaxed)
    }
}

/// Gives the file its space; false if the disk has not that much.
fn take(file: &File) -> io::Result<bool> {
    let meta = file.metadata()?;
    if meta.len() == BYTES && meta.blocks() * 512 >= BYTES {
        return Ok(true);
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, BYTES) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => {
            // What it got before it failed.
            file.set_len(0)?;
            Ok(false)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Whether a sandbox is on its way out, or has what it holds no longer: it must be possible to end one.
fn is_ending(sandbox: &SandboxRecord) -> bool {
    use SandboxState::{Failed, Stopped, Stopping};
    sandbox.deleted_at.is_some() || matches!(sandbox.state, Stopping | Stopped | Failed)
}

/// Whether a change removes something and adds nothing.
pub(super) fn only_removes(change: &Change) -> bool {
    let mut removes = false;
    for row in change.rows() {
        match row {
            Row::PutEntry { entry: None, .. }
            | Row::DropEntry { .. }
            | Row::DropEntries { .. }
            | Row::DropHost { .. }
            | Row::DropInode { .. }
            | Row::DropXattrs { .. }
            | Row::DropXattr { .. }
            | Row::DropSnapshot { .. }
            | Row::DropLayer { .. }
            | Row::LeaveLayer { .. }
            | Row::MoveInode { .. }
            | Row::MoveEntry { .. }
            | Row::DropInline { .. }
            | Row::DropExtent { .. }
            | Row::DropExtents { .. }
            | Row::DoomObject { .. }
            | Row::ForgetDoomed { .. }
            | Row::DoomLayer { .. }
            | Row::DeleteWorkspace { .. }
            | Row::DropMounts
            | Row::DropDangling
            | Row::DropMount { .. }
            | Row::DropRetention { .. }
            | Row::DropLabel { .. }
            | Row::DropSandbox { .. }
            | Row::DropTemplate { .. }
            // Or what is protected could not be deleted.
            | Row::ProtectSnapshot { protected: false, .. }
            // The end of an inode that an older layer has.
            | Row::PutInode { row: None, .. } => removes = true,
            Row::PutSandbox(sandbox) if is_ending(sandbox) => removes = true,
            Row::PutInode { row: Some(_), .. }
            | Row::MarkSandboxed { .. }
            | Row::SetPlace { .. }
            | Row::SetHostChanged { .. }
            | Row::PutXattr { value: None, .. }
            | Row::AddUsage { .. }
            | Row::SetQuota { .. }
            | Row::ReserveInos { .. }
            | Row::ReserveObjects { .. }
            | Row::PutSetting { value: None, .. }
            | Row::DropDamaged { .. }
            | Row::DropChecksum { .. }
            | Row::SetUsage { .. }
            | Row::SetElapsed { .. } => {}
            _ => return false,
        }
    }
    removes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_back_is_given_away_once_and_taken_again() {
        let scratch = tempfile::tempdir().unwrap();
        let reserve = Reserve::open(&scratch.path().join("catalog.db"));
        let len = || std::fs::metadata(scratch.path().join("reserve")).map(|meta| meta.len());
        assert_eq!(len().unwrap(), BYTES);
        assert!(reserve.may_add());
        assert!(reserve.release());
        assert_eq!(len().unwrap(), 0);
        assert!(!reserve.release());
        assert!(reserve.may_add());
        assert_eq!(len().unwrap(), BYTES);
    }

    #[test]
    fn only_what_removes_and_adds_nothing_may_have_it() {
        use crate::id::{Ino, LayerId, ObjectId};
        let (ino, layer) = (Ino(7), LayerId(1));
        // An unlinked directory of an older layer leaves nothing else to write when it goes.
        let ended = Row::PutInode {
            ino,
            layer,
            row: None,
        };
        let usage = Row::AddUsage {
            layer,
            bytes: -4096,
            inodes: -1,
        };
        let gone = Row::PutEntry {
            parent: ino,
            name: b"name"[..].into(),
            layer,
            entry: None,
        };
        let object = Row::AddObject {
            id: ObjectId(1),
            ino,
            layer,
        };
        let of = |rows: &[&Row]| {
            let mut change = Change::new();
            for row in rows {
                change.push((*row).clone());
            }
            only_removes(&change)
        };
        assert!(of(&[&gone]) && of(&[&usage, &gone]) && of(&[&ended]));
        assert!(of(&[&Row::DoomObject { id: ObjectId(1) }]));
        // What is protected can be deleted when that was taken back.
        let protect = |protected| Row::ProtectSnapshot {
            id: crate::id::SnapshotId::parse("0123456789abcdef").unwrap(),
            protected,
        };
        assert!(of(&[&protect(false)]) && !of(&[&protect(true)]));
        // Removes nothing; adds as well.
        assert!(!of(&[&usage]) && !of(&[&gone, &object]) && !of(&[]));
    }
}
