//! The machine a figure belongs to.

use std::path::Path;

use rustix::fs::{statfs, statvfs};
use serde::Serialize;

/// What a reader of a figure must know of the machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Version of Floe.
    pub floe: &'static str,
    /// Whether this is an optimised build. Figures of another mean nothing.
    pub optimized: bool,
    /// When the run began, RFC 3339.
    pub started_at: String,
    /// Processors this process may use.
    pub cores: usize,
    /// Model of the processor.
    pub cpu: Option<String>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Release of the kernel.
    pub kernel: String,
    /// File system the temporary stores are on.
    pub disk: String,
    /// Its free bytes.
    pub disk_free_bytes: u64,
    /// Whether it can share extents between files.
    pub reflink: Option<bool>,
    /// Whether the bench runs as root, as a daemon of root does.
    pub root: bool,
    /// Load averages over 1, 5 and 15 minutes before the run. Well above 0, somebody else uses
    /// the machine.
    pub load: Option<[f64; 3]>,
}

impl Machine {
    /// Looks at this machine, and at the file system of a directory.
    #[must_use]
    pub fn look(dir: &Path, reflink: Option<bool>) -> Self {
        let info = read("/proc/cpuinfo");
        let memory = read("/proc/meminfo");
        Self {
            floe: env!("CARGO_PKG_VERSION"),
            optimized: !cfg!(debug_assertions),
            started_at: jiff::Timestamp::now().to_string(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            cpu: field(&info, "model name").map(str::to_owned),
            memory_bytes: field(&memory, "MemTotal").and_then(kib),
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            disk: statfs(dir).map_or_else(
                |error| format!("unknown ({error})"),
                |stat| fs_name(stat.f_type.cast_unsigned()),
            ),
            disk_free_bytes: free_bytes(dir).unwrap_or(0),
            reflink,
            root: rustix::process::geteuid().is_root(),
            load: load(),
        }
    }
}

/// Bytes that can still be written to the file system of a directory.
///
/// # Errors
/// The system's.
pub fn free_bytes(dir: &Path) -> rustix::io::Result<u64> {
    let stat = statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Load averages over 1, 5 and 15 minutes.
#[must_use]
pub fn load() -> Option<[f64; 3]> {
    parse_load(&read("/proc/loadavg"))
}

fn parse_load(text: &str) -> Option<[f64; 3]> {
    let mut numbers = text.split(' ').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some([next()?, next()?, next()?])
}

/// A file of `/proc`; nothing where there is none.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

fn kib(text: &str) -> Option<u64> {
    let number: u64 = text.strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

/// The name of a file system by its number in statfs(2).
fn fs_name(magic: u64) -> String {
    match magic {
        0xef53 => "ext4 (or ext2, ext3)".to_owned(),
        0x5846_5342 => "xfs".to_owned(),
        0x9123_683e => "btrfs".to_owned(),
        0x0102_1994 => "tmpfs (memory, not a disk)".to_owned(),
        0x794c_7630 => "overlayfs".to_owned(),
        0x2fc1_2fc1 => "zfs".to_owned(),
        0xf2f5_2010 => "f2fs".to_owned(),
        other => format!("file system {other:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_are_read() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2.0 GHz\n\nMemTotal:       1024 kB\n";
        assert_eq!(field(text, "model name"), Some("Some CPU @ 2.0 GHz"));
        assert_eq!(field(text, "MemTotal").and_then(kib), Some(1 << 20));
        assert_eq!(field(text, "nothing"), None);
        assert_eq!(kib("12 MB"), None);
    }

    #[test]
    fn load_averages_are_the_first_three_numbers() {
        let load = parse_load("0.50 1.25 2.00 1/234 5678\n");
        assert_eq!(load, Some([0.5, 1.25, 2.0]));
        assert_eq!(parse_load(""), None);
    }

    #[test]
    fn this_machine_has_a_processor_a_kernel_and_a_disk() {
        let machine = Machine::look(Path::new("/"), None);
        assert!(machine.cores > 0 && !machine.kernel.is_empty() && !machine.disk.is_empty());
    }
}
