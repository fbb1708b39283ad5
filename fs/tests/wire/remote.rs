//! [`Dispatch`] over a connection: what a guest's kernel would do for its programs. One test can so do the
//! same to a workspace directly and as a guest.

use floe_fs::attr::{Attr, FileKind, Timestamp};
use floe_fs::dispatch::{
    Caller, DirEntry, Dispatch, Entry, Fallocate, NewNode, OpError, OpenMode, RenameFlags, SetAttr,
    SetTime, StatFs, Unsettled, Write, XattrMode,
};
use floe_fs::id::Ino;

use super::client::Client;
use super::frame::{Body, Fields, copy_range, getattr, op, read_in};

const ROOT: Caller = Caller { uid: 0, gid: 0 };

/// A guest.
pub struct Remote(pub Client);

/// The error that has this errno.
fn error(errno: i32) -> OpError {
    let ino = Ino(0);
    let what = "as the server says";
    match errno {
        libc::ENOENT => OpError::NoEntry { parent: ino },
        libc::ESTALE => OpError::Stale(ino),
        libc::EEXIST => OpError::Exists { parent: ino },
        libc::ENOTDIR => OpError::NotDirectory(ino),
        libc::EISDIR => OpError::IsDirectory(ino),
        libc::ENOTEMPTY => OpError::NotEmpty(ino),
        libc::ENAMETOOLONG => OpError::NameTooLong { len: 0 },
        libc::EINVAL => OpError::Invalid { what },
        libc::EPERM => OpError::NotPermitted(ino),
        libc::EMLINK => OpError::TooManyLinks(ino),
        libc::EFBIG => OpError::TooBig { size: 0 },
        libc::ENXIO => OpError::SeekPastEnd { offset: 0 },
        libc::ENODATA => OpError::NoXattr(ino),
        libc::ENOSPC => OpError::XattrNoSpace(ino),
        libc::EROFS => OpError::ReadOnly,
        libc::EOPNOTSUPP => OpError::Unsupported { what },
        other => panic!("no operation fails with errno {other}"),
    }
}

fn attr(fields: &mut Fields<'_>) -> (Ino, Attr) {
    let (ino, size, blocks) = (fields.u64(), fields.u64(), fields.u64());
    let secs = [fields.i64(), fields.i64(), fields.i64()];
    let nanos = [fields.u32(), fields.u32(), fields.u32()];
    let at = |which: usize| Timestamp {
        secs: secs[which],
        nanos: nanos[which],
    };
    let mode = fields.u32();
    let (nlink, uid, gid, rdev) = (fields.u32(), fields.u32(), fields.u32(), fields.u32());
    assert_eq!((fields.u32(), fields.u32()), (4096, 0));
    let attr = Attr {
        kind: FileKind::from_mode(mode).expect("a kind of file"),
        perm: u16::try_from(mode & 0o7777).unwrap(),
        uid,
        gid,
        nlink,
        rdev,
        size,
        blocks,
        atime: at(0),
        mtime: at(1),
        ctime: at(2),
        btime: Timestamp { secs: 0, nanos: 0 },
    };
    (Ino(ino), attr)
}

/// `struct fuse_entry_out`; `None` for node 0.
fn entry(fields: &mut Fields<'_>) -> Option<Entry> {
    let (node, _generation) = (fields.u64(), fields.u64());
    let ttls = (fields.u64(), fields.u64(), fields.u32(), fields.u32());
    if node == 0 {
        fields.take(88);
        return None;
    }
    assert_eq!(ttls, (1, 1, 0, 0), "how long it may be believed");
    let (ino, attr) = attr(fields);
    assert_eq!(ino.0, node);
    Some(Entry { ino, attr })
}

fn flags(mode: OpenMode) -> i32 {
    match mode {
        OpenMode::Read => libc::O_RDONLY,
        OpenMode::Write => libc::O_WRONLY,
        OpenMode::ReadWrite => libc::O_RDWR,
    }
}

impl Remote {
    fn call(&self, caller: Caller, opcode: u32, ino: Ino, body: Body) -> Result<Vec<u8>, OpError> {
        self.0.call_as(caller, opcode, ino.0, body).map_err(error)
    }

