//! Snapshots as programs outside see them: with files open and mapped, through the daemon, and other
//! ways to keep the state of a tree.

use std::process::Stdio;
use std::time::Instant;

use super::{BUDGET, SAMPLES, TOUCHED, TURN, change_mode};
use crate::bench::error::{BenchError, Step};
use crate::bench::fill::{large_file, tree};
use crate::bench::lab::Lab;
use crate::bench::load::Mapper;
use crate::bench::peers::{btrfs, copies};
use crate::bench::report::{Group, Layout, Section};
use crate::bench::rig::{Rig, WORKSPACE, new_store};
use crate::bench::server::Server;
use crate::bench::stats::{Times, grouped};
use crate::output::size;
use crate::wire::{Mount, TakeSnapshot};

/// Files that another process has open, and bytes of each.
const OPEN_FILES: u64 = 16;
const OPEN_BYTES: u64 = 256 << 10;

/// Snapshots while another process has files open for writing, and has changed mapped pages of
/// them that the kernel has not written back.
pub(super) fn open_files(
    lab: &Lab<'_>,
    section: &mut Section,
    rig: &Rig,
) -> Result<(), BenchError> {
    let title = format!("{OPEN_FILES} files open for writing and mapped by a program");
    let measured = lab.attempt(section, &title, || {
        let dir = rig.path("open");
        std::fs::create_dir(&dir).step("make a directory")?;
        let mut paths = Vec::new();
        for number in 0..OPEN_FILES {
            let path = dir.join(number.to_string());
            large_file(lab, &path, OPEN_BYTES)?;
            paths.push(path);
        }
        let mut mapper = Mapper::start(&paths)?;
        let mut group = Group::new(&*title, Layout::Percentiles);
        for pages in [0, 1, 16] {
            let mut times = Times::default();
            let give_up = Instant::now() + BUDGET;
            for number in 0..lab.pick(500, TURN) {
                lab.check()?;
                if pages > 0 {
                    mapper.change(pages)?;
                } else {
                    change_mode(&rig.path(TOUCHED), number)?;
                }
                times.time(|| rig.snapshot())?;
                if Instant::now() > give_up {
                    break;
                }
            }
            let dirty = size(OPEN_FILES * pages * 4096);
            group.add(format!("{dirty} dirty"), None, &times);
        }
        Ok(group)
    })?;
    section.groups.extend(measured);
    Ok(())
}

/// What a client waits for: through the daemon's socket, and through a `floe` process.
pub(super) fn clients(lab: &Lab<'_>, section: &mut Section, files: u64) -> Result<(), BenchError> {
    let title = format!("{} files, as a client waits for it", grouped(files));
    let Some(program) = lab.floe.clone() else {
        section.skip(title, "the `floe` program is not known; see $FLOE_BIN");
        return Ok(());
    };
    let measured = lab.attempt(section, &title, || {
        let room = lab.room("client")?;
        let store = new_store(&room)?;
        tree(lab, &store, files)?;
        store.sync().step("sync the store")?;
        drop(store);
        let server = Server::start(&program, &room.path().join("store"))?;
        let mut client = server.connect()?;
        let mounted = client.call(Mount {
            target: WORKSPACE.to_owned(),
            dir: None,
            read_only: false,
        });
        let touched = mounted
            .step("mount the workspace")?
            .dir
            .to_path()
            .join(TOUCHED);
        std::fs::write(&touched, "touched").step("write a file")?;
        let request = TakeSnapshot {
            workspace: WORKSPACE.to_owned(),
            ..TakeSnapshot::default()
        };
        let mut socket = Times::default();
        for number in 0..lab.pick(SAMPLES.0, SAMPLES.1) {
            lab.check()?;
            change_mode(&touched, number)?;
            socket
                .time(|| client.call(request.clone()))
                .step("take a snapshot")?;
        }
        let mut process = Times::default();
        for number in 0..lab.pick(200, 20) {
            lab.check()?;
            change_mode(&touched, number)?;
            let mut command = server.command(&["snapshot", WORKSPACE]);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let status = process.time(|| command.status()).step("run floe")?;
            if !status.success() {
                return Err(BenchError::Wrong {
                    what: format!("`floe snapshot` ended with {status}"),
                });
            }
        }
        let mut group = Group::new(&*title, Layout::Percentiles);
        group.add("request on the daemon's socket", None, &socket);
        group.add("`floe snapshot`, from start to end", None, &process);
        Ok(group)
    })?;
    section.groups.extend(measured);
    Ok(())
}

/// Other ways to keep the state of a tree of the same files.
pub(super) fn peers(lab: &Lab<'_>, section: &mut Section, files: u64) -> Result<(), BenchError> {
    let mut group = Group::new(
        format!("{} files, other ways", grouped(files)),
        Layout::Percentiles,
    );
    copies::measure(lab, section, &mut group, files)?;
    btrfs::measure(lab, section, &mut group, files)?;
    section.groups.push(group);
    section.notes.push(
        "the other ways run a program for each sample, as `floe snapshot` does; cp and tar copy \
         while the tree may change, and cp -al shares later writes, so neither is a snapshot"
            .to_owned(),
    );
    Ok(())
}
