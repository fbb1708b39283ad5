//! Objects: rows and files, each against the other.

use std::collections::{HashMap, HashSet};
use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};

use super::data::{damage, runs};
use super::places::Places;
use super::report::{CheckReport, Damage, Found, Problem};
use super::{ino, object, unsigned};
use crate::base::host_inode;
use crate::catalog::CatalogError;
use crate::catalog::check::{Inspection, ObjectCheck};
use crate::contents::Checksum;
use crate::id::{LayerId, ObjectId};

struct Row {
    ino: i64,
    layer: i64,
    used: bool,
    hashed: bool,
}

/// The objects that the catalog knows.
pub(super) struct Objects {
    rows: HashMap<i64, Row>,
    doomed: HashSet<i64>,
}

impl Objects {
    pub(super) fn new(
        rows: &[ObjectCheck],
        doomed: Vec<i64>,
        next: i64,
        report: &mut CheckReport,
    ) -> Self {
        let mut of: HashMap<(i64, i64), i64> = HashMap::new();
        for row in rows {
            report.objects += 1;
            if *of.entry((row.ino, row.layer)).or_insert(row.id) != row.id {
                report.found(Problem::ObjectTwice {
                    object: object(row.id),
                    layer: LayerId(unsigned(row.layer)),
                    ino: ino(row.ino),
                });
            }
            if row.id >= next && host_inode(object(row.id)).is_none() {
                report.found(Problem::NumberAhead {
                    what: "object",
                    number: unsigned(row.id),
                    next: unsigned(next),
                });
            }
        }
        let row = |row: &ObjectCheck| Row {
            ino: row.ino,
            layer: row.layer,
            used: false,
            hashed: row.hashed,
        };
        Self {
            rows: rows.iter().map(|r| (r.id, row(r))).collect(),
            doomed: doomed.into_iter().collect(),
        }
    }

    /// Holds the checksums against the objects that they are of.
    pub(super) fn checksums(
        &mut self,
        catalog: &Inspection,
        report: &mut CheckReport,
    ) -> Result<(), CatalogError> {
        let mut seen = HashSet::new();
        catalog.checksums(&mut |row| {
            seen.insert(row.object);
            let of = object(row.object);
            if !self.rows.get(&row.object).is_some_and(|row| row.hashed) {
                report.found(Problem::ChecksumStray { object: of });
            }
            let readable = Checksum::decode(&row.blocks);
            if readable.is_none_or(|checksum| checksum.digest() != row.digest) {
                report.found(Problem::ChecksumDamaged { object: of });
            }
        })?;
        let hashed = self.rows.iter().filter(|(_, row)| row.hashed);
        let mut missing: Vec<i64> = hashed.map(|(&id, _)| id).collect();
        missing.retain(|id| !seen.contains(id));
        missing.sort_unstable();
        for id in missing {
            report.found(Problem::ChecksumMissing { object: object(id) });
        }
        Ok(())
    }

    /// Notes damage that is known, of objects that there are.
    pub(super) fn known(&self, damaged: &[(i64, i64)], report: &mut CheckReport) {
        for of in damaged.chunk_by(|a, b| a.0 == b.0) {
            let Some(row) = self.rows.get(&of[0].0) else {
                continue;
            };
            let blocks: Vec<u64> = of.iter().map(|&(_, block)| unsigned(block)).collect();
            for run in runs(&blocks) {
                let problem = damage(object(of[0].0), ino(row.ino), &run, Damage::Known);
                let places = Places::default();
                report.known.push(Found { problem, places });
            }
        }
    }

    /// An extent is in the object: whose it is, if it has a row.
    pub(super) fn used(&mut self, id: i64) -> Option<(i64, i64)> {
        let row = self.rows.get_mut(&id)?;
        row.used = true;
        Some((row.ino, row.layer))
    }

    /// After all extents: rows that are wrong in themselves, and where rows and files differ.
    /// Those are returned: files that no row knows, and rows that have no file. With the store in
    /// use a file can come before its row and go after it, so they are to be looked at again.
    pub(super) fn finish(
        &self,
        files: &HashSet<ObjectId>,
        report: &mut CheckReport,
    ) -> Differences {
        let mut ids: Vec<i64> = self.rows.keys().copied().collect();
        ids.sort_unstable();
        let mut missing = Vec::new();
        for id in ids {
            if !self.rows[&id].used {
                report.found(Problem::ObjectUnused { object: object(id) });
            }
            if self.doomed.contains(&id) {
                report.found(Problem::ObjectDoomed { object: object(id) });
            }
            if !files.contains(&object(id)) {
                missing.push(object(id));
            }
        }
        let known = |id: &i64| self.rows.contains_key(id) || self.doomed.contains(id);
        let mut orphans: Vec<ObjectId> = files
            .iter()
            .filter(|id| !known(&id.0.cast_signed()))
            .copied()
            .collect();
        orphans.sort_unstable();
        Differences { orphans, missing }
    }
}

/// Where rows and files differ.
pub(super) struct Differences {
    pub(super) orphans: Vec<ObjectId>,
    pub(super) missing: Vec<ObjectId>,
}

/// The files below the objects directory. What is not where an object of that name belongs is
/// reported, unless it is there for an instant only.
pub(super) fn files(
    dir: &Path,
    path_of: impl Fn(ObjectId) -> PathBuf,
    is_passing: impl Fn(&Path) -> bool,
    report: &mut CheckReport,
) -> io::Result<HashSet<ObjectId>> {
    let mut found = HashSet::new();
    let mut unexpected = |path: &Path| {
        let path = path
            .strip_prefix(dir.parent().unwrap_or(dir))
            .unwrap_or(path);
        let path = path.to_string_lossy().into_owned();
        report.found(Problem::UnexpectedFile { path });
    };
    for below in entries(dir)? {
        if !below.file_type()?.is_dir() {
            unexpected(&below.path());
            continue;
        }
        for file in entries(&below.path())? {
            let name = file.file_name();
            let id = name
                .to_str()
                .and_then(|name| u64::from_str_radix(name, 16).ok());
            match id.map(ObjectId) {
                Some(id) if path_of(id) == file.path() => {
                    found.insert(id);
                }
                _ if is_passing(&file.path()) => {}
                _ => unexpected(&file.path()),
            }
        }
    }
    Ok(found)
}

/// What a directory holds; nothing if it does not exist.
fn entries(dir: &Path) -> io::Result<Vec<DirEntry>> {
    match std::fs::read_dir(dir) {
        Ok(entries) => entries.collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
