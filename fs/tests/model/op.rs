//! Random operations. Everything in them is small numbers that [`super::run`] reads against the
//! state of the moment, so that an operation makes sense whatever came before it, and shrinks.

use floe_fs::attr::{FileKind, Timestamp};
use floe_fs::dispatch::{Caller, Fallocate, RenameFlags, XattrMode};
use proptest::prelude::*;

/// Chooses an inode of the wanted sort; a few choose any, or one that does not exist.
pub type Pick = u16;

/// A name: one that exists in the directory, or one of the pool.
#[derive(Clone, Copy, Debug)]
pub struct NamePick {
    pub existing: bool,
    pub number: u8,
}

#[derive(Clone, Copy, Debug)]
pub enum Time {
    Now,
    At(Timestamp),
}

#[derive(Clone, Debug)]
pub struct Step {
    /// The workspace it is done in.
    pub workspace: u8,
    pub op: Op,
}

#[derive(Clone, Debug)]
pub enum Op {
    Make {
        parent: Pick,
        name: NamePick,
        kind: FileKind,
        perm: u16,
        umask: u16,
        caller: Caller,
        target: u8,
        open: Option<bool>,
    },
    Lookup {
        parent: Pick,
        name: NamePick,
    },
    Forget {
        pick: Pick,
        all: bool,
    },
    Remove {
        parent: Pick,
        name: NamePick,
        directory: bool,
    },
    Rename {
        from: (Pick, NamePick),
        to: (Pick, NamePick),
        flags: RenameFlags,
    },
    Link {
        pick: Pick,
        parent: Pick,
        name: NamePick,
    },
    Write {
        file: Pick,
        offset: u64,
        count: usize,
        seed: u8,
        append: bool,
        kill_set_id: bool,
    },
    Read {
        file: Pick,
        offset: u64,
        count: usize,
    },
    Seek {
        file: Pick,
        offset: u64,
        hole: bool,
    },
    Truncate {
        file: Pick,
        size: u64,
        caller: Caller,
    },
    Fallocate {
        file: Pick,
        mode: Fallocate,
        offset: u64,
        count: u64,
    },
    CopyRange {
        from: (Pick, u64),
        to: (Pick, u64),
        count: u64,
    },
    SetAttr {
        pick: Pick,
        caller: Caller,
        perm: Option<u16>,
        uid: Option<u32>,
        gid: Option<u32>,
        atime: Option<Time>,
        mtime: Option<Time>,
    },
    SetXattr {
        pick: Pick,
        caller: Caller,
        name: u8,
        shape: u8,
        mode: XattrMode,
    },
    RemoveXattr {
        pick: Pick,
        caller: Caller,
        name: u8,
    },
    /// Lists on from where the last call stopped.
    List {
        parent: Pick,
        count: u8,
        plus: bool,
    },
    Open {
        pick: Pick,
        write: bool,
    },
    Release {
        number: u8,
    },
    Sync {
        file: Option<Pick>,
    },
    Snapshot,
    ForkWorkspace {
        count: u8,
    },
    ForkSnapshot {
        snapshot: u8,
    },
    Rollback {
        snapshot: u8,
    },
    CloseView,
    DeleteWorkspace,
    DeleteSnapshot {
        snapshot: u8,
    },
    /// Protects a snapshot, or takes that back.
    Protect {
        snapshot: u8,
    },
    /// Has a rule keep the last so many of a class, of this workspace or of all, and takes it back.
    Retain {
        keep_last: u8,
        automatic: bool,
        of_all: bool,
    },
    /// Tries to add to a workspace that may hold nothing, and lifts that again.
    AtQuota {
        parent: Pick,
    },
    /// Gives space back until nothing is left to do.
    Collect,
    /// Hashes what is frozen, and stores equal contents once.
    Hash,
    Reopen,
    Compare,
    Check,
}

/// Names of the pool: ordinary ones, odd ones, and at the end ones that are refused.
pub const NAMES: u8 = 16;

pub fn name(number: u8) -> Vec<u8> {
    match number % NAMES {
        0 => b"a".to_vec(),
        1 => b"b".to_vec(),
        2 => b"c".to_vec(),
        3 => b".wh.a".to_vec(),
        4 => b"@x".to_vec(),
        5 => b"\n".to_vec(),
        6 => vec![0xff, 0xfe, 0x80],
        7 => b" ".to_vec(),
        8 => vec![b'n'; 255],
        9 => vec![0xc3; 255],
        10 => b"...".to_vec(),
        11 => "ü".as_bytes().to_vec(),
        12 => vec![b'n'; 256],
        13 => b"".to_vec(),
        14 => b"..".to_vec(),
        _ => b"a/b".to_vec(),
    }
}

