//! `Store::check`: a sound store is found sound, and each kind of damage is named.
//!
//! Every case damages a copy of the same store with SQL (or at its files) while it is open, and
//! looks for one problem among those reported; damage often has several consequences.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use floe_fs::attr::FileKind;
use floe_fs::dispatch::{Dispatch, RenameFlags, XattrMode};
use floe_fs::id::{Ino, LayerId};
use floe_fs::{ForkSource, Problem, SeenIn, Store, Table};

use common::{ROOT_USER, copy_dir, make, name, new_store, write};

/// A store with a bit of everything, closed. Layer `base` is frozen, on it are the live layer
/// `live` of the workspace "w", and that of its fork.
struct Fixture {
    dir: tempfile::TempDir,
    base: LayerId,
    live: LayerId,
    directory: Ino,
    inner: Ino,
    small: Ino,
    large: Ino,
    link: Ino,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = new_store(&path);
    let info = store.create_workspace(&name("w"));
    let base = info.unwrap().layer;
    let view = store.open_live("w").unwrap();
    let directory = make(&view, Ino::ROOT, "directory", FileKind::Directory);
    let inner = make(&view, directory, "inner", FileKind::Directory);
    let small = make(&view, directory, "small", FileKind::File);
    let large = make(&view, directory, "large", FileKind::File);
    let link = make(&view, inner, "link", FileKind::Symlink);
    let gone = make(&view, inner, "gone", FileKind::File);
    write(&view, small, 0, b"small");
    write(&view, large, 0, &vec![7; 600_000]);
    write(&view, gone, 0, &vec![7; 20_000]);
    view.link(small, inner, b"other").unwrap();
    let set = view.setxattr(ROOT_USER, small, b"user.a", b"1", XattrMode::Set);
    set.unwrap();
    store
        .fork(&ForkSource::Workspace("w".into()), &[name("fork")])
        .unwrap();
    let live = store.workspace("w").unwrap().layer;
    write(&view, large, 200_000, b"changed");
    write(&view, small, 5, b"er");
    view.unlink(inner, b"gone").unwrap();
    view.rename(
        (inner, b"other"),
        (directory, b"moved"),
        RenameFlags::default(),
    )
    .unwrap();
    view.removexattr(ROOT_USER, small, b"user.a").unwrap();
    store.close_view(&view);
    drop(view);
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert!(report.layers == 3 && report.objects == 3 && report.names > 7);
    drop(store);
    Fixture {
        dir,
        base,
        live,
        directory,
        inner,
        small,
        large,
        link,
    }
}

impl Fixture {
    /// A copy of the store, open.
    fn open(&self) -> (tempfile::TempDir, PathBuf, Arc<Store>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        copy_dir(&self.dir.path().join("s"), &path);
        let store = Store::open(&path).unwrap();
        (dir, path, store)
    }

    /// What a check finds after some SQL.
    fn after(&self, sql: &str) -> Vec<Problem> {
        let (_dir, path, store) = self.open();
        let connection = rusqlite::Connection::open(path.join("catalog.db")).unwrap();
        connection
            .pragma_update(None, "foreign_keys", false)
            .unwrap();
        connection.execute_batch(sql).unwrap();
        assert!(connection.changes() > 0, "nothing changed: {sql}");
        store.check().unwrap().problems
    }

    /// What a check finds after something was done to the store's files.
    fn with_files(&self, damage: impl FnOnce(&Path)) -> Vec<Problem> {
        let (_dir, path, store) = self.open();
        damage(&path);
        store.check().unwrap().problems
    }
}

macro_rules! assert_finds {
    ($problems:expr, $pattern:pat $(if $guard:expr)?) => {
        let problems = $problems;
        assert!(
            problems.iter().any(|problem| matches!(problem, $pattern $(if $guard)?)),
            "expected {}, found {problems:#?}",
            stringify!($pattern),
        );
        for problem in &problems {
            assert!(!problem.to_string().is_empty());
        }
    };
}

