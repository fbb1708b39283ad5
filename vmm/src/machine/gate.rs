//! The gate that every thread of a machine passes between two steps of its work, and where it is
//! held for a pause or sent home at the end.
//!
//! A pause has two stages: `Drain` holds the vCPUs, so that no request is added, while the devices'
//! thread still takes what servers answer; `Pause` holds it too.
//!
//! Invariants: the goal goes from `Run` by `Drain` to `Pause` and back as often as wanted, and to
//! `Stop` once for all, with the first [`Exit`] as its reason; `parked` counts the threads that are
//! held, and [`Gate::pause`] succeeds only when that is every thread, so that until
//! [`Gate::resume`] nothing of the machine changes. A pause that fails leaves the machine running.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::ThreadKind;
use crate::devices::power::{PowerRequest, PowerSink};

/// How a machine ended.
#[derive(Debug)]
pub enum Exit {
    /// The guest switched itself off.
    PowerOff,
    /// The guest asked for a reset.
    Reset,
    /// The host stopped it.
    Stopped,
    /// The guest faulted while handling a fault while handling a fault: a kernel that is broken,
    /// or that resets itself so.
    TripleFault {
        /// Which vCPU.
        vcpu: u8,
    },
    /// A vCPU cannot go on.
    CpuFault {
        /// Which vCPU.
        vcpu: u8,
        /// What KVM says.
        what: String,
    },
    /// A device failed for a reason of the host's.
    HostError {
        /// Which device.
        device: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// The monitor itself is at fault.
    Panicked {
        /// The thread.
        thread: String,
    },
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PowerOff => f.write_str("the guest switched itself off"),
            Self::Reset => f.write_str("the guest asked for a reset"),
            Self::Stopped => f.write_str("the machine was stopped"),
            Self::TripleFault { vcpu } => write!(f, "a triple fault of vCPU {vcpu}"),
            Self::CpuFault { vcpu, what } => write!(f, "vCPU {vcpu} cannot go on: {what}"),
            Self::HostError { device, source } => write!(f, "the device {device} failed: {source}"),
            Self::Panicked { thread } => write!(f, "the monitor's thread {thread} panicked"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Goal {
    Run = 0,
    Drain = 1,
    Pause = 2,
    Stop = 3,
}

impl Goal {
    /// Whether threads of this kind are held.
    fn holds(self, kind: ThreadKind) -> bool {
        match self {
            Self::Run | Self::Stop => false,
            Self::Drain => kind == ThreadKind::Vcpu,
            Self::Pause => true,
        }
    }
}

/// Most time that a pause takes for its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For threads to come to the gate. After it the pause fails.
    pub park: Duration,
    /// For requests under way. After it the machine is paused with what is left of them.
    pub drain: Duration,
}

/// Why a machine was not paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseError {
    /// It has ended.
    Ended,
    /// A thread did not come to the gate in time. The machine runs on.
    Stuck,
}

/// How often a pause looks whether requests are still under way.
const DRAIN_LOOK: Duration = Duration::from_micros(200);

/// What a thread does after the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Goes on.
    Go,
    /// Ends.
    Leave,
}

/// The threads of one kind.
#[derive(Clone, Copy, Default)]
struct Threads {
    workers: usize,
    parked: usize,
}

struct State {
    goal: Goal,
    vcpus: Threads,
    devices: Threads,
    exit: Option<Exit>,
}

impl State {
    fn threads(&mut self, kind: ThreadKind) -> &mut Threads {
        match kind {
            ThreadKind::Vcpu => &mut self.vcpus,
            ThreadKind::Devices => &mut self.devices,
        }
    }

    /// Whether every thread that the goal holds is held.
    fn is_halted(&self) -> bool {
        let halted =
            |kind, threads: Threads| !self.goal.holds(kind) || threads.parked == threads.workers;
        halted(ThreadKind::Vcpu, self.vcpus) && halted(ThreadKind::Devices, self.devices)
    }
}

/// The gate.
pub struct Gate {
    state: Mutex<State>,
    // For the threads, and for who waits for the end: the goal lets threads go.
    changed: Condvar,
    // For who pauses: every thread is held that should be, or never will be. One condition for both
    // would have each thread that comes wake all that are there.
    halted: Condvar,
    // A copy of `state.goal`, read at every exit of a vCPU without the lock.
    goal: AtomicU8,
    // Readable from the end on, for who polls.
    ended: EventFd,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

impl Gate {
    /// A gate that is closed: threads are held until [`Self::resume`].
    ///
    /// # Errors
    /// The system's, when it gives no descriptor.
    pub fn closed() -> std::io::Result<Self> {
        Ok(Self {
            state: Mutex::new(State {
                goal: Goal::Pause,
                vcpus: Threads::default(),
                devices: Threads::default(),
                exit: None,
            }),
            changed: Condvar::new(),
            halted: Condvar::new(),
            goal: AtomicU8::new(Goal::Pause as u8),
            ended: EventFd::new(EFD_NONBLOCK)?,
        })
    }

    /// A descriptor that is readable once the machine has ended.
    #[must_use]
    pub fn ended(&self) -> &impl AsRawFd {
        &self.ended
    }

    /// Counts one more thread that will pass. Called before the thread starts.
    pub fn enroll(&self, kind: ThreadKind) {
        self.lock().threads(kind).workers += 1;
    }

    /// The thread `name` is gone for good; `panicked` if not of its own will.
    pub fn leave(&self, kind: ThreadKind, name: &str, panicked: bool) {
        if panicked {
            self.end(Exit::Panicked {
                thread: name.to_owned(),
            });
        }
        self.lock().threads(kind).workers -= 1;
        self.halted.notify_all();
    }

