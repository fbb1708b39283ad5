//! Commands on a terminal.

use super::guest::{Guest, all, is_there, text, until};
use super::{guest, poll_until};
use crate::agent::{AgentError, ProcessRef, ProcessStream, PtySize, StartProcess};

async fn on_terminal(guest: &Guest, script: &str) -> (ProcessStream, ProcessRef) {
    let size = PtySize { cols: 91, rows: 37 };
    let start = StartProcess {
        pty: Some(size),
        ..guest.script(script)
    };
    let stream = guest.start(start).await;
    let process = ProcessRef::Pid(stream.pid);
    (stream, process)
}

#[test]
fn a_terminal_has_its_size_and_gets_new_ones() {
    guest(async |guest| {
        let script = "stty size; while read line; do stty size; done";
        let (mut stream, process) = on_terminal(guest, script).await;
        until(&mut stream, "37 91").await;
        let size = PtySize { cols: 133, rows: 7 };
        guest.agent.resize(&process, size).await.unwrap();
        guest.agent.stdin(&process, "\n".into()).await.unwrap();
        until(&mut stream, "7 133").await;
        // Ctrl-D.
        guest.agent.stdin(&process, "\x04".into()).await.unwrap();
        assert_eq!(all(&mut stream).await.exit_code, 0);
    });
}

#[test]
fn a_program_is_told_of_a_new_size() {
    guest(async |guest| {
        let script = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.01; done";
        let (mut stream, process) = on_terminal(guest, script).await;
        until(&mut stream, "ready").await;
        let size = PtySize { cols: 20, rows: 10 };
        guest.agent.resize(&process, size).await.unwrap();
        assert!(text(&all(&mut stream).await.stdout).contains("10 20"));
    });
}

#[test]
fn what_is_typed_is_echoed_and_read_by_the_line() {
    guest(async |guest| {
        let script =
            "read line; echo \"got $line\"; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo $TERM";
        let (mut stream, process) = on_terminal(guest, script).await;
        guest.agent.stdin(&process, "hello".into()).await.unwrap();
        until(&mut stream, "hello").await;
        // A mistake is taken back: this is a terminal.
        guest.agent.stdin(&process, "x\x7f\r".into()).await.unwrap();
        let ran = all(&mut stream).await;
        let said = text(&ran.stdout);
        assert!(
            said.ends_with("got hello\r\nxterm-256color\r\n"),
            "{said:?}"
        );
    });
}

#[test]
fn a_terminal_is_the_controlling_one_and_keys_are_signals() {
    guest(async |guest| {
        let script = "echo by name > /dev/tty; exec sleep 1000";
        let (mut stream, process) = on_terminal(guest, script).await;
        until(&mut stream, "by name").await;
        // Ctrl-C.
        guest.agent.stdin(&process, "\x03".into()).await.unwrap();
        assert_eq!(all(&mut stream).await.signal, Some(2));
    });
}

#[test]
fn the_last_words_on_a_terminal_are_not_lost() {
    guest(async |guest| {
        for _ in 0..20 {
            let (mut stream, _) = on_terminal(guest, "seq 20000; exit 4").await;
            let ran = all(&mut stream).await;
            let said = text(&ran.stdout);
            assert_eq!(said.lines().count(), 20_000);
            assert!(said.ends_with("\r\n20000\r\n"));
            assert_eq!(ran.exit_code, 4);
        }
    });
}

#[test]
fn the_input_of_a_terminal_cannot_be_closed_from_here() {
    guest(async |guest| {
        let (mut stream, process) = on_terminal(guest, "cat").await;
        let error = guest.agent.close_stdin(&process).await.unwrap_err();
        assert!(
            matches!(error, AgentError::InvalidArgument { .. }),
            "{error:?}"
        );
        guest.agent.stdin(&process, "\x04".into()).await.unwrap();
        assert_eq!(all(&mut stream).await.exit_code, 0);
    });
}

#[test]
fn what_still_runs_on_a_terminal_is_hung_up_when_its_command_has_ended() {
    guest(async |guest| {
        let (mut stream, _) = on_terminal(guest, "sleep 1000 & echo $!; exit 6").await;
        let ran = all(&mut stream).await;
        assert_eq!(ran.exit_code, 6);
        let left = text(&ran.stdout);
        poll_until(|| !is_there(&left)).await;
    });
}

#[test]
fn a_command_without_a_terminal_has_no_size() {
    guest(async |guest| {
        let stream = guest.start(guest.command("sleep", &["1000"])).await;
        let process = ProcessRef::Pid(stream.pid);
        let size = PtySize { cols: 1, rows: 1 };
        let error = guest.agent.resize(&process, size).await.unwrap_err();
        assert!(
            matches!(error, AgentError::InvalidArgument { .. }),
            "{error:?}"
        );
    });
}
