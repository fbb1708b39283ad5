//! Snapshots, forks, deletions and rollbacks that are under way when the daemon is killed, of a
//! workspace whose whole state is one number.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use floe_harness::TestStore;
use floe_harness::random::Random;

use super::work::Work;

/// Commands on one workspace, each acknowledged by its success.
pub struct Control {
    store: Arc<TestStore>,
    random: Random,
    state: PathBuf,
    steps: u64,
    /// The number in the workspace, and the one it had if the last command happened.
    number: u64,
    next: u64,
    /// Snapshots and forks, with the number that is in each.
    snapshots: Vec<(String, u64)>,
    forks: Vec<(String, u64)>,
    deleted: Vec<String>,
}

impl Control {
    /// Makes the workspace, with a first snapshot.
    pub fn new(store: &Arc<TestStore>, seed: u64) -> Self {
        store.ok(["ws", "create", "r"]);
        let state = store.mount("r").join("state");
        fs::write(&state, 0_u64.to_le_bytes()).unwrap();
        let first = store.snapshot("r");
        Self {
            store: store.clone(),
            random: Random::new(seed),
            state,
            steps: 0,
            number: 0,
            next: 0,
            snapshots: vec![(first, 0)],
            forks: Vec::new(),
            deleted: Vec::new(),
        }
    }

    /// What the command printed; an error if the daemon died over it.
    fn run(&self, args: &[&str]) -> io::Result<String> {
        let output = self.store.run(args);
        match output.code {
            Some(0) => Ok(output.text()),
            _ => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }

    fn write(&mut self) -> io::Result<()> {
        self.next = self.steps;
        let file = OpenOptions::new().write(true).open(&self.state)?;
        file.write_all_at(&self.next.to_le_bytes(), 0)?;
        self.number = self.next;
        Ok(())
    }

    fn roll_back(&mut self) -> io::Result<()> {
        let (id, number) = self.snapshots[self.random.index(self.snapshots.len())].clone();
        self.next = number;
        let left = self.run(&["rollback", "r", &id])?;
        self.snapshots.push((left, self.number));
        self.number = number;
        Ok(())
    }

    fn delete(&mut self) -> io::Result<()> {
        if self.forks.is_empty() {
            return Ok(());
        }
        let (name, _) = self.forks.remove(self.random.index(self.forks.len()));
        // Taken out first: without an acknowledgement it may be there or not.
        self.run(&["ws", "delete", &name])?;
        self.deleted.push(name);
        Ok(())
    }

    fn number_in(&self, target: &str) -> Option<u64> {
        let dir = self.store.mount(target);
        let number = number(&dir.join("state"));
        self.store.umount(&dir);
        number
    }
}

fn number(file: &Path) -> Option<u64> {
    let bytes = fs::read(file).ok()?;
    bytes.try_into().map(u64::from_le_bytes).ok()
}

impl Work for Control {
    fn step(&mut self) -> io::Result<()> {
        self.steps += 1;
        match self.steps % 6 {
            1 | 4 => self.write(),
            2 => {
                let id = self.run(&["snapshot", "r"])?;
                self.snapshots.push((id, self.number));
                Ok(())
            }
            3 => {
                let name = format!("r{}", self.steps);
                self.run(&["fork", "r", &name])?;
                self.forks.push((name, self.number));
                Ok(())
            }
            5 => self.roll_back(),
            _ => self.delete(),
        }
    }

    fn check(&mut self, _: &Path, _whole: bool) -> Result<(), String> {
        let allowed = [self.number, self.next];
        match number(&self.state) {
            Some(number) if allowed.contains(&number) => {
                self.number = number;
                self.next = number;
            }
            other => return Err(format!("r holds {other:?} where {allowed:?} may be")),
        }
        let list = |what: &str| -> BTreeSet<String> {
            let text = self.store.ok([what, "list", "-q"]);
            text.lines().map(str::to_owned).collect()
        };
        let (snapshots, workspaces) = (list("snap"), list("ws"));
        let taken = self.snapshots.iter().map(|(id, _)| id);
        let forks = self.forks.iter().map(|(name, _)| name);
        let lost: Vec<&String> = taken
            .filter(|id| !snapshots.contains(*id))
            .chain(forks.filter(|name| !workspaces.contains(*name)))
            .collect();
        let back = self.deleted.iter().find(|name| workspaces.contains(*name));
        if !lost.is_empty() || back.is_some() {
            return Err(format!("{lost:?} are lost, {back:?} is back"));
        }
        let count = self.snapshots.len();
        let one = self.random.index(count + self.forks.len());
        let one = if one < count {
            &self.snapshots[one]
        } else {
            &self.forks[one - count]
        };
        match self.number_in(&one.0) {
            Some(found) if found == one.1 => {}
            found => return Err(format!("{one:?} holds {found:?}")),
        }
        Ok(())
    }
}
