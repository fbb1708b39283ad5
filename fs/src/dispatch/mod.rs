//! The one door into the engine: typed file-system operations, with no transport's types in them.
//!
//! Adapters ([`fuser`] for mounts of this machine, [`wire`] for a guest's virtio-fs; an io_uring ring
//! later) translate their wire format into these calls. The contract they keep:
//!
//! * Every call that returns an [`Entry`] hands out one *lookup reference* on that inode. The
//!   adapter returns references with [`Dispatch::forget`], or all at once with
//!   [`Dispatch::forget_all`] when its connection ends. An unlinked inode lives until its last
//!   reference is returned. A connection that goes on where another one was saved takes references by
//!   number ([`Dispatch::reference`]).
//! * Every successful [`Dispatch::open`] or [`Dispatch::create`] is paired with one
//!   [`Dispatch::release`] carrying the same flags. There are no file handles: inode numbers are
//!   stable, so an adapter has no table to save.
//! * Permissions are the transport's business (the kernel checks them under
//!   `default_permissions`); the engine enforces what only it can know: names, types, links,
//!   set-id clearing, ACL and umask rules on creation.
//! * No call may be made from inside a [`KernelCache`] method's caller while it serves requests:
//!   invalidation and write-back wait for requests to be answered.

mod attempt;
mod convert;
mod errno;
pub mod fuser;
mod held;
mod onlooker;
mod op;
pub mod wire;
mod writers;

pub use errno::Errno;
pub use onlooker::{Onlooker, OnlookerCache};
pub use op::OpError;
pub(crate) use writers::Writers;

use std::time::Duration;

use crate::attr::{Attr, FileKind, Timestamp};
use crate::id::Ino;

/// How long a kernel may believe names and attributes that only this side changes, or tells it about: as
/// long as it likes.
const LONG: Duration = Duration::from_secs(365 * 24 * 3600);

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
}

/// An inode and its attributes, together with a lookup reference on it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Inode number.
    pub ino: Ino,
    /// Its attributes.
    pub attr: Attr,
}

/// A time to set.
#[derive(Clone, Copy, Debug)]
pub enum SetTime {
    /// The server's current time.
    Now,
    /// The given time.
    At(Timestamp),
}

/// Attributes to change; `None` leaves one alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits (`0o7777`).
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time (only a kernel with a write-back cache sends it).
    pub ctime: Option<Timestamp>,
}

/// What to make at a new name.
#[derive(Clone, Copy, Debug)]
pub struct NewNode<'a> {
    /// Kind of file.
    pub kind: FileKind,
    /// Permission bits asked for, before umask or default ACL.
    pub perm: u16,
    /// The caller's umask; ignored where the parent has a default ACL.
    pub umask: u16,
    /// Device number for device nodes.
    pub rdev: u32,
    /// Target of a symbolic link, empty otherwise.
    pub target: &'a [u8],
}

/// Flags of `renameat2(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Fail if the new name exists.
    pub no_replace: bool,
    /// Swap the two names.
    pub exchange: bool,
    /// Leave a whiteout (character device 0:0) at the old name.
    pub whiteout: bool,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading only.
    Read,
    /// For writing only.
    Write,
    /// For both.
    ReadWrite,
}

impl OpenMode {
    /// Whether the file can be written through the descriptor.
    #[must_use]
    pub fn writes(self) -> bool {
        self != Self::Read
    }

    /// Whether the file can be changed through a mapping of the descriptor, so that there can be
    /// pages that this side has not seen. mmap(2) takes none that cannot read as well.
    #[must_use]
    pub fn maps(self) -> bool {
        self == Self::ReadWrite
    }
}

/// One write.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Offset in bytes; ignored when `append` is set.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// Write at the end of the file, wherever that is by now.
    pub append: bool,
    /// Clear set-id bits and `security.capability`, as for a writer without `CAP_FSETID`.
    pub kill_set_id: bool,
}

/// A `fallocate(2)` mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Reserve; grow the file if the range passes its end.
    Allocate,
    /// Reserve without growing.
    AllocateKeepSize,
    /// Make the range a hole (size kept).
    PunchHole,
    /// Zero the range; grow the file if it passes its end.
    ZeroRange,
    /// Zero the range without growing.
    ZeroRangeKeepSize,
}

/// How `setxattr` treats an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// Fail with `EEXIST` if present.
    Create,
    /// Fail with `ENODATA` if absent.
    Replace,
}

/// One name that [`Dispatch::readdir`] reports.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// Inode number.
    pub ino: Ino,
    /// Kind of file.
    pub kind: FileKind,
    /// Name as bytes.
    pub name: &'a [u8],
    /// Position to continue after this entry.
    pub cookie: u64,
    /// Attributes, when asked for with `plus`; the entry then carries a lookup reference if the
    /// sink took it (never for `.` and `..`).
    pub attr: Option<Attr>,
}

/// Figures for `statfs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Size of a block in bytes.
    pub block_size: u32,
    /// Blocks in total.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Blocks free to ordinary users.
    pub blocks_available: u64,
    /// Inodes in total.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// Typed file-system operations on one workspace or snapshot. See the module head for the
