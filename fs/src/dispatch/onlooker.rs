//! A file system that others change, to look at: what a mount serves that must not change it and that
//! shares its view with whoever does.
//!
//! Invariants: no call here changes anything; what is returned at the end of the connection is what this
//! connection holds, and nothing that others hold of the view; what its kernel has, or has not any more, says
//! nothing of what the kernel of whoever works there has.

use std::sync::Arc;

use super::held::Nodes;
use super::{
    Caller, DirEntry, Dispatch, Entry, Fallocate, Kept, KernelCache, NewNode, OpError, OpenMode,
    RenameFlags, SetAttr, StatFs, Unsettled, Write, XattrMode,
};
use crate::attr::Attr;
use crate::engine::{Holder, View};
use crate::id::Ino;

/// A view of which only what reads is passed on; the rest fails with `EROFS`.
pub struct Onlooker {
    inner: Arc<View>,
    nodes: Nodes,
}

impl std::fmt::Debug for Onlooker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Onlooker").finish_non_exhaustive()
    }
}

impl Onlooker {
    /// For one connection.
    #[must_use]
    pub fn new(view: &Arc<View>) -> Self {
        Self {
            inner: Arc::clone(view),
            // The kernel of this machine holds what it has memory for.
            nodes: Nodes::new(usize::MAX),
        }
    }
}

impl Drop for Onlooker {
    fn drop(&mut self) {
        self.forget_all();
    }
}

impl Dispatch for Onlooker {
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Option<Entry>, OpError> {
        let found = self.inner.do_lookup(Holder::Looking, parent, name)?;
        if let Some(entry) = &found {
            self.nodes.take(entry.ino);
        }
        Ok(found)
    }

    fn reference(&self, inodes: &[(Ino, u64)]) -> Result<(), OpError> {
        self.inner.do_reference(Holder::Looking, inodes)?;
        for &(ino, count) in inodes {
            self.nodes.take_all(ino, count);
        }
        Ok(())
    }

    fn forget(&self, ino: Ino, count: u64) {
        let held = self.nodes.give_back(ino, count);
        if held > 0 {
            self.inner.do_forget(Holder::Looking, ino, held);
        }
    }

    fn forget_all(&self) {
        for (ino, count) in self.nodes.drain() {
            self.inner.do_forget(Holder::Looking, ino, count);
        }
    }

    fn known(&self) -> Vec<Ino> {
        let mut known = self.nodes.all();
        known.push(Ino::ROOT);
        known.sort_unstable();
        known.dedup();
        known
    }

    fn getattr(&self, ino: Ino) -> Result<Attr, OpError> {
        self.inner.getattr(ino)
    }

    fn generation(&self, ino: Ino) -> u32 {
        self.inner.generation(ino)
    }

    fn unsettled(&self, ino: Ino) -> Unsettled {
        self.inner.unsettled(ino)
    }

