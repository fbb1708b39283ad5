//! A daemon that does what the protocol allows and the client never does. It ends one request at most.

use std::collections::BTreeSet;
use std::io::Write;

use floe_guest::frame::{Kind, MAX_OPEN};
use floe_guest::message::{
    End, FailureKind, FileRef, Outcome, ProcessRef, Request, StartProcess, encode_open,
};
use floe_guest::window::cost;

use super::guest::{is_there, user};
use super::raw::{Raw, failed, frame, input, open};

#[test]
fn frames_for_channels_that_are_not_open_are_ignored() {
    let mut raw = Raw::greeted();
    let cat = raw.start_cat();
    for kind in [Kind::Eof, Kind::Cancel] {
        raw.send(&frame(kind, u32::MAX, b""));
    }
    raw.send(&frame(Kind::Data, 5, b"x"));
    raw.send(&frame(Kind::Credit, 5, &[0, 0, 0, 0]));
    raw.still_serves();
    assert!(is_there(&cat));
}

#[test]
fn a_request_that_makes_no_sense_ends_its_channel_alone() {
    let mut raw = Raw::greeted();
    let cat = raw.start_cat();
    let window = 1000u32.to_le_bytes();
    for json in [
        &b""[..],
        b"{",
        b"[]",
        b"\xff\xfe",
        br#"{"do":"fly"}"#,
        br#"{"do":"stat"}"#,
        br#"{"do":"connect_port","port":65536}"#,
        br#"{"do":"signal","process":{"pid":-1},"signal":9}"#,
        "[".repeat(MAX_OPEN - 4).as_bytes(),
    ] {
        raw.send(&frame(Kind::Open, 2, &[&window[..], json].concat()));
        assert_eq!(failed(raw.end(2)), FailureKind::InvalidArgument);
    }
    // Processes that are not the agent's to touch.
    for request in [
        br#"{"do":"signal","process":{"pid":1},"signal":9}"#.as_slice(),
        br#"{"do":"signal","process":{"pid":0},"signal":9}"#,
    ] {
        raw.send(&frame(Kind::Open, 2, &[&window[..], request].concat()));
        assert_eq!(failed(raw.end(2)), FailureKind::NoSuchProcess);
    }
    assert!(is_there(&cat));
    raw.still_serves();
}

#[test]
fn requests_may_be_cancelled_at_any_time() {
    let mut raw = Raw::greeted();
    raw.start_cat();
    let file = FileRef {
        path: "/".to_owned(),
        user: Some(user()),
    };
    for round in 0..200 {
        for (channel, request) in [
            (10, input()),
            (11, Request::Stat(file.clone())),
            (
                12,
                Request::Watch {
                    file: file.clone(),
                    recursive: false,
                },
            ),
            (13, Request::ReadFile(file.clone())),
            (14, Request::Processes),
            (15, Request::ConnectPort { port: 1 }),
        ] {
            let cancel = frame(Kind::Cancel, channel, b"");
            raw.send(&[open(channel, &request), cancel].concat());
        }
        // Each is over, and its number free again.
        let mut open: Vec<u32> = (10..16).collect();
        while !open.is_empty() {
            let frame = raw.next().expect("the connection is there");
            if frame.kind == Kind::End {
                open.retain(|channel| *channel != frame.channel);
            }
        }
        assert!(round < 200);
    }
    raw.still_serves();
}

#[test]
fn more_channels_than_there_may_be_are_refused_one_by_one() {
    let mut raw = Raw::greeted();
    raw.start_cat();
    let attach = Request::Attach {
        process: ProcessRef::Tag("cat".to_owned()),
    };
    for channel in 100..1123 {
        raw.send(&open(channel, &attach));
    }
    raw.send(&open(5000, &attach));
    assert_eq!(failed(raw.end(5000)), FailureKind::Exhausted);
    raw.send(&frame(Kind::Cancel, 100, b""));
    assert!(matches!(raw.end(100), End::Ok(Outcome::Done)));
    raw.still_serves();
}

#[test]
fn a_daemon_that_does_not_read_is_waited_for() {
    let mut raw = Raw::greeted();
    let mut socket = raw.socket.try_clone().unwrap();
    // Their answers are more than the agent keeps, so it stops reading.
    let writer = std::thread::spawn(move || {
        for channel in 100..200_100 {
            let request = br#"....{"do":"fly"}"#;
            socket
                .write_all(&frame(Kind::Open, channel, request))
                .unwrap();
        }
    });
    // Those that find too many open are refused, before these are answered.
    let mut unanswered: BTreeSet<u32> = (100..200_100).collect();
    while !unanswered.is_empty() {
        let frame = raw.next().unwrap();
        assert_eq!(frame.kind, Kind::End);
        assert!(unanswered.remove(&frame.channel), "{frame:?}");
    }
    writer.join().unwrap();
    raw.still_serves();
}

#[test]
fn what_is_sent_stays_within_the_window_that_was_granted() {
    let mut raw = Raw::greeted();
    let start = Request::Start(StartProcess {
        cmd: "head".to_owned(),
        args: vec![
            "-c".to_owned(),
            "1000000".to_owned(),
            "/dev/zero".to_owned(),
        ],
        user: Some(user()),
        ..StartProcess::default()
    });
    let window = 10_000;
    let payload = encode_open(window, &start).unwrap();
    raw.send(&frame(Kind::Open, 1, &payload));
    let mut left = window;
    let mut read = 0;
    loop {
        let next = raw.next().unwrap();
        match next.kind {
            Kind::End => break,
            Kind::Data => read += next.payload.len(),
            _ => {}
        }
        left = left.checked_sub(cost(next.payload.len())).unwrap();
        if left < window / 2 {
            let more = window - left;
            raw.send(&frame(Kind::Credit, 1, &more.to_le_bytes()));
            left = window;
        }
    }
    assert_eq!(read, 1_000_000);
}
