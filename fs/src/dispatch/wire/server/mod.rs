//! What a guest may do, and having a [`Dispatch`] do it.
//!
//! One [`Server`] serves one connection, and keeps for it what the contract of [`Dispatch`] asks of an
//! adapter whatever the guest sends:
//!
//! * A guest names only inodes that it holds a reference to; another number is answered with `ESTALE`.
//! * It returns only references that it holds: more would be those of somebody else.
//! * Only what it has open is closed, read, written; a file is written only if it is open for writing.
//! * When the connection ends, exactly what the guest still holds is returned. Not by
//!   [`Dispatch::forget_all`]: a mount on the host and other guests may hold references of the same view.
//! * That can be saved, and another server begin with it.
//!
//! Who asks is believed: the guest is the machine that its users log in to, and its kernel checks
//! permissions. Whoever takes it over acts as any user *inside the workspaces that it has*, and has no others.

mod attributes;
mod cache;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod listing;
mod names;
mod negotiate;
mod options;
mod saved;
mod state;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::{RwLock, RwLockReadGuard};

use self::negotiate::negotiate;
pub use self::options::{Caching, ServerOptions};
pub use self::state::{COUNT_MAX, Captured, RestoreStateError, ServerState, StateError};
use super::codec::{Dialect, Header, Opcode, Operation, Reply, Request};
use super::stream::{self, StreamError};
use crate::dispatch::attempt::attempt;
use crate::dispatch::held::{Nodes, Opens};
use crate::dispatch::{Caller, Dispatch, Errno, KernelCache, OpError, convert};
use crate::id::Ino;

/// What a change of a read-only file system fails with.
const READ_ONLY: Errno = Errno(libc::EROFS);
/// What an inode is that the guest does not hold.
const NOT_HELD: Errno = Errno(libc::ESTALE);
/// What nobody here does.
const UNKNOWN: Errno = Errno(libc::ENOSYS);
/// The largest number of 32 bits is no id (`(uid_t) -1`).
const NO_ID: u32 = u32::MAX;

/// Serves one guest's connection. It knows one guest only: make one for each.
pub struct Server {
    dispatch: Arc<dyn Dispatch>,
    options: ServerOptions,
    nodes: Nodes,
    opens: Opens,
    /// Nothing before INIT and after DESTROY.
    agreed: RwLock<Option<Dialect>>,
    /// Held for reading while a request is served, until its answer is sent, and while what the guest held
    /// is returned.
    serving: RwLock<()>,
    /// A rollback took place: the guest may hold what does not exist any more.
    taken_back: AtomicBool,
}

/// When a message may be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Before the next message is read: what it returns must not be returned after what comes next.
    First,
    /// When everything before it has been answered, and before the next message is read.
    Alone,
    /// Beside others.
    Beside,
    /// Beside others, where nobody waits for it: it may take long.
    Apart,
}

impl Server {
    /// A server for one connection.
    #[must_use]
    pub fn new(dispatch: Arc<dyn Dispatch>, options: ServerOptions) -> Arc<Self> {
        Arc::new(Self {
            dispatch,
            options,
            nodes: Nodes::new(options.nodes_max),
            opens: Opens::new(options.opens_max),
            agreed: RwLock::default(),
            serving: RwLock::default(),
            taken_back: AtomicBool::new(false),
        })
    }

    /// Serves a connection until it ends, and then returns what the guest holds. To end it from here, shut
    /// the socket down (of which the caller keeps a duplicate): requests that have begun are finished.
    ///
    /// # Errors
    /// [`StreamError`] if it did not end between two messages. What the guest holds is returned all the
    /// same.
    pub fn serve(&self, socket: UnixStream) -> Result<(), StreamError> {
        let served = stream::serve(self, socket, self.options.threads);
        // What is returned changes what a rollback works on.
        let _serving = self.serving();
        self.let_go();
        served
    }

    /// What pauses this connection around a rollback; see [`crate::View::attach`].
    #[must_use]
    pub fn kernel_cache(self: &Arc<Self>) -> Arc<dyn KernelCache> {
        self.clone()
    }

