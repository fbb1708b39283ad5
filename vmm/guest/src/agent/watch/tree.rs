//! Which directories are watched, and for whom.
//!
//! Workers add directories while the agent's thread reads what the kernel says of them. The lock is
//! held from before the kernel is asked to watch until the answer is noted, so that what it says about
//! a directory is never heard before it is known which one that is.
//!
//! Invariant: a directory that has no place is not watched.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use floe_guest::message::{Failure, FailureKind};
use rustix::fs::inotify::{WatchFlags, add_watch, remove_watch};
use rustix::io::Errno;

use super::places::{Place, Places};
use crate::agent::failure::{failed, failure};

/// Most directories that one channel watches.
const MAX_DIRS: usize = 65_536;

/// How far down directories are watched.
const MAX_DEPTH: usize = 256;

/// The inotify instance, and what it watches.
#[derive(Debug)]
pub struct Tree {
    inotify: OwnedFd,
    places: Mutex<Places>,
    /// Most directories of a channel.
    dirs_max: usize,
}

/// What a channel watches.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    pub channel: u64,
    pub root: &'a Path,
    pub recursive: bool,
}

/// Whether it says that no more can be watched: the kernel's limit and [`MAX_DIRS`], or memory.
fn is_limit(error: Errno) -> bool {
    matches!(error, Errno::NOSPC | Errno::NOMEM)
}

fn cannot_watch(path: &Path, error: Errno) -> Failure {
    if is_limit(error) {
        // The system's words for this are about disks.
        let path = path.display();
        let message = format!("cannot watch '{path}': no more directories can be watched");
        return failure(FailureKind::Exhausted, message);
    }
    failed(&format!("watch '{}'", path.display()), error)
}

impl Tree {
    pub fn new(inotify: OwnedFd) -> Self {
        Self {
            inotify,
            places: Mutex::default(),
            dirs_max: MAX_DIRS,
        }
    }

