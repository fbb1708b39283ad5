//! The store: its directory, its disk, its daemon, its mounts.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use floe_fs::{OpenError, Store, StoreInfo};

use super::Check;
use super::host::nearest_existing;
use crate::client::Client;
use crate::error::{ApiError, shell_word};
use crate::output::size;
use crate::store_dir::StoreDir;

/// Less free space than this deserves a warning.
const FREE_GOOD: u64 = 1 << 30;

/// Type numbers of statfs(2) that matter here; see the kernel's `magic.h`.
const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;
const NFS: u64 = 0x6969;
const CIFS: u64 = 0xff53_4d42;
const SMB2: u64 = 0xfe53_4d42;
const NINEP: u64 = 0x0102_1997;
const FUSE: u64 = libc::FUSE_SUPER_MAGIC.unsigned_abs();
const BTRFS: u64 = 0x9123_683e;
const XFS: u64 = 0x5846_5342;
const EXT: u64 = 0xef53;

pub(super) fn checks(store: &StoreDir) -> Vec<Check> {
    let info = Store::inspect(store.path());
    let running = Client::connect_any_version(store);
    let mut checks = vec![
        state(store, &info),
        access(store.path()),
        disk(store.path()),
    ];
    if let Ok(info) = &info {
        checks.push(reflink(info));
        checks.extend(stale_mounts(info, matches!(running, Ok(Some(_)))));
    }
    checks.push(daemon(&running));
    checks
}

fn state(store: &StoreDir, info: &Result<StoreInfo, OpenError>) -> Check {
    let name = "store";
    let path = store.path().display();
    match info {
        Ok(info) => Check::ok(
            name,
            format!(
                "{path}: format {}, {} workspaces, {} snapshots",
                info.format, info.workspaces, info.snapshots
            ),
        ),
        Err(OpenError::NotFound { .. }) => Check::ok(
            name,
            format!("{path} does not exist; the first command makes it"),
        ),
        Err(error) => {
            let seen = ApiError::from_error(crate::error::ErrorKind::Failed, error);
            let mut detail = seen.error;
            for cause in seen.causes {
                detail.push_str(": ");
                detail.push_str(&cause);
            }
            Check::fail(
                name,
                detail,
                "name another directory with --store or FLOE_STORE",
            )
        }
    }
}

/// Whether the owner is the caller and nobody else can look inside.
fn access(path: &Path) -> Check {
    let name = "store access";
    let Some(existing) = nearest_existing(path) else {
        return Check::fail(
            name,
            "no parent directory exists",
            "name another with --store",
        );
    };
    let writable = rustix::fs::access(&existing, rustix::fs::Access::WRITE_OK).is_ok();
    if !writable {
        return Check::fail(
            name,
            format!("{} cannot be written", existing.display()),
            "run as its owner, or name another directory with --store or FLOE_STORE",
        );
    }
    match fs::metadata(path) {
        Ok(meta) if meta.uid() != rustix::process::geteuid().as_raw() => Check::warn(
            name,
            format!("{} belongs to user {}", path.display(), meta.uid()),
            "run Floe as that user: files of another would be in the way later",
        ),
        Ok(meta) if meta.mode() & 0o077 != 0 => Check::warn(
            name,
            format!(
                "{} is open to other users (mode {:o})",
                path.display(),
                meta.mode() & 0o7777
            ),
            format!(
                "close it: `chmod 700 {}`",
                shell_word(&path.to_string_lossy())
            ),
        ),
        _ => Check::ok(name, "writable, and private"),
    }
}

fn disk(path: &Path) -> Check {
    let name = "store disk";
    let found = nearest_existing(path).and_then(|dir| rustix::fs::statfs(&dir).ok());
    let Some(stat) = found else {
        return Check::fail(
            name,
            "cannot be examined",
            "name another directory with --store",
        );
    };
    let block = u64::try_from(stat.f_bsize).unwrap_or(4096);
    let free = stat.f_bavail.saturating_mul(block);
    let kind = kind(u64::try_from(stat.f_type).unwrap_or(0) & 0xffff_ffff);
    let detail = format!(
        "{}, {} free",
        kind.unwrap_or("another file system"),
        size(free)
    );
    match kind {
        Some("NFS" | "SMB" | "9p") => Check::warn(
            name,
            format!("{detail}; locks and shared memory of a network file system are not safe"),
            "keep the store on a local disk",
        ),
        Some("tmpfs") => Check::warn(
            name,
            format!("{detail}; it is gone after a reboot"),
            "keep what matters on a disk",
        ),
        _ if free < FREE_GOOD => Check::warn(name, detail, "free some space"),
        _ => Check::ok(name, detail),
    }
}

fn kind(magic: u64) -> Option<&'static str> {
    Some(match magic {
        TMPFS | RAMFS => "tmpfs",
        NFS => "NFS",
        CIFS | SMB2 => "SMB",
        NINEP => "9p",
        FUSE => "FUSE",
        BTRFS => "btrfs",
        XFS => "XFS",
        EXT => "ext4",
        _ => return None,
    })
}

fn reflink(info: &StoreInfo) -> Check {
    let name = "reflink";
    match info.reflink {
        Some(true) => Check::ok(name, "the disk shares blocks between files"),
        Some(false) => Check::ok(
            name,
            "not on this disk; large files are copied up by blocks",
        ),
        None => Check::ok(name, "not known before the daemon opens the store"),
    }
}

fn stale_mounts(info: &StoreInfo, running: bool) -> Option<Check> {
    let name = "mounts";
    let found = floe_fs::dispatch::fuser::floe_mounts(&info.id).map(|mut found| {
        if !running {
            // One that lives is another copy's of this store.
            found.retain(|mount| !mount.is_on_top().unwrap_or(false) || mount.is_dead());
        }
        found
    });
    match found {
        Ok(found) if found.is_empty() || running => {
            Some(Check::ok(name, format!("{} of this store", found.len())))
        }
        Ok(found) => Some(Check::warn(
            name,
            format!("{} left behind by a daemon that was killed", found.len()),
            "bring them back with `floe daemon start`",
        )),
        Err(error) => Some(Check::fail(
            name,
            format!("the table of mounts cannot be read: {error}"),
            "mount /proc",
        )),
    }
}

fn daemon(running: &Result<Option<Client>, ApiError>) -> Check {
    let name = "daemon";
    match running {
        Ok(Some(client)) => {
            let (version, pid) = (client.daemon_version(), client.daemon_pid());
            if version == env!("CARGO_PKG_VERSION") {
                return Check::ok(name, format!("runs as process {pid}"));
            }
            Check::warn(
                name,
                format!("process {pid} is version {version}"),
                "end it with `floe daemon stop`; the next command starts the right one",
            )
        }
        Ok(None) => Check::ok(name, "not running; the first command starts it"),
        Err(error) => Check::fail(
            name,
            format!("{}: {}", error.error, error.causes.join(": ")),
            "look for its process: `pgrep -af 'floe daemon'`",
        ),
    }
}
