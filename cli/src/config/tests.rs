//! Tests of the configuration and of the page that describes it.

use std::collections::BTreeSet;

use super::*;

const PAGE: &str = include_str!("../../../docs/config.md");

fn wrong(text: &str) -> (usize, String) {
    let (line, wrong) = Config::parse(text).unwrap_err();
    (line, wrong.to_string())
}

/// Every key, as `section.key`: those that the parser knows.
fn keys() -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    for section in expected("surely_unknown = 1") {
        for key in expected(&format!("[{section}]\nsurely_unknown = 1")) {
            keys.insert(format!("{section}.{key}"));
        }
    }
    keys
}

/// The names that the error for an unknown one says there are.
fn expected(text: &str) -> Vec<String> {
    let (_, told) = wrong(text);
    let named = told.split('`').skip(1).step_by(2);
    let names: Vec<_> = named
        .filter(|name| *name != "surely_unknown")
        .map(str::to_owned)
        .collect();
    assert!(names.len() > 1, "{told}");
    names
}

/// The page's example, a block of TOML.
fn example() -> &'static str {
    let (_, rest) = PAGE.split_once("```toml\n").expect("an example");
    rest.split_once("```").expect("the end of the example").0
}

#[test]
fn an_empty_file_means_the_defaults() {
    assert_eq!(Config::parse("").unwrap(), Config::default());
    assert_eq!(Config::parse("[sandbox]\n").unwrap(), Config::default());
}

#[test]
fn values_are_read_as_people_write_them() {
    let text = r#"
        [api]
        addr = "[::1]:0"
        domain = "sb.example.org"
        allow_remote = true
        request_bytes_max = "1.5M"
        request_time_max = "1m 30s"
        connections_max = 7

        [sandbox]
        network = "host"
        cpus = 1.5
        memory = "512M"
        pids = 64
        disk = "none"
        timeout = "1h 30m"

        [log]
        format = "json"
        filter = "floe=debug,warn"
    "#;
    let config = Config::parse(text).unwrap();
    assert_eq!(config.api.addr.to_string(), "[::1]:0");
    assert_eq!(config.api.domain.as_deref(), Some("sb.example.org"));
    assert!(config.api.allow_remote);
    assert_eq!(config.api.request_bytes_max, 3 << 19);
    assert_eq!(config.api.request_time_max_s, 90);
    assert_eq!(config.api.connections_max, 7);
    assert_eq!(config.sandbox.network, Network::Host);
    assert_eq!(config.sandbox.cpus, Some(1500));
    assert_eq!(config.sandbox.memory, Some(512 << 20));
    assert_eq!(config.sandbox.pids, Some(64));
    assert_eq!(config.sandbox.disk, None);
    assert_eq!(config.sandbox.timeout, 5400);
    assert_eq!(config.sandbox.max, SandboxSettings::default().max);
    assert_eq!(config.log.format, LogFormat::Json);
    assert_eq!(config.log.filter, "floe=debug,warn");
}

#[test]
fn what_is_unknown_or_wrong_is_named_with_its_line() {
    let cases = [
        ("[sandbox]\n\nmemroy = \"1G\"\n", 3, "memroy"),
        ("[log]\n[sandbocks]\n", 2, "sandbocks"),
        ("colour = 1\n", 1, "colour"),
        ("[sandbox]\nnetwork = \"bridge\"\n", 2, "bridge"),
        ("[sandbox]\npids = 0\n", 2, "at least 1"),
        ("[sandbox]\npids = -5\n", 2, "-5"),
        ("[sandbox]\nmemory = true\n", 2, "a size"),
        ("[sandbox]\ntimeout = 300\n", 2, "300"),
        ("[sandbox]\ncpus = nan\n", 2, "processors"),
        ("[api]\naddr = \"here\"\n", 2, ""),
        ("[log]\nfilter = \"floe=loud\"\n", 2, "floe=loud"),
        ("[log]\nformat = \n", 2, ""),
        (
            "[api]\nrequests_max = 1\nrequests_max = 2\n",
            3,
            "duplicate",
        ),
    ];
    for (text, line, named) in cases {
        let (at, told) = wrong(text);
        assert_eq!(at, line, "{text:?}: {told}");
        assert!(told.contains(named), "{text:?}: {told}");
        assert!(!told.contains('\n'), "{text:?}: {told}");
    }
}

#[test]
fn a_file_that_is_named_must_be_there_and_the_stores_own_need_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = StoreDir::locate(Some(dir.path())).unwrap();
    assert_eq!(Config::load(None, &store).unwrap(), Config::default());
    let named = dir.path().join("other.toml");
    let missing = Config::load(Some(&named), &store).unwrap_err();
    assert!(matches!(missing, ConfigError::NotFound { .. }), "{missing}");

    std::fs::write(dir.path().join("config.toml"), "[sandbox]\npids = 7\n").unwrap();
    let own = Config::load(None, &store).unwrap();
    assert_eq!(own.sandbox.pids, Some(7));
    std::fs::write(&named, "[sandbox]\npids = 8\n").unwrap();
    let other = Config::load(Some(&named), &store).unwrap();
    assert_eq!(other.sandbox.pids, Some(8));

    std::fs::write(&named, "[log]\n\nx = 1\n").unwrap();
    let error = Config::load(Some(&named), &store).unwrap_err();
    let told = crate::error::ApiError::from(error);
    assert!(told.error.contains("line 3"), "{told:?}");
    assert!(told.causes[0].contains("`x`"), "{told:?}");
    std::fs::write(&named, vec![b'#'; 2 << 20]).unwrap();
    let large = Config::load(Some(&named), &store).unwrap_err();
    assert!(matches!(large, ConfigError::Read { .. }), "{large}");
}

#[test]
fn a_limit_that_is_asked_for_takes_the_place_of_the_configured_one() {
    let settings = SandboxSettings::default();
    let asked = Limits {
        pids: Some(9),
        ..Limits::default()
    };
    let limits = settings.limits(&asked);
    assert_eq!(limits.pids, Some(9));
    assert_eq!(limits.memory_bytes, settings.memory);
    assert_eq!(limits.cpu_millis, settings.cpus);
    assert_eq!(limits.disk_bytes, settings.disk);
}

#[test]
fn the_page_names_every_key() {
    let keys = keys();
    assert!(keys.len() > 10, "{keys:?}");
    for key in &keys {
        let heading = format!("### `{key}`");
        assert!(
            PAGE.lines().any(|line| line == heading),
            "no {heading} in docs/config.md"
        );
    }
    let headings = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
    for heading in headings {
        assert!(keys.contains(heading), "there is no key {heading}");
    }
}

#[test]
fn the_pages_example_sets_every_key_to_its_default() {
    let example = example();
    assert_eq!(Config::parse(example).unwrap(), Config::default());
    let mut section = "";
    let mut shown = BTreeSet::new();
    for line in example.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
        } else if let Some((key, _)) = line.trim_start_matches("# ").split_once(" = ") {
            shown.insert(format!("{section}.{key}"));
        }
    }
    assert_eq!(shown, keys());
}
