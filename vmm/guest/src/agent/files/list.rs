//! Lists of directories.

use std::fs;
use std::path::{Path, PathBuf};

use floe_guest::message::{Entry, Event, Failure, FailureKind};

use super::entry::look;
use crate::agent::failure::{failed, failure};
use crate::agent::users::Database;
use crate::agent::wire;

/// Most entries of a list.
const MAX_ENTRIES: usize = 100_000;

/// Most bytes of a list, in JSON.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of JSON in one event, or one entry more: that fits into any window a list is given.
const BATCH: usize = 64 * 1024;

/// Most bytes that a byte of a name takes in JSON.
const ESCAPED: usize = 6;

/// Most bytes of an entry in JSON beside its names.
const PLAIN: usize = 512;

/// The entries of a directory, `depth` levels down, as events in JSON, sorted by path.
pub fn list(dir: &Path, depth: u32, names: &Database) -> Result<Vec<Vec<u8>>, Failure> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut waiting: Vec<(PathBuf, u32)> = vec![(dir.to_path_buf(), 1)];
    while let Some((at, level)) = waiting.pop() {
        let found = match fs::read_dir(&at) {
            Ok(found) => found,
            // It is gone, or may not be read. Only the first one was asked for.
            Err(_) if level > 1 => continue,
            Err(error) => return Err(failed(&format!("list '{}'", dir.display()), error)),
        };
        for one in found {
            let Ok(one) = one else { break };
            let path = one.path();
            // What is gone by now is not in the list.
            let Ok(entry) = look(&path, names) else {
                continue;
            };
            let is_dir = one.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir && level < depth {
                waiting.push((path, level + 1));
            }
            entries.push(entry);
            if entries.len() > MAX_ENTRIES {
                return Err(too_long(dir));
            }
        }
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    events(entries).ok_or_else(|| too_long(dir))
}

fn events(entries: Vec<Entry>) -> Option<Vec<Vec<u8>>> {
    let mut events = Vec::new();
    let mut total = 0;
    let mut batch = Vec::new();
    let mut size = 0;
    let mut entries = entries.into_iter().peekable();
    while let Some(entry) = entries.next() {
        let target = entry.symlink_target.as_ref().map_or(0, String::len);
        size += ESCAPED * (entry.name.len() + entry.path.len() + target) + PLAIN;
        batch.push(entry);
        if size >= BATCH || entries.peek().is_none() {
            let event = wire::event(&Event::Entries(std::mem::take(&mut batch)))?;
            total += event.len();
            events.push(event);
            size = 0;
        }
        if total > MAX_BYTES {
            return None;
        }
    }
    Some(events)
}

fn too_long(dir: &Path) -> Failure {
    failure(
        FailureKind::Exhausted,
        format!(
            "there are more than {MAX_ENTRIES} files below '{}', or their names are too long",
            dir.display()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path, depth: u32) -> Vec<String> {
        let events = list(dir, depth, &Database::read()).unwrap();
        let entries = events
            .iter()
            .flat_map(|json| match serde_json::from_slice(json).unwrap() {
                Event::Entries(entries) => entries,
                other => panic!("{other:?}"),
            });
        entries.map(|entry| entry.name).collect()
    }

    #[test]
    fn depth_says_how_far_down() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
        fs::write(dir.path().join("a/f"), "x").unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("l")).unwrap();
        assert_eq!(names(dir.path(), 0), ["a", "l"]);
        assert_eq!(names(dir.path(), 1), ["a", "l"]);
        assert_eq!(names(dir.path(), 2), ["a", "b", "f", "l"]);
        assert_eq!(names(dir.path(), 9), ["a", "b", "c", "f", "l"]);
    }

    #[test]
    fn what_is_no_directory_is_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        fs::write(&file, "").unwrap();
        let failure = list(&file, 1, &Database::read()).unwrap_err();
        assert_eq!(failure.kind, FailureKind::NotADirectory);
        let failure = list(&dir.path().join("x"), 1, &Database::read()).unwrap_err();
        assert_eq!(failure.kind, FailureKind::NotFound);
    }
}
