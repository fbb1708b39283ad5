//! The thread that hashes frozen contents in the background, and how it is told of them.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};

use super::pace::Pace;
use super::work::{Done, Work};
use crate::background::Background;
use crate::core::Core;
use crate::dispatch::OpError;
use crate::id::LayerId;
use crate::lock::{Mutex, rank};

/// How long a round waits for others to be asked for.
const GATHER: Duration = Duration::from_secs(2);
/// Frozen layers that are remembered; with more, all objects are looked at.
const LAYERS: usize = 4096;

/// What there is to look at.
#[derive(Debug, Default)]
struct Noted {
    layers: Vec<LayerId>,
    all: bool,
    /// Objects that have a checksum may not have been stored once.
    compare: bool,
}

/// How a store's contents are hashed.
pub(crate) struct Hashing {
    noted: Mutex<{ rank::LEAF }, Noted>,
    /// The thread waits to be woken.
    idle: AtomicBool,
    wake: Sender<()>,
    woken: Receiver<()>,
    closing: AtomicBool,
    /// How many do it themselves.
    instead: AtomicUsize,
    /// Bytes a second in the background; 0: none at all.
    rate: AtomicU64,
    /// Whether equal objects are stored once.
    share: AtomicBool,
    work: Mutex<{ rank::CONTROL }, Work>,
}

impl Hashing {
    /// Begins with what was left; after a process that was killed also with what it had hashed, and
    /// may not have stored once.
    pub(crate) fn new(rate: u64, share: bool, crashed: bool) -> Self {
        // One that waits serves all that come after it.
        let (wake, woken) = bounded(1);
        Self {
            noted: Mutex::new(Noted {
                layers: Vec::new(),
                all: true,
                compare: crashed,
            }),
            idle: AtomicBool::new(false),
            wake,
            woken,
            closing: AtomicBool::new(false),
            instead: AtomicUsize::new(0),
            rate: AtomicU64::new(rate),
            share: AtomicBool::new(share),
            work: Mutex::default(),
        }
    }

