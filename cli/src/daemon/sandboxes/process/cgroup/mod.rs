//! Control groups: what the processes of a sandbox may use, and how they are frozen and killed.
//!
//! Each sandbox has one group, `floe-<store>/<sandbox>`, in each hierarchy that is needed: version 2
//! wherever it has the controller, version 1 where the host still has it there. Freezing and killing
//! are version 2's also where it has no controller, as frozen processes can be killed there.
//! Documentation of the files: <https://docs.kernel.org/admin-guide/cgroup-v2.html> and
//! <https://docs.kernel.org/admin-guide/cgroup-v1/>.

mod freezer;
mod places;
mod usage;

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use thiserror::Error;
use tracing::warn;

use crate::wire::sandbox::Limits;
use places::{CONTROLLERS, Places, offered};
pub(in crate::daemon::sandboxes) use usage::GroupUsage;

/// The window in which a share of the processors is given, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;
/// How long the kernel may take to let go of a group whose processes were killed.
const REMOVE_WAIT: Duration = Duration::from_secs(5);

/// Why something with control groups failed.
#[derive(Debug, Error)]
pub(crate) enum CgroupError {
    /// There is no hierarchy in which processes could be frozen.
    #[error("the host has no control groups mounted that can freeze processes")]
    None,
    /// A file or directory could not be used.
    #[error("cannot {action} '{}'", path.display())]
    Access {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The processes did not come to rest.
    #[error("the processes did not come to rest within {} ms", waited.as_millis())]
    Restless { waited: Duration },
}

fn access(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let path = path.to_owned();
    move |source| CgroupError::Access {
        action,
        path,
        source,
    }
}

fn write(path: &Path, text: &str) -> Result<(), CgroupError> {
    fs::write(path, text).map_err(access("write to", path))
}

/// Where a store's groups are.
#[derive(Clone, Debug)]
pub(in crate::daemon::sandboxes) struct Cgroups {
    places: Places,
    /// The name of the store's own group in each hierarchy.
    parent: String,
}

/// The groups of one sandbox.
#[derive(Debug)]
pub(in crate::daemon::sandboxes) struct Cgroup {
    /// Version 2.
    unified: Option<PathBuf>,
    /// Version 1, by controller.
    legacy: BTreeMap<String, PathBuf>,
    /// Limits that nothing here enforces.
    unenforced: Vec<String>,
}

impl Cgroups {
    /// Looks at the host.
    ///
    /// # Errors
    /// When the table of mounts cannot be read, or nothing can freeze.
    pub(in crate::daemon::sandboxes) fn find(store: &str) -> Result<Self, CgroupError> {
        let table = Path::new("/proc/self/mountinfo");
        let places = Places::find().map_err(access("read", table))?;
        if places.unified.is_none() && !places.legacy.contains_key("freezer") {
            return Err(CgroupError::None);
        }
        let parent = format!("floe-{store}");
        Ok(Self { places, parent })
    }

    /// The controllers that the host has in neither version.
    pub(in crate::daemon::sandboxes) fn missing(&self) -> Vec<&'static str> {
        let unified = self
            .places
            .unified
            .as_deref()
            .map(offered)
            .unwrap_or_default();
        let has = |name: &str| {
            unified.iter().any(|offered| offered == name) || self.places.legacy.contains_key(name)
        };
        CONTROLLERS.into_iter().filter(|name| !has(name)).collect()
    }

    /// Makes the groups of a sandbox with its limits.
    ///
    /// # Errors
    /// When a directory cannot be made or a limit cannot be set; nothing is left then.
    pub(in crate::daemon::sandboxes) fn make(
        &self,
        name: &str,
        limits: &Limits,
    ) -> Result<Cgroup, CgroupError> {
        let mut made = self.of(name);
        let result = made.create().and_then(|()| made.limit(limits));
        if let Err(error) = result {
            if let Err(error) = made.remove() {
                warn!(%error, "a control group stays");
            }
            return Err(error);
        }
        Ok(made)
    }

