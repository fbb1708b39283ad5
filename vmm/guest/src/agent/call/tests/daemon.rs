//! An agent for a test, and the daemon that calls it.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use floe_guest::frame::{Decoder, Frame, Kind, Side, encode};
use floe_guest::hello::Hello;
use floe_guest::message::{
    End, Event, Exit, FileRef, Outcome, ProcessRef, Request, StartProcess, encode_open,
};

use super::{IS_AGENT, LIMIT};

/// Between two looks at something that changes by itself.
const PAUSE: Duration = Duration::from_millis(5);

/// The window of channels on which much may come.
const WIDE: u32 = 4 * 1024 * 1024;

/// An agent in a process of its own.
pub(super) struct Machine {
    child: Option<Child>,
    at: SocketAddr,
}

/// A connection of the daemon's.
pub(super) struct Daemon {
    pub(super) socket: TcpStream,
    decoder: Decoder,
    /// Bytes that were read and are not part of a frame yet.
    rest: Vec<u8>,
}

/// What was heard on a channel until its end.
pub(super) struct Said {
    pub(super) events: Vec<Event>,
    pub(super) data: Vec<u8>,
    pub(super) end: End,
}

pub(super) fn frame(kind: Kind, channel: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert!(encode(kind, channel, payload, &mut bytes));
    bytes
}

pub(super) fn open(channel: u32, request: &Request) -> Vec<u8> {
    open_within(WIDE, channel, request)
}

pub(super) fn open_within(window: u32, channel: u32, request: &Request) -> Vec<u8> {
    let payload = encode_open(window, request).unwrap();
    frame(Kind::Open, channel, &payload)
}

/// The name of who runs the tests.
pub(super) fn user() -> String {
    let uid = rustix::process::geteuid().as_raw().to_string();
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let mut lines = passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    let line = lines.find(|line| line.get(2) == Some(&uid.as_str()));
    line.expect("who runs the tests has a name")[0].to_owned()
}

/// A shell that runs a script, with input, by the name `sh`.
pub(super) fn shell(script: &str) -> StartProcess {
    StartProcess {
        cmd: "sh".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        user: Some(user()),
        cwd: Some("/".to_owned()),
        stdin: true,
        tag: Some("sh".to_owned()),
        ..StartProcess::default()
    }
}

pub(super) fn the_shell() -> ProcessRef {
    ProcessRef::Tag("sh".to_owned())
}

pub(super) fn file(path: &std::path::Path) -> FileRef {
    FileRef {
        path: path.to_str().unwrap().to_owned(),
        user: Some(user()),
    }
}

pub(super) fn exited(code: i32) -> End {
    End::Ok(Outcome::Exit(Exit { code, signal: None }))
}

/// Waits until something holds.
pub(super) fn within_limit(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "{what}: that takes too long");
        std::thread::sleep(PAUSE);
    }
}

/// Whether there is a process that runs.
pub(super) fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}

impl Machine {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "agent::call::tests::is_the_agent_of_another_test",
            ])
            .args(["--nocapture", "--test-threads=1"])
            .env(IS_AGENT, "1")
            .stdin(OwnedFd::from(listener))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let child = Some(child);
        Self { child, at }
    }

    /// Calls, and says nothing.
    pub(super) fn call(&self) -> Daemon {
        let socket = TcpStream::connect(self.at).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.set_write_timeout(Some(LIMIT)).unwrap();
        Daemon {
            socket,
            decoder: Decoder::new(Side::Agent),
            rest: Vec::new(),
        }
    }

    /// Calls, and shakes hands.
    pub(super) fn greeted(&self) -> Daemon {
        let mut daemon = self.call();
        daemon.greet();
        daemon
    }

    /// Waits for its end: whether it was in peace, and what it said.
    pub(super) fn end(mut self) -> (bool, String) {
        let child = self.child.as_mut().unwrap();
        within_limit("the agent ends", || child.try_wait().unwrap().is_some());
        let mut child = self.child.take().unwrap();
        let mut said = String::new();
        let mut stderr = child.stderr.take().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        (child.wait().unwrap().success(), said)
    }

    /// The same of one that must end in peace.
    pub(super) fn ends(self) {
        assert_eq!(self.end(), (true, String::new()));
    }
}

/// A test has failed.
impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Daemon {
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    pub(super) fn greet(&mut self) {
        self.send(&frame(Kind::Hello, 0, &Hello::ours().encode()));
        let answer = self.next().unwrap();
        assert_eq!((answer.kind, answer.channel), (Kind::Hello, 0));
    }

    /// Takes the connection away, without an end.
    pub(super) fn reset(self) {
        let linger = Some(Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(&self.socket, linger).unwrap();
    }

    /// Ends the connection in order, and reads what is left of it.
    pub(super) fn hang_up(mut self) {
        self.socket.shutdown(Shutdown::Write).unwrap();
        while self.next().is_some() {}
    }

    /// The next frame; `None` at the end of the connection.
    pub(super) fn next(&mut self) -> Option<Frame> {
        loop {
            let mut bytes = self.rest.as_slice();
            let found = self.decoder.next(&mut bytes).unwrap();
            self.rest = bytes.to_vec();
            if found.is_some() {
                return found;
            }
            let mut buffer = vec![0; 64 * 1024];
            match self.socket.read(&mut buffer) {
                Ok(0) => return None,
                Ok(len) => self.rest.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing comes: {error}"),
            }
        }
    }

    /// Starts a command on a channel. Its process.
    pub(super) fn start(&mut self, channel: u32, command: StartProcess) -> u32 {
        self.send(&open(channel, &Request::Start(command)));
        match self.event(channel) {
            Event::Started { pid, .. } => pid,
            other => panic!("{other:?}"),
        }
    }

    /// The next event on a channel.
    pub(super) fn event(&mut self, channel: u32) -> Event {
        let frame = self.next().unwrap();
        assert_eq!((frame.kind, frame.channel), (Kind::Event, channel));
        serde_json::from_slice(&frame.payload).unwrap()
    }

    /// All that is said on a channel, to its end.
    pub(super) fn said(&mut self, channel: u32) -> Said {
        let (mut events, mut data) = (Vec::new(), Vec::new());
        loop {
            let frame = self.next().expect("the connection is there");
            assert_eq!(frame.channel, channel, "{:?}", frame.kind);
            match frame.kind {
                Kind::Event => events.push(serde_json::from_slice(&frame.payload).unwrap()),
                Kind::Data | Kind::Stderr => data.extend(frame.payload),
                Kind::End => {
                    let end = serde_json::from_slice(&frame.payload).unwrap();
                    return Said { events, data, end };
                }
                Kind::Credit => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Asks for something on a channel. All that is said of it.
    pub(super) fn ask(&mut self, channel: u32, request: &Request) -> Said {
        self.send(&open(channel, request));
        self.said(channel)
    }

    /// Gives the shell a line.
    pub(super) fn type_line(&mut self, channel: u32, line: &str) {
        let input = Request::Input {
            process: the_shell(),
        };
        self.send(&open(channel, &input));
        self.send(&frame(Kind::Data, channel, line.as_bytes()));
        self.send(&frame(Kind::Eof, channel, b""));
        assert_eq!(self.said(channel).end, End::Ok(Outcome::Done));
    }

    /// Attaches to the shell. All that is said of it.
    pub(super) fn attach(&mut self, channel: u32) -> Said {
        let process = the_shell();
        self.ask(channel, &Request::Attach { process })
    }
}
