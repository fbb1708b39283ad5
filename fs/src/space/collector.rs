//! The collector: a thread that gives space back when something was deleted, and the same by hand.

use std::collections::HashSet;
use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use serde::Serialize;
use thiserror::Error;

use super::hidden::Hidden;
use super::needed::Needed;
use super::remains::{Going, Kept, Remains};
use super::shape::{Chain, Shape};
use super::{doomed, merge, prune};
use crate::background::Background;
use crate::catalog::{CatalogError, FamilyRecord, LayerRow};
use crate::change::{Change, Row};
use crate::core::Core;
use crate::dispatch::OpError;
use crate::id::{Ino, LayerId};
use crate::lock::{Mutex, MutexGuard, rank};

/// Why not everything could be given back. What was, stays so, and the rest is found again.
#[derive(Debug, Error)]
pub enum CollectError {
    /// Whoever wanted it does not want it any more.
    #[error("giving space back was interrupted; it goes on in the background")]
    Interrupted,
    /// The store failed.
    #[error("cannot give space back")]
    Store(#[source] Box<OpError>),
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl From<OpError> for CollectError {
    fn from(error: OpError) -> Self {
        match error {
            OpError::Catalog(error) => Self::Catalog(error),
            error => Self::Store(Box::new(error)),
        }
    }
}

/// What was given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CollectReport {
    /// Layers removed that nothing could reach.
    pub layers: u64,
    /// Layers handed down to the one that stood on them.
    pub merged: u64,
    /// Objects removed.
    pub objects: u64,
    /// Bytes of objects that were freed on the disk.
    pub bytes: u64,
    /// How long it took, in microseconds.
    pub elapsed_us: u64,
}

/// One transaction after the other.
pub(super) struct Steps<'a> {
    pub(super) report: CollectReport,
    progress: Progress<'a>,
    /// Objects counted so far by one who only wants to know: then nothing is changed.
    counted: Option<Going>,
    /// Transactions so far.
    applied: u64,
    /// What is to be removed from the disk: one sync of the log serves many.
    remains: Remains,
    /// Objects that keep the space of blocks that nobody sees.
    kept: Kept,
}

/// Objects, and parts of them, removed after one sync of the log.
const GATHERED: usize = 512;

impl<'a> Steps<'a> {
    fn new(progress: Progress<'a>) -> Self {
        Self {
            report: CollectReport::default(),
            progress,
            counted: None,
            applied: 0,
            remains: Remains::default(),
            kept: Kept::default(),
        }
    }

    /// Steps that only count.
    pub(super) fn dry(progress: Progress<'a>) -> Self {
        Self {
            counted: Some(Going::default()),
            ..Self::new(progress)
        }
    }
}

/// Is told what was done so far and how long the last step took; says whether to go on.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(&CollectReport, Duration) -> ControlFlow<()>;

impl Steps<'_> {
    /// Removes what was gathered. What fails is gathered still.
    pub(super) fn flush(&mut self, core: &Core) -> Result<(), CollectError> {
        let objects = self.remains.objects.len() as u64;
        self.report.bytes += self.remains.remove(core, &mut self.kept)?;
        self.report.objects += objects;
        Ok(())
    }

    /// Commits a step, and removes then what it left on the disk.
    pub(super) fn apply(
        &mut self,
        core: &Core,
        change: &Change,
        remains: Remains,
    ) -> Result<(), CollectError> {
        let began = Instant::now();
        match &mut self.counted {
            Some(counted) => {
                let before = counted.len();
                self.report.bytes += remains.count(core, counted).map_err(OpError::from)?;
                self.report.objects += (counted.len() - before) as u64;
            }
            None => {
                core.catalog.apply(change)?;
                self.applied += u64::from(!change.is_empty());
                self.remains.append(remains);
                if self.remains.len() >= GATHERED {
                    self.flush(core)?;
                }
            }
        }
        if (self.progress)(&self.report, began.elapsed()).is_break() {
            return Err(CollectError::Interrupted);
        }
        Ok(())
    }
}

/// What one who collects at a time knows.
#[derive(Debug, Default)]
pub(crate) struct Collecting {
    /// Chains that have been looked at, and did not change since: those on a live layer are looked at
    /// again when somebody asks, or when it is frozen.
    settled: HashSet<Chain>,
    hidden: Hidden,
}

