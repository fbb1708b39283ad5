//! Frames by hand, to say to the agent what the client never says.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use floe_guest::frame::{Decoder, Frame, HEADER, Kind, Side, encode};
use floe_guest::hello::Hello;
use floe_guest::message::{
    End, Event, Failure, FailureKind, Outcome, ProcessRef, Request, StartProcess, encode_open,
};

use super::guest::{AgentProcess, is_there, raw_guest, user};

/// A connection on which frames are said by hand.
pub(super) struct Raw {
    pub(super) process: AgentProcess,
    pub(super) socket: UnixStream,
    decoder: Decoder,
    /// Bytes that were read and are not part of a frame yet.
    rest: Vec<u8>,
}

pub(super) fn frame(kind: Kind, channel: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert!(encode(kind, channel, payload, &mut bytes));
    bytes
}

/// A header that [`encode`] would refuse to make.
pub(super) fn header(len: u32, kind: u8, channel: u32) -> Vec<u8> {
    let mut bytes = len.to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend(channel.to_le_bytes());
    assert_eq!(bytes.len(), HEADER);
    bytes
}

pub(super) fn open(channel: u32, request: &Request) -> Vec<u8> {
    frame(Kind::Open, channel, &encode_open(1 << 20, request).unwrap())
}

/// `cat` for the user who runs the tests.
pub(super) fn cat() -> Request {
    Request::Start(StartProcess {
        cmd: "cat".to_owned(),
        user: Some(user()),
        cwd: Some("/".to_owned()),
        stdin: true,
        tag: Some("cat".to_owned()),
        ..StartProcess::default()
    })
}

pub(super) fn input() -> Request {
    Request::Input {
        process: ProcessRef::Tag("cat".to_owned()),
    }
}

impl Raw {
    pub(super) fn silent() -> Self {
        let (process, socket) = raw_guest();
        Self {
            process,
            socket,
            decoder: Decoder::new(Side::Agent),
            rest: Vec::new(),
        }
    }

    pub(super) fn greeted() -> Self {
        let mut raw = Self::silent();
        raw.send(&frame(Kind::Hello, 0, &Hello::ours().encode()));
        let answer = raw.next().unwrap();
        assert_eq!(answer.kind, Kind::Hello);
        raw
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
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

    /// How the channel ends.
    pub(super) fn end(&mut self, channel: u32) -> End {
        loop {
            let frame = self.next().expect("the connection is there");
            if frame.kind == Kind::End && frame.channel == channel {
                return serde_json::from_slice(&frame.payload).unwrap();
            }
        }
    }

    /// Starts `cat` on channel 1; its id.
    pub(super) fn start_cat(&mut self) -> String {
        self.send(&open(1, &cat()));
        let frame = self.next().unwrap();
        match serde_json::from_slice(&frame.payload).unwrap() {
            Event::Started { pid, .. } => pid.to_string(),
            other => panic!("{other:?}"),
        }
    }

    /// That the agent still serves, on a new channel.
    pub(super) fn still_serves(&mut self) {
        self.send(&open(77, &Request::Metrics));
        assert!(matches!(self.end(77), End::Ok(Outcome::Metrics(_))));
    }

    /// That the agent has ended the connection, itself and what it had started, and says why.
    pub(super) fn over(mut self, started: &str) {
        while self.next().is_some() {}
        let (status, said) = self.process.end();
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(said.contains("broke the protocol"), "{said}");
        assert!(started.is_empty() || !is_there(started));
    }
}

pub(super) fn failed(end: End) -> FailureKind {
    match end {
        End::Failed(Failure { kind, .. }) => kind,
        other => panic!("{other:?}"),
    }
}
