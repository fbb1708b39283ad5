//! The keys with which clients of the API identify themselves.
//!
//! They are kept in `<store>/api-keys`: JSON, readable by the store's owner alone, because
//! `floe serve key` shows them again. The file is only ever replaced as a whole (written aside,
//! synced, renamed), under a lock (`api-keys.lock`) that every change takes, so that commands and a daemon can
//! change it at once. A daemon notices a change with the next request, and so a revoked key ends
//! there.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// What a key begins with. Hexadecimal digits follow: some versions of the `e2b` package (2.30 to
/// 2.40 among them) refuse a key that does not match `e2b_[0-9a-f]+` before they send anything.
const PREFIX: &str = "e2b_";
/// Random bytes in a key.
const RANDOM_BYTES: usize = 20;
/// Longest name of a key in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Most keys.
pub const KEYS_MAX: usize = 1000;
/// Name of the first key.
pub const FIRST: &str = "default";

/// A key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// What it is called.
    pub name: String,
    /// What a client sends.
    pub key: String,
    /// When it was made, RFC 3339.
    pub created_at: String,
}

/// Why keys could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The system refused.
    #[error("cannot {what} '{}'", path.display())]
    Access {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The file holds something else.
    #[error("'{}' does not hold keys", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// Others than the owner can read or write the file.
    #[error("others than the owner can use '{}' (mode {mode:o})", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// There is a key of that name.
    #[error("there is a key '{name}' already")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// No key has that name.
    #[error("there is no key '{name}'")]
    NotFound {
        /// The name.
        name: String,
    },
    /// It cannot be a name.
    #[error("'{name}' cannot name a key: 1 to {NAME_BYTES_MAX} letters, digits and `._-`")]
    Name {
        /// What was given.
        name: String,
    },
    /// There are as many as there can be.
    #[error("there are {KEYS_MAX} keys already")]
    TooMany,
    /// The system has no random numbers.
    #[error("cannot get random numbers")]
    Random(#[source] getrandom::Error),
}

/// The keys of a store.
pub struct Keys {
    dir: PathBuf,
    known: Mutex<Known>,
}

/// What was last read of the file.
#[derive(Default)]
struct Known {
    /// Which version of the file that was.
    version: Option<Version>,
    /// Names of keys, and digests of the keys.
    digests: Vec<(String, [u8; 32])>,
}

/// What tells one version of the file from another: each is a file of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version {
    inode: u64,
    changed: (i64, i64),
}

#[derive(Default, Serialize, Deserialize)]
struct Contents {
    keys: Vec<Key>,
}

impl Keys {
    /// Opens the keys of the store in `dir`, and makes the first one if there never was a file.
    ///
    /// # Errors
    /// When the file cannot be read or made, holds something else, or is open to others.
    pub fn open(dir: &Path) -> Result<Self, KeysError> {
        let keys = Self {
            dir: dir.to_owned(),
            known: Mutex::default(),
        };
        let _lock = keys.lock()?;
        if keys.read()?.is_none() {
            let mut contents = Contents::default();
            contents.keys.push(Key::new(FIRST)?);
            keys.write(&contents)?;
        }
        Ok(keys)
    }

