//! An agent that somebody has taken over. Whatever it sends, the client gives an error and goes on.

use std::time::Duration;

use floe_guest::frame::{HEADER, Kind, MAX_DATA, encode};
use floe_guest::hello::Hello;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::guest::within;
use super::within_limit;
use crate::agent::{Agent, AgentError, ProcessRef, StartProcess};

fn frame(kind: Kind, channel: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert!(encode(kind, channel, payload, &mut bytes));
    bytes
}

fn header(len: u32, kind: u8, channel: u32) -> Vec<u8> {
    let mut bytes = len.to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend(channel.to_le_bytes());
    bytes
}

fn started() -> Vec<u8> {
    frame(Kind::Event, 1, br#"{"started":{"pid":7,"pty":false}}"#)
}

/// The client, and an agent's end of its connection.
async fn greeted() -> (Agent, UnixStream) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let answer = frame(
        Kind::Hello,
        0,
        &Hello::ours().answer(Hello::ours()).0.encode(),
    );
    theirs.write_all(&answer).await.unwrap();
    let agent = Agent::connect(ours).await.unwrap();
    read_frame(&mut theirs).await;
    (agent, theirs)
}

/// The kind and channel of the next frame that the client sends.
async fn read_frame(socket: &mut UnixStream) -> (u8, u32) {
    let mut head = [0; HEADER];
    socket.read_exact(&mut head).await.unwrap();
    let len = u32::from_le_bytes(head[..4].try_into().unwrap());
    let mut payload = vec![0; len.try_into().unwrap()];
    socket.read_exact(&mut payload).await.unwrap();
    (head[4], u32::from_le_bytes(head[5..].try_into().unwrap()))
}

/// What becomes of a process that was started, when the agent answers so.
async fn start_answered(answer: &[u8]) -> AgentError {
    let (agent, mut theirs) = greeted().await;
    let start = agent.start(StartProcess::default());
    let ((), started) = tokio::join!(
        async {
            assert_eq!(read_frame(&mut theirs).await, (Kind::Open.code(), 1));
            // The client may have ended the connection before all of it is sent.
            let sent = theirs.write_all(answer).await;
            assert!(sent.is_ok() || answer.len() > MAX_DATA);
            drop(theirs);
        },
        start
    );
    let error = match started {
        Err(error) => error,
        Ok(mut stream) => {
            while stream.next().await.is_some() {}
            stream.error().expect("it is not ended").clone()
        }
    };
    // All that comes later is told the same.
    assert_eq!(agent.closed().await, error);
    assert_eq!(agent.metrics().await.unwrap_err(), error);
    error
}

