//! Problems of a store in words.

use crate::output::{counted, printable, size};
use crate::wire::check::{DataChecked, PlaceSeen, StoreProblem};

/// A problem in lines: damaged contents one for each path, everything else one.
pub(super) fn lines(problem: &StoreProblem) -> Vec<String> {
    let message = printable(&problem.message);
    if problem.bytes.is_none() {
        return vec![match &problem.places[..] {
            [] => message,
            [one] => format!("{message}: {}", place(one)),
            [first, rest @ ..] => {
                let more = rest.len() as u64 + problem.more_places;
                format!("{message}: {} and {more} more", place(first))
            }
        }];
    }
    let mut lines: Vec<String> = problem
        .places
        .iter()
        .map(|place| {
            let path = printable(&place.path.to_string());
            format!("damaged: {path} {message}, {}", seen(place))
        })
        .collect();
    if lines.is_empty() {
        lines.push(format!(
            "damaged: {message}, seen in no snapshot or workspace"
        ));
    }
    if problem.more_places > 0 {
        lines.push(format!(
            "damaged: {message}, at {} more paths",
            problem.more_places
        ));
    }
    lines
}

fn place(place: &PlaceSeen) -> String {
    let path = printable(&place.path.to_string());
    format!("{path}, {}", seen(place))
}

/// Which states show a path.
fn seen(place: &PlaceSeen) -> String {
    let snapshots = place.snapshots.iter().map(|snapshot| match &snapshot.name {
        Some(name) => format!("{} ({name})", snapshot.id),
        None => snapshot.id.clone(),
    });
    let listed = |one: &str, many: &str, names: Vec<String>| match &names[..] {
        [] => None,
        [name] => Some(format!("{one} {name}")),
        names => Some(format!("{many} {}", names.join(", "))),
    };
    let parts = [
        listed("snapshot", "snapshots", snapshots.collect()),
        listed("workspace", "workspaces", place.workspaces.clone()),
        (place.more > 0).then(|| format!("and {} more", place.more)),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!("seen in {}", parts.join(", "))
}

/// What was read, in words.
pub(super) fn read(data: &DataChecked) -> String {
    let objects = data.objects;
    let blocks = data.verified;
    format!(
        "{} read, {}: {} verified, {} without a checksum",
        counted(objects, "object"),
        size(data.bytes),
        counted(blocks, "block"),
        data.without_checksum
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::WirePath;
    use crate::wire::check::{DamagedBytes, SnapshotSeen};

    #[test]
    fn damage_is_told_by_path_and_by_what_shows_it() {
        let snapshot = |id: &str, name: Option<&str>| SnapshotSeen {
            id: id.into(),
            name: name.map(Into::into),
            workspace: "w".into(),
        };
        let mut problem = StoreProblem {
            problem: "damaged".into(),
            message: "bytes 65536-131071 (object 1f3, not what it was)".into(),
            bytes: Some(DamagedBytes::default()),
            places: vec![PlaceSeen {
                path: WirePath::from_bytes(b"/src/big.bin"),
                workspaces: vec!["w".into()],
                snapshots: vec![snapshot("ab12", Some("green")), snapshot("cd34", None)],
                more: 0,
            }],
            more_places: 0,
        };
        assert_eq!(
            lines(&problem),
            [
                "damaged: /src/big.bin bytes 65536-131071 (object 1f3, not what it was), seen in \
                 snapshots ab12 (green), cd34, workspace w"
            ]
        );
        problem.places.clear();
        assert!(lines(&problem)[0].ends_with("seen in no snapshot or workspace"));
    }

    #[test]
    fn other_problems_are_one_line_with_the_first_path() {
        let place = PlaceSeen {
            path: WirePath::from_bytes(b"/a"),
            workspaces: vec!["w".into()],
            ..PlaceSeen::default()
        };
        let mut problem = StoreProblem {
            message: "inode 7 is odd".into(),
            places: vec![place.clone(), place],
            more_places: 2,
            ..StoreProblem::default()
        };
        let told = "inode 7 is odd: /a, seen in workspace w and 3 more";
        assert_eq!(lines(&problem), [told]);
        problem.places.clear();
        assert_eq!(lines(&problem), ["inode 7 is odd"]);
    }
}
