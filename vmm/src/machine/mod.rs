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
pub mod vcpu;
pub mod vm;

use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vm_memory::{Bytes, GuestAddress, GuestMemoryError};

pub use build::{BuildError, Config};
pub use devices::{
    DevicesConfig, DevicesError, DevicesRestoreError, DevicesState, FS_MAX, FsConfig, VsockConfig,
};

use crate::devices::events::{EventLoop, Waker};
use crate::devices::ioapic::IrqLine;
use crate::devices::serial::SharedConsole;
use devices::Devices;
use gate::{Exit, Gate, Patience, PauseError};
use memory::GuestMemory;
use vcpu::{Buses, Runner, Vcpu};
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
    // The threads come first: they are joined before anything they use is dropped.
    vcpu_threads: Vec<JoinHandle<()>>,
    event_thread: Option<JoinHandle<()>>,
    waiting: Option<(Vec<Vcpu>, EventLoop)>,
    gate: Arc<Gate>,
    waker: Waker,
    buses: Arc<Buses>,
    devices: Devices,
    console: SharedConsole,
    event_line: IrqLine,
    vm: Arc<Vm>,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine")
            .field("vcpus", &self.vcpu_threads.len())
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
        let (vcpus, events) = self.waiting.take().ok_or(ControlError::Ended)?;
        for (number, mut vcpu) in vcpus.into_iter().enumerate() {
            let runner = Runner {
                buses: Arc::clone(&self.buses),
                gate: Arc::clone(&self.gate),
            };
            let name = format!("vcpu{number}");
            let thread = self.spawn(name, ThreadKind::Vcpu, confine, move || {
                runner.run(&mut vcpu);
            })?;
            self.vcpu_threads.push(thread);
        }
        let gate = Arc::clone(&self.gate);
        let thread = self.spawn("devices".into(), ThreadKind::Devices, confine, move || {
            events.run(&gate);
        })?;
        self.event_thread = Some(thread);
        Ok(self.gate.wait_until_parked(PARK_TIMEOUT)?)
    }

    /// Lets the guest run.
    ///
    /// # Errors
    /// [`ControlError::Ended`].
    pub fn resume(&self) -> Result<(), ControlError> {
        if self.gate.resume() {
            Ok(())
        } else {
            Err(ControlError::Ended)
        }
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
        let patience = Patience {
            park: PARK_TIMEOUT,
            drain,
        };
        let drained = || self.fs_in_flight() == 0;
        Ok(self.gate.pause(patience, |kind| self.wake(kind), drained)?)
    }

    /// Waits for the machine to end by itself, at most `timeout`, then stops its threads and says
    /// why it ended. `None` when it runs on, or was waited for before.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Option<Exit> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        if !self.gate.wait_for_end(deadline) {
            return None;
        }
        self.join();
        self.gate.take_exit()
    }

    /// Stops the machine at once, as by its power switch, and says why it ended:
    /// [`Exit::Stopped`], or what the guest did first.
    pub fn stop(&mut self) -> Exit {
        self.gate.end(Exit::Stopped);
        self.join();
        self.gate.take_exit().unwrap_or(Exit::Stopped)
    }

    /// What ends or holds this machine, for use while another thread waits for its end.
    #[must_use]
    pub fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    /// The guest's RAM.
    #[must_use]
    pub fn memory(&self) -> &GuestMemory {
        self.vm.memory()
    }

    /// The guest's console.
    #[must_use]
    pub fn console(&self) -> &SharedConsole {
        &self.console
    }

    /// Types on the console of a machine that is not paused. Returns how many bytes the port took.
    pub fn console_input(&self, bytes: &[u8]) -> usize {
        self.devices
            .serial
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .input(bytes)
    }

    /// The virtio devices that stand still because of what their drivers did, and why.
    #[must_use]
    pub fn faults(&self) -> Vec<(&'static str, String)> {
        self.devices.faults()
    }

    /// Requests to file system servers that have no answer yet. A machine is best saved with none;
    /// after [`Self::pause`] there are some only if a server took too long.
    #[must_use]
    pub fn fs_in_flight(&self) -> usize {
        self.devices.fs_in_flight()
    }

    /// The saved form of every device. For a machine that is paused.
    #[must_use]
    pub fn save_devices(&self) -> DevicesState {
        self.devices.save()
    }

    /// Sets every device to a saved state and has it look at its queues. For a machine that has not
    /// started, with its memory and local APICs restored.
    ///
    /// # Errors
    /// [`DevicesRestoreError`]: then the machine is of no use.
    pub fn restore_devices(&self, state: DevicesState) -> Result<(), DevicesRestoreError> {
        self.devices.restore(state)
    }

    /// Gives the guest a new generation id and tells it: a sign that this machine was copied, at
    /// which a guest's kernel stirs its random numbers anew ("Virtual Machine Generation ID",
    /// Microsoft). For a machine that is paused or has not started.
    ///
    /// # Errors
    /// The memory's, which does not happen while the layout is what it is.
    pub fn set_generation(&self, id: [u8; 16]) -> Result<(), GuestMemoryError> {
        self.write_generation(id)?;
        self.event_line.raise();
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
            gate: Arc::clone(&self.gate),
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

    /// Makes the threads of a kind come to the gate.
    fn wake(&self, kind: ThreadKind) {
        match kind {
            ThreadKind::Vcpu => self.vcpu_threads.iter().for_each(vcpu::kick),
            ThreadKind::Devices => self.waker.wake(),
        }
    }

    /// Waits for all threads. The gate says stop by now; each kick is effective, since the goal was
    /// set before.
    fn join(&mut self) {
        self.wake(ThreadKind::Vcpu);
        self.wake(ThreadKind::Devices);
        let events = self.event_thread.take();
        for thread in self.vcpu_threads.drain(..).chain(events) {
            if thread.join().is_err() {
                tracing::error!("a thread of the machine panicked");
            }
        }
        self.console.lock().flush();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.gate.end(Exit::Stopped);
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
