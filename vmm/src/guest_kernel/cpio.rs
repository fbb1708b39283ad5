//! Writes archives in the format of an initramfs.
//!
//! Source: the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`, format `newc`.
//! A header of ASCII digits, the name with a NUL, then the contents, each padded to four bytes; the last
//! entry is called `TRAILER!!!`.
//!
//! Invariants: the same entries make the same bytes, whoever makes them and when (no times, owner 0,
//! entries by name); each entry comes after its directory.

use std::collections::BTreeMap;

use thiserror::Error;

const MAGIC: &str = "070701";
const TRAILER: &str = "TRAILER!!!";
const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// Longest name in bytes, with its NUL. Source: `N_ALIGN` and `PATH_MAX` in the kernel's
/// `init/initramfs.c`.
const NAME_MAX: usize = 4096;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Directory,
    File { contents: Vec<u8>, mode: u32 },
    CharacterDevice { major: u32, minor: u32 },
}

/// What is wrong with an archive.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CpioError {
    /// A name that no entry can have: empty, absolute, with an empty or dotted part, or too long.
    #[error("an initramfs cannot have an entry called '{0}'")]
    Name(String),
    /// Two entries have one name.
    #[error("the initramfs has two entries called '{0}'")]
    Twice(String),
    /// An entry lies in what is no directory.
    #[error("the initramfs has an entry in '{0}', which is no directory")]
    NotADirectory(String),
    /// The contents have 4 GiB or more.
    #[error("'{0}' is too large for an initramfs")]
    TooLarge(String),
}

/// An archive that is being put together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archive {
    entries: BTreeMap<String, Entry>,
}

impl Archive {
    /// Adds a file with permission bits `mode`, and the directories that it lies in.
    ///
    /// # Errors
    ///
    /// [`CpioError`]. The archive is unchanged then, but for directories.
    pub fn file(&mut self, name: &str, mode: u32, contents: Vec<u8>) -> Result<(), CpioError> {
        if u32::try_from(contents.len()).is_err() {
            return Err(CpioError::TooLarge(name.to_owned()));
        }
        let mode = mode & 0o7777;
        self.add(name, Entry::File { contents, mode })
    }

    /// Adds a directory and those that it lies in. It may be there already.
    ///
    /// # Errors
    ///
    /// [`CpioError`].
    pub fn directory(&mut self, name: &str) -> Result<(), CpioError> {
        match self.entries.get(name) {
            Some(Entry::Directory) => Ok(()),
            Some(_) => Err(CpioError::NotADirectory(name.to_owned())),
            None => self.add(name, Entry::Directory),
        }
    }

    /// Adds a character device that only root may use.
    ///
    /// # Errors
    ///
    /// [`CpioError`].
    pub fn character_device(
        &mut self,
        name: &str,
        (major, minor): (u32, u32),
    ) -> Result<(), CpioError> {
        self.add(name, Entry::CharacterDevice { major, minor })
    }

    fn add(&mut self, name: &str, entry: Entry) -> Result<(), CpioError> {
        let odd = |part: &str| matches!(part, "" | "." | "..") || part.contains('\0');
        if name.len() >= NAME_MAX || name.split('/').any(odd) || name == TRAILER {
            return Err(CpioError::Name(name.to_owned()));
        }
        if self.entries.contains_key(name) {
            return Err(CpioError::Twice(name.to_owned()));
        }
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.directory(parent)?;
        }
        self.entries.insert(name.to_owned(), entry);
        Ok(())
    }

    /// The archive's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        // By name, which puts a directory before what is in it: its name is the beginning of theirs.
        for (number, (name, entry)) in (1..).zip(&self.entries) {
            put(&mut out, number, name, entry);
        }
        let end = Entry::File {
            contents: Vec::new(),
            mode: 0,
        };
        put(&mut out, 0, TRAILER, &end);
        out
    }
}

fn put(out: &mut Vec<u8>, number: u32, name: &str, entry: &Entry) {
    let (mode, links, contents, (major, minor)) = match entry {
        Entry::Directory => (DIRECTORY | 0o755, 2, &[][..], (0, 0)),
        Entry::File { contents, mode } if number > 0 => (FILE | mode, 1, &contents[..], (0, 0)),
        Entry::File { .. } => (0, 1, &[][..], (0, 0)),
        &Entry::CharacterDevice { major, minor } => {
            (CHARACTER_DEVICE | 0o600, 1, &[][..], (major, minor))
        }
    };
    // Both were checked when they were added.
    let length = u32::try_from(contents.len()).unwrap_or(u32::MAX);
    let name_length = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
    // Inode, mode, user, group, links, time, length, device, number of a device, length of the name,
    // and a checksum that this format does not have.
    let fields = [
        number,
        mode,
        0,
        0,
        links,
        0,
        length,
        0,
        0,
        major,
        minor,
        name_length,
        0,
    ];
    out.extend_from_slice(MAGIC.as_bytes());
    for field in fields {
        out.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    pad(out);
    out.extend_from_slice(contents);
    pad(out);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_bytes_of_the_format() {
        let mut archive = Archive::default();
        archive.file("a", 0o644, b"hello".to_vec()).unwrap();
        let bytes = archive.encode();
        let wanted = concat!(
            "070701",
            "00000001",
            "000081a4",
            "00000000",
            "00000000",
            "00000001",
            "00000000",
            "00000005",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000002",
            "00000000",
            "a\0",
            "hello\0\0\0",
            "070701"
        );
        assert_eq!(&bytes[..wanted.len()], wanted.as_bytes());
        assert_eq!(bytes.len() % 4, 0);
        let trailer = &bytes[bytes.len() - 14..];
        assert_eq!(trailer, b"TRAILER!!!\0\0\0\0");
    }

    #[test]
    fn the_order_of_adding_does_not_matter_and_directories_come_first() {
        let mut one = Archive::default();
        one.file("b/c/d", 0o755, b"x".to_vec()).unwrap();
        one.directory("b").unwrap();
        one.character_device("a/console", (5, 1)).unwrap();
        let mut other = Archive::default();
        other.character_device("a/console", (5, 1)).unwrap();
        other.directory("b/c").unwrap();
        other.file("b/c/d", 0o755, b"x".to_vec()).unwrap();
        assert_eq!(one.encode(), other.encode());
        let names: Vec<&String> = one.entries.keys().collect();
        assert_eq!(names, ["a", "a/console", "b", "b/c", "b/c/d"]);
    }

    #[test]
    fn names_that_no_entry_can_have_are_refused() {
        let mut archive = Archive::default();
        let long = "x".repeat(NAME_MAX);
        for name in [
            "", "/a", "a/", "a//b", "./a", "a/../b", "a\0b", TRAILER, &long,
        ] {
            let made = archive.file(name, 0o644, Vec::new());
            assert_eq!(made, Err(CpioError::Name(name.to_owned())));
        }
        archive.file("a", 0o644, Vec::new()).unwrap();
        assert_eq!(
            archive.file("a", 0o644, Vec::new()),
            Err(CpioError::Twice("a".to_owned()))
        );
        assert_eq!(
            archive.file("a/b", 0o644, Vec::new()),
            Err(CpioError::NotADirectory("a".to_owned()))
        );
    }
}
