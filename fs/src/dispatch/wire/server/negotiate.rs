//! What is agreed with a guest's kernel when it mounts (INIT).
//!
//! As for a mount of this machine, but for these, each for a reason of its own:
//!
//! * A kernel of this machine is told when something changed that it has cached. A guest's cannot be:
//!   Linux's driver does not use the queue that the virtio specification has for that
//!   (`VIRTIO_FS_F_NOTIFICATION`). So what it may believe, and for how long, is [`Caching`].
//! * `ASYNC_DIO` only for a guest that writes alone. Where others write, an append goes to the end of the file as
//!   it is here, so the parts of one must come one after the other.
//! * `SETXATTR_EXT`: whether setting an ACL clears the set-group-id bit the guest's kernel says itself. It
//!   alone knows the groups of who asks.
//! * No `EXPORT_SUPPORT`, and `NO_EXPORT_SUPPORT` where the kernel knows it: a guest names only inodes that
//!   it holds, so a file handle that outlived the caches of its kernel could not be used.
//! * No `WRITEBACK_CACHE`: a write that returned in the guest is in a snapshot. No DAX
//!   (`MAP_ALIGNMENT`, `HAS_INODE_DAX`): there is no memory of this process that a guest could map.
//! * No `POSIX_LOCKS`, no `FLOCK_LOCKS`: locks are the guest's kernel's, which is right for its own programs.

use super::options::Caching;
use crate::dispatch::Errno;
use crate::dispatch::wire::codec::flags::init as flag;
use crate::dispatch::wire::codec::{Dialect, InitIn, InitOut, PAYLOAD_MAX};

/// The protocol's major version.
const MAJOR: u32 = 7;
/// The newest minor version that is spoken here (Linux 6.18).
const MINOR: u32 = 45;
/// The oldest: that of the first Linux with virtio-fs (5.4).
const MINOR_MIN: u32 = 31;
/// Requests that a guest may have under way in the background (read-ahead).
const BACKGROUND_MAX: u16 = 64;
/// Bytes of a page, as `max_pages` counts them.
const PAGE: u32 = 4096;

/// Each is agreed on only if the guest's kernel offers it.
const WANTED: u64 = flag::ASYNC_READ
    | flag::BIG_WRITES
    | flag::MAX_PAGES
    | flag::INIT_EXT
    // The guest's kernel checks ACLs; mode and ACL are kept in step here, and umask or default ACL applied.
    | flag::POSIX_ACL
    | flag::DONT_MASK
    // Set-id bits and capabilities are cleared here, which saves a request before each write.
    | flag::HANDLE_KILLPRIV_V2
    | flag::PARALLEL_DIROPS
    | flag::DO_READDIRPLUS
    | flag::READDIRPLUS_AUTO
    | flag::CACHE_SYMLINKS
    | flag::NO_OPENDIR_SUPPORT
    | flag::SETXATTR_EXT
    | flag::NO_EXPORT_SUPPORT;

/// What an INIT is answered with, and what holds from then on: nothing yet if the guest's kernel has to
/// ask again with another major version.
pub(super) fn negotiate(
    offer: &InitIn,
    caching: Caching,
) -> Result<(InitOut, Option<Dialect>), Errno> {
    if offer.major < MAJOR || (offer.major == MAJOR && offer.minor < MINOR_MIN) {
        return Err(Errno(libc::EPROTO));
    }
    let mut answer = InitOut {
        major: MAJOR,
        minor: MINOR,
        max_readahead: 0,
        flags: 0,
        max_background: BACKGROUND_MAX,
        congestion_threshold: BACKGROUND_MAX / 4 * 3,
        max_write: PAYLOAD_MAX,
        time_granularity: 1,
        max_pages: u16::try_from(PAYLOAD_MAX / PAGE).unwrap_or(u16::MAX),
    };
    if offer.major > MAJOR {
        return Ok((answer, None));
    }
    answer.minor = offer.minor.min(MINOR);
    answer.max_readahead = offer.max_readahead;
    answer.flags = offer.flags & (WANTED | caching.flags());
    let dialect = Dialect {
        setxattr_ext: answer.flags & flag::SETXATTR_EXT != 0,
    };
    Ok((answer, Some(dialect)))
}

impl Caching {
    /// How the guest's kernel is to notice that the pages it has of a file are not right any more, and
    /// whether it may send the parts of one write at once.
    fn flags(self) -> u64 {
        match self {
            // Never: nobody else writes.
            Self::OnlyWriter => flag::EXPLICIT_INVAL_DATA | flag::ASYNC_DIO,
            // When it sees another time of modification, or size.
            Self::Shared { .. } => flag::AUTO_INVAL_DATA,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const EVERYTHING: InitIn = InitIn {
        major: 7,
        minor: 31,
        max_readahead: 131_072,
        flags: u64::MAX,
    };
    const SHARED: Caching = Caching::Shared {
        ttl: Duration::from_secs(1),
    };

    #[test]
    fn only_what_is_wanted_and_offered_is_agreed_on() {
        let (all, agreed) = negotiate(&EVERYTHING, SHARED).unwrap();
        assert_eq!((all.major, all.minor), (7, 31));
        assert_eq!(all.flags, WANTED | flag::AUTO_INVAL_DATA);
        assert_eq!(
            all.flags & (flag::WRITEBACK_CACHE | flag::EXPORT_SUPPORT),
            0
        );
        assert_eq!((all.max_write, all.max_pages), (1 << 20, 256));
        assert!(agreed.unwrap().setxattr_ext);
        let (alone, _) = negotiate(&EVERYTHING, Caching::OnlyWriter).unwrap();
        let more = flag::EXPLICIT_INVAL_DATA | flag::ASYNC_DIO;
        assert_eq!(alone.flags, WANTED | more);
        let nothing = InitIn {
            flags: 0,
            minor: 99,
            ..EVERYTHING
        };
        let (none, agreed) = negotiate(&nothing, SHARED).unwrap();
        assert_eq!((none.flags, none.minor), (0, 45));
        assert!(!agreed.unwrap().setxattr_ext);
    }

    #[test]
    fn old_protocols_are_refused_and_new_ones_told_to_ask_again() {
        for (major, minor) in [(7, 30), (6, 99), (0, 0)] {
            let old = InitIn {
                major,
                minor,
                ..EVERYTHING
            };
            assert_eq!(negotiate(&old, SHARED), Err(Errno(libc::EPROTO)));
        }
        let new = InitIn {
            major: 8,
            ..EVERYTHING
        };
        let (answer, agreed) = negotiate(&new, SHARED).unwrap();
        assert_eq!((answer.major, answer.flags, agreed), (7, 0, None));
    }
}
