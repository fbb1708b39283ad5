//! Who is put through.

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use super::daemon::Machine;
use super::*;

/// A line and where to call.
fn line(accept: Accept) -> (Line, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let at = listener.local_addr().unwrap();
    let listener = listener.into();
    (Line { listener, accept }, at)
}

/// Hears whatever comes next, once something does.
fn next(poller: &Poller) -> Vec<Token> {
    poller.wait(Some(LIMIT)).unwrap()
}

/// Hangs up on everybody.
fn refuse(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    accept(listener).map(|_| None)
}

#[test]
fn a_caller_that_hangs_up_is_not_taken_and_one_that_speaks_loses_nothing() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    assert_eq!(hear(&ours), Heard::Nothing);
    theirs.write_all(b"hello").unwrap();
    assert_eq!(hear(&ours), Heard::Words);
    let mut bytes = [0; 8];
    assert_eq!(rustix::io::read(&ours, &mut bytes), Ok(5));
    drop(theirs);
    assert_eq!(hear(&ours), Heard::Gone);
}

#[test]
fn who_may_not_call_is_hung_up_on() {
    let poller = Poller::new().unwrap();
    let (line, at) = line(refuse);
    let mut calls = Calls::new(&poller, line).unwrap();
    let mut caller = TcpStream::connect(at).unwrap();
    assert_eq!(next(&poller), [Token::Line]);
    calls.ready().unwrap();
    assert!(calls.callers.is_empty());
    caller.set_read_timeout(Some(LIMIT)).unwrap();
    assert_eq!(io::Read::read(&mut caller, &mut [0]).unwrap(), 0);
}

#[test]
fn so_many_are_heard_at_once_and_each_for_a_while() {
    let poller = Poller::new().unwrap();
    let (line, at) = line(accept);
    let mut calls = Calls::new(&poller, line).unwrap();
    assert_eq!(calls.deadline(), None);
    let mut callers: Vec<TcpStream> = (0..MAX_CALLERS + 1)
        .map(|_| TcpStream::connect(at).unwrap())
        .collect();
    while calls.callers.len() < MAX_CALLERS {
        assert_eq!(next(&poller), [Token::Line]);
        calls.ready().unwrap();
    }
    // The one more is not taken before there is room.
    assert_eq!(poller.wait(Some(Duration::ZERO)).unwrap(), []);
    let patience = calls.deadline().unwrap();
    assert!(patience <= Instant::now() + PATIENCE);
    calls.pass(patience).unwrap();
    assert!(calls.callers.len() < MAX_CALLERS);
    calls.pass(Instant::now() + PATIENCE).unwrap();
    assert!(calls.callers.is_empty());
    assert_eq!(next(&poller), [Token::Line]);
    calls.ready().unwrap();
    let number = calls.callers[0].number;
    assert!(calls.hear(number).is_none());
    callers[MAX_CALLERS].write_all(b"x").unwrap();
    assert_eq!(next(&poller), [Token::Caller(number)]);
    let heard = calls.hear(number);
    assert!(heard.is_some() && calls.callers.is_empty());
    assert!(calls.hear(number).is_none());
}

#[test]
fn while_there_is_a_connection_calls_wait() {
    let poller = Poller::new().unwrap();
    let (line, at) = line(accept);
    let mut calls = Calls::new(&poller, line).unwrap();
    calls.stop().unwrap();
    let waiting = TcpStream::connect(at).unwrap();
    assert_eq!(poller.wait(Some(Duration::ZERO)).unwrap(), []);
    assert_eq!(calls.deadline(), None);
    calls.begin(Instant::now() + LIMIT).unwrap();
    assert_eq!(next(&poller), [Token::Line]);
    calls.ready().unwrap();
    assert_eq!(calls.callers.len(), 1);
    drop(waiting);
}

#[test]
fn nobody_is_waited_for_longer_than_that() {
    let poller = Poller::new().unwrap();
    let mut calls = Calls::new(&poller, line(accept).0).unwrap();
    let until = Instant::now() + LIMIT;
    calls.begin(until).unwrap();
    assert_eq!(calls.deadline(), Some(until));
    calls.pass(Instant::now()).unwrap();
    let over = calls.pass(until);
    assert!(matches!(over, Err(AgentError::Over(Over::NoCall))));
    // Somebody has called in time.
    calls.stop().unwrap();
    assert_eq!(calls.deadline(), None);
    calls.pass(until).unwrap();
}

#[test]
fn a_reset_gives_the_daemon_that_long_and_the_first_call_has_for_ever() {
    let mut agent = agent_at_rest(Way::Line(line(accept).0));
    assert_eq!(agent.calls.as_ref().unwrap().deadline(), None);
    agent.over(Over::Reset).unwrap();
    let until = agent.calls.as_ref().unwrap().deadline().unwrap();
    let left = until - Instant::now();
    assert!(left <= CALL_WAIT && left > CALL_WAIT / 2);
    // Who calls and asks for nothing does not make it longer.
    agent.over(Over::Closed).unwrap();
    assert_eq!(agent.calls.as_ref().unwrap().deadline(), Some(until));
    assert!(agent.over(Over::NoCall).is_err());
}

#[test]
fn a_connection_that_nobody_can_make_again_is_over_whatever_ended_it() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let mut agent = agent_at_rest(Way::Wire(ours.into()));
    for over in [Over::Reset, Over::Closed] {
        assert!(agent.over(over).is_err());
    }
}

#[test]
fn silent_callers_and_those_that_hang_up_hold_up_nobody() {
    let machine = Machine::start();
    let silent: Vec<_> = (0..3).map(|_| machine.call()).collect();
    drop(machine.call());
    machine.call().reset();
    let mut daemon = machine.greeted();
    daemon.start(1, super::daemon::shell("true"));
    daemon.hang_up();
    machine.ends();
    drop(silent);
}
