//! Attributes, extended attributes, figures of the file system.

use super::files::acl_setter;
use super::{NO_ID, Server};
use crate::dispatch::convert::{self, Told};
use crate::dispatch::wire::codec::flags::setxattr as setxattr_flag;
use crate::dispatch::wire::codec::{Header, Operation, Reply};
use crate::dispatch::{Errno, SetAttr};

/// The extended attribute that an access ACL is.
const ACL_ACCESS: &[u8] = b"system.posix_acl_access";

impl Server {
    pub(super) fn getattr(&self, header: &Header, reply: &mut Reply) -> Result<(), Errno> {
        let ino = self.held(header.node)?;
        let attr = self.attempt("getattr", ino, |fs| fs.getattr(ino))?;
        reply.attr(ino, &attr, self.options.caching.ttl());
        Ok(())
    }

    pub(super) fn statx(&self, header: &Header, reply: &mut Reply) -> Result<(), Errno> {
        let ino = self.held(header.node)?;
        let attr = self.attempt("statx", ino, |fs| fs.getattr(ino))?;
        reply.statx(ino, &attr, self.options.caching.ttl());
        Ok(())
    }

    pub(super) fn setattr(
        &self,
        header: &Header,
        set: SetAttr,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let (ino, caller) = (self.held(header.node)?, Self::caller(header)?);
        self.writable()?;
        if set.uid == Some(NO_ID) || set.gid == Some(NO_ID) {
            return Err(Errno(libc::EINVAL));
        }
        let attr = self.attempt("setattr", ino, |fs| fs.setattr(caller, ino, set))?;
        reply.attr(ino, &attr, self.options.caching.ttl());
        Ok(())
    }

    pub(super) fn statfs(&self, reply: &mut Reply) -> Result<(), Errno> {
        let stat = self.attempt("statfs", crate::id::Ino::ROOT, |fs| fs.statfs())?;
        reply.statfs(&stat);
        Ok(())
    }

    pub(super) fn setxattr(&self, header: &Header, operation: &Operation<'_>) -> Result<(), Errno> {
        let &Operation::SetXattr {
            name,
            value,
            flags,
            setxattr_flags,
        } = operation
        else {
            return Err(super::UNKNOWN);
        };
        let (ino, mut caller) = (self.held(header.node)?, Self::caller(header)?);
        self.writable()?;
        let mode = convert::xattr_mode(flags).ok_or(Errno(libc::EINVAL))?;
        if let Some(flags) = setxattr_flags
            && name == ACL_ACCESS
        {
            caller = acl_setter(flags & setxattr_flag::ACL_KILL_SGID != 0);
        }
        self.attempt("setxattr", ino, |fs| {
            fs.setxattr(caller, ino, name, value, mode)
        })
    }

    pub(super) fn getxattr(
        &self,
        header: &Header,
        name: &[u8],
        size: u32,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let ino = self.held(header.node)?;
        let value = self.attempt("getxattr", ino, |fs| fs.getxattr(ino, name))?;
        sized(&value, size, reply)
    }

    pub(super) fn listxattr(
        &self,
        header: &Header,
        size: u32,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let ino = self.held(header.node)?;
        let names = self.attempt("listxattr", ino, |fs| fs.listxattr(ino))?;
        sized(&convert::name_list(names), size, reply)
    }

    pub(super) fn removexattr(&self, header: &Header, name: &[u8]) -> Result<(), Errno> {
        let (ino, caller) = (self.held(header.node)?, Self::caller(header)?);
        self.writable()?;
        self.attempt("removexattr", ino, |fs| fs.removexattr(caller, ino, name))
    }
}

/// Tells a value, or how long it is.
fn sized(value: &[u8], size: u32, reply: &mut Reply) -> Result<(), Errno> {
    match convert::value_for(value, size)? {
        Told::Length(len) => reply.size(len),
        Told::Value(value) => reply.bytes(value),
    }
    Ok(())
}
