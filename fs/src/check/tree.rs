//! The layer tree in the order of a walk, which makes "is an ancestor" two comparisons and "the
//! nearest version above" a stack.

use std::collections::{HashMap, HashSet};

use super::report::{CheckReport, Problem};
use crate::catalog::check::LayerCheck;
use crate::id::LayerId;

/// States of `layer.state` (docs/format.md).
const LIVE: i64 = 0;
const FROZEN: i64 = 1;
const DOOMED: i64 = 2;
const LEFT: i64 = 3;

/// A layer and its place in the walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    pub(super) id: LayerId,
    pub(super) parent: Option<usize>,
    state: i64,
    /// A layer that belongs to nothing yet, or no more: what it shows need not make sense.
    pub(super) hidden: bool,
    /// Number of the layer in the walk, and of the first one after its descendants.
    pub(super) enter: u32,
    pub(super) exit: u32,
    pub(super) recorded: (i64, i64),
}

impl Layer {
    pub(super) fn is_live(&self) -> bool {
        self.state == LIVE
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.state == FROZEN
    }
}

/// Every layer of a store. Links (left layers with one on them) are seen through what stands on
/// them alone: their rows count as those of the first layer below that is none.
pub(super) struct Layers {
    pub(super) all: Vec<Layer>,
    /// Of a link, where that layer is.
    index: HashMap<i64, usize>,
    /// Positions in `all` in the order of the walk.
    walk: Vec<usize>,
}

impl Layers {
    /// Orders the layers and names those that cannot be where they say.
    pub(super) fn new(rows: &[LayerCheck], bases: &HashSet<i64>, report: &mut CheckReport) -> Self {
        let mut index: HashMap<i64, usize> =
            rows.iter().enumerate().map(|(n, r)| (r.id, n)).collect();
        let links = Links::of(rows, bases, &index);
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); rows.len()];
        let mut roots = Vec::new();
        let mut all = Vec::with_capacity(rows.len());
        for (at, row) in rows.iter().enumerate() {
            let layer = id(row.id);
            if !(LIVE..=LEFT).contains(&row.state) {
                let state = row.state;
                report.found(Problem::LayerState { layer, state });
            }
            let parent = row.parent.and_then(|parent| {
                let known = index.get(&parent).copied();
                let parent = id(parent);
                match known {
                    None => report.found(Problem::LayerParentMissing { layer, parent }),
                    Some(_) if parent >= layer => {
                        report.found(Problem::LayerOrder { layer, parent });
                        return None;
                    }
                    // What is given up goes with what it stands on.
                    Some(above)
                        if !matches!(rows[above].state, FROZEN | LEFT) && row.state != DOOMED =>
                    {
                        report.found(Problem::LayerOnUnfrozen { layer, parent });
                    }
                    Some(_) => {}
                }
                known
            });
            // What is given up under a link has nothing to do with what stands on that.
            let parent = parent.and_then(|parent| links.above(rows, &index, parent));
            if links.child[at].is_none() {
                match parent {
                    Some(parent) => children[parent].push(at),
                    None => roots.push(at),
                }
            }
            let left = row.state == LEFT && links.children[at] == 0;
            all.push(Layer {
                id: layer,
                parent,
                state: row.state,
                hidden: row.state == DOOMED || left,
                enter: 0,
                exit: 0,
                recorded: (row.bytes, row.inodes),
            });
        }
        for (at, row) in rows.iter().enumerate() {
            index.insert(row.id, links.below(at));
        }
        let mut layers = Self {
            all,
            index,
            walk: Vec::with_capacity(rows.len()),
        };
        layers.number(&roots, &children);
        layers
    }

    fn number(&mut self, bases: &[usize], children: &[Vec<usize>]) {
        enum Step {
            Enter(usize),
            Leave(usize),
        }
        let mut steps: Vec<Step> = bases.iter().rev().map(|&at| Step::Enter(at)).collect();
        while let Some(step) = steps.pop() {
            let next = u32::try_from(self.walk.len()).unwrap_or(u32::MAX);
            match step {
                Step::Enter(at) => {
                    self.all[at].enter = next;
                    self.walk.push(at);
                    steps.push(Step::Leave(at));
                    steps.extend(children[at].iter().rev().map(|&at| Step::Enter(at)));
                }
                Step::Leave(at) => self.all[at].exit = next,
            }
        }
    }

    /// A layer by its id.
    pub(super) fn get(&self, id: i64) -> Option<&Layer> {
        self.position(id).map(|at| &self.all[at])
    }

    pub(super) fn position(&self, id: i64) -> Option<usize> {
        self.index.get(&id).copied()
    }

    /// A layer by its number in the walk.
    pub(super) fn at(&self, enter: u32) -> &Layer {
        &self.all[self.walk[enter as usize]]
    }

    /// Positions in `all`, every layer after its parent.
    pub(super) fn walk(&self) -> &[usize] {
        &self.walk
    }
}

/// Which layers are links, and of what.
struct Links {
    /// Layers on each that are not given up.
    children: Vec<usize>,
    /// Of a link, the one on it.
    child: Vec<Option<usize>>,
}

impl Links {
    fn of(rows: &[LayerCheck], bases: &HashSet<i64>, index: &HashMap<i64, usize>) -> Self {
        let mut children = vec![0; rows.len()];
        let mut child = vec![None; rows.len()];
        for (at, row) in rows.iter().enumerate() {
            // Out of order is reported, and leads nowhere.
            let parent = row.parent.filter(|&parent| parent < row.id);
            if let Some(&parent) = parent.and_then(|parent| index.get(&parent))
                && row.state != DOOMED
            {
                children[parent] += 1;
                child[parent] = Some(at);
            }
        }
        for (at, row) in rows.iter().enumerate() {
            let is_link = row.state == LEFT && children[at] == 1 && !bases.contains(&row.id);
            child[at] = child[at].filter(|_| is_link);
        }
        Self { children, child }
    }

    /// The first layer below, or the layer itself, that is no link. Ids grow on the way.
    fn below(&self, mut at: usize) -> usize {
        while let Some(child) = self.child[at] {
            at = child;
        }
        at
    }

    /// The first layer above, or the layer itself, that is no link.
    fn above(
        &self,
        rows: &[LayerCheck],
        index: &HashMap<i64, usize>,
        mut at: usize,
    ) -> Option<usize> {
        while self.child[at].is_some() {
            let parent = rows[at].parent.filter(|&parent| parent < rows[at].id);
            at = *index.get(&parent?)?;
        }
        Some(at)
    }
}

pub(super) fn id(value: i64) -> LayerId {
    LayerId(u64::try_from(value).unwrap_or(0))
}

/// The versions of one key on the path from a base to the layer looked at. Layers are to come in
/// the order of the walk.
pub(super) struct Path<T>(Vec<(u32, T)>);

impl<T> Path<T> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    /// What the nearest ancestor of `layer` that has a version says.
    pub(super) fn above(&mut self, layer: &Layer) -> Option<&T> {
        while self.0.last().is_some_and(|&(exit, _)| exit <= layer.enter) {
            self.0.pop();
        }
        self.0.last().map(|(_, version)| version)
    }

    /// Adds the version of `layer`.
    pub(super) fn push(&mut self, layer: &Layer, version: T) {
        self.0.push((layer.exit, version));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