    /// Whether threads go on: [`Self::pass`] would return at once, to go on.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.goal.load(Ordering::SeqCst) == Goal::Run as u8
    }

    /// Called by each thread between two steps: returns at once, or is held while the machine is
    /// paused.
    pub fn pass(&self, kind: ThreadKind) -> Next {
        if self.is_open() {
            return Next::Go;
        }
        let mut state = self.lock();
        if state.goal.holds(kind) {
            state.threads(kind).parked += 1;
            if state.is_halted() {
                self.halted.notify_all();
            }
            state = self
                .changed
                .wait_while(state, |state| state.goal.holds(kind))
                .unwrap_or_else(PoisonError::into_inner);
            state.threads(kind).parked -= 1;
        }
        if state.goal == Goal::Stop {
            Next::Leave
        } else {
            Next::Go
        }
    }

    /// Ends the machine. The first reason counts.
    pub fn end(&self, exit: Exit) {
        let mut state = self.lock();
        if state.exit.is_none() {
            state.exit = Some(exit);
        }
        self.set(&mut state, Goal::Stop);
        if let Err(error) = self.ended.write(1) {
            tracing::debug!(%error, "the end was told before");
        }
    }

    /// Holds the vCPUs, waits until `drained` is true, then holds the rest. `wake` makes the threads
    /// of a kind come to the gate. Pausing what is paused does nothing.
    ///
    /// # Errors
    /// [`PauseError`]: then nothing is held.
    pub fn pause(
        &self,
        patience: Patience,
        wake: impl Fn(ThreadKind),
        drained: impl Fn() -> bool,
    ) -> Result<(), PauseError> {
        if self.is_paused() {
            return self.wait_until_parked(patience.park);
        }
        self.advance(Goal::Drain)?;
        wake(ThreadKind::Vcpu);
        let paused = self.wait_until_halted(Goal::Drain, patience.park);
        let paused = paused.and_then(|()| {
            self.wait_until_drained(patience.drain, drained);
            self.advance(Goal::Pause)?;
            wake(ThreadKind::Devices);
            self.wait_until_parked(patience.park)
        });
        paused.inspect_err(|_| {
            self.resume();
        })
    }

    /// Whether every thread is held or about to be.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.goal.load(Ordering::SeqCst) == Goal::Pause as u8
    }

    /// Waits until every thread of a closed gate is held.
    ///
    /// # Errors
    /// [`PauseError::Ended`], or [`PauseError::Stuck`] when `timeout` passed: the gate stays closed.
    pub fn wait_until_parked(&self, timeout: Duration) -> Result<(), PauseError> {
        self.wait_until_halted(Goal::Pause, timeout)
    }

    fn wait_until_halted(&self, goal: Goal, timeout: Duration) -> Result<(), PauseError> {
        let waits = |state: &mut State| state.goal == goal && !state.is_halted();
        let (state, _) = self
            .halted
            .wait_timeout_while(self.lock(), timeout, waits)
            .unwrap_or_else(PoisonError::into_inner);
        match state.goal {
            Goal::Stop => Err(PauseError::Ended),
            found if found == goal && state.is_halted() => Ok(()),
            _ => Err(PauseError::Stuck),
        }
    }

    /// Looks again and again, since `drained` takes locks of devices, under which nobody may wait
    /// for this gate's.
    fn wait_until_drained(&self, timeout: Duration, drained: impl Fn() -> bool) {
        let deadline = Instant::now() + timeout;
        while !drained() && Instant::now() < deadline {
            let (state, _) = self
                .halted
                .wait_timeout(self.lock(), DRAIN_LOOK)
                .unwrap_or_else(PoisonError::into_inner);
            if state.goal != Goal::Drain {
                return;
            }
        }
    }

    /// Sets the goal of the next stage of a pause.
    fn advance(&self, goal: Goal) -> Result<(), PauseError> {
        let mut state = self.lock();
        if state.goal == Goal::Stop {
            return Err(PauseError::Ended);
        }
        self.set(&mut state, goal);
        Ok(())
    }

    /// Opens the gate. Returns false when the machine has ended.
    pub fn resume(&self) -> bool {
        let mut state = self.lock();
        if state.goal == Goal::Stop {
            return false;
        }
        self.set(&mut state, Goal::Run);
        true
    }

    /// Waits for the end of the machine, until `deadline` if there is one.
    pub fn wait_for_end(&self, deadline: Option<Instant>) -> bool {
        let mut state = self.lock();
        while state.goal != Goal::Stop {
            let left = match deadline {
                None => Duration::from_secs(3600),
                Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                    None => return false,
                    Some(left) => left,
                },
            };
            (state, _) = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// Takes the reason why the machine ended, once.
    pub fn take_exit(&self) -> Option<Exit> {
        self.lock().exit.take()
    }

    fn set(&self, state: &mut State, goal: Goal) {
        state.goal = goal;
        self.goal.store(goal as u8, Ordering::SeqCst);
        // The stages of a pause let no thread go that was held.
        if matches!(goal, Goal::Run | Goal::Stop) {
            self.changed.notify_all();
            self.halted.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PowerSink for Gate {
    fn request(&self, request: PowerRequest) {
        self.end(match request {
            PowerRequest::Off => Exit::PowerOff,
            PowerRequest::Reset => Exit::Reset,
        });
    }
}

#[cfg(test)]
mod tests;
