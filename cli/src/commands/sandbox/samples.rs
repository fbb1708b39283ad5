//! A sandbox for tests of how they are shown.

use std::collections::BTreeMap;

use crate::wire::sandbox::{Limits, OnTimeout, Sandbox, SandboxState};

pub(super) fn sandbox(id: &str, state: SandboxState) -> Sandbox {
    Sandbox {
        id: id.to_owned(),
        kind: "process".to_owned(),
        state,
        reason: None,
        template: "base".to_owned(),
        snapshot: Some("0123456789abcdef".to_owned()),
        workspace: id.to_owned(),
        metadata: BTreeMap::new(),
        created_at: "2026-01-02T00:00:00Z".to_owned(),
        started_at: None,
        ends_at: None,
        on_timeout: OnTimeout::Kill,
        auto_resume: false,
        session: None,
        generation: 1,
        limits: Limits::default(),
        unenforced: Vec::new(),
        network: false,
        fidelity: "filesystem".to_owned(),
        cursor: String::new(),
    }
}
