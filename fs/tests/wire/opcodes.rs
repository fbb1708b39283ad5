//! Every kind of request, once, as a guest's kernel sends it.

use std::collections::BTreeSet;

use floe_fs::attr::{FileKind, Timestamp};
use floe_fs::dispatch::wire::ServerOptions;
use floe_fs::dispatch::wire::codec::Opcode;
use floe_fs::dispatch::{
    Caller, Dispatch, Fallocate, OpenMode, RenameFlags, SetAttr, SetTime, Write, XattrMode,
};
use floe_fs::id::Ino;

use crate::client::Client;
use crate::common::{ROOT_USER, node};
use crate::frame::{Body, Fields, op};
use crate::remote::Remote;
use crate::workspace;

#[test]
fn what_a_guest_does_is_in_the_workspace_and_the_other_way_round() {
    let dir = tempfile::tempdir().unwrap();
    let (store, view) = workspace(dir.path());
    let guest = Remote(Client::mount(view.clone(), ServerOptions::default()));
    let make = |name: &[u8], kind| {
        let made = guest.make(ROOT_USER, Ino::ROOT, name, node(kind)).unwrap();
        assert_eq!(made.attr.kind, kind);
        made.ino
    };
    let directory = make(b"d", FileKind::Directory);
    for (name, kind) in [
        (&b"fifo"[..], FileKind::Fifo),
        (b"socket", FileKind::Socket),
        (b"char", FileKind::CharDevice),
        (b"block", FileKind::BlockDevice),
    ] {
        make(name, kind);
    }
    let link = make(b"l", FileKind::Symlink);
    assert_eq!(guest.readlink(link).unwrap(), b"to");
    let file = guest
        .create(
            ROOT_USER,
            directory,
            b"f",
            node(FileKind::File),
            OpenMode::ReadWrite,
        )
        .unwrap()
        .ino;

    let data: Vec<u8> = (0..1_u32 << 20)
        .map(|n| (n % 251).to_le_bytes()[0])
        .collect();
    let write = Write {
        offset: 5,
        data: &data,
        append: false,
        kill_set_id: false,
    };
    guest.write(file, write).unwrap();
    let mut read = Vec::new();
    guest.read(file, 5, 1 << 20, &mut read).unwrap();
    assert!(read == data);
    guest.read(file, 5 + (1 << 20), 4096, &mut read).unwrap();
    assert!(read.is_empty(), "nothing is behind the end");
    assert!(crate::common::read(&view, file)[5..] == data);
    crate::common::write(&view, file, 0, b"there");
    guest.read(file, 0, 5, &mut read).unwrap();
    assert_eq!(read, b"there");

    guest
        .fallocate(ROOT_USER, file, Fallocate::PunchHole, 65_536, 131_072)
        .unwrap();
    assert_eq!(guest.seek(file, 0, true).unwrap(), 65_536);
    assert_eq!(guest.seek(file, 65_536, false).unwrap(), 65_536 + 131_072);
    for len in [1000, 1001] {
        let copied = guest
            .copy_range(ROOT_USER, (file, 0), (file, 2 << 20), len)
            .unwrap();
        assert_eq!(copied, len);
    }
    guest.fsync(file).unwrap();
    guest.fsync(directory).unwrap();
    guest.sync().unwrap();

    let at = Timestamp {
        secs: -3,
        nanos: 999_999_999,
    };
    let set = SetAttr {
        perm: Some(0o4750),
        uid: Some(7),
        gid: Some(8),
        size: Some(100),
        atime: Some(SetTime::At(at)),
        mtime: Some(SetTime::Now),
        ctime: None,
    };
    let attr = guest.setattr(ROOT_USER, file, set).unwrap();
    assert_eq!(
        (attr.perm, attr.uid, attr.gid, attr.size),
        (0o4750, 7, 8, 100)
    );
    assert_eq!(attr.atime, at);
    assert_eq!(guest.getattr(file).unwrap(), attr);
    assert_eq!(view.getattr(file).unwrap().atime, at);

    let xattr = b"user.x";
    guest
        .setxattr(ROOT_USER, file, xattr, b"value", XattrMode::Create)
        .unwrap();
    assert_eq!(guest.getxattr(file, xattr).unwrap(), b"value");
    assert_eq!(guest.listxattr(file).unwrap(), [xattr]);
    guest.removexattr(ROOT_USER, file, xattr).unwrap();
    assert!(guest.listxattr(file).unwrap().is_empty());

    guest.link(file, Ino::ROOT, b"second").unwrap();
    let exchange = RenameFlags {
        exchange: true,
        ..RenameFlags::default()
    };
    let (from, to) = ((Ino::ROOT, &b"second"[..]), (directory, &b"f"[..]));
    guest.rename(from, to, exchange).unwrap();
    guest
        .rename(from, (Ino::ROOT, b"third"), RenameFlags::default())
        .unwrap();
    guest.unlink(Ino::ROOT, b"third").unwrap();
    guest.unlink(directory, b"f").unwrap();
    guest.rmdir(Ino::ROOT, b"d").unwrap();
    assert!(guest.lookup(Ino::ROOT, b"d").unwrap().is_none());
    assert_eq!(guest.getattr(file).unwrap().nlink, 0);
    guest.release(file, OpenMode::ReadWrite);

    let mut names = BTreeSet::new();
    guest
        .readdir(Ino::ROOT, 0, true, &mut |entry| {
            assert_eq!(entry.attr.is_none(), matches!(entry.name, b"." | b".."));
            names.insert(entry.name.to_vec());
            true
        })
        .unwrap();
    let expected = [
        &b"."[..],
        b"..",
        b"block",
        b"char",
        b"fifo",
        b"l",
        b"socket",
    ];
    assert_eq!(names, BTreeSet::from(expected.map(<[u8]>::to_vec)));
    assert_eq!(guest.statfs().unwrap().name_max, 255);

    guest.0.hang_up().unwrap();
    assert_eq!(view.known(), [Ino::ROOT]);
    assert!(store.check().unwrap().is_clean());
}

