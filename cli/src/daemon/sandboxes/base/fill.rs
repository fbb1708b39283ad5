//! Filling the workspace of the template `base`.
//!
//! Symbolic links of the host are copied as links and never followed, but for the few links below the root
//! (`/bin`, `/lib`), whose text is copied too.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use super::{accounts, etc};

/// Largest file of /etc that is copied.
const FILE_MAX: u64 = 4 << 20;
/// Deepest directory of /etc that is copied.
const DEPTH_MAX: u32 = 16;

/// What could not be made.
#[derive(Debug)]
pub(super) struct FillError {
    pub(super) path: PathBuf,
    pub(super) source: io::Error,
}

type Filled = Result<(), FillError>;

fn failed(path: &Path) -> impl FnOnce(io::Error) -> FillError {
    let path = path.to_owned();
    move |source| FillError { path, source }
}

/// Fills what is mounted at `root` with what the host at `host` has.
pub(super) fn fill(root: &Path, host: &Path) -> Filled {
    fs::set_permissions(root, Permissions::from_mode(0o755)).map_err(failed(root))?;
    for link in ["bin", "lib", "lib32", "lib64", "libx32", "sbin"] {
        if let Ok(target) = fs::read_link(host.join(link)) {
            let at = root.join(link);
            symlink(target, &at).map_err(failed(&at))?;
        }
    }
    let dirs = [
        ("dev", 0o755, 0),
        ("etc", 0o755, 0),
        ("home", 0o755, 0),
        ("home/user", 0o755, accounts::USER),
        ("mnt", 0o755, 0),
        ("opt", 0o755, 0),
        ("proc", 0o555, 0),
        ("root", 0o700, 0),
        ("run", 0o755, 0),
        ("run/lock", 0o1777, 0),
        ("srv", 0o755, 0),
        ("sys", 0o555, 0),
        ("tmp", 0o1777, 0),
        ("var", 0o755, 0),
        ("var/cache", 0o755, 0),
        ("var/cache/apt", 0o755, 0),
        ("var/cache/apt/archives", 0o755, 0),
        ("var/cache/apt/archives/partial", 0o700, 0),
        ("var/lib", 0o755, 0),
        ("var/lib/apt", 0o755, 0),
        ("var/lib/apt/lists", 0o755, 0),
        ("var/log", 0o755, 0),
        ("var/mail", 0o775, 0),
        ("var/spool", 0o755, 0),
        ("var/tmp", 0o1777, 0),
        ("workspace", 0o755, accounts::USER),
    ];
    for (dir, mode, owner) in dirs {
        directory(&root.join(dir), mode, owner)?;
    }
    for (link, target) in [("var/run", "/run"), ("var/lock", "/run/lock")] {
        let at = root.join(link);
        symlink(target, &at).map_err(failed(&at))?;
    }
    copy_etc(root, host)?;
    make_accounts(root, host)?;
    for (name, text) in etc::MADE {
        file(&root.join("etc").join(name), text, 0o644)?;
    }
    let mtab = root.join("etc/mtab");
    symlink("/proc/self/mounts", &mtab).map_err(failed(&mtab))?;
    let skeleton = root.join("etc/skel");
    let entries = match fs::read_dir(&skeleton) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed(&skeleton))?,
    };
    for entry in entries {
        let entry = entry.map_err(failed(&skeleton))?;
        let is_file = entry.file_type().map_err(failed(&skeleton))?.is_file();
        let at = root.join("home/user").join(entry.file_name());
        if is_file {
            fs::copy(entry.path(), &at).map_err(failed(&at))?;
            chown(&at, Some(accounts::USER), Some(accounts::USER)).map_err(failed(&at))?;
        }
    }
    Ok(())
}

fn directory(at: &Path, mode: u32, owner: u32) -> Filled {
    match DirBuilder::new().mode(mode).create(at) {
        // A directory of the host is shown below it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other.map_err(failed(at))?,
    }
    // Whatever the umask says.
    fs::set_permissions(at, Permissions::from_mode(mode)).map_err(failed(at))?;
    chown(at, Some(owner), Some(owner)).map_err(failed(at))
}

fn file(at: &Path, text: &str, mode: u32) -> Filled {
    fs::write(at, text).map_err(failed(at))?;
    fs::set_permissions(at, Permissions::from_mode(mode)).map_err(failed(at))
}