    /// A message is being served, until its answer is sent and this dropped.
    pub(super) fn serving(&self) -> RwLockReadGuard<'_, ()> {
        self.serving.read()
    }

    /// When a message may be served.
    pub(super) fn order(header: &Header) -> Order {
        match header.known_opcode() {
            Some(
                Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply,
            ) => Order::First,
            Some(Opcode::Init | Opcode::Destroy) => Order::Alone,
            Some(
                Opcode::FSync
                | Opcode::FSyncDir
                | Opcode::SyncFs
                | Opcode::CopyFileRange
                | Opcode::CopyFileRange64,
            ) => Order::Apart,
            _ => Order::Beside,
        }
    }

    /// Serves one message. Whether anybody waits for the answer, its frame says.
    pub(super) fn answer(&self, header: Header, body: &[u8], reply: &mut Reply) {
        reply.begin(header.unique);
        let agreed = *self.agreed.read();
        let done = match Request::parse(header, body, agreed.unwrap_or_default()) {
            Ok(request) if agreed.is_some() || is_beginning(&request.operation) => {
                self.operate(&request, reply)
            }
            Ok(_) => Err(Errno(libc::EIO)),
            Err(error) => {
                tracing::debug!(%error, opcode = header.opcode, "a malformed request");
                Err(error.errno())
            }
        };
        if let Err(errno) = done {
            reply.error(errno);
        }
    }

    fn operate(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let header = &request.header;
        match request.operation {
            Operation::Init(offer) => {
                // A guest that was reset without unmounting begins anew.
                self.let_go();
                let (answer, agreed) = negotiate(&offer, self.options.caching)?;
                *self.agreed.write() = agreed;
                reply.init(&answer);
                Ok(())
            }
            Operation::Destroy => {
                self.let_go();
                Ok(())
            }
            Operation::Lookup { name } => self.lookup(header, name, reply),
            Operation::Forget { count } => {
                self.forget(header.node, count);
                Ok(())
            }
            Operation::BatchForget(forgets) => {
                forgets
                    .iter()
                    .for_each(|(node, count)| self.forget(node, count));
                Ok(())
            }
            Operation::GetAttr => self.getattr(header, reply),
            Operation::StatX => self.statx(header, reply),
            Operation::SetAttr(set) => self.setattr(header, set, reply),
            Operation::ReadLink => self.readlink(header, reply),
            Operation::Symlink { name, target } => self.symlink(header, name, target, reply),
            Operation::MkNod {
                name,
                mode,
                umask,
                rdev,
            } => {
                let node = convert::device_node(mode, umask, rdev);
                self.make("mknod", header, name, node, reply)
            }
            Operation::MkDir { name, mode, umask } => {
                self.mkdir(header, name, (mode, umask), reply)
            }
            Operation::Create {
                name,
                flags,
                mode,
                umask,
            } => self.create(header, name, (mode, umask), flags, reply),
            Operation::Unlink { name } => self.unlink(header, name),
            Operation::RmDir { name } => self.rmdir(header, name),
            Operation::Rename {
                name,
                new_parent,
                new_name,
                flags,
            } => self.rename(header, name, (new_parent, new_name), flags),
            Operation::Link { node, name } => self.link(header, node, name, reply),
            Operation::Open { flags } => self.open(header, flags, reply),
            Operation::Release { flags } => self.release(header, flags),
            Operation::Read { offset, size } => self.read(header, offset, size, reply),
            Operation::Write {
                offset,
                data,
                write_flags,
                flags,
            } => self.write(header, (offset, data), write_flags, flags, reply),
            Operation::FSync => self.fsync("fsync", header),
            Operation::FSyncDir => self.fsync("fsyncdir", header),
            Operation::SyncFs => self.attempt("syncfs", Ino::ROOT, |fs| fs.sync()),
            Operation::FAllocate { offset, len, mode } => {
                self.fallocate(header, (offset, len), mode)
            }
            Operation::LSeek { offset, whence } => self.seek(header, offset, whence, reply),
            Operation::CopyFileRange { .. } => self.copy_range(header, &request.operation, reply),
            Operation::ReadDir { cookie, size, plus } => {
                self.readdir(header, cookie, (size, plus), reply)
            }
            Operation::StatFs => self.statfs(reply),
            Operation::SetXattr { .. } => self.setxattr(header, &request.operation),
            Operation::GetXattr { name, size } => self.getxattr(header, name, size, reply),
            Operation::ListXattr { size } => self.listxattr(header, size, reply),
            Operation::RemoveXattr { name } => self.removexattr(header, name),
            // The kernel sends no RELEASEDIR after OPENDIR was answered with ENOSYS.
            Operation::ReleaseDir | Operation::Interrupt => Ok(()),
            Operation::IoCtl => Err(Errno(libc::ENOTTY)),
            // Directories have no state to open, nothing is written late, permissions are checked and locks
            // kept by the guest's kernel, files are always ready, there is no memory to map. ENOSYS has the
            // kernel send them no more. Files without names: as on the host's mounts (docs/posix.md), the
            // engine makes files at names.
            Operation::Unserved => Err(UNKNOWN),
        }
    }

    /// An inode that the guest may name.
    fn held(&self, node: u64) -> Result<Ino, Errno> {
        let ino = Ino(node);
        self.nodes.holds(ino).then_some(ino).ok_or(NOT_HELD)
    }

    /// Refuses a change of what may only be read.
    fn writable(&self) -> Result<(), Errno> {
        if self.options.read_only {
            Err(READ_ONLY)
        } else {
            Ok(())
        }
    }

    /// Who asks, as the guest says.
    fn caller(header: &Header) -> Result<Caller, Errno> {
        // Whoever owned a file then would be nobody, and chown(2) on the host would not say no to it.
        if header.uid == NO_ID || header.gid == NO_ID {
            return Err(Errno(libc::EINVAL));
        }
        Ok(Caller {
            uid: header.uid,
            gid: header.gid,
        })
    }

    /// Has the engine do something.
    fn attempt<T>(
        &self,
        operation: &'static str,
        ino: Ino,
        act: impl FnOnce(&dyn Dispatch) -> Result<T, OpError>,
    ) -> Result<T, Errno> {
        // What a guest's kernel believes after a panic cannot be taken back.
        Ok(attempt(&*self.dispatch, operation, ino, act)?)
    }

    /// Returns everything that the guest holds. No other request is being served; the caller is
    /// [`serving`](Self::serving), so that no rollback is under way.
    pub(super) fn let_go(&self) {
        *self.agreed.write() = None;
        for (ino, mode, count) in self.opens.drain() {
            for _ in 0..count {
                self.returned("release", ino, |fs| fs.release(ino, mode));
            }
        }
        for (ino, count) in self.nodes.drain() {
            self.returned("forget", ino, |fs| fs.forget(ino, count));
        }
    }

    /// Returns something. Whoever does gets no answer, and a panic has been logged.
    fn returned(&self, operation: &'static str, ino: Ino, act: impl FnOnce(&dyn Dispatch)) {
        let done = self.attempt(operation, ino, |fs| {
            act(fs);
            Ok(())
        });
        done.unwrap_or_default();
    }
}

/// What was restored and never served is returned as well.
impl Drop for Server {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Whether something may come before everything else.
fn is_beginning(operation: &Operation<'_>) -> bool {
    matches!(operation, Operation::Init(_) | Operation::Destroy)
}
