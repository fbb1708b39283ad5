//! Differences by lines.

use std::time::Duration;

use similar::{ChangeTag, TextDiff};

use super::DiffError;
use super::contents::Contents;
use crate::contents::Objects;

/// Largest file, in bytes, whose lines are compared.
pub const TEXT_MAX: u64 = 8 << 20;
/// After so long, what is left of two files is taken to differ as a whole.
const PATIENCE: Duration = Duration::from_secs(10);

/// How the contents of two files differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileDiff {
    /// By lines.
    Text {
        /// Hunks of a unified diff, without the lines that name the files; empty if there is no
        /// difference.
        hunks: Vec<u8>,
        /// Lines on the second side only.
        added: u64,
        /// Lines on the first side only.
        removed: u64,
    },
    /// One of them is no text: it has a byte 0.
    Binary,
    /// One of them is larger than [`TEXT_MAX`].
    TooLarge,
    /// One of them is not there any more: it was removed from a live layer since.
    Gone,
}

/// Whether bytes are text.
pub(crate) fn is_text(bytes: &[u8]) -> bool {
    !bytes.contains(&0)
}

/// Compares two files; one that is not there has no lines.
pub(super) fn diff(
    objects: &Objects,
    old: Option<&Contents>,
    new: Option<&Contents>,
) -> Result<FileDiff, DiffError> {
    let too_large = |side: &Option<&Contents>| side.is_some_and(|side| side.size() > TEXT_MAX);
    if too_large(&old) || too_large(&new) {
        return Ok(FileDiff::TooLarge);
    }
    let read = |side: Option<&Contents>| side.map(|side| side.read_all(objects)).transpose();
    let (old, new) = (
        read(old)?.unwrap_or_default(),
        read(new)?.unwrap_or_default(),
    );
    if !is_text(&old) || !is_text(&new) {
        return Ok(FileDiff::Binary);
    }
    Ok(by_lines(&old, &new))
}

fn by_lines(old: &[u8], new: &[u8]) -> FileDiff {
    let diff = TextDiff::configure().timeout(PATIENCE).diff_lines(old, new);
    let (mut added, mut removed) = (0, 0);
    for change in diff.iter_all_changes() {
        match change.tag() {
            ChangeTag::Insert => added += 1,
            ChangeTag::Delete => removed += 1,
            ChangeTag::Equal => {}
        }
    }
    let mut hunks = Vec::new();
    for hunk in diff.unified_diff().iter_hunks() {
        // Into memory, which does not fail.
        if hunk.to_writer(&mut hunks).is_err() {
            break;
        }
    }
    FileDiff::Text {
        hunks,
        added,
        removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_are_those_of_a_unified_diff() {
        let FileDiff::Text {
            hunks,
            added,
            removed,
        } = by_lines(b"a\nb\xff\nc\n", b"a\nB\xff\nc")
        else {
            panic!()
        };
        assert_eq!((added, removed), (2, 2));
        let expected =
            b"@@ -1,3 +1,3 @@\n a\n-b\xff\n-c\n+B\xff\n+c\n\\ No newline at end of file\n";
        assert_eq!(
            hunks.escape_ascii().to_string(),
            expected.escape_ascii().to_string()
        );
        assert!(matches!(by_lines(b"", b""), FileDiff::Text { hunks, .. } if hunks.is_empty()));
    }
}
