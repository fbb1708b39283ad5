//! Taking a snapshot of a machine that runs.
//!
//! Order, and why:
//! 1. KVM logs writes; all pages that count are copied while the guest runs, then those that it wrote
//!    meanwhile, until few are left or it writes faster than they are copied. If many are left then, it runs for
//!    moments only while they are copied (`throttle.rs`).
//! 2. The guest is held: vCPUs, then requests under way, then the devices' thread.
//! 3. Devices are saved before vCPUs: a request that ended during the pause raised an interrupt, which is in
//!    the state of a local APIC by then.
//! 4. Whoever asked freezes the files: nothing can reach them, and memory and files are of one moment.
//! 5. The logs are read last: saving a vCPU has the host's kernel write into the guest (its stolen time).
//! 6. What was written since the last round is copied aside, and the guest goes on.
//! 7. Only then it is written to the file.
//!
//! Whatever fails, the guest goes on, and what the next snapshot has to have is not forgotten.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use vm_memory::GuestMemoryError;

use super::copy::{Copier, CopyError};
use super::image::{Taken, parts};
use super::pages::{Pages, Run};
use super::ram::{Ram, bytes};
use super::resident::Pagemap;
use super::state::{MachineState, StateError};
use super::throttle::{self, Slowly};
use super::track::Track;
use super::working_set::WorkingSet;
use crate::machine::vcpu::VcpuStateError;
use crate::machine::vm::VmError;
use crate::machine::{ControlError, Machine, Parts};

/// How a snapshot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How often what was written meanwhile is copied before the guest is held.
    pub rounds_max: u32,
    /// With so few pages left it is held.
    pub residual_goal: usize,
    /// How long servers of file systems are waited for.
    pub drain: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rounds_max: 8,
            residual_goal: 256,
            drain: Duration::from_secs(5),
        }
    }
}

/// What a snapshot cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Rounds of copying while the guest ran.
    pub rounds: u32,
    /// Pages that were copied in them.
    pub precopied: usize,
    /// Pages that were copied while it was held.
    pub residual: usize,
    /// From the first wish to hold the guest until it was let go.
    #[serde(with = "micros", rename = "pause_us")]
    pub pause: Duration,
    /// Of these: until it was held.
    #[serde(with = "micros", rename = "hold_us")]
    pub hold: Duration,
    /// And: for whoever asked, to freeze the files.
    #[serde(with = "micros", rename = "freeze_us")]
    pub freeze: Duration,
    /// How long it ran for moments only, before.
    #[serde(with = "micros", rename = "slowed_us")]
    pub slowed: Duration,
    /// All of it.
    #[serde(with = "micros", rename = "total_us")]
    pub total: Duration,
}

/// Durations in whole microseconds.
mod micros {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(value.as_micros()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_micros)
    }
}

/// Why there is no snapshot. The machine runs on, unless it has ended.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It could not be held.
    #[error("the machine cannot be held")]
    Control(#[from] ControlError),
    /// KVM refuses something.
    #[error("the machine cannot be saved")]
    Vm(#[from] VmError),
    /// A vCPU cannot be saved.
    #[error("the machine cannot be saved")]
    Vcpu(#[from] VcpuStateError),
    /// Pages cannot be copied.
    #[error("the machine's memory cannot be saved")]
    Copy(#[from] CopyError),
    /// The state cannot be written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The files could not be frozen.
    #[error("the machine's files could not be frozen: {what}")]
    Files {
        /// Why, in words.
        what: String,
    },
    /// Messages to the servers of file systems were under way for too long: nobody knows what would become of
    /// them. Of `count` the guest waits for an answer; others have none.
    #[error("messages to file systems were under way for too long ({count} wait for an answer)")]
    FsInFlight {
        /// How many.
        count: usize,
    },
    /// However little it may run, the guest writes faster than it is copied.
    #[error("the machine writes faster than its memory is copied ({left_mib} MiB are left)")]
    TooFast {
        /// What it would have to be held for.
        left_mib: usize,
    },
    /// Whoever asked does not want it any more.
    #[error("the snapshot was cancelled")]
    Cancelled,
}

/// A snapshot that is to be taken.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The image that is made of it.
    pub id: &'a str,
    /// The image that this one is made over: only what changed since has to be in it, if that is the
    /// snapshotter's base.
    pub over: Option<&'a str>,
    /// Where pages go, each at its place: an empty file of RAM's size.
    pub memory: &'a File,
    /// How it is taken.
    pub options: Options,
    /// Ends the attempt when it is set, as long as the guest was not held.
    pub cancel: &'a AtomicBool,
}

/// Takes snapshots of one machine, one after the other, and knows what changed since the last.
pub struct Snapshotter {
    pub(super) parts: Arc<Parts>,
    pub(super) ram: Ram,
    track: Track,
    // None where the kernel does not say.
    pagemap: Option<Pagemap>,
    // Whether a page that was never touched is zeros: not one of a mapped file.
    from_nothing: bool,
    // For pages that are copied while the guest is held. Touched before: a page that never was costs more
    // than copying ten.
    aside: Vec<u8>,
}

/// Bytes that are kept between snapshots.
const ASIDE_KEPT: usize = 4 << 20;
/// Most bytes that are copied aside; what is more goes into the file while the guest is held.
const ASIDE_MAX: usize = 64 << 20;

impl std::fmt::Debug for Snapshotter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshotter")
            .field("base", &self.track.base())
            .finish_non_exhaustive()
    }
}

