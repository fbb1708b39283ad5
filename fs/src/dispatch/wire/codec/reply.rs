//! Answers: `struct fuse_out_header` and what follows it (`struct fuse_*_out`).

use std::time::Duration;

use super::OUT_HEADER;
use super::flags::STATX_MASK;
use crate::attr::{Attr, Timestamp};
use crate::dispatch::{Errno, StatFs};
use crate::id::Ino;

/// What a file prefers to be read and written by, in bytes.
const BLOCK: u32 = 4096;

/// Length of `struct fuse_attr` in bytes.
const ATTR: usize = 88;

/// `struct fuse_init_out`: what was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitOut {
    /// Major version of the protocol.
    pub major: u32,
    /// Minor version of the protocol.
    pub minor: u32,
    /// Most bytes that the guest reads ahead.
    pub max_readahead: u32,
    /// Flags, `flags2` in the upper half.
    pub flags: u64,
    /// Requests that the guest may have under way in the background.
    pub max_background: u16,
    /// From how many of them on it slows down.
    pub congestion_threshold: u16,
    /// Largest WRITE in bytes.
    pub max_write: u32,
    /// What times are rounded to, in nanoseconds.
    pub time_granularity: u32,
    /// Pages of 4 KiB in the largest request.
    pub max_pages: u16,
}

/// An answer that is being made. One is used again and again.
#[derive(Debug, Default)]
pub struct Reply {
    unique: u64,
    errno: i32,
    body: Vec<u8>,
}

/// Appending to a body.
pub(super) trait Put {
    fn put(&mut self, bytes: &[u8]);

    fn u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    fn i64(&mut self, value: i64) {
        self.put(&value.to_le_bytes());
    }

