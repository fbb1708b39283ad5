//! Connections to ports.

use std::net::{Ipv6Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::guest::Guest;
use super::{LIMIT, guest};
use crate::agent::connection::CHANNELS;
use crate::agent::{AgentError, PortStream, ProcessRef};

const MUCH: usize = 5 * 1024 * 1024;

/// A connection through the agent, and the other end of it.
async fn connected(guest: &Guest, address: &str) -> (PortStream, TcpStream) {
    let listener = TcpListener::bind(address).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (ours, theirs) = tokio::join!(guest.agent.connect_port(port), listener.accept());
    (ours.unwrap(), theirs.unwrap().0)
}

#[test]
fn bytes_go_both_ways() {
    guest(async |guest| {
        let (mut ours, mut theirs) = connected(guest, "127.0.0.1:0").await;
        ours.write_all(b"ping").await.unwrap();
        let mut buffer = [0; 4];
        theirs.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"ping");
        theirs.write_all(b"pong").await.unwrap();
        ours.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"pong");
    });
}

#[test]
fn each_direction_ends_for_itself() {
    guest(async |guest| {
        let (mut ours, mut theirs) = connected(guest, "127.0.0.1:0").await;
        ours.write_all(b"request").await.unwrap();
        ours.shutdown().await.unwrap();
        let mut all = Vec::new();
        theirs.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"request");
        theirs.write_all(b"answer").await.unwrap();
        drop(theirs);
        let mut all = Vec::new();
        ours.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"answer");
    });
}

#[test]
fn the_other_side_may_end_first_and_still_be_written_to() {
    guest(async |guest| {
        let (mut ours, mut theirs) = connected(guest, "127.0.0.1:0").await;
        theirs.shutdown().await.unwrap();
        let mut all = Vec::new();
        ours.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"");
        ours.write_all(b"late").await.unwrap();
        ours.shutdown().await.unwrap();
        theirs.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"late");
    });
}

#[test]
fn much_in_both_directions_arrives_whole() {
    guest(async |guest| {
        let (ours, theirs) = connected(guest, "127.0.0.1:0").await;
        let (mut our_read, mut our_write) = tokio::io::split(ours);
        let (mut their_read, mut their_write) = theirs.into_split();
        let up: Vec<u8> = (0..MUCH)
            .map(|at| u8::try_from(at % 251).unwrap())
            .collect();
        let down: Vec<u8> = up.iter().rev().copied().collect();
        let (mut got_up, mut got_down) = (Vec::new(), Vec::new());
        let (a, b, c, d) = tokio::join!(
            async {
                our_write.write_all(&up).await?;
                our_write.shutdown().await
            },
            async {
                their_write.write_all(&down).await?;
                their_write.shutdown().await
            },
            their_read.read_to_end(&mut got_up),
            our_read.read_to_end(&mut got_down),
        );
        a.and(b).and(c.map(drop)).and(d.map(drop)).unwrap();
        assert!(got_up == up && got_down == down);
    });
}

#[test]
fn what_was_written_arrives_though_the_connection_is_dropped() {
    guest(async |guest| {
        let (mut ours, mut theirs) = connected(guest, "127.0.0.1:0").await;
        ours.write_all(b"last words").await.unwrap();
        drop(ours);
        let mut all = Vec::new();
        theirs.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"last words");
    });
}

#[test]
fn a_connection_that_is_dropped_ends_though_the_other_side_does_not_read() {
    guest(async |guest| {
        let (mut ours, _theirs) = connected(guest, "127.0.0.1:0").await;
        let full = async {
            let written = ours.write_all(&vec![b'x'; 64 * 1024 * 1024]).await;
            panic!("there is no room for so much: {written:?}");
        };
        tokio::select! {
            () = full => {}
            said = guest.output("sleep 1") => assert_eq!(said, ""),
        }
        drop(ours);
        // Its channel is free again once there are as many as there may be.
        let stream = guest.start(guest.command("sleep", &["1000"])).await;
        let process = ProcessRef::Pid(stream.pid);
        let mut all = Vec::new();
        while all.len() < CHANNELS - 1 {
            match guest.agent.attach(process.clone()).await {
                Ok(stream) => all.push(stream),
                Err(AgentError::Exhausted { .. }) => tokio::time::sleep(LIMIT / 300).await,
                Err(error) => panic!("{error:?}"),
            }
        }
    });
}

#[test]
fn a_connection_that_nobody_reads_is_in_nobodys_way() {
    guest(async |guest| {
        let (mut ours, mut theirs) = connected(guest, "127.0.0.1:0").await;
        let writing = tokio::spawn(async move {
            let written = theirs.write_all(&vec![b'x'; MUCH]).await;
            written.and(theirs.shutdown().await)
        });
        assert_eq!(guest.output("echo free").await, "free\n");
        let (mut other, mut peer) = connected(guest, "127.0.0.1:0").await;
        peer.write_all(b"x").await.unwrap();
        assert_eq!(other.read_u8().await.unwrap(), b'x');
        let mut all = Vec::new();
        ours.read_to_end(&mut all).await.unwrap();
        assert_eq!(all.len(), MUCH);
        writing.await.unwrap().unwrap();
    });
}

#[test]
fn who_listens_on_ipv6_alone_is_found() {
    guest(async |guest| {
        let address: SocketAddr = (Ipv6Addr::LOCALHOST, 0).into();
        let (mut ours, mut theirs) = connected(guest, &address.to_string()).await;
        theirs.write_all(b"6").await.unwrap();
        assert_eq!(ours.read_u8().await.unwrap(), b'6');
    });
}

#[test]
fn a_port_on_which_nobody_listens_is_closed() {
    guest(async |guest| {
        // Bound, so that nobody else takes it, but not listened on.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = socket.local_addr().unwrap().port();
        for port in [port, 0] {
            let error = guest.agent.connect_port(port).await.unwrap_err();
            assert!(matches!(error, AgentError::PortClosed { .. }), "{error:?}");
        }
    });
}
