//! Inputs to begin with: each operation as a kernel sends it, after what makes it succeed.

use super::guest::message;
use super::{NO_INIT, ONLY_WRITER, READ_ONLY, SMALL, STREAM};

/// Fields of a structure.
#[derive(Clone, Default)]
struct Body(Vec<u8>);

impl Body {
    fn u32s(mut self, words: &[u32]) -> Self {
        words
            .iter()
            .for_each(|word| self.0.extend(word.to_le_bytes()));
        self
    }

    fn u64s(mut self, words: &[u64]) -> Self {
        words
            .iter()
            .for_each(|word| self.0.extend(word.to_le_bytes()));
        self
    }

    fn string(mut self, string: &[u8]) -> Self {
        self.0.extend(string);
        self.0.push(0);
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
}

fn body() -> Body {
    Body::default()
}

/// An operation on the node that the guest was told of as the `node`th; 0 is the root.
type Step = (u8, u8, Body);

fn input(options: u8, steps: &[Step]) -> Vec<u8> {
    let mut bytes = vec![options];
    for (opcode, node, body) in steps {
        bytes.extend([*opcode, *node, 0]);
        bytes.extend(u16::try_from(body.0.len()).unwrap_or(0).to_le_bytes());
        bytes.extend(&body.0);
    }
    bytes
}

fn create(name: &[u8]) -> Step {
    (35, 0, body().u32s(&[2, 0o644, 0o22, 0]).string(name))
}

fn write(node: u8, offset: u64, data: &[u8]) -> Step {
    let len = u32::try_from(data.len()).unwrap_or(0);
    let fields = body().u64s(&[0, offset]).u32s(&[len, 0, 0, 0, 2, 0]);
    (16, node, fields.bytes(data))
}

fn files() -> Vec<Step> {
    vec![
        create(b"a"),
        write(1, 0, b"some data"),
        write(1, 70_000, b"more"),
        (15, 1, body().u64s(&[0, 3]).u32s(&[5000, 0, 0, 0, 0, 0])),
        (46, 1, body().u64s(&[0, 0]).u32s(&[3, 0])),
        (43, 1, body().u64s(&[0, 100, 5000]).u32s(&[3, 0])),
        (4, 1, body().u32s(&[8, 0]).u64s(&[0, 9, 0]).bytes(&[0; 56])),
        (
            4,
            1,
            body().u32s(&[0x1b7, 0]).u64s(&[0, 9, 0]).bytes(&[1; 56]),
        ),
        create(b"b"),
        (47, 1, body().u64s(&[0, 0, 2, 0, 0, 9, 0])),
        (53, 1, body().u64s(&[0, 0, 2, 0, 50, 9, 0])),
        (20, 1, body().u64s(&[0, 0])),
        (18, 1, body().u64s(&[0]).u32s(&[2, 0]).u64s(&[0])),
        (14, 1, body().u32s(&[0, 0])),
        (3, 1, body().u64s(&[0, 0])),
        (52, 1, body().u64s(&[0, 0]).u32s(&[0, 0xfff])),
        (2, 1, body().u64s(&[1])),
    ]
}

fn names() -> Vec<Step> {
    vec![
        (9, 0, body().u32s(&[0o755, 0]).string(b"d")),
        (8, 0, body().u32s(&[0o100_644, 0, 0, 0]).string(b"f")),
        (8, 0, body().u32s(&[0o020_644, 259, 0, 0]).string(b"dev")),
        (6, 0, body().string(b"s").string(b"target")),
        (5, 4, body()),
        (13, 0, body().u64s(&[2]).string(b"hard")),
        (12, 0, body().u64s(&[1]).string(b"f").string(b"g")),
        (
            45,
            0,
            body().u64s(&[0]).u32s(&[2, 0]).string(b"hard").string(b"s"),
        ),
        (1, 1, body().string(b"g")),
        (1, 0, body().string(b"none")),
        (28, 0, body().u64s(&[0, 0]).u32s(&[300, 0, 0, 0, 0, 0])),
        (44, 0, body().u64s(&[0, 0]).u32s(&[700, 0, 0, 0, 0, 0])),
        (10, 1, body().string(b"g")),
        (11, 0, body().string(b"d")),
        (17, 0, body()),
        (42, 0, body().u32s(&[2, 0]).u64s(&[2, 1, 3, 9])),
        (27, 0, body().u32s(&[0, 0])),
        (29, 0, body().u64s(&[0, 0, 0])),
        (36, 0, body().u64s(&[2])),
        (50, 0, body().u64s(&[0])),
        (38, 0, body()),
    ]
}

fn attributes() -> Vec<Step> {
    let set = |name: &[u8], value: &[u8]| {
        let len = u32::try_from(value.len()).unwrap_or(0);
        body().u32s(&[len, 0, 0, 0]).string(name).bytes(value)
    };
    // A version, and three entries: u::rwx, g::r, o::r.
    let acl = body().u32s(&[
        2,
        0x7_0001,
        u32::MAX,
        0x4_0004,
        u32::MAX,
        0x4_0020,
        u32::MAX,
    ]);
    vec![
        create(b"a"),
        (21, 1, set(b"user.a", b"value")),
        (21, 0, set(b"system.posix_acl_access", &acl.0)),
        (21, 0, set(b"system.posix_acl_default", &acl.0)),
        (9, 0, body().u32s(&[0o777, 0o22]).string(b"d")),
        (22, 1, body().u32s(&[0, 0]).string(b"user.a")),
        (22, 1, body().u32s(&[100, 0]).string(b"user.a")),
        (23, 1, body().u32s(&[0, 0])),
        (23, 1, body().u32s(&[100, 0])),
        (24, 1, body().string(b"user.a")),
        (34, 1, body().u32s(&[4, 0])),
        (31, 1, body().u64s(&[0, 0, 0, 9]).u32s(&[1, 0, 0, 0])),
        (39, 1, body().u64s(&[0]).u32s(&[0, 7, 0, 0, 0, 0])),
    ]
}

/// Inputs, as (target, name, bytes).
#[must_use]
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let init = body().u32s(&[7, 40, 1 << 17, u32::MAX]).bytes(&[0; 48]);
    let old = body().u32s(&[7, 31, 1 << 17, u32::MAX]);
    let begin = [
        (26, 0, init),
        (3, 0, body().u64s(&[0, 0])),
        (26, 0, old),
        create(b"a"),
    ];
    let mut framed = vec![STREAM];
    for (unique, (opcode, _, body)) in (1..).zip(begin.iter().chain(&names())) {
        let message = message((*opcode).into(), unique, 1, [0; 2], &body.0);
        let len = u32::try_from(24 + message.len()).unwrap_or(0);
        let frame = Body::default()
            .u32s(&[len, 1])
            .u64s(&[unique])
            .u32s(&[5000, 0]);
        framed.extend(frame.0);
        framed.extend(message);
    }
    let reset = body().u32s(&[24, 3]).u64s(&[99, 0]);
    framed.extend(reset.0);
    vec![
        ("fuse", "files", input(0, &files())),
        ("fuse", "names", input(ONLY_WRITER, &names())),
        ("fuse", "attributes", input(0, &attributes())),
        ("fuse", "begin", input(NO_INIT, &begin)),
        ("fuse", "read-only", input(READ_ONLY, &files())),
        ("fuse", "small", input(SMALL, &[names(), files()].concat())),
        ("fuse", "stream", framed),
    ]
}
