//! A guest's side of a connection.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use floe_fs::dispatch::wire::{Server, ServerOptions, StreamError};
use floe_fs::dispatch::{Caller, Dispatch};
use parking_lot::Mutex;

use super::frame::{Body, Fields, framed, message, op, read_in, reset, room_for_answer};

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to a server of its own.
pub struct Client {
    pub server: Arc<Server>,
    socket: Mutex<UnixStream>,
    next: AtomicU64,
    serving: Option<JoinHandle<Result<(), StreamError>>>,
}

/// What an answer is: its body, or an errno.
pub type Answer = Result<Vec<u8>, i32>;

impl Client {
    /// Connects, and says nothing yet.
    pub fn connect(dispatch: Arc<dyn Dispatch>, options: ServerOptions) -> Self {
        Self::of(Server::new(dispatch, options))
    }

    /// Connects to a server, and says nothing: one that was restored has mounted already.
    pub fn of(server: Arc<Server>) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        let serving = std::thread::spawn({
            let server = server.clone();
            move || server.serve(theirs)
        });
        Self {
            server,
            socket: Mutex::new(ours),
            next: AtomicU64::new(1),
            serving: Some(serving),
        }
    }

    /// Connects and mounts.
    pub fn mount(dispatch: Arc<dyn Dispatch>, options: ServerOptions) -> Self {
        let client = Self::connect(dispatch, options);
        client.init(7, 40, u64::MAX).unwrap();
        client
    }

    pub fn init(&self, major: u32, minor: u32, flags: u64) -> Answer {
        let half = |flags: u64| u32::try_from(flags & 0xffff_ffff).unwrap();
        let body = Body::new()
            .u32(major)
            .u32(minor)
            .u32(131_072)
            .u32(half(flags))
            .u32(half(flags >> 32))
            .bytes(&[0; 44]);
        self.call(op::INIT, 0, body)
    }

    pub fn unique(&self) -> u64 {
        self.next.fetch_add(2, Ordering::Relaxed)
    }

    /// Sends bytes as they are.
    pub fn send_raw(&self, bytes: &[u8]) {
        self.socket.lock().write_all(bytes).unwrap();
    }

    /// Sends a message.
    pub fn send(&self, message: &[u8]) {
        self.send_raw(&framed(message, room_for_answer(message)));
    }

    /// The driver starts anew, without a word to the file system.
    pub fn reset(&self) {
        self.send_raw(&reset());
    }

    /// Sends something that nobody answers.
    pub fn tell(&self, opcode: u32, node: u64, body: Body) {
        self.send(&message(opcode, self.unique(), node, (0, 0), &body.0));
    }

    /// The next answer: whose, and what.
    pub fn receive(&self) -> (u64, Answer) {
        receive(&mut self.socket.lock()).expect("an answer")
    }

    pub fn call(&self, opcode: u32, node: u64, body: Body) -> Answer {
        self.call_as(Caller { uid: 0, gid: 0 }, opcode, node, body)
    }

    /// Asks and waits for the answer, which has to be the next one.
    pub fn call_as(&self, caller: Caller, opcode: u32, node: u64, body: Body) -> Answer {
        let unique = self.unique();
        let ids = (caller.uid, caller.gid);
        let message = message(opcode, unique, node, ids, &body.0);
        let mut socket = self.socket.lock();
        socket
            .write_all(&framed(&message, room_for_answer(&message)))
            .unwrap();
        let (whose, answer) = receive(&mut socket).expect("an answer");
        assert_eq!(whose, unique, "the answer to another request");
        answer
    }

    /// Looks a name up; its inode.
    pub fn lookup(&self, parent: u64, name: &str) -> Result<u64, i32> {
        let answer = self.call(op::LOOKUP, parent, Body::new().string(name.as_bytes()))?;
        match Fields(&answer).u64() {
            0 => Err(libc::ENOENT),
            node => Ok(node),
        }
    }

    /// Makes a file and opens it; its inode.
    pub fn create(&self, parent: u64, name: &str, flags: i32) -> Result<u64, i32> {
        let body = Body::new().i32(flags).u32(0o100_644).u32(0).u32(0);
        let answer = self.call(op::CREATE, parent, body.string(name.as_bytes()))?;
        Ok(Fields(&answer).u64())
    }

    pub fn forget(&self, node: u64, count: u64) {
        self.tell(op::FORGET, node, Body::new().u64(count));
    }

    pub fn write(&self, node: u64, offset: u64, data: &[u8]) -> Answer {
        let size = u32::try_from(data.len()).unwrap();
        let head = Body::new().u64(0).u64(offset).u32(size).u32(0);
        self.call(op::WRITE, node, head.u64(0).u32(0).u32(0).bytes(data))
    }

    pub fn read(&self, node: u64, offset: u64, size: u32) -> Answer {
        self.call(op::READ, node, read_in(offset, size))
    }

    pub fn open(&self, node: u64, flags: i32) -> Answer {
        self.call(op::OPEN, node, Body::new().i32(flags).u32(0))
    }

    pub fn release(&self, node: u64, flags: i32) -> Answer {
        let body = Body::new().u64(0).i32(flags).u32(0).u64(0);
        self.call(op::RELEASE, node, body)
    }

    /// Nothing more comes; takes the answers that are still to come.
    pub fn finish_sending(&self) -> Vec<(u64, Answer)> {
        let mut socket = self.socket.lock();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        std::iter::from_fn(|| receive(&mut socket)).collect()
    }

    /// A duplicate of the socket.
    pub fn socket(&self) -> UnixStream {
        self.socket.lock().try_clone().unwrap()
    }

    /// Hangs up and waits until the server has returned everything.
    pub fn hang_up(mut self) -> Result<(), StreamError> {
        let serving = self.serving.take().unwrap();
        let shut = self.socket.lock().shutdown(std::net::Shutdown::Both);
        // The server may have been first.
        drop(shut);
        serving.join().expect("no panic")
    }
}

/// One answer; none at the end of the connection.
pub fn receive(socket: &mut UnixStream) -> Option<(u64, Answer)> {
    let mut frame = [0; 24];
    match socket.read_exact(&mut frame) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer comes"),
        Err(_) => return None,
    }
    let mut fields = Fields(&frame);
    let (whole, kind, tag) = (fields.u32(), fields.u32(), fields.u64());
    assert_eq!((kind, fields.u64()), (2, 0));
    let mut header = [0; 16];
    socket.read_exact(&mut header).unwrap();
    let mut fields = Fields(&header);
    let (len, error) = (fields.u32(), fields.u32());
    let unique = fields.u64();
    assert_eq!((whole, tag), (24 + len, unique));
    assert!(
        (16..=16 + (1 << 20)).contains(&len),
        "an answer of {len} bytes"
    );
    let mut body = vec![0; usize::try_from(len).unwrap() - 16];
    socket.read_exact(&mut body).unwrap();
    let errno = -i32::from_le_bytes(error.to_le_bytes());
    assert!((0..4096).contains(&errno), "an error of {errno}");
    match errno {
        0 => Some((unique, Ok(body))),
        errno => {
            assert!(body.is_empty(), "an error with a body");
            Some((unique, Err(errno)))
        }
    }
}
