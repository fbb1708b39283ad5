//! Differences from directories of the host that a workspace was made over.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use floe_fs::dispatch::{Dispatch, RenameFlags};
use floe_fs::id::Ino;
use floe_fs::{BaseDir, DiffOptions, DiffSide, FileChange, Store, View};

use common::{name, new_store, write};

fn over(host: &Path, store: &Arc<Store>) -> Arc<View> {
    let dirs = [BaseDir {
        dir: host.to_owned(),
        at: PathBuf::from("/"),
    }];
    store.create_workspace_from(&name("w"), &dirs, "").unwrap();
    store.open_live("w").unwrap()
}

fn diff(store: &Store, each_file: bool) -> Vec<(String, FileChange)> {
    let (base, now) = (DiffSide::Base("w".into()), DiffSide::Workspace("w".into()));
    let options = DiffOptions {
        each_file,
        ..DiffOptions::default()
    };
    let found = store.diff(&base, &now, &options).unwrap();
    let text = |path: Vec<u8>| String::from_utf8(path).unwrap();
    let shown = found.into_iter().map(|entry| match entry.from {
        Some(from) => (
            format!("{}=>{}", text(from), text(entry.path)),
            entry.change,
        ),
        None => (text(entry.path), entry.change),
    });
    shown.collect()
}

#[test]
fn what_was_changed_in_a_workspace_over_a_directory_of_the_host_is_told() {
    let scratch = tempfile::tempdir().unwrap();
    let host = scratch.path().join("host");
    fs::create_dir_all(host.join("never/looked/into")).unwrap();
    fs::write(host.join("never/looked/into/deep"), "deep").unwrap();
    fs::write(host.join("large"), vec![7; 300_000]).unwrap();
    fs::write(host.join("kept"), "kept").unwrap();
    let store = new_store(&scratch.path().join("store"));
    let view = over(&host, &store);
    assert_eq!(diff(&store, false), []);
    let find = |name: &str| {
        view.lookup(Ino::ROOT, name.as_bytes())
            .unwrap()
            .unwrap()
            .ino
    };
    write(&view, find("large"), 100_000, b"new");
    let flags = RenameFlags::default();
    view.rename((Ino::ROOT, b"never"), (Ino::ROOT, b"now"), flags)
        .unwrap();
    let large = ("large".to_owned(), FileChange::Modified);
    let renamed = |text: &str| (text.to_owned(), FileChange::Renamed);
    assert_eq!(diff(&store, false), [large.clone(), renamed("never=>now")]);
    // What is in the directory is found, though nobody has looked into it.
    let deep = renamed("never/looked/into/deep=>now/looked/into/deep");
    assert_eq!(
        diff(&store, true),
        [large.clone(), renamed("never=>now"), deep]
    );
    // The same bytes again, from the host and from an object.
    write(&view, find("large"), 100_000, &[7; 3]);
    let touched = ("large".to_owned(), FileChange::Metadata);
    assert_eq!(diff(&store, false)[0], touched);
    // The host's file is another now: what it was cannot be compared any more.
    fs::write(host.join("large"), "changed on the host").unwrap();
    assert_eq!(diff(&store, false)[0], large);
}
