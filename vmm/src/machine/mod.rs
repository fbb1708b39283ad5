//! A virtual machine: memory, interrupt controllers, vCPUs, devices, and the threads that run them.
//!
//! One thread a vCPU and one for all that comes from the host. A vCPU serves its own exits, device
//! registers and queue notifications included; the host's thread serves sockets. Both call a device
//! under that device's lock.
//!
//! Locks, outermost first: the gate's own is never held across a call; a device's; the IOAPIC's;
//! the console's.

mod build;
mod devices;
pub mod gate;
pub mod host;
pub mod layout;
pub mod memory;
pub(crate) mod overlay;
pub mod vcpu;
pub mod vm;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vm_memory::{Bytes, GuestAddress, GuestMemoryError};

pub use build::{BuildError, Config, EmptyConfig};
pub use devices::{
    DevicesConfig, DevicesError, DevicesRestoreError, DevicesState, FS_MAX, FsConfig, VsockConfig,
};

use crate::devices::events::{EventLoop, Waker};
use crate::devices::ioapic::IrqLine;
use crate::devices::serial::SharedConsole;
use crate::snapshot::compat::Compat;
use devices::Devices;
use gate::{Exit, Gate, Patience, PauseError};
use memory::{GuestMemory, RamSize};
use vcpu::{Buses, Runner, Vcpu, VcpuState, VcpuStateError};
use vm::Vm;

/// How long a thread may take to come to the gate. A vCPU does so within a tenth of a millisecond;
/// the host's thread after the event in hand.
const PARK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a pause waits for servers of file systems, unless told otherwise.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a machine could not be started, paused or resumed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The system gives no thread.
    #[error("cannot start the thread {name}")]
    Thread {
        /// The thread's name.
        name: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The machine has ended.
    #[error("the machine has ended")]
    Ended,
    /// There is nothing in it yet that it could run.
    #[error("the machine is empty")]
    Empty,
    /// A thread did not come to a halt.
    #[error("the machine did not come to a halt within {seconds} s", seconds = PARK_TIMEOUT.as_secs())]
    Stuck,
}

impl From<PauseError> for ControlError {
    fn from(error: PauseError) -> Self {
        match error {
            PauseError::Ended => Self::Ended,
            PauseError::Stuck => Self::Stuck,
        }
    }
}

/// A machine, from its building to its end. Dropping it stops it.
pub struct Machine {
    // Until the machine is started.
    events: Option<EventLoop>,
    // Nothing was put into it that it could run.
    empty: bool,
    event_thread: Option<JoinHandle<()>>,
    parts: Arc<Parts>,
}

/// What a machine consists of, for its threads and for who saves it while it runs. It outlives the
/// threads: they are joined before [`Machine`] gives it up.
pub(crate) struct Parts {
    pub(crate) gate: Arc<Gate>,
    waker: Waker,
    buses: Arc<Buses>,
    pub(crate) devices: Devices,
    console: SharedConsole,
    event_line: IrqLine,
    /// Each is locked by its thread while it runs, and free while that is held at the gate.
    pub(crate) vcpus: Vec<Mutex<Vcpu>>,
    vcpu_threads: Mutex<Vec<JoinHandle<()>>>,
    exits: AtomicU64,
    pub(crate) vm: Arc<Vm>,
    pub(crate) ram: RamSize,
    /// What a snapshot of it needs of a host.
    pub(crate) host: Compat,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine")
            .field("vcpus", &self.parts.vcpus.len())
            .finish_non_exhaustive()
    }
}

impl Machine {
    /// Starts the threads and waits until they are held at the gate: the guest runs from
    /// [`Self::resume`] on. `confine` is called first in every new thread, with its kind; all have
    /// returned when this does.
    ///
    /// # Errors
    /// [`ControlError::Thread`] when the system gives none, [`ControlError::Ended`] the second time
    /// or when `confine` failed, [`ControlError::Stuck`].
    pub fn start(&mut self, confine: &Confine) -> Result<(), ControlError> {
        let events = self.events.take().ok_or(ControlError::Ended)?;
        for number in 0..self.parts.vcpus.len() {
            let parts = Arc::clone(&self.parts);
            let name = format!("vcpu{number}");
            let thread = self.spawn(name, ThreadKind::Vcpu, confine, move || {
                let runner = Runner {
                    buses: &parts.buses,
                    gate: &parts.gate,
                    exits: &parts.exits,
                };
                runner.run(&parts.vcpus[number]);
            })?;
            lock(&self.parts.vcpu_threads).push(thread);
        }
        let gate = Arc::clone(&self.parts.gate);
        let thread = self.spawn("devices".into(), ThreadKind::Devices, confine, move || {
            events.run(&gate);
        })?;
        self.event_thread = Some(thread);
        Ok(self.parts.gate.wait_until_parked(PARK_TIMEOUT)?)
    }