    /// A live layer was frozen. Waits for nothing: somebody waits for a snapshot.
    pub(crate) fn frozen(&self, layer: LayerId) {
        let mut noted = self.noted.lock();
        if noted.layers.len() < LAYERS && self.is_on() {
            noted.layers.push(layer);
        } else {
            noted.layers.clear();
            noted.all = true;
        }
        drop(noted);
        if self.is_on() && self.idle.swap(false, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Changes how it is done.
    pub(crate) fn set(&self, rate: Option<u64>, share: Option<bool>) {
        if let Some(rate) = rate {
            self.rate.store(rate, Ordering::Release);
        }
        if let Some(share) = share {
            let before = self.share.swap(share, Ordering::AcqRel);
            self.noted.lock().compare |= share && !before;
        }
        self.wake();
    }

    fn is_on(&self) -> bool {
        self.rate.load(Ordering::Acquire) > 0
    }

    fn wake(&self) {
        match self.wake.try_send(()) {
            Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
        }
    }

    /// Whether there is something to look at in the background.
    fn is_wanted(&self) -> bool {
        let share = self.share.load(Ordering::Acquire);
        let noted = self.noted.lock();
        (noted.all || (noted.compare && share) || !noted.layers.is_empty())
            && self.is_on()
            && self.instead.load(Ordering::Acquire) == 0
    }

    /// Hands on what was noted.
    fn take_noted(&self, work: &mut Work) {
        let mut noted = self.noted.lock();
        for layer in std::mem::take(&mut noted.layers) {
            work.frozen(layer);
        }
        if std::mem::take(&mut noted.all) {
            work.look_at_all();
        }
        // Whoever switches it on finds them.
        if self.share.load(Ordering::Acquire) && std::mem::take(&mut noted.compare) {
            work.compare_all();
        }
    }

    /// Does everything that there is to do, as fast as it goes. `progress` is told after each step, and
    /// says whether to go on; false is returned if it did not want to.
    pub(super) fn all_now(
        &self,
        core: &Core,
        progress: &mut dyn FnMut(&Done) -> bool,
    ) -> Result<bool, OpError> {
        let _instead = self.hold();
        {
            let mut work = self.work.lock();
            self.take_noted(&mut work);
            work.again();
        }
        let mut full = None;
        loop {
            let step = self.work.lock().step(core, true);
            let step = match step {
                // What is hashed already can be stored once all the same, and that makes room.
                Err(OpError::Catalog(error)) if error.is_full() && full.is_none() => {
                    self.work.lock().only_share();
                    full = Some(error);
                    continue;
                }
                step => step?,
            };
            let Some(done) = step else {
                return full.map_or(Ok(true), |error| Err(error.into()));
            };
            if !progress(&done) {
                return Ok(false);
            }
        }
    }

    /// Waits, but for the end, and for another rate: the pause was for the old one. Says whether to go
    /// on.
    fn pause(&self, pause: Duration) -> bool {
        let rate = self.rate.load(Ordering::Acquire);
        let until = Instant::now() + pause;
        loop {
            if self.closing.load(Ordering::Acquire) {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.woken.recv_timeout(left) {
                Ok(()) if self.rate.load(Ordering::Acquire) != rate => return true,
                // Whatever else it is for is looked at after the pause.
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    /// Waits for something to do. Says whether there is, and not the end.
    fn wait(&self) -> bool {
        loop {
            self.idle.store(true, Ordering::Release);
            if self.closing.load(Ordering::Acquire) {
                return false;
            }
            if self.is_wanted() {
                self.idle.store(false, Ordering::Release);
                return self.pause(GATHER);
            }
            if self.woken.recv().is_err() {
                return false;
            }
        }
    }

    /// One round: everything that was noted by its end. Says whether to go on afterwards.
    fn round(&self, core: &Core) -> bool {
        let mut pace = Pace::new();
        loop {
            let rate = self.rate.load(Ordering::Acquire);
            if rate == 0 || self.instead.load(Ordering::Acquire) > 0 {
                // What is left is found again.
                self.noted.lock().all = true;
                return true;
            }
            let began = Instant::now();
            let step = {
                let mut work = self.work.lock();
                self.take_noted(&mut work);
                work.step(core, self.share.load(Ordering::Acquire))
            };
            let done = match step {
                Ok(Some(done)) => done,
                Ok(None) => return true,
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, "frozen contents are not hashed yet");
                    // With the next layer that is frozen.
                    self.work.lock().look_at_all();
                    return true;
                }
            };
            let pause = pace.after(began.elapsed(), done.read, done.looked, rate);
            if pause.is_some_and(|pause| !self.pause(pause)) || self.closing.load(Ordering::Acquire)
            {
                return false;
            }
        }
    }
}

/// Keeps the thread still while it lives: somebody does it instead, or needs the store as it is.
pub(crate) struct Instead<'a>(&'a Hashing);

impl Hashing {
    /// Keeps the thread still, but for the step that is under way.
    pub(crate) fn hold(&self) -> Instead<'_> {
        self.instead.fetch_add(1, Ordering::AcqRel);
        Instead(self)
    }
}

impl Drop for Instead<'_> {
    fn drop(&mut self) {
        self.0.instead.fetch_sub(1, Ordering::AcqRel);
        self.0.noted.lock().all = true;
        self.0.wake();
    }
}

/// Starts the thread. It ends after the step that is under way.
pub(crate) fn start(core: &Arc<Core>) -> io::Result<Background> {
    Background::start(core, "floe-hash", run, |core| {
        core.hashing.closing.store(true, Ordering::Release);
        core.hashing.wake();
    })
}

fn run(core: &Core) {
    // No less important than others: it holds locks that they wait for, and one that the system does
    // not let run would hold them for long. `Pace` keeps it from being in the way.
    let hashing = &core.hashing;
    while hashing.wait() {
        let round = || hashing.round(core);
        match catch_unwind(AssertUnwindSafe(round)) {
            Ok(true) => {}
            Ok(false) => return,
            Err(_) => {
                tracing::error!("panic while hashing frozen contents");
                *hashing.work.lock() = Work::default();
                let mut noted = hashing.noted.lock();
                noted.all = true;
                noted.compare = true;
            }
        }
    }
}
