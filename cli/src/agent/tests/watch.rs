//! Watching directories.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use super::guest;
use super::guest::Guest;
use crate::agent::{AgentError, EntryKind, Watch, WatchEvent, WatchKind};

async fn watch(guest: &Guest, name: &str, recursive: bool) -> Watch {
    let path = guest.path(name);
    let watch = guest.agent.watch(&path, guest.user(), recursive).await;
    watch.unwrap()
}

async fn next(watch: &mut Watch) -> WatchEvent {
    match watch.next().await {
        Some(event) => event,
        None => panic!("the watch has ended: {:?}", watch.error()),
    }
}

/// What is told until that is; without what is told twice in a row.
async fn until(watch: &mut Watch, name: &str, kind: WatchKind) -> Vec<(String, WatchKind)> {
    let mut told = Vec::new();
    loop {
        let event = next(watch).await;
        told.push((event.name, event.kind));
        told.dedup();
        if told.last().is_some_and(|(n, k)| n == name && *k == kind) {
            return told;
        }
    }
}

fn told(pairs: &[(&str, WatchKind)]) -> Vec<(String, WatchKind)> {
    let owned = pairs.iter().map(|(name, kind)| ((*name).to_owned(), *kind));
    owned.collect()
}

#[test]
fn all_that_happens_to_a_file_is_told_in_its_order() {
    guest(async |guest| {
        let mut watch = watch(guest, "", false).await;
        let path = guest.dir().join("f");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(&path, guest.dir().join("g")).unwrap();
        fs::remove_file(guest.dir().join("g")).unwrap();
        let found = until(&mut watch, "g", WatchKind::Remove).await;
        let expected = [
            ("f", WatchKind::Create),
            ("f", WatchKind::Write),
            ("f", WatchKind::Chmod),
            ("f", WatchKind::Rename),
            ("g", WatchKind::Create),
            ("g", WatchKind::Remove),
        ];
        assert_eq!(found, told(&expected));
    });
}

#[test]
fn an_event_has_the_entry_of_what_is_there() {
    guest(async |guest| {
        let mut watch = watch(guest, "", false).await;
        fs::create_dir(guest.dir().join("d")).unwrap();
        let event = next(&mut watch).await;
        let entry = event.entry.unwrap();
        assert_eq!(
            (entry.kind, entry.path),
            (EntryKind::Directory, guest.path("d"))
        );
        fs::remove_dir(guest.dir().join("d")).unwrap();
        let event = next(&mut watch).await;
        assert_eq!((event.kind, event.entry), (WatchKind::Remove, None));
    });
}

#[test]
fn below_a_directory_only_who_asks_is_told() {
    guest(async |guest| {
        fs::create_dir_all(guest.dir().join("a/b")).unwrap();
        let mut flat = watch(guest, "", false).await;
        let mut deep = watch(guest, "", true).await;
        fs::write(guest.dir().join("a/b/f"), "x").unwrap();
        fs::write(guest.dir().join("end"), "").unwrap();
        let found = until(&mut flat, "end", WatchKind::Create).await;
        assert_eq!(found, told(&[("end", WatchKind::Create)]));
        let found = until(&mut deep, "end", WatchKind::Create).await;
        let expected = [
            ("a/b/f", WatchKind::Create),
            ("a/b/f", WatchKind::Write),
            ("end", WatchKind::Create),
        ];
        assert_eq!(found, told(&expected));
    });
}

#[test]
fn nothing_in_directories_that_come_is_missed() {
    guest(async |guest| {
        let mut watch = watch(guest, "", true).await;
        let mut expected = BTreeSet::new();
        for number in 0..200 {
            let file = format!("a{number}/b/c/f");
            fs::create_dir_all(guest.dir().join(&file).parent().unwrap()).unwrap();
            fs::write(guest.dir().join(&file), "x").unwrap();
            expected.insert(file);
        }
        while !expected.is_empty() {
            let event = next(&mut watch).await;
            assert_ne!(event.kind, WatchKind::Overflow);
            expected.remove(&event.name);
        }
        // And they are watched from then on.
        fs::remove_file(guest.dir().join("a7/b/c/f")).unwrap();
        until(&mut watch, "a7/b/c/f", WatchKind::Remove).await;
    });
}

#[test]
fn a_directory_that_was_renamed_has_its_new_name_only() {
    guest(async |guest| {
        fs::create_dir_all(guest.dir().join("d0/sub")).unwrap();
        let mut watch = watch(guest, "", true).await;
        for number in 0..100 {
            let (from, to) = (format!("d{number}"), format!("d{}", number + 1));
            fs::rename(guest.dir().join(&from), guest.dir().join(&to)).unwrap();
            fs::write(guest.dir().join(&to).join("sub/f"), "x").unwrap();
            fs::remove_file(guest.dir().join(&to).join("sub/f")).unwrap();
        }
        fs::write(guest.dir().join("d100/sub/last"), "x").unwrap();
        let mut renamed = BTreeSet::new();
        loop {
            let event = next(&mut watch).await;
            let top = event.name.split('/').next().unwrap().to_owned();
            assert!(!renamed.contains(&top), "{event:?}");
            if event.kind == WatchKind::Rename {
                renamed.insert(top);
            }
            if event.name == "d100/sub/last" {
                break;
            }
        }
        assert_eq!(renamed.len(), 100);
    });
}