    /// The groups that a sandbox of this name has or had.
    pub(in crate::daemon::sandboxes) fn of(&self, name: &str) -> Cgroup {
        let below = |dir: &PathBuf| dir.join(&self.parent).join(name);
        let legacy = self.places.legacy.iter();
        Cgroup {
            unified: self.places.unified.as_ref().map(below),
            legacy: legacy
                .filter(|(controller, _)| *controller != "freezer" || self.places.unified.is_none())
                .map(|(controller, dir)| (controller.clone(), below(dir)))
                .collect(),
            unenforced: Vec::new(),
        }
    }

    /// The names of groups that are there: of sandboxes of this daemon, or of one that was killed.
    pub(in crate::daemon::sandboxes) fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        let places = self
            .places
            .unified
            .iter()
            .chain(self.places.legacy.values());
        for place in places {
            let Ok(entries) = fs::read_dir(place.join(&self.parent)) else {
                continue;
            };
            for entry in entries.flatten() {
                let is_group = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if let (true, Ok(name)) = (is_group, entry.file_name().into_string()) {
                    names.push(name);
                }
            }
        }
        names.sort();
        names.dedup();
        names
    }

    /// Removes the store's own groups if nothing is in them.
    pub(in crate::daemon::sandboxes) fn tidy(&self) {
        let places = self
            .places
            .unified
            .iter()
            .chain(self.places.legacy.values());
        for place in places {
            let dir = place.join(&self.parent);
            match fs::remove_dir(&dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    warn!(dir = %dir.display(), %error, "a control group stays");
                }
                _ => {}
            }
        }
    }
}

impl Cgroup {
    fn dirs(&self) -> impl Iterator<Item = &PathBuf> {
        self.unified.iter().chain(self.legacy.values())
    }

    fn create(&mut self) -> Result<(), CgroupError> {
        if let Some(dir) = &self.unified {
            // A controller has to be handed down at each level.
            for above in dir
                .ancestors()
                .skip(1)
                .take(2)
                .collect::<Vec<_>>()
                .iter()
                .rev()
            {
                fs::create_dir_all(above).map_err(access("make", above))?;
                for controller in CONTROLLERS {
                    if offered(above).iter().any(|offered| offered == controller) {
                        write(
                            &above.join("cgroup.subtree_control"),
                            &format!("+{controller}"),
                        )?;
                    }
                }
            }
        }
        for dir in self.dirs() {
            fs::create_dir_all(dir).map_err(access("make", dir))?;
        }
        Ok(())
    }

    /// The directory in which a controller of version 2 or of version 1 is.
    fn place(&self, controller: &str) -> (Option<&PathBuf>, Option<&PathBuf>) {
        let unified = self.unified.as_ref();
        let unified = unified.filter(|dir| offered(dir).iter().any(|name| name == controller));
        (unified, self.legacy.get(controller))
    }

    fn limit(&mut self, limits: &Limits) -> Result<(), CgroupError> {
        let mut unenforced = Vec::new();
        if let Some(bytes) = limits.memory_bytes {
            match self.place("memory") {
                (Some(dir), _) => {
                    write(&dir.join("memory.max"), &bytes.to_string())?;
                    write_if_there(&dir.join("memory.swap.max"), "0")?;
                }
                (None, Some(dir)) => {
                    write(&dir.join("memory.limit_in_bytes"), &bytes.to_string())?;
                    let both = dir.join("memory.memsw.limit_in_bytes");
                    write_if_there(&both, &bytes.to_string())?;
                }
                (None, None) => unenforced.push("memory".to_owned()),
            }
        }
        if let Some(pids) = limits.pids {
            match self.place("pids") {
                (Some(dir), _) | (None, Some(dir)) => {
                    write(&dir.join("pids.max"), &pids.to_string())?;
                }
                (None, None) => unenforced.push("pids".to_owned()),
            }
        }
        if let Some(millis) = limits.cpu_millis {
            let quota = millis.saturating_mul(CPU_PERIOD_US) / 1000;
            match self.place("cpu") {
                (Some(dir), _) => write(&dir.join("cpu.max"), &format!("{quota} {CPU_PERIOD_US}"))?,
                (None, Some(dir)) => {
                    write(&dir.join("cpu.cfs_period_us"), &CPU_PERIOD_US.to_string())?;
                    write(&dir.join("cpu.cfs_quota_us"), &quota.to_string())?;
                }
                (None, None) => unenforced.push("cpu".to_owned()),
            }
        }
        self.unenforced = unenforced;
        Ok(())
    }

