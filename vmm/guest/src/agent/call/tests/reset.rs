//! What goes on when the connection is reset, and what does not.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;

use floe_guest::frame::Kind;
use floe_guest::message::{Event, PtySize, Request, StartProcess};

use super::daemon::{
    Machine, exited, file, frame, open, open_within, runs, shell, the_shell, within_limit,
};
use super::*;
use crate::agent::files::look;
use crate::agent::pool::Done;
use crate::agent::users::Database;

#[test]
fn a_command_goes_on_and_the_next_connection_sees_how_it_ends() {
    let machine = Machine::start();
    let mut daemon = machine.greeted();
    let env = BTreeMap::from([("SET".to_owned(), "before".to_owned())]);
    daemon.ask(9, &Request::SetEnv { env });
    let script = "read a; echo $a; read b; echo $b; read c || echo end; exit 7";
    let pid = daemon.start(1, shell(script));
    daemon.type_line(2, "one\n");
    daemon.reset();

    let mut daemon = machine.greeted();
    let listed = daemon.ask(1, &Request::Processes);
    let [Event::Process(info)] = listed.events.as_slice() else {
        panic!("{:?}", listed.events);
    };
    assert_eq!(info.pid, pid);
    // Its input is open still, and the default environment is what it was.
    daemon.type_line(2, "two\n");
    let process = the_shell();
    daemon.ask(3, &Request::CloseInput { process });
    let said = daemon.attach(4);
    assert_eq!(said.data, b"one\ntwo\nend\n");
    assert_eq!(said.end, exited(7));
    let other = StartProcess {
        tag: None,
        ..shell("echo $SET")
    };
    daemon.start(5, other);
    assert_eq!(daemon.said(5).data, b"before\n");
    daemon.hang_up();
    machine.ends();
}

#[test]
fn what_has_ended_between_two_connections_is_known_to_the_second() {
    let machine = Machine::start();
    let mut daemon = machine.greeted();
    let pid = daemon.start(1, shell("read a; echo over; exit 3"));
    let process = the_shell();
    // Read by nobody: the daemon is gone with its answer.
    daemon.send(&open(2, &Request::CloseInput { process }));
    daemon.reset();
    within_limit("the command ends", || !runs(pid));
    let mut daemon = machine.greeted();
    let said = daemon.attach(1);
    assert_eq!(said.data, b"over\n");
    assert_eq!(said.end, exited(3));
    daemon.hang_up();
    machine.ends();
}

#[test]
fn many_resets_one_after_the_other_change_nothing() {
    let machine = Machine::start();
    let mut daemon = machine.greeted();
    let pid = daemon.start(1, shell("exec cat"));
    for _ in 0..20 {
        daemon.reset();
        daemon = machine.greeted();
        let process = the_shell();
        daemon.send(&open(1, &Request::Attach { process }));
        assert!(matches!(daemon.event(1), Event::Started { pid: is, .. } if is == pid));
    }
    let process = the_shell();
    let signal = 15;
    daemon.send(&open(2, &Request::Signal { process, signal }));
    daemon.hang_up();
    machine.ends();
    assert!(!runs(pid));
}

#[test]
fn an_end_in_order_ends_the_machine_before_and_after_a_reset() {
    for resets in [false, true] {
        let machine = Machine::start();
        let mut daemon = machine.greeted();
        let pid = daemon.start(1, shell("exec sleep 1000"));
        if resets {
            daemon.reset();
            daemon = machine.greeted();
            daemon.ask(1, &Request::Processes);
        }
        assert!(runs(pid));
        daemon.hang_up();
        machine.ends();
        assert!(!runs(pid));
    }
}

