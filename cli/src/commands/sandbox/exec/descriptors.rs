//! Reading and writing the standard descriptors as they are: without buffers, and whether or not another
//! program that shares them has made them non-blocking.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

/// Reads what there is, at least a byte; nothing at the end.
///
/// # Errors
/// The system's.
pub(super) fn read_some(from: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match rustix::io::read(from, &mut *buffer) {
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(from, PollFlags::IN)?,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes all of it.
///
/// # Errors
/// The system's; `BrokenPipe` if nobody reads.
pub(super) fn write_fully(to: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(to, PollFlags::OUT)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn wait(on: BorrowedFd<'_>, flags: PollFlags) -> io::Result<()> {
    match rustix::event::poll(&mut [PollFd::new(&on.as_fd(), flags)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_pipe_that_does_not_block_gets_everything() {
        let (mut reader, writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
        let written = bytes.clone();
        let thread = std::thread::spawn(move || write_fully(writer.as_fd(), &written));
        let mut seen = Vec::new();
        reader.read_to_end(&mut seen).unwrap();
        thread.join().unwrap().unwrap();
        assert_eq!(seen, bytes);
    }

    #[test]
    fn a_pipe_that_does_not_block_is_waited_for() {
        let (reader, writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            write_fully(writer.as_fd(), b"late")
        });
        let mut buffer = [0; 16];
        assert_eq!(read_some(reader.as_fd(), &mut buffer).unwrap(), 4);
        thread.join().unwrap().unwrap();
        assert_eq!(read_some(reader.as_fd(), &mut buffer).unwrap(), 0);
    }

    #[test]
    fn nobody_reading_is_a_broken_pipe() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let error = write_fully(writer.as_fd(), b"x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