impl Collecting {
    /// Nothing was looked at. After a process that was killed objects may keep the space of blocks that
    /// nobody sees.
    pub(crate) fn new(crashed: bool) -> Self {
        Self {
            settled: HashSet::new(),
            hidden: Hidden::new(crashed),
        }
    }

    /// Every chain is to be looked at.
    pub(crate) fn look_again(&mut self) {
        self.settled.clear();
    }

    /// So is every object that may keep the space of blocks that nobody sees.
    pub(crate) fn look_at_hidden(&mut self) {
        self.hidden.look_at_all();
    }
}

/// Layers that stay as they are, whatever their rows say. Asked for after those were read.
fn used(core: &Core, layers: &[FamilyRecord]) -> Result<HashSet<LayerId>, CatalogError> {
    let given_up = |layer: &&FamilyRecord| matches!(layer.what, LayerRow::Left | LayerRow::Base);
    let left = layers.iter().filter(given_up).map(|layer| layer.id);
    let left: HashSet<LayerId> = left.collect();
    let in_use = core.uses.note_left(|layer| left.contains(layer));
    Ok(Needed::read(core)?.with(core, layers, in_use))
}

/// Gives back what can be, until nothing is left to do.
pub(crate) fn collect(
    core: &Core,
    collecting: &mut Collecting,
    progress: Progress<'_>,
) -> Result<CollectReport, CollectError> {
    let began = Instant::now();
    // They keep layers.
    crate::land::host::forget_unknown(core);
    let mut steps = Steps::new(progress);
    // What an earlier attempt could not remove.
    let doomed = core.catalog.doomed_objects()?.into_iter();
    steps.remains.objects = doomed.map(|id| (Ino(0), id)).collect();
    let mut collected = Ok(true);
    while let Ok(true) = collected {
        collected = round(core, collecting, &mut steps);
    }
    if collected.is_ok() {
        collected = collecting
            .hidden
            .give_back(core, &mut steps)
            .map(|()| false);
    }
    // Also what was left when it was interrupted.
    let flushed = steps.flush(core);
    // What was not reached of it is found again as well.
    let blocks = steps.remains.blocks.iter().map(|&(id, _)| id);
    collecting.hidden.keep(blocks.chain(steps.kept.objects));
    flushed?;
    collected?;
    if let Some(error) = steps.kept.failed {
        return Err(OpError::from(error).into());
    }
    let mut report = steps.report;
    report.elapsed_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    Ok(report)
}

/// One look at the layers, and what it says is to be done; says whether there was anything.
fn round(
    core: &Core,
    collecting: &mut Collecting,
    steps: &mut Steps<'_>,
) -> Result<bool, CollectError> {
    let applied = steps.applied;
    // A layer that is frozen while this looks asks for another look.
    core.collect.live_chains.store(true, Ordering::Release);
    let families = core.catalog.families()?;
    let shape = Shape::of(&families, &used(core, &families)?);
    if !shape.chains.iter().any(|chain| chain.live) {
        core.collect.live_chains.store(false, Ordering::Release);
    }
    // One that is being taken in has to wait for that to stop.
    let (gone, _): (Vec<LayerId>, Vec<LayerId>) = shape
        .unreachable
        .iter()
        .partition(|&&id| core.bases.retire(id));
    let mut doom = Change::new();
    for &id in &gone {
        doom.push(Row::DoomLayer { id });
    }
    if !doom.is_empty() {
        steps.apply(core, &doom, Remains::default())?;
    }
    let mut doomed = [gone, shape.doomed].concat();
    // What stands on others goes before them.
    doomed.sort_unstable_by(|a, b| b.cmp(a));
    let mut any = false;
    let mut full = None;
    if let Some(last) = families.last() {
        for layer in doomed {
            any |= if_it_fits(doomed::remove(core, layer, last.id, steps), &mut full)?;
        }
    }
    let chains: HashSet<&Chain> = shape.chains.iter().collect();
    collecting.settled.retain(|chain| chains.contains(chain));
    for chain in &shape.chains {
        if collecting.settled.contains(chain) {
            continue;
        }
        let settled = settle(core, chain, steps);
        let fits = settled.is_ok();
        any |= if_it_fits(settled, &mut full)?;
        if fits {
            collecting.settled.insert(chain.clone());
        }
    }
    steps.flush(core)?;
    match full {
        // What was removed may have made room.
        Some(_) if steps.applied > applied => Ok(true),
        Some(error) => Err(error),
        None => Ok(any),
    }
}

