//! The text of a drawn forest. No line is wider than the page, whatever names and messages say.

use super::graph::{Node, Row};
use super::title;
use crate::output::{Output, Paint, columns, padded, printable, shortened};
use crate::time;
use crate::wire::records::{Snapshot, Workspace};

/// Widest column of workspaces on a page of so many columns.
fn names_max(page: usize) -> usize {
    (page / 5).min(20)
}

/// Widest lead in front of a row.
pub(super) fn lead_max(page: usize) -> usize {
    page * 2 / 5
}

/// What is drawn on.
pub(super) struct Page<'a> {
    /// Its width in columns.
    pub(super) width: usize,
    /// Whether lines can be drawn with more than ASCII.
    pub(super) unicode: bool,
    /// Colours.
    pub(super) output: &'a Output,
}

/// Pieces of a line with their colours.
type Pieces = Vec<(Option<Paint>, String)>;

/// Widths that rows have in common, so that messages begin in one column.
struct Widths {
    name: usize,
    age: usize,
}

/// Every row on a line of its own, trees of more than one row apart from others.
pub(super) fn drawn(rows: &[Row<'_>], page: &Page<'_>) -> String {
    let snapshots = || {
        rows.iter().filter_map(|row| match row.node {
            Node::Snapshot(snapshot) => Some(snapshot),
            Node::Workspace(_) => None,
        })
    };
    let widest = |width: fn(&Snapshot) -> usize| snapshots().map(width).max().unwrap_or(0);
    let widths = Widths {
        name: widest(|one| columns(&one.workspace)).min(names_max(page.width)),
        age: widest(|one| columns(&time::ago(&one.created_at))),
    };
    let is_lone_workspace = |row: &Row<'_>| row.is_root && matches!(row.node, Node::Workspace(_));
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        // Or it would look as if it came from what stands above it.
        if at > 0 && row.is_root && !(is_lone_workspace(row) && is_lone_workspace(&rows[at - 1])) {
            text.push('\n');
        }
        let (mark, pieces) = match row.node {
            Node::Snapshot(snapshot) => ("*", of_snapshot(snapshot, &widths)),
            Node::Workspace(one) => ("o", of_workspace(one.workspace)),
        };
        let lead = if page.unicode {
            row.lead.clone()
        } else {
            row.lead.replace(['│', '├'], "|").replace('─', "-")
        };
        text.push_str(&line(&format!("{lead}{mark} "), pieces, page));
    }
    text
}

