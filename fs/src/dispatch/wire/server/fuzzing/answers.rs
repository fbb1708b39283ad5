//! What must hold of an answer, whatever was asked. Written from `linux/fuse.h`, not from the codec.

use crate::dispatch::wire::codec::{Header, OUT_HEADER, Opcode, PAYLOAD_MAX, Reply};

/// Longest structure that an operation without a size answers with (`struct fuse_statx_out`: 288 bytes).
const STRUCTURE_MAX: usize = 288;
/// Longest target of a symbolic link.
const TARGET_MAX: usize = 4096;
/// `struct fuse_entry_out`, before each entry of READDIRPLUS.
const ENTRY: usize = 128;
/// Bytes of a frame's header.
const FRAME: usize = 24;

/// Panics unless a reply is an answer to a request.
pub(super) fn check(header: &Header, body: Option<&[u8]>, reply: &Reply) {
    let opcode = header.known_opcode();
    let out = reply.header();
    let answer = reply.body();
    let len = u32_at(&out, 0);
    assert_eq!(usize::try_from(len), Ok(OUT_HEADER + answer.len()));
    assert_eq!(out[8..16], header.unique.to_le_bytes());
    let error = u32_at(&out, 4).cast_signed();
    assert!((-4095..=0).contains(&error), "error {error}");
    if error != 0 {
        assert!(answer.is_empty(), "an error with a body");
        return;
    }
    let body = body.unwrap_or_default();
    let asked = |at: usize| usize::try_from(u32_at(body, at)).unwrap_or(usize::MAX);
    let most = match opcode {
        Some(Opcode::Read | Opcode::ReadDir | Opcode::ReadDirPlus) => {
            let asked = asked(16);
            assert!(asked <= usize::try_from(PAYLOAD_MAX).unwrap_or(0));
            asked
        }
        // A size of 0 asks for how long it is: `struct fuse_getxattr_out`.
        Some(Opcode::GetXattr | Opcode::ListXattr) => match asked(0) {
            0 => 8,
            asked => asked,
        },
        Some(Opcode::ReadLink) => TARGET_MAX,
        _ => STRUCTURE_MAX,
    };
    assert!(
        answer.len() <= most,
        "{header:?}: {} of {most}",
        answer.len()
    );
    match opcode {
        Some(Opcode::ReadDir) => entries(answer, 0),
        Some(Opcode::ReadDirPlus) => entries(answer, ENTRY),
        _ => {}
    }
}

/// Entries of a directory, each after `before` bytes of something else.
fn entries(mut rest: &[u8], before: usize) {
    while !rest.is_empty() {
        let entry = rest.get(before..).expect("a whole entry");
        let name_len = usize::try_from(u32_at(entry, 16)).unwrap_or(usize::MAX);
        let name = entry.get(24..24 + name_len).expect("a whole name");
        assert!((1..=255).contains(&name.len()));
        assert!(!name.contains(&0) && !name.contains(&b'/'), "{name:?}");
        let len = before + (24 + name_len).next_multiple_of(8);
        rest = rest.get(len..).expect("a whole entry");
    }
}

/// Answers in their frames.
pub(super) fn frames(mut rest: &[u8]) {
    while !rest.is_empty() {
        let len = usize::try_from(u32_at(rest, 0)).unwrap_or(usize::MAX);
        assert!(len >= FRAME + OUT_HEADER);
        let frame = rest.get(..len).expect("a whole frame");
        assert_eq!(frame[4..8], [2, 0, 0, 0], "the kind of an answer");
        assert_eq!(frame[16..24], [0; 8]);
        let of_message = usize::try_from(u32_at(frame, FRAME)).unwrap_or(usize::MAX);
        assert_eq!(FRAME + of_message, len);
        rest = &rest[len..];
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..).and_then(<[u8]>::first_chunk);
    field.map_or(0, |field| u32::from_le_bytes(*field))
}
