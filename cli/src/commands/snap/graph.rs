//! The order and the columns in which a forest of snapshots and workspaces is drawn.
//!
//! Every node but a tree's root is drawn below its parent: its *main* child, the one that leads to
//! the workspace's present state, in the parent's own column, all others one step to the right and
//! before it. So the columns count branches, not depth: a chain of 10,000 snapshots is one column.

use std::collections::{HashMap, HashSet};

use crate::wire::records::{Snapshot, Workspace};

/// A workspace and the snapshot that its live layer stands on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing<'a> {
    pub(super) workspace: &'a Workspace,
    pub(super) on: Option<&'a str>,
}

impl<'a> Standing<'a> {
    /// What the daemon says that a workspace stands on.
    pub(super) fn new(workspace: &'a Workspace) -> Self {
        let on = workspace.parent.as_deref();
        Self { workspace, on }
    }
}

/// The workspace that only is of interest, and its own snapshots, whatever others of its name,
/// deleted since, have left.
pub(super) struct Only<'a> {
    pub(super) workspace: &'a str,
    pub(super) snapshots: &'a [Snapshot],
}

/// What a row shows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Node<'a> {
    Snapshot(&'a Snapshot),
    Workspace(Standing<'a>),
}

/// One line.
pub(super) struct Row<'a> {
    /// The drawing in front of it.
    pub(super) lead: String,
    /// Whether a tree begins with it.
    pub(super) is_root: bool,
    /// What it shows.
    pub(super) node: Node<'a>,
}

/// The forest.
pub(super) struct Graph<'a> {
    by_id: HashMap<&'a str, &'a Snapshot>,
    /// Children by the parent's id, oldest first, workspaces last.
    children: HashMap<&'a str, Vec<Node<'a>>>,
    roots: Vec<Node<'a>>,
    /// Snapshots from which the present state of their own workspace comes.
    present: HashSet<&'a str>,
}