/// Names of extended attributes; the last are refused.
pub const XATTRS: u8 = 9;

pub fn xattr_name(number: u8) -> Vec<u8> {
    match number % XATTRS {
        0 => b"user.a".to_vec(),
        1 => b"user.b\n\xff".to_vec(),
        2 => b"trusted.t".to_vec(),
        3 => b"security.capability".to_vec(),
        4 => super::acl::ACCESS.to_vec(),
        5 => super::acl::DEFAULT.to_vec(),
        6 => [&b"user."[..], &[b'n'; 250]].concat(),
        7 => b"user.".to_vec(),
        _ => b"system.other".to_vec(),
    }
}

/// A target of a symbolic link; the first two are refused.
pub fn target(number: u8) -> Vec<u8> {
    match number % 6 {
        0 => b"..".to_vec(),
        1 => vec![b't'; 4095],
        2 => vec![0xff, b'/', b'\n'],
        3 => b"/absolute/path".to_vec(),
        4 => vec![b't'; 4096],
        _ => b"a\0b".to_vec(),
    }
}

fn pick() -> impl Strategy<Value = Pick> {
    // The highest ones choose what does not fit.
    prop_oneof![30 => 0_u16..4000, 1 => 65_000_u16..]
}

fn name_pick() -> impl Strategy<Value = NamePick> {
    let number = prop_oneof![24 => 0_u8..12, 1 => 12_u8..NAMES];
    (any::<bool>(), number).prop_map(|(existing, number)| NamePick { existing, number })
}

/// Mostly for things that should be found.
fn old_name() -> impl Strategy<Value = NamePick> {
    (prop::bool::weighted(0.9), 0_u8..NAMES)
        .prop_map(|(existing, number)| NamePick { existing, number })
}

fn caller() -> impl Strategy<Value = Caller> {
    prop_oneof![
        3 => Just(Caller { uid: 0, gid: 0 }),
        1 => Just(Caller { uid: 1000, gid: 1000 }),
        1 => Just(Caller { uid: 1000, gid: 7 }),
    ]
}

/// Offsets and sizes near the places where something changes: inline, block, copy-up whole.
fn position() -> impl Strategy<Value = u64> {
    let edge = prop_oneof![
        8 => prop::sample::select(vec![0_u64, 1, 4096, 8192, 12_288]),
        6 => prop::sample::select(vec![65_536_u64, 131_072, 196_608]),
        4 => prop::sample::select(vec![262_144_u64, 327_680, 524_288]),
        2 => Just(1 << 20),
        1 => prop::sample::select(vec![1_u64 << 30, 4 << 30, 10 << 30]),
    ];
    let shift = prop_oneof![3 => Just(0_i64), 3 => -2_i64..=2, 1 => -5000_i64..5000];
    (edge, shift).prop_map(|(edge, shift)| edge.saturating_add_signed(shift))
}

fn huge() -> impl Strategy<Value = u64> {
    let most = i64::MAX.unsigned_abs();
    prop::sample::select(vec![
        1_u64 << 40,
        (1 << 44) - 1,
        most - 1,
        most,
        most + 1,
        u64::MAX,
    ])
}

fn count() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 1_usize..20,
        4 => prop::sample::select(vec![4095_usize, 4096, 4097, 8191, 8192, 8193]),
        3 => prop::sample::select(vec![65_535_usize, 65_536, 65_537, 100_000]),
        1 => prop::sample::select(vec![200_000_usize, 262_144, 270_000]),
    ]
}

fn perm() -> impl Strategy<Value = u16> {
    prop_oneof![
        3 => prop::sample::select(vec![0o644_u16, 0o755, 0o600]),
        2 => prop::sample::select(vec![0o2755_u16, 0o6711, 0o4700, 0o1777, 0o2640]),
        1 => 0_u16..=0o7777,
    ]
}

fn time() -> impl Strategy<Value = Time> {
    let seconds = prop_oneof![
        Just(0_i64),
        Just(-1),
        Just(-(1 << 40)),
        Just(1 << 33),
        Just(i64::MAX),
        Just(i64::MIN),
        0_i64..2_000_000_000
    ];
    let at = (seconds, 0_u32..1_000_000_000)
        .prop_map(|(secs, nanos)| Time::At(Timestamp { secs, nanos }));
    prop_oneof![Just(Time::Now), at]
}

