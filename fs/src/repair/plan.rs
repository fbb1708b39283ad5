//! What can be put right without guessing, and why the rest cannot. Pure: from problems to steps.
//!
//! Invariant: no step changes what a frozen layer shows, but that damaged bytes are refused, and none
//! removes bytes: files leave `objects/` for `quarantine/` only.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::missing::{misplaced, missing_files};
use crate::base::host_inode;
use crate::change::{ContentKind, InodeRow, Name, Row};
use crate::check::{Damage, Problem, Table};
use crate::contents::{BLOCK, FAN_OUT, WHOLE};
use crate::id::{Ino, LayerId, ObjectId};

/// Numbers up to here can be counted on from: beyond are those of objects of the host.
const NUMBER_MAX: u64 = 1 << 61;

/// An inode as a live layer shows it.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) row: InodeRow,
    /// Directories that have a name for it.
    pub(super) parents: Vec<Ino>,
}

/// What a plan has to know besides the problems.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Live layers of workspaces.
    pub(super) live: HashSet<LayerId>,
    /// Those of them that stand on directories of the host.
    pub(super) on_host: HashSet<LayerId>,
    /// Bases over directories of the host.
    pub(super) bases: HashSet<LayerId>,
    /// Inodes that problems in live layers are about.
    pub(super) shown: HashMap<(LayerId, Ino), Shown>,
    /// Objects that somebody may be about to use.
    pub(super) in_use: HashSet<ObjectId>,
    /// Objects of which blocks are refused.
    pub(super) refused: HashSet<ObjectId>,
    /// How many objects each directory of them holds; only if files of many are missing.
    pub(super) objects: HashMap<u64, u64>,
}

/// What is done about a problem.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Rows are written.
    Rows(Vec<Row>),
    /// The counter of inode numbers and cookies goes on above one.
    SkipIno(u64),
    /// The counter of object ids goes on above one.
    SkipObject(ObjectId),
    /// A file that belongs to nothing is moved away.
    Quarantine(ObjectId),
    /// So is that of an object that nothing uses, whose row is removed.
    GiveUp(ObjectId),
    /// An inode of a live layer gets a name.
    Lost {
        layer: LayerId,
        ino: Ino,
        row: InodeRow,
    },
    /// What has no name is removed, as when the store is opened.
    Reap(LayerId),
}

/// A step of a repair.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// Which of the problems it is for.
    pub(super) problem: usize,
    /// What it does, in words.
    pub(super) words: String,
    pub(super) action: Action,
}

/// What is to be done, and what is left.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// Problems by number, and why they stay.
    pub(super) left: Vec<(usize, &'static str)>,
}

const MISPLACED: &str = "so many files are missing at once: is objects/ complete?";
const FROZEN: &str = "what a frozen layer shows does not change";

/// What to do about problems.
pub(super) fn plan(problems: &[Problem], facts: &Facts) -> Plan {
    let mut planner = Planner {
        facts,
        plan: Plan::default(),
        orphans: BTreeSet::new(),
        unused: BTreeSet::new(),
        owners: BTreeMap::new(),
        doubtful: BTreeSet::new(),
        misplaced: BTreeSet::new(),
        written: HashMap::new(),
        seen: HashSet::new(),
    };
    for problem in problems {
        match *problem {
            Problem::ObjectFileOrphan { object } => {
                planner.orphans.insert(object);
            }
            Problem::ObjectUnused { object } => {
                planner.unused.insert(object);
            }
            Problem::ExtentObject { layer, ino, object } => {
                let owners = planner.owners.entry(object).or_default();
                owners.insert((ino, layer));
            }
            Problem::ChecksumMissing { object }
            | Problem::ChecksumStray { object }
            | Problem::ChecksumDamaged { object } => {
                planner.doubtful.insert(object);
            }
            _ => {}
        }
    }
    planner.misplaced = misplaced(&missing_files(problems), &facts.objects);
    for (number, problem) in problems.iter().enumerate() {
        planner.one(number, problem);
    }
    planner.plan
}

