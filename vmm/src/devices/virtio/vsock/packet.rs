//! The header of a vsock packet (specification, section 5.10.6): 44 bytes, little-endian.

/// Bytes of a header.
pub(super) const HEADER_LEN: usize = 44;
/// The same, as lengths in a queue are counted.
pub(super) const HEADER_LEN_U32: u32 = 44;
/// Most bytes of data in one packet, either way.
pub(super) const DATA_MAX: u32 = 64 * 1024;
/// The host's address.
pub(super) const HOST_CID: u64 = 2;
/// The only kind of socket here.
pub(super) const TYPE_STREAM: u16 = 1;
/// SHUTDOWN: the sender will receive no more.
pub(super) const NO_RECEIVE: u32 = 1;
/// SHUTDOWN: the sender will send no more.
pub(super) const NO_SEND: u32 = 2;

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Request,
    Response,
    Reset,
    Shutdown,
    Data,
    CreditUpdate,
    CreditRequest,
}

const OPS: [(u16, Op); 7] = [
    (1, Op::Request),
    (2, Op::Response),
    (3, Op::Reset),
    (4, Op::Shutdown),
    (5, Op::Data),
    (6, Op::CreditUpdate),
    (7, Op::CreditRequest),
];

/// A header, its fields as the sender claims them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) src_cid: u64,
    pub(super) dst_cid: u64,
    pub(super) src_port: u32,
    pub(super) dst_port: u32,
    pub(super) len: u32,
    pub(super) kind: u16,
    /// `None`: an operation that does not exist.
    pub(super) op: Option<Op>,
    pub(super) flags: u32,
    pub(super) buf_alloc: u32,
    pub(super) fwd_cnt: u32,
}

impl Header {
    pub(super) fn decode(bytes: &[u8; HEADER_LEN]) -> Self {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let op = OPS.iter().find(|(number, _)| *number == u16_at(30));
        Self {
            src_cid: u64_at(0),
            dst_cid: u64_at(8),
            src_port: u32_at(16),
            dst_port: u32_at(20),
            len: u32_at(24),
            kind: u16_at(28),
            op: op.map(|(_, op)| *op),
            flags: u32_at(32),
            buf_alloc: u32_at(36),
            fwd_cnt: u32_at(40),
        }
    }

    pub(super) fn encode(&self) -> [u8; HEADER_LEN] {
        let op = OPS.iter().find(|(_, op)| Some(*op) == self.op);
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&self.src_cid.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.dst_cid.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.src_port.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.dst_port.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.kind.to_le_bytes());
        bytes[30..32].copy_from_slice(&op.map_or(0, |(number, _)| *number).to_le_bytes());
        bytes[32..36].copy_from_slice(&self.flags.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.buf_alloc.to_le_bytes());
        bytes[40..].copy_from_slice(&self.fwd_cnt.to_le_bytes());
        bytes
    }

    /// The answer to a packet that belongs to no connection.
    pub(super) fn reset_for(self) -> Self {
        Self {
            src_cid: self.dst_cid,
            dst_cid: self.src_cid,
            src_port: self.dst_port,
            dst_port: self.src_port,
            len: 0,
            kind: self.kind,
            op: Some(Op::Reset),
            flags: 0,
            buf_alloc: 0,
            fwd_cnt: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire_and_unknown_operations_are_none() {
        for (number, op) in OPS {
            let header = Header {
                src_cid: 3,
                dst_cid: 1 << 40,
                src_port: 5,
                dst_port: 6,
                len: 7,
                kind: 1,
                op: Some(op),
                flags: 8,
                buf_alloc: 9,
                fwd_cnt: 10,
            };
            let mut bytes = header.encode();
            assert_eq!(Header::decode(&bytes), header);
            assert_eq!(bytes[30], number.to_le_bytes()[0]);
            bytes[31] = 1;
            assert_eq!(Header::decode(&bytes).op, None);
        }
    }
}
