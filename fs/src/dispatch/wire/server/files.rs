//! Open files and their contents.

use super::{Caching, NO_ID, Server};
use crate::dispatch::convert::{self, Sent};
use crate::dispatch::wire::codec::flags::{open as open_flag, write as write_flag};
use crate::dispatch::wire::codec::{Header, Operation, Reply};
use crate::dispatch::{Caller, Errno, OpenMode};
use crate::id::Ino;

/// Not open, or not so.
const NOT_OPEN: Errno = Errno(libc::EBADF);

impl Server {
    /// Counts what was opened, and says how; closes it if the guest may have no more open.
    pub(super) fn opened(&self, ino: Ino, mode: OpenMode) -> Result<u32, Errno> {
        if !self.opens.open(ino, mode) {
            self.returned("release", ino, |fs| fs.release(ino, mode));
            return Err(Errno(libc::ENFILE));
        }
        // Nothing is written late, so nothing has to be flushed. Cached pages stay: where others write, they
        // go when the guest's kernel sees another time of modification.
        Ok(open_flag::KEEP_CACHE | open_flag::NOFLUSH)
    }

    /// A file that the guest holds and has open.
    fn open_file(&self, node: u64) -> Result<Ino, Errno> {
        let ino = self.held(node)?;
        self.opens.has(ino).then_some(ino).ok_or(NOT_OPEN)
    }

    /// A file that the guest holds and has open for writing.
    fn written_file(&self, node: u64) -> Result<Ino, Errno> {
        let ino = self.held(node)?;
        self.writable()?;
        self.opens.has_writer(ino).then_some(ino).ok_or(NOT_OPEN)
    }

    pub(super) fn open(&self, header: &Header, flags: i32, reply: &mut Reply) -> Result<(), Errno> {
        let ino = self.held(header.node)?;
        let mode = convert::open_mode(flags);
        if mode.writes() {
            self.writable()?;
        }
        self.attempt("open", ino, |fs| fs.open(ino, mode))?;
        reply.open(self.opened(ino, mode)?);
        Ok(())
    }

    /// The inode may have been forgotten by then: the guest's kernel closes late.
    pub(super) fn release(&self, header: &Header, flags: i32) -> Result<(), Errno> {
        let (ino, mode) = (Ino(header.node), convert::open_mode(flags));
        if !self.opens.close(ino, mode) {
            return Err(NOT_OPEN);
        }
        self.attempt("release", ino, |fs| {
            fs.release(ino, mode);
            Ok(())
        })
    }

    pub(super) fn read(
        &self,
        header: &Header,
        offset: u64,
        size: u32,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let ino = self.open_file(header.node)?;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let body = reply.body_mut();
        self.attempt("read", ino, |fs| fs.read(ino, offset, size, body))
    }

    pub(super) fn write(
        &self,
        header: &Header,
        (offset, data): (u64, &[u8]),
        write_flags: u32,
        flags: i32,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let ino = self.written_file(header.node)?;
        let sent = Sent {
            offset,
            data,
            flags,
            from_cache: write_flags & write_flag::CACHE != 0,
            kill_set_id: write_flags & write_flag::KILL_SUIDGID != 0,
            knows_end: self.options.caching == Caching::OnlyWriter,
        };
        self.attempt("write", ino, |fs| {
            let write = sent.to_write(fs.unsettled(ino));
            write.map_or(Ok(()), |write| fs.write(ino, write))
        })?;
        // A message is at most MESSAGE_MAX long.
        reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX));
        Ok(())
    }

    pub(super) fn fsync(&self, operation: &'static str, header: &Header) -> Result<(), Errno> {
        let ino = self.held(header.node)?;
        self.attempt(operation, ino, |fs| fs.fsync(ino))
    }

    pub(super) fn fallocate(
        &self,
        header: &Header,
        (offset, len): (u64, u64),
        mode: i32,
    ) -> Result<(), Errno> {
        let (ino, caller) = (self.written_file(header.node)?, Self::caller(header)?);
        let mode = convert::fallocate(mode).ok_or(Errno(libc::EOPNOTSUPP))?;
        self.attempt("fallocate", ino, |fs| {
            fs.fallocate(caller, ino, mode, offset, len)
        })
    }

    pub(super) fn seek(
        &self,
        header: &Header,
        offset: i64,
        whence: i32,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let ino = self.open_file(header.node)?;
        let (offset, hole) = convert::seek(offset, whence)?;
        let found = self.attempt("lseek", ino, |fs| fs.seek(ino, offset, hole))?;
        reply.number(found);
        Ok(())
    }

    pub(super) fn copy_range(
        &self,
        header: &Header,
        operation: &Operation<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let &Operation::CopyFileRange {
            offset,
            to,
            to_offset,
            len,
            flags,
            wide,
        } = operation
        else {
            return Err(super::UNKNOWN);
        };
        let (from, caller) = (self.open_file(header.node)?, Self::caller(header)?);
        let to = self.written_file(to)?;
        if flags != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let copied = self.attempt("copy_file_range", to, |fs| {
            fs.copy_range(caller, (from, offset), (to, to_offset), len)
        })?;
        match wide {
            true => reply.number(copied),
            // The engine copies at most 64 MiB a call.
            false => reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
        }
        Ok(())
    }
}

/// As whom the engine is asked to set an ACL whose sender the guest's kernel has looked at: somebody in the
/// file's group, whose set-group-id bit stays, or somebody who is not.
pub(super) fn acl_setter(kill_set_gid: bool) -> Caller {
    let id = if kill_set_gid { NO_ID } else { 0 };
    Caller { uid: id, gid: id }
}