impl<'a> Graph<'a> {
    /// Builds the forest from lists in any order.
    pub(super) fn new(snapshots: &'a [Snapshot], workspaces: &[Standing<'a>]) -> Self {
        let by_id: HashMap<_, _> = snapshots.iter().map(|one| (one.id.as_str(), one)).collect();
        let mut children: HashMap<&str, Vec<Node<'_>>> = HashMap::new();
        let mut roots = Vec::new();
        let mut place =
            |parent: Option<&'a str>, node| match parent.filter(|id| by_id.contains_key(id)) {
                Some(id) => children.entry(id).or_default().push(node),
                None => roots.push(node),
            };
        // Layer ids only grow, so they are the order of age.
        let mut oldest_first: Vec<_> = snapshots.iter().collect();
        oldest_first.sort_by_key(|one| one.layer);
        for snapshot in oldest_first {
            place(snapshot.parent.as_deref(), Node::Snapshot(snapshot));
        }
        for standing in workspaces {
            place(standing.on, Node::Workspace(*standing));
        }
        let mut present = HashSet::new();
        for standing in workspaces {
            let mut next = standing.on;
            while let Some(snapshot) = next.and_then(|id| by_id.get(id)) {
                if snapshot.workspace != standing.workspace.name
                    || !present.insert(snapshot.id.as_str())
                {
                    break;
                }
                next = snapshot.parent.as_deref();
            }
        }
        Self {
            by_id,
            children,
            roots,
            present,
        }
    }

    /// The names of the workspaces that stand on a snapshot.
    pub(super) fn workspaces_on(&self, snapshot: &Snapshot) -> impl Iterator<Item = &'a str> {
        self.children_of(snapshot)
            .iter()
            .filter_map(|node| match node {
                Node::Workspace(standing) => Some(standing.workspace.name.as_str()),
                Node::Snapshot(_) => None,
            })
    }

    /// The lines from top to bottom; with a workspace, only the trees that have to do with it. A lead
    /// has at most so many columns: deeper branches lose the left part of theirs.
    pub(super) fn rows(&self, only: Option<&Only<'_>>, lead_max: usize) -> Vec<Row<'a>> {
        let wanted = only.map(|only| self.roots_with(only));
        let mut rows = Vec::new();
        // Work still to do, last first: a node, its lead, and the lead of what is below it.
        let mut todo: Vec<(Node<'a>, String, String)> = Vec::new();
        for root in &self.roots {
            if wanted
                .as_ref()
                .is_some_and(|wanted| !wanted.contains(key(root)))
            {
                continue;
            }
            let mut is_root = true;
            todo.push((*root, String::new(), String::new()));
            while let Some((node, lead, below)) = todo.pop() {
                rows.push(Row {
                    lead: clipped(&lead, lead_max),
                    is_root: std::mem::take(&mut is_root),
                    node,
                });
                let Node::Snapshot(snapshot) = node else {
                    continue;
                };
                let children = self.children_of(snapshot);
                let Some(main) = self.main_child(snapshot, children) else {
                    continue;
                };
                todo.push((children[main], below.clone(), below.clone()));
                for (index, child) in children.iter().enumerate().rev() {
                    if index != main {
                        todo.push((*child, format!("{below}├─"), format!("{below}│ ")));
                    }
                }
            }
        }
        rows
    }

    fn children_of(&self, snapshot: &Snapshot) -> &[Node<'a>] {
        self.children
            .get(snapshot.id.as_str())
            .map_or(&[], Vec::as_slice)
    }

    /// The child that goes on in the same column.
    fn main_child(&self, parent: &Snapshot, children: &[Node<'a>]) -> Option<usize> {
        let leads_to_present = |node: &Node<'_>| match node {
            Node::Snapshot(child) => {
                child.workspace == parent.workspace && self.present.contains(child.id.as_str())
            }
            Node::Workspace(standing) => standing.workspace.name == parent.workspace,
        };
        let same_workspace = |node: &Node<'_>| match node {
            Node::Snapshot(child) => child.workspace == parent.workspace,
            Node::Workspace(_) => false,
        };
        children
            .iter()
            .position(leads_to_present)
            .or_else(|| children.iter().rposition(same_workspace))
            .or_else(|| children.len().checked_sub(1))
    }

    /// Keys of the roots above a workspace and above its snapshots.
    fn roots_with(&self, only: &Only<'_>) -> HashSet<&'a str> {
        let mut seen = HashSet::new();
        let mut roots = HashSet::new();
        let own = only
            .snapshots
            .iter()
            .filter_map(|one| self.by_id.get(one.id.as_str()).copied());
        let live = self.children.values().flatten().chain(&self.roots);
        let mut starts: Vec<&'a Snapshot> = own.collect();
        for node in live {
            let Node::Workspace(standing) = node else {
                continue;
            };
            if standing.workspace.name != only.workspace {
                continue;
            }
            match standing.on.and_then(|id| self.by_id.get(id)) {
                Some(parent) => starts.push(parent),
                None => drop(roots.insert(name_of(standing))),
            }
        }
        for mut snapshot in starts {
            while seen.insert(snapshot.id.as_str()) {
                match snapshot.parent.as_deref().and_then(|id| self.by_id.get(id)) {
                    Some(parent) => snapshot = parent,
                    None => drop(roots.insert(snapshot.id.as_str())),
                }
            }
        }
        roots
    }
}

/// Ids are hexadecimal of a fixed length, and a workspace could be called like one, but then it
/// would have to be a root of its own as well: at worst an unrelated tree is shown.
fn key<'a>(node: &Node<'a>) -> &'a str {
    match node {
        Node::Snapshot(snapshot) => &snapshot.id,
        Node::Workspace(standing) => &standing.workspace.name,
    }
}

fn name_of<'a>(standing: &Standing<'a>) -> &'a str {
    &standing.workspace.name
}

fn clipped(lead: &str, max: usize) -> String {
    let length = lead.chars().count();
    if length <= max {
        return lead.to_owned();
    }
    // The columns stay where they are.
    let kept: String = lead.chars().skip(length - max.saturating_sub(3)).collect();
    format!("...{kept}")
}

#[cfg(test)]
mod tests {
    use super::super::samples::{snapshot, workspace};
    use super::*;

