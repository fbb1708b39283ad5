//! Names of directories: what each version of a name changes, layer by layer.

use std::collections::BTreeMap;

use super::report::{CheckReport, Problem, Table};
use super::tree::{Layers, Path, id};
use super::{ino, unsigned};
use crate::catalog::check::NameVersion;

/// What the names of one layer change for one inode, against the layer's parent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Effect {
    /// Names that lead to it.
    pub(super) names: i64,
    /// Sum of the directories those names are in.
    pub(super) parents: i64,
    /// Kind that a new name gives it; 0 if there is none.
    pub(super) kind: i64,
    /// Names in it.
    pub(super) children: i64,
    /// Directories in it.
    pub(super) directories: i64,
}

impl Effect {
    pub(super) fn add(&mut self, other: &Effect) {
        self.names += other.names;
        self.parents = self.parents.wrapping_add(other.parents);
        self.kind = self.kind.max(other.kind);
        self.children += other.children;
        self.directories += other.directories;
    }
}

/// An effect, on which inode, in which layer (by its number in the walk).
pub(super) type Event = (i64, u32, Effect);

const DIRECTORY: i64 = 2;

/// Takes the names in, directory by directory.
pub(super) struct Names<'a> {
    layers: &'a Layers,
    report: &'a mut CheckReport,
    next_ino: i64,
    events: Vec<Event>,
    directory: i64,
    /// Effects on the directory itself, by layer.
    inside: BTreeMap<u32, Effect>,
    /// Cookies that names of the directory get (1) and lose (-1), and in which layer.
    cookies: Vec<(i64, u32, i64)>,
    path: Path<NameVersion>,
}

impl<'a> Names<'a> {
    pub(super) fn new(layers: &'a Layers, report: &'a mut CheckReport, next_ino: i64) -> Self {
        Self {
            layers,
            report,
            next_ino,
            events: Vec::new(),
            directory: 0,
            inside: BTreeMap::new(),
            cookies: Vec::new(),
            path: Path::new(),
        }
    }

    /// All versions of one name. Names of one directory come one after the other.
    pub(super) fn visit(&mut self, parent: i64, name: &[u8], versions: &[NameVersion]) {
        if parent != self.directory {
            self.leave();
            self.directory = parent;
        }
        let shown = || name.escape_ascii().to_string();
        let row = || format!("{parent} \"{}\"", name.escape_ascii());
        let mut placed = Vec::with_capacity(versions.len());
        for version in versions {
            self.report.names += 1;
            if !version.valid {
                self.report.found(Problem::Value {
                    table: Table::Dentry,
                    row: row(),
                });
                continue;
            }
            match self.layers.get(version.layer) {
                Some(layer) if layer.hidden => {}
                Some(layer) => placed.push((layer, version)),
                None => self.report.found(Problem::UnknownLayer {
                    table: Table::Dentry,
                    layer: id(version.layer),
                    row: row(),
                }),
            }
        }
        placed.sort_by_key(|(layer, _)| layer.enter);
        // Of those of links and what stands on them the nearest is seen, which comes last.
        placed.reverse();
        placed.dedup_by_key(|(layer, _)| layer.enter);
        placed.reverse();
        self.path.clear();
        for (layer, version) in placed {
            let above = self.path.above(layer).copied();
            if above.is_some() && !version.shadows {
                self.report.found(Problem::NotMarkedShadowing {
                    layer: layer.id,
                    parent: ino(parent),
                    name: shown(),
                });
            }
            if let Some(old) = above.filter(|old| old.kind != 0) {
                self.effect(layer.enter, &old, -1);
            }
            if version.kind != 0 {
                self.effect(layer.enter, version, 1);
                if version.cookie >= self.next_ino {
                    self.report.found(Problem::NumberAhead {
                        what: "cookie",
                        number: unsigned(version.cookie),
                        next: unsigned(self.next_ino),
                    });
                }
            }
            self.path.push(layer, *version);
        }
    }

    fn effect(&mut self, enter: u32, version: &NameVersion, sign: i64) {
        let parent = self.directory;
        let effect = Effect {
            names: sign,
            parents: parent.wrapping_mul(sign),
            kind: if sign > 0 { version.kind } else { 0 },
            ..Effect::default()
        };
        self.events.push((version.ino, enter, effect));
        self.cookies.push((version.cookie, enter, sign));
        self.inside.entry(enter).or_default().add(&Effect {
            children: sign,
            directories: if version.kind == DIRECTORY { sign } else { 0 },
            ..Effect::default()
        });
    }

    fn leave(&mut self) {
        let directory = self.directory;
        let inside = std::mem::take(&mut self.inside);
        self.events.extend(
            inside
                .into_iter()
                .map(|(enter, effect)| (directory, enter, effect)),
        );
        self.cookies_twice();
    }

    /// No two names that are visible together have the same cookie.
    fn cookies_twice(&mut self) {
        let mut cookies = std::mem::take(&mut self.cookies);
        cookies.sort_unstable();
        let mut path: Path<i64> = Path::new();
        for of_cookie in cookies.chunk_by(|a, b| a.0 == b.0).filter(|c| c.len() > 1) {
            path.clear();
            for in_layer in of_cookie.chunk_by(|a, b| a.1 == b.1) {
                let layer = self.layers.at(in_layer[0].1);
                let change: i64 = in_layer.iter().map(|(_, _, sign)| sign).sum();
                let names = path.above(layer).copied().unwrap_or(0) + change;
                if names > 1 {
                    self.report.found(Problem::CookieTwice {
                        layer: layer.id,
                        parent: ino(self.directory),
                        cookie: unsigned(of_cookie[0].0),
                    });
                }
                path.push(layer, names);
            }
        }
        cookies.clear();
        self.cookies = cookies;
    }

    /// What the names change, by inode and layer.
    pub(super) fn finish(mut self) -> Vec<Event> {
        self.leave();
        self.events
            .sort_unstable_by_key(|&(ino, enter, _)| (ino, enter));
        self.events
    }
}
