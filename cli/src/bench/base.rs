//! How long it takes to begin on a directory in place, and how long the first look at it takes.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use floe_fs::BaseDir;

use super::error::{BenchError, Step};
use super::goal::Goal;
use super::lab::Lab;
use super::peers;
use super::report::{Group, Layout, Section};
use super::rig::{Mounted, new_store, workspace_name};
use super::stats::{Times, grouped};

const ABOUT: &str = "\
Time to make a workspace over a directory in place, by the number of files in it; and of the first
`git status` there against one in the directory itself, each with nothing in the caches of names
but what git left before.";

const FILES: ([u64; 2], [u64; 2]) = ([100, 200_000], [100, 1_000]);
/// Workspaces made over each.
const SAMPLES: (u64, u64) = (200, 5);
/// Files of the repository, and in each of its directories.
const TRACKED: (u64, u64) = (20_000, 200);
const GROUP: u64 = 100;
/// First looks.
const LOOKS: (u64, u64) = (5, 1);

/// Runs the bench.
pub(super) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    lab.section(Section::new("base", ABOUT), |section| {
        let mut made = Group::new("files in the directory", Layout::Percentiles);
        let mut medians = Vec::new();
        for files in lab.pick(FILES.0, FILES.1) {
            let times = make(lab, files)?;
            made.add(grouped(files), Some(files), &times);
            let last = made.series.last().map(|series| series.summary.p50_ns);
            medians.extend(last);
        }
        if let [few, many] = medians[..] {
            section.goals.push(Goal::ratio(
                "as fast over many files as over few (p50) <= 1.5x",
                1.5,
                [("p50", few, many)],
            ));
            section.goals.push(Goal::time(
                "a workspace over a directory in place p50 < 10 ms",
                Duration::from_millis(10),
                [("p50", few.max(many))],
            ));
        }
        section.groups.push(made);
        let looked = lab.attempt(section, "git status", || look(lab))?;
        section.groups.extend(looked);
        Ok(())
    })
}

fn make(lab: &Lab<'_>, files: u64) -> Result<Times, BenchError> {
    let room = lab.room("base")?;
    let dir = room.dir("host").step("make a directory")?;
    fill(lab, &dir, files)?;
    let store = new_store(&room)?;
    lab.say(&format!("workspaces over {} files", grouped(files)));
    let mut times = Times::default();
    for number in 0..lab.pick(SAMPLES.0, SAMPLES.1) {
        lab.check()?;
        let name = workspace_name(&format!("w{number}"))?;
        let dirs = [at_root(&dir)];
        times
            .time(|| store.create_workspace_from(&name, &dirs, ""))
            .step("make a workspace")?;
    }
    Ok(times)
}

fn at_root(dir: &Path) -> BaseDir {
    BaseDir {
        dir: dir.to_owned(),
        at: PathBuf::from("/"),
    }
}

fn fill(lab: &Lab<'_>, dir: &Path, files: u64) -> Result<(), BenchError> {
    lab.say(&format!("writing {} files", grouped(files)));
    for number in 0..files {
        let group = dir.join(format!("d{}", number / GROUP));
        if number % GROUP == 0 {
            lab.check()?;
            fs::create_dir(&group).step("make a directory")?;
        }
        let mut file = File::create(group.join(format!("f{number}"))).step("make a file")?;
        writeln!(file, "file {number}").step("write a file")?;
    }
    Ok(())
}

/// `git status` for the first time in a new workspace, and in the directory.
fn look(lab: &Lab<'_>) -> Result<Group, BenchError> {
    let git = peers::program("git", "git")?;
    let git = |dir: &Path, args: &[&str]| {
        let mut command = Command::new(&git);
        command.arg("-C").arg(dir).args(["-c", "safe.directory=*"]);
        command.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"]);
        // Looking must not write the index anew.
        command.args(args).env("GIT_OPTIONAL_LOCKS", "0");
        peers::run(&mut command)
    };
    let files = lab.pick(TRACKED.0, TRACKED.1);
    let room = lab.room("status")?;
    let dir = room.dir("host").step("make a directory")?;
    fill(lab, &dir, files)?;
    git(&dir, &["init", "-q"])?;
    git(&dir, &["add", "-A"])?;
    git(&dir, &["commit", "-q", "-m", "all"])?;
    let store = new_store(&room)?;
    let mount = room.dir("mnt").step("make a directory")?;
    let (mut first, mut again, mut itself) = (Times::default(), Times::default(), Times::default());
    lab.say("looking at it with git");
    for number in 0..lab.pick(LOOKS.0, LOOKS.1) {
        lab.check()?;
        let name = format!("w{number}");
        let dirs = [at_root(&dir)];
        store
            .create_workspace_from(&workspace_name(&name)?, &dirs, "")
            .step("make a workspace")?;
        let mounted = Mounted::live(&store, &name, &mount)?;
        first.time(|| git(mounted.dir(), &["status", "--short"]))?;
        again.time(|| git(mounted.dir(), &["status", "--short"]))?;
        drop(mounted);
        itself.time(|| git(&dir, &["status", "--short"]))?;
    }
    let title = format!("git status, {} files", grouped(files));
    let mut group = Group::new(title, Layout::Percentiles);
    group.add("first in a new workspace", None, &first);
    group.add("once more", None, &again);
    group.add("in the directory", None, &itself);
    Ok(group)
}
