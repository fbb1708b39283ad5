//! How many lines were added and removed, laid out as git does.

use super::names::quoted;
use crate::output::counted;
use crate::wire::records::{Changed, FileLines};

/// A line a file, and the sums. Directories that came or went are left out.
pub(super) fn table(entries: &[Changed], width: usize) -> String {
    let one_sided = |one: &Changed| one.old.is_none() || one.new.is_none();
    let directory = |one: &Changed| {
        let sides = [&one.old, &one.new];
        sides
            .into_iter()
            .flatten()
            .any(|side| side.kind == "directory")
    };
    let files: Vec<&Changed> = entries
        .iter()
        .filter(|one| !(one_sided(one) && directory(one)))
        .collect();
    if files.is_empty() {
        return String::new();
    }
    let name = |one: &Changed| {
        let path = quoted(&one.path.to_bytes());
        match &one.from {
            Some(from) => format!("{} => {path}", quoted(&from.to_bytes())),
            None => path,
        }
    };
    let counts = |one: &Changed| match &one.lines {
        Some(FileLines::Text { added, removed, .. }) => (*added, *removed),
        _ => (0, 0),
    };
    let names: Vec<String> = files.iter().map(|one| name(one)).collect();
    let longest = names.iter().map(String::len).max().unwrap_or(0);
    let totals = files.iter().map(|one| counts(one));
    let most = totals.clone().map(|(added, removed)| added + removed).max();
    let most = most.unwrap_or(0);
    let digits = most.to_string().len().max(3);
    let room = width.saturating_sub(longest + digits + 5).clamp(10, 60) as u64;
    let mut text = String::new();
    for (one, name) in files.iter().zip(&names) {
        let what = match &one.lines {
            Some(FileLines::Binary) => format!("{:>digits$}", "Bin"),
            Some(FileLines::TooLarge) => "too large".to_owned(),
            _ => {
                let (added, removed) = counts(one);
                let bar = bar(added, removed, most, room);
                format!("{:>digits$} {bar}", added + removed)
            }
        };
        text.push_str(format!(" {name:longest$} | {what}").trim_end());
        text.push('\n');
    }
    let (added, removed) = totals.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    text.push_str(&summary(files.len() as u64, added, removed));
    text
}

/// Plus and minus signs, scaled down to `room`; what is there shows at least once.
fn bar(added: u64, removed: u64, most: u64, room: u64) -> String {
    let scale = |count: u64| match (most <= room, count) {
        (true, _) | (_, 0) => count,
        (false, _) => (count * room / most.max(1)).max(1),
    };
    let signs = |sign: &str, count| sign.repeat(usize::try_from(scale(count)).unwrap_or(0));
    signs("+", added) + &signs("-", removed)
}

fn summary(files: u64, added: u64, removed: u64) -> String {
    let mut text = format!(" {} changed", counted(files, "file"));
    if added > 0 || removed == 0 {
        text.push_str(&format!(", {}(+)", counted(added, "insertion")));
    }
    if removed > 0 || added == 0 {
        text.push_str(&format!(", {}(-)", counted(removed, "deletion")));
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::WirePath;
    use crate::wire::records::Version;

    fn file(path: &str, kind: &str, lines: Option<FileLines>) -> Changed {
        let version = Version {
            kind: kind.into(),
            ..Version::default()
        };
        Changed {
            path: WirePath::from_bytes(path.as_bytes()),
            change: "added".into(),
            new: Some(version),
            lines,
            ..Changed::default()
        }
    }

    #[test]
    fn the_table_is_that_of_git() {
        let text = |added, removed| FileLines::Text {
            hunks: None,
            added,
            removed,
        };
        let entries = [
            file("a", "file", Some(text(2, 1))),
            file("dir", "directory", None),
            file("long name", "file", Some(FileLines::Binary)),
        ];
        let expected = " a         |   3 ++-\n long name | Bin\n 2 files changed, 2 insertions(+), 1 deletion(-)\n";
        assert_eq!(table(&entries, 80), expected);
        assert_eq!(table(&[], 80), "");
        assert_eq!(bar(1000, 1, 1001, 10), "+++++++++-");
        assert_eq!(
            summary(1, 0, 0),
            " 1 file changed, 0 insertions(+), 0 deletions(-)\n"
        );
    }
}