    /// The limits that this host cannot enforce.
    pub(in crate::daemon::sandboxes) fn unenforced(&self) -> &[String] {
        &self.unenforced
    }

    /// The files to which a process writes itself to be in the groups, with all that it starts.
    pub(in crate::daemon::sandboxes) fn ways_in(&self) -> Vec<PathBuf> {
        self.dirs().map(|dir| dir.join("cgroup.procs")).collect()
    }

    /// Sends every process in the groups SIGKILL. Where the kernel does not do it at once, what a process
    /// starts meanwhile may escape: the end of process 1 is what ends them all.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub(in crate::daemon::sandboxes) fn kill(&self) -> Result<(), CgroupError> {
        let file = self.unified.as_ref().map(|dir| dir.join("cgroup.kill"));
        // Kernels before 5.14 have none.
        if let Some(file) = file.filter(|file| file.exists()) {
            write_if_there(&file, "1")?;
        } else if self.freezer().is_some_and(|dir| dir.exists()) {
            // A frozen process of version 1 takes no signal.
            self.thaw()?;
        }
        // Also what is in some of the groups only, as of a start or an end that a crash cut off. A number may
        // be another process's by the time of the signal: one that is still listed when the descriptor is open
        // is the group's, or that descriptor is of one that has ended.
        let mut opened = Vec::new();
        for pid in self.processes()? {
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(fd) => opened.push((pid, fd)),
                Err(Errno::SRCH) => {}
                Err(error) => warn!(?pid, %error, "cannot kill a process"),
            }
        }
        let still = self.processes()?;
        for (pid, fd) in opened.iter().filter(|(pid, _)| still.contains(pid)) {
            match pidfd_send_signal(fd, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => warn!(?pid, %error, "cannot kill a process"),
            }
        }
        Ok(())
    }

    /// The processes in any of the groups.
    fn processes(&self) -> Result<HashSet<Pid>, CgroupError> {
        let mut found = HashSet::new();
        for dir in self.dirs() {
            let file = dir.join("cgroup.procs");
            let text = match fs::read_to_string(&file) {
                Err(error) if is_gone(&error) => continue,
                other => other.map_err(access("read", &file))?,
            };
            let pids = text.lines().filter_map(|line| line.parse().ok());
            found.extend(pids.filter_map(Pid::from_raw));
        }
        Ok(found)
    }

    /// Removes the groups. Their processes were killed; the kernel takes a moment to let go of them.
    ///
    /// # Errors
    /// When a group is still in use after five seconds.
    pub(in crate::daemon::sandboxes) fn remove(&self) -> Result<(), CgroupError> {
        let give_up = Instant::now() + REMOVE_WAIT;
        for dir in self.dirs() {
            loop {
                match fs::remove_dir(dir) {
                    Ok(()) => break,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    Err(error)
                        if error.kind() == io::ErrorKind::ResourceBusy
                            && Instant::now() < give_up =>
                    {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    Err(error) => return Err(access("remove", dir)(error)),
                }
            }
        }
        Ok(())
    }
}

/// Whether a group is not there, or was removed while its file was open.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// Writes to a file that not every kernel has.
fn write_if_there(path: &Path, text: &str) -> Result<(), CgroupError> {
    // Not to be created: control groups answer that with EACCES.
    let opened = fs::OpenOptions::new().write(true).open(path);
    match opened.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes())) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(access("write to", path)),
    }
}
