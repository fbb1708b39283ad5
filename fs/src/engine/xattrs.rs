//! Extended attributes, ACLs among them.

use std::sync::Arc;

use super::node::{Node, NodeState};
use super::{Epoch, Mutation, View, acl};
use crate::attr::{FileKind, SET_GID};
use crate::change::{Change, InodeRow, Name, Row};
use crate::dispatch::{Caller, OpError, XattrMode};
use crate::id::Ino;

/// Largest value (`XATTR_SIZE_MAX`) and list of names (`XATTR_LIST_MAX`) in bytes.
const VALUE_MAX: usize = 65_536;
const LIST_MAX: usize = 65_536;
/// Names and values of an inode together. They are rows of the catalog, which no quota counts, and are
/// loaded together.
const ALL_MAX: usize = 2 * (VALUE_MAX + LIST_MAX);

impl View {
    fn load_xattrs(
        &self,
        epoch: &Epoch,
        node: &Node,
        state: &mut NodeState,
    ) -> Result<(), OpError> {
        if state.xattrs.is_none() {
            state.xattrs = Some(if state.row.has_xattr {
                self.at_lineage(epoch, |at| self.core.catalog.xattrs(node.ino, at))?
            } else {
                std::collections::BTreeMap::new()
            });
        }
        Ok(())
    }

    /// One attribute of a node that is locked already.
    pub(super) fn xattr(
        &self,
        epoch: &Epoch,
        node: &Node,
        state: &mut NodeState,
        name: &[u8],
    ) -> Result<Option<Arc<[u8]>>, OpError> {
        if !state.row.has_xattr {
            return Ok(None);
        }
        self.load_xattrs(epoch, node, state)?;
        Ok(state
            .xattrs
            .as_ref()
            .and_then(|xattrs| xattrs.get(name).cloned()))
    }

    pub(super) fn do_getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, OpError> {
        let epoch = self.epoch();
        let node = self.node(&epoch, ino)?;
        if !node.state.read().row.has_xattr {
            return Err(OpError::NoXattr(ino));
        }
        let value = self.xattr(&epoch, &node, &mut *self.lock(&epoch, &node)?, name)?;
        value
            .map(|value| value.to_vec())
            .ok_or(OpError::NoXattr(ino))
    }

    pub(super) fn do_listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>, OpError> {
        let epoch = self.epoch();
        let node = self.node(&epoch, ino)?;
        let mut state = self.lock(&epoch, &node)?;
        self.load_xattrs(&epoch, &node, &mut state)?;
        let names = state.xattrs.iter().flat_map(|xattrs| xattrs.keys());
        Ok(names.map(|name| name.to_vec()).collect())
    }

    pub(super) fn do_setxattr(
        &self,
        caller: Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), OpError> {
        let name = checked_name(name)?;
        if value.len() > VALUE_MAX {
            return Err(OpError::Invalid {
                what: "size of an extended attribute",
            });
        }
        let mutation = self.mutate()?;
        let node = mutation.node(ino)?;
        let mut state = mutation.lock(&node)?;
        self.load_xattrs(&mutation.epoch, &node, &mut state)?;
        let xattrs = state.xattrs.iter().flatten();
        let (mut exists, mut list) = (false, name.len() + 1);
        let mut all = name.len() + value.len();
        for (other, value) in xattrs {
            exists |= *other == name;
            list += other.len() + 1;
            if *other != name {
                all += other.len() + value.len();
            }
        }
        match mode {
            XattrMode::Create if exists => return Err(OpError::XattrExists(ino)),
            XattrMode::Replace if !exists => return Err(OpError::NoXattr(ino)),
            _ if !exists && list > LIST_MAX => return Err(OpError::XattrNoSpace(ino)),
            _ if all > ALL_MAX => return Err(OpError::XattrNoSpace(ino)),
            _ => {}
        }
        mutation.room(value.len() as u64, 0, 0)?;
        let mut row = state.row;
        let mut stored = Some(Arc::from(value));
        if &*name == acl::ACCESS {
            let access = acl::parse(value).ok_or(OpError::Invalid { what: "ACL" })?;
            row.attr.perm = access.perm_over(row.attr.perm);
            drop_set_gid(caller, &mut row);
            if access.is_minimal() {
                // The mode says it all.
                stored = None;
            }
        } else if &*name == acl::DEFAULT {
            if row.attr.kind != FileKind::Directory {
                return Err(OpError::NotPermitted(ino));
            }
            acl::parse(value).ok_or(OpError::Invalid { what: "ACL" })?;
        }
        self.commit_xattr(&mutation, &node, &mut state, row, &name, stored)
    }

