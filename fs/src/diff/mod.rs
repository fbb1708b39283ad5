//! What differs between two states: of a workspace, of a snapshot, of what a workspace was made from.
//!
//! The cost follows what was changed between the two, not what is in them. Both stand on a nearest
//! common layer; whatever is named, written or removed above it has left a row of its inode in a
//! layer in between ([`crate::layers::Parting`]), and only those inodes are looked at ([`side`]).
//! Then names are put beside each other ([`pair`]), and what has two sides is compared
//! ([`contents`]), reading only the blocks that the two do not share.
//!
//! All that the catalog says is read at one state of it. Bytes of a live layer are not held still
//! meanwhile: a file that is written while it is compared is taken as one of its two states.

pub(crate) mod contents;
pub(crate) mod entry;
mod pair;
pub(crate) mod side;
pub(crate) mod text;

use std::collections::HashSet;

use thiserror::Error;

pub use self::entry::{DiffEntry, FileChange, FileVersion};
pub use self::text::{FileDiff, TEXT_MAX};

use self::contents::{Contents, same_bytes};
use self::entry::{entry, same_attributes};
use self::pair::{Pair, pairs};
use self::side::{File, Side};
use crate::attr::FileKind;
use crate::catalog::{CatalogError, Pinned};
use crate::change::ContentKind;
use crate::contents::ContentsError;
use crate::core::Core;
use crate::dispatch::OpError;
use crate::engine::FreezeError;
use crate::id::{Ino, LayerId, SnapshotId, WorkspaceId};
use crate::store::{FindError, Store, WorkspaceError};

/// How often a difference is looked for, when files that are compared go away meanwhile.
const TRIES: u32 = 5;

/// One of the two states to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiffSide {
    /// A workspace as it is now.
    Workspace(String),
    /// A snapshot.
    Snapshot(SnapshotId),
    /// What a workspace was made from: the snapshot that it was forked from, or the directories of
    /// the host that it stands on.
    Base(String),
}

/// What to look at.
#[derive(Clone, Debug, Default)]
pub struct DiffOptions {
    /// Only these paths and what lies under them; all if there is none.
    pub paths: Vec<Vec<u8>>,
    /// Of a renamed directory, also list each file in it as renamed. That costs what is in it.
    pub each_file: bool,
}

/// Why two states could not be compared.
#[derive(Debug, Error)]
pub enum DiffError {
    /// A workspace cannot be used.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// A snapshot was not found.
    #[error(transparent)]
    Find(#[from] FindError),
    /// Nothing was kept of how the workspace began.
    #[error("what '{workspace}' was made from was not kept")]
    NoBase {
        /// The workspace.
        workspace: String,
    },
    /// The two do not come from one workspace.
    #[error("{a} and {b} have nothing in common")]
    NothingInCommon {
        /// One of them.
        a: String,
        /// The other.
        b: String,
    },
    /// Pages that programs changed in mapped files could not be taken in.
    #[error("the workspace '{workspace}' cannot be read as it is now")]
    Settle {
        /// The workspace.
        workspace: String,
        /// Why.
        #[source]
        source: FreezeError,
    },
    /// A directory of the host that was renamed in a workspace could not be listed.
    #[error("cannot list directory {ino}, which is on the host")]
    Host {
        /// The directory.
        ino: Ino,
        /// Why.
        #[source]
        source: Box<OpError>,
    },
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The contents of a file could not be read.
    #[error(transparent)]
    Contents(#[from] ContentsError),
}

impl DiffError {
    /// Whether an object went away that the catalog's state still named.
    fn is_overtaken(&self) -> bool {
        matches!(
            self,
            Self::Contents(ContentsError::Object { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound
        )
    }
}

impl std::fmt::Display for DiffSide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Workspace(name) => write!(f, "the workspace '{name}'"),
            Self::Snapshot(id) => write!(f, "the snapshot {id}"),
            Self::Base(name) => write!(f, "what '{name}' was made from"),
        }
    }
}

/// Where a side is to be found in a state of the catalog.
enum At {
    Frozen(LayerId),
    Snapshot(LayerId, SnapshotId),
    Live(WorkspaceId, String),
    Root(WorkspaceId, String),
}

impl Store {
    /// What leads from one state to another, by path. Of a mounted workspace everything counts that
    /// was acknowledged before the call, dirty pages of shared mappings included.
    ///
    /// # Errors
    /// [`DiffError`].
    pub fn diff(
        &self,
        a: &DiffSide,
        b: &DiffSide,
        options: &DiffOptions,
    ) -> Result<Vec<DiffEntry>, DiffError> {
        let sides = [self.place(a)?, self.place(b)?];
        for side in &sides {
            if let At::Live(_, name) = side {
                self.settle_dirty(name)?;
            }
        }
        self.diff_sides(&sides, (a, b), options)
    }

