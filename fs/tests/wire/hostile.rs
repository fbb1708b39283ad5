//! Guests that send what no kernel would: nothing panics, nobody else notices, the store stays sound.

use std::io::Write;
use std::net::Shutdown;

use floe_fs::Quota;
use floe_fs::attr::FileKind;
use floe_fs::dispatch::Dispatch;
use floe_fs::dispatch::wire::codec::{Dialect, Header, Request};
use floe_fs::dispatch::wire::{ServerOptions, StreamError};
use floe_fs::id::Ino;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::client::{Client, receive};
use crate::common::sequences::{Cases, run};
use crate::common::{list, make, name, read, write};
use crate::frame::{Body, copy_range, framed, getattr, message, op, read_in, room_for_answer};
use crate::workspace;

const CASES: Cases = Cases {
    short: 150,
    long: 10_000,
    regressions: None,
};
const PARSES: Cases = Cases {
    short: 20_000,
    long: 2_000_000,
    regressions: None,
};

/// What is done to a message before it is sent.
#[derive(Clone, Debug)]
enum Spoil {
    Nothing,
    /// A byte behind the length becomes another.
    Byte(u16, u8),
    /// A word becomes one that is near a limit.
    Word(u16, u32),
    /// It ends there.
    Cut(u16),
    /// Bytes follow.
    Longer(Vec<u8>),
}

#[derive(Clone, Debug)]
enum Shot {
    /// Something that a kernel could send, and what is wrong with it.
    Spoilt {
        which: u8,
        node: u8,
        spoils: Vec<Spoil>,
    },
    /// Any body for any operation.
    Random {
        opcode: u32,
        node: u64,
        body: Vec<u8>,
    },
}

fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        prop::sample::select(vec![
            0_u32,
            1,
            255,
            256,
            4095,
            65_536,
            1 << 20,
            (1 << 20) + 1,
            i32::MAX.unsigned_abs(),
            1 << 31,
            u32::MAX,
        ]),
        any::<u32>(),
    ]
}

fn spoil() -> impl Strategy<Value = Spoil> {
    let at = || 4_u16..160;
    prop_oneof![
        3 => Just(Spoil::Nothing),
        3 => (at(), any::<u8>()).prop_map(|(at, byte)| Spoil::Byte(at, byte)),
        3 => (at(), word()).prop_map(|(at, word)| Spoil::Word(at, word)),
        1 => (40_u16..120).prop_map(Spoil::Cut),
        1 => prop::collection::vec(any::<u8>(), 1..40).prop_map(Spoil::Longer),
    ]
}

fn shots() -> impl Strategy<Value = Vec<Shot>> {
    let spoilt = (any::<u8>(), 0_u8..8, prop::collection::vec(spoil(), 1..3)).prop_map(
        |(which, node, spoils)| Shot::Spoilt {
            which,
            node,
            spoils,
        },
    );
    let node = prop_oneof![4 => 1_u64..24, 1 => any::<u64>()];
    let body = prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..200);
    let random = (prop_oneof![9 => 0_u32..60, 1 => any::<u32>()], node, body)
        .prop_map(|(opcode, node, body)| Shot::Random { opcode, node, body });
    prop::collection::vec(prop_oneof![3 => spoilt, 1 => random], 1..120)
}

