//! Users of the sandbox, and acting as one of them.
//!
//! The files are the sandbox's own, so they are read with bounds and without waiting: what stands in
//! for them may be a FIFO.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use floe_guest::message::{Failure, FailureKind};
use rustix::fs::OFlags;
use rustix::process::{Gid, Uid};

use super::failure::{failed, failure};

/// Whom things are done as, if nobody is named.
const DEFAULT_USER: &str = "user";

/// Most bytes of a file of users or groups.
const MAX_FILE: u64 = 1024 * 1024;

/// Most groups of a user: what Linux allows.
const MAX_GROUPS: usize = 65_536;

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// The groups beside the first.
    pub groups: Vec<u32>,
    pub home: PathBuf,
    pub shell: String,
}

/// The files of users and groups.
#[derive(Debug)]
pub struct Database {
    passwd: String,
    group: String,
}

impl Database {
    /// Reads those of the sandbox. Without them there are no names.
    pub fn read() -> Self {
        Self {
            passwd: text(Path::new("/etc/passwd")),
            group: text(Path::new("/etc/group")),
        }
    }

    /// The user of that name, or the default one.
    pub fn user(&self, name: Option<&str>) -> Result<User, Failure> {
        let found = match name {
            Some(name) => self.find(name),
            None => self
                .find(DEFAULT_USER)
                .or_else(|| self.find("root"))
                .or_else(|| Some(root())),
        };
        found.ok_or_else(|| {
            failure(
                FailureKind::UnknownUser,
                format!("there is no user '{}'", name.unwrap_or(DEFAULT_USER)),
            )
        })
    }

    fn find(&self, name: &str) -> Option<User> {
        let line = lines(&self.passwd).find(|line| line.first() == Some(&name))?;
        let &[_, _, uid, gid, _, home, shell] = line.as_slice() else {
            return None;
        };
        Some(User {
            name: name.to_owned(),
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            groups: self.groups(name),
            home: PathBuf::from(if home.starts_with('/') { home } else { "/" }),
            shell: if shell.is_empty() { "/bin/sh" } else { shell }.to_owned(),
        })
    }

    fn groups(&self, name: &str) -> Vec<u32> {
        lines(&self.group)
            .filter_map(|line| match line.as_slice() {
                &[_, _, gid, members] if members.split(',').any(|member| member == name) => {
                    gid.parse().ok()
                }
                _ => None,
            })
            .take(MAX_GROUPS)
            .collect()
    }

    /// The name of a user's number, or that itself.
    pub fn user_name(&self, uid: u32) -> String {
        named(&self.passwd, uid)
    }

    /// The name of a group's number, or that itself.
    pub fn group_name(&self, gid: u32) -> String {
        named(&self.group, gid)
    }
}

fn root() -> User {
    User {
        name: "root".to_owned(),
        uid: 0,
        gid: 0,
        groups: Vec::new(),
        home: PathBuf::from("/"),
        shell: "/bin/sh".to_owned(),
    }
}

fn lines(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().map(|line| line.split(':').collect())
}

fn named(text: &str, id: u32) -> String {
    lines(text)
        .find(|line| line.get(2).and_then(|field| field.parse().ok()) == Some(id))
        .and_then(|line| line.first().map(|name| (*name).to_owned()))
        .unwrap_or_else(|| id.to_string())
}

/// Its text, or none if it cannot be read: then there are no names.
fn text(path: &Path) -> String {
    let open = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path);
    let read = open.and_then(|file: File| {
        let mut bytes = Vec::new();
        if file.metadata()?.is_file() {
            file.take(MAX_FILE).read_to_end(&mut bytes)?;
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    });
    read.unwrap_or_default()
}

/// Whether this process may act as others: it is root, with the right to change ids.
pub fn may_switch() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    rustix::process::geteuid().is_root()
        && capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// Ids to take on for a user; `None` if the agent has them already.
///
/// # Errors
///
/// `permission_denied` of another user than the agent's own, if it may not act as others.
pub fn ids(user: &User) -> Result<Option<(Uid, Gid, Vec<Gid>)>, Failure> {
    if may_switch() {
        let groups = user.groups.iter().copied().map(Gid::from_raw).collect();
        return Ok(Some((
            Uid::from_raw(user.uid),
            Gid::from_raw(user.gid),
            groups,
        )));
    }
    if rustix::process::geteuid().as_raw() == user.uid {
        return Ok(None);
    }
    Err(failure(
        FailureKind::PermissionDenied,
        format!("the agent may not act as user '{}'", user.name),
    ))
}

/// Does something as a user, on this thread.
///
/// The effective ids change, and with them those that the file system looks at; the real ones stay, so
/// that the user cannot signal or trace the agent meanwhile, and the way back is open.
pub fn acting_as<T>(user: &User, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let Some((uid, gid, groups)) = ids(user)? else {
        return work();
    };
    let refused = |error| failed(&format!("act as user '{}'", user.name), error);
    let taken = rustix::thread::set_thread_groups(&groups)
        .and_then(|()| rustix::thread::set_thread_res_gid(None, gid, None))
        .and_then(|()| rustix::thread::set_thread_res_uid(None, uid, None));
    let outcome = match taken {
        Ok(()) => work(),
        Err(error) => Err(refused(error)),
    };
    let root = (Uid::ROOT, Gid::ROOT);
    let back = rustix::thread::set_thread_res_uid(None, root.0, None)
        .and_then(|()| rustix::thread::set_thread_res_gid(None, root.1, None))
        .and_then(|()| rustix::thread::set_thread_groups(&[]));
    if let Err(error) = back {
        // Going on would do the next thing as the wrong user.
        super::complain("become root again", &error);
        std::process::abort();
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database() -> Database {
        Database {
            passwd: "root:x:0:0:root:/root:/bin/bash\n\
                     broken\n\
                     user:x:1000:1001:,,,:/home/user:\n\
                     odd:x:-1:0:::\n\
                     relative:x:7:7::home:/bin/sh\n"
                .to_owned(),
            group: "root:x:0:\nusers:x:1001:\ndocker:x:50:root,user\nuserx:x:51:userx\n".to_owned(),
        }
    }

    #[test]
    fn users_have_their_ids_groups_and_home() {
        let user = database().user(None).unwrap();
        assert_eq!((user.uid, user.gid), (1000, 1001));
        assert_eq!(user.groups, [50]);
        assert_eq!(user.home, Path::new("/home/user"));
        assert_eq!(user.shell, "/bin/sh");
        let relative = database().user(Some("relative")).unwrap();
        assert_eq!(relative.home, Path::new("/"));
    }

    #[test]
    fn unknown_and_broken_users_are_unknown() {
        for name in ["nobody", "broken", "odd", ""] {
            let error = database().user(Some(name)).unwrap_err();
            assert_eq!(error.kind, FailureKind::UnknownUser, "{name}");
        }
    }

    #[test]
    fn without_a_default_user_it_is_root() {
        let empty = Database {
            passwd: String::new(),
            group: String::new(),
        };
        assert_eq!(empty.user(None).unwrap().uid, 0);
        assert!(empty.user(Some("root")).is_err());
    }

    #[test]
    fn numbers_without_a_name_stay_numbers() {
        assert_eq!(database().user_name(1000), "user");
        assert_eq!(database().user_name(4711), "4711");
        assert_eq!(database().group_name(50), "docker");
    }
}