#[test]
fn damaged_layers_workspaces_and_snapshots_are_named() {
    let f = fixture();
    let (base, live) = (f.base, f.live);
    assert_finds!(
        f.after(&format!("UPDATE layer SET parent = 99 WHERE id = {live}")),
        Problem::LayerParentMissing { layer, parent: LayerId(99) } if *layer == live
    );
    assert_finds!(
        f.after(&format!("UPDATE layer SET parent = {live} WHERE id = {base}")),
        Problem::LayerOrder { layer, .. } if *layer == base
    );
    assert_finds!(
        f.after(&format!("UPDATE layer SET state = 0 WHERE id = {base}")),
        Problem::LayerOnUnfrozen { parent, .. } if *parent == base
    );
    assert_finds!(
        f.after(&format!("UPDATE layer SET state = 0 WHERE id = {base}")),
        Problem::SnapshotLayer { layer, .. } if *layer == base
    );
    assert_finds!(
        f.after(&format!("UPDATE layer SET state = 7 WHERE id = {live}")),
        Problem::LayerState { state: 7, .. }
    );
    assert_finds!(
        f.after(&format!("UPDATE layer SET bytes = bytes + 512 WHERE id = {live}")),
        Problem::LayerBytes { layer, recorded, counted } if *layer == live && *recorded == counted + 512
    );
    assert_finds!(
        f.after(&format!("UPDATE layer SET inodes = inodes - 1 WHERE id = {base}")),
        Problem::LayerInodes { layer, .. } if *layer == base
    );
    for layer in [base, live] {
        assert_finds!(
            f.after(&format!("UPDATE layer SET workspace = 77 WHERE id = {layer}")),
            Problem::LayerOwner { layer: found, .. } if *found == layer
        );
    }
    assert_finds!(
        f.after("UPDATE workspace SET layer = NULL WHERE name = 'w'"),
        Problem::WorkspaceWithoutLayer { workspace } if workspace == "w"
    );
    assert_finds!(
        f.after(&format!("UPDATE layer SET state = 1 WHERE id = {live}")),
        Problem::WorkspaceLayer { workspace, layer } if workspace == "w" && *layer == live
    );
    assert_finds!(
        f.after(&format!("UPDATE workspace SET layer = {live} WHERE name = 'fork'")),
        Problem::WorkspaceLayerShared { layer, .. } if *layer == live
    );
    assert_finds!(
        f.after("UPDATE workspace SET deleted_at = 5 WHERE name = 'fork'"),
        Problem::DeletedWorkspaceLayer { workspace, .. } if workspace == "fork"
    );
    assert_finds!(
        f.after("DELETE FROM workspace WHERE name = 'w'"),
        Problem::SnapshotWorkspace { .. }
    );
    assert_finds!(
        f.after("INSERT INTO label VALUES ('0000000000000000', 'k', 'v')"),
        Problem::Dangling { table, .. } if table == "label"
    );
    assert_finds!(
        f.after("INSERT INTO mount VALUES (x'2f61', 77, NULL, 0)"),
        Problem::Dangling { table, .. } if table == "mount"
    );
    let sandbox = "INSERT INTO sandbox (id, kind, state, workspace, template, created_at, on_timeout, \
        auto_resume, generation, spec) VALUES ('s'";
    assert_finds!(
        f.after(&format!("{sandbox}, 0, 'running', 77, 't', 1, 0, 0, 0, '')")),
        Problem::Dangling { table, key } if table == "sandbox" && key == "s"
    );
    assert_finds!(
        f.after(&format!("{sandbox}, 0, 'sleeping', NULL, 't', 1, 0, 0, 0, '')")),
        Problem::Value { table: Table::Sandbox, row } if row == "s"
    );
    assert_finds!(
        f.after("INSERT INTO template VALUES ('t', '0000000000000000', 1, NULL)"),
        Problem::Dangling { table, key } if table == "template" && key == "t"
    );
    assert_finds!(
        f.after("DELETE FROM inode WHERE ino = 1"),
        Problem::RootMissing { layer } if *layer == base
    );
}

