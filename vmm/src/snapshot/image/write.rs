//! Making an image.
//!
//! Order: the directory and the empty memory file; pages; what is the same in the parent is given up, what
//! has to be absorbed is copied, files of the parent's are linked; the image's file, as captured. Then, in
//! the background: sums, fsync of everything, the image's file under its last name, fsync of the directories.
//! A crash in between leaves a directory without the last name, which whoever owns the directory removes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::header::{Header, SECTION_MAX};
use super::layout::{self, OWN};
use super::{CAPTURED, FileEntry, Image, MEMORY, Manifest, SEALED, files, lease, sums};
use crate::machine::memory::{LimitError, RamSize, VcpuCount};
use crate::snapshot::compat::Compat;
use crate::snapshot::pages::{Pages, Run};
use crate::snapshot::ram::bytes;

/// What a machine gave: its pages are in the memory file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Taken {
    /// Pages that were written since the parent, or that are not zero if there is none. A page of these
    /// that is a hole in the file is zeros.
    pub pages: Pages,
    /// RAM in MiB.
    pub ram_mib: u32,
    /// Number of vCPUs.
    pub vcpus: u8,
    /// The host that it ran at.
    pub host: Compat,
    /// When it was held, in nanoseconds since 1970-01-01 UTC.
    pub created_at: i64,
    /// [`crate::snapshot::MachineState`] as bytes.
    pub state: Vec<u8>,
}

/// What somebody says was taken is not possible.
#[derive(Debug, thiserror::Error)]
pub enum TakenError {
    /// It cannot be read or written.
    #[error("what was taken cannot be read")]
    Encoding(#[from] postcard::Error),
    /// Its pages are not those of its RAM.
    #[error("what was taken contradicts itself")]
    Impossible,
}

impl Taken {
    /// As bytes, for another process.
    ///
    /// # Errors
    /// [`TakenError::Encoding`], which does not happen.
    pub fn encode(&self) -> Result<Vec<u8>, TakenError> {
        Ok(postcard::to_stdvec(self)?)
    }

    /// Reads what a process that is not trusted says. The state in it stays bytes: it is read where it is
    /// set, by a process that is trusted with no more.
    ///
    /// # Errors
    /// [`TakenError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, TakenError> {
        let taken: Self = postcard::from_bytes(bytes)?;
        let ram = RamSize::from_mib(taken.ram_mib).map_err(|_| TakenError::Impossible)?;
        let total = usize::try_from(ram.bytes() / 4096).unwrap_or(usize::MAX);
        let vcpus = VcpuCount::new(taken.vcpus);
        let state = taken.state.len() as u64;
        let sound = taken.pages.is_sound() && taken.pages.total() == total;
        if !sound || vcpus.is_err() || state > SECTION_MAX {
            return Err(TakenError::Impossible);
        }
        Ok(taken)
    }
}

