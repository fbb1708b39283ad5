//! Where the host has its control groups mounted.
//!
//! Hosts mount version 2, or version 1, or version 2 for some controllers and version 1 for
//! others. What is found is what the kernel's table of mounts says.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What is limited or measured by control groups here.
pub(super) const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// The mounts of control groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// Version 2, which freezes and kills also where it has no controller.
    pub(super) unified: Option<PathBuf>,
    /// Controllers of version 1 that are used here.
    pub(super) legacy: BTreeMap<String, PathBuf>,
}

impl Places {
    /// Reads the table of mounts.
    pub(super) fn find() -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/self/mountinfo")?))
    }

    /// As <https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html> describes it. Of several
    /// mounts of one hierarchy the first that shows its root counts.
    fn parse(table: &str) -> Self {
        let mut found = Self::default();
        for line in table.lines() {
            let Some((front, back)) = line.split_once(" - ") else {
                continue;
            };
            let mut front = front.split(' ').skip(3);
            let (Some("/"), Some(dir)) = (front.next(), front.next()) else {
                continue;
            };
            let mut back = back.split(' ');
            let (kind, options) = (back.next(), back.nth(1).unwrap_or_default());
            match kind {
                Some("cgroup2") => {
                    found.unified.get_or_insert_with(|| PathBuf::from(dir));
                }
                Some("cgroup") => {
                    let used = ["cpu", "cpuacct", "memory", "pids", "freezer"];
                    for name in options.split(',').filter(|name| used.contains(name)) {
                        let entry = found.legacy.entry(name.to_owned());
                        entry.or_insert_with(|| PathBuf::from(dir));
                    }
                }
                _ => {}
            }
        }
        found
    }
}

/// The controllers that version 2 offers in a directory.
pub(super) fn offered(dir: &Path) -> Vec<String> {
    let text = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found_and_parts_of_a_hierarchy_are_not_taken_for_it() {
        let table = "\
30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw
31 30 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
34 30 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
35 30 0:30 / /mnt/again rw shared:3 - cgroup2 cgroup2 rw
nonsense";
        let found = Places::parse(table);
        let dir = |name: &str| PathBuf::from(format!("/sys/fs/cgroup/{name}"));
        assert_eq!(found.unified, Some(dir("unified")));
        let legacy = [
            ("cpu", dir("cpu")),
            ("cpuacct", dir("cpu")),
            ("freezer", dir("freezer")),
        ];
        let legacy = legacy.map(|(name, dir)| (name.to_owned(), dir));
        assert_eq!(found.legacy, BTreeMap::from(legacy));
    }
}
