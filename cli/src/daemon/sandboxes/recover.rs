//! After a daemon that was killed, or that ended: what its sandboxes are now.
//!
//! bubblewrap and the agent end with the daemon, so no sandbox has processes that can go on. What is
//! left of them is killed, and each row is made to say the truth: one that was running or paused is
//! `stopped` with its files; one that nobody was told of, or that was being ended, is removed.

use std::fs;
use std::io;

use floe_fs::{SandboxRecord, SandboxState};
use tracing::{info, warn};

use super::entry::Entry;
use super::process::{CgroupError, Cgroups, end_groups};
use super::spec::Spec;
use super::start::stopped_because;
use super::{Answer, Sandboxes, life};

/// Rows of killed sandboxes are kept so long, for whoever asks with an old key.
const KEPT_NS: i64 = 24 * 3600 * 1_000_000_000;

impl Sandboxes {
    /// See the module.
    pub(super) fn recover(&self) -> Answer<()> {
        self.end_leftovers();
        // No machine is left, so nothing of one is.
        let machines = self.vms_dir();
        match fs::remove_dir_all(&machines) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!(dir = %machines.display(), %error, "directories of virtual machines stay");
            }
            _ => {}
        }
        super::seal::recover(&self.store)?;
        self.forget_mount_point(super::base::WORKSPACE);
        for record in self.store.all_sandboxes()? {
            let id = record.id.clone();
            self.forget_mount_point(&id);
            match self.settle(record)? {
                Some(record) => {
                    if record.state == SandboxState::Stopped || record.state == SandboxState::Failed
                    {
                        self.expiry.set(&id, record.ends_at);
                    }
                    self.entries.lock().insert(id, Entry::new(record));
                }
                None => {
                    self.logs.remove(&id);
                    info!(sandbox = id, "removed a sandbox that was not to stay");
                }
            }
        }
        let entries = self.entries.lock();
        self.logs.remove_but(|id| entries.contains_key(id));
        drop(entries);
        self.forget_deleted();
        Ok(())
    }

    /// Forgets sandboxes that were killed long ago.
    pub(super) fn forget_deleted(&self) {
        let before = life::now().saturating_sub(KEPT_NS);
        if let Err(error) = self.store.forget_deleted_sandboxes(before) {
            warn!(%error, "rows of killed sandboxes stay");
        }
    }

    /// Kills what is left of processes.
    fn end_leftovers(&self) {
        let cgroups = match Cgroups::find(self.store.id()) {
            Ok(cgroups) => cgroups,
            // Then there never was a sandbox here.
            Err(CgroupError::None) => return,
            Err(error) => return warn!(%error, "cannot look for processes of a killed daemon"),
        };
        let names = cgroups.names();
        if names.is_empty() {
            return;
        }
        info!(sandboxes = names.len(), "ending what a killed daemon left");
        for name in names {
            end_groups(&cgroups.of(&name));
        }
        cgroups.tidy();
    }

    /// The mount went with the daemon; its directory stays.
    fn forget_mount_point(&self, id: &str) {
        let dir = self.store.dir().join("mnt").join(id);
        match fs::remove_dir(&dir) {
            // Somebody mounted the workspace there.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!(dir = %dir.display(), %error, "a mount point stays");
            }
            _ => {}
        }
    }

    /// The row as it is true now; none of what was removed.
    fn settle(&self, mut record: SandboxRecord) -> Answer<Option<SandboxRecord>> {
        let never_told = record.state == SandboxState::Creating && record.started_at.is_none();
        let builds = Spec::of(&record).is_ok_and(|spec| spec.builds);
        let goes = record.deleted_at.is_some()
            || record.state == SandboxState::Stopping
            || never_told
            || builds;
        if goes {
            self.delete_workspace_of(&record)?;
            record.state = SandboxState::Stopped;
            record.deleted_at.get_or_insert_with(life::now);
            if never_told {
                // The same request again makes another.
                record.idempotency_key = None;
            }
            self.store.put_sandbox(&record)?;
            return Ok(None);
        }
        let was_paused = matches!(record.state, SandboxState::Paused | SandboxState::Pausing);
        if !matches!(record.state, SandboxState::Stopped | SandboxState::Failed) {
            record.reason = Some(stopped_because(was_paused, "was killed"));
            if was_paused {
                // What is paused has no end, and this was about to be.
                record.ends_at = None;
            }
            record.state = SandboxState::Stopped;
            // Nothing of this may keep the daemon from starting.
            if let Err(error) = self.store.put_sandbox(&record) {
                warn!(sandbox = record.id, %error, "that a sandbox is stopped is not recorded yet");
            }
            self.logs.note(
                &record.id,
                "warn",
                "the daemon was killed; its processes are gone",
            );
        }
        Ok(Some(record))
    }
}
