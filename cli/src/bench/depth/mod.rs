//! Whether reading gets slower when the chain of snapshots below gets longer.

mod operation;

use std::path::PathBuf;
use std::sync::Arc;

use floe_fs::attr::FileKind;
use floe_fs::dispatch::{Dispatch, Write};
use floe_fs::id::Ino;
use floe_fs::{NewContents, SnapshotOptions, Store};

use super::error::{BenchError, Step};
use super::fill::{Noise, new_file};
use super::goal::Goal;
use super::lab::Lab;
use super::report::{Group, Layout, Section};
use super::rig::{Mounted, WORKSPACE, new_store, workspace_name};
use super::room::Room;
use super::stats::{Times, grouped};
use operation::Operation;

const ABOUT: &str = "\
Median time of an operation on the oldest file of a workspace, by the number of snapshots below.
Each depth has a store of its own; every snapshot froze one changed file in another directory. The
depths take turns. Cold: the view is new and, through a mount, the mount too, so that neither
engine nor kernel has anything cached (the catalog's pages stay in the host's memory).";

const DEPTHS: ([u64; 5], [u64; 4]) = ([1, 10, 100, 1_000, 10_000], [1, 10, 100, 1_000]);
const ROUNDS: (u64, u64) = (300, 20);
/// Rounds between two times that a store is closed and opened again.
const REOPEN: u64 = 10;
/// Files in the directory of the oldest file, and in the one that changes.
const OLD: u64 = 100;
const CHANGING: u64 = 100;
/// Bytes of the two oldest files: one lies in the catalog, one in an object.
const SMALL: usize = 4 << 10;
const LARGE: usize = 64 << 10;

/// Circumstances of an operation.
const WAYS: [&str; 4] = ["engine, cold", "engine, warm", "mount, cold", "mount, warm"];

/// A store with a chain of some length, and what was measured on it.
struct Chain {
    depth: u64,
    /// Closed while it is opened again.
    store: Option<Arc<Store>>,
    room: Room,
    mount_point: PathBuf,
    times: [[Times; Operation::ALL.len()]; WAYS.len()],
    opening: Times,
}

/// Runs the bench.
pub(super) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    lab.section(Section::new("depth", ABOUT), |section| {
        let depths: Vec<u64> = if lab.quick {
            DEPTHS.1.to_vec()
        } else {
            DEPTHS.0.to_vec()
        };
        let mut chains = Vec::new();
        for depth in depths {
            chains.push(Chain::new(lab, depth)?);
        }
        let rounds = lab.pick(ROUNDS.0, ROUNDS.1);
        for round in 0..rounds {
            lab.say(&format!("depths, round {} of {rounds}", round + 1));
            for chain in &mut chains {
                if round % REOPEN == 0 {
                    chain.reopen()?;
                }
                chain.measure(lab)?;
            }
        }
        report(section, &chains);
        Ok(())
    })
}

impl Chain {
    fn new(lab: &Lab<'_>, depth: u64) -> Result<Self, BenchError> {
        lab.say(&format!("making a chain of {} snapshots", grouped(depth)));
        let room = lab.room("depth")?;
        let store = new_store(&room)?;
        let changing = fill(&store)?;
        let view = store.open_live(WORKSPACE).step("open the workspace")?;
        for number in 0..depth {
            lab.check()?;
            let at = usize::try_from(number % CHANGING).unwrap_or(0);
            let data = format!("changed before snapshot {number}");
            let write = Write {
                offset: 0,
                data: data.as_bytes(),
                append: false,
                kill_set_id: false,
            };
            view.write(changing[at], write).step("change a file")?;
            store
                .snapshot(WORKSPACE, &SnapshotOptions::default())
                .step("take a snapshot")?;
        }
        store.close_view(&view);
        let found = store.info().step("look at the store")?.snapshots;
        if found != depth {
            return Err(BenchError::Wrong {
                what: format!("the chain has {found} snapshots instead of {depth}"),
            });
        }
        store.sync().step("sync the store")?;
        Ok(Self {
            depth,
            store: Some(store),
            mount_point: room.dir("mnt").step("make a mount point")?,
            room,
            times: Default::default(),
            opening: Times::default(),
        })
    }

