//! Doing one step in the engine and in the model, and comparing what they answer.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use floe_fs::attr::FileKind;
use floe_fs::dispatch::{Dispatch, Errno, OpError, RenameFlags, SetAttr, Write};
use floe_fs::id::{Ino, SnapshotId};
use floe_fs::{BaseDir, ForkSource, SnapshotOptions, Store, View};

use super::host::{Host, HostKind};
use super::state::{Access, Base, Changed, Id, ROOT, State};
use super::step::{NAMES, Pick, SIZES, Step};
use crate::common::{ROOT_USER, ensure, make, name, new_store};

/// A state and the view that shows it.
pub struct Shown {
    pub state: State,
    pub view: Arc<View>,
    /// None for a snapshot.
    pub workspace: Option<String>,
}

/// A directory, its inode, a name that is free in it, and its path.
type FreePlace = (Id, Ino, String, Vec<String>);

pub struct World {
    pub host: Host,
    pub base: Base,
    pub shown: Vec<Shown>,
    pub store: Option<Arc<Store>>,
    /// What the engine calls things.
    inos: BTreeMap<Id, Ino>,
    pub path: PathBuf,
    _dir: tempfile::TempDir,
}

fn filled(byte: u8, size: u8) -> Vec<u8> {
    vec![byte | 1; SIZES[usize::from(size) % SIZES.len()]]
}

fn errno(error: &OpError) -> i32 {
    Errno::from(error).0
}

impl World {
    pub fn new() -> Self {
        let dir = match std::env::var_os("FLOE_MODEL_DIR") {
            Some(parent) => tempfile::tempdir_in(parent),
            None => tempfile::tempdir(),
        };
        let dir = dir.unwrap();
        let mut host = Host::new(&dir.path().join("host"));
        let of = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        host.make(of(&["a"]), HostKind::Dir);
        host.make(of(&["a", "b"]), HostKind::Dir);
        host.make(of(&["b"]), HostKind::File(vec![b'b'; 10]));
        host.make(of(&["a", "c"]), HostKind::File(vec![b'c'; 300_000]));
        host.link(&of(&["b"]), of(&["a", "b", "a"]));
        host.make(of(&["d"]), HostKind::Link("a/c".to_owned()));
        let path = dir.path().join("s");
        let store = new_store(&path);
        let dirs = [BaseDir {
            dir: host.dir.clone(),
            at: PathBuf::from("/"),
        }];
        store.create_workspace_from(&name("w0"), &dirs, "").unwrap();
        let view = store.open_live("w0").unwrap();
        let first = Shown {
            state: State::default(),
            view,
            workspace: Some("w0".to_owned()),
        };
        Self {
            host,
            base: Base::new(),
            shown: vec![first],
            store: Some(store),
            inos: BTreeMap::from([(ROOT, Ino::ROOT)]),
            path,
            _dir: dir,
        }
    }

    pub fn store(&self) -> &Arc<Store> {
        self.store.as_ref().unwrap()
    }

    fn live(&self, pick: u8) -> usize {
        let live = (0..self.shown.len()).filter(|&at| self.shown[at].workspace.is_some());
        let live: Vec<_> = live.collect();
        live[usize::from(pick) % live.len()]
    }

    /// Something of a kind that can be reached without looking at the host.
    fn pick(&self, at: usize, kind: &str, pick: Pick) -> Option<(Vec<String>, Id)> {
        let state = &self.shown[at].state;
        let mut known = state.known(&self.base);
        known.retain(|(_, id)| kind.contains(state.kind(&self.base, *id)));
        let len = known.len();
        (len > 0).then(|| known.swap_remove(usize::from(pick) % len))
    }

    /// The engine's inode at a path that the model knows, which is always the same for one file.
    fn ino(&mut self, at: usize, path: &[String], id: Id) -> Result<Ino, String> {
        let view = self.shown[at].view.clone();
        let mut ino = Ino::ROOT;
        for name in path {
            let found = view.lookup(ino, name.as_bytes());
            let found = found.map_err(|error| format!("{path:?}: {error}"))?;
            ino = found.ok_or_else(|| format!("{path:?} is missing"))?.ino;
            view.forget(ino, 1);
        }
        let known = *self.inos.entry(id).or_insert(ino);
        ensure!(known == ino, "{path:?} is {ino} and was {known}");
        Ok(ino)
    }

