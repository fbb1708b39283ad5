//! Many sandboxes at once, and many one after the other: nothing adds up.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use floe_harness::sandbox::eventually;
use floe_harness::{Server, long_run, mounts};
use serde_json::json;

/// A time that no test here needs; more is a hang.
const LIMIT: Duration = Duration::from_secs(1800);

/// How many ask at once.
const CALLERS: usize = 4;

/// Does it `count` times, several at once, and returns what each returned, in the order of the numbers.
fn each<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return done;
            }
            done.push((number, work(number)));
        }
    };
    let mut all = thread::scope(|scope| {
        let threads: Vec<_> = (0..CALLERS).map(|_| scope.spawn(run)).collect();
        let mut all = Vec::new();
        for thread in threads {
            match thread.join() {
                Ok(done) => all.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, result)| result).collect()
}

#[test]
fn many_sandboxes_run_at_once() {
    let count = if long_run() { 100 } else { 20 };
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let ids = each(count, |_| server.create(&json!({})));
    let different: BTreeSet<&String> = ids.iter().collect();
    assert_eq!(different.len(), count);
    each(count, |number| {
        let line = format!("echo -n {number} > state; setsid sleep 10000 >/dev/null 2>&1 &");
        server.exec(&ids[number], &line).expect_code(0);
    });
    let listed: BTreeSet<String> = server.sandboxes().into_iter().collect();
    assert_eq!(listed.iter().collect::<BTreeSet<_>>(), different);
    // Each has its own, while all run.
    each(count, |number| {
        let line = "cat state; grep -sqx sleep /proc/[0-9]*/comm";
        let output = server.exec(&ids[number], line).expect_code(0);
        assert_eq!(output.text(), number.to_string());
    });
    let snapshots = each(count, |number| server.snapshot(&ids[number]));
    assert_eq!(snapshots.iter().collect::<BTreeSet<_>>().len(), count);
    each(count, |number| server.kill_sandbox(&ids[number]));
    assert!(server.sandboxes().is_empty());
    server.assert_nothing_left();
}

/// What a process uses of what must not add up.
#[derive(Clone, Copy, Debug)]
struct Usage {
    descriptors: usize,
    threads: usize,
    mounts: usize,
    memory: u64,
    objects: usize,
}

fn usage(server: &Server) -> Usage {
    let process = format!("/proc/{}", server.process().pid());
    let count = |dir: &str| {
        let entries = fs::read_dir(format!("{process}/{dir}")).expect("the server's process");
        entries.count()
    };
    let status = fs::read_to_string(format!("{process}/status")).expect("the server's status");
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let memory = memory.and_then(|text| text.split_whitespace().next());
    Usage {
        descriptors: count("fd"),
        threads: count("task"),
        mounts: mounts::below(server.store().base()).len(),
        memory: memory
            .and_then(|text| text.parse().ok())
            .expect("kilobytes"),
        objects: server.store().object_files(),
    }
}

/// One life of a sandbox and of a snapshot of it.
fn cycle(server: &Server, number: usize) {
    let id = server.create(&json!({ "metadata": { "number": number.to_string() } }));
    let line =
        "head -c 300000 /dev/urandom > random; setsid sleep 10000 >/dev/null 2>&1 & echo done";
    let output = server.exec(&id, line).expect_code(0);
    assert_eq!(output.text(), "done");
    let snapshot = server.snapshot(&id);
    server.kill_sandbox(&id);
    let path = format!("/templates/{snapshot}");
    assert_eq!(server.api().delete(&path).status, 204);
}

#[test]
fn cycles_leave_no_memory_descriptors_threads_mounts_or_disk() {
    let cycles = if long_run() { 1000 } else { 30 };
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    // What is made once is made: the template, caches, threads that wait for work.
    each(8, |number| cycle(&server, number));
    server.assert_nothing_left();
    server.store().ok(["gc"]);
    let before = usage(&server);
    each(cycles, |number| cycle(&server, number));
    server.assert_nothing_left();
    server.store().ok(["gc"]);
    println!("before {before:?}\nafter {:?}", usage(&server));
    // Threads that wait for work come and go with it; each may hold a descriptor or two.
    eventually("descriptors and threads to be what they were", || {
        let now = usage(&server);
        now.descriptors <= before.descriptors + 16 && now.threads <= before.threads + 16
    });
    let after = usage(&server);
    assert_eq!(after.mounts, before.mounts);
    assert_eq!(after.objects, before.objects, "contents of what is gone");
    let limit = before.memory + 32 * 1024 + u64::try_from(cycles).expect("a small number") * 16;
    assert!(
        after.memory < limit,
        "{before:?} became {after:?} (kilobytes of memory)"
    );
}
