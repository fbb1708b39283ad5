//! Mounting and unmounting.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fuser::{Config, MountOption, Session, SessionACL};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatVfsMountFlags, StatxFlags, openat, statx};
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_remount, move_mount, open_tree,
    unmount,
};

use super::adapter::Adapter;
use super::cache::FuseCache;
use super::ending::{Callback, Ending};
use super::error::MountError;
use super::shift::IdShift;
use super::stale;
use super::superblock::{open_device, superblock};
use super::table::{self, FoundMount, fusermount_unmount};
use super::watch;
use crate::dispatch::{Dispatch, KernelCache};
use crate::sys;

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Refuse every change in the kernel already.
    pub read_only: bool,
    /// Threads that serve requests, at least one.
    pub threads: usize,
    /// Name in the kernel's table: `floe:STORE:NAME`.
    pub source: String,
    /// Serve users other than the daemon's own.
    pub allow_other: bool,
    /// Honour set-id bits and device nodes, as on a local file system. Otherwise it is mounted `nosuid` and
    /// `nodev`, which also goes for the capabilities of files.
    pub trusted: bool,
    /// Ids on the host are others than in the store: the mount is for a user namespace. `None`: they are
    /// the same.
    pub id_shift: Option<IdShift>,
    /// Others change the file system meanwhile: the kernel asks each time, and believes nothing. It keeps
    /// pages of a file while that is open, and sees by its size and time that they are out of date.
    pub others_write: bool,
}

impl MountOptions {
    /// Threads for this machine: two at least, so that one slow request does not hold all others.
    #[must_use]
    pub fn default_threads() -> usize {
        std::thread::available_parallelism()
            .map_or(2, std::num::NonZero::get)
            .clamp(2, 8)
    }
}

/// A mounted file system. It ends when its last visible mount is unmounted, by whomever; dropping
/// this unmounts nothing.
pub struct Mount {
    cache: Arc<FuseCache>,
    ending: Arc<Ending>,
    source: String,
}

impl Mount {
    /// Mounts on an existing directory and serves requests from threads of its own. `made` is told the
    /// number of the file system before this process asks it for anything: from then on a kill could
    /// leave a thread waiting for an answer that nobody gives any more.
    ///
    /// # Errors
    /// [`MountError`]; nothing is mounted then.
    pub fn new(
        dispatch: Arc<dyn Dispatch>,
        dir: &Path,
        options: &MountOptions,
        made: &mut dyn FnMut((u32, u32)),
    ) -> Result<Self, MountError> {
        let failed = |source| MountError::Directory {
            dir: dir.to_owned(),
            source,
        };
        let dir = &dir.canonicalize().map_err(failed)?;
        if !dir.is_dir() {
            return Err(failed(rustix::io::Errno::NOTDIR.into()));
        }
        if options
            .id_shift
            .is_some_and(|shift| shift.base > IdShift::BASE_MAX)
        {
            return Err(MountError::Mount {
                dir: dir.clone(),
                step: "shifting ids",
                source: rustix::io::Errno::INVAL.into(),
            });
        }
        // fuser gives each thread a buffer of 16 MiB and fills it with zeros.
        sys::map_large_allocations();
        if rustix::process::geteuid().is_root() {
            Self::as_root(dispatch, dir, options, made)
        } else {
            Self::as_user(dispatch, dir, options, made)
        }
    }

    fn as_root(
        dispatch: Arc<dyn Dispatch>,
        dir: &Path,
        options: &MountOptions,
        made: &mut dyn FnMut((u32, u32)),
    ) -> Result<Self, MountError> {
        let failed = |step| {
            move |source: io::Error| MountError::Mount {
                dir: dir.to_owned(),
                step,
                source,
            }
        };
        let device = open_device()?;
        let superblock =
            superblock(&device, options).map_err(|(step, errno)| failed(step)(errno.into()))?;
        let cache = FuseCache::new();
        let learned = cache.learn_device(&superblock);
        learned.map_err(failed("looking at the file system"))?;
        made(cache.device());
        let adapter = Adapter::new(dispatch.clone(), cache.clone(), options);
        let config = config(options);
        // The kernel sends its first request when the superblock is made; it waits in the device.
        let session = Session::from_fd(adapter, OwnedFd::from(device), config.acl, config)
            .map_err(failed("the FUSE handshake"))?;
        let mount = Self::serve(dispatch, session, cache, options, dir)?;
        // If one of these fails, the superblock goes when its descriptor is closed, and with it
        // the session.
        move_mount(
            &superblock,
            "",
            CWD,
            dir,
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
        )
        .map_err(|errno| failed("attaching")(errno.into()))?;
        // The descriptor of the mount itself would keep others from unmounting it; a clone does not.
        let cloned = mount.cache.clone_mount(&superblock);
        drop(superblock);
        let visible = cloned.and_then(|()| watch::watch(&mount.cache));
        if let Err(source) = visible {
            stale::detach(dir).map_err(failed("detaching after a failure"))?;
            return Err(failed("looking at the new mount")(source));
        }
        Ok(mount)
    }

