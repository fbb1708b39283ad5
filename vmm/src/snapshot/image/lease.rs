//! Whether somebody can write to a file: asked by a lease (fcntl(2), F_SETLEASE).
//!
//! A lease for reading is given when nobody has the file open for writing, a shared mapping that can be written
//! to included. It is given back at once: who has no such descriptor by then gets none, as nobody else can reach
//! the file's name.

#![expect(unsafe_code, reason = "fcntl(2) with a lease, which no crate has")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// How long a descriptor may be somebody's who is just being started: between fork(2) and execve(2) a child has
/// those of its parent.
const WAIT: Duration = Duration::from_secs(2);
/// How long to rest before looking again.
const REST: Duration = Duration::from_millis(1);

/// Whether `file`, which is open for reading, can be read only, by everybody. On a file system without leases
/// that is taken for true, and said.
pub(super) fn only_read(file: &File) -> io::Result<bool> {
    let give_up = Instant::now() + WAIT;
    loop {
        match set(file, libc::F_RDLCK) {
            Ok(()) => return set(file, libc::F_UNLCK).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() >= give_up {
                    return Ok(false);
                }
                std::thread::sleep(REST);
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
                tracing::warn!("the file system has no leases: who wrote an image may still do so");
                return Ok(true);
            }
            Err(error) => return Err(error),
        }
    }
}

fn set(file: &File, lease: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open as long as `file` is borrowed, and the third argument of F_SETLEASE is an
    // integer: the kernel reads and writes no memory of ours.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, lease) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_can_be_written_to_is_told_from_one_that_cannot() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let writable = File::create_new(&path).unwrap();
        let file = File::open(&path).unwrap();
        assert!(!only_read(&file).unwrap());
        let other = writable.try_clone().unwrap();
        drop(writable);
        assert!(!only_read(&file).unwrap());
        // A moment later it is closed: that is waited for.
        let closing = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(other);
        });
        assert!(only_read(&file).unwrap());
        closing.join().unwrap();
        // The lease was given back: who may open it is not held up.
        drop(File::options().write(true).open(&path).unwrap());
    }
}