/// On a full disk the others may free what this one needs.
fn if_it_fits(
    done: Result<bool, CollectError>,
    full: &mut Option<CollectError>,
) -> Result<bool, CollectError> {
    match done {
        Err(CollectError::Catalog(error)) if error.is_full() => {
            *full = Some(error.into());
            Ok(false)
        }
        done => done,
    }
}

/// Removes what is hidden in a chain, and hands down what is left; says whether the chain is
/// another now.
fn settle(core: &Core, chain: &Chain, steps: &mut Steps<'_>) -> Result<bool, CollectError> {
    let links: HashSet<LayerId> = chain.links.iter().copied().collect();
    let mut changed = false;
    for (link, layer, live) in chain.steps() {
        let whole = prune::prune(core, layer, live, &links, steps)?;
        if whole {
            changed |= merge::hand_down(core, link, layer, steps)?;
        }
    }
    Ok(changed)
}

/// How the thread is told that there may be something to do.
#[derive(Debug)]
pub(crate) struct Signal {
    send: Sender<()>,
    receive: Receiver<()>,
    closing: AtomicBool,
    /// How many wait to do it themselves.
    waiting: AtomicUsize,
    /// How many want it to be put off.
    held: AtomicUsize,
    /// Something stands on links that only hides all of them when it is frozen.
    live_chains: AtomicBool,
}

impl Default for Signal {
    fn default() -> Self {
        // One that waits serves all that come after it.
        let (send, receive) = bounded(1);
        Self {
            send,
            receive,
            closing: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            live_chains: AtomicBool::new(false),
        }
    }
}

impl Signal {
    /// Takes the work over from the thread, which does it slowly.
    pub(crate) fn instead<'a>(
        &self,
        collecting: &'a Mutex<{ rank::CONTROL }, Collecting>,
    ) -> MutexGuard<'a, Collecting> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let taken = collecting.lock();
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        taken
    }

    /// Keeps the thread still, but for the step that is under way, until what is returned is dropped.
    pub(crate) fn hold(&self) -> Held<'_> {
        self.held.fetch_add(1, Ordering::AcqRel);
        Held(self)
    }

    /// A live layer was frozen.
    pub(crate) fn frozen(&self) {
        if self.live_chains.load(Ordering::Acquire) {
            self.ask();
        }
    }

    /// Something may be given back.
    pub(crate) fn ask(&self) {
        match self.send.try_send(()) {
            Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
        }
    }
}

/// See [`Signal::hold`].
pub(crate) struct Held<'a>(&'a Signal);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::AcqRel);
        self.0.ask();
    }
}

/// Starts the thread. It ends after the step that is under way.
pub(crate) fn start(core: &Arc<Core>) -> io::Result<Background> {
    Background::start(core, "floe-space", run, |core| {
        core.collect.closing.store(true, Ordering::Release);
        core.collect.ask();
    })
}

fn run(core: &Core) {
    let signal = &core.collect;
    let is_closing = || signal.closing.load(Ordering::Acquire);
    let is_held = || signal.held.load(Ordering::Acquire) > 0;
    while let Ok(()) = signal.receive.recv() {
        let mut pace = |_: &CollectReport, took: Duration| {
            if is_closing() || signal.waiting.load(Ordering::Acquire) > 0 || is_held() {
                return ControlFlow::Break(());
            }
            // Half of the time is for those who wait for something.
            std::thread::sleep(took);
            ControlFlow::Continue(())
        };
        if is_closing() {
            return;
        }
        if is_held() {
            // Whoever holds it asks at the end.
            continue;
        }
        let work = || collect(core, &mut core.collecting.lock(), &mut pace);
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(report)) => tracing::debug!(?report, "space was given back"),
            // Whoever took it over may not come to its end.
            Ok(Err(CollectError::Interrupted)) => signal.ask(),
            // It is tried again when something else is deleted, and when the store is opened.
            Ok(Err(error)) => tracing::warn!(%error, "space is not free yet"),
            Err(_) => tracing::error!("panic while giving space back"),
        }
    }
}
