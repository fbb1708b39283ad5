//! The course of a connection: agreeing, several requests at once, ending.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use floe_fs::SnapshotOptions;
use floe_fs::attr::FileKind;
use floe_fs::dispatch::wire::codec::flags::init;
use floe_fs::dispatch::wire::{Caching, Server, ServerOptions, StreamError};
use floe_fs::dispatch::{Dispatch, Kept, KernelCache};
use floe_fs::id::Ino;
use parking_lot::{Condvar, Mutex};

use crate::client::Client;
use crate::common::make;
use crate::frame::{Body, Fields, framed, getattr, message, op, read_in};
use crate::hooked::Hooked;
use crate::workspace;

/// Waits until something is so.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn nothing_is_served_before_init_and_after_destroy() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let client = Client::connect(view, ServerOptions::default());
    assert_eq!(client.call(op::GETATTR, 1, getattr()), Err(libc::EIO));
    assert_eq!(client.init(7, 30, u64::MAX), Err(libc::EPROTO));
    assert_eq!(client.call(op::GETATTR, 1, getattr()), Err(libc::EIO));
    let newer = client.init(8, 0, u64::MAX).unwrap();
    assert_eq!(Fields(&newer).u32(), 7);
    assert_eq!(client.call(op::GETATTR, 1, getattr()), Err(libc::EIO));

    let agreed = client.init(7, 45, u64::MAX).unwrap();
    let mut fields = Fields(&agreed);
    assert_eq!((fields.u32(), fields.u32(), fields.u32()), (7, 45, 131_072));
    let flags = u64::from(fields.u32());
    assert_eq!(flags & init::WRITEBACK_CACHE, 0);
    assert_eq!(flags & init::POSIX_ACL, init::POSIX_ACL);
    assert!(client.call(op::GETATTR, 1, getattr()).is_ok());

    assert_eq!(client.call(op::DESTROY, 0, Body::new()), Ok(Vec::new()));
    assert_eq!(client.call(op::GETATTR, 1, getattr()), Err(libc::EIO));
    client.hang_up().unwrap();
}

#[test]
fn a_guest_that_starts_anew_holds_nothing_of_before() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let client = Client::mount(view.clone(), ServerOptions::default());
    let file = client.create(1, "f", libc::O_RDWR).unwrap();
    // Without DESTROY, as after a reset.
    client.init(7, 40, u64::MAX).unwrap();
    assert_eq!(client.call(op::GETATTR, file, getattr()), Err(libc::ESTALE));
    assert_eq!(client.release(file, libc::O_RDWR), Err(libc::EBADF));
    assert_eq!(client.lookup(1, "f"), Ok(file));
    assert_eq!(client.write(file, 0, b"x"), Err(libc::EBADF));
    assert!(client.open(file, libc::O_WRONLY).is_ok());
    assert!(client.write(file, 0, b"x").is_ok());
    client.call(op::DESTROY, 0, Body::new()).unwrap();
    assert_eq!(view.known(), [Ino::ROOT]);
    client.hang_up().unwrap();
}

#[test]
fn a_driver_that_is_reset_holds_nothing_of_before() {
    let dir = tempfile::tempdir().unwrap();
    let (store, view) = workspace(dir.path());
    let client = Client::mount(view.clone(), ServerOptions::default());
    let file = client.create(1, "f", libc::O_RDWR).unwrap();
    assert!(client.call(op::GETATTR, file, getattr()).is_ok());
    client.reset();
    // The reset comes before what is asked after it, and INIT has to come first again.
    assert_eq!(client.call(op::GETATTR, file, getattr()), Err(libc::EIO));
    assert_eq!(view.known(), [Ino::ROOT]);
    client.init(7, 40, u64::MAX).unwrap();
    assert_eq!(client.call(op::GETATTR, file, getattr()), Err(libc::ESTALE));
    assert_eq!(client.write(file, 0, b"x"), Err(libc::ESTALE));
    assert_eq!(client.lookup(1, "f"), Ok(file));
    client.hang_up().unwrap();
    assert_eq!(view.known(), [Ino::ROOT]);
    assert!(store.check().unwrap().is_clean());
}

