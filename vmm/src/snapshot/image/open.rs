//! An image that is there: opened, checked, read, verified.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::header::{HEADER_LEN, Header, HeaderError};
use super::layout::{self, LayoutError};
use super::sums::{self, Damage, VerifyError};
use super::{CAPTURED, Manifest, SEALED, files};
use crate::machine::memory::{LimitError, RamSize, VcpuCount};
use crate::snapshot::pages::Run;
use crate::snapshot::ram::bytes;
use crate::snapshot::state::{MachineState, StateError};
use crate::snapshot::working_set::WorkingSet;

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is none, or it was never finished.
    #[error("there is no image in {path}", path = path.display())]
    Absent {
        /// The directory.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read the image's file {path}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is none, or of another version.
    #[error("{path} is no image", path = path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: HeaderError,
    },
    /// Its bytes are not what they were.
    #[error("the image {path} is damaged: {what}", path = path.display())]
    Damaged {
        /// The directory.
        path: PathBuf,
        /// What is.
        what: String,
    },
    /// It states what cannot be.
    #[error("the image {path} contradicts itself", path = path.display())]
    Impossible {
        /// The directory.
        path: PathBuf,
        /// How.
        #[source]
        source: ImpossibleError,
    },
}

/// What an image states and cannot be.
#[derive(Debug, thiserror::Error)]
pub enum ImpossibleError {
    /// A manifest that is none.
    #[error("its manifest cannot be read")]
    Manifest(#[from] serde_json::Error),
    /// Memory or vCPUs out of range.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// Extents that are no layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// No memory file, too many, or one whose name is a path.
    #[error("its list of files is none")]
    Files,
}

/// An image, open.
#[derive(Debug)]
pub struct Image {
    pub(super) dir: PathBuf,
    pub(super) manifest: Manifest,
    pub(super) state: Vec<u8>,
    pub(super) extra: Vec<u8>,
    pub(super) sealed: bool,
    // In the manifest's order.
    pub(super) files: Vec<File>,
}

impl Image {
    /// Opens the image in `dir`: reads what is not memory and checks it against its hash, and looks that
    /// the memory files are long enough. Their contents are not read: see [`Self::verify`].
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        // Sealing gives it the first name and then takes the second away, perhaps between two looks.
        for (name, sealed) in [(SEALED, true), (CAPTURED, false), (SEALED, true)] {
            match Self::open_as(dir, name, sealed) {
                Err(OpenError::Read { path, source })
                    if source.kind() == io::ErrorKind::NotFound && path == dir.join(name) => {}
                opened => return opened,
            }
        }
        Err(OpenError::Absent {
            path: dir.to_owned(),
        })
    }

    fn open_as(dir: &Path, name: &str, sealed: bool) -> Result<Self, OpenError> {
        let path = dir.join(name);
        let read = |source| OpenError::Read {
            path: path.clone(),
            source,
        };
        let damaged = |what: &str| OpenError::Damaged {
            path: dir.to_owned(),
            what: what.to_owned(),
        };
        let mut file = File::open(&path).map_err(read)?;
        let mut head = Vec::with_capacity(HEADER_LEN);
        let first = file.by_ref().take(HEADER_LEN as u64);
        { first }.read_to_end(&mut head).map_err(read)?;
        let header = Header::decode(&head).map_err(|source| OpenError::Header {
            path: path.clone(),
            source,
        })?;
        let total = header.manifest_len + header.state_len + header.extra_len;
        let mut body = Vec::new();
        file.take(total + 1).read_to_end(&mut body).map_err(read)?;
        let len = u64::try_from(body.len()).unwrap_or(u64::MAX);
        if len != total {
            return Err(damaged(if len < total {
                "its file is too short"
            } else {
                "there is more in its file than it states"
            }));
        }
        if blake3::hash(&body) != blake3::Hash::from_bytes(header.hash) {
            return Err(damaged("its file does not hash to what it states"));
        }
        let section = |len: u64| usize::try_from(len).unwrap_or(usize::MAX).min(body.len());
        let (manifest, rest) = body.split_at(section(header.manifest_len));
        let (state, extra) = rest.split_at(section(header.state_len).min(rest.len()));
        let impossible = |source| OpenError::Impossible {
            path: dir.to_owned(),
            source,
        };
        let manifest = check(manifest).map_err(impossible)?;
        let mut image = Self {
            dir: dir.to_owned(),
            state: state.to_vec(),
            extra: extra.to_vec(),
            sealed,
            files: Vec::new(),
            manifest,
        };
        image.files = image.open_files()?;
        Ok(image)
    }