    /// All keys, oldest first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn list(&self) -> Result<Vec<Key>, KeysError> {
        Ok(self.contents()?.keys)
    }

    /// Makes a key.
    ///
    /// # Errors
    /// When the name is taken or cannot be one, or the file cannot be replaced.
    pub fn add(&self, name: &str) -> Result<Key, KeysError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(allowed) {
            let name = name.to_owned();
            return Err(KeysError::Name { name });
        }
        let _lock = self.lock()?;
        let mut contents = self.contents()?;
        if contents.keys.iter().any(|key| key.name == name) {
            let name = name.to_owned();
            return Err(KeysError::NameTaken { name });
        }
        if contents.keys.len() >= KEYS_MAX {
            return Err(KeysError::TooMany);
        }
        let key = Key::new(name)?;
        contents.keys.push(key.clone());
        self.write(&contents)?;
        Ok(key)
    }

    /// Takes a key back: no later request with it is served.
    ///
    /// # Errors
    /// When there is none of that name, or the file cannot be replaced.
    pub fn revoke(&self, name: &str) -> Result<Key, KeysError> {
        let _lock = self.lock()?;
        let mut contents = self.contents()?;
        let Some(at) = contents.keys.iter().position(|key| key.name == name) else {
            let name = name.to_owned();
            return Err(KeysError::NotFound { name });
        };
        let key = contents.keys.remove(at);
        self.write(&contents)?;
        Ok(key)
    }

    /// The name of the key that a client presented, if it is one. How long this takes tells nothing of
    /// the keys: digests are compared, in constant time, and all of them.
    ///
    /// # Errors
    /// When the file has changed and cannot be read; then nobody is let in.
    pub fn check(&self, presented: &[u8]) -> Result<Option<String>, KeysError> {
        let digest = digest(presented);
        let mut known = self.known.lock();
        self.refresh(&mut known)?;
        let mut found = None;
        for (name, key) in &known.digests {
            let equal: Choice = key.ct_eq(&digest);
            if bool::from(equal) {
                found = Some(name.clone());
            }
        }
        Ok(found)
    }

    /// Reads the file again if it is another one.
    fn refresh(&self, known: &mut Known) -> Result<(), KeysError> {
        let path = self.path();
        let version = std::fs::metadata(&path)
            .map(|of| Some(Version::of(&of)))
            .or_else(|source| match source.kind() {
                io::ErrorKind::NotFound => Ok(None),
                _ => Err(access("look at", &path, source)),
            })?;
        if known.version != version || version.is_none() {
            *known = Known::default();
            let Some((contents, version)) = self.read()? else {
                return Ok(());
            };
            let digests = contents.keys.into_iter();
            known.digests = digests
                .map(|key| (key.name, digest(key.key.as_bytes())))
                .collect();
            known.version = Some(version);
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.dir.join("api-keys")
    }

    /// Waits for every other change to end, and keeps others away while it lives.
    fn lock(&self) -> Result<File, KeysError> {
        let path = self.dir.join("api-keys.lock");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|source| access("open", &path, source))?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .map_err(|source| access("lock", &path, source.into()))?;
        Ok(file)
    }

    fn contents(&self) -> Result<Contents, KeysError> {
        Ok(self
            .read()?
            .map(|(contents, _)| contents)
            .unwrap_or_default())
    }

    fn read(&self) -> Result<Option<(Contents, Version)>, KeysError> {
        let path = self.path();
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(access("open", &path, source)),
        };
        let of = file
            .metadata()
            .map_err(|source| access("look at", &path, source))?;
        if of.mode() & 0o077 != 0 {
            let mode = of.mode() & 0o777;
            return Err(KeysError::Exposed { path, mode });
        }
        let mut text = String::new();
        file.read_to_string(&mut text)
            .map_err(|source| access("read", &path, source))?;
        let contents =
            serde_json::from_str(&text).map_err(|source| KeysError::Damaged { path, source })?;
        Ok(Some((contents, Version::of(&of))))
    }

    /// Replaces the file; only for who holds the lock.
    fn write(&self, contents: &Contents) -> Result<(), KeysError> {
        let path = self.path();
        let failed = |source| access("write", &path, source);
        let aside = self.dir.join("api-keys.new");
        let mut text =
            serde_json::to_vec_pretty(contents).map_err(|source| failed(source.into()))?;
        text.push(b'\n');
        // One that a killed process left behind may have been made with other permissions.
        match std::fs::remove_file(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&aside)
            .map_err(failed)?;
        file.write_all(&text)
            .and_then(|()| file.sync_all())
            .and_then(|()| std::fs::rename(&aside, &path))
            .and_then(|()| File::open(&self.dir)?.sync_all())
            .map_err(failed)
    }
}

impl Key {
    fn new(name: &str) -> Result<Self, KeysError> {
        let mut random = [0; RANDOM_BYTES];
        getrandom::fill(&mut random).map_err(KeysError::Random)?;
        let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self {
            name: name.to_owned(),
            key: format!("{PREFIX}{digits}"),
            created_at: jiff::Timestamp::now().to_string(),
        })
    }
}

