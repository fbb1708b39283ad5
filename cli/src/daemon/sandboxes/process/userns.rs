//! User namespaces: which users of the host the users of a sandbox are.
//!
//! Each sandbox that has processes has a *slot*, and with it 65,536 user and group ids of the host
//! that nobody else has. Its user `n` is the host's `base + n`; the host's own users, root among
//! them, are nobody inside.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use floe_fs::dispatch::fuser::IdShift;
use parking_lot::Mutex;

use super::StartError;

/// The first id of slot 0: above what distributions and container engines give to users.
const FIRST: u32 = 1 << 30;
/// Ids of a slot.
const IDS: u32 = 1 << 16;
/// Most slots: the last id is still below 2^31.
pub(in crate::daemon::sandboxes) const SLOTS_MAX: u32 = 1 << 13;

/// Which slots are in use.
#[derive(Default)]
pub(in crate::daemon::sandboxes) struct Slots {
    used: Mutex<BTreeSet<u32>>,
}

/// A slot that only the holder uses; dropping it gives it back. To be kept as long as a process or
/// a mount uses its ids.
pub(in crate::daemon::sandboxes) struct Slot {
    slots: std::sync::Arc<Slots>,
    number: u32,
}

impl Slots {
    /// Takes the lowest free slot.
    pub(in crate::daemon::sandboxes) fn take(
        self: &std::sync::Arc<Self>,
    ) -> Result<Slot, StartError> {
        let mut used = self.used.lock();
        let number = (0..SLOTS_MAX)
            .find(|number| !used.contains(number))
            .ok_or(StartError::Slots)?;
        used.insert(number);
        Ok(Slot {
            slots: std::sync::Arc::clone(self),
            number,
        })
    }
}

impl Slot {
    /// The host's id of the sandbox's user 0.
    pub(in crate::daemon::sandboxes) fn base(&self) -> u32 {
        FIRST + self.number * IDS
    }

    /// How the ids of files are shown in the slot.
    pub(in crate::daemon::sandboxes) fn shift(&self) -> IdShift {
        IdShift { base: self.base() }
    }

    /// A new user namespace with the slot's ids. It goes with the last process in it.
    pub(super) fn namespace(&self) -> Result<OwnedFd, StartError> {
        make(self.base()).map_err(|source| StartError::UserNamespace { source })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.used.lock().remove(&self.number);
    }
}

/// Makes a namespace: a program enters a new one, and what it does not need its help for (the
/// mapping, which only the host's root may write) is done from outside while it waits.
fn make(base: u32) -> std::io::Result<OwnedFd> {
    let mut holder = Command::new("unshare")
        .args(["--user", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let made = (|| {
        let missing = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let mut stdin = holder.stdin.take().ok_or_else(missing)?;
        let mut stdout = holder.stdout.take().ok_or_else(missing)?;
        // It answers once it is inside.
        stdin.write_all(b".")?;
        stdout.read_exact(&mut [0])?;
        let process = format!("/proc/{}", holder.id());
        let map = format!("0 {base} {IDS}\n");
        fs::write(format!("{process}/uid_map"), &map)?;
        fs::write(format!("{process}/gid_map"), &map)?;
        Ok(OwnedFd::from(File::open(format!("{process}/ns/user"))?))
    })();
    // Its standard input is closed by now.
    let ended = holder.wait();
    made.and_then(|made| ended.map(|_| made))
}