    /// The inotify instance once more, to wait for what it says.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.inotify.try_clone()
    }

    /// A worker that panics ends the agent, so nobody sees a poisoned lock.
    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the directory of a channel anew: what was watched before is not any more.
    ///
    /// # Errors
    ///
    /// Of the directory itself, and of limits. What is gone or may not be read further down is left
    /// out.
    pub fn add_all(&self, scope: Scope<'_>) -> Result<(), Failure> {
        self.forget(scope.channel, Path::new(""));
        self.watch(scope, Path::new(""))
            .map_err(|error| cannot_watch(scope.root, error))?;
        if scope.recursive {
            let mut waiting = Vec::new();
            self.look_into(scope, Path::new(""), &mut waiting, |_| {})?;
            self.add_waiting(scope, waiting, |_| {})?;
        }
        Ok(())
    }

    /// Watches directories that have come, and those below them. Returns the names of what is in them,
    /// up to `most`.
    ///
    /// # Errors
    ///
    /// Of limits.
    pub fn add_some(
        &self,
        scope: Scope<'_>,
        dirs: Vec<PathBuf>,
        most: usize,
    ) -> Result<Vec<PathBuf>, Failure> {
        let mut found = Vec::new();
        self.add_waiting(scope, dirs, |path| {
            if found.len() < most {
                found.push(path.to_owned());
            }
        })?;
        Ok(found)
    }

    fn add_waiting(
        &self,
        scope: Scope<'_>,
        mut waiting: Vec<PathBuf>,
        mut found: impl FnMut(&Path),
    ) -> Result<(), Failure> {
        while let Some(at) = waiting.pop() {
            match self.watch(scope, &at) {
                Ok(()) => self.look_into(scope, &at, &mut waiting, &mut found)?,
                Err(error) if is_limit(error) => {
                    return Err(cannot_watch(&scope.root.join(&at), error));
                }
                // It is gone again, or may not be read.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Tells what is in a directory that is watched; directories go to those that wait to be.
    fn look_into(
        &self,
        scope: Scope<'_>,
        at: &Path,
        waiting: &mut Vec<PathBuf>,
        mut found: impl FnMut(&Path),
    ) -> Result<(), Failure> {
        let deepest = at.components().count() >= MAX_DEPTH;
        let Ok(entries) = fs::read_dir(scope.root.join(at)) else {
            return Ok(());
        };
        for entry in entries {
            let Ok(entry) = entry else { break };
            let path = at.join(entry.file_name());
            found(&path);
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if !is_dir || deepest {
                continue;
            }
            // What waits takes memory too.
            if waiting.len() >= self.dirs_max {
                return Err(cannot_watch(&scope.root.join(path), Errno::NOSPC));
            }
            waiting.push(path);
        }
        Ok(())
    }

    fn watch(&self, scope: Scope<'_>, at: &Path) -> Result<(), Errno> {
        let mut flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let top = at.as_os_str().is_empty();
        if !top {
            flags |= WatchFlags::DONT_FOLLOW;
        }
        let place = Place {
            channel: scope.channel,
            path: at.to_owned(),
        };
        let path = if top {
            scope.root.to_owned()
        } else {
            scope.root.join(at)
        };
        let mut places = self.lock();
        if places.count_others(scope.channel, at) >= self.dirs_max {
            return Err(Errno::NOSPC);
        }
        let number = add_watch(&self.inotify, &path, flags)?;
        // Another directory was here, and what became of it was not heard yet or never will be.
        if let Some(before) = places.note(place, number) {
            self.unwatch(before);
        }
        Ok(())
    }

    fn unwatch(&self, number: i32) {
        match remove_watch(&self.inotify, number) {
            // The directory is gone, and the watch with it.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => crate::agent::complain("stop watching", &error),
        }
    }

    /// Who watches the directory of that number. `gone`: it is not watched any more.
    pub fn places(&self, number: i32, gone: bool) -> Vec<Place> {
        let mut places = self.lock();
        if gone {
            places.forget_number(number)
        } else {
            places.of(number)
        }
    }

    /// A channel does not watch a directory any more, nor what is below it.
    pub fn forget(&self, channel: u64, below: &Path) {
        let mut places = self.lock();
        for number in places.forget_below(channel, below) {
            self.unwatch(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, init};
    use tempfile::TempDir;

    use super::*;

    fn tree() -> Tree {
        Tree::new(init(CreateFlags::NONBLOCK).unwrap())
    }

    fn scope(channel: u64, dir: &TempDir) -> Scope<'_> {
        Scope {
            channel,
            root: dir.path(),
            recursive: true,
        }
    }

    fn dir_with(names: &[&str]) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        dir
    }

    fn watched(tree: &Tree, channel: u64) -> Vec<PathBuf> {
        let all = tree.lock().watched(channel);
        all.into_iter().map(|(path, _)| path).collect()
    }

    /// The kernel's number of a directory.
    fn number(tree: &Tree, path: &str) -> i32 {
        let all = tree.lock().watched(1);
        let found = all.into_iter().find(|(one, _)| one == Path::new(path));
        found.unwrap().1
    }

    fn paths(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn what_nobody_watches_is_told_to_nobody() {
        let dir = dir_with(&["a/b"]);
        let tree = tree();
        tree.add_all(scope(1, &dir)).unwrap();
        tree.add_all(scope(2, &dir)).unwrap();
        assert_eq!(watched(&tree, 1), paths(&["", "a", "a/b"]));
        tree.forget(1, Path::new(""));
        assert_eq!(watched(&tree, 1), paths(&[]));
        assert_eq!(watched(&tree, 2), paths(&["", "a", "a/b"]));
        tree.forget(2, Path::new("a"));
        let heard = |tree: &Tree| {
            let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
            let mut reader = Reader::new(&tree.inotify, &mut buffer);
            let mut heard = Vec::new();
            while let Ok(event) = reader.next() {
                heard.push(event.events());
            }
            heard
        };
        fs::write(dir.path().join("a/b/f"), "").unwrap();
        assert_eq!(heard(&tree), [ReadFlags::IGNORED; 2]);
        fs::write(dir.path().join("f"), "").unwrap();
        assert_eq!(heard(&tree), [ReadFlags::CREATE]);
    }

    #[test]
    fn what_is_no_directory_is_not_watched() {
        let dir = dir_with(&[]);
        fs::write(dir.path().join("f"), "").unwrap();
        let tree = tree();
        for (name, kind) in [
            ("f", FailureKind::NotADirectory),
            ("x", FailureKind::NotFound),
        ] {
            let root = dir.path().join(name);
            let scope = Scope {
                root: &root,
                ..scope(1, &dir)
            };
            assert_eq!(tree.add_all(scope).unwrap_err().kind, kind);
        }
        // Further down it was there a moment ago, and that is no failure.
        tree.add_all(scope(1, &dir)).unwrap();
        let found = tree.add_some(scope(1, &dir), paths(&["f", "x"]), 9);
        assert_eq!(found.unwrap(), paths(&[]));
        assert_eq!(watched(&tree, 1), paths(&[""]));
    }

    #[test]
    fn what_is_in_a_directory_that_came_is_found_up_to_a_limit() {
        let dir = dir_with(&[]);
        let tree = tree();
        tree.add_all(scope(1, &dir)).unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/f"), "").unwrap();
        let mut found = tree.add_some(scope(1, &dir), paths(&["a"]), 9).unwrap();
        found.sort();
        assert_eq!(found, paths(&["a/b", "a/b/f"]));
        assert_eq!(watched(&tree, 1), paths(&["", "a", "a/b"]));
        let found = tree.add_some(scope(1, &dir), paths(&["a"]), 1).unwrap();
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn only_the_directory_itself_is_watched_unless_asked() {
        let dir = dir_with(&["a"]);
        let tree = tree();
        let scope = Scope {
            recursive: false,
            ..scope(1, &dir)
        };
        tree.add_all(scope).unwrap();
        assert_eq!(watched(&tree, 1), paths(&[""]));
    }

    #[test]
    fn a_directory_in_the_place_of_another_is_watched_instead_of_it() {
        let dir = dir_with(&["a"]);
        let tree = tree();
        tree.add_all(scope(1, &dir)).unwrap();
        let before = number(&tree, "a");
        fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        tree.add_some(scope(1, &dir), paths(&["a", "b"]), 9)
            .unwrap();
        assert_ne!(number(&tree, "a"), before);
        assert_eq!(number(&tree, "b"), before);
        assert_eq!(watched(&tree, 1), paths(&["", "a", "b"]));
        // Anew: nothing is left of a name that nobody said was gone.
        fs::remove_dir(dir.path().join("b")).unwrap();
        tree.add_all(scope(1, &dir)).unwrap();
        assert_eq!(watched(&tree, 1), paths(&["", "a"]));
    }

    #[test]
    fn a_directory_that_the_kernel_watches_no_more_has_no_place() {
        let dir = dir_with(&["a"]);
        let tree = tree();
        tree.add_all(scope(1, &dir)).unwrap();
        let number = number(&tree, "a");
        let gone = tree.places(number, true);
        assert_eq!(gone.len(), 1);
        assert_eq!(gone[0].path, Path::new("a"));
        assert_eq!(watched(&tree, 1), paths(&[""]));
        assert_eq!(tree.places(number, false), []);
    }

    #[test]
    fn a_channel_watches_a_limited_number_of_directories_over_all() {
        let dir = dir_with(&["a", "b"]);
        let tree = Tree {
            dirs_max: 3,
            ..tree()
        };
        tree.add_all(scope(1, &dir)).unwrap();
        fs::create_dir(dir.path().join("c")).unwrap();
        let error = tree.add_some(scope(1, &dir), paths(&["c"]), 9).unwrap_err();
        assert_eq!(error.kind, FailureKind::Exhausted);
        assert_eq!(watched(&tree, 1), paths(&["", "a", "b"]));
        // What is watched already takes no more.
        tree.add_some(scope(1, &dir), paths(&["a", "b"]), 9)
            .unwrap();
        let error = tree.add_all(scope(1, &dir)).unwrap_err();
        assert_eq!(error.kind, FailureKind::Exhausted);
        fs::remove_dir(dir.path().join("c")).unwrap();
        tree.add_all(scope(2, &dir)).unwrap();
    }

    #[test]
    fn a_tree_is_not_watched_to_the_ground_wherever_that_begins() {
        let dir = dir_with(&[]);
        let deep = |levels: usize| -> PathBuf { std::iter::repeat_n("d", levels).collect() };
        fs::create_dir_all(dir.path().join(deep(MAX_DEPTH + 2))).unwrap();
        let tree = tree();
        tree.add_all(scope(1, &dir)).unwrap();
        assert_eq!(watched(&tree, 1).last(), Some(&deep(MAX_DEPTH)));
        let last = vec![deep(MAX_DEPTH)];
        tree.add_some(scope(1, &dir), last, 9).unwrap();
        assert_eq!(watched(&tree, 1).last(), Some(&deep(MAX_DEPTH)));
    }

    #[test]
    fn a_name_that_is_no_text_is_a_name() {
        let dir = dir_with(&[]);
        let name = Path::new(OsStr::from_bytes(b"\xff\xfe"));
        fs::create_dir_all(dir.path().join(name).join("b")).unwrap();
        let tree = tree();
        tree.add_all(scope(1, &dir)).unwrap();
        let found = watched(&tree, 1);
        assert_eq!(found, [PathBuf::new(), name.to_owned(), name.join("b")]);
    }
}
