//! Paths in requests.

use std::path::{Component, Path, PathBuf};

use floe_guest::message::Failure;

use crate::agent::failure::invalid;
use crate::agent::users::User;

/// The absolute path that a user means: `~` is the home, and what is relative is relative to that.
/// `.`, `..` and repeated slashes are resolved in the text, as clients of the API expect.
pub fn resolve(path: &str, user: &User) -> Result<PathBuf, Failure> {
    if path.contains('\0') {
        return Err(invalid("a path has a NUL in it"));
    }
    let home = match path.strip_prefix('~') {
        Some("") => Some(""),
        Some(rest) => rest.strip_prefix('/'),
        None => None,
    };
    let whole = match home {
        Some(rest) => user.home.join(rest.trim_start_matches('/')),
        None => user.home.join(path),
    };
    Ok(clean(&whole))
}

fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn user() -> User {
        User {
            name: "user".to_owned(),
            uid: 1000,
            gid: 1000,
            groups: Vec::new(),
            home: PathBuf::from("/home/user"),
            shell: "/bin/sh".to_owned(),
        }
    }

    #[test]
    fn paths_are_relative_to_the_home() {
        for (path, found) in [
            ("a/b", "/home/user/a/b"),
            ("", "/home/user"),
            (".", "/home/user"),
            ("~", "/home/user"),
            ("~/x", "/home/user/x"),
            ("~//etc", "/home/user/etc"),
            ("~x", "/home/user/~x"),
            ("/a//b/./c/", "/a/b/c"),
            ("/a/../../b", "/b"),
            ("../x", "/home/x"),
            ("/", "/"),
        ] {
            assert_eq!(resolve(path, &user()).unwrap(), Path::new(found), "{path}");
        }
        assert!(resolve("a\0b", &user()).is_err());
    }

    proptest! {
        #[test]
        fn any_path_becomes_an_absolute_one_without_dots(path in "[a~./ ü]{0,40}") {
            let found = resolve(&path, &user()).unwrap();
            prop_assert!(found.is_absolute());
            let plain = |part: Component| {
                matches!(part, Component::RootDir | Component::Normal(_))
            };
            prop_assert!(found.components().all(plain));
        }
    }
}
