//! Attaching to processes, detaching, and what is kept meanwhile.

use super::guest::{Guest, all, is_there, text, until};
use super::{guest, poll_until};
use crate::agent::{AgentError, ProcessRef, ProcessStream, StartProcess};

/// What the agent keeps of a process's output.
const KEPT: u64 = 256 * 1024;

fn tag(name: &str) -> ProcessRef {
    ProcessRef::Tag(name.to_owned())
}

async fn tagged(guest: &Guest, name: &str, script: &str) -> ProcessStream {
    let start = StartProcess {
        tag: Some(name.to_owned()),
        stdin: true,
        ..guest.script(script)
    };
    guest.start(start).await
}

#[test]
fn who_attaches_later_gets_the_output_from_its_beginning() {
    guest(async |guest| {
        let mut stream = tagged(guest, "job", "echo one; read line; echo two >&2").await;
        until(&mut stream, "one\n").await;
        let pid = stream.pid;
        drop(stream);
        let mut again = guest.agent.attach(tag("job")).await.unwrap();
        assert_eq!(again.pid, pid);
        assert_eq!(until(&mut again, "\n").await, "one\n");
        let mut third = guest.agent.attach(ProcessRef::Pid(pid)).await.unwrap();
        guest.agent.close_stdin(&tag("job")).await.unwrap();
        assert_eq!(all(&mut again).await.stderr, b"two\n");
        let ran = all(&mut third).await;
        assert_eq!(
            (ran.stdout, ran.stderr),
            (b"one\n".to_vec(), b"two\n".to_vec())
        );
    });
}

#[test]
fn the_output_and_end_of_an_ended_process_are_kept() {
    guest(async |guest| {
        let mut stream = tagged(guest, "job", "echo out; exit 9").await;
        let first = all(&mut stream).await;
        let mut again = guest.agent.attach(tag("job")).await.unwrap();
        assert_eq!(all(&mut again).await, first);
        assert_eq!(first.exit_code, 9);
    });
}

#[test]
fn a_tag_means_the_newest_that_runs_and_then_the_newest() {
    guest(async |guest| {
        let older = tagged(guest, "job", "read line; exit 1").await;
        let mut newer = tagged(guest, "job", "exit 2").await;
        assert_eq!(all(&mut newer).await.exit_code, 2);
        let mut found = guest.agent.attach(tag("job")).await.unwrap();
        assert_eq!(found.pid, older.pid);
        guest.agent.close_stdin(&tag("job")).await.unwrap();
        assert_eq!(all(&mut found).await.exit_code, 1);
        // The one that ended last.
        let mut found = guest.agent.attach(tag("job")).await.unwrap();
        assert_eq!(all(&mut found).await.exit_code, 1);
    });
}

#[test]
fn a_process_that_nobody_started_or_that_ended_long_ago_is_unknown() {
    guest(async |guest| {
        let mut first = tagged(guest, "first", "true").await;
        all(&mut first).await;
        for process in [ProcessRef::Pid(1), ProcessRef::Pid(u32::MAX), tag("other")] {
            let error = guest.agent.attach(process).await.unwrap_err();
            assert!(
                matches!(error, AgentError::NoSuchProcess { .. }),
                "{error:?}"
            );
        }
        for _ in 0..64 {
            guest.run(guest.command("true", &[])).await;
        }
        let error = guest.agent.attach(tag("first")).await.unwrap_err();
        assert!(
            matches!(error, AgentError::NoSuchProcess { .. }),
            "{error:?}"
        );
    });
}

#[test]
fn a_process_goes_on_when_nobody_is_attached_any_more() {
    guest(async |guest| {
        let script = "head -c 5000000 /dev/zero; echo end; touch done; read line";
        let stream = tagged(guest, "job", script).await;
        drop(stream);
        let done = guest.dir().join("done");
        poll_until(|| done.exists()).await;
        let mut again = guest.agent.attach(tag("job")).await.unwrap();
        guest.agent.close_stdin(&tag("job")).await.unwrap();
        let ran = all(&mut again).await;
        assert_eq!(ran.lost + ran.stdout.len() as u64, 5_000_004);
        assert!(ran.lost >= 5_000_004 - KEPT, "{}", ran.lost);
        assert!(ran.stdout.ends_with(b"\0end\n"));
    });
}

#[test]
fn a_process_that_ended_unattended_says_how_much_is_lost() {
    guest(async |guest| {
        let stream = tagged(guest, "job", "seq 100000; exit 2").await;
        drop(stream);
        let whole: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
        let mut again = loop {
            if guest.agent.processes().await.unwrap().is_empty() {
                break guest.agent.attach(tag("job")).await.unwrap();
            }
        };
        let ran = all(&mut again).await;
        assert_eq!(ran.lost, whole.len() as u64 - KEPT);
        assert!(whole.ends_with(&text(&ran.stdout)));
        assert_eq!(ran.exit_code, 2);
    });
}

#[test]
fn orphans_are_reaped() {
    guest(async |guest| {
        let pids = guest
            .output("for i in 1 2 3 4 5; do (sleep 0.01 > /dev/null & echo $!) ; done")
            .await;
        let pids: Vec<&str> = pids.lines().collect();
        assert_eq!(pids.len(), 5);
        poll_until(|| pids.iter().all(|pid| !is_there(pid))).await;
    });
}

#[test]
fn output_that_others_hold_open_delays_the_end_but_does_not_prevent_it() {
    guest(async |guest| {
        let script = "mkfifo go; exec 3< go; \
                      (read line <&3; echo late; echo later >&2; touch alive) & exit 5";
        let mut stream = guest.start(guest.script(script)).await;
        let go = guest.dir().join("go");
        poll_until(|| go.exists()).await;
        let opened =
            tokio::task::spawn_blocking(move || std::fs::OpenOptions::new().write(true).open(go));
        let writer = opened.await.unwrap().unwrap();
        let ran = all(&mut stream).await;
        assert_eq!((ran.exit_code, ran.stdout), (5, Vec::new()));
        // What it writes now is read for nobody, so that it is not killed.
        drop(writer);
        let alive = guest.dir().join("alive");
        poll_until(|| alive.exists()).await;
    });
}
