//! Inodes and what belongs to them, one inode number at a time: every layer in which something
//! about it changes is looked at once, with what the layers above say.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::contents::Contents;
use super::directories::Directories;
use super::names::{Effect, Event};
use super::report::{CheckReport, Problem, Table};
use super::tree::{Layer, Layers, Path, id};
use super::{ino, unsigned};
use crate::catalog::check::{InodeRows, InodeVersion};
use crate::id::{Ino, LayerId};

const DIRECTORY: i64 = 2;
/// `content` of a directory that stands for one of the host.
const HOST: i64 = 3;
const ROOT: i64 = Ino::ROOT.0.cast_signed();

/// What one layer changes about an inode.
#[derive(Clone, Copy, Debug, Default)]
struct Point {
    inode: Option<InodeVersion>,
    effect: Effect,
    contents: Contents,
}

/// What is visible of an inode at a layer.
#[derive(Clone, Copy, Debug, Default)]
struct Visible {
    /// None where the inode does not exist.
    inode: Option<InodeVersion>,
    /// It existed and does not any more.
    gone: bool,
    effect: Effect,
    contents: Contents,
}

/// Takes the inodes in, in the order of their numbers.
pub(super) struct Inodes<'a> {
    layers: &'a Layers,
    report: &'a mut CheckReport,
    events: std::iter::Peekable<std::vec::IntoIter<Event>>,
    next_ino: i64,
    /// Live layers that somebody has open.
    open: &'a HashSet<LayerId>,
    /// Bases over directories of the host.
    bases: HashSet<i64>,
    /// Of the inode at hand: blocks that it had where it began on the host, by base.
    began: HashMap<i64, i64>,
    /// Bytes and inodes that each layer has more than its parent.
    usage: Vec<(i64, i64)>,
    /// Bases that have a root directory.
    rooted: HashSet<LayerId>,
    pub(super) objects: super::objects::Objects,
    directories: Directories,
}

impl<'a> Inodes<'a> {
    pub(super) fn new(
        layers: &'a Layers,
        report: &'a mut CheckReport,
        events: Vec<Event>,
        next_ino: i64,
        open: &'a HashSet<LayerId>,
        bases: HashSet<i64>,
        objects: super::objects::Objects,
    ) -> Self {
        Self {
            layers,
            report,
            events: events.into_iter().peekable(),
            next_ino,
            open,
            bases,
            began: HashMap::new(),
            usage: vec![(0, 0); layers.all.len()],
            rooted: HashSet::new(),
            objects,
            directories: Directories::default(),
        }
    }

    /// Everything about one inode number.
    pub(super) fn visit(&mut self, rows: &InodeRows) {
        self.nameless(rows.ino);
        let first = rows
            .inodes
            .iter()
            .filter(|row| row.layer == row.born && self.bases.contains(&row.born));
        self.began = first.map(|row| (row.born, row.blocks)).collect();
        if !rows.inodes.is_empty() && rows.ino >= self.next_ino && rows.ino != ROOT {
            self.report.found(Problem::NumberAhead {
                what: "inode number",
                number: unsigned(rows.ino),
                next: unsigned(self.next_ino),
            });
        }
        let mut points = self.points(rows);
        while let Some((_, enter, effect)) = self.events.next_if(|event| event.0 == rows.ino) {
            self.add_effect(rows.inodes.first(), rows.ino, enter, &effect, &mut points);
        }
        let mut path: Path<Visible> = Path::new();
        for (enter, point) in points {
            let layer = *self.layers.at(enter);
            let above = path.above(&layer).copied().unwrap_or_default();
            let mut visible = above;
            visible.effect.add(&point.effect);
            visible.contents.add(&point.contents);
            if let Some(version) = point.inode {
                visible.gone = version.kind == 0;
                visible.inode = (version.kind != 0).then_some(version);
            }
            self.look(rows.ino, &layer, &above, &point, &visible);
            path.push(&layer, visible);
        }
    }

