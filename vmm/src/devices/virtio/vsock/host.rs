//! The host's side: the socket that programs connect to, and the sockets that guests connect to.
//!
//! A program that wants a port of the guest connects to the machine's socket and sends
//! `CONNECT <port>\n`; the answer is `OK <its own port>\n`, and from then on the socket is the
//! connection. If the guest does not listen, the socket is closed without an answer. A guest that
//! connects to the host's port `P` reaches whoever listens at the machine's socket's path with `_P`
//! appended.

use std::io::{self, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Longest `CONNECT` line in bytes.
const LINE_MAX: usize = 32;

/// Where the host's programs find the machine.
#[derive(Debug)]
pub struct HostSockets {
    /// The machine's socket.
    pub listener: UnixListener,
    /// Its path, which the paths for guests' connections begin with.
    pub path: PathBuf,
}

impl HostSockets {
    /// Listens at `path`, which must not exist.
    ///
    /// # Errors
    /// The system's.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
        })
    }

    /// The next program that has connected, if there is one.
    pub(super) fn accept(&self) -> io::Result<Option<UnixStream>> {
        match self.listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(true)?;
                Ok(Some(socket))
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted
                | io::ErrorKind::ConnectionAborted => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Connects to who listens for the guests' connections to `port`. Never waits: a listener that
    /// does not keep up is as good as none.
    pub(super) fn connect(&self, port: u32) -> io::Result<UnixStream> {
        let mut path = self.path.clone().into_os_string();
        path.push(format!("_{port}"));
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket.into())
    }
}

/// A program that has not said which port it wants.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) socket: UnixStream,
    line: Vec<u8>,
}

/// What became of a [`Caller`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Called {
    /// It has not sent the whole line.
    Wait,
    /// It wants this port.
    Port(u32),
    /// It is gone, or sent something else.
    Gone,
}

impl Caller {
    pub(super) fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            line: Vec::new(),
        }
    }

    /// Reads on, byte by byte: what follows the line is the guest's.
    pub(super) fn read(&mut self) -> Called {
        let mut byte = [0];
        loop {
            match self.socket.read(&mut byte) {
                Ok(1) if byte[0] == b'\n' => {
                    return parse(&self.line).map_or(Called::Gone, Called::Port);
                }
                Ok(1) if self.line.len() < LINE_MAX => self.line.push(byte[0]),
                Ok(_) => return Called::Gone,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Called::Wait,
                    io::ErrorKind::Interrupted => {}
                    _ => return Called::Gone,
                },
            }
        }
    }
}

fn parse(line: &[u8]) -> Option<u32> {
    let port = line.strip_prefix(b"CONNECT ")?;
    let digits = std::str::from_utf8(port).ok()?;
    digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_call_is_read_up_to_the_end_of_its_line() {
        let (mut near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let mut caller = Caller::new(far);
        near.write_all(b"CONN").unwrap();
        assert_eq!(caller.read(), Called::Wait);
        near.write_all(b"ECT 1024\nrest").unwrap();
        assert_eq!(caller.read(), Called::Port(1024));
        let mut rest = [0; 4];
        caller.socket.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"rest");
    }

    #[test]
    fn other_words_are_hung_up_on() {
        for words in [
            &b"GET / HTTP/1.1\n"[..],
            b"CONNECT \n",
            b"CONNECT -1\n",
            b"CONNECT +1\n",
            b"CONNECT 4294967296\n",
            b"\n",
            &[b'x'; 100],
        ] {
            let (mut near, far) = UnixStream::pair().unwrap();
            near.write_all(words).unwrap();
            assert_eq!(Caller::new(far).read(), Called::Gone);
        }
    }
}