    fn reopen(&mut self) -> Result<(), BenchError> {
        self.store = None;
        let dir = self.room.path().join("store");
        let opened = self.opening.time(|| Store::open(&dir));
        self.store = Some(opened.step("open the store again")?);
        Ok(())
    }

    fn measure(&mut self, lab: &Lab<'_>) -> Result<(), BenchError> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        let mut buffer = Vec::with_capacity(LARGE);
        let mut page = [0; SMALL];
        for (at, operation) in Operation::ALL.into_iter().enumerate() {
            lab.check()?;
            let view = store.open_live(WORKSPACE).step("open the workspace")?;
            for way in [0, 1] {
                self.times[way][at]
                    .time(|| operation.on_view(&view, &mut buffer))
                    .step(operation.name())?;
            }
            store.close_view(&view);
            drop(view);
            let mounted = Mounted::live(store, WORKSPACE, &self.mount_point)?;
            for way in [2, 3] {
                self.times[way][at]
                    .time(|| operation.on_mount(mounted.dir(), &mut page))
                    .step(operation.name())?;
            }
        }
        Ok(())
    }
}

/// Makes the workspace: a directory that stays as it is, and one whose files change. Returns those.
fn fill(store: &Store) -> Result<Vec<Ino>, BenchError> {
    let adding = "add a file";
    let name = workspace_name(WORKSPACE)?;
    let mut builder = store.build_workspace(&name).step("begin a workspace")?;
    let mut add = |parent: Ino, name: &str, kind: FileKind, data: &[u8]| {
        let file = new_file(kind);
        let added = builder.add(parent, name.as_bytes(), &file, NewContents::Bytes(data));
        added.step(adding).map(|(ino, _)| ino)
    };
    let mut data = vec![0; LARGE];
    Noise::new(0).fill(&mut data);
    let old = add(Ino::ROOT, "old", FileKind::Directory, b"")?;
    add(old, "small", FileKind::File, &data[..SMALL])?;
    add(old, "large", FileKind::File, &data)?;
    for number in 2..OLD {
        add(old, &format!("f{number}"), FileKind::File, b"old")?;
    }
    let elsewhere = add(Ino::ROOT, "elsewhere", FileKind::Directory, b"")?;
    let mut changing = Vec::new();
    for number in 0..CHANGING {
        changing.push(add(
            elsewhere,
            &format!("f{number}"),
            FileKind::File,
            b"new",
        )?);
    }
    builder.finish().step("finish the workspace")?;
    Ok(changing)
}

fn report(section: &mut Section, chains: &[Chain]) {
    for (way, name) in WAYS.into_iter().enumerate() {
        let mut group = Group::new(name, Layout::Medians);
        for (at, operation) in Operation::ALL.into_iter().enumerate() {
            for chain in chains {
                group.add(operation.name(), Some(chain.depth), &chain.times[way][at]);
            }
        }
        let last = chains.last().map_or(0, |chain| chain.depth);
        let promise = format!("{name}: depth {} within 1.2x of depth 1", grouped(last));
        section
            .goals
            .push(Goal::ratio(promise, 1.2, ratios(&group)));
        section.groups.push(group);
    }
    let mut opening = Group::new("opening the store", Layout::Medians);
    for chain in chains {
        opening.add("open", Some(chain.depth), &chain.opening);
    }
    section.groups.push(opening);
}

/// Medians of each operation at the first and at the last depth.
fn ratios(group: &Group) -> Vec<(&'static str, u64, u64)> {
    let all = Operation::ALL.into_iter();
    let ratios = all.filter_map(|operation| {
        let mut found = group.series.iter().filter(|s| s.case == operation.name());
        let first = found.next()?.summary.p50_ns;
        let last = found.next_back()?.summary.p50_ns;
        Some((operation.name(), first, last))
    });
    ratios.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_works_on_a_view_of_a_chain() {
        let dir = tempfile::tempdir().unwrap();
        let lab = Lab::new(dir.path(), true, None, &|_| ()).unwrap();
        let mut chain = Chain::new(&lab, 3).unwrap();
        chain.reopen().unwrap();
        assert_eq!(chain.opening.samples(), 1);
        let view = chain.store.as_ref().unwrap().open_live(WORKSPACE).unwrap();
        for operation in Operation::ALL {
            operation.on_view(&view, &mut Vec::new()).unwrap();
        }
    }
}
