//! What the system has and uses, from /proc and statvfs.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use floe_guest::message::{AgentMetrics, Failure};

use super::failure::failed;

/// Microseconds in a unit of /proc/stat: 100 a second on all of Linux. Source: proc_stat(5), USER_HZ.
const TICK_US: u64 = 10_000;

/// Measures. What /proc does not say is 0.
pub fn measure() -> Result<AgentMetrics, Failure> {
    let disk = rustix::fs::statvfs("/").map_err(|error| failed("look at the disk", error))?;
    let total = disk.f_blocks.saturating_mul(disk.f_frsize);
    let free = disk.f_bfree.saturating_mul(disk.f_frsize);
    let at = SystemTime::now().duration_since(UNIX_EPOCH);
    let cpu = cpu(&text("/proc/stat"));
    let memory = memory(&text("/proc/meminfo"));
    Ok(AgentMetrics {
        at_secs: at.map_or(0, |at| i64::try_from(at.as_secs()).unwrap_or(i64::MAX)),
        disk_total: total,
        disk_used: total.saturating_sub(free),
        processes: processes(),
        memory_total: memory.memory_total,
        memory_used: memory.memory_used,
        memory_cached: memory.memory_cached,
        ..cpu
    })
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The first line has the sums: user nice system idle iowait irq softirq steal guest guest_nice,
/// where guest time is in user time too.
fn cpu(stat: &str) -> AgentMetrics {
    let sums: Vec<u64> = stat
        .lines()
        .find_map(|line| line.strip_prefix("cpu "))
        .unwrap_or_default()
        .split_whitespace()
        .take(8)
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    let total: u64 = sums.iter().sum();
    let idle: u64 = sums.iter().skip(3).take(2).sum();
    let count = stat
        .lines()
        .filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "))
        .count();
    AgentMetrics {
        cpu_count: u32::try_from(count).unwrap_or(u32::MAX),
        cpu_busy_us: total.saturating_sub(idle).saturating_mul(TICK_US),
        cpu_total_us: total.saturating_mul(TICK_US),
        ..AgentMetrics::default()
    }
}

fn memory(meminfo: &str) -> AgentMetrics {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        let kib: Option<u64> = line
            .and_then(|rest| rest.strip_prefix(':'))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|number| number.parse().ok());
        kib.unwrap_or(0).saturating_mul(1024)
    };
    let total = field("MemTotal");
    AgentMetrics {
        memory_total: total,
        memory_used: total.saturating_sub(field("MemAvailable")),
        memory_cached: field("Cached"),
        ..AgentMetrics::default()
    }
}

fn processes() -> u32 {
    let Ok(entries) = fs::read_dir("/proc") else {
        return 0;
    };
    let numbers = entries.filter(|entry| {
        entry.as_ref().is_ok_and(|entry| {
            let name = entry.file_name();
            name.to_string_lossy()
                .bytes()
                .all(|byte| byte.is_ascii_digit())
        })
    });
    u32::try_from(numbers.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_of_proc_stat_are_read() {
        let found = cpu("cpu  10 1 5 100 20 0 4 0 0 0\ncpu0 1 2\ncpu1 1 2\nintr 5\n");
        assert_eq!(found.cpu_count, 2);
        assert_eq!(found.cpu_busy_us, 20 * TICK_US);
        assert_eq!(found.cpu_total_us, 140 * TICK_US);
        assert_eq!(cpu("garbage"), AgentMetrics::default());
    }

    #[test]
    fn memory_is_in_bytes() {
        let found =
            memory("MemTotal:  100 kB\nMemAvailable: 60 kB\nCached: 30 kB\nSwapCached: 1 kB\n");
        assert_eq!(found.memory_total, 102_400);
        assert_eq!(found.memory_used, 40_960);
        assert_eq!(found.memory_cached, 30_720);
        assert_eq!(memory("MemTotal: x").memory_total, 0);
    }

    #[test]
    fn this_system_can_be_measured() {
        let found = measure().unwrap();
        assert!(found.cpu_count > 0 && found.processes > 0);
        assert!(found.disk_used <= found.disk_total && found.disk_total > 0);
    }
}
