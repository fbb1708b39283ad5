//! One of the two states: which inodes it has, and what they are called there.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::attr::FileKind;
use crate::catalog::{CatalogError, Queries};
use crate::change::{InodeRow, Name};
use crate::id::{Ino, LayerId};
use crate::layers::Lineage;

/// Deepest directory that is believed: a catalog in which directories lie in each other has none.
const DEPTH_MAX: usize = 1 << 20;

/// A version of an inode.
#[derive(Clone, Debug)]
pub(super) struct File {
    pub(super) ino: Ino,
    /// The layer of the side.
    pub(super) at: LayerId,
    /// The layer that wrote the version.
    pub(super) wrote: LayerId,
    pub(super) row: InodeRow,
}

impl File {
    pub(super) fn is_directory(&self) -> bool {
        self.row.attr.kind == FileKind::Directory
    }

    /// Whether it is of a kind that has contents to compare.
    pub(super) fn has_bytes(&self) -> bool {
        matches!(self.row.attr.kind, FileKind::File | FileKind::Symlink)
    }
}

/// Where a name is: in which directory, and what the whole path is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) parent: Ino,
    pub(super) name: Name,
    pub(super) path: Vec<u8>,
}

/// An inode that has a name, with all its names in the order of their paths.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) file: File,
    pub(super) places: Vec<Place>,
}

/// A state of a layer.
pub(super) struct Side<'a> {
    queries: Queries<'a>,
    lineage: Lineage<'a>,
    /// Paths of directories; none for one that hangs in the air.
    paths: HashMap<Ino, Option<Arc<[u8]>>>,
}

impl<'a> Side<'a> {
    pub(super) fn new(queries: Queries<'a>, lineage: Lineage<'a>) -> Self {
        let root = (Ino::ROOT, Some(Arc::from(&b""[..])));
        Self {
            queries,
            lineage,
            paths: HashMap::from([root]),
        }
    }

    pub(super) fn lineage(&self) -> Lineage<'a> {
        self.lineage
    }

    /// What is known of an inode; `None` if it does not exist here or has no name.
    pub(super) fn known(&mut self, ino: Ino) -> Result<Option<Known>, CatalogError> {
        let Some((wrote, Some(row))) = self.queries.inode(ino, self.lineage)? else {
            return Ok(None);
        };
        let file = File {
            ino,
            at: self.lineage.layer(),
            wrote,
            row,
        };
        if ino == Ino::ROOT {
            let root = Place {
                parent: Ino::ROOT,
                name: Arc::from(&b""[..]),
                path: b".".to_vec(),
            };
            return Ok(Some(Known {
                file,
                places: vec![root],
            }));
        }
        let mut places = Vec::new();
        for (parent, name) in self.names(ino)? {
            if let Some(directory) = self.path(parent)? {
                let path = join(&directory, &name);
                places.push(Place { parent, name, path });
            }
        }
        places.sort_by(|a, b| a.path.cmp(&b.path));
        Ok((!places.is_empty()).then_some(Known { file, places }))
    }

    /// Names that lead to an inode here.
    fn names(&self, ino: Ino) -> Result<Vec<(Ino, Name)>, CatalogError> {
        let mut names = self.queries.places(ino)?;
        let mut failed = None;
        names.retain(
            |(parent, name)| match self.queries.entry(*parent, name, self.lineage) {
                Ok(version) => matches!(version, Some((_, Some(entry))) if entry.ino == ino),
                Err(error) => {
                    failed = Some(error);
                    false
                }
            },
        );
        failed.map_or(Ok(names), Err)
    }

    /// The path of a directory; the root's is empty.
    fn path(&mut self, directory: Ino) -> Result<Option<Arc<[u8]>>, CatalogError> {
        let mut up: Vec<(Ino, Name)> = Vec::new();
        let mut at = directory;
        let mut path = loop {
            if let Some(known) = self.paths.get(&at) {
                break known.clone();
            }
            if up.len() > DEPTH_MAX {
                return Err(CatalogError::Damaged {
                    what: format!("directory {directory} is in itself"),
                });
            }
            let Some((parent, name)) = self.names(at)?.pop() else {
                self.paths.insert(at, None);
                break None;
            };
            up.push((at, name));
            at = parent;
        };
        while let Some((ino, name)) = up.pop() {
            path = path.map(|path| Arc::from(join(&path, &name)));
            self.paths.insert(ino, path.clone());
        }
        Ok(path)
    }

    /// What is in a directory.
    pub(super) fn children(&self, directory: Ino) -> Result<Vec<Ino>, CatalogError> {
        let entries = self.queries.entries(directory, self.lineage)?;
        let present = |(_, (_, entry)): (Name, (LayerId, Option<_>))| {
            entry.map(|entry: crate::change::EntryRow| entry.ino)
        };
        Ok(entries.into_iter().filter_map(present).collect())
    }

    pub(super) fn xattrs(&self, ino: Ino) -> Result<BTreeMap<Name, Arc<[u8]>>, CatalogError> {
        self.queries.xattrs(ino, self.lineage)
    }
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() {
        name.to_vec()
    } else {
        [directory, b"/", name].concat()
    }
}
