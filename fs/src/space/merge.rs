//! Handing what is left of a link down to the layer that stands on it.

use super::collector::{CollectError, Steps};
use super::remains::Remains;
use crate::change::{Change, Name, Row};
use crate::core::Core;
use crate::id::{Ino, LayerId};

/// Inodes that a link may have to be handed down. One with more stays: it costs nothing where it is,
/// and would be handed down again and again in a chain that is deleted from its beginning.
const MOST: usize = 512;
/// Inodes, and names, in one transaction.
const BATCH: usize = 32;
/// Extents in one transaction, but for those of one inode.
const ROWS: usize = 256;

/// Hands a link down, unless that is too much; says whether it is gone. The layer below is frozen,
/// and hides nothing of the link any more.
pub(super) fn hand_down(
    core: &Core,
    link: LayerId,
    child: LayerId,
    steps: &mut Steps<'_>,
) -> Result<bool, CollectError> {
    let pinned = core.catalog.pin()?;
    let nothing: (Ino, Name) = (Ino(0), Name::from(&b""[..]));
    let queries = pinned.queries();
    if queries.written_after(link, Ino(0), MOST + 1)?.len() > MOST
        || queries.removed_names(link, &nothing, MOST + 1)?.len() > MOST
    {
        return Ok(false);
    }
    drop(pinned);
    loop {
        let mut change = Change::new();
        {
            let pinned = core.catalog.pin()?;
            let queries = pinned.queries();
            let mut weight = 0;
            for ino in queries.written_after(link, Ino(0), BATCH)? {
                weight += queries.extents_in(ino, link, ROWS)?.len();
                if weight > ROWS && !change.is_empty() {
                    break;
                }
                for (parent, name) in queries.names_in(ino, link)? {
                    change.push(Row::MoveEntry {
                        parent,
                        name,
                        from: link,
                        to: child,
                    });
                }
                change.push(Row::MoveInode {
                    ino,
                    from: link,
                    to: child,
                });
            }
            if change.is_empty() {
                for (parent, name) in queries.removed_names(link, &nothing, BATCH)? {
                    change.push(Row::MoveEntry {
                        parent,
                        name,
                        from: link,
                        to: child,
                    });
                }
            }
        }
        if change.is_empty() {
            break;
        }
        steps.apply(core, &change, Remains::default())?;
    }
    let drop = Change::from(Row::DropLayer {
        id: link,
        child: Some(child),
    });
    steps.apply(core, &drop, Remains::default())?;
    steps.report.merged += 1;
    Ok(true)
}
