//! Messages on a socket, and the threads that serve them.
//!
//! Each message is in a frame (`frame`): the monitor says which request it is, and how long its answer may
//! be. A frame that can be none ends the connection: nobody could say where the next one begins.
//!
//! A few threads take turns: one of them reads, lets the next one read, and serves what it has read itself,
//! so that nothing is handed from thread to thread between a question and its answer. What returns
//! references is served before the next message is read, what may wait for a disk on threads apart.

use std::io::{self, BufRead, BufReader, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread::Scope;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::{Condvar, Mutex};
use thiserror::Error;

use super::codec::{Header, IN_HEADER, OUT_HEADER, Reply};
use super::frame::{self, Frame};
use super::server::{Order, Server};
use crate::dispatch::Errno;

/// Bytes taken off the socket at a time. Larger messages are read into their place.
const READ_AT_ONCE: usize = 64 << 10;
/// Threads for what may take long.
const APART: usize = 2;
/// Messages that wait for them. With more the connection stands still; all fit into a virtqueue.
const APART_MAX: usize = 1024;
/// Longest body of a message that may wait for them. Those that are meant for them are shorter, and a longer one is
/// served like any other.
const APART_LEN: usize = 256;
/// Bytes that a thread keeps for messages and answers while it sees small ones.
const KEPT: usize = 64 << 10;
/// So many small ones in a row, and it gives back what large ones took.
const SMALL_ONES: u32 = 32;
/// Who takes no answer for so long is gone: a rollback waits for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a connection ended that was not closed between two messages.
#[derive(Debug, Error)]
pub enum StreamError {
    /// A message cannot be that long, or that short.
    #[error("a message of {len} bytes")]
    Length {
        /// What its frame says.
        len: u32,
    },
    /// It is in no frame of a monitor's.
    #[error("a frame of the kind {kind}")]
    Kind {
        /// What it says of itself.
        kind: u16,
    },
    /// A field of its frame that is always zero is not.
    #[error("a frame with something in a reserved field")]
    Reserved,
    /// A request leaves less room for its answer than the header of one takes.
    #[error("a request with room for an answer of {reply_max} bytes")]
    ReplyMax {
        /// What its frame says.
        reply_max: u32,
    },
    /// It was closed within a message.
    #[error("the connection ended within a message")]
    Truncated,
    /// The socket failed, or nobody took an answer for a minute.
    #[error("the socket failed while {action}")]
    Socket {
        /// What was being done.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// What came in.
enum Came<'a> {
    /// A request and the body of its message.
    Request(Asked, &'a [u8]),
    /// The guest's driver has started anew.
    Reset,
    /// The end of the connection.
    End,
}

/// Which request a message is, and what may be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    header: Header,
    tag: u64,
    /// Most bytes of the answer, its FUSE header included; 0: it gets none.
    reply_max: u32,
}

/// The socket's way in, with whoever's turn it is.
struct Incoming {
    reader: BufReader<UnixStream>,
    ended: bool,
}

/// A connection that is being served.
struct Connection<'a> {
    server: &'a Server,
    socket: &'a UnixStream,
    incoming: Mutex<Incoming>,
    /// Held while an answer is written.
    outgoing: Mutex<()>,
    /// Messages that have been read and not been answered.
    unanswered: Mutex<usize>,
    answered: Condvar,
    failure: Mutex<Option<StreamError>>,
}

/// Serves a connection until it ends; every request that was read has been served then.
pub(super) fn serve(
    server: &Server,
    socket: UnixStream,
    threads: usize,
) -> Result<(), StreamError> {
    let failed = |action| move |source| StreamError::Socket { action, source };
    socket
        .set_write_timeout(Some(ANSWER_TIMEOUT))
        .map_err(failed("it was set up"))?;
    let reading = socket.try_clone().map_err(failed("it was duplicated"))?;
    let connection = Connection {
        server,
        socket: &socket,
        incoming: Mutex::new(Incoming {
            reader: BufReader::with_capacity(READ_AT_ONCE, reading),
            ended: false,
        }),
        outgoing: Mutex::default(),
        unanswered: Mutex::default(),
        answered: Condvar::new(),
        failure: Mutex::default(),
    };
    let (apart, waiting) = bounded::<(Asked, Vec<u8>)>(APART_MAX);
    std::thread::scope(|scope| {
        let connection = &connection;
        let mut has_apart = false;
        for _ in 0..APART {
            let waiting = waiting.clone();
            has_apart |= spawn(scope, move || connection.serve_apart(&waiting));
        }
        drop(waiting);
        // Without threads for them, what may take long is served by the others.
        let apart = has_apart.then_some(apart);
        for _ in 1..threads.max(1) {
            let apart = apart.clone();
            spawn(scope, move || connection.take_turns(apart.as_ref()));
        }
        connection.take_turns(apart.as_ref());
    });
    connection.failure.into_inner().map_or(Ok(()), Err)
}

/// Starts a thread; false if there is none to be had.
fn spawn<'scope>(scope: &'scope Scope<'scope, '_>, work: impl FnOnce() + Send + 'scope) -> bool {
    let thread = std::thread::Builder::new().name("floe-guest".to_owned());
    let started = thread.spawn_scoped(scope, work);
    if let Err(error) = &started {
        tracing::warn!(%error, "no thread for a guest's requests");
    }
    started.is_ok()
}

