//! PostgreSQL, with fsync and as a user of its own, works in a mounted fork while a hundred snapshots are
//! taken. None of them changes, and from what each held a server recovers to a state in which every
//! transaction that had been acknowledged is there whole.

#![cfg(feature = "long")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use floe_harness::command::{program, run};
use floe_harness::{Load, Output, Snapshots, TestStore};

const SNAPSHOTS: usize = 100;
/// Of so many snapshots, in one a server is started.
const RECOVERED: usize = 10;
const CLIENTS: u64 = 4;
/// Transactions of each client in one run of pgbench.
const TRANSACTIONS: u64 = 100;

/// Directory of the server's programs, which Debian keeps out of the PATH.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("Debian's package postgresql");
    let programs = versions.map(|entry| entry.expect("a version").path().join("bin"));
    let newest = programs.filter(|bin| bin.join("initdb").exists()).max();
    newest.expect("a server of PostgreSQL")
}

/// A directory in a mount with a database cluster in it, and the server on it. Dropping it ends the
/// server.
struct Server {
    root: PathBuf,
    sockets: PathBuf,
}

impl Server {
    fn command(&self, name: &str) -> Command {
        let mut command = program("setpriv", &self.root);
        command.args([
            "--reuid=postgres",
            "--regid=postgres",
            "--init-groups",
            "--",
        ]);
        command.arg(programs().join(name));
        command
            .env("PGHOST", &self.sockets)
            .env("PGUSER", "postgres");
        command.env("PGDATABASE", "postgres");
        command
    }

    fn ok(command: &mut Command) -> Output {
        run(command, Duration::from_secs(300)).expect_code(0)
    }

    fn start(root: &Path, sockets: &str) -> Self {
        let server = Self {
            root: root.to_owned(),
            sockets: root.join(sockets),
        };
        if !server.sockets.exists() {
            Self::ok(
                program("install", root)
                    .args(["-d", "-o", "postgres", "-g", "postgres", "-m", "700"])
                    .arg(&server.sockets),
            );
        }
        if !root.join("data").exists() {
            let mut command = server.command("initdb");
            // Small segments: they are recycled, and checkpoints made, all the time.
            command.args([
                "-A",
                "trust",
                "-k",
                "-E",
                "UTF8",
                "--wal-segsize=1",
                "-D",
                "data",
            ]);
            Self::ok(&mut command);
            let more = "\nlisten_addresses = ''\nmax_wal_size = 8MB\nmin_wal_size = 4MB\n";
            let config = root.join("data/postgresql.conf");
            let all = fs::read_to_string(&config).unwrap() + more;
            fs::write(config, all).unwrap();
        }
        let mut command = server.command("pg_ctl");
        command.args([
            "start", "-w", "-t", "120", "-D", "data", "-l", "data/log", "-o",
        ]);
        command.arg(format!("-k {}", server.sockets.display()));
        Self::ok(&mut command);
        server
    }

    fn query(&self, sql: &str) -> String {
        Self::ok(self.command("psql").args(["-XAtqc", sql])).text()
    }

    /// Both sides of the ledger are equal, and at least `least` transactions are in it.
    fn check(&self, least: u64) {
        assert_eq!(self.query("SHOW fsync"), "on");
        let found = self.query(
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts),
                    (SELECT sum(bbalance) FROM pgbench_branches),
                    (SELECT sum(tbalance) FROM pgbench_tellers),
                    (SELECT coalesce(sum(delta), 0) FROM pgbench_history),
                    (SELECT count(*) FROM pgbench_history)",
        );
        let found: Vec<i64> = found.split('|').map(|n| n.parse().unwrap()).collect();
        let [accounts, branches, tellers, history, count] = found[..] else {
            panic!("not five numbers: {found:?}");
        };
        assert_eq!([branches, tellers, history], [accounts; 3], "{found:?}");
        let count = u64::try_from(count).unwrap();
        assert!(count >= least, "{count} of {least} transactions");
        let mut command = self.command("pg_amcheck");
        Self::ok(command.args(["--install-missing", "--heapallindexed", "postgres"]));
    }

    fn stop(&self, how: &str) -> Output {
        let mut command = self.command("pg_ctl");
        command.args(["stop", "-w", "-t", "60", "-D", "data", "-m", how]);
        run(&mut command, Duration::from_secs(90))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let stopped = self.stop("immediate");
        // The test has stopped it, or fails.
        if stopped.code != Some(0) && std::thread::panicking() {
            eprintln!("{stopped}");
        }
    }
}

#[test]
fn postgresql_works_while_a_hundred_snapshots_are_taken() {
    let store = TestStore::new();
    // The server's user must get to the mount.
    let open = || fs::Permissions::from_mode(0o755);
    fs::set_permissions(store.base(), open()).unwrap();
    store.ok(["ws", "create", "base"]);
    let base = store.mount("base");
    Server::ok(program("chown", &base).args(["postgres:postgres", "."]));
    let server = Server::start(&base, "sockets");
    Server::ok(server.command("pgbench").args(["-i", "-q", "-s", "1"]));
    server.stop("fast").expect_code(0);
    drop(server);
    let origin = store.snapshot("base");
    store.ok(["fork", origin.as_str(), "work"]);
    let root = store.mount("work");

    let server = Arc::new(Server::start(&root, "sockets"));
    let committed = Arc::new(AtomicU64::new(0));
    let load = Load::start(1, {
        let (server, committed) = (server.clone(), committed.clone());
        move |_| {
            let mut command = server.command("pgbench");
            command.args(["-n", "-j", "2", "-c", &CLIENTS.to_string()]);
            Server::ok(command.args(["-t", &TRANSACTIONS.to_string()]));
            committed.fetch_add(CLIENTS * TRANSACTIONS, Ordering::SeqCst);
        }
    });
    let mut snapshots = Snapshots::of(&store);
    let mut taken = Vec::new();
    for _ in 0..SNAPSHOTS {
        let before = committed.load(Ordering::SeqCst);
        taken.push((snapshots.take("work"), before));
        std::thread::sleep(Duration::from_millis(50));
    }
    let rounds = load.stop();
    println!("{rounds} runs of pgbench, {SNAPSHOTS} snapshots");
    server.check(committed.load(Ordering::SeqCst));
    server.stop("fast").expect_code(0);
    assert!(committed.load(Ordering::SeqCst) > 0);

    for (number, (id, least)) in taken.iter().enumerate() {
        if number.is_multiple_of(RECOVERED) {
            let name = format!("recovered{number}");
            store.ok(["fork", id.as_str(), name.as_str()]);
            let root = store.mount(&name);
            // It names the server that ran at the time of the snapshot, as if it still did.
            fs::remove_file(root.join("data/postmaster.pid")).unwrap();
            let recovered = Server::start(&root, "other-sockets");
            recovered.check(*least);
            recovered.stop("fast").expect_code(0);
        }
    }
    snapshots.assert_unchanged();
    store.check();
}
