//! Looking names up, making and removing them. Renames are in `rename.rs`.

use std::sync::Arc;

use super::directory::{Directory, Slot};
use super::kernel::Holder;
use super::node::{Contents, Node, NodeState};
use super::{Epoch, Mutation, View, acl, checked_name};
use crate::attr::{Attr, FileKind, SET_GID};
use crate::change::{Change, ContentKind, EntryRow, InodeRow, Name, Row};
use crate::contents::{ContentsError, INLINE_MAX};
use crate::dispatch::{Caller, Entry, NewNode, OpError};
use crate::id::Ino;

/// Longest target of a symbolic link: `PATH_MAX` without the NUL.
const TARGET_MAX: usize = 4095;
/// Links a file can have (as ext4; far below what the count can hold).
const LINK_MAX: u32 = 65_000;
/// What a new name may take of the disk: about a page of the catalog.
const NEW_NAME: u64 = 4096;
/// `st_size` of a directory.
const DIRECTORY_SIZE: u64 = 4096;

impl View {
    pub(crate) fn do_lookup(
        &self,
        holder: Holder,
        parent: Ino,
        name: &[u8],
    ) -> Result<Option<Entry>, OpError> {
        let epoch = self.epoch();
        let node = self.node(&epoch, parent)?;
        if name == b"." || name == b".." {
            return self.lookup_dots(holder, &epoch, &node, name).map(Some);
        }
        let name = checked_name(name)?;
        let mut gone = None;
        loop {
            let known = {
                let state = node.state.read();
                let directory = state.directory.as_ref();
                directory.and_then(|directory| directory.slot(&name))
            };
            let slot = match known {
                Some(slot) => slot,
                None => self.slot(&epoch, &node, &mut *self.lock(&epoch, &node)?, &name)?,
            };
            let Slot::Present { entry, .. } = slot else {
                if node.state.read().row.attr.kind != FileKind::Directory {
                    return Err(OpError::NotDirectory(parent));
                }
                return Ok(None);
            };
            match self.referenced(holder, &epoch, entry.ino) {
                // Removed and reclaimed since the name was read, so the name has changed as well.
                Err(OpError::Stale(_)) if gone != Some(entry) => gone = Some(entry),
                found => return found.map(Some),
            }
        }
    }

    /// `.` and `..`, which only a file handle that outlived the kernel's caches asks for.
    fn lookup_dots(
        &self,
        holder: Holder,
        epoch: &Epoch,
        node: &Node,
        name: &[u8],
    ) -> Result<Entry, OpError> {
        let row = node.state.read().row;
        if row.attr.kind != FileKind::Directory {
            return Err(OpError::NotDirectory(node.ino));
        }
        let ino = if name == b"." { node.ino } else { row.parent };
        self.referenced(holder, epoch, ino)
    }

    /// Takes a lookup reference, first, so that the inode cannot be reclaimed in between.
    pub(super) fn referenced(
        &self,
        holder: Holder,
        epoch: &Epoch,
        ino: Ino,
    ) -> Result<Entry, OpError> {
        self.kernel.looked_up(holder, ino);
        let attr = self.node(epoch, ino).and_then(|node| {
            let state = node.state.read();
            if state.reclaimed {
                Err(OpError::Stale(ino))
            } else {
                Ok(state.row.attr)
            }
        });
        if attr.is_err() {
            self.kernel.forget(holder, ino, 1);
        }
        Ok(Entry { ino, attr: attr? })
    }

    /// What is known about a name, from the catalog if need be.
    pub(super) fn slot(
        &self,
        epoch: &Epoch,
        node: &Node,
        state: &mut NodeState,
        name: &Name,
    ) -> Result<Slot, OpError> {
        if state.row.attr.kind != FileKind::Directory {
            return Err(OpError::NotDirectory(node.ino));
        }
        self.take_in(node, state)?;
        let directory = state.directory.get_or_insert_default();
        if let Some(slot) = directory.slot(name) {
            return Ok(slot);
        }
        let version = self.at_lineage(epoch, |at| self.core.catalog.entry(node.ino, name, at))?;
        let slot = Slot::from_version(version);
        directory.set(name, slot);
        Ok(slot)
    }