/// contract; every method may be called from any thread.
pub trait Dispatch: Send + Sync {
    /// Looks a name up. `Ok(None)` when it does not exist: adapters may cache that.
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Option<Entry>, OpError>;
    /// Takes lookup references by inode number, `count` of each, whether an inode has a name or not: all of
    /// them or, with an error, none. What a failure leaves is as it was before: nothing is reclaimed for it.
    ///
    /// # Errors
    /// [`OpError::Stale`] names an inode that does not exist.
    fn reference(&self, inodes: &[(Ino, u64)]) -> Result<(), OpError>;
    /// Returns `count` lookup references.
    fn forget(&self, ino: Ino, count: u64);
    /// Returns every lookup reference and open: the transport's connection has ended.
    fn forget_all(&self);
    /// The root, and every inode that is referenced or open for writing.
    fn known(&self) -> Vec<Ino>;
    /// Reads attributes.
    fn getattr(&self, ino: Ino) -> Result<Attr, OpError>;
    /// Tells inodes of the same number apart that a kernel must not take for one: after a rollback
    /// that brings a removed directory back, the kernel keeps refusing to use the one it has.
    fn generation(&self, ino: Ino) -> u32;
    /// What the kernel may still have of an inode as it was before a rollback.
    fn unsettled(&self, ino: Ino) -> Unsettled;
    /// Changes attributes and returns the new ones.
    fn setattr(&self, caller: Caller, ino: Ino, set: SetAttr) -> Result<Attr, OpError>;
    /// Reads a symbolic link's target.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>, OpError>;
    /// Makes a file, directory, link, device, FIFO or socket.
    fn make(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        node: NewNode<'_>,
    ) -> Result<Entry, OpError>;
    /// Makes a regular file and opens it. The caller holds both a lookup reference and an open.
    fn create(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        node: NewNode<'_>,
        mode: OpenMode,
    ) -> Result<Entry, OpError>;
    /// Removes a name that is not a directory.
    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<(), OpError>;
    /// Removes an empty directory.
    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<(), OpError>;
    /// Renames, replaces or exchanges.
    fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<(), OpError>;
    /// Adds a hard link.
    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry, OpError>;
    /// Opens a regular file.
    fn open(&self, ino: Ino, mode: OpenMode) -> Result<(), OpError>;
    /// Closes what `open` or `create` opened.
    fn release(&self, ino: Ino, mode: OpenMode);
    /// Reads up to `len` bytes at `offset` into `out` (cleared first); fewer at end of file.
    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<(), OpError>;
    /// Writes all of the data or nothing that a reader can see.
    fn write(&self, ino: Ino, write: Write<'_>) -> Result<(), OpError>;
    /// Makes contents and attributes of the file durable.
    fn fsync(&self, ino: Ino) -> Result<(), OpError>;
    /// Makes everything acknowledged so far durable (directories, `syncfs`).
    fn sync(&self) -> Result<(), OpError>;
    /// Reserves, punches or zeroes a range.
    fn fallocate(
        &self,
        caller: Caller,
        ino: Ino,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<(), OpError>;
    /// Finds the next data (`hole == false`) or hole at or after `offset`.
    fn seek(&self, ino: Ino, offset: u64, hole: bool) -> Result<u64, OpError>;
    /// Copies a range inside the engine and returns the bytes copied; fewer at end of file.
    fn copy_range(
        &self,
        caller: Caller,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
    ) -> Result<u64, OpError>;
    /// Lists a directory after `cookie` (0 from the start), `.` and `..` first, until `sink`
    /// returns false for an entry that did not fit. With `plus`, entries carry attributes and,
    /// where the sink returned true, a lookup reference.
    fn readdir(
        &self,
        ino: Ino,
        cookie: u64,
        plus: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), OpError>;
    /// Reads an extended attribute.
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, OpError>;
    /// Sets an extended attribute.
    fn setxattr(
        &self,
        caller: Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), OpError>;
    /// Lists the names of extended attributes.
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>, OpError>;
    /// Removes an extended attribute.
    fn removexattr(&self, caller: Caller, ino: Ino, name: &[u8]) -> Result<(), OpError>;
    /// Figures of the file system.
    fn statfs(&self) -> Result<StatFs, OpError>;
}

/// What a kernel keeps of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Cached pages.
    Pages,
    /// The size, where an append goes.
    Size,
}

/// What a kernel may still have of an inode as it was before a rollback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsettled {
    /// Pages it sends are of that time and must not be written.
    pub pages: bool,
    /// The size it knows is no end to append at.
    pub size: bool,
}

/// What a transport does for the engine around a freeze and a rollback.
///
/// Called only from threads that serve no requests, with no engine lock held that a request
/// needs.
pub trait KernelCache: Send + Sync {
    /// Pushes dirty mapped pages of these inodes (those that [may be mapped](OpenMode::maps)) to the
    /// engine and waits until each has arrived.
    ///
    /// # Errors
    /// The first I/O error; pages may then be missing from the snapshot, so it must be refused.
    fn push_dirty(&self, inodes: &[Ino]) -> std::io::Result<()>;
    /// Does something while no request is being served: those that had begun have been answered,
    /// and new ones wait.
    fn paused(&self, act: &mut dyn FnMut());
    /// Drops every cached name, attribute and page of the given inodes, and all cached names.
    /// `settled` is told of each inode what the kernel does not have of it any more: what counts is the one
    /// kernel that can change the file system, and others tell nothing ([`OnlookerCache`]).
    ///
    /// # Errors
    /// When the kernel refuses the notification.
    fn invalidate(&self, inodes: &[Ino], settled: &dyn Fn(Ino, Kept)) -> std::io::Result<()>;
}
