//! What runs a sandbox, of either kind, behind one face.

use std::time::Duration;

use super::Answer;
use super::process::{GroupUsage, Process};
use super::vm::Vm;
use crate::agent::Agent;

/// The processes of a sandbox on the host, or its virtual machine.
pub(super) enum Engine {
    Process(Process),
    Vm(Box<Vm>),
}

impl Engine {
    /// The way to its agent.
    pub(super) fn agent(&self) -> &Agent {
        match self {
            Self::Process(process) => &process.agent,
            Self::Vm(vm) => &vm.agent,
        }
    }

    /// Has everything in it stand still.
    ///
    /// # Errors
    /// When it does not within the time (of a machine, within the monitor's): it goes on then.
    pub(super) fn freeze(&self, wait: Duration) -> Answer<()> {
        match self {
            Self::Process(process) => process.cgroup.freeze(wait)?,
            Self::Vm(vm) => vm.pause()?,
        }
        Ok(())
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When the host fails.
    pub(super) fn thaw(&self) -> Answer<()> {
        match self {
            Self::Process(process) => process.cgroup.thaw()?,
            Self::Vm(vm) => vm.resume()?,
        }
        Ok(())
    }

    /// What it uses of the host.
    pub(super) fn usage(&self) -> GroupUsage {
        match self {
            Self::Process(process) => process.usage(),
            Self::Vm(vm) => vm.usage(),
        }
    }

    /// The limits that this host does not enforce.
    pub(super) fn unenforced(&self) -> &[String] {
        match self {
            Self::Process(process) => process.cgroup.unenforced(),
            Self::Vm(vm) => vm.cgroup.unenforced(),
        }
    }

    /// Why it ended, when nobody ended it, and whether that is a failure: of what should not end at all.
    pub(super) fn ended_because(&self) -> (String, bool) {
        match self {
            Self::Process(process) => match process.cgroup.usage().killed_for_memory {
                Some(count) if count > 0 => {
                    let what = "its first process ended; it had used up its memory";
                    (what.to_owned(), false)
                }
                _ => ("its first process ended".to_owned(), false),
            },
            Self::Vm(vm) => vm.ended_because(),
        }
    }

    /// Ends it. Returns when nothing of it is left.
    pub(super) fn end(self) {
        match self {
            Self::Process(process) => process.end(),
            Self::Vm(vm) => vm.end(),
        }
    }
}
