//! The loop of a vCPU: enter the guest, serve what it exits for, until told otherwise.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use kvm_ioctls::{VcpuExit, VcpuFd};

use super::Vcpu;
use super::kick::Armed;
use crate::devices::bus::{ACCESS_MAX, Bus, BusError};
use crate::machine::ThreadKind;
use crate::machine::gate::{Exit, Gate, Next};

/// Most entries that one instruction takes: 64 bytes, by single ones, and some.
const FINISH_MAX: usize = 80;

/// How an entry into the guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entered {
    /// It was told to come out, and owes the guest nothing.
    Interrupted,
    /// It asked for something, which it has got.
    Exit,
}

/// The devices of a machine, as a vCPU reaches them.
#[derive(Debug)]
pub(crate) struct Buses {
    pub(crate) ports: Bus,
    pub(crate) mmio: Bus,
}

/// Everything a vCPU's thread needs.
pub(crate) struct Runner<'a> {
    pub(crate) buses: &'a Buses,
    pub(crate) gate: &'a Gate,
    /// Counts those in which the guest asked for something.
    pub(crate) exits: &'a AtomicU64,
}

impl Runner<'_> {
    /// Runs `vcpu` in this thread until the machine ends. It is locked but while it is held.
    pub(crate) fn run(&self, vcpu: &Mutex<Vcpu>) {
        while self.gate.pass(ThreadKind::Vcpu) == Next::Go {
            let mut vcpu = vcpu.lock().unwrap_or_else(PoisonError::into_inner);
            let id = vcpu.id;
            let mut armed = Armed::new(&mut vcpu.fd);
            loop {
                armed.forget_kicks();
                if !self.gate.is_open() {
                    break;
                }
                self.step(id, armed.fd);
            }
            self.finish(id, &mut armed);
        }
    }

    /// Enters the guest once.
    fn step(&self, id: u8, fd: &mut VcpuFd) -> Entered {
        match fd.run() {
            Ok(exit) => {
                self.exits.fetch_add(1, Ordering::Relaxed);
                if let Some(end) = self.serve(id, exit) {
                    self.gate.end(end);
                }
                Entered::Exit
            }
            // A kick, or a pause of the host's own.
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {
                Entered::Interrupted
            }
            Err(error) => {
                self.gate.end(Exit::CpuFault {
                    vcpu: id,
                    what: format!("KVM_RUN fails: {error}"),
                });
                Entered::Interrupted
            }
        }
    }

    /// Has KVM carry out what it still owes the guest for its last exit: the instruction of a port or
    /// register access is complete, and the registers are what they are to be saved as, only after
    /// the next entry (`Documentation/virt/kvm/api.rst`, 5, `kvm_run`, note on `KVM_EXIT_IO`). A
    /// long access takes several.
    fn finish(&self, id: u8, armed: &mut Armed<'_>) {
        for _ in 0..FINISH_MAX {
            armed.leave_at_once();
            if matches!(self.step(id, armed.fd), Entered::Interrupted) {
                return;
            }
        }
        tracing::error!(vcpu = id, "an access of the guest does not come to an end");
    }

    /// Serves one exit; says how the machine ends, if it does.
    fn serve(&self, vcpu: u8, exit: VcpuExit<'_>) -> Option<Exit> {
        let done =
            match exit {
                VcpuExit::IoOut(port, data) => elements(data)
                    .try_for_each(|data| self.buses.ports.write(u64::from(port), data)),
                VcpuExit::IoIn(port, data) => elements_mut(data)
                    .try_for_each(|data| self.buses.ports.read(u64::from(port), data)),
                VcpuExit::MmioRead(address, data) => self.buses.mmio.read(address, data),
                VcpuExit::MmioWrite(address, data) => self.buses.mmio.write(address, data),
                VcpuExit::Intr => Ok(()),
                VcpuExit::Shutdown => return Some(Exit::TripleFault { vcpu }),
                VcpuExit::SystemEvent(kind, _) => return Some(system_event(vcpu, kind)),
                other => {
                    return Some(Exit::CpuFault {
                        vcpu,
                        what: describe(&other),
                    });
                }
            };
        done.err()
            .map(|BusError { device, source }| Exit::HostError { device, source })
    }
}

/// A string instruction passes many elements at once, without telling their size. Up to
/// [`ACCESS_MAX`] bytes go as one access; more can only be a string, and goes by bytes, the size
/// of every port here.
fn elements(data: &[u8]) -> std::slice::Chunks<'_, u8> {
    data.chunks(element_len(data.len()))
}

fn elements_mut(data: &mut [u8]) -> std::slice::ChunksMut<'_, u8> {
    let len = element_len(data.len());
    data.chunks_mut(len)
}

fn element_len(len: usize) -> usize {
    if len <= ACCESS_MAX { len.max(1) } else { 1 }
}

/// `KVM_SYSTEM_EVENT_*`: 1 is a shutdown, 2 a reset, 3 a crash.
fn system_event(vcpu: u8, kind: u32) -> Exit {
    match kind {
        1 => Exit::PowerOff,
        2 => Exit::Reset,
        _ => Exit::CpuFault {
            vcpu,
            what: format!("KVM reports the event {kind}"),
        },
    }
}

fn describe(exit: &VcpuExit<'_>) -> String {
    match exit {
        VcpuExit::InternalError => "KVM could not emulate an instruction of the guest".to_owned(),
        VcpuExit::FailEntry(reason, cpu) => {
            format!("the processor {cpu} refuses to enter the guest, reason {reason:#x}")
        }
        VcpuExit::MemoryFault { gpa, .. } => format!("no memory at {gpa:#x}"),
        other => format!("an exit that this monitor does not know: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_strings_are_passed_by_bytes_and_short_ones_whole() {
        assert_eq!(elements(&[0; 4]).count(), 1);
        assert_eq!(elements(&[0; 8]).count(), 1);
        assert_eq!(elements(&[0; 9]).count(), 9);
        assert_eq!(elements(&[]).count(), 0);
    }
}