/// What a kernel could send, one of each kind.
fn sound(which: u8, node: u64) -> (u32, Body) {
    let zeros = |count: usize| Body::new().bytes(&vec![0; count]);
    let all: [(u32, Body); 40] = [
        (op::LOOKUP, Body::new().string(b"a")),
        (op::LOOKUP, Body::new().string(b"b")),
        (op::LOOKUP, Body::new().string(b"..")),
        (op::FORGET, Body::new().u64(1)),
        (op::FORGET, Body::new().u64(u64::MAX)),
        (
            op::BATCH_FORGET,
            Body::new().u32(2).u32(0).u64(node).u64(3).u64(node).u64(9),
        ),
        (op::GETATTR, getattr()),
        (op::STATX, zeros(24)),
        (
            op::SETATTR,
            Body::new()
                .u32(0x3f)
                .bytes(&[0; 12])
                .u64(9000)
                .bytes(&[1; 64]),
        ),
        (op::SETATTR, Body::new().u32(0x1b1).bytes(&[0; 84])),
        (op::READLINK, zeros(0)),
        (op::SYMLINK, Body::new().string(b"s").string(b"target")),
        (
            op::MKNOD,
            Body::new().u32(0o100_644).u32(0).u32(0).u32(0).string(b"b"),
        ),
        (
            op::MKNOD,
            Body::new()
                .u32(0o020_644)
                .u32(259)
                .u32(0)
                .u32(0)
                .string(b"dev"),
        ),
        (op::MKDIR, Body::new().u32(0o755).u32(0).string(b"d")),
        (op::UNLINK, Body::new().string(b"a")),
        (op::RMDIR, Body::new().string(b"d")),
        (op::RENAME, Body::new().u64(1).string(b"a").string(b"b")),
        (
            op::RENAME2,
            Body::new().u64(1).u32(2).u32(0).string(b"a").string(b"d"),
        ),
        (op::LINK, Body::new().u64(node).string(b"hard")),
        (op::OPEN, Body::new().u32(2).u32(0)),
        (op::OPEN, Body::new().u32(0).u32(0)),
        (op::READ, read_in(0, 5000)),
        (
            op::WRITE,
            Body::new()
                .u64(0)
                .u64(4090)
                .u32(9)
                .bytes(&[0; 20])
                .bytes(b"some data"),
        ),
        (op::STATFS, zeros(0)),
        (op::RELEASE, Body::new().u64(0).u32(2).u32(0).u64(0)),
        (op::RELEASE, Body::new().u64(0).u32(0).u32(0).u64(0)),
        (op::FSYNC, zeros(16)),
        (
            op::SETXATTR,
            Body::new()
                .u32(2)
                .u32(0)
                .u32(0)
                .u32(0)
                .string(b"user.a")
                .bytes(b"vv"),
        ),
        (op::GETXATTR, Body::new().u32(0).u32(0).string(b"user.a")),
        (op::LISTXATTR, Body::new().u32(100).u32(0)),
        (op::REMOVEXATTR, Body::new().string(b"user.a")),
        (op::READDIR, read_in(0, 300)),
        (op::READDIRPLUS, read_in(0, 700)),
        (
            op::CREATE,
            Body::new().u32(2).u32(0o644).u32(0).u32(0).string(b"a"),
        ),
        (
            op::FALLOCATE,
            Body::new().u64(0).u64(100).u64(5000).u32(3).u32(0),
        ),
        (op::LSEEK, Body::new().u64(0).u64(0).u32(3).u32(0)),
        (op::COPY_FILE_RANGE, copy_range(0, (node, 0), 9)),
        (op::INTERRUPT, Body::new().u64(3)),
        (
            op::INIT,
            Body::new()
                .u32(7)
                .u32(40)
                .u32(0)
                .u32(u32::MAX)
                .bytes(&[0; 48]),
        ),
    ];
    all[usize::from(which) % all.len()].clone()
}

impl Shot {
    /// The message, whose length in the header is right.
    fn message(&self, unique: u64) -> Vec<u8> {
        let mut bytes = match self {
            Self::Random { opcode, node, body } => message(*opcode, unique, *node, (0, 0), body),
            Self::Spoilt { which, node, .. } => {
                // The root, and what the first ones of this store and connection are.
                let node = [1, 16, 17, 18, 19, 1, 16, 20][usize::from(*node)];
                let (opcode, body) = sound(*which, node);
                message(opcode, unique, node, (0, 0), &body.0)
            }
        };
        if let Self::Spoilt { spoils, .. } = self {
            spoils.iter().for_each(|spoil| spoil.apply(&mut bytes));
        }
        let len = u32::try_from(bytes.len()).unwrap();
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes
    }
}

impl Spoil {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Nothing => {}
            Self::Byte(at, byte) => {
                if let Some(place) = bytes.get_mut(usize::from(*at)) {
                    *place = *byte;
                }
            }
            Self::Word(at, word) => {
                let at = usize::from(*at) / 4 * 4;
                if let Some(place) = bytes.get_mut(at..at + 4) {
                    place.copy_from_slice(&word.to_le_bytes());
                }
            }
            Self::Cut(at) => bytes.truncate(usize::from(*at)),
            Self::Longer(more) => bytes.extend(more),
        }
    }
}

/// Sends bytes and hangs up; how many answers came.
fn send(client: &Client, bytes: &[u8]) -> usize {
    let (mut reading, mut writing) = (client.socket(), client.socket());
    let answers = std::thread::spawn(move || std::iter::from_fn(|| receive(&mut reading)).count());
    // The server may hang up first.
    if writing.write_all(bytes).is_ok() {
        drop(writing.shutdown(Shutdown::Write));
    }
    answers.join().expect("sound answers")
}

