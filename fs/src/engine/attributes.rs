//! Reading and changing attributes.

use super::files::Kill;
use super::node::NodeState;
use super::{Mutation, View, acl};
use crate::attr::{Attr, FileKind, GROUP_EXEC, SET_GID, SET_UID};
use crate::change::{Change, Name, Row};
use crate::contents::FILE_MAX;
use crate::core::Core;
use crate::dispatch::{Caller, OpError, SetAttr, SetTime, StatFs};
use crate::id::Ino;

impl View {
    pub(super) fn do_getattr(&self, ino: Ino) -> Result<Attr, OpError> {
        let epoch = self.epoch();
        let node = self.node(&epoch, ino)?;
        let state = node.state.read();
        if state.reclaimed {
            Err(OpError::Stale(ino))
        } else {
            Ok(state.row.attr)
        }
    }

    pub(super) fn do_setattr(
        &self,
        caller: Caller,
        ino: Ino,
        set: SetAttr,
    ) -> Result<Attr, OpError> {
        let mutation = self.mutate()?;
        let node = mutation.node(ino)?;
        let mut state = mutation.lock(&node)?;
        let mut change = Change::new();
        let mut row = state.row;
        row.attr.ctime = set.ctime.unwrap_or(mutation.now);
        let mut kill = Kill::No;
        if let Some(perm) = set.perm {
            row.attr.perm = perm & 0o7777;
            let access = self.xattr(&mutation.epoch, &node, &mut state, acl::ACCESS)?;
            if let Some(access) = access {
                let value = acl::chmod(&access, row.attr.perm);
                let name = Name::from(acl::ACCESS);
                mutation.put_xattr(ino, &mut state, &name, value, &mut change);
            }
        }
        if set.uid.is_some() || set.gid.is_some() {
            row.attr.uid = set.uid.unwrap_or(row.attr.uid);
            row.attr.gid = set.gid.unwrap_or(row.attr.gid);
            // chown clears set-id bits whoever calls, except where the same call sets them.
            if row.attr.kind != FileKind::Directory && set.perm.is_none() {
                kill = Kill::SetId;
            }
        }
        let set_time = |time: SetTime| match time {
            SetTime::Now => mutation.now,
            SetTime::At(time) => time,
        };
        if let Some(time) = set.atime {
            row.attr.atime = set_time(time);
        }
        if set.size.is_some() {
            row.attr.mtime = mutation.now;
            if caller.uid != 0 {
                kill = Kill::SetId;
            }
        }
        if let Some(time) = set.mtime {
            row.attr.mtime = set_time(time);
        }
        if kill == Kill::SetId {
            mutation.kill_set_id(&node, &mut state, &mut row, &mut change)?;
        }
        let old_size = state.row.attr.size;
        let result = match set.size {
            Some(size) => {
                check_size(&state, ino, size)?;
                mutation.resize(&node, &mut state, &mut row, size, &mut change)
            }
            None => Ok(()),
        };
        let committed = result.and_then(|()| {
            change.push(mutation.put(ino, row));
            mutation.count(ino, &mut change, Some(&state.row), &row)?;
            mutation.apply(&change)
        });
        mutation.settle(&node, &mut state, &change, committed)?;
        mutation.wrote(&mut state, row);
        if set.size.is_some_and(|size| size < old_size) {
            mutation.cut(&node, &mut state);
        }
        Ok(state.row.attr)
    }

    pub(super) fn do_statfs(&self) -> Result<StatFs, OpError> {
        let stat = rustix::fs::statvfs(Core::objects_dir(&self.core.dir)).map_err(|errno| {
            OpError::Contents(crate::contents::ContentsError::Directory {
                action: "stat",
                source: errno.into(),
            })
        })?;
        let left = self.core.room.left()?;
        let block = stat.f_frsize.max(1);
        let kept = left.min_free.div_ceil(block);
        let mut figures = StatFs {
            block_size: u32::try_from(block).unwrap_or(4096),
            blocks: stat.f_blocks,
            blocks_free: stat.f_bfree.saturating_sub(kept),
            blocks_available: stat.f_bavail.saturating_sub(kept),
            files: stat.f_files,
            files_free: stat.f_ffree,
            name_max: 255,
        };
        if let Some((limit, used)) = self.usage.bytes() {
            let free = limit.saturating_sub(used) / block;
            figures.blocks_free = figures.blocks_free.min(free);
            figures.blocks_available = figures.blocks_available.min(free);
            figures.blocks = used.div_ceil(block) + figures.blocks_free;
        }
        if let Some((limit, used)) = self.usage.inodes() {
            figures.files_free = limit.saturating_sub(used);
            figures.files = used + figures.files_free;
        }
        Ok(figures)
    }
}

impl Mutation<'_> {
    /// Clears the set-user-id bit, the set-group-id bit where it means that, and the file's
    /// capabilities, as the kernel would on a local file system.
    pub(super) fn kill_set_id(
        &self,
        node: &super::node::Node,
        state: &mut NodeState,
        row: &mut crate::change::InodeRow,
        change: &mut Change,
    ) -> Result<(), OpError> {
        row.attr.perm &= !SET_UID;
        if row.attr.perm & GROUP_EXEC != 0 {
            row.attr.perm &= !SET_GID;
        }
        let name = b"security.capability";
        if self.view.xattr(&self.epoch, node, state, name)?.is_some() {
            self.put_xattr(node.ino, state, &Name::from(&name[..]), None, change);
        }
        Ok(())
    }

    /// Drops what is loaded of a node if its change was not committed: memory may be ahead of the
    /// catalog then. Objects the change created are removed.
    pub(super) fn settle(
        &self,
        node: &super::node::Node,
        state: &mut NodeState,
        change: &Change,
        result: Result<(), OpError>,
    ) -> Result<(), OpError> {
        if result.is_err() {
            state.contents = None;
            state.xattrs = None;
            for row in change.rows() {
                if let Row::AddObject { id, .. } = row
                    && let Err(error) = self.view.core.objects.remove(*id)
                {
                    tracing::warn!(%error, ino = %node.ino, "an unused object stays on disk");
                }
            }
        }
        result
    }
}

fn check_size(state: &NodeState, ino: Ino, size: u64) -> Result<(), OpError> {
    match state.row.attr.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(OpError::IsDirectory(ino)),
        _ => {
            return Err(OpError::Invalid {
                what: "only regular files have a size",
            });
        }
    }
    if size > FILE_MAX {
        Err(OpError::TooBig { size })
    } else {
        Ok(())
    }
}
