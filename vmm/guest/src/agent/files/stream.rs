//! Reading and writing files piece by piece, so that neither a slow reader nor a slow writer keeps a
//! worker.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use floe_guest::frame::{Kind, MAX_DATA};
use floe_guest::message::{Entry, Event, Failure, Outcome};
use floe_guest::window::cost;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::entry::describe;
use crate::agent::Agent;
use crate::agent::channel::Work;
use crate::agent::failure::{failed, invalid};
use crate::agent::pool::Done;
use crate::agent::users::Database;

/// A file that is being read.
#[derive(Debug)]
pub struct Reading {
    pub path: PathBuf,
    /// None until it is open.
    pub file: Option<Arc<OwnedFd>>,
    /// Whether a worker is at it.
    pub busy: bool,
    /// Read and not sent yet.
    pub chunk: Vec<u8>,
}

/// A file that is being written.
#[derive(Debug)]
pub struct Writing {
    pub path: PathBuf,
    /// None until it is open.
    pub file: Option<Arc<OwnedFd>>,
    /// Whether a worker is at it.
    pub busy: bool,
    /// Came and is not given to a worker yet.
    pub frames: VecDeque<Vec<u8>>,
    /// Room to grant once the worker is done.
    pub taken: u32,
}

/// Opens a regular file without waiting, and says what it is.
///
/// What is no regular file is not opened at all, as far as one can know: opening a device may do
/// something. The flags see to the rest.
pub fn open(path: &Path, write: bool, names: &Database) -> Result<(OwnedFd, Entry), Failure> {
    let what = format!(
        "{} '{}'",
        if write { "write" } else { "read" },
        path.display()
    );
    let cannot = |error: io::Error| failed(&what, error);
    match fs::metadata(path) {
        Ok(found) => regular(found.mode(), &what)?,
        Err(error) if write && error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(cannot(error)),
    }
    let common = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let flags = common
        | if write {
            OFlags::WRONLY | OFlags::CREATE
        } else {
            OFlags::RDONLY
        };
    let mode = Mode::from_raw_mode(0o666);
    let opened = rustix::fs::open(path, flags, mode).map_err(|error| cannot(error.into()))?;
    let file = fs::File::from(opened);
    let metadata = file.metadata().map_err(cannot)?;
    regular(metadata.mode(), &what)?;
    if write {
        file.set_len(0).map_err(cannot)?;
    }
    let mut entry = describe(path, &metadata, names);
    if write {
        entry.size = 0;
    }
    Ok((file.into(), entry))
}

fn regular(mode: u32, what: &str) -> Result<(), Failure> {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(failed(what, Errno::ISDIR)),
        _ => Err(invalid(format!("cannot {what}: it is not a regular file"))),
    }
}

/// Makes the directories that a file is to be in.
pub fn make_parents(path: &Path) -> Result<(), Failure> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    fs::create_dir_all(parent).map_err(|error| {
        // Something else is there.
        let error = match error.kind() {
            io::ErrorKind::AlreadyExists => Errno::NOTDIR.into(),
            _ => error,
        };
        failed(&format!("make the directory '{}'", parent.display()), error)
    })
}

fn read_chunk(file: &OwnedFd, path: &Path) -> Result<Done, Failure> {
    let mut chunk = vec![0; MAX_DATA];
    loop {
        match rustix::io::read(file, chunk.as_mut_slice()) {
            Ok(len) => {
                chunk.truncate(len);
                return Ok(Done::Chunk(chunk));
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed(&format!("read '{}'", path.display()), error)),
        }
    }
}

fn write_frames(file: &OwnedFd, frames: VecDeque<Vec<u8>>, path: &Path) -> Result<Done, Failure> {
    for frame in frames {
        let mut rest = frame.as_slice();
        while !rest.is_empty() {
            match rustix::io::write(file, rest) {
                Ok(len) => rest = rest.get(len..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(&format!("write '{}'", path.display()), error)),
            }
        }
    }
    Ok(Done::Written)
}

fn finish(file: &OwnedFd, path: &Path) -> Result<Done, Failure> {
    let metadata = file
        .try_clone()
        .and_then(|fd| fs::File::from(fd).metadata())
        .map_err(|error| failed(&format!("look at '{}'", path.display()), error))?;
    Ok(Done::Entry(describe(path, &metadata, &Database::read())))
}

