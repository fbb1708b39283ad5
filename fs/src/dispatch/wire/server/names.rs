//! Names: looking up, making, removing, renaming; references.

use super::Server;
use crate::attr::FileKind;
use crate::dispatch::convert;
use crate::dispatch::wire::codec::{Header, Reply};
use crate::dispatch::{Entry, Errno, NewNode};
use crate::id::Ino;

/// The guest holds as many inodes, or as many open files, as it may.
const TOO_MANY_NODES: Errno = Errno(libc::ENOMEM);
const TOO_MANY_OPENS: Errno = Errno(libc::ENFILE);

impl Server {
    /// Counts a reference that an operation handed out; gives it back if the guest may hold no more.
    fn hold(&self, entry: &Entry) -> Result<(), Errno> {
        if self.nodes.take(entry.ino) {
            return Ok(());
        }
        self.returned("forget", entry.ino, |fs| fs.forget(entry.ino, 1));
        Err(TOO_MANY_NODES)
    }

    /// Refuses to make what could not be told of.
    fn room_for_node(&self) -> Result<(), Errno> {
        self.nodes.has_room().then_some(()).ok_or(TOO_MANY_NODES)
    }

    fn tell(&self, entry: &Entry, reply: &mut Reply) {
        let generation = self.dispatch.generation(entry.ino);
        reply.entry(
            entry.ino,
            generation,
            &entry.attr,
            self.options.caching.ttl(),
        );
    }

    pub(super) fn lookup(
        &self,
        header: &Header,
        name: &[u8],
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let parent = self.held(header.node)?;
        let found = self.attempt("lookup", parent, |fs| fs.lookup(parent, name))?;
        match found {
            Some(entry) => {
                self.hold(&entry)?;
                self.tell(&entry, reply);
            }
            None if self.options.caching.ttl().is_zero() => return Err(Errno(libc::ENOENT)),
            None => reply.no_entry(self.options.caching.ttl()),
        }
        Ok(())
    }

    /// The guest returns references.
    pub(super) fn forget(&self, node: u64, count: u64) {
        let ino = Ino(node);
        let count = self.nodes.give_back(ino, count);
        if count > 0 {
            self.returned("forget", ino, |fs| fs.forget(ino, count));
        }
    }

    pub(super) fn make(
        &self,
        operation: &'static str,
        header: &Header,
        name: &[u8],
        node: NewNode<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let (parent, caller) = (self.held(header.node)?, Self::caller(header)?);
        self.writable()?;
        self.room_for_node()?;
        let entry = self.attempt(operation, parent, |fs| fs.make(caller, parent, name, node))?;
        self.hold(&entry)?;
        self.tell(&entry, reply);
        Ok(())
    }

    pub(super) fn mkdir(
        &self,
        header: &Header,
        name: &[u8],
        (mode, umask): (u32, u32),
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let node = convert::node(FileKind::Directory, mode, umask);
        self.make("mkdir", header, name, node, reply)
    }

    pub(super) fn symlink(
        &self,
        header: &Header,
        name: &[u8],
        target: &[u8],
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let mut node = convert::node(FileKind::Symlink, 0o777, 0);
        node.target = target;
        self.make("symlink", header, name, node, reply)
    }

    pub(super) fn create(
        &self,
        header: &Header,
        name: &[u8],
        (mode, umask): (u32, u32),
        flags: i32,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let (parent, caller) = (self.held(header.node)?, Self::caller(header)?);
        self.writable()?;
        self.room_for_node()?;
        if !self.opens.has_room() {
            return Err(TOO_MANY_OPENS);
        }
        let node = convert::node(FileKind::File, mode, umask);
        let mode = convert::open_mode(flags);
        let entry = self.attempt("create", parent, |fs| {
            fs.create(caller, parent, name, node, mode)
        })?;
        // Both, whatever becomes of the first: each is returned by itself.
        let opened = self.opened(entry.ino, mode);
        self.hold(&entry)?;
        let flags = opened?;
        self.tell(&entry, reply);
        reply.open(flags);
        Ok(())
    }

    pub(super) fn unlink(&self, header: &Header, name: &[u8]) -> Result<(), Errno> {
        let parent = self.held(header.node)?;
        self.writable()?;
        self.attempt("unlink", parent, |fs| fs.unlink(parent, name))
    }

    pub(super) fn rmdir(&self, header: &Header, name: &[u8]) -> Result<(), Errno> {
        let parent = self.held(header.node)?;
        self.writable()?;
        self.attempt("rmdir", parent, |fs| fs.rmdir(parent, name))
    }

    pub(super) fn rename(
        &self,
        header: &Header,
        name: &[u8],
        (new_parent, new_name): (u64, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        let (from, to) = (self.held(header.node)?, self.held(new_parent)?);
        self.writable()?;
        let flags = convert::rename_flags(flags).ok_or(Errno(libc::EINVAL))?;
        self.attempt("rename", from, |fs| {
            fs.rename((from, name), (to, new_name), flags)
        })
    }

    pub(super) fn link(
        &self,
        header: &Header,
        node: u64,
        name: &[u8],
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let (parent, ino) = (self.held(header.node)?, self.held(node)?);
        self.writable()?;
        let entry = self.attempt("link", parent, |fs| fs.link(ino, parent, name))?;
        self.hold(&entry)?;
        self.tell(&entry, reply);
        Ok(())
    }

    pub(super) fn readlink(&self, header: &Header, reply: &mut Reply) -> Result<(), Errno> {
        let ino = self.held(header.node)?;
        let target = self.attempt("readlink", ino, |fs| fs.readlink(ino))?;
        reply.bytes(&target);
        Ok(())
    }
}
