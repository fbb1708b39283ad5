//! Repairing a store: what can be put right without guessing is, the rest is told with the reason.
//!
//! `plan` says what to do, this carries it out: look, plan, commit, and look again, until nothing is
//! left that can be done. Invariants:
//! * nobody else has a workspace or snapshot open, or can open one, meanwhile; what is committed by
//!   others between looking and committing makes the round begin anew;
//! * a copy of the catalog is in `quarantine/` before anything is changed, and no file is removed but
//!   those of objects that were given up before;
//! * each round is one transaction, and files are moved before it: a crash in between leaves a store with
//!   the problems that are not repaired yet.

mod missing;
mod plan;
mod quarantine;

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

use self::missing::{MANY, missing_files};
use self::plan::{Action, Facts, Plan, Shown, Step, lost_name, plan};
use self::quarantine::Quarantine;
pub use self::quarantine::QuarantineError;
use crate::attr::{FileKind, Timestamp};
use crate::catalog::CatalogError;
use crate::change::{Change, EntryRow, InodeRow, Name, Row};
use crate::check::{CheckError, CheckReport, DataProgress, DataReport, Found, Problem};
use crate::core::Core;
use crate::diff::side::Side;
use crate::dispatch::OpError;
use crate::engine::reap_unlinked;
use crate::id::{Ino, LayerId, ObjectId};
use crate::store::{Store, directory_row};

/// Directory for what has lost its name, in the root of a workspace.
const LOST_FOUND: &[u8] = b"lost+found";
/// How often the store is looked at: one fault can hide another.
const ROUNDS: usize = 8;
/// How often a round begins anew because others changed something.
const ATTEMPTS: usize = 64;

/// How to repair a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairOptions {
    /// Also verify contents, and refuse what is damaged.
    pub data: bool,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// Something that was put right, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairStep {
    /// What was wrong, and where.
    pub found: Found,
    /// What is done about it, in words.
    pub action: String,
}

/// A problem that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairLeft {
    /// What is wrong, and where.
    pub found: Found,
    /// Why it stays.
    pub why: &'static str,
}

/// What a repair did, or would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairReport {
    /// Whether anything may have been changed: false for a dry run.
    pub applied: bool,
    /// What was put right, or would be at first: more may show then.
    pub steps: Vec<RepairStep>,
    /// What stays as it is.
    pub left: Vec<RepairLeft>,
    /// The copy of the catalog before, if anything was changed.
    pub catalog_copy: Option<PathBuf>,
    /// What was read, if contents were verified.
    pub data: Option<DataReport>,
    /// The store afterwards, its metadata.
    pub after: CheckReport,
}

impl RepairReport {
    /// Whether nothing is wrong any more, or was.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.after.is_clean() && self.left.is_empty() && (self.applied || self.steps.is_empty())
    }
}

