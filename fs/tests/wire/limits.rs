//! What a guest must not name, do, or have too much of.

use floe_fs::attr::FileKind;
use floe_fs::dispatch::wire::ServerOptions;
use floe_fs::dispatch::{Caller, Dispatch};
use floe_fs::id::Ino;

use crate::client::Client;
use crate::common::{list, make, read, write};
use crate::frame::{Body, Fields, copy_range, getattr, op, read_in};
use crate::workspace;

/// Longest message in bytes.
const MESSAGE_MAX: usize = (1 << 20) + (8 << 10);

#[test]
fn an_inode_that_was_not_looked_up_cannot_be_named() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let sub = make(&view, Ino::ROOT, "sub", FileKind::Directory);
    let file = make(&view, sub, "f", FileKind::File);
    write(&view, file, 0, b"secret");
    let client = Client::mount(view.clone(), ServerOptions::default());
    let stale = Err(libc::ESTALE);
    for node in [file.0, sub.0, 0, 2, u64::MAX] {
        assert_eq!(client.call(op::GETATTR, node, getattr()), stale);
        assert_eq!(client.open(node, libc::O_RDWR), stale);
        assert_eq!(client.read(node, 0, 100), stale);
        assert_eq!(client.write(node, 0, b"x"), stale);
        assert_eq!(client.call(op::FSYNC, node, Body::new()), stale);
        assert_eq!(client.call(op::READDIRPLUS, node, read_in(0, 4096)), stale);
        assert_eq!(client.lookup(node, "f"), Err(libc::ESTALE));
        assert_eq!(
            client.call(op::UNLINK, node, Body::new().string(b"f")),
            stale
        );
    }
    // Nor as the second one of a request.
    let rename = Body::new().u64(sub.0).string(b"a").string(b"b");
    assert_eq!(client.call(op::RENAME, 1, rename), stale);
    let link = Body::new().u64(file.0).string(b"l");
    assert_eq!(client.call(op::LINK, 1, link), stale);
    let own = client.create(1, "own", libc::O_RDWR).unwrap();
    for opcode in [op::COPY_FILE_RANGE, op::COPY_FILE_RANGE_64] {
        let copy = copy_range(0, (file.0, 0), 10);
        assert_eq!(client.call(opcode, own, copy), stale);
    }

    assert_eq!(client.lookup(1, "sub"), Ok(sub.0));
    assert_eq!(client.lookup(sub.0, "f"), Ok(file.0));
    assert!(client.call(op::GETATTR, file.0, getattr()).is_ok());
    client.forget(file.0, 1);
    assert_eq!(client.call(op::GETATTR, file.0, getattr()), stale);
    assert_eq!(read(&view, file), b"secret");
    client.hang_up().unwrap();
}

#[test]
fn a_file_is_read_and_written_only_as_it_was_opened() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let file = make(&view, Ino::ROOT, "f", FileKind::File);
    view.forget(file, 1);
    let client = Client::mount(view.clone(), ServerOptions::default());
    let node = client.lookup(1, "f").unwrap();
    let closed = Err(libc::EBADF);
    let allocate = || Body::new().u64(0).u64(0).u64(100).u32(0).u32(0);
    let seek = || Body::new().u64(0).u64(0).i32(libc::SEEK_DATA).u32(0);
    assert_eq!(client.read(node, 0, 10), closed);
    assert_eq!(client.call(op::LSEEK, node, seek()), closed);
    client.open(node, libc::O_RDONLY).unwrap();
    assert_eq!(client.read(node, 0, 10), Ok(Vec::new()));
    assert_eq!(client.write(node, 0, b"x"), closed);
    assert_eq!(client.call(op::FALLOCATE, node, allocate()), closed);
    let copy = copy_range(0, (node, 0), 10);
    assert_eq!(client.call(op::COPY_FILE_RANGE, node, copy), closed);

    // Only what was opened is closed, in the mode that it was opened in, and once.
    assert_eq!(client.release(node, libc::O_RDWR), closed);
    assert_eq!(client.release(node, libc::O_RDONLY), Ok(Vec::new()));
    assert_eq!(client.release(node, libc::O_RDONLY), closed);
    client.open(node, libc::O_WRONLY).unwrap();
    assert!(client.write(node, 0, b"x").is_ok());
    assert!(client.call(op::FALLOCATE, node, allocate()).is_ok());
    // Closing comes late, when the inode may be forgotten.
    client.forget(node, 1);
    assert_eq!(client.write(node, 0, b"y"), Err(libc::ESTALE));
    assert_eq!(client.release(node, libc::O_WRONLY), Ok(Vec::new()));
    assert_eq!(read(&view, file)[..1], *b"x");
    client.hang_up().unwrap();
    assert_eq!(view.known(), [Ino::ROOT]);
}

