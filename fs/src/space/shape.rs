//! What the layer tree says is to be done. Pure.

use std::collections::{HashMap, HashSet};

use crate::catalog::{FamilyRecord, LayerRow};
use crate::id::LayerId;

/// What is to be done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// Layers that nothing can reach and that are not doomed yet.
    pub(super) unreachable: Vec<LayerId>,
    /// Doomed layers, those above others last.
    pub(super) doomed: Vec<LayerId>,
    /// Runs of links.
    pub(super) chains: Vec<Chain>,
}

/// Links one above the other, and what stands on them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Chain {
    /// The first layer below that is no link.
    pub(super) bottom: LayerId,
    /// Whether that can still change.
    pub(super) live: bool,
    /// The links, nearest first.
    pub(super) links: Vec<LayerId>,
}

impl Chain {
    /// Each link with what stands on it and whether that is live, the farthest first: each layer hides what
    /// is above it, and what is handed down goes on.
    pub(super) fn steps(&self) -> impl Iterator<Item = (LayerId, LayerId, bool)> {
        let below = |at: usize| match at {
            0 => (self.bottom, self.live),
            at => (self.links[at - 1], false),
        };
        (0..self.links.len()).rev().map(move |at| {
            let (layer, live) = below(at);
            (self.links[at], layer, live)
        })
    }
}

impl Shape {
    /// Looks at all layers, parents before children; `used` are those that stay as they are whatever
    /// their rows say.
    pub(super) fn of(layers: &[FamilyRecord], used: &HashSet<LayerId>) -> Self {
        let index: HashMap<LayerId, usize> = layers
            .iter()
            .enumerate()
            .map(|(at, l)| (l.id, at))
            .collect();
        let parent = |at: usize| layers[at].parent.and_then(|id| index.get(&id).copied());
        let mut children = vec![0_usize; layers.len()];
        for (at, layer) in layers.iter().enumerate() {
            if layer.what != LayerRow::Doomed
                && let Some(parent) = parent(at)
            {
                children[parent] += 1;
            }
        }
        let mut shape = Self::default();
        let mut gone = vec![false; layers.len()];
        // Children come after their parents.
        for (at, layer) in layers.iter().enumerate().rev() {
            let given_up = matches!(layer.what, LayerRow::Left | LayerRow::Base);
            if layer.what == LayerRow::Doomed {
                shape.doomed.push(layer.id);
                gone[at] = true;
            } else if given_up && children[at] == 0 && !used.contains(&layer.id) {
                shape.unreachable.push(layer.id);
                gone[at] = true;
                if let Some(parent) = parent(at) {
                    children[parent] -= 1;
                }
            }
        }
        let is_link = |at: usize| {
            layers[at].what == LayerRow::Left
                && !gone[at]
                && children[at] == 1
                && !used.contains(&layers[at].id)
        };
        for (at, layer) in layers.iter().enumerate() {
            if gone[at] || is_link(at) {
                continue;
            }
            let above = std::iter::successors(parent(at), |&at| parent(at));
            let links: Vec<LayerId> = above
                .take_while(|&at| is_link(at))
                .map(|at| layers[at].id)
                .collect();
            if !links.is_empty() {
                shape.chains.push(Chain {
                    bottom: layer.id,
                    live: layer.what == LayerRow::Live,
                    links,
                });
            }
        }
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(all: &[(u64, u64, LayerRow)]) -> Vec<FamilyRecord> {
        let record = |&(id, parent, what)| FamilyRecord {
            id: LayerId(id),
            parent: (parent != 0).then_some(LayerId(parent)),
            what,
        };
        all.iter().map(record).collect()
    }

    fn ids(all: &[u64]) -> Vec<LayerId> {
        all.iter().copied().map(LayerId).collect()
    }

    use LayerRow::{Base, Doomed, Frozen, Left, Live};

    #[test]
    fn what_nothing_stands_on_goes_with_what_only_that_stood_on() {
        let all = layers(&[
            (1, 0, Base),
            (2, 1, Left),
            (3, 2, Left),
            (4, 3, Doomed),
            (5, 0, Frozen),
            (6, 5, Live),
        ]);
        let shape = Shape::of(&all, &HashSet::new());
        assert_eq!(shape.unreachable, ids(&[3, 2, 1]));
        assert_eq!((shape.doomed, shape.chains.len()), (ids(&[4]), 0));
        // One that is mounted stays, with what it stands on.
        let shape = Shape::of(&all, &HashSet::from([LayerId(2)]));
        assert_eq!(shape.unreachable, ids(&[3]));
        assert!(shape.chains.is_empty());
    }

    #[test]
    fn left_layers_with_one_child_are_links_and_others_are_not() {
        let all = layers(&[
            (1, 0, Left),
            (2, 1, Left),
            (3, 2, Frozen),
            (4, 3, Left),
            (5, 4, Live),
            (6, 4, Live),
            (7, 3, Left),
            (8, 7, Doomed),
        ]);
        let shape = Shape::of(&all, &HashSet::new());
        assert_eq!(shape.unreachable, ids(&[7]));
        let chain = Chain {
            bottom: LayerId(3),
            live: false,
            links: ids(&[2, 1]),
        };
        assert_eq!(shape.chains, [chain]);
        let shape = Shape::of(&all[..5], &HashSet::from([LayerId(2)]));
        let found = |bottom: u64| shape.chains.iter().find(|c| c.bottom == LayerId(bottom));
        assert_eq!(found(2).unwrap().links, ids(&[1]));
        assert_eq!(found(5).unwrap().links, ids(&[4]));
        assert!(found(5).unwrap().live && found(3).is_none());
    }

    #[test]
    fn a_base_is_never_a_link() {
        let all = layers(&[(1, 0, Base), (2, 1, Left), (3, 2, Live)]);
        let shape = Shape::of(&all, &HashSet::new());
        assert_eq!(shape.chains[0].links, ids(&[2]));
        assert!(shape.unreachable.is_empty());
    }
}
