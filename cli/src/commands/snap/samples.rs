//! Snapshots and workspaces for tests of how they are drawn.

use std::collections::BTreeMap;

use crate::wire::records::{Snapshot, Workspace};

pub(super) fn snapshot(id: &str, workspace: &str, parent: Option<&str>, layer: u64) -> Snapshot {
    Snapshot {
        image: None,
        id: id.to_owned(),
        workspace: workspace.to_owned(),
        name: None,
        parent: parent.map(str::to_owned),
        created_at: "2026-01-02T00:00:00.000000Z".to_owned(),
        cursor: String::new(),
        elapsed_us: 0,
        durable: false,
        fidelity: "filesystem".to_owned(),
        message: None,
        labels: BTreeMap::new(),
        automatic: None,
        expires_at: None,
        protected: false,
        layer,
    }
}

pub(super) fn workspace(name: &str, parent: Option<&str>) -> Workspace {
    Workspace {
        name: name.to_owned(),
        layer: 0,
        snapshot_count: 0,
        mounts: Vec::new(),
        bytes: 0,
        inodes: 0,
        quota_bytes: None,
        quota_inodes: None,
        created_at: "2026-01-01T00:00:00.000000Z".to_owned(),
        forked_from: None,
        base: None,
        parent: parent.map(str::to_owned),
    }
}