    /// As [`Store::diff`], of two layers; what is live may change meanwhile.
    pub(crate) fn diff_layers(
        &self,
        from: LayerId,
        to: LayerId,
        options: &DiffOptions,
    ) -> Result<Vec<DiffEntry>, DiffError> {
        let sides = [At::Frozen(from), At::Frozen(to)];
        let names = [from, to].map(|layer| DiffSide::Base(layer.to_string()));
        self.diff_sides(&sides, (&names[0], &names[1]), options)
    }

    /// How the contents of a file differ between the two sides of a [`DiffEntry`]; of a file that is
    /// there on one side only, all of its lines. What is live is read as it is now.
    ///
    /// # Errors
    /// What keeps contents from being read.
    pub fn diff_file(
        &self,
        old: Option<(Ino, LayerId)>,
        new: Option<(Ino, LayerId)>,
    ) -> Result<FileDiff, DiffError> {
        let pinned = self.core.catalog.pin()?;
        let mut contents = [None, None];
        let (mut held, mut used) = (Vec::new(), Vec::new());
        for (side, contents) in [old, new].into_iter().zip(&mut contents) {
            let Some((ino, layer)) = side else {
                continue;
            };
            used.push(self.core.use_layer(layer));
            let Some(lineage) = self.core.layers.lineage(layer) else {
                return Ok(FileDiff::Gone);
            };
            // One that was deleted shows something else by now.
            if !self.core.catalog.shows_what_it_did(layer)? {
                return Ok(FileDiff::Gone);
            }
            let Some((_, Some(row))) = pinned.queries().inode(ino, lineage)? else {
                return Ok(FileDiff::Gone);
            };
            *contents = Some(Contents::load(pinned.queries(), lineage, ino, &row)?);
            held.push(self.hold_base(layer)?);
        }
        drop(pinned);
        let [old, new] = &contents;
        match text::diff(&self.core.objects, old.as_ref(), new.as_ref()) {
            Err(error) if error.is_overtaken() => Ok(FileDiff::Gone),
            found => found,
        }
    }

    fn place(&self, side: &DiffSide) -> Result<At, DiffError> {
        Ok(match side {
            DiffSide::Snapshot(id) => {
                At::Snapshot(self.find_snapshot(id.as_str())?.layer, id.clone())
            }
            DiffSide::Workspace(name) => At::Live(self.workspace_record(name)?.id, name.clone()),
            DiffSide::Base(name) => {
                let info = self.workspace_record(name)?;
                match info.forked_from {
                    Some(id) => match self.find_snapshot(id.as_str()) {
                        Err(FindError::NotFound { .. }) => {
                            let workspace = name.clone();
                            return Err(DiffError::NoBase { workspace });
                        }
                        found => At::Snapshot(found?.layer, id),
                    },
                    None => At::Root(info.id, name.clone()),
                }
            }
        })
    }

    /// Takes in what programs changed in mapped files of a workspace.
    pub(crate) fn settle_dirty(&self, workspace: &str) -> Result<(), DiffError> {
        let Some(view) = self.live_view(workspace)? else {
            return Ok(());
        };
        view.push_dirty().map_err(|source| DiffError::Settle {
            workspace: workspace.to_owned(),
            source,
        })
    }

    /// Looks for the difference until nothing that is compared goes away meanwhile.
    fn diff_sides(
        &self,
        sides: &[At; 2],
        names: (&DiffSide, &DiffSide),
        options: &DiffOptions,
    ) -> Result<Vec<DiffEntry>, DiffError> {
        let mut left = TRIES;
        loop {
            left -= 1;
            match self.diff_once(sides, names, options, left == 0) {
                Err(error) if error.is_overtaken() && left > 0 => {}
                done => return done,
            }
        }
    }