impl Connection<'_> {
    /// Reads and serves messages until there are no more.
    fn take_turns(&self, apart: Option<&Sender<(Asked, Vec<u8>)>>) {
        let (mut buffer, mut reply) = (Vec::new(), Reply::default());
        let mut small_ones = 0;
        loop {
            let mut incoming = self.incoming.lock();
            if incoming.ended {
                return;
            }
            let (asked, body) = match incoming.next(&mut buffer) {
                Ok(Came::Request(asked, body)) => (asked, body),
                Ok(Came::Reset) => {
                    self.wait_for_answers();
                    // What is returned changes what a rollback works on.
                    let _serving = self.server.serving();
                    self.server.let_go();
                    continue;
                }
                Ok(Came::End) => {
                    incoming.ended = true;
                    return;
                }
                Err(error) => {
                    incoming.ended = true;
                    drop(incoming);
                    self.fail(error);
                    return;
                }
            };
            match (Server::order(&asked.header), apart) {
                (Order::First, _) => self.answer(asked, body, &mut reply),
                (Order::Alone, _) => {
                    self.wait_for_answers();
                    self.answer(asked, body, &mut reply);
                }
                (Order::Apart, Some(apart)) if body.len() <= APART_LEN => {
                    self.begin();
                    // Waits where too many do.
                    if apart.send((asked, body.to_vec())).is_err() {
                        self.answer(asked, body, &mut reply);
                        self.end();
                    }
                }
                (Order::Beside | Order::Apart, _) => {
                    self.begin();
                    drop(incoming);
                    self.answer(asked, body, &mut reply);
                    self.end();
                }
            }
            let was_large = body.len() > KEPT || reply.body().len() > KEPT;
            small_ones = if was_large { 0 } else { small_ones + 1 };
            if small_ones == SMALL_ONES {
                buffer.truncate(KEPT);
                buffer.shrink_to(KEPT);
                reply.body_mut().shrink_to(KEPT);
                small_ones = 0;
            }
        }
    }

    /// Serves what may take long.
    fn serve_apart(&self, waiting: &Receiver<(Asked, Vec<u8>)>) {
        let mut reply = Reply::default();
        for (asked, body) in waiting {
            self.answer(asked, &body, &mut reply);
            self.end();
        }
    }

    /// A message has been read; called while it is this thread's turn to read.
    fn begin(&self) {
        *self.unanswered.lock() += 1;
    }

    /// And has been answered.
    fn end(&self) {
        let mut unanswered = self.unanswered.lock();
        *unanswered -= 1;
        if *unanswered == 0 {
            self.answered.notify_all();
        }
    }

    /// Waits until everything that was read before has been answered. Nothing more is read meanwhile.
    fn wait_for_answers(&self) {
        let mut unanswered = self.unanswered.lock();
        while *unanswered > 0 {
            self.answered.wait(&mut unanswered);
        }
    }

    /// Serves a message and sends the answer.
    fn answer(&self, asked: Asked, body: &[u8], reply: &mut Reply) {
        let _serving = self.server.serving();
        self.server.answer(asked.header, body, reply);
        // Whoever leaves room for an answer waits for it, whatever it was that they sent: a chain of theirs
        // that is never given back keeps the monitor from coming to rest.
        if asked.reply_max == 0 {
            return;
        }
        let most = usize::try_from(asked.reply_max).unwrap_or(usize::MAX);
        if OUT_HEADER + reply.body().len() > most {
            // No driver leaves too little room for what it asks for.
            reply.error(Errno(libc::EIO));
        }
        let mut head = [0; frame::HEADER + OUT_HEADER];
        let (frame, header) = head.split_at_mut(frame::HEADER);
        let len = OUT_HEADER + reply.body().len();
        frame.copy_from_slice(&frame::reply_header(asked.tag, len));
        header.copy_from_slice(&reply.header());
        let _outgoing = self.outgoing.lock();
        match send(self.socket, &head, reply.body()) {
            Ok(()) => {}
            // Nobody is there to take it, and nobody misses it.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => self.stop(),
            Err(source) => self.fail(StreamError::Socket {
                action: "an answer was sent",
                source,
            }),
        }
    }

    /// The connection is of no use any more, for this reason.
    fn fail(&self, error: StreamError) {
        self.stop();
        self.failure.lock().get_or_insert(error);
    }

    /// Whoever reads the connection finds its end.
    fn stop(&self) {
        if let Err(error) = self.socket.shutdown(Shutdown::Both) {
            tracing::debug!(%error, "a guest's connection is shut down already");
        }
    }
}

