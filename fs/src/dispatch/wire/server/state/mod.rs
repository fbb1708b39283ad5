//! What has to be known of a connection to go on with it elsewhere: for the snapshot of a machine.
//!
//! The guest's kernel believes to hold references and open files, and to have agreed on some things. A server
//! that has the state of another one ([`Server::capture`](super::Server::capture),
//! [`Server::restore`](super::Server::restore)) holds and does the same. There are no handles, and nodes are
//! inode numbers, which every fork of the snapshot has as well: counts are all there is.
//!
//! Invariants of every [`ServerState`], however it came to be, so that nobody has to check them again:
//! * inodes ascend, and no count is zero or above [`COUNT_MAX`];
//! * only an inode that is held is open: one that is not the guest can do nothing with any more but close it;
//! * nothing is held before something was agreed on, or open for writing on a read-only connection.

mod bytes;
mod error;

pub use self::error::{RestoreStateError, StateError};
use super::Caching;
use crate::dispatch::OpenMode;
use crate::dispatch::wire::codec::Dialect;
use crate::id::Ino;

/// Most references to one inode, or opens of one file in one mode, that a state can name: more than a guest
/// takes in a year, and few enough that many connections together overflow nothing.
pub const COUNT_MAX: u64 = 1 << 48;

/// A connection as it was at one moment. Any number of servers can begin in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerState {
    agreed: Option<Dialect>,
    caching: Caching,
    read_only: bool,
    nodes: Vec<(Ino, u64)>,
    opens: Vec<(Ino, OpenMode, u64)>,
}

/// The order of modes, and their numbers in bytes.
fn number(mode: OpenMode) -> u32 {
    match mode {
        OpenMode::Read => 0,
        OpenMode::Write => 1,
        OpenMode::ReadWrite => 2,
    }
}

/// What a server holds, as it lay there: to be copied while the guest stands still, and made a
/// [`ServerState`] of when it goes on.
#[derive(Clone, Debug)]
pub struct Captured {
    pub(super) agreed: Option<Dialect>,
    pub(super) caching: Caching,
    pub(super) read_only: bool,
    pub(super) nodes: Vec<(Ino, u64)>,
    pub(super) opens: Vec<(Ino, OpenMode, u64)>,
}

/// All of it satisfies the invariants but the order, and opens of what is not held, which are left out.
impl From<Captured> for ServerState {
    fn from(captured: Captured) -> Self {
        let Captured {
            agreed,
            caching,
            read_only,
            mut nodes,
            mut opens,
        } = captured;
        nodes.sort_unstable_by_key(|&(ino, _)| ino);
        for (_, count) in &mut nodes {
            *count = (*count).min(COUNT_MAX);
        }
        opens.retain(|&(ino, _, _)| is_held(&nodes, ino));
        opens.sort_unstable_by_key(|&(ino, mode, _)| (ino, number(mode)));
        Self {
            agreed,
            caching,
            read_only,
            nodes,
            opens,
        }
    }
}

impl ServerState {
    /// What was agreed on when the guest mounted; none if it has not.
    #[must_use]
    pub fn agreed(&self) -> Option<Dialect> {
        self.agreed
    }

    /// What the guest's kernel believes without asking.
    #[must_use]
    pub fn caching(&self) -> Caching {
        self.caching
    }

    /// Whether the guest can change nothing.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Lookup references by inode, in the order of the inodes.
    #[must_use]
    pub fn nodes(&self) -> &[(Ino, u64)] {
        &self.nodes
    }

    /// Open files: inode, mode, and how often, in this order.
    #[must_use]
    pub fn opens(&self) -> &[(Ino, OpenMode, u64)] {
        &self.opens
    }

    /// Opens in all.
    #[must_use]
    pub fn opens_total(&self) -> u64 {
        let counts = self.opens.iter().map(|&(_, _, count)| count);
        counts.fold(0, u64::saturating_add)
    }