    fn zeros(&mut self, count: usize) {
        for _ in 0..count {
            self.put(&[0]);
        }
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// `struct fuse_attr`.
fn put_attr(body: &mut Vec<u8>, ino: Ino, attr: &Attr) {
    body.u64(ino.0);
    body.u64(attr.size);
    body.u64(attr.blocks);
    for time in [attr.atime, attr.mtime, attr.ctime] {
        body.i64(time.secs);
    }
    for time in [attr.atime, attr.mtime, attr.ctime] {
        body.u32(time.nanos);
    }
    body.u32(attr.kind.mode_bits() | u32::from(attr.perm));
    body.u32(attr.nlink);
    body.u32(attr.uid);
    body.u32(attr.gid);
    body.u32(attr.rdev);
    body.u32(BLOCK);
    body.u32(0);
}

/// `struct fuse_entry_out`, with one time for which name and attributes may be believed.
pub(super) fn put_entry(body: &mut Vec<u8>, ino: Ino, generation: u32, attr: &Attr, ttl: Duration) {
    body.u64(ino.0);
    body.u64(generation.into());
    body.u64(ttl.as_secs());
    body.u64(ttl.as_secs());
    body.u32(ttl.subsec_nanos());
    body.u32(ttl.subsec_nanos());
    put_attr(body, ino, attr);
}

/// `struct fuse_sx_time`.
fn put_time(body: &mut Vec<u8>, time: Timestamp) {
    body.i64(time.secs);
    body.u32(time.nanos);
    body.u32(0);
}

impl Reply {
    /// Begins the answer to a request: empty and without an error.
    pub fn begin(&mut self, unique: u64) {
        self.unique = unique;
        self.errno = 0;
        self.body.clear();
    }

    /// Makes it one that says what went wrong.
    pub fn error(&mut self, errno: Errno) {
        self.errno = errno.0;
        self.body.clear();
    }

    /// Makes it `struct fuse_entry_out`: an inode that the receiver holds a reference to from then on.
    pub fn entry(&mut self, ino: Ino, generation: u32, attr: &Attr, ttl: Duration) {
        put_entry(&mut self.body, ino, generation, attr, ttl);
    }

    /// Makes it an entry of node 0: the name does not exist, and that may be believed.
    pub fn no_entry(&mut self, ttl: Duration) {
        self.body.u64(0);
        self.body.u64(0);
        self.body.u64(ttl.as_secs());
        self.body.u64(0);
        self.body.u32(ttl.subsec_nanos());
        self.body.zeros(4 + ATTR);
    }

    /// Makes it `struct fuse_attr_out`.
    pub fn attr(&mut self, ino: Ino, attr: &Attr, ttl: Duration) {
        self.body.u64(ttl.as_secs());
        self.body.u32(ttl.subsec_nanos());
        self.body.u32(0);
        put_attr(&mut self.body, ino, attr);
    }

    /// Makes it `struct fuse_statx_out`, which says when a file was born.
    pub fn statx(&mut self, ino: Ino, attr: &Attr, ttl: Duration) {
        let body = &mut self.body;
        body.u64(ttl.as_secs());
        body.u32(ttl.subsec_nanos());
        body.zeros(4 + 16);
        body.u32(STATX_MASK);
        body.u32(BLOCK);
        body.u64(0);
        body.u32(attr.nlink);
        body.u32(attr.uid);
        body.u32(attr.gid);
        let mode = attr.kind.mode_bits() | u32::from(attr.perm);
        // Kind and permissions are 16 bits together.
        body.u16(u16::try_from(mode).unwrap_or(attr.perm));
        body.u16(0);
        body.u64(ino.0);
        body.u64(attr.size);
        body.u64(attr.blocks);
        body.u64(0);
        for time in [attr.atime, attr.btime, attr.ctime, attr.mtime] {
            put_time(body, time);
        }
        // The kernel's 32-bit encoding (`new_encode_dev`): 12 bits major, 20 bits minor.
        body.u32((attr.rdev >> 8) & 0xfff);
        body.u32((attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xf_ff00));
        body.zeros(8 + 14 * 8);
    }

    /// Makes it, or makes it go on with, `struct fuse_open_out`. There are no file handles.
    pub fn open(&mut self, flags: u32) {
        self.body.u64(0);
        self.body.u32(flags);
        self.body.u32(0);
    }

    /// Makes it `struct fuse_write_out`, which COPY_FILE_RANGE has as well.
    pub fn written(&mut self, len: u32) {
        self.body.u32(len);
        self.body.u32(0);
    }

    /// Makes it a 64-bit number: `struct fuse_lseek_out`, `struct fuse_copy_file_range_out`.
    pub fn number(&mut self, number: u64) {
        self.body.u64(number);
    }

    /// Makes it `struct fuse_getxattr_out`: how long a value or list is.
    pub fn size(&mut self, size: u32) {
        self.body.u32(size);
        self.body.u32(0);
    }

    /// Makes it bytes: a target, a value, a list of names.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.body.put(bytes);
    }

    /// Makes it `struct fuse_statfs_out`.
    pub fn statfs(&mut self, stat: &StatFs) {
        let body = &mut self.body;
        body.u64(stat.blocks);
        body.u64(stat.blocks_free);
        body.u64(stat.blocks_available);
        body.u64(stat.files);
        body.u64(stat.files_free);
        body.u32(stat.block_size);
        body.u32(stat.name_max);
        body.u32(stat.block_size);
        body.zeros(4 + 6 * 4);
    }

    /// Makes it `struct fuse_init_out`.
    pub fn init(&mut self, init: &InitOut) {
        let body = &mut self.body;
        let half = |flags: u64| u32::try_from(flags & u64::from(u32::MAX)).unwrap_or(0);
        body.u32(init.major);
        body.u32(init.minor);
        body.u32(init.max_readahead);
        body.u32(half(init.flags));
        body.u16(init.max_background);
        body.u16(init.congestion_threshold);
        body.u32(init.max_write);
        body.u32(init.time_granularity);
        body.u16(init.max_pages);
        body.u16(0);
        body.u32(half(init.flags >> 32));
        body.zeros(7 * 4);
    }

    /// The body, for what writes into it by itself: what is read, listings.
    pub fn body_mut(&mut self) -> &mut Vec<u8> {
        &mut self.body
    }

    /// The body so far.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// `struct fuse_out_header` of what it is now.
    #[must_use]
    pub fn header(&self) -> [u8; OUT_HEADER] {
        // A body is at most PAYLOAD_MAX long.
        let len = u32::try_from(OUT_HEADER + self.body.len()).unwrap_or(u32::MAX);
        let mut header = [0; OUT_HEADER];
        header[..4].copy_from_slice(&len.to_le_bytes());
        header[4..8].copy_from_slice(&(-self.errno).to_le_bytes());
        header[8..].copy_from_slice(&self.unique.to_le_bytes());
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::FileKind;

    const TTL: Duration = Duration::from_millis(2500);

    fn attr() -> Attr {
        let at = |secs| Timestamp { secs, nanos: 5 };
        Attr {
            kind: FileKind::CharDevice,
            perm: 0o4755,
            uid: 1,
            gid: 2,
            nlink: 3,
            rdev: 0x1230_0745,
            size: 9,
            blocks: 8,
            atime: at(-1),
            mtime: at(1),
            ctime: at(2),
            btime: at(3),
        }
    }

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn answers_have_the_lengths_of_the_kernels_structures() {
        let mut reply = Reply::default();
        let mut len = |make: &dyn Fn(&mut Reply)| {
            reply.begin(1);
            make(&mut reply);
            reply.body().len()
        };
        let attr = attr();
        assert_eq!(len(&|r| r.entry(Ino(20), 0, &attr, TTL)), 128);
        assert_eq!(len(&|r| r.no_entry(TTL)), 128);
        assert_eq!(len(&|r| r.attr(Ino(20), &attr, TTL)), 104);
        assert_eq!(len(&|r| r.statx(Ino(20), &attr, TTL)), 32 + 256);
        assert_eq!(len(&|r| r.open(0)), 16);
        assert_eq!(len(&|r| r.written(3)), 8);
        assert_eq!(len(&|r| r.number(3)), 8);
        assert_eq!(len(&|r| r.size(3)), 8);
        let init = InitOut {
            major: 7,
            minor: 31,
            max_readahead: 0,
            flags: (1 << 38) | 3,
            max_background: 1,
            congestion_threshold: 1,
            max_write: 4096,
            time_granularity: 1,
            max_pages: 1,
        };
        assert_eq!(len(&|r| r.init(&init)), 64);
        let stat = StatFs {
            block_size: 4096,
            blocks: 1,
            blocks_free: 1,
            blocks_available: 1,
            files: 1,
            files_free: 1,
            name_max: 255,
        };
        assert_eq!(len(&|r| r.statfs(&stat)), 80);
        reply.begin(1);
        reply.init(&init);
        assert_eq!(u32_at(reply.body(), 12), 3);
        assert_eq!(u32_at(reply.body(), 32), 1 << 6);
    }

    #[test]
    fn the_header_says_length_error_and_whose_answer_it_is() {
        let mut reply = Reply::default();
        reply.begin(0x0102_0304_0506_0708);
        reply.bytes(b"abc");
        let header = reply.header();
        assert_eq!(u32_at(&header, 0), 19);
        assert_eq!(u32_at(&header, 4), 0);
        assert_eq!(header[8..], [8, 7, 6, 5, 4, 3, 2, 1]);
        reply.error(Errno(libc::ENOENT));
        let header = reply.header();
        assert_eq!(u32_at(&header, 0), 16);
        assert_eq!(header[4..8], (-libc::ENOENT).to_le_bytes());
        assert!(reply.body().is_empty());
    }

    #[test]
    fn times_kinds_and_device_numbers_stand_where_the_kernel_looks() {
        let mut reply = Reply::default();
        reply.begin(1);
        reply.entry(Ino(20), 4, &attr(), TTL);
        let body = reply.body();
        assert_eq!(body[..8], 20_u64.to_le_bytes());
        assert_eq!(body[8..16], 4_u64.to_le_bytes());
        assert_eq!(body[16..24], 2_u64.to_le_bytes());
        assert_eq!(body[24..32], 2_u64.to_le_bytes());
        assert_eq!(
            (u32_at(body, 32), u32_at(body, 36)),
            (500_000_000, 500_000_000)
        );
        assert_eq!(body[64..72], (-1_i64).to_le_bytes());
        assert_eq!(u32_at(body, 100), libc::S_IFCHR | 0o4755);
        reply.begin(1);
        reply.statx(Ino(20), &attr(), TTL);
        let stat = &reply.body()[32..];
        // Birth is the second time.
        assert_eq!(stat[80..88], 3_i64.to_le_bytes());
        assert_eq!((u32_at(stat, 128), u32_at(stat, 132)), (7, 0x1_2345));
    }
}