struct Planner<'a> {
    facts: &'a Facts,
    plan: Plan,
    orphans: BTreeSet<ObjectId>,
    unused: BTreeSet<ObjectId>,
    /// Whose objects without a row are, as extents say.
    owners: BTreeMap<ObjectId, BTreeSet<(Ino, LayerId)>>,
    /// Objects whose checksum is not to be believed.
    doubtful: BTreeSet<ObjectId>,
    /// Directories of objects that are rather somewhere else than lost.
    misplaced: BTreeSet<u64>,
    /// Inodes that get a new version, by the step that writes it.
    written: HashMap<(LayerId, Ino), usize>,
    /// Steps that serve several problems, once each.
    seen: HashSet<(&'static str, u64)>,
}

impl Planner<'_> {
    fn rows(&mut self, problem: usize, words: impl Into<String>, rows: Vec<Row>) {
        self.step(problem, words, Action::Rows(rows));
    }

    fn step(&mut self, problem: usize, words: impl Into<String>, action: Action) {
        self.plan.steps.push(Step {
            problem,
            words: words.into(),
            action,
        });
    }

    fn left(&mut self, problem: usize, why: &'static str) {
        self.plan.left.push((problem, why));
    }

    fn one(&mut self, n: usize, problem: &Problem) {
        match *problem {
            Problem::LayerBytes { layer, counted, .. } => {
                let (bytes, inodes) = (Some(counted), None);
                let row = Row::SetUsage {
                    layer,
                    bytes,
                    inodes,
                };
                self.rows(n, "the total is what was counted", vec![row]);
            }
            Problem::LayerInodes { layer, counted, .. } => {
                let (bytes, inodes) = (None, Some(counted));
                let row = Row::SetUsage {
                    layer,
                    bytes,
                    inodes,
                };
                self.rows(n, "the total is what was counted", vec![row]);
            }
            Problem::NotMarkedShadowing {
                parent, ref name, ..
            } => match unescape(name) {
                Some(name) => {
                    let row = Row::MarkShadows { parent, name };
                    self.rows(n, "it is marked", vec![row]);
                }
                None => self.left(n, "its name cannot be told"),
            },
            Problem::NumberAhead { what, number, .. } => self.number_ahead(n, what, number),
            Problem::Dangling { ref table, .. } if table == "sandbox" => {
                let words = "it has no workspace any more";
                self.rows(n, words, vec![Row::DropDangling]);
            }
            Problem::Dangling { ref table, .. }
                if matches!(&table[..], "label" | "mount" | "retention" | "template") =>
            {
                self.rows(n, "the row is removed", vec![Row::DropDangling]);
            }
            Problem::Value {
                table: Table::Sandbox,
                ..
            } => self.rows(n, "the row is removed", vec![Row::DropDangling]),
            Problem::ChecksumMissing { object }
            | Problem::ChecksumStray { object }
            | Problem::ChecksumDamaged { object } => {
                // Without its mark nobody could tell that blocks are refused for what they hold.
                if self.facts.refused.contains(&object) {
                    return self.left(n, "of what is refused nobody could tell what it was");
                }
                if self.seen.insert(("checksum", object.0)) {
                    let rows = vec![Row::DropChecksum { object }];
                    self.rows(n, "it is to be hashed again", rows);
                }
            }
            Problem::ObjectUnused { .. }
            | Problem::ObjectDoomed { .. }
            | Problem::ObjectFileMissing { .. }
            | Problem::ObjectFileOrphan { .. }
            | Problem::ExtentObject { .. } => self.object(n, problem),
            // That was told by a checksum that is dropped.
            Problem::Damaged {
                object,
                why: Damage::Changed | Damage::Short,
                ..
            } if self.doubtful.contains(&object) => {}
            Problem::Damaged {
                object, start, end, ..
            } => {
                let blocks = start / BLOCK..end.div_ceil(BLOCK);
                let rows = blocks.map(|block| Row::AddDamaged { object, block });
                self.rows(n, "reading it fails from now on", rows.collect());
            }
            Problem::LeftUnlinked { layer, .. } => {
                if self.seen.insert(("reap", layer.0)) {
                    self.step(n, "it is removed", Action::Reap(layer));
                }
            }
            _ => self.inode(n, problem),
        }
    }

    fn number_ahead(&mut self, n: usize, what: &str, number: u64) {
        let action = match what {
            _ if number > NUMBER_MAX => return self.left(n, "no number follows on it"),
            "object" => Action::SkipObject(ObjectId(number)),
            _ => Action::SkipIno(number),
        };
        self.step(n, "the counter goes on above it", action);
    }

    fn object(&mut self, n: usize, problem: &Problem) {
        match *problem {
            Problem::ObjectUnused { object } => {
                let words = "it is given up; its file goes to quarantine/";
                self.step(n, words, Action::GiveUp(object));
            }
            // One that nothing uses is given up for good.
            Problem::ObjectDoomed { object } if !self.unused.contains(&object) => {
                let row = Row::ForgetDoomed { id: object };
                self.rows(n, "it stays in use", vec![row]);
            }
            Problem::ObjectFileMissing { object } if !self.unused.contains(&object) => {
                if self.misplaced.contains(&(object.0 / FAN_OUT)) {
                    return self.left(n, MISPLACED);
                }
                let block = WHOLE;
                let row = Row::AddDamaged { object, block };
                self.rows(n, "it is noted that reading it fails", vec![row]);
            }
            Problem::ObjectFileOrphan { object } if self.facts.in_use.contains(&object) => {
                self.left(n, "somebody may be about to use it: start the daemon anew");
            }
            // What extents name is in use, and gets its row back.
            Problem::ObjectFileOrphan { object } if !self.owners.contains_key(&object) => {
                let words = "it goes to quarantine/";
                self.step(n, words, Action::Quarantine(object));
            }
            Problem::ExtentObject { object, .. } => {
                let owners = &self.owners[&object];
                let is_there = self.orphans.contains(&object) && host_inode(object).is_none();
                match owners.first() {
                    Some(&(ino, layer)) if owners.len() == 1 && is_there => {
                        if self.seen.insert(("object", object.0)) {
                            let id = object;
                            let row = Row::AddObject { id, ino, layer };
                            self.rows(n, "its file is there and gets its row back", vec![row]);
                        }
                    }
                    _ => self.left(n, "what the bytes were is not known; reading them fails"),
                }
            }
            _ => {}
        }
    }

    /// What is wrong with an inode, or anything else.
    fn inode(&mut self, n: usize, problem: &Problem) {
        let Some((layer, ino)) = problem.subject() else {
            return self.left(n, why_not(problem));
        };
        let derived = matches!(
            problem,
            Problem::Links { .. }
                | Problem::DirectoryLinks { .. }
                | Problem::DirectoryParent { .. }
                | Problem::DirectoryNames { .. }
                | Problem::XattrUnannounced { .. }
        );
        if !derived {
            return self.left(n, why_not(problem));
        }
        if !self.facts.live.contains(&layer) {
            return self.left(n, FROZEN);
        }
        let Some(shown) = self.facts.shown.get(&(layer, ino)) else {
            return self.left(n, "the inode cannot be read");
        };
        let row = match self.written.get(&(layer, ino)) {
            Some(&step) => match &self.plan.steps[step].action {
                Action::Rows(rows) => match rows.first() {
                    Some(Row::PutInode { row: Some(row), .. }) => *row,
                    _ => shown.row,
                },
                // It is looked at again when it has a name.
                _ => return,
            },
            None => shown.row,
        };
        match problem {
            Problem::Links { names: 0, .. } | Problem::DirectoryNames { names: 0, .. } => {
                self.lost(n, layer, ino, row);
            }
            Problem::DirectoryNames { .. } => {
                self.left(n, "which of its names is the right one is not known");
            }
            Problem::Links { names, .. } => {
                let nlink = u32::try_from(*names);
                match nlink {
                    Ok(nlink) if !self.facts.bases.contains(&row.born) => {
                        self.put(
                            n,
                            "the links are its names",
                            layer,
                            ino,
                            |row| {
                                row.attr.nlink = nlink;
                            },
                            row,
                        );
                    }
                    _ => self.left(n, "the host counts its links"),
                }
            }
            Problem::DirectoryLinks { directories, .. } => {
                let nlink = match row.content {
                    ContentKind::Host => Ok(1),
                    _ => u32::try_from(directories.saturating_add(2)),
                };
                match nlink {
                    Ok(nlink) => self.put(
                        n,
                        "the links are counted anew",
                        layer,
                        ino,
                        |row| {
                            row.attr.nlink = nlink;
                        },
                        row,
                    ),
                    Err(_) => self.left(n, why_not(problem)),
                }
            }
            Problem::DirectoryParent { .. } => match shown.parents[..] {
                [parent] => self.put(n, "it says so", layer, ino, |row| row.parent = parent, row),
                _ => self.left(n, "which of its names is the right one is not known"),
            },
            _ => self.put(n, "it says so", layer, ino, |row| row.has_xattr = true, row),
        }
    }

    fn put(
        &mut self,
        n: usize,
        words: &str,
        layer: LayerId,
        ino: Ino,
        change: impl FnOnce(&mut InodeRow),
        mut row: InodeRow,
    ) {
        change(&mut row);
        self.written.insert((layer, ino), self.plan.steps.len());
        let row = Some(row);
        self.rows(n, words, vec![Row::PutInode { ino, layer, row }]);
    }

    fn lost(&mut self, n: usize, layer: LayerId, ino: Ino, row: InodeRow) {
        if self.facts.on_host.contains(&layer) {
            return self.left(
                n,
                "it has no name, and none can be made over a directory in place",
            );
        }
        self.written.insert((layer, ino), self.plan.steps.len());
        let words = format!("it is at /lost+found/{}", lost_name(ino));
        self.step(n, words, Action::Lost { layer, ino, row });
    }
}

