//! Adoptions under way: each in a thread of its own that goes on whoever waits for it, and that
//! the next daemon goes on with if this one ends first.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use floe_fs::id::LayerId;
use floe_fs::{AdoptProgress, AdoptReport, Store};
use parking_lot::{Condvar, Mutex};
use tracing::{info, warn};

use crate::error::{ApiError, ErrorKind};

/// How far an adoption is, and how it ended.
#[derive(Clone, Debug, Default)]
struct News {
    progress: AdoptProgress,
    ended: Option<Result<AdoptReport, ApiError>>,
}

/// One adoption.
pub(crate) struct Adoption {
    news: Mutex<News>,
    changed: Condvar,
}

/// An adoption and its thread.
type Running = (Arc<Adoption>, JoinHandle<()>);

/// Every adoption of a store.
pub(crate) struct Adoptions {
    store: Arc<Store>,
    stop: Arc<AtomicBool>,
    running: Mutex<HashMap<LayerId, Running>>,
}

impl Adoptions {
    /// Goes on with what an earlier daemon began.
    pub(super) fn start(store: &Arc<Store>) -> Self {
        let adoptions = Self {
            store: Arc::clone(store),
            stop: Arc::new(AtomicBool::new(false)),
            running: Mutex::new(HashMap::new()),
        };
        for base in store.unfinished_adoptions() {
            if let Err(error) = adoptions.begin(base) {
                warn!(error = error.error, "an adoption cannot go on");
            }
        }
        adoptions
    }

    /// Begins to adopt a base, or joins whoever is at it.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn begin(&self, base: LayerId) -> Result<Arc<Adoption>, ApiError> {
        let mut running = self.running.lock();
        running.retain(|_, (adoption, _)| adoption.news.lock().ended.is_none());
        if let Some((adoption, _)) = running.get(&base) {
            return Ok(Arc::clone(adoption));
        }
        let adoption = Arc::new(Adoption {
            news: Mutex::new(News::default()),
            changed: Condvar::new(),
        });
        let thread = std::thread::Builder::new()
            .name("floe-adopt".to_owned())
            .spawn({
                let (store, stop) = (Arc::clone(&self.store), Arc::clone(&self.stop));
                let adoption = Arc::clone(&adoption);
                move || adoption.run(&store, base, &stop)
            })
            .map_err(|error| {
                ApiError::new(ErrorKind::Failed, "cannot start a thread").caused_by(&error)
            })?;
        running.insert(base, (Arc::clone(&adoption), thread));
        Ok(adoption)
    }

    /// Stops what is under way; the next daemon goes on with it.
    pub(super) fn end(&self) {
        self.stop.store(true, Ordering::Release);
        for (_, (_, thread)) in self.running.lock().drain() {
            if thread.join().is_err() {
                warn!("an adoption panicked; see above");
            }
        }
    }
}

impl Adoption {
    fn run(&self, store: &Store, base: LayerId, stop: &AtomicBool) {
        let ended = store.adopt(base, &mut |progress| {
            self.news.lock().progress = *progress;
            if stop.load(Ordering::Acquire) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        match &ended {
            Ok(report) => info!(?report, "a base was adopted"),
            Err(error) => warn!(%error, "an adoption ended early"),
        }
        self.news.lock().ended = Some(ended.map_err(ApiError::from));
        self.changed.notify_all();
    }

    /// Waits for a while: how far it is, or how it ended.
    pub(crate) fn wait(
        &self,
        at_most: Duration,
    ) -> Result<Result<AdoptReport, ApiError>, AdoptProgress> {
        let mut news = self.news.lock();
        if news.ended.is_none() {
            self.changed.wait_for(&mut news, at_most);
        }
        match &news.ended {
            Some(ended) => Ok(ended.clone()),
            None => Err(news.progress),
        }
    }
}
