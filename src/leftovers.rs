//! What the sandboxes of one store have of the host: processes, mounts, control groups, namespaces
//! and directories. Of a sandbox that was killed there must be nothing.
//!
//! Everything is found from outside, without asking the daemon. A process is of the store if its
//! mount namespace has a file system of the store for its root, is a child of the daemon, or a
//! bubblewrap that was given a path in the store; a control group or a directory, if its path contains
//! a sandbox's id.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};

use crate::mounts;

/// How deep below a store, and below a control group of Floe's, names are looked at.
const DEPTH_MAX: usize = 4;

/// Where to look for what one store's sandboxes have.
#[derive(Clone, Debug)]
pub struct Traces {
    /// The store's id, which the source of each of its mounts names.
    pub store_id: String,
    /// The store's directory.
    pub store: PathBuf,
    /// The daemon's process, if it runs.
    pub daemon: Option<u32>,
    /// Ids of sandboxes that the catalog need not know of any more.
    pub ids: BTreeSet<String>,
}

impl Traces {
    /// What is there, a line each, sorted.
    ///
    /// # Panics
    /// When `/proc`, the store or a control group cannot be read.
    #[must_use]
    pub fn found(&self) -> BTreeSet<String> {
        let ids = self.all_ids();
        let mut found = BTreeSet::new();
        self.add_processes(&mut found);
        self.add_mounts(&mut found);
        for root in control_groups(&self.store_id) {
            add_named(&root, &ids, DEPTH_MAX, "control group", &mut found);
        }
        let entries = fs::read_dir(&self.store).into_iter().flatten().flatten();
        for entry in entries {
            // What is in objects has numbers for names.
            if entry.file_name() != "objects" {
                add_named(&entry.path(), &ids, DEPTH_MAX, "directory", &mut found);
            }
        }
        if let Some(daemon) = self.daemon {
            let namespaces = held_namespaces(daemon);
            found.extend((0..namespaces).map(|number| format!("namespace {number} of the daemon")));
        }
        found
    }

    /// Waits until only what was there `before` is, and returns what is there still after `limit`.
    ///
    /// # Panics
    /// As [`Traces::found`].
    #[must_use]
    pub fn left(&self, before: &BTreeSet<String>, limit: Duration) -> Vec<String> {
        let deadline = Instant::now() + limit;
        loop {
            let found = self.found();
            let left: Vec<String> = found.difference(before).cloned().collect();
            if left.is_empty() || Instant::now() > deadline {
                return left;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The processes that live in a file system of the store, by their ids in the host.
    ///
    /// # Panics
    /// When `/proc` cannot be read.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        self.processes_in("")
    }

    /// Those of them that live in one sandbox.
    ///
    /// # Panics
    /// When `/proc` cannot be read.
    #[must_use]
    pub fn processes_of(&self, sandbox: &str) -> Vec<u32> {
        // A space ends the source of a mount.
        self.processes_in(&format!("{sandbox} "))
    }

    fn processes_in(&self, label: &str) -> Vec<u32> {
        let own = fs::read_link("/proc/self/ns/mnt").expect("/proc/self/ns/mnt");
        // A sandbox that is being made, of whatever store, has all the host's mounts for a moment: it is the root
        // that tells.
        let marker = format!(" floe:{}:{label}", self.store_id);
        let of_store = |pid: &u32| {
            let process = Path::new("/proc").join(pid.to_string());
            // A process that has just ended has none of this.
            fs::read_link(process.join("ns/mnt")).is_ok_and(|namespace| namespace != own)
                && fs::read(process.join("mountinfo"))
                    .is_ok_and(|table| has_root(&table, marker.as_bytes()))
        };
        pids().into_iter().filter(of_store).collect()
    }

    /// The ids of all sandboxes that the store ever had, as far as its catalog remembers: their
    /// workspaces have them for names.
    fn all_ids(&self) -> BTreeSet<String> {
        let mut ids = self.ids.clone();
        let catalog = self.store.join("catalog.db");
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let names = || -> rusqlite::Result<Vec<String>> {
            let catalog = Connection::open_with_flags(&catalog, flags)?;
            catalog.busy_timeout(Duration::from_secs(10))?;
            let mut statement = catalog.prepare("SELECT name FROM workspace")?;
            let names = statement.query_map([], |row| row.get(0))?;
            names.collect()
        };
        let names = names().unwrap_or_else(|error| panic!("{}: {error}", catalog.display()));
        // A short name would be part of many a path.
        ids.extend(names.into_iter().filter(|name| name.len() >= 8));
        ids
    }

    fn add_processes(&self, found: &mut BTreeSet<String>) {
        for pid in self.processes() {
            found.insert(format!("process {pid}: {}", command_line(pid)));
        }
        let store = self.store.as_os_str().as_bytes();
        for pid in pids() {
            let Some((state, parent)) = state_and_parent(pid) else {
                continue;
            };
            // Every daemon has a guard.
            let is_guard = command_line(pid).contains(" daemon guard ");
            if Some(parent) == self.daemon && !is_guard {
                let kind = if state == "Z" { "zombie" } else { "child" };
                found.insert(format!("{kind} {pid}: {}", command_line(pid)));
            } else if is_wrapper(pid, store) {
                found.insert(format!("orphan {pid}: {}", command_line(pid)));
            }
        }
    }

    fn add_mounts(&self, found: &mut BTreeSet<String>) {
        let marker = format!("floe:{}:", self.store_id);
        for mount in mounts::all() {
            if mount.source.starts_with(&marker) {
                found.insert(format!("mount {}", mount.dir.display()));
            }
            if mount.fs_type == "nsfs" {
                found.insert(format!("namespace mounted at {}", mount.dir.display()));
            }
        }
    }
}

/// The control group of a store at the top of every hierarchy.
fn control_groups(store_id: &str) -> Vec<PathBuf> {
    let hierarchies = mounts::all()
        .into_iter()
        .filter(|mount| mount.fs_type.starts_with("cgroup"));
    let name = format!("floe-{store_id}");
    let floe = hierarchies.map(|mount| mount.dir.join(&name));
    floe.filter(|dir| dir.is_dir()).collect()
}

fn add_named(
    dir: &Path,
    ids: &BTreeSet<String>,
    depth: usize,
    what: &str,
    found: &mut BTreeSet<String>,
) {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    if ids.iter().any(|id| name.contains(id.as_str())) {
        found.insert(format!("{what} {}", dir.display()));
        return;
    }
    if depth == 0 || !dir.is_dir() {
        return;
    }
    // Something may be removed meanwhile, which is what is hoped for.
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        add_named(&entry.path(), ids, depth - 1, what, found);
    }
}

/// Whether a process is a bubblewrap that was given something of the store.
fn is_wrapper(pid: u32, store: &[u8]) -> bool {
    let exe = fs::read_link(format!("/proc/{pid}/exe"));
    exe.is_ok_and(|exe| exe.file_name() == Some(OsStr::new("bwrap")))
        && fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| contains(&line, store))
}