    /// Lets the guest run.
    ///
    /// # Errors
    /// [`ControlError::Ended`], and [`ControlError::Empty`] before an image was put into it.
    pub fn resume(&self) -> Result<(), ControlError> {
        if self.empty {
            return Err(ControlError::Empty);
        }
        self.parts.resume()
    }

    /// Holds the guest: when this returns, no vCPU runs and no device changes until
    /// [`Self::resume`]. File systems' servers are waited for first, but not for ever: see
    /// [`Self::fs_in_flight`]. Pausing what is paused does nothing.
    ///
    /// # Errors
    /// [`ControlError::Ended`], and [`ControlError::Stuck`]: then the guest runs on.
    pub fn pause(&self) -> Result<(), ControlError> {
        self.pause_within(DRAIN_TIMEOUT)
    }

    /// As [`Self::pause`], and waits at most `drain` for servers of file systems.
    ///
    /// # Errors
    /// See [`Self::pause`].
    pub fn pause_within(&self, drain: Duration) -> Result<(), ControlError> {
        self.parts.pause(drain)
    }

    /// Waits for the machine to end by itself, at most `timeout`, then stops its threads and says
    /// why it ended. `None` when it runs on, or was waited for before.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Option<Exit> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        if !self.parts.gate.wait_for_end(deadline) {
            return None;
        }
        self.join();
        self.parts.gate.take_exit()
    }

    /// Stops the machine at once, as by its power switch, and says why it ended:
    /// [`Exit::Stopped`], or what the guest did first.
    pub fn stop(&mut self) -> Exit {
        self.parts.gate.end(Exit::Stopped);
        self.join();
        self.parts.gate.take_exit().unwrap_or(Exit::Stopped)
    }

    /// What ends or holds this machine, for use while another thread waits for its end.
    #[must_use]
    pub fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.parts.gate)
    }

    /// The guest's RAM.
    #[must_use]
    pub fn memory(&self) -> &GuestMemory {
        self.parts.vm.memory()
    }

    /// The guest's console.
    #[must_use]
    pub fn console(&self) -> &SharedConsole {
        &self.parts.console
    }

    /// Whether nothing was put into it that it could run: see [`Self::empty`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.empty
    }

    pub(crate) fn fill(&mut self) {
        self.empty = false;
    }

    pub(crate) fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    /// Types on the console of a machine that is not paused. Returns how many bytes the port took.
    pub fn console_input(&self, bytes: &[u8]) -> usize {
        lock(&self.parts.devices.serial).input(bytes)
    }

    /// The virtio devices that stand still because of what their drivers did, and why.
    #[must_use]
    pub fn faults(&self) -> Vec<(&'static str, String)> {
        self.parts.devices.faults()
    }

    /// Requests to file system servers that have no answer yet. A machine is best saved with none;
    /// after [`Self::pause`] there are some only if a server took too long.
    #[must_use]
    pub fn fs_in_flight(&self) -> usize {
        self.parts.devices.fs_in_flight()
    }

    /// How often vCPUs came out of the guest because it asked for something.
    #[must_use]
    pub fn exits(&self) -> u64 {
        self.parts.exits.load(Ordering::Relaxed)
    }

    /// Requests that were sent to servers of file systems.
    #[must_use]
    pub fn fs_requests(&self) -> u64 {
        self.parts.devices.fs_requests()
    }

    /// The saved form of every device. For a machine that is paused.
    #[must_use]
    pub fn save_devices(&self) -> DevicesState {
        self.parts.devices.save()
    }

    /// Sets every device to a saved state and has it look at its queues. For a machine that has not
    /// started, with its memory and local APICs restored.
    ///
    /// # Errors
    /// [`DevicesRestoreError`]: then the machine is of no use.
    pub fn restore_devices(&self, state: DevicesState) -> Result<(), DevicesRestoreError> {
        self.parts.devices.restore(state)
    }

    /// Gives the guest a new generation id and tells it: a sign that this machine was copied, at
    /// which a guest's kernel stirs its random numbers anew ("Virtual Machine Generation ID",
    /// Microsoft). For a machine that is paused or has not started.
    ///
    /// # Errors
    /// The memory's, which does not happen while the layout is what it is.
    pub fn set_generation(&self, id: [u8; 16]) -> Result<(), GuestMemoryError> {
        self.write_generation(id)?;
        self.parts.event_line.raise();
        Ok(())
    }

    fn write_generation(&self, id: [u8; 16]) -> Result<(), GuestMemoryError> {
        let address = GuestAddress(layout::GENERATION_PAGE);
        self.memory().write_slice(&id, address)
    }

    fn spawn(
        &self,
        name: String,
        kind: ThreadKind,
        confine: &Confine,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<JoinHandle<()>, ControlError> {
        let guard = LeaveGuard {
            gate: Arc::clone(&self.parts.gate),
            kind,
            name: name.clone(),
        };
        let confine = Arc::clone(confine);
        guard.gate.enroll(kind);
        std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                let guard = guard;
                match confine(kind) {
                    Ok(()) => work(),
                    Err(source) => guard.gate.end(Exit::HostError {
                        device: "confinement",
                        source,
                    }),
                }
            })
            .map_err(|source| ControlError::Thread { name, source })
    }

    /// Waits for all threads. The gate says stop by now; each kick is effective, since the goal was
    /// set before.
    fn join(&mut self) {
        self.parts.wake(ThreadKind::Vcpu);
        self.parts.wake(ThreadKind::Devices);
        let vcpus = std::mem::take(&mut *lock(&self.parts.vcpu_threads));
        for thread in vcpus.into_iter().chain(self.event_thread.take()) {
            if thread.join().is_err() {
                tracing::error!("a thread of the machine panicked");
            }
        }
        self.parts.console.lock().flush();
    }
}