/// Why a store was not repaired. What was put right so far stays so.
#[derive(Debug, Error)]
pub enum RepairError {
    /// A workspace or a snapshot is mounted, or something is being taken in.
    #[error("the store is in use: {by}")]
    InUse {
        /// By what.
        by: String,
    },
    /// Others change the store all the time.
    #[error("others changed the store again and again")]
    Overtaken,
    /// Whoever wanted it does not want it any more.
    #[error("the repair was interrupted before anything was changed")]
    Interrupted,
    /// The system does not let an object be read now: that says nothing of its bytes.
    #[error("cannot read object {object}")]
    Read {
        /// Which object.
        object: ObjectId,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// What is to be kept cannot be.
    #[error(transparent)]
    Quarantine(#[from] QuarantineError),
    /// The store failed.
    #[error("cannot repair the store")]
    Store(#[source] Box<OpError>),
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl From<CheckError> for RepairError {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Interrupted => Self::Interrupted,
            CheckError::Catalog(error) => Self::Catalog(error),
            CheckError::Read { object, source } => Self::Read { object, source },
        }
    }
}

impl From<OpError> for RepairError {
    fn from(error: OpError) -> Self {
        match error {
            OpError::Catalog(error) => Self::Catalog(error),
            error => Self::Store(Box::new(error)),
        }
    }
}

/// Keeps others from opening workspaces while it lives.
struct Alone<'a>(&'a AtomicBool);

impl<'a> Alone<'a> {
    fn enter(flag: &'a AtomicBool) -> Result<Self, RepairError> {
        if flag.swap(true, Ordering::SeqCst) {
            return Err(RepairError::InUse {
                by: "another repair".to_owned(),
            });
        }
        Ok(Self(flag))
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Store {
    /// Puts right what can be without guessing, and says what stays. Nothing may be mounted. `progress`
    /// is told how far reading contents is, and says whether to go on.
    ///
    /// # Errors
    /// [`RepairError`]. What cannot be repaired is no error, it is in the report.
    pub fn repair(
        &self,
        options: RepairOptions,
        progress: &mut dyn FnMut(&DataProgress) -> ControlFlow<()>,
    ) -> Result<RepairReport, RepairError> {
        let _alone = Alone::enter(self.repairing())?;
        self.refuse_users()?;
        // Or they would change the store again and again, and what was looked at would not hold.
        let _hashing = self.core.hashing.hold();
        let _collecting = self.core.collect.hold();
        let _retaining = self.core.retain.hold();
        let mut damage = CheckReport {
            unlimited: true,
            ..CheckReport::default()
        };
        if options.data {
            self.check_contents(&mut damage, progress)?;
        }
        let mut repair = Repair {
            store: self,
            core: &self.core,
            quarantine: Quarantine::new(&self.core.dir),
            steps: Vec::new(),
        };
        let left = repair.rounds(&damage, options.dry_run)?;
        let after = self.check()?;
        Ok(RepairReport {
            applied: !options.dry_run,
            steps: repair.steps,
            left,
            catalog_copy: repair.quarantine.catalog_copy().cloned(),
            data: damage.data,
            after,
        })
    }

    /// Makes sure that nobody has anything open, now that nobody can open it any more.
    fn refuse_users(&self) -> Result<(), RepairError> {
        let by = if self.any_view_open() {
            "a workspace or a snapshot is mounted"
        } else if !self.core.catalog.abandoned_layers()?.is_empty() {
            "a directory is being imported"
        } else {
            return Ok(());
        };
        Err(RepairError::InUse { by: by.to_owned() })
    }
}

/// A repair under way.
struct Repair<'a> {
    store: &'a Store,
    core: &'a Core,
    quarantine: Quarantine,
    steps: Vec<RepairStep>,
}

impl Repair<'_> {
    /// Does what can be done; returns what is left.
    fn rounds(
        &mut self,
        damage: &CheckReport,
        dry_run: bool,
    ) -> Result<Vec<RepairLeft>, RepairError> {
        let (mut rounds, mut damage) = (0, Some(damage));
        for _ in 0..ATTEMPTS {
            let commits = self.core.catalog.commits();
            let mut report = CheckReport {
                unlimited: true,
                ..CheckReport::default()
            };
            self.store.check_metadata(&mut report)?;
            if let Some(damage) = damage {
                report.problems.extend(damage.problems.iter().cloned());
            }
            let facts = self.facts(&report.problems)?;
            let plan = plan(&report.problems, &facts);
            crate::check::add_places(self.core, &mut report)?;
            let healed = damage.and_then(|damage| damage.data.as_ref());
            let healed = healed.map_or(&[][..], |data| &data.healed);
            let nothing = plan.steps.is_empty() && healed.is_empty();
            if nothing || dry_run || rounds == ROUNDS {
                if dry_run {
                    self.note(&report, &plan.steps);
                }
                return Ok(left(&report, &plan));
            }
            if !self.round(&report, &plan, healed, commits)? {
                continue;
            }
            rounds += 1;
            damage = None;
        }
        Err(RepairError::Overtaken)
    }

