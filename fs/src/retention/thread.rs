//! The thread that deletes snapshots which no rule keeps, and those that have expired.
//!
//! It is not woken by a snapshot, which would cost that as much as a part of itself: it looks once a
//! second whether there is something to look at, which takes no query.

use std::collections::{HashMap, HashSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};

use super::apply::{Found, Judging, find, find_expired, retire};
use super::clock::{Clock, Reading};
use super::rules::{Rules, SnapshotClass};
use crate::background::Background;
use crate::catalog::CatalogError;
use crate::core::Core;
use crate::id::WorkspaceId;

/// Shortest time between two looks.
const TICK: Duration = Duration::from_secs(1);
/// A look may take one part in so many of the time.
const REST: u32 = 20;
/// How long it waits after something failed.
const AFTER_FAILURE: Duration = Duration::from_secs(60);
/// Snapshots remembered until the next look; of more it looks at every workspace.
const TAKEN_MAX: usize = 4096;

/// Whose a snapshot is, and who took it.
type Taken = (WorkspaceId, SnapshotClass);

/// How the thread learns that there may be something to do.
#[derive(Debug)]
pub(crate) struct Signal {
    /// Of what snapshots were taken since the last look.
    taken: (Sender<Taken>, Receiver<Taken>),
    /// There were more.
    missed: AtomicBool,
    wake: (Sender<()>, Receiver<()>),
    closing: AtomicBool,
    /// How many want it to be put off.
    held: AtomicUsize,
    /// Somebody says that the clock is right.
    trusted: AtomicBool,
    /// Counts changes of rules.
    generation: AtomicU64,
    /// Counts what happened to snapshots besides that some were taken.
    changes: AtomicU64,
    /// Not after the next expiry, in nanoseconds since the epoch.
    next_expiry: AtomicI64,
}

impl Default for Signal {
    fn default() -> Self {
        Self {
            taken: bounded(TAKEN_MAX),
            missed: AtomicBool::new(false),
            wake: bounded(1),
            closing: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            trusted: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            // It has to be looked for.
            next_expiry: AtomicI64::new(i64::MIN),
        }
    }
}

impl Signal {
    /// A snapshot was taken.
    pub(crate) fn taken(
        &self,
        workspace: WorkspaceId,
        class: SnapshotClass,
        expires_at: Option<i64>,
    ) {
        if let Some(at) = expires_at {
            self.expires(at);
        } else if self.taken.0.try_send((workspace, class)).is_err() {
            self.missed.store(true, Ordering::Release);
        }
    }

    /// A snapshot expires then. To be told after the catalog was.
    pub(crate) fn expires(&self, at: i64) {
        self.next_expiry.fetch_min(at, Ordering::AcqRel);
    }

    /// What was said of snapshots is another now: rules may not keep this workspace's any more.
    pub(crate) fn edited(&self, workspace: WorkspaceId) {
        for class in SnapshotClass::ALL {
            self.taken(workspace, class, None);
        }
    }

    /// Rules were changed; told with the lock held under which they were, so that nothing is deleted by the
    /// old ones afterwards.
    pub(crate) fn rules_changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }

    /// Changes with the rules.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whoever had rules applied goes by the clock as it is.
    pub(crate) fn trust_clock(&self) {
        self.trusted.store(true, Ordering::Release);
    }

    /// Snapshots were deleted or edited; told with the lock held under which they were.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Changes with what there is of snapshots.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Has the thread look for nothing more, but for what it looks at, until what is returned is dropped.
    pub(crate) fn hold(&self) -> Held<'_> {
        self.held.fetch_add(1, Ordering::AcqRel);
        Held(self)
    }

    fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire) > 0
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    fn wake(&self) {
        match self.wake.0.try_send(()) {
            Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
        }
    }
}

/// See [`Signal::hold`].
pub(crate) struct Held<'a>(&'a Signal);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Starts the thread. It ends after the transaction that is under way.
pub(crate) fn start(core: &Arc<Core>) -> io::Result<Background> {
    Background::start(core, "floe-retention", run, |core| {
        core.retain.closing.store(true, Ordering::Release);
        core.retain.wake();
    })
}