    /// Sees to it that the names of a directory that stands for one of the host are known.
    fn take_in(&self, node: &Node, state: &mut NodeState) -> Result<(), OpError> {
        if state.row.content != ContentKind::Host {
            return Ok(());
        }
        let directory = state.directory.get_or_insert_default();
        if !directory.is_taken() {
            let bases = &self.core.bases;
            bases.take_in(&self.core, node.ino, state.row.born)?;
            directory.set_taken();
        }
        Ok(())
    }

    /// Takes a directory that may be removed in, before anybody has to wait for that: the host may
    /// take its time. Whether it could be shows when it is removed.
    pub(super) fn look_into(&self, parent: Ino, name: &Name) {
        let epoch = self.epoch();
        if epoch.host_base.is_none() {
            return;
        }
        let look = || -> Result<(), OpError> {
            let node = self.node(&epoch, parent)?;
            let slot = self.slot(&epoch, &node, &mut *self.lock(&epoch, &node)?, name)?;
            if let Slot::Present { entry, .. } = slot
                && entry.kind == FileKind::Directory
            {
                let node = self.node(&epoch, entry.ino)?;
                self.take_in(&node, &mut *self.lock(&epoch, &node)?)?;
            }
            Ok(())
        };
        if let Err(error) = look() {
            tracing::debug!(%error, %parent, "what may be removed cannot be looked into");
        }
    }

    /// Loads every name of a directory.
    pub(super) fn complete(
        &self,
        epoch: &Epoch,
        node: &Node,
        state: &mut NodeState,
    ) -> Result<(), OpError> {
        if state.row.attr.kind != FileKind::Directory {
            return Err(OpError::NotDirectory(node.ino));
        }
        self.take_in(node, state)?;
        let directory = state.directory.get_or_insert_default();
        if !directory.is_complete() {
            let listing = self.at_lineage(epoch, |at| self.core.catalog.entries(node.ino, at))?;
            directory.complete(listing);
        }
        Ok(())
    }

    pub(super) fn do_make(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        new: NewNode<'_>,
    ) -> Result<Entry, OpError> {
        let name = checked_name(name)?;
        check_new(&new)?;
        let mutation = self.mutate()?;
        let _names = self.namespace.lock();
        let parent = mutation.node(parent)?;
        let mut state = mutation.lock(&parent)?;
        let Slot::Absent { shadows } = mutation.existing(&parent, &mut state, &name)? else {
            return Err(OpError::Exists { parent: parent.ino });
        };
        mutation.room(NEW_NAME + new.target.len() as u64, 0, 1)?;
        let mut change = Change::new();
        let (node, entry) =
            mutation.new_node(caller, (&parent, &mut state), new, shadows, &mut change)?;
        change.push(Row::PutEntry {
            parent: parent.ino,
            name: name.clone(),
            layer: mutation.layer,
            entry: Some(entry),
        });
        let row = mutation.touched(&state, new.kind == FileKind::Directory, false);
        change.push(mutation.put(parent.ino, row));
        mutation.apply(&change)?;
        mutation.wrote(&mut state, row);
        mutation.know(
            &mut state,
            &name,
            Slot::Present {
                entry,
                layer: mutation.layer,
            },
        );
        drop(state);
        mutation.epoch.nodes.insert_new(node);
        self.referenced(Holder::Working, &mutation.epoch, entry.ino)
    }