#[test]
fn what_is_kept_in_the_guests_kernel_is_answered_so_that_it_asks_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let client = Client::mount(view, ServerOptions::default());
    let zeros = || Body::new().bytes(&[0; 64]);
    for opcode in [
        op::FLUSH,
        op::OPENDIR,
        op::GETLK,
        op::SETLK,
        op::SETLKW,
        op::ACCESS,
        op::BMAP,
        op::POLL,
        op::SETUPMAPPING,
        op::REMOVEMAPPING,
        op::TMPFILE,
        54,
        4096,
        u32::MAX,
    ] {
        let answer = client.call(opcode, 1, zeros());
        assert_eq!(answer, Err(libc::ENOSYS), "opcode {opcode}");
    }
    assert_eq!(client.call(op::IOCTL, 1, zeros()), Err(libc::ENOTTY));
    assert_eq!(client.call(op::RELEASEDIR, 1, zeros()), Ok(Vec::new()));
    // Nobody answers these: the next answer is that of the next question.
    for opcode in [
        op::FORGET,
        op::BATCH_FORGET,
        op::INTERRUPT,
        op::NOTIFY_REPLY,
    ] {
        client.tell(opcode, 1, zeros());
    }
    assert!(client.call(op::GETATTR, 1, zeros()).is_ok());
    client.hang_up().unwrap();
}

#[test]
fn statx_says_when_a_file_was_born() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let client = Client::mount(view.clone(), ServerOptions::default());
    let file = client.create(1, "f", libc::O_RDWR).unwrap();
    let body = Body::new().u32(0).u32(0).u64(0).u32(0).u32(0xfff);
    let answer = client.call(op::STATX, file, body).unwrap();
    assert_eq!(answer.len(), 32 + 256);
    let mut stat = Fields(&answer[32..]);
    assert_eq!((stat.u32(), stat.u32(), stat.u64()), (0xfff, 4096, 0));
    assert_eq!((stat.u32(), stat.u32(), stat.u32()), (1, 0, 0));
    assert_eq!(stat.u16(), 0o100_644);
    stat.take(2);
    assert_eq!((stat.u64(), stat.u64()), (file, 0));
    stat.take(16 + 16);
    let born = view.getattr(Ino(file)).unwrap().btime;
    assert_eq!((stat.i64(), stat.u32()), (born.secs, born.nanos));
    client.hang_up().unwrap();
}

#[test]
fn an_acl_clears_set_group_id_where_the_guests_kernel_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let client = Client::mount(view.clone(), ServerOptions::default());
    let file = client.create(1, "f", libc::O_RDWR).unwrap();
    let set = SetAttr {
        perm: Some(0o2755),
        gid: Some(100),
        ..SetAttr::default()
    };
    // Version 2; entries of tag, permissions and id: owner, group, others.
    let acl = [2_u8, 0, 0, 0].into_iter().chain(
        [(1_u8, 7_u8), (4, 5), (0x20, 5)]
            .into_iter()
            .flat_map(|(tag, perm)| [tag, 0, perm, 0, 255, 255, 255, 255]),
    );
    let acl: Vec<u8> = acl.collect();
    let member = Caller {
        uid: 1000,
        gid: 1000,
    };
    for (kill, perm) in [(0, 0o2755), (1, 0o755)] {
        view.setattr(ROOT_USER, Ino(file), set).unwrap();
        let head = Body::new().u32(u32::try_from(acl.len()).unwrap()).u32(0);
        let body = head
            .u32(kill)
            .u32(0)
            .string(b"system.posix_acl_access")
            .bytes(&acl);
        client.call_as(member, op::SETXATTR, file, body).unwrap();
        assert_eq!(view.getattr(Ino(file)).unwrap().perm, perm);
    }
    client.hang_up().unwrap();
}

#[test]
fn every_opcode_of_the_codec_is_one_of_the_headers() {
    let ours: BTreeSet<u32> = op::ALL.iter().copied().collect();
    let theirs: BTreeSet<u32> = Opcode::ALL.iter().map(|opcode| opcode.number()).collect();
    assert_eq!(ours, theirs);
}