#[test]
fn an_answer_is_never_longer_than_the_room_that_was_left_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let client = Client::mount(view, ServerOptions::default());
    let file = client.create(1, "f", libc::O_RDWR).unwrap();
    client.write(file, 0, b"12345").unwrap();
    let body = read_in(0, 100);
    for (room, expected) in [(20, Err(libc::EIO)), (21, Ok(b"12345".to_vec()))] {
        let unique = client.unique();
        let read = message(op::READ, unique, file, (0, 0), &body.0);
        client.send_raw(&framed(&read, room));
        assert_eq!(client.receive(), (unique, expected));
    }
    // Without any there is no answer, not even an error.
    let read = message(op::READ, client.unique(), file, (0, 0), &body.0);
    client.send_raw(&framed(&read, 0));
    assert!(client.call(op::GETATTR, 1, getattr()).is_ok());
    client.hang_up().unwrap();
}

#[test]
fn the_end_returns_what_this_guest_holds_and_nothing_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let (store, view) = workspace(dir.path());
    let one = Client::mount(view.clone(), ServerOptions::default());
    let other = Client::mount(view.clone(), ServerOptions::default());
    let shared = one.create(1, "shared", libc::O_RDWR).unwrap();
    let own = one.create(1, "own", libc::O_RDWR).unwrap();
    assert_eq!(other.lookup(1, "shared"), Ok(shared));
    one.call(op::UNLINK, 1, Body::new().string(b"shared"))
        .unwrap();
    one.call(op::UNLINK, 1, Body::new().string(b"own")).unwrap();
    // More than it has, and of what it has not.
    other.forget(own, 1000);
    other.tell(
        op::BATCH_FORGET,
        0,
        Body::new().u32(1).u32(0).u64(own).u64(u64::MAX),
    );
    assert!(one.write(own, 0, b"still there").is_ok());
    one.hang_up().unwrap();
    eventually("the unlinked file is reclaimed", || {
        view.getattr(Ino(own)).is_err()
    });
    assert!(other.call(op::GETATTR, shared, getattr()).is_ok());
    other.forget(shared, u64::MAX);
    eventually("the other one as well", || {
        view.getattr(Ino(shared)).is_err()
    });
    assert_eq!(
        other.call(op::GETATTR, shared, getattr()),
        Err(libc::ESTALE)
    );
    other.hang_up().unwrap();
    assert_eq!(view.known(), [Ino::ROOT]);
    assert!(store.check().unwrap().is_clean());
}

/// Something that operations wait for.
#[derive(Default)]
struct Barrier {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Barrier {
    fn pass(&self) {
        let mut open = self.open.lock();
        while !*open {
            self.opened.wait(&mut open);
        }
    }

    fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }
}

#[test]
fn requests_that_wait_for_a_disk_hold_up_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let barrier = Arc::new(Barrier::default());
    let hooked = Hooked {
        view,
        before: Box::new({
            let barrier = barrier.clone();
            move |operation| {
                if operation == "fsync" || operation == "sync" {
                    barrier.pass();
                }
            }
        }),
    };
    let client = Client::mount(Arc::new(hooked), ServerOptions::default());
    let body = Body::new().u64(0).u32(0).u32(0);
    let waiting: Vec<u64> = (0..40)
        .map(|number| {
            let unique = client.unique();
            let opcode = [op::FSYNC, op::FSYNCDIR, op::SYNCFS][number % 3];
            client.send(&message(opcode, unique, 1, (0, 0), &body.0));
            unique
        })
        .collect();
    for _ in 0..20 {
        client.call(op::GETATTR, 1, getattr()).unwrap();
    }
    barrier.open();
    let mut answered: Vec<u64> = waiting.iter().map(|_| client.receive().0).collect();
    answered.sort_unstable();
    assert_eq!(answered, waiting);
    client.hang_up().unwrap();
}

