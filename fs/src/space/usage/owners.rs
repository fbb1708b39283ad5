//! Who sees what layers hold. Pure.
//!
//! A layer is seen by the workspaces of which a *view* (the live layer, a snapshot, what is mounted)
//! is the layer itself or stands on it. What one workspace sees alone is *exclusive* to it, what
//! several see is *shared*; what none sees waits for its removal.
//!
//! Invariant: exclusive parts, what is shared (counted once) and what nobody sees add up to
//! everything.

use std::collections::{BTreeMap, HashMap};

use crate::id::WorkspaceId;

/// A layer, after what it stands on.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    /// The place of its parent, before it.
    pub(super) parent: Option<usize>,
    /// Whose view it is.
    pub(super) view_of: Option<WorkspaceId>,
    /// Bytes that it holds itself.
    pub(super) bytes: u64,
}

/// Who sees a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Nobody,
    One(WorkspaceId),
    Many,
}

impl Owner {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nobody, owner) | (owner, Self::Nobody) => owner,
            (Self::One(a), Self::One(b)) if a == b => self,
            _ => Self::Many,
        }
    }
}

/// What a workspace sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Bytes that it alone sees.
    pub(super) exclusive: u64,
    /// Bytes that others see as well.
    pub(super) shared: u64,
}

/// Everything, by who sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shares {
    pub(super) of: BTreeMap<WorkspaceId, Share>,
    /// Bytes that several workspaces see, counted once.
    pub(super) shared: u64,
    /// Bytes that nobody sees.
    pub(super) nobodys: u64,
}

impl Shares {
    fn add(&mut self, owner: Owner, bytes: u64) {
        match owner {
            Owner::Nobody => self.nobodys += bytes,
            Owner::One(id) => self.of.entry(id).or_default().exclusive += bytes,
            Owner::Many => self.shared += bytes,
        }
    }
}

/// Says who sees what. `linked`: bytes that several layers hold together, by the places of those.
pub(super) fn shares(layers: &[Node], linked: &HashMap<Vec<usize>, u64>) -> Shares {
    let mut owners = vec![Owner::Nobody; layers.len()];
    let mut views: HashMap<WorkspaceId, Vec<usize>> = HashMap::new();
    for (at, layer) in layers.iter().enumerate().rev() {
        if let Some(id) = layer.view_of {
            owners[at] = owners[at].and(Owner::One(id));
            views.entry(id).or_default().push(at);
        }
        if let Some(parent) = layer.parent {
            owners[parent] = owners[parent].and(owners[at]);
        }
    }
    let mut shares = Shares::default();
    for (layer, &owner) in layers.iter().zip(&owners) {
        shares.add(owner, layer.bytes);
    }
    let of_all = |places: &[usize]| {
        let each = places.iter().map(|&at| owners[at]);
        each.fold(Owner::Nobody, Owner::and)
    };
    for (places, &bytes) in linked {
        shares.add(of_all(places), bytes);
    }
    let shared: Vec<(&Vec<usize>, u64)> = linked
        .iter()
        .filter(|(places, _)| of_all(places) == Owner::Many)
        .map(|(places, &bytes)| (places, bytes))
        .collect();
    // Which workspace looked at a layer last.
    let mut seen = vec![0; layers.len()];
    for (number, (id, views)) in (1..).zip(&views) {
        let share = shares.of.entry(*id).or_default();
        for &view in views {
            let mut next = Some(view);
            while let Some(at) = next
                && seen[at] != number
            {
                seen[at] = number;
                if owners[at] == Owner::Many {
                    share.shared += layers[at].bytes;
                }
                next = layers[at].parent;
            }
        }
        let sees = |places: &[usize]| places.iter().any(|&at| seen[at] == number);
        let linked = shared.iter().filter(|(places, _)| sees(places));
        share.shared += linked.map(|(_, bytes)| bytes).sum::<u64>();
    }
    shares
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use proptest::prelude::*;

    use super::*;

    fn node(parent: Option<usize>, view_of: u64, bytes: u64) -> Node {
        Node {
            parent,
            view_of: (view_of != 0).then_some(WorkspaceId(view_of)),
            bytes,
        }
    }

    #[test]
    fn what_two_workspaces_see_is_shared_and_counts_once_in_the_sum() {
        let layers = [
            node(None, 1, 100),
            node(Some(0), 1, 10),
            node(Some(0), 2, 20),
            node(Some(2), 0, 7),
            node(None, 0, 3),
        ];
        let linked = HashMap::from([(vec![1, 2], 1000), (vec![3, 4], 5), (vec![1], 1)]);
        let found = shares(&layers, &linked);
        let share = |exclusive, shared| Share { exclusive, shared };
        let expected = BTreeMap::from([
            (WorkspaceId(1), share(11, 1100)),
            (WorkspaceId(2), share(20, 1100)),
        ]);
        assert_eq!(found.of, expected);
        assert_eq!((found.shared, found.nobodys), (1100, 15));
    }

    /// For each piece, every workspace that sees it, the long way round.
    fn slowly(layers: &[Node], linked: &HashMap<Vec<usize>, u64>) -> Shares {
        let mut seen_by: Vec<BTreeSet<WorkspaceId>> = vec![BTreeSet::new(); layers.len()];
        for (at, layer) in layers.iter().enumerate() {
            let Some(id) = layer.view_of else { continue };
            for at in std::iter::successors(Some(at), |&at| layers[at].parent) {
                seen_by[at].insert(id);
            }
        }
        let mut pieces: Vec<(BTreeSet<WorkspaceId>, u64)> = (0..layers.len())
            .map(|at| (seen_by[at].clone(), layers[at].bytes))
            .collect();
        for (places, &bytes) in linked {
            let all = places.iter().flat_map(|&at| seen_by[at].clone());
            pieces.push((all.collect(), bytes));
        }
        let mut found = Shares::default();
        for id in layers.iter().filter_map(|layer| layer.view_of) {
            found.of.entry(id).or_default();
        }
        for (by, bytes) in pieces {
            let ids: Vec<WorkspaceId> = by.into_iter().collect();
            match ids[..] {
                [] => found.nobodys += bytes,
                [one] => found.of.entry(one).or_default().exclusive += bytes,
                _ => {
                    found.shared += bytes;
                    for id in ids {
                        found.of.entry(id).or_default().shared += bytes;
                    }
                }
            }
        }
        found
    }

    proptest! {
        #[test]
        fn any_tree_is_divided_as_the_long_way_round_says(
            raw in proptest::collection::vec((0_usize..40, 0_u64..5, 0_u64..100), 1..40),
            links in proptest::collection::vec(
                (proptest::collection::hash_set(0_usize..40, 1..4), 0_u64..100), 0..6),
        ) {
            let layers: Vec<Node> = raw
                .iter()
                .enumerate()
                .map(|(at, &(parent, of, bytes))| node((parent < at).then_some(parent), of, bytes))
                .collect();
            let place = |places: &HashSet<usize>| -> Vec<usize> {
                let all: BTreeSet<usize> = places.iter().map(|at| at % layers.len()).collect();
                all.into_iter().collect()
            };
            let linked: HashMap<Vec<usize>, u64> =
                links.iter().map(|(places, bytes)| (place(places), *bytes)).collect();
            let found = shares(&layers, &linked);
            prop_assert_eq!(&found, &slowly(&layers, &linked));
            let all: u64 = layers.iter().map(|layer| layer.bytes).chain(linked.into_values()).sum();
            let exclusive: u64 = found.of.values().map(|share| share.exclusive).sum();
            prop_assert_eq!(exclusive + found.shared + found.nobodys, all);
        }
    }
}