#[test]
fn a_read_only_connection_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let file = make(&view, Ino::ROOT, "f", FileKind::File);
    write(&view, file, 0, b"kept");
    let before = view.getattr(Ino::ROOT).unwrap();
    let options = ServerOptions {
        read_only: true,
        ..ServerOptions::default()
    };
    let client = Client::mount(view.clone(), options);
    let node = client.lookup(1, "f").unwrap();
    let read_only = Err(libc::EROFS);
    let name = |body: Body| body.string(b"n");
    for (opcode, body) in [
        (
            op::MKNOD,
            name(Body::new().u32(0o100_644).u32(0).u32(0).u32(0)),
        ),
        (op::MKDIR, name(Body::new().u32(0o755).u32(0))),
        (op::SYMLINK, name(Body::new()).string(b"to")),
        (
            op::CREATE,
            name(Body::new().u32(0).u32(0o644).u32(0).u32(0)),
        ),
        (op::LINK, name(Body::new().u64(node))),
        (op::UNLINK, Body::new().string(b"f")),
        (op::RMDIR, Body::new().string(b"f")),
        (op::RENAME, Body::new().u64(1).string(b"f").string(b"g")),
        (
            op::RENAME2,
            Body::new().u64(1).u32(0).u32(0).string(b"f").string(b"g"),
        ),
        (op::SETATTR, Body::new().bytes(&[0; 88])),
        (
            op::SETXATTR,
            Body::new()
                .u32(1)
                .u32(0)
                .u32(0)
                .u32(0)
                .string(b"user.a")
                .bytes(b"v"),
        ),
        (op::REMOVEXATTR, Body::new().string(b"user.a")),
        (op::FALLOCATE, Body::new().bytes(&[0; 32])),
    ] {
        assert_eq!(client.call(opcode, 1, body), read_only, "opcode {opcode}");
    }
    assert_eq!(client.open(node, libc::O_RDWR), read_only);
    assert_eq!(client.open(node, libc::O_WRONLY), read_only);
    assert_eq!(client.write(node, 0, b"x"), read_only);
    client.open(node, libc::O_RDONLY).unwrap();
    assert_eq!(client.read(node, 0, 100), Ok(b"kept".to_vec()));
    let copy = copy_range(0, (node, 0), 10);
    assert_eq!(client.call(op::COPY_FILE_RANGE, node, copy), read_only);
    client.hang_up().unwrap();
    assert_eq!(view.getattr(Ino::ROOT).unwrap(), before);
    assert_eq!(list(&view, Ino::ROOT), ["f"]);
}

#[test]
fn a_guest_holds_no_more_inodes_and_opens_than_it_may() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let names = ["a", "b", "c"];
    let inodes = names.map(|name| {
        let ino = make(&view, Ino::ROOT, name, FileKind::File);
        view.forget(ino, 1);
        ino.0
    });
    let options = ServerOptions {
        nodes_max: 2,
        opens_max: 2,
        ..ServerOptions::default()
    };
    let client = Client::mount(view.clone(), options);
    assert_eq!(client.lookup(1, "a"), Ok(inodes[0]));
    assert_eq!(client.lookup(1, "b"), Ok(inodes[1]));
    assert_eq!(client.lookup(1, "c"), Err(libc::ENOMEM));
    assert_eq!(client.lookup(1, "a"), Ok(inodes[0]), "it has that already");
    assert_eq!(client.create(1, "d", libc::O_RDWR), Err(libc::ENOMEM));
    assert_eq!(list(&view, Ino::ROOT), names, "nothing was made");

    // A listing names all, and tells of those only that the guest may hold.
    let answer = client.call(op::READDIRPLUS, 1, read_in(0, 4096)).unwrap();
    let mut fields = Fields(&answer);
    let mut told = Vec::new();
    while !fields.0.is_empty() {
        let node = fields.u64();
        fields.take(120 + 16);
        let len = usize::try_from(fields.u32()).unwrap();
        fields.take(4);
        told.push((String::from_utf8(fields.take(len).to_vec()).unwrap(), node));
        fields.take((8 - len % 8) % 8);
    }
    told.sort();
    let expected = [
        (".", 0),
        ("..", 0),
        ("a", inodes[0]),
        ("b", inodes[1]),
        ("c", 0),
    ];
    assert_eq!(told, expected.map(|(name, node)| (name.to_owned(), node)));

    client.open(inodes[0], libc::O_RDONLY).unwrap();
    client.open(inodes[0], libc::O_RDWR).unwrap();
    assert_eq!(client.open(inodes[1], libc::O_RDONLY), Err(libc::ENFILE));
    client.release(inodes[0], libc::O_RDWR).unwrap();
    client.open(inodes[1], libc::O_RDWR).unwrap();
    client.hang_up().unwrap();
    assert_eq!(view.known(), [Ino::ROOT]);
}

