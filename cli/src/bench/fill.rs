//! What is measured must exist first: trees of many files, and large files of real bytes.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use floe_fs::attr::{FileKind, Timestamp};
use floe_fs::dispatch::Dispatch;
use floe_fs::id::Ino;
use floe_fs::{NewContents, NewFile, Store, View};

use super::error::{BenchError, Step};
use super::lab::Lab;
use super::rig::{WORKSPACE, workspace_name};
use super::stats::grouped;

/// Files in one directory of a tree.
const FILES_PER_DIR: u64 = 1_000;
/// Bytes written at a time into a large file.
const CHUNK: usize = 1 << 20;
/// Files between two looks at whether the bench was interrupted.
const CHECK_EVERY: u64 = 1_000;

/// Attributes of a file made by a bench.
pub(super) fn new_file(kind: FileKind) -> NewFile {
    NewFile {
        kind,
        perm: if kind == FileKind::Directory {
            0o755
        } else {
            0o644
        },
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        rdev: 0,
        atime: Timestamp::now(),
        mtime: Timestamp::now(),
        xattrs: Vec::new(),
    }
}

/// A hundred bytes that no two files share.
fn contents(number: u64) -> Vec<u8> {
    format!("{number:020} ").repeat(5).into_bytes()
}

/// Makes [`WORKSPACE`] with a tree of `count` files, a thousand in each directory.
pub(super) fn tree(lab: &Lab<'_>, store: &Store, count: u64) -> Result<(), BenchError> {
    let adding = || format!("add {} files", grouped(count));
    if count > 0 {
        lab.say(&format!("making a workspace of {} files", grouped(count)));
    }
    let name = workspace_name(WORKSPACE)?;
    let mut builder = store.build_workspace(&name).step("begin a workspace")?;
    builder
        .root(&new_file(FileKind::Directory))
        .step("set the root's attributes")?;
    let mut dir = Ino::ROOT;
    for number in 0..count {
        if number % CHECK_EVERY == 0 {
            lab.check()?;
        }
        if number % FILES_PER_DIR == 0 {
            let name = format!("d{:04}", number / FILES_PER_DIR);
            let file = new_file(FileKind::Directory);
            let added = builder.add(Ino::ROOT, name.as_bytes(), &file, NewContents::Hole(0));
            dir = added.step(adding())?.0;
        }
        let data = contents(number);
        let file = new_file(FileKind::File);
        let name = format!("f{number:07}");
        builder
            .add(dir, name.as_bytes(), &file, NewContents::Bytes(&data))
            .step(adding())?;
    }
    builder.finish().step("finish the workspace").map(drop)
}

/// Makes the same tree in an ordinary directory.
pub(super) fn plain_tree(lab: &Lab<'_>, root: &Path, count: u64) -> Result<(), BenchError> {
    let mut dir = root.to_owned();
    for number in 0..count {
        if number % CHECK_EVERY == 0 {
            lab.check()?;
        }
        if number % FILES_PER_DIR == 0 {
            dir = root.join(format!("d{:04}", number / FILES_PER_DIR));
            fs::create_dir_all(&dir).step("make a directory")?;
        }
        fs::write(dir.join(format!("f{number:07}")), contents(number)).step("write a file")?;
    }
    sync(root)
}

/// Writes what is in memory for the file system of a directory to disk.
pub(super) fn sync(dir: &Path) -> Result<(), BenchError> {
    let dir = File::open(dir).step("open a directory")?;
    rustix::fs::syncfs(&dir).step("sync the disk")
}

/// Counts the files that a view shows, by listing every directory.
pub(super) fn count_files(view: &View) -> Result<u64, BenchError> {
    let mut files = 0;
    let mut waiting = vec![Ino::ROOT];
    while let Some(dir) = waiting.pop() {
        let mut at = 0;
        view.readdir(dir, at, false, &mut |entry| {
            at += 1;
            match entry.kind {
                FileKind::Directory if at > 2 => waiting.push(entry.ino),
                FileKind::Directory => {}
                _ => files += 1,
            }
            true
        })
        .step("list a directory")?;
    }
    Ok(files)
}

/// Fails unless a view shows exactly this many files.
pub(super) fn verify_count(view: &View, expected: u64) -> Result<(), BenchError> {
    let found = count_files(view)?;
    if found == expected {
        return Ok(());
    }
    Err(BenchError::Wrong {
        what: format!("the workspace has {found} files instead of {expected}"),
    })
}

/// Stats every file below a directory, so that the kernel knows them all.
pub(super) fn visit(lab: &Lab<'_>, dir: &Path) -> Result<u64, BenchError> {
    let mut files = 0;
    let mut waiting = vec![dir.to_owned()];
    while let Some(dir) = waiting.pop() {
        lab.check()?;
        for entry in fs::read_dir(&dir).step("list a directory")? {
            let entry = entry.step("list a directory")?;
            if entry.metadata().step("stat a file")?.is_dir() {
                waiting.push(entry.path());
            } else {
                files += 1;
            }
        }
    }
    Ok(files)
}

/// A stream of bytes that do not compress.
pub(super) struct Noise(u64);

impl Noise {
    /// Another stream for every seed.
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number (SplitMix64).
    pub(super) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Overwrites a buffer.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            let bytes = self.number().to_ne_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }
}

/// Writes a file of `size` real bytes, wherever the path leads, and waits for the disk.
pub(super) fn large_file(lab: &Lab<'_>, path: &Path, size: u64) -> Result<(), BenchError> {
    let writing = || format!("write {}", path.display());
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .step(writing())?;
    let mut noise = Noise::new(size);
    let mut buffer = vec![0; CHUNK];
    let mut left = size;
    while left > 0 {
        lab.check()?;
        let len = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
        noise.fill(&mut buffer[..len]);
        file.write_all(&buffer[..len]).step(writing())?;
        left -= len as u64;
    }
    file.sync_all().step(writing())?;
    let meta = file.metadata().step(writing())?;
    if meta.len() == size && meta.blocks() * 512 >= size {
        return Ok(());
    }
    Err(BenchError::Wrong {
        what: format!(
            "{} should be {size} bytes on disk, but has {} in {} blocks",
            path.display(),
            meta.len(),
            meta.blocks()
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::rig;

    #[test]
    fn a_tree_has_as_many_files_as_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let lab = Lab::new(dir.path(), true, None, &|_| ()).unwrap();
        let room = lab.room("tree").unwrap();
        let store = rig::new_store(&room).unwrap();
        tree(&lab, &store, 2_500).unwrap();
        let view = store.open_live(WORKSPACE).unwrap();
        verify_count(&view, 2_500).unwrap();
        assert!(verify_count(&view, 2_501).is_err());
        let plain = room.dir("plain").unwrap();
        plain_tree(&lab, &plain, 2_500).unwrap();
        assert_eq!(visit(&lab, &plain).unwrap(), 2_500);
    }

    #[test]
    fn large_files_are_real_bytes_and_noise_does_not_repeat() {
        let dir = tempfile::tempdir().unwrap();
        let lab = Lab::new(dir.path(), true, None, &|_| ()).unwrap();
        let path = dir.path().join("large");
        large_file(&lab, &path, (2 << 20) + 3).unwrap();
        let data = fs::read(&path).unwrap();
        assert_eq!(data.len(), (2 << 20) + 3);
        assert_ne!(data[..64], data[64..128]);
        assert_ne!(data[..64], data[1 << 20..(1 << 20) + 64]);
    }
}