    fn setattr(&self, _: Caller, _: Ino, _: SetAttr) -> Result<Attr, OpError> {
        Err(OpError::ReadOnly)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>, OpError> {
        self.inner.readlink(ino)
    }

    fn make(&self, _: Caller, _: Ino, _: &[u8], _: NewNode<'_>) -> Result<Entry, OpError> {
        Err(OpError::ReadOnly)
    }

    fn create(
        &self,
        _: Caller,
        _: Ino,
        _: &[u8],
        _: NewNode<'_>,
        _: OpenMode,
    ) -> Result<Entry, OpError> {
        Err(OpError::ReadOnly)
    }

    fn unlink(&self, _: Ino, _: &[u8]) -> Result<(), OpError> {
        Err(OpError::ReadOnly)
    }

    fn rmdir(&self, _: Ino, _: &[u8]) -> Result<(), OpError> {
        Err(OpError::ReadOnly)
    }

    fn rename(&self, _: (Ino, &[u8]), _: (Ino, &[u8]), _: RenameFlags) -> Result<(), OpError> {
        Err(OpError::ReadOnly)
    }

    fn link(&self, _: Ino, _: Ino, _: &[u8]) -> Result<Entry, OpError> {
        Err(OpError::ReadOnly)
    }

    fn open(&self, ino: Ino, mode: OpenMode) -> Result<(), OpError> {
        if mode.writes() {
            return Err(OpError::ReadOnly);
        }
        self.inner.open(ino, mode)
    }

    fn release(&self, ino: Ino, mode: OpenMode) {
        // What was not opened here is not closed here.
        if !mode.writes() {
            self.inner.release(ino, mode);
        }
    }

    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<(), OpError> {
        self.inner.read(ino, offset, len, out)
    }

    fn write(&self, _: Ino, _: Write<'_>) -> Result<(), OpError> {
        Err(OpError::ReadOnly)
    }

    fn fsync(&self, ino: Ino) -> Result<(), OpError> {
        self.inner.fsync(ino)
    }

    fn sync(&self) -> Result<(), OpError> {
        self.inner.sync()
    }

    fn fallocate(&self, _: Caller, _: Ino, _: Fallocate, _: u64, _: u64) -> Result<(), OpError> {
        Err(OpError::ReadOnly)
    }

    fn seek(&self, ino: Ino, offset: u64, hole: bool) -> Result<u64, OpError> {
        self.inner.seek(ino, offset, hole)
    }

    fn copy_range(&self, _: Caller, _: (Ino, u64), _: (Ino, u64), _: u64) -> Result<u64, OpError> {
        Err(OpError::ReadOnly)
    }

    fn readdir(
        &self,
        ino: Ino,
        cookie: u64,
        plus: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), OpError> {
        let sink = &mut |entry: DirEntry<'_>| {
            let (ino, name) = (entry.ino, entry.name);
            let counts = plus && entry.attr.is_some() && name != b"." && name != b"..";
            let took = sink(entry);
            if took && counts {
                self.nodes.take(ino);
            }
            took
        };
        self.inner
            .do_readdir(Holder::Looking, ino, cookie, plus, sink)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, OpError> {
        self.inner.getxattr(ino, name)
    }

    fn setxattr(&self, _: Caller, _: Ino, _: &[u8], _: &[u8], _: XattrMode) -> Result<(), OpError> {
        Err(OpError::ReadOnly)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>, OpError> {
        self.inner.listxattr(ino)
    }

    fn removexattr(&self, _: Caller, _: Ino, _: &[u8]) -> Result<(), OpError> {
        Err(OpError::ReadOnly)
    }

    fn statfs(&self) -> Result<StatFs, OpError> {
        self.inner.statfs()
    }
}

/// What the kernel of an onlooker's mount has cached.
///
/// There can be no dirty pages in it. What it drops settles nothing: it is told of a rollback like the other
/// one, perhaps before it, and pages and sizes that could reach a file are only in the other one.
pub struct OnlookerCache(Arc<dyn KernelCache>);

impl OnlookerCache {
    /// For one mount.
    #[must_use]
    pub fn new(inner: Arc<dyn KernelCache>) -> Arc<Self> {
        Arc::new(Self(inner))
    }
}

impl KernelCache for OnlookerCache {
    fn push_dirty(&self, _: &[Ino]) -> std::io::Result<()> {
        Ok(())
    }

    fn paused(&self, act: &mut dyn FnMut()) {
        self.0.paused(act);
    }

    fn invalidate(&self, inodes: &[Ino], _: &dyn Fn(Ino, Kept)) -> std::io::Result<()> {
        self.0.invalidate(inodes, &|_, _| ())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use parking_lot::Mutex;

    use super::*;
    use crate::Store;
    use crate::attr::FileKind;
    use crate::id::WorkspaceName;

    fn new_file() -> NewNode<'static> {
        NewNode {
            kind: FileKind::File,
            perm: 0o644,
            umask: 0,
            rdev: 0,
            target: b"",
        }
    }

    fn view() -> (tempfile::TempDir, Arc<Store>, Arc<View>) {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("store");
        Store::init(&dir).unwrap();
        let store = Store::open(&dir).unwrap();
        let name = WorkspaceName::parse("w").unwrap();
        store.create_workspace(&name).unwrap();
        let view = store.open_live("w").unwrap();
        (scratch, store, view)
    }

    #[test]
    fn it_returns_what_it_holds_itself_and_changes_nothing() {
        let (_scratch, _store, view) = view();
        let root = Caller { uid: 0, gid: 0 };
        let file = view.make(root, Ino::ROOT, b"file", new_file()).unwrap().ino;
        let onlooker = Onlooker::new(&view);
        let found = onlooker.lookup(Ino::ROOT, b"file").unwrap().unwrap();
        assert_eq!(found.ino, file);
        let mut names = 0;
        let sink = &mut |_: DirEntry<'_>| {
            names += 1;
            true
        };
        onlooker.readdir(Ino::ROOT, 0, true, sink).unwrap();
        assert_eq!(names, 3);
        assert_eq!(onlooker.known(), [Ino::ROOT, file]);
        for refused in [
            onlooker.unlink(Ino::ROOT, b"file"),
            onlooker.open(file, OpenMode::ReadWrite),
            onlooker
                .make(root, Ino::ROOT, b"other", new_file())
                .map(drop),
            onlooker.setattr(root, file, SetAttr::default()).map(drop),
        ] {
            assert!(matches!(refused, Err(OpError::ReadOnly)));
        }
        // More than it holds, and all at the end: the other reference on the file is not touched.
        onlooker.forget(file, 100);
        onlooker.lookup(Ino::ROOT, b"file").unwrap();
        onlooker.forget_all();
        assert_eq!(onlooker.known(), [Ino::ROOT]);
        assert_eq!(view.known(), [file, Ino::ROOT]);
    }

    #[test]
    fn references_by_number_are_its_own_all_or_none() {
        let (_scratch, _store, view) = view();
        let root = Caller { uid: 0, gid: 0 };
        let file = view.make(root, Ino::ROOT, b"file", new_file()).unwrap().ino;
        let onlooker = Onlooker::new(&view);
        let gone = Ino(file.0 + 1);
        let refused = onlooker.reference(&[(file, 2), (gone, 1)]);
        assert!(matches!(refused, Err(OpError::Stale(ino)) if ino == gone));
        assert_eq!(onlooker.known(), [Ino::ROOT]);
        onlooker.reference(&[(file, 2), (Ino::ROOT, 1)]).unwrap();
        view.forget(file, 1);
        onlooker.forget(file, 1);
        assert!(view.known().contains(&file));
        drop(onlooker);
        assert_eq!(view.known(), [Ino::ROOT]);
    }

    #[test]
    fn what_it_holds_outlives_the_connection_that_works_and_nothing_else_does() {
        let (_scratch, store, view) = view();
        let root = Caller { uid: 0, gid: 0 };
        let make = |name: &[u8]| view.make(root, Ino::ROOT, name, new_file()).unwrap().ino;
        let (file, other) = (make(b"file"), make(b"other"));
        let onlooker = Onlooker::new(&view);
        onlooker.lookup(Ino::ROOT, b"file").unwrap();
        view.unlink(Ino::ROOT, b"file").unwrap();
        view.unlink(Ino::ROOT, b"other").unwrap();
        view.forget_all();
        // What is removed is removed by a thread of its own.
        store.settle().unwrap();
        assert_eq!(onlooker.getattr(file).unwrap().nlink, 0, "it is still held");
        // Once it stayed as long as anybody looked on.
        assert!(view.getattr(other).is_err(), "nobody holds it");
        onlooker.forget(file, 1);
        store.settle().unwrap();
        assert!(view.getattr(file).is_err(), "nobody holds it any more");
    }

    #[test]
    fn what_it_returns_is_not_taken_from_who_works_next() {
        let (_scratch, store, view) = view();
        let root = Caller { uid: 0, gid: 0 };
        let file = view.make(root, Ino::ROOT, b"file", new_file()).unwrap().ino;
        let onlooker = Onlooker::new(&view);
        onlooker.lookup(Ino::ROOT, b"file").unwrap();
        view.forget_all();
        // The next one takes a reference on what the onlooker held all along.
        view.lookup(Ino::ROOT, b"file").unwrap();
        view.unlink(Ino::ROOT, b"file").unwrap();
        drop(onlooker);
        store.settle().unwrap();
        assert_eq!(view.getattr(file).unwrap().nlink, 0, "the next one has it");
        view.forget(file, 1);
        store.settle().unwrap();
        assert!(view.getattr(file).is_err());
    }

    /// The kernel of a mount, which has pages and sizes until it is told: what the engine would do with them
    /// at that moment is noted.
    #[derive(Default)]
    struct Told {
        view: OnceLock<Arc<View>>,
        file: OnceLock<Ino>,
        pushes: Mutex<usize>,
        unsettled: Mutex<Vec<(bool, bool)>>,
    }

    impl Told {
        fn note(&self) {
            let Unsettled { pages, size } = self
                .view
                .get()
                .unwrap()
                .unsettled(*self.file.get().unwrap());
            self.unsettled.lock().push((pages, size));
        }
    }

    impl KernelCache for Told {
        fn push_dirty(&self, _: &[Ino]) -> std::io::Result<()> {
            *self.pushes.lock() += 1;
            Ok(())
        }

        fn paused(&self, act: &mut dyn FnMut()) {
            act();
        }

        fn invalidate(&self, inodes: &[Ino], settled: &dyn Fn(Ino, Kept)) -> std::io::Result<()> {
            self.note();
            for &ino in inodes {
                settled(ino, Kept::Pages);
                settled(ino, Kept::Size);
            }
            self.note();
            Ok(())
        }
    }

    /// A rollback beside an onlooker. Transports are told in no order that anybody chose: repeated until
    /// either was first.
    #[test]
    fn what_its_kernel_drops_settles_nothing_of_the_kernel_that_works() {
        let (mut first, mut last) = (false, false);
        for round in 0..200 {
            if first && last {
                return;
            }
            let (_scratch, store, view) = view();
            let root = Caller { uid: 0, gid: 0 };
            let made = view.create(root, Ino::ROOT, b"f", new_file(), OpenMode::ReadWrite);
            let (working, looking) = (Arc::new(Told::default()), Arc::new(Told::default()));
            for told in [&working, &looking] {
                told.view.get_or_init(|| view.clone());
                told.file.get_or_init(|| made.as_ref().unwrap().ino);
            }
            let mut attached = Vec::new();
            for _ in 0..round % 7 {
                drop(view.attach(working.clone()));
            }
            attached.push(view.attach(working.clone()));
            attached.push(view.attach(OnlookerCache::new(looking.clone())));
            let options = crate::SnapshotOptions::default();
            let snapshot = store.snapshot("w", &options).unwrap();
            assert_eq!((*working.pushes.lock(), *looking.pushes.lock()), (1, 0));
            store.rollback("w", snapshot.id.as_str()).unwrap();
            // Once it was settled already if the onlooker came first.
            assert_eq!(*working.unsettled.lock(), [(true, true), (false, false)]);
            match looking.unsettled.lock()[..] {
                [(true, true), (true, true)] => first = true,
                [(false, false), (false, false)] => last = true,
                ref other => panic!("the onlooker's kernel settled something: {other:?}"),
            }
        }
        panic!("not in both orders: {first} {last}");
    }
}