#[test]
fn what_the_protocol_does_not_allow_ends_the_connection() {
    within_limit(async {
        let garbage: Vec<u8> = (0..=255).cycle().step_by(37).take(4096).collect();
        let data = frame(Kind::Data, 1, b"x");
        let end = frame(Kind::End, 1, br#"{"ok":{"exit":{"code":0,"signal":null}}}"#);
        let eof = frame(Kind::Eof, 1, b"");
        let credit = |bytes: u32| frame(Kind::Credit, 1, &bytes.to_le_bytes());
        for (what, answer) in [
            ("garbage", garbage),
            ("text", b"HTTP/1.1 200 OK\r\n\r\n".to_vec()),
            ("a huge length", header(u32::MAX, Kind::Data.code(), 1)),
            ("no data", header(0, Kind::Data.code(), 1)),
            ("an unknown kind", header(0, 77, 1)),
            ("a kind of the daemon", header(4, Kind::Open.code(), 1)),
            (
                "a second hello",
                frame(
                    Kind::Hello,
                    0,
                    &Hello::ours().answer(Hello::ours()).0.encode(),
                ),
            ),
            ("channel 0", header(1, Kind::Data.code(), 0)),
            ("a channel that is not open", frame(Kind::Data, 2, b"x")),
            ("data first", data.clone()),
            (
                "an end of another kind",
                frame(Kind::End, 1, br#"{"ok":"done"}"#),
            ),
            ("an end that is none", frame(Kind::End, 1, b"{")),
            ("an event that is none", frame(Kind::Event, 1, b"\xff")),
            (
                "an event of another kind",
                frame(Kind::Event, 1, br#""watching""#),
            ),
            ("no credit", credit(0)),
            ("too much credit", credit(u32::MAX)),
            ("started twice", [started(), started()].concat()),
            ("eof of a process", [started(), eof.clone()].concat()),
            ("eof twice", [started(), eof.clone(), eof].concat()),
            (
                "something after the end",
                [started(), end, data.clone()].concat(),
            ),
        ] {
            let error = start_or_after(&answer).await;
            assert!(
                matches!(error, AgentError::Protocol { .. }),
                "{what}: {error:?}"
            );
        }
    });
}

/// As [`start_answered`], but the process itself may have ended well.
async fn start_or_after(answer: &[u8]) -> AgentError {
    let (agent, mut theirs) = greeted().await;
    let (sent, started) = tokio::join!(
        async {
            read_frame(&mut theirs).await;
            theirs.write_all(answer).await
        },
        agent.start(StartProcess::default())
    );
    sent.unwrap();
    let own = match started {
        Err(error) => Some(error),
        Ok(mut stream) => {
            while stream.next().await.is_some() {}
            stream.error().cloned()
        }
    };
    let error = agent.closed().await;
    assert!(own.is_none_or(|own| own == error));
    error
}

#[test]
fn more_than_the_window_that_was_granted_ends_the_connection() {
    within_limit(async {
        // Nobody reads, so there is no credit.
        let data = frame(Kind::Data, 1, &vec![0; MAX_DATA]);
        let (agent, mut theirs) = greeted().await;
        let ((), stream) = tokio::join!(
            async {
                read_frame(&mut theirs).await;
                theirs.write_all(&started()).await.unwrap();
            },
            agent.start(StartProcess::default())
        );
        let mut stream = stream.unwrap();
        let flood = async {
            for sent in 0usize.. {
                if theirs.write_all(&data).await.is_err() {
                    return sent;
                }
            }
            0
        };
        let (error, sent) = tokio::join!(agent.closed(), flood);
        assert!(matches!(error, AgentError::Protocol { .. }), "{error:?}");
        let mut taken = 0;
        while stream.next().await.is_some() {
            taken += 1;
        }
        assert!(taken < 5 && sent >= taken, "{taken} of {sent} were kept");
        assert_eq!(stream.error(), Some(&error));
    });
}

#[test]
fn many_small_frames_take_no_more_room_than_a_few_large_ones() {
    within_limit(async {
        let small = frame(Kind::Data, 1, b"x").repeat(1000);
        let (agent, mut theirs) = greeted().await;
        let flood = async {
            read_frame(&mut theirs).await;
            theirs.write_all(&started()).await.unwrap();
            while theirs.write_all(&small).await.is_ok() {}
        };
        let (error, (), stream) =
            tokio::join!(agent.closed(), flood, agent.start(StartProcess::default()));
        assert!(matches!(error, AgentError::Protocol { .. }), "{error:?}");
        let mut stream = stream.unwrap();
        let mut taken = 0;
        while stream.next().await.is_some() {
            taken += 1;
        }
        assert!(taken <= 256 * 1024 / 65, "{taken}");
    });
}

#[test]
fn half_a_frame_and_then_nothing_is_the_agents_end() {
    within_limit(async {
        let whole = started();
        for len in [0, 1, HEADER - 1, HEADER, whole.len() - 1] {
            let error = start_answered(&whole[..len]).await;
            assert!(matches!(error, AgentError::Gone { .. }), "{len}: {error:?}");
        }
        let error = start_answered(&whole).await;
        assert!(matches!(error, AgentError::Gone { .. }), "{error:?}");
    });
}

#[test]
fn what_does_not_begin_with_a_fitting_hello_is_no_agent() {
    within_limit(async {
        let hello = |lowest, highest| {
            let hello = Hello { lowest, highest };
            frame(Kind::Hello, 0, &hello.encode())
        };
        for (answer, word) in [
            (frame(Kind::Data, 1, b"x"), "hello"),
            (frame(Kind::Hello, 0, b"floeagnX\x01\0\x01\0"), ""),
            (header(u32::MAX, Kind::Hello.code(), 0), ""),
            (b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(), ""),
            (hello(2, 1), ""),
            (hello(0, 9), ""),
            (hello(8, 9), "versions 8 to 9"),
        ] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(&answer).await.unwrap();
            let error = Agent::connect(ours).await.unwrap_err();
            let AgentError::Protocol { reason } = &error else {
                panic!("{error:?} of {answer:?}");
            };
            assert!(reason.contains(word), "{reason}");
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let error = Agent::connect(ours).await.unwrap_err();
        assert!(matches!(error, AgentError::Gone { .. }), "{error:?}");
    });
}

#[test]
fn an_agent_that_says_nothing_is_not_waited_for_for_ever() {
    within(Duration::from_secs(3600), async {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (agent, _silent) = greeted().await;
        // The clock now runs as fast as everybody waits.
        tokio::time::pause();
        for error in [
            Agent::connect(ours).await.unwrap_err(),
            agent.metrics().await.unwrap_err(),
            agent.start(StartProcess::default()).await.unwrap_err(),
            agent.stat("/", None).await.unwrap_err(),
        ] {
            assert!(matches!(error, AgentError::NoAnswer { .. }), "{error:?}");
        }
        tokio::time::resume();
    });
}

#[test]
fn requests_that_nobody_answers_are_bounded() {
    within_limit(async {
        let (agent, mut theirs) = greeted().await;
        let reading = tokio::spawn(async move {
            let mut sink = vec![0; 64 * 1024];
            while theirs.read(&mut sink).await.is_ok_and(|len| len > 0) {}
        });
        // Each is given up, and answered never.
        let mut refused = None;
        for _ in 0..2000 {
            let process = ProcessRef::Pid(7);
            let call = agent.signal(&process, 0);
            match tokio::time::timeout(Duration::from_millis(1), call).await {
                Ok(Err(error)) => {
                    refused = Some(error);
                    break;
                }
                Ok(Ok(())) => panic!("nobody has answered"),
                Err(_) => {}
            }
        }
        assert!(
            matches!(refused, Some(AgentError::Exhausted { .. })),
            "{refused:?}"
        );
        drop(agent);
        reading.await.unwrap();
    });
}