    pub(super) fn do_removexattr(
        &self,
        caller: Caller,
        ino: Ino,
        name: &[u8],
    ) -> Result<(), OpError> {
        let name = checked_name(name)?;
        let mutation = self.mutate()?;
        let node = mutation.node(ino)?;
        let mut state = mutation.lock(&node)?;
        let acl = &*name == acl::ACCESS || &*name == acl::DEFAULT;
        if self
            .xattr(&mutation.epoch, &node, &mut state, &name)?
            .is_none()
        {
            // Removing an ACL that is not there succeeds on every local file system.
            return if acl {
                Ok(())
            } else {
                Err(OpError::NoXattr(ino))
            };
        }
        let mut row = state.row;
        if &*name == acl::ACCESS {
            drop_set_gid(caller, &mut row);
        }
        self.commit_xattr(&mutation, &node, &mut state, row, &name, None)
    }

    fn commit_xattr(
        &self,
        mutation: &Mutation<'_>,
        node: &Node,
        state: &mut NodeState,
        mut row: InodeRow,
        name: &Name,
        value: Option<Arc<[u8]>>,
    ) -> Result<(), OpError> {
        let mut change = Change::new();
        row.attr.ctime = mutation.now;
        row.has_xattr |= value.is_some();
        // Nothing to take away: a row saying so would outlive an inode that has no attributes.
        let present = state.xattrs.iter().any(|xattrs| xattrs.contains_key(name));
        if value.is_some() || present {
            mutation.put_xattr(node.ino, state, name, value, &mut change);
        }
        change.push(mutation.put(node.ino, row));
        let committed = mutation.apply(&change);
        mutation.settle(node, state, &change, committed)?;
        mutation.wrote(state, row);
        Ok(())
    }
}

impl Mutation<'_> {
    /// Sets or removes an attribute in `change`. What is loaded is dropped at once: it is right
    /// neither after a commit nor, had it been changed here, after a failure on the way to one.
    pub(super) fn put_xattr(
        &self,
        ino: Ino,
        state: &mut NodeState,
        name: &Name,
        value: Option<Arc<[u8]>>,
        change: &mut Change,
    ) {
        state.xattrs = None;
        change.push(Row::PutXattr {
            ino,
            name: name.clone(),
            layer: self.layer,
            value,
        });
    }
}

/// Changing an ACL without being in the file's group clears the set-group-id bit. FUSE tells only
/// the caller's primary group here, so supplementary ones count as not being in it.
fn drop_set_gid(caller: Caller, row: &mut InodeRow) {
    if caller.uid != 0 && caller.gid != row.attr.gid {
        row.attr.perm &= !SET_GID;
    }
}

/// Only the name spaces a local file system has.
fn checked_name(name: &[u8]) -> Result<Name, OpError> {
    let known = [&b"user."[..], b"trusted.", b"security."]
        .iter()
        .any(|prefix| name.starts_with(prefix) && name.len() > prefix.len());
    if name.len() > 255 {
        return Err(OpError::NameTooLong { len: name.len() });
    }
    if name.contains(&0) {
        return Err(OpError::Invalid {
            what: "name of an extended attribute",
        });
    }
    if known || name == acl::ACCESS || name == acl::DEFAULT {
        Ok(Name::from(name))
    } else {
        Err(OpError::Unsupported {
            what: "name space of an extended attribute",
        })
    }
}
