//! Installing a kernel for guests into a directory, and finding it there again.
//!
//! ```text
//! DIR/kernel        the kernel's file
//! DIR/modules/      the modules that guests load
//! DIR/initramfs     agent and modules
//! DIR/kernel.json   the facts
//! ```
//!
//! Invariant: what has the directory's name is complete. A new one is made beside it and exchanged by
//! renaming; machines that run have their files open.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, RenameFlags};
use thiserror::Error;

use super::cpio::CpioError;
use super::facts::{FORMAT, Facts, hash};
use super::fetch::{self, FetchError};
use super::image;
use super::initramfs::{self, Module};
use super::modules::{DRIVERS, Modules, ModulesError};

/// Largest kernel or module that is read, in bytes.
const FILE_MAX: u64 = 1 << 30;

/// Where a kernel is to come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// This system's distribution, by its package manager.
    Distribution,
    /// The user's files.
    Files {
        /// A bzImage or an ELF kernel.
        kernel: PathBuf,
        /// Its modules' directory, which has `modules.dep`; `None` if everything is built in.
        modules: Option<PathBuf>,
    },
}

/// A kernel that is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The kernel's file.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initramfs: PathBuf,
    /// What is known of them.
    pub facts: Facts,
}

/// Why a guest kernel was not installed.
#[derive(Debug, Error)]
pub enum InstallError {
    /// The distribution's kernel cannot be had.
    #[error("cannot get the distribution's kernel")]
    Fetch(#[from] FetchError),
    /// It is no kernel.
    #[error("{} is no x86-64 Linux kernel (neither bzImage nor ELF)", .0.display())]
    NoKernel(PathBuf),
    /// Kernel and modules are of two kernels.
    #[error("the kernel is version {kernel}, but its modules are for {modules}")]
    Mismatch {
        /// The kernel's version.
        kernel: String,
        /// The version that the modules are for.
        modules: String,
    },
    /// The modules do not do.
    #[error("the kernel's modules do not do")]
    Modules(#[from] ModulesError),
    /// No initramfs can be made of this.
    #[error("the initramfs cannot be built")]
    Initramfs(#[from] CpioError),
    /// A file cannot be read or written.
    #[error("cannot {what} {}", .path.display())]
    File {
        /// A verb.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl InstallError {
    /// What the user can do.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Fetch(error) => error.hint(),
            Self::NoKernel(_) => "a kernel's file is usually called vmlinuz, bzImage or vmlinux",
            Self::Mismatch { .. } => "give the directory /lib/modules/VERSION of this very kernel",
            Self::Modules(error) => error.hint(),
            Self::Initramfs(_) => "the names of modules are those of files like virtio_mmio.ko",
            Self::File { path, .. } if path.ends_with("modules.dep") => {
                "the modules' directory is /lib/modules/VERSION; depmod makes its modules.dep"
            }
            Self::File { .. } => "check that the path is right and that there is room",
        }
    }
}

/// Why no installed kernel was found.
#[derive(Debug, Error)]
pub enum FindError {
    /// None is installed there.
    #[error("no guest kernel is installed")]
    None,
    /// The record of it cannot be read.
    #[error("the guest kernel in {} is damaged", .path.display())]
    Damaged {
        /// Its directory.
        path: PathBuf,
        /// In which way.
        source: io::Error,
    },
}

impl FindError {
    /// What the user can do.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        "floe guest install"
    }
}

/// Installs a kernel in `dir`, with `agent` as its first process; one that is there is replaced.
///
/// # Errors
///
/// [`InstallError`]. What was there before stays then.
pub fn install(source: &Source, agent: &[u8], dir: &Path) -> Result<Installed, InstallError> {
    let parent = dir.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).map_err(|error| file("create", parent, error))?;
    // Beside it, so that it can be renamed; removed at the end, also with what it replaces.
    let work = tempfile::Builder::new()
        .prefix(".guest-kernel-")
        .tempdir_in(parent)
        .map_err(|error| file("make a directory in", parent, error))?;
    let (kernel, modules, origin) = match source {
        Source::Files { kernel, modules } => {
            let given = match modules {
                Some(dir) => format!("{} with {}", kernel.display(), dir.display()),
                None => kernel.display().to_string(),
            };
            (kernel.clone(), modules.clone(), given)
        }
        Source::Distribution => {
            let fetched = fetch::fetch(work.path())?;
            (fetched.kernel, Some(fetched.modules), fetched.origin)
        }
    };
    let image = read(&kernel)?;
    if image::kind(&image).is_none() {
        return Err(InstallError::NoKernel(kernel));
    }
    let version = image::version(&image);
    let modules = match modules {
        Some(dir) => choose(&dir)?,
        None => Vec::new(),
    };
    check_version(version.as_deref(), &modules)?;
    let ready = work.path().join("ready");
    let facts = write(&ready, &image, &modules, agent, |facts| Facts {
        version,
        origin,
        ..facts
    })?;
    exchange(&ready, dir)?;
    Ok(at(dir, facts))
}

/// Finds the kernel that is installed in `dir`.
///
/// # Errors
///
/// [`FindError`].
pub fn find(dir: &Path) -> Result<Installed, FindError> {
    let damaged = |source| FindError::Damaged {
        path: dir.to_owned(),
        source,
    };
    let text = match fs::read(dir.join("kernel.json")) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(FindError::None),
        Err(error) => return Err(damaged(error)),
    };
    let facts: Facts = serde_json::from_slice(&text).map_err(|error| damaged(error.into()))?;
    let found = at(dir, facts);
    for (path, bytes) in [
        (&found.kernel, found.facts.kernel_bytes),
        (&found.initramfs, found.facts.initramfs_bytes),
    ] {
        let there = fs::metadata(path).map_err(damaged)?.len();
        if there != bytes {
            let text = format!("{} has {there} bytes, not {bytes}", path.display());
            return Err(damaged(io::Error::other(text)));
        }
    }
    Ok(found)
}

