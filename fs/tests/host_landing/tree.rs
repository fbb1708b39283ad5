//! Directories of the host as tests make and compare them.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use floe_fs::attr::Timestamp;
use floe_fs::{Guard, HostChange, Meta, NewKind, NewThing};

/// What there is at each path: everything that can be read of it.
pub type Tree = BTreeMap<String, String>;

/// Reads a whole directory.
pub fn scan(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut groups = BTreeMap::new();
    scan_below(root, "", &mut tree, &mut groups);
    tree
}

fn scan_below(dir: &Path, prefix: &str, tree: &mut Tree, groups: &mut BTreeMap<u64, String>) {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    for name in names {
        let path = dir.join(&name);
        let shown = format!("{prefix}{}", name.to_string_lossy());
        let meta = fs::symlink_metadata(&path).unwrap();
        let kind = meta.file_type();
        let what = if kind.is_file() {
            let first = groups.entry(meta.ino()).or_insert_with(|| shown.clone());
            let contents = fs::read(&path).unwrap();
            let digest = contents.iter().fold(0_u64, |sum, byte| {
                sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
            });
            let head = String::from_utf8_lossy(&contents[..contents.len().min(40)]).into_owned();
            let (secs, nanos) = (meta.mtime(), meta.mtime_nsec());
            format!(
                "file {} {digest:x} {head:?} of {first} at {secs}.{nanos}",
                contents.len()
            )
        } else if kind.is_symlink() {
            format!("link to {}", fs::read_link(&path).unwrap().display())
        } else if kind.is_fifo() {
            "fifo".to_owned()
        } else {
            scan_below(&path, &format!("{shown}/"), tree, groups);
            "directory".to_owned()
        };
        let mode = meta.permissions().mode() & 0o7777;
        let attribute = attribute(&path).unwrap_or_default();
        let attribute = String::from_utf8_lossy(&attribute).into_owned();
        tree.insert(
            shown,
            format!(
                "{what} {mode:04o} {}:{} {attribute:?}",
                meta.uid(),
                meta.gid()
            ),
        );
    }
}

fn attribute(path: &Path) -> Option<Vec<u8>> {
    let mut value = vec![0; 100];
    let length = rustix::fs::lgetxattr(path, "user.a", &mut value[..]).ok()?;
    value.truncate(length);
    Some(value)
}

/// Fails with what differs.
#[track_caller]
pub fn assert_same(found: &Tree, expected: &Tree, what: impl Debug) {
    let differences: Vec<_> = found
        .keys()
        .chain(expected.keys())
        .filter(|path| found.get(*path) != expected.get(*path))
        .map(|path| (path, found.get(path), expected.get(path)))
        .collect();
    assert!(differences.is_empty(), "{what:?}: {differences:#?}");
}

/// Writes a file with a time of change in the past.
pub fn file(path: &Path, contents: impl AsRef<[u8]>, mode: u32) {
    fs::write(path, contents).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    dated(path, 1_000_000);
}

pub fn dated(path: &Path, secs: u64) {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(secs);
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

pub fn attributed(path: &Path, value: &[u8]) {
    rustix::fs::setxattr(path, "user.a", value, rustix::fs::XattrFlags::empty()).unwrap();
}

pub fn fifo(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o640);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o640)).unwrap();
}

/// Copies a tree as it is, links and times included.
pub fn copy(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp")
        .arg("-a")
        .args([from, to])
        .status();
    assert!(status.unwrap().success());
}

/// Metadata as an ordinary user's file has it.
pub fn meta(perm: u16, secs: i64) -> Meta {
    with_attributes(perm, secs, &[])
}

pub fn with_attributes(perm: u16, secs: i64, attributes: &[&[u8]]) -> Meta {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let attributes = attributes
        .iter()
        .map(|value| (b"user.a".to_vec(), value.to_vec()));
    Meta::new(
        perm,
        uid.as_raw(),
        gid.as_raw(),
        Timestamp { secs, nanos: 0 },
        attributes,
    )
}

pub fn put(path: &str, kind: NewKind, meta: Meta) -> HostChange {
    HostChange::Put {
        path: path.into(),
        new: NewThing { kind, meta },
    }
}

pub fn put_file(path: &str, contents: u64, size: u64, perm: u16, secs: i64) -> HostChange {
    put(path, NewKind::File { contents, size }, meta(perm, secs))
}

pub fn remove(root: &Path, path: &str) -> HostChange {
    HostChange::Remove {
        path: path.into(),
        was: Guard::at(&root.join(path)).unwrap(),
        seen: Some(Meta::at(&root.join(path)).unwrap()),
    }
}

pub fn rename(root: &Path, from: &str, to: &str) -> HostChange {
    HostChange::Move {
        from: from.into(),
        to: to.into(),
        was: Guard::at(&root.join(from)).unwrap(),
    }
}

/// Metadata of what is at `from` now and will be at `to`.
pub fn set_meta(root: &Path, from: &str, to: &str, meta: Meta) -> HostChange {
    HostChange::SetMeta {
        path: to.into(),
        was: Guard::at(&root.join(from)).unwrap(),
        seen: Some(Meta::at(&root.join(from)).unwrap()),
        meta,
    }
}
