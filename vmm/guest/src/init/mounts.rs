//! What is mounted: for init itself, then the root and what belongs in it.
//!
//! Everything in the root is mounted after init has gone into it, so that links in there, which the
//! guest may have made, lead nowhere else.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use floe_guest::vm::{ROOT_TAG, Tmp, VmOptions, WORKSPACE_DIR, WORKSPACE_TAG};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_move, unmount};
use thiserror::Error;

/// Where the root is mounted before it is one.
const NEW_ROOT: &str = "/newroot";

/// How long the first pause between two looks for a device is, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// Why something is not mounted.
#[derive(Debug, Error)]
pub enum MountError {
    #[error("cannot mount {what} on {at}: {error}")]
    Mount {
        what: String,
        at: String,
        error: io::Error,
    },
    #[error(
        "there is no virtio-fs device with the tag '{tag}' (waited {} s)",
        .waited.as_secs()
    )]
    NoDevice { tag: String, waited: Duration },
    #[error("this kernel has no virtio-fs (CONFIG_VIRTIO_FS)")]
    NoVirtioFs,
    #[error("cannot make {at}: {error}")]
    Make { at: String, error: io::Error },
    #[error("cannot go into the root: {0}")]
    Switch(Errno),
}

/// One file system of the kernel's.
struct Kernel {
    kind: &'static str,
    at: &'static str,
    flags: MountFlags,
    data: &'static CStr,
    /// Whether a kernel may do without.
    optional: bool,
}

const STRICT: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);
const NO_DEVICES: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

const fn kernel(
    kind: &'static str,
    at: &'static str,
    flags: MountFlags,
    data: &'static CStr,
) -> Kernel {
    Kernel {
        kind,
        at,
        flags,
        data,
        optional: false,
    }
}

/// What init needs, and every system has.
const BASICS: [Kernel; 3] = [
    kernel("proc", "/proc", STRICT, c""),
    kernel("sysfs", "/sys", STRICT, c""),
    kernel("devtmpfs", "/dev", MountFlags::NOSUID, c"mode=0755"),
];

/// What commands need beyond that.
const MORE: [Kernel; 4] = [
    kernel(
        "devpts",
        "/dev/pts",
        MountFlags::NOSUID.union(MountFlags::NOEXEC),
        c"gid=5,mode=620,ptmxmode=666",
    ),
    kernel("tmpfs", "/dev/shm", NO_DEVICES, c"mode=1777"),
    kernel("tmpfs", "/run", NO_DEVICES, c"mode=0755"),
    Kernel {
        kind: "cgroup2",
        at: "/sys/fs/cgroup",
        flags: STRICT,
        data: c"",
        optional: true,
    },
];

const TMP: Kernel = kernel("tmpfs", "/tmp", NO_DEVICES, c"mode=1777");

/// Links that programs look for. Source: the kernel's `Documentation/admin-guide/devices.rst`.
const LINKS: [(&str, &str); 4] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
];

/// Mounts what init itself needs in the initramfs.
pub fn early() -> Result<(), MountError> {
    BASICS.iter().try_for_each(mount_kernel)
}

/// Mounts the root, goes into it, and mounts everything in it.
pub fn root(options: &VmOptions) -> Result<(), MountError> {
    make_dir(NEW_ROOT)?;
    mount_tag(ROOT_TAG, NEW_ROOT, options.root_wait)?;
    switch_root()?;
    early()?;
    MORE.iter().try_for_each(mount_kernel)?;
    if options.tmp == Tmp::Memory {
        mount_kernel(&TMP)?;
    }
    for (to, at) in LINKS {
        match symlink(to, at) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(cannot_make(at, error)),
        }
    }
    if options.workspace {
        make_dir(WORKSPACE_DIR)?;
        // All devices are there once one is.
        mount_tag(WORKSPACE_TAG, WORKSPACE_DIR, options.root_wait)?;
    }
    Ok(())
}

fn mount_kernel(one: &Kernel) -> Result<(), MountError> {
    if !one.optional {
        make_dir(one.at)?;
    }
    match mount(one.kind, one.at, one.kind, one.flags, one.data) {
        Ok(()) => Ok(()),
        // The kernel mounts some of them by itself, if it is told to.
        Err(Errno::BUSY) => Ok(()),
        Err(Errno::NODEV | Errno::NOENT) if one.optional => Ok(()),
        Err(error) => Err(cannot_mount(one.kind, one.at, error)),
    }
}

/// Mounts a virtio-fs device by its tag, waiting for it if need be.
fn mount_tag(tag: &str, at: &str, limit: Duration) -> Result<(), MountError> {
    let begun = Instant::now();
    let mut pause = PAUSE.0;
    loop {
        match mount(tag, at, "virtiofs", MountFlags::empty(), None) {
            Ok(()) => return Ok(()),
            Err(Errno::NODEV) => return Err(MountError::NoVirtioFs),
            // So it says that there is none with this tag.
            Err(Errno::INVAL) if begun.elapsed() < limit => {
                if pause == PAUSE.0 {
                    super::say(&format!("[floe] waiting for the file system '{tag}'"));
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE.1);
            }
            Err(Errno::INVAL) => {
                return Err(MountError::NoDevice {
                    tag: tag.to_owned(),
                    waited: limit,
                });
            }
            Err(error) => return Err(cannot_mount(&format!("virtio-fs '{tag}'"), at, error)),
        }
    }
}

/// Goes into the new root. The initramfs stays below it, out of reach and emptied of what is large.
/// Source: the kernel's `Documentation/filesystems/ramfs-rootfs-initramfs.rst`.
fn switch_root() -> Result<(), MountError> {
    for basic in BASICS.iter().rev() {
        unmount(basic.at, UnmountFlags::DETACH).map_err(MountError::Switch)?;
    }
    rustix::process::chdir(NEW_ROOT).map_err(MountError::Switch)?;
    mount_move(".", "/").map_err(MountError::Switch)?;
    rustix::process::chroot(".").map_err(MountError::Switch)?;
    rustix::process::chdir("/").map_err(MountError::Switch)
}

/// Makes a directory, if nothing is there.
fn make_dir(at: &str) -> Result<(), MountError> {
    if Path::new(at).is_dir() {
        return Ok(());
    }
    fs::create_dir(at).map_err(|error| cannot_make(at, error))
}

fn cannot_make(at: &str, error: io::Error) -> MountError {
    MountError::Make {
        at: at.to_owned(),
        error,
    }
}

fn cannot_mount(what: &str, at: &str, error: Errno) -> MountError {
    MountError::Mount {
        what: what.to_owned(),
        at: at.to_owned(),
        error: error.into(),
    }
}
