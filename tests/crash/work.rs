//! The work that is under way when the daemon is killed, and what must be there of it afterwards.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use floe_harness::Numbered;
use floe_harness::python::{Python, path};
use floe_harness::random::Random;

/// Work below a directory whose acknowledged part can be checked.
pub trait Work: Send {
    /// The next operation; once it has returned without error it was acknowledged.
    fn step(&mut self) -> io::Result<()>;
    /// Whether the tree below `root` holds what was acknowledged, and at most one step more. The
    /// work goes on from what is there. What was found right before, and was not touched since, is
    /// looked at again only for the `whole` tree.
    fn check(&mut self, root: &Path, whole: bool) -> Result<(), String>;
}

/// Creates, appends and renames.
pub struct Files {
    name: PathBuf,
    numbered: Numbered,
    checked: u64,
}

impl Files {
    /// In an empty directory below the root of a mount.
    pub fn new(dir: &Path) -> Self {
        Self {
            name: dir.file_name().unwrap().into(),
            numbered: Numbered::new(dir, 0),
            checked: 0,
        }
    }
}

impl Work for Files {
    fn step(&mut self) -> io::Result<()> {
        self.numbered.step()
    }

    fn check(&mut self, root: &Path, whole: bool) -> Result<(), String> {
        let (root, done) = (root.join(&self.name), self.numbered.acknowledged());
        let from = if whole { 0 } else { self.checked };
        Numbered::check_since(&root, from, done).map_err(|wrong| wrong.join("; "))?;
        self.checked = done;
        Ok(())
    }
}

/// Replaces one file by rename, each version whole and of another length.
pub struct Replace {
    root: PathBuf,
    done: u64,
    sync: bool,
}

impl Replace {
    /// In an empty directory below the root of a mount.
    pub fn new(root: &Path, sync: bool) -> Self {
        Self {
            root: root.to_path_buf(),
            done: 0,
            sync,
        }
    }

    fn version(number: u64) -> Vec<u8> {
        let len = 100 + usize::try_from(number * 7919 % 200_000).unwrap();
        number.to_le_bytes().into_iter().cycle().take(len).collect()
    }
}

impl Work for Replace {
    fn step(&mut self) -> io::Result<()> {
        let draft = self.root.join("draft");
        let mut file = File::create(&draft)?;
        file.write_all(&Self::version(self.done + 1))?;
        if self.sync {
            file.sync_all()?;
        }
        drop(file);
        fs::rename(draft, self.root.join("target"))?;
        self.done += 1;
        Ok(())
    }

    fn check(&mut self, root: &Path, _whole: bool) -> Result<(), String> {
        let name = self.root.file_name().unwrap();
        let target = match fs::read(root.join(name).join("target")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.done == 0 => {
                return Ok(());
            }
            other => other.map_err(|error| format!("target: {error}"))?,
        };
        let old_or_new = [self.done, self.done + 1];
        if old_or_new
            .iter()
            .any(|&number| target == Self::version(number))
        {
            return Ok(());
        }
        Err(format!(
            "target is neither version of {old_or_new:?}: {} bytes",
            target.len()
        ))
    }
}

/// Writes at random places of one file, and cuts and grows it.
pub struct Blocks {
    file: PathBuf,
    random: Random,
    /// What was acknowledged, and what the last step would have made of it.
    state: Vec<u8>,
    next: Vec<u8>,
}

impl Blocks {
    /// A file that does not exist yet in the root of a mount.
    pub fn new(file: &Path, seed: u64) -> Self {
        Self {
            file: file.to_path_buf(),
            random: Random::new(seed),
            state: Vec::new(),
            next: Vec::new(),
        }
    }
}

impl Work for Blocks {
    fn step(&mut self) -> io::Result<()> {
        self.next.clone_from(&self.state);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&self.file)?;
        if self.random.one_in(10) {
            let len = self.random.index(400_000);
            self.next.resize(len, 0);
            file.set_len(len as u64)?;
        } else {
            // Within one page: one request, and so one step for a crash as well, but for the size.
            let at = self.random.index(90) * 4096 + self.random.index(2000);
            let len = 1 + self.random.index(2000);
            let bytes = self.random.bytes(len);
            self.next.resize(self.next.len().max(at + len), 0);
            self.next[at..at + len].copy_from_slice(&bytes);
            file.write_all_at(&bytes, at as u64)?;
        }
        self.state.clone_from(&self.next);
        Ok(())
    }

    fn check(&mut self, root: &Path, _whole: bool) -> Result<(), String> {
        let path = root.join(self.file.file_name().unwrap());
        let found = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.state.is_empty() => {
                return Ok(());
            }
            other => other.map_err(|error| format!("blocks: {error}"))?,
        };
        // A write over the end has bytes in place before the file is as long: see ARCHITECTURE.md.
        let overwritten = &self.next[..self.next.len().min(self.state.len())];
        if found == self.state || found == self.next || found == overwritten {
            self.state = found;
            return Ok(());
        }
        let same = found
            .iter()
            .zip(&self.state)
            .take_while(|(a, b)| a == b)
            .count();
        Err(format!(
            "blocks: {} bytes, {} acknowledged, different from byte {same}",
            found.len(),
            self.state.len()
        ))
    }
}

