//! Requests that only the agent of a virtual machine serves: its clock, its random numbers, what its kernel
//! has not written back, its end.

use std::io;

use floe_guest::message::{Failure, FailureKind, Request, SEED_MAX, SEED_MIN};
use floe_guest::vm::WORKSPACE_DIR;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec};

use super::Place;
use super::failure::{failed, failure, invalid};
use super::sys;

/// The random device.
const RANDOM: &str = "/dev/urandom";

/// Its number. Source: the kernel's `Documentation/admin-guide/devices.txt`.
const RANDOM_NUMBER: (u32, u32) = (1, 9);

/// Whether a request may be made here at all.
pub fn allowed(request: &Request, version: Option<u16>, place: Place) -> Result<(), Failure> {
    let since = request.since();
    if version.is_none_or(|version| version < since) {
        return Err(invalid(format!(
            "the request came with version {since} of the protocol, which is not spoken here"
        )));
    }
    let machines = matches!(
        request,
        Request::SetTime { .. } | Request::AddEntropy { .. } | Request::Shutdown | Request::Sync
    );
    if machines && place == Place::Sandbox {
        return Err(failure(
            FailureKind::PermissionDenied,
            "clock, random numbers, power and what the kernel has not written back are the host's in a \
             process sandbox",
        ));
    }
    Ok(())
}

/// Sets the clock.
pub fn set_time(secs: i64, nanos: u32) -> Result<(), Failure> {
    if secs < 0 || nanos >= 1_000_000_000 {
        return Err(invalid(format!(
            "there is no time of {secs} seconds and {nanos} nanoseconds"
        )));
    }
    let time = Timespec {
        tv_sec: secs,
        tv_nsec: i64::from(nanos),
    };
    rustix::time::clock_settime(ClockId::Realtime, time)
        .map_err(|error| failed("set the clock", error))
}

/// Puts a seed into the kernel's random number generator and has it begin anew, so that nothing it
/// says follows from what it was before.
pub fn add_entropy(seed: &[u8]) -> Result<(), Failure> {
    if !(SEED_MIN..=SEED_MAX).contains(&seed.len()) {
        let len = seed.len();
        return Err(invalid(format!(
            "a seed has {SEED_MIN} to {SEED_MAX} bytes, not {len}"
        )));
    }
    let what = "give the kernel random numbers";
    let random = open_random().map_err(|error| failed(what, error))?;
    sys::add_entropy(&random, seed).map_err(|error| failed(what, error))
}

/// Has the kernel write back what programs changed and only it knows of yet: pages of shared mappings. Takes
/// as long as the disk of the host does.
pub fn sync() -> Result<(), Failure> {
    sync_each(&["/", WORKSPACE_DIR])
}

/// All of them, whatever fails with one; a directory that is not there is none to be synced.
fn sync_each(dirs: &[&str]) -> Result<(), Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut done = Ok(());
    for dir in dirs {
        let synced = match rustix::fs::open(*dir, flags, Mode::empty()) {
            Ok(opened) => rustix::fs::syncfs(&opened),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(error) => Err(error),
        };
        done = done.and(synced.map_err(|error| failed(&format!("sync {dir}"), error)));
    }
    done
}

/// Opens the random device, if it is that: the agent waits for nothing.
fn open_random() -> io::Result<std::os::fd::OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let random = rustix::fs::open(RANDOM, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&random)?;
    let number = (
        rustix::fs::major(stat.st_rdev),
        rustix::fs::minor(stat.st_rdev),
    );
    let device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    if !device || number != RANDOM_NUMBER {
        return Err(io::Error::other(format!("{RANDOM} is something else")));
    }
    Ok(random)
}

#[cfg(test)]
mod tests {
    use floe_guest::message::Seed;

    use super::*;

    fn machines_only() -> [Request; 4] {
        let seed = Seed(vec![1; SEED_MIN]);
        [
            Request::SetTime { secs: 0, nanos: 0 },
            Request::AddEntropy { seed },
            Request::Shutdown,
            Request::Sync,
        ]
    }

    #[test]
    fn a_process_sandbox_refuses_what_would_be_the_hosts() {
        for request in machines_only() {
            let refused = allowed(&request, Some(3), Place::Sandbox).unwrap_err();
            assert_eq!(refused.kind, FailureKind::PermissionDenied);
            assert_eq!(allowed(&request, Some(3), Place::Machine), Ok(()));
        }
        assert_eq!(allowed(&Request::Metrics, Some(1), Place::Sandbox), Ok(()));
    }

    #[test]
    fn what_a_version_does_not_have_is_refused_in_it() {
        for request in machines_only() {
            let before = Some(request.since() - 1);
            let refused = allowed(&request, before, Place::Machine).unwrap_err();
            assert_eq!(refused.kind, FailureKind::InvalidArgument);
        }
    }

    #[test]
    fn what_is_there_is_synced_and_what_is_not_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_str().unwrap();
        let (missing, file) = (format!("{dir}/missing"), format!("{dir}/file"));
        std::fs::write(&file, "").unwrap();
        assert_eq!(sync_each(&[&missing, &file, dir]), Ok(()));
        let refused = sync_each(&["no\0path", dir]).unwrap_err();
        assert!(refused.message.contains("sync no"), "{refused:?}");
    }

    #[test]
    fn times_and_seeds_that_make_no_sense_are_refused() {
        for (secs, nanos) in [(-1, 0), (0, 1_000_000_000)] {
            let refused = set_time(secs, nanos).unwrap_err();
            assert_eq!(refused.kind, FailureKind::InvalidArgument);
        }
        for len in [0, SEED_MIN - 1, SEED_MAX + 1] {
            let refused = add_entropy(&vec![0; len]).unwrap_err();
            assert_eq!(refused.kind, FailureKind::InvalidArgument);
        }
    }
}
