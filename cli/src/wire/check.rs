//! Answers about checking and repairing a store.

use floe_fs::{
    CheckReport, DataReport, Found, Place, Places, Problem, RepairLeft, RepairReport, RepairStep,
    SeenIn,
};
use serde::{Deserialize, Serialize};

use super::WirePath;

/// What a check of the store found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// What is wrong; empty when the store is sound.
    pub problems: Vec<StoreProblem>,
    /// Problems beyond those listed.
    pub more: u64,
    /// Damage that is known: reading it fails, nothing else is wrong with it.
    pub known: Vec<StoreProblem>,
    /// Layers looked at.
    pub layers: u64,
    /// Versions of inodes looked at.
    pub inodes: u64,
    /// Versions of names looked at.
    pub names: u64,
    /// Objects looked at.
    pub objects: u64,
    /// What was read, if contents were verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataChecked>,
    /// How long it took, in microseconds.
    pub elapsed_us: u64,
}

/// What was read to verify contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataChecked {
    /// Objects read.
    pub objects: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Blocks that are what was hashed.
    pub verified: u64,
    /// Objects without a checksum, which were only read.
    pub without_checksum: u64,
}

impl From<&DataReport> for DataChecked {
    fn from(data: &DataReport) -> Self {
        Self {
            objects: data.objects,
            bytes: data.bytes,
            verified: data.verified,
            without_checksum: data.without_checksum,
        }
    }
}

/// Something that breaks a rule of the store's format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreProblem {
    /// Which rule, in a word that stays the same: `layer_order`, `links`, `damaged`, ...
    pub problem: String,
    /// What is wrong, for people.
    pub message: String,
    /// The damaged bytes.
    #[serde(flatten)]
    pub bytes: Option<DamagedBytes>,
    /// Where the file is that it is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<PlaceSeen>,
    /// How many more paths it has.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_places: u64,
}

/// Damaged bytes of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedBytes {
    /// The object, as its file is called.
    pub object: String,
    /// The first of them, in the file and in the object.
    pub start: u64,
    /// The first after them.
    pub end: u64,
}

/// A path of a file, and where it is that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceSeen {
    /// From the root of the workspace.
    pub path: WirePath,
    /// Workspaces that show it.
    pub workspaces: Vec<String>,
    /// Snapshots that show it, the newest first.
    pub snapshots: Vec<SnapshotSeen>,
    /// How many more of both there are.
    pub more: u64,
}

/// A snapshot that shows a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotSeen {
    /// Its id.
    pub id: String,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// The workspace it was taken of.
    pub workspace: String,
}

/// What a repair did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repaired {
    /// False for a dry run.
    pub repaired: bool,
    /// What was put right, or would be.
    pub steps: Vec<Repair>,
    /// What stays, and why.
    pub left: Vec<Unrepaired>,
    /// The copy of the catalog before, if anything was changed.
    pub catalog_copy: Option<WirePath>,
    /// What was read, if contents were verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataChecked>,
    /// Whether nothing is wrong, or left to do.
    pub clean: bool,
    /// What a check says afterwards.
    pub after: Checked,
}

/// Something that was put right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repair {
    /// What was wrong.
    #[serde(flatten)]
    pub problem: StoreProblem,
    /// What is done about it.
    pub action: String,
}

/// A problem that stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unrepaired {
    /// What is wrong.
    #[serde(flatten)]
    pub problem: StoreProblem,
    /// Why it stays.
    pub why: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The tag that a problem is serialised with.
fn word(problem: &Problem) -> String {
    let value = serde_json::to_value(problem).ok();
    let tag = value.and_then(|value| Some(value.get("problem")?.as_str()?.to_owned()));
    tag.unwrap_or_default()
}

impl StoreProblem {
    fn new(problem: &Problem, places: Option<&Places>) -> Self {
        let bytes = match *problem {
            Problem::Damaged {
                object, start, end, ..
            } => Some(DamagedBytes {
                object: format!("{:x}", object.0),
                start,
                end,
            }),
            _ => None,
        };
        let list = places.map_or(&[][..], |places| &places.list);
        Self {
            problem: word(problem),
            message: problem.to_string(),
            bytes,
            places: list.iter().map(PlaceSeen::from).collect(),
            more_places: places.map_or(0, |places| places.more),
        }
    }
}

impl From<&Place> for PlaceSeen {
    fn from(place: &Place) -> Self {
        let mut seen = Self {
            path: WirePath::from(&*place.path),
            more: place.more,
            ..Self::default()
        };
        for state in &place.seen {
            match state {
                SeenIn::Workspace { name } => seen.workspaces.push(name.clone()),
                SeenIn::Snapshot {
                    id,
                    name,
                    workspace,
                } => seen.snapshots.push(SnapshotSeen {
                    id: id.to_string(),
                    name: name.clone(),
                    workspace: workspace.clone(),
                }),
            }
        }
        seen
    }
}

impl From<&Found> for StoreProblem {
    fn from(found: &Found) -> Self {
        Self::new(&found.problem, Some(&found.places))
    }
}

impl From<CheckReport> for Checked {
    fn from(report: CheckReport) -> Self {
        let problems = report.problems.iter().enumerate();
        let problems =
            problems.map(|(at, problem)| StoreProblem::new(problem, report.places.get(&at)));
        Self {
            problems: problems.collect(),
            more: report.more,
            known: report.known.iter().map(StoreProblem::from).collect(),
            layers: report.layers,
            inodes: report.inodes,
            names: report.names,
            objects: report.objects,
            data: report.data.as_ref().map(DataChecked::from),
            elapsed_us: report.elapsed_us,
        }
    }
}

impl From<RepairReport> for Repaired {
    fn from(report: RepairReport) -> Self {
        let clean = report.is_clean();
        let step = |step: &RepairStep| Repair {
            problem: StoreProblem::from(&step.found),
            action: step.action.clone(),
        };
        let left = |left: &RepairLeft| Unrepaired {
            problem: StoreProblem::from(&left.found),
            why: left.why.to_owned(),
        };
        Self {
            repaired: report.applied,
            steps: report.steps.iter().map(step).collect(),
            left: report.left.iter().map(left).collect(),
            catalog_copy: report.catalog_copy.as_deref().map(WirePath::from),
            data: report.data.as_ref().map(DataChecked::from),
            clean,
            after: report.after.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_object_whether_or_not_it_is_about_bytes() {
        let plain = StoreProblem {
            problem: "links".into(),
            message: "m".into(),
            ..StoreProblem::default()
        };
        let text = serde_json::to_string(&plain).unwrap();
        assert_eq!(text, r#"{"problem":"links","message":"m"}"#);
        assert_eq!(serde_json::from_str::<StoreProblem>(&text).unwrap(), plain);
        let damaged = StoreProblem {
            bytes: Some(DamagedBytes {
                object: "1f3".into(),
                start: 65536,
                end: 131_072,
            }),
            places: vec![PlaceSeen::default()],
            ..plain
        };
        let text = serde_json::to_string(&damaged).unwrap();
        assert!(text.contains(r#""object":"1f3","start":65536"#), "{text}");
        assert_eq!(
            serde_json::from_str::<StoreProblem>(&text).unwrap(),
            damaged
        );
    }
}
