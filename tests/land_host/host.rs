//! A directory of the host to land in, and what is in it.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use floe_harness::TestStore;
use serde_json::Value;

/// What is in a directory, by path.
pub fn scan(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let what = if meta.is_dir() {
                todo.push(path.clone());
                "directory".to_owned()
            } else if meta.is_symlink() {
                format!("link to {}", fs::read_link(&path).unwrap().display())
            } else {
                let contents = fs::read(&path).unwrap();
                let sum = contents.iter().fold(7_u64, |sum, byte| {
                    sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
                });
                format!(
                    "{} bytes, {sum:x}, {}.{}",
                    contents.len(),
                    meta.mtime(),
                    meta.mtime_nsec()
                )
            };
            let name = path
                .strip_prefix(root)
                .unwrap()
                .to_string_lossy()
                .into_owned();
            found.insert(name, format!("{what} {:o}", meta.mode()));
        }
    }
    found
}

#[track_caller]
pub fn assert_same(a: &Path, b: &Path) {
    let (a, b) = (scan(a), scan(b));
    let differs = |path: &&String| a.get(*path) != b.get(*path);
    let different: Vec<_> = a.keys().chain(b.keys()).filter(differs).collect();
    let shown = different
        .iter()
        .map(|path| (path, a.get(*path), b.get(*path)));
    assert!(different.is_empty(), "{:#?}", shown.collect::<Vec<_>>());
}

pub fn host(store: &TestStore) -> PathBuf {
    let dir = store.base().join("host");
    fs::create_dir_all(dir.join("src/deep")).unwrap();
    fs::create_dir_all(dir.join("docs/unread")).unwrap();
    for (path, contents) in [
        ("README", "read me\n"),
        ("src/main", "fn main\n"),
        ("src/gone", "gone\n"),
        ("src/deep/large", &"l".repeat(300_000)),
        ("docs/unread/a", "a\n"),
        ("docs/b", "b\n"),
        ("script", "#!/bin/sh\n"),
    ] {
        fs::write(dir.join(path), contents).unwrap();
    }
    symlink("README", dir.join("link")).unwrap();
    dir
}

/// A workspace over the directory, mounted, and a copy of the directory as it is.
pub fn based(store: &TestStore) -> (PathBuf, PathBuf, PathBuf) {
    let dir = host(store);
    store.ok(["ws", "create", "w", "--from", dir.to_str().unwrap()]);
    let before = copied(store, &dir, "before");
    (store.mount("w"), dir, before)
}

pub fn copied(store: &TestStore, dir: &Path, name: &str) -> PathBuf {
    let copy = store.base().join(name);
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([dir, &copy])
        .status();
    assert!(copied.unwrap().success());
    copy
}

/// Changes of every kind.
pub fn change(live: &Path) {
    fs::write(live.join("src/main"), "fn main, changed\n").unwrap();
    fs::remove_file(live.join("src/gone")).unwrap();
    fs::rename(live.join("docs"), live.join("manual")).unwrap();
    fs::write(live.join("manual/b"), "b, changed\n").unwrap();
    fs::set_permissions(live.join("script"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(live.join("new/er")).unwrap();
    fs::write(live.join("new/er/file"), vec![b'n'; 200_000]).unwrap();
    fs::hard_link(live.join("new/er/file"), live.join("new/other")).unwrap();
    fs::remove_file(live.join("link")).unwrap();
    symlink("manual", live.join("link")).unwrap();
    fs::rename(live.join("README"), live.join("src/README")).unwrap();
}

pub fn append(path: &Path, text: &str) {
    let mut contents = fs::read_to_string(path).unwrap();
    contents.push_str(text);
    fs::write(path, contents).unwrap();
}

/// The conflicts that a landing is refused for.
#[track_caller]
pub fn conflicts(store: &TestStore, command: &[&str]) -> Vec<String> {
    let refused = store.fails(4, [command, &["--json"]].concat());
    assert_eq!(refused.json_error()["kind"], "conflict");
    let answer = refused.json();
    assert_eq!(answer["landed"], false);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let found = answer["conflicts"].as_array().unwrap().iter();
    found
        .map(|one| {
            format!(
                "{}: {}; {}",
                text(&one["path"]),
                text(&one["ours"]),
                text(&one["theirs"])
            )
        })
        .collect()
}