fn kind() -> impl Strategy<Value = FileKind> {
    prop_oneof![
        8 => Just(FileKind::File),
        6 => Just(FileKind::Directory),
        2 => Just(FileKind::Symlink),
        1 => prop::sample::select(vec![
            FileKind::Fifo,
            FileKind::Socket,
            FileKind::CharDevice,
            FileKind::BlockDevice,
        ]),
    ]
}

fn flags() -> impl Strategy<Value = RenameFlags> {
    let flags = |no_replace, exchange, whiteout| RenameFlags {
        no_replace,
        exchange,
        whiteout,
    };
    prop_oneof![
        6 => Just(RenameFlags::default()),
        1 => Just(flags(true, false, false)),
        3 => Just(flags(false, true, false)),
        2 => Just(flags(false, false, true)),
        1 => any::<(bool, bool, bool)>().prop_map(move |(a, b, c)| flags(a, b, c)),
    ]
}

fn names() -> impl Strategy<Value = Op> {
    let make = (pick(), name_pick(), kind(), perm(), caller(), any::<u8>()).prop_map(
        |(parent, name, kind, perm, caller, more)| Op::Make {
            parent,
            name,
            kind,
            perm,
            umask: if more & 1 == 0 { 0 } else { 0o027 },
            caller,
            target: more >> 4,
            open: match more & 6 {
                0 => Some(true),
                2 => Some(false),
                _ => None,
            },
        },
    );
    let remove =
        (pick(), old_name(), prop::bool::weighted(0.3)).prop_map(|(parent, name, directory)| {
            Op::Remove {
                parent,
                name,
                directory,
            }
        });
    let rename = (pick(), old_name(), pick(), name_pick(), flags()).prop_map(
        |(from, from_name, to, to_name, flags)| Op::Rename {
            from: (from, from_name),
            to: (to, to_name),
            flags,
        },
    );
    prop_oneof![
        9 => make,
        3 => remove,
        5 => rename,
        3 => (pick(), pick(), name_pick())
            .prop_map(|(pick, parent, name)| Op::Link { pick, parent, name }),
        1 => (pick(), old_name()).prop_map(|(parent, name)| Op::Lookup { parent, name }),
        3 => (pick(), any::<bool>()).prop_map(|(pick, all)| Op::Forget { pick, all }),
        2 => (pick(), 1_u8..6, any::<bool>())
            .prop_map(|(parent, count, plus)| Op::List { parent, count, plus }),
    ]
}

fn contents() -> impl Strategy<Value = Op> {
    let write = (
        pick(),
        position(),
        count(),
        any::<u8>(),
        prop::bool::weighted(0.15),
        prop::bool::weighted(0.2),
    )
        .prop_map(
            |(file, offset, count, seed, append, kill_set_id)| Op::Write {
                file,
                offset,
                count,
                seed,
                append,
                kill_set_id,
            },
        );
    let size = prop_oneof![12 => position(), 1 => huge()];
    let truncate = (pick(), size, caller()).prop_map(|(file, size, caller)| Op::Truncate {
        file,
        size,
        caller,
    });
    let space = prop_oneof![
        4 => count().prop_map(|count| count as u64),
        2 => prop::sample::select(vec![131_072_u64, 1 << 20, 300_000]),
        1 => prop::sample::select(vec![0_u64, 11 << 30, u64::MAX]),
    ];
    let mode = prop::sample::select(vec![
        Fallocate::PunchHole,
        Fallocate::PunchHole,
        Fallocate::ZeroRange,
        Fallocate::ZeroRangeKeepSize,
        Fallocate::Allocate,
        Fallocate::AllocateKeepSize,
    ]);
    let fallocate = (pick(), mode, position(), space).prop_map(|(file, mode, offset, count)| {
        let reserves = matches!(mode, Fallocate::Allocate | Fallocate::AllocateKeepSize);
        // What is reserved takes real space.
        let count = if reserves && count < 1 << 40 {
            count.min(1 << 20)
        } else {
            count
        };
        Op::Fallocate {
            file,
            mode,
            offset,
            count,
        }
    });
    let copy = (pick(), position(), pick(), position(), count()).prop_map(
        |(from, from_offset, to, to_offset, count)| Op::CopyRange {
            from: (from, from_offset),
            to: (to, to_offset),
            count: count as u64,
        },
    );
    prop_oneof![
        8 => write,
        4 => truncate,
        4 => fallocate,
        2 => copy,
        1 => (pick(), position(), count())
            .prop_map(|(file, offset, count)| Op::Read { file, offset, count }),
        2 => (pick(), position(), any::<bool>())
            .prop_map(|(file, offset, hole)| Op::Seek { file, offset, hole }),
    ]
}

