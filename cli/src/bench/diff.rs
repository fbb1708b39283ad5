//! Whether finding ten changes takes longer where there are more files.

use std::path::Path;
use std::process::Command;

use floe_fs::dispatch::{Caller, Dispatch, NewNode, RenameFlags, Write};
use floe_fs::id::Ino;
use floe_fs::{DiffOptions, DiffSide, SnapshotOptions, View, attr::FileKind};

use super::error::{BenchError, Step};
use super::fill::{plain_tree, tree};
use super::goal::Goal;
use super::lab::Lab;
use super::peers::{program, run as run_program};
use super::report::{Group, Layout, Section};
use super::rig::{WORKSPACE, new_store};
use super::stats::{Times, grouped};

const ABOUT: &str = "\
Time to find what differs between a snapshot and the workspace of it, by the number of files, of
which ten were changed: written to, removed, made, renamed. Peers compare two copies of the tree,
nothing of which has to be read from disk.";

const SIZES: ([u64; 3], [u64; 2]) = ([1_000, 100_000, 1_000_000], [100, 1_000]);
/// The largest tree that peers compare.
const PEERS_MAX: u64 = 100_000;
const SAMPLES: (u64, u64) = (500, 20);
const PEER_SAMPLES: (u64, u64) = (5, 2);
const CHANGES: usize = 10;
const FLOE: &str = "floe diff";

/// Runs the bench.
pub(super) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    lab.section(Section::new("diff", ABOUT), |section| {
        let sizes: &[u64] = if lab.quick { &SIZES.1 } else { &SIZES.0 };
        let mut group = Group::new("ten changes", Layout::Medians);
        for &files in sizes {
            group.add(FLOE, Some(files), &measure(lab, files)?);
        }
        let p50 = |files| {
            let of = |series: &&super::report::Series| series.at == Some(files);
            let found = group.series.iter().find(of);
            found.map(|series| series.summary.p50_ns)
        };
        let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
        let promise = format!("at {} files within 2x of {}", grouped(last), grouped(first));
        let both = p50(first).zip(p50(last));
        section.goals.push(Goal::ratio(
            promise,
            2.0,
            both.map(|(first, last)| ("p50", first, last)),
        ));
        for &files in sizes.iter().filter(|&&files| files <= PEERS_MAX) {
            peers(lab, section, &mut group, files)?;
        }
        section.groups.push(group);
        Ok(())
    })
}

fn measure(lab: &Lab<'_>, files: u64) -> Result<Times, BenchError> {
    let room = lab.room("diff")?;
    let store = new_store(&room)?;
    tree(lab, &store, files)?;
    let taken = store.snapshot(WORKSPACE, &SnapshotOptions::default());
    let before = DiffSide::Snapshot(taken.step("take a snapshot")?.id);
    let view = store.open_live(WORKSPACE).step("open the workspace")?;
    change(&view)?;
    store.close_view(&view);
    store.sync().step("sync the store")?;
    let now = DiffSide::Workspace(WORKSPACE.to_owned());
    let mut times = Times::default();
    lab.say(&format!("diff of {} files", grouped(files)));
    for _ in 0..lab.pick(SAMPLES.0, SAMPLES.1) {
        lab.check()?;
        let found = times.time(|| store.diff(&before, &now, &DiffOptions::default()));
        let found = found.step("compare")?.len();
        if found != CHANGES {
            return Err(BenchError::Wrong {
                what: format!("{found} differences were found instead of {CHANGES}"),
            });
        }
    }
    Ok(times)
}

/// Ten changes in the first directory.
fn change(view: &View) -> Result<(), BenchError> {
    let caller = Caller { uid: 0, gid: 0 };
    let look_up = |parent: Ino, name: &str| {
        let found = view.lookup(parent, name.as_bytes()).step("look up")?;
        let missing = || BenchError::Wrong {
            what: format!("there is no {name}"),
        };
        found.map(|entry| entry.ino).ok_or_else(missing)
    };
    let dir = look_up(Ino::ROOT, "d0000")?;
    for number in 0..4 {
        let write = Write {
            offset: 0,
            data: b"changed",
            append: false,
            kill_set_id: false,
        };
        let file = look_up(dir, &name(number))?;
        view.write(file, write).step("write to a file")?;
    }
    for number in 4..6 {
        view.unlink(dir, name(number).as_bytes())
            .step("remove a file")?;
    }
    for number in 6..8 {
        let (from, to) = (name(number), format!("renamed{number}"));
        let flags = RenameFlags::default();
        view.rename((dir, from.as_bytes()), (dir, to.as_bytes()), flags)
            .step("rename a file")?;
    }
    for number in 8..CHANGES {
        let new = NewNode {
            kind: FileKind::File,
            perm: 0o644,
            umask: 0,
            rdev: 0,
            target: b"",
        };
        view.make(caller, dir, format!("new{number}").as_bytes(), new)
            .step("make a file")?;
    }
    Ok(())
}

fn name(number: usize) -> String {
    format!("f{number:07}")
}

/// Two ordinary directories, compared by git and by diff.
fn peers(
    lab: &Lab<'_>,
    section: &mut Section,
    group: &mut Group,
    files: u64,
) -> Result<(), BenchError> {
    let room = lab.room("copies")?;
    let (a, b) = (room.path().join("a"), room.path().join("b"));
    lab.say("making two ordinary directories");
    plain_tree(lab, &a, files)?;
    plain_tree(lab, &b, files)?;
    change_plainly(&b.join("d0000"))?;
    // Both say by status 1 that there are differences.
    let ways = [
        (
            "git diff --no-index",
            "git",
            "git diff --no-index --name-status",
        ),
        ("diff -rq", "diffutils", "diff -rq"),
    ];
    for (case, package, command) in ways {
        let times = lab.attempt(section, case, || {
            program(command.split(' ').next().unwrap_or(command), package)?;
            let mut times = Times::default();
            for _ in 0..lab.pick(PEER_SAMPLES.0, PEER_SAMPLES.1) {
                lab.check()?;
                let script = format!("{command} \"$0\" \"$1\"; test $? = 1");
                let mut shell = Command::new("sh");
                shell.args(["-c", &script]).arg(&a).arg(&b);
                times.time(|| run_program(&mut shell))?;
            }
            Ok(times)
        })?;
        if let Some(times) = times {
            group.add(case, Some(files), &times);
        }
    }
    Ok(())
}

fn change_plainly(dir: &Path) -> Result<(), BenchError> {
    let changing = "change a file";
    for number in 0..4 {
        std::fs::write(dir.join(name(number)), "changed").step(changing)?;
    }
    for number in 4..6 {
        std::fs::remove_file(dir.join(name(number))).step(changing)?;
    }
    for number in 6..8 {
        let to = dir.join(format!("renamed{number}"));
        std::fs::rename(dir.join(name(number)), to).step(changing)?;
    }
    for number in 8..CHANGES {
        std::fs::write(dir.join(format!("new{number}")), "").step(changing)?;
    }
    Ok(())
}
