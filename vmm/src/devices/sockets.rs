//! What several devices ask of a socket.

use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};

/// Whether the other end of a socket is closed in both directions, not only for sending.
pub(crate) fn hung_up(socket: &UnixStream) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    let now = rustix::time::Timespec::default();
    poll(&mut fds, Some(&now)).is_err()
        || fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;

    use super::*;

    #[test]
    fn half_closed_is_not_hung_up() {
        let (near, far) = UnixStream::pair().unwrap();
        assert!(!hung_up(&near));
        far.shutdown(Shutdown::Write).unwrap();
        assert!(!hung_up(&near));
        drop(far);
        assert!(hung_up(&near));
    }
}
