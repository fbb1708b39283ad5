//! What the kernel has cached of a mount: pushing dirty pages out, dropping everything.
//!
//! A mount by root keeps a *private clone* of itself: a second mount of the same file system that
//! is attached nowhere. Files opened through it do not keep anyone from unmounting the visible one.
//! To write the pages of a mapped file back, the daemon opens it through the clone by its number
//! and keeps that *sync descriptor* for as long as somebody has the file open so that it can be
//! mapped for writing.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use fuser::{INodeNo, Notifier};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, openat, statx};
use rustix::mount::{OpenTreeFlags, open_tree};

use super::closer::close_elsewhere;
use super::{GENERATION, table};
use crate::dispatch::{Kept, KernelCache, OpenMode, Writers};
use crate::id::Ino;
use crate::sys;

/// Sync descriptors kept; with more writers than this the rest are opened for each snapshot.
const SYNC_FDS_MAX: usize = 1024;
/// Files whose pages are written back at once: so many descriptors are open for that, beside those kept.
const PUSHED_AT_ONCE: usize = 1024;
/// `FUSE_NOTIFY_INC_EPOCH` of `linux/fuse.h`: every cached name is to be looked up again.
const NOTIFY_INC_EPOCH: i32 = 8;

/// The private clone of a mount.
struct Private {
    _tree: OwnedFd,
    /// Its root directory.
    root: OwnedFd,
}

/// The way to the kernel.
struct Link {
    notifier: Notifier,
    /// The FUSE device of the session, for the notification that fuser does not know.
    device: File,
}

/// What keeps, or could keep, the file system alive. Nothing is opened or closed under its lock:
/// both send requests, and the threads that serve them take it.
#[derive(Default)]
struct Held {
    private: Option<Arc<Private>>,
    writers: Writers,
    /// Sync descriptors. Only of files that mappings can change, and only while there is a private clone.
    sync_fds: HashMap<Ino, Arc<OwnedFd>>,
}

/// The kernel's side of a mount.
pub(super) struct FuseCache {
    device: OnceLock<(u32, u32)>,
    link: Mutex<Option<Arc<Link>>>,
    held: Mutex<Held>,
    /// Held for reading while a request is served, until its answer is sent.
    serving: RwLock<()>,
    /// The kernel is not older than the notification that drops all names, nor than write-back that
    /// can be waited for.
    recent_kernel: AtomicBool,
    /// A call of [`FuseCache::distrust`] is to come.
    distrusted: AtomicBool,
}

