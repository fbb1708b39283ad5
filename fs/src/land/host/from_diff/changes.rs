//! From what differs, by path in the workspace, to changes below directories of the host.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::guard::Guard;
use super::super::meta::Meta;
use super::super::{HostChange, HostLandError, HostPart, HostPlan, NewKind, NewThing};
use super::known::{Known, path};
use crate::attr::{FileKind, Timestamp};
use crate::catalog::CatalogError;
use crate::core::Core;
use crate::diff::{DiffEntry, FileChange, FileVersion};
use crate::id::{Ino, LayerId};

/// A directory of the host.
struct Root {
    /// Its path there.
    dir: Vec<u8>,
    /// Where the workspace shows it, without a slash in front; empty for the root.
    at: Vec<u8>,
    changes: Vec<HostChange>,
}

/// Changes as they are gathered.
pub(super) struct Changes<'a> {
    core: &'a Core,
    known: &'a Known,
    base: LayerId,
    layer: LayerId,
    /// Whether it comes from where set-id bits and device nodes do not count.
    is_distrusted: bool,
    roots: Vec<Root>,
    /// Renamed directories, by their new path.
    renamed: BTreeMap<Vec<u8>, Vec<u8>>,
    /// New names, by inode and root: further ones are links to the first.
    named: HashMap<(Ino, usize), Vec<u8>>,
    touched: BTreeSet<Ino>,
}

/// A path in a root.
struct Place {
    root: usize,
    path: Vec<u8>,
}

impl<'a> Changes<'a> {
    pub(super) fn new(
        core: &'a Core,
        known: &'a Known,
        base: LayerId,
        layer: LayerId,
    ) -> Result<Self, HostLandError> {
        let mut roots = Vec::new();
        for (ino, row) in core.catalog.host_roots(base)? {
            let dir = path(&row.name);
            let found = Guard::at(&dir).map_err(|source| HostLandError::Root {
                root: dir.clone(),
                source,
            })?;
            if found.inode() != row.seen.inode {
                return Err(HostLandError::Root {
                    root: dir,
                    source: std::io::Error::other("it is another directory now"),
                });
            }
            let at = core.bases.shown_at_root(base, ino)?;
            let at = std::os::unix::ffi::OsStrExt::as_bytes(at.as_os_str())[1..].to_vec();
            roots.push(Root {
                dir: row.name.to_vec(),
                at,
                changes: Vec::new(),
            });
        }
        Ok(Self {
            core,
            known,
            base,
            layer,
            is_distrusted: core.catalog.is_sandboxed(layer)?,
            roots,
            renamed: BTreeMap::new(),
            named: HashMap::new(),
            touched: BTreeSet::new(),
        })
    }

    /// Where the workspace shows a root.
    pub(super) fn shown_at(&self, root: &[u8]) -> Option<&[u8]> {
        let found = self.roots.iter().find(|known| known.dir == root);
        found.map(|root| &root.at[..])
    }

    /// The plan, and the inodes of the base that it touches.
    pub(super) fn finish(self) -> (HostPlan, Vec<Ino>) {
        let parts = self
            .roots
            .into_iter()
            .filter(|root| !root.changes.is_empty());
        let parts = parts.map(|root| HostPart {
            root: path(&root.dir),
            changes: root.changes,
        });
        let plan = HostPlan {
            parts: parts.collect(),
        };
        (plan, self.touched.into_iter().collect())
    }

    fn place(&self, path: &[u8]) -> Result<Place, HostLandError> {
        for (root, known) in self.roots.iter().enumerate() {
            if known.at.is_empty() {
                let path = path.to_vec();
                return Ok(Place { root, path });
            }
            if let Some(rest) = path.strip_prefix(&known.at[..])
                && let [b'/', rest @ ..] = rest
            {
                let path = rest.to_vec();
                return Ok(Place { root, path });
            }
        }
        Err(HostLandError::Outside {
            path: path.to_vec(),
        })
    }

    /// A directory that was renamed: what is in it goes with it.
    pub(super) fn rename(&mut self, entry: &DiffEntry) {
        if let (Some(from), Some(new)) = (&entry.from, &entry.new)
            && new.attr.kind == FileKind::Directory
        {
            self.renamed.insert(entry.path.clone(), from.clone());
        }
    }

