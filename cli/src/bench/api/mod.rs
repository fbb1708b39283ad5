//! How long the calls of the HTTP API take, as an SDK sees them.

mod served;

use std::process::{Command, Stdio};

use serde_json::json;

use super::error::{BenchError, Step};
use super::lab::Lab;
use super::report::{Group, Layout, Section};
use super::stats::Times;
use served::Served;

const ABOUT: &str = "\
Time from sending a request to having read the whole answer, over loopback on one kept connection, \
from a client in another process. Sandboxes start from the template `base`. `exec` runs /bin/true and \
waits for its end; `create` answers when the agent does; `snapshot` is of a sandbox in which \
a program writes to a file all the time.";

/// Sandboxes that are there meanwhile, and do nothing.
const OTHERS: [usize; 3] = [0, 10, 50];
/// Samples of each call.
const SAMPLES: (u64, u64) = (200, 10);
/// A program that writes all the time.
const WRITER: &str = "while :; do echo x >> /workspace/log; done";

/// Runs the bench.
pub(super) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    lab.section(Section::new("api", ABOUT), |section| {
        if !rustix::process::geteuid().is_root() {
            section.skip("all of it", "sandboxes need root");
            return Ok(());
        }
        let Some(floe) = &lab.floe else {
            section.skip("all of it", "there is no program to start");
            return Ok(());
        };
        let room = lab.room("api")?;
        let served = Served::start(floe, room.path())?;
        // The first one makes the template.
        let first = served.create()?;
        kill(&served, &first)?;
        let others: &[usize] = if lab.quick { &OTHERS[..2] } else { &OTHERS };
        let mut idle = Vec::new();
        for &count in others {
            while idle.len() < count {
                lab.check()?;
                idle.push(served.create()?);
            }
            let group = calls(lab, &served, count)?;
            section.groups.push(group);
        }
        for id in &idle {
            kill(&served, id)?;
        }
        drop(served);
        peers(lab, section)
    })
}

fn kill(served: &Served, id: &str) -> Result<(), BenchError> {
    let path = format!("/sandboxes/{id}");
    served.call("DELETE", &path, &json!(null), 204).map(drop)
}

/// Every call, with so many other sandboxes.
fn calls(lab: &Lab<'_>, served: &Served, others: usize) -> Result<Group, BenchError> {
    lab.say(&format!("calls beside {others} sandboxes"));
    let [mut made, mut ran, mut taken, mut forked, mut killed] =
        std::array::from_fn(|_| Times::default());
    let writing = served.create()?;
    served.begin(&writing, WRITER)?;
    for _ in 0..lab.pick(SAMPLES.0, SAMPLES.1) {
        lab.check()?;
        let id = made.time(|| served.create())?;
        ran.time(|| served.run(&id, "/bin/true"))?;
        let path = format!("/sandboxes/{writing}/snapshots");
        let snapshot = taken.time(|| served.call("POST", &path, &json!({}), 201))?;
        let path = format!("/sandboxes/{id}/fork");
        let request = json!({"count": 1, "timeout": 60});
        let forks = forked.time(|| served.call("POST", &path, &request, 201))?;
        killed.time(|| kill(served, &id))?;
        for fork in forks.as_array().into_iter().flatten() {
            let fork = fork
                .pointer("/sandbox/sandboxID")
                .and_then(|id| id.as_str());
            kill(served, fork.unwrap_or_default())?;
        }
        let snapshot = snapshot.get("snapshotID").and_then(|id| id.as_str());
        let path = format!("/templates/{}", snapshot.unwrap_or_default());
        served.call("DELETE", &path, &json!(null), 204)?;
    }
    kill(served, &writing)?;
    let mut group = Group::new(format!("beside {others} sandboxes"), Layout::Percentiles);
    let all = [
        ("create", made),
        ("exec", ran),
        ("snapshot", taken),
        ("fork", forked),
        ("kill", killed),
    ];
    for (case, times) in all {
        group.add(case, None, &times);
    }
    Ok(group)
}

/// What starting a program takes without Floe.
fn peers(lab: &Lab<'_>, section: &mut Section) -> Result<(), BenchError> {
    let mut group = Group::new("starting a program by other means", Layout::Percentiles);
    let cases: [(&str, &[&str]); 2] = [
        ("a process, without a sandbox", &["/bin/true"]),
        (
            "bubblewrap on the host's root, read-only",
            &[
                "bwrap",
                "--unshare-all",
                "--ro-bind",
                "/",
                "/",
                "--proc",
                "/proc",
                "--dev",
                "/dev",
                "/bin/true",
            ],
        ),
    ];
    for (case, words) in cases {
        let times = lab.attempt(section, case, || {
            let mut times = Times::default();
            for _ in 0..lab.pick(SAMPLES.0, SAMPLES.1) {
                lab.check()?;
                let mut command = Command::new(words[0]);
                command
                    .args(&words[1..])
                    .stdin(Stdio::null())
                    .stdout(Stdio::null());
                let status = times
                    .time(|| command.status())
                    .step(format!("run {}", words[0]))?;
                if !status.success() {
                    let what = format!("{} ended with {status}", words[0]);
                    return Err(BenchError::Wrong { what });
                }
            }
            Ok(times)
        })?;
        if let Some(times) = times {
            group.add(case, None, &times);
        }
    }
    section.groups.push(group);
    Ok(())
}
