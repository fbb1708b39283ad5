//! Real work in a mounted fork of a snapshot, with a hundred snapshots taken meanwhile: git, cargo
//! (in the long run building Floe), and SQLite in WAL mode from two processes. Every snapshot mounts read-only and is
//! whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use floe_harness::command::{program, run};
use floe_harness::python::{Python, path};
use floe_harness::{Output, ScanOptions, TestStore, Tree, binary, long_run};

/// Least number of snapshots taken while something is built.
const SNAPSHOTS: usize = 100;
/// Of so many snapshots one is looked at closely.
const SAMPLE: usize = 5;
const LIMIT: Duration = Duration::from_secs(900);

#[track_caller]
fn ok(command: &mut Command) -> Output {
    run(command, LIMIT).expect_code(0)
}

#[track_caller]
fn git(dir: &Path, args: &[&str]) -> String {
    let identity = [
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@t",
        "-c",
        "safe.directory=*",
    ];
    let mut command = program("git", dir);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null");
    ok(command.args(identity).args(["-c", "gc.auto=0"]).args(args)).text()
}

/// What the workloads and the thread that takes snapshots tell each other.
#[derive(Default)]
struct Signals {
    enough: AtomicBool,
    /// Something is being built.
    building: AtomicBool,
    /// Enough snapshots were taken.
    taken: AtomicBool,
    /// Commits of the two SQLite writers that have returned.
    committed: [AtomicU64; 2],
    commits_of_git: AtomicU64,
}

fn clone_commit_collect(root: &Path, signals: &Signals) {
    let source = binary::repository();
    let dir = root.join("clone");
    git(
        root,
        &[
            "clone",
            "-q",
            "--no-hardlinks",
            source.to_str().unwrap(),
            "clone",
        ],
    );
    let mut number = 0;
    while !signals.enough.load(Ordering::Relaxed) || number == 0 {
        fs::write(dir.join("counter"), number.to_string()).unwrap();
        git(&dir, &["add", "counter"]);
        git(&dir, &["commit", "-q", "-m", &number.to_string()]);
        number += 1;
        signals.commits_of_git.store(number, Ordering::SeqCst);
        if number % 10 == 1 {
            git(&dir, &["gc", "-q", "--prune=now"]);
        }
    }
    git(&dir, &["fsck", "--full", "--strict"]);
    assert_eq!(git(&dir, &["status", "--porcelain"]), "");
}

fn build(root: &Path, signals: &Signals) {
    let dir = root.join("small");
    fs::create_dir_all(dir.join("src")).unwrap();
    let manifest = "[package]\nname = \"small\"\nedition = \"2021\"\n[workspace]\n";
    fs::write(dir.join("Cargo.toml"), manifest).unwrap();
    let mut main = String::from("fn main() { let mut sum = 0u64;\n");
    for number in 0..50 {
        fs::write(
            dir.join(format!("src/m{number}.rs")),
            format!("pub fn f() -> u64 {{ {number} }}"),
        )
        .unwrap();
        main.insert_str(0, &format!("mod m{number};\n"));
        main.push_str(&format!("sum += m{number}::f();\n"));
    }
    main.push_str("println!(\"{sum}\"); }");
    fs::write(dir.join("src/main.rs"), main).unwrap();
    // From nothing, as often as it takes.
    signals.building.store(true, Ordering::SeqCst);
    loop {
        ok(program("cargo", &dir).args(["build", "-q", "--offline"]));
        let built = ok(&mut program("./target/debug/small", &dir));
        assert_eq!(built.text(), "1225");
        if long_run() || signals.taken.load(Ordering::SeqCst) {
            break;
        }
        fs::remove_dir_all(dir.join("target")).unwrap();
    }
    signals.building.store(false, Ordering::SeqCst);
    // A second build has nothing to do: times are kept exactly.
    let again = ok(program("cargo", &dir).args(["build", "--offline"]));
    assert!(!again.errors().contains("Compiling"), "{again}");
}

