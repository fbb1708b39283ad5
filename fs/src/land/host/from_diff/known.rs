//! What earlier landings left on the host, as far as a workspace knows of them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::super::HostLandError;
use super::super::guard::Guard;
use super::super::run::{Landing, state};
use crate::core::Core;
use crate::id::{LayerId, WorkspaceId};

/// What is expected at paths that were landed before.
pub(super) struct Known {
    /// The layer whose state the directories have, as far as the workspace knows.
    pub(super) since: LayerId,
    /// By root and path: what was left there, if anything.
    left: HashMap<(Vec<u8>, Vec<u8>), Option<Guard>>,
}

/// A path as it is in the catalog.
pub(super) fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

impl Known {
    /// The landings of the workspace itself, and those of others that its state comes from: what
    /// others landed since is somebody else's change.
    pub(super) fn new(
        core: &Core,
        workspace: WorkspaceId,
        base: LayerId,
        layer: LayerId,
    ) -> Result<Self, HostLandError> {
        let lineage = core.layers.lineage(layer);
        let mut known = Self {
            since: base,
            left: HashMap::new(),
        };
        for record in core.catalog.landings()? {
            if record.state < state::DONE {
                continue;
            }
            let landing = Landing::parse(&record)?;
            let landed = landing.plan.layer.map_or(base, LayerId);
            let is_of_this_base = core
                .layers
                .lineage(landed)
                .is_some_and(|landed| landed.base() == base);
            let is_known = landing.workspace == workspace
                || lineage
                    .as_ref()
                    .is_some_and(|lineage| lineage.contains(landed));
            if !(is_of_this_base && is_known) {
                continue;
            }
            known.since = landed;
            for part in &landing.plan.parts {
                for left in part.after() {
                    let at = (part.root.0.clone(), left.path.0);
                    known.left.insert(at, left.is);
                }
            }
        }
        Ok(known)
    }

    /// What was left at a path; `None` if no landing was there, `Some(None)` if it took away what
    /// was there.
    pub(super) fn left(&self, root: &[u8], path: &[u8]) -> Option<Option<Guard>> {
        self.left.get(&(root.to_vec(), path.to_vec())).copied()
    }
}
