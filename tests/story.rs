//! The story of the README: five attempts at one repository, each in a fork of its own. Tests say
//! which are good; two land, one conflicts and is shown, one landing is undone, and what is left goes
//! back into the directory that it all began with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use floe_harness::command::run;
use floe_harness::{Output, TestStore};

/// A small package with tests, some of which fail.
const MODULE: &str = r#""""Prices."""


def total(prices):
    result = 0
    for price in prices:
        result += price
    return result


def with_tax(price, rate):
    return price + rate


def cheapest(prices):
    return sorted(prices)[0]


def label(price):
    return str(price)
"#;

const TESTS: &str = r"import unittest

from shop import prices


class Prices(unittest.TestCase):
    def test_total(self):
        self.assertEqual(prices.total([1, 2, 3]), 6)

    def test_cheapest(self):
        self.assertEqual(prices.cheapest([3, 1, 2]), 1)
";

fn sh(dir: &Path, script: &str) -> Output {
    let mut command = Command::new("sh");
    command
        .args(["-euc", script])
        .current_dir(dir)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_AUTHOR_NAME", "a")
        .env("GIT_AUTHOR_EMAIL", "a@localhost")
        .env("GIT_COMMITTER_NAME", "a")
        .env("GIT_COMMITTER_EMAIL", "a@localhost");
    run(&mut command, Duration::from_secs(60))
}

const GIT: &str = "git -c safe.directory='*'";

fn repository(store: &TestStore) -> PathBuf {
    let dir = store.base().join("shop-repository");
    fs::create_dir_all(dir.join("shop")).unwrap();
    fs::create_dir_all(dir.join("tests")).unwrap();
    fs::write(dir.join("shop/__init__.py"), "").unwrap();
    fs::write(dir.join("shop/prices.py"), MODULE).unwrap();
    fs::write(dir.join("tests/__init__.py"), "").unwrap();
    fs::write(dir.join("tests/test_prices.py"), TESTS).unwrap();
    let commit = format!("{GIT} init -q; {GIT} add -A; {GIT} commit -q -m 'the beginning'");
    sh(&dir, &commit).expect_code(0);
    dir
}

fn edit(dir: &Path, from: &str, to: &str) {
    let file = dir.join("shop/prices.py");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{from}");
    fs::write(&file, text.replacen(from, to, 1)).unwrap();
}

/// Whether the tests pass.
fn tested(dir: &Path) -> bool {
    let output = sh(dir, "python3 -m unittest -q");
    assert!(matches!(output.code, Some(0 | 1)), "{output}");
    output.code == Some(0)
}

#[test]
fn five_attempts_two_landings_a_conflict_and_the_way_back() {
    let store = TestStore::new();
    let dir = repository(&store);
    let source = dir.to_str().unwrap();
    store.ok(["ws", "create", "shop", "--from", source]);
    let shop = store.mount("shop");
    assert!(tested(&shop));
    store.ok(["fork", "shop", "try", "--count", "5"]);
    let tries: Vec<PathBuf> = (1..=5)
        .map(|number| store.mount(&format!("try-{number}")))
        .collect();

    // Five ideas at once.
    edit(&tries[0], "price + rate", "price * (1 + rate)");
    edit(
        &tries[1],
        "    return str(price)",
        "    return f\"{price:.2f}\"",
    );
    edit(&tries[2], "price + rate", "round(price * (1 + rate), 2)");
    edit(&tries[3], "result += price", "result -= price");
    edit(&tries[4], "sorted(prices)[0]", "prices[0]");
    let good: Vec<bool> = tries.iter().map(|dir| tested(dir)).collect();
    assert_eq!(good, [true, true, true, false, false]);
    let changed = store.ok(["diff", "try-1"]);
    assert_eq!(changed, "M\tshop/prices.py");

    // Two of them land: in one file, at different places.
    store.ok(["land", "try-1"]);
    let before_second = store.ok(["land", "try-2"]);
    let text = fs::read_to_string(shop.join("shop/prices.py")).unwrap();
    assert!(text.contains("price * (1 + rate)") && text.contains("{price:.2f}"));
    assert!(tested(&shop));

    // One changed the lines that the first did.
    let refused = store.run(["land", "try-3"]).expect_code(4);
    let shown = refused.text();
    assert!(shown.contains("shop/prices.py"), "{refused}");
    // Whoever landed in that file last.
    assert!(shown.contains("landed from try-2"), "{refused}");
    assert_eq!(
        fs::read_to_string(shop.join("shop/prices.py")).unwrap(),
        text
    );

    // The second was not wanted after all.
    store.ok(["rollback", "shop", &before_second]);
    let text = fs::read_to_string(shop.join("shop/prices.py")).unwrap();
    assert!(text.contains("price * (1 + rate)") && !text.contains("{price:.2f}"));
    for number in 1..=5 {
        let name = format!("try-{number}");
        store.ok(["umount", &name]);
        store.ok(["ws", "delete", &name]);
    }

    // So far the directory knows nothing of all this.
    let status = format!("{GIT} status --short");
    assert_eq!(sh(&dir, &status).expect_code(0).text(), "");
    store.ok(["land", "shop"]);
    let changed = sh(&dir, &status).expect_code(0).text();
    assert_eq!(changed.trim(), "M shop/prices.py");
    assert!(tested(&dir));
    store.ok(["land", "shop", "--undo"]);
    assert_eq!(sh(&dir, &status).expect_code(0).text(), "");
    assert_eq!(
        fs::read_to_string(dir.join("shop/prices.py")).unwrap(),
        MODULE
    );
    let log = store.ok(["log", "shop"]);
    for word in ["try-1", "try-2", "created"] {
        assert!(log.contains(word), "no {word} in\n{log}");
    }
}
