//! `floe sandbox`, `floe template` and `floe serve` on the command line: what they print, and their exit
//! codes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use floe_harness::command::run;
use floe_harness::{Server, TestStore};
use serde_json::{Value, json};

fn id_of(server: &Server, made: &Value) -> String {
    let id = made["id"].as_str().expect("an id").to_owned();
    server.note(&id);
    id
}

#[test]
fn a_sandbox_lives_from_create_to_kill() {
    let server = Server::start();
    let store = server.store();
    let made = store.json([
        "sandbox",
        "create",
        "--metadata",
        "owner=ann",
        "--env",
        "GREETING=hello there",
        "--timeout",
        "1h",
    ]);
    let id = id_of(&server, &made);
    for (key, value) in [
        ("state", json!("running")),
        ("kind", json!("process")),
        ("attached", json!("created")),
        ("template", json!("base")),
        ("fidelity", json!("filesystem")),
        ("metadata", json!({ "owner": "ann" })),
        ("on_timeout", json!("kill")),
        ("network", json!(false)),
    ] {
        assert_eq!(made[key], value, "{key} in {made}");
    }
    assert!(made["ends_at"].is_string() && made["created_at"].is_string());
    let output = store.run([
        "sandbox",
        "exec",
        &id,
        "--",
        "sh",
        "-c",
        "echo $GREETING; pwd; id -un",
    ]);
    assert_eq!(
        output.expect_code(0).text(),
        "hello there\n/home/user\nuser"
    );
    let listed = store.json(["sandbox", "list", "--metadata", "owner=ann"]);
    assert_eq!(listed[0]["id"], json!(id));
    assert_eq!(
        store.json(["sandbox", "list", "--metadata", "owner=bob"]),
        json!([])
    );
    assert_eq!(store.ok(["sandbox", "list", "-q"]), id);
    assert!(store.ok(["sandbox", "list"]).contains(&id));
    let shown = store.json(["sandbox", "show", id.as_str()]);
    assert!(
        shown["usage"]["pids"].as_u64().is_some_and(|pids| pids > 0),
        "{shown}"
    );

    store.ok(["sandbox", "pause", id.as_str()]);
    let paused = store.json(["sandbox", "list", "--state", "paused"]);
    assert_eq!(paused[0]["id"], json!(id));
    let refused = store.run(["sandbox", "exec", id.as_str(), "--", "true"]);
    refused.expect_code(125);
    store.ok(["sandbox", "resume", id.as_str()]);
    store
        .run(["sandbox", "exec", id.as_str(), "--", "true"])
        .expect_code(0);

    let logs = store.json(["sandbox", "logs", id.as_str()]);
    let lines = logs.as_array().expect("lines");
    assert!(lines.len() >= 3, "{logs}");
    assert!(
        lines
            .iter()
            .all(|line| line["at"].is_string() && line["message"].is_string())
    );
    store.ok(["sandbox", "kill", id.as_str()]);
    store.fails(3, ["sandbox", "show", id.as_str()]);
    let error = store
        .run(["sandbox", "kill", id.as_str(), "--json"])
        .expect_code(3)
        .json_error();
    assert_eq!(error["kind"], "not_found", "{error}");
    assert_eq!(store.json(["sandbox", "list"]), json!([]));
}