impl Snapshotter {
    /// For a machine that was booted. To be made before the process is confined.
    #[must_use]
    pub fn new(machine: &Machine) -> Self {
        let parts = Arc::clone(machine.parts());
        let ram = Ram::new(parts.vm.memory());
        let pagemap = Pagemap::open();
        if let Err(error) = &pagemap {
            tracing::debug!(%error, "all memory is read for a snapshot");
        }
        Self {
            track: Track::from_nothing(&ram),
            pagemap: pagemap.ok(),
            from_nothing: true,
            ram,
            parts,
            aside: vec![1; ASIDE_KEPT],
        }
    }

    /// For a machine that was set to the image `base` and has not run yet.
    #[must_use]
    pub fn of_restored(machine: &Machine, base: &str) -> Self {
        let mut new = Self::new(machine);
        new.track = Track::from_image(&new.ram, base);
        new.from_nothing = false;
        new
    }

    /// The image that the next one may be made over: it will have what changed since.
    #[must_use]
    pub fn base(&self) -> Option<&str> {
        self.track.base()
    }

    /// That image came to nothing: the next has everything.
    pub fn forget_base(&mut self) {
        self.track.forget_base();
    }

    /// Pages that the machine has touched since it was started from an image. None of one that was booted, whose
    /// pages are all its own, and where the kernel does not say.
    ///
    /// # Errors
    /// The kernel's.
    pub fn working_set(&self) -> io::Result<Option<WorkingSet>> {
        let pagemap = self.pagemap.as_ref().filter(|_| !self.from_nothing);
        let touched = pagemap.map(|pagemap| pagemap.touched(&self.ram));
        Ok(touched.transpose()?.map(WorkingSet::new))
    }

    /// Has pages there that the guest will want, for as long as `go_on`; it may run meanwhile.
    ///
    /// # Errors
    /// When they are not this machine's.
    pub fn populate(
        &self,
        set: &WorkingSet,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), GuestMemoryError> {
        set.populate(&self.ram, go_on)
    }

