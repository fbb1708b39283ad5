//! Starting a command.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use floe_guest::message::{Failure, FailureKind, PtySize, StartProcess};
use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::pipe::PipeFlags;
use rustix::process::Rlimit;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::agent::failure::{failed, failure, invalid};
use crate::agent::files::path;
use crate::agent::sys::{self, Setup, Step};
use crate::agent::users::{Database, User, ids};

/// Where programs are looked for, unless the environment says otherwise.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a terminal is, unless the environment says otherwise.
const TERM: &str = "xterm-256color";

/// A command that runs, and this side of its pipes or its terminal. All of them do not block.
#[derive(Debug)]
pub struct Spawned {
    pub pid: u32,
    pub input: Option<OwnedFd>,
    pub output: OwnedFd,
    /// None of a terminal.
    pub errors: Option<OwnedFd>,
}

/// Both sides of what a command reads and writes.
struct Streams {
    stdin: Stdio,
    stdout: Stdio,
    stderr: Stdio,
    input: Option<OwnedFd>,
    output: OwnedFd,
    errors: Option<OwnedFd>,
}

/// Starts it. `files` is the limit of open files to give it.
pub fn spawn(
    request: &StartProcess,
    defaults: &BTreeMap<String, String>,
    files: Rlimit,
) -> Result<Spawned, Failure> {
    let user = Database::read().user(request.user.as_deref())?;
    if request.cmd.is_empty() {
        return Err(invalid("the command is empty"));
    }
    check_env(&request.env)?;
    let cwd = match request.cwd.as_deref() {
        Some(cwd) => path::resolve(cwd, &user)?,
        // Some users have none, and templates without any are possible.
        None if user.home.is_dir() => user.home.clone(),
        None => PathBuf::from("/"),
    };
    let ids = ids(&user)?;
    let streams = match request.pty {
        Some(size) => terminal(size, &user),
        None => pipes(request.stdin),
    };
    let streams = streams.map_err(|error| failed("make the command's pipes", error))?;
    let (step, report) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
        .map_err(|error| failed("make a pipe", error))?;
    let mut command = Command::new(&request.cmd);
    command
        .args(&request.args)
        .env_clear()
        .envs(environment(request, defaults, &user))
        .stdin(streams.stdin)
        .stdout(streams.stdout)
        .stderr(streams.stderr);
    let setup = Setup {
        terminal: request.pty.is_some(),
        ids,
        cwd: CString::new(cwd.clone().into_os_string().into_vec())
            .map_err(|_| invalid("the directory has a NUL in its name"))?,
        files,
        report,
    };
    sys::prepare(&mut command, setup);
    match command.spawn() {
        // The child is waited for with all others, by its id.
        Ok(child) => Ok(Spawned {
            pid: child.id(),
            input: streams.input,
            output: streams.output,
            errors: streams.errors,
        }),
        Err(error) => {
            let what = match failed_step(&step) {
                Some(Step::Session) => "set up a session".to_owned(),
                Some(Step::Ids) => format!("act as user '{}'", user.name),
                // Not that the command is missing.
                Some(Step::Cwd) => {
                    let dir = cwd.display();
                    return Err(invalid(format!(
                        "cannot go to the directory '{dir}': {error}"
                    )));
                }
                None => format!("start '{}'", request.cmd),
            };
            Err(failed(&what, error))
        }
    }
}

/// The step that the child says has failed.
fn failed_step(report: &OwnedFd) -> Option<Step> {
    let mut byte = [0];
    match rustix::io::read(report, &mut byte) {
        Ok(1) => Step::parse(byte[0]),
        _ => None,
    }
}

/// What no environment can hold.
pub fn check_env(env: &BTreeMap<String, String>) -> Result<(), Failure> {
    let wrong = env.iter().find(|(name, value)| {
        name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')
    });
    match wrong {
        Some((name, _)) => Err(invalid(format!("no environment can have '{name}'"))),
        None => Ok(()),
    }
}

fn environment(
    request: &StartProcess,
    defaults: &BTreeMap<String, String>,
    user: &User,
) -> BTreeMap<String, String> {
    let own = [
        ("PATH", PATH.to_owned()),
        ("HOME", user.home.to_string_lossy().into_owned()),
        ("USER", user.name.clone()),
        ("LOGNAME", user.name.clone()),
        ("SHELL", user.shell.clone()),
    ];
    let terminal = request.pty.map(|_| ("TERM", TERM.to_owned()));
    own.into_iter()
        .chain(terminal)
        .map(|(name, value)| (name.to_owned(), value))
        .chain(defaults.clone())
        .chain(request.env.clone())
        .collect()
}

fn pipes(stdin: bool) -> io::Result<Streams> {
    // Each end is set for itself: the command's must block.
    let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
    let ours = |fd: OwnedFd| rustix::io::ioctl_fionbio(&fd, true).map(|()| fd);
    let (read, write) = pipe()?;
    let (err_read, err_write) = pipe()?;
    let (stdin, input) = if stdin {
        let (theirs, write) = pipe()?;
        (theirs.into(), Some(ours(write)?))
    } else {
        (Stdio::null(), None)
    };
    Ok(Streams {
        stdin,
        stdout: write.into(),
        stderr: err_write.into(),
        input,
        output: ours(read)?,
        errors: Some(ours(err_read)?),
    })
}

fn terminal(size: PtySize, user: &User) -> io::Result<Streams> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&master)?;
    let theirs = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    // Programs open their terminal by name, so it must be the user's.
    rustix::fs::fchown(&theirs, Some(Uid::from_raw(user.uid)), None::<Gid>)?;
    rustix::fs::fchmod(&theirs, Mode::RUSR | Mode::WUSR | Mode::WGRP)?;
    resize(&master, size)?;
    let status = rustix::fs::fcntl_getfl(&master)?;
    rustix::fs::fcntl_setfl(&master, status | OFlags::NONBLOCK)?;
    Ok(Streams {
        stdin: theirs.try_clone()?.into(),
        stdout: theirs.try_clone()?.into(),
        stderr: theirs.into(),
        input: Some(master.try_clone()?),
        output: master,
        errors: None,
    })
}

/// Tells a terminal its size; what runs on it gets SIGWINCH.
pub fn resize(terminal: impl std::os::fd::AsFd, size: PtySize) -> io::Result<()> {
    let size = Winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}

/// The failure of a request about a process that is not there.
pub fn no_such(process: &floe_guest::message::ProcessRef) -> Failure {
    failure(
        FailureKind::NoSuchProcess,
        format!("there is no {process} that runs"),
    )
}
