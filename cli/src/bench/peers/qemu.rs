//! QEMU, which writes a machine's memory to a file by migrating it there.
//!
//! Its guest is firmware that finds nothing to boot, with a file loaded into most of its memory: pages that are not
//! zeros, of a guest that writes nothing, so the least that a migration can take. It emulates the processor, as a KVM
//! need not be able to run firmware; writing memory down is the same work.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{program, say_why};
use crate::bench::error::{BenchError, Step};
use crate::bench::lab::Lab;
use crate::bench::report::{Group, Layout, Section};
use crate::bench::room::Room;
use crate::bench::stats::Times;

/// Memory, in MiB.
const MEMORY: [u32; 3] = [128, 512, 2048];
const SAMPLES: (u32, u32) = (10, 2);
/// Memory that firmware uses, or that is not in one piece, in MiB.
const NOT_FILLED: u32 = 32;
/// Longest wait for anything.
const LONG: Duration = Duration::from_secs(120);
/// Where a machine is written to, in its directory.
const MIGRATED: &str = "migrated";
/// How long to rest before looking again.
const REST: Duration = Duration::from_millis(1);

/// Measures it.
pub(in crate::bench) fn run(
    lab: &Lab<'_>,
    section: &mut Section,
    room: &Room,
) -> Result<(), BenchError> {
    let title = "QEMU, an idle machine migrated to a file, by memory";
    let mut group = Group::new(title, Layout::Percentiles);
    for &mib in &MEMORY[..lab.pick(MEMORY.len(), 1)] {
        let times = lab.attempt(section, &format!("QEMU, {mib} MiB"), || {
            lab.has_room_for(u64::from(mib) << 21).map_err(say_why)?;
            let machine = Qemu::start(lab, room.path(), mib)?;
            migrations(lab, room.path(), machine)
        })?;
        if let Some((stands, all)) = times {
            group.add(format!("{mib} MiB, stands still"), None, &stands);
            group.add(format!("{mib} MiB, written"), None, &all);
        }
    }
    section.group(group);
    Ok(())
}

/// How long it stood still each time, and how long all of it took.
fn migrations(lab: &Lab<'_>, dir: &Path, mut machine: Qemu) -> Result<(Times, Times), BenchError> {
    let [mut stands, mut all] = [Times::default(), Times::default()];
    for _ in 0..lab.pick(SAMPLES.0, SAMPLES.1) {
        lab.check()?;
        let (stood, took) = machine.migrate()?;
        stands.record(stood);
        all.record(took);
        std::fs::remove_file(dir.join(MIGRATED)).step("remove what QEMU wrote")?;
    }
    Ok((stands, all))
}

/// A machine of QEMU's. Dropped, it is ended.
struct Qemu {
    process: Child,
    control: BufReader<UnixStream>,
}

impl Qemu {
    fn start(lab: &Lab<'_>, dir: &Path, mib: u32) -> Result<Self, BenchError> {
        let qemu = program("qemu-system-x86_64", "qemu-system-x86")?;
        let (filling, socket) = (dir.join("filling"), dir.join("qmp"));
        fill(&filling, mib.saturating_sub(NOT_FILLED))?;
        let process = Command::new(qemu)
            .args(["-machine", "pc", "-accel", "tcg", "-display", "none"])
            .args(["-nodefaults", "-no-user-config", "-m", &mib.to_string()])
            .arg("-device")
            .arg(format!(
                "loader,file={},addr=0x1800000,force-raw=on",
                filling.display()
            ))
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", socket.display()))
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .step("start QEMU")?;
        let mut starting = Ending(Some(process));
        let give_up = Instant::now() + LONG;
        let stream = loop {
            lab.check()?;
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > give_up || starting.has_ended() => {
                    return Err(error).step("talk to QEMU");
                }
                Err(_) => std::thread::sleep(REST),
            }
        };
        stream.set_read_timeout(Some(LONG)).step("talk to QEMU")?;
        let process = starting.0.take();
        let process = process.ok_or_else(|| say_why("QEMU has ended".to_owned()))?;
        let mut machine = Self {
            process,
            control: BufReader::new(stream),
        };
        machine.call("qmp_capabilities", json!({}))?;
        // Its own limit is that of a network.
        let limits = json!({"max-bandwidth": 1u64 << 40});
        machine.call("migrate-set-parameters", limits)?;
        std::fs::remove_file(&socket).step("remove a socket")?;
        std::fs::remove_file(&filling).step("remove a file")?;
        Ok(machine)
    }

    /// Writes the machine to a file, and lets it go on. How long it stood still, by its own account and until it was
    /// let go, and how long all of it took.
    fn migrate(&mut self) -> Result<(Duration, Duration), BenchError> {
        let start = Instant::now();
        let uri = format!("exec:exec cat >{MIGRATED}");
        self.call("migrate", json!({"uri": uri}))?;
        let (all, downtime) = loop {
            let state = self.call("query-migrate", json!({}))?;
            match state["status"].as_str() {
                Some("completed") => {
                    let downtime = state["downtime"].as_u64().unwrap_or(0);
                    break (start.elapsed(), Duration::from_millis(downtime));
                }
                Some("failed" | "cancelled") | None => {
                    return Err(say_why(format!("QEMU does not migrate: {state}")));
                }
                Some(_) => std::thread::sleep(REST),
            }
        };
        let held = Instant::now();
        self.call("cont", json!({}))?;
        Ok((downtime + held.elapsed(), all))
    }

    fn call(&mut self, command: &str, arguments: Value) -> Result<Value, BenchError> {
        let line = json!({"execute": command, "arguments": arguments}).to_string() + "\n";
        let sent = self.control.get_ref().write_all(line.as_bytes());
        sent.step("talk to QEMU")?;
        loop {
            let mut line = String::new();
            if self.control.read_line(&mut line).step("hear QEMU")? == 0 {
                return Err(say_why("QEMU has ended".to_owned()));
            }
            let answer: Value = serde_json::from_str(&line).step("understand QEMU")?;
            if let Some(error) = answer.get("error") {
                return Err(say_why(format!("QEMU refuses {command}: {error}")));
            }
            if let Some(answer) = answer.get("return") {
                return Ok(answer.clone());
            }
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

/// One that has not answered yet.
struct Ending(Option<Child>);

impl Ending {
    fn has_ended(&mut self) -> bool {
        let process = self.0.as_mut();
        process.is_none_or(|process| !matches!(process.try_wait(), Ok(None)))
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(process) = &mut self.0 {
            end(process);
        }
    }
}

fn end(process: &mut Child) {
    if let Err(error) = process.kill().and_then(|()| process.wait()) {
        tracing::warn!(%error, "cannot end QEMU");
    }
}

/// A file of bytes that are not zeros.
fn fill(path: &Path, mib: u32) -> Result<(), BenchError> {
    let mut file = File::create(path).step("write a file")?;
    let piece = vec![0x5a; 1 << 20];
    (0..mib)
        .try_for_each(|_| file.write_all(&piece))
        .step("write a file")
}
