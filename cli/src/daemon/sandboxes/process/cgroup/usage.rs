//! What the processes of a group use.

use std::fs;
use std::path::Path;

use super::Cgroup;

/// What is known; nothing of what the host does not count.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::daemon::sandboxes) struct GroupUsage {
    /// Processor time in microseconds.
    pub(in crate::daemon::sandboxes) cpu_us: Option<u64>,
    /// Bytes of memory, file cache included.
    pub(in crate::daemon::sandboxes) memory_bytes: Option<u64>,
    /// Bytes of file cache.
    pub(in crate::daemon::sandboxes) cache_bytes: Option<u64>,
    /// Processes and threads.
    pub(in crate::daemon::sandboxes) pids: Option<u64>,
    /// How often a process was killed for want of memory.
    pub(in crate::daemon::sandboxes) killed_for_memory: Option<u64>,
}

impl Cgroup {
    /// Reads the counters.
    pub(in crate::daemon::sandboxes) fn usage(&self) -> GroupUsage {
        let mut usage = GroupUsage::default();
        if let Some(dir) = &self.unified {
            usage.cpu_us = keyed(&dir.join("cpu.stat"), "usage_usec");
            usage.memory_bytes = number(&dir.join("memory.current"));
            usage.cache_bytes = keyed(&dir.join("memory.stat"), "file");
            usage.pids = number(&dir.join("pids.current"));
            usage.killed_for_memory = keyed(&dir.join("memory.events"), "oom_kill");
        }
        if let Some(dir) = self.legacy.get("cpuacct") {
            let nanoseconds = number(&dir.join("cpuacct.usage"));
            usage.cpu_us = usage.cpu_us.or(nanoseconds.map(|ns| ns / 1000));
        }
        if let Some(dir) = self.legacy.get("memory") {
            let used = number(&dir.join("memory.usage_in_bytes"));
            usage.memory_bytes = usage.memory_bytes.or(used);
            let cache = keyed(&dir.join("memory.stat"), "cache");
            usage.cache_bytes = usage.cache_bytes.or(cache);
            let killed = keyed(&dir.join("memory.oom_control"), "oom_kill");
            usage.killed_for_memory = usage.killed_for_memory.or(killed);
        }
        if let Some(dir) = self.legacy.get("pids") {
            usage.pids = usage.pids.or(number(&dir.join("pids.current")));
        }
        usage
    }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn keyed(path: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| {
        line.strip_prefix(key)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    })
}
