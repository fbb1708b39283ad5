//! The end of the connection, and what ends with it.

use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncReadExt;

use super::guest::{all, connect, guest_to_its_end, is_there, until, user};
use super::{guest, raw_guest, within_limit};
use crate::agent::{AgentError, ProcessRef, ProcessStream, StartProcess};

async fn error_of(mut stream: ProcessStream) -> Option<AgentError> {
    while stream.next().await.is_some() {}
    stream.error().cloned()
}

#[test]
fn everything_that_waits_for_an_agent_that_is_killed_ends() {
    let (status, _) = guest_to_its_end(async |guest| {
        let agent = &guest.agent;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        std::fs::write(guest.dir().join("large"), vec![0; 1024 * 1024]).unwrap();
        let waits = async |script: &str| {
            let start = StartProcess {
                stdin: true,
                ..guest.script(script)
            };
            guest.start(start).await
        };
        // Both end by themselves when the agent holds their pipes no more.
        let silent = waits("read line").await;
        let full = waits("echo; read line < fifo; read line").await;
        let process = ProcessRef::Pid(full.pid);
        let mut watch = agent
            .watch(&guest.path(""), guest.user(), true)
            .await
            .unwrap();
        let mut port = agent.connect_port(port).await.unwrap();
        let mut reader = agent
            .read_file(&guest.path("large"), guest.user())
            .await
            .unwrap();
        let mut writer = agent
            .write_file(&guest.path("written"), guest.user())
            .await
            .unwrap();
        let long = Bytes::from(vec![0; 1024 * 1024]);
        let mut one = [0];
        let (closed, input, silent, full, watch, port, ()) = tokio::join!(
            agent.closed(),
            agent.stdin(&process, long.clone()),
            error_of(silent),
            error_of(full),
            async {
                while watch.next().await.is_some() {}
                watch.error().cloned()
            },
            port.read(&mut one),
            async {
                // After this everything above has been asked for.
                agent.metrics().await.unwrap();
                let pid = Pid::from_raw(guest.pid.try_into().unwrap()).unwrap();
                kill_process(pid, Signal::KILL).unwrap();
            },
        );
        let read = loop {
            match reader.next().await {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        for error in [
            Some(closed),
            input.err(),
            silent,
            full,
            watch,
            read,
            writer.write(long).await.err(),
            writer.finish().await.err(),
            agent.metrics().await.err(),
            agent.start(guest.script("true")).await.err(),
        ] {
            assert!(matches!(error, Some(AgentError::Gone { .. })), "{error:?}");
        }
        // To its user the connection to the port has just ended.
        assert_eq!(port.unwrap(), 0);
    });
    assert!(!status.success());
}

#[test]
fn closing_ends_the_agent_and_all_that_it_has_started() {
    let mut left = String::new();
    guest(async |guest| {
        // Neither sessions nor ignored signals are a way out.
        let script = "trap '' HUP TERM; setsid sleep 1000 & (setsid sleep 1000 & echo $!); \
                      echo $!; echo $$; echo end; sleep 1000";
        let mut stream = guest.start(guest.script(script)).await;
        left = until(&mut stream, "end").await;
        assert!(left.lines().take(3).all(is_there), "{left}");
        assert!(!guest.agent.is_closed());
        guest.agent.close();
        assert!(guest.agent.is_closed());
        assert_eq!(stream.next().await, None);
        assert!(
            matches!(stream.error(), Some(AgentError::Gone { .. })),
            "{:?}",
            stream.error()
        );
    });
    assert_eq!(left.lines().count(), 4);
    assert!(!left.lines().take(3).any(is_there), "{left}");
}

#[test]
fn the_connection_lasts_as_long_as_anything_that_came_from_it() {
    let (mut process, socket) = raw_guest();
    within_limit(async {
        let agent = connect(socket).await;
        let start = StartProcess {
            cmd: "cat".to_owned(),
            user: Some(user()),
            stdin: true,
            ..StartProcess::default()
        };
        let mut stream = agent.start(start).await.unwrap();
        let process = ProcessRef::Pid(stream.pid);
        let clone = agent.clone();
        drop(agent);
        clone.stdin(&process, "a\n".into()).await.unwrap();
        clone.close_stdin(&process).await.unwrap();
        drop(clone);
        assert_eq!(all(&mut stream).await.stdout, b"a\n");
    });
    let (status, said) = process.end();
    assert!(status.success() && said.is_empty(), "{status}: {said}");
}