/// Floe itself from a clone in the mount. Built to be built, not to be run: without optimisation and
/// debug information.
fn build_floe(root: &Path, signals: &Signals) {
    let source = binary::repository();
    git(root, &["clone", "-q", source.to_str().unwrap(), "floe"]);
    let dir = root.join("floe");
    let mut fetch = program("cargo", &dir);
    fetch.args(["fetch", "--locked", "--offline"]);
    let offline = run(&mut fetch, LIMIT).code == Some(0);
    let mut command = program("cargo", &dir);
    command.args(["build", "-q", "--locked", "-p", "floe"]);
    if offline {
        command.arg("--offline");
    }
    let quick = ["profile.dev.opt-level=0", "profile.dev.debug=0"].map(str::to_owned);
    let optimised = ["blake3", "fuser", "libsqlite3-sys", "rusqlite"];
    let quick_too = optimised.map(|name| format!("profile.dev.package.{name}.opt-level=0"));
    for setting in quick.into_iter().chain(quick_too) {
        command.args(["--config", &setting]);
    }
    signals.building.store(true, Ordering::SeqCst);
    let built = run(&mut command, LIMIT);
    signals.building.store(false, Ordering::SeqCst);
    built.expect_code(0);
    assert!(dir.join("target/debug/libfloe_fs.rlib").is_file());
}

