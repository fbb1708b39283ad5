//! Tests of references.

use std::collections::BTreeMap;

use super::*;
use crate::wire::sandbox::{Limits, OnTimeout, SandboxState};

fn sandbox(id: &str) -> Sandbox {
    Sandbox {
        id: id.to_owned(),
        kind: "process".to_owned(),
        state: SandboxState::Running,
        reason: None,
        template: "base".to_owned(),
        snapshot: None,
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

fn found(ids: &[&str], reference: &str) -> Result<String, ApiError> {
    let all = ids.iter().map(|id| sandbox(id)).collect();
    beginning_with(all, reference).map(|one| one.id)
}

#[test]
fn the_beginning_of_an_id_stands_for_it_if_it_is_long_enough() {
    let ids = ["sbabcd01", "sbabxy02"];
    assert_eq!(found(&ids, "sbabc").unwrap(), "sbabcd01");
    assert_eq!(found(&["sbabcd01"], "sbab").unwrap(), "sbabcd01");
    for reference in ["sba", "", "nonesuch", "sbabcd012"] {
        let error = found(&["sbabcd01"], reference).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound, "{reference}");
        assert!(error.hint.unwrap().contains("`floe sandbox list`"));
    }
}

#[test]
fn a_beginning_that_fits_several_names_them() {
    let error = found(&["sbabcd01", "sbabxy02", "other001"], "sbab").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Conflict);
    let causes = error.causes.join("\n");
    assert!(causes.contains("'sbabcd01'") && causes.contains("'sbabxy02'"));
    assert!(!causes.contains("other001"), "{causes}");

    let many: Vec<String> = (0..100).map(|n| format!("sbab{n:04}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let error = found(&many, "sbab").unwrap_err();
    assert_eq!(error.causes.len(), NAMED_MAX + 1);
    assert!(error.causes[NAMED_MAX].contains("92 more"), "{error:?}");
}

#[test]
fn the_network_is_only_given_where_the_configuration_allows_it() {
    let asked = CreateSandbox {
        network: true,
        ..CreateSandbox::default()
    };
    let none = SandboxSettings::default();
    let error = check_network(&none, &asked).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Conflict);
    let host = SandboxSettings {
        network: Network::Host,
        ..SandboxSettings::default()
    };
    assert!(check_network(&host, &asked).is_ok());
    assert!(check_network(&none, &CreateSandbox::default()).is_ok());
}