    /// After the last inode: what concerns layers as a whole.
    pub(super) fn finish(mut self) -> super::objects::Objects {
        self.nameless(i64::MAX);
        self.directories.look_for_loops(self.layers, self.report);
        let mut totals = vec![(0_i64, 0_i64); self.layers.all.len()];
        for &at in self.layers.walk() {
            let layer = &self.layers.all[at];
            let above = layer.parent.map_or((0, 0), |parent| totals[parent]);
            let (bytes, inodes) = (above.0 + self.usage[at].0, above.1 + self.usage[at].1);
            totals[at] = (bytes, inodes);
            if layer.hidden {
                continue;
            }
            if layer.parent.is_none() && !self.rooted.contains(&layer.id) {
                self.report.found(Problem::RootMissing { layer: layer.id });
            }
            let (recorded_bytes, recorded_inodes) = layer.recorded;
            if recorded_bytes != bytes {
                self.report.found(Problem::LayerBytes {
                    layer: layer.id,
                    recorded: recorded_bytes,
                    counted: bytes,
                });
            }
            if recorded_inodes != inodes {
                self.report.found(Problem::LayerInodes {
                    layer: layer.id,
                    recorded: recorded_inodes,
                    counted: inodes,
                });
            }
        }
        self.objects
    }

    /// Names of inode numbers below `next` that no table has a row of.
    fn nameless(&mut self, next: i64) {
        while let Some((number, enter, effect)) = self.events.next_if(|event| event.0 < next) {
            let layer = self.layers.at(enter).id;
            if effect.names > 0 {
                self.report.found(Problem::NameToNothing {
                    layer,
                    parent: ino(effect.parents),
                    ino: ino(number),
                });
            }
            if effect.children > 0 {
                self.report.found(Problem::NamesInNoDirectory {
                    layer,
                    ino: ino(number),
                    names: effect.children,
                });
            }
        }
    }

    /// The rows of an inode by layer.
    fn points(&mut self, rows: &InodeRows) -> BTreeMap<u32, Point> {
        let mut points: BTreeMap<u32, Point> = BTreeMap::new();
        for version in &rows.inodes {
            self.report.inodes += 1;
            let row = || rows.ino.to_string();
            if !version.valid {
                self.report.found(Problem::Value {
                    table: Table::Inode,
                    row: format!("{} in layer {}", rows.ino, version.layer),
                });
            } else if let Some(enter) = self.place(Table::Inode, version.layer, row) {
                points.entry(enter).or_default().inode = Some(*version);
            }
        }
        let found = super::contents::by_layer(self.layers, self.report, &mut self.objects, rows);
        for (enter, contents) in found {
            points.entry(enter).or_default().contents = contents;
        }
        points
    }

    fn place(&mut self, table: Table, layer: i64, row: impl Fn() -> String) -> Option<u32> {
        super::place(self.layers, self.report, table, layer, row)
    }

    fn add_effect(
        &mut self,
        any: Option<&InodeVersion>,
        number: i64,
        enter: u32,
        effect: &Effect,
        points: &mut BTreeMap<u32, Point>,
    ) {
        let wrong = any.is_some_and(|version| version.kind != 0 && version.kind != effect.kind);
        if effect.kind != 0 && wrong {
            self.report.found(Problem::NameKind {
                layer: self.layers.at(enter).id,
                parent: ino(effect.parents),
                ino: ino(number),
            });
        }
        points.entry(enter).or_default().effect.add(effect);
    }

