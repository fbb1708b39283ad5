//! Three-way merges of single things: a value, a set of attributes, lines of text.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use similar::{TextDiff, TextMerge};

use crate::attr::Attr;
use crate::change::Name;

/// How long one side is compared with the base.
const PATIENCE: Duration = Duration::from_secs(2);

/// Extended attributes.
pub(super) type Xattrs = BTreeMap<Name, Arc<[u8]>>;

/// Extended attributes to set, and to remove.
pub(crate) type XattrChanges = BTreeMap<Name, Option<Arc<[u8]>>>;

/// Both sides changed one thing, differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conflict;

/// What a value becomes: the side's that changed it.
pub(super) fn value<T: PartialEq>(base: T, ours: T, theirs: T) -> Result<T, Conflict> {
    if ours == base || ours == theirs {
        Ok(theirs)
    } else if theirs == base {
        Ok(ours)
    } else {
        Err(Conflict)
    }
}

/// Owner, mode and device number; the rest is that of theirs.
pub(super) fn attributes(base: &Attr, ours: &Attr, theirs: &Attr) -> Result<Attr, Conflict> {
    Ok(Attr {
        perm: value(base.perm, ours.perm, theirs.perm)?,
        uid: value(base.uid, ours.uid, theirs.uid)?,
        gid: value(base.gid, ours.gid, theirs.gid)?,
        rdev: value(base.rdev, ours.rdev, theirs.rdev)?,
        ..*theirs
    })
}

/// What has to be changed in theirs.
pub(super) fn xattrs(
    base: &Xattrs,
    ours: &Xattrs,
    theirs: &Xattrs,
) -> Result<XattrChanges, Conflict> {
    let mut changes = XattrChanges::new();
    for name in base.keys().chain(ours.keys()) {
        let (b, o, t) = (base.get(name), ours.get(name), theirs.get(name));
        let merged = value(b, o, t)?;
        if merged != t {
            changes.insert(name.clone(), merged.cloned());
        }
    }
    Ok(changes)
}

/// Text of at most so many bytes is merged at once.
const QUICK: usize = 16 << 10;

/// Whether a side can be compared with the base in a while. Nothing limits a merge itself.
fn is_comparable(base: &[u8], side: &[u8]) -> bool {
    if base.len().max(side.len()) <= QUICK {
        return true;
    }
    let began = Instant::now();
    let mut limited = TextDiff::configure();
    limited.timeout(PATIENCE).diff_lines(base, side);
    began.elapsed() < PATIENCE
}

/// Merges text by lines; `None` where both sides changed the same lines, or so much of long text that
/// it would take long.
pub(super) fn text(base: &[u8], ours: &[u8], theirs: &[u8]) -> Option<Vec<u8>> {
    if !is_comparable(base, ours) || !is_comparable(base, theirs) {
        return None;
    }
    let merge = TextMerge::from_lines(base, ours, theirs);
    if merge.is_conflicted() {
        return None;
    }
    let mut merged = Vec::new();
    merge.to_writer(&mut merged).ok()?;
    Some(merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_that_of_the_side_which_changed_it() {
        assert_eq!(value(1, 1, 2), Ok(2));
        assert_eq!(value(1, 2, 1), Ok(2));
        assert_eq!(value(1, 2, 2), Ok(2));
        assert_eq!(value(1, 2, 3), Err(Conflict));
    }

    #[test]
    fn extended_attributes_are_merged_one_by_one() {
        let set = |all: &[(&str, &str)]| -> Xattrs {
            let pairs = all.iter();
            pairs
                .map(|(name, value)| (Arc::from(name.as_bytes()), Arc::from(value.as_bytes())))
                .collect()
        };
        let base = set(&[("a", "1"), ("b", "1"), ("c", "1")]);
        let (ours, theirs) = (
            set(&[("a", "2"), ("b", "1"), ("d", "1")]),
            set(&[("a", "1"), ("b", "3"), ("c", "1")]),
        );
        let changes = xattrs(&base, &ours, &theirs).unwrap();
        let shown: Vec<_> = changes
            .iter()
            .map(|(name, value)| (&name[..], value.as_deref()))
            .collect();
        let expected: [(&[u8], Option<&[u8]>); 3] =
            [(b"a", Some(b"2")), (b"c", None), (b"d", Some(b"1"))];
        assert_eq!(shown, expected);
        assert_eq!(
            xattrs(&base, &ours, &set(&[("a", "9"), ("b", "1"), ("c", "1")])),
            Err(Conflict)
        );
    }

    #[test]
    fn long_text_that_was_rewritten_is_not_merged_for_ever() {
        // No two lines are the same on the two sides, so nothing is found for a long time.
        let lines = |of: u32| -> Vec<u8> {
            let numbers = (0..400_000_u32).map(|n| n.wrapping_mul(2_654_435_761) ^ of);
            numbers
                .flat_map(|n| format!("{n}\n").into_bytes())
                .collect()
        };
        assert_eq!(text(&lines(0), &lines(1), &lines(2)), None);
        let (base, mut ours) = (lines(0), lines(0));
        ours.splice(0..0, *b"first\n");
        let theirs = [&base[..], b"last\n"].concat();
        let merged = [&ours[..], b"last\n"].concat();
        assert!(text(&base, &ours, &theirs) == Some(merged));
    }

    #[test]
    fn lines_of_both_sides_are_merged_unless_they_meet() {
        let base = b"1\n2\n3\n4\n5\n6\n7\n";
        let merged = text(
            base,
            b"one\n2\n3\n4\n5\n6\n7\n",
            b"1\n2\n3\n4\n5\n6\nseven\xff",
        );
        assert_eq!(merged.unwrap(), b"one\n2\n3\n4\n5\n6\nseven\xff");
        assert_eq!(
            text(base, b"1\n2\nx\n4\n5\n6\n7\n", b"1\n2\ny\n4\n5\n6\n7\n"),
            None
        );
    }
}
