//! What earlier landings left on the host, as far as a workspace knows of them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::super::HostLandError;
use super::super::guard::Guard;
use super::super::run::{Landing, state};
use super::super::steps::{Kind, Moved, Part, moved_to};
use crate::core::Core;
use crate::id::{LayerId, WorkspaceId};

/// A root and a path below it.
type At = (Vec<u8>, Vec<u8>);

/// What is expected at paths that were landed before.
pub(super) struct Known {
    /// The layer whose state the directories have, as far as the workspace knows, but for `partly`.
    pub(super) since: LayerId,
    /// Paths that were landed by themselves since, and the layer whose state they have.
    pub(super) partly: HashMap<At, LayerId>,
    /// Roots, and from where to where in them something was moved by itself since.
    pub(super) moves: Vec<(Vec<u8>, Vec<u8>, Vec<u8>)>,
    /// What was left there, if anything.
    left: HashMap<At, Option<Guard>>,
}

/// A path as it is in the catalog.
pub(in super::super) fn path(bytes: &[u8]) -> PathBuf {
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
            partly: HashMap::new(),
            moves: Vec::new(),
            left: HashMap::new(),
        };
        for record in core.catalog.host_landings()? {
            if record.state < state::DONE {
                continue;
            }
            let landing = Landing::parse(&record)?;
            let from = landing.plan.from.map(LayerId);
            let is_of_this_base = from.is_none_or(|from| {
                let of = core.layers.lineage(from);
                of.is_some_and(|of| of.base() == base)
            });
            let is_above = from.is_some_and(|from| {
                let lineage = lineage.as_ref();
                lineage.is_some_and(|lineage| lineage.contains(from))
            });
            if !is_of_this_base || (landing.workspace != workspace && !is_above) {
                continue;
            }
            known.add(&landing, base);
        }
        Ok(known)
    }

    fn add(&mut self, landing: &Landing, base: LayerId) {
        let plan = &landing.plan;
        match plan.kind {
            Kind::Whole => {
                self.since = plan.layer.map_or(base, LayerId);
                self.partly.clear();
                self.moves.clear();
            }
            Kind::Undo => self.since = plan.layer.map_or(base, LayerId),
            Kind::Part | Kind::Back => {}
        }
        for part in &plan.parts {
            self.moved(part, plan.kind);
            for left in part.after() {
                let at = (part.root.0.clone(), left.path.0);
                if let (Kind::Part, Some(from)) = (plan.kind, plan.from) {
                    self.partly.insert(at.clone(), LayerId(from));
                }
                self.left.insert(at, left.is);
            }
        }
    }

    /// What is in a directory that was moved went with it.
    fn moved(&mut self, part: &Part, kind: Kind) {
        let moves = part.moves();
        if moves.is_empty() {
            return;
        }
        let new = |at: At| match moved_to(&moves, &at.1) {
            Some(path) if at.0 == part.root.0 => (at.0, path),
            _ => at,
        };
        let left = std::mem::take(&mut self.left).into_iter();
        self.left = left.map(|(at, left)| (new(at), left)).collect();
        let partly = std::mem::take(&mut self.partly).into_iter();
        self.partly = partly.map(|(at, of)| (new(at), of)).collect();
        if kind == Kind::Part {
            for Moved { from, to } in moves {
                self.moves.push((part.root.0.clone(), from.0, to.0));
            }
        }
    }

    /// What was left at a path; `None` if no landing was there, `Some(None)` if it took away what
    /// was there.
    pub(super) fn left(&self, root: &[u8], path: &[u8]) -> Option<Option<Guard>> {
        self.left.get(&(root.to_vec(), path.to_vec())).copied()
    }
}