#[test]
fn exec_passes_on_codes_output_and_input() {
    let server = Server::start();
    let store = server.store();
    let id = store.ok(["sandbox", "create"]);
    server.note(&id);
    let exec = |options: &[&str], command: &[&str]| {
        let mut all = vec!["sandbox", "exec", id.as_str()];
        all.extend(options);
        all.push("--");
        all.extend(command);
        store.run(all)
    };
    let sh = |line: &str| exec(&[], &["sh", "-c", line]);
    for code in [0, 1, 3, 42, 255] {
        sh(&format!("exit {code}")).expect_code(code);
    }
    sh("kill -9 $$").expect_code(137);
    sh("kill -15 $$").expect_code(143);
    exec(&[], &["no-such-command"]).expect_code(127);
    exec(&[], &["/etc/passwd"]).expect_code(126);
    exec(&["--timeout", "1s"], &["sleep", "100"]).expect_code(124);
    exec(&["--user", "no-such-user"], &["true"]).expect_code(125);
    exec(&["--cwd", "/no/such"], &["true"]).expect_code(125);
    store
        .run(["sandbox", "exec", "0000000000", "--", "true"])
        .expect_code(125);
    let output = sh("echo out; echo err >&2").expect_code(0);
    assert_eq!(
        (output.text(), output.errors()),
        ("out".to_owned(), "err".to_owned())
    );
    let output = exec(
        &["--user", "root", "--cwd", "/usr", "--env", "A=b c"],
        &["sh", "-c", "id -un; pwd; echo $A"],
    );
    assert_eq!(output.expect_code(0).text(), "root\n/usr\nb c");
    // A large output arrives whole.
    let output = sh("seq 300000").expect_code(0);
    assert_eq!(output.text().lines().count(), 300_000);
    assert!(output.text().ends_with("300000"));
    // Input goes in with -i, and there is none without.
    let input = store.base().join("input");
    fs::write(&input, vec![b'x'; 3_000_000]).expect("a file");
    let mut command = store.command();
    command.args(["sandbox", "exec", "-i", &id, "--", "wc", "-c"]);
    command
        .stdin(fs::File::open(&input).expect("the file"))
        .stdout(Stdio::piped());
    let output = command.output().expect("its output");
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "3000000");
    let output = exec(&[], &["cat"]).expect_code(0);
    assert_eq!(output.text(), "");
    let lines = exec(&["--json"], &["sh", "-c", "echo out; exit 5"])
        .expect_code(5)
        .text();
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines[0]["stdout"], "out\n");
    assert_eq!(lines.last().expect("an end")["end"]["exit_code"], 5);
}

#[test]
fn snapshots_forks_and_rollbacks_are_what_they_say() {
    let server = Server::start();
    let store = server.store();
    let id = store.ok(["sandbox", "create"]);
    server.note(&id);
    let write = |sandbox: &str, text: &str| {
        server
            .exec(sandbox, &format!("echo -n {text} > /workspace/state"))
            .expect_code(0);
    };
    let read = |sandbox: &str| {
        server
            .exec(sandbox, "cat /workspace/state")
            .expect_code(0)
            .text()
    };
    write(&id, "one");
    let first = store.ok([
        "sandbox",
        "snapshot",
        id.as_str(),
        "-m",
        "the first",
        "--label",
        "a=b",
    ]);
    let shown = store.json(["snap", "show", first.as_str()]);
    assert_eq!(shown["message"], "the first");
    assert_eq!(shown["labels"], json!({ "a": "b" }));
    assert_eq!(shown["workspace"], json!(id));
    write(&id, "two");
    let forks = store.ok(["sandbox", "fork", id.as_str(), "--count", "2"]);
    let forks: Vec<&str> = forks.lines().collect();
    assert_eq!(forks.len(), 2);
    for fork in &forks {
        server.note(fork);
        assert_eq!(read(fork), "two");
        write(fork, fork);
    }
    assert_eq!(read(&id), "two");
    let restored = store.ok(["sandbox", "create", first.as_str()]);
    server.note(&restored);
    assert_eq!(read(&restored), "one");
    server
        .exec(&id, "setsid sleep 1000 >/dev/null 2>&1 &")
        .expect_code(0);
    store.ok(["sandbox", "rollback", id.as_str(), first.as_str()]);
    assert_eq!(read(&id), "one");
    server
        .exec(&id, "! grep -sqx sleep /proc/[0-9]*/comm")
        .expect_code(0);
    // By a name, which is a template too.
    let named = store.ok(["sandbox", "snapshot", forks[0], "--name", "kept"]);
    let by_name = store.ok(["sandbox", "create", "kept"]);
    server.note(&by_name);
    assert_eq!(read(&by_name), forks[0]);
    let templates = store.json(["template", "list"]);
    let templates = templates.as_array().expect("a list").iter();
    let kept = templates
        .clone()
        .find(|template| template["name"] == "kept");
    assert_eq!(kept.expect("the template")["snapshot"], json!(named));
    store.ok(["template", "delete", "kept"]);
    store.fails(3, ["sandbox", "create", "kept"]);
    assert_eq!(read(&by_name), forks[0]);
}