    fn diff_once(
        &self,
        sides: &[At; 2],
        (a, b): (&DiffSide, &DiffSide),
        options: &DiffOptions,
        last: bool,
    ) -> Result<Vec<DiffEntry>, DiffError> {
        let pinned = self.core.catalog.pin()?;
        let [from, to] = sides;
        let (from, to) = (self.layer(&pinned, from)?, self.layer(&pinned, to)?);
        // What they show is read when the catalog's state is let go.
        let _used = [self.core.use_layer(from), self.core.use_layer(to)];
        let mut found = compare(&self.core, &pinned, from, to, options)?.ok_or_else(|| {
            DiffError::NothingInCommon {
                a: a.to_string(),
                b: b.to_string(),
            }
        })?;
        drop(pinned);
        if !found.unlisted.is_empty() {
            for &(directory, base) in &found.unlisted {
                self.take_in_below(directory, base)?;
            }
            return self.diff_once(sides, (a, b), options, last);
        }
        let _held = [self.hold_base(from)?, self.hold_base(to)?];
        found.read_the_rest(&self.core, last)?;
        Ok(found.entries)
    }

    /// Lists a directory of the host, and all below it, that nobody has looked into yet.
    fn take_in_below(&self, directory: Ino, base: LayerId) -> Result<(), DiffError> {
        let _held = self.hold_base(base)?;
        let core = &self.core;
        let mut waiting = vec![directory];
        while let (Some(directory), Some(at)) = (waiting.pop(), core.layers.lineage(base)) {
            let taken = core.bases.take_in(core, directory, base);
            taken.map_err(|source| DiffError::Host {
                ino: directory,
                source: Box::new(source),
            })?;
            let entries = core.catalog.entries(directory, at)?;
            let below = entries.iter().filter_map(|(_, (_, entry))| entry.as_ref());
            let below = below.filter(|entry| entry.kind == FileKind::Directory);
            waiting.extend(below.map(|entry| entry.ino));
        }
        Ok(())
    }