fn make_accounts(root: &Path, host: &Path) -> Filled {
    let read = |name: &str| fs::read_to_string(host.join("etc").join(name)).unwrap_or_default();
    let made = accounts::accounts(&read("passwd"), &read("group"));
    let etc = root.join("etc");
    file(&etc.join("passwd"), &made.passwd, 0o644)?;
    file(&etc.join("group"), &made.group, 0o644)?;
    file(&etc.join("shadow"), &made.shadow, 0o640)?;
    file(&etc.join("gshadow"), &made.gshadow, 0o640)
}

fn copy_etc(root: &Path, host: &Path) -> Filled {
    let (from, to) = (host.join("etc"), root.join("etc"));
    for name in etc::COPIED {
        if let Some((parent, _)) = name.split_once('/') {
            directory(&to.join(parent), 0o755, 0)?;
        }
        copy(&from.join(name), &to.join(name), DEPTH_MAX)?;
    }
    for entry in fs::read_dir(&from).map_err(failed(&from))? {
        let name = entry.map_err(failed(&from))?.file_name();
        let text = name.to_string_lossy();
        if etc::COPIED_FAMILIES
            .iter()
            .any(|family| text.starts_with(family))
        {
            copy(&from.join(&name), &to.join(&name), DEPTH_MAX)?;
        }
    }
    Ok(())
}

/// Copies what everybody may read.
fn copy(from: &Path, to: &Path, depth: u32) -> Filled {
    let meta = match fs::symlink_metadata(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed(from))?,
    };
    let kind = meta.file_type();
    let mode = meta.permissions().mode() & 0o777;
    if kind.is_symlink() {
        let target = fs::read_link(from).map_err(failed(from))?;
        return symlink(target, to).map_err(failed(to));
    }
    if kind.is_dir() && mode & 0o005 == 0o005 && depth > 0 {
        directory(to, mode, 0)?;
        for entry in fs::read_dir(from).map_err(failed(from))? {
            let name = entry.map_err(failed(from))?.file_name();
            copy(&from.join(&name), &to.join(&name), depth - 1)?;
        }
    } else if kind.is_file() && mode & 0o004 != 0 && meta.len() <= FILE_MAX {
        // Not what somebody puts in its place meanwhile.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let source = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(from)
            .map_err(failed(from))?;
        let mut target = File::create(to).map_err(failed(to))?;
        io::copy(&mut source.take(FILE_MAX), &mut target).map_err(failed(from))?;
        target
            .set_permissions(Permissions::from_mode(mode))
            .map_err(failed(to))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_and_readable_by_all_is_copied() {
        let dir = tempfile::tempdir().unwrap();
        let (host, root) = (dir.path().join("host"), dir.path().join("root"));
        for made in [
            "host/etc/ssl/private",
            "host/etc/ssl/certs",
            "host/etc/ssh",
            "host/etc/skel",
            "root",
        ] {
            fs::create_dir_all(dir.path().join(made)).unwrap();
        }
        let put = |name: &str, mode| {
            fs::write(host.join(name), name).unwrap();
            fs::set_permissions(host.join(name), Permissions::from_mode(mode)).unwrap();
        };
        put("etc/profile", 0o644);
        put("etc/shells", 0o600);
        put("etc/shadow", 0o640);
        put("etc/ssl/private/key", 0o644);
        put("etc/ssl/certs/ca.pem", 0o644);
        put("etc/ssh/ssh_host_key", 0o644);
        put("etc/environment", 0o644);
        put("etc/skel/.bashrc", 0o644);
        symlink("usr/bin", host.join("bin")).unwrap();
        symlink("../ssh/ssh_host_key", host.join("etc/ssl/certs/link.pem")).unwrap();
        if !rustix::process::geteuid().is_root() {
            // Files of another user cannot be made.
            return;
        }
        fill(&root, &host).unwrap();
        let has = |name: &str| fs::symlink_metadata(root.join(name)).is_ok();
        for there in [
            "etc/profile",
            "etc/ssl/certs/ca.pem",
            "etc/ssl/certs/link.pem",
            "bin",
            "home/user/.bashrc",
            "workspace",
            "etc/passwd",
        ] {
            assert!(has(there), "{there}");
        }
        for absent in [
            "etc/shells",
            "etc/ssl/private",
            "etc/ssh",
            "etc/environment",
        ] {
            assert!(!has(absent), "{absent}");
        }
        let shadow = fs::read_to_string(root.join("etc/shadow")).unwrap();
        assert!(shadow.starts_with("root:*:"), "the host's own: {shadow}");
        let mode =
            |name: &str| fs::metadata(root.join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("tmp"), mode("root")), (0o1777, 0o700));
    }
}
