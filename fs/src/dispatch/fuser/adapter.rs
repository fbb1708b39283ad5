//! `fuser::Filesystem` over a [`Dispatch`]: requests to operations, results to replies.
//!
//! No file handles are given out (see the contract of [`Dispatch`]). OPENDIR and FLUSH are answered
//! ENOSYS, which tells the kernel not to send them again: directories have no state to open and
//! nothing is written late. Where others write, OPENDIR is answered, as the kernel would keep listings
//! otherwise.

mod requests;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use fuser::{
    Errno, FileAttr, FopenFlags, Generation, INodeNo, ReplyEmpty, ReplyEntry, ReplyXattr, Request,
    Version,
};
use parking_lot::RwLockReadGuard;

use super::cache::FuseCache;
use super::convert::{self, Told};
use super::mount::MountOptions;
use super::shift::IdShift;
use super::syncing;
use crate::attr::Attr;
use crate::dispatch::attempt::Failed;
use crate::dispatch::{self, Caller, Dispatch, Entry, LONG, NewNode, OpError, OpenMode};
use crate::id::Ino;

/// Protocol version in which the kernel learned to drop all names at once (Linux 6.16).
const VERSION_INC_EPOCH: Version = Version(7, 44);

/// Serves one mount.
pub(super) struct Adapter {
    dispatch: Arc<dyn Dispatch>,
    cache: Arc<FuseCache>,
    shift: Option<IdShift>,
    /// Others change the file system as well, and the kernel is not told.
    others_write: bool,
    /// How long the kernel may believe attributes.
    attr_ttl: Duration,
    /// How long it may believe names: zero where it cannot be told to drop them.
    name_ttl: Duration,
}

impl Adapter {
    pub(super) fn new(
        dispatch: Arc<dyn Dispatch>,
        cache: Arc<FuseCache>,
        options: &MountOptions,
    ) -> Self {
        let ttl = if options.others_write {
            Duration::ZERO
        } else {
            LONG
        };
        Self {
            dispatch,
            cache,
            shift: options.id_shift,
            others_write: options.others_write,
            attr_ttl: ttl,
            name_ttl: ttl,
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

    /// Who asks, by ids as they are in the store.
    fn caller(&self, request: &Request) -> Caller {
        let acting = |id| self.shift.map_or(id, |shift| shift.acting(id));
        Caller {
            uid: acting(request.uid()),
            gid: acting(request.gid()),
        }
    }

    /// Attributes, with ids as they are on the host.
    fn attr(&self, ino: Ino, attr: &Attr) -> FileAttr {
        let mut shown = convert::attr(ino, attr);
        if let Some(shift) = self.shift {
            shown.uid = shift.owner(shown.uid);
            shown.gid = shift.owner(shown.gid);
        }
        shown
    }

    /// An owner or group to be, by its id in the store; `None` if nobody has it there.
    fn given_to(&self, id: Option<u32>) -> Option<Option<u32>> {
        match (self.shift, id) {
            (Some(shift), Some(id)) => shift.given_to(id).map(Some),
            _ => Some(id),
        }
    }

    /// The value of an extended attribute, with ids as they are in the store; `None` if it names one that
    /// nobody has there.
    fn value_in<'v>(&self, name: &[u8], value: &'v [u8]) -> Option<Cow<'v, [u8]>> {
        match self.shift {
            Some(shift) => shift.xattr_in(name, value),
            None => Some(value.into()),
        }
    }

    /// The value of an extended attribute, with ids as they are on the host.
    fn value_out(&self, name: &[u8], value: Vec<u8>) -> Vec<u8> {
        match self.shift {
            Some(shift) => shift.xattr_out(name, value),
            None => value,
        }
    }

    fn generation(&self, ino: Ino) -> Generation {
        Generation(self.dispatch.generation(ino).into())
    }

    /// Notes a writer before the kernel knows of it. Nothing is written late, so nothing has to be
    /// flushed; cached pages stay valid across opens, unless others write: a kernel that is not told sees by
    /// time and size what they changed, and they can put both back.
    fn opened(&self, ino: Ino, mode: OpenMode) -> FopenFlags {
        self.cache.opened(ino, mode);
        let mut flags = FopenFlags::FOPEN_NOFLUSH;
        flags.set(FopenFlags::FOPEN_KEEP_CACHE, !self.others_write);
        flags
    }

    fn entry(&self, entry: &Entry, reply: ReplyEntry) {
        let attr = self.attr(entry.ino, &entry.attr);
        let generation = self.generation(entry.ino);
        reply.entry_with_ttls(&self.attr_ttl, &self.name_ttl, &attr, generation);
    }

    fn make(
        &self,
        operation: &'static str,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        node: NewNode<'_>,
        reply: ReplyEntry,
    ) {
        let caller = self.caller(request);
        let made = self.run(operation, parent, |fs| {
            fs.make(caller, convert::ino(parent), name.as_bytes(), node)
        });
        self.made(made, reply);
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

/// Has the engine do something.
fn attempt<T>(
    dispatch: &Arc<dyn Dispatch>,
    cache: &Arc<FuseCache>,
    operation: &'static str,
    node: INodeNo,
    act: impl FnOnce(&dyn Dispatch) -> Result<T, OpError>,
) -> Result<T, Errno> {
    let done = dispatch::attempt::attempt(&**dispatch, operation, convert::ino(node), act);
    done.map_err(|failed| {
        // What the kernel believes may not be so any more.
        if failed == Failed::Panicked && cache.begin_distrust() {
            let (dispatch, cache) = (dispatch.clone(), cache.clone());
            syncing::later(move || cache.distrust(|| dispatch.known()));
        }
        Errno::from_i32(dispatch::Errno::from(failed).0)
    })
}

fn empty(answer: Answer<'_, ()>, reply: ReplyEmpty) {
    match answer.result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn xattr(answer: Answer<'_, Vec<u8>>, size: u32, reply: ReplyXattr) {
    match &answer.result {
        Ok(value) => match convert::value_for(value, size) {
            Ok(Told::Length(len)) => reply.size(len),
            Ok(Told::Value(value)) => reply.data(value),
            Err(errno) => reply.error(Errno::from_i32(errno.0)),
        },
        Err(errno) => reply.error(*errno),
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
        let options = MountOptions {
            read_only: false,
            threads: 1,
            source: "floe:test:w".to_owned(),
            allow_other: false,
            trusted: false,
            id_shift: None,
            others_write: false,
        };
        let adapter = Adapter::new(store.open_live("w").unwrap(), FuseCache::new(), &options);
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
