//! Contents of regular files: read, write, resize, reserve, punch, sync.

use std::sync::Arc;

use super::node::{Contents, Node, NodeState};
use super::{Epoch, Mutation, View};
use crate::attr::FileKind;
use crate::change::{Change, ContentKind, InodeRow, Row};
use crate::contents::{ExtentMap, FILE_MAX, FileIo, INLINE_MAX, Source, as_len};
use crate::dispatch::{Caller, Fallocate, OpError, Write};
use crate::id::Ino;

/// Whether a mutation clears set-id bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kill {
    No,
    SetId,
}

/// Blocks that inline bytes count for.
fn inline_blocks(size: u64) -> u64 {
    size.div_ceil(512)
}

impl View {
    /// Loads where a file's bytes are.
    fn load<'a>(
        &self,
        epoch: &Epoch,
        node: &Node,
        state: &'a mut NodeState,
    ) -> Result<&'a mut Contents, OpError> {
        if state.contents.is_none() {
            let (ino, catalog) = (node.ino, &self.core.catalog);
            state.contents = Some(match state.row.content {
                ContentKind::Empty => Contents::Empty,
                ContentKind::Inline => {
                    let data = self.at_lineage(epoch, |at| catalog.inline(ino, at))?;
                    let data = data.ok_or_else(|| damaged(ino, "has no inline bytes"))?;
                    if data.len() as u64 != state.row.attr.size {
                        return Err(damaged(ino, "has another size than its inline bytes"));
                    }
                    Contents::Inline(data)
                }
                ContentKind::Extents => {
                    let mut map = ExtentMap::default();
                    self.at_lineage(epoch, |at| {
                        catalog.extents(ino, at, &mut |row| map.fill(row))
                    })?;
                    Contents::Extents(map)
                }
                ContentKind::Host => return Err(damaged(ino, "has the contents of a directory")),
            });
        }
        state
            .contents
            .as_mut()
            .ok_or_else(|| damaged(node.ino, "has no contents"))
    }

    pub(super) fn do_readlink(&self, ino: Ino) -> Result<Vec<u8>, OpError> {
        let epoch = self.epoch();
        let node = self.node(&epoch, ino)?;
        if node.state.read().row.attr.kind != FileKind::Symlink {
            return Err(OpError::Invalid {
                what: "not a symbolic link",
            });
        }
        let data = self.at_lineage(&epoch, |at| self.core.catalog.inline(ino, at))?;
        Ok(data.ok_or_else(|| damaged(ino, "has no target"))?.to_vec())
    }

    pub(super) fn do_read(
        &self,
        ino: Ino,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), OpError> {
        out.clear();
        let epoch = self.epoch();
        let node = self.node(&epoch, ino)?;
        let read = |state: &NodeState, contents: &Contents, out: &mut Vec<u8>| {
            let size = state.row.attr.size;
            let available = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
            let len = len.min(available);
            out.resize(len, 0);
            match contents {
                _ if len == 0 => Ok(()),
                Contents::Empty => Ok(()),
                Contents::Inline(data) => {
                    let data = data.get(as_len(offset)..).unwrap_or_default();
                    let len = len.min(data.len());
                    out[..len].copy_from_slice(&data[..len]);
                    Ok(())
                }
                Contents::Extents(map) => {
                    let source = Source {
                        objects: &self.core.objects,
                        map,
                    };
                    Ok(source.read(offset, out)?)
                }
            }
        };
        {
            let state = node.state.read();
            check_file(&state, ino)?;
            match (&state.contents, state.row.content) {
                (Some(contents), _) => return read(&state, contents, out),
                (None, ContentKind::Empty) => return read(&state, &Contents::Empty, out),
                (None, ContentKind::Inline) => {
                    // Not kept: the kernel's page cache has it now.
                    let data = self.at_lineage(&epoch, |at| self.core.catalog.inline(ino, at))?;
                    let data = data.ok_or_else(|| damaged(ino, "has no inline bytes"))?;
                    return read(&state, &Contents::Inline(data), out);
                }
                (None, ContentKind::Extents | ContentKind::Host) => {}
            }
        }
        let mut state = self.lock(&epoch, &node)?;
        self.load(&epoch, &node, &mut state)?;
        match &state.contents {
            Some(contents) => read(&state, contents, out),
            None => Err(damaged(ino, "has no contents")),
        }
    }

    pub(super) fn do_write(&self, ino: Ino, write: Write<'_>) -> Result<(), OpError> {
        if write.data.is_empty() {
            return Ok(());
        }
        let mutation = self.mutate()?;
        let node = mutation.node(ino)?;
        let mut state = mutation.lock(&node)?;
        check_file(&state, ino)?;
        let offset = if write.append {
            state.row.attr.size
        } else {
            write.offset
        };
        let end = offset
            .checked_add(write.data.len() as u64)
            .filter(|&end| end <= FILE_MAX);
        let end = end.ok_or(OpError::TooBig { size: offset })?;
        let mut row = state.row;
        row.attr.mtime = mutation.now;
        row.attr.ctime = mutation.now;
        let mut change = Change::new();
        self.load(&mutation.epoch, &node, &mut state)?;
        if write.kill_set_id {
            mutation.kill_set_id(&node, &mut state, &mut row, &mut change)?;
        }
        let new_size = row.attr.size.max(end);
        mutation.room_to_write(ino, &state, &row, offset..end)?;
        let written = match &state.contents {
            Some(Contents::Extents(_)) | None => {
                mutation.extents(&node, &mut state, &mut row, &mut change, |io| {
                    io.write(offset, write.data)
                })
            }
            _ if new_size <= INLINE_MAX => {
                mutation.edit_inline(&node, &mut state, &mut row, new_size, &mut change, |data| {
                    data[as_len(offset)..as_len(end)].copy_from_slice(write.data);
                })
            }
            _ => mutation
                .promote(&node, &mut state, &mut row, &mut change)
                .and_then(|()| {
                    mutation.extents(&node, &mut state, &mut row, &mut change, |io| {
                        io.write(offset, write.data)
                    })
                }),
        };
        let committed = written.and_then(|()| {
            row.attr.size = new_size;
            change.push(mutation.put(ino, row));
            mutation.count(ino, &mut change, Some(&state.row), &row)?;
            mutation.apply(&change)
        });
        mutation.settle(&node, &mut state, &change, committed)?;
        mutation.wrote(&mut state, row);
        Ok(())
    }

    pub(super) fn do_fallocate(
        &self,
        caller: Caller,
        ino: Ino,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<(), OpError> {
        let end = offset.checked_add(len).filter(|&end| end <= FILE_MAX);
        let end = end.ok_or(OpError::TooBig { size: offset })?;
        if len == 0 {
            return Err(OpError::Invalid { what: "length" });
        }
        let mutation = self.mutate()?;
        let node = mutation.node(ino)?;
        let mut state = mutation.lock(&node)?;
        check_file(&state, ino)?;
        let mut row = state.row;
        row.attr.mtime = mutation.now;
        row.attr.ctime = mutation.now;
        let mut change = Change::new();
        if caller.uid != 0 {
            mutation.kill_set_id(&node, &mut state, &mut row, &mut change)?;
        }
        let size = row.attr.size;
        let zeroed = offset.min(size)..end.min(size);
        let zeroes = matches!(
            mode,
            Fallocate::PunchHole | Fallocate::ZeroRange | Fallocate::ZeroRangeKeepSize
        );
        let grows = matches!(mode, Fallocate::Allocate | Fallocate::ZeroRange) && end > size;
        let mut steps = || -> Result<(), OpError> {
            self.load(&mutation.epoch, &node, &mut state)?;
            if zeroes && !zeroed.is_empty() {
                mutation.zero(&node, &mut state, &mut row, zeroed.clone(), &mut change)?;
            }
            let reserves = matches!(mode, Fallocate::Allocate | Fallocate::AllocateKeepSize);
            let is_object = matches!(state.contents, Some(Contents::Extents(_)));
            let becomes_one = mode == Fallocate::Allocate && size.max(end) > INLINE_MAX;
            if reserves && (is_object || becomes_one) {
                mutation.room_to_write(ino, &state, &row, offset..end)?;
            }
            if becomes_one && matches!(state.contents, Some(Contents::Empty)) {
                mutation.promote(&node, &mut state, &mut row, &mut change)?;
            }
            if grows {
                mutation.resize(&node, &mut state, &mut row, end, &mut change)?;
            }
            if reserves && matches!(state.contents, Some(Contents::Extents(_))) {
                let range = offset..end;
                mutation.extents(&node, &mut state, &mut row, &mut change, |io| {
                    io.reserve(&range)
                })?;
            }
            change.push(mutation.put(ino, row));
            mutation.count(ino, &mut change, Some(&state.row), &row)?;
            mutation.apply(&change)
        };
        let committed = steps();
        mutation.settle(&node, &mut state, &change, committed)?;
        mutation.wrote(&mut state, row);
        Ok(())
    }

    pub(super) fn do_seek(&self, ino: Ino, offset: u64, hole: bool) -> Result<u64, OpError> {
        let epoch = self.epoch();
        let node = self.node(&epoch, ino)?;
        let mut state = self.lock(&epoch, &node)?;
        check_file(&state, ino)?;
        let size = state.row.attr.size;
        if offset >= size {
            return Err(OpError::SeekPastEnd { offset });
        }
        let found = match self.load(&epoch, &node, &mut state)? {
            Contents::Empty => {
                if hole {
                    offset
                } else {
                    size
                }
            }
            Contents::Inline(_) => {
                if hole {
                    size
                } else {
                    offset
                }
            }
            Contents::Extents(map) => {
                let objects = &self.core.objects;
                Source { objects, map }.seek(offset, size, hole)?
            }
        };
        // Every file ends in a hole, but data must be found before the end.
        if !hole && found >= size {
            Err(OpError::SeekPastEnd { offset })
        } else {
            Ok(found)
        }
    }

    pub(super) fn do_fsync(&self, ino: Ino) -> Result<(), OpError> {
        let epoch = self.epoch();
        let node = self.node(&epoch, ino)?;
        check_open(&node.state.read(), ino)?;
        self.core.objects.sync_file(ino)?;
        self.core.sync_catalog()
    }

    pub(super) fn do_sync(&self) -> Result<(), OpError> {
        self.core.objects.sync_all()?;
        self.core.sync_catalog()
    }
}