fn line(lead: &str, pieces: Pieces, page: &Page<'_>) -> String {
    let mut text = lead.to_owned();
    let mut left = page.width.saturating_sub(columns(lead));
    for (paint, piece) in pieces {
        let piece = shortened(&piece, left);
        left -= columns(&piece);
        match paint {
            Some(paint) => text.push_str(&page.output.paint(paint, &piece)),
            None => text.push_str(&piece),
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// `ID  WORKSPACE  AGE  TITLE`
fn of_snapshot(snapshot: &Snapshot, widths: &Widths) -> Pieces {
    let name = shortened(&snapshot.workspace, widths.name);
    let facts = format!(
        "  {}  {}  ",
        padded(&name, widths.name),
        padded(&time::ago(&snapshot.created_at), widths.age)
    );
    let dim = snapshot.automatic.is_some().then_some(Paint::Dim);
    vec![
        (Some(Paint::Hint), snapshot.id.clone()),
        (None, facts),
        (dim, printable(&title(snapshot))),
    ]
}

fn of_workspace(workspace: &Workspace) -> Pieces {
    let state = match &workspace.mounts[..] {
        [] => "  (not mounted)".to_owned(),
        [dir] => format!("  on {dir}"),
        [dir, more @ ..] => format!("  on {dir} and {} more", more.len()),
    };
    vec![
        (Some(Paint::Good), workspace.name.clone()),
        (None, printable(&state)),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::graph::{Graph, Standing};
    use super::super::samples::{snapshot, workspace};
    use super::*;
    use crate::output::ColorWhen;

    fn on_page(
        snapshots: &[Snapshot],
        workspaces: &[Workspace],
        width: usize,
        unicode: bool,
    ) -> String {
        let standing: Vec<_> = workspaces.iter().map(Standing::new).collect();
        let graph = Graph::new(snapshots, &standing);
        let page = Page {
            width,
            unicode,
            output: &Output::new(false, false, ColorWhen::Never),
        };
        drawn(&graph.rows(None, lead_max(width)), &page)
    }

    fn at(hours: &str, of: Snapshot) -> Snapshot {
        // What is no time is shown as it is.
        Snapshot {
            created_at: format!("{hours} h"),
            ..of
        }
    }

    fn saying(message: &str, of: Snapshot) -> Snapshot {
        Snapshot {
            message: Some(message.to_owned()),
            ..of
        }
    }

    fn id(number: u64) -> String {
        format!("{number:016x}")
    }

    #[test]
    fn titles_begin_in_one_column_and_trees_stand_apart() {
        let (a, b) = (id(1), id(2));
        let snapshots = [
            at("12", saying("first", snapshot(&a, "web", None, 1))),
            at(
                "3",
                saying("\n\tbefore\nmore", snapshot(&b, "web", Some(&a), 2)),
            ),
            at("3", snapshot(&id(3), "w", None, 3)),
        ];
        let mut mounted = workspace("web", Some(&b));
        let dir = |text| crate::wire::WirePath::from(std::path::Path::new(text));
        mounted.mounts = vec![dir("/mnt/a\nb"), dir("/c")];
        let workspaces = [
            workspace("one", None),
            workspace("other", None),
            workspace("try", Some(&a)),
            mounted,
        ];
        let expected = "\
* 0000000000000001  web  12 h  first
├─o try  (not mounted)
* 0000000000000002  web  3 h   before
o web  on /mnt/a\\nb and 1 more

* 0000000000000003  w    3 h   -

o one  (not mounted)
o other  (not mounted)
";
        assert_eq!(on_page(&snapshots, &workspaces, 100, true), expected);
        let ascii = on_page(&snapshots, &workspaces, 100, false);
        assert_eq!(ascii, expected.replace("├─", "|-"));
    }

    /// Long names, messages of wide and of control characters, a deep chain, nested and wide forks.
    #[test]
    fn no_line_is_wider_than_the_page() {
        let long = "n".repeat(128);
        let messages = [
            "日本語".repeat(60),
            "x\u{1b}[2J\u{202e}\r\n".repeat(30),
            "y".repeat(400),
        ];
        let mut snapshots = Vec::new();
        let mut parent: Option<String> = None;
        for n in 0..60_u64 {
            let ws = if n < 30 {
                "web".to_owned()
            } else {
                format!("{long}{n}")
            };
            let one = snapshot(&id(n), &ws[..ws.len().min(128)], parent.as_deref(), 2 * n);
            let mut one = at(
                "3",
                saying(messages[usize::try_from(n % 3).unwrap()].as_str(), one),
            );
            one.name = (n % 4 == 0).then(|| long.clone());
            snapshots.push(one);
            // Keeps its own column, so that the next one is a branch.
            snapshots.push(at(
                "3",
                snapshot(&id(1000 + n), "web", Some(&id(n)), 2 * n + 1),
            ));
            parent = Some(id(n));
        }
        let forks = (0..10).map(|n| workspace(&format!("{long}{n}")[1..], Some(&id(5))));
        let mut forks: Vec<_> = forks.collect();
        forks[0].mounts = vec![std::path::Path::new(&format!("/{long}")).into()];
        for width in [40, 60, 100, 200] {
            for unicode in [true, false] {
                let text = on_page(&snapshots, &forks, width, unicode);
                assert_eq!(text.lines().count(), 130);
                for line in text.lines() {
                    assert!(
                        columns(line) <= width,
                        "{} of {width}: {line}",
                        columns(line)
                    );
                    assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'));
                }
            }
        }
    }

    #[test]
    fn a_rollback_leaves_a_branch_and_forks_of_forks_go_further_right() {
        let ids: Vec<_> = (0..6).map(id).collect();
        let mut left = snapshot(&ids[2], "w", Some(&ids[1]), 3);
        left.automatic = Some("rollback".to_owned());
        left.message = Some(format!("before the rollback to {}", ids[0]));
        let mut forked = snapshot(&ids[4], "f", Some(&ids[3]), 5);
        forked.automatic = Some("fork".to_owned());
        let snapshots = [
            snapshot(&ids[0], "w", None, 1),
            snapshot(&ids[1], "w", Some(&ids[0]), 2),
            left,
            snapshot(&ids[3], "f", Some(&ids[0]), 4),
            forked,
        ]
        .map(|one| at("3", one));
        let workspaces = [
            workspace("f", Some(&ids[4])),
            workspace("g", Some(&ids[4])),
            workspace("w", Some(&ids[0])),
        ];
        let expected = "\
* 0000000000000000  w  3 h  -
├─* 0000000000000001  w  3 h  -
│ * 0000000000000002  w  3 h  before the rollback to 0000000000000000
├─* 0000000000000003  f  3 h  -
│ * 0000000000000004  f  3 h  (automatic, before a fork)
│ ├─o g  (not mounted)
│ o f  (not mounted)
o w  (not mounted)
";
        assert_eq!(on_page(&snapshots, &workspaces, 100, true), expected);
    }
}
