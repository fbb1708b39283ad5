//! `fuser::Filesystem` over a [`Dispatch`]: requests to operations, results to replies.
//!
//! No file handles are given out (see the contract of [`Dispatch`]). OPENDIR and FLUSH are answered
//! ENOSYS, which tells the kernel not to send them again: directories have no state to open and
//! nothing is written late.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags,
    RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};

use super::GENERATION;
use super::cache::FuseCache;
use super::convert::{self, TTL};
use crate::attr::FileKind;
use crate::dispatch::{
    self, Caller, Dispatch, Entry, Fallocate, NewNode, OpError, OpenMode, SetAttr, Write, XattrMode,
};
use crate::id::Ino;

/// Largest write and read request in bytes.
const REQUEST_MAX: u32 = 1 << 20;
/// Requests the kernel may have under way in the background (read-ahead, write-back).
const BACKGROUND_MAX: u16 = 64;
/// Protocol version in which the kernel learned to drop all names at once (Linux 6.16).
const MINOR_INC_EPOCH: u32 = 44;

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

    /// For a mount whose kernel cannot be told to drop names.
    pub(super) fn without_name_cache(dispatch: Arc<dyn Dispatch>, cache: Arc<FuseCache>) -> Self {
        Self {
            dispatch,
            cache,
            name_ttl: Duration::ZERO,
        }
    }

    /// Runs an operation. Errors become errnos here; a panic is answered EIO and the session lives
    /// on.
    fn run<T>(
        &self,
        operation: &'static str,
        node: INodeNo,
        act: impl FnOnce(&dyn Dispatch) -> Result<T, OpError>,
    ) -> Result<T, Errno> {
        match catch_unwind(AssertUnwindSafe(|| act(&*self.dispatch))) {
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
                Err(Errno::EIO)
            }
        }
    }

    fn entry(&self, result: Result<Entry, Errno>, reply: ReplyEntry) {
        match result {
            Ok(entry) => {
                let attr = convert::attr(entry.ino, &entry.attr);
                let generation = Generation(u64::from(GENERATION));
                reply.entry_with_ttls(&TTL, &self.name_ttl, &attr, generation);
            }
            Err(errno) => reply.error(errno),
        }
    }
}