    /// Where something was before the directories above it were renamed.
    fn before(&self, path: &[u8]) -> Vec<u8> {
        let mut end = path.len();
        while let Some(at) = path[..end].iter().rposition(|&byte| byte == b'/') {
            if let Some(from) = self.renamed.get(&path[..at]) {
                return [from, &path[at..]].concat();
            }
            end = at;
        }
        path.to_vec()
    }

    /// Whether a path is that of a directory of the host itself, whose mode and owner are the host's
    /// affair.
    fn is_root(&self, path: &[u8]) -> bool {
        path == b"." || self.roots.iter().any(|root| root.at == path)
    }

    /// Whether an entry says only that a directory above was renamed, or nothing that lands.
    pub(super) fn is_implied(&self, entry: &DiffEntry) -> bool {
        if self.is_root(&entry.path) {
            return true;
        }
        !entry.contents
            && !entry.metadata
            && entry
                .from
                .as_ref()
                .is_some_and(|from| *from == self.before(&entry.path))
    }

    /// Adds what an entry says.
    pub(super) fn add(&mut self, entry: &DiffEntry) -> Result<(), HostLandError> {
        if self.is_root(&entry.path) {
            return Ok(());
        }
        if let Some(old) = &entry.old {
            self.touch(old.ino)?;
        }
        let before = entry
            .from
            .clone()
            .unwrap_or_else(|| self.before(&entry.path));
        match (&entry.old, &entry.new) {
            (Some(old), None) => self.remove(&entry.path, old),
            (None, Some(new)) => self.put(&entry.path, new),
            (Some(old), Some(new)) => match entry.change {
                FileChange::Metadata if new.attr.kind != FileKind::Symlink => {
                    self.set_meta(&before, &entry.path, old, new)
                }
                FileChange::Renamed if !entry.contents && old.attr.kind == new.attr.kind => {
                    self.move_to(&before, entry, old, new)
                }
                _ => {
                    self.remove(&before, old)?;
                    self.put(&entry.path, new)
                }
            },
            (None, None) => Ok(()),
        }
    }

    /// A file of the base will not be on the host any more as it was.
    fn touch(&mut self, ino: Ino) -> Result<(), CatalogError> {
        if self.core.catalog.host_at(ino, self.base)?.is_some() {
            self.touched.insert(ino);
        }
        Ok(())
    }

    /// What is expected to be at a path on the host.
    fn expected(&self, place: &Place, old: &FileVersion) -> Result<Guard, HostLandError> {
        let root = &self.roots[place.root].dir;
        if let Some(Some(left)) = self.known.left(root, &place.path) {
            return Ok(left);
        }
        let row = self.core.catalog.host_at(old.ino, self.base)?;
        let time = Timestamp { secs: 0, nanos: 0 };
        let kind = old.attr.kind;
        Ok(match row {
            Some(row) => {
                let seen = row.seen;
                let ctime = (seen.links < 2).then_some(seen.ctime);
                Guard::new(kind, seen.inode, seen.size, seen.mtime, ctime)
            }
            // Nothing that could be there is this one.
            None => Guard::new(kind, 0, 0, time, None),
        })
    }

    fn remove(&mut self, path: &[u8], old: &FileVersion) -> Result<(), HostLandError> {
        let place = self.place(path)?;
        let was = self.expected(&place, old)?;
        // Whoever sets the mode of a directory that goes loses nothing.
        let seen = (!was.is_directory()).then_some(old);
        let (seen, path) = (self.seen(&place, &was, seen)?, place.path);
        self.roots[place.root]
            .changes
            .push(HostChange::Remove { path, was, seen });
        Ok(())
    }

    fn put(&mut self, path: &[u8], new: &FileVersion) -> Result<(), HostLandError> {
        let place = self.place(path)?;
        let meta = self.lands(new)?;
        let first = self.named.get(&(new.ino, place.root)).cloned();
        let kind = match (new.attr.kind, first) {
            (FileKind::File, Some(to)) => NewKind::Link { to },
            (FileKind::File, None) => {
                self.named.insert((new.ino, place.root), place.path.clone());
                NewKind::File {
                    contents: new.ino.0,
                    size: new.attr.size,
                }
            }
            (FileKind::Directory, _) => NewKind::Directory,
            (FileKind::Symlink, _) => NewKind::Symlink {
                target: self.target(new)?,
            },
            (FileKind::CharDevice | FileKind::BlockDevice, _) if self.is_distrusted => {
                return Err(HostLandError::Plan {
                    what: format!(
                        "'{}' is a device node that was made in a sandbox",
                        String::from_utf8_lossy(path)
                    ),
                });
            }
            (kind, _) => NewKind::Special {
                kind,
                rdev: new.attr.rdev,
            },
        };
        let new = NewThing { kind, meta };
        let path = place.path;
        self.roots[place.root]
            .changes
            .push(HostChange::Put { path, new });
        Ok(())
    }