impl Mutation<'_> {
    /// Changes extents and takes over what that did to the block count.
    fn extents(
        &self,
        node: &Node,
        state: &mut NodeState,
        row: &mut InodeRow,
        change: &mut Change,
        act: impl FnOnce(&mut FileIo<'_>) -> Result<(), crate::contents::FileIoError>,
    ) -> Result<(), OpError> {
        let core = &self.view.core;
        let Some(Contents::Extents(map)) = &mut state.contents else {
            return Err(damaged(node.ino, "has no extents"));
        };
        let mut io = FileIo {
            objects: &core.objects,
            map,
            change,
            ino: node.ino,
            layer: self.layer,
            size: row.attr.size,
            new_object: &mut || self.new_object(node.ino),
            created: None,
            inherited: false,
            blocks_delta: 0,
        };
        act(&mut io)?;
        let (delta, inherited) = (io.blocks_delta, io.inherited);
        if let Some(own) = map.object_of(self.layer)
            && inherited
        {
            self.inherited(own);
        }
        if let Some(own) = map.object_of(self.layer) {
            // Again: an fsync of somebody else may have come between the mark and the bytes.
            core.objects.mark_dirty(node.ino, own);
        }
        row.attr.blocks = self.blocks(map, row.attr.blocks, delta)?;
        Ok(())
    }

    /// The 512-byte blocks of a file that had `old` before it got `delta` more: exact where one
    /// object of ours is all there is.
    fn blocks(&self, map: &ExtentMap, old: u64, delta: i64) -> Result<u64, OpError> {
        match map.single_object() {
            Some((layer, own)) if layer == self.layer => {
                Ok(FileIo::blocks_of(&self.view.core.objects, own)?)
            }
            _ => Ok(old.saturating_add_signed(delta)),
        }
    }

    /// Rewrites inline contents (or none yet), `size` bytes long afterwards.
    fn edit_inline(
        &self,
        node: &Node,
        state: &mut NodeState,
        row: &mut InodeRow,
        size: u64,
        change: &mut Change,
        edit: impl FnOnce(&mut [u8]),
    ) -> Result<(), OpError> {
        let mut data = match &state.contents {
            Some(Contents::Inline(data)) => data.to_vec(),
            _ => Vec::new(),
        };
        data.resize(usize::try_from(size).unwrap_or(usize::MAX), 0);
        edit(&mut data);
        let data: Arc<[u8]> = Arc::from(data);
        change.push(Row::PutInline {
            ino: node.ino,
            layer: self.layer,
            data: data.clone(),
        });
        state.contents = Some(Contents::Inline(data));
        row.content = ContentKind::Inline;
        row.attr.blocks = inline_blocks(size);
        Ok(())
    }

    /// Moves inline contents (or none yet) into an object.
    fn promote(
        &self,
        node: &Node,
        state: &mut NodeState,
        row: &mut InodeRow,
        change: &mut Change,
    ) -> Result<(), OpError> {
        let data = match state.contents.take() {
            Some(Contents::Inline(data)) => data,
            _ => Arc::from(&b""[..]),
        };
        state.contents = Some(Contents::Extents(ExtentMap::default()));
        row.content = ContentKind::Extents;
        row.attr.blocks = 0;
        let size = std::mem::replace(&mut row.attr.size, 0);
        self.extents(node, state, row, change, |io| {
            if data.is_empty() {
                io.own_all()
            } else {
                // They were in the catalog before.
                io.inherited = true;
                io.write(0, &data)
            }
        })?;
        row.attr.size = size;
        change.push(Row::DropInline {
            ino: node.ino,
            layer: self.layer,
        });
        Ok(())
    }

    /// Changes the size of a regular file.
    pub(super) fn resize(
        &self,
        node: &Node,
        state: &mut NodeState,
        row: &mut InodeRow,
        size: u64,
        change: &mut Change,
    ) -> Result<(), OpError> {
        let old = row.attr.size;
        if size == old {
            return Ok(());
        }
        self.view.load(&self.epoch, node, state)?;
        match &state.contents {
            Some(Contents::Extents(_)) if size > old => {
                self.extents(node, state, row, change, |io| io.grow(size))?;
            }
            Some(Contents::Extents(_)) => {
                self.extents(node, state, row, change, |io| io.shrink(size))?;
            }
            // All zeros so far, and still: nothing has to be stored.
            Some(Contents::Empty) => {}
            _ if size <= INLINE_MAX => {
                self.room_to_write(node.ino, state, row, old.min(size)..size)?;
                self.edit_inline(node, state, row, size, change, |_| {})?;
            }
            _ => {
                self.room_to_write(node.ino, state, row, old..INLINE_MAX + 1)?;
                self.promote(node, state, row, change)?;
                self.extents(node, state, row, change, |io| io.grow(size))?;
            }
        }
        row.attr.size = size;
        Ok(())
    }

    /// Zeroes a range inside the file.
    fn zero(
        &self,
        node: &Node,
        state: &mut NodeState,
        row: &mut InodeRow,
        range: std::ops::Range<u64>,
        change: &mut Change,
    ) -> Result<(), OpError> {
        match &state.contents {
            Some(Contents::Extents(_)) => {
                self.extents(node, state, row, change, |io| io.punch(range))
            }
            Some(Contents::Inline(_)) => {
                let size = row.attr.size;
                self.edit_inline(node, state, row, size, change, |data| {
                    data[as_len(range.start)..as_len(range.end)].fill(0);
                })
            }
            _ => Ok(()),
        }
    }

    /// After a committed shrink, gives disk space back. A failure only costs space: a file that
    /// grows again cuts its object first.
    pub(super) fn cut(&self, node: &Node, state: &mut NodeState) {
        if let Err(error) = self.try_cut(node, state) {
            tracing::warn!(%error, ino = %node.ino, "space behind the end of a file is kept");
        }
    }

    fn try_cut(&self, node: &Node, state: &mut NodeState) -> Result<(), OpError> {
        let Some(Contents::Extents(map)) = &state.contents else {
            return Ok(());
        };
        let mut row = state.row;
        let freed = FileIo::cut(&self.view.core.objects, map, self.layer, row.attr.size)?;
        row.attr.blocks = self.blocks(map, row.attr.blocks, -freed)?;
        if row.attr.blocks != state.row.attr.blocks {
            // What the disk gave back is known only now.
            let mut change = Change::from(self.put(node.ino, row));
            self.count(node.ino, &mut change, Some(&state.row), &row)?;
            self.apply(&change)?;
            self.wrote(state, row);
        }
        Ok(())
    }
}

fn check_open(state: &NodeState, ino: Ino) -> Result<(), OpError> {
    if state.reclaimed {
        Err(OpError::Stale(ino))
    } else {
        Ok(())
    }
}

fn check_file(state: &NodeState, ino: Ino) -> Result<(), OpError> {
    check_open(state, ino)?;
    match state.row.attr.kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(OpError::IsDirectory(ino)),
        _ => Err(OpError::Invalid {
            what: "not a regular file",
        }),
    }
}

fn damaged(ino: Ino, what: &str) -> OpError {
    OpError::Catalog(crate::catalog::CatalogError::Damaged {
        what: format!("inode {ino} {what}"),
    })
}
