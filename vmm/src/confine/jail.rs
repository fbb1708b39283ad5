//! Namespaces, a root directory of its own, and no privileges.
//!
//! The order is what makes it hold: namespaces while there are privileges for them, the new root,
//! the bounding set, ids, capabilities, and last the promise to gain none. Namespaces and ids belong
//! to threads, so a process does this while it has one.

#![expect(unsafe_code, reason = "unsharing could split a table of descriptors")]

use std::ffi::{c_int, c_void};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid, UnshareFlags};
use vmm_sys_util::signal::register_signal_handler;

/// Most descriptors of a monitor: its connections and a few more.
const FILES_MAX: u64 = 4096;

/// How a monitor is confined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jail {
    /// The directory that becomes the root, read-only. Sockets that the guest may reach are in it.
    pub root: PathBuf,
    /// User and group to become, when started as root. Others stay who they are.
    pub ids: Option<(u32, u32)>,
    /// Most bytes of any file that is written.
    pub file_size_max: u64,
}

/// Why a process could not be confined. It must not run a guest then.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    /// The process has other threads already.
    #[error("a process with {count} threads cannot be confined")]
    Threads {
        /// How many.
        count: usize,
    },
    /// Root would stay root.
    #[error("a monitor that runs as root needs an unprivileged user to become")]
    StaysRoot,
    /// A step failed.
    #[error("cannot {step}")]
    Step {
        /// What it was to do.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

fn at<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> JailError {
    move |source| JailError::Step {
        step,
        source: source.into(),
    }
}

impl Jail {
    /// Confines this process, for good.
    ///
    /// # Errors
    /// [`JailError`]; the process may be confined in part then and must end.
    pub fn enter(&self) -> Result<(), JailError> {
        let count = threads().map_err(at("count threads"))?;
        if count != 1 {
            return Err(JailError::Threads { count });
        }
        let root_user = rustix::process::geteuid().is_root();
        if root_user && self.ids.is_none_or(|(uid, gid)| uid == 0 || gid == 0) {
            return Err(JailError::StaysRoot);
        }
        namespaces(root_user)?;
        change_root(&self.root)?;
        self.limits()?;
        self.drop_privileges(root_user)
    }

    fn limits(&self) -> Result<(), JailError> {
        // Beyond the limit a write fails with EFBIG instead of ending the process: standard error
        // may be a file that others have filled.
        register_signal_handler(libc::SIGXFSZ, on_limit).map_err(at("handle a signal"))?;
        let limits = [
            (Resource::Core, 0),
            (Resource::Nofile, FILES_MAX),
            (Resource::Fsize, self.file_size_max),
        ];
        for (resource, value) in limits {
            let hard = rustix::process::getrlimit(resource).maximum;
            let value = hard.map_or(value, |hard| hard.min(value));
            let limit = Rlimit {
                current: Some(value),
                maximum: Some(value),
            };
            rustix::process::setrlimit(resource, limit).map_err(at("set a resource limit"))?;
        }
        Ok(())
    }

    fn drop_privileges(&self, root_user: bool) -> Result<(), JailError> {
        for capability in CapabilitySet::all().iter() {
            // EINVAL: this kernel does not have it.
            match rustix::thread::remove_capability_from_bounding_set(capability) {
                Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                Err(error) => return Err(at("give up capabilities")(error)),
            }
        }
        if let Some((uid, gid)) = self.ids.filter(|_| root_user) {
            rustix::thread::set_thread_groups(&[]).map_err(at("leave groups"))?;
            rustix::thread::set_thread_gid(Gid::from_raw(gid)).map_err(at("change the group"))?;
            rustix::thread::set_thread_uid(Uid::from_raw(uid)).map_err(at("change the user"))?;
        }
        let none = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, none).map_err(at("give up capabilities"))?;
        rustix::thread::set_no_new_privs(true).map_err(at("promise to gain no privileges"))?;
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(at("forbid memory dumps"))
    }
}

/// How many threads of this process run code of its own. KVM keeps one of the kernel's among them
/// (`kvm-nx-lpage-recovery`), on some kernels from the making of the machine on.
fn threads() -> io::Result<usize> {
    let mut count = 0;
    for task in fs::read_dir("/proc/self/task")? {
        let name = fs::read_to_string(task?.path().join("comm"))?;
        count += usize::from(!name.starts_with("kvm-"));
    }
    Ok(count)
}

extern "C" fn on_limit(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {}

/// Own mounts, network, System V objects, host name and view of control groups. Not a process
/// namespace: it would be for children, which a monitor has none of and its filters forbid; the
/// kernel allows no threads after asking for one.
fn namespaces(root_user: bool) -> Result<(), JailError> {
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let mut flags = UnshareFlags::NEWNS
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    if !root_user {
        flags |= UnshareFlags::NEWUSER;
    }
    // SAFETY: the one danger is `FILES`, which is not among the flags: the table of descriptors
    // stays shared by all threads (and there is only this one).
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(at("make namespaces"))?;
    if !root_user {
        let map = |id: u32| format!("{id} {id} 1");
        fs::write("/proc/self/setgroups", "deny").map_err(at("give up groups"))?;
        fs::write("/proc/self/uid_map", map(uid.as_raw())).map_err(at("map the user"))?;
        fs::write("/proc/self/gid_map", map(gid.as_raw())).map_err(at("map the group"))?;
    }
    Ok(())
}

/// Makes `root` the root, read-only and without devices, programs and set-id files, and lets go of
/// everything else.
fn change_root(root: &Path) -> Result<(), JailError> {
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    rustix::mount::mount_change("/", private).map_err(at("detach mounts"))?;
    rustix::mount::mount_bind(root, root).map_err(at("mount the machine's directory"))?;
    let flags = MountFlags::BIND
        | MountFlags::RDONLY
        | MountFlags::NOSUID
        | MountFlags::NODEV
        | MountFlags::NOEXEC;
    rustix::mount::mount_remount(root, flags, c"").map_err(at("make it read-only"))?;
    rustix::process::chdir(root).map_err(at("enter the machine's directory"))?;
    rustix::process::pivot_root(".", ".").map_err(at("make it the root"))?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(at("let go of the old root"))?;
    rustix::process::chdir("/").map_err(at("enter the new root"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_is_not_confined() {
        let jail = Jail {
            root: "/nonexistent".into(),
            ids: Some((65534, 65534)),
            file_size_max: 0,
        };
        // A test runs in a thread beside the main one.
        assert!(matches!(
            jail.enter(),
            Err(JailError::Threads { count: 2.. })
        ));
    }
}