/// How many namespaces a process keeps open.
fn held_namespaces(pid: u32) -> usize {
    let open = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let kinds = [
        "net:[", "mnt:[", "user:[", "pid:[", "ipc:[", "uts:[", "cgroup:[",
    ];
    let is_namespace = |target: &PathBuf| {
        let target = target.to_string_lossy();
        kinds.iter().any(|kind| target.starts_with(kind))
    };
    open.flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter(is_namespace)
        .count()
}

fn pids() -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let name = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    processes.filter_map(name).collect()
}

/// The letter of a process's state and its parent.
fn state_and_parent(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before them may hold spaces and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

fn command_line(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    line.chars().take(120).collect()
}

/// Whether a mount at `/` of a `mountinfo` has a source that begins so, after a space.
fn has_root(table: &[u8], source: &[u8]) -> bool {
    // Number, number of the one above, device, what of it is mounted, where.
    let is_root = |line: &&[u8]| line.split(|&byte| byte == b' ').nth(4) == Some(b"/");
    let mut lines = table.split(|&byte| byte == b'\n').filter(is_root);
    lines.any(|line| contains(line, source))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn names_with_an_id_are_found_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b-0123abcd-c/d")).unwrap();
        fs::create_dir_all(dir.path().join("a/other")).unwrap();
        let ids = BTreeSet::from(["0123abcd".to_owned()]);
        let mut found = BTreeSet::new();
        add_named(dir.path(), &ids, DEPTH_MAX, "directory", &mut found);
        let expected = dir.path().join("a/b-0123abcd-c");
        assert_eq!(
            found,
            BTreeSet::from([format!("directory {}", expected.display())])
        );
    }

    #[test]
    fn a_process_lives_in_the_file_system_that_is_its_root() {
        let host = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            90 22 0:45 / /mnt/x rw - fuse.floe floe:1:x rw\n";
        let inside = "90 89 0:45 / / rw shared:7 - fuse.floe floe:1:x rw\n\
            91 90 0:46 / /proc rw - proc proc rw\n";
        assert!(!has_root(host.as_bytes(), b" floe:1:"));
        assert!(has_root(inside.as_bytes(), b" floe:1:x "));
        assert!(!has_root(inside.as_bytes(), b" floe:1:y "));
    }

    #[test]
    fn zombies_and_their_parents_are_told() {
        let mut child = Command::new("true").spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let zombie = ("Z".to_owned(), std::process::id());
        while state_and_parent(child.id()) != Some(zombie.clone()) {
            assert!(
                Instant::now() < deadline,
                "{:?}",
                state_and_parent(child.id())
            );
        }
        child.wait().unwrap();
        assert_eq!(state_and_parent(child.id()), None);
    }

    #[test]
    fn open_namespaces_are_counted() {
        let before = held_namespaces(std::process::id());
        let held = fs::File::open("/proc/self/ns/net").unwrap();
        assert_eq!(held_namespaces(std::process::id()), before + 1);
        drop(held);
    }
}
