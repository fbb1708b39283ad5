//! One sandbox in this daemon: its row, and its processes while it has some.
//!
//! Invariants: whoever changes a sandbox holds its `inner`; the row is written before what it says is
//! acted on, and again when that is done; `agent` is there exactly while the processes can answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use floe_fs::{SandboxRecord, SandboxState, Store};
use parking_lot::{Mutex, RwLock};
use sha2::{Digest, Sha256};

use super::engine::Engine;
use super::process::Slot;
use super::spec::Spec;
use crate::agent::Agent;
use crate::error::ApiError;

/// See the module.
pub(super) struct Entry {
    pub(super) id: String,
    /// Whether it is a virtual machine.
    pub(super) is_vm: bool,
    pub(super) inner: Mutex<Inner>,
    /// What its files and processes are guarded with, if they are.
    pub(super) token: Option<Token>,
    /// For requests that only talk to the agent, and wait for nothing else.
    pub(super) agent: RwLock<Option<Agent>>,
    /// How many wait for `inner` to end it: what takes long under that lock and can be given up is.
    ending: AtomicUsize,
    /// How many wait for `inner` to give it more time: it is not ended before they had their turn.
    extending: AtomicUsize,
    /// Who waits for it to go on, one at a time: each takes a thread.
    pub(super) waking: tokio::sync::Mutex<()>,
}

/// A secret, and what it is found by.
pub(super) struct Token {
    pub(super) text: String,
    pub(super) digest: [u8; 32],
}

/// What is changed under the lock.
pub(super) struct Inner {
    pub(super) record: SandboxRecord,
    pub(super) running: Option<Running>,
    /// How often it did not come to rest when its time was over.
    pub(super) restless: u32,
}

/// The processes of a sandbox and what they stand on.
pub(super) struct Running {
    // Given back only when the processes have ended and the workspace is unmounted.
    pub(super) engine: Engine,
    pub(super) slot: Slot,
    /// Tells this start from others.
    pub(super) number: u64,
}

impl Entry {
    pub(super) fn new(record: SandboxRecord) -> Arc<Self> {
        let spec = Spec::of(&record).ok();
        Arc::new(Self {
            id: record.id.clone(),
            is_vm: spec.as_ref().is_some_and(|spec| spec.vm.is_some()),
            // A row that cannot be read lets nobody in.
            token: spec.and_then(|spec| spec.token).map(|text| Token {
                digest: Sha256::digest(&text).into(),
                text,
            }),
            inner: Mutex::new(Inner {
                record,
                running: None,
                restless: 0,
            }),
            agent: RwLock::new(None),
            ending: AtomicUsize::new(0),
            extending: AtomicUsize::new(0),
            waking: tokio::sync::Mutex::new(()),
        })
    }

    /// Says that somebody is about to end it, until the guard is dropped: to be had before `inner` is waited for.
    pub(super) fn to_be_ended(&self) -> Waits<'_> {
        Waits::of(&self.ending)
    }

    /// Says that somebody is about to give it more time, as [`Self::to_be_ended`].
    pub(super) fn to_be_extended(&self) -> Waits<'_> {
        Waits::of(&self.extending)
    }

    /// Whether somebody is about to.
    pub(super) fn is_to_be_extended(&self) -> bool {
        self.extending.load(Ordering::Acquire) > 0
    }

    /// Whether somebody is about to.
    pub(super) fn is_to_be_ended(&self) -> bool {
        self.ending.load(Ordering::Acquire) > 0
    }
}

/// See [`Entry::to_be_ended`].
pub(super) struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn of(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Inner {
    /// Writes the state that the sandbox is in from now on, or is about to be in.
    ///
    /// # Errors
    /// When the row cannot be written; it is as before then.
    pub(super) fn set(
        &mut self,
        store: &Store,
        state: SandboxState,
        reason: Option<String>,
    ) -> Result<(), ApiError> {
        self.write(store, |record| {
            record.state = state;
            record.reason = reason;
        })
    }

    /// Says what the sandbox is, whatever becomes of the row: that is written again with the next change,
    /// and a daemon that comes before that finds the truth out.
    pub(super) fn put(&mut self, store: &Store, state: SandboxState, reason: Option<String>) {
        if let Err(error) = self.set(store, state, reason.clone()) {
            tracing::error!(
                sandbox = self.record.id,
                error = error.error,
                "a sandbox's row is behind"
            );
            self.record.state = state;
            self.record.reason = reason;
        }
    }

    /// Changes the row.
    ///
    /// # Errors
    /// When it cannot be written; it is as before then.
    pub(super) fn write(
        &mut self,
        store: &Store,
        change: impl FnOnce(&mut SandboxRecord),
    ) -> Result<(), ApiError> {
        let mut changed = self.record.clone();
        change(&mut changed);
        store.put_sandbox(&changed)?;
        self.record = changed;
        Ok(())
    }
}