    fn empty(&self, caller: Caller, opcode: u32, ino: Ino, body: Body) -> Result<(), OpError> {
        let answer = self.call(caller, opcode, ino, body)?;
        assert!(answer.is_empty());
        Ok(())
    }

    /// Asks for a value with the room that it says it needs.
    fn value(&self, opcode: u32, ino: Ino, name: &[u8]) -> Result<Vec<u8>, OpError> {
        let body = |size| {
            let body = Body::new().u32(size).u32(0);
            if opcode == op::GETXATTR {
                body.string(name)
            } else {
                body
            }
        };
        let size = Fields(&self.call(ROOT, opcode, ino, body(0))?).u32();
        if size > 1 {
            let small = self.0.call(opcode, ino.0, body(size - 1));
            assert_eq!(small, Err(libc::ERANGE));
        }
        let value = self.call(ROOT, opcode, ino, body(size.max(1)))?;
        assert_eq!(value.len(), usize::try_from(size).unwrap());
        Ok(value)
    }
}

impl Dispatch for Remote {
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Option<Entry>, OpError> {
        let answer = self.call(ROOT, op::LOOKUP, parent, Body::new().string(name))?;
        Ok(entry(&mut Fields(&answer)))
    }

    fn reference(&self, _inodes: &[(Ino, u64)]) -> Result<(), OpError> {
        Err(OpError::Unsupported {
            what: "no message asks for that",
        })
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.0.forget(ino.0, count);
    }

    fn forget_all(&self) {
        self.0.call(op::DESTROY, 0, Body::new()).unwrap();
        self.0.init(7, 40, u64::MAX).unwrap();
    }

    fn known(&self) -> Vec<Ino> {
        Vec::new()
    }

    fn getattr(&self, ino: Ino) -> Result<Attr, OpError> {
        let answer = self.call(ROOT, op::GETATTR, ino, getattr())?;
        Ok(attr(&mut Fields(&answer[16..])).1)
    }

    fn generation(&self, _ino: Ino) -> u32 {
        0
    }

    fn unsettled(&self, _ino: Ino) -> Unsettled {
        Unsettled::default()
    }