#[test]
fn a_template_is_built_in_steps_that_are_skipped_next_time() {
    let server = Server::start();
    let store = server.store();
    let steps = ["echo one >> /opt/steps", "echo two >> /opt/steps"];
    let build = |steps: &[&str]| {
        let mut arguments = vec!["template", "build", "tools"];
        for step in steps {
            arguments.extend(["--run", step]);
        }
        store.json(arguments)
    };
    let skipped = |built: &Value| -> Vec<bool> {
        let steps = built["steps"].as_array().expect("steps").iter();
        steps.map(|step| step["skipped"] == true).collect()
    };
    let first = build(&steps);
    assert_eq!(skipped(&first), [false, false], "{first}");
    let again = build(&steps);
    assert_eq!(skipped(&again), [true, true], "{again}");
    assert_eq!(again["snapshot"], first["snapshot"]);
    let changed = build(&[steps[0], "echo other >> /opt/steps"]);
    assert_eq!(skipped(&changed), [true, false], "{changed}");
    let id = store.ok(["sandbox", "create", "tools"]);
    server.note(&id);
    let output = server.exec(&id, "cat /opt/steps").expect_code(0);
    assert_eq!(output.text(), "one\nother");
    // A step that fails changes no name, and leaves no sandbox.
    let failed = store.run([
        "template",
        "build",
        "tools",
        "--run",
        "echo told >&2; exit 9",
    ]);
    assert_eq!(failed.code, Some(1), "{failed}");
    assert!(failed.errors().contains("told"), "{failed}");
    let id_after = store.ok(["sandbox", "create", "tools"]);
    server.note(&id_after);
    assert_eq!(
        server.exec(&id_after, "cat /opt/steps").text(),
        "one\nother"
    );
    assert_eq!(server.sandboxes().len(), 2);
}

#[test]
fn a_template_begins_with_a_directory() {
    let server = Server::start();
    let store = server.store();
    // The smallest system that a sandbox can run in: a shell and what it needs.
    let root = store.base().join("root");
    let make = r#"
mkdir -p "$0/bin" "$0/etc" "$0/home/user" "$0/tmp" "$0/workspace" "$0/proc" "$0/dev"
printf 'root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n' > "$0/etc/passwd"
printf 'root:x:0:\nuser:x:1000:\n' > "$0/etc/group"
for program in bash cat; do
    cp "$(command -v $program)" "$0/bin/"
    ldd "$(command -v $program)" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$0$(dirname "$library")"; cp -L "$library" "$0$library"
    done
done
ln -s bash "$0/bin/sh"
echo here > "$0/marker"
chown -R 1000:1000 "$0/home/user"
"#;
    let mut command = Command::new("bash");
    command.args(["-euc", make]).arg(&root);
    run(&mut command, Duration::from_secs(30)).expect_code(0);
    let dir = root.to_str().expect("the test's directory is text");
    store.ok(["template", "build", "small", "--from-dir", dir]);
    let id = store.ok(["sandbox", "create", "small"]);
    server.note(&id);
    let output = server.exec(&id, "cat /marker");
    assert_eq!(output.expect_code(0).text(), "here");
    server.exec(&id, "echo changed > /marker").expect_code(0);
    let marker = fs::read_to_string(root.join("marker")).expect("the marker");
    assert_eq!(marker, "here\n", "the directory is as it was");
}

#[test]
fn a_session_has_one_sandbox() {
    let server = Server::start();
    let store = server.store();
    let create = || store.json(["sandbox", "create", "--session", "agent"]);
    let made = create();
    let id = id_of(&server, &made);
    assert_eq!(made["attached"], "created");
    let again = create();
    assert_eq!(
        (&again["id"], &again["attached"]),
        (&json!(id), &json!("running"))
    );
    store.ok(["sandbox", "pause", id.as_str()]);
    let again = create();
    assert_eq!(
        (&again["id"], &again["attached"]),
        (&json!(id), &json!("resumed"))
    );
}

