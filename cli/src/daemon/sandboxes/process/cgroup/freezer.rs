//! Freezing the processes of a group and letting them go on.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Cgroup, CgroupError, access, write};

/// How long it is waited without sleeping: processes come to rest within microseconds, unless they
/// wait for a file.
const SPIN: Duration = Duration::from_micros(300);

impl Cgroup {
    /// Stops every process at once and returns when all of them stand still. If they do not within
    /// the time, they go on.
    ///
    /// # Errors
    /// [`CgroupError::Restless`], or when a file cannot be used.
    pub(in crate::daemon::sandboxes) fn freeze(&self, wait: Duration) -> Result<(), CgroupError> {
        let asked = match &self.unified {
            Some(dir) => write(&dir.join("cgroup.freeze"), "1"),
            None => self.legacy_freezer("FROZEN"),
        };
        let frozen = asked.and_then(|()| self.wait_frozen(wait));
        if frozen.is_err() {
            self.thaw()?;
        }
        frozen
    }

    /// Lets the processes go on.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub(in crate::daemon::sandboxes) fn thaw(&self) -> Result<(), CgroupError> {
        match &self.unified {
            Some(dir) => write(&dir.join("cgroup.freeze"), "0"),
            None => self.legacy_freezer("THAWED"),
        }
    }

    /// The group that freezes.
    pub(super) fn freezer(&self) -> Option<&PathBuf> {
        self.unified.as_ref().or(self.legacy.get("freezer"))
    }

    fn legacy_freezer(&self, state: &str) -> Result<(), CgroupError> {
        let dir = self.legacy.get("freezer").ok_or(CgroupError::None)?;
        write(&dir.join("freezer.state"), state)
    }

    fn wait_frozen(&self, wait: Duration) -> Result<(), CgroupError> {
        let started = Instant::now();
        while !self.is_frozen()? {
            let waited = started.elapsed();
            if waited >= wait {
                return Err(CgroupError::Restless { waited });
            }
            if waited < SPIN {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }

    fn is_frozen(&self) -> Result<bool, CgroupError> {
        let read = |path: &Path| fs::read_to_string(path).map_err(access("read", path));
        match (&self.unified, self.legacy.get("freezer")) {
            (Some(dir), _) => {
                let events = read(&dir.join("cgroup.events"))?;
                Ok(events.lines().any(|line| line == "frozen 1"))
            }
            (None, Some(dir)) => Ok(read(&dir.join("freezer.state"))?.trim() == "FROZEN"),
            (None, None) => Err(CgroupError::None),
        }
    }
}