    /// How many pages of memory there are.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.ram.pages()
    }

    /// Takes a snapshot. `held` is called while the guest is held, and freezes its files.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn take(
        &mut self,
        wanted: &Wanted<'_>,
        held: &mut dyn FnMut() -> Result<(), String>,
    ) -> Result<(Taken, Stats), SnapshotError> {
        let taken = self.attempt(wanted, held);
        // However it ended: what was much once is not kept for ever.
        self.aside.truncate(ASIDE_KEPT);
        self.aside.shrink_to(ASIDE_KEPT);
        taken
    }

    fn attempt(
        &mut self,
        wanted: &Wanted<'_>,
        held: &mut dyn FnMut() -> Result<(), String>,
    ) -> Result<(Taken, Stats), SnapshotError> {
        let start = Instant::now();
        let options = &wanted.options;
        let mut stats = Stats::default();
        let go_on = || !wanted.cancel.load(Ordering::Acquire);
        let mut copier = Copier::new(wanted.memory, self.ram.pages());
        let mut own = self.first(wanted.over)?;
        let mut left = own.clone();
        loop {
            if !copier.copy(&self.ram, &left, &go_on)? {
                return Err(SnapshotError::Cancelled);
            }
            stats.rounds += 1;
            let count = left.count();
            stats.precopied += count;
            left = self.track.take(&self.parts.vm, &self.ram)?;
            own.union(&left);
            let now = left.count();
            // A guest that writes as fast as it is copied does not get better by waiting.
            let gains = now < count / 4 * 3;
            if now <= options.residual_goal || stats.rounds >= options.rounds_max || !gains {
                break;
            }
        }
        let mut run = throttle::RUN_FIRST;
        let slowing = Instant::now();
        for _ in 0..throttle::ROUNDS_MAX {
            if bytes(left.count()) <= throttle::GOAL {
                break;
            }
            let slowly = Slowly { run, go_on: &go_on };
            if !self.copy_slowly(&mut copier, &left, &slowly)? {
                return Err(SnapshotError::Cancelled);
            }
            stats.rounds += 1;
            stats.precopied += left.count();
            left = self.track.take(&self.parts.vm, &self.ram)?;
            own.union(&left);
            run /= 2;
        }
        if run < throttle::RUN_FIRST {
            stats.slowed = slowing.elapsed();
        }
        if bytes(left.count()) > ASIDE_MAX {
            let left_mib = bytes(left.count()) >> 20;
            return Err(SnapshotError::TooFast { left_mib });
        }
        self.make_room(left.count());
        if !go_on() {
            return Err(SnapshotError::Cancelled);
        }
        let before = Instant::now();
        // One that is held already stays so.
        let was_held = self.parts.gate.is_paused();
        self.parts.pause(options.drain)?;
        stats.hold = before.elapsed();
        let result = match go_on() {
            true => self.save(&mut copier, left, held, &mut stats),
            // Holding it may have taken a while.
            false => Err(SnapshotError::Cancelled),
        };
        let resumed = match was_held {
            true => Ok(()),
            false => self.parts.resume(),
        };
        stats.pause = before.elapsed();
        let (state, residual, created_at) = result?;
        // A machine that ended while it was held was what it was.
        if let Err(error) = resumed {
            tracing::debug!(%error, "a machine ended while it was saved");
        }
        self.write_aside(&mut copier, &residual)?;
        own.union(&residual);
        let (host, ram_mib) = (self.parts.host.clone(), state.ram_mib);
        let taken = Taken {
            pages: own,
            ram_mib,
            vcpus: u8::try_from(state.vcpus.len()).unwrap_or(u8::MAX),
            host,
            created_at,
            state: state.encode()?,
        };
        self.track.rebase(wanted.id);
        stats.total = start.elapsed();
        Ok((taken, stats))
    }

    /// The pages of the first round.
    fn first(&mut self, over: Option<&str>) -> Result<Pages, SnapshotError> {
        self.track.begin(&self.parts.vm)?;
        // Before anything is looked at: what is written from now on comes again.
        self.track.take(&self.parts.vm, &self.ram)?;
        if over.is_some() && over == self.track.base() {
            return Ok(self.track.changed().clone());
        }
        let pagemap = self.pagemap.as_ref().filter(|_| self.from_nothing);
        let touched = pagemap.map(|pagemap| pagemap.touched(&self.ram));
        match touched {
            Some(Ok(touched)) => Ok(touched),
            Some(Err(error)) => {
                tracing::warn!(%error, "all memory is read for a snapshot");
                Ok(Pages::all(self.ram.pages()))
            }
            None => Ok(Pages::all(self.ram.pages())),
        }
    }

    /// Room for what will be left when the guest is held: some more than is left now.
    fn make_room(&mut self, left: usize) {
        let want = bytes(left + left / 2 + 256).clamp(ASIDE_KEPT, ASIDE_MAX);
        if want > self.aside.len() {
            self.aside.resize(want, 1);
        }
    }

    /// Everything that has to be done while the guest is held. Returns the state, the pages that were left
    /// (now copied aside, or in the file), and when it was.
    fn save(
        &mut self,
        copier: &mut Copier<'_>,
        mut left: Pages,
        held: &mut dyn FnMut() -> Result<(), String>,
        stats: &mut Stats,
    ) -> Result<(MachineState, Pages, i64), SnapshotError> {
        // The pause waits for them, but not for ever.
        if !self.parts.devices.fs_is_quiet() {
            let count = self.parts.devices.fs_in_flight();
            return Err(SnapshotError::FsInFlight { count });
        }
        let state = MachineState {
            ram_mib: self.parts.ram.mib(),
            devices: self.parts.devices.save(),
            vcpus: self.parts.save_vcpus()?,
            clock: self.parts.vm.clock()?,
        };
        let created_at = now();
        let before = Instant::now();
        held().map_err(|what| SnapshotError::Files { what })?;
        stats.freeze = before.elapsed();
        left.union(&self.track.take(&self.parts.vm, &self.ram)?);
        stats.residual = left.count();
        let mut at = 0;
        for run in left.runs() {
            let room = (self.aside.len() - at) / 4096;
            let aside = Run {
                len: run.len.min(room),
                ..run
            };
            let end = at + bytes(aside.len);
            self.ram
                .read(aside, &mut self.aside[at..end])
                .map_err(CopyError::from)?;
            at = end;
            let rest = Run {
                start: aside.end(),
                len: run.len - aside.len,
            };
            self.write_rest(copier, rest)?;
        }
        Ok((state, left, created_at))
    }

    /// What does not fit aside goes into the file at once.
    fn write_rest(&self, copier: &mut Copier<'_>, rest: Run) -> Result<(), CopyError> {
        if rest.len == 0 {
            return Ok(());
        }
        let mut pages = Pages::none(self.ram.pages());
        pages.insert_run(rest);
        copier.copy(&self.ram, &pages, &|| true).map(drop)
    }

    /// Writes what is aside into the file.
    fn write_aside(&self, copier: &mut Copier<'_>, residual: &Pages) -> Result<(), CopyError> {
        let mut at = 0;
        for part in residual.runs().flat_map(parts) {
            let len = part.len.min((self.aside.len() - at) / 4096);
            let end = at + bytes(len);
            copier.write(part.start, &self.aside[at..end])?;
            at = end;
        }
        Ok(())
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    })
}
