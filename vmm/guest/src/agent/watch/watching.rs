//! What a channel that watches has heard and not told yet.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use floe_guest::message::{Failure, FailureKind, WatchEvent, WatchKind};

use super::super::files::look;
use super::super::pool::Done;
use super::super::users::{Database, User, acting_as};

/// Events that wait for a channel to take them.
pub(super) const MAX_QUEUED: usize = 4096;

/// New directories that wait for a worker to watch them; and names that went while one is at it.
const MAX_FRESH: usize = 4096;

/// Events that a worker looks at in one job.
const BATCH: usize = 32;

/// Something happened, not looked at yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    name: PathBuf,
    kind: WatchKind,
}

/// What a worker has watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Adding {
    /// The directory and all below it, at the beginning and after events were lost.
    All,
    /// Directories that have come.
    Some(Vec<PathBuf>),
}

/// A channel that watches.
#[derive(Debug)]
pub struct Watching {
    pub(super) root: PathBuf,
    pub(super) user: User,
    pub(super) recursive: bool,
    queue: VecDeque<Told>,
    /// Whether a worker looks at some.
    pub(super) looking: bool,
    /// Directories that have come and are not watched yet.
    fresh: BTreeSet<PathBuf>,
    /// Names that went while a worker adds directories: it may have found them before.
    went: BTreeSet<PathBuf>,
    /// Whether all is to be watched anew.
    anew: bool,
    /// Whether a worker adds directories: one at a time, so that whoever makes directories fast gives
    /// the workers no more to do than they have done.
    pub(super) adding: bool,
    /// Whether the daemon was told that it has begun.
    pub(super) begun: bool,
    /// Whether the directory is gone.
    pub(super) gone: bool,
}

impl Watching {
    /// One that is to begin.
    pub(super) fn new(root: PathBuf, user: User, recursive: bool) -> Self {
        Self {
            root,
            user,
            recursive,
            queue: VecDeque::new(),
            looking: false,
            fresh: BTreeSet::new(),
            went: BTreeSet::new(),
            anew: true,
            adding: false,
            begun: false,
            gone: false,
        }
    }

    /// Something happened. Not told before it has begun, nor after the directory was gone.
    pub(super) fn tell(&mut self, name: impl Into<PathBuf>, kind: WatchKind) {
        let told = Told {
            name: name.into(),
            kind,
        };
        if !self.begun || self.gone || self.queue.back() == Some(&told) {
            return;
        }
        if self.queue.len() < MAX_QUEUED {
            return self.queue.push_back(told);
        }
        let overflow = Told {
            name: PathBuf::new(),
            kind: WatchKind::Overflow,
        };
        if self.queue.back() != Some(&overflow) {
            self.queue.push_back(overflow);
        }
    }

    /// A directory has come.
    pub(super) fn came(&mut self, dir: PathBuf) {
        if !self.recursive || self.anew {
            return;
        }
        self.fresh.insert(dir);
        if self.fresh.len() > MAX_FRESH {
            self.lost();
        }
    }

    /// Something was removed or has another name now.
    pub(super) fn went(&mut self, name: &Path) {
        if !self.adding || !self.recursive || self.anew {
            return;
        }
        self.went.insert(name.to_owned());
        if self.went.len() > MAX_FRESH {
            self.lost();
        }
    }

    /// A worker has added directories, and found these names in them. Those that went meanwhile are not
    /// told: if they are there all the same, they came later and that was heard.
    pub(super) fn added(&mut self, found: Vec<PathBuf>) {
        self.adding = false;
        let went = std::mem::take(&mut self.went);
        for name in found {
            if !name.ancestors().any(|part| went.contains(part)) {
                self.tell(name, WatchKind::Create);
            }
        }
    }

    /// A worker could not add directories. The failure, if the watch cannot go on because of it.
    pub(super) fn failed(&mut self, failure: Failure) -> Option<Failure> {
        if !self.begun {
            return Some(failure);
        }
        match failure.kind {
            // There was no room to watch all of it.
            FailureKind::Exhausted => self.tell("", WatchKind::Overflow),
            // It went while its events were lost.
            FailureKind::NotFound | FailureKind::NotADirectory => {
                self.tell(".", WatchKind::Remove);
                self.gone = true;
            }
            _ => return Some(failure),
        }
        None
    }

    /// Events were lost: which directories there are is not known any more.
    pub(super) fn lost(&mut self) {
        self.fresh.clear();
        self.went.clear();
        self.anew = true;
    }

    /// What is to be watched next, if anything and no worker is at it.
    pub(super) fn next_adding(&mut self) -> Option<Adding> {
        if self.adding || self.gone {
            return None;
        }
        let next = if self.anew {
            Adding::All
        } else if self.fresh.is_empty() {
            return None;
        } else {
            Adding::Some(std::mem::take(&mut self.fresh).into_iter().collect())
        };
        self.anew = false;
        self.adding = true;
        Some(next)
    }

    /// Takes some events out, for a worker to look at.
    pub(super) fn batch(&mut self) -> Vec<Told> {
        let some = self.queue.len().min(BATCH);
        self.queue.drain(..some).collect()
    }
}

