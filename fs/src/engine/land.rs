//! Going over to a layer in which changes were landed.
//!
//! As in a freeze, what is visible stays so, but for the inodes that the landing touched: of those,
//! nodes and the kernel's caches are given up as in a rollback. What programs do to others while
//! this takes place is not lost.

use std::sync::atomic::Ordering;

use super::freeze::{Frozen, SnapshotSpec, replace_with};
use super::{Epoch, FreezeError, View};
use crate::core::Core;
use crate::id::{Ino, LayerId};
use crate::land::apply::Landed;

/// What became of a landing.
pub(crate) enum Swapped {
    /// It took place.
    Done,
    /// Something was changed since it was planned; nothing was done.
    Overtaken(Box<Landed>),
}

/// Freezes the live layer under a snapshot and puts the landed one on it. The caller sees to it that
/// nobody is writing to the workspace.
pub(crate) fn land_closed(
    core: &Core,
    spec: &SnapshotSpec,
    layer: LayerId,
    landed: &mut Landed,
    at: i64,
) -> Result<Frozen, FreezeError> {
    check_quota(core, spec, layer, landed)?;
    // Until it is committed, or the log could become durable before the bytes.
    let _moving = core.moving.read();
    landed.mark(&core.objects);
    let layers = (layer, layer, landed.layer);
    let rows = std::mem::take(&mut landed.change);
    replace_with(core, spec, layers, at, rows)
}

/// What is landed has to fit as what is written has to.
fn check_quota(
    core: &Core,
    spec: &SnapshotSpec,
    layer: LayerId,
    landed: &Landed,
) -> Result<(), FreezeError> {
    let quota = core.catalog.quota(spec.workspace)?;
    let (held, added) = (core.catalog.totals(layer)?, landed.usage());
    let counted = [
        ("bytes", quota.bytes, held.0, added.0),
        ("inodes", quota.inodes, held.1, added.1),
    ];
    for (what, limit, held, added) in counted {
        let wanted = held.saturating_add(added).max(0).unsigned_abs();
        if let Some(limit) = limit
            && added > 0
            && wanted > limit
        {
            return Err(FreezeError::Quota {
                what,
                wanted,
                limit,
            });
        }
    }
    Ok(())
}

impl View {
    /// Says how many mutations have begun; all of them have ended.
    pub(crate) fn settled(&self) -> u64 {
        let _gate = self.gate.write();
        self.begun.load(Ordering::Relaxed)
    }

    /// Lands what `make` makes, while no request is served. With a number of mutations from
    /// [`View::settled`], only if none has begun since.
    pub(crate) fn land<E: From<FreezeError>>(
        &self,
        spec: &SnapshotSpec,
        settled: Option<u64>,
        at: i64,
        make: impl FnOnce() -> Result<Landed, E>,
    ) -> Result<Swapped, E> {
        let mut make = Some(make);
        let mut outcome = None;
        self.transports.paused(&mut || {
            if let Some(make) = make.take() {
                outcome = Some(self.swap_landed(spec, settled, at, make));
            }
        });
        let Some(outcome) = outcome else {
            return Err(FreezeError::Invalidate(std::io::ErrorKind::Other.into()).into());
        };
        let (swapped, known) = outcome?;
        // Outside the gate: invalidating waits for pages whose requests wait at the gate.
        let told = self.transports.each(|cache| {
            match known.is_empty() && !matches!(swapped, Swapped::Done) {
                true => Ok(()),
                false => cache.invalidate(&known, &|ino, kept| self.left.settled(ino, kept)),
            }
        });
        self.left.all_settled();
        told.map_err(FreezeError::Invalidate)?;
        Ok(swapped)
    }

    /// Goes over, and returns the inodes that the kernel knows and the landing touched.
    fn swap_landed<E: From<FreezeError>>(
        &self,
        spec: &SnapshotSpec,
        settled: Option<u64>,
        at: i64,
        make: impl FnOnce() -> Result<Landed, E>,
    ) -> Result<(Swapped, Vec<Ino>), E> {
        let _gate = self.gate.write();
        let mut landed = make()?;
        if settled.is_some_and(|settled| settled != self.begun.load(Ordering::Relaxed)) {
            return Ok((Swapped::Overtaken(Box::new(landed)), Vec::new()));
        }
        let epoch = self.epoch();
        let added = landed.usage();
        let frozen = match land_closed(&self.core, spec, epoch.layer(), &mut landed, at) {
            Ok(frozen) => frozen,
            Err(error) => {
                landed.give_up(&self.core);
                return Err(error.into());
            }
        };
        self.usage.add(added);
        // Nothing in between: writes would go on into the layer that is frozen now.
        *self.epoch.write() = Epoch::new(&self.core, frozen.live);
        let known = self.kernel.all();
        let touched = landed.touched.iter().copied();
        let known: Vec<Ino> = touched
            .filter(|ino| *ino == Ino::ROOT || known.binary_search(ino).is_ok())
            .collect();
        self.left.leave(&known, &[]);
        Ok((Swapped::Done, known))
    }
}
