//! What belongs to an inode beside its row: inline bytes, extents, extended attributes.

use std::collections::BTreeMap;

use super::objects::Objects;
use super::report::{CheckReport, Problem, Table};
use super::tree::{Layers, Path, id};
use super::{ino, object, place};
use crate::base::host_inode;
use crate::catalog::check::{ExtentVersion, InodeRows, InodeVersion, XattrVersion};
use crate::id::{Ino, LayerId};

const EMPTY: i64 = 0;
const INLINE: i64 = 1;
const HOST: i64 = 3;
const SYMLINK: i64 = 3;
/// Longest inline contents.
const INLINE_MAX: i64 = 8192;

/// What a layer changes, or shows, of an inode's contents.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contents {
    /// Length of the inline bytes.
    inline: Option<i64>,
    extents: bool,
    /// Extended attributes that appear, or that there are.
    xattrs: i64,
    xattr_rows: bool,
}

impl Contents {
    /// Puts what a layer changes on what is above it.
    pub(super) fn add(&mut self, change: &Contents) {
        self.inline = change.inline.or(self.inline);
        self.extents |= change.extents;
        self.xattrs += change.xattrs;
    }

    /// A table that a layer has rows in.
    pub(super) fn table(&self) -> Option<Table> {
        if self.inline.is_some() {
            Some(Table::Inline)
        } else if self.extents {
            Some(Table::Extent)
        } else {
            self.xattr_rows.then_some(Table::Xattr)
        }
    }

    /// Whether what is visible is what the inode says.
    pub(super) fn agree(
        &self,
        layer: LayerId,
        this: Ino,
        inode: &InodeVersion,
        report: &mut CheckReport,
    ) {
        let content = inode.content;
        let rows = match content {
            EMPTY => self.inline.is_none() && !self.extents && inode.kind != SYMLINK,
            INLINE => self.inline.is_some() && !self.extents,
            HOST => self.inline.is_none() && !self.extents,
            _ => self.extents,
        };
        if !rows {
            report.found(Problem::ContentRows {
                layer,
                ino: this,
                content,
            });
        } else if let (INLINE, Some(len)) = (content, self.inline)
            && (len != inode.size || len > INLINE_MAX)
        {
            report.found(Problem::InlineSize {
                layer,
                ino: this,
                size: inode.size,
                len,
            });
        }
        if self.xattrs > 0 && !inode.xattr {
            report.found(Problem::XattrUnannounced { layer, ino: this });
        }
    }
}

/// What each layer changes of an inode's contents, by the layer's number in the walk.
pub(super) fn by_layer(
    layers: &Layers,
    report: &mut CheckReport,
    objects: &mut Objects,
    rows: &InodeRows,
) -> BTreeMap<u32, Contents> {
    let ended = ended(layers, rows);
    let ended = |layer: i64| {
        let layer_of = layers.get(layer).map(|layer| layer.enter);
        layer_of.is_some_and(|enter| ended.get(&enter).is_some_and(|&at| layer < at))
    };
    let mut found: BTreeMap<u32, Contents> = BTreeMap::new();
    let number = || rows.ino.to_string();
    for version in rows.inline.iter().filter(|version| !ended(version.layer)) {
        if let Some(enter) = place(layers, report, Table::Inline, version.layer, number) {
            found.entry(enter).or_default().inline = Some(version.len);
        }
    }
    for in_layer in rows.extents.chunk_by(|a, b| a.layer == b.layer) {
        extents(layers, report, objects, rows.ino, in_layer);
        if ended(in_layer[0].layer) {
            continue;
        }
        if let Some(enter) = place(layers, report, Table::Extent, in_layer[0].layer, number) {
            found.entry(enter).or_default().extents = true;
        }
    }
    for of_name in rows.xattrs.chunk_by(|a, b| a.name == b.name) {
        let seen = of_name.iter().filter(|version| !ended(version.layer));
        let seen: Vec<XattrVersion> = seen.cloned().collect();
        if !seen.is_empty() {
            xattr(layers, report, rows.ino, &seen, &mut found);
        }
    }
    found
}

/// Layers in which an inode that links have is gone: what those have of it waits for removal.
fn ended(layers: &Layers, rows: &InodeRows) -> BTreeMap<u32, i64> {
    let gone = rows.inodes.iter().filter(|version| version.kind == 0);
    gone.filter_map(|version| Some((layers.get(version.layer)?.enter, version.layer)))
        .collect()
}

fn xattr(
    layers: &Layers,
    report: &mut CheckReport,
    number: i64,
    versions: &[XattrVersion],
    found: &mut BTreeMap<u32, Contents>,
) {
    let row = || format!("{number} {}", versions[0].name.escape_ascii());
    let mut placed = Vec::with_capacity(versions.len());
    for version in versions {
        if !version.valid {
            report.found(Problem::Value {
                table: Table::Xattr,
                row: row(),
            });
        }
        if let Some(enter) = place(layers, report, Table::Xattr, version.layer, row) {
            placed.push((enter, version.gone));
        }
    }
    // Of those of links and what stands on them the nearest is seen, which comes last.
    placed.sort_by_key(|&(enter, _)| enter);
    placed.reverse();
    placed.dedup_by_key(|(enter, _)| *enter);
    placed.reverse();
    let mut path: Path<bool> = Path::new();
    for (enter, gone) in placed {
        let layer = layers.at(enter);
        let above = path.above(layer).copied().unwrap_or(true);
        let contents = found.entry(enter).or_default();
        contents.xattrs += i64::from(above) - i64::from(gone);
        contents.xattr_rows = true;
        path.push(layer, gone);
    }
}

/// The extents that one layer has of a file, in order. Layers that are given up are looked at too:
/// their objects exist as long as their rows.
fn extents(
    layers: &Layers,
    report: &mut CheckReport,
    objects: &mut Objects,
    number: i64,
    rows: &[ExtentVersion],
) {
    let (layer, this) = (id(rows[0].layer), ino(number));
    let mut end = 0;
    for row in rows {
        let start = row.start;
        if start < 0 || start >= row.end {
            report.found(Problem::ExtentEmpty {
                layer,
                ino: this,
                start,
            });
        } else if start < end {
            report.found(Problem::ExtentOverlap {
                layer,
                ino: this,
                start,
            });
        }
        end = end.max(row.end);
        let Some(named) = row.object else {
            continue;
        };
        let problem = match objects.used(named) {
            // In place; whether it says so is looked at elsewhere.
            None if host_inode(object(named)) == Some(this) => continue,
            None => Problem::ExtentObject {
                layer,
                ino: this,
                object: object(named),
            },
            Some((of, in_layer)) if of == number && owns(layers, in_layer, row.layer) => continue,
            Some(_) => Problem::ExtentForeignObject {
                layer,
                ino: this,
                object: object(named),
            },
        };
        report.found(problem);
    }
}

/// Whether an object of one layer can serve extents of another: the same, or an ancestor that was
/// handed down to it, or is about to be.
fn owns(layers: &Layers, object: i64, extent: i64) -> bool {
    let handed_down = || {
        let below = layers.get(object).map(|layer| layer.id);
        below.is_none() || below == layers.get(extent).map(|layer| layer.id)
    };
    object == extent || (object < extent && handed_down())
}
