//! Bodies of requests, one variant an operation. Numbers are as they came unless a field says that they
//! were checked.

#[cfg(doc)]
use super::PAYLOAD_MAX;
use super::WireError;
use super::fields::Fields;
use crate::dispatch::SetAttr;

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are those of linux/fuse.h")]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    BatchForget(Forgets<'a>),
    GetAttr,
    SetAttr(SetAttr),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        rdev: u32,
    },
    MkDir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    /// RENAME and RENAME2.
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open {
        flags: i32,
    },
    /// `size` is at most [`PAYLOAD_MAX`].
    Read {
        offset: u64,
        size: u32,
    },
    Write {
        offset: u64,
        data: &'a [u8],
        write_flags: u32,
        flags: i32,
    },
    StatFs,
    Release {
        flags: i32,
    },
    FSync,
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
        /// `None` where the shorter form was agreed on.
        setxattr_flags: Option<u32>,
    },
    /// With `size` 0 the answer is how long the value is.
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Init(InitIn),
    /// READDIR and READDIRPLUS; `size` is at most [`PAYLOAD_MAX`].
    ReadDir {
        cookie: u64,
        size: u32,
        plus: bool,
    },
    ReleaseDir,
    FSyncDir,
    Create {
        name: &'a [u8],
        flags: i32,
        mode: u32,
        umask: u32,
    },
    Interrupt,
    Destroy,
    IoCtl,
    FAllocate {
        offset: u64,
        len: u64,
        mode: i32,
    },
    LSeek {
        offset: i64,
        whence: i32,
    },
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64, which differ in the answer.
    CopyFileRange {
        offset: u64,
        to: u64,
        to_offset: u64,
        len: u64,
        flags: u64,
        wide: bool,
    },
    SyncFs,
    StatX,
    /// What nobody here does, of opcodes that `linux/fuse.h` has not (yet) as well. Its body is not looked at.
    Unserved,
}

/// `struct fuse_init_in`: what the guest's kernel offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitIn {
    /// Major version of its protocol.
    pub major: u32,
    /// Minor version of its protocol.
    pub minor: u32,
    /// Most bytes that it reads ahead.
    pub max_readahead: u32,
    /// Flags, `flags2` in the upper half.
    pub flags: u64,
}

/// References that are returned together: `struct fuse_forget_one`, again and again.
#[derive(Clone, Copy, Debug)]
pub struct Forgets<'a>(&'a [u8]);

impl<'a> Forgets<'a> {
    const ONE: usize = 16;

    /// Takes `count` of them off the front of a body.
    pub(super) fn take(count: u32, body: &'a [u8]) -> Result<Self, WireError> {
        let count = usize::try_from(count).ok();
        let len = count.and_then(|count| count.checked_mul(Self::ONE));
        let all = len.and_then(|len| body.get(..len));
        let what = "fuse_batch_forget_in";
        all.map(Self).ok_or(WireError::Short { what })
    }

    /// Node and number of references of each.
    pub fn iter(self) -> impl Iterator<Item = (u64, u64)> + 'a {
        self.0.chunks_exact(Self::ONE).filter_map(|one| {
            let mut fields = Fields::new(one);
            Some((fields.u64("a node").ok()?, fields.u64("a count").ok()?))
        })
    }
}
