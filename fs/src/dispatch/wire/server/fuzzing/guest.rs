//! The messages of an input, sent one after the other.

use super::answers;
use crate::dispatch::wire::codec::{Header, IN_HEADER, MESSAGE_MAX, Opcode, Reply};
use crate::dispatch::wire::server::Server;

/// Most messages of one input.
const MESSAGES: usize = 200;
/// Nodes that the guest remembers.
const NODES: usize = 64;
/// Numbers below this stand for a node that the guest was told of.
const TOLD: u64 = 200;

/// What is odd about a message, one bit each.
const RAW: u8 = 1;
const LENGTH: u8 = 2;
const EXTENSIONS: u8 = 4;
const NOBODY: u8 = 8;
const USER: u8 = 16;
const PADDED: u8 = 32;
const KEEP_SIZE: u8 = 64;

/// Takes values off the front of an input; when it is used up, zeros.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }
}

/// A guest that remembers which nodes it was told of.
pub(super) struct Guest<'a> {
    server: &'a Server,
    nodes: Vec<u64>,
    unique: u64,
    reply: Reply,
}

impl<'a> Guest<'a> {
    pub(super) fn new(server: &'a Server) -> Self {
        Self {
            server,
            nodes: vec![1],
            unique: 0,
            reply: Reply::default(),
        }
    }

    /// Says what a kernel says first.
    pub(super) fn init(&mut self) {
        let mut body = Vec::new();
        for word in [7, 40, 1 << 17, u32::MAX, u32::MAX] {
            body.extend(word.to_le_bytes());
        }
        body.resize(64, 0);
        self.send(&message(Opcode::Init.number(), 2, 1, [0; 2], &body));
    }

    pub(super) fn run(&mut self, messages: &[u8]) {
        let mut input = Input(messages);
        for _ in 0..MESSAGES {
            if input.0.is_empty() {
                break;
            }
            let message = self.message(&mut input);
            self.send(&message);
        }
    }

    /// The next message: an operation, a node, what is odd about it, and a body with its length before it.
    fn message(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let (opcode, node, odd) = (input.u8(), input.u8(), input.u8());
        let len = usize::from(input.u16());
        let mut body = input.bytes(len).to_vec();
        if odd & RAW != 0 {
            return body;
        }
        let opcode = if opcode == u8::MAX {
            u32::from_le_bytes(input.array())
        } else {
            u32::from(opcode)
        };
        let known = Opcode::from_number(opcode);
        if let Some(known) = known {
            self.name_nodes(known, &mut body);
        }
        if odd & PADDED != 0 {
            let room = usize::try_from(MESSAGE_MAX).unwrap_or(0);
            let more = usize::from(input.u8()) * 4097;
            body.resize((body.len() + more).min(room), b'p');
        }
        let data = u32::try_from(body.len().saturating_sub(40)).unwrap_or(0);
        let said = body.get_mut(16..20).filter(|_| odd & KEEP_SIZE == 0);
        if let (Some(Opcode::Write), Some(said)) = (known, said) {
            said.copy_from_slice(&data.to_le_bytes());
        }
        let node = match u64::from(node) {
            told if told < TOLD => self.told(told),
            other if other < 254 => other,
            _ => u64::from_le_bytes(input.array()),
        };
        let id = match odd & (NOBODY | USER) {
            0 => 0,
            USER => 1000,
            _ => u32::MAX,
        };
        self.unique += 2;
        let mut bytes = message(opcode, self.unique, node, [id; 2], &body);
        if odd & LENGTH != 0 {
            bytes[0] = bytes[0].wrapping_add(input.u8());
        }
        if odd & EXTENSIONS != 0 {
            bytes[36..38].copy_from_slice(&input.array::<2>());
        }
        bytes
    }

    fn told(&self, number: u64) -> u64 {
        let at = usize::try_from(number).unwrap_or(0) % self.nodes.len();
        self.nodes[at]
    }

    /// Where a body names nodes, small numbers become some that the guest was told of.
    fn name_nodes(&self, opcode: Opcode, body: &mut [u8]) {
        let (first, step) = match opcode {
            Opcode::Rename | Opcode::Rename2 | Opcode::Link => (0, usize::MAX),
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => (16, usize::MAX),
            Opcode::BatchForget => (8, 16),
            _ => return,
        };
        let mut at = first;
        while let Some(place) = body.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            let number = u64::from_le_bytes(*place);
            if number < TOLD {
                *place = self.told(number).to_le_bytes();
            }
            let Some(next) = at.checked_add(step) else {
                break;
            };
            at = next;
        }
    }

    fn send(&mut self, message: &[u8]) {
        // The connection ends where there is no whole header.
        let Ok(header) = Header::parse(message) else {
            return;
        };
        let body = message.get(IN_HEADER..).unwrap_or_default();
        // When it would be served must be plain from the header alone.
        Server::order(&header);
        let before = self.server.agreed.read().is_some();
        self.server.answer(header, body, &mut self.reply);
        let after = self.server.agreed.read().is_some();
        answers::check(&header, message.get(IN_HEADER..), &self.reply);
        if before && after {
            let broken = self.reply.header()[4..8] == (-libc::EIO).to_le_bytes();
            assert!(
                !broken,
                "the store failed, or there was a panic: {header:?}"
            );
        }
        self.learn(&header);
    }

    /// Remembers a node that an answer tells of.
    fn learn(&mut self, header: &Header) {
        let tells = matches!(
            header.known_opcode(),
            Some(
                Opcode::Lookup
                    | Opcode::MkNod
                    | Opcode::MkDir
                    | Opcode::Symlink
                    | Opcode::Link
                    | Opcode::Create
            )
        );
        if let Some(node) = self.reply.body().first_chunk().filter(|_| tells) {
            let node = u64::from_le_bytes(*node);
            let new = node != 0 && !self.nodes.contains(&node);
            if new && self.nodes.len() < NODES {
                self.nodes.push(node);
            }
        }
    }
}

/// A whole message.
pub(super) fn message(
    opcode: u32,
    unique: u64,
    node: u64,
    [uid, gid]: [u32; 2],
    body: &[u8],
) -> Vec<u8> {
    let len = u32::try_from(IN_HEADER + body.len()).unwrap_or(u32::MAX);
    let mut bytes = len.to_le_bytes().to_vec();
    bytes.extend(opcode.to_le_bytes());
    bytes.extend(unique.to_le_bytes());
    bytes.extend(node.to_le_bytes());
    for word in [uid, gid, 4242, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(body);
    bytes
}
