//! Hashing frozen contents, and storing equal ones once (docs/format.md, section 6).
//!
//! A thread reads the objects of layers that are not live, and remembers the hash of each block that
//! extents name. Objects that are equal become one file with several names, or share extents where the
//! disk can do that.
//!
//! Invariants:
//! * No object of a live layer is hashed or gets a second name. That a layer is not live is final, so
//!   whoever has seen it once knows it for good.
//! * Two objects become one file only after their files were found equal byte by byte and hole by
//!   hole, and while nobody can make a hole in one or remove it (`Objects::join`).
//! * A file that several objects are never gets a hole (`Objects::punch`).
//! * What fails costs nothing but space and time: each object is as good without a checksum, and with
//!   a file of its own.

mod hasher;
mod object;
mod pace;
mod share;
mod work;

use std::ops::ControlFlow;
use std::time::Instant;

use thiserror::Error;

pub(crate) use hasher::{Hashing, start};
pub(crate) use pace::serving;

use crate::catalog::CatalogError;
use crate::core::Core;
use crate::dispatch::OpError;

/// What was hashed and stored once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashReport {
    /// Objects hashed.
    pub objects: u64,
    /// Bytes read, of objects that were compared as well.
    pub bytes: u64,
    /// Objects that are stored together with an equal one now.
    pub shared: u64,
    /// Bytes on the disk that this saves; where the disk shares extents, at most.
    pub saved: u64,
    /// Objects that could not be read. They are in the log.
    pub failed: u64,
    /// How long it took, in microseconds.
    pub elapsed_us: u64,
}

/// Why not everything was hashed. What was stays so, and the rest is found again.
#[derive(Debug, Error)]
pub enum HashError {
    /// Whoever wanted it does not want it any more.
    #[error("hashing was interrupted; it goes on in the background")]
    Interrupted,
    /// The store failed.
    #[error("cannot hash frozen contents")]
    Store(#[source] Box<OpError>),
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl From<OpError> for HashError {
    fn from(error: OpError) -> Self {
        match error {
            OpError::Catalog(error) => Self::Catalog(error),
            error => Self::Store(Box::new(error)),
        }
    }
}

/// Hashes everything that is frozen and was not hashed, and stores equal objects once, whatever the
/// settings say of the background. `progress` is told after each step, and says whether to go on.
pub(crate) fn all_now(
    core: &Core,
    progress: &mut dyn FnMut(&HashReport) -> ControlFlow<()>,
) -> Result<HashReport, HashError> {
    let began = Instant::now();
    let mut report = HashReport::default();
    let whole = core.hashing.all_now(core, &mut |done| {
        report.objects += done.hashed;
        report.bytes += done.read;
        report.shared += done.shared;
        report.saved += done.saved;
        report.failed += done.failed;
        progress(&report).is_continue()
    })?;
    if !whole {
        return Err(HashError::Interrupted);
    }
    report.elapsed_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    Ok(report)
}