    /// What is wrong with a state that somebody wrote down.
    fn checked(self) -> Result<Self, StateError> {
        let wrong = |what| Err(StateError::Value { what });
        let good = |count: u64| (1..=COUNT_MAX).contains(&count);
        if !self.nodes.is_sorted_by(|a, b| a.0 < b.0) {
            return wrong("the order of inodes");
        }
        if !self
            .opens
            .is_sorted_by(|a, b| (a.0, number(a.1)) < (b.0, number(b.1)))
        {
            return wrong("the order of open files");
        }
        let opens = self.opens.iter().map(|&(_, _, count)| count);
        if !self.nodes.iter().map(|&(_, count)| count).all(good) || !opens.clone().all(good) {
            return wrong("a count");
        }
        if self.agreed.is_none() && !self.nodes.is_empty() {
            return wrong("an inode that is held before anything was agreed on");
        }
        if !self
            .opens
            .iter()
            .all(|&(ino, _, _)| is_held(&self.nodes, ino))
        {
            return wrong("an open file that is not held");
        }
        if self.read_only && self.opens.iter().any(|(_, mode, _)| mode.writes()) {
            return wrong("a file open for writing on a read-only connection");
        }
        Ok(self)
    }
}

fn is_held(nodes: &[(Ino, u64)], ino: Ino) -> bool {
    nodes.binary_search_by_key(&ino, |&(held, _)| held).is_ok()
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    /// Any state that there can be.
    pub(super) fn any_state() -> impl Strategy<Value = ServerState> {
        let node = (any::<u64>(), 1..=COUNT_MAX);
        let nodes = prop::collection::btree_map(node.0, node.1, 0..40);
        let open = (any::<prop::sample::Index>(), 0..3_u8, 1..=COUNT_MAX);
        let opens = prop::collection::vec(open, 0..40);
        let caching = prop::option::of((any::<u64>(), 0..1_000_000_000_u32));
        let flags = (any::<bool>(), any::<bool>(), any::<bool>());
        (nodes, opens, caching, flags)
            .prop_map(|(nodes, opens, caching, flags)| state(&nodes, &opens, caching, flags))
    }

    fn state(
        nodes: &BTreeMap<u64, u64>,
        opens: &[(prop::sample::Index, u8, u64)],
        caching: Option<(u64, u32)>,
        (mounted, setxattr_ext, read_only): (bool, bool, bool),
    ) -> ServerState {
        let caching = caching.map_or(Caching::OnlyWriter, |(secs, nanos)| Caching::Shared {
            ttl: Duration::new(secs, nanos),
        });
        let agreed = mounted.then_some(Dialect { setxattr_ext });
        let inodes: Vec<u64> = nodes.keys().copied().collect();
        let mut seen = BTreeSet::new();
        let opens = opens.iter().filter(|_| mounted && !inodes.is_empty());
        let opens = opens.map(|(at, mode, count)| {
            let mode = match mode {
                0 => OpenMode::Read,
                1 if !read_only => OpenMode::Write,
                2 if !read_only => OpenMode::ReadWrite,
                _ => OpenMode::Read,
            };
            (Ino(inodes[at.index(inodes.len())]), mode, *count)
        });
        let opens = opens.filter(|&(ino, mode, _)| seen.insert((ino, number(mode))));
        let opens = opens.collect();
        let nodes = nodes.iter().filter(|_| mounted);
        let nodes = nodes.map(|(&ino, &count)| (Ino(ino), count)).collect();
        let captured = Captured {
            agreed,
            caching,
            read_only,
            nodes,
            opens,
        };
        captured.into()
    }

    proptest! {
        #[test]
        fn what_a_server_holds_can_always_be_written_down(state in any_state()) {
            prop_assert_eq!(state.clone().checked(), Ok(state));
        }
    }

    #[test]
    fn what_is_open_and_not_held_is_left_out_and_the_rest_put_in_order() {
        let nodes = vec![(Ino(9), 1), (Ino(3), u64::MAX), (Ino(5), 2)];
        let opens = vec![
            (Ino(5), OpenMode::ReadWrite, 1),
            (Ino(7), OpenMode::Read, 1),
            (Ino(5), OpenMode::Read, 4),
            (Ino(3), OpenMode::Write, 1),
        ];
        let state = ServerState::from(Captured {
            agreed: Some(Dialect::default()),
            caching: Caching::OnlyWriter,
            read_only: false,
            nodes,
            opens,
        });
        assert_eq!(
            state.nodes(),
            [(Ino(3), COUNT_MAX), (Ino(5), 2), (Ino(9), 1)]
        );
        assert_eq!(
            state.opens(),
            [
                (Ino(3), OpenMode::Write, 1),
                (Ino(5), OpenMode::Read, 4),
                (Ino(5), OpenMode::ReadWrite, 1)
            ]
        );
        assert_eq!(state.opens_total(), 6);
    }
}
