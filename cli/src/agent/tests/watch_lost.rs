//! Watching directories in which more happens than can be told.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use super::guest::Guest;
use super::{guest, poll_until};
use crate::agent::{Watch, WatchEvent, WatchKind};

fn signal(guest: &Guest, signal: Signal) {
    let pid = Pid::from_raw(guest.pid.try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Holds the agent's process up, so that the kernel has to keep what happens.
async fn stop(guest: &Guest) {
    signal(guest, Signal::STOP);
    poll_until(|| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", guest.pid)).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('T')
    })
    .await;
}

/// Changes more than the kernel keeps of them.
fn change_too_much(dir: &Path) {
    let max = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let max: usize = max.trim().parse().unwrap();
    // Two in turn: the same change again would not be kept twice. And in place: some file systems wait
    // for the disk when a file is emptied and written again.
    let files = ["x", "y"].map(|name| File::create(dir.join(name)).unwrap());
    for _ in 0..max / 2 + 100 {
        for file in &files {
            file.write_all_at(b"x", 0).unwrap();
        }
    }
}

async fn watch(guest: &Guest, name: &str, recursive: bool) -> Watch {
    let path = guest.path(name);
    let watch = guest.agent.watch(&path, guest.user(), recursive).await;
    watch.unwrap()
}

/// The next event that fits.
async fn find(watch: &mut Watch, fits: impl Fn(&WatchEvent) -> bool) {
    loop {
        match watch.next().await {
            Some(event) if fits(&event) => return,
            Some(_) => {}
            None => panic!("the watch has ended: {:?}", watch.error()),
        }
    }
}

#[test]
fn after_events_were_lost_all_directories_are_watched_by_their_names_of_now() {
    guest(async |guest| {
        for dir in ["t/here", "t/moved/sub", "t/out"] {
            fs::create_dir_all(guest.dir().join(dir)).unwrap();
        }
        let top = guest.dir().join("t");
        let mut watch = watch(guest, "t", true).await;
        stop(guest).await;
        change_too_much(&top);
        // The kernel has no room for these.
        fs::create_dir_all(top.join("new/sub")).unwrap();
        fs::rename(top.join("moved"), top.join("other")).unwrap();
        fs::rename(top.join("out"), guest.dir().join("out")).unwrap();
        signal(guest, Signal::CONT);
        find(&mut watch, |event| event.kind == WatchKind::Overflow).await;
        let files = ["new/sub/f", "other/sub/f", "here/f"];
        fs::write(guest.dir().join("out/f"), "").unwrap();
        for file in files {
            fs::write(top.join(file), "").unwrap();
        }
        for file in files {
            find(&mut watch, |event| {
                let old = event.name.starts_with("moved/") || event.name.starts_with("out/");
                assert!(!old, "{event:?}");
                event.name == file && event.kind == WatchKind::Create
            })
            .await;
        }
    });
}

#[test]
fn a_watch_whose_directory_went_while_events_were_lost_ends() {
    guest(async |guest| {
        for recursive in [false, true] {
            fs::create_dir_all(guest.dir().join("t")).unwrap();
            fs::create_dir_all(guest.dir().join("busy")).unwrap();
            let mut watched = watch(guest, "t", recursive).await;
            let mut other = watch(guest, "busy", false).await;
            stop(guest).await;
            change_too_much(&guest.dir().join("busy"));
            fs::remove_dir(guest.dir().join("t")).unwrap();
            signal(guest, Signal::CONT);
            while let Some(event) = watched.next().await {
                assert!(
                    matches!(event.kind, WatchKind::Remove | WatchKind::Overflow),
                    "{event:?}"
                );
            }
            assert_eq!(watched.error(), None);
            // Everybody is told, as nobody knows whose events were lost.
            find(&mut other, |event| event.kind == WatchKind::Overflow).await;
        }
    });
}

#[test]
fn a_watch_that_nobody_reads_is_in_nobodys_way_and_ends_in_an_overflow() {
    guest(async |guest| {
        fs::create_dir(guest.dir().join("t")).unwrap();
        let mut unread = watch(guest, "t", true).await;
        let mut read = watch(guest, "", false).await;
        for number in 0..20 {
            let script = format!("cd t; for i in $(seq 500); do : > {number}-$i; done; echo end");
            assert_eq!(guest.output(&script).await, "end\n");
            fs::write(guest.dir().join(format!("f{number}")), "").unwrap();
            let name = format!("f{number}");
            find(&mut read, |event| event.name == name).await;
        }
        find(&mut unread, |event| event.kind == WatchKind::Overflow).await;
        // It goes on from there.
        fs::create_dir(guest.dir().join("t/after")).unwrap();
        fs::write(guest.dir().join("t/after/f"), "").unwrap();
        find(&mut unread, |event| event.name == "after/f").await;
    });
}