/// Attacks a workspace and looks at what is left of it.
fn attack(bytes: &[u8], messages: Option<usize>) -> Result<(), TestCaseError> {
    let dir = tempfile::tempdir().unwrap();
    let (store, view) = workspace(dir.path());
    let quota = Quota {
        bytes: Some(16 << 20),
        inodes: Some(1000),
    };
    store.set_quota("w", quota).unwrap();
    // Another workspace, and another guest in the same one.
    store.create_workspace(&name("other")).unwrap();
    let other = store.open_live("other").unwrap();
    let kept = make(&other, Ino::ROOT, "kept", FileKind::File);
    write(&other, kept, 0, b"kept");
    let victim = Client::mount(view.clone(), ServerOptions::default());
    let own = victim.create(1, "unlinked", libc::O_RDWR).unwrap();
    victim.write(own, 0, b"still there").unwrap();
    let unlinked = Body::new().string(b"unlinked");
    victim.call(op::UNLINK, 1, unlinked).unwrap();

    let bad = Client::mount(view.clone(), ServerOptions::default());
    let answers = send(&bad, bytes);
    let ended = bad.hang_up();
    if let Some(messages) = messages {
        prop_assert!(answers <= messages);
        prop_assert!(ended.is_ok(), "{ended:?}");
    } else if let Err(error) = ended {
        let expected = matches!(
            error,
            StreamError::Length { .. }
                | StreamError::Kind { .. }
                | StreamError::Reserved
                | StreamError::ReplyMax { .. }
                | StreamError::Truncated
        );
        prop_assert!(expected, "{error}");
    }

    prop_assert_eq!(victim.read(own, 0, 100), Ok(b"still there".to_vec()));
    prop_assert!(victim.call(op::GETATTR, 1, getattr()).is_ok());
    victim.hang_up().unwrap();
    prop_assert_eq!(view.known(), [Ino::ROOT]);
    let kept = (read(&other, kept), list(&other, Ino::ROOT));
    prop_assert_eq!(kept, (b"kept".to_vec(), vec!["kept".to_owned()]));
    let report = store.check().unwrap();
    prop_assert!(report.is_clean(), "{report:?}");
    Ok(())
}

#[test]
fn messages_that_no_kernel_sends_hurt_nobody() {
    run(&shots(), &CASES, |shots| {
        let numbered = shots.iter().zip(1_u64..);
        let messages = numbered.map(|(shot, number)| {
            let message = shot.message(number * 2);
            framed(&message, room_for_answer(&message))
        });
        let bytes: Vec<u8> = messages.flatten().collect();
        attack(&bytes, Some(shots.len()))
    });
}

#[test]
fn bytes_that_are_no_messages_hurt_nobody() {
    let few = Cases {
        short: 30,
        long: 2_000,
        ..CASES
    };
    let small = prop::sample::select(vec![0_u8, 40, 44, 255]);
    let bytes = prop::collection::vec(prop_oneof![small, any::<u8>()], 0..3000);
    run(&bytes, &few, |bytes| attack(&bytes, None));
}

#[test]
fn whoever_leaves_room_for_an_answer_gets_one_whatever_they_sent() {
    // Once four opcodes were never answered: what a guest sent so was under way for ever, its machine never
    // came to rest, and could neither be paused nor have a snapshot taken.
    let scratch = tempfile::tempdir().unwrap();
    let (store, view) = workspace(scratch.path());
    let client = Client::mount(view, ServerOptions::default());
    let node = client.create(1, "file", libc::O_RDWR).unwrap();
    let none = Ok(Vec::new());
    let forget = Body::new().u64(0);
    let batch = Body::new().u32(1).u32(0).u64(node).u64(0);
    let interrupt = Body::new().u64(1);
    for (opcode, body, answer) in [
        (op::FORGET, forget, none.clone()),
        (op::BATCH_FORGET, batch, none.clone()),
        (op::INTERRUPT, interrupt, none),
        (op::NOTIFY_REPLY, Body::new(), Err(libc::ENOSYS)),
        (op::FORGET, Body::new(), Err(libc::EINVAL)),
    ] {
        let unique = client.unique();
        let message = message(opcode, unique, node, (0, 0), &body.0);
        client.send_raw(&framed(&message, 16));
        assert_eq!(client.receive(), (unique, answer), "{opcode}");
        // And none where there is no room.
        client.send_raw(&framed(&message, 0));
        client.call(op::GETATTR, node, getattr()).unwrap();
    }
    client.hang_up().unwrap();
    drop(store);
}

#[test]
fn no_bytes_at_all_make_the_codec_panic() {
    let strategy = (
        shots(),
        any::<bool>(),
        prop::collection::vec(any::<u8>(), 0..120),
    );
    let tenth = Cases {
        short: PARSES.short / 10,
        long: PARSES.long / 10,
        ..PARSES
    };
    run(&strategy, &tenth, |(shots, setxattr_ext, bytes)| {
        let dialect = Dialect { setxattr_ext };
        let messages = shots.iter().map(|shot| shot.message(2)).chain([bytes]);
        for message in messages {
            let header = Header::parse(&message);
            prop_assert_eq!(header.is_ok(), message.len() >= 40);
            if let Ok(header) = header {
                let parsed = Request::parse(header, &message[40..], dialect);
                let is_whole = usize::try_from(header.len) == Ok(message.len());
                prop_assert!(parsed.is_err() || is_whole);
            }
        }
        Ok(())
    });
}
