//! One of the two states: which inodes it has, and what they are called there.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::attr::FileKind;
use crate::catalog::{CatalogError, Queries};
use crate::change::{EntryRow, InodeRow, Name};
use crate::id::{Ino, LayerId};
use crate::layers::Lineage;

/// Deepest directory that is believed: a catalog in which directories lie in each other has none.
const DEPTH_MAX: usize = 1 << 20;

/// A version of an inode.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) ino: Ino,
    /// The layer of the side.
    pub(crate) at: LayerId,
    /// The layer that wrote the version.
    pub(crate) wrote: LayerId,
    pub(crate) row: InodeRow,
}

impl File {
    pub(crate) fn is_directory(&self) -> bool {
        self.row.attr.kind == FileKind::Directory
    }

    /// Whether it is of a kind that has contents to compare.
    pub(crate) fn has_bytes(&self) -> bool {
        matches!(self.row.attr.kind, FileKind::File | FileKind::Symlink)
    }
}

/// Where a name is: in which directory, and what the whole path is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) parent: Ino,
    pub(crate) name: Name,
    pub(crate) path: Vec<u8>,
}

/// An inode that has a name, with all its names in the order of their paths.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) file: File,
    pub(crate) places: Vec<Place>,
}

/// A state of a layer.
pub(crate) struct Side<'a> {
    queries: Queries<'a>,
    lineage: Lineage<'a>,
    /// Paths of directories; none for one that hangs in the air.
    paths: HashMap<Ino, Option<Arc<[u8]>>>,
}

impl<'a> Side<'a> {
    pub(crate) fn new(queries: Queries<'a>, lineage: Lineage<'a>) -> Self {
        let root = (Ino::ROOT, Some(Arc::from(&b""[..])));
        Self {
            queries,
            lineage,
            paths: HashMap::from([root]),
        }
    }

    pub(crate) fn lineage(&self) -> Lineage<'a> {
        self.lineage
    }

    /// What is known of an inode; `None` if it does not exist here or has no name.
    pub(crate) fn known(&mut self, ino: Ino) -> Result<Option<Known>, CatalogError> {
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
    pub(crate) fn entries(&self, directory: Ino) -> Result<Vec<(Name, EntryRow)>, CatalogError> {
        let entries = self.queries.entries(directory, self.lineage)?.into_iter();
        Ok(entries
            .filter_map(|(name, (_, entry))| Some((name, entry?)))
            .collect())
    }

    /// A name in a directory.
    pub(crate) fn entry(
        &self,
        directory: Ino,
        name: &[u8],
    ) -> Result<Option<EntryRow>, CatalogError> {
        let version = self.queries.entry(directory, name, self.lineage)?;
        Ok(version.and_then(|(_, entry)| entry))
    }

    pub(crate) fn xattrs(&self, ino: Ino) -> Result<BTreeMap<Name, Arc<[u8]>>, CatalogError> {
        self.queries.xattrs(ino, self.lineage)
    }
}

/// Whether a path is one of these, or lies under one. No path means all.
pub(crate) fn under(path: &[u8], tops: &[Vec<u8>]) -> bool {
    let at_or_under = |top: &Vec<u8>| {
        top.is_empty()
            || path
                .strip_prefix(&top[..])
                .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    };
    tops.is_empty() || tops.iter().any(at_or_under)
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() {
        name.to_vec()
    } else {
        [directory, b"/", name].concat()
    }
}
