//! Directories, links and names.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::guest;
use crate::agent::{AgentError, Entry, EntryKind};

fn names(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.name.as_str()).collect()
}

#[test]
fn a_list_goes_down_as_far_as_asked_and_not_through_links() {
    guest(async |guest| {
        fs::create_dir_all(guest.dir().join("t/a/b/c")).unwrap();
        fs::write(guest.dir().join("t/a/f"), "123").unwrap();
        symlink("a", guest.dir().join("t/l")).unwrap();
        let top = guest.path("t");
        let list = async |depth| guest.agent.list(&top, guest.user(), depth).await.unwrap();
        assert_eq!(names(&list(0).await), ["a", "l"]);
        assert_eq!(names(&list(1).await), ["a", "l"]);
        assert_eq!(names(&list(2).await), ["a", "b", "f", "l"]);
        let all = list(u32::MAX).await;
        assert_eq!(names(&all), ["a", "b", "c", "f", "l"]);
        assert_eq!(all[3].path, guest.path("t/a/f"));
        assert_eq!((all[3].kind, all[3].size), (EntryKind::File, 3));
        assert_eq!(all[4].kind, EntryKind::Symlink);
        assert_eq!(all[4].target_kind, Some(EntryKind::Directory));
    });
}

#[test]
fn a_long_list_arrives_whole() {
    guest(async |guest| {
        let top = guest.dir().join("t");
        fs::create_dir(&top).unwrap();
        // More than fits into the window at once.
        for number in 0..5000 {
            fs::write(top.join(format!("{number:05}-{}", "n".repeat(100))), "").unwrap();
        }
        let listed = guest.agent.list(&guest.path("t"), guest.user(), 1).await;
        let listed = listed.unwrap();
        assert_eq!(listed.len(), 5000);
        assert!(listed.is_sorted_by(|a, b| a.path < b.path));
    });
}

#[test]
fn an_entry_says_what_is_there_without_following_links() {
    guest(async |guest| {
        fs::write(guest.dir().join("f"), "12345").unwrap();
        symlink("f", guest.dir().join("l")).unwrap();
        symlink("nowhere", guest.dir().join("n")).unwrap();
        let stat = async |name: &str| guest.agent.stat(&guest.path(name), guest.user()).await;
        let file = stat("f").await.unwrap();
        assert_eq!((file.name.as_str(), file.size), ("f", 5));
        assert_eq!(file.owner, guest.user);
        assert_eq!(file.symlink_target, None);
        let link = stat("l").await.unwrap();
        assert_eq!(link.kind, EntryKind::Symlink);
        assert_eq!(link.target_kind, Some(EntryKind::File));
        let target = guest.dir().canonicalize().unwrap().join("f");
        assert_eq!(
            link.symlink_target.as_deref().map(Path::new),
            Some(&*target)
        );
        let broken = stat("n").await.unwrap();
        assert_eq!(broken.symlink_target.as_deref(), Some("nowhere"));
        assert_eq!(broken.target_kind, None);
        let error = stat("missing").await.unwrap_err();
        assert!(matches!(error, AgentError::NotFound { .. }), "{error:?}");
    });
}

#[test]
fn a_path_is_relative_to_the_home_of_the_user() {
    guest(async |guest| {
        let home = guest.output("printf %s \"$HOME\"").await;
        for path in ["", "~", ".", "~/", "x/.."] {
            let entry = guest.agent.stat(path, guest.user()).await.unwrap();
            assert_eq!(entry.path, home, "{path:?}");
        }
    });
}

#[test]
fn a_directory_is_made_with_its_parents_and_only_once() {
    guest(async |guest| {
        let path = guest.path("a/b/c");
        let entry = guest.agent.make_dir(&path, guest.user()).await.unwrap();
        assert_eq!((entry.kind, &entry.path), (EntryKind::Directory, &path));
        let again = guest.agent.make_dir(&path, guest.user()).await.unwrap_err();
        assert!(
            matches!(again, AgentError::AlreadyExists { .. }),
            "{again:?}"
        );
        fs::write(guest.dir().join("f"), "").unwrap();
        let below = guest.path("f/d");
        let error = guest
            .agent
            .make_dir(&below, guest.user())
            .await
            .unwrap_err();
        assert!(
            matches!(error, AgentError::NotADirectory { .. }),
            "{error:?}"
        );
    });
}

#[test]
fn renaming_replaces_files_and_no_directory_with_something_in_it() {
    guest(async |guest| {
        let rename = async |from: &str, to: &str| {
            let (from, to) = (guest.path(from), guest.path(to));
            guest.agent.rename(&from, &to, guest.user()).await
        };
        fs::write(guest.dir().join("f"), "f").unwrap();
        fs::write(guest.dir().join("g"), "g").unwrap();
        let entry = rename("f", "g").await.unwrap();
        assert_eq!(entry.path, guest.path("g"));
        assert_eq!(fs::read(guest.dir().join("g")).unwrap(), b"f");
        assert!(!guest.dir().join("f").exists());
        rename("g", "new/parents/g").await.unwrap();
        fs::create_dir_all(guest.dir().join("d/full")).unwrap();
        let error = rename("new", "d").await.unwrap_err();
        assert!(
            matches!(error, AgentError::AlreadyExists { .. }),
            "{error:?}"
        );
        let error = rename("d", "d/full/below").await.unwrap_err();
        assert!(
            matches!(error, AgentError::InvalidArgument { .. }),
            "{error:?}"
        );
        let error = rename("missing", "x").await.unwrap_err();
        assert!(matches!(error, AgentError::NotFound { .. }), "{error:?}");
        // A link is renamed itself.
        symlink("d", guest.dir().join("l")).unwrap();
        assert_eq!(rename("l", "m").await.unwrap().kind, EntryKind::Symlink);
        assert!(guest.dir().join("d/full").exists());
    });
}

#[test]
fn removing_takes_all_in_a_directory_and_nothing_behind_a_link() {
    guest(async |guest| {
        let remove = async |name: &str| guest.agent.remove(&guest.path(name), guest.user()).await;
        fs::create_dir_all(guest.dir().join("t/a/b")).unwrap();
        fs::create_dir(guest.dir().join("kept")).unwrap();
        fs::write(guest.dir().join("kept/f"), "").unwrap();
        symlink("../../kept", guest.dir().join("t/a/l")).unwrap();
        symlink("kept", guest.dir().join("l")).unwrap();
        remove("t").await.unwrap();
        assert!(!guest.dir().join("t").exists());
        remove("l").await.unwrap();
        assert!(guest.dir().join("kept/f").exists());
        remove("kept/f").await.unwrap();
        let error = remove("kept/f").await.unwrap_err();
        assert!(matches!(error, AgentError::NotFound { .. }), "{error:?}");
    });
}
