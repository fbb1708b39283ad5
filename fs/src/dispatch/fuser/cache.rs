//! What the kernel has cached of a mount: pushing dirty pages out, dropping everything.
//!
//! A mount by root keeps a *private clone* of itself: a second mount of the same file system that
//! is attached nowhere. Files opened through it do not keep anyone from unmounting the visible one.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_channel::{Sender, unbounded};
use fuser::{INodeNo, Notifier};
use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{OpenTreeFlags, open_tree};

use super::GENERATION;
use crate::dispatch::KernelCache;
use crate::id::Ino;
use crate::sys;

/// Files kept open for writing their pages back.
const SYNC_FDS_MAX: usize = 1024;
/// `FUSE_NOTIFY_INC_EPOCH` of `linux/fuse.h`: every cached name is to be looked up again.
const NOTIFY_INC_EPOCH: i32 = 8;

/// The private clone of a mount.
struct Private {
    _tree: OwnedFd,
    /// Its root directory.
    root: OwnedFd,
}

/// The kernel's side of a mount.
pub(super) struct FuseCache {
    device: OnceLock<(u32, u32)>,
    notifier: OnceLock<Notifier>,
    /// The FUSE device of the session, for the notification that fuser does not know.
    channel: Mutex<Option<File>>,
    private: Mutex<Option<Arc<Private>>>,
    sync_fds: Mutex<HashMap<Ino, Arc<OwnedFd>>>,
    sync_fd_count: AtomicUsize,
    drops_names: AtomicBool,
}

impl FuseCache {
    pub(super) fn new(channel: Option<File>) -> Arc<Self> {
        Arc::new(Self {
            device: OnceLock::new(),
            notifier: OnceLock::new(),
            channel: Mutex::new(channel),
            private: Mutex::new(None),
            sync_fds: Mutex::default(),
            sync_fd_count: AtomicUsize::new(0),
            drops_names: AtomicBool::new(true),
        })
    }

    pub(super) fn cannot_drop_names(&self) {
        self.drops_names.store(false, Ordering::Relaxed);
    }

    /// The session is up: takes what sends notifications.
    pub(super) fn connect(&self, notifier: Notifier) {
        // Set once, by the one that makes the mount.
        self.notifier.get_or_init(|| notifier);
    }

    /// The mount is visible at `dir`: clones it, and learns its device number from the kernel.
    pub(super) fn visible(&self, dir: &Path, device: (u32, u32)) -> io::Result<()> {
        self.device.get_or_init(|| device);
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, dir, flags)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(&tree, ".", flags, Mode::empty())?;
        *self.private.lock() = Some(Arc::new(Private { _tree: tree, root }));
        Ok(())
    }

    pub(super) fn device(&self) -> (u32, u32) {
        self.device.get().copied().unwrap_or_default()
    }

    /// Closes everything that keeps the file system alive. Not from a thread that serves it.
    pub(super) fn let_go(&self) {
        let fds = std::mem::take(&mut *self.sync_fds.lock());
        self.sync_fd_count.store(0, Ordering::Relaxed);
        let private = self.private.lock().take();
        drop((fds, private));
    }

    /// The session has ended.
    pub(super) fn disconnect(&self) {
        self.let_go();
        *self.channel.lock() = None;
    }

    /// A writer of the file is gone: the descriptor kept for it is closed, or another snapshot
    /// opens a new one. Cheap when there is none. Called by serving threads, which must not close
    /// it themselves: closing may write back and wait for an answer.
    pub(super) fn writer_gone(&self, ino: Ino) {
        if self.sync_fd_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(fd) = self.sync_fds.lock().remove(&ino) {
            self.sync_fd_count.fetch_sub(1, Ordering::Relaxed);
            close_elsewhere(fd);
        }
    }

    fn sync_fd(&self, private: &Private, ino: Ino) -> io::Result<Arc<OwnedFd>> {
        if let Some(fd) = self.sync_fds.lock().get(&ino) {
            return Ok(fd.clone());
        }
        let fd = Arc::new(sys::open_by_node_id(&private.root, ino, GENERATION)?);
        let mut fds = self.sync_fds.lock();
        if fds.len() < SYNC_FDS_MAX && fds.insert(ino, fd.clone()).is_none() {
            self.sync_fd_count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(fd)
    }

    fn inval_inode(&self, ino: Ino) -> io::Result<()> {
        match self.notifier.get() {
            Some(notifier) => match notifier.inval_inode(INodeNo(ino.0), 0, 0) {
                // Nothing left to tell: the mount is gone.
                Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(()),
                other => other,
            },
            None => Ok(()),
        }
    }
}

impl KernelCache for FuseCache {
    fn push_dirty(&self, inodes: &[Ino]) -> io::Result<()> {
        let private = self.private.lock().clone();
        let Some(private) = private else {
            // Without a private clone (not root): this writes one page a request, but all of them.
            return inodes.iter().try_for_each(|&ino| self.inval_inode(ino));
        };
        let mut files = Vec::with_capacity(inodes.len());
        for &ino in inodes {
            match self.sync_fd(&private, ino) {
                Ok(fd) => files.push(fd),
                // Gone since the list was made: then nobody has it mapped.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ESTALE | libc::ENOENT)) => {
                }
                Err(error) => return Err(error),
            }
        }
        if !files.is_empty() {
            // Starts all of it, in large requests; each file is then waited for.
            rustix::fs::syncfs(&private.root)?;
        }
        files.iter().try_for_each(sys::write_back)
    }

    fn invalidate(&self, inodes: &[Ino]) -> io::Result<()> {
        if self.drops_names.load(Ordering::Relaxed)
            && let Some(channel) = &*self.channel.lock()
        {
            // struct fuse_out_header: length, code where an error would be, no request.
            let mut message = [0_u8; 16];
            message[..4].copy_from_slice(&16_u32.to_ne_bytes());
            message[4..8].copy_from_slice(&NOTIFY_INC_EPOCH.to_ne_bytes());
            let mut channel: &File = channel;
            channel.write_all(&message)?;
        }
        inodes.iter().try_for_each(|&ino| self.inval_inode(ino))
    }
}

/// Closes a descriptor in a thread that serves nothing.
fn close_elsewhere(fd: Arc<OwnedFd>) {
    static CLOSER: OnceLock<Option<Sender<Arc<OwnedFd>>>> = OnceLock::new();
    let closer = CLOSER.get_or_init(|| {
        let (send, receive) = unbounded::<Arc<OwnedFd>>();
        let spawned = std::thread::Builder::new()
            .name("floe-closer".to_owned())
            .spawn(move || receive.into_iter().for_each(drop));
        match spawned {
            Ok(_) => Some(send),
            Err(error) => {
                tracing::error!(%error, "no thread to close files in");
                None
            }
        }
    });
    match closer {
        Some(closer) => drop(closer.send(fd)),
        // Leaking it only delays the end of the mount; closing it here could stop the session.
        None => std::mem::forget(fd),
    }
}
