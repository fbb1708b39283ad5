//! The control socket: lines in, with descriptors that belong to them; lines out; never more than a line in
//! memory.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::messages::{Event, LINE_MAX};

/// The monitor's end.
#[derive(Debug)]
pub(super) struct Control {
    socket: UnixStream,
    received: Vec<u8>,
    files: VecDeque<OwnedFd>,
}

/// Most descriptors that wait for their command.
const FILES_MAX: usize = 4;

impl Control {
    pub(super) fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            received: Vec::new(),
            files: VecDeque::new(),
        }
    }

    /// Reads once. `false`: the daemon is gone.
    ///
    /// # Errors
    /// The socket's, and a line that is too long.
    pub(super) fn receive(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let len = match recvmsg(&self.socket, &mut parts, &mut control, flags) {
            Ok(message) => message.bytes,
            Err(rustix::io::Errno::INTR) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.files.extend(files);
            }
        }
        // Of more than any command takes, the oldest go.
        while self.files.len() > FILES_MAX {
            self.files.pop_front();
        }
        self.received.extend(&bytes[..len]);
        if self.received.len() > LINE_MAX && !self.received.contains(&b'\n') {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(len > 0)
    }

    /// The next line that is whole, without its end.
    pub(super) fn line(&mut self) -> Option<Vec<u8>> {
        let end = self.received.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.received.drain(..=end).collect();
        line.pop();
        Some(line)
    }

    /// The oldest descriptor that came with a line, once.
    pub(super) fn file(&mut self) -> Option<File> {
        self.files.pop_front().map(File::from)
    }

    /// Says something. A daemon that does not read stops its monitor.
    ///
    /// # Errors
    /// The socket's.
    pub(super) fn send(&mut self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        self.socket.write_all(&line)
    }
}

impl AsRawFd for Control {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_and_endless_ones_are_refused() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut control = Control::new(far);
        near.write_all(b"one\ntw").unwrap();
        assert!(control.receive().unwrap());
        assert_eq!(control.line().unwrap(), b"one");
        assert_eq!(control.line(), None);
        near.write_all(b"o\n").unwrap();
        assert!(control.receive().unwrap());
        assert_eq!(control.line().unwrap(), b"two");
        let writer = std::thread::spawn(move || near.write_all(&vec![b'x'; 64 * LINE_MAX]));
        let error = loop {
            match control.receive() {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        drop(control);
        assert!(writer.join().unwrap().is_err());
    }
}
