//! `fuser::Filesystem` over a [`Dispatch`]: requests to operations, results to replies.
//!
//! No file handles are given out (see the contract of [`Dispatch`]). OPENDIR and FLUSH are answered
//! ENOSYS, which tells the kernel not to send them again: directories have no state to open and
//! nothing is written late.

mod requests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use fuser::{Errno, FopenFlags, Generation, INodeNo, ReplyEmpty, ReplyEntry, ReplyXattr, Version};
use parking_lot::RwLockReadGuard;

use super::cache::FuseCache;
use super::convert::{self, TTL};
use super::syncing;
use crate::dispatch::{self, Dispatch, Entry, OpError, OpenMode};
use crate::fault;
use crate::id::Ino;

/// Protocol version in which the kernel learned to drop all names at once (Linux 6.16).
const VERSION_INC_EPOCH: Version = Version(7, 44);

/// Serves one mount.
pub(super) struct Adapter {
    dispatch: Arc<dyn Dispatch>,
    cache: Arc<FuseCache>,
    /// How long the kernel may believe names: zero where it cannot be told to drop them.
    name_ttl: Duration,
}

impl Adapter {
    pub(super) fn new(dispatch: Arc<dyn Dispatch>, cache: Arc<FuseCache>) -> Self {
        Self {
            dispatch,
            cache,
            name_ttl: TTL,
        }
    }

    /// Runs an operation. A rollback waits until the answer has been sent, that is, until what this
    /// returns is dropped.
    fn run<T>(
        &self,
        operation: &'static str,
        node: INodeNo,
        act: impl FnOnce(&dyn Dispatch) -> Result<T, OpError>,
    ) -> Answer<'_, T> {
        let serving = self.cache.serving();
        Answer {
            result: attempt(&self.dispatch, &self.cache, operation, node, act),
            _serving: serving,
        }
    }

    /// Makes a file or directory durable, on a thread that serves no requests: a slow disk would
    /// hold up everybody else on the mount.
    fn sync(&self, operation: &'static str, node: INodeNo, reply: ReplyEmpty) {
        let (dispatch, cache) = (self.dispatch.clone(), self.cache.clone());
        syncing::later(move || {
            let synced = attempt(&dispatch, &cache, operation, node, |fs| {
                fs.fsync(convert::ino(node))
            });
            match synced {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn generation(&self, ino: Ino) -> Generation {
        Generation(self.dispatch.generation(ino).into())
    }

    /// Notes a writer before the kernel knows of it. Nothing is written late, so nothing has to be
    /// flushed; cached pages stay valid across opens.
    fn opened(&self, ino: Ino, mode: OpenMode) -> FopenFlags {
        self.cache.opened(ino, mode);
        FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH
    }

    fn entry(&self, entry: &Entry, reply: ReplyEntry) {
        let attr = convert::attr(entry.ino, &entry.attr);
        let generation = self.generation(entry.ino);
        reply.entry_with_ttls(&TTL, &self.name_ttl, &attr, generation);
    }

    fn made(&self, answer: Answer<'_, Entry>, reply: ReplyEntry) {
        match answer.result {
            Ok(entry) => self.entry(&entry, reply),
            Err(errno) => reply.error(errno),
        }
    }
}

/// The result of an operation, to be sent before it is dropped.
struct Answer<'a, T> {
    result: Result<T, Errno>,
    _serving: RwLockReadGuard<'a, ()>,
}

/// Errors become errnos here; a panic is answered EIO and the session lives on.
fn attempt<T>(
    dispatch: &Arc<dyn Dispatch>,
    cache: &Arc<FuseCache>,
    operation: &'static str,
    node: INodeNo,
    act: impl FnOnce(&dyn Dispatch) -> Result<T, OpError>,
) -> Result<T, Errno> {
    let _serving = fault::Serving::begin(operation);
    crate::hash::serving();
    let act = || {
        fault::point("begin");
        act(&**dispatch)
    };
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            let dispatch::Errno(code) = (&error).into();
            if matches!(error, OpError::Catalog(_) | OpError::Contents(_)) {
                let error: &dyn std::error::Error = &error;
                tracing::error!(error, operation, ino = node.0, code, "operation failed");
            }
            Err(Errno::from_i32(code))
        }
        Err(_panic) => {
            tracing::error!(operation, ino = node.0, "panic while serving a request");
            // The operation may have happened, to more inodes than this one, and the kernel believes
            // what it was told before.
            if cache.begin_distrust() {
                let (dispatch, cache) = (dispatch.clone(), cache.clone());
                syncing::later(move || cache.distrust(|| dispatch.known()));
            }
            Err(Errno::EIO)
        }
    }
}

fn empty(answer: Answer<'_, ()>, reply: ReplyEmpty) {
    match answer.result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn xattr(answer: Answer<'_, Vec<u8>>, size: u32, reply: ReplyXattr) {
    match answer.result {
        Ok(value) => {
            // Values and lists are at most 64 KiB.
            let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
            match size {
                0 => reply.size(len),
                size if len <= size => reply.data(&value),
                _ => reply.error(Errno::ERANGE),
            }
        }
        Err(errno) => reply.error(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::id::WorkspaceName;

    #[test]
    fn a_panic_is_answered_with_an_error_and_the_next_request_is_served() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        Store::init(&store).unwrap();
        let store = Store::open(&store).unwrap();
        store
            .create_workspace(&WorkspaceName::parse("w").unwrap())
            .unwrap();
        let adapter = Adapter::new(store.open_live("w").unwrap(), FuseCache::new());
        let root = INodeNo(Ino::ROOT.0);
        let panicked = adapter.run::<()>("test", root, |_| panic!("expected by this test"));
        assert_eq!(panicked.result, Err(Errno::EIO));
        drop(panicked);
        let missing = adapter.run("test", root, |fs| fs.unlink(Ino::ROOT, b"missing"));
        assert_eq!(missing.result, Err(Errno::ENOENT));
        assert!(
            adapter
                .run("test", root, |fs| fs.getattr(Ino::ROOT))
                .result
                .is_ok()
        );
    }
}
