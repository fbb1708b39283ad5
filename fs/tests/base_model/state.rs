//! What workspaces over a directory of the host show: what was seen of it when somebody first
//! looked, and what was changed since in the workspace.

use std::collections::BTreeMap;

use super::host::{Host, HostKind, HostNode, HostPath};

/// A file or directory of a workspace, the same in all of them.
pub type Id = u64;

pub const ROOT: Id = 0;

/// Reading would need what the host does not have any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale;

/// Whether contents can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    No,
    /// If it was opened before: it is what it was, but not where it was.
    Maybe,
    Yes,
}

/// What was seen of the host.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: HostPath,
    pub host: u64,
    pub stamp: u64,
    pub links: u64,
    pub kind: HostKind,
    /// A directory's names, once somebody looked into it.
    pub entries: Option<BTreeMap<String, Id>>,
    /// Whether a file's contents are in the store.
    pub adopted: Access,
}

/// The base that all workspaces share.
pub struct Base {
    pub seen: BTreeMap<Id, Seen>,
    pub next: Id,
}

impl Base {
    pub fn new() -> Self {
        let root = Seen {
            path: Vec::new(),
            host: 0,
            stamp: 0,
            links: 1,
            kind: HostKind::Dir,
            entries: None,
            adopted: Access::No,
        };
        Self {
            seen: BTreeMap::from([(ROOT, root)]),
            next: 1,
        }
    }

    /// Looks into a directory of the host, if that was not done before.
    pub fn take(&mut self, host: &Host, dir: Id) -> Result<(), Stale> {
        let seen = &self.seen[&dir];
        if seen.entries.is_some() {
            return Ok(());
        }
        let path = seen.path.clone();
        match host.at(&path) {
            Some((id, node)) if id == seen.host && node.kind == HostKind::Dir => {}
            _ => return Err(Stale),
        }
        let mut entries = BTreeMap::new();
        for (name, host_id) in host.children(&path) {
            let node = &host.nodes[&host_id];
            let same = |seen: &Seen| seen.host == host_id && seen.stamp == node.stamp;
            let known = (node.links > 1)
                .then(|| self.seen.iter().find(|(_, seen)| same(seen)))
                .flatten();
            let id = if let Some((id, _)) = known {
                *id
            } else {
                let mut path = path.clone();
                path.push(name.clone());
                let id = self.next;
                self.next += 1;
                let seen = Seen {
                    path,
                    host: host_id,
                    stamp: node.stamp,
                    links: node.links,
                    kind: node.kind.clone(),
                    entries: None,
                    adopted: Access::No,
                };
                self.seen.insert(id, seen);
                id
            };
            entries.insert(name, id);
        }
        self.seen.get_mut(&dir).unwrap().entries = Some(entries);
        Ok(())
    }

    /// Whether a file's contents can be read now.
    pub fn access(&self, host: &Host, id: Id) -> Access {
        let seen = &self.seen[&id];
        let same = |node: &HostNode| node.stamp == seen.stamp;
        let there = host.at(&seen.path);
        if seen.kind == HostKind::File(Vec::new())
            || there.is_some_and(|(id, node)| id == seen.host && same(node))
        {
            Access::Yes
        } else if host.nodes.get(&seen.host).is_some_and(same) {
            seen.adopted.max(Access::Maybe)
        } else {
            seen.adopted
        }
    }
}

/// A file or directory as a workspace changed it.
#[derive(Clone, Debug)]
pub enum Changed {
    /// Only its links: the rest is as seen.
    Links,
    /// Contents, parts of which may still be on the host.
    Bytes { bytes: Vec<u8>, partly: bool },
    /// A directory made here.
    Dir,
}

/// One state of a workspace.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub nodes: BTreeMap<Id, (Changed, u64)>,
    /// What names are here, where that differs from what was seen.
    pub names: BTreeMap<(Id, String), Option<Id>>,
}

impl State {
    /// Names in a directory.
    pub fn entries(
        &self,
        base: &mut Base,
        host: &Host,
        dir: Id,
    ) -> Result<BTreeMap<String, Id>, Stale> {
        let mut entries = BTreeMap::new();
        if base.seen.contains_key(&dir) {
            base.take(host, dir)?;
            entries.clone_from(base.seen[&dir].entries.as_ref().unwrap());
        }
        for ((of, name), id) in &self.names {
            if *of == dir {
                match id {
                    Some(id) => drop(entries.insert(name.clone(), *id)),
                    None => drop(entries.remove(name)),
                }
            }
        }
        Ok(entries)
    }

    pub fn kind(&self, base: &Base, id: Id) -> char {
        match (self.nodes.get(&id), base.seen.get(&id)) {
            (Some((Changed::Dir, _)), _) => 'd',
            (Some((Changed::Bytes { .. }, _)), _) => 'f',
            (_, Some(seen)) => match seen.kind {
                HostKind::Dir => 'd',
                HostKind::File(_) => 'f',
                HostKind::Link(_) => 'l',
            },
            _ => panic!("{id} is nothing"),
        }
    }

    pub fn links(&self, base: &Base, id: Id) -> u64 {
        match self.nodes.get(&id) {
            Some((_, links)) => *links,
            None => base.seen[&id].links,
        }
    }

    pub fn set_links(&mut self, base: &Base, id: Id, links: u64) {
        let old = self.nodes.get(&id).map(|(changed, _)| changed.clone());
        let changed = old.unwrap_or(Changed::Links);
        debug_assert!(base.seen.contains_key(&id) || !matches!(changed, Changed::Links));
        self.nodes.insert(id, (changed, links));
    }

    /// A file's contents, and whether reading them may fail nonetheless.
    pub fn bytes(&self, base: &Base, host: &Host, id: Id) -> Result<(Vec<u8>, bool), Stale> {
        if let Some((Changed::Bytes { bytes, partly }, _)) = self.nodes.get(&id) {
            let may_fail = *partly && base.access(host, id) != Access::Yes;
            return Ok((bytes.clone(), may_fail));
        }
        let HostKind::File(bytes) = &base.seen[&id].kind else {
            panic!("{id} is no file");
        };
        match base.access(host, id) {
            Access::Yes => Ok((bytes.clone(), false)),
            Access::Maybe => Ok((bytes.clone(), true)),
            Access::No => Err(Stale),
        }
    }

    /// Everything that can be reached without looking at the host: paths, and what is there.
    pub fn known(&self, base: &Base) -> Vec<(Vec<String>, Id)> {
        let mut found = vec![(Vec::new(), ROOT)];
        let mut at = 0;
        while at < found.len() {
            let (path, dir) = found[at].clone();
            at += 1;
            if self.kind(base, dir) != 'd' {
                continue;
            }
            let mut entries = match base.seen.get(&dir) {
                Some(seen) => match &seen.entries {
                    Some(entries) => entries.clone(),
                    None => continue,
                },
                None => BTreeMap::new(),
            };
            for ((of, name), id) in &self.names {
                if *of == dir {
                    match id {
                        Some(id) => drop(entries.insert(name.clone(), *id)),
                        None => drop(entries.remove(name)),
                    }
                }
            }
            for (name, id) in entries {
                let mut path = path.clone();
                path.push(name);
                found.push((path, id));
            }
        }
        found
    }
}