    fn layer(&self, pinned: &Pinned, at: &At) -> Result<LayerId, DiffError> {
        let live = |id: WorkspaceId, name: &String| {
            let found = pinned.queries().live_layer(id)?;
            found.ok_or_else(|| {
                DiffError::from(WorkspaceError::NotFound {
                    name: name.clone(),
                    similar: Vec::new(),
                })
            })
        };
        match at {
            At::Frozen(layer) => Ok(*layer),
            At::Snapshot(layer, _) if pinned.queries().is_frozen(*layer)? => Ok(*layer),
            At::Snapshot(_, id) => Err(FindError::NotFound {
                reference: id.to_string(),
            }
            .into()),
            At::Live(id, name) => live(*id, name),
            At::Root(id, name) => {
                let base = self.core.host_base(live(*id, name)?);
                base.ok_or_else(|| DiffError::NoBase {
                    workspace: name.clone(),
                })
            }
        }
    }
}

/// Entries, and those that are only known when bytes have been read.
struct Found {
    entries: Vec<DiffEntry>,
    unread: Vec<(Pair, Contents, Contents)>,
    /// Directories of the host in these bases have to be listed first.
    unlisted: Vec<(Ino, LayerId)>,
}

impl Found {
    /// `last`: a file that went away while it was compared is not looked for again.
    fn read_the_rest(&mut self, core: &Core, last: bool) -> Result<(), DiffError> {
        for (pair, old, new) in std::mem::take(&mut self.unread) {
            let same = same_bytes(&core.objects, &old, &new).map_err(DiffError::from);
            let same = match same {
                Err(error) if last && error.is_overtaken() => false,
                // What it was cannot be read any more, so that it is the same cannot be known.
                Err(DiffError::Contents(ContentsError::HostChanged { .. })) => false,
                same => same?,
            };
            self.entries.extend(entry(pair, same));
        }
        self.entries
            .sort_by(|a, b| (&a.path, &a.from).cmp(&(&b.path, &b.from)));
        Ok(())
    }
}

/// Compares two layers in a state of the catalog, without reading objects. `None` if they have
/// nothing in common.
fn compare(
    core: &Core,
    pinned: &Pinned,
    from: LayerId,
    to: LayerId,
    options: &DiffOptions,
) -> Result<Option<Found>, DiffError> {
    let Some(parting) = core.layers.parting(from, to) else {
        return Ok(None);
    };
    let queries = pinned.queries();
    let side = |layer| {
        let lineage = core.layers.known(layer)?;
        Ok::<_, DiffError>(Side::new(queries, lineage))
    };
    let (mut old, mut new) = (side(from)?, side(to)?);
    let mut inos = Vec::new();
    for &layer in parting.from_a.iter().chain(&parting.from_b) {
        inos.extend(queries.written(layer)?);
    }
    inos.sort_unstable();
    inos.dedup();
    let mut known = Vec::new();
    for &ino in &inos {
        let (a, b) = (old.known(ino)?, new.known(ino)?);
        if a.is_some() || b.is_some() {
            known.push((a, b));
        }
    }
    let mut paired = pairs(known);
    let mut found = Found {
        entries: Vec::new(),
        unread: Vec::new(),
        unlisted: Vec::new(),
    };
    if options.each_file {
        let seen = inos.into_iter().collect();
        each_file(&mut paired, (&mut old, &mut new), &seen, &mut |directory| {
            let host = directory.row.content == ContentKind::Host;
            if host && !queries.is_listed(directory.ino, directory.row.born)? {
                found.unlisted.push((directory.ino, directory.row.born));
            }
            Ok(())
        })?;
    }
    for pair in paired {
        if !pair.concerns(&options.paths) {
            continue;
        }
        let (Some(a), Some(b)) = (&pair.old, &pair.new) else {
            found.entries.extend(entry(pair, false));
            continue;
        };
        let (a, b) = (&a.file, &b.file);
        if a.ino == b.ino && a.wrote == b.wrote {
            // One and the same version.
            found.entries.extend(entry(pair, true));
            continue;
        }
        let xattrs =
            (a.row.has_xattr || b.row.has_xattr) && old.xattrs(a.ino)? != new.xattrs(b.ino)?;
        let same_xattrs = !xattrs;
        let pair = Pair {
            same_attributes: same_xattrs && same_attributes(&a.row.attr, &b.row.attr),
            ..pair
        };
        let (Some(a), Some(b)) = (&pair.old, &pair.new) else {
            continue;
        };
        let (a, b) = (&a.file, &b.file);
        let has_bytes = a.has_bytes() && b.has_bytes();
        if a.row.attr.kind != b.row.attr.kind || !has_bytes {
            found.entries.extend(entry(pair, true));
            continue;
        }
        let left = Contents::load(queries, old.lineage(), a.ino, &a.row)?;
        let right = Contents::load(queries, new.lineage(), b.ino, &b.row)?;
        match left.same_at_a_glance(&right) {
            Some(same) => found.entries.extend(entry(pair, same)),
            None => found.unread.push((pair, left, right)),
        }
    }
    Ok(Some(found))
}

/// Adds every file below a renamed directory as renamed.
fn each_file(
    pairs: &mut Vec<Pair>,
    (old, new): (&mut Side<'_>, &mut Side<'_>),
    seen: &HashSet<Ino>,
    enter: &mut dyn FnMut(&File) -> Result<(), CatalogError>,
) -> Result<(), CatalogError> {
    let mut below = Vec::new();
    for pair in &mut *pairs {
        if let (Some(a), Some(b)) = (&pair.old, &pair.new) {
            pair.moved |= a.path != b.path;
            if pair.moved && b.file.is_directory() {
                below.push(b.file.clone());
            }
        }
    }
    while let Some(directory) = below.pop() {
        enter(&directory)?;
        let directory = directory.ino;
        for (_, entry) in new.entries(directory)? {
            let ino = entry.ino;
            if seen.contains(&ino) {
                continue;
            }
            let (Some(a), Some(b)) = (old.known(ino)?, new.known(ino)?) else {
                continue;
            };
            if b.file.is_directory() {
                below.push(b.file);
            } else {
                let paired = pair::each_kept((&a, &b), |parent| parent == directory);
                pairs.extend(paired.into_iter().map(|pair| Pair {
                    moved: true,
                    ..pair
                }));
            }
        }
    }
    Ok(())
}
