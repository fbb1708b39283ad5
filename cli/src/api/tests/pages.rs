//! Lists, while things come and go.

use std::collections::BTreeSet;

use super::Rig;
use crate::wire::sandbox::SandboxState;

#[tokio::test]
async fn pages_are_stable_while_snapshots_come_and_go() {
    let rig = Rig::new();
    let ids: Vec<String> = (0..250).map(|_| rig.fake.add_snapshot("abc")).collect();
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let page = rig
            .get(&format!("/snapshots?limit=40&nextToken={token}"))
            .await;
        assert_eq!(page.status, 200);
        let items = page.body.as_array().unwrap();
        seen.extend(
            items
                .iter()
                .map(|one| one["snapshotID"].as_str().unwrap().to_owned()),
        );
        // New ones are newer than any page to come. One that was seen goes, and one that was not.
        rig.fake.add_snapshot("abc");
        rig.fake.remove_snapshot(&seen[seen.len() - 1]);
        rig.fake.remove_snapshot(&ids[0]);
        match page.header("x-next-token") {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    let distinct: BTreeSet<&String> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len(), "no item twice");
    let expected: Vec<&String> = ids[1..].iter().rev().collect();
    assert_eq!(
        seen.iter().collect::<Vec<_>>(),
        expected,
        "every item once, newest first"
    );
}

#[tokio::test]
async fn snapshots_are_found_by_sandbox_and_by_name() {
    let rig = Rig::new();
    let mine = rig.fake.add_snapshot("mine");
    let other = rig.fake.add_snapshot("other");
    rig.fake.name("n", &other);
    let found = rig.get("/snapshots?sandboxID=mine").await.body;
    assert_eq!(found[0]["snapshotID"], mine.as_str());
    assert_eq!(found.as_array().unwrap().len(), 1);
    let found = rig.get("/snapshots?name=n").await.body;
    assert_eq!(found[0]["snapshotID"], other.as_str());
    assert_eq!(
        rig.get("/snapshots?sandboxID=never")
            .await
            .body
            .as_array()
            .unwrap()
            .len(),
        0
    );
}

#[tokio::test]
async fn a_page_has_at_most_a_hundred_items() {
    let rig = Rig::new();
    for _ in 0..150 {
        rig.fake.add_snapshot("abc");
    }
    for path in [
        "/snapshots",
        "/snapshots?limit=100",
        "/snapshots?limit=5000",
    ] {
        let page = rig.get(path).await;
        assert_eq!(page.body.as_array().unwrap().len(), 100, "{path}");
        assert!(page.header("x-next-token").is_some(), "{path}");
    }
}

#[tokio::test]
async fn tokens_of_other_lists_and_nonsense_are_refused() {
    let rig = Rig::new();
    for number in 0..3 {
        rig.fake
            .add_sandbox(&format!("s{number}"), SandboxState::Running);
    }
    let page = rig.get("/v2/sandboxes?limit=2").await;
    let token = page.header("x-next-token").unwrap();
    let next = rig
        .get(&format!("/v2/sandboxes?limit=2&nextToken={token}"))
        .await;
    assert_eq!(next.body.as_array().unwrap().len(), 1);
    assert_eq!(next.header("x-next-token"), None);
    for path in [
        format!("/snapshots?nextToken={token}"),
        format!("/v2/sandboxes?order=asc&nextToken={token}"),
        "/v2/sandboxes?nextToken=x".to_owned(),
        "/snapshots?limit=0".to_owned(),
    ] {
        let refused = rig.get(&path).await;
        assert_eq!(
            (refused.status, &refused.body["code"]),
            (400, &400.into()),
            "{path}"
        );
    }
}

#[tokio::test]
async fn sandboxes_are_found_by_state_and_order() {
    let rig = Rig::new();
    rig.fake.add_sandbox("a", SandboxState::Running);
    rig.fake.add_sandbox("b", SandboxState::Paused);
    rig.fake.add_sandbox("c", SandboxState::Stopped);
    let ids = async |path: &str| {
        let found = rig.get(path).await.body;
        let each = found.as_array().unwrap().iter();
        each.map(|one| one["sandboxID"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids("/v2/sandboxes").await, ["c", "b", "a"]);
    assert_eq!(ids("/v2/sandboxes?order=asc").await, ["a", "b", "c"]);
    assert_eq!(ids("/v2/sandboxes?state=paused").await, ["c", "b"]);
    assert_eq!(
        ids("/v2/sandboxes?state=running%2Cpaused&limit=1").await,
        ["c"]
    );
    assert_eq!(ids("/sandboxes").await, ["a"]);
    assert!(ids("/v2/sandboxes?metadata=k%3Dv").await.is_empty());
    assert_eq!(rig.get("/v2/sandboxes?state=gone").await.status, 400);
}
