//! Workspaces that show a directory of the host in place: `floe ws create --from DIR`.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use floe_harness::command::run;
use floe_harness::random::Random;
use floe_harness::{Output, ScanOptions, TestStore, Tree, Watchdog, long_run};
use rustix::fs::{CWD, FileType, Mode};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::Value;

/// A directory of the host with something in it.
fn host(store: &TestStore) -> PathBuf {
    let dir = store.base().join("host");
    fs::create_dir_all(dir.join("sub/deeper")).unwrap();
    fs::write(dir.join("small"), "small\n").unwrap();
    fs::write(dir.join("sub/large"), vec![b'l'; 300_000]).unwrap();
    fs::write(dir.join("sub/deeper/text"), "text\n").unwrap();
    fs::hard_link(dir.join("small"), dir.join("sub/again")).unwrap();
    symlink("sub/large", dir.join("link")).unwrap();
    let sparse = File::create(dir.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 5 << 20).unwrap();
    dir
}

fn create(store: &TestStore, name: &str, dir: &Path) -> Output {
    store.run([
        "ws".as_ref(),
        "create".as_ref(),
        name.as_ref(),
        "--from".as_ref(),
        dir.as_os_str(),
    ])
}

fn based(store: &TestStore, dir: &Path) -> PathBuf {
    create(store, "w", dir).expect_code(0);
    store.mount("w")
}

fn show(store: &TestStore) -> Value {
    store.json(["ws", "show", "w"])
}

/// What Floe may not change: everything but the time of the last access.
fn fingerprint(dir: &Path) -> Vec<(PathBuf, u64, u32, i64, i64, i64, i64)> {
    let mut found = Vec::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = path.symlink_metadata().unwrap();
        if meta.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        }
        let (ino, mode) = (meta.ino(), meta.mode());
        let times = (
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec(),
        );
        found.push((path, ino, mode, times.0, times.1, times.2, times.3));
    }
    found.sort();
    found
}

fn sh(dir: &Path, script: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(dir);
    run(&mut command, Duration::from_secs(120))
}

