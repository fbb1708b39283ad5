//! [`Dispatch`] for [`View`]: each operation is in the file of its feature.

use super::View;
use super::kernel::Holder;
use super::node::Contents;
use crate::attr::{Attr, FileKind};
use crate::dispatch::{
    Caller, DirEntry, Dispatch, Entry, Fallocate, NewNode, OpError, OpenMode, RenameFlags, SetAttr,
    StatFs, Unsettled, Write, XattrMode,
};
use crate::id::Ino;

impl Dispatch for View {
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Option<Entry>, OpError> {
        self.do_lookup(Holder::Working, parent, name)
    }

    fn reference(&self, inodes: &[(Ino, u64)]) -> Result<(), OpError> {
        self.do_reference(Holder::Working, inodes)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.do_forget(Holder::Working, ino, count);
    }

    fn forget_all(&self) {
        self.do_forget_all();
    }

    fn known(&self) -> Vec<Ino> {
        let mut known = self.kernel.all();
        known.push(Ino::ROOT);
        known
    }

    fn getattr(&self, ino: Ino) -> Result<Attr, OpError> {
        self.do_getattr(ino)
    }

    fn generation(&self, ino: Ino) -> u32 {
        self.left.generation(ino)
    }

    fn unsettled(&self, ino: Ino) -> Unsettled {
        self.left.unsettled(ino)
    }

    fn setattr(&self, caller: Caller, ino: Ino, set: SetAttr) -> Result<Attr, OpError> {
        self.with_room(|| self.do_setattr(caller, ino, set))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>, OpError> {
        self.do_readlink(ino)
    }

    fn make(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        node: NewNode<'_>,
    ) -> Result<Entry, OpError> {
        self.with_room(|| self.do_make(caller, parent, name, node))
    }

    fn create(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        node: NewNode<'_>,
        mode: OpenMode,
    ) -> Result<Entry, OpError> {
        let entry = self.with_room(|| self.do_make(caller, parent, name, node))?;
        self.kernel.opened(entry.ino, mode);
        Ok(entry)
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<(), OpError> {
        self.do_remove(parent, name, false)
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<(), OpError> {
        self.do_remove(parent, name, true)
    }

    fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<(), OpError> {
        self.with_room(|| self.do_rename(from, to, flags))
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry, OpError> {
        self.do_link(ino, parent, name)
    }

    fn open(&self, ino: Ino, mode: OpenMode) -> Result<(), OpError> {
        if mode.writes() && self.is_frozen() {
            return Err(OpError::ReadOnly);
        }
        match self.do_getattr(ino)?.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(OpError::IsDirectory(ino)),
            _ => {
                return Err(OpError::Invalid {
                    what: "not a regular file",
                });
            }
        }
        self.kernel.opened(ino, mode);
        Ok(())
    }

    fn release(&self, ino: Ino, mode: OpenMode) {
        if !self.kernel.closed(ino, mode) {
            return;
        }
        // Inline bytes are kept in memory only while somebody writes.
        let epoch = self.epoch();
        if let Ok(node) = epoch.nodes.get(ino)
            && let Ok(mut state) = self.lock(&epoch, &node)
            && matches!(state.contents, Some(Contents::Inline(_)))
        {
            state.contents = None;
        }
    }

    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<(), OpError> {
        self.do_read(ino, offset, len, out)
    }

    fn write(&self, ino: Ino, write: Write<'_>) -> Result<(), OpError> {
        self.with_room(|| self.do_write(ino, write))
    }

    fn fsync(&self, ino: Ino) -> Result<(), OpError> {
        self.do_fsync(ino)
    }

    fn sync(&self) -> Result<(), OpError> {
        self.do_sync()
    }

    fn fallocate(
        &self,
        caller: Caller,
        ino: Ino,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<(), OpError> {
        self.with_room(|| self.do_fallocate(caller, ino, mode, offset, len))
    }

    fn seek(&self, ino: Ino, offset: u64, hole: bool) -> Result<u64, OpError> {
        self.do_seek(ino, offset, hole)
    }

    fn copy_range(
        &self,
        caller: Caller,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
    ) -> Result<u64, OpError> {
        self.with_room(|| self.do_copy_range(caller, from, to, len))
    }

    fn readdir(
        &self,
        ino: Ino,
        cookie: u64,
        plus: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), OpError> {
        self.do_readdir(Holder::Working, ino, cookie, plus, sink)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, OpError> {
        self.do_getxattr(ino, name)
    }

    fn setxattr(
        &self,
        caller: Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), OpError> {
        self.do_setxattr(caller, ino, name, value, mode)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>, OpError> {
        self.do_listxattr(ino)
    }

    fn removexattr(&self, caller: Caller, ino: Ino, name: &[u8]) -> Result<(), OpError> {
        self.do_removexattr(caller, ino, name)
    }

    fn statfs(&self) -> Result<StatFs, OpError> {
        self.do_statfs()
    }
}
