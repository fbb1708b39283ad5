//! A store and the models of what is in it: workspaces, snapshots, and what they do to each other.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use floe_fs::attr::{FileKind, Timestamp};
use floe_fs::dispatch::Dispatch;
use floe_fs::id::{Ino, SnapshotId, WorkspaceName};
use floe_fs::{DeleteError, DeleteSelection, ForkSource, SnapshotOptions, Store, View};

use super::tree::{Body, Node, ROOT, Stamps, State};
use super::{Outcome, compare, ensure};

/// More would only make comparing slow.
const WORKSPACES_MAX: usize = 4;
const SNAPSHOTS_MAX: usize = 10;

/// A listing under way.
#[derive(Clone, Debug)]
pub struct Listing {
    pub directory: u64,
    pub cookie: u64,
    /// Names that were there at the beginning, and their lives.
    pub from: BTreeMap<Vec<u8>, u64>,
    pub seen: Vec<(Vec<u8>, u64)>,
}

/// A workspace.
pub struct Live {
    pub name: String,
    pub view: Option<Arc<View>>,
    pub state: State,
    /// Lookup references handed out and not returned.
    pub refs: BTreeMap<u64, u64>,
    pub opens: Vec<(u64, bool)>,
    pub listing: Option<Listing>,
    /// Removed and unreferenced: to be reclaimed in the background.
    pub limbo: BTreeSet<u64>,
    /// Removed before the live layer began. Nothing of them is in it, so when the view is closed
    /// they may stay: without a name, and counted nowhere.
    pub removed_below: BTreeSet<u64>,
}

pub struct Snapshot {
    pub id: SnapshotId,
    pub state: State,
    /// The workspace it was taken of; names are not used again.
    pub of: String,
    pub automatic: bool,
    pub protected: bool,
}

pub struct World {
    pub dir: tempfile::TempDir,
    pub store: Option<Arc<Store>>,
    pub live: Vec<Live>,
    pub snapshots: Vec<Snapshot>,
    /// Every inode number ever handed out.
    pub used: BTreeSet<u64>,
    pub lives: u64,
    names: u64,
}

fn workspace_name(name: &str) -> WorkspaceName {
    WorkspaceName::parse(name).unwrap()
}

impl Live {
    pub fn new(name: String, state: State) -> Self {
        Self {
            name,
            view: None,
            state,
            refs: BTreeMap::new(),
            opens: Vec::new(),
            listing: None,
            limbo: BTreeSet::new(),
            removed_below: BTreeSet::new(),
        }
    }

    pub fn view(&self) -> &Arc<View> {
        self.view.as_ref().expect("opened before every step")
    }

    /// Takes a reference that the engine handed out.
    pub fn referenced(&mut self, ino: u64) {
        *self.refs.entry(ino).or_default() += 1;
    }

    /// Removed nodes that nobody refers to leave the model.
    pub fn sweep(&mut self) {
        let gone: Vec<u64> = self
            .state
            .nodes
            .iter()
            .filter(|(ino, node)| node.nlink == 0 && !self.refs.contains_key(ino))
            .map(|(&ino, _)| ino)
            .collect();
        for ino in gone {
            self.state.nodes.remove(&ino);
            if !self.state.inherited.remove(&ino) {
                self.limbo.insert(ino);
            }
        }
    }

    /// The view was closed: every reference is returned.
    fn forget_all(&mut self) {
        self.refs.clear();
        self.opens.clear();
        self.sweep();
        let below = &self.removed_below;
        self.limbo.retain(|ino| !below.contains(ino));
    }

    /// Takes over the times that the engine stamped between two moments; all are the same time.
    pub fn stamped(&mut self, stamps: &Stamps, from: Timestamp) -> Outcome {
        let to = Timestamp::now();
        let mut one: Option<Timestamp> = None;
        let view = self.view().clone();
        for (&ino, touched) in stamps {
            let Ok(attr) = view.getattr(Ino(ino)) else {
                // Removed and reclaimed already.
                continue;
            };
            let node = self.state.edit(ino);
            for (is, time, kept) in [
                (touched.atime, attr.atime, &mut node.atime),
                (touched.mtime, attr.mtime, &mut node.mtime),
                (touched.ctime, attr.ctime, &mut node.ctime),
                (touched.btime, attr.btime, &mut node.btime),
            ] {
                if !is {
                    continue;
                }
                ensure!(
                    from <= time && time <= to,
                    "inode {ino} is stamped {time:?}, not between {from:?} and {to:?}"
                );
                ensure!(
                    *one.get_or_insert(time) == time,
                    "inode {ino} is stamped {time:?}, others {one:?}"
                );
                *kept = time;
            }
        }
        Ok(())
    }
}

