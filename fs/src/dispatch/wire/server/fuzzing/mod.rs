//! A guest that sends what no kernel would, message by message as an input says.
//!
//! Invariants: an input has a workspace and a server of its own, so that it does the same each time; the
//! store, and what else is in it, must not notice. Messages are served one after the other by this thread:
//! which thread serves which is no matter of what is in them.

mod answers;
mod guest;
mod seeds;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use self::guest::Guest;
pub use self::seeds::seeds;
use super::{Caching, Server, ServerOptions, ServerState};
use crate::attr::FileKind;
use crate::dispatch::wire::StreamError;
use crate::dispatch::{Caller, Dispatch, NewNode, Write as WriteIn};
use crate::id::{Ino, WorkspaceName};
use crate::{Quota, Store, View};

/// Inputs after which a store should make way for a fresh one.
const RUNS: u32 = 500;
/// The store is looked through after so many inputs.
const CHECKED_EACH: u32 = 100;
/// The first byte of an input that is the bytes on a socket.
const STREAM: u8 = 255;
/// Of the first byte of others: the options of the connection.
const READ_ONLY: u8 = 1;
const ONLY_WRITER: u8 = 2;
const SMALL: u8 = 4;
const NO_INIT: u8 = 8;

const KEPT: &[u8] = b"kept";

/// A store in which each input gets a workspace.
pub struct Fuse {
    store: Arc<Store>,
    other: Arc<View>,
    kept: Ino,
    runs: u32,
}

impl std::fmt::Debug for Fuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fuse")
            .field("runs", &self.runs)
            .finish_non_exhaustive()
    }
}

impl Fuse {
    /// Makes a store at `dir`, which must not exist.
    ///
    /// # Panics
    /// If none can be made.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Store::init(dir).expect("a new store");
        let store = Store::open(dir).expect("a store");
        let name = WorkspaceName::parse("other").expect("a name");
        store.create_workspace(&name).expect("a workspace");
        let other = store.open_live("other").expect("a view");
        let file = NewNode {
            kind: FileKind::File,
            perm: 0o644,
            umask: 0,
            rdev: 0,
            target: b"",
        };
        let root = Caller { uid: 0, gid: 0 };
        let kept = other.make(root, Ino::ROOT, KEPT, file).expect("a file").ino;
        let write = WriteIn {
            offset: 0,
            data: KEPT,
            append: false,
            kill_set_id: false,
        };
        other.write(kept, write).expect("room");
        Self {
            store,
            other,
            kept,
            runs: 0,
        }
    }

    /// Whether so many inputs were run that a fresh store should be made.
    #[must_use]
    pub fn is_used_up(&self) -> bool {
        self.runs >= RUNS
    }

    /// Runs an input. The first byte is the options of the connection; then come messages.
    ///
    /// # Panics
    /// If an answer is not one to its request, is longer than asked for, or says that the store failed; if
    /// the guest's references and open files are not all returned at the end; if no other connection can go on
    /// where it was; if a panic was caught; if
    /// the store or another workspace was damaged.
    pub fn run(&mut self, data: &[u8]) {
        let Some((first, messages)) = data.split_first() else {
            return;
        };
        self.runs += 1;
        let name = format!("w{}", self.runs);
        let parsed = WorkspaceName::parse(&name).expect("a name");
        self.store.create_workspace(&parsed).expect("a workspace");
        let quota = Quota {
            bytes: Some(8 << 20),
            inodes: Some(100),
        };
        self.store.set_quota(&name, quota).expect("a quota");
        let view = self.store.open_live(&name).expect("a view");
        if *first == STREAM {
            stream(&view, messages);
        } else {
            let server = Server::new(view.clone(), options(*first));
            let mut guest = Guest::new(&server);
            if first & NO_INIT == 0 {
                guest.init();
            }
            guest.run(messages);
            saved(&view, &server, options(*first));
            server.let_go();
            assert!(server.nodes.drain().is_empty());
            assert!(server.opens.drain().is_empty());
        }
        assert_eq!(view.known(), [Ino::ROOT], "what the guest held is returned");
        drop(view);
        if self.runs.is_multiple_of(CHECKED_EACH) {
            self.check();
        }
        self.store.delete_workspace(&name).expect("deleted");
    }

    /// Looks at everything else.
    ///
    /// # Panics
    /// If it is not as it was.
    pub fn check(&self) {
        let mut contents = Vec::new();
        let read = self.other.read(self.kept, 0, 100, &mut contents);
        read.expect("the other workspace");
        assert_eq!(contents, KEPT);
        let report = self.store.check().expect("a report");
        assert!(report.is_clean(), "{report:?}");
    }
}

fn options(bits: u8) -> ServerOptions {
    let all = ServerOptions::default();
    let small = bits & SMALL != 0;
    ServerOptions {
        read_only: bits & READ_ONLY != 0,
        caching: if bits & ONLY_WRITER != 0 {
            Caching::OnlyWriter
        } else {
            all.caching
        },
        threads: 1,
        nodes_max: if small { 3 } else { 64 },
        opens_max: if small { 2 } else { 64 },
    }
}

/// Another connection can go on where this one is, and leaves nothing behind at its end.
fn saved(view: &Arc<View>, server: &Server, options: ServerOptions) {
    let (known, state) = (view.known(), server.save());
    let read = ServerState::from_bytes(&state.to_bytes());
    assert_eq!(read.as_ref(), Ok(&state), "what was saved can be read");
    let other = Server::restore(view.clone(), options, &state).expect("a server");
    assert_eq!(other.save(), state, "it holds the same");
    drop(other);
    assert_eq!(view.known(), known, "nothing is left, and nothing is gone");
}

/// Bytes on a socket, which a server reads to their end.
fn stream(view: &Arc<View>, bytes: &[u8]) {
    let server = Server::new(view.clone(), options(0));
    let (mut near, far) = UnixStream::pair().expect("sockets");
    let limit = Some(Duration::from_secs(20));
    near.set_write_timeout(limit).expect("a limit");
    near.set_read_timeout(limit).expect("a limit");
    let mut reading = near.try_clone().expect("a duplicate");
    let ended = std::thread::scope(|scope| {
        let answers = scope.spawn(move || {
            let mut all = Vec::new();
            // The server may have hung up before it read all.
            match reading.read_to_end(&mut all) {
                Ok(_) => Some(all),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
                Err(error) => panic!("{error}"),
            }
        });
        scope.spawn(move || {
            if near.write_all(bytes).is_ok() {
                // The same.
                drop(near.shutdown(Shutdown::Write));
            }
        });
        let ended = server.serve(far);
        if let Some(all) = answers.join().expect("a reader") {
            answers::frames(&all);
        }
        ended
    });
    if let Err(error) = ended {
        let sound = !matches!(error, StreamError::Socket { .. });
        assert!(sound, "{error}");
    }
}
