//! A machine without its memory, as a value that can be written to a file.

use serde::{Deserialize, Serialize};

use crate::machine::DevicesState;
use crate::machine::vcpu::VcpuState;

/// Everything of a machine but its memory, at one point in time.
#[derive(Debug, Serialize, Deserialize)]
pub struct MachineState {
    /// RAM in MiB.
    pub ram_mib: u32,
    /// Its vCPUs in order.
    pub vcpus: Vec<VcpuState>,
    /// What its paravirtual clock showed, in nanoseconds.
    pub clock: u64,
    /// Its devices.
    pub devices: DevicesState,
}

/// A state cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("the machine's state cannot be {action}")]
pub struct StateError {
    action: &'static str,
    source: postcard::Error,
}

impl MachineState {
    /// As bytes: postcard (<https://postcard.jamesmunns.com/wire-format>), whose schema is the fields
    /// here in order. A change of any of them is a new version of the image's format.
    ///
    /// # Errors
    /// [`StateError`], which does not happen.
    pub fn encode(&self) -> Result<Vec<u8>, StateError> {
        let action = "written";
        postcard::to_stdvec(self).map_err(|source| StateError { action, source })
    }

    /// Reads bytes. What they say is checked by whoever is set to it, as a guest's writes are.
    ///
    /// # Errors
    /// [`StateError`] when they are no state.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let action = "read";
        postcard::from_bytes(bytes).map_err(|source| StateError { action, source })
    }
}