    pub fn step(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::HostMake(dir, name, kind, size) => {
                let dirs = self.host.dirs();
                let mut path = dirs[usize::from(dir) % dirs.len()].clone();
                path.push(NAMES[usize::from(name) % 4].to_owned());
                let kind = match kind % 4 {
                    0 => HostKind::Dir,
                    1 => HostKind::Link(format!("to{size}")),
                    _ => HostKind::File(filled(kind, size)),
                };
                if path.len() < 6 {
                    self.host.make(path, kind);
                }
            }
            Step::HostWrite(file, byte, size) => {
                let files = self.host.files();
                if !files.is_empty() {
                    let file = &files[usize::from(file) % files.len()];
                    self.host.write(file, filled(byte, size));
                }
            }
            Step::HostRemove(pick) => {
                let all: Vec<_> = self.host.names.keys().cloned().collect();
                self.host.remove(&all[usize::from(pick) % all.len()]);
            }
            Step::HostRename(pick, dir, name) => {
                let all: Vec<_> = self.host.names.keys().cloned().collect();
                let dirs = self.host.dirs();
                let mut to = dirs[usize::from(dir) % dirs.len()].clone();
                to.push(NAMES[usize::from(name) % 4].to_owned());
                self.host.rename(&all[usize::from(pick) % all.len()], to);
            }
            Step::HostLink(file, dir, name) => {
                let (files, dirs) = (self.host.files(), self.host.dirs());
                if !files.is_empty() {
                    let mut to = dirs[usize::from(dir) % dirs.len()].clone();
                    to.push(NAMES[usize::from(name) % 4].to_owned());
                    self.host.link(&files[usize::from(file) % files.len()], to);
                }
            }
            Step::List(at, dir) => {
                let at = usize::from(at) % self.shown.len();
                if let Some((path, id)) = self.pick(at, "d", dir) {
                    self.list(at, &path, id)?;
                }
            }
            Step::Read(at, file) => {
                let at = usize::from(at) % self.shown.len();
                if let Some((path, id)) = self.pick(at, "fl", file) {
                    self.read(at, &path, id)?;
                }
            }
            Step::Write(at, file, offset, size) => {
                let at = self.live(at);
                if let Some((path, id)) = self.pick(at, "f", file) {
                    let data = filled(size, size);
                    let offset = usize::from(offset) * 7;
                    if !data.is_empty() {
                        self.write(at, &path, id, offset, &data)?;
                    }
                }
            }
            Step::Truncate(at, file, size) => {
                let at = self.live(at);
                if let Some((path, id)) = self.pick(at, "f", file) {
                    self.truncate(at, &path, id, SIZES[usize::from(size) % SIZES.len()])?;
                }
            }
            Step::Make(at, dir, name, directory) => self.make(at, dir, name, directory)?,
            Step::Remove(at, pick) => self.remove(at, pick)?,
            Step::Rename(at, pick, dir, name) => self.rename(at, pick, dir, name)?,
            Step::Link(at, file, dir, name) => self.link(at, file, dir, name)?,
            Step::Snapshot(at) => {
                let at = self.live(at);
                let workspace = self.shown[at].workspace.clone().unwrap();
                let taken = self
                    .store()
                    .snapshot(&workspace, &SnapshotOptions::default());
                self.show_snapshot(at, &taken.unwrap().id);
            }
            Step::Fork(at) => {
                let at = self.live(at);
                let source = ForkSource::Workspace(self.shown[at].workspace.clone().unwrap());
                let new = format!("w{}", self.shown.len());
                self.store().fork(&source, &[name(&new)]).unwrap();
                let state = self.shown[at].state.clone();
                let view = self.store().open_live(&new).unwrap();
                self.shown.push(Shown {
                    state,
                    view,
                    workspace: Some(new),
                });
            }
            Step::Adopt => self.adopt()?,
            Step::Compare(at) => self.compare(usize::from(at) % self.shown.len())?,
        }
        Ok(())
    }

    fn show_snapshot(&mut self, at: usize, id: &SnapshotId) {
        let view = self.store().open_frozen(id).unwrap();
        let state = self.shown[at].state.clone();
        self.shown.push(Shown {
            state,
            view,
            workspace: None,
        });
    }

    pub fn list(&mut self, at: usize, path: &[String], id: Id) -> Result<(), String> {
        let ino = self.ino(at, path, id)?;
        let expected = self.shown[at].state.entries(&mut self.base, &self.host, id);
        let mut found = BTreeSet::new();
        let listed = self.shown[at].view.readdir(ino, 2, false, &mut |entry| {
            found.insert(String::from_utf8_lossy(entry.name).into_owned());
            true
        });
        match (expected, listed) {
            (Ok(expected), Ok(())) => {
                let expected: BTreeSet<_> = expected.into_keys().collect();
                ensure!(
                    found == expected,
                    "{path:?} lists {found:?}, not {expected:?}"
                );
                Ok(())
            }
            (Err(_), Err(error)) if errno(&error) == libc::ESTALE => Ok(()),
            (expected, listed) => Err(format!("{path:?} lists {listed:?}, not {expected:?}")),
        }
    }

    pub fn read(&mut self, at: usize, path: &[String], id: Id) -> Result<(), String> {
        let ino = self.ino(at, path, id)?;
        let shown = &self.shown[at];
        let attr = shown.view.getattr(ino).map_err(|error| error.to_string())?;
        let links = shown.state.links(&self.base, id);
        ensure!(
            u64::from(attr.nlink) == links,
            "{path:?} has {} links, not {links}",
            attr.nlink
        );
        if shown.state.kind(&self.base, id) == 'l' {
            let HostKind::Link(target) = &self.base.seen[&id].kind else {
                return Err("a link that is none".to_owned());
            };
            let found = shown
                .view
                .readlink(ino)
                .map_err(|error| error.to_string())?;
            ensure!(
                found == target.as_bytes(),
                "{path:?} leads to {found:?}, not {target}"
            );
            return Ok(());
        }
        let mut out = Vec::new();
        let read = shown.view.read(ino, 0, 1 << 20, &mut out);
        match (shown.state.bytes(&self.base, &self.host, id), read) {
            (Ok((bytes, _)), Ok(())) => {
                let (len, right) = (bytes.len(), bytes.len() as u64);
                ensure!(
                    attr.size == right,
                    "{path:?} has {} bytes, not {len}",
                    attr.size
                );
                ensure!(out == bytes, "{path:?} has other bytes than its {len}");
                Ok(())
            }
            (Ok((_, true)) | Err(_), Err(error)) if errno(&error) == libc::ESTALE => Ok(()),
            (expected, read) => {
                let expected = expected.map(|(bytes, may_fail)| (bytes.len(), may_fail));
                Err(format!("{path:?} reads {read:?}, not {expected:?}"))
            }
        }
    }

    /// Puts what an operation did to a file into the model, if it was done.
    fn wrote(
        &mut self,
        at: usize,
        id: Id,
        result: Result<(), OpError>,
        edit: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), String> {
        let shown = &mut self.shown[at];
        let links = shown.state.links(&self.base, id);
        let before = shown.state.bytes(&self.base, &self.host, id);
        match (before, result) {
            (Ok((mut bytes, _)), Ok(())) => {
                edit(&mut bytes);
                let partly = self.base.seen.contains_key(&id);
                let changed = Changed::Bytes { bytes, partly };
                shown.state.nodes.insert(id, (changed, links));
                Ok(())
            }
            (Ok((_, true)) | Err(_), Err(error)) if errno(&error) == libc::ESTALE => Ok(()),
            // Nothing of the old contents was needed.
            (Err(_), Ok(())) => {
                let HostKind::File(mut bytes) = self.base.seen[&id].kind.clone() else {
                    return Err("a file that is none".to_owned());
                };
                edit(&mut bytes);
                let changed = Changed::Bytes {
                    bytes,
                    partly: true,
                };
                shown.state.nodes.insert(id, (changed, links));
                Ok(())
            }
            (Ok(_), Err(error)) => Err(format!("writing to {id}: {error}")),
            (Err(_), Err(error)) => Err(format!("writing to {id}, which is stale: {error}")),
        }
    }

    fn write(
        &mut self,
        at: usize,
        path: &[String],
        id: Id,
        offset: usize,
        data: &[u8],
    ) -> Result<(), String> {
        let ino = self.ino(at, path, id)?;
        let write = Write {
            offset: offset as u64,
            data,
            append: false,
            kill_set_id: false,
        };
        let result = self.shown[at].view.write(ino, write);
        self.wrote(at, id, result, |bytes| {
            bytes.resize(bytes.len().max(offset + data.len()), 0);
            bytes[offset..offset + data.len()].copy_from_slice(data);
        })
    }

    fn truncate(&mut self, at: usize, path: &[String], id: Id, size: usize) -> Result<(), String> {
        let ino = self.ino(at, path, id)?;
        let set = SetAttr {
            size: Some(size as u64),
            ..SetAttr::default()
        };
        let result = self.shown[at].view.setattr(ROOT_USER, ino, set).map(drop);
        self.wrote(at, id, result, |bytes| bytes.resize(size, 0))
    }

    /// A directory to put a name in that is not taken; none if the host has to be asked and says no.
    fn free_place(&mut self, at: usize, dir: Pick, name: u8) -> Result<Option<FreePlace>, String> {
        let Some((path, id)) = self.pick(at, "d", dir) else {
            return Ok(None);
        };
        let ino = self.ino(at, &path, id)?;
        let name = NAMES[usize::from(name) % 4].to_owned();
        let entries = self.shown[at].state.entries(&mut self.base, &self.host, id);
        let view = &self.shown[at].view;
        let found = view.lookup(ino, name.as_bytes());
        let free = match (entries, found) {
            (Err(_), Err(error)) if errno(&error) == libc::ESTALE => false,
            (Ok(entries), Ok(found)) if entries.contains_key(&name) == found.is_some() => {
                if let Some(found) = &found {
                    view.forget(found.ino, 1);
                }
                found.is_none()
            }
            (entries, found) => {
                return Err(format!(
                    "{name} in {path:?} is {found:?}, not as in {entries:?}"
                ));
            }
        };
        Ok((free && path.len() < 6).then_some((id, ino, name, path)))
    }

    fn make(&mut self, at: u8, dir: Pick, name: u8, directory: bool) -> Result<(), String> {
        let at = self.live(at);
        let Some((dir, parent, name, _)) = self.free_place(at, dir, name)? else {
            return Ok(());
        };
        let (kind, changed) = if directory {
            (FileKind::Directory, Changed::Dir)
        } else {
            let bytes = Vec::new();
            (
                FileKind::File,
                Changed::Bytes {
                    bytes,
                    partly: false,
                },
            )
        };
        let ino = make(&self.shown[at].view, parent, &name, kind);
        self.shown[at].view.forget(ino, 1);
        let id = self.base.next;
        self.base.next += 1;
        self.inos.insert(id, ino);
        let state = &mut self.shown[at].state;
        state.nodes.insert(id, (changed, 1));
        state.names.insert((dir, name), Some(id));
        Ok(())
    }

    fn remove(&mut self, at: u8, pick: Pick) -> Result<(), String> {
        let at = self.live(at);
        let Some((path, id)) = self.pick(at, "dfl", pick) else {
            return Ok(());
        };
        let Some((name, above)) = path.split_last() else {
            return Ok(());
        };
        self.ino(at, &path, id)?;
        let (dir, parent) = self.dir_at(at, above)?;
        let view = self.shown[at].view.clone();
        let links = self.shown[at].state.links(&self.base, id);
        if self.shown[at].state.kind(&self.base, id) == 'd' {
            let entries = self.shown[at].state.entries(&mut self.base, &self.host, id);
            let expected = match &entries {
                Ok(entries) if !entries.is_empty() => libc::ENOTEMPTY,
                // Nobody was ever told what is in one that is not there any more.
                Ok(_) | Err(_) => 0,
            };
            let removed = view.rmdir(parent, name.as_bytes());
            let found = removed.as_ref().map_or_else(errno, |()| 0);
            ensure!(found == expected, "rmdir {path:?}: {found}, not {expected}");
            if found != 0 {
                return Ok(());
            }
        } else {
            let removed = view.unlink(parent, name.as_bytes());
            removed.map_err(|error| format!("unlink {path:?}: {error}"))?;
            self.shown[at].state.set_links(&self.base, id, links - 1);
        }
        let state = &mut self.shown[at].state;
        state.names.insert((dir, name.clone()), None);
        Ok(())
    }

    fn dir_at(&mut self, at: usize, path: &[String]) -> Result<(Id, Ino), String> {
        let known = self.shown[at].state.known(&self.base);
        let found = known.into_iter().find(|(known, _)| known == path);
        let (_, id) = found.ok_or_else(|| format!("{path:?} is not known"))?;
        Ok((id, self.ino(at, path, id)?))
    }

    fn rename(&mut self, at: u8, pick: Pick, dir: Pick, name: u8) -> Result<(), String> {
        let at = self.live(at);
        let Some((to, new_parent, new_name, to_path)) = self.free_place(at, dir, name)? else {
            return Ok(());
        };
        let Some((path, id)) = self.pick(at, "dfl", pick) else {
            return Ok(());
        };
        let Some((old_name, above)) = path.split_last() else {
            return Ok(());
        };
        if to_path.starts_with(&path) {
            return Ok(());
        }
        let (from, parent) = self.dir_at(at, above)?;
        let renamed = self.shown[at].view.rename(
            (parent, old_name.as_bytes()),
            (new_parent, new_name.as_bytes()),
            RenameFlags::default(),
        );
        renamed.map_err(|error| format!("rename {path:?}: {error}"))?;
        let state = &mut self.shown[at].state;
        state.names.insert((from, old_name.clone()), None);
        state.names.insert((to, new_name), Some(id));
        Ok(())
    }

    fn link(&mut self, at: u8, file: Pick, dir: Pick, name: u8) -> Result<(), String> {
        let at = self.live(at);
        let Some((to, new_parent, new_name, _)) = self.free_place(at, dir, name)? else {
            return Ok(());
        };
        let Some((path, id)) = self.pick(at, "fl", file) else {
            return Ok(());
        };
        let ino = self.ino(at, &path, id)?;
        let view = self.shown[at].view.clone();
        let linked = view.link(ino, new_parent, new_name.as_bytes());
        linked.map_err(|error| format!("link {path:?}: {error}"))?;
        view.forget(ino, 1);
        let links = self.shown[at].state.links(&self.base, id);
        self.shown[at].state.set_links(&self.base, id, links + 1);
        let state = &mut self.shown[at].state;
        state.names.insert((to, new_name), Some(id));
        Ok(())
    }

    fn adopt(&mut self) -> Result<(), String> {
        let store = self.store().clone();
        let Ok(base) = store.base_of("w0") else {
            return Err("w0 has no base".to_owned());
        };
        let adopted = store.adopt(base, &mut |_| ControlFlow::Continue(()));
        // In the order of their numbers, as they are found.
        let (mut at, mut whole) = (0, Access::Yes);
        while at < self.base.next {
            if self.base.seen.contains_key(&at) {
                whole = whole.min(self.adopt_one(at));
            }
            at += 1;
        }
        let right = match whole {
            Access::Yes => adopted.is_ok(),
            Access::Maybe => true,
            Access::No => adopted.is_err(),
        };
        ensure!(right, "adopted {adopted:?}, and {whole:?} expected");
        Ok(())
    }

    fn adopt_one(&mut self, id: Id) -> Access {
        match self.base.seen[&id].kind.clone() {
            HostKind::Dir if self.base.take(&self.host, id).is_err() => Access::No,
            HostKind::Dir | HostKind::Link(_) => Access::Yes,
            HostKind::File(_) => {
                let access = self.base.access(&self.host, id);
                self.base.seen.get_mut(&id).unwrap().adopted = access;
                access
            }
        }
    }
}