impl FuseCache {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            device: OnceLock::new(),
            link: Mutex::default(),
            held: Mutex::default(),
            serving: RwLock::default(),
            recent_kernel: AtomicBool::new(true),
            distrusted: AtomicBool::new(false),
        })
    }

    /// The kernel is older than Linux 6.16: it cannot drop all names at once, so it is given none to
    /// keep; and it says that pages are written back before they have arrived here, so they are
    /// pushed with fsync.
    pub(super) fn kernel_is_old(&self) {
        self.recent_kernel.store(false, Ordering::Relaxed);
    }

    /// A request is being served, until its answer is sent and this dropped.
    pub(super) fn serving(&self) -> RwLockReadGuard<'_, ()> {
        self.serving.read()
    }

    /// The session is up: takes what sends notifications.
    pub(super) fn connect(&self, notifier: Notifier, device: OwnedFd) {
        let device = device.into();
        *self.link.lock() = Some(Arc::new(Link { notifier, device }));
    }

    /// The session has ended. The kernel only takes it as ended when every descriptor of its
    /// device is closed, so none may stay here.
    pub(super) fn disconnect(&self) {
        self.let_go();
        *self.link.lock() = None;
    }

    /// Clones a mount that is attached, from any descriptor of its root, and learns the number
    /// of its file system.
    pub(super) fn clone_mount(&self, mount: &OwnedFd) -> io::Result<()> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = open_tree(mount, "", flags)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(&tree, ".", flags, Mode::empty())?;
        self.learn_device(&root)?;
        self.held.lock().private = Some(Arc::new(Private { _tree: tree, root }));
        Ok(())
    }

    /// Learns the number of the file system from any descriptor in it.
    pub(super) fn learn_device(&self, file: impl AsFd) -> io::Result<()> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = statx(file, "", flags, StatxFlags::empty())?;
        self.device
            .get_or_init(|| (stat.stx_dev_major, stat.stx_dev_minor));
        Ok(())
    }

    /// Major and minor number of the file system; `(0, 0)` until it is known.
    pub(super) fn device(&self) -> (u32, u32) {
        self.device.get().copied().unwrap_or_default()
    }

    /// Closes everything that keeps the file system alive. Not from a thread that serves it.
    pub(super) fn let_go(&self) {
        let held = {
            let mut held = self.held.lock();
            (held.private.take(), std::mem::take(&mut held.sync_fds))
        };
        drop(held);
    }

    /// A file was opened; to be told before the kernel is.
    pub(super) fn opened(&self, ino: Ino, mode: OpenMode) {
        // Most are opened for reading: they need not meet at this lock.
        if mode.writes() {
            self.held.lock().writers.opened(ino, mode);
        }
    }

    /// A descriptor of the file is gone; with the last that can be mapped for writing its sync
    /// descriptor goes. Called by serving threads, which must not close it themselves: closing may
    /// write back and wait for an answer.
    pub(super) fn closed(&self, ino: Ino, mode: OpenMode) {
        if !mode.writes() {
            return;
        }
        let mut held = self.held.lock();
        if !held.writers.closed(ino, mode).mapper {
            return;
        }
        let unused = held.sync_fds.remove(&ino);
        drop(held);
        if let Some(unused) = unused {
            close_elsewhere(unused);
        }
    }

    fn sync_fd(&self, private: &Private, ino: Ino) -> io::Result<Arc<OwnedFd>> {
        if let Some(fd) = self.held.lock().sync_fds.get(&ino) {
            return Ok(fd.clone());
        }
        let fd = Arc::new(sys::open_by_node_id(&private.root, ino, GENERATION)?);
        let mut held = self.held.lock();
        // The last mapper, or the mount, may have gone meanwhile: then nobody would close it.
        if held.private.is_some() && held.writers.maps(ino) && held.sync_fds.len() < SYNC_FDS_MAX {
            held.sync_fds.insert(ino, fd.clone());
        }
        Ok(fd)
    }

    /// Writes the pages of some files back, and waits for them.
    fn push_some(&self, private: &Private, inodes: &[Ino]) -> io::Result<()> {
        let mut files = Vec::with_capacity(inodes.len());
        let mut others = Vec::new();
        for &ino in inodes {
            match self.sync_fd(private, ino) {
                Ok(fd) => files.push(fd),
                Err(error) if is_gone(&error) => {}
                // Out of descriptors, for example. A snapshot must not fail for that.
                Err(error) => {
                    tracing::debug!(%ino, %error, "no sync descriptor");
                    others.push(ino);
                }
            }
        }
        if files.len() > 1 {
            // Starts all of it, in large requests. An error may be an old one, of any file, such as
            // pages of a file that a rollback took away: what counts is what each file says.
            if let Err(error) = rustix::fs::syncfs(&private.root) {
                tracing::debug!(%error, "starting write-back");
            }
        }
        let recent = self.recent_kernel.load(Ordering::Relaxed);
        for file in &files {
            // This waits.
            let pushed = if recent {
                sys::write_back(file)
            } else {
                rustix::fs::fdatasync(file).map_err(io::Error::from)
            };
            match pushed {
                Err(error) if !is_gone(&error) => return Err(error),
                _ => {}
            }
        }
        others.iter().try_for_each(|&ino| self.inval_inode(ino))
    }

    /// Has the kernel ask for the attributes of a file.
    fn learn_size(&self, private: &Private, ino: Ino) {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        let asked = self
            .sync_fd(private, ino)
            .and_then(|fd| Ok(statx(&*fd, "", flags, StatxFlags::SIZE)?));
        match asked {
            Err(error) if !is_gone(&error) => {
                tracing::debug!(%ino, %error, "the kernel did not ask for a size");
            }
            _ => {}
        }
    }

    /// Writes a file's pages back, one a request, and drops them together with its attributes.
    fn inval_inode(&self, ino: Ino) -> io::Result<()> {
        let Some(link) = self.link.lock().clone() else {
            return Ok(());
        };
        match link.notifier.inval_inode(INodeNo(ino.0), 0, 0) {
            // Nothing left to tell: the mount is gone.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ENODEV)) => {
                Ok(())
            }
            other => other,
        }
    }

    /// Nobody knows whether an operation has happened. Makes the kernel look names up again, and says
    /// whether [`FuseCache::distrust`] is to be called: not while another call is to come anyway.
    /// Waits for nothing.
    pub(super) fn begin_distrust(&self) -> bool {
        // An older kernel keeps none; and what is mounted inside would be detached.
        let inside = table::every_mount().map(|all| table::inside(&all, self.device()));
        let dropped = match inside {
            _ if !self.recent_kernel.load(Ordering::Relaxed) => Ok(()),
            Ok(inside) if inside.is_empty() => self.drop_names(),
            Ok(_) => Err(io::Error::other("something is mounted inside")),
            Err(error) => Err(error),
        };
        if let Err(error) = dropped {
            tracing::warn!(%error, "the kernel may believe names that are not true any more");
        }
        !self.distrusted.swap(true, Ordering::AcqRel)
    }

    /// Makes the kernel ask again for what it knows of inodes. Not from a thread that serves requests.
    pub(super) fn distrust(&self, known: impl FnOnce() -> Vec<Ino>) {
        // First: what goes wrong from now on may not be among them.
        self.distrusted.store(false, Ordering::Release);
        for ino in known() {
            match self.inval_inode(ino) {
                Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                    tracing::warn!(%error, %ino, "the kernel may believe what is not true any more");
                }
                _ => {}
            }
        }
    }

    fn drop_names(&self) -> io::Result<()> {
        let Some(link) = self.link.lock().clone() else {
            return Ok(());
        };
        // struct fuse_out_header: length, code where an error would be, no request.
        let mut message = [0_u8; 16];
        message[..4].copy_from_slice(&16_u32.to_ne_bytes());
        message[4..8].copy_from_slice(&NOTIFY_INC_EPOCH.to_ne_bytes());
        (&link.device).write_all(&message)
    }
}

