//! Connections to TCP ports in the sandbox.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use floe_guest::frame::{Kind, MAX_DATA};
use floe_guest::message::{Event, Failure, FailureKind, Outcome};
use floe_guest::window::{Window, cost};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType};

use super::channel::Work;
use super::failure::{failed, failure};
use super::poll::{Source, Token};
use super::{Agent, complain};

/// A connection.
#[derive(Debug)]
pub struct Port {
    port: u16,
    socket: Source,
    state: State,
    /// What came from the daemon and is not sent yet.
    pub frames: VecDeque<Vec<u8>>,
    /// Bytes of the first that are.
    written: usize,
    /// Whether the other side has said that no more comes, and the daemon was told.
    read_over: bool,
    /// Whether the other side was told that no more comes.
    write_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Over IPv4.
    Connecting,
    /// Over IPv6, where there is nobody on IPv4.
    ConnectingAgain,
    Connected,
}

/// One step of moving bytes.
enum Moved {
    Some,
    Nothing,
    Failed(Errno),
}

fn connect(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

fn v4(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn v6(port: u16) -> SocketAddr {
    (Ipv6Addr::LOCALHOST, port).into()
}

fn closed(port: u16) -> Failure {
    failure(
        FailureKind::PortClosed,
        format!("nothing listens on port {port}"),
    )
}

impl Port {
    /// Reads into the window; what was read is in the buffer.
    fn read(&mut self, window: &mut Window, buffer: &mut Vec<u8>) -> Moved {
        let most = window.payload().min(MAX_DATA);
        if self.read_over || most == 0 {
            return Moved::Nothing;
        }
        buffer.resize(most, 0);
        match rustix::io::read(&self.socket, buffer.as_mut_slice()) {
            Ok(len) => {
                buffer.truncate(len);
                self.read_over = len == 0;
                // Cannot fail: no more was read than fits.
                if len > 0 && window.take(len).is_err() {
                    return Moved::Nothing;
                }
                Moved::Some
            }
            Err(Errno::AGAIN | Errno::INTR) => Moved::Nothing,
            Err(error) => Moved::Failed(error),
        }
    }

    /// Sends the next frame or a part of it. The length of the frame, if it is done.
    fn write(&mut self) -> (Moved, Option<usize>) {
        let Some(frame) = self.frames.front() else {
            return (Moved::Nothing, None);
        };
        let rest = frame.get(self.written..).unwrap_or_default();
        match rustix::io::write(&self.socket, rest) {
            Ok(len) if len < rest.len() => {
                self.written += len;
                (Moved::Some, None)
            }
            Ok(_) => {
                self.written = 0;
                let done = self.frames.pop_front().map(|frame| frame.len());
                (Moved::Some, done)
            }
            Err(Errno::AGAIN | Errno::INTR) => (Moved::Nothing, None),
            Err(error) => (Moved::Failed(error), None),
        }
    }

    fn settle(&mut self, window: Window) {
        let connected = self.state == State::Connected;
        let read = connected && !self.read_over && window.payload() > 0;
        let write = !connected || !self.frames.is_empty();
        if let Err(error) = self.socket.want(read, write) {
            complain("wait for a connection", &error);
        }
    }
}

impl Agent {
    /// Connects the channel to a port.
    pub(crate) fn connect_port(&mut self, number: u64, port: u16) -> Result<(), Failure> {
        let (socket, state) = match connect(v4(port)) {
            Ok(socket) => (socket, State::Connecting),
            Err(_) => match connect(v6(port)) {
                Ok(socket) => (socket, State::ConnectingAgain),
                Err(_) => return Err(closed(port)),
            },
        };
        let socket = Source::new(&self.poller, socket, Token::Port(number));
        let mut work = Port {
            port,
            socket,
            state,
            frames: VecDeque::new(),
            written: 0,
            read_over: false,
            write_over: false,
        };
        if let Some(channel) = self.channels.get_mut(number) {
            work.settle(channel.window);
            channel.work = Work::Port(Box::new(work));
        }
        Ok(())
    }

    /// Something can be done on a connection.
    pub(crate) fn port_ready(&mut self, number: u64) {
        let Some(channel) = self.channels.get_mut(number) else {
            return;
        };
        let Work::Port(port) = &mut channel.work else {
            return;
        };
        let outcome = match port.state {
            State::Connected => Ok(()),
            _ => rustix::net::sockopt::socket_error(&port.socket).and_then(|error| error),
        };
        match (outcome, port.state) {
            (Ok(()), State::Connected) => {}
            (Ok(()), _) => {
                port.state = State::Connected;
                if let Err(error) = rustix::net::sockopt::set_tcp_nodelay(&port.socket, true) {
                    complain("set up a connection", &error);
                }
                channel.push(&Event::Connected);
            }
            (Err(_), State::Connecting) => match connect(v6(port.port)) {
                Ok(socket) => {
                    port.socket = Source::new(&self.poller, socket, Token::Port(number));
                    port.state = State::ConnectingAgain;
                    return port.settle(channel.window);
                }
                Err(_) => {
                    let failure = closed(port.port);
                    channel.fail(failure);
                }
            },
            (Err(_), _) => {
                let failure = closed(port.port);
                channel.fail(failure);
            }
        }
        self.channels.wake(number);
    }

    /// Moves what can be moved.
    pub(crate) fn advance_port(&mut self, number: u64) {
        let Some(channel) = self.channels.get_mut(number) else {
            return;
        };
        let over = channel.input_over;
        let Work::Port(port) = &mut channel.work else {
            return;
        };
        if port.state != State::Connected {
            return;
        }
        let mut bytes = Vec::new();
        let read = port.read(&mut channel.window, &mut bytes);
        if let Moved::Some = read {
            let kind = if bytes.is_empty() {
                Kind::Eof
            } else {
                Kind::Data
            };
            self.wire.put(kind, channel.id, &bytes);
        }
        let (written, done) = port.write();
        if let Some(len) = done {
            // Cannot fail: it was taken out when the frame came.
            if channel.input.add(cost(len)).is_ok() {
                self.wire.credit(channel.id, cost(len));
            }
        }
        if over && port.frames.is_empty() && !port.write_over {
            port.write_over = true;
            match rustix::net::shutdown(&port.socket, Shutdown::Write) {
                // The other side was faster.
                Ok(()) | Err(Errno::NOTCONN) => {}
                Err(error) => complain("shut a connection down", &error),
            }
        }
        port.settle(channel.window);
        let what = format!("talk to port {}", port.port);
        let again = match (read, written) {
            (Moved::Failed(error), _) | (_, Moved::Failed(error)) => {
                channel.fail(failed(&what, error));
                true
            }
            _ if port.read_over && port.write_over => {
                channel.done(Outcome::Done);
                true
            }
            (Moved::Some, _) | (_, Moved::Some) => true,
            (Moved::Nothing, Moved::Nothing) => false,
        };
        if again {
            self.channels.wake(number);
        }
    }
}