    pub(super) fn do_link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry, OpError> {
        let name = checked_name(name)?;
        let mutation = self.mutate()?;
        let _names = self.namespace.lock();
        let parent = mutation.node(parent)?;
        let mut state = mutation.lock(&parent)?;
        let node = mutation.node(ino)?;
        let Slot::Absent { shadows } = mutation.existing(&parent, &mut state, &name)? else {
            return Err(OpError::Exists { parent: parent.ino });
        };
        if ino == parent.ino {
            // A directory, and locked already.
            return Err(OpError::NotPermitted(ino));
        }
        let mut child = mutation.lock(&node)?;
        let mut row = child.row;
        if row.attr.kind == FileKind::Directory {
            return Err(OpError::NotPermitted(ino));
        }
        if row.attr.nlink == 0 {
            return Err(OpError::Stale(ino));
        }
        if row.attr.nlink >= LINK_MAX {
            return Err(OpError::TooManyLinks(ino));
        }
        mutation.room(NEW_NAME, 0, 0)?;
        row.attr.nlink += 1;
        row.attr.ctime = mutation.now;
        let entry = EntryRow {
            ino,
            kind: row.attr.kind,
            cookie: self.core.numbers.cookie()?,
            shadows,
        };
        let parent_row = mutation.touched(&state, false, false);
        let mut change = Change::new();
        change.push(mutation.put(ino, row));
        change.push(Row::PutEntry {
            parent: parent.ino,
            name: name.clone(),
            layer: mutation.layer,
            entry: Some(entry),
        });
        change.push(mutation.put(parent.ino, parent_row));
        mutation.apply(&change)?;
        mutation.wrote(&mut child, row);
        mutation.wrote(&mut state, parent_row);
        mutation.know(
            &mut state,
            &name,
            Slot::Present {
                entry,
                layer: mutation.layer,
            },
        );
        drop((child, state));
        self.referenced(Holder::Working, &mutation.epoch, ino)
    }

    /// Removes a name: `directory` says which kind is expected.
    pub(super) fn do_remove(
        &self,
        parent: Ino,
        name: &[u8],
        directory: bool,
    ) -> Result<(), OpError> {
        let name = checked_name(name)?;
        if directory {
            self.look_into(parent, &name);
        }
        let mutation = self.mutate()?;
        let _names = self.namespace.lock();
        let parent = mutation.node(parent)?;
        let mut state = mutation.lock(&parent)?;
        let slot = self.slot(&mutation.epoch, &parent, &mut state, &name)?;
        let Slot::Present { entry, .. } = slot else {
            return Err(OpError::NoEntry { parent: parent.ino });
        };
        match (directory, entry.kind == FileKind::Directory) {
            (true, false) => return Err(OpError::NotDirectory(entry.ino)),
            (false, true) => return Err(OpError::IsDirectory(entry.ino)),
            _ => {}
        }
        let node = mutation.node(entry.ino)?;
        let mut child = mutation.lock(&node)?;
        let mut change = Change::new();
        let child_row = mutation.unlinked(&node, &mut child)?;
        change.push(mutation.put(entry.ino, child_row));
        mutation.count(entry.ino, &mut change, Some(&child.row), &child_row)?;
        let gone = mutation.remove_entry(parent.ino, &name, slot, &mut change);
        let row = mutation.touched(&state, false, directory);
        change.push(mutation.put(parent.ino, row));
        mutation.apply(&change)?;
        mutation.wrote(&mut child, child_row);
        mutation.wrote(&mut state, row);
        mutation.know(&mut state, &name, gone);
        drop((child, state));
        mutation.reap_if_unreferenced(&node);
        Ok(())
    }
}

