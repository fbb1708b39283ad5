//! Tests of requests, and of the bridge with a command that does what the test says and a client at the other end of
//! a pipe.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc};

use super::bridge::{Command, Controls, Gone, bridge};
use super::{check, not_started};
use crate::agent::AgentError;
use crate::error::ErrorKind;
use crate::wire::SandboxExec;
use crate::wire::exec::{
    ExecEnd, ExecInput, ExecOutput, INPUT_CHUNK_MAX, INPUT_WINDOW, TerminalSize,
};

/// What was done to the command, in order.
#[derive(Debug, PartialEq, Eq)]
enum Done {
    Input(Vec<u8>),
    Closed,
    Signal(i32),
    Resize(TerminalSize),
}

#[derive(Default)]
struct Fake {
    done: RefCell<Vec<Done>>,
    /// Whether it reads its input.
    reads: bool,
    /// Whether it answers nothing at all, as one that is frozen.
    frozen: bool,
    changed: Notify,
}

impl Fake {
    fn reading() -> Self {
        Self {
            reads: true,
            ..Self::default()
        }
    }

    async fn note(&self, done: Done) -> Result<(), io::Error> {
        if self.frozen {
            std::future::pending::<()>().await;
        }
        self.done.borrow_mut().push(done);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Waits until so many things were done.
    async fn until(&self, count: usize) {
        loop {
            let changed = self.changed.notified();
            if self.done.borrow().len() >= count {
                return;
            }
            changed.await;
        }
    }
}

impl Controls for Fake {
    type Error = io::Error;

    async fn input(&self, bytes: Bytes) -> Result<(), io::Error> {
        if !self.reads {
            std::future::pending::<()>().await;
        }
        self.note(Done::Input(bytes.to_vec())).await
    }

    async fn close_input(&self) -> Result<(), io::Error> {
        self.note(Done::Closed).await
    }

    async fn signal(&self, signal: i32) -> Result<(), io::Error> {
        self.note(Done::Signal(signal)).await
    }

    async fn resize(&self, size: TerminalSize) -> Result<(), io::Error> {
        self.note(Done::Resize(size)).await
    }
}

struct Prints(mpsc::UnboundedReceiver<ExecOutput>);

impl Command for Prints {
    async fn next(&mut self) -> Option<ExecOutput> {
        self.0.recv().await
    }
}

/// The client's end.
struct Client {
    reader: BufReader<ReadHalf<DuplexStream>>,
    writer: WriteHalf<DuplexStream>,
}

impl Client {
    async fn send(&mut self, input: &ExecInput) {
        let mut line = serde_json::to_vec(input).unwrap();
        line.push(b'\n');
        self.writer.write_all(&line).await.unwrap();
    }

    async fn send_raw(&mut self, line: &str) {
        self.writer.write_all(line.as_bytes()).await.unwrap();
    }

    async fn read(&mut self) -> Option<ExecOutput> {
        let mut line = String::new();
        match self.reader.read_line(&mut line).await.unwrap() {
            0 => None,
            _ => Some(serde_json::from_str(&line).unwrap()),
        }
    }
}

fn ended(exit_code: u8) -> ExecOutput {
    ExecOutput::End(ExecEnd {
        exit_code,
        ..ExecEnd::default()
    })
}

fn stdin(bytes: &[u8]) -> ExecInput {
    ExecInput::Stdin(bytes.into())
}

/// Runs a bridge, and beside it what the test has the client and the command do.
fn with_bridge<F>(
    fake: &Fake,
    timeout: Option<Duration>,
    script: impl FnOnce(Client, mpsc::UnboundedSender<ExecOutput>) -> F,
) -> Result<(), Gone>
where
    F: Future<Output = ()>,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let (near, far) = tokio::io::duplex(16 << 10);
        let (reader, writer) = tokio::io::split(far);
        let client = Client {
            reader: BufReader::new(reader),
            writer,
        };
        let (prints, printed) = mpsc::unbounded_channel();
        let (input, output) = tokio::io::split(near);
        let mut command = Prints(printed);
        let bridged = bridge(&mut command, fake, timeout, input, output);
        let (bridged, ()) = tokio::join!(bridged, script(client, prints));
        bridged
    })
}

#[test]
fn everything_printed_arrives_in_order_before_the_end() {
    let fake = Fake::default();
    let all: VecDeque<ExecOutput> = (0..500_u32)
        .map(|n| {
            let bytes = [b'x'; 3000].map(|b| b ^ u8::try_from(n % 7).unwrap());
            match n % 2 {
                0 => ExecOutput::Stdout(bytes[..].into()),
                _ => ExecOutput::Stderr(b"\xff\xfe"[..].into()),
            }
        })
        .chain([ended(3)])
        .collect();
    let bridged = with_bridge(&fake, None, |mut client, prints| async move {
        for one in &all {
            prints.send(one.clone()).unwrap();
        }
        for one in all {
            assert_eq!(client.read().await, Some(one));
        }
    });
    assert!(bridged.is_ok(), "{bridged:?}");
    assert!(fake.done.borrow().is_empty());
}

