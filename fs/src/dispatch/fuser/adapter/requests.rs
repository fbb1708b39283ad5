//! `fuser::Filesystem` for the [`Adapter`]: one method a kind of request.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};

use super::{Adapter, VERSION_INC_EPOCH, empty, xattr};
use crate::attr::FileKind;
use crate::dispatch::SetAttr;
use crate::dispatch::fuser::convert::{self, Sent};
use crate::dispatch::fuser::negotiate::negotiate;

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        negotiate(config, self.others_write)?;
        if config.kernel_abi() < VERSION_INC_EPOCH {
            self.name_ttl = Duration::ZERO;
            self.cache.kernel_is_old();
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let parent_ino = convert::ino(parent);
        let answer = self.run("lookup", parent, |fs| {
            fs.lookup(parent_ino, name.as_bytes())
        });
        match answer.result {
            Ok(Some(entry)) => self.entry(&entry, reply),
            Ok(None) if self.name_ttl.is_zero() => reply.error(Errno::ENOENT),
            Ok(None) => reply.entry(&self.name_ttl, &convert::negative(), Generation(0)),
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
        forgotten.result.unwrap_or_default();
    }

    fn getattr(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let ino = convert::ino(node);
        let answer = self.run("getattr", node, |fs| fs.getattr(ino));
        match answer.result {
            Ok(attr) => reply.attr(&self.attr_ttl, &self.attr(ino, &attr)),
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
        let (Some(uid), Some(gid)) = (self.given_to(uid), self.given_to(gid)) else {
            return reply.error(Errno::EINVAL);
        };
        let set = SetAttr {
            perm: mode.map(convert::mode_bits),
            uid,
            gid,
            size,
            atime: atime.map(convert::set_time),
            mtime: mtime.map(convert::set_time),
            ctime: ctime.map(convert::timestamp),
        };
        let answer = self.run("setattr", node, |fs| {
            fs.setattr(self.caller(request), ino, set)
        });
        match answer.result {
            Ok(attr) => reply.attr(&self.attr_ttl, &self.attr(ino, &attr)),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _request: &Request, node: INodeNo, reply: ReplyData) {
        let answer = self.run("readlink", node, |fs| fs.readlink(convert::ino(node)));
        match answer.result {
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
        let node = convert::device_node(mode, umask, rdev);
        self.make("mknod", request, (parent, name), node, reply);
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
        let node = convert::node(FileKind::Directory, mode, umask);
        self.make("mkdir", request, (parent, name), node, reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let parent_ino = convert::ino(parent);
        let removed = self.run("unlink", parent, |fs| {
            fs.unlink(parent_ino, name.as_bytes())
        });
        empty(removed, reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let parent_ino = convert::ino(parent);
        let removed = self.run("rmdir", parent, |fs| fs.rmdir(parent_ino, name.as_bytes()));
        empty(removed, reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let mut node = convert::node(FileKind::Symlink, 0o777, 0);
        node.target = target.as_os_str().as_bytes();
        self.make("symlink", request, (parent, name), node, reply);
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
        let Some(flags) = convert::rename_flags(flags.bits()) else {
            return reply.error(Errno::EINVAL);
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
        self.made(linked, reply);
    }

    fn open(&self, _request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (ino, mode) = (convert::ino(node), convert::open_mode(flags.0));
        let answer = self.run("open", node, |fs| fs.open(ino, mode));
        match answer.result {
            Ok(()) => reply.opened(FileHandle(0), self.opened(ino, mode)),
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
        let node = convert::node(FileKind::File, mode, umask);
        let open = convert::open_mode(flags);
        let created = self.run("create", parent, |fs| {
            fs.create(
                self.caller(request),
                convert::ino(parent),
                name.as_bytes(),
                node,
                open,
            )
        });
        match created.result {
            Ok(entry) => {
                let attr = self.attr(entry.ino, &entry.attr);
                let flags = self.opened(entry.ino, open);
                // One time to live for both here, and the shorter one is right for both.
                let (ttl, generation) = (&self.name_ttl, self.generation(entry.ino));
                reply.created(ttl, &attr, generation, FileHandle(0), flags);
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
        thread_local!(static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
        BUFFER.with_borrow_mut(|buffer| {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            let ino = convert::ino(node);
            let answer = self.run("read", node, |fs| fs.read(ino, offset, size, buffer));
            match answer.result {
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
        let ino = convert::ino(node);
        let sent = Sent {
            offset,
            data,
            flags: flags.0,
            from_cache: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            kill_set_id: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
            knows_end: true,
        };
        let written = self.run("write", node, |fs| {
            let write = sent.to_write(fs.unsettled(ino));
            write.map_or(Ok(()), |write| fs.write(ino, write))
        });
        match written.result {
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
        let (ino, mode) = (convert::ino(node), convert::open_mode(flags.0));
        let released = self.run("release", node, |fs| {
            fs.release(ino, mode);
            Ok(())
        });
        self.cache.closed(ino, mode);
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
        self.sync("fsync", node, reply);
    }

    fn opendir(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.others_write {
            // Without a flag that says so, no listing is kept.
            reply.opened(FileHandle(0), FopenFlags::empty());
        } else {
            reply.error(Errno::ENOSYS);
        }
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
        match listed.result {
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
        let listed = self.run("readdirplus", node, |fs| {
            fs.readdir(convert::ino(node), cookie, true, &mut |entry| {
                let Some(attr) = entry.attr else { return true };
                let attr = self.attr(entry.ino, &attr);
                let name = OsStr::from_bytes(entry.name);
                let (ttl, generation) = (&self.name_ttl, self.generation(entry.ino));
                !reply.add(attr.ino, entry.cookie, name, ttl, &attr, generation)
            })
        });
        match listed.result {
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
        self.sync("fsyncdir", node, reply);
    }

    fn statfs(&self, _request: &Request, node: INodeNo, reply: ReplyStatfs) {
        let answer = self.run("statfs", node, |fs| fs.statfs());
        match answer.result {
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
        let Some(mode) = convert::xattr_mode(flags) else {
            return reply.error(Errno::EINVAL);
        };
        let (ino, name) = (convert::ino(node), name.as_bytes());
        let Some(value) = self.value_in(name, value) else {
            return reply.error(Errno::EINVAL);
        };
        let set = self.run("setxattr", node, |fs| {
            fs.setxattr(self.caller(request), ino, name, &value, mode)
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
        let value = self.run("getxattr", node, |fs| {
            let value = fs.getxattr(ino, name.as_bytes())?;
            Ok(self.value_out(name.as_bytes(), value))
        });
        xattr(value, size, reply);
    }

    fn listxattr(&self, _request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.run("listxattr", node, |fs| {
            fs.listxattr(convert::ino(node)).map(convert::name_list)
        });
        xattr(names, size, reply);
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let ino = convert::ino(node);
        let removed = self.run("removexattr", node, |fs| {
            fs.removexattr(self.caller(request), ino, name.as_bytes())
        });
        empty(removed, reply);
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

    fn poll(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        // Files are always ready; the kernel says so itself from now on.
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(mode) = convert::fallocate(mode) else {
            return reply.error(Errno::EOPNOTSUPP);
        };
        let ino = convert::ino(node);
        let caller = self.caller(request);
        let changed = self.run("fallocate", node, |fs| {
            fs.fallocate(caller, ino, mode, offset, length)
        });
        empty(changed, reply);
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
        let (offset, hole) = match convert::seek(offset, whence) {
            Ok(sought) => sought,
            Err(errno) => return reply.error(Errno::from_i32(errno.0)),
        };
        let answer = self.run("lseek", node, |fs| {
            fs.seek(convert::ino(node), offset, hole)
        });
        match answer.result {
            Ok(found) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
            Err(errno) => reply.error(errno),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
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
        let (source, target) = (convert::ino(from), convert::ino(to));
        let caller = self.caller(request);
        let copied = self.run("copy_file_range", to, |fs| {
            fs.copy_range(caller, (source, from_offset), (target, to_offset), len)
        });
        match copied.result {
            // The engine copies at most 64 MiB a call.
            Ok(copied) => reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
            Err(errno) => reply.error(errno),
        }
    }
}