impl Mutation<'_> {
    /// What is at a name in a directory that may get a new one.
    pub(super) fn existing(
        &self,
        parent: &Node,
        state: &mut NodeState,
        name: &Name,
    ) -> Result<Slot, OpError> {
        let slot = self.view.slot(&self.epoch, parent, state, name)?;
        if state.row.attr.nlink == 0 {
            // Removed while somebody is in it: nothing can be made there.
            return Err(OpError::NoEntry { parent: parent.ino });
        }
        Ok(slot)
    }

    /// The parent's row after a name in it changed.
    pub(super) fn touched(
        &self,
        state: &NodeState,
        directory_added: bool,
        directory_removed: bool,
    ) -> InodeRow {
        let mut row = state.row;
        row.attr.mtime = self.now;
        row.attr.ctime = self.now;
        if row.content != ContentKind::Host {
            row.attr.nlink += u32::from(directory_added);
            row.attr.nlink -= u32::from(directory_removed && row.attr.nlink > 2);
        }
        row
    }

    /// Remembers what a name is now.
    pub(super) fn know(&self, state: &mut NodeState, name: &Name, slot: Slot) {
        state.directory.get_or_insert_default().set(name, slot);
    }

    /// The row of a file that lost a name (a directory: its only one).
    pub(super) fn unlinked(&self, node: &Node, child: &mut NodeState) -> Result<InodeRow, OpError> {
        let mut row = child.row;
        if row.attr.kind == FileKind::Directory {
            match self.view.complete(&self.epoch, node, child) {
                // It stands for a directory of the host that is not there any more, and nobody was
                // ever told a name in it.
                Err(OpError::Contents(ContentsError::HostChanged { .. })) => {}
                other => other?,
            }
            if child
                .directory
                .as_ref()
                .is_some_and(|directory| !directory.is_empty())
            {
                return Err(OpError::NotEmpty(node.ino));
            }
            row.attr.nlink = 0;
        } else {
            row.attr.nlink = row.attr.nlink.saturating_sub(1);
        }
        row.attr.ctime = self.now;
        Ok(row)
    }

    /// Adds the row that makes a name disappear, and returns what is known of it then.
    pub(super) fn remove_entry(
        &self,
        parent: Ino,
        name: &Name,
        slot: Slot,
        change: &mut Change,
    ) -> Slot {
        let shadows = slot.shadowed_by_new(self.layer);
        let (name, layer) = (name.clone(), self.layer);
        change.push(if shadows {
            Row::PutEntry {
                parent,
                name,
                layer,
                entry: None,
            }
        } else {
            Row::DropEntry {
                parent,
                name,
                layer,
            }
        });
        Slot::Absent { shadows }
    }

    /// Computes a new inode under a parent: its rows in `change`, its node and its entry.
    pub(super) fn new_node(
        &self,
        caller: Caller,
        (parent, state): (&Arc<Node>, &mut NodeState),
        new: NewNode<'_>,
        shadows: bool,
        change: &mut Change,
    ) -> Result<(Node, EntryRow), OpError> {
        let core = &self.view.core;
        let (ino, cookie) = (core.numbers.ino()?, core.numbers.cookie()?);
        let directory = new.kind == FileKind::Directory;
        let default_acl = self.view.xattr(&self.epoch, parent, state, acl::DEFAULT)?;
        let inherited = acl::inherit(default_acl.as_deref(), new.kind, new.perm, new.umask);
        let parent_attr = state.row.attr;
        let set_gid = parent_attr.perm & SET_GID != 0;
        let mut perm = inherited.perm;
        if set_gid && directory {
            perm |= SET_GID;
        }
        let symlink = new.kind == FileKind::Symlink;
        let attr = Attr {
            kind: new.kind,
            perm: if symlink { 0o777 } else { perm },
            uid: caller.uid,
            gid: if set_gid { parent_attr.gid } else { caller.gid },
            nlink: if directory { 2 } else { 1 },
            rdev: new.rdev,
            size: if directory {
                DIRECTORY_SIZE
            } else {
                new.target.len() as u64
            },
            blocks: 0,
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            btime: self.now,
        };
        let row = InodeRow {
            attr,
            born: self.layer,
            parent: if directory { parent.ino } else { Ino(0) },
            content: if symlink {
                ContentKind::Inline
            } else {
                ContentKind::Empty
            },
            has_xattr: !inherited.xattrs.is_empty(),
        };
        change.push(self.put(ino, row));
        if symlink {
            let data = Arc::from(new.target);
            change.push(Row::PutInline {
                ino,
                layer: self.layer,
                data,
            });
        }
        for (name, value) in &inherited.xattrs {
            change.push(Row::PutXattr {
                ino,
                name: Name::from(*name),
                layer: self.layer,
                value: Some(value.clone()),
            });
        }
        self.count(ino, change, None, &row)?;
        let node = Node::new(ino, row, self.layer);
        {
            let mut fresh = node.state.write();
            fresh.directory = directory.then(|| Box::new(Directory::empty()));
            fresh.contents = (new.kind == FileKind::File).then_some(Contents::Empty);
        }
        Ok((
            node,
            EntryRow {
                ino,
                kind: new.kind,
                cookie,
                shadows,
            },
        ))
    }
}

fn check_new(new: &NewNode<'_>) -> Result<(), OpError> {
    const _: () = assert!(TARGET_MAX as u64 <= INLINE_MAX);
    let target = new.target;
    if new.kind == FileKind::Symlink {
        if target.len() > TARGET_MAX {
            return Err(OpError::NameTooLong { len: target.len() });
        }
        if target.is_empty() || target.contains(&0) {
            return Err(OpError::Invalid {
                what: "symbolic link target",
            });
        }
    }
    Ok(())
}
