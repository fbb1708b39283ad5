//! Much output, and readers that are slower than it comes.

use std::time::Duration;

use bytes::Bytes;

use super::guest;
use super::guest::{all, until};
use crate::agent::{ProcessEvent, ProcessRef, PtySize, StartProcess};

/// How much is written: far more than agent, client and the way between them hold.
const MUCH: usize = 50 * 1024 * 1024;

/// What is written over and over again.
const LINE: &[u8] = b"0123456789abcde\n";

fn much() -> String {
    let line = String::from_utf8_lossy(LINE);
    format!("yes {} | head -c {MUCH}", line.trim_end())
}

#[test]
fn nothing_of_much_output_is_lost_to_a_slow_reader() {
    guest(async |guest| {
        let script = guest.script(&format!("{}; exit 8", much()));
        let mut stream = guest.start(script).await;
        let mut read = 0;
        let mut pieces = 0;
        loop {
            match stream.next().await {
                Some(ProcessEvent::Stdout(bytes)) => {
                    let expected = LINE.iter().cycle().skip(read % LINE.len());
                    assert!(bytes.iter().eq(expected.take(bytes.len())), "at {read}");
                    read += bytes.len();
                }
                Some(ProcessEvent::End { exit_code, .. }) => break assert_eq!(exit_code, 8),
                other => panic!("{other:?} after {read} bytes"),
            }
            pieces += 1;
            if pieces % 50 == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        assert_eq!(read, MUCH);
    });
}

#[test]
fn a_reader_that_does_not_read_stops_the_process_and_nobody_else() {
    guest(async |guest| {
        let script = guest.script(&format!("{}; touch done", much()));
        let mut stream = guest.start(script).await;
        for round in 0..20 {
            // Many requests, each with its own way through the agent.
            assert_eq!(
                guest.output(&format!("echo {round}")).await,
                format!("{round}\n")
            );
            guest.agent.metrics().await.unwrap();
        }
        let done = guest.path("done");
        let looked = guest.agent.stat(&done, guest.user()).await;
        assert!(looked.is_err(), "{looked:?}");
        let ran = all(&mut stream).await;
        assert_eq!((ran.stdout.len(), ran.lost), (MUCH, 0));
        guest.agent.stat(&done, guest.user()).await.unwrap();
    });
}

#[test]
fn both_streams_arrive_whole() {
    guest(async |guest| {
        let script = "for i in $(seq 500); do head -c 10000 /dev/zero; \
                      head -c 7000 /dev/zero >&2; done";
        let ran = guest.run(guest.script(script)).await;
        assert_eq!((ran.stdout.len(), ran.stderr.len()), (5_000_000, 3_500_000));
        assert_eq!(ran.lost, 0);
    });
}

#[test]
fn many_changes_from_one_stream_to_the_other_arrive_in_their_order() {
    guest(async |guest| {
        let script = "i=0; while [ $i -lt 6000 ]; do echo o; echo e >&2; i=$((i+1)); done";
        let mut stream = guest.start(guest.script(script)).await;
        // Time for more changes than the agent notes.
        guest.output("sleep 0.2").await;
        let ran = all(&mut stream).await;
        assert_eq!((ran.stdout.len(), ran.stderr.len()), (12_000, 12_000));
        assert_eq!(ran.lost, 0);
    });
}

#[test]
fn of_two_readers_the_slower_one_sets_the_pace_until_it_leaves() {
    guest(async |guest| {
        let start = guest.script(&format!("echo; {}; touch done", much()));
        let mut fast = guest.start(start).await;
        let mut read = until(&mut fast, "\n").await.len();
        let slow = guest.agent.attach(ProcessRef::Pid(fast.pid)).await.unwrap();
        let done = guest.dir().join("done");
        // The slow one is sent no more than its window; the process is no further than the log.
        let stopped = async {
            loop {
                match fast.next().await {
                    Some(ProcessEvent::Stdout(bytes)) => read += bytes.len(),
                    other => return other,
                }
            }
        };
        tokio::select! {
            other = stopped => panic!("{other:?}"),
            said = guest.output("sleep 0.3") => assert_eq!(said, ""),
        }
        assert!(!done.exists());
        assert!(read < MUCH);
        drop(slow);
        let ran = all(&mut fast).await;
        assert_eq!(read + ran.stdout.len(), MUCH + 1);
        assert_eq!(ran.lost, 0);
        assert!(done.exists());
    });
}

#[test]
fn nothing_of_a_terminals_output_is_lost_to_a_slow_reader() {
    guest(async |guest| {
        let start = StartProcess {
            pty: Some(PtySize { cols: 80, rows: 25 }),
            ..guest.script("stty -onlcr; seq 300000")
        };
        let mut stream = guest.start(start).await;
        guest.output("sleep 0.2").await;
        let whole: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
        let ran = all(&mut stream).await;
        assert!(ran.stdout == whole.as_bytes(), "{} bytes", ran.stdout.len());
    });
}

#[test]
fn what_goes_in_comes_out_of_a_process_that_does_both() {
    guest(async |guest| {
        let start = StartProcess {
            stdin: true,
            ..guest.command("cat", &[])
        };
        let mut stream = guest.start(start).await;
        let process = ProcessRef::Pid(stream.pid);
        let long = Bytes::from(LINE.repeat(20 * 1024 * 1024 / LINE.len()));
        let (ran, given) = tokio::join!(all(&mut stream), async {
            guest.agent.stdin(&process, long.clone()).await?;
            guest.agent.close_stdin(&process).await
        });
        given.unwrap();
        assert!(ran.stdout == long, "{} bytes", ran.stdout.len());
    });
}