    /// One layer in which something about an inode changes.
    fn look(&mut self, number: i64, layer: &Layer, above: &Visible, point: &Point, now: &Visible) {
        let (in_layer, this) = (layer.id, ino(number));
        let effect = &now.effect;
        let usage = |inode: &Option<InodeVersion>| {
            let inode = inode.as_ref()?;
            // Of what began on the host only what it has grown by counts.
            let began = self.bases.contains(&inode.born).then(|| {
                let began = self.began.get(&inode.born);
                began.copied().unwrap_or(0)
            });
            Some(usage(inode, began))
        };
        let usage = |inode| usage(inode).unwrap_or((0, 0));
        let (old, new) = (usage(&above.inode), usage(&now.inode));
        let at = self.layers.walk()[layer.enter as usize];
        self.usage[at].0 += new.0 - old.0;
        self.usage[at].1 += new.1 - old.1;
        if number == ROOT && layer.parent.is_none() && now.inode.is_some() {
            self.rooted.insert(in_layer);
        }
        let written = point.inode.is_some_and(|version| version.kind != 0);
        if let Some(table) = point.contents.table().filter(|_| !written) {
            self.report.found(Problem::RowsWithoutInode {
                layer: in_layer,
                ino: this,
                table,
            });
        }
        let Some(inode) = &now.inode else {
            if effect.names > 0 {
                self.report.found(Problem::NameToNothing {
                    layer: in_layer,
                    parent: ino(effect.parents),
                    ino: this,
                });
            }
            self.children(in_layer, this, effect.children);
            self.directories.forget(number, layer);
            return;
        };
        if above.gone {
            self.report.found(Problem::Resurrected {
                layer: in_layer,
                ino: this,
            });
        }
        if above.inode.is_some_and(|old| old.kind != inode.kind) {
            self.report.found(Problem::KindChanged {
                layer: in_layer,
                ino: this,
            });
        }
        let born = above.inode.map_or(in_layer, |old| id(old.born));
        // A layer that was handed down, or is about to be, is not the one that is asked for.
        let handed_down = id(inode.born) < in_layer
            && self
                .layers
                .get(inode.born)
                .is_none_or(|layer| layer.id == in_layer);
        if written && id(inode.born) != born && !handed_down {
            self.report.found(Problem::Born {
                layer: in_layer,
                ino: this,
                born: id(inode.born),
            });
        }
        let own = written && id(inode.layer) == in_layer;
        if own && inode.nlink == 0 && layer.is_live() && !self.open.contains(&in_layer) {
            self.report.found(Problem::LeftUnlinked {
                layer: in_layer,
                ino: this,
            });
        }
        if inode.kind == DIRECTORY {
            self.directory(number, layer, inode, effect);
        } else {
            // On the host a file may have names that are not shown.
            let of_host = self.bases.contains(&inode.born);
            if inode.nlink < effect.names || (!of_host && inode.nlink > effect.names) {
                self.report.found(Problem::Links {
                    layer: in_layer,
                    ino: this,
                    nlink: inode.nlink,
                    names: effect.names,
                });
            }
            self.children(in_layer, this, effect.children);
        }
        now.contents.agree(in_layer, this, inode, self.report);
    }

    fn directory(&mut self, number: i64, layer: &Layer, inode: &InodeVersion, effect: &Effect) {
        let (in_layer, this) = (layer.id, ino(number));
        let root = number == ROOT;
        let removed = inode.nlink == 0 && !root;
        if removed {
            self.children(in_layer, this, effect.children);
            self.directories.forget(number, layer);
        } else {
            self.directories.put(number, layer, inode.parent);
            let expected = match inode.content {
                HOST => 1,
                _ => 2 + effect.directories,
            };
            if inode.nlink != expected {
                self.report.found(Problem::DirectoryLinks {
                    layer: in_layer,
                    ino: this,
                    nlink: inode.nlink,
                    directories: effect.directories,
                });
            }
        }
        if effect.names != i64::from(!root && !removed) {
            self.report.found(Problem::DirectoryNames {
                layer: in_layer,
                ino: this,
                names: effect.names,
            });
        } else if !removed && inode.parent != if root { ROOT } else { effect.parents } {
            self.report.found(Problem::DirectoryParent {
                layer: in_layer,
                ino: this,
                parent: ino(inode.parent),
            });
        }
    }

    /// Names in what is no directory.
    fn children(&mut self, layer: LayerId, this: Ino, names: i64) {
        if names > 0 {
            self.report.found(Problem::NamesInNoDirectory {
                layer,
                ino: this,
                names,
            });
        }
    }
}

/// What an inode counts for in a layer's totals: bytes and inodes. One without a name counts for
/// nothing. `began`: blocks that it had on the host, if it began there.
fn usage(inode: &InodeVersion, began: Option<i64>) -> (i64, i64) {
    if inode.nlink == 0 {
        return (0, 0);
    }
    let blocks = inode.blocks.saturating_sub(began.unwrap_or(0)).max(0);
    (blocks.saturating_mul(512), i64::from(began.is_none()))
}