fn run(core: &Core) {
    let (mut watch, mut clock) = (Watch::default(), Clock::default());
    loop {
        let began = Instant::now();
        if core.retain.trusted.swap(false, Ordering::AcqRel) {
            clock.trust();
        }
        let (now, jumped) = clock.look(Reading::now());
        if jumped {
            tracing::warn!(
                "the clock jumped forward: for an hour nothing is deleted for what it gained, \
                 or until `floe retention apply`"
            );
        }
        let look = || match core.retain.is_held() {
            true => Ok(()),
            false => watch.look(core, now),
        };
        let looked = catch_unwind(AssertUnwindSafe(look));
        let rest = if let Ok(Ok(())) = looked {
            TICK.max(began.elapsed() * REST)
        } else {
            if let Ok(Err(error)) = looked {
                tracing::warn!(%error, "snapshots that are to go were not deleted");
            } else {
                tracing::error!("panic while deleting snapshots by rules");
            }
            // All of it again.
            watch = Watch::default();
            core.retain.expires(i64::MIN);
            AFTER_FAILURE
        };
        let until = Instant::now() + rest;
        // Whoever wakes it either closes the store, or has changed rules: that waits for the rest.
        while !core.retain.is_closing() {
            match core.retain.wake.1.recv_deadline(until) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        if core.retain.is_closing() {
            return;
        }
    }
}

/// What the thread knows from one look to the next.
struct Watch {
    rules: Rules,
    /// Of these rules.
    generation: Option<u64>,
    /// Every workspace is to be looked at.
    all: bool,
    /// When snapshots become too old.
    due: HashMap<WorkspaceId, i64>,
    /// Whose snapshots would go if they were not in use.
    waiting: HashSet<WorkspaceId>,
    /// Something that expired is in use.
    expired_waits: bool,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            rules: Rules::default(),
            generation: None,
            all: true,
            due: HashMap::new(),
            waiting: HashSet::new(),
            expired_waits: false,
        }
    }
}

impl Watch {
    fn look(&mut self, core: &Core, now: i64) -> Result<(), CatalogError> {
        let signal = &core.retain;
        let generation = signal.generation();
        if self.generation != Some(generation) {
            self.rules = Rules::read(core)?;
            self.generation = Some(generation);
            self.all = true;
        }
        self.all |= signal.missed.swap(false, Ordering::AcqRel);
        let mut these: HashSet<WorkspaceId> = HashSet::new();
        for (workspace, class) in signal.taken.1.try_iter() {
            if !self.rules.of(Some(workspace), class).0.keeps_all() {
                these.insert(workspace);
            }
        }
        let some_ended = core.uses.some_ended();
        if signal.next_expiry.load(Ordering::Acquire) <= now || (some_ended && self.expired_waits) {
            self.expire(core, now)?;
        }
        if self.all {
            self.due.clear();
            self.waiting.clear();
            these = core.catalog.with_snapshots()?.into_iter().collect();
        } else {
            let due = self.due.iter().filter(|(_, at)| **at <= now);
            these.extend(due.map(|(workspace, _)| *workspace));
            if some_ended {
                these.extend(self.waiting.drain());
            }
        }
        for workspace in these {
            if signal.is_closing() {
                return Ok(());
            }
            self.due.remove(&workspace);
            self.waiting.remove(&workspace);
            if !self.rules.keep_all_of(workspace) {
                self.look_at(core, workspace, now)?;
            }
        }
        self.all = false;
        Ok(())
    }

    fn look_at(
        &mut self,
        core: &Core,
        workspace: WorkspaceId,
        now: i64,
    ) -> Result<(), CatalogError> {
        let found = find(core, workspace, &self.rules, &core.uses.all(), now)?;
        if let Some(next) = found.next {
            self.due.insert(workspace, next);
        }
        let judging = self.generation.map(|generation| Judging {
            workspace,
            rules: &self.rules,
            generation,
            now,
        });
        if self.delete(core, &found, judging)? {
            self.waiting.insert(workspace);
        }
        Ok(())
    }

    /// Deletes what has expired, and finds out when the next does.
    fn expire(&mut self, core: &Core, now: i64) -> Result<(), CatalogError> {
        // Before the catalog is asked: an expiry that is set meanwhile is not overlooked.
        core.retain.next_expiry.store(i64::MAX, Ordering::Release);
        let found = find_expired(core, &core.uses.all(), now)?;
        self.expired_waits = self.delete(core, &found, None)?;
        if let Some(next) = core.catalog.next_expiry(now)? {
            core.retain.expires(next);
        }
        Ok(())
    }

    /// Deletes what was found; says whether something waits for the end of a use.
    fn delete(
        &self,
        core: &Core,
        found: &Found,
        judging: Option<Judging<'_>>,
    ) -> Result<bool, CatalogError> {
        let go_on = || !core.retain.is_closing();
        let retired = retire(core, found, judging, &go_on)?;
        for (snapshot, why) in &retired {
            tracing::info!(id = %snapshot.id, ?why, "snapshot deleted");
        }
        // Whatever was found to be in use, or came into use since.
        let mut waits: HashSet<_> = found.in_use.iter().copied().collect();
        if retired.len() < found.going.len() {
            let used = core.uses.all();
            let layers = found.going.iter().map(|(one, _)| one.layer);
            waits.extend(layers.filter(|layer| used.contains(layer)));
        }
        let any = !waits.is_empty();
        core.uses.wait_for(waits.into_iter());
        Ok(any)
    }
}
