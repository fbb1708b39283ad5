//! How a connection is served.

use std::time::Duration;

use crate::dispatch::LONG;

/// What a guest's kernel may believe without asking again. It cannot be told that something changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Others may write as well: a mount on the host, another guest, a rollback or a landing.
    Shared {
        /// For how long names and attributes may be believed. Pages go with attributes that changed.
        ttl: Duration,
    },
    /// Nobody but this guest changes anything while it is connected, and the workspace is not rolled back.
    /// Who says so and is wrong has a guest that works on what is not there any more.
    OnlyWriter,
}

impl Caching {
    /// For how long names and attributes may be believed.
    pub(super) fn ttl(self) -> Duration {
        match self {
            Self::Shared { ttl } => ttl,
            Self::OnlyWriter => LONG,
        }
    }
}

/// How a connection is served.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Refuse every change with `EROFS`, and every open for writing.
    pub read_only: bool,
    /// What the guest's kernel may believe.
    pub caching: Caching,
    /// Threads that serve requests, at least one. So many requests are served at the same time; what waits
    /// for a disk has threads of its own besides.
    pub threads: usize,
    /// Inodes that the guest may hold references to; looking up more fails with `ENOMEM`. A Linux guest
    /// takes about 1 KiB of its own memory for each, this process two entries of 16 bytes in hash tables:
    /// the guest's memory in KiB is a figure that no honest guest reaches.
    pub nodes_max: usize,
    /// Files that the guest may have open, each counted as often as it is; opening more fails with
    /// `ENFILE`.
    pub opens_max: usize,
}

impl Default for ServerOptions {
    /// For a guest of 1 GiB that does not write alone: names and attributes are believed for a second.
    fn default() -> Self {
        Self {
            read_only: false,
            caching: Caching::Shared {
                ttl: Duration::from_secs(1),
            },
            threads: 4,
            nodes_max: 1 << 20,
            opens_max: 1 << 20,
        }
    }
}
