//! The saved form of the vsock device.

use serde::{Deserialize, Serialize};

/// What is kept of the device. Connections are not: their other ends are processes of the host,
/// which a restored machine does not have. The guest is told (`VIRTIO_VSOCK_EVENT_TRANSPORT_RESET`)
/// and its programs see their connections closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VsockState {
    /// The guest's address.
    pub guest_cid: u32,
    /// The port of the host that is tried next.
    pub next_port: u32,
    /// The guest has yet to be told that its connections are gone.
    pub reset_due: bool,
}