impl World {
    pub fn new() -> Result<Self, String> {
        let dir = match std::env::var_os("FLOE_MODEL_DIR") {
            Some(parent) => tempfile::tempdir_in(parent),
            None => tempfile::tempdir(),
        }
        .map_err(|error| error.to_string())?;
        let path = dir.path().join("store");
        Store::init(&path).map_err(|error| error.to_string())?;
        let store = Store::open(&path).map_err(|error| error.to_string())?;
        let mut world = Self {
            dir,
            store: Some(store),
            live: Vec::new(),
            snapshots: Vec::new(),
            used: BTreeSet::from([ROOT]),
            lives: 0,
            names: 0,
        };
        let name = world.new_name();
        let created = world.store().create_workspace(&workspace_name(&name));
        created.map_err(|error| error.to_string())?;
        world.live.push(Live::new(name, State::default()));
        world.open(0)?;
        let attr = world.live[0].view().getattr(Ino::ROOT);
        let attr = attr.map_err(|error| error.to_string())?;
        let root = Node {
            kind: FileKind::Directory,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            nlink: 2,
            rdev: 0,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: attr.btime,
            xattrs: BTreeMap::new(),
            body: Body::Directory {
                parent: ROOT,
                entries: BTreeMap::new(),
            },
        };
        world.live[0].state.nodes.insert(ROOT, Arc::new(root));
        Ok(world)
    }

    pub fn store(&self) -> &Arc<Store> {
        self.store.as_ref().expect("open")
    }

    fn new_name(&mut self) -> String {
        self.names += 1;
        format!("w{}", self.names)
    }

    /// A number for the life of a new name; the one after it is free too.
    pub fn new_life(&mut self) -> u64 {
        self.lives += 2;
        self.lives
    }

    pub fn open(&mut self, at: usize) -> Outcome {
        if self.live[at].view.is_none() {
            let view = self.store().open_live(&self.live[at].name);
            self.live[at].view = Some(view.map_err(|error| error.to_string())?);
        }
        Ok(())
    }

    pub fn snapshot(&mut self, at: usize) -> Outcome {
        if self.snapshots.len() >= SNAPSHOTS_MAX {
            return Ok(());
        }
        let options = SnapshotOptions::default();
        let info = self.store().snapshot(&self.live[at].name, &options);
        let id = info.map_err(|error| error.to_string())?.id;
        self.keep(id, at, false);
        Ok(())
    }

    fn keep(&mut self, id: SnapshotId, at: usize, automatic: bool) {
        let live = &mut self.live[at];
        let removed = live.state.nodes.iter().filter(|(_, node)| node.nlink == 0);
        live.removed_below.extend(removed.map(|(&ino, _)| ino));
        live.removed_below.extend(&live.limbo);
        let state = live.state.clone();
        let of = live.name.clone();
        self.snapshots.push(Snapshot {
            id,
            state,
            of,
            automatic,
            protected: false,
        });
    }

    pub fn fork_workspace(&mut self, at: usize, count: usize) -> Outcome {
        let count = count.min(WORKSPACES_MAX.saturating_sub(self.live.len()));
        if count == 0 || self.snapshots.len() >= SNAPSHOTS_MAX {
            return Ok(());
        }
        let names: Vec<String> = (0..count).map(|_| self.new_name()).collect();
        let source = ForkSource::Workspace(self.live[at].name.clone());
        self.fork(&source, &names)?;
        let filter = floe_fs::SnapshotFilter {
            workspace: Some(self.live[at].name.clone()),
            limit: Some(1),
            ..floe_fs::SnapshotFilter::default()
        };
        let newest = self.store().snapshots(&filter).map_err(|e| e.to_string())?;
        ensure!(
            newest
                .first()
                .is_some_and(|s| s.automatic.as_deref() == Some("fork")),
            "a fork of a workspace left no snapshot: {newest:?}"
        );
        self.keep(newest[0].id.clone(), at, true);
        let state = self.live[at].state.clone();
        self.forked(names, &state);
        Ok(())
    }

