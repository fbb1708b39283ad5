//! Reading the bodies of requests (`struct fuse_*_in`).

use super::fields::Fields;
use super::flags::{init as init_flags, setattr};
use super::operation::{Forgets, InitIn, Operation};
use super::{Dialect, Opcode, PAYLOAD_MAX, WireError};
use crate::attr::Timestamp;
use crate::dispatch::{SetAttr, SetTime, convert};

/// Nanoseconds of a second.
const SECOND: u32 = 1_000_000_000;

impl<'a> Operation<'a> {
    pub(super) fn parse(
        opcode: Opcode,
        mut body: Fields<'a>,
        dialect: Dialect,
    ) -> Result<Self, WireError> {
        let body = &mut body;
        Ok(match opcode {
            Opcode::Lookup => Self::Lookup {
                name: only_name(body)?,
            },
            Opcode::Forget => Self::Forget {
                count: body.u64("fuse_forget_in")?,
            },
            Opcode::BatchForget => Self::BatchForget(forgets(body)?),
            Opcode::GetAttr => Self::GetAttr,
            Opcode::SetAttr => Self::SetAttr(set_attr(body)?),
            Opcode::ReadLink => Self::ReadLink,
            Opcode::Symlink => symlink(body)?,
            Opcode::MkNod => make_node(body)?,
            Opcode::MkDir => make_directory(body)?,
            Opcode::Unlink => Self::Unlink {
                name: only_name(body)?,
            },
            Opcode::RmDir => Self::RmDir {
                name: only_name(body)?,
            },
            Opcode::Rename => rename(body, false)?,
            Opcode::Rename2 => rename(body, true)?,
            Opcode::Link => Self::Link {
                node: body.u64("fuse_link_in")?,
                name: only_name(body)?,
            },
            Opcode::Open => Self::Open {
                flags: body.i32("fuse_open_in")?,
            },
            Opcode::Read => {
                let (offset, size) = read_in(body)?;
                Self::Read { offset, size }
            }
            Opcode::Write => write(body)?,
            Opcode::StatFs => Self::StatFs,
            Opcode::Release => {
                body.skip(8, "fuse_release_in")?;
                Self::Release {
                    flags: body.i32("fuse_release_in")?,
                }
            }
            Opcode::FSync => Self::FSync,
            Opcode::SetXattr => set_xattr(body, dialect)?,
            Opcode::GetXattr => {
                let size = body.u32("fuse_getxattr_in")?;
                body.skip(4, "fuse_getxattr_in")?;
                Self::GetXattr {
                    name: only_xattr_name(body)?,
                    size,
                }
            }
            Opcode::ListXattr => Self::ListXattr {
                size: body.u32("fuse_getxattr_in")?,
            },
            Opcode::RemoveXattr => Self::RemoveXattr {
                name: only_xattr_name(body)?,
            },
            Opcode::Init => Self::Init(init(body)?),
            Opcode::ReadDir => read_dir(body, false)?,
            Opcode::ReadDirPlus => read_dir(body, true)?,
            Opcode::ReleaseDir => Self::ReleaseDir,
            Opcode::FSyncDir => Self::FSyncDir,
            Opcode::Create => create(body)?,
            Opcode::Interrupt => Self::Interrupt,
            Opcode::Destroy => Self::Destroy,
            Opcode::IoCtl => Self::IoCtl,
            Opcode::FAllocate => allocate(body)?,
            Opcode::LSeek => seek(body)?,
            Opcode::CopyFileRange => copy_range(body, false)?,
            Opcode::CopyFileRange64 => copy_range(body, true)?,
            Opcode::SyncFs => Self::SyncFs,
            Opcode::StatX => Self::StatX,
            Opcode::OpenDir
            | Opcode::Flush
            | Opcode::Access
            | Opcode::GetLk
            | Opcode::SetLk
            | Opcode::SetLkW
            | Opcode::BMap
            | Opcode::Poll
            | Opcode::NotifyReply
            | Opcode::SetupMapping
            | Opcode::RemoveMapping
            | Opcode::TmpFile => Self::Unserved,
        })
    }
}

fn only_name<'a>(body: &mut Fields<'a>) -> Result<&'a [u8], WireError> {
    let name = body.name()?;
    body.end()?;
    Ok(name)
}