impl Parts {
    /// Everything of each vCPU. The machine is held.
    pub(crate) fn save_vcpus(&self) -> Result<Vec<VcpuState>, VcpuStateError> {
        self.vcpus.iter().map(|vcpu| lock(vcpu).save()).collect()
    }

    /// Sets each vCPU. The machine is held, and has never run.
    pub(crate) fn restore_vcpus(&self, saved: &[VcpuState]) -> Result<(), VcpuStateError> {
        let mut each = self.vcpus.iter().zip(saved);
        each.try_for_each(|(vcpu, state)| lock(vcpu).restore(state))
    }

    /// See [`Machine::resume`].
    pub(crate) fn resume(&self) -> Result<(), ControlError> {
        if self.gate.resume() {
            Ok(())
        } else {
            Err(ControlError::Ended)
        }
    }

    /// See [`Machine::pause_within`].
    pub(crate) fn pause(&self, drain: Duration) -> Result<(), ControlError> {
        let patience = Patience {
            park: PARK_TIMEOUT,
            drain,
        };
        let drained = || self.devices.fs_is_quiet();
        Ok(self.gate.pause(patience, |kind| self.wake(kind), drained)?)
    }

    /// Makes the threads of a kind come to the gate.
    fn wake(&self, kind: ThreadKind) {
        match kind {
            ThreadKind::Vcpu => lock(&self.vcpu_threads).iter().for_each(vcpu::kick),
            ThreadKind::Devices => self.waker.wake(),
        }
    }
}

/// No lock of a machine guards an invariant that a panic could leave broken; the panic ends the
/// machine.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.parts.gate.end(Exit::Stopped);
        self.join();
    }
}

/// What a thread of a machine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadKind {
    /// Runs a vCPU and serves its exits.
    Vcpu,
    /// Serves what comes from the host.
    Devices,
}

/// Called first in every thread of a machine, to take away what it does not need.
pub type Confine = Arc<dyn Fn(ThreadKind) -> std::io::Result<()> + Send + Sync>;

/// Takes nothing away: for tests, and for a caller that has confined the whole process.
#[must_use]
pub fn unconfined() -> Confine {
    Arc::new(|_| Ok(()))
}

/// Counts a thread out however it ends.
struct LeaveGuard {
    gate: Arc<Gate>,
    kind: ThreadKind,
    name: String,
}

impl Drop for LeaveGuard {
    fn drop(&mut self) {
        self.gate
            .leave(self.kind, &self.name, std::thread::panicking());
    }
}