#[test]
fn ordinary_requests_are_served_at_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    make(&view, Ino::ROOT, "f", FileKind::File);
    let barrier = Arc::new(Barrier::default());
    let hooked = Hooked {
        view,
        before: Box::new({
            let barrier = barrier.clone();
            move |operation| {
                if operation == "lookup" {
                    barrier.pass();
                }
            }
        }),
    };
    let client = Client::mount(Arc::new(hooked), ServerOptions::default());
    let looking = client.unique();
    let name = Body::new().string(b"f");
    client.send(&message(op::LOOKUP, looking, 1, (0, 0), &name.0));
    client.call(op::GETATTR, 1, getattr()).unwrap();
    // A DESTROY waits for what came before it.
    let destroying = client.unique();
    client.send(&message(op::DESTROY, destroying, 0, (0, 0), &[]));
    std::thread::sleep(Duration::from_millis(50));
    barrier.open();
    let (first, entry) = client.receive();
    assert_eq!(first, looking);
    assert_eq!(entry.unwrap().len(), 128);
    assert_eq!(client.receive(), (destroying, Ok(Vec::new())));
    client.hang_up().unwrap();
}

#[test]
fn a_panic_fails_one_request_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let (store, view) = workspace(dir.path());
    let armed = Arc::new(AtomicBool::new(true));
    let hooked = Hooked {
        view: view.clone(),
        before: Box::new({
            let armed = armed.clone();
            move |operation| {
                let panics = operation == "readlink" && armed.swap(false, Ordering::SeqCst);
                assert!(!panics, "expected by this test");
            }
        }),
    };
    let client = Client::mount(Arc::new(hooked), ServerOptions::default());
    let made = make(&view, Ino::ROOT, "l", FileKind::Symlink);
    view.forget(made, 1);
    let link = client.lookup(1, "l").unwrap();
    assert_eq!(client.call(op::READLINK, link, Body::new()), Err(libc::EIO));
    assert_eq!(
        client.call(op::READLINK, link, Body::new()),
        Ok(b"to".to_vec())
    );
    client.hang_up().unwrap();
    assert_eq!(view.known(), [Ino::ROOT]);
    assert!(store.check().unwrap().is_clean());
}

#[test]
fn nothing_is_served_while_a_rollback_takes_place() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let client = Client::mount(view, ServerOptions::default());
    let cache = client.server.kernel_cache();
    let unique = client.unique();
    let mut socket = client.socket();
    socket
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    cache.paused(&mut || {
        client.send(&message(op::GETATTR, unique, 1, (0, 0), &getattr().0));
        let mut byte = [0];
        let early = std::io::Read::read(&mut socket, &mut byte);
        assert!(early.is_err(), "an answer while paused");
    });
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    assert_eq!(client.receive().0, unique);
    cache.push_dirty(&[Ino(20)]).unwrap();
    client.hang_up().unwrap();
}

#[test]
fn what_a_guest_believes_is_waited_out_unless_it_believes_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let with = |caching| {
        let options = ServerOptions {
            caching,
            ..ServerOptions::default()
        };
        Server::new(view.clone(), options).kernel_cache()
    };
    let ttl = Duration::from_millis(30);
    let settled = Mutex::new(Vec::new());
    let note = |ino: Ino, kept: Kept| settled.lock().push((ino, kept));
    let start = Instant::now();
    let shared: Arc<dyn KernelCache> = with(Caching::Shared { ttl });
    shared.invalidate(&[Ino(20)], &note).unwrap();
    assert!(start.elapsed() >= ttl);
    assert_eq!(settled.lock().len(), 2);
    let alone = with(Caching::OnlyWriter);
    let refused = alone.invalidate(&[Ino(20)], &note).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::Unsupported);
    assert_eq!(settled.lock().len(), 2);
}

