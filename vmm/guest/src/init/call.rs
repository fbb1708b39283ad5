//! Where the daemon calls.
//!
//! The guest listens and the host calls, not the other way round: then there is no socket on the host
//! that a process of the guest could talk to, and a socket that listens survives what a memory snapshot
//! does to connections.
//!
//! Invariant: nobody but the host is put through.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use floe_guest::vm::{AGENT_PORT, HOST_CID};

use crate::agent::call::Line;
use crate::agent::sys;

/// Listens. It goes on for as long as the machine runs.
pub fn line() -> io::Result<Line> {
    Ok(Line {
        listener: sys::vsock_listen(AGENT_PORT)?,
        accept,
    })
}

fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let (caller, from) = sys::vsock_accept(listener)?;
    Ok((from == HOST_CID).then_some(caller))
}
