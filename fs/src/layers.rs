//! The layer tree in memory, with an ancestor test that does not depend on depth.
//!
//! Layer ids only grow, so along any path to the root they only shrink: an id is its own rank.
//! Each node keeps its parent and one *jump* to a further ancestor, chosen as in a skew-binary
//! list (Myers, "An applicative random-access stack", 1983), which makes any ancestor reachable in
//! O(log depth) steps with two words a layer.
//!
//! Invariants: `parent` and `jump` of a node have smaller ids; node 0 is a sentinel above every
//! base layer with id 0.

use std::collections::HashMap;

use thiserror::Error;

use crate::catalog::CatalogError;
use crate::id::LayerId;
use crate::lock::{RwLock, rank};

/// Why a layer could not be added.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TreeError {
    /// The parent is unknown.
    #[error("layer {layer} has an unknown parent {parent}")]
    NoParent {
        /// Layer to add.
        layer: LayerId,
        /// Parent that is missing.
        parent: LayerId,
    },
    /// The id is not larger than its parent's, or exists.
    #[error("layer {layer} is out of order")]
    OutOfOrder {
        /// Layer to add.
        layer: LayerId,
    },
}

#[derive(Clone, Copy, Debug)]
struct Node {
    id: LayerId,
    parent: u32,
    jump: u32,
    depth: u32,
}

/// Every layer of a store.
#[derive(Debug)]
pub struct LayerTree {
    nodes: Vec<Node>,
    index: HashMap<LayerId, u32>,
}

impl Default for LayerTree {
    fn default() -> Self {
        let sentinel = Node {
            id: LayerId(0),
            parent: 0,
            jump: 0,
            depth: 0,
        };
        Self {
            nodes: vec![sentinel],
            index: HashMap::new(),
        }
    }
}

impl LayerTree {
    /// Adds a layer under its parent, or a base layer.
    ///
    /// # Errors
    /// [`TreeError`] when the parent is unknown or ids are out of order: the catalog is damaged.
    pub fn add(&mut self, id: LayerId, parent: Option<LayerId>) -> Result<(), TreeError> {
        let parent_at = match parent {
            None => 0,
            Some(parent) => *self
                .index
                .get(&parent)
                .ok_or(TreeError::NoParent { layer: id, parent })?,
        };
        let up = self.node(parent_at);
        if id <= up.id || self.index.contains_key(&id) {
            return Err(TreeError::OutOfOrder { layer: id });
        }
        let over = self.node(up.jump);
        let over_over = self.node(over.jump);
        let jump = if up.depth - over.depth == over.depth - over_over.depth {
            over.jump
        } else {
            parent_at
        };
        let at =
            u32::try_from(self.nodes.len()).map_err(|_| TreeError::OutOfOrder { layer: id })?;
        self.nodes.push(Node {
            id,
            parent: parent_at,
            jump,
            depth: up.depth + 1,
        });
        self.index.insert(id, at);
        Ok(())
    }

    /// Whether `candidate` is the layer at position `at` or one of its ancestors. O(log depth).
    fn contains(&self, at: u32, candidate: LayerId) -> bool {
        let mut node = self.node(at);
        while node.id > candidate {
            let jump = self.node(node.jump);
            node = if jump.id >= candidate {
                jump
            } else {
                self.node(node.parent)
            };
        }
        node.id == candidate && candidate.0 != 0
    }

    /// The base that the layer at position `at` stands on. O(log depth).
    fn base(&self, at: u32) -> LayerId {
        let mut node = self.node(at);
        while node.parent != 0 {
            node = self.node(if node.jump == 0 {
                node.parent
            } else {
                node.jump
            });
        }
        node.id
    }

    fn node(&self, at: u32) -> Node {
        self.nodes[at as usize]
    }

    /// See [`SharedLayers::parting`].
    fn parting(&self, a: LayerId, b: LayerId) -> Option<Parting> {
        let (mut a, mut b) = (
            self.node(*self.index.get(&a)?),
            self.node(*self.index.get(&b)?),
        );
        let (mut from_a, mut from_b) = (Vec::new(), Vec::new());
        while a.id != b.id {
            let (node, path) = if a.id > b.id {
                (&mut a, &mut from_a)
            } else {
                (&mut b, &mut from_b)
            };
            path.push(node.id);
            *node = self.node(node.parent);
        }
        let common = a.id;
        (common.0 != 0).then_some(Parting {
            common,
            from_a,
            from_b,
        })
    }
}

/// Where two layers part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parting {
    /// The nearest layer that both have as an ancestor, or are.
    pub common: LayerId,
    /// From one of the two up to the common layer, without that.
    pub from_a: Vec<LayerId>,
    /// From the other.
    pub from_b: Vec<LayerId>,
}

/// The layer tree of an open store. Its lock is held for single steps only, never across a query,
/// so that adding a layer (inside a freeze) waits for nobody.
#[derive(Debug, Default)]
pub struct SharedLayers(RwLock<{ rank::LEAF }, LayerTree>);

impl SharedLayers {
    /// See [`LayerTree::add`].
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn add(&self, id: LayerId, parent: Option<LayerId>) -> Result<(), TreeError> {
        self.0.write().add(id, parent)
    }

    /// Where two layers part; `None` when they have nothing in common, or one is unknown. The cost is
    /// that of the layers in between.
    #[must_use]
    pub fn parting(&self, a: LayerId, b: LayerId) -> Option<Parting> {
        self.0.read().parting(a, b)
    }