#[test]
fn input_goes_in_whole_and_is_acknowledged() {
    let fake = Fake::reading();
    let (done, bridged) = (
        &fake,
        with_bridge(&fake, None, |mut client, prints| async move {
            client.send(&stdin(b"one")).await;
            client.send(&stdin(b"")).await;
            client.send(&stdin(b"\xfftwo")).await;
            client.send(&ExecInput::CloseStdin).await;
            client.send(&ExecInput::CloseStdin).await;
            assert_eq!(client.read().await, Some(ExecOutput::Taken { bytes: 3 }));
            assert_eq!(client.read().await, Some(ExecOutput::Taken { bytes: 4 }));
            fake_end(&mut client, &prints, 0).await;
        }),
    );
    assert!(bridged.is_ok(), "{bridged:?}");
    let expected = [
        Done::Input(b"one".to_vec()),
        Done::Input(b"\xfftwo".to_vec()),
        Done::Closed,
    ];
    assert_eq!(*done.done.borrow(), expected);
}

async fn fake_end(client: &mut Client, prints: &mpsc::UnboundedSender<ExecOutput>, code: u8) {
    tokio::task::yield_now().await;
    prints.send(ended(code)).unwrap();
    assert_eq!(client.read().await, Some(ended(code)));
}

#[test]
fn a_signal_passes_input_that_the_command_does_not_read() {
    let fake = Fake::default();
    let size = TerminalSize { cols: 9, rows: 4 };
    let bridged = with_bridge(&fake, None, |mut client, prints| {
        let fake = &fake;
        async move {
            for _ in 0..INPUT_WINDOW / INPUT_CHUNK_MAX {
                client.send(&stdin(&[b'x'; INPUT_CHUNK_MAX])).await;
            }
            client.send(&ExecInput::Signal(2)).await;
            client.send(&ExecInput::Resize(size)).await;
            fake.until(2).await;
            fake_end(&mut client, &prints, 130).await;
        }
    });
    assert!(bridged.is_ok(), "{bridged:?}");
    assert_eq!(*fake.done.borrow(), [Done::Signal(2), Done::Resize(size)]);
}

#[test]
fn a_client_that_breaks_the_rules_is_cut_off_and_the_command_hears_of_it() {
    let long = format!("{{\"stdin\":\"{}\"}}\n", "x".repeat(INPUT_CHUNK_MAX + 1));
    let endless = "x".repeat(1 << 20);
    let wrong = [
        "nonsense\n",
        "{}\n",
        "{\"signal\":0}\n",
        "{\"signal\":4711}\n",
        "{\"signal\":\"int\"}\n",
        "{\"stdin\":{\"base64\":\"?\"}}\n",
        "{\"resize\":{\"cols\":-1,\"rows\":2}}\n",
        "\"close_stdin\"\n{\"stdin\":\"more\"}\n",
        &long,
        &endless,
    ];
    for line in wrong {
        let fake = Fake::reading();
        let bridged = with_bridge(&fake, None, |mut client, prints| async move {
            // It may be cut off within a line that is too long.
            if client.writer.write_all(line.as_bytes()).await.is_ok() {
                while let Some(line) = client.read().await {
                    let ExecOutput::End(end) = line else { continue };
                    assert_eq!(end.exit_code, 125);
                }
            }
            drop(prints);
        });
        assert!(matches!(bridged, Err(Gone::Broken { .. })), "{line:.40}");
        assert!(fake.done.borrow().contains(&Done::Signal(1)), "{line:.40}");
    }
}

#[test]
fn more_input_than_the_window_is_refused() {
    let fake = Fake::default();
    let bridged = with_bridge(&fake, None, |mut client, prints| async move {
        for _ in 0..=INPUT_WINDOW / INPUT_CHUNK_MAX {
            client.send(&stdin(&[b'x'; INPUT_CHUNK_MAX])).await;
        }
        assert!(matches!(client.read().await, Some(ExecOutput::End(_))));
        drop(prints);
    });
    assert!(matches!(bridged, Err(Gone::Broken { .. })), "{bridged:?}");
}

/// The command goes on for as long as the bridge could possibly wait.
async fn still_there(prints: mpsc::UnboundedSender<ExecOutput>) {
    tokio::time::sleep(Duration::from_secs(3600)).await;
    drop(prints);
}

