//! A [`Dispatch`] that tells a test of some operations before they happen.

use std::sync::Arc;

use floe_fs::View;
use floe_fs::attr::Attr;
use floe_fs::dispatch::{
    Caller, DirEntry, Dispatch, Entry, Fallocate, NewNode, OpError, OpenMode, RenameFlags, SetAttr,
    StatFs, Unsettled, Write, XattrMode,
};
use floe_fs::id::Ino;

type Hook = Box<dyn Fn(&'static str) + Send + Sync>;

/// A view, and what happens before an operation on it.
pub struct Hooked {
    pub view: Arc<View>,
    pub before: Hook,
}

macro_rules! hooked {
    ($($operation:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        impl Dispatch for Hooked {
            $(fn $operation(&self, $($argument: $kind),*) -> $result {
                (self.before)(stringify!($operation));
                self.view.$operation($($argument),*)
            })*
        }
    };
}

hooked! {
    lookup(parent: Ino, name: &[u8]) -> Result<Option<Entry>, OpError>;
    reference(inodes: &[(Ino, u64)]) -> Result<(), OpError>;
    forget(ino: Ino, count: u64) -> ();
    forget_all() -> ();
    known() -> Vec<Ino>;
    getattr(ino: Ino) -> Result<Attr, OpError>;
    generation(ino: Ino) -> u32;
    unsettled(ino: Ino) -> Unsettled;
    setattr(caller: Caller, ino: Ino, set: SetAttr) -> Result<Attr, OpError>;
    readlink(ino: Ino) -> Result<Vec<u8>, OpError>;
    make(caller: Caller, parent: Ino, name: &[u8], node: NewNode<'_>) -> Result<Entry, OpError>;
    create(caller: Caller, parent: Ino, name: &[u8], node: NewNode<'_>, mode: OpenMode)
        -> Result<Entry, OpError>;
    unlink(parent: Ino, name: &[u8]) -> Result<(), OpError>;
    rmdir(parent: Ino, name: &[u8]) -> Result<(), OpError>;
    rename(from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<(), OpError>;
    link(ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry, OpError>;
    open(ino: Ino, mode: OpenMode) -> Result<(), OpError>;
    release(ino: Ino, mode: OpenMode) -> ();
    read(ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<(), OpError>;
    write(ino: Ino, write: Write<'_>) -> Result<(), OpError>;
    fsync(ino: Ino) -> Result<(), OpError>;
    sync() -> Result<(), OpError>;
    fallocate(caller: Caller, ino: Ino, mode: Fallocate, offset: u64, len: u64)
        -> Result<(), OpError>;
    seek(ino: Ino, offset: u64, hole: bool) -> Result<u64, OpError>;
    copy_range(caller: Caller, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64, OpError>;
    readdir(ino: Ino, cookie: u64, plus: bool, sink: &mut dyn FnMut(DirEntry<'_>) -> bool)
        -> Result<(), OpError>;
    getxattr(ino: Ino, name: &[u8]) -> Result<Vec<u8>, OpError>;
    setxattr(caller: Caller, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode)
        -> Result<(), OpError>;
    listxattr(ino: Ino) -> Result<Vec<Vec<u8>>, OpError>;
    removexattr(caller: Caller, ino: Ino, name: &[u8]) -> Result<(), OpError>;
    statfs() -> Result<StatFs, OpError>;
}
