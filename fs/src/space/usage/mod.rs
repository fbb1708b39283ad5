//! What a store takes of the disk, and for whom.
//!
//! The objects of each layer are looked at on the disk, each file once however many names it has; who
//! sees a layer says whose they are (`owners`). The rest of the store's directory is counted by what it
//! is for. So the parts add up to what du(1) says of the directory, but for what changes meanwhile.

mod disk;
mod owners;

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;

use self::owners::{Node, Shares, shares};
use super::collector::CollectError;
use super::needed::Needed;
use super::shape::Shape;
use crate::catalog::{LayerRow, Pinned, ServedObject};
use crate::contents::{ContentsError, FileId, allocated, file_id};
use crate::core::Core;
use crate::id::{LayerId, ObjectId, WorkspaceId};

/// Objects looked at in one go.
const BATCH: usize = 1024;

/// How much a workspace takes, with its snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceUsage {
    /// Its number: names are used again.
    pub id: WorkspaceId,
    /// Its name.
    pub name: String,
    /// Whether only snapshots of it are left.
    pub deleted: bool,
    /// Snapshots of it.
    pub snapshots: u64,
    /// Allocated bytes of the files seen in it now, shared or not; 0 if it was deleted.
    pub apparent: u64,
    /// Bytes on the disk that only it and its snapshots see: what is freed with the last of them.
    pub exclusive: u64,
    /// Bytes on the disk that others see as well.
    pub shared: u64,
}

/// What a store takes of the disk: bytes of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Workspaces, and deleted ones of which there are snapshots, by name.
    pub workspaces: Vec<WorkspaceUsage>,
    /// What only one workspace and its snapshots see.
    pub exclusive: u64,
    /// What several see, counted once.
    pub shared: u64,
    /// What nobody sees: it waits for its removal, or for the end of an import.
    pub waiting: u64,
    /// The catalog and its log: names, attributes, and contents of small files.
    pub catalog: u64,
    /// Kept back for a full disk.
    pub reserve: u64,
    /// What landings in directories of the host took away, for undo.
    pub landings: u64,
    /// Memory of machines, kept by their snapshots.
    pub images: u64,
    /// Everything else: directories, logs, what a repair put aside.
    pub other: u64,
    /// All of it.
    pub total: u64,
    /// Objects.
    pub objects: u64,
}

/// Is told how many objects were looked at and their bytes; says whether to go on.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// What is known of a layer's owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerOwner {
    pub(crate) id: LayerId,
    pub(crate) workspace: Option<WorkspaceId>,
    /// Whether it is the live layer of a workspace that was not deleted, or a snapshot's.
    pub(crate) is_view: bool,
    /// Bytes visible in it.
    pub(crate) bytes: i64,
}

/// Looks at the whole store.
pub(crate) fn usage(core: &Core, progress: Progress<'_>) -> Result<StoreUsage, CollectError> {
    let pinned = core.catalog.pin()?;
    let owners = pinned.queries().layer_owners()?;
    let owners: HashMap<LayerId, LayerOwner> = owners.into_iter().map(|o| (o.id, o)).collect();
    let (layers, places) = layers(core, &pinned, &owners)?;
    let mut files = Files {
        layers,
        several: HashMap::new(),
        objects: 0,
        bytes: 0,
    };
    let mut after = ObjectId(0);
    loop {
        let rows = pinned.queries().objects_after(after, BATCH)?;
        let Some(last) = rows.last() else {
            break;
        };
        after = last.id;
        for ServedObject { id, ino, layer } in rows {
            let place = match places.get(&layer) {
                Some(&place) => Some(place),
                // It was handed down.
                None => {
                    let holder = pinned.queries().holder(ino, id)?;
                    holder.and_then(|layer| places.get(&layer).copied())
                }
            };
            files.look(core, id, place)?;
        }
        if progress(files.objects, files.bytes).is_break() {
            return Err(CollectError::Interrupted);
        }
    }
    // Of the same state: or one that is given up meanwhile counts twice.
    for id in pinned.queries().doomed()? {
        files.look(core, id, None)?;
    }
    let objects = files.objects;
    let shares = files.shares();
    let rest = disk::beside_objects(&core.dir).map_err(|source| {
        CollectError::Store(Box::new(
            ContentsError::Directory {
                action: "look at what lies beside",
                source,
            }
            .into(),
        ))
    })?;
    let workspaces = workspaces(&pinned, &owners, &shares)?;
    let exclusive = shares.of.values().map(|share| share.exclusive).sum();
    let used = exclusive + shares.shared + shares.nobodys;
    Ok(StoreUsage {
        workspaces,
        exclusive,
        shared: shares.shared,
        waiting: shares.nobodys,
        catalog: rest.catalog,
        reserve: rest.reserve,
        landings: rest.landings,
        images: rest.images,
        other: rest.other,
        total: used + rest.catalog + rest.reserve + rest.landings + rest.images + rest.other,
        objects,
    })
}

