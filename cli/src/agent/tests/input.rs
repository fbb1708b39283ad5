//! What is given to a process, and the end of that.

use bytes::Bytes;

use super::guest;
use super::guest::{Guest, all, text, until};
use crate::agent::{AgentError, ProcessRef, ProcessStream, StartProcess};

async fn reading(guest: &Guest, script: &str) -> (ProcessStream, ProcessRef) {
    let start = StartProcess {
        stdin: true,
        ..guest.script(script)
    };
    let stream = guest.start(start).await;
    let process = ProcessRef::Pid(stream.pid);
    (stream, process)
}

#[test]
fn input_arrives_in_its_order_until_it_is_closed() {
    guest(async |guest| {
        let (mut stream, process) = reading(guest, "cat; echo end").await;
        for part in ["a\n", "", "b\n"] {
            guest.agent.stdin(&process, part.into()).await.unwrap();
        }
        assert_eq!(until(&mut stream, "b\n").await, "a\nb\n");
        guest.agent.close_stdin(&process).await.unwrap();
        assert_eq!(text(&all(&mut stream).await.stdout), "end\n");
    });
}

#[test]
fn closing_waits_for_the_input_before_it() {
    guest(async |guest| {
        let (mut stream, process) = reading(guest, "read line; wc -c").await;
        // More than a pipe holds, so it waits until somebody reads.
        let long = Bytes::from(vec![b'x'; 1024 * 1024]);
        let (given, closed, again, ran) = tokio::join!(
            guest.agent.stdin(&process, long.clone()),
            async {
                let more = guest.agent.stdin(&process, "\n12345".into()).await;
                more.and(guest.agent.close_stdin(&process).await)
            },
            guest.agent.metrics(),
            all(&mut stream),
        );
        given.unwrap();
        closed.unwrap();
        again.unwrap();
        assert_eq!(text(&ran.stdout).trim(), "5");
    });
}

#[test]
fn input_after_its_end_is_refused_and_a_second_end_is_not() {
    guest(async |guest| {
        let (mut stream, process) = reading(guest, "cat; exec <&-; echo; sleep 1000").await;
        guest.agent.close_stdin(&process).await.unwrap();
        guest.agent.close_stdin(&process).await.unwrap();
        until(&mut stream, "\n").await;
        let error = guest.agent.stdin(&process, "x".into()).await.unwrap_err();
        assert!(
            matches!(error, AgentError::InvalidArgument { .. }),
            "{error:?}"
        );
    });
}

#[test]
fn input_that_nobody_reads_any_more_is_refused() {
    guest(async |guest| {
        let (mut stream, process) = reading(guest, "exec <&-; echo; sleep 1000").await;
        until(&mut stream, "\n").await;
        let error = guest.agent.stdin(&process, "x".into()).await.unwrap_err();
        assert!(
            matches!(error, AgentError::InvalidArgument { .. }),
            "{error:?}"
        );
    });
}

#[test]
fn input_that_waits_ends_with_its_process() {
    guest(async |guest| {
        let (mut stream, process) = reading(guest, "sleep 1000").await;
        let long = Bytes::from(vec![b'x'; 1024 * 1024]);
        let (given, ran) = tokio::join!(guest.agent.stdin(&process, long), async {
            guest.agent.signal(&process, 9).await.unwrap();
            all(&mut stream).await
        });
        assert!(
            matches!(
                given,
                Err(AgentError::InvalidArgument { .. } | AgentError::NoSuchProcess { .. })
            ),
            "{given:?}"
        );
        assert_eq!(ran.signal, Some(9));
    });
}

#[test]
fn input_that_is_given_up_leaves_the_way_free_for_the_next() {
    guest(async |guest| {
        let (mut stream, process) = reading(guest, "read go; wc -l").await;
        {
            let long = Bytes::from(vec![b'x'; 1024 * 1024]);
            let waits = guest.agent.stdin(&process, long);
            tokio::select! {
                biased;
                given = waits => panic!("{given:?}"),
                metrics = guest.agent.metrics() => drop(metrics.unwrap()),
            }
        }
        guest
            .agent
            .stdin(&process, "\n1\n2\n".into())
            .await
            .unwrap();
        guest.agent.close_stdin(&process).await.unwrap();
        assert_eq!(text(&all(&mut stream).await.stdout).trim(), "2");
    });
}

#[test]
fn without_input_there_is_none_and_none_can_be_given() {
    guest(async |guest| {
        let mut stream = guest.start(guest.script("cat; echo; sleep 1000")).await;
        assert_eq!(until(&mut stream, "\n").await, "\n");
        let process = ProcessRef::Pid(stream.pid);
        for refused in [
            guest.agent.stdin(&process, "x".into()).await,
            guest.agent.close_stdin(&process).await,
        ] {
            assert!(
                matches!(refused, Err(AgentError::InvalidArgument { .. })),
                "{refused:?}"
            );
        }
        let nobody = ProcessRef::Tag("nobody".to_owned());
        let error = guest.agent.stdin(&nobody, "x".into()).await.unwrap_err();
        assert!(
            matches!(error, AgentError::NoSuchProcess { .. }),
            "{error:?}"
        );
    });
}
