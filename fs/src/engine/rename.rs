//! Renaming: move, replace, exchange, whiteout.

use std::sync::Arc;

use super::directory::Slot;
use super::node::{Node, NodeState};
use super::{Locked, Mutation, View, checked_name};
use crate::attr::FileKind;
use crate::catalog::CatalogError;
use crate::change::{Change, EntryRow, InodeRow, Name, Row};
use crate::dispatch::{Caller, NewNode, OpError, RenameFlags};
use crate::id::Ino;

/// Levels of directories that are looked at before the catalog is taken for damaged.
const DEPTH_MAX: u32 = 1 << 20;

/// One end of a rename.
struct End {
    parent: Arc<Node>,
    name: Name,
    slot: Slot,
}

/// The two directories, write-locked; one lock when they are the same.
struct Parents<'a> {
    from: Locked<'a>,
    to: Option<Locked<'a>>,
}

impl Parents<'_> {
    fn to(&mut self) -> &mut NodeState {
        self.to.as_mut().unwrap_or(&mut self.from)
    }
}

impl View {
    pub(super) fn do_rename(
        &self,
        (from_parent, from_name): (Ino, &[u8]),
        (to_parent, to_name): (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<(), OpError> {
        let (from_name, to_name) = (checked_name(from_name)?, checked_name(to_name)?);
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return Err(OpError::Invalid {
                what: "rename flags",
            });
        }
        if !flags.exchange {
            self.look_into(to_parent, &to_name);
        }
        let mutation = self.mutate()?;
        let _names = self.namespace.lock();
        let from_node = mutation.node(from_parent)?;
        let to_node = mutation.node(to_parent)?;
        let mut parents = Parents {
            from: mutation.lock(&from_node)?,
            to: if from_parent == to_parent {
                None
            } else {
                Some(mutation.lock(&to_node)?)
            },
        };
        let slot = self.slot(&mutation.epoch, &from_node, &mut parents.from, &from_name)?;
        let from = End {
            parent: from_node.clone(),
            name: from_name,
            slot,
        };
        let Slot::Present { entry: source, .. } = from.slot else {
            return Err(OpError::NoEntry {
                parent: from_parent,
            });
        };
        let slot = mutation.existing(&to_node, parents.to(), &to_name)?;
        let to = End {
            parent: to_node.clone(),
            name: to_name,
            slot,
        };
        let target = match to.slot {
            Slot::Present { entry, .. } => Some(entry),
            Slot::Absent { .. } => None,
        };
        if flags.no_replace && target.is_some() {
            return Err(OpError::Exists { parent: to_parent });
        }
        if from_parent != to_parent {
            self.check_not_inside(&mutation, source, to_parent)?;
            if let (true, Some(target)) = (flags.exchange, target) {
                self.check_not_inside(&mutation, target, from_parent)?;
            }
        }
        match target {
            Some(target) if target.ino == source.ino => Ok(()),
            Some(target) if flags.exchange => {
                mutation.exchange(parents, (&from, source), (&to, target))
            }
            None if flags.exchange => Err(OpError::NoEntry { parent: to_parent }),
            // Whatever contains the source is not empty (and locked by this very rename).
            Some(target) if target.ino == from_parent => Err(OpError::NotEmpty(target.ino)),
            _ => mutation.move_entry(parents, (&from, source), (&to, target), flags.whiteout),
        }
    }

    /// A directory must not become its own descendant. The kernel sees to it on a host mount; a
    /// guest's kernel is not trusted to.
    fn check_not_inside(
        &self,
        mutation: &Mutation<'_>,
        moved: EntryRow,
        into: Ino,
    ) -> Result<(), OpError> {
        if moved.kind != FileKind::Directory {
            return Ok(());
        }
        let mut at = into;
        for _ in 0..DEPTH_MAX {
            if at == moved.ino {
                return Err(OpError::Invalid {
                    what: "a directory cannot move into itself",
                });
            }
            if at == Ino::ROOT || at.0 == 0 {
                return Ok(());
            }
            // The parents are locked by this very rename, so the row is read past the lock: only
            // renames change it, and this one holds the namespace mutex.
            at = self.parent_of(mutation, at)?;
        }
        let what = format!("directory {into} is in itself, or deeper than any can be");
        Err(CatalogError::Damaged { what }.into())
    }

    fn parent_of(&self, mutation: &Mutation<'_>, ino: Ino) -> Result<Ino, OpError> {
        if let Ok(node) = mutation.epoch.nodes.get(ino)
            && let Some(state) = node.state.try_read()
        {
            return Ok(state.row.parent);
        }
        let version = self.at_lineage(&mutation.epoch, |at| self.core.catalog.inode(ino, at))?;
        version
            .and_then(|(_, row)| row)
            .map(|row| row.parent)
            .ok_or(OpError::Stale(ino))
    }
}

impl Mutation<'_> {
    fn move_entry(
        &self,
        mut parents: Parents<'_>,
        (from, source): (&End, EntryRow),
        (to, target): (&End, Option<EntryRow>),
        whiteout: bool,
    ) -> Result<(), OpError> {
        let across = from.parent.ino != to.parent.ino;
        let directory = source.kind == FileKind::Directory;
        let mut change = Change::new();

        // What is replaced.
        let victim = target.map(|target| self.node(target.ino)).transpose()?;
        let mut victim_state = victim.as_deref().map(|node| self.lock(node)).transpose()?;
        let mut victim_row = None;
        let mut replaced_directory = false;
        if let (Some(node), Some(state), Some(target)) = (&victim, &mut victim_state, target) {
            replaced_directory = target.kind == FileKind::Directory;
            match (directory, replaced_directory) {
                (true, false) => return Err(OpError::NotDirectory(target.ino)),
                (false, true) => return Err(OpError::IsDirectory(target.ino)),
                _ => {}
            }
            let row = self.unlinked(node, state)?;
            change.push(self.put(target.ino, row));
            self.count(target.ino, &mut change, Some(&state.row), &row)?;
            victim_row = Some(row);
        }

        // What is moved.
        let moved = self.node(source.ino)?;
        let mut moved_state = self.lock(&moved)?;
        let moved_row = self.moved(&moved_state, directory, to.parent.ino);
        change.push(self.put(source.ino, moved_row));

        // The names.
        let cookie = match target {
            // The name stays where it was in a listing under way.
            Some(target) => target.cookie,
            // Or a listing would meet what is renamed again and again, and never end.
            None if !across => source.cookie,
            None => self.view.core.numbers.cookie()?,
        };
        let new = EntryRow {
            cookie,
            shadows: to.slot.shadowed_by_new(self.layer),
            ..source
        };
        let (to_name, layer) = (to.name.clone(), self.layer);
        change.push(Row::PutEntry {
            parent: to.parent.ino,
            name: to_name,
            layer,
            entry: Some(new),
        });
        let mut left = None;
        let old_slot = if whiteout {
            let shadows = from.slot.shadowed_by_new(self.layer);
            self.room(0, 0, 1)?;
            let node = NewNode {
                kind: FileKind::CharDevice,
                perm: 0,
                umask: 0,
                rdev: 0,
                target: b"",
            };
            let owner = Caller { uid: 0, gid: 0 };
            let at = (&from.parent, &mut *parents.from);
            let (node, entry) = self.new_node(owner, at, node, shadows, &mut change)?;
            let (parent, name) = (from.parent.ino, from.name.clone());
            change.push(Row::PutEntry {
                parent,
                name,
                layer,
                entry: Some(entry),
            });
            left = Some(node);
            Slot::Present { entry, layer }
        } else {
            self.remove_entry(from.parent.ino, &from.name, from.slot, &mut change)
        };

        // The directories.
        let from_row = if across {
            self.touched(&parents.from, false, directory)
        } else {
            self.touched(&parents.from, false, replaced_directory)
        };
        change.push(self.put(from.parent.ino, from_row));
        let to_row = across.then(|| {
            let added = directory && !replaced_directory;
            self.touched(parents.to(), added, replaced_directory && !directory)
        });
        if let Some(row) = to_row {
            change.push(self.put(to.parent.ino, row));
        }

        self.apply(&change)?;
        if let (Some(state), Some(row)) = (&mut victim_state, victim_row) {
            self.wrote(state, row);
        }
        self.wrote(&mut moved_state, moved_row);
        self.wrote(&mut parents.from, from_row);
        if let Some(row) = to_row {
            self.wrote(parents.to(), row);
        }
        self.know(&mut parents.from, &from.name, old_slot);
        self.know(parents.to(), &to.name, Slot::Present { entry: new, layer });
        drop((moved_state, victim_state, parents));
        if let Some(node) = left {
            self.epoch.nodes.insert_new(node);
        }
        if let Some(node) = victim {
            self.reap_if_unreferenced(&node);
        }
        Ok(())
    }