    /// What a plan needs to know.
    fn facts(&self, problems: &[Problem]) -> Result<Facts, CatalogError> {
        let core = self.core;
        let mut facts = Facts::default();
        for record in core.catalog.workspaces(None)? {
            facts.live.insert(record.layer);
            if let Some(base) = core.host_base(record.layer) {
                facts.on_host.insert(record.layer);
                facts.bases.insert(base);
            }
        }
        if missing_files(problems).len() > MANY {
            facts.objects = core.catalog.objects_by_directory()?;
        }
        let pinned = core.catalog.pin()?;
        for problem in problems {
            if let Problem::ChecksumMissing { object }
            | Problem::ChecksumStray { object }
            | Problem::ChecksumDamaged { object } = *problem
                && core.objects.damaged().has(object)
            {
                facts.refused.insert(object);
            }
            if let Problem::ObjectFileOrphan { object } = *problem
                && core.numbers.handed_out(object)
            {
                facts.in_use.insert(object);
            }
            let Some((layer, ino)) = problem.subject() else {
                continue;
            };
            let Some(at) = core.layers.lineage(layer) else {
                continue;
            };
            if !facts.live.contains(&layer) {
                continue;
            }
            let queries = pinned.queries();
            let parents = Side::new(queries, at).known(ino);
            let parents = parents.ok().flatten().map(|known| known.places);
            let parents = parents.unwrap_or_default().into_iter();
            if let Ok(Some((_, Some(row)))) = queries.inode(ino, at) {
                let parents = parents.map(|place| place.parent).collect();
                facts.shown.insert((layer, ino), Shown { row, parents });
            }
        }
        Ok(facts)
    }

    /// Carries a plan out; says whether it was not too late for that.
    fn round(
        &mut self,
        report: &CheckReport,
        plan: &Plan,
        healed: &[(ObjectId, u64)],
        commits: u64,
    ) -> Result<bool, RepairError> {
        let core = self.core;
        self.quarantine.keep_catalog(&core.catalog)?;
        // These commit by themselves, and the rest is looked at again then.
        let (counters, rest): (Vec<&Step>, Vec<&Step>) = plan.steps.iter().partition(|step| {
            matches!(
                step.action,
                Action::SkipIno(_) | Action::SkipObject(_) | Action::Reap(_)
            )
        });
        for step in &counters {
            match step.action {
                Action::SkipIno(number) => core.numbers.skip_ino(number)?,
                Action::SkipObject(id) => core.numbers.skip_object(id)?,
                Action::Reap(layer) => reap_unlinked(core, layer)?,
                _ => {}
            }
        }
        if !counters.is_empty() {
            self.note(report, counters);
            return Ok(false);
        }
        let mut change = Change::new();
        for &(object, block) in healed {
            change.push(Row::DropDamaged { object, block });
        }
        let mut lost = HashMap::new();
        let mut moved = HashSet::new();
        for step in &rest {
            match &step.action {
                Action::Rows(rows) => rows.iter().cloned().for_each(|row| change.push(row)),
                Action::Quarantine(object) => {
                    if self.quarantine.take_object(core, *object)? {
                        moved.insert(step.problem);
                    }
                }
                Action::GiveUp(object) => {
                    self.quarantine.take_object(core, *object)?;
                    let id = *object;
                    change.push(Row::DoomObject { id });
                    change.push(Row::ForgetDoomed { id });
                }
                Action::Lost { layer, ino, row } => {
                    change.append(self.name_lost(*layer, *ino, *row, &mut lost)?);
                }
                Action::SkipIno(_) | Action::SkipObject(_) | Action::Reap(_) => {}
            }
        }
        self.quarantine.sync(core)?;
        let applied = change.is_empty() || core.catalog.apply_unless_changed(&change, commits)?;
        let done = |step: &&&Step| applied || moved.contains(&step.problem);
        let done: Vec<&Step> = rest.iter().filter(done).copied().collect();
        self.note(report, done);
        if applied {
            follow(core, &change);
            core.sync_catalog()?;
        }
        Ok(applied)
    }