fn errno(result: std::io::Result<impl std::fmt::Debug>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn a_directory_in_place_looks_like_itself_and_is_never_written() {
    let store = TestStore::new();
    let dir = host(&store);
    rustix::fs::mknodat(CWD, dir.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    drop(UnixListener::bind(dir.join("socket")).unwrap());
    let attributes = "setfattr -n user.long -v $(head -c 3000 /dev/zero | tr '\\0' x) small; \
        setfattr -n user.dir -v 1 sub; setfattr -n trusted.t -v 1 sparse; setfattr -h -n trusted.l -v 1 link; \
        setfacl -m u:7:r sub/large";
    sh(&dir, attributes).expect_code(0);
    let before = fingerprint(&dir);
    let live = based(&store, &dir);
    let options = ScanOptions::ALL;
    Tree::scan(&live, options).assert_same(&Tree::scan(&dir, options));
    let script = "echo more >> small; printf X | dd of=sub/large bs=1 seek=99999 conv=notrunc; \
        mv sub/deeper moved; rm link; mkdir new; chmod 600 sparse; ln small third; \
        truncate -s 6M sparse; rm -r sub";
    sh(&live, script).expect_code(0);
    assert_eq!(fs::read(live.join("small")).unwrap(), b"small\nmore\n");
    assert_eq!(fs::read(live.join("moved/text")).unwrap(), b"text\n");
    assert_eq!(fs::metadata(live.join("sparse")).unwrap().len(), 6 << 20);
    store.snapshot("w");
    assert_eq!(fingerprint(&dir), before);
}

/// What it costs must not depend on what is there: nothing of it is known afterwards.
#[test]
fn two_hundred_thousand_files_cost_what_none_cost() {
    let store = TestStore::new();
    let dir = store.base().join("host");
    for group in 0..200 {
        let group = dir.join(format!("d{group}"));
        fs::create_dir_all(&group).unwrap();
        for file in 0..1000 {
            File::create(group.join(format!("f{file}"))).unwrap();
        }
    }
    create(&store, "w", &dir).expect_code(0);
    let known = || -> u64 { store.json(["check"])["inodes"].as_u64().unwrap() };
    assert_eq!(known(), 1);
    let live = store.mount("w");
    assert_eq!(fs::read_dir(&live).unwrap().count(), 200);
    assert!(live.join("d7/f999").exists() && !live.join("d7/f1000").exists());
    // The root, what is in it, and what is in the directory that was looked into.
    assert_eq!(known(), 1 + 200 + 1000);
}

#[test]
fn what_is_changed_underneath_is_stale_and_named() {
    let store = TestStore::new();
    let dir = host(&store);
    let live = based(&store, &dir);
    // Known, and not read yet.
    assert_eq!(fs::metadata(live.join("sub/large")).unwrap().len(), 300_000);
    fs::write(dir.join("sub/large"), "other").unwrap();
    fs::rename(dir.join("sub/deeper"), dir.join("sub/elsewhere")).unwrap();
    fs::create_dir(dir.join("sub/deeper")).unwrap();
    assert_eq!(errno(fs::read(live.join("sub/large"))), libc::ESTALE);
    assert_eq!(
        errno(
            fs::read_dir(live.join("sub/deeper"))
                .and_then(|d| d.map(|e| e.map(drop)).collect::<Result<Vec<_>, _>>())
        ),
        libc::ESTALE
    );
    assert_eq!(fs::read(live.join("small")).unwrap(), b"small\n");
    let shown = show(&store);
    assert_eq!(shown["base"]["state"], "in_place");
    let mut changed: Vec<_> = shown["base"]["changed"].as_array().unwrap().clone();
    changed.sort_by_key(ToString::to_string);
    let path = |name: &str| Value::from(dir.join(name).to_str().unwrap());
    assert_eq!(changed, [path("sub/deeper"), path("sub/large")]);
    let text = store.ok(["ws", "show", "w"]);
    assert!(text.contains("sub/large"), "{text}");
    // It can be replaced all the same, and removed.
    fs::write(live.join("sub/large"), "mine").unwrap();
    assert_eq!(fs::read(live.join("sub/large")).unwrap(), b"mine");
    fs::remove_file(live.join("sub/large")).unwrap();
    assert_eq!(fs::read(dir.join("sub/large")).unwrap(), b"other");
}

#[test]
fn mounts_stores_and_loops_in_the_directory_neither_hang_nor_recurse() {
    let store = TestStore::new();
    store.ok(["daemon", "start"]);
    let _watchdog = Watchdog::start(store.daemon().unwrap(), Duration::from_secs(100));
    let dir = host(&store);
    for name in ["tmpfs", "mine", "again"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    symlink(".", dir.join("loop")).unwrap();
    symlink("..", dir.join("sub/up")).unwrap();
    mount(
        c"none",
        dir.join("tmpfs"),
        c"tmpfs",
        MountFlags::empty(),
        None,
    )
    .unwrap();
    fs::write(dir.join("tmpfs/hidden"), "h").unwrap();
    // The directory, the store in it and a mount of the workspace itself.
    create(&store, "w", store.base()).expect_code(0);
    let inside = dir.join("mine");
    store.ok(["mount".as_ref(), "w".as_ref(), inside.as_os_str()]);
    create(&store, "again", &dir).expect_code(0);
    let other = dir.join("again");
    store.ok(["mount".as_ref(), "again".as_ref(), other.as_os_str()]);
    for root in [inside.join("host"), other.clone()] {
        for empty in ["tmpfs", "mine", "again"] {
            let entries = fs::read_dir(root.join(empty)).unwrap().count();
            assert_eq!(entries, 0, "{empty} in {}", root.display());
        }
        let found = sh(&root, "find . | wc -l").expect_code(0).text();
        // Three mount points, the tree, and two links.
        assert_eq!(found.trim(), "14");
    }
    assert_eq!(fs::read_dir(inside.join("store")).unwrap().count(), 0);
    let refused = create(&store, "x", &inside).expect_code(2);
    assert!(refused.errors().contains("fork WS NEW"), "{refused}");
    create(&store, "x", &store.store_dir()).expect_code(2);
    store.umount(&other);
    store.umount(&inside);
    unmount(dir.join("tmpfs"), UnmountFlags::empty()).unwrap();
}

#[test]
fn a_workspace_can_be_mounted_over_its_own_directory_and_survives_a_crash_there() {
    let store = TestStore::new();
    let dir = host(&store);
    create(&store, "w", &dir).expect_code(0);
    store.ok(["mount".as_ref(), "w".as_ref(), dir.as_os_str()]);
    assert_eq!(fs::read(dir.join("sub/deeper/text")).unwrap(), b"text\n");
    fs::write(dir.join("small"), "changed\n").unwrap();
    store.kill_daemon();
    store.ok(["ws", "list"]);
    assert_eq!(fs::read(dir.join("small")).unwrap(), b"changed\n");
    assert_eq!(fs::metadata(dir.join("sub/large")).unwrap().len(), 300_000);
    assert_eq!(
        fs::read(dir.join("sub/large")).unwrap(),
        vec![b'l'; 300_000]
    );
    store.umount(&dir);
    assert_eq!(fs::read(dir.join("small")).unwrap(), b"small\n");
}

#[test]
fn several_directories_lie_under_one_root_without_what_is_excluded() {
    let store = TestStore::new();
    let dir = host(&store);
    let app = store.base().join("app");
    fs::create_dir_all(app.join("node_modules/x")).unwrap();
    fs::write(app.join("main"), "m").unwrap();
    let pair = |dir: &Path, at: &str| format!("{}={at}", dir.display());
    let (first, second) = (pair(&dir, "/usr"), pair(&app, "/home/user/app"));
    store.ok([
        "ws",
        "create",
        "w",
        "--from",
        &first,
        "--from",
        &second,
        "--exclude",
        "node_modules",
        "--exclude",
        "/usr/sub/deeper",
    ]);
    let live = store.mount("w");
    let found = sh(&live, "find . | sort").expect_code(0).text();
    let expected = ". ./home ./home/user ./home/user/app ./home/user/app/main ./usr ./usr/link \
        ./usr/small ./usr/sparse ./usr/sub ./usr/sub/again ./usr/sub/large";
    assert_eq!(
        found.split_whitespace().collect::<Vec<_>>().join(" "),
        expected
    );
    let nested = [
        "ws",
        "create",
        "x",
        "--from",
        &first,
        "--from",
        &pair(&app, "/usr/lib"),
    ];
    let refused = store.run(nested).expect_code(2);
    assert!(refused.errors().contains("/usr/lib"), "{refused}");
    let dirs = show(&store)["base"]["dirs"].clone();
    assert_eq!(dirs[1]["at"], "/home/user/app");
    assert_eq!(dirs[1]["dir"], app.to_str().unwrap());
}

#[test]
fn an_adopted_workspace_does_not_need_the_directory() {
    let store = TestStore::new();
    let dir = host(&store);
    let live = based(&store, &dir);
    store.ok(["fork", "w", "f"]);
    fs::write(live.join("small"), "mine\n").unwrap();
    let options = ScanOptions::ALL;
    let (before, of_host) = (Tree::scan(&live, options), Tree::scan(&dir, options));
    let adopted = store.json(["ws", "adopt", "w"]);
    assert_eq!(adopted["base"]["state"], "adopted");
    fs::remove_dir_all(&dir).unwrap();
    Tree::scan(&live, options).assert_same(&before);
    Tree::scan(&store.mount("f"), options).assert_same(&of_host);
    let again = store.json(["ws", "adopt", "w"]);
    assert_eq!(again["adopted"]["files"], 0);
    store.ok(["ws", "create", "plain"]);
    store.run(["ws", "adopt", "plain"]).expect_code(4);
}

/// Whatever moment the daemon is killed at: the next one goes on, and nothing that is read changes.
#[test]
fn an_adoption_survives_kills() {
    let kills = if long_run() { 200 } else { 12 };
    let seed = Random::seed_from_env(4);
    let mut random = Random::new(seed);
    let store = TestStore::new();
    let dir = store.base().join("host");
    for group in 0..40 {
        let group = dir.join(format!("d{group}"));
        fs::create_dir_all(&group).unwrap();
        for file in 0..50 {
            fs::write(group.join(format!("f{file}")), vec![b'x'; 1 + 700 * file]).unwrap();
        }
    }
    let options = ScanOptions::ALL;
    let expected = Tree::scan(&dir, options);
    let (mut made, mut killed, mut rounds) = (0, 0, 0);
    let mut state = ADOPTED;
    while killed < kills {
        if state != ADOPTING {
            let name = format!("w{made}");
            create(&store, &name, &dir).expect_code(0);
            store.ok(["ws", "adopt", &name, "--detach"]);
            made += 1;
        } else {
            // It goes on by itself.
            store.ok(["daemon", "start"]);
        }
        std::thread::sleep(Duration::from_micros(random.below(150_000)));
        store.kill_daemon();
        state = last_base(&store);
        killed += usize::from(state == ADOPTING);
        rounds += 1;
        assert!(
            rounds < 20 * kills,
            "seed {seed}: {killed} of {rounds} in the middle"
        );
        store.ok(["check"]);
    }
    eprintln!("seed {seed}: {killed} of {rounds} kills were in the middle of {made} adoptions");
    for number in 0..made {
        let name = format!("w{number}");
        store.ok(["ws", "adopt", &name]);
        let live = store.mount(&name);
        Tree::scan(&live, options).assert_same(&expected);
        store.umount(&live);
    }
    Tree::scan(&dir, options).assert_same(&expected);
    store.ok(["check"]);
}

/// `base.state` of docs/format.md.
const ADOPTED: i64 = 1;
const ADOPTING: i64 = 2;

/// How far the base that was made last was taken in, by the catalog of a store that no daemon has.
fn last_base(store: &TestStore) -> i64 {
    let catalog = rusqlite::Connection::open(store.store_dir().join("catalog.db")).unwrap();
    let sql = "SELECT state FROM base ORDER BY layer DESC LIMIT 1";
    catalog.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn an_adoption_goes_on_in_the_next_daemon() {
    let store = TestStore::new();
    let dir = store.base().join("host");
    fs::create_dir_all(&dir).unwrap();
    for file in 0..3000 {
        fs::write(dir.join(format!("f{file}")), "x").unwrap();
    }
    create(&store, "w", &dir).expect_code(0);
    store.ok(["ws", "adopt", "w", "--detach"]);
    store.ok(["daemon", "stop"]);
    let waited = Instant::now();
    while show(&store)["base"]["state"] != "adopted" {
        assert!(
            waited.elapsed() < Duration::from_secs(60),
            "{}",
            show(&store)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    fs::remove_dir_all(&dir).unwrap();
    let live = store.mount("w");
    assert_eq!(fs::read(live.join("f2999")).unwrap(), b"x");
}