impl Agent {
    /// The file of a channel is open.
    pub(crate) fn opened(&mut self, number: u64, fd: OwnedFd, at: PathBuf, entry: Entry) {
        let Some(channel) = self.channels.get_mut(number) else {
            return;
        };
        match &mut channel.work {
            Work::Reading(Reading {
                path, file, busy, ..
            })
            | Work::Writing(Writing {
                path, file, busy, ..
            }) => {
                // Not what the request called it: that may be relative.
                *path = at;
                *file = Some(Arc::new(fd));
                *busy = false;
            }
            _ => return,
        }
        channel.push(&Event::Opened(entry));
        self.channels.wake(number);
    }

    /// A piece of the file was read.
    pub(crate) fn chunk(&mut self, number: u64, bytes: Vec<u8>) {
        let Some(channel) = self.channels.get_mut(number) else {
            return;
        };
        if let Work::Reading(reading) = &mut channel.work {
            reading.busy = false;
            if bytes.is_empty() {
                channel.done(Outcome::Done);
            } else {
                reading.chunk = bytes;
            }
        }
        self.channels.wake(number);
    }

    /// What was given is written.
    pub(crate) fn written(&mut self, number: u64) {
        let Some(channel) = self.channels.get_mut(number) else {
            return;
        };
        if let Work::Writing(writing) = &mut channel.work {
            writing.busy = false;
            let room = std::mem::take(&mut writing.taken);
            // Cannot fail: it was taken out when the frames came.
            if channel.input.add(room).is_ok() {
                self.wire.credit(channel.id, room);
            }
        }
        self.channels.wake(number);
    }

    /// Sends what was read, or has more read.
    pub(crate) fn advance_reading(&mut self, number: u64) {
        let Some(channel) = self.channels.get_mut(number) else {
            return;
        };
        let Work::Reading(reading) = &mut channel.work else {
            return;
        };
        if !reading.chunk.is_empty() {
            let len = reading.chunk.len().min(channel.window.payload());
            if len == 0 || channel.window.take(len).is_err() {
                return;
            }
            let rest = reading.chunk.split_off(len);
            self.wire.put(Kind::Data, channel.id, &reading.chunk);
            reading.chunk = rest;
            return self.channels.wake(number);
        }
        if let (Some(file), false) = (&reading.file, reading.busy) {
            reading.busy = true;
            let (file, path) = (Arc::clone(file), reading.path.clone());
            self.pool
                .submit(number, Box::new(move || read_chunk(&file, &path)));
        }
    }

    /// Has what came written, or the file finished.
    pub(crate) fn advance_writing(&mut self, number: u64) {
        let Some(channel) = self.channels.get_mut(number) else {
            return;
        };
        let over = channel.input_over;
        let Work::Writing(writing) = &mut channel.work else {
            return;
        };
        let (Some(file), false) = (&writing.file, writing.busy) else {
            return;
        };
        let (file, path) = (Arc::clone(file), writing.path.clone());
        if !writing.frames.is_empty() {
            let frames = std::mem::take(&mut writing.frames);
            writing.taken = frames.iter().map(|frame| cost(frame.len())).sum();
            writing.busy = true;
            self.pool
                .submit(number, Box::new(move || write_frames(&file, frames, &path)));
        } else if over {
            writing.busy = true;
            self.pool
                .submit(number, Box::new(move || finish(&file, &path)));
        }
    }
}

#[cfg(test)]
mod tests {
    use floe_guest::message::FailureKind;

    use super::*;

    #[test]
    fn a_fifo_or_device_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            FileType::Fifo,
            Mode::from_raw_mode(0o666),
            0,
        )
        .unwrap();
        for path in [fifo.as_path(), Path::new("/dev/zero")] {
            for write in [false, true] {
                let error = open(path, write, &Database::read()).unwrap_err();
                assert_eq!(error.kind, FailureKind::InvalidArgument, "{error:?}");
            }
        }
        let error = open(dir.path(), true, &Database::read()).unwrap_err();
        assert_eq!(error.kind, FailureKind::IsADirectory);
    }

    #[test]
    fn opening_for_writing_empties_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "old").unwrap();
        let (_, entry) = open(&path, true, &Database::read()).unwrap();
        assert_eq!(entry.size, 0);
        assert_eq!(fs::read(&path).unwrap(), b"");
    }
}