#[test]
fn what_makes_no_sense_is_refused() {
    let server = Server::start();
    let store = server.store();
    store.fails(2, ["sandbox", "create", "--metadata", "no-value"]);
    store.fails(2, ["sandbox", "create", "--timeout", "soon"]);
    store.fails(2, ["sandbox", "exec", "some"]);
    store.fails(3, ["sandbox", "create", "no-such-template"]);
    for verb in [
        "show", "pause", "resume", "snapshot", "fork", "kill", "logs",
    ] {
        store.fails(3, ["sandbox", verb, "00000000"]);
    }
    store.fails(3, ["template", "delete", "no-such-template"]);
    // One server a store.
    let second = store.run(["serve", "--addr", "127.0.0.1:0"]);
    assert_ne!(second.code, Some(0), "{second}");
    assert!(!second.timed_out, "{second}");
    assert_eq!(store.json(["sandbox", "list"]), json!([]));
}

#[test]
fn the_key_is_kept_and_others_come_and_go() {
    let server = Server::start();
    let store = server.store();
    let key = server.key();
    assert!(key.len() >= 32, "{key}");
    assert_eq!(store.ok(["serve", "key"]), key);
    let mode = |path: &std::path::Path| fs::metadata(path).expect("a file").permissions().mode();
    let readable_with_key = fs::read_dir(store.store_dir())
        .expect("the store")
        .flatten()
        .filter(|entry| {
            let text = fs::read(entry.path()).unwrap_or_default();
            text.windows(key.len()).any(|part| part == key.as_bytes())
        });
    for entry in readable_with_key {
        assert_eq!(mode(&entry.path()) & 0o077, 0, "{}", entry.path().display());
    }
    let ask = |key: &str| {
        let api = floe_harness::Api::new(server.url(), Some(key));
        api.get("/v2/sandboxes").status
    };
    assert_eq!((ask(key), ask("wrong"), ask(&key[1..])), (200, 401, 401));
    let other = store.ok(["serve", "key", "add", "ci"]);
    assert_eq!(ask(&other), 200);
    assert!(store.ok(["serve", "key", "list"]).contains("ci"));
    store.ok(["serve", "key", "revoke", "ci"]);
    assert_eq!((ask(&other), ask(key)), (401, 200));
}

/// Sandboxes do not need the interface: any command starts the daemon.
#[test]
fn a_sandbox_runs_without_a_server() {
    let store = TestStore::new();
    let id = store.ok(["sandbox", "create"]);
    let output = store.run(["sandbox", "exec", id.as_str(), "--", "echo", "here"]);
    assert_eq!(output.expect_code(0).text(), "here");
    store.ok(["sandbox", "kill", id.as_str()]);
    assert!(store.floe_mounts().is_empty());
}

#[test]
fn who_looks_at_a_sandbox_stays_when_it_is_started_again() {
    // Once the end of its processes unmounted every mount of its workspace, and forgot them.
    let server = Server::start();
    let store = server.store();
    let id = id_of(&server, &store.json(["sandbox", "create"]));
    let write = |text: &str| {
        let line = format!("echo {text} >/home/user/said");
        let output = store.run(["sandbox", "exec", &id, "--", "sh", "-c", &line]);
        output.expect_code(0);
    };
    write("first");
    let seen = store.base().join("seen");
    let at = seen.to_str().expect("a path").to_owned();
    store.ok(["mount", "--read-only", &id, &at]);
    let said = || fs::read_to_string(seen.join("home/user/said")).unwrap_or_default();
    assert_eq!(said(), "first\n");
    let snapshot = store.json(["sandbox", "snapshot", id.as_str()])["id"].clone();
    write("second");
    assert_eq!(said(), "second\n");
    let snapshot = snapshot.as_str().expect("an id");
    store.ok(["sandbox", "rollback", id.as_str(), snapshot]);
    assert_eq!(said(), "first\n");
    write("third");
    assert_eq!(said(), "third\n");
    let is_mounted = || {
        let status = store.json(["daemon", "status"]);
        let mounts = status["mounts"].as_array().expect("a list").clone();
        mounts.iter().any(|mount| mount["dir"] == json!(at))
    };
    assert!(is_mounted());
    // It goes with what it shows.
    store.ok(["sandbox", "kill", id.as_str()]);
    assert!(!is_mounted() && !seen.join("home").exists());
}
