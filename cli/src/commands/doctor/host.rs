//! What the host has: FUSE, KVM, limits.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use floe_vmm::kvm::{HostPaths, KvmStatus, probe};
use rustix::process::Resource;

use super::Check;

/// Open files that a busy store may need at once.
const OPEN_FILES_GOOD: u64 = 4096;

pub(super) fn checks() -> Vec<Check> {
    let mut checks = vec![kernel(), fuse_device()];
    if !rustix::process::geteuid().is_root() {
        checks.push(fusermount());
    }
    checks.extend([fuse_features(), kvm(), open_files()]);
    checks
}

/// The kernel's release, as numbers and as it calls itself.
fn release() -> ((u32, u32), String) {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    (version(&release), release)
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|text| text.parse().ok());
    let mut next = || numbers.next().flatten().unwrap_or(0);
    (next(), next())
}

fn kernel() -> Check {
    match release() {
        (found, name) if found < (5, 4) => Check::fail(
            "kernel",
            format!("Linux {name} is older than 5.4"),
            "run Floe on a newer kernel",
        ),
        (_, name) => Check::ok("kernel", format!("Linux {name}")),
    }
}

fn fuse_device() -> Check {
    let name = "fuse device";
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Check::ok(name, "/dev/fuse can be opened"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Check::fail(
            name,
            "there is no /dev/fuse",
            "load the module with `modprobe fuse`; in a container, start it with \
             --device /dev/fuse --cap-add SYS_ADMIN",
        ),
        Err(error) => Check::fail(
            name,
            format!("/dev/fuse cannot be opened: {error}"),
            "run Floe as root, or allow it with `chmod 666 /dev/fuse`",
        ),
    }
}

fn fusermount() -> Check {
    let name = "fusermount3";
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|dir| dir.join("fusermount3"))
        .find_map(|file| fs::metadata(&file).ok().map(|meta| (file, meta)));
    match found {
        Some((file, meta)) if meta.permissions().mode() & 0o4000 != 0 => {
            Check::ok(name, file.display().to_string())
        }
        Some((file, _)) => Check::fail(
            name,
            format!("{} is not set-user-id root", file.display()),
            format!("as root: `chmod u+s {}`", file.display()),
        ),
        None => Check::fail(
            name,
            "not found; users other than root need it to mount",
            "install it: `apt-get install fuse3`",
        ),
    }
}

/// What the kernel's FUSE can do for speed; none of it is needed.
fn fuse_features() -> Check {
    let (found, _) = release();
    let uring = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let uring = match uring.as_deref().map(str::trim) {
        Ok("Y" | "1") => "io_uring on",
        Ok(_) => "io_uring off",
        Err(_) => "no io_uring",
    };
    let passthrough = if found >= (6, 9) {
        "passthrough"
    } else {
        "no passthrough"
    };
    let detail = format!("{passthrough}, {uring}");
    if uring == "io_uring off" {
        let hint = "a later version of Floe will use it: \
                    `echo Y > /sys/module/fuse/parameters/enable_uring`";
        return Check {
            hint: Some(hint.to_owned()),
            ..Check::ok("fuse features", detail)
        };
    }
    Check::ok("fuse features", detail)
}

fn kvm() -> Check {
    let name = "kvm";
    let later = "only virtual machines (`floe vm run`) need it";
    match probe(&HostPaths::default()) {
        KvmStatus::Hardware { flag } => {
            Check::ok(name, format!("hardware virtualisation ({flag})"))
        }
        KvmStatus::PageTable => Check::warn(
            name,
            "a page-table KVM (kvm_pvm): it boots no stock kernel",
            later,
        ),
        KvmStatus::Absent { processor: true } => {
            Check::warn(name, "no /dev/kvm, though the processor has it", later)
        }
        KvmStatus::Absent { processor: false } => Check::warn(name, "no /dev/kvm", later),
        KvmStatus::NoPermission => Check::warn(
            name,
            "/dev/kvm may not be opened by this user",
            "as root: `usermod -aG kvm USER`, then log in again",
        ),
        KvmStatus::Broken { error } => {
            Check::warn(name, format!("/dev/kvm cannot be opened: {error}"), later)
        }
        KvmStatus::Unknown => Check::warn(
            name,
            "/dev/kvm opens, but the processor shows neither vmx nor svm",
            later,
        ),
    }
}

fn open_files() -> Check {
    let name = "open files";
    // None is "no limit".
    match rustix::process::getrlimit(Resource::Nofile).maximum {
        Some(limit) if limit < OPEN_FILES_GOOD => Check::warn(
            name,
            format!("at most {limit} (the hard limit, to which the daemon raises its own)"),
            format!("raise it: `ulimit -Hn {OPEN_FILES_GOOD}`, or LimitNOFILE= in a unit file"),
        ),
        Some(limit) => Check::ok(name, format!("up to {limit}")),
        None => Check::ok(name, "no limit"),
    }
}

/// Where a directory is or would be made: the path itself or its nearest existing parent.
pub(super) fn nearest_existing(path: &Path) -> Option<PathBuf> {
    path.ancestors()
        .find(|dir| dir.exists())
        .map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_compared_by_number() {
        assert_eq!(version("6.18.44-fc-v657"), (6, 18));
        assert_eq!(version("5.4.0-100-generic"), (5, 4));
        assert_eq!(version("6.9-rc1"), (6, 9));
        assert_eq!(version("weird"), (0, 0));
        assert!(version("6.18") > version("6.9"));
    }
}