    /// Without root, through the set-user-id helper fusermount3.
    fn as_user(
        dispatch: Arc<dyn Dispatch>,
        dir: &Path,
        options: &MountOptions,
        made: &mut dyn FnMut((u32, u32)),
    ) -> Result<Self, MountError> {
        let failed = |step| {
            move |source: io::Error| MountError::Mount {
                dir: dir.to_owned(),
                step,
                source,
            }
        };
        drop(open_device()?);
        let cache = FuseCache::new();
        let adapter = Adapter::new(dispatch.clone(), cache.clone(), options);
        let mut config = config(options);
        config.mount_options = vec![
            MountOption::FSName(options.source.clone()),
            MountOption::Subtype("floe".to_owned()),
            MountOption::DefaultPermissions,
            if options.read_only {
                MountOption::RO
            } else {
                MountOption::RW
            },
        ];
        let session = Session::new(adapter, dir, &config)
            .map_err(|error| failed("fusermount3")(plain(error)))?;
        let mount = Self::serve(dispatch, session, cache, options, dir)?;
        // Not opened: that would ask for something.
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let looked = openat(CWD, dir, flags, Mode::empty())
            .map_err(io::Error::from)
            .and_then(|root| mount.cache.learn_device(root));
        made(mount.cache.device());
        if let Err(source) = looked {
            stale::detach(dir).map_err(failed("detaching after a failure"))?;
            return Err(failed("looking at the new mount")(source));
        }
        Ok(mount)
    }

    fn serve(
        dispatch: Arc<dyn Dispatch>,
        session: Session<Adapter>,
        cache: Arc<FuseCache>,
        options: &MountOptions,
        dir: &Path,
    ) -> Result<Self, MountError> {
        let failed = |step| {
            move |source: io::Error| MountError::Mount {
                dir: dir.to_owned(),
                step,
                source,
            }
        };
        let device = session
            .as_fd()
            .try_clone_to_owned()
            .map_err(failed("duplicating the FUSE device"))?;
        cache.connect(session.notifier(), device);
        let ending = Arc::new(Ending::default());
        let thread = std::thread::Builder::new()
            .name("floe-session".to_owned())
            .spawn({
                let (cache, ending) = (cache.clone(), ending.clone());
                let source = options.source.clone();
                move || {
                    if let Err(error) = session.run() {
                        tracing::error!(%error, "a FUSE session ended with an error");
                    }
                    cache.disconnect();
                    dispatch.forget_all();
                    // After an abort it is still mounted, dead.
                    let gone = mounts(&cache, &source).is_empty();
                    ending.end(gone);
                }
            });
        thread.map_err(failed("starting a thread"))?;
        Ok(Self {
            cache,
            ending,
            source: options.source.clone(),
        })
    }

    /// Mounts the same file system at another directory: locks and caches are shared.
    ///
    /// # Errors
    /// [`MountError`]. Only root can.
    pub fn bind(&self, dir: &Path) -> Result<(), MountError> {
        let failed = |source| MountError::Directory {
            dir: dir.to_owned(),
            source,
        };
        let dir = &dir.canonicalize().map_err(failed)?;
        self.whole()
            .and_then(|mount| {
                let flags = OpenTreeFlags::OPEN_TREE_CLONE
                    | OpenTreeFlags::OPEN_TREE_CLOEXEC
                    | OpenTreeFlags::AT_EMPTY_PATH;
                let tree = open_tree(mount, "", flags)?;
                let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
                Ok(move_mount(tree, "", CWD, dir, flags)?)
            })
            .map_err(|source| MountError::Mount {
                dir: dir.clone(),
                step: "the bind mount",
                source,
            })
    }

    /// The root directory of the file system, at one of the places where all of it is mounted and
    /// not covered by something else.
    fn whole(&self) -> io::Result<OwnedFd> {
        for mount in self.mounts().into_iter().filter(|mount| mount.whole) {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            if let Ok(root) = openat(CWD, &mount.dir, flags, Mode::empty())
                && self.owns(&root, "").unwrap_or(false)
            {
                return Ok(root);
            }
        }
        Err(rustix::io::Errno::NOENT.into())
    }

    /// Whether the topmost mount at a path is one of this file system.
    fn owns(&self, at: impl AsFd, path: impl rustix::path::Arg) -> io::Result<bool> {
        // Without asking the server, which may be gone.
        let flags = AtFlags::EMPTY_PATH
            | AtFlags::SYMLINK_NOFOLLOW
            | AtFlags::NO_AUTOMOUNT
            | AtFlags::STATX_DONT_SYNC;
        let stat = statx(at, path, flags, StatxFlags::empty())?;
        Ok((stat.stx_dev_major, stat.stx_dev_minor) == self.cache.device())
    }