impl Incoming {
    /// Reads one whole frame. The buffer is for the body, and only ever grows here: what is in it already
    /// is overwritten, so that nothing is filled with zeros for each message.
    fn next<'a>(&mut self, buffer: &'a mut Vec<u8>) -> Result<Came<'a>, StreamError> {
        loop {
            match self.reader.fill_buf() {
                Ok([]) => return Ok(Came::End),
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The other side is gone, with answers that it has not taken.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(Came::End),
                Err(source) => return Err(reading(source)),
            }
        }
        let mut frame = [0; frame::HEADER];
        self.reader.read_exact(&mut frame).map_err(reading)?;
        let Frame::Request {
            tag,
            reply_max,
            body,
        } = Frame::decode(&frame)?
        else {
            return Ok(Came::Reset);
        };
        let mut header = [0; IN_HEADER];
        self.reader.read_exact(&mut header).map_err(reading)?;
        // It is as long as its fields.
        let header = Header::parse(&header).map_err(|_| StreamError::Truncated)?;
        if buffer.len() < body {
            buffer.resize(body, 0);
        }
        let body = &mut buffer[..body];
        self.reader.read_exact(body).map_err(reading)?;
        let asked = Asked {
            header,
            tag,
            reply_max,
        };
        Ok(Came::Request(asked, body))
    }
}

fn reading(source: io::Error) -> StreamError {
    match source.kind() {
        ErrorKind::UnexpectedEof => StreamError::Truncated,
        _ => StreamError::Socket {
            action: "a message was read",
            source,
        },
    }
}

/// Sends an answer: header and body with one system call, mostly.
fn send(mut socket: &UnixStream, header: &[u8], body: &[u8]) -> io::Result<()> {
    let (mut header, mut body) = (header, body);
    while !header.is_empty() || !body.is_empty() {
        let sent = match socket.write_vectored(&[IoSlice::new(header), IoSlice::new(body)]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(sent) => sent,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let of_header = sent.min(header.len());
        header = header.get(of_header..).unwrap_or_default();
        body = body.get(sent - of_header..).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incoming() -> (UnixStream, Incoming) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let incoming = Incoming {
            reader: BufReader::with_capacity(64, ours),
            ended: false,
        };
        (theirs, incoming)
    }

    const REQUEST: u8 = 1;
    const RESET: u8 = 3;

    fn frame(kind: u8, len: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = [0; frame::HEADER];
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes[4] = kind;
        bytes[8] = 7;
        bytes[16] = 99;
        [&bytes[..], body].concat()
    }

    #[test]
    fn messages_are_told_apart_by_their_frames() {
        let (mut theirs, mut incoming) = incoming();
        let (long, short) = ([7; 2000], [1; 43]);
        let frames = [
            frame(REQUEST, 67, &short),
            frame(REQUEST, 2024, &long),
            frame(RESET, 24, &[]),
            frame(REQUEST, 67, &short),
        ];
        theirs.write_all(&frames.concat()).unwrap();
        drop(theirs);
        let mut buffer = Vec::new();
        for expected in [Some(&short[..]), Some(&long), None, Some(&short)] {
            match (incoming.next(&mut buffer).unwrap(), expected) {
                (Came::Request(asked, body), Some(expected)) => {
                    assert_eq!((asked.tag, asked.reply_max), (7, 99));
                    assert_eq!(Ok(asked.header), Header::parse(expected));
                    assert_eq!(body, &expected[IN_HEADER..]);
                }
                (Came::Reset, None) => {}
                _ => panic!("another frame"),
            }
        }
        assert!(matches!(incoming.next(&mut buffer), Ok(Came::End)));
        assert_eq!(buffer.len(), 2000 - IN_HEADER, "as long as the longest");
    }

    #[test]
    fn a_frame_that_can_be_none_is_an_error_before_anything_is_allocated() {
        for len in [0, 63, frame::FRAME_MAX + 1, u32::MAX] {
            let (mut theirs, mut incoming) = incoming();
            theirs.write_all(&frame(REQUEST, len, &[])).unwrap();
            let mut buffer = Vec::new();
            let error = incoming.next(&mut buffer).err();
            assert!(matches!(error, Some(StreamError::Length { len: found }) if found == len));
            assert_eq!(buffer.capacity(), 0);
        }
    }

    #[test]
    fn an_end_within_a_frame_is_told_from_one_between_two() {
        let whole = frame(REQUEST, 64, &[0; 40]);
        for part in [&whole[..1], &whole[..20], &whole[..50]] {
            let (mut theirs, mut incoming) = incoming();
            theirs.write_all(part).unwrap();
            drop(theirs);
            let mut buffer = Vec::new();
            let error = incoming.next(&mut buffer).err();
            assert!(matches!(error, Some(StreamError::Truncated)), "{error:?}");
        }
    }
}