    fn exchange(
        &self,
        mut parents: Parents<'_>,
        (from, source): (&End, EntryRow),
        (to, target): (&End, EntryRow),
    ) -> Result<(), OpError> {
        let across = from.parent.ino != to.parent.ino;
        let is_directory = |entry: EntryRow| entry.kind == FileKind::Directory;
        let (source_node, target_node) = (self.node(source.ino)?, self.node(target.ino)?);
        let (mut source_state, mut target_state) =
            (self.lock(&source_node)?, self.lock(&target_node)?);
        let source_row = self.moved(&source_state, is_directory(source), to.parent.ino);
        let target_row = self.moved(&target_state, is_directory(target), from.parent.ino);

        // Each name keeps its place in a listing under way.
        let shadows = |end: &End| end.slot.shadowed_by_new(self.layer);
        let at_to = EntryRow {
            cookie: target.cookie,
            shadows: shadows(to),
            ..source
        };
        let at_from = EntryRow {
            cookie: source.cookie,
            shadows: shadows(from),
            ..target
        };

        let swapped = across && is_directory(source) != is_directory(target);
        let from_gains = swapped && is_directory(target);
        let from_row = self.touched(&parents.from, from_gains, swapped && !from_gains);
        let to_row = across.then(|| self.touched(parents.to(), swapped && !from_gains, from_gains));

        let layer = self.layer;
        let put = |end: &End, entry| Row::PutEntry {
            parent: end.parent.ino,
            name: end.name.clone(),
            layer,
            entry: Some(entry),
        };
        let mut change = Change::new();
        change.push(self.put(source.ino, source_row));
        change.push(self.put(target.ino, target_row));
        change.push(put(to, at_to));
        change.push(put(from, at_from));
        change.push(self.put(from.parent.ino, from_row));
        if let Some(row) = to_row {
            change.push(self.put(to.parent.ino, row));
        }
        self.apply(&change)?;
        self.wrote(&mut source_state, source_row);
        self.wrote(&mut target_state, target_row);
        self.wrote(&mut parents.from, from_row);
        if let Some(row) = to_row {
            self.wrote(parents.to(), row);
        }
        self.know(
            &mut parents.from,
            &from.name,
            Slot::Present {
                entry: at_from,
                layer,
            },
        );
        self.know(
            parents.to(),
            &to.name,
            Slot::Present {
                entry: at_to,
                layer,
            },
        );
        Ok(())
    }

    /// The row of an inode that has another name now.
    fn moved(&self, state: &NodeState, directory: bool, parent: Ino) -> InodeRow {
        let mut row = state.row;
        row.attr.ctime = self.now;
        if directory {
            row.parent = parent;
        }
        row
    }
}