impl Version {
    fn of(file: &std::fs::Metadata) -> Self {
        Self {
            inode: file.ino(),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

fn access(what: &'static str, path: &Path, source: io::Error) -> KeysError {
    let path = path.to_owned();
    KeysError::Access { what, path, source }
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_key_is_made_once_and_is_the_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let first = Keys::open(dir.path()).unwrap().list().unwrap();
        let again = Keys::open(dir.path()).unwrap().list().unwrap();
        assert_eq!(first, again);
        assert_eq!(first.len(), 1);
        assert_eq!(first[0].name, FIRST);
        let mode = std::fs::metadata(dir.path().join("api-keys"))
            .unwrap()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_key_has_the_form_that_every_client_accepts() {
        let key = Key::new("x").unwrap().key;
        let digits = key.strip_prefix("e2b_").unwrap();
        assert_eq!(digits.len(), 40);
        assert!(digits.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')));
    }

    #[test]
    fn only_keys_that_are_there_are_let_in() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(dir.path()).unwrap();
        let ci = keys.add("ci").unwrap();
        let check = |text: &str| keys.check(text.as_bytes()).unwrap();
        assert_eq!(check(&ci.key).as_deref(), Some("ci"));
        assert_eq!(check(&keys.list().unwrap()[0].key).as_deref(), Some(FIRST));
        for wrong in [
            "",
            "e2b_",
            &ci.key[..ci.key.len() - 1],
            &format!("{}0", ci.key),
        ] {
            assert_eq!(check(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_key_revoked_by_another_process_ends_with_the_next_request() {
        let dir = tempfile::tempdir().unwrap();
        let (daemon, command) = (
            Keys::open(dir.path()).unwrap(),
            Keys::open(dir.path()).unwrap(),
        );
        let key = command.add("ci").unwrap().key;
        assert!(daemon.check(key.as_bytes()).unwrap().is_some());
        command.revoke("ci").unwrap();
        assert!(daemon.check(key.as_bytes()).unwrap().is_none());
        assert!(matches!(
            command.revoke("ci"),
            Err(KeysError::NotFound { .. })
        ));
    }

    #[test]
    fn without_the_file_nobody_is_let_in() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(dir.path()).unwrap();
        let key = keys.list().unwrap()[0].key.clone();
        assert!(keys.check(key.as_bytes()).unwrap().is_some());
        std::fs::remove_file(dir.path().join("api-keys")).unwrap();
        assert!(keys.check(key.as_bytes()).unwrap().is_none());
    }

    #[test]
    fn keys_that_others_can_read_are_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(dir.path()).unwrap();
        let path = dir.path().join("api-keys");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(
            keys.check(b"x"),
            Err(KeysError::Exposed { mode: 0o644, .. })
        ));
        assert!(matches!(
            Keys::open(dir.path()),
            Err(KeysError::Exposed { .. })
        ));
    }

    #[test]
    fn what_is_no_list_of_keys_is_an_error_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api-keys");
        std::fs::write(&path, "{").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(
            Keys::open(dir.path()),
            Err(KeysError::Damaged { .. })
        ));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{");
    }

    #[test]
    fn names_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(dir.path()).unwrap();
        for name in ["", "a b", "a/b", "\n", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert!(
                matches!(keys.add(name), Err(KeysError::Name { .. })),
                "{name}"
            );
        }
        assert!(matches!(keys.add(FIRST), Err(KeysError::NameTaken { .. })));
    }

    #[test]
    fn keys_added_at_once_are_all_there() {
        let dir = tempfile::tempdir().unwrap();
        Keys::open(dir.path()).unwrap();
        std::thread::scope(|scope| {
            for number in 0..8 {
                let dir = dir.path();
                scope.spawn(move || Keys::open(dir).unwrap().add(&format!("k{number}")).unwrap());
            }
        });
        assert_eq!(Keys::open(dir.path()).unwrap().list().unwrap().len(), 9);
    }
}
