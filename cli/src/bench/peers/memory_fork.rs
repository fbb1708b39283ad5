//! Dumping a process's memory from a copy that fork(2) makes: the process stands still while it is made, and goes on
//! while the copy writes.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::{program, say_why};
use crate::bench::error::{BenchError, Step};
use crate::bench::lab::Lab;
use crate::bench::report::{Group, Layout, Section};
use crate::bench::stats::Times;

/// Memory in use, in MiB.
const MEMORY: [u32; 3] = [128, 512, 2048];
const SAMPLES: (u32, u32) = (20, 2);
/// A program of its own, since this one has other memory as well. Its arguments: MiB, samples, the file. A line for
/// each sample: nanoseconds of the fork, and until the copy had written.
const PROGRAM: &str = "\
import mmap, os, sys, time
size = int(sys.argv[1]) << 20
memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, size, 4096):
    memory[at] = 1
view = memoryview(memory)
for _ in range(int(sys.argv[2])):
    start = time.perf_counter_ns()
    child = os.fork()
    if child == 0:
        file = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        at = 0
        while at < size:
            at += os.write(file, view[at:at + (8 << 20)])
        os._exit(0)
    forked = time.perf_counter_ns() - start
    status = os.waitpid(child, 0)[1]
    if status:
        sys.exit('the copy failed')
    print(forked, time.perf_counter_ns() - start)
    os.unlink(sys.argv[3])
";

/// Measures it.
pub(in crate::bench) fn run(lab: &Lab<'_>, section: &mut Section) -> Result<(), BenchError> {
    let title = "a process dumped from a fork(2) of it, by memory in use";
    let mut group = Group::new(title, Layout::Percentiles);
    for &mib in &MEMORY[..lab.pick(MEMORY.len(), 1)] {
        let what = format!("fork(2), {mib} MiB");
        let times = lab.attempt(section, &what, || {
            lab.has_room_for(u64::from(mib) << 20).map_err(say_why)?;
            dumps(lab, mib)
        })?;
        if let Some((forks, written)) = times {
            group.add(format!("{mib} MiB, fork (it stands still)"), None, &forks);
            group.add(format!("{mib} MiB, written"), None, &written);
        }
    }
    section.group(group);
    Ok(())
}

fn dumps(lab: &Lab<'_>, mib: u32) -> Result<(Times, Times), BenchError> {
    let room = lab.room("fork")?;
    let output = Command::new(program("python3", "python3")?)
        .args(["-c", PROGRAM, &mib.to_string()])
        .arg(lab.pick(SAMPLES.0, SAMPLES.1).to_string())
        .arg(room.path().join("dump"))
        .stdin(Stdio::null())
        .output()
        .step("run python3")?;
    if !output.status.success() {
        let what = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(BenchError::Wrong { what });
    }
    let [mut forks, mut written] = [Times::default(), Times::default()];
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut ns = line.split_whitespace().map(str::parse);
        let (Some(Ok(fork)), Some(Ok(all))) = (ns.next(), ns.next()) else {
            let what = format!("python3 printed {line:?}");
            return Err(BenchError::Wrong { what });
        };
        forks.record(Duration::from_nanos(fork));
        written.record(Duration::from_nanos(all));
    }
    Ok((forks, written))
}
