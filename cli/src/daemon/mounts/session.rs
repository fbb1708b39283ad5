//! The file systems of one slot: what the kernel has of a workspace or snapshot.
//!
//! There are two at most: one to work in, and of a workspace one only to look at, beside it or beside a
//! virtual machine. The second believes nothing that the first may change, and holds references of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use floe_fs::dispatch::fuser::{FoundMount, IdShift, Mount};
use floe_fs::dispatch::{Dispatch, KernelCache, Onlooker, OnlookerCache};
use floe_fs::{Attachment, View};

use super::Subject;
use crate::daemon::guard::Guarded;

/// One superblock.
pub(super) struct Session {
    pub(super) number: u64,
    /// How users are shown, on every directory of it.
    pub(super) id_shift: Option<IdShift>,
    // Dropped in this order: the engine stops using the kernel's cache before the mount goes.
    pub(super) _attachment: Attachment,
    pub(super) _guarded: Option<Guarded>,
    pub(super) mount: Mount,
}

/// Those of one slot.
#[derive(Default)]
pub(super) struct Sessions {
    working: Option<Session>,
    looking: Option<Session>,
}

impl Sessions {
    /// The one for a subject.
    pub(super) fn of(&mut self, subject: &Subject) -> &mut Option<Session> {
        if subject.is_onlooker() {
            &mut self.looking
        } else {
            &mut self.working
        }
    }

    /// The one to work in.
    pub(super) fn working(&self) -> Option<&Session> {
        self.working.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.working.iter().chain(&self.looking)
    }

    /// The one that is on a directory.
    pub(super) fn on(&self, dir: &Path) -> Option<&Session> {
        self.iter()
            .find(|session| session.mount.directories().iter().any(|at| at == dir))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.working.is_none() && self.looking.is_none()
    }

    /// Where they are, by the kernel's own table.
    pub(super) fn directories(&self) -> Vec<PathBuf> {
        self.iter()
            .flat_map(|session| session.mount.directories())
            .collect()
    }

    /// Takes out the one of a number, with where it is still mounted.
    pub(super) fn take(&mut self, number: u64) -> Option<(Session, Vec<FoundMount>)> {
        let has = |session: &mut Session| session.number == number;
        let taken = self.working.take_if(has);
        let session = taken.or_else(|| self.looking.take_if(has))?;
        let mounts = session.mount.mounts();
        Some((session, mounts))
    }

    /// Which of them is on a directory.
    pub(super) fn meant_by(&self, dir: &Path) -> Meant {
        let is_on = |session: &Option<Session>| {
            let mut on = session.iter().flat_map(|one| one.mount.directories());
            on.any(|at| at == dir)
        };
        Meant {
            working: is_on(&self.working),
            looking: is_on(&self.looking),
        }
    }

    /// Those that are on any directory.
    pub(super) fn mounted(&self) -> Meant {
        let is_on = |session: &Option<Session>| {
            let on = session.iter().flat_map(|one| one.mount.directories());
            on.count() > 0
        };
        Meant {
            working: is_on(&self.working),
            looking: is_on(&self.looking),
        }
    }

    /// Takes out those that are on no directory any more and have ended; those that are meant are waited
    /// for. If programs still use one, it stays until they are done.
    pub(super) fn settle(&mut self, meant: Meant, wait: Duration) {
        let over = |session: &mut Session, is_meant| {
            let wait = if is_meant { wait } else { Duration::ZERO };
            session.mount.directories().is_empty() && session.mount.wait_end(wait)
        };
        drop(self.working.take_if(|it| over(it, meant.working)));
        drop(self.looking.take_if(|it| over(it, meant.looking)));
    }
}

/// Which of the sessions of a slot a request is about. The other one may have been detached while it was in
/// use, and then stays as long as its users like: nobody waits for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meant {
    pub(super) working: bool,
    pub(super) looking: bool,
}

impl Meant {
    pub(super) const WORKING: Self = Self {
        working: true,
        looking: false,
    };

    /// The one for a subject.
    pub(super) fn by(subject: &Subject) -> Self {
        Self {
            working: !subject.is_onlooker(),
            looking: subject.is_onlooker(),
        }
    }
}

/// What a view asks around a snapshot or a rollback, of a mount of a subject.
pub(super) fn attached(mount: &Mount, subject: &Subject) -> Arc<dyn KernelCache> {
    let cache = mount.kernel_cache();
    if subject.is_onlooker() {
        OnlookerCache::new(cache)
    } else {
        cache
    }
}

/// What a mount of a subject serves.
pub(super) fn served(view: &Arc<View>, subject: &Subject) -> Arc<dyn Dispatch> {
    if subject.is_onlooker() {
        Arc::new(Onlooker::new(view))
    } else {
        Arc::clone(view) as Arc<dyn Dispatch>
    }
}
