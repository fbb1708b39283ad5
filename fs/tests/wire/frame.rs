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
    // Nobody waits for an answer to these.
    match u32::from_le_bytes(opcode) {
        op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::NOTIFY_REPLY => 0,
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

/// The body of a GETATTR.
pub fn getattr() -> Body {
    Body::new().u64(0).u64(0)
}

/// The body of a READ, READDIR or READDIRPLUS.
pub fn read_in(offset: u64, size: u32) -> Body {
    let head = Body::new().u64(0).u64(offset).u32(size).u32(0);
    head.u64(0).u32(0).u32(0)
}

/// The body of a COPY_FILE_RANGE: from an offset in the file that it is sent to, to one in another.
pub fn copy_range(from: u64, (to, at): (u64, u64), len: u64) -> Body {
    let body = Body::new().u64(0).u64(from).u64(to).u64(0);
    body.u64(at).u64(len).u64(0)
}

macro_rules! opcodes {
    ($($name:ident = $number:literal,)*) => {
        /// Opcodes, numbered as in `linux/fuse.h`.
        pub mod op {
            $(pub const $name: u32 = $number;)*

            /// Every one.
            pub const ALL: &[u32] = &[$($name,)*];
        }
    };
}

opcodes! {
    LOOKUP = 1,
    FORGET = 2,
    GETATTR = 3,
    SETATTR = 4,
    READLINK = 5,
    SYMLINK = 6,
    MKNOD = 8,
    MKDIR = 9,
    UNLINK = 10,
    RMDIR = 11,
    RENAME = 12,
    LINK = 13,
    OPEN = 14,
    READ = 15,
    WRITE = 16,
    STATFS = 17,
    RELEASE = 18,
    FSYNC = 20,
    SETXATTR = 21,
    GETXATTR = 22,
    LISTXATTR = 23,
    REMOVEXATTR = 24,
    FLUSH = 25,
    INIT = 26,
    OPENDIR = 27,
    READDIR = 28,
    RELEASEDIR = 29,
    FSYNCDIR = 30,
    GETLK = 31,
    SETLK = 32,
    SETLKW = 33,
    ACCESS = 34,
    CREATE = 35,
    INTERRUPT = 36,
    BMAP = 37,
    DESTROY = 38,
    IOCTL = 39,
    POLL = 40,
    NOTIFY_REPLY = 41,
    BATCH_FORGET = 42,
    FALLOCATE = 43,
    READDIRPLUS = 44,
    RENAME2 = 45,
    LSEEK = 46,
    COPY_FILE_RANGE = 47,
    SETUPMAPPING = 48,
    REMOVEMAPPING = 49,
    SYNCFS = 50,
    TMPFILE = 51,
    STATX = 52,
    COPY_FILE_RANGE_64 = 53,
}