    fn set_meta(
        &mut self,
        before: &[u8],
        path: &[u8],
        old: &FileVersion,
        new: &FileVersion,
    ) -> Result<(), HostLandError> {
        let (from, place) = (self.place(before)?, self.place(path)?);
        let was = self.expected(&from, old)?;
        let seen = self.seen(&from, &was, Some(old))?;
        let (meta, path) = (self.lands(new)?, place.path);
        self.roots[place.root].changes.push(HostChange::SetMeta {
            path,
            was,
            seen,
            meta,
        });
        Ok(())
    }

    fn move_to(
        &mut self,
        before: &[u8],
        entry: &DiffEntry,
        old: &FileVersion,
        new: &FileVersion,
    ) -> Result<(), HostLandError> {
        // It goes with a directory above it.
        if self.before(&entry.path) == before {
            return if entry.metadata {
                self.set_meta(before, &entry.path, old, new)
            } else {
                Ok(())
            };
        }
        let (from, to) = (self.place(before)?, self.place(&entry.path)?);
        if from.root != to.root {
            if new.attr.kind == FileKind::Directory {
                return Err(HostLandError::Plan {
                    what: format!(
                        "the directory '{}' was moved from one directory of the host to another",
                        String::from_utf8_lossy(&entry.path)
                    ),
                });
            }
            self.remove(before, old)?;
            return self.put(&entry.path, new);
        }
        let was = self.expected(&from, old)?;
        let set_meta = match entry.metadata && new.attr.kind != FileKind::Symlink {
            true => Some(HostChange::SetMeta {
                path: to.path.clone(),
                was,
                seen: self.seen(&from, &was, Some(old))?,
                meta: self.lands(new)?,
            }),
            false => None,
        };
        let moved = HostChange::Move {
            from: from.path,
            to: to.path,
            was,
        };
        let changes = &mut self.roots[from.root].changes;
        changes.push(moved);
        changes.extend(set_meta);
        Ok(())
    }

    /// The metadata that something is to have on the host, where its guard does not tell.
    fn seen(
        &self,
        place: &Place,
        was: &Guard,
        old: Option<&FileVersion>,
    ) -> Result<Option<Meta>, HostLandError> {
        let Some(old) = old.filter(|_| !was.tells_metadata()) else {
            return Ok(None);
        };
        let meta = self.meta(old)?;
        // What no landing has left there is the host's own.
        let root = &self.roots[place.root].dir;
        let is_left = self.known.left(root, &place.path).is_some();
        Ok(Some(
            match is_left && self.core.catalog.is_sandboxed(old.layer)? {
                true => meta.without_privileges(old.attr.kind),
                false => meta,
            },
        ))
    }

    /// The metadata that something gets on the host.
    fn lands(&self, new: &FileVersion) -> Result<Meta, HostLandError> {
        let meta = self.meta(new)?;
        // Whoever is root in a sandbox is not to make anybody root on the host.
        Ok(match self.is_distrusted {
            true => meta.without_privileges(new.attr.kind),
            false => meta,
        })
    }

    /// The metadata that something has in the workspace.
    fn meta(&self, of: &FileVersion) -> Result<Meta, HostLandError> {
        let lineage = self.core.layers.known(of.layer)?;
        let xattrs = self.core.catalog.xattrs(of.ino, lineage)?;
        let xattrs = xattrs
            .into_iter()
            .map(|(name, value)| (name.to_vec(), value.to_vec()));
        let attr = &of.attr;
        Ok(Meta::new(attr.perm, attr.uid, attr.gid, attr.mtime, xattrs))
    }

    fn target(&self, new: &FileVersion) -> Result<Vec<u8>, HostLandError> {
        let lineage = self.core.layers.known(self.layer)?;
        let found = self.core.catalog.inline(new.ino, lineage)?;
        let found = found.ok_or_else(|| CatalogError::Damaged {
            what: format!("symbolic link {} has no target", new.ino),
        })?;
        Ok(found.to_vec())
    }
}