/// One process of two; each moves units between rows, so that the sum never changes.
fn transfer(root: &Path, number: usize, signals: &Signals) {
    let mut python = Python::start();
    python.ok(&format!(
        "db = sqlite3.connect({}.decode(), timeout=60, isolation_level=None)
def one(n):
    db.execute('BEGIN IMMEDIATE')
    db.execute('UPDATE account SET amount = amount - 1 WHERE id = ?', (n % 50,))
    db.execute('UPDATE account SET amount = amount + 1 WHERE id = ?', (n * 7 % 50,))
    db.execute('INSERT INTO log VALUES (?, ?)', ({number}, n))
    db.execute('COMMIT')",
        path(&root.join("db"))
    ));
    let mut count = 0;
    while !signals.enough.load(Ordering::Relaxed) {
        python.ok(&format!("one({count})"));
        count += 1;
        signals.committed[number].store(count, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn make_database(root: &Path) {
    Python::start().ok(&format!(
        "db = sqlite3.connect({}.decode())
db.execute('PRAGMA journal_mode = WAL')
db.execute('CREATE TABLE account (id INTEGER PRIMARY KEY, amount INTEGER)')
db.execute('CREATE TABLE log (writer INTEGER, n INTEGER, PRIMARY KEY (writer, n))')
db.executemany('INSERT INTO account VALUES (?, 1000)', [(n,) for n in range(50)])
db.commit()",
        path(&root.join("db"))
    ));
}

/// The database as a crash at the moment of the snapshot would have left it.
fn check_database(python: &mut Python, frozen: &Path, scratch: &Path, committed: [u64; 2]) {
    for name in ["db", "db-wal"] {
        let (from, to) = (frozen.join(name), scratch.join(name));
        if to.exists() {
            fs::remove_file(&to).unwrap();
        }
        if from.exists() {
            fs::copy(from, to).unwrap();
        }
    }
    let found = python.ok(&format!(
        "db = sqlite3.connect({}.decode())
one = lambda q: db.execute(q).fetchone()[0]
result = [one('PRAGMA integrity_check'), one('SELECT sum(amount) FROM account'),
          one('SELECT count(*) FROM log WHERE writer = 0'),
          one('SELECT count(*) FROM log WHERE writer = 1'),
          one('SELECT count(*) FROM log'), one('SELECT sum(n + 1) FROM log') or 0]
db.close()",
        path(&scratch.join("db"))
    ));
    assert_eq!(found[0], "ok");
    assert_eq!(found[1], 50_000, "a transaction is there in part");
    for (writer, least) in committed.into_iter().enumerate() {
        let there = found[writer + 2].as_u64().unwrap();
        assert!(
            there >= least,
            "writer {writer}: {there} of {least} commits"
        );
    }
}

struct Taken {
    id: String,
    committed: [u64; 2],
    commits_of_git: u64,
    digest: Option<blake3::Hash>,
    while_building: bool,
}

fn digest(store: &TestStore, id: &str) -> blake3::Hash {
    let frozen = store.mount(id);
    let digest = Tree::scan(&frozen, ScanOptions::ALL).digest();
    store.umount(&frozen);
    digest
}

fn take(store: &TestStore, signals: &Signals, number: usize) -> Taken {
    let load = |count: &AtomicU64| count.load(Ordering::SeqCst);
    let committed = [load(&signals.committed[0]), load(&signals.committed[1])];
    let commits_of_git = load(&signals.commits_of_git);
    let before = signals.building.load(Ordering::SeqCst);
    let id = store.snapshot("work");
    let while_building = before && signals.building.load(Ordering::SeqCst);
    let digest = number.is_multiple_of(SAMPLE).then(|| digest(store, &id));
    Taken {
        id,
        committed,
        commits_of_git,
        digest,
        while_building,
    }
}

#[test]
fn git_cargo_and_sqlite_work_while_a_hundred_snapshots_are_taken() {
    let store = TestStore::new();
    store.ok(["ws", "create", "base"]);
    let base = store.mount("base");
    fs::write(base.join("from the base"), "1").unwrap();
    let origin = store.snapshot("base");
    store.ok(["fork", origin.as_str(), "work"]);
    let root = store.mount("work");
    make_database(&root);

    let signals = Arc::new(Signals::default());
    let spawn = |work: Box<dyn FnOnce(PathBuf, Arc<Signals>) + Send>| {
        let (root, signals) = (root.clone(), signals.clone());
        std::thread::spawn(move || work(root, signals))
    };
    let building = spawn(Box::new(|root, signals| {
        build(&root, &signals);
        if long_run() {
            build_floe(&root, &signals);
        }
    }));
    let others = [
        spawn(Box::new(|root, signals| {
            clone_commit_collect(&root, &signals)
        })),
        spawn(Box::new(|root, signals| transfer(&root, 0, &signals))),
        spawn(Box::new(|root, signals| transfer(&root, 1, &signals))),
    ];
    let mut taken = Vec::new();
    while !building.is_finished() {
        if !signals.building.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        taken.push(take(&store, &signals, taken.len()));
        let enough = taken.len() >= SNAPSHOTS + SAMPLE;
        signals.taken.store(enough, Ordering::SeqCst);
        // Enough of them early on, and some as long as it takes.
        let pause = if enough { 2_000 } else { 30 };
        std::thread::sleep(Duration::from_millis(pause));
    }
    let built = building.join();
    signals.enough.store(true, Ordering::Relaxed);
    for thread in others {
        thread.join().unwrap();
    }
    built.unwrap();
    let while_building = taken.iter().filter(|taken| taken.while_building).count();
    assert!(
        while_building >= SNAPSHOTS,
        "the build ended after {while_building} snapshots"
    );
    taken.push(take(&store, &signals, 0));

    let mut python = Python::start();
    let mut with_git = 0;
    for (number, taken) in taken.iter().enumerate() {
        let frozen = store.mount(&taken.id);
        assert_eq!(fs::read(frozen.join("from the base")).unwrap(), b"1");
        check_database(&mut python, &frozen, store.base(), taken.committed);
        let refused = fs::write(frozen.join("new"), "").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        if number.is_multiple_of(SAMPLE) && taken.commits_of_git > 0 {
            with_git += 1;
            let clone = frozen.join("clone");
            git(&clone, &["fsck", "--full"]);
            let count = git(&clone, &["rev-list", "--count", "HEAD", "--", "counter"]);
            assert!(count.parse::<u64>().unwrap() >= taken.commits_of_git);
        }
        store.umount(&frozen);
    }
    assert!(with_git > 0, "no snapshot saw a commit");
    for taken in &taken {
        if let Some(before) = taken.digest {
            assert_eq!(digest(&store, &taken.id), before, "snapshot {}", taken.id);
        }
    }
}

#[test]
fn a_tree_is_unpacked_copied_and_removed_whole() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    let source = binary::repository();
    let archive = store.base().join("source.tar");
    let archive = archive.to_str().unwrap();
    ok(program("git", &source).args(["-c", "safe.directory=*", "archive", "-o", archive, "HEAD"]));
    for dir in ["live", "host"] {
        let dir = if dir == "live" {
            live.clone()
        } else {
            store.base().join("host")
        };
        fs::create_dir_all(&dir).unwrap();
        ok(program("tar", &dir).args(["-xpf", archive]));
    }
    let host = Tree::scan(&store.base().join("host"), ScanOptions::ALL);
    let mut unpacked = Tree::scan(&live, ScanOptions::ALL);
    // The archive holds no root.
    let mtime = host.nodes[&b""[..]].mtime;
    unpacked.nodes.get_mut(&b""[..]).unwrap().mtime = mtime;
    unpacked.assert_same(&host);
    ok(program("cp", &live).args(["-a", "src", "copy"]));
    let scan = |name: &str| Tree::scan(&live.join(name), ScanOptions::ALL);
    scan("copy").assert_same(&scan("src"));
    let id = store.snapshot("w");
    ok(program("sh", &live).args(["-c", "rm -rf -- * .[!.]*"]));
    assert_eq!(fs::read_dir(&live).unwrap().count(), 0);
    let frozen = store.mount(&id);
    Tree::scan(&frozen.join("src"), ScanOptions::ALL).assert_same(&Tree::scan(
        &store.base().join("host/src"),
        ScanOptions::ALL,
    ));
}