    pub fn fork_snapshot(&mut self, number: usize) -> Outcome {
        if self.live.len() >= WORKSPACES_MAX || self.snapshots.is_empty() {
            return Ok(());
        }
        let snapshot = &self.snapshots[number % self.snapshots.len()];
        let (source, state) = (
            ForkSource::Snapshot(snapshot.id.clone()),
            snapshot.state.clone(),
        );
        let names = vec![self.new_name()];
        self.fork(&source, &names)?;
        self.forked(names, &state);
        Ok(())
    }

    fn fork(&self, source: &ForkSource, names: &[String]) -> Outcome {
        let names: Vec<_> = names.iter().map(|name| workspace_name(name)).collect();
        let made = self.store().fork(source, &names);
        ensure!(
            made.map_err(|e| e.to_string())?.len() == names.len(),
            "forks"
        );
        Ok(())
    }

    fn forked(&mut self, names: Vec<String>, state: &State) {
        for name in names {
            let mut state = state.clone();
            // What was removed and open is open nowhere here.
            state.nodes.retain(|_, node| node.nlink > 0);
            state.inherited.clear();
            self.live.push(Live::new(name, state));
        }
    }

    pub fn roll_back(&mut self, at: usize, number: usize) -> Outcome {
        if self.snapshots.is_empty() || self.snapshots.len() >= SNAPSHOTS_MAX {
            return Ok(());
        }
        let target = &self.snapshots[number % self.snapshots.len()];
        let (id, mut state) = (target.id.clone(), target.state.clone());
        let report = self.store().rollback(&self.live[at].name, id.as_str());
        let report = report.map_err(|error| error.to_string())?;
        ensure!(report.to == id, "rolled back to {}", report.to);
        self.keep(report.kept, at, true);
        let live = &mut self.live[at];
        // Removed files that somebody refers to are there if the target has them.
        let refs = &live.refs;
        state
            .nodes
            .retain(|ino, node| node.nlink > 0 || refs.contains_key(ino));
        state.inherited = state
            .nodes
            .iter()
            .filter(|(_, node)| node.nlink == 0)
            .map(|(&ino, _)| ino)
            .collect();
        live.state = state;
        live.listing = None;
        live.limbo.clear();
        Ok(())
    }

    pub fn close_view(&mut self, at: usize) {
        if let Some(view) = self.live[at].view.take() {
            self.store().close_view(&view);
            self.live[at].forget_all();
        }
    }

    pub fn delete_workspace(&mut self, at: usize) -> Outcome {
        if self.live.len() < 2 {
            return Ok(());
        }
        self.close_view(at);
        let live = self.live.remove(at);
        let deleted = self.store().delete_workspace(&live.name);
        deleted.map(drop).map_err(|error| error.to_string())
    }

    pub fn delete_snapshot(&mut self, number: usize) -> Outcome {
        if self.snapshots.is_empty() {
            return Ok(());
        }
        let at = number % self.snapshots.len();
        let these = DeleteSelection::These(vec![self.snapshots[at].id.to_string()]);
        let deleted = self.store().delete_snapshots(&these, false);
        if self.snapshots[at].protected {
            ensure!(
                matches!(deleted, Err(DeleteError::Protected { .. })),
                "deleting a protected snapshot: {deleted:?}"
            );
            return Ok(());
        }
        let snapshot = self.snapshots.remove(at);
        deleted.map_err(|error| error.to_string())?;
        let again = self.store().open_frozen(&snapshot.id);
        ensure!(again.is_err(), "a deleted snapshot is there");
        Ok(())
    }

    /// Deletes everything, one after the other: each time all the rest is as it was. In the end
    /// nothing takes any space.
    pub fn deleted(&mut self) -> Outcome {
        for at in 0..self.snapshots.len() {
            if self.snapshots[at].protected {
                self.protect(at)?;
            }
        }
        while !self.snapshots.is_empty() {
            let next = self.snapshots.len() * 7 / 3;
            self.delete_snapshot(next)?;
            self.collect()?;
            self.check()?;
            let live = std::mem::take(&mut self.live);
            self.compare()?;
            self.live = live;
        }
        for live in std::mem::take(&mut self.live) {
            if let Some(view) = &live.view {
                self.store().close_view(view);
            }
            let deleted = self.store().delete_workspace(&live.name);
            deleted.map_err(|error| error.to_string())?;
        }
        self.collect()?;
        self.check()?;
        let info = self.store().info().map_err(|error| error.to_string())?;
        // The last layer stays, empty: its number is not to be used again.
        ensure!(
            info.objects == 0 && info.layers <= 1,
            "{} objects and {} layers are left",
            info.objects,
            info.layers
        );
        Ok(())
    }

