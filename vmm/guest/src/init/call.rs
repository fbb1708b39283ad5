//! The daemon's call.
//!
//! The guest listens and the host calls, not the other way round: then there is no socket on the host
//! that a process of the guest could talk to, and a socket that listens survives what a memory snapshot
//! does to connections.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use floe_guest::vm::{AGENT_PORT, HOST_CID};
use rustix::net::RecvFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::agent::sys;

/// How long a caller has to say something. The daemon speaks first.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for the daemon, as long as that takes.
pub fn wait() -> io::Result<OwnedFd> {
    let listener = sys::vsock_listen(AGENT_PORT)?;
    loop {
        let (wire, from) = sys::vsock_accept(&listener)?;
        if from == HOST_CID && speaks(&wire)? {
            return Ok(wire);
        }
    }
}

/// Whether a caller says something before it hangs up. One that gave up while the machine was booting may
/// have been put through all the same, and the end of its connection is not to be that of the machine.
fn speaks(wire: &OwnedFd) -> io::Result<bool> {
    set_socket_timeout(wire, Timeout::Recv, Some(PATIENCE))?;
    let mut byte = [0];
    let spoken = match rustix::net::recv(wire, &mut byte, RecvFlags::PEEK) {
        Ok((_, len)) => len > 0,
        Err(_) => false,
    };
    set_socket_timeout(wire, Timeout::Recv, None)?;
    Ok(spoken)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_caller_that_hangs_up_is_not_taken_and_one_that_speaks_loses_nothing() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"hello").unwrap();
        let ours = OwnedFd::from(ours);
        assert!(speaks(&ours).unwrap());
        let mut bytes = [0; 8];
        assert_eq!(rustix::io::read(&ours, &mut bytes), Ok(5));
        drop(theirs);
        assert!(!speaks(&ours).unwrap());
    }
}