/// The file is in no state that a write could reach: removed for good, or not in the state that
/// the workspace was rolled back to. Its pages are in no snapshot either.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESTALE | libc::ENOENT))
}

impl KernelCache for FuseCache {
    fn push_dirty(&self, inodes: &[Ino]) -> io::Result<()> {
        let private = self.held.lock().private.clone();
        let Some(private) = private else {
            // Not root, or detached but still in use: slower, but complete.
            return inodes.iter().try_for_each(|&ino| self.inval_inode(ino));
        };
        // A hostile guest or program may have very many open: all at once would take every descriptor.
        inodes
            .chunks(PUSHED_AT_ONCE)
            .try_for_each(|some| self.push_some(&private, some))
    }

    fn paused(&self, act: &mut dyn FnMut()) {
        let _paused = self.serving.write();
        act();
    }

    fn invalidate(&self, inodes: &[Ino], settled: &dyn Fn(Ino, Kept)) -> io::Result<()> {
        let mut result = Ok(());
        if self.recent_kernel.load(Ordering::Relaxed) {
            result = self.drop_names();
        }
        let private = self.held.lock().private.clone();
        // One that fails leaves no other one stale.
        for &ino in inodes {
            let mut dropped = self.inval_inode(ino);
            settled(ino, Kept::Pages);
            if self.held.lock().writers.has(ino) {
                // An append goes by the size that the kernel knows, and asks nobody.
                if let Some(private) = &private {
                    self.learn_size(private, ino);
                }
                settled(ino, Kept::Size);
                // What was appended meanwhile is in the wrong place of the page cache.
                dropped = dropped.and_then(|()| self.inval_inode(ino));
            } else {
                settled(ino, Kept::Size);
            }
            result = result.and(dropped);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_descriptor_stays_until_the_last_that_can_map_goes() {
        let cache = FuseCache::new();
        let ino = Ino(20);
        cache.opened(ino, OpenMode::ReadWrite);
        cache.opened(ino, OpenMode::ReadWrite);
        cache.opened(ino, OpenMode::Write);
        cache.opened(ino, OpenMode::Read);
        let fd = Arc::new(OwnedFd::from(File::open("/dev/null").unwrap()));
        cache.held.lock().sync_fds.insert(ino, fd);
        cache.closed(ino, OpenMode::ReadWrite);
        cache.closed(ino, OpenMode::Read);
        assert!(cache.held.lock().sync_fds.contains_key(&ino));
        cache.closed(ino, OpenMode::ReadWrite);
        assert!(cache.held.lock().sync_fds.is_empty() && !cache.held.lock().writers.maps(ino));
        assert!(cache.held.lock().writers.has(ino));
        cache.closed(ino, OpenMode::Write);
        assert!(!cache.held.lock().writers.has(ino));
        // One more than came, as after a session that ended in between.
        cache.closed(ino, OpenMode::ReadWrite);
    }

    #[test]
    fn without_a_session_there_is_nothing_to_push_or_drop() {
        let cache = FuseCache::new();
        cache.push_dirty(&[Ino::ROOT]).unwrap();
        cache.invalidate(&[Ino::ROOT], &|_, _| ()).unwrap();
        let mut done = false;
        cache.paused(&mut || done = true);
        assert!(done);
    }
}