#[test]
fn a_call_on_which_nothing_is_asked_for_may_end_and_come_again() {
    let machine = Machine::start();
    for _ in 0..3 {
        machine.greeted().hang_up();
        let mut daemon = machine.greeted();
        daemon.ask(1, &Request::Processes);
        // What was asked for on this connection is nothing to the next.
        daemon.reset();
        machine.greeted().hang_up();
        let mut daemon = machine.call();
        daemon.send(&frame(Kind::Hello, 0, b"floeagnt\x01\0\x02\0")[..10]);
        daemon.hang_up();
    }
    let mut daemon = machine.greeted();
    daemon.ask(1, &Request::Processes);
    daemon.hang_up();
    machine.ends();
}

#[test]
fn a_reset_while_it_is_ending_is_the_end() {
    let machine = Machine::start();
    let mut daemon = machine.greeted();
    // So much waits to be sent that the end does, too.
    let pid = daemon.start(1, shell("exec cat /dev/zero"));
    std::thread::sleep(Duration::from_millis(200));
    daemon.send(&open(2, &Request::Shutdown));
    daemon.reset();
    machine.ends();
    assert!(!runs(pid));
}

/// Output that nobody takes must not stop a command for ever once nobody is there to take it.
#[test]
fn a_command_that_was_held_up_by_a_slow_reader_goes_on() {
    let size = PtySize { cols: 80, rows: 24 };
    for pty in [None, Some(size)] {
        let machine = Machine::start();
        let mut daemon = machine.greeted();
        let command = StartProcess {
            pty,
            ..shell("head -c 3000000 /dev/zero; printf over >&2; exit 5")
        };
        let start = open_within(1000, 1, &Request::Start(command));
        daemon.send(&start);
        let Event::Started { pid, .. } = daemon.event(1) else {
            panic!("it has not started");
        };
        // It fills the log and its pipe, and stops.
        std::thread::sleep(Duration::from_millis(100));
        assert!(runs(pid));
        daemon.reset();
        within_limit("the command ends", || !runs(pid));
        let mut daemon = machine.greeted();
        let said = daemon.attach(1);
        let lost = |event: &Event| matches!(event, Event::Lost { bytes } if *bytes > 2_000_000);
        assert!(said.events.iter().any(lost));
        assert!(said.data.ends_with(b"over"));
        assert_eq!(said.end, exited(5));
        daemon.hang_up();
        machine.ends();
    }
}

#[test]
fn pieces_of_frames_are_gone_in_both_directions() {
    let machine = Machine::start();
    let mut daemon = machine.greeted();
    daemon.start(1, shell("exec cat /dev/zero"));
    // More than the kernel takes is on its way to the daemon, and half a request to the agent.
    std::thread::sleep(Duration::from_millis(100));
    let half = open(2, &Request::Processes);
    daemon.send(&half[..half.len() / 2]);
    daemon.reset();
    // The first that comes is the answer to the hello, and what was opened is not.
    let mut daemon = machine.greeted();
    assert_eq!(daemon.ask(2, &Request::Processes).events.len(), 1);
    daemon.hang_up();
    machine.ends();
}

#[test]
fn input_that_was_not_given_is_dropped_and_the_next_is() {
    let machine = Machine::start();
    let mut daemon = machine.greeted();
    daemon.start(1, shell("sleep 0.5; wc -c"));
    let input = Request::Input {
        process: the_shell(),
    };
    // The pipe takes 64 KiB of it; and another waits behind that, and the end of it all.
    for channel in [2, 3] {
        daemon.send(&open(channel, &input));
        daemon.send(&frame(Kind::Data, channel, &[b'x'; 60_000]));
        daemon.send(&frame(Kind::Eof, channel, b""));
    }
    let process = the_shell();
    daemon.send(&open(4, &Request::CloseInput { process }));
    // An answer, so that all before it was taken.
    daemon.send(&open(5, &Request::Processes));
    while daemon.next().unwrap().channel != 5 {}
    daemon.reset();
    let mut daemon = machine.greeted();
    daemon.type_line(2, "12345");
    let process = the_shell();
    daemon.ask(3, &Request::CloseInput { process });
    let said = daemon.attach(4);
    let count: usize = String::from_utf8(said.data)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!((60_005..120_000).contains(&count), "{count}");
    daemon.hang_up();
    machine.ends();
}

