//! Messages as a guest's kernel builds them, and answers as it reads them. Written from `linux/fuse.h`
//! again, so that a mistake in the codec is not made twice.

/// Appends fields of a structure.
#[derive(Clone, Default)]
pub struct Body(pub Vec<u8>);

impl Body {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn i32(mut self, value: i32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn i64(mut self, value: i64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// A string and its NUL.
    pub fn string(self, string: &[u8]) -> Self {
        self.bytes(string).bytes(&[0])
    }
}

/// A whole message.
pub fn message(
    opcode: u32,
    unique: u64,
    node: u64,
    (uid, gid): (u32, u32),
    body: &[u8],
) -> Vec<u8> {
    let len = u32::try_from(40 + body.len()).unwrap();
    let header = Body::new()
        .u32(len)
        .u32(opcode)
        .u64(unique)
        .u64(node)
        .u32(uid)
        .u32(gid)
        .u32(4242)
        .u32(0);
    header.bytes(body).0
}

/// The room that a kernel leaves for the answer to a message: as much as any answer takes.
pub fn room_for_answer(message: &[u8]) -> u32 {
    let opcode = message
        .get(4..8)
        .map_or([0; 4], |bytes| bytes.try_into().unwrap());
    // Nobody waits for the answer to a FORGET.
    match u32::from_le_bytes(opcode) {
        op::FORGET | op::BATCH_FORGET => 0,
        _ => 16 + (1 << 20),
    }
}

/// A message in the frame that a monitor puts it in, by the number that it has itself.
pub fn framed(message: &[u8], reply_max: u32) -> Vec<u8> {
    let unique = message
        .get(8..16)
        .map_or([0; 8], |bytes| bytes.try_into().unwrap());
    let header = Body::new()
        .u32(u32::try_from(24 + message.len()).unwrap())
        .u32(1)
        .u64(u64::from_le_bytes(unique))
        .u32(reply_max)
        .u32(0);
    header.bytes(message).0
}

/// The frame that says that the driver started anew.
pub fn reset() -> Vec<u8> {
    Body::new().u32(24).u32(3).u64(0).u64(0).0
}

/// Takes fields off the front of an answer.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take(2).try_into().unwrap())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    pub fn i64(&mut self) -> i64 {
        i64::from_le_bytes(self.take(8).try_into().unwrap())
    }
}

pub mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const BMAP: u32 = 37;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SETUPMAPPING: u32 = 48;
    pub const REMOVEMAPPING: u32 = 49;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}