#[test]
fn a_client_that_goes_away_hangs_up() {
    let fake = Fake::reading();
    let bridged = with_bridge(&fake, None, |mut client, prints| async move {
        client.send_raw("{\"stdin\":\"x\"}\n").await;
        assert_eq!(client.read().await, Some(ExecOutput::Taken { bytes: 1 }));
        drop(client);
        still_there(prints).await;
    });
    assert!(matches!(bridged, Err(Gone::Closed)), "{bridged:?}");
    let done = fake.done.borrow();
    assert_eq!(done[1..], [Done::Signal(1), Done::Closed]);
}

#[test]
fn a_frozen_sandbox_does_not_keep_the_connection() {
    let fake = Fake {
        frozen: true,
        ..Fake::default()
    };
    let bridged = with_bridge(&fake, None, |mut client, prints| async move {
        client.send(&ExecInput::Signal(15)).await;
        drop(client);
        still_there(prints).await;
    });
    assert!(matches!(bridged, Err(Gone::Closed)), "{bridged:?}");
}

#[test]
fn a_client_that_does_not_read_slows_the_command_down_and_loses_nothing() {
    let fake = Fake::default();
    let line = ExecOutput::Stdout([b'y'; 10_000][..].into());
    let bridged = with_bridge(&fake, None, |mut client, prints| {
        let line = &line;
        async move {
            for _ in 0..100 {
                prints.send(line.clone()).unwrap();
            }
            prints.send(ended(0)).unwrap();
            tokio::time::sleep(Duration::from_secs(3600)).await;
            for _ in 0..100 {
                assert_eq!(client.read().await.as_ref(), Some(line));
            }
            assert_eq!(client.read().await, Some(ended(0)));
        }
    });
    assert!(bridged.is_ok(), "{bridged:?}");
}

#[test]
fn a_command_whose_time_is_over_is_ended_by_force_if_it_must_be() {
    let fake = Fake::default();
    let second = Duration::from_secs(1);
    let bridged = with_bridge(&fake, Some(second), |mut client, prints| {
        let fake = &fake;
        async move {
            fake.until(2).await;
            prints.send(ended(137)).unwrap();
            let Some(ExecOutput::End(end)) = client.read().await else {
                panic!("no end");
            };
            assert!(end.timed_out);
            assert_eq!(end.exit_code, 124);
        }
    });
    assert!(bridged.is_ok(), "{bridged:?}");
    assert_eq!(*fake.done.borrow(), [Done::Signal(15), Done::Signal(9)]);
}

#[test]
fn a_sandbox_that_is_gone_is_an_end_that_is_not_known() {
    let fake = Fake::default();
    let bridged = with_bridge(&fake, None, |mut client, prints| async move {
        drop(prints);
        let Some(ExecOutput::End(end)) = client.read().await else {
            panic!("no end");
        };
        assert_eq!(end.exit_code, 125);
        assert!(end.error.unwrap().contains("sandbox"));
    });
    assert!(bridged.is_ok(), "{bridged:?}");
}

#[test]
fn what_cannot_be_started_ends_as_in_a_shell() {
    let message = || String::from("why");
    let not_there = AgentError::NotFound { message: message() };
    let forbidden = AgentError::PermissionDenied { message: message() };
    let no_user = AgentError::UnknownUser { message: message() };
    for (error, has_place, expected) in [
        (&not_there, true, 127),
        (&forbidden, true, 126),
        (&no_user, true, 125),
        // It is the directory that is not there.
        (&not_there, false, 125),
        (&forbidden, false, 125),
    ] {
        let end = not_started(error, has_place);
        assert_eq!(end.exit_code, expected, "{error:?} {has_place}");
        assert_eq!(end.error.as_deref(), Some("why"));
    }
}

#[test]
fn commands_that_there_cannot_be_are_refused() {
    let good = || SandboxExec {
        sandbox: "sb1".to_owned(),
        cmd: "true".to_owned(),
        ..SandboxExec::default()
    };
    assert!(check(&good()).is_ok());
    let env = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
    let size = |cols, rows| Some(TerminalSize { cols, rows });
    #[rustfmt::skip]
    let wrong = [
        SandboxExec { cmd: String::new(), ..good() },
        SandboxExec { cmd: "a\0b".to_owned(), ..good() },
        SandboxExec { args: vec!["\0".to_owned()], ..good() },
        SandboxExec { cwd: Some("/\0".to_owned()), ..good() },
        SandboxExec { user: Some("\0".to_owned()), ..good() },
        SandboxExec { env: env("", "v"), ..good() },
        SandboxExec { env: env("a=b", "v"), ..good() },
        SandboxExec { env: env("a", "\0"), ..good() },
        SandboxExec { terminal: size(0, 24), ..good() },
        SandboxExec { terminal: size(80, 0), ..good() },
        SandboxExec { timeout_s: Some(0), ..good() },
    ];
    for request in wrong {
        let error = check(&request).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage, "{request:?}");
    }
}
