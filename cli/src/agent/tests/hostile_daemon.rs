//! A daemon that breaks the protocol. The agent ends the connection at the first thing that is not
//! allowed, and with it all processes: there is only one daemon.

use std::io::Write;

use floe_guest::frame::{HEADER, Kind, MAX_DATA};
use floe_guest::hello::{Hello, MAGIC};
use floe_guest::message::{Request, StartProcess};
use floe_guest::window::{INPUT_WINDOW, MAX_WINDOW, cost};

use super::guest::{is_there, user};
use super::raw::{Raw, frame, header, input, open};

#[test]
fn what_is_no_frame_ends_the_connection_and_all_processes() {
    let garbage: Vec<u8> = (0..=255).cycle().step_by(37).take(4096).collect();
    let too_long = |kind: Kind| u32::try_from(kind.bound().1 + 1).unwrap();
    for bytes in [
        garbage,
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 64],
        // Found before anything of the payload is there.
        header(u32::MAX, Kind::Data.code(), 1),
        header(too_long(Kind::Open), Kind::Open.code(), 9),
        header(too_long(Kind::Data), Kind::Data.code(), 1),
        header(0, Kind::Data.code(), 1),
        header(5, Kind::Credit.code(), 1),
        header(1, Kind::Cancel.code(), 1),
        // Kinds that nobody, or only the agent, sends.
        header(0, 0, 1),
        header(0, 77, 1),
        header(2, Kind::Event.code(), 1),
        header(2, Kind::End.code(), 1),
        header(2, Kind::Stderr.code(), 1),
        // Channel 0 is for the hello, and the hello for channel 0.
        header(4, Kind::Data.code(), 0),
        header(12, Kind::Hello.code(), 1),
    ] {
        let mut raw = Raw::greeted();
        let cat = raw.start_cat();
        raw.send(&bytes);
        raw.over(&cat);
    }
}

#[test]
fn a_frame_that_may_not_come_now_ends_the_connection_and_all_processes() {
    let credit = |bytes: u32| frame(Kind::Credit, 1, &bytes.to_le_bytes());
    let twice = |bytes: Vec<u8>| [bytes.clone(), bytes].concat();
    for bytes in [
        frame(Kind::Hello, 0, &Hello::ours().encode()),
        open(1, &Request::Metrics),
        credit(0),
        credit(MAX_WINDOW),
        credit(u32::MAX),
        // `start` takes no data; those that do take none behind their eof.
        frame(Kind::Data, 1, b"x"),
        twice(frame(Kind::Eof, 1, b"")),
        [
            open(2, &input()),
            frame(Kind::Eof, 2, b""),
            frame(Kind::Data, 2, b"x"),
        ]
        .concat(),
    ] {
        // The first of these waits, so that the second finds its channel.
        let mut raw = Raw::greeted();
        let cat = raw.start_cat();
        raw.send(&[open(3, &input()), bytes].concat());
        raw.over(&cat);
    }
}

#[test]
fn data_beyond_the_window_ends_the_connection() {
    let mut raw = Raw::greeted();
    let start = Request::Start(StartProcess {
        cmd: "sleep".to_owned(),
        args: vec!["1000".to_owned()],
        user: Some(user()),
        stdin: true,
        tag: Some("cat".to_owned()),
        ..StartProcess::default()
    });
    raw.send(&open(1, &start));
    raw.send(&open(2, &input()));
    // The pipe of a process that does not read takes some, for which there is new credit; the rest
    // stays here. Small frames count for more than they hold.
    let piece = frame(Kind::Data, 2, &[b'x'; 16]);
    let most = u32::try_from(4 * MAX_DATA).unwrap() + 2 * INPUT_WINDOW;
    let many = usize::try_from(most / cost(16)).unwrap() * 8;
    // It may be over before all of it is written.
    let sent = raw.socket.write_all(&piece.repeat(many));
    assert!(sent.is_ok() || sent.is_err());
    raw.over("");
}

#[test]
fn half_a_frame_and_then_nothing_is_an_end_like_any_other() {
    let whole = frame(Kind::Data, 1, &[b'x'; 1000]);
    for len in [1, HEADER - 1, HEADER, 500] {
        let mut raw = Raw::greeted();
        let cat = raw.start_cat();
        raw.send(&whole[..len]);
        drop(raw.socket);
        let (status, said) = raw.process.end();
        assert!(status.success() && said.is_empty(), "{status}: {said}");
        assert!(!is_there(&cat));
    }
}

#[test]
fn before_a_hello_that_is_one_nothing_is_served() {
    let hello = |bytes: &[u8]| frame(Kind::Hello, 0, bytes);
    let reversed = [&MAGIC[..], &[2, 0, 1, 0]].concat();
    for bytes in [
        open(1, &Request::Metrics),
        frame(Kind::Cancel, 1, b""),
        hello(b"floeagnX\x01\0\x01\0"),
        hello(&reversed),
    ] {
        let mut raw = Raw::silent();
        raw.send(&bytes);
        raw.over("");
    }
}

#[test]
fn to_a_version_that_it_does_not_know_the_agent_answers_with_those_that_it_does() {
    let mut raw = Raw::silent();
    let newer = Hello {
        lowest: Hello::ours().highest + 1,
        highest: u16::MAX,
    };
    raw.send(&frame(Kind::Hello, 0, &newer.encode()));
    let answer = raw.next().unwrap();
    assert_eq!(answer.kind, Kind::Hello);
    assert_eq!(Hello::decode(&answer.payload), Ok(Hello::ours()));
    raw.over("");
    // One in common is enough.
    let mut raw = Raw::silent();
    let more = Hello {
        lowest: 0,
        highest: u16::MAX,
    };
    raw.send(&frame(Kind::Hello, 0, &more.encode()));
    raw.next().unwrap();
    raw.still_serves();
}