#[test]
fn ports_files_and_watches_of_the_connection_end_with_it() {
    let machine = Machine::start();
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = machine.greeted();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    daemon.send(&open(1, &Request::ConnectPort { port }));
    let (mut forwarded, _) = server.accept().unwrap();
    assert_eq!(daemon.event(1), Event::Connected);
    let watch = Request::Watch {
        file: file(dir.path()),
        recursive: true,
    };
    daemon.send(&open(2, &watch));
    assert_eq!(daemon.event(2), Event::Watching);
    let path = dir.path().join("written");
    daemon.send(&open(3, &Request::WriteFile(file(&path))));
    daemon.send(&frame(Kind::Data, 3, b"some of it"));
    within_limit("it is written", || {
        fs::read(&path).is_ok_and(|is| is == b"some of it")
    });
    daemon.reset();
    forwarded.set_read_timeout(Some(LIMIT)).unwrap();
    assert_eq!(io::Read::read(&mut forwarded, &mut [0]).unwrap(), 0);

    // The same numbers are for others, and nothing of the old comes on them.
    let mut daemon = machine.greeted();
    fs::write(dir.path().join("unseen"), "").unwrap();
    daemon.send(&open(3, &watch));
    assert_eq!(daemon.event(3), Event::Watching);
    assert!(matches!(daemon.ask(2, &Request::Metrics).end, End::Ok(_)));
    fs::write(dir.path().join("seen"), "").unwrap();
    match daemon.event(3) {
        Event::Changed(change) => assert_eq!(change.name, "seen"),
        other => panic!("{other:?}"),
    }
    assert_eq!(fs::read(&path).unwrap(), b"some of it");
    daemon.hang_up();
    machine.ends();
}

#[test]
fn answers_to_what_was_asked_before_are_not_given_to_what_is_asked_after() {
    let machine = Machine::start();
    for _ in 0..10 {
        let mut daemon = machine.greeted();
        let stat = Request::Stat(file(Path::new("/")));
        let many: Vec<u8> = (1..500).flat_map(|channel| open(channel, &stat)).collect();
        daemon.send(&many);
        daemon.reset();
        let mut daemon = machine.greeted();
        let many: Vec<u8> = (1..500)
            .flat_map(|channel| open(channel, &Request::Metrics))
            .collect();
        daemon.send(&many);
        for _ in 1..500 {
            let answer = daemon.next().unwrap();
            let end: End = serde_json::from_slice(&answer.payload).unwrap();
            assert!(matches!(end, End::Ok(Outcome::Metrics(_))), "{end:?}");
        }
        daemon.reset();
    }
    machine.greeted().ask(1, &Request::Shutdown);
    machine.ends();
}

/// The same without luck: each of them comes late.
#[test]
fn a_late_result_of_a_worker_is_for_nobody() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let mut agent = agent_at_rest(Way::Wire(ours.into()));
    let before = agent.channels.open(7, 1000);
    agent.hang_up();
    assert_eq!(agent.channels.len(), 0);
    let after = agent.channels.open(7, 1000);
    let entry = || look(Path::new("/"), &Database::read()).unwrap();
    let (read, _write) = rustix::pipe::pipe().unwrap();
    for late in [
        Ok(Done::Nothing),
        Ok(Done::Entry(entry())),
        Ok(Done::Opened(read, "/x".into(), entry())),
        Ok(Done::Chunk(vec![1])),
        Ok(Done::Written),
        Ok(Done::Listed(vec![b"{}".to_vec()])),
        Ok(Done::Watched(Ok(None))),
        Ok(Done::Looked(Vec::new())),
        Err(crate::agent::failure::invalid("x")),
    ] {
        agent.finished(before, late);
    }
    let channel = agent.channels.get(after).unwrap();
    assert!(channel.end.is_none() && channel.pending.is_empty());
    assert_eq!(agent.channels.number(7), Some(after));
}
