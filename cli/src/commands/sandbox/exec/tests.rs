//! Tests of arguments, of what the daemon may send, and of the statuses this ends with.

use clap::Parser;

use super::session::follow;
use super::sink::{Sink, Stream};
use super::*;
use crate::output::{ColorWhen, Output};
use crate::store_dir::StoreDir;
use crate::wire::exec::{ExecEnd, ExecOutput};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    exec: Exec,
}

fn exec(words: &[&str]) -> Result<Exec, clap::Error> {
    let words = std::iter::once("exec").chain(words.iter().copied());
    Line::try_parse_from(words).map(|line| line.exec)
}

#[test]
fn every_flag_reaches_the_request() {
    let words = [
        "sb1",
        "-u",
        "root",
        "--cwd",
        "/x",
        "--env",
        "A=1",
        "-e",
        "B=x=y",
        "-i",
        "--timeout",
        "1m 30s",
        "--",
        "sh",
        "-c",
        "echo \"$A\"",
        "--",
        "-i",
    ];
    let request = exec(&words).unwrap().request().unwrap();
    let expected = SandboxExec {
        sandbox: "sb1".to_owned(),
        cmd: "sh".to_owned(),
        args: ["-c", "echo \"$A\"", "--", "-i"]
            .map(str::to_owned)
            .to_vec(),
        env: [("A", "1"), ("B", "x=y")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        cwd: Some("/x".to_owned()),
        user: Some("root".to_owned()),
        stdin: true,
        terminal: None,
        timeout_s: Some(90),
        ends_sandbox: false,
    };
    assert_eq!(request, expected);
}

#[test]
fn a_terminal_brings_input_a_size_and_the_name_that_was_given() {
    let request = exec(&["sb1", "-it", "--env", "TERM=dumb", "--", "bash"]);
    let request = request.unwrap().request().unwrap();
    assert!(request.stdin);
    assert_eq!(request.env["TERM"], "dumb");
    let size = request.terminal.unwrap();
    assert!(size.cols > 0 && size.rows > 0);
    assert!(
        exec(&["sb1", "--tty", "--", "bash"])
            .unwrap()
            .request()
            .unwrap()
            .stdin
    );
    assert!(
        !exec(&["sb1", "--", "true"])
            .unwrap()
            .request()
            .unwrap()
            .stdin
    );
}

#[test]
fn what_makes_no_sense_is_wrong_usage() {
    for words in [
        &["sb1"][..],
        &["sb1", "--"],
        &["sb1", "true"],
        &["--", "true"],
        &["sb1", "--env", "A", "--", "true"],
        &["sb1", "--timeout", "never", "--", "true"],
    ] {
        assert!(exec(words).is_err(), "{words:?}");
    }
    let twice = exec(&["sb1", "-e", "A=1", "-e", "A=2", "--", "true"]).unwrap();
    assert_eq!(twice.request().unwrap_err().kind, ErrorKind::Usage);
    let json = Context {
        store: StoreDir::locate(Some(std::path::Path::new("/nonexistent"))).unwrap(),
        output: Output::new(true, false, ColorWhen::Never),
    };
    let terminal = exec(&["sb1", "-t", "--", "true"]).unwrap();
    assert_eq!(terminal.run(&json).unwrap_err().kind, ErrorKind::Usage);
}

/// Keeps what was printed, and fails as it is told to.
#[derive(Default)]
struct Kept {
    out: Vec<u8>,
    err: Vec<u8>,
    lost: u64,
    ended: bool,
    closed: bool,
}

impl Sink for Kept {
    fn printed(&mut self, stream: Stream, bytes: &[u8]) -> Result<(), ApiError> {
        if self.closed {
            return Err(ApiError::new(ErrorKind::OutputClosed, "closed"));
        }
        match stream {
            Stream::Out => self.out.extend_from_slice(bytes),
            Stream::Err => self.err.extend_from_slice(bytes),
        }
        Ok(())
    }

    fn lost(&mut self, bytes: u64) -> Result<(), ApiError> {
        self.lost += bytes;
        Ok(())
    }

    fn ended(&mut self, _: &ExecEnd) -> Result<(), ApiError> {
        self.ended = true;
        Ok(())
    }
}

fn sent(lines: &[ExecOutput]) -> Vec<u8> {
    let line = |line: &ExecOutput| serde_json::to_string(line).unwrap() + "\n";
    lines.iter().map(line).collect::<String>().into_bytes()
}

fn end(exit_code: u8) -> ExecOutput {
    ExecOutput::End(ExecEnd {
        exit_code,
        ..ExecEnd::default()
    })
}

#[test]
fn streams_stay_apart_and_what_follows_the_end_is_not_read() {
    let lines = sent(&[
        ExecOutput::Started { pid: 9 },
        ExecOutput::Stdout(b"a\xff"[..].into()),
        ExecOutput::Stderr(b"warn"[..].into()),
        ExecOutput::Lost { bytes: 5 },
        ExecOutput::Taken { bytes: 7 },
        ExecOutput::Terminal(b"b\n"[..].into()),
        end(7),
        ExecOutput::Stdout(b"late"[..].into()),
    ]);
    let mut kept = Kept::default();
    let window = Window::new();
    let ended = follow(&mut lines.as_slice(), &mut kept, &window).unwrap();
    assert_eq!((ended.end.exit_code, ended.started), (7, true));
    assert_eq!(kept.out, b"a\xffb\n");
    assert_eq!(kept.err, b"warn");
    assert_eq!((kept.lost, kept.ended), (5, true));
}

#[test]
fn a_connection_that_ends_before_the_command_is_an_error() {
    let mut lines = sent(&[ExecOutput::Stdout(b"a"[..].into()), end(0)]);
    for cut in [0, 10, lines.len() - 20, lines.len() - 1] {
        let mut kept = Kept::default();
        let error = follow(&mut &lines[..cut], &mut kept, &Window::new()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::DaemonUnreachable, "{cut}");
    }
    lines.truncate(4);
    lines.extend(b"\n{\"unknown\":1}\n");
    let error = follow(&mut lines.as_slice(), &mut Kept::default(), &Window::new());
    assert_eq!(error.unwrap_err().kind, ErrorKind::DaemonUnreachable);
}

#[test]
fn nobody_reading_the_output_ends_it() {
    let mut kept = Kept {
        closed: true,
        ..Kept::default()
    };
    let lines = sent(&[ExecOutput::Stdout(b"a"[..].into()), end(0)]);
    let error = follow(&mut lines.as_slice(), &mut kept, &Window::new()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutputClosed);
}

#[test]
fn the_status_is_the_commands_whatever_is_said_of_its_end() {
    let context = Context {
        store: StoreDir::locate(Some(std::path::Path::new("/nonexistent"))).unwrap(),
        output: Output::new(false, true, ColorWhen::Never),
    };
    let command = exec(&["sb1", "--timeout", "1s", "--", "true"]).unwrap();
    let ends = [
        (0, false, None),
        (3, false, None),
        (137, false, None),
        (124, true, None),
        (125, false, Some("gone")),
        (126, false, Some("no")),
        (127, false, Some("not there")),
    ];
    for (exit_code, timed_out, error) in ends {
        let end = ExecEnd {
            exit_code,
            timed_out,
            signal: None,
            error: error.map(str::to_owned),
        };
        for started in [false, true] {
            let end = end.clone();
            assert_eq!(command.report(&context, &Ended { end, started }), exit_code);
        }
    }
}
