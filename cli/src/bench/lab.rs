//! What every bench works with: a place for temporary files, sizes, interruption, progress.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::conditions::Watch;
use super::error::{BenchError, Step};
use super::machine::free_bytes;
use super::report::Section;
use super::room::Room;
use crate::output::size;

/// How many times as much as a bench writes must be free before it writes it.
const FREE_FACTOR: u64 = 3;

/// See the module above.
pub(super) struct Lab<'a> {
    room: Room,
    /// Small sizes and few samples.
    pub(super) quick: bool,
    /// The `floe` program, for what is measured from outside.
    pub(super) floe: Option<PathBuf>,
    stop: Arc<AtomicBool>,
    say: &'a dyn Fn(&str),
}

impl<'a> Lab<'a> {
    /// A lab in a temporary directory below `dir`. From now on SIGINT, SIGTERM and SIGHUP end the
    /// bench at its next step instead of the process.
    pub(super) fn new(
        dir: &Path,
        quick: bool,
        floe: Option<PathBuf>,
        say: &'a dyn Fn(&str),
    ) -> Result<Self, BenchError> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, stop.clone()).step("watch for signals")?;
        }
        let what = || format!("make a directory in {}", dir.display());
        Ok(Self {
            room: Room::new(dir, "floe-bench").step(what())?,
            quick,
            floe,
            stop,
            say,
        })
    }

    /// Where temporary files are.
    pub(super) fn dir(&self) -> &Path {
        self.room.path()
    }

    /// A temporary directory for one part of a bench.
    pub(super) fn room(&self, name: &str) -> Result<Room, BenchError> {
        Room::new(self.room.path(), name).step(format!("make a directory for '{name}'"))
    }

    /// Fails when the bench was asked to end.
    pub(super) fn check(&self) -> Result<(), BenchError> {
        if self.stop.load(Ordering::Relaxed) {
            Err(BenchError::Interrupted)
        } else {
            Ok(())
        }
    }

    /// Says what is being done, for a progress line.
    pub(super) fn say(&self, what: &str) {
        (self.say)(what);
    }

    /// One of two values: for a full run, and for a quick one.
    pub(super) fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Whether there is room for `bytes`; if not, why not.
    pub(super) fn has_room_for(&self, bytes: u64) -> Result<(), String> {
        let needed = bytes.saturating_mul(FREE_FACTOR);
        match free_bytes(self.dir()) {
            Ok(free) if free >= needed => Ok(()),
            Ok(free) => Err(format!(
                "the disk has {} free, and {} times {} are asked for to be safe",
                size(free),
                FREE_FACTOR,
                size(bytes)
            )),
            Err(error) => Err(format!("free space cannot be read: {error}")),
        }
    }

    /// Does something that may be missing on this machine. What keeps it from being done is noted
    /// as the reason why `what` was not measured.
    pub(super) fn attempt<T>(
        &self,
        section: &mut Section,
        what: &str,
        act: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<Option<T>, BenchError> {
        self.check()?;
        self.say(what);
        match act() {
            Ok(value) => Ok(Some(value)),
            Err(BenchError::Interrupted) => Err(BenchError::Interrupted),
            Err(error) => {
                // A program that shares the terminal got the interrupt as well.
                self.check()?;
                section.skip(what, error.in_one_line());
                Ok(None)
            }
        }
    }

    /// Runs one bench and notes its circumstances.
    pub(super) fn section(
        &self,
        mut section: Section,
        fill: impl FnOnce(&mut Section) -> Result<(), BenchError>,
    ) -> Result<Section, BenchError> {
        let watch = Watch::start();
        fill(&mut section)?;
        section.conditions = watch.end();
        Ok(section)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_noted_and_an_interrupt_is_passed_on() {
        let dir = tempfile::tempdir().unwrap();
        let lab = Lab::new(dir.path(), true, None, &|_| ()).unwrap();
        assert_eq!(lab.pick("full", "quick"), "quick");
        let mut section = Section::new("x", "");
        let wrong = || BenchError::Wrong {
            what: "no such program".into(),
        };
        let got = lab.attempt(&mut section, "peer", || Err::<(), _>(wrong()));
        assert!(matches!(got, Ok(None)));
        assert_eq!(section.skipped[0].reason, "no such program");
        lab.stop.store(true, Ordering::Relaxed);
        let got = lab.attempt(&mut section, "peer", || Err::<(), _>(wrong()));
        assert!(matches!(got, Err(BenchError::Interrupted)));
        assert_eq!(section.skipped.len(), 1);
        drop(lab);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_disk_is_never_large_enough_for_everything() {
        let dir = tempfile::tempdir().unwrap();
        let lab = Lab::new(dir.path(), true, None, &|_| ()).unwrap();
        assert!(lab.has_room_for(0).is_ok());
        let reason = lab.has_room_for(u64::MAX).unwrap_err();
        assert!(reason.contains("free"), "{reason}");
    }
}