#[test]
fn damaged_names_are_named() {
    let f = fixture();
    let (base, live, directory) = (f.base, f.live, f.directory);
    let of = |name: &str| format!("WHERE parent = {directory} AND name = x'{}'", hex(name));
    assert_finds!(
        f.after(&format!("UPDATE dentry SET kind = 9 {}", of("small"))),
        Problem::Value {
            table: Table::Dentry,
            ..
        }
    );
    assert_finds!(
        f.after(&format!(
            "UPDATE dentry SET name = x'612f62' {}",
            of("small")
        )),
        Problem::Value {
            table: Table::Dentry,
            ..
        }
    );
    assert_finds!(
        f.after(&format!("UPDATE dentry SET layer = 50 {}", of("small"))),
        Problem::UnknownLayer {
            table: Table::Dentry,
            layer: LayerId(50),
            ..
        }
    );
    assert_finds!(
        f.after(&format!(
            "INSERT INTO dentry SELECT parent, name, {live}, ino, kind, cookie, 0 FROM dentry {}",
            of("small")
        )),
        Problem::NotMarkedShadowing { layer, name, .. } if *layer == live && name == "small"
    );
    assert_finds!(
        f.after(&format!(
            "UPDATE dentry SET cookie = (SELECT cookie FROM dentry {}) {}",
            of("large"),
            of("small")
        )),
        Problem::CookieTwice { layer, parent, .. } if *layer == base && *parent == directory
    );
    assert_finds!(
        f.after(&format!(
            "UPDATE dentry SET cookie = 1 << 40 {}",
            of("small")
        )),
        Problem::NumberAhead { what: "cookie", .. }
    );
    assert_finds!(
        f.after(&format!("UPDATE dentry SET ino = 9999 {}", of("small"))),
        Problem::NameToNothing { ino: Ino(9999), parent, .. } if *parent == directory
    );
    assert_finds!(
        f.after(&format!("UPDATE dentry SET kind = 4 {}", of("small"))),
        Problem::NameKind { ino, .. } if *ino == f.small
    );
    assert_finds!(
        f.after(&format!("UPDATE dentry SET parent = {} {}", f.small, of("large"))),
        Problem::NamesInNoDirectory { ino, names: 1, .. } if *ino == f.small
    );
    assert_finds!(
        f.after(&format!("UPDATE dentry SET parent = 8888 {}", of("large"))),
        Problem::NamesInNoDirectory { ino: Ino(8888), .. }
    );
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn damaged_inodes_are_named() {
    let f = fixture();
    let (base, live, directory, inner) = (f.base, f.live, f.directory, f.inner);
    let of = |ino: Ino, layer: LayerId| format!("WHERE ino = {ino} AND layer = {layer}");
    assert_finds!(
        f.after(&format!(
            "UPDATE inode SET mtime_ns = 1000000000 {}",
            of(f.small, live)
        )),
        Problem::Value {
            table: Table::Inode,
            ..
        }
    );
    assert_finds!(
        f.after(&format!(
            "UPDATE inode SET layer = 50 {}",
            of(f.small, live)
        )),
        Problem::UnknownLayer {
            table: Table::Inode,
            ..
        }
    );
    assert_finds!(
        f.after(&format!(
            "UPDATE inode SET ino = 1 << 40 {}",
            of(f.link, base)
        )),
        Problem::NumberAhead {
            what: "inode number",
            ..
        }
    );
    assert_finds!(
        f.after(&format!("UPDATE inode SET nlink = 3 {}", of(f.small, live))),
        Problem::Links { layer, nlink: 3, names: 2, .. } if *layer == live
    );
    assert_finds!(
        f.after(&format!("UPDATE inode SET nlink = 5 {}", of(directory, live))),
        Problem::DirectoryLinks { layer, nlink: 5, directories: 1, .. } if *layer == live
    );
    assert_finds!(
        f.after(&format!("UPDATE inode SET parent = 1 {}", of(inner, live))),
        Problem::DirectoryParent { layer, ino, parent: Ino::ROOT } if *layer == live && *ino == inner
    );
    assert_finds!(
        f.after(&format!(
            "INSERT INTO dentry VALUES ({directory}, x'32', {live}, {inner}, 2, 100, 0)"
        )),
        Problem::DirectoryNames { layer, ino, names: 2 } if *layer == live && *ino == inner
    );
    assert_finds!(
        f.after(&format!(
            "UPDATE dentry SET parent = {inner} WHERE ino = {directory}; \
             UPDATE inode SET parent = {inner} WHERE ino = {directory}"
        )),
        Problem::DirectoryLoop { layer, .. } if *layer == base
    );
    assert_finds!(
        f.after(&format!("UPDATE inode SET kind = 4, content = 0 {}", of(f.small, live))),
        Problem::KindChanged { layer, ino } if *layer == live && *ino == f.small
    );
    assert_finds!(
        f.after(&format!("UPDATE inode SET born = {live} {}", of(f.small, live))),
        Problem::Born { layer, ino, born } if *layer == live && *ino == f.small && *born == live
    );
    assert_finds!(
        f.after(&format!("UPDATE inode SET nlink = 0 {}", of(f.small, live))),
        Problem::LeftUnlinked { layer, ino } if *layer == live && *ino == f.small
    );
    let gone = ", 0".repeat(20);
    assert_finds!(
        f.after(&format!("REPLACE INTO inode VALUES ({}, {base}{gone})", f.small)),
        Problem::Resurrected { layer, ino } if *layer == live && *ino == f.small
    );
    assert_finds!(
        f.after(&format!("UPDATE inode SET nlink = 0 WHERE ino = {directory}")),
        Problem::NamesInNoDirectory { ino, .. } if *ino == directory
    );
}

#[test]
fn damaged_contents_are_named() {
    let f = fixture();
    let (base, live, small, large) = (f.base, f.live, f.small, f.large);
    let of = |ino: Ino, layer: LayerId| format!("WHERE ino = {ino} AND layer = {layer}");
    assert_finds!(
        f.after(&format!("DELETE FROM inode {}", of(small, live))),
        Problem::RowsWithoutInode { layer, ino, .. } if *layer == live && *ino == small
    );
    assert_finds!(
        f.after(&format!("DELETE FROM inline WHERE ino = {small}")),
        Problem::ContentRows { ino, content: 1, .. } if *ino == small
    );
    assert_finds!(
        f.after(&format!("DELETE FROM extent WHERE ino = {large}")),
        Problem::ContentRows { ino, content: 2, .. } if *ino == large
    );
    assert_finds!(
        f.after(&format!("DELETE FROM inline WHERE ino = {}", f.link)),
        Problem::ContentRows { ino, .. } if *ino == f.link
    );
    assert_finds!(
        f.after(&format!("UPDATE inline SET data = x'00' {}", of(small, live))),
        Problem::InlineSize { layer, ino, size: 7, len: 1 } if *layer == live && *ino == small
    );
    assert_finds!(
        f.after(&format!("UPDATE inode SET xattr = 0 WHERE ino = {small}")),
        Problem::XattrUnannounced { layer, ino } if *layer == base && *ino == small
    );
    assert_finds!(
        f.after(&format!("UPDATE extent SET end = start {}", of(large, live))),
        Problem::ExtentEmpty { layer, ino, .. } if *layer == live && *ino == large
    );
    assert_finds!(
        f.after(&format!("INSERT INTO extent VALUES ({large}, {base}, 1, 3, NULL)")),
        Problem::ExtentOverlap { layer, ino, start: 1 } if *layer == base && *ino == large
    );
    assert_finds!(
        f.after(&format!("UPDATE extent SET object = 5555 {}", of(large, live))),
        Problem::ExtentObject { layer, ino, .. } if *layer == live && *ino == large
    );
    assert_finds!(
        f.after(&format!(
            "UPDATE extent SET object = (SELECT object FROM extent {}) {}",
            of(large, base),
            of(large, live)
        )),
        Problem::ExtentForeignObject { layer, ino, .. } if *layer == live && *ino == large
    );
    assert_finds!(
        f.after(&format!("UPDATE extent SET layer = 50 {}", of(large, live))),
        Problem::UnknownLayer {
            table: Table::Extent,
            ..
        }
    );
    assert_finds!(
        f.after(&format!("UPDATE xattr SET layer = 50 {}", of(small, live))),
        Problem::UnknownLayer {
            table: Table::Xattr,
            ..
        }
    );
    assert_finds!(
        f.after(&format!("UPDATE inline SET layer = 50 {}", of(small, live))),
        Problem::UnknownLayer {
            table: Table::Inline,
            ..
        }
    );
}

#[test]
fn objects_and_their_files_are_held_against_each_other() {
    let f = fixture();
    let (base, live, large) = (f.base, f.live, f.large);
    assert_finds!(
        f.after(&format!("UPDATE object SET layer = {base} WHERE layer = {live}")),
        Problem::ObjectTwice { layer, ino, .. } if *layer == base && *ino == large
    );
    assert_finds!(
        f.after(&format!(
            "UPDATE extent SET object = NULL WHERE ino = {large} AND layer = {live}"
        )),
        Problem::ObjectUnused { .. }
    );
    assert_finds!(
        f.after("INSERT INTO doomed_object SELECT id FROM object LIMIT 1"),
        Problem::ObjectDoomed { .. }
    );
    assert_finds!(
        f.after(&format!(
            "UPDATE object SET id = 1 << 40 WHERE layer = {live}"
        )),
        Problem::NumberAhead { what: "object", .. }
    );
    assert_finds!(
        f.after(&format!("DELETE FROM object WHERE layer = {live}")),
        Problem::ObjectFileOrphan { .. }
    );
    assert_finds!(
        f.with_files(|store| std::fs::remove_file(store.join("objects/0/1")).unwrap()),
        Problem::ObjectFileMissing { object } if object.0 == 1
    );
    assert_finds!(
        f.with_files(|store| std::fs::write(store.join("objects/0/3ff"), b"").unwrap()),
        Problem::ObjectFileOrphan { object } if object.0 == 0x3ff
    );
    assert_finds!(
        f.after("UPDATE object SET hashed = 1 WHERE id = 1"),
        Problem::ChecksumMissing { object } if object.0 == 1
    );
    assert_finds!(
        f.after("INSERT INTO checksum VALUES (1, 0, x'')"),
        Problem::ChecksumStray { object } if object.0 == 1
    );
    assert_finds!(
        f.after("INSERT INTO checksum VALUES (1, 0, x'00'); UPDATE object SET hashed = 1"),
        Problem::ChecksumDamaged { object } if object.0 == 1
    );
    for misplaced in [
        "objects/0/001",
        "objects/0/1000",
        "objects/x",
        "objects/0/zz",
    ] {
        assert_finds!(
            f.with_files(|store| std::fs::write(store.join(misplaced), b"").unwrap()),
            Problem::UnexpectedFile { path } if path == misplaced
        );
    }
}

/// Whatever a problem in a layer is about, its file is told by path and state.
#[test]
fn problems_are_told_with_the_paths_of_their_files() {
    let f = fixture();
    let (_dir, path, store) = f.open();
    let connection = rusqlite::Connection::open(path.join("catalog.db")).unwrap();
    let sql = "UPDATE inode SET nlink = 9 WHERE ino = ?1 AND layer = ?2";
    let key = [f.large.0, f.live.0].map(|id| i64::try_from(id).unwrap());
    assert_eq!(connection.execute(sql, key).unwrap(), 1);
    let report = store.check().unwrap();
    let [Problem::Links { .. }] = report.problems[..] else {
        panic!("{:?}", report.problems);
    };
    let places = &report.places[&0];
    assert_eq!(places.list.len(), 1, "{places:?}");
    assert_eq!(places.list[0].path, Path::new("/directory/large"));
    let workspace = SeenIn::Workspace { name: "w".into() };
    assert_eq!(places.list[0].seen, [workspace]);
}

#[test]
fn a_report_is_json_with_the_problem_by_name() {
    let problem = Problem::Links {
        layer: LayerId(3),
        ino: Ino(17),
        nlink: 2,
        names: 1,
    };
    assert_eq!(
        problem.to_string(),
        "layer 3: inode 17 counts 2 links and has 1 names"
    );
    let f = fixture();
    let report = f.after(&format!(
        "UPDATE inode SET nlink = 9 WHERE ino = {}",
        f.small
    ));
    let text = format!("{report:?}");
    assert!(text.contains("Links"), "{text}");
}