    fn drawn(snapshots: &[Snapshot], workspaces: &[Workspace], only: Option<&str>) -> Vec<String> {
        let standing: Vec<_> = workspaces.iter().map(Standing::new).collect();
        let graph = Graph::new(snapshots, &standing);
        let own: Vec<_> = snapshots
            .iter()
            .filter(|one| Some(one.workspace.as_str()) == only)
            .cloned()
            .collect();
        let only = only.map(|workspace| Only {
            workspace,
            snapshots: &own,
        });
        let rows = graph.rows(only.as_ref(), 40);
        rows.iter()
            .map(|row| format!("{}{}", row.lead, key(&row.node)))
            .collect()
    }

    /// Both are called "w"; the first was deleted.
    #[test]
    fn a_workspace_has_nothing_to_do_with_a_deleted_one_of_its_name() {
        let snapshots = [snapshot("old", "w", None, 1), snapshot("new", "w", None, 2)];
        let workspaces = [workspace("w", Some("new"))];
        let standing: Vec<_> = workspaces.iter().map(Standing::new).collect();
        let graph = Graph::new(&snapshots, &standing);
        let only = Only {
            workspace: "w",
            snapshots: &snapshots[1..],
        };
        let rows = graph.rows(Some(&only), 40);
        let keys: Vec<_> = rows.iter().map(|row| key(&row.node)).collect();
        assert_eq!(keys, ["new", "w"]);
    }

    #[test]
    fn forks_branch_off_and_the_present_state_keeps_its_column() {
        let snapshots = [
            snapshot("s3", "w", Some("s1"), 5),
            snapshot("s2", "w", Some("s1"), 3),
            snapshot("f1", "fork", Some("s1"), 4),
            snapshot("s1", "w", None, 1),
        ];
        // s2 was abandoned by a rollback to s1; "w" stands on s3.
        let workspaces = [workspace("fork", Some("f1")), workspace("w", Some("s3"))];
        let expected = ["s1", "├─s2", "├─f1", "│ fork", "s3", "w"];
        assert_eq!(drawn(&snapshots, &workspaces, None), expected);
    }

    #[test]
    fn only_trees_of_the_workspace_are_drawn() {
        let snapshots = [snapshot("a1", "a", None, 1), snapshot("b1", "b", None, 2)];
        let workspaces = [
            workspace("a", Some("a1")),
            workspace("b", Some("b1")),
            workspace("c", None),
        ];
        assert_eq!(drawn(&snapshots, &workspaces, Some("a")), ["a1", "a"]);
        assert_eq!(drawn(&snapshots, &workspaces, Some("c")), ["c"]);
        assert_eq!(drawn(&snapshots, &workspaces, None).len(), 5);
    }

    #[test]
    fn a_long_chain_is_one_column() {
        let id = |number: u64| format!("n{number}");
        let chain: Vec<_> = (1..=5_000)
            .map(|n| snapshot(&id(n), "w", (n > 1).then(|| id(n - 1)).as_deref(), n))
            .collect();
        assert!(
            drawn(&chain, &[], None)
                .iter()
                .all(|row| row.starts_with('n'))
        );
    }

    #[test]
    fn deep_branches_stay_narrow() {
        let id = |number: u64| format!("n{number}");
        // Every snapshot is a fork of the one before, which also has a line of its own.
        let mut nested = Vec::new();
        for n in 1..=200 {
            let (ws, parent) = (format!("w{n}"), (n > 1).then(|| id(n - 1)));
            nested.push(snapshot(&id(n), &ws, parent.as_deref(), 2 * n));
            nested.push(snapshot(&format!("m{n}"), &ws, Some(&id(n)), 2 * n + 1));
        }
        for most in [16, 40, 80] {
            let rows = Graph::new(&nested, &[]).rows(None, most);
            assert_eq!(rows.len(), 400);
            let widest = rows.iter().map(|row| row.lead.chars().count()).max();
            assert_eq!(widest, Some(most));
        }
    }

    #[test]
    fn parents_that_are_gone_make_roots() {
        let snapshots = [snapshot("s2", "w", Some("deleted"), 2)];
        assert_eq!(
            drawn(&snapshots, &[workspace("w", Some("s2"))], None),
            ["s2", "w"]
        );
    }
}