fn only_xattr_name<'a>(body: &mut Fields<'a>) -> Result<&'a [u8], WireError> {
    let name = body.xattr_name()?;
    body.end()?;
    Ok(name)
}

fn forgets<'a>(body: &mut Fields<'a>) -> Result<Forgets<'a>, WireError> {
    const WHAT: &str = "fuse_batch_forget_in";
    let count = body.u32(WHAT)?;
    body.skip(4, WHAT)?;
    Forgets::take(count, body.rest())
}

fn set_attr(body: &mut Fields<'_>) -> Result<SetAttr, WireError> {
    const WHAT: &str = "fuse_setattr_in";
    let valid = body.u32(WHAT)?;
    body.skip(12, WHAT)?;
    let size = body.u64(WHAT)?;
    body.skip(8, WHAT)?;
    let seconds = [body.i64(WHAT)?, body.i64(WHAT)?, body.i64(WHAT)?];
    let nanos = [body.u32(WHAT)?, body.u32(WHAT)?, body.u32(WHAT)?];
    let mode = body.u32(WHAT)?;
    body.skip(4, WHAT)?;
    let (uid, gid) = (body.u32(WHAT)?, body.u32(WHAT)?);
    body.skip(4, WHAT)?;

    let asked = |bit: u32| valid & bit != 0;
    let time = |which: usize| match (seconds.get(which), nanos.get(which)) {
        (Some(&secs), Some(&nanos)) if nanos < SECOND => Ok(Timestamp { secs, nanos }),
        _ => Err(WireError::Value {
            what: "nanoseconds",
        }),
    };
    let set_time = |which, given, now| match (asked(now), asked(given)) {
        (true, _) => Ok(Some(SetTime::Now)),
        (_, true) => Ok(Some(SetTime::At(time(which)?))),
        _ => Ok(None),
    };
    let ctime = asked(setattr::CTIME).then(|| time(2)).transpose()?;
    Ok(SetAttr {
        perm: asked(setattr::MODE).then(|| convert::mode_bits(mode)),
        uid: asked(setattr::UID).then_some(uid),
        gid: asked(setattr::GID).then_some(gid),
        size: asked(setattr::SIZE).then_some(size),
        atime: set_time(0, setattr::ATIME, setattr::ATIME_NOW)?,
        mtime: set_time(1, setattr::MTIME, setattr::MTIME_NOW)?,
        ctime,
    })
}

fn symlink<'a>(body: &mut Fields<'a>) -> Result<Operation<'a>, WireError> {
    let name = body.name()?;
    let target = body.string("a target")?;
    body.end()?;
    Ok(Operation::Symlink { name, target })
}

fn make_node<'a>(body: &mut Fields<'a>) -> Result<Operation<'a>, WireError> {
    const WHAT: &str = "fuse_mknod_in";
    let (mode, rdev, umask) = (body.u32(WHAT)?, body.u32(WHAT)?, body.u32(WHAT)?);
    body.skip(4, WHAT)?;
    Ok(Operation::MkNod {
        name: only_name(body)?,
        mode,
        umask,
        rdev,
    })
}

fn make_directory<'a>(body: &mut Fields<'a>) -> Result<Operation<'a>, WireError> {
    let (mode, umask) = (body.u32("fuse_mkdir_in")?, body.u32("fuse_mkdir_in")?);
    Ok(Operation::MkDir {
        name: only_name(body)?,
        mode,
        umask,
    })
}

fn rename<'a>(body: &mut Fields<'a>, with_flags: bool) -> Result<Operation<'a>, WireError> {
    const WHAT: &str = "fuse_rename2_in";
    let new_parent = body.u64(WHAT)?;
    let mut flags = 0;
    if with_flags {
        flags = body.u32(WHAT)?;
        body.skip(4, WHAT)?;
    }
    let name = body.name()?;
    Ok(Operation::Rename {
        name,
        new_parent,
        new_name: only_name(body)?,
        flags,
    })
}

/// Offset and size of `struct fuse_read_in`.
fn read_in(body: &mut Fields<'_>) -> Result<(u64, u32), WireError> {
    const WHAT: &str = "fuse_read_in";
    body.skip(8, WHAT)?;
    let (offset, size) = (body.u64(WHAT)?, body.u32(WHAT)?);
    if size > PAYLOAD_MAX {
        return Err(WireError::Value {
            what: "the size of a read",
        });
    }
    Ok((offset, size))
}

