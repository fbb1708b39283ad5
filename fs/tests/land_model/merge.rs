//! A plain three-way merge by paths.

use super::ops::{Node, Tree};

pub struct Conflict;

/// What becomes of a path.
pub fn merge(
    b: Option<&Node>,
    o: Option<&Node>,
    t: Option<&Node>,
) -> Result<Option<Node>, Conflict> {
    // What is of another kind went, and something else came.
    let kind = |node: Option<&Node>| node.map(|node| node.directory);
    let (o_here, t_here) = (
        o.filter(|_| kind(o) == kind(b)),
        t.filter(|_| kind(t) == kind(b)),
    );
    let (o_new, t_new) = (
        o.filter(|_| kind(o) != kind(b)),
        t.filter(|_| kind(t) != kind(b)),
    );
    let kept = match (b, o_here, t_here) {
        (None, ..) | (Some(_), None, None) => None,
        (Some(b), None, Some(one)) | (Some(b), Some(one), None) if one == b => None,
        (Some(_), None, Some(_)) | (Some(_), Some(_), None) => return Err(Conflict),
        (Some(b), Some(o), Some(t)) => Some(Node {
            directory: b.directory,
            perm: value(&b.perm, &o.perm, &t.perm)?,
            contents: value(&b.contents, &o.contents, &t.contents)?,
        }),
    };
    let added = match (o_new, t_new) {
        (Some(o), Some(t)) if o.directory != t.directory || o.contents != t.contents => {
            return Err(Conflict);
        }
        (_, Some(t)) => Some(t.clone()),
        (o, None) => o.cloned(),
    };
    match (kept, added) {
        (Some(_), Some(_)) => Err(Conflict),
        (kept, added) => Ok(kept.or(added)),
    }
}

pub fn value<T: PartialEq + Clone>(b: &T, o: &T, t: &T) -> Result<T, Conflict> {
    if o == b || o == t {
        Ok(t.clone())
    } else if t == b {
        Ok(o.clone())
    } else {
        Err(Conflict)
    }
}

pub fn merge_trees(b: &Tree, o: &Tree, t: &Tree) -> Result<Tree, Conflict> {
    let mut merged = Tree::new();
    let paths = b.keys().chain(o.keys()).chain(t.keys());
    for path in paths {
        if let Some(node) = merge(b.get(path), o.get(path), t.get(path))? {
            merged.insert(path.clone(), node);
        }
    }
    for path in merged.keys() {
        if let Some((parent, _)) = path.rsplit_once('/')
            && !merged.get(parent).is_some_and(|node| node.directory)
        {
            return Err(Conflict);
        }
    }
    Ok(merged)
}