    /// The layer that another was made on, also if that was handed down since.
    #[must_use]
    pub fn parent(&self, layer: LayerId) -> Option<LayerId> {
        let tree = self.0.read();
        let node = tree.node(*tree.index.get(&layer)?);
        (node.parent != 0).then(|| tree.node(node.parent).id)
    }

    /// The path from `layer` to its base, for asking what is visible there; `None` for an unknown
    /// layer.
    #[must_use]
    pub fn lineage(&self, layer: LayerId) -> Option<Lineage<'_>> {
        let at = *self.0.read().index.get(&layer)?;
        Some(Lineage {
            tree: self,
            layer,
            at,
        })
    }
}

impl SharedLayers {
    /// As [`SharedLayers::lineage`], of a layer that the catalog says is there.
    ///
    /// # Errors
    /// [`CatalogError::Damaged`].
    pub fn known(&self, layer: LayerId) -> Result<Lineage<'_>, CatalogError> {
        self.lineage(layer).ok_or_else(|| CatalogError::Damaged {
            what: format!("layer {layer} is not in the tree"),
        })
    }
}

/// A layer together with all its ancestors.
#[derive(Clone, Copy, Debug)]
pub struct Lineage<'a> {
    tree: &'a SharedLayers,
    layer: LayerId,
    at: u32,
}

impl Lineage<'_> {
    /// The layer at the lower end.
    #[must_use]
    pub fn layer(&self) -> LayerId {
        self.layer
    }

    /// The base at the upper end. O(log depth).
    #[must_use]
    pub fn base(&self) -> LayerId {
        self.tree.0.read().base(self.at)
    }

    /// Whether `candidate` is this layer or one of its ancestors. O(log depth).
    #[must_use]
    pub fn contains(&self, candidate: LayerId) -> bool {
        candidate == self.layer || self.tree.0.read().contains(self.at, candidate)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ancestor_test_agrees_with_walking_parents(
            parents in prop::collection::vec(any::<prop::sample::Index>(), 1..200),
            gaps in prop::collection::vec(1_u64..4, 200),
        ) {
            let mut tree = LayerTree::default();
            let mut up: Vec<(LayerId, Option<usize>)> = Vec::new();
            let mut id = 0;
            for (n, parent) in parents.iter().enumerate() {
                id += gaps[n];
                let parent = (n > 0 && parent.index(n + 1) < n).then(|| parent.index(n + 1));
                tree.add(LayerId(id), parent.map(|p| up[p].0)).unwrap();
                up.push((LayerId(id), parent));
            }
            for &(layer, _) in &up {
                let at = tree.index[&layer];
                let mut ancestors = Vec::new();
                let mut walk = up.iter().position(|(l, _)| *l == layer);
                while let Some(n) = walk {
                    ancestors.push(up[n].0);
                    walk = up[n].1;
                }
                for candidate in 0..=id {
                    let candidate = LayerId(candidate);
                    prop_assert_eq!(tree.contains(at, candidate), ancestors.contains(&candidate));
                }
                prop_assert_eq!(tree.node(at).depth as usize, ancestors.len());
                for &(other, _) in &up {
                    let found = tree.parting(layer, other);
                    let Some(parting) = found else {
                        let at = tree.index[&other];
                        prop_assert!(!ancestors.iter().any(|&up| tree.contains(at, up)));
                        continue;
                    };
                    let (mut path, mut back) = (parting.from_a.clone(), parting.from_b.clone());
                    path.push(parting.common);
                    prop_assert!(ancestors.starts_with(&path));
                    back.push(parting.common);
                    prop_assert_eq!(back[0], other);
                    prop_assert!(back[..back.len() - 1].iter().all(|up| !ancestors.contains(up)));
                }
                prop_assert_eq!(Some(&tree.base(at)), ancestors.last());
            }
        }
    }

    #[test]
    fn a_chain_of_a_million_layers_is_searched_in_few_steps() {
        let mut tree = LayerTree::default();
        tree.add(LayerId(1), None).unwrap();
        for id in 2..=1_000_000 {
            tree.add(LayerId(id), Some(LayerId(id - 1))).unwrap();
        }
        let at = tree.index[&LayerId(1_000_000)];
        let mut steps = 0;
        let mut node = tree.node(at);
        while node.id > LayerId(1) {
            let jump = tree.node(node.jump);
            node = if jump.id >= LayerId(1) {
                jump
            } else {
                tree.node(node.parent)
            };
            steps += 1;
        }
        assert!(steps <= 60, "{steps} steps");
        assert!(tree.contains(at, LayerId(1)));
        assert!(!tree.contains(at, LayerId(0)));
    }

    #[test]
    fn unknown_parents_and_reused_ids_are_refused() {
        let mut tree = LayerTree::default();
        tree.add(LayerId(5), None).unwrap();
        let missing = tree.add(LayerId(6), Some(LayerId(4)));
        assert_eq!(
            missing,
            Err(TreeError::NoParent {
                layer: LayerId(6),
                parent: LayerId(4)
            })
        );
        assert_eq!(
            tree.add(LayerId(5), None),
            Err(TreeError::OutOfOrder { layer: LayerId(5) })
        );
        tree.add(LayerId(9), None).unwrap();
        assert!(tree.add(LayerId(8), Some(LayerId(9))).is_err());
    }
}
