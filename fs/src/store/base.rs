//! Workspaces over directories of the host, in place: `floe ws create W --from DIR`.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use thiserror::Error;

use super::types::{BaseInfo, BaseState};
use super::workspaces::directory_row;
use super::{Store, WorkspaceError, WorkspaceInfo};
use crate::attr::{FileKind, Timestamp};
use crate::base::{self, ExcludeError, NamedDir};
use crate::catalog::CatalogError;
use crate::change::{Change, EntryRow, HostRow, HostState, InodeRow, Name, Row};
use crate::engine::now_ns;
use crate::id::{Ino, LayerId, WorkspaceName};

/// How many changed files a workspace is shown with.
const CHANGED_SHOWN: usize = 100;

/// A directory of the host and where in the workspace it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseDir {
    /// The directory.
    pub dir: PathBuf,
    /// Where: an absolute path in the workspace.
    pub at: PathBuf,
}

/// Why a workspace could not be made over directories of the host.
#[derive(Debug, Error)]
pub enum BaseError {
    /// The workspace cannot be made.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// A directory cannot be used.
    #[error("cannot use {dir} in place")]
    Directory {
        /// Which.
        dir: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A directory is the store's own.
    #[error("{dir} is part of the store {store}")]
    InStore {
        /// Which.
        dir: PathBuf,
        /// The store.
        store: PathBuf,
    },
    /// A directory is shown by Floe itself.
    #[error("{dir} is in a mount of Floe")]
    InMount {
        /// Which.
        dir: PathBuf,
    },
    /// A place in the workspace is no absolute path, or has `.` or `..` in it.
    #[error("'{at}' is no place in a workspace")]
    Place {
        /// The place.
        at: PathBuf,
    },
    /// One place lies in another.
    #[error("'{inner}' lies in '{outer}', where another directory is shown")]
    Nested {
        /// The place that lies in the other.
        inner: PathBuf,
        /// The other.
        outer: PathBuf,
    },
    /// A pattern cannot be understood.
    #[error(transparent)]
    Exclude(#[from] ExcludeError),
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// A directory that was looked at.
struct Named {
    dir: PathBuf,
    at: Vec<Name>,
    found: NamedDir,
}

impl Store {
    /// Makes a workspace that shows directories of the host, in place: nothing is read but the
    /// directories' own attributes, whatever they hold. `exclude` is what is left out, lines as in a
    /// `.gitignore` that are relative to the root of the workspace.
    ///
    /// # Errors
    /// [`BaseError`]; nothing was made then.
    pub fn create_workspace_from(
        &self,
        name: &WorkspaceName,
        dirs: &[BaseDir],
        exclude: &str,
    ) -> Result<WorkspaceInfo, BaseError> {
        self.create_on_host(name, dirs, exclude, false)
    }

    /// As [`Store::create_workspace_from`], but what not everybody on the host may read is not there, and
    /// neither are pipes, sockets and devices.
    ///
    /// # Errors
    /// [`BaseError`]; nothing was made then.
    pub fn create_public_workspace_from(
        &self,
        name: &WorkspaceName,
        dirs: &[BaseDir],
        exclude: &str,
    ) -> Result<WorkspaceInfo, BaseError> {
        self.create_on_host(name, dirs, exclude, true)
    }

    fn create_on_host(
        &self,
        name: &WorkspaceName,
        dirs: &[BaseDir],
        exclude: &str,
        public: bool,
    ) -> Result<WorkspaceInfo, BaseError> {
        self.check_free(name)?;
        let places = places(dirs)?;
        let mut named = Vec::new();
        for (dir, at) in dirs.iter().zip(places) {
            named.push(self.look_at(&dir.dir, at)?);
        }
        let core = &self.core;
        let (layer, live) = (core.numbers.layer(), core.numbers.layer());
        let (id, created_at) = (core.numbers.workspace(), now_ns());
        let mut change = Change::new();
        let added = |id_of, parent| Row::AddLayer {
            id: id_of,
            parent,
            workspace: id,
            created_at,
        };
        change.push(added(layer, None));
        change.push(Row::FreezeLayer { id: layer });
        change.push(added(live, Some(layer)));
        change.push(Row::AddBase {
            layer,
            boot: core.bases.boot().to_owned(),
            exclude: exclude.to_owned(),
            public,
        });
        self.place_all(layer, named, &mut change)?;
        change.push(Row::AddWorkspace {
            id,
            name: name.to_string(),
            layer: live,
            created_at,
            forked_from: None,
            origin: None,
        });
        // First, or somebody could find the workspace and not its layers.
        core.layers.add(layer, None).map_err(WorkspaceError::from)?;
        core.layers
            .add(live, Some(layer))
            .map_err(WorkspaceError::from)?;
        core.bases.add(
            layer,
            core.bases.boot(),
            exclude,
            public,
            BaseState::InPlace,
        )?;
        if let Err(error) = self.apply_new(&change, name) {
            core.bases.forget(layer);
            return Err(error.into());
        }
        Ok(self.workspace(name.as_str())?)
    }

    fn look_at(&self, dir: &Path, at: Vec<Name>) -> Result<Named, BaseError> {
        let failed = |source: io::Error| BaseError::Directory {
            dir: dir.to_owned(),
            source,
        };
        let real = dir.canonicalize().map_err(failed)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd =
            rustix::fs::open(&real, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        if base::is_mount_of_floe(fd.as_fd()).map_err(failed)? {
            return Err(BaseError::InMount { dir: real });
        }
        let found = base::look_at_named(&fd).map_err(|errno| failed(errno.into()))?;
        let seen = found.seen;
        if real.starts_with(self.dir()) || self.core.bases.is_own(seen.dev, seen.inode) {
            return Err(BaseError::InStore {
                dir: real,
                store: self.dir().to_owned(),
            });
        }
        Ok(Named {
            dir: real,
            at,
            found,
        })
    }

    /// The rows of the named directories, and of those that lead to them.
    fn place_all(
        &self,
        layer: LayerId,
        named: Vec<Named>,
        change: &mut Change,
    ) -> Result<(), CatalogError> {
        let mut made = MadeDirs::new(layer);
        for dir in named {
            let (ino, parent) = match dir.at.split_last() {
                None => (Ino::ROOT, Ino::ROOT),
                Some((last, above)) => {
                    let mut parent = Ino::ROOT;
                    for name in above {
                        parent = self.made(&mut made, parent, name, change)?;
                    }
                    let ino = self.core.numbers.ino()?;
                    self.name(layer, parent, last, ino, change)?;
                    made.of(parent).attr.nlink += 1;
                    (ino, parent)
                }
            };
            let xattrs = dir.found.xattrs;
            let row = InodeRow {
                parent,
                born: layer,
                has_xattr: !xattrs.is_empty(),
                ..dir.found.row
            };
            change.push(Row::PutInode {
                ino,
                layer,
                row: Some(row),
            });
            if ino == Ino::ROOT {
                // Nothing leads to it, and it is the only one.
                made.dirs.clear();
            }
            base::push_xattrs(change, ino, layer, xattrs);
            change.push(Row::PutHost {
                ino,
                layer,
                host: HostRow {
                    parent: Ino(0),
                    name: Name::from(dir.dir.as_os_str().as_bytes()),
                    seen: dir.found.seen,
                    state: HostState::InPlace,
                    changed: false,
                },
            });
        }
        for dir in made.dirs {
            change.push(Row::PutInode {
                ino: dir.ino,
                layer,
                row: Some(dir.row),
            });
        }
        Ok(())
    }

    /// A directory that leads to a named one.
    fn made(
        &self,
        made: &mut MadeDirs,
        parent: Ino,
        name: &Name,
        change: &mut Change,
    ) -> Result<Ino, CatalogError> {
        let known = |dir: &&MadeDir| dir.row.parent == parent && dir.name == *name;
        if let Some(known) = made.dirs.iter().skip(1).find(known) {
            return Ok(known.ino);
        }
        let ino = self.core.numbers.ino()?;
        self.name(made.layer, parent, name, ino, change)?;
        made.of(parent).attr.nlink += 1;
        let mut row = made.dirs[0].row;
        row.parent = parent;
        row.attr.nlink = 2;
        made.dirs.push(MadeDir {
            ino,
            name: name.clone(),
            row,
        });
        Ok(ino)
    }

    fn name(
        &self,
        layer: LayerId,
        parent: Ino,
        name: &Name,
        ino: Ino,
        change: &mut Change,
    ) -> Result<(), CatalogError> {
        change.push(Row::PutEntry {
            parent,
            name: name.clone(),
            layer,
            entry: Some(EntryRow {
                ino,
                kind: FileKind::Directory,
                cookie: self.core.numbers.cookie()?,
                shadows: false,
            }),
        });
        Ok(())
    }

    /// What a layer stands on, if that is directories of the host.
    pub(super) fn base_info(&self, layer: LayerId) -> Result<Option<BaseInfo>, CatalogError> {
        let core = &self.core;
        let Some(lineage) = core.layers.lineage(layer) else {
            return Ok(None);
        };
        let layer = lineage.base();
        let Some(found) = core.bases.get(layer) else {
            return Ok(None);
        };
        let mut dirs = Vec::new();
        for (ino, row) in core.catalog.host_roots(layer)? {
            dirs.push(BaseDir {
                dir: PathBuf::from(OsStr::from_bytes(&row.name)),
                at: core.bases.shown_at_root(layer, ino)?,
            });
        }
        let mut changed = core.catalog.host_changed(layer, CHANGED_SHOWN + 1)?;
        let more_changed = changed.len() > CHANGED_SHOWN;
        changed.truncate(CHANGED_SHOWN);
        let changed = changed.into_iter().map(|ino| core.bases.path(ino, layer));
        Ok(Some(BaseInfo {
            dirs,
            exclude: found.patterns().to_owned(),
            state: found.state(),
            changed: changed.collect::<Result<_, _>>()?,
            more_changed,
        }))
    }
}

/// A directory that is not the host's, and leads to one that is.
struct MadeDir {
    ino: Ino,
    name: Name,
    row: InodeRow,
}

/// Those of one base; the first is the root.
struct MadeDirs {
    layer: LayerId,
    dirs: Vec<MadeDir>,
}

impl MadeDirs {
    fn new(layer: LayerId) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let root = MadeDir {
            ino: Ino::ROOT,
            name: Name::from(&b""[..]),
            row: directory_row(layer, 0o755, uid, gid, Timestamp::now()),
        };
        Self {
            layer,
            dirs: vec![root],
        }
    }

    fn of(&mut self, ino: Ino) -> &mut InodeRow {
        let found = self.dirs.iter().position(|dir| dir.ino == ino);
        &mut self.dirs[found.unwrap_or(0)].row
    }
}

/// The places as names, none of them in another.
fn places(dirs: &[BaseDir]) -> Result<Vec<Vec<Name>>, BaseError> {
    let mut places = Vec::new();
    for dir in dirs {
        places.push(names(&dir.at).ok_or_else(|| BaseError::Place { at: dir.at.clone() })?);
    }
    for (n, outer) in places.iter().enumerate() {
        for (m, inner) in places.iter().enumerate() {
            if n != m && inner.starts_with(outer) {
                return Err(BaseError::Nested {
                    inner: dirs[m].at.clone(),
                    outer: dirs[n].at.clone(),
                });
            }
        }
    }
    Ok(places)
}

/// The names of an absolute path.
fn names(at: &Path) -> Option<Vec<Name>> {
    let mut components = at.components();
    if components.next() != Some(Component::RootDir) {
        return None;
    }
    components
        .map(|component| match component {
            Component::Normal(name) if name.len() <= crate::engine::FILE_NAME_MAX => {
                Some(Name::from(name.as_bytes()))
            }
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_absolute_and_not_in_each_other() {
        let of = |ats: &[&str]| {
            let dirs = ats.iter().map(|at| BaseDir {
                dir: PathBuf::from("/"),
                at: PathBuf::from(at),
            });
            places(&dirs.collect::<Vec<_>>())
        };
        assert_eq!(of(&["/usr", "/w/a"]).unwrap()[1].len(), 2);
        assert!(of(&["/"]).unwrap()[0].is_empty());
        for bad in ["usr", "", "/a/../b"] {
            assert!(matches!(of(&[bad]), Err(BaseError::Place { .. })), "{bad}");
        }
        for nested in [["/", "/usr"], ["/a/b", "/a"], ["/a", "/a"]] {
            assert!(matches!(of(&nested), Err(BaseError::Nested { .. })));
        }
        assert!(of(&["/a", "/ab"]).is_ok());
    }
}
