//! The thread that waits for the host: sockets that devices have, seen ready by epoll.
//!
//! Invariants: a device is called under its own lock, so never at the same time as by a vCPU;
//! while the machine is paused the thread is held at the gate and no device is called. An event
//! for a descriptor that a device has closed in the meantime may still come; devices know their
//! tokens and ignore others.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub use vmm_sys_util::epoll::EventSet;

use crate::machine::ThreadKind;
use crate::machine::gate::{Exit, Gate, Next};

/// A device that waits for descriptors of the host.
pub trait HostEvents: Send {
    /// The descriptor that was registered with `token` is ready. A device that cannot go on deals
    /// with that itself.
    fn ready(&mut self, token: u32, events: EventSet);
}

/// Where a device registers its descriptors.
#[derive(Clone, Debug)]
pub struct Registrar {
    epoll: Arc<Epoll>,
    source: u32,
}

impl Registrar {
    /// Waits for `events` of `fd`, level-triggered, and reports them with `token`.
    ///
    /// # Errors
    /// The system's, for example at the limit of watches.
    pub fn add(&self, fd: &impl AsRawFd, token: u32, events: EventSet) -> std::io::Result<()> {
        self.control(ControlOperation::Add, fd, token, events)
    }

    /// Waits for other `events` of a registered `fd`.
    ///
    /// # Errors
    /// The system's.
    pub fn modify(&self, fd: &impl AsRawFd, token: u32, events: EventSet) -> std::io::Result<()> {
        self.control(ControlOperation::Modify, fd, token, events)
    }

    /// Forgets a registered `fd`. Needed before it is closed only if it has duplicates.
    ///
    /// # Errors
    /// The system's.
    pub fn remove(&self, fd: &impl AsRawFd) -> std::io::Result<()> {
        self.control(ControlOperation::Delete, fd, 0, EventSet::empty())
    }

    fn control(
        &self,
        operation: ControlOperation,
        fd: &impl AsRawFd,
        token: u32,
        events: EventSet,
    ) -> std::io::Result<()> {
        let data = u64::from(self.source) << 32 | u64::from(token);
        let fd = fd.as_raw_fd();
        self.epoll.ctl(operation, fd, EpollEvent::new(events, data))
    }
}

/// All that the devices of one machine wait for.
pub struct EventLoop {
    epoll: Arc<Epoll>,
    wake: Arc<EventFd>,
    sources: Vec<Arc<Mutex<dyn HostEvents>>>,
    registrars: u32,
}

/// Wakes the loop's thread, so that it passes the gate.
#[derive(Clone, Debug)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// Makes the thread pass the gate soon.
    pub fn wake(&self) {
        // Fails only when the counter is full: then the thread is awake already.
        if let Err(error) = self.0.write(1) {
            tracing::debug!(%error, "the event loop is awake already");
        }
    }
}

const WAKE: u64 = u64::MAX;
const EVENTS_AT_ONCE: usize = 32;

impl std::fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventLoop")
            .field("sources", &self.sources.len())
            .finish_non_exhaustive()
    }
}

impl EventLoop {
    /// An empty loop.
    ///
    /// # Errors
    /// The system's, when it gives no descriptors.
    pub fn new() -> std::io::Result<Self> {
        let epoll = Epoll::new()?;
        let wake = EventFd::new(EFD_NONBLOCK)?;
        epoll.ctl(
            ControlOperation::Add,
            wake.as_raw_fd(),
            EpollEvent::new(EventSet::IN, WAKE),
        )?;
        Ok(Self {
            epoll: Arc::new(epoll),
            wake: Arc::new(wake),
            sources: Vec::new(),
            registrars: 0,
        })
    }

    /// A registrar for the next device that [`Self::attach`] gets.
    pub fn registrar(&mut self) -> Registrar {
        let source = self.registrars;
        self.registrars += 1;
        Registrar {
            epoll: Arc::clone(&self.epoll),
            source,
        }
    }

    /// Sends events of the oldest registrar that has no device yet to `device`.
    pub fn attach(&mut self, device: Arc<Mutex<dyn HostEvents>>) {
        self.sources.push(device);
    }

    /// What wakes this loop.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.wake))
    }

    /// Serves events in this thread until the machine ends.
    pub fn run(&self, gate: &Gate) {
        let mut events = [EpollEvent::default(); EVENTS_AT_ONCE];
        while gate.pass(ThreadKind::Devices) == Next::Go {
            match self.epoll.wait(-1, &mut events) {
                Ok(count) => events[..count]
                    .iter()
                    .for_each(|event| self.dispatch(event)),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(source) => gate.end(Exit::HostError {
                    device: "event loop",
                    source,
                }),
            }
        }
    }

    fn dispatch(&self, event: &EpollEvent) {
        if event.data() == WAKE {
            // Empty when two wakes were one.
            if let Err(error) = self.wake.read() {
                tracing::trace!(%error, "nobody woke the event loop");
            }
            return;
        }
        let [a, b, c, d, e, f, g, h] = event.data().to_le_bytes();
        let token = u32::from_le_bytes([a, b, c, d]);
        let source = u32::from_le_bytes([e, f, g, h]);
        let device = usize::try_from(source)
            .ok()
            .and_then(|source| self.sources.get(source));
        if let Some(device) = device {
            device
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .ready(token, event.event_set());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;
    use crate::machine::gate::Patience;

    struct Echo(UnixStream);

    impl HostEvents for Echo {
        fn ready(&mut self, token: u32, events: EventSet) {
            assert_eq!(token, 7);
            assert!(events.contains(EventSet::IN));
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            self.0.write_all(&byte).unwrap();
        }
    }

    #[test]
    fn a_device_hears_of_its_socket_but_not_while_paused() {
        let mut events = EventLoop::new().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        events.registrar().add(&far, 7, EventSet::IN).unwrap();
        events.attach(Arc::new(Mutex::new(Echo(far))));
        let (gate, waker) = (Arc::new(Gate::closed().unwrap()), events.waker());
        gate.enroll(ThreadKind::Devices);
        let thread = {
            let gate = Arc::clone(&gate);
            std::thread::spawn(move || events.run(&gate))
        };
        near.set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        near.write_all(b"x").unwrap();
        let mut byte = [0];
        assert!(near.read_exact(&mut byte).is_err(), "held");
        gate.resume();
        near.set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        near.read_exact(&mut byte).unwrap();
        let patience = Patience {
            park: Duration::from_secs(10),
            drain: Duration::ZERO,
        };
        let wake = |kind| {
            if kind == ThreadKind::Devices {
                waker.wake();
            }
        };
        assert_eq!(gate.pause(patience, wake, || true), Ok(()));
        gate.end(Exit::Stopped);
        thread.join().unwrap();
    }
}