    /// Major and minor number of its file system.
    #[must_use]
    pub fn device(&self) -> (u32, u32) {
        self.cache.device()
    }

    /// What pushes and drops the kernel's caches of this mount.
    #[must_use]
    pub fn kernel_cache(&self) -> Arc<dyn KernelCache> {
        self.cache.clone()
    }

    /// Where it is mounted now, by the kernel's own table.
    #[must_use]
    pub fn directories(&self) -> Vec<PathBuf> {
        self.mounts().into_iter().map(|mount| mount.dir).collect()
    }

    /// Its mounts, by the kernel's own table.
    #[must_use]
    pub fn mounts(&self) -> Vec<FoundMount> {
        if self.ending.is_gone() {
            return Vec::new();
        }
        mounts(&self.cache, &self.source)
    }

    /// What is mounted inside it, at any depth, by whomever; the deepest last.
    ///
    /// # Errors
    /// When the kernel's table cannot be read.
    pub fn mounted_inside(&self) -> io::Result<Vec<PathBuf>> {
        Ok(table::inside(&table::every_mount()?, self.cache.device()))
    }

    /// Honours set-id bits, device nodes and capabilities of files no longer, at any place where it is
    /// mounted. Mount namespaces of others are out of reach.
    ///
    /// # Errors
    /// When one of its mounts cannot be changed, or is covered by something else; others may be changed
    /// then.
    pub fn distrust(&self) -> Result<(), MountError> {
        for FoundMount { dir, .. } in self.mounts() {
            let failed = |source| MountError::Mount {
                dir: dir.clone(),
                step: "turning set-id bits and devices off",
                source,
            };
            if !self.owns(CWD, &dir).map_err(failed)? {
                return Err(MountError::covered(&dir));
            }
            // All that is not said again is turned off.
            let kept = rustix::fs::statvfs(&dir).map_err(|errno| failed(errno.into()))?;
            let mut flags =
                MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
            let read_only = kept.f_flag.contains(StatVfsMountFlags::RDONLY);
            flags.set(MountFlags::RDONLY, read_only);
            let no_exec = kept.f_flag.contains(StatVfsMountFlags::NOEXEC);
            flags.set(MountFlags::NOEXEC, no_exec);
            mount_remount(&dir, flags, "").map_err(|errno| failed(errno.into()))?;
        }
        Ok(())
    }

    /// Removes one mount. `lazy` takes it away even while it is in use; its users keep it until
    /// they are done.
    ///
    /// # Errors
    /// [`MountError::Busy`] when in use and not `lazy`, [`MountError::Covered`] when something else
    /// is mounted over it.
    pub fn unmount(&self, dir: &Path, lazy: bool) -> Result<(), MountError> {
        let failed = |source| MountError::Unmount {
            dir: dir.to_owned(),
            source,
        };
        // Something else may have been mounted over it, which is not ours to remove.
        let owns = match self.owns(CWD, dir) {
            // Over a directory above it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            other => other,
        };
        if !owns.map_err(failed)? {
            if self.mounts().iter().any(|mount| mount.dir == dir) {
                return Err(MountError::covered(dir));
            }
            return Err(failed(rustix::io::Errno::INVAL.into()));
        }
        let mut flags = UnmountFlags::NOFOLLOW;
        flags.set(UnmountFlags::DETACH, lazy);
        let unmounted = match unmount(dir, flags) {
            Err(rustix::io::Errno::PERM) => fusermount_unmount(dir, lazy),
            other => other.map_err(io::Error::from),
        };
        match unmounted {
            Ok(()) => {
                watch::check();
                Ok(())
            }
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(MountError::Busy {
                dir: dir.to_owned(),
            }),
            Err(source) => Err(failed(source)),
        }
    }

    /// Calls back once when the session has ended; at once if it has.
    pub fn on_end(&self, callback: Callback) {
        self.ending.then(callback);
    }

    /// Waits for the session to end, and for the callbacks that were registered before; false
    /// when it has not after `timeout`.
    #[must_use]
    pub fn wait_end(&self, timeout: Duration) -> bool {
        self.ending.wait(timeout)
    }
}

/// What fusermount3 said, as the end of a sentence about it.
fn plain(error: io::Error) -> io::Error {
    if error.raw_os_error().is_some() {
        return error;
    }
    let said = error.to_string();
    io::Error::other(said.trim().trim_start_matches("fusermount3: ").to_owned())
}

/// Where a file system is mounted, by the kernel's table.
fn mounts(cache: &FuseCache, source: &str) -> Vec<FoundMount> {
    let mut mounts = table::all().unwrap_or_else(|error| {
        tracing::error!(%error, "cannot read the table of mounts");
        Vec::new()
    });
    mounts.retain(|mount| mount.device == cache.device() && mount.source == source);
    mounts
}

fn config(options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.acl = if options.allow_other {
        SessionACL::All
    } else {
        SessionACL::Owner
    };
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = true;
    config
}