/// Makes the initramfs of an installed kernel anew if it has another agent than this one, as after an
/// update of Floe.
///
/// # Errors
///
/// [`InstallError`].
pub fn refresh(found: Installed, agent: &[u8]) -> Result<Installed, InstallError> {
    if found.facts.agent_blake3 == hash(agent) {
        return Ok(found);
    }
    let dir = found.kernel.parent().unwrap_or(Path::new("/"));
    let parent = dir.parent().unwrap_or(Path::new("/"));
    let work = tempfile::Builder::new()
        .prefix(".guest-kernel-")
        .tempdir_in(parent)
        .map_err(|error| file("make a directory in", parent, error))?;
    let image = read(&found.kernel)?;
    let modules = found.facts.modules.iter().map(|name| {
        let contents = read(&dir.join("modules").join(name))?;
        let name = name.clone();
        Ok(Module { name, contents })
    });
    let modules: Vec<Module> = modules.collect::<Result<_, InstallError>>()?;
    let ready = work.path().join("ready");
    let before = found.facts.clone();
    let facts = write(&ready, &image, &modules, agent, |facts| Facts {
        version: before.version,
        origin: before.origin,
        installed_at: before.installed_at,
        ..facts
    })?;
    exchange(&ready, dir)?;
    Ok(at(dir, facts))
}

fn at(dir: &Path, facts: Facts) -> Installed {
    Installed {
        kernel: dir.join("kernel"),
        initramfs: dir.join("initramfs"),
        facts,
    }
}

/// The modules that a guest needs of those in a directory, in order.
fn choose(dir: &Path) -> Result<Vec<Module>, InstallError> {
    let text = |name: &str| {
        let path = dir.join(name);
        fs::read_to_string(&path).map_err(|error| file("read", &path, error))
    };
    let modules = Modules::parse(&text("modules.dep")?, &text("modules.builtin")?)?;
    let paths = modules.resolve(&DRIVERS)?;
    let read_one = |path: &String| {
        let name = path.rsplit('/').next().unwrap_or(path).to_owned();
        let contents = read(&dir.join(path))?;
        Ok(Module { name, contents })
    };
    paths.iter().map(read_one).collect()
}

/// Modules of another kernel would be refused, but only by the guest when it starts.
fn check_version(kernel: Option<&str>, modules: &[Module]) -> Result<(), InstallError> {
    let theirs = modules
        .iter()
        .find_map(|module| image::module_version(&module.contents));
    match (kernel, theirs) {
        (Some(kernel), Some(modules)) if kernel != modules => Err(InstallError::Mismatch {
            kernel: kernel.to_owned(),
            modules,
        }),
        _ => Ok(()),
    }
}

/// Writes everything into a new directory. `complete` fills in what is not known here.
fn write(
    dir: &Path,
    image: &[u8],
    modules: &[Module],
    agent: &[u8],
    complete: impl FnOnce(Facts) -> Facts,
) -> Result<Facts, InstallError> {
    let initramfs = initramfs::build(agent, modules)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let bytes = |bytes: &[u8]| u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let facts = complete(Facts {
        format: FORMAT,
        version: None,
        origin: String::new(),
        installed_at: now.map_or(0, |since| since.as_secs()),
        kernel_blake3: hash(image),
        kernel_bytes: bytes(image),
        modules: modules.iter().map(|module| module.name.clone()).collect(),
        initramfs_blake3: hash(&initramfs),
        initramfs_bytes: bytes(&initramfs),
        agent_blake3: hash(agent),
    });
    let kept = dir.join("modules");
    fs::create_dir_all(&kept).map_err(|error| file("create", &kept, error))?;
    save(&dir.join("kernel"), image)?;
    save(&dir.join("initramfs"), &initramfs)?;
    for module in modules {
        save(&kept.join(&module.name), &module.contents)?;
    }
    let path = dir.join("kernel.json");
    let json = serde_json::to_vec_pretty(&facts);
    let json = json.map_err(|error| file("write", &path, error.into()))?;
    save(&path, &json)?;
    Ok(facts)
}

/// Gives `ready` the name `dir`; what had it has that of `ready` then.
fn exchange(ready: &Path, dir: &Path) -> Result<(), InstallError> {
    let outcome = if dir.exists() {
        rustix::fs::renameat_with(CWD, ready, CWD, dir, RenameFlags::EXCHANGE)
    } else {
        rustix::fs::rename(ready, dir)
    };
    outcome.map_err(|error| file("put the kernel into", dir, error.into()))
}

fn read(path: &Path) -> Result<Vec<u8>, InstallError> {
    let cannot = |error| file("read", path, error);
    let metadata = fs::metadata(path).map_err(cannot)?;
    if !metadata.is_file() || metadata.len() > FILE_MAX {
        let text = format!("it is no file of at most {FILE_MAX} bytes");
        return Err(cannot(io::Error::other(text)));
    }
    fs::read(path).map_err(cannot)
}

fn save(path: &Path, bytes: &[u8]) -> Result<(), InstallError> {
    let written = File::create_new(path).and_then(|mut new| {
        new.write_all(bytes)?;
        new.sync_all()
    });
    written.map_err(|error| file("write", path, error))
}

fn file(what: &'static str, path: &Path, source: io::Error) -> InstallError {
    InstallError::File {
        what,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests;