/// What something is called that lost its name.
pub(super) fn lost_name(ino: Ino) -> String {
    format!("ino-{ino}")
}

/// Why nothing can be done about a problem.
fn why_not(problem: &Problem) -> &'static str {
    match problem {
        Problem::UnexpectedFile { .. } => "Floe did not make it: move it elsewhere yourself",
        Problem::NameToNothing { .. } => "what it led to is not there any more",
        Problem::Damaged { .. } | Problem::ObjectFileMissing { .. } => {
            "what the bytes were is not known"
        }
        Problem::LayerParentMissing { .. }
        | Problem::LayerOrder { .. }
        | Problem::LayerOnUnfrozen { .. }
        | Problem::LayerState { .. }
        | Problem::LayerOwner { .. }
        | Problem::WorkspaceWithoutLayer { .. }
        | Problem::WorkspaceLayer { .. }
        | Problem::WorkspaceLayerShared { .. }
        | Problem::DeletedWorkspaceLayer { .. }
        | Problem::SnapshotLayer { .. }
        | Problem::SnapshotWorkspace { .. } => "which of the rows is right is not known",
        _ => "what was there before is not known",
    }
}

/// Undoes `escape_ascii`.
fn unescape(text: &str) -> Option<Name> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next()? {
            b't' => b'\t',
            b'n' => b'\n',
            b'r' => b'\r',
            b'x' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
                u8::try_from(high * 16 + low).ok()?
            }
            other => other,
        });
    }
    Some(Name::from(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(problems: &[Problem], facts: &Facts) -> (Vec<String>, Vec<&'static str>) {
        let plan = plan(problems, facts);
        let steps = plan.steps.iter();
        let words = steps.map(|step| format!("{}: {}", step.problem, step.words));
        let left = plan.left.iter().map(|&(_, why)| why);
        (words.collect(), left.collect())
    }

    #[test]
    fn an_escaped_name_is_told_again_byte_for_byte() {
        let all: Vec<u8> = (1..=255).filter(|&byte| byte != b'/').collect();
        let name = unescape(&all.escape_ascii().to_string()).unwrap();
        assert_eq!(*name, *all);
        assert!(unescape("\\x").is_none() && unescape("\\xzz").is_none());
    }

    #[test]
    fn nothing_that_a_frozen_layer_shows_is_changed() {
        let (layer, ino) = (LayerId(3), Ino(17));
        let problems = [
            Problem::Links {
                layer,
                ino,
                nlink: 9,
                names: 1,
            },
            Problem::DirectoryLinks {
                layer,
                ino,
                nlink: 9,
                directories: 1,
            },
            Problem::XattrUnannounced { layer, ino },
        ];
        let (steps, left) = steps(&problems, &Facts::default());
        assert!(steps.is_empty());
        assert_eq!(left, [FROZEN; 3]);
    }

    #[test]
    fn a_file_that_extents_name_gets_its_row_back_and_no_other() {
        let (layer, ino, object) = (LayerId(3), Ino(17), ObjectId(5));
        let orphan = Problem::ObjectFileOrphan { object };
        let named = |layer| Problem::ExtentObject { layer, ino, object };
        let facts = Facts::default();
        let (done, left) = steps(&[named(layer), named(layer), orphan.clone()], &facts);
        assert_eq!(done, ["0: its file is there and gets its row back"]);
        assert!(left.is_empty());
        // Two layers say that it is theirs, or there is no file.
        let (done, left) = steps(&[named(layer), named(LayerId(4)), orphan.clone()], &facts);
        assert!(done.is_empty() && left.len() == 2);
        let (done, left) = steps(&[named(layer)], &facts);
        assert!(done.is_empty() && left.len() == 1);
        // Somebody may be about to use it.
        let in_use = Facts {
            in_use: HashSet::from([object]),
            ..Facts::default()
        };
        assert!(steps(&[orphan], &in_use).0.is_empty());
    }

    #[test]
    fn what_is_in_use_is_not_given_up_and_what_is_not_is_not_refused() {
        let object = ObjectId(5);
        let doomed = Problem::ObjectDoomed { object };
        let unused = Problem::ObjectUnused { object };
        let missing = Problem::ObjectFileMissing { object };
        let facts = Facts::default();
        let rows = |problems: &[Problem]| plan(problems, &facts).steps;
        assert!(matches!(
            &rows(std::slice::from_ref(&doomed))[..],
            [Step { action: Action::Rows(rows), .. }] if matches!(rows[..], [Row::ForgetDoomed { .. }])
        ));
        assert!(matches!(
            &rows(&[unused, doomed, missing.clone()])[..],
            [Step {
                action: Action::GiveUp(ObjectId(5)),
                ..
            }]
        ));
        assert!(matches!(
            &rows(&[missing])[..],
            [Step { action: Action::Rows(rows), .. }]
                if matches!(rows[..], [Row::AddDamaged { block: WHOLE, .. }])
        ));
    }

    #[test]
    fn each_damaged_block_is_refused() {
        let damage = Problem::Damaged {
            object: ObjectId(5),
            ino: Ino(17),
            start: 2 * BLOCK,
            end: 4 * BLOCK,
            why: Damage::Short,
        };
        let plan = plan(&[damage], &Facts::default());
        let Action::Rows(rows) = &plan.steps[0].action else {
            panic!("{plan:?}");
        };
        let blocks = rows.iter().map(|row| match row {
            Row::AddDamaged { block, .. } => *block,
            other => panic!("{other:?}"),
        });
        assert_eq!(blocks.collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn a_number_from_which_none_follows_is_left() {
        let ahead = |number| Problem::NumberAhead {
            what: "cookie",
            number,
            next: 3,
        };
        let facts = Facts::default();
        assert_eq!(steps(&[ahead(1 << 40)], &facts).0.len(), 1);
        assert_eq!(steps(&[ahead(1 << 62)], &facts).1.len(), 1);
    }
}
