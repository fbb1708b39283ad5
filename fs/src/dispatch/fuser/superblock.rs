//! Making a FUSE file system by the kernel's mount calls, as root.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};

use super::error::MountError;
use super::mount::MountOptions;

/// Opens the FUSE device, one descriptor a session.
pub(super) fn open_device() -> Result<File, MountError> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .map_err(MountError::NoDevice)?;
    match device.metadata() {
        Ok(meta) if meta.file_type().is_char_device() => Ok(device),
        Ok(_) => Err(MountError::NoDevice(rustix::io::Errno::NODEV.into())),
        Err(error) => Err(MountError::NoDevice(error)),
    }
}

/// Makes the file system, attached nowhere yet.
pub(super) fn superblock(
    device: &File,
    options: &MountOptions,
) -> Result<OwnedFd, (&'static str, rustix::io::Errno)> {
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC).map_err(|e| ("fsopen", e))?;
    let fd = device.as_raw_fd().to_string();
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let (uid, gid) = (uid.as_raw().to_string(), gid.as_raw().to_string());
    let strings = [
        ("source", options.source.as_str()),
        ("subtype", "floe"),
        ("fd", &fd),
        ("rootmode", "40000"),
        ("user_id", &uid),
        ("group_id", &gid),
    ];
    for (key, value) in strings {
        fsconfig_set_string(&context, key, value).map_err(|e| ("fsconfig", e))?;
    }
    let flags = [
        ("default_permissions", true),
        ("allow_other", options.allow_other),
        ("ro", options.read_only),
    ];
    for (flag, _) in flags.into_iter().filter(|(_, on)| *on) {
        fsconfig_set_flag(&context, flag).map_err(|e| ("fsconfig", e))?;
    }
    fsconfig_create(&context).map_err(|e| ("making the file system", e))?;
    // Reads do not change access times; saying so spares the kernel the thought.
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NOATIME;
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !options.trusted);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NODEV, !options.trusted);
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(|e| ("fsmount", e))
}