/// Every layer with who looks at it, and where it is in the list. The last one is nobody's: what
/// belongs to no layer is its.
fn layers(
    core: &Core,
    pinned: &Pinned,
    owners: &HashMap<LayerId, LayerOwner>,
) -> Result<(Vec<Node>, HashMap<LayerId, usize>), CollectError> {
    let families = pinned.queries().families()?;
    let used = Needed::read(core)?.with(core, &families, core.uses.all());
    let unreachable: HashSet<LayerId> = Shape::of(&families, &used)
        .unreachable
        .into_iter()
        .collect();
    let mut places = HashMap::new();
    let mut nodes: Vec<Node> = Vec::with_capacity(families.len() + 1);
    for layer in &families {
        let owner = owners.get(&layer.id);
        let looked_at = owner.is_some_and(|owner| owner.is_view) || used.contains(&layer.id);
        let alive = layer.what != LayerRow::Doomed && !unreachable.contains(&layer.id);
        places.insert(layer.id, nodes.len());
        nodes.push(Node {
            parent: layer.parent.and_then(|id| places.get(&id).copied()),
            view_of: owner
                .filter(|_| looked_at && alive)
                .and_then(|owner| owner.workspace),
            bytes: 0,
        });
    }
    nodes.push(Node::default());
    Ok((nodes, places))
}

/// The files of objects.
struct Files {
    layers: Vec<Node>,
    /// Of files with several names, by device and inode: bytes, and the layers that hold them.
    several: HashMap<FileId, (u64, Vec<usize>)>,
    objects: u64,
    bytes: u64,
}

impl Files {
    /// Adds an object to what a layer holds.
    fn look(
        &mut self,
        core: &Core,
        id: ObjectId,
        place: Option<usize>,
    ) -> Result<(), CollectError> {
        let meta = match std::fs::symlink_metadata(core.objects.path(id)) {
            // Somebody removed it meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            meta => meta
                .map_err(ContentsError::object("look at", id))
                .map_err(crate::dispatch::OpError::from)?,
        };
        let place = place.unwrap_or(self.layers.len() - 1);
        let bytes = allocated(&meta);
        self.objects += 1;
        if meta.nlink() == 1 {
            self.bytes += bytes;
            self.layers[place].bytes += bytes;
            return Ok(());
        }
        let several = self.several.entry(file_id(&meta));
        let (_, places) = several.or_insert_with(|| {
            self.bytes += bytes;
            (bytes, Vec::new())
        });
        if let Err(at) = places.binary_search(&place) {
            places.insert(at, place);
        }
        Ok(())
    }

    fn shares(self) -> Shares {
        let mut linked: HashMap<Vec<usize>, u64> = HashMap::new();
        for (bytes, places) in self.several.into_values() {
            *linked.entry(places).or_default() += bytes;
        }
        shares(&self.layers, &linked)
    }
}

fn workspaces(
    pinned: &Pinned,
    owners: &HashMap<LayerId, LayerOwner>,
    shares: &Shares,
) -> Result<Vec<WorkspaceUsage>, CollectError> {
    let mut all = Vec::new();
    for (id, name, live, snapshots) in pinned.queries().workspaces_with_snapshots()? {
        let share = shares.of.get(&id).copied().unwrap_or_default();
        if live.is_none() && snapshots == 0 && share == owners::Share::default() {
            continue;
        }
        let shown = live.and_then(|layer| owners.get(&layer));
        let apparent = shown.map_or(0, |owner| owner.bytes.max(0).unsigned_abs());
        all.push(WorkspaceUsage {
            id,
            name,
            deleted: live.is_none(),
            snapshots,
            apparent,
            exclusive: share.exclusive,
            shared: share.shared,
        });
    }
    all.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    Ok(all)
}