    fn setattr(&self, caller: Caller, ino: Ino, set: SetAttr) -> Result<Attr, OpError> {
        let mut valid = 0;
        let mut bit = |number: u32, is_set: bool| valid |= u32::from(is_set) << number;
        bit(0, set.perm.is_some());
        bit(1, set.uid.is_some());
        bit(2, set.gid.is_some());
        bit(3, set.size.is_some());
        bit(4, set.atime.is_some());
        bit(5, set.mtime.is_some());
        bit(7, matches!(set.atime, Some(SetTime::Now)));
        bit(8, matches!(set.mtime, Some(SetTime::Now)));
        bit(10, set.ctime.is_some());
        let time = |time| match time {
            Some(SetTime::At(at)) => at,
            _ => Timestamp { secs: 0, nanos: 0 },
        };
        let times = [
            time(set.atime),
            time(set.mtime),
            time(set.ctime.map(SetTime::At)),
        ];
        let mut body = Body::new().u32(valid).u32(0).u64(0);
        body = body.u64(set.size.unwrap_or(0)).u64(0);
        for time in times {
            body = body.i64(time.secs);
        }
        for time in times {
            body = body.u32(time.nanos);
        }
        body = body.u32(set.perm.unwrap_or(0).into()).u32(0);
        body = body.u32(set.uid.unwrap_or(0)).u32(set.gid.unwrap_or(0));
        let answer = self.call(caller, op::SETATTR, ino, body.u32(0))?;
        Ok(attr(&mut Fields(&answer[16..])).1)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>, OpError> {
        self.call(ROOT, op::READLINK, ino, Body::new())
    }

    fn make(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        node: NewNode<'_>,
    ) -> Result<Entry, OpError> {
        let (mode, umask) = (u32::from(node.perm), u32::from(node.umask));
        let (opcode, body) = match node.kind {
            FileKind::Symlink => {
                let body = Body::new().string(name).string(node.target);
                (op::SYMLINK, body)
            }
            FileKind::Directory => {
                let body = Body::new().u32(mode).u32(umask).string(name);
                (op::MKDIR, body)
            }
            kind => {
                let head = Body::new().u32(kind.mode_bits() | mode).u32(node.rdev);
                (op::MKNOD, head.u32(umask).u32(0).string(name))
            }
        };
        let answer = self.call(caller, opcode, parent, body)?;
        Ok(entry(&mut Fields(&answer)).expect("what was made"))
    }

    fn create(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        node: NewNode<'_>,
        mode: OpenMode,
    ) -> Result<Entry, OpError> {
        let perm = libc::S_IFREG | u32::from(node.perm);
        let head = Body::new().i32(flags(mode)).u32(perm);
        let body = head.u32(node.umask.into()).u32(0).string(name);
        let answer = self.call(caller, op::CREATE, parent, body)?;
        assert_eq!(answer.len(), 128 + 16);
        Ok(entry(&mut Fields(&answer)).expect("what was made"))
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<(), OpError> {
        self.empty(ROOT, op::UNLINK, parent, Body::new().string(name))
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<(), OpError> {
        self.empty(ROOT, op::RMDIR, parent, Body::new().string(name))
    }

    fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<(), OpError> {
        let bit = |is_set, flag| if is_set { flag } else { 0 };
        let flags = bit(flags.no_replace, libc::RENAME_NOREPLACE)
            | bit(flags.exchange, libc::RENAME_EXCHANGE)
            | bit(flags.whiteout, libc::RENAME_WHITEOUT);
        let (opcode, body) = if flags == 0 {
            (op::RENAME, Body::new().u64(to.0.0))
        } else {
            (op::RENAME2, Body::new().u64(to.0.0).u32(flags).u32(0))
        };
        self.empty(ROOT, opcode, from.0, body.string(from.1).string(to.1))
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry, OpError> {
        let answer = self.call(ROOT, op::LINK, parent, Body::new().u64(ino.0).string(name))?;
        Ok(entry(&mut Fields(&answer)).expect("what was linked"))
    }

    fn open(&self, ino: Ino, mode: OpenMode) -> Result<(), OpError> {
        let answer = self.call(ROOT, op::OPEN, ino, Body::new().i32(flags(mode)).u32(0))?;
        assert_eq!(answer.len(), 16);
        Ok(())
    }

    fn release(&self, ino: Ino, mode: OpenMode) {
        let body = Body::new().u64(0).i32(flags(mode)).u32(0).u64(0);
        self.empty(ROOT, op::RELEASE, ino, body).unwrap();
    }

    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<(), OpError> {
        out.clear();
        let size = u32::try_from(len).unwrap();
        *out = self.call(ROOT, op::READ, ino, read_in(offset, size))?;
        Ok(())
    }

    fn write(&self, ino: Ino, write: Write<'_>) -> Result<(), OpError> {
        assert!(!write.append, "a guest's kernel knows where the end is");
        let size = u32::try_from(write.data.len()).unwrap();
        let kill = if write.kill_set_id { 4 } else { 0 };
        let head = Body::new().u64(0).u64(write.offset).u32(size).u32(kill);
        let body = head.u64(0).u32(0).u32(0).bytes(write.data);
        let answer = self.call(ROOT, op::WRITE, ino, body)?;
        assert_eq!(Fields(&answer).u32(), size);
        Ok(())
    }

    fn fsync(&self, ino: Ino) -> Result<(), OpError> {
        self.empty(ROOT, op::FSYNC, ino, Body::new().u64(0).u32(0).u32(0))
    }

    fn sync(&self) -> Result<(), OpError> {
        self.empty(ROOT, op::SYNCFS, Ino::ROOT, Body::new().u64(0))
    }

    fn fallocate(
        &self,
        caller: Caller,
        ino: Ino,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<(), OpError> {
        let mode = match mode {
            Fallocate::Allocate => 0,
            Fallocate::AllocateKeepSize => 1,
            Fallocate::PunchHole => 3,
            Fallocate::ZeroRange => 16,
            Fallocate::ZeroRangeKeepSize => 17,
        };
        let body = Body::new().u64(0).u64(offset).u64(len).i32(mode).u32(0);
        self.empty(caller, op::FALLOCATE, ino, body)
    }

    fn seek(&self, ino: Ino, offset: u64, hole: bool) -> Result<u64, OpError> {
        let whence = if hole {
            libc::SEEK_HOLE
        } else {
            libc::SEEK_DATA
        };
        let body = Body::new().u64(0).u64(offset).i32(whence).u32(0);
        Ok(Fields(&self.call(ROOT, op::LSEEK, ino, body)?).u64())
    }

    fn copy_range(
        &self,
        caller: Caller,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
    ) -> Result<u64, OpError> {
        let body = copy_range(from.1, (to.0.0, to.1), len);
        // The newer form at every other length.
        if len.is_multiple_of(2) {
            let answer = self.call(caller, op::COPY_FILE_RANGE_64, from.0, body)?;
            return Ok(Fields(&answer).u64());
        }
        let answer = self.call(caller, op::COPY_FILE_RANGE, from.0, body)?;
        Ok(Fields(&answer).u32().into())
    }

    fn readdir(
        &self,
        ino: Ino,
        mut cookie: u64,
        plus: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), OpError> {
        let opcode = if plus { op::READDIRPLUS } else { op::READDIR };
        loop {
            let answer = self.call(ROOT, opcode, ino, read_in(cookie, 1024))?;
            assert!(answer.len() <= 1024);
            let mut fields = Fields(&answer);
            if answer.is_empty() {
                return Ok(());
            }
            let mut wanted = true;
            while !fields.0.is_empty() {
                let told = if plus { entry(&mut fields) } else { None };
                let (number, next) = (fields.u64(), fields.u64());
                let (len, kind) = (fields.u32(), fields.u32());
                let len = usize::try_from(len).unwrap();
                let name = fields.take(len);
                fields.take((8 - len % 8) % 8);
                cookie = next;
                wanted = wanted
                    && sink(DirEntry {
                        ino: Ino(number),
                        kind: FileKind::from_mode(kind << 12).unwrap(),
                        name,
                        cookie,
                        attr: told.map(|told| told.attr),
                    });
                if let Some(told) = told
                    && !wanted
                {
                    self.forget(told.ino, 1);
                }
            }
            if !wanted {
                return Ok(());
            }
        }
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, OpError> {
        self.value(op::GETXATTR, ino, name)
    }

    fn setxattr(
        &self,
        caller: Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), OpError> {
        let flags = match mode {
            XattrMode::Set => 0,
            XattrMode::Create => libc::XATTR_CREATE,
            XattrMode::Replace => libc::XATTR_REPLACE,
        };
        // What the guest's kernel finds out: whether whoever asks is in the group of the file.
        let in_group = caller.uid == 0 || self.getattr(ino)?.gid == caller.gid;
        let size = u32::try_from(value.len()).unwrap();
        let head = Body::new().u32(size).i32(flags);
        let body = head.u32(u32::from(!in_group)).u32(0);
        let body = body.string(name).bytes(value);
        self.empty(caller, op::SETXATTR, ino, body)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>, OpError> {
        let list = self.value(op::LISTXATTR, ino, b"")?;
        let names = list.split_inclusive(|&byte| byte == 0);
        Ok(names.map(|name| name[..name.len() - 1].to_vec()).collect())
    }

    fn removexattr(&self, caller: Caller, ino: Ino, name: &[u8]) -> Result<(), OpError> {
        self.empty(caller, op::REMOVEXATTR, ino, Body::new().string(name))
    }

    fn statfs(&self) -> Result<StatFs, OpError> {
        let answer = self.call(ROOT, op::STATFS, Ino::ROOT, Body::new())?;
        assert_eq!(answer.len(), 80);
        let mut fields = Fields(&answer);
        let (blocks, blocks_free, blocks_available) = (fields.u64(), fields.u64(), fields.u64());
        let (files, files_free) = (fields.u64(), fields.u64());
        Ok(StatFs {
            block_size: fields.u32(),
            blocks,
            blocks_free,
            blocks_available,
            files,
            files_free,
            name_max: fields.u32(),
        })
    }
}