#[test]
fn nobody_can_own_anything_or_act_without_an_id() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let file = make(&view, Ino::ROOT, "f", FileKind::File);
    let client = Client::mount(view.clone(), ServerOptions::default());
    let node = client.lookup(1, "f").unwrap();
    for (uid, gid) in [(u32::MAX, 0), (0, u32::MAX)] {
        let chown = Body::new().u32(6).bytes(&[0; 72]).u32(uid).u32(gid).u32(0);
        assert_eq!(client.call(op::SETATTR, node, chown), Err(libc::EINVAL));
        let mkdir = Body::new().u32(0o755).u32(0).string(b"d");
        let nobody = Caller { uid, gid };
        assert_eq!(
            client.call_as(nobody, op::MKDIR, 1, mkdir),
            Err(libc::EINVAL)
        );
    }
    let attr = view.getattr(file).unwrap();
    assert_eq!((attr.uid, attr.gid), (0, 0));
    client.hang_up().unwrap();
}

#[test]
fn sizes_and_names_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let client = Client::mount(view.clone(), ServerOptions::default());
    let node = client.create(1, "f", libc::O_RDWR).unwrap();
    let invalid = Err(libc::EINVAL);
    assert_eq!(client.read(node, 0, (1 << 20) + 1), invalid);
    assert_eq!(client.read(node, 0, u32::MAX), invalid);
    // What fits into a frame can still be longer than any message.
    for (longer, expected) in [(0, Ok(Vec::new())), (1, invalid.clone())] {
        let body = Body::new().bytes(&vec![0; MESSAGE_MAX - 40 + longer]);
        assert_eq!(client.call(op::RELEASEDIR, 1, body), expected);
    }
    assert_eq!(client.call(op::READDIR, 1, read_in(0, u32::MAX)), invalid);
    assert_eq!(
        client.call(op::READDIRPLUS, 1, read_in(0, 0)),
        Ok(Vec::new())
    );
    // A write that says another length than it has.
    for size in [0, 2, 4, u32::MAX] {
        let head = Body::new().u64(0).u64(0).u32(size).u32(0);
        let body = head.u64(0).u32(0).u32(0).bytes(b"abc");
        assert_eq!(client.call(op::WRITE, node, body), invalid);
    }
    assert_eq!(client.write(node, u64::MAX, b"x"), Err(libc::EFBIG));
    assert_eq!(client.write(node, (1 << 63) - 1, b"x"), Err(libc::EFBIG));
    assert_eq!(client.read(node, u64::MAX, 4096), Ok(Vec::new()));
    for name in [&b""[..], b"a/b", b"/", b"a\0b"] {
        let body = Body::new().string(name);
        assert_eq!(client.call(op::LOOKUP, 1, body), invalid, "{name:?}");
    }
    let unended = Body::new().bytes(b"name");
    assert_eq!(client.call(op::LOOKUP, 1, unended), invalid);
    let long = Body::new().string(&[b'n'; 256]);
    assert_eq!(client.call(op::LOOKUP, 1, long), Err(libc::ENAMETOOLONG));
    for name in [&b"."[..], b".."] {
        let body = Body::new().u32(0o755).u32(0).string(name);
        assert_eq!(client.call(op::MKDIR, 1, body), invalid);
        assert_eq!(client.call(op::RMDIR, 1, Body::new().string(name)), invalid);
    }
    let rename = Body::new().u64(1).u32(8).u32(0).string(b"f").string(b"g");
    assert_eq!(client.call(op::RENAME2, 1, rename), invalid);
    let nanos = Body::new()
        .u32(1 << 4)
        .bytes(&[0; 52])
        .u32(1_000_000_000)
        .bytes(&[0; 28]);
    assert_eq!(client.call(op::SETATTR, node, nanos), invalid);
    client.hang_up().unwrap();
}