fn attributes() -> impl Strategy<Value = Op> {
    let id = || prop::option::weighted(0.3, prop::sample::select(vec![0_u32, 7, 1000]));
    let times = || prop::option::weighted(0.3, time());
    let set = (
        pick(),
        caller(),
        prop::option::weighted(0.5, perm()),
        id(),
        id(),
        times(),
        times(),
    )
        .prop_map(|(pick, caller, perm, uid, gid, atime, mtime)| Op::SetAttr {
            pick,
            caller,
            perm,
            uid,
            gid,
            atime,
            mtime,
        });
    let mode = prop::sample::select(vec![
        XattrMode::Set,
        XattrMode::Set,
        XattrMode::Create,
        XattrMode::Replace,
    ]);
    let set_xattr = (pick(), caller(), 0..XATTRS, any::<u8>(), mode).prop_map(
        |(pick, caller, name, shape, mode)| Op::SetXattr {
            pick,
            caller,
            name,
            shape,
            mode,
        },
    );
    prop_oneof![
        3 => set,
        3 => set_xattr,
        1 => (pick(), caller(), 0..XATTRS)
            .prop_map(|(pick, caller, name)| Op::RemoveXattr { pick, caller, name }),
        1 => (pick(), any::<bool>()).prop_map(|(pick, write)| Op::Open { pick, write }),
        1 => any::<u8>().prop_map(|number| Op::Release { number }),
    ]
}

fn layers() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => Just(Op::Snapshot),
        2 => (1_u8..3).prop_map(|count| Op::ForkWorkspace { count }),
        3 => any::<u8>().prop_map(|snapshot| Op::ForkSnapshot { snapshot }),
        3 => any::<u8>().prop_map(|snapshot| Op::Rollback { snapshot }),
        3 => Just(Op::CloseView),
        1 => Just(Op::DeleteWorkspace),
        5 => any::<u8>().prop_map(|snapshot| Op::DeleteSnapshot { snapshot }),
        1 => any::<u8>().prop_map(|snapshot| Op::Protect { snapshot }),
        1 => (1_u8..4, any::<bool>(), any::<bool>())
            .prop_map(|(keep_last, automatic, of_all)| Op::Retain { keep_last, automatic, of_all }),
        1 => any::<Pick>().prop_map(|parent| Op::AtQuota { parent }),
        2 => Just(Op::Collect),
        2 => Just(Op::Hash),
        2 => Just(Op::Reopen),
        1 => Just(Op::Compare),
        2 => Just(Op::Check),
        1 => prop::option::of(pick()).prop_map(|file| Op::Sync { file }),
    ]
}

/// A sequence, and whether it begins with files that are there already ([`furniture`]).
pub fn steps() -> impl Strategy<Value = (bool, Vec<Step>)> {
    let op = prop_oneof![7 => names(), 9 => contents(), 3 => attributes(), 4 => layers()];
    let step = (0_u8..4, op).prop_map(|(workspace, op)| Step { workspace, op });
    (
        prop::bool::weighted(0.9),
        prop::collection::vec(step, 1..80),
    )
}

/// A few directories and files of every size that is treated in its own way.
pub fn furniture() -> Vec<Step> {
    let name = |number| NamePick {
        existing: false,
        number,
    };
    let caller = Caller { uid: 0, gid: 0 };
    let make = |parent, number, kind| Op::Make {
        parent,
        name: name(number),
        kind,
        perm: 0o755,
        umask: 0,
        caller,
        target: 0,
        open: None,
    };
    let write = |file, offset, count| Op::Write {
        file,
        offset,
        count,
        seed: 1,
        append: false,
        kill_set_id: false,
    };
    let file = FileKind::File;
    let ops = [
        make(0, 0, FileKind::Directory),
        make(1, 1, FileKind::Directory),
        make(0, 2, file),
        make(1, 3, file),
        make(1, 4, file),
        make(2, 5, file),
        make(2, 6, file),
        make(2, 7, FileKind::Symlink),
        write(1, 0, 100),
        write(2, 0, 20_000),
        write(3, 0, 300_000),
        write(4, 5 << 30, 10_000),
        Op::Link {
            pick: 3,
            parent: 0,
            name: name(10),
        },
    ];
    let steps = ops.into_iter().map(|op| Step { workspace: 0, op });
    steps.collect()
}
