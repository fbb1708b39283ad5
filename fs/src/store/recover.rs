//! Putting in order what a crash left behind, when a store is opened.

use tracing::warn;

use crate::base::host_inode;
use crate::catalog::SnapshotQuery;
use crate::change::{Change, Row};
use crate::core::Core;
use crate::dispatch::OpError;
use crate::engine::{reap_unlinked, remove_doomed};
use crate::image;

/// Puts in order what the last process left behind; each step is safe to repeat. What does not fit
/// on a full disk waits for the next time: files can only be removed in a store that is open.
pub(super) fn recover(core: &Core, crashed: bool) -> Result<(), OpError> {
    let if_it_fits = |done: Result<(), OpError>| match done {
        Err(OpError::Catalog(error)) if error.is_full() => {
            warn!(%error, "the disk is full: not everything could be put in order");
            Ok(())
        }
        done => done,
    };
    for workspace in core.catalog.workspaces(None)? {
        if_it_fits(reap_unlinked(core, workspace.layer))?;
    }
    for layer in core.catalog.abandoned_layers()? {
        let doom = Change::from(Row::DoomLayer { id: layer });
        if_it_fits(core.catalog.apply(&doom).map_err(OpError::from))?;
    }
    if_it_fits(remove_doomed(core))?;
    let with_image = SnapshotQuery {
        memory: Some(true),
        ..SnapshotQuery::default()
    };
    let known = core.catalog.snapshots(&with_image)?;
    let known = known.into_iter().map(|snapshot| snapshot.id).collect();
    // What is left takes room, and does no harm.
    if let Err(error) = image::sweep(&core.dir, &known) {
        warn!(%error, "images that belong to nothing stay");
    }
    if crashed {
        if_it_fits(sweep(core))?;
    }
    Ok(())
}

/// Removes objects that no row knows of: made for a change that was not committed, or for one that
/// a power failure took back. Not those that extents name: their row is lost, and a repair can put it
/// back.
fn sweep(core: &Core) -> Result<(), OpError> {
    core.objects.remove_aside()?;
    let known = core.catalog.object_ids()?;
    let (mut last, mut unknown) = (None, Vec::new());
    for id in core.objects.on_disk()? {
        if host_inode(id).is_none() {
            last = last.max(Some(id));
        }
        if !known.contains(&id) {
            unknown.push(id);
        }
    }
    if !unknown.is_empty() {
        let named = core.catalog.named_objects()?;
        for id in unknown {
            if named.contains(&id) {
                warn!(object = id.0, "an object that extents name has no row");
                continue;
            }
            tracing::info!(object = id.0, "removing an object that belongs to nothing");
            core.objects.remove(id)?;
        }
    }
    last.map_or(Ok(()), |id| Ok(core.numbers.skip_object(id)?))
}