fn empty(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn xattr(result: Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match result {
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

fn caller(request: &Request) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
    }
}

fn mode_bits(mode: u32) -> u16 {
    u16::try_from(mode & 0o7777).unwrap_or(0)
}

fn open_mode(flags: OpenFlags) -> OpenMode {
    OpenMode {
        write: flags.acc_mode() != OpenAccMode::O_RDONLY,
    }
}

/// Nothing is written late, so nothing has to be flushed; cached pages stay valid across opens.
fn opened() -> FopenFlags {
    FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = [
            // The kernel checks ACLs; we keep mode and ACL in step, and apply umask or default ACL.
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DONT_MASK,
            // We clear set-id bits and capabilities, which saves a request before each write.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_NO_OPENDIR_SUPPORT,
            // Lets the daemon open a file by node id, for writing mapped pages back.
            InitFlags::FUSE_EXPORT_SUPPORT,
            // Pages are dropped when we say so, never because an attribute changed.
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
        ];
        for flag in wanted {
            if let Err(missing) = config.add_capabilities(flag) {
                tracing::info!(?missing, "the kernel lacks a FUSE feature");
            }
        }
        let set = config
            .set_max_write(REQUEST_MAX)
            .and(
                config
                    .set_time_granularity(Duration::from_nanos(1))
                    .map(|_| 0)
                    .map_err(|_| 0),
            )
            .and(
                config
                    .set_max_background(BACKGROUND_MAX)
                    .map(|_| 0)
                    .map_err(u32::from),
            );
        if set.is_err() {
            return Err(rustix::io::Errno::PROTO.into());
        }
        if config.kernel_abi() < fuser::Version(7, MINOR_INC_EPOCH) {
            self.name_ttl = Duration::ZERO;
            self.cache.cannot_drop_names();
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let parent_ino = convert::ino(parent);
        match self.run("lookup", parent, |fs| {
            fs.lookup(parent_ino, name.as_bytes())
        }) {
            Ok(Some(entry)) => self.entry(Ok(entry), reply),
            Ok(None) if self.name_ttl.is_zero() => reply.error(Errno::ENOENT),
            Ok(None) => reply.entry(&TTL, &convert::negative(), Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _request: &Request, node: INodeNo, count: u64) {
        let ino = convert::ino(node);
        let forgotten = self.run("forget", node, |fs| {
            fs.forget(ino, count);
            Ok(())
        });
        // There is no reply; a panic has been logged.
        forgotten.unwrap_or_default();
    }

    fn getattr(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let ino = convert::ino(node);
        match self.run("getattr", node, |fs| fs.getattr(ino)) {
            Ok(attr) => reply.attr(&TTL, &convert::attr(ino, &attr)),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let ino = convert::ino(node);
        let set = SetAttr {
            perm: mode.map(mode_bits),
            uid,
            gid,
            size,
            atime: atime.map(convert::set_time),
            mtime: mtime.map(convert::set_time),
            ctime: ctime.map(convert::timestamp),
        };
        match self.run("setattr", node, |fs| fs.setattr(caller(request), ino, set)) {
            Ok(attr) => reply.attr(&TTL, &convert::attr(ino, &attr)),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _request: &Request, node: INodeNo, reply: ReplyData) {
        match self.run("readlink", node, |fs| fs.readlink(convert::ino(node))) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        // A mode without a kind is a regular file (mknod(2)).
        let kind = FileKind::from_mode(mode).unwrap_or(FileKind::File);
        let rdev = match kind {
            FileKind::CharDevice | FileKind::BlockDevice => rdev,
            _ => 0,
        };
        let node = NewNode {
            kind,
            perm: mode_bits(mode),
            umask: mode_bits(umask),
            rdev,
            target: b"",
        };
        let made = self.run("mknod", parent, |fs| {
            fs.make(caller(request), convert::ino(parent), name.as_bytes(), node)
        });
        self.entry(made, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let node = NewNode {
            kind: FileKind::Directory,
            perm: mode_bits(mode),
            umask: mode_bits(umask),
            rdev: 0,
            target: b"",
        };
        let made = self.run("mkdir", parent, |fs| {
            fs.make(caller(request), convert::ino(parent), name.as_bytes(), node)
        });
        self.entry(made, reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let parent_ino = convert::ino(parent);
        empty(
            self.run("unlink", parent, |fs| {
                fs.unlink(parent_ino, name.as_bytes())
            }),
            reply,
        );
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let parent_ino = convert::ino(parent);
        empty(
            self.run("rmdir", parent, |fs| fs.rmdir(parent_ino, name.as_bytes())),
            reply,
        );
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let node = NewNode {
            kind: FileKind::Symlink,
            perm: 0o777,
            umask: 0,
            rdev: 0,
            target: target.as_os_str().as_bytes(),
        };
        let made = self.run("symlink", parent, |fs| {
            fs.make(caller(request), convert::ino(parent), name.as_bytes(), node)
        });
        self.entry(made, reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let known = RenameFlags::RENAME_NOREPLACE
            | RenameFlags::RENAME_EXCHANGE
            | RenameFlags::RENAME_WHITEOUT;
        if !known.contains(flags) {
            return reply.error(Errno::EINVAL);
        }
        let flags = dispatch::RenameFlags {
            no_replace: flags.contains(RenameFlags::RENAME_NOREPLACE),
            exchange: flags.contains(RenameFlags::RENAME_EXCHANGE),
            whiteout: flags.contains(RenameFlags::RENAME_WHITEOUT),
        };
        let (from, to) = (convert::ino(parent), convert::ino(new_parent));
        let renamed = self.run("rename", parent, |fs| {
            fs.rename((from, name.as_bytes()), (to, new_name.as_bytes()), flags)
        });
        empty(renamed, reply);
    }

    fn link(
        &self,
        _request: &Request,
        node: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let linked = self.run("link", node, |fs| {
            fs.link(convert::ino(node), convert::ino(parent), name.as_bytes())
        });
        self.entry(linked, reply);
    }

    fn open(&self, _request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.run("open", node, |fs| {
            fs.open(convert::ino(node), open_mode(flags))
        }) {
            Ok(()) => reply.opened(FileHandle(0), opened()),
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let node = NewNode {
            kind: FileKind::File,
            perm: mode_bits(mode),
            umask: mode_bits(umask),
            rdev: 0,
            target: b"",
        };
        let open = open_mode(OpenFlags(flags));
        let created = self.run("create", parent, |fs| {
            fs.create(
                caller(request),
                convert::ino(parent),
                name.as_bytes(),
                node,
                open,
            )
        });
        match created {
            Ok(entry) => {
                let attr = convert::attr(entry.ino, &entry.attr);
                reply.created(
                    &TTL,
                    &attr,
                    Generation(u64::from(GENERATION)),
                    FileHandle(0),
                    opened(),
                );
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        thread_local! {
            static BUFFER: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
        }
        BUFFER.with_borrow_mut(|buffer| {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            let ino = convert::ino(node);
            match self.run("read", node, |fs| fs.read(ino, offset, size, buffer)) {
                Ok(()) => reply.data(buffer),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let write = Write {
            offset,
            data,
            append: !from_cache && flags.0 & libc::O_APPEND != 0,
            kill_set_id: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        match self.run("write", node, |fs| fs.write(convert::ino(node), write)) {
            // A request is at most REQUEST_MAX long.
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let (ino, mode) = (convert::ino(node), open_mode(flags));
        let released = self.run("release", node, |fs| {
            fs.release(ino, mode);
            Ok(())
        });
        if mode.write {
            self.cache.writer_gone(ino);
        }
        empty(released, reply);
    }

    fn fsync(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        empty(
            self.run("fsync", node, |fs| fs.fsync(convert::ino(node))),
            reply,
        );
    }

    fn opendir(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn readdir(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.run("readdir", node, |fs| {
            fs.readdir(convert::ino(node), cookie, false, &mut |entry| {
                let ino = INodeNo(entry.ino.0);
                let kind = convert::kind(entry.kind);
                !reply.add(ino, entry.cookie, kind, OsStr::from_bytes(entry.name))
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let generation = Generation(u64::from(GENERATION));
        let listed = self.run("readdirplus", node, |fs| {
            fs.readdir(convert::ino(node), cookie, true, &mut |entry| {
                let Some(attr) = entry.attr else { return true };
                let attr = convert::attr(entry.ino, &attr);
                let name = OsStr::from_bytes(entry.name);
                !reply.add(
                    attr.ino,
                    entry.cookie,
                    name,
                    &self.name_ttl,
                    &attr,
                    generation,
                )
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        empty(
            self.run("fsyncdir", node, |fs| fs.fsync(convert::ino(node))),
            reply,
        );
    }

    fn statfs(&self, _request: &Request, node: INodeNo, reply: ReplyStatfs) {
        match self.run("statfs", node, |fs| fs.statfs()) {
            Ok(stat) => reply.statfs(
                stat.blocks,
                stat.blocks_free,
                stat.blocks_available,
                stat.files,
                stat.files_free,
                stat.block_size,
                stat.name_max,
                stat.block_size,
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        let ino = convert::ino(node);
        let set = self.run("setxattr", node, |fs| {
            fs.setxattr(caller(request), ino, name.as_bytes(), value, mode)
        });
        empty(set, reply);
    }

    fn getxattr(
        &self,
        _request: &Request,
        node: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let ino = convert::ino(node);
        xattr(
            self.run("getxattr", node, |fs| fs.getxattr(ino, name.as_bytes())),
            size,
            reply,
        );
    }

    fn listxattr(&self, _request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.run("listxattr", node, |fs| fs.listxattr(convert::ino(node)));
        let list = names.map(|names| {
            let ended = names.into_iter().flat_map(|mut name| {
                name.push(0);
                name
            });
            ended.collect()
        });
        xattr(list, size, reply);
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let ino = convert::ino(node);
        let removed = self.run("removexattr", node, |fs| {
            fs.removexattr(caller(request), ino, name.as_bytes())
        });
        empty(removed, reply);
    }

    fn access(&self, _request: &Request, _node: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn bmap(&self, _request: &Request, _node: INodeNo, _size: u32, _block: u64, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn fallocate(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        const ZERO_KEEP: i32 = ZERO | KEEP;
        let mode = match mode {
            0 => Fallocate::Allocate,
            KEEP => Fallocate::AllocateKeepSize,
            PUNCH => Fallocate::PunchHole,
            ZERO => Fallocate::ZeroRange,
            ZERO_KEEP => Fallocate::ZeroRangeKeepSize,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let ino = convert::ino(node);
        empty(
            self.run("fallocate", node, |fs| {
                fs.fallocate(ino, mode, offset, length)
            }),
            reply,
        );
    }

    fn lseek(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let hole = match whence {
            libc::SEEK_DATA => false,
            libc::SEEK_HOLE => true,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        match self.run("lseek", node, |fs| {
            fs.seek(convert::ino(node), offset, hole)
        }) {
            Ok(found) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
            Err(errno) => reply.error(errno),
        }
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        from: INodeNo,
        _from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _to_handle: FileHandle,
        to_offset: u64,
        len: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let (source, target): (Ino, Ino) = (convert::ino(from), convert::ino(to));
        let copied = self.run("copy_file_range", to, |fs| {
            fs.copy_range((source, from_offset), (target, to_offset), len)
        });
        match copied {
            // The engine copies at most 64 MiB a call.
            Ok(copied) => reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
            Err(errno) => reply.error(errno),
        }
    }
}