/// Why an image was not made.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A file cannot be made, written or linked.
    #[error("cannot {action} {path}", path = path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The machine has another size than the image that it is said to go on from.
    #[error("the machine has {ram_mib} MiB of memory, its parent image {parent_mib}")]
    OtherRam {
        /// The machine's.
        ram_mib: u32,
        /// The parent's.
        parent_mib: u32,
    },
    /// The size of memory is out of range.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The manifest cannot be written.
    #[error("the manifest cannot be written")]
    Manifest(#[from] serde_json::Error),
    /// More than an image may have, so nobody could open it.
    #[error("its {section} would have {len} bytes, and may have {SECTION_MAX}")]
    TooLarge {
        /// Which section of the image's file.
        section: &'static str,
        /// What it would have.
        len: u64,
    },
    /// Whoever wanted it does not any more.
    #[error("the image was given up")]
    Cancelled,
    /// Somebody can still write to its memory.
    #[error("somebody who was to fill {path} has it open for writing still", path = path.display())]
    StillWritten {
        /// The memory file.
        path: PathBuf,
    },
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WriteError {
    move |source| WriteError::File {
        action,
        path: path.to_owned(),
        source,
    }
}

/// An image that is being made. Dropped before it is captured, it is removed.
#[derive(Debug)]
pub struct ImageWriter {
    dir: PathBuf,
    id: String,
    memory: File,
    // Files of the parent.
    linked: usize,
    kept: bool,
}

impl ImageWriter {
    /// Makes the directory `id` in `images`, with an empty memory file.
    ///
    /// # Errors
    /// [`WriteError::File`], also when there is such a directory.
    pub fn new(images: &Path, id: &str, ram: RamSize) -> Result<Self, WriteError> {
        let dir = images.join(id);
        let mut builder = DirBuilder::new();
        builder
            .mode(0o700)
            .create(&dir)
            .map_err(failed("make", &dir))?;
        let path = dir.join(MEMORY);
        let memory = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|memory| memory.set_len(ram.bytes()).map(|()| memory));
        match memory {
            Ok(memory) => Ok(Self {
                dir,
                id: id.to_owned(),
                memory,
                linked: 0,
                kept: false,
            }),
            Err(source) => {
                remove(&dir);
                Err(failed("make", &path)(source))
            }
        }
    }

    /// The file that pages are written to, each at its place.
    #[must_use]
    pub fn memory(&self) -> &File {
        &self.memory
    }

    /// Keeps the files of an image that this one may be made over, whatever becomes of that.
    ///
    /// # Errors
    /// [`WriteError`]: it is gone, perhaps.
    pub fn keep_files_of(&mut self, parent: &Image) -> Result<(), WriteError> {
        for entry in &parent.manifest.files {
            let link = self.kept_file(self.linked);
            fs::hard_link(parent.dir.join(&entry.name), &link).map_err(failed("link", &link))?;
            self.linked += 1;
        }
        Ok(())
    }

    /// Where such a file is until the image is captured.
    fn kept_file(&self, number: usize) -> PathBuf {
        self.dir.join(format!("parent.{number}"))
    }

    /// Lets go of those that nothing is seen of.
    fn drop_kept(&self) -> Result<(), WriteError> {
        for number in 0..self.linked {
            let kept = self.kept_file(number);
            match fs::remove_file(&kept) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("remove", &kept)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Finishes an image whose pages are written: machines can start from it when this returns. It is as
    /// durable as the page cache. Whoever filled the memory file has closed it before: what machines start
    /// from must not change under them.
    ///
    /// # Errors
    /// [`WriteError`]: then nothing is left of it.
    pub fn capture(
        self,
        taken: Taken,
        parent: Option<&Image>,
        extra: Vec<u8>,
    ) -> Result<Image, WriteError> {
        self.capture_while(taken, parent, extra, &|| true)
    }

    /// As [`Self::capture`], and gives it up when `go_on` says no.
    ///
    /// # Errors
    /// [`WriteError`]: then nothing is left of it.
    pub fn capture_while(
        mut self,
        taken: Taken,
        parent: Option<&Image>,
        extra: Vec<u8>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Image, WriteError> {
        let ram = RamSize::from_mib(taken.ram_mib)?;
        let mut own = taken.pages;
        let mut files = vec![FileEntry {
            name: MEMORY.to_owned(),
            made_for: self.id.clone(),
            sums: None,
        }];
        let written_pages = own.count() as u64;
        let (extents, theirs) = match parent {
            None => (layout::compose(&own, &[]).extents, Vec::new()),
            Some(parent) => {
                if parent.manifest.ram_mib != taken.ram_mib {
                    return Err(WriteError::OtherRam {
                        ram_mib: taken.ram_mib,
                        parent_mib: parent.manifest.ram_mib,
                    });
                }
                if self.linked == 0 {
                    self.keep_files_of(parent)?;
                }
                let path = self.dir.join(MEMORY);
                let compared = self.drop_same(&mut own, parent, go_on);
                if !compared.map_err(failed("compare", &path))? {
                    return Err(WriteError::Cancelled);
                }
                self.over(&own, parent, &mut files)?
            }
        };
        self.drop_kept()?;
        let mut handles = vec![self.closed_for_writing()?];
        handles.extend(theirs);
        debug_assert_eq!(layout::check(&extents, own.total(), files.len()), Ok(()));
        let manifest = Manifest {
            id: self.id.clone(),
            parent: parent.map(|parent| parent.manifest.id.clone()),
            created_at: taken.created_at,
            ram_mib: ram.mib(),
            vcpus: taken.vcpus,
            written_pages,
            host: taken.host,
            files,
            extents,
        };
        let image = Image {
            dir: self.dir.clone(),
            manifest,
            state: taken.state,
            extra,
            sealed: false,
            files: handles,
        };
        image.write_as(CAPTURED)?;
        self.kept = true;
        Ok(image)
    }

    /// Gives up own pages that the parent has the same, for as long as `go_on`; false if it said no.
    fn drop_same(
        &self,
        own: &mut Pages,
        parent: &Image,
        go_on: &dyn Fn() -> bool,
    ) -> io::Result<bool> {
        let mut ours = vec![0; bytes(files::AT_ONCE)];
        let mut theirs = ours.clone();
        let runs: Vec<Run> = own.runs().flat_map(files::parts).collect();
        for run in runs {
            if !go_on() {
                return Ok(false);
            }
            files::read(&self.memory, run, &mut ours)?;
            parent.read(run, &mut theirs)?;
            let same = |page: &usize| {
                let at = bytes(page - run.start)..bytes(page - run.start + 1);
                ours[at.clone()] == theirs[at]
            };
            let pages: Vec<usize> = (run.start..run.end()).filter(same).collect();
            let mut gone = Pages::none(own.total());
            for page in pages {
                own.remove(page);
                gone.insert(page);
            }
            gone.runs()
                .try_for_each(|run| files::punch(&self.memory, run))?;
        }
        Ok(true)
    }

    /// The memory file for reading, once nobody can write to it any more.
    fn closed_for_writing(&mut self) -> Result<File, WriteError> {
        let path = self.dir.join(MEMORY);
        let memory = File::open(&path).map_err(failed("open", &path))?;
        // The last reference that is known of to the one that could be written to.
        self.memory = memory.try_clone().map_err(failed("use", &path))?;
        match lease::only_read(&memory).map_err(failed("ask who writes to", &path))? {
            true => Ok(memory),
            false => Err(WriteError::StillWritten { path }),
        }
    }

    /// Lays the own pages over the parent's: copies what has to be, links what is used. Returns what is
    /// where, and the parent's files.
    fn over(
        &self,
        own: &Pages,
        parent: &Image,
        files: &mut Vec<FileEntry>,
    ) -> Result<(Vec<layout::Extent>, Vec<File>), WriteError> {
        let mut handles = Vec::new();
        let layout = layout::compose(own, &parent.manifest.extents);
        let mut buffer = vec![0; bytes(files::AT_ONCE)];
        let path = self.dir.join(MEMORY);
        for part in layout
            .absorbed
            .iter()
            .flat_map(|extent| files::parts(extent.run()))
        {
            parent
                .read(part, &mut buffer)
                .and_then(|()| {
                    files::write_sparse(&self.memory, part.start, &buffer[..bytes(part.len)])
                })
                .map_err(failed("copy pages to", &path))?;
        }
        let mut extents = layout.extents;
        // The parent's files that something is seen of, in its order.
        let mut numbers = vec![None; parent.files.len() + 1];
        numbers[OWN] = Some(OWN);
        for (number, entry) in parent.manifest.files.iter().enumerate() {
            if !extents.iter().any(|extent| extent.file == number + 1) {
                continue;
            }
            numbers[number + 1] = Some(files.len());
            let name = format!("{MEMORY}.{}", files.len());
            let link = self.dir.join(&name);
            fs::rename(self.kept_file(number), &link).map_err(failed("link", &link))?;
            let handle = parent.files[number].try_clone();
            handles.push(handle.map_err(failed("use", &link))?);
            files.push(FileEntry {
                name,
                made_for: entry.made_for.clone(),
                sums: None,
            });
        }
        for extent in &mut extents {
            extent.file = numbers[extent.file].unwrap_or(OWN);
        }
        Ok((extents, handles))
    }
}

impl Drop for ImageWriter {
    fn drop(&mut self) {
        if !self.kept {
            remove(&self.dir);
        }
    }
}

/// Whoever owns the directory removes what is left when it looks next.
fn remove(dir: &Path) {
    if let Err(error) = fs::remove_dir_all(dir) {
        tracing::warn!(dir = %dir.display(), %error, "an unfinished image stays");
    }
}

impl Image {
    /// Makes a captured image durable, and finds the sums that damage is found by: the background's work.
    /// `parent` is where the parent is, if it still is. Sealing what is sealed does nothing.
    ///
    /// # Errors
    /// [`WriteError`]: then it is what it was, and can be sealed again.
    pub fn seal(&mut self, parent: Option<&Image>) -> Result<(), WriteError> {
        if self.sealed {
            return Ok(());
        }
        let mut entries = self.manifest.files.clone();
        for (number, entry) in entries.iter_mut().enumerate() {
            let path = self.dir.join(&entry.name);
            let file = &self.files[number];
            let made = |parent: &Image| {
                let theirs = parent.manifest.files.iter();
                let mut theirs = theirs.filter(|theirs| theirs.made_for == entry.made_for);
                theirs
                    .find_map(|theirs| Some((parent.sums_path(&theirs.name), theirs.sums.clone()?)))
            };
            let target = self.sums_path(&entry.name);
            // The parent's own, if it is there and sealed: the file is the same.
            if let Some((from, hash)) = parent.filter(|_| number != OWN).and_then(made) {
                match link_over(&from, &target) {
                    Ok(()) => {
                        entry.sums = Some(hash);
                        continue;
                    }
                    // The parent was removed meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(failed("link", &target)(error)),
                }
            }
            file.sync_all().map_err(failed("sync", &path))?;
            let sums = sums::make(file, self.bytes()).map_err(failed("read", &path))?;
            write_durably(&target, &sums).map_err(failed("write", &target))?;
            entry.sums = Some(blake3::hash(&sums).to_hex().to_string());
        }
        let before = std::mem::replace(&mut self.manifest.files, entries);
        let sealed = self.write_sealed();
        match sealed {
            Ok(()) => self.sealed = true,
            Err(_) => self.manifest.files = before,
        }
        sealed
    }

    fn write_sealed(&self) -> Result<(), WriteError> {
        self.write_as(SEALED)?;
        let captured = self.dir.join(CAPTURED);
        fs::remove_file(&captured).map_err(failed("remove", &captured))?;
        let up = self.dir.parent().unwrap_or(&self.dir);
        for dir in [&self.dir, up] {
            File::open(dir)
                .and_then(|dir| dir.sync_all())
                .map_err(failed("sync", dir))?;
        }
        Ok(())
    }

    /// Writes the image's file under a name that it then has whole or not at all.
    pub(super) fn write_as(&self, name: &str) -> Result<(), WriteError> {
        let manifest = serde_json::to_vec(&self.manifest)?;
        let sections = [
            ("manifest", &manifest),
            ("state", &self.state),
            ("extra part", &self.extra),
        ];
        let mut hasher = blake3::Hasher::new();
        for (section, bytes) in sections {
            let len = bytes.len() as u64;
            if len > SECTION_MAX {
                return Err(WriteError::TooLarge { section, len });
            }
            hasher.update(bytes);
        }
        let header = Header {
            manifest_len: manifest.len() as u64,
            state_len: self.state.len() as u64,
            extra_len: self.extra.len() as u64,
            hash: *hasher.finalize().as_bytes(),
        };
        let bytes = [&header.encode()[..], &manifest, &self.state, &self.extra].concat();
        let (path, new) = (self.dir.join(name), self.dir.join(format!("{name}.new")));
        let written = match name {
            SEALED => write_durably(&new, &bytes),
            _ => write(&new, &bytes).map(drop),
        };
        written.map_err(failed("write", &new))?;
        fs::rename(&new, &path).map_err(failed("rename", &new))
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    Ok(file)
}

fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, bytes)?.sync_all()
}

/// Links, also over what an earlier try left.
fn link_over(from: &Path, to: &Path) -> io::Result<()> {
    match fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::hard_link(from, to)
}
