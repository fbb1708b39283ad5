//! Landings between workspaces that stand on one directory of the host.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use floe_fs::attr::FileKind;
use floe_fs::dispatch::{Dispatch, RenameFlags, SetAttr, XattrMode};
use floe_fs::id::Ino;
use floe_fs::{BaseDir, ForkSource, HostLandOptions, LandOptions, SandboxRecord, Store, View};

use common::{ROOT_USER, list, make, name, new_store, read, write};

fn find(view: &View, path: &str) -> Ino {
    path.split('/').fold(Ino::ROOT, |at, name| {
        let found = view.lookup(at, name.as_bytes()).unwrap();
        found.unwrap_or_else(|| panic!("{path}: no {name}")).ino
    })
}

fn sound(store: &Store) {
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

#[test]
fn changes_over_a_directory_of_the_host_land_and_the_host_stays_as_it_is() {
    let scratch = tempfile::tempdir().unwrap();
    let host = scratch.path().join("host");
    fs::create_dir_all(host.join("dir/sub")).unwrap();
    fs::create_dir_all(host.join("gone/deep")).unwrap();
    fs::create_dir_all(host.join("never/looked")).unwrap();
    for file in ["large", "other"] {
        fs::write(host.join(file), vec![7; 300_000]).unwrap();
    }
    for file in [
        "small",
        "dir/a",
        "dir/sub/b",
        "gone/deep/c",
        "never/looked/d",
    ] {
        fs::write(host.join(file), "of the host\n").unwrap();
    }
    let store: Arc<Store> = new_store(&scratch.path().join("store"));
    let dirs = [BaseDir {
        dir: host.clone(),
        at: PathBuf::from("/"),
    }];
    store.create_workspace_from(&name("t"), &dirs, "").unwrap();
    let source = ForkSource::Workspace("t".into());
    store.fork(&source, &[name("w")]).unwrap();
    let (ours, theirs) = (store.open_live("w").unwrap(), store.open_live("t").unwrap());
    // Ours: a part of a large file, a small one, new ones, a renamed directory, one that is gone.
    write(&ours, find(&ours, "large"), 200_000, b"ours");
    write(&ours, find(&ours, "small"), 0, b"OURS");
    let made = make(&ours, find(&ours, "dir/sub"), "new", FileKind::Directory);
    write(&ours, make(&ours, made, "file", FileKind::File), 0, b"new");
    let flags = RenameFlags::default();
    ours.rename((Ino::ROOT, b"never"), (Ino::ROOT, b"now"), flags)
        .unwrap();
    ours.unlink(find(&ours, "gone/deep"), b"c").unwrap();
    ours.rmdir(find(&ours, "gone"), b"deep").unwrap();
    ours.rmdir(Ino::ROOT, b"gone").unwrap();
    // Theirs: another part of it is untouched, another file, a name in the renamed directory.
    write(&theirs, find(&theirs, "other"), 0, b"theirs");
    let made = make(
        &theirs,
        find(&theirs, "never/looked"),
        "mine",
        FileKind::File,
    );
    write(&theirs, made, 0, b"mine");
    let report = store.land("w", None, &LandOptions::default()).unwrap();
    assert!(report.landed, "{report:?}");
    let large = read(&theirs, find(&theirs, "large"));
    assert_eq!(&large[200_000..200_004], b"ours");
    assert!(large[..200_000].iter().all(|&byte| byte == 7) && large.len() == 300_000);
    assert_eq!(read(&theirs, find(&theirs, "small")), b"OURShe host\n");
    assert_eq!(&read(&theirs, find(&theirs, "other"))[..6], b"theirs");
    assert_eq!(read(&theirs, find(&theirs, "dir/sub/new/file")), b"new");
    assert_eq!(read(&theirs, find(&theirs, "now/looked/mine")), b"mine");
    assert_eq!(
        read(&theirs, find(&theirs, "now/looked/d")),
        b"of the host\n"
    );
    assert_eq!(
        list(&theirs, Ino::ROOT),
        ["dir", "large", "now", "other", "small"]
    );
    sound(&store);
    assert!(host.join("gone/deep/c").exists() && !host.join("now").exists());
    let kept = report.kept.unwrap();
    store.rollback("t", kept.as_str()).unwrap();
    assert_eq!(
        read(&theirs, find(&theirs, "gone/deep/c")),
        b"of the host\n"
    );
    sound(&store);
}

/// Root of a sandbox is not to make anybody root on the host.
#[test]
fn what_a_sandbox_made_lands_on_the_host_without_set_id_bits_and_devices() {
    let scratch = tempfile::tempdir().unwrap();
    let host = scratch.path().join("host");
    fs::create_dir_all(&host).unwrap();
    fs::write(host.join("there"), "of the host\n").unwrap();
    let store: Arc<Store> = new_store(&scratch.path().join("store"));
    let dirs = [BaseDir {
        dir: host.clone(),
        at: PathBuf::from("/"),
    }];
    let made = store.create_workspace_from(&name("w"), &dirs, "").unwrap();
    store
        .put_sandbox(&SandboxRecord {
            workspace: Some(made.id),
            ..common::sandbox("s", 1)
        })
        .unwrap();
    let view = store.open_live("w").unwrap();
    let program = make(&view, Ino::ROOT, "program", FileKind::File);
    write(&view, program, 0, b"#!");
    for ino in [program, find(&view, "there")] {
        let set = SetAttr {
            perm: Some(0o6755),
            ..SetAttr::default()
        };
        view.setattr(ROOT_USER, ino, set).unwrap();
    }
    let capability = b"security.capability";
    view.setxattr(ROOT_USER, program, capability, b"x", XattrMode::Set)
        .unwrap();
    let land = || store.land_in_base("w", &HostLandOptions::default());
    land().unwrap();
    for file in ["program", "there"] {
        let mode = fs::metadata(host.join(file)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o755, "{file}");
    }
    let value = rustix::fs::getxattr(host.join("program"), "security.capability", &mut [0; 8]);
    assert!(value.is_err(), "{value:?}");
    // Again, though the bits are still set in the workspace.
    let view = store.open_live("w").unwrap();
    write(&view, program, 2, b"/bin/sh");
    land().unwrap();
    assert_eq!(fs::read(host.join("program")).unwrap(), b"#!/bin/sh");
    let view = store.open_live("w").unwrap();
    make(&view, Ino::ROOT, "device", FileKind::CharDevice);
    let refused = land().unwrap_err().to_string();
    assert!(refused.contains("'device'"), "{refused}");
    assert!(!host.join("device").exists());
    sound(&store);
}

/// What the host gave such bits itself is no change of anybody's.
#[test]
fn a_sandbox_changes_modes_of_set_id_files_and_directories_that_it_found() {
    let scratch = tempfile::tempdir().unwrap();
    let host = scratch.path().join("host");
    fs::create_dir_all(host.join("team")).unwrap();
    fs::write(host.join("tool"), "of the host\n").unwrap();
    fs::hard_link(host.join("tool"), host.join("link")).unwrap();
    let set = |name: &str, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        fs::set_permissions(host.join(name), mode).unwrap();
    };
    set("team", 0o2775);
    set("tool", 0o4755);
    let store: Arc<Store> = new_store(&scratch.path().join("store"));
    let dirs = [BaseDir {
        dir: host.clone(),
        at: PathBuf::from("/"),
    }];
    let made = store.create_workspace_from(&name("w"), &dirs, "").unwrap();
    store
        .put_sandbox(&SandboxRecord {
            workspace: Some(made.id),
            ..common::sandbox("s", 1)
        })
        .unwrap();
    let land = || {
        let report = store
            .land_in_base("w", &HostLandOptions::default())
            .unwrap();
        assert!(report.conflicts.is_empty(), "{report:?}");
    };
    make(
        &store.open_live("w").unwrap(),
        Ino::ROOT,
        "other",
        FileKind::File,
    );
    land();
    let modes = |dir: u16, file: u16| {
        let view = store.open_live("w").unwrap();
        for (path, perm) in [("team", dir), ("tool", file)] {
            let set = SetAttr {
                perm: Some(perm),
                ..SetAttr::default()
            };
            view.setattr(ROOT_USER, find(&view, path), set).unwrap();
        }
        land();
        ["team", "tool"].map(|name| fs::metadata(host.join(name)).unwrap().mode() & 0o7777)
    };
    assert_eq!(modes(0o2770, 0o4711), [0o2770, 0o711]);
    // Now they are as they were landed, though the bit is still set in the workspace.
    assert_eq!(modes(0o2750, 0o4755), [0o2750, 0o755]);
    sound(&store);
}
