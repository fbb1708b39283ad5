//! Ending the connection of a mount by force, through the kernel's control file system for FUSE
//! (Documentation/filesystems/fuse/fuse.rst, "Control filesystem").

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Ends the connections of mounts by the numbers of their file systems: every request that waits
/// fails, and later ones do. The mounts stay and answer `ENOTCONN`. One that is gone is fine.
///
/// # Errors
/// When the control file system cannot be used.
pub fn abort(devices: &[(u32, u32)]) -> io::Result<()> {
    let control = match control() {
        // Where it is mounted, whoever made a FUSE mount may end it.
        Err(rustix::io::Errno::PERM) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat(CWD, "/sys/fs/fuse/connections", flags, Mode::empty())
        }
        other => other,
    }?;
    for (_, minor) in devices {
        let path = format!("{minor}/abort");
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        match openat(&control, path, flags, Mode::empty()) {
            Ok(file) => {
                rustix::io::write(file, b"1")?;
            }
            Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// The control file system, attached nowhere, so that there is nothing to clean up.
fn control() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )
}