fn read_dir<'a>(body: &mut Fields<'a>, plus: bool) -> Result<Operation<'a>, WireError> {
    let (cookie, size) = read_in(body)?;
    Ok(Operation::ReadDir { cookie, size, plus })
}

fn write<'a>(body: &mut Fields<'a>) -> Result<Operation<'a>, WireError> {
    const WHAT: &str = "fuse_write_in";
    body.skip(8, WHAT)?;
    let (offset, size) = (body.u64(WHAT)?, body.u32(WHAT)?);
    let write_flags = body.u32(WHAT)?;
    body.skip(8, WHAT)?;
    let flags = body.i32(WHAT)?;
    body.skip(4, WHAT)?;
    if size > PAYLOAD_MAX {
        return Err(WireError::Value {
            what: "the size of a write",
        });
    }
    Ok(Operation::Write {
        offset,
        data: body.sized(size, "the size of a write")?,
        write_flags,
        flags,
    })
}

fn set_xattr<'a>(body: &mut Fields<'a>, dialect: Dialect) -> Result<Operation<'a>, WireError> {
    const WHAT: &str = "fuse_setxattr_in";
    let (size, flags) = (body.u32(WHAT)?, body.i32(WHAT)?);
    let mut setxattr_flags = None;
    if dialect.setxattr_ext {
        setxattr_flags = Some(body.u32(WHAT)?);
        body.skip(4, WHAT)?;
    }
    let name = body.xattr_name()?;
    Ok(Operation::SetXattr {
        name,
        value: body.sized(size, "the size of an extended attribute")?,
        flags,
        setxattr_flags,
    })
}

fn init(body: &mut Fields<'_>) -> Result<InitIn, WireError> {
    const WHAT: &str = "fuse_init_in";
    let (major, minor) = (body.u32(WHAT)?, body.u32(WHAT)?);
    // The rest of a later major version could be anything, and is not looked at.
    let max_readahead = body.u32(WHAT).unwrap_or(0);
    let low = body.u32(WHAT).unwrap_or(0);
    let mut flags = u64::from(low);
    if flags & init_flags::INIT_EXT != 0 {
        flags |= u64::from(body.u32(WHAT).unwrap_or(0)) << 32;
    }
    Ok(InitIn {
        major,
        minor,
        max_readahead,
        flags,
    })
}

fn create<'a>(body: &mut Fields<'a>) -> Result<Operation<'a>, WireError> {
    const WHAT: &str = "fuse_create_in";
    let flags = body.i32(WHAT)?;
    let (mode, umask) = (body.u32(WHAT)?, body.u32(WHAT)?);
    body.skip(4, WHAT)?;
    Ok(Operation::Create {
        name: only_name(body)?,
        flags,
        mode,
        umask,
    })
}

fn allocate<'a>(body: &mut Fields<'_>) -> Result<Operation<'a>, WireError> {
    const WHAT: &str = "fuse_fallocate_in";
    body.skip(8, WHAT)?;
    Ok(Operation::FAllocate {
        offset: body.u64(WHAT)?,
        len: body.u64(WHAT)?,
        mode: body.i32(WHAT)?,
    })
}

fn seek<'a>(body: &mut Fields<'_>) -> Result<Operation<'a>, WireError> {
    const WHAT: &str = "fuse_lseek_in";
    body.skip(8, WHAT)?;
    Ok(Operation::LSeek {
        offset: body.i64(WHAT)?,
        whence: body.i32(WHAT)?,
    })
}

fn copy_range<'a>(body: &mut Fields<'_>, wide: bool) -> Result<Operation<'a>, WireError> {
    const WHAT: &str = "fuse_copy_file_range_in";
    body.skip(8, WHAT)?;
    let (offset, to) = (body.u64(WHAT)?, body.u64(WHAT)?);
    body.skip(8, WHAT)?;
    Ok(Operation::CopyFileRange {
        offset,
        to,
        to_offset: body.u64(WHAT)?,
        len: body.u64(WHAT)?,
        flags: body.u64(WHAT)?,
        wide,
    })
}