    /// The rows that give an inode of a live layer a name in a directory for what has none.
    fn name_lost(
        &self,
        layer: LayerId,
        ino: Ino,
        mut row: InodeRow,
        directories: &mut HashMap<LayerId, Ino>,
    ) -> Result<Change, RepairError> {
        let core = self.core;
        let mut change = Change::new();
        let directory = match directories.get(&layer) {
            Some(&directory) => directory,
            None => {
                let found = self.lost_found(layer, &mut change)?;
                directories.insert(layer, found);
                found
            }
        };
        if row.attr.kind == FileKind::Directory {
            row.parent = directory;
        } else {
            row.attr.nlink = 1;
        }
        let entry = EntryRow {
            ino,
            kind: row.attr.kind,
            cookie: core.numbers.cookie()?,
            shadows: true,
        };
        change.push(Row::PutEntry {
            parent: directory,
            name: self.free_name(layer, directory, ino)?,
            layer,
            entry: Some(entry),
        });
        let row = Some(row);
        change.push(Row::PutInode { ino, layer, row });
        Ok(change)
    }

    /// A name for what has none that nothing has in a directory.
    fn free_name(&self, layer: LayerId, directory: Ino, ino: Ino) -> Result<Name, RepairError> {
        let at = self.core.layers.known(layer)?;
        let mut name = lost_name(ino);
        for number in 1_u32.. {
            let taken = self.core.catalog.entry(directory, name.as_bytes(), at)?;
            if !matches!(taken, Some((_, Some(_)))) {
                break;
            }
            name = format!("{}-{number}", lost_name(ino));
        }
        Ok(Name::from(name.into_bytes()))
    }

    /// The directory for what has no name, with the rows that make it if there is none. Links and totals
    /// are counted anew in the next round.
    fn lost_found(&self, layer: LayerId, change: &mut Change) -> Result<Ino, RepairError> {
        let core = self.core;
        let at = core.layers.known(layer)?;
        let mut name = LOST_FOUND.to_vec();
        for number in 0_u32.. {
            match core.catalog.entry(Ino::ROOT, &name, at)? {
                Some((_, Some(entry))) if entry.kind == FileKind::Directory => {
                    return Ok(entry.ino);
                }
                Some((_, Some(_))) => {}
                _ => break,
            }
            name = [LOST_FOUND, b"-floe"].concat();
            if number > 0 {
                name.extend(format!("-{number}").into_bytes());
            }
        }
        let ino = core.numbers.ino()?;
        let row = directory_row(layer, 0o700, 0, 0, Timestamp::now());
        let entry = EntryRow {
            ino,
            kind: FileKind::Directory,
            cookie: core.numbers.cookie()?,
            shadows: true,
        };
        change.push(Row::PutInode {
            ino,
            layer,
            row: Some(row),
        });
        change.push(Row::PutEntry {
            parent: Ino::ROOT,
            name: Name::from(name),
            layer,
            entry: Some(entry),
        });
        Ok(ino)
    }

    fn note<'s>(&mut self, report: &CheckReport, steps: impl IntoIterator<Item = &'s Step>) {
        for step in steps {
            let action = step.words.clone();
            if let Some(found) = found(report, step.problem) {
                self.steps.push(RepairStep { found, action });
            }
        }
    }
}

/// Memory follows what was committed.
fn follow(core: &Core, change: &Change) {
    let damaged = core.objects.damaged();
    for row in change.rows() {
        // The file may be another one than when it was opened.
        if let Row::AddDamaged { object, .. }
        | Row::DropDamaged { object, .. }
        | Row::AddObject { id: object, .. } = *row
        {
            core.objects.close(object);
        }
        match *row {
            Row::AddDamaged { object, block } => damaged.add(object, block),
            Row::DropDamaged { object, block } => damaged.remove(object, block),
            _ => {}
        }
    }
}

fn found(report: &CheckReport, number: usize) -> Option<Found> {
    let places = report.places.get(&number);
    Some(Found {
        problem: report.problems.get(number)?.clone(),
        places: places.cloned().unwrap_or_default(),
    })
}

fn left(report: &CheckReport, plan: &Plan) -> Vec<RepairLeft> {
    let left = plan.left.iter();
    left.filter_map(|&(number, why)| {
        let found = found(report, number)?;
        Some(RepairLeft { found, why })
    })
    .collect()
}