/// Gives a file one name after another, attributes, and a directory that is made and removed.
pub struct Names {
    root: PathBuf,
    done: u64,
}

impl Names {
    /// In an empty directory below the root of a mount.
    pub fn new(root: &Path) -> Self {
        fs::write(root.join("name0"), "one file").unwrap();
        Self {
            root: root.to_path_buf(),
            done: 0,
        }
    }
}

impl Work for Names {
    fn step(&mut self) -> io::Result<()> {
        let name = |number: u64| self.root.join(format!("name{number}"));
        let (old, new) = (name(self.done), name(self.done + 1));
        if !new.try_exists()? {
            fs::hard_link(&old, &new)?;
        }
        let value = (self.done + 1).to_string();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&new, "user.number", value.as_bytes(), flags)?;
        if old.try_exists()? {
            fs::remove_file(&old)?;
        }
        self.done += 1;
        Ok(())
    }

    fn check(&mut self, root: &Path, _whole: bool) -> Result<(), String> {
        let dir = root.join(self.root.file_name().unwrap());
        let mut names: Vec<_> = fs::read_dir(&dir)
            .and_then(Iterator::collect::<io::Result<Vec<_>>>)
            .map_err(|error| format!("names: {error}"))?
            .into_iter()
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        let mut allowed = vec![
            format!("name{}", self.done),
            format!("name{}", self.done + 1),
        ];
        allowed.sort();
        if names.is_empty() || !names.iter().all(|name| allowed.contains(name)) {
            return Err(format!("{names:?} where {allowed:?} may be"));
        }
        let nlink = fs::metadata(dir.join(&names[0]))
            .map_err(|error| error.to_string())?
            .nlink();
        if nlink != names.len() as u64 {
            return Err(format!("{names:?} but a link count of {nlink}"));
        }
        Ok(())
    }
}

const PAGES: usize = 16;
const PAGE: usize = 4096;

/// Changes pages of a mapped file, one a step, and has each written back.
pub struct Mapped {
    file: PathBuf,
    /// A mapping does not survive the daemon; each begins in a process of its own.
    python: Option<Python>,
    done: u64,
    /// What was acknowledged, and which page the last step changed.
    pages: Vec<Vec<u8>>,
    changing: usize,
}

impl Mapped {
    /// A file that does not exist yet in the root of a mount.
    pub fn new(file: &Path) -> Self {
        fs::write(file, vec![0; PAGES * PAGE]).unwrap();
        Self {
            file: file.to_path_buf(),
            python: None,
            done: 0,
            pages: vec![vec![0; PAGE]; PAGES],
            changing: 0,
        }
    }

    fn run(&mut self, code: &str) -> io::Result<()> {
        // An error of msync, or SIGBUS on a page that cannot be had any more.
        let failed = |_| io::Error::from_raw_os_error(libc::EIO);
        let python = self.python.get_or_insert_with(Python::start);
        let result = python.run(code).map(drop).map_err(failed);
        if result.is_err() {
            self.python = None;
        }
        result
    }
}

impl Work for Mapped {
    fn step(&mut self) -> io::Result<()> {
        if self.python.is_none() {
            let (file, len) = (path(&self.file), PAGES * PAGE);
            self.run(&format!("m = mmap.mmap(os.open({file}, os.O_RDWR), {len})"))?;
        }
        self.done += 1;
        self.changing = usize::try_from(self.done).unwrap() % PAGES;
        let (number, at) = (self.done, self.changing * PAGE);
        self.run(&format!(
            "m[{at}:{at} + {PAGE}] = struct.pack('<Q', {number}) * ({PAGE} // 8); m.flush({at}, {PAGE})"
        ))?;
        self.pages[self.changing] = number.to_le_bytes().repeat(PAGE / 8);
        Ok(())
    }

    fn check(&mut self, root: &Path, _whole: bool) -> Result<(), String> {
        // The mapping is one of a mount that is gone.
        self.python = None;
        let name = self.file.file_name().unwrap();
        let found = fs::read(root.join(name)).map_err(|error| format!("mapped: {error}"))?;
        if found.len() != PAGES * PAGE {
            return Err(format!("mapped: {} bytes", found.len()));
        }
        let under_way = self.done.to_le_bytes();
        for (number, page) in found.chunks(PAGE).enumerate() {
            // A page may be written back while it is changed.
            let old_or_new = |(found, old): (&[u8], &[u8])| {
                found == old || (number == self.changing && found == under_way)
            };
            let old = self.pages[number].chunks(8);
            if !page.chunks(8).zip(old).all(old_or_new) {
                return Err(format!("mapped: page {number} is not what was synced"));
            }
        }
        self.pages = found.chunks(PAGE).map(<[u8]>::to_vec).collect();
        Ok(())
    }
}