    fn open_files(&self) -> Result<Vec<File>, OpenError> {
        let mut files = Vec::new();
        for entry in &self.manifest.files {
            let path = self.dir.join(&entry.name);
            let read = |source| OpenError::Read {
                path: path.clone(),
                source,
            };
            let file = File::open(&path).map_err(read)?;
            if file.metadata().map_err(read)?.len() < self.bytes() {
                return Err(OpenError::Damaged {
                    path: self.dir.clone(),
                    what: Damage::Truncated {
                        file: entry.name.clone(),
                    }
                    .to_string(),
                });
            }
            files.push(file);
        }
        Ok(files)
    }

    /// What it says of itself.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Whether it is durable, and damage in it would be found.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// The directory that it is in.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What whoever made it added.
    #[must_use]
    pub fn extra(&self) -> &[u8] {
        &self.extra
    }

    /// The machine's state.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn state(&self) -> Result<MachineState, StateError> {
        MachineState::decode(&self.state)
    }

    /// The memory files, in the manifest's order.
    #[must_use]
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// Bytes of RAM.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.manifest.ram_mib) << 20
    }

    /// Bytes that removing it would give back: those of files that no other image uses, and of its other
    /// files.
    ///
    /// # Errors
    /// The system's.
    pub fn own_bytes(&self) -> io::Result<u64> {
        use std::os::unix::fs::MetadataExt;
        let mut own = 0;
        for entry in fs::read_dir(&self.dir)? {
            let data = entry?.metadata()?;
            if data.nlink() == 1 {
                own += data.blocks() * 512;
            }
        }
        Ok(own)
    }

    /// The bytes of its working set ([`crate::snapshot::WorkingSet`]), if there is one.
    ///
    /// # Errors
    /// The system's.
    pub fn working_set(&self) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(self.dir.join(WorkingSet::FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = Vec::new();
        file.take(WorkingSet::BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Reads pages, wherever they are; `to` has room for them.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&self, run: Run, to: &mut [u8]) -> io::Result<()> {
        let to = &mut to[..bytes(run.len)];
        to.fill(0);
        let extents = &self.manifest.extents;
        let first = extents.partition_point(|extent| extent.run().end() <= run.start);
        for extent in extents[first..]
            .iter()
            .take_while(|extent| extent.start < run.end())
        {
            let start = extent.start.max(run.start);
            let len = extent.run().end().min(run.end()) - start;
            let at = bytes(start - run.start);
            let part = Run { start, len };
            files::read(&self.files[extent.file], part, &mut to[at..at + bytes(len)])?;
        }
        Ok(())
    }

    /// Reads all of its memory and compares it with its sums.
    ///
    /// # Errors
    /// [`VerifyError`]: the first thing that is wrong.
    pub fn verify(&self) -> Result<(), VerifyError> {
        for (entry, file) in self.manifest.files.iter().zip(&self.files) {
            let name = &entry.name;
            let expected = entry.sums.as_ref().ok_or(VerifyError::NotSealed)?;
            let sums = fs::read(self.sums_path(name)).map_err(|source| VerifyError::Read {
                file: format!("{name}.sums"),
                source,
            })?;
            if blake3::hash(&sums).to_hex().as_str() != expected {
                return Err(VerifyError::Damaged(Damage::Sums { file: name.clone() }));
            }
            sums::check(name, file, self.bytes(), &sums)?;
        }
        Ok(())
    }

    pub(super) fn sums_path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.sums"))
    }
}

/// Reads and checks a manifest.
fn check(bytes: &[u8]) -> Result<Manifest, ImpossibleError> {
    let manifest: Manifest = serde_json::from_slice(bytes)?;
    let ram = RamSize::from_mib(manifest.ram_mib)?;
    VcpuCount::new(manifest.vcpus)?;
    let plain = |name: &str| !name.is_empty() && !name.contains(['/', '\0']) && name != "..";
    let files = &manifest.files;
    if files.is_empty()
        || files.len() > layout::FILES_MAX
        || !files.iter().all(|file| plain(&file.name))
    {
        return Err(ImpossibleError::Files);
    }
    let pages = usize::try_from(ram.bytes() / 4096).unwrap_or(usize::MAX);
    layout::check(&manifest.extents, pages, files.len())?;
    Ok(manifest)
}