/// Looks at what is there now, as the user.
pub(super) fn look_at(root: &Path, user: &User, events: Vec<Told>) -> Result<Done, Failure> {
    let names = Database::read();
    acting_as(user, || {
        let looked = events.into_iter().map(|Told { name, kind }| {
            let there = matches!(
                kind,
                WatchKind::Create | WatchKind::Write | WatchKind::Chmod
            );
            let path = if name == Path::new(".") {
                root.to_owned()
            } else {
                root.join(&name)
            };
            let entry = there.then(|| look(&path, &names).ok());
            WatchEvent {
                name: name.to_string_lossy().into_owned(),
                kind,
                entry: entry.flatten(),
            }
        });
        Ok(Done::Looked(looked.collect()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watching(recursive: bool) -> Watching {
        let user = User {
            name: "root".to_owned(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: Vec::new(),
            home: PathBuf::from("/"),
            shell: String::new(),
        };
        let mut watching = Watching::new(PathBuf::from("/"), user, recursive);
        assert_eq!(watching.next_adding(), Some(Adding::All));
        watching.added(Vec::new());
        watching.begun = true;
        watching
    }

    #[test]
    fn events_that_nobody_takes_end_in_one_overflow() {
        let mut watching = watching(false);
        watching.tell("same", WatchKind::Write);
        watching.tell("same", WatchKind::Write);
        assert_eq!(watching.queue.len(), 1);
        for number in 0..2 * MAX_QUEUED {
            watching.tell(number.to_string(), WatchKind::Create);
        }
        assert_eq!(watching.queue.len(), MAX_QUEUED + 1);
        let kinds: Vec<WatchKind> = watching.queue.iter().map(|told| told.kind).collect();
        assert_eq!(kinds.last(), Some(&WatchKind::Overflow));
        let overflows = kinds.iter().filter(|kind| **kind == WatchKind::Overflow);
        assert_eq!(overflows.count(), 1);
        assert_eq!(watching.batch().len(), BATCH);
    }

    #[test]
    fn nothing_is_told_before_the_beginning_and_after_the_end() {
        let mut watching = watching(false);
        watching.begun = false;
        watching.tell("a", WatchKind::Create);
        watching.begun = true;
        watching.tell("b", WatchKind::Create);
        watching.gone = true;
        watching.tell("c", WatchKind::Create);
        let names: Vec<PathBuf> = watching.batch().into_iter().map(|told| told.name).collect();
        assert_eq!(names, [PathBuf::from("b")]);
    }

    #[test]
    fn one_worker_at_a_time_adds_directories() {
        let mut watching = watching(true);
        watching.came("a".into());
        let first = watching.next_adding();
        assert_eq!(first, Some(Adding::Some(vec!["a".into()])));
        watching.came("b".into());
        watching.came("b".into());
        watching.came("c".into());
        assert_eq!(watching.next_adding(), None);
        watching.added(Vec::new());
        let second = watching.next_adding();
        assert_eq!(second, Some(Adding::Some(vec!["b".into(), "c".into()])));
        watching.added(Vec::new());
        assert_eq!(watching.next_adding(), None);
    }

    #[test]
    fn what_went_while_a_worker_found_it_is_not_told_as_new() {
        let mut watching = watching(true);
        watching.came("a".into());
        watching.came("b".into());
        assert!(watching.next_adding().is_some());
        watching.went(Path::new("a"));
        watching.went(Path::new("b/y"));
        let found = ["a/x", "a/x/y", "ab", "b/x", "b/y"];
        watching.added(found.iter().map(PathBuf::from).collect());
        let told = |watching: &mut Watching| -> Vec<PathBuf> {
            watching.batch().into_iter().map(|told| told.name).collect()
        };
        assert_eq!(told(&mut watching), [Path::new("ab"), Path::new("b/x")]);
        // That is about one worker's work only.
        watching.went(Path::new("c"));
        watching.came("c".into());
        assert!(watching.next_adding().is_some());
        watching.added(vec!["c/x".into()]);
        assert_eq!(told(&mut watching), [Path::new("c/x")]);
    }

    #[test]
    fn more_new_directories_than_are_kept_are_looked_for_anew() {
        let mut watching = watching(true);
        for number in 0..=MAX_FRESH {
            watching.came(number.to_string().into());
        }
        assert!(watching.fresh.is_empty());
        watching.came("later".into());
        assert_eq!(watching.next_adding(), Some(Adding::All));
        for number in 0..=MAX_FRESH {
            watching.went(Path::new(&number.to_string()));
        }
        watching.added(Vec::new());
        assert_eq!(watching.next_adding(), Some(Adding::All));
        watching.added(Vec::new());
        assert_eq!(watching.next_adding(), None);
    }

    #[test]
    fn directories_that_come_matter_only_to_who_watches_below() {
        let mut watching = watching(false);
        watching.came("a".into());
        assert_eq!(watching.next_adding(), None);
        // But where there was another directory, there may be none now.
        watching.lost();
        assert_eq!(watching.next_adding(), Some(Adding::All));
    }

    #[test]
    fn the_entry_of_the_directory_itself_has_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let mut watching = watching(false);
        watching.tell(".", WatchKind::Chmod);
        watching.tell("x", WatchKind::Create);
        let events = watching.batch();
        let looked = look_at(dir.path(), &watching.user, events).unwrap();
        let Done::Looked(events) = looked else {
            panic!("{looked:?}");
        };
        assert_eq!(events[0].name, ".");
        let entry = events[0].entry.as_ref().unwrap();
        assert_eq!(Path::new(&entry.path), dir.path());
        assert_eq!(events[1].entry, None);
    }
}