    pub fn collect(&mut self) -> Outcome {
        let collected = self.store().collect(&mut |_| ControlFlow::Continue(()));
        collected.map(drop).map_err(|error| error.to_string())
    }

    /// Hashes what is frozen, and stores equal contents once.
    pub fn hash(&self) -> Outcome {
        let hashed = self.store().hash_now(&mut |_| ControlFlow::Continue(()));
        let hashed = hashed.map_err(|error| error.to_string())?;
        ensure!(
            hashed.failed == 0,
            "{} objects cannot be read",
            hashed.failed
        );
        Ok(())
    }

    /// Closes the store and opens it again.
    pub fn reopen(&mut self) -> Outcome {
        for live in &mut self.live {
            live.view = None;
        }
        let store = self.store.take().expect("open");
        let store = Arc::try_unwrap(store).map_err(|_| "somebody else has the store")?;
        drop(store);
        let store = Store::open(&self.dir.path().join("store"));
        self.store = Some(store.map_err(|error| format!("opening again: {error}"))?);
        for live in &mut self.live {
            live.forget_all();
        }
        Ok(())
    }

    /// Compares every view, all live workspaces and all snapshots.
    pub fn compare(&mut self) -> Outcome {
        for at in 0..self.live.len() {
            self.open(at)?;
            let live = &mut self.live[at];
            let view = live.view().clone();
            for ino in std::mem::take(&mut live.limbo) {
                compare::reclaimed(&view, ino)
                    .map_err(|error| format!("workspace {}: {error}", live.name))?;
            }
            compare::view(&view, &live.state)
                .map_err(|error| format!("workspace {}: {error}", live.name))?;
        }
        for (number, snapshot) in self.snapshots.iter().enumerate() {
            let view = self.store().open_frozen(&snapshot.id);
            let view = view.map_err(|error| error.to_string())?;
            compare::view(&view, &snapshot.state)
                .map_err(|error| format!("snapshot {number} ({}): {error}", snapshot.id))?;
        }
        Ok(())
    }

    /// The store itself finds nothing wrong with it.
    pub fn check(&self) -> Outcome {
        let report = self
            .store()
            .check_data(&mut |_| std::ops::ControlFlow::Continue(()))
            .map_err(|error| error.to_string())?;
        let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
        ensure!(
            report.is_clean(),
            "the check finds: {}",
            problems.join("; ")
        );
        Ok(())
    }

    /// Removes everything in a workspace, returns every reference, and sees that nothing is left.
    pub fn empty(&mut self, at: usize) -> Outcome {
        self.open(at)?;
        let live = &mut self.live[at];
        let view = live.view().clone();
        remove_below(&view, ROOT)?;
        for (ino, count) in std::mem::take(&mut live.refs) {
            view.forget(Ino(ino), count);
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        let name = live.name.clone();
        loop {
            let info = self.store().workspace(&name).map_err(|e| e.to_string())?;
            if info.bytes == 0 {
                break;
            }
            ensure!(
                Instant::now() < deadline,
                "{} bytes are left in an empty workspace",
                info.bytes
            );
        }
        let root = view.getattr(Ino::ROOT).map_err(|e| e.to_string())?;
        ensure!(root.nlink == 2, "an empty root has {} links", root.nlink);
        let inodes: Vec<u64> = live_inodes(&self.live[at].state);
        for ino in inodes.into_iter().filter(|ino| *ino != ROOT) {
            if !self.live[at].state.inherited.contains(&ino) {
                compare::reclaimed(&view, ino)?;
            }
        }
        drop(view);
        self.close_view(at);
        Ok(())
    }
}

fn live_inodes(state: &State) -> Vec<u64> {
    state.nodes.keys().copied().collect()
}

fn remove_below(view: &View, directory: u64) -> Outcome {
    let mut names = Vec::new();
    view.readdir(Ino(directory), 2, false, &mut |entry| {
        names.push((entry.name.to_vec(), entry.ino.0, entry.kind));
        true
    })
    .map_err(|error| error.to_string())?;
    for (name, ino, kind) in names {
        let removed = if kind == FileKind::Directory {
            remove_below(view, ino)?;
            view.rmdir(Ino(directory), &name)
        } else {
            view.unlink(Ino(directory), &name)
        };
        removed.map_err(|error| format!("removing {}: {error}", name.escape_ascii()))?;
    }
    Ok(())
}