#[test]
fn what_moves_in_is_watched_and_what_moves_out_is_not() {
    guest(async |guest| {
        fs::create_dir_all(guest.dir().join("t/out")).unwrap();
        fs::create_dir_all(guest.dir().join("in/sub")).unwrap();
        fs::write(guest.dir().join("in/sub/f"), "").unwrap();
        let mut watch = watch(guest, "t", true).await;
        fs::rename(guest.dir().join("t/out"), guest.dir().join("out")).unwrap();
        fs::write(guest.dir().join("out/f"), "x").unwrap();
        fs::rename(guest.dir().join("in"), guest.dir().join("t/in")).unwrap();
        let found = until(&mut watch, "in/sub/f", WatchKind::Create).await;
        let expected = [
            ("out", WatchKind::Rename),
            ("in", WatchKind::Create),
            ("in/sub", WatchKind::Create),
            ("in/sub/f", WatchKind::Create),
        ];
        assert_eq!(found, told(&expected));
        fs::write(guest.dir().join("t/in/sub/f"), "x").unwrap();
        until(&mut watch, "in/sub/f", WatchKind::Write).await;
    });
}

#[test]
fn a_watch_ends_when_its_directory_is_gone() {
    guest(async |guest| {
        for name in ["removed", "moved"] {
            let dir = guest.dir().join(name);
            fs::create_dir_all(dir.join("sub")).unwrap();
            let mut watch = watch(guest, name, true).await;
            let kind = if name == "moved" {
                fs::rename(&dir, guest.dir().join("elsewhere")).unwrap();
                WatchKind::Rename
            } else {
                fs::remove_dir_all(&dir).unwrap();
                WatchKind::Remove
            };
            until(&mut watch, ".", kind).await;
            assert_eq!(watch.next().await, None);
            assert_eq!(watch.error(), None);
        }
    });
}

#[test]
fn a_change_of_the_directory_itself_is_told_with_its_entry() {
    guest(async |guest| {
        fs::create_dir(guest.dir().join("d")).unwrap();
        let mut watch = watch(guest, "d", false).await;
        let mode = fs::Permissions::from_mode(0o700);
        fs::set_permissions(guest.dir().join("d"), mode).unwrap();
        let event = next(&mut watch).await;
        assert_eq!((event.name.as_str(), event.kind), (".", WatchKind::Chmod));
        let entry = event.entry.unwrap();
        assert_eq!((entry.path, entry.mode), (guest.path("d"), 0o700));
    });
}

#[test]
fn a_watch_begins_though_directories_come_and_go_meanwhile() {
    guest(async |guest| {
        let top = guest.dir().join("t");
        fs::create_dir(&top).unwrap();
        for number in 0..300 {
            fs::create_dir(top.join(format!("still{number}"))).unwrap();
        }
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking({
            let top = top.clone();
            move || {
                while stopped.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
                    fs::create_dir_all(top.join("a/b")).unwrap();
                    fs::remove_dir_all(top.join("a")).unwrap();
                }
            }
        });
        for number in 0..40 {
            let mut watch = watch(guest, "t", true).await;
            // What it says of its beginning is so: all is watched, down to the last.
            let file = format!("still{}/f{number}", number * 7);
            fs::write(top.join(&file), "").unwrap();
            loop {
                let event = next(&mut watch).await;
                if event.name == file || event.kind == WatchKind::Overflow {
                    break;
                }
            }
        }
        drop(stop);
        busy.await.unwrap();
    });
}

#[test]
fn a_directory_whose_name_is_no_text_is_watched_too() {
    guest(async |guest| {
        let mut watch = watch(guest, "", true).await;
        let dir = guest.dir().join(OsStr::from_bytes(b"\xff"));
        fs::create_dir(&dir).unwrap();
        until(&mut watch, "\u{fffd}", WatchKind::Create).await;
        fs::write(dir.join("f"), "x").unwrap();
        until(&mut watch, "\u{fffd}/f", WatchKind::Create).await;
        fs::remove_file(dir.join("f")).unwrap();
        until(&mut watch, "\u{fffd}/f", WatchKind::Remove).await;
    });
}

#[test]
fn what_cannot_be_watched_is_a_failure() {
    guest(async |guest| {
        fs::write(guest.dir().join("f"), "").unwrap();
        let watch = async |name| {
            guest
                .agent
                .watch(&guest.path(name), guest.user(), true)
                .await
        };
        let error = watch("missing").await.unwrap_err();
        assert!(matches!(error, AgentError::NotFound { .. }), "{error:?}");
        let error = watch("f").await.unwrap_err();
        assert!(
            matches!(error, AgentError::NotADirectory { .. }),
            "{error:?}"
        );
        let error = guest
            .agent
            .watch("/", Some("no-such-user"), false)
            .await
            .unwrap_err();
        assert!(matches!(error, AgentError::UnknownUser { .. }), "{error:?}");
    });
}

#[test]
fn watches_come_and_go_without_touching_each_other() {
    guest(async |guest| {
        fs::create_dir(guest.dir().join("d")).unwrap();
        let mut stays = watch(guest, "", true).await;
        for number in 0..50 {
            drop(watch(guest, "", true).await);
            drop(watch(guest, "d", false).await);
            let file = format!("d/f{number}");
            fs::write(guest.dir().join(&file), "").unwrap();
            until(&mut stays, &file, WatchKind::Create).await;
        }
        drop(stays);
        // The last one took the instance with it; the next makes another.
        let mut again = watch(guest, "", true).await;
        fs::remove_file(guest.dir().join("d/f7")).unwrap();
        until(&mut again, "d/f7", WatchKind::Remove).await;
    });
}