#[test]
fn bytes_that_are_no_messages_end_their_connection_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let good = Client::mount(view.clone(), ServerOptions::default());
    for garbage in [
        &[0_u8; 64][..],
        &[0xff; 64],
        b"GET / HTTP/1.1\r\nhost: floe\r\n\r\n",
    ] {
        let bad = Client::mount(view.clone(), ServerOptions::default());
        let file = bad.create(1, "f", libc::O_RDWR);
        bad.send_raw(garbage);
        let answers = bad.finish_sending();
        assert!(answers.is_empty());
        let error = bad.hang_up().unwrap_err();
        assert!(
            matches!(error, StreamError::Length { .. } | StreamError::Kind { .. }),
            "{error}"
        );
        if let Ok(file) = file {
            assert!(!view.known().contains(&Ino(file)));
        }
        assert!(good.call(op::GETATTR, 1, getattr()).is_ok());
    }
    let cut = Client::mount(view, ServerOptions::default());
    let whole = framed(&message(op::GETATTR, 99, 1, (0, 0), &getattr().0), 1000);
    cut.send_raw(&whole[..70]);
    cut.finish_sending();
    assert!(matches!(cut.hang_up(), Err(StreamError::Truncated)));
    good.hang_up().unwrap();
}

/// A write through a descriptor that was opened with `O_APPEND`, by a kernel that remembers a size of 0.
fn append(client: &Client, node: u64, data: &[u8]) {
    let size = u32::try_from(data.len()).unwrap();
    let head = Body::new().u64(0).u64(0).u32(size).u32(0).u64(0);
    let body = head.i32(libc::O_APPEND | libc::O_WRONLY).u32(0).bytes(data);
    client.call(op::WRITE, node, body).unwrap();
}

#[test]
fn appends_of_two_guests_do_not_overlap() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let one = Client::mount(view.clone(), ServerOptions::default());
    let other = Client::mount(view.clone(), ServerOptions::default());
    let file = one.create(1, "log", libc::O_RDWR | libc::O_APPEND).unwrap();
    other.lookup(1, "log").unwrap();
    other.open(file, libc::O_WRONLY | libc::O_APPEND).unwrap();
    append(&one, file, b"one ");
    append(&other, file, b"two ");
    append(&one, file, b"three");
    assert_eq!(one.read(file, 0, 100), Ok(b"one two three".to_vec()));
    one.hang_up().unwrap();
    other.hang_up().unwrap();
}

#[test]
fn a_guest_meets_the_state_that_a_rollback_brings_back() {
    let dir = tempfile::tempdir().unwrap();
    let (store, view) = workspace(dir.path());
    let options = ServerOptions {
        caching: Caching::Shared {
            ttl: Duration::from_millis(10),
        },
        ..ServerOptions::default()
    };
    let client = Client::mount(view.clone(), options);
    let attachment = view.attach(client.server.kernel_cache());
    let kept = client.create(1, "kept", libc::O_RDWR).unwrap();
    client.write(kept, 0, b"before").unwrap();
    let snapshot = store.snapshot("w", &SnapshotOptions::default()).unwrap();
    client.write(kept, 0, b"after!").unwrap();
    let new = client.create(1, "new", libc::O_RDWR).unwrap();
    store.rollback("w", snapshot.id.as_str()).unwrap();
    assert_eq!(client.read(kept, 0, 100), Ok(b"before".to_vec()));
    assert_eq!(client.read(new, 0, 100), Err(libc::ESTALE));
    assert_eq!(client.write(new, 0, b"x"), Err(libc::ESTALE));
    assert_eq!(client.lookup(1, "new"), Err(libc::ENOENT));
    client.write(kept, 0, b"B").unwrap();
    assert_eq!(client.release(new, libc::O_RDWR), Ok(Vec::new()));
    drop(attachment);
    client.hang_up().unwrap();
    assert_eq!(view.known(), [Ino::ROOT]);
    assert!(store.check().unwrap().is_clean());
}
