//! What the tests of the engine share: a store with a workspace, and files in it.

#![allow(dead_code, reason = "each test program uses some of it")]

pub mod sequences;

use std::path::Path;
use std::sync::Arc;

use floe_fs::attr::FileKind;
use floe_fs::dispatch::{Caller, Dispatch, NewNode, Write};
use floe_fs::id::{Ino, WorkspaceName};
use floe_fs::{OnTimeout, SandboxKind, SandboxRecord, SandboxState, Store, View};

pub const ROOT_USER: Caller = Caller { uid: 0, gid: 0 };

pub fn name(text: &str) -> WorkspaceName {
    WorkspaceName::parse(text).unwrap()
}

pub fn new_store(dir: &Path) -> Arc<Store> {
    Store::init(dir).unwrap();
    Store::open(dir).unwrap()
}

/// The row of a sandbox that has nothing yet.
pub fn sandbox(id: &str, created_at: i64) -> SandboxRecord {
    SandboxRecord {
        id: id.to_owned(),
        kind: SandboxKind::Process,
        state: SandboxState::Creating,
        reason: None,
        workspace: None,
        template: "base".to_owned(),
        snapshot: None,
        created_at,
        started_at: None,
        ends_at: None,
        on_timeout: OnTimeout::Kill,
        auto_resume: false,
        generation: 0,
        slot: None,
        session: None,
        idempotency_key: None,
        spec: "{}".to_owned(),
        deleted_at: None,
    }
}

/// A node to make; a symbolic link leads to `to`.
pub fn node(kind: FileKind) -> NewNode<'static> {
    NewNode {
        kind,
        perm: 0o755,
        umask: 0,
        rdev: 0,
        target: if kind == FileKind::Symlink {
            b"to"
        } else {
            b""
        },
    }
}

pub fn make(view: &View, parent: Ino, name: &str, kind: FileKind) -> Ino {
    let made = view.make(ROOT_USER, parent, name.as_bytes(), node(kind));
    made.unwrap().ino
}

pub fn write(view: &View, ino: Ino, offset: u64, data: &[u8]) {
    let write = Write {
        offset,
        data,
        append: false,
        kill_set_id: false,
    };
    view.write(ino, write).unwrap();
}

pub fn append(view: &View, ino: Ino, data: &[u8]) {
    let write = Write {
        offset: 0,
        data,
        append: true,
        kill_set_id: false,
    };
    view.write(ino, write).unwrap();
}

pub fn read(view: &View, ino: Ino) -> Vec<u8> {
    let size = usize::try_from(view.getattr(ino).unwrap().size).unwrap();
    let mut out = Vec::new();
    view.read(ino, 0, size, &mut out).unwrap();
    out
}

pub fn list(view: &View, ino: Ino) -> Vec<String> {
    let mut names = Vec::new();
    view.readdir(ino, 2, false, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    })
    .unwrap();
    names.sort();
    names
}

pub fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Fails the case with a message unless a condition holds.
#[allow(unused_macros, reason = "each test program uses some of it")]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
#[allow(unused_imports, reason = "each test program uses some of it")]
pub(crate) use ensure;
