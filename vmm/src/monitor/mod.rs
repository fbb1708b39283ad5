//! A monitor: one process that runs one machine and ends with it.
//!
//! It is started with a connected stream socket as standard input. The first line on it is a
//! [`MonitorConfig`], perhaps with a descriptor that becomes standard error; later ones are [`Command`]s; [`Event`]s go the other way. When the socket
//! closes, the machine is stopped: it does not outlive who started it.
//!
//! Order, and the invariant it keeps: everything is opened and the machine is built; then the
//! process is confined; only then is anything read that a guest may have made (a saved state, a queue), and does the
//! guest run its first instruction. A reset ends the monitor
//! too; starting the machine again is a new monitor's work, so that nothing of a guest is left over.

mod config;
mod control;
mod messages;
mod setup;
mod snapshots;

use std::io;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

pub use config::{Confinement, ConsoleConfig, FsSpec, MonitorConfig, VsockSpec};
pub use messages::{Command, Counts, DeviceFault, Event, How, LINE_MAX};
pub use setup::SetupError;

use crate::confine::filters::{Role, install};
use crate::devices::serial::CLIENTS_MAX;
use crate::machine::gate::Exit;
use crate::machine::{Confine, Machine, unconfined};
use control::Control;
use snapshots::Snapshots;

/// Lines of the console in a report.
const REPORTED_LINES: usize = 30;
/// Most bytes of a client's that wait for the guest to read them.
const TYPED_MAX: usize = 4096;
/// How often typed bytes are offered again to a port whose queue was full.
const TYPED_RETRY_MS: i32 = 10;

const CONTROL: u64 = 0;
const ENDED: u64 = 1;
const CONSOLE: u64 = 2;
const SNAPSHOTS: u64 = 3;
const FIRST_CLIENT: u64 = 4;

/// Runs the monitor with its control socket as standard input, to the end of the machine. To be
/// called in `main`, before there are threads. The exit code is 0 when the machine ended as its
/// guest or the daemon wanted.
#[must_use]
pub fn main_on_stdin() -> ExitCode {
    let result = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map(UnixStream::from)
        .and_then(serve);
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // Nobody listens on the socket: the log is all that is left.
            tracing::error!(%error, "the monitor's control socket failed");
            ExitCode::FAILURE
        }
    }
}

/// Reads the configuration from `socket`, runs the machine and reports. `true`: it ended as wanted.
fn serve(socket: UnixStream) -> io::Result<bool> {
    let mut control = Control::new(socket);
    let line = loop {
        if let Some(line) = control.line() {
            break line;
        }
        if !control.receive()? {
            return Ok(false);
        }
    };
    // Where it complains from now on: it may have been started for nobody yet.
    if let Some(log) = control.file() {
        rustix::stdio::dup2_stderr(&log)?;
    }
    let mut monitor = match Monitor::start(&line, &mut control) {
        Ok(monitor) => monitor,
        Err(error) => {
            control.send(&failed(&error))?;
            return Ok(false);
        }
    };
    let exit = monitor.run(&mut control)?;
    let how = How::from(&exit);
    control.send(&monitor.report(&exit, how))?;
    Ok(matches!(how, How::PowerOff | How::Reset | How::Stopped))
}

struct Client {
    token: u64,
    socket: UnixStream,
    typed: Vec<u8>,
}

struct Monitor {
    machine: Machine,
    snapshots: Snapshots,
    epoll: Epoll,
    console: Option<UnixListener>,
    clients: Vec<Client>,
    next_token: u64,
}

impl Monitor {
    fn start(config: &[u8], control: &mut Control) -> Result<Self, SetupError> {
        let config: MonitorConfig = serde_json::from_slice(config)?;
        let mut ready = setup::build(&config)?;
        let epoll = Epoll::new().map_err(SetupError::Sockets)?;
        watch(&epoll, control, CONTROL).map_err(SetupError::Sockets)?;
        watch(&epoll, ready.machine.gate().ended(), ENDED).map_err(SetupError::Sockets)?;
        if let Some(console) = &ready.console {
            console.set_nonblocking(true).map_err(SetupError::Sockets)?;
            watch(&epoll, console, CONSOLE).map_err(SetupError::Sockets)?;
        }
        // It looks at this process's pages, which a confined one may not.
        let snapshotter = ready.snapshotter();
        let hint = ready.hint.take();
        let snapshots = match &config.confinement {
            None => {
                ready.restore()?;
                ready.start(&unconfined())?;
                Snapshots::start(snapshotter, hint, || Ok(())).map_err(SetupError::Sockets)?
            }
            Some(confinement) => {
                setup::jail(&config, confinement).enter()?;
                ready.restore()?;
                ready.start(&filtered())?;
                let confined = || install(Role::Snapshots).map_err(io::Error::other);
                let snapshots = Snapshots::start(snapshotter, hint, confined);
                let snapshots = snapshots.map_err(SetupError::Sockets)?;
                watch(&epoll, snapshots.wake(), SNAPSHOTS).map_err(SetupError::Sockets)?;
                install(Role::Main)?;
                snapshots
            }
        };
        if config.confinement.is_none() {
            watch(&epoll, snapshots.wake(), SNAPSHOTS).map_err(SetupError::Sockets)?;
        }
        ready.machine.resume()?;
        control.send(&Event::Running).map_err(SetupError::Sockets)?;
        Ok(Self {
            machine: ready.machine,
            snapshots,
            epoll,
            console: ready.console,
            clients: Vec::new(),
            next_token: FIRST_CLIENT,
        })
    }

    /// Serves commands and the console until the machine ends or the daemon is gone.
    fn run(&mut self, control: &mut Control) -> io::Result<Exit> {
        let mut events = [EpollEvent::default(); 16];
        loop {
            let waiting = self.clients.iter().any(|client| !client.typed.is_empty());
            let timeout = if waiting && !self.is_paused() {
                TYPED_RETRY_MS
            } else {
                -1
            };
            let count = match self.epoll.wait(timeout, &mut events) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(error),
            };
            for event in &events[..count] {
                match event.data() {
                    CONTROL => {
                        if !self.control(control)? {
                            return Ok(self.machine.stop());
                        }
                    }
                    ENDED => {
                        let exit = self.machine.wait(Some(Duration::ZERO));
                        return Ok(exit.unwrap_or(Exit::Stopped));
                    }
                    CONSOLE => self.accept(),
                    SNAPSHOTS => {
                        for event in self.snapshots.said() {
                            control.send(&event)?;
                        }
                    }
                    token => self.read_client(token),
                }
            }
            self.type_on();
        }
    }

    /// Serves what the daemon sent. `false`: it is gone, or wants the machine stopped.
    fn control(&mut self, control: &mut Control) -> io::Result<bool> {
        if !control.receive()? {
            return Ok(false);
        }
        while let Some(line) = control.line() {
            let answer = match serde_json::from_slice(&line) {
                Ok(Command::Stop) => return Ok(false),
                Ok(Command::Snapshot { id, over }) => {
                    let files = (control.file(), control.file());
                    let refused = self.snapshots.begin(id.clone(), over, files).err();
                    refused.map(|why| Event::NotTaken {
                        id,
                        causes: vec![why],
                    })
                }
                Ok(Command::Frozen { ok }) => {
                    self.snapshots.frozen(ok);
                    None
                }
                Ok(Command::Touched) => {
                    let refused = self.snapshots.touched(control.file()).err();
                    refused.map(|message| Event::Refused {
                        command: Some(Command::Touched),
                        message,
                    })
                }
                Ok(Command::Cancel) => {
                    self.snapshots.cancel();
                    None
                }
                Ok(command) => Some(self.carry_out(command)),
                Err(error) => Some(Event::Refused {
                    command: None,
                    message: format!("no command: {error}"),
                }),
            };
            if let Some(answer) = answer {
                control.send(&answer)?;
            }
        }
        Ok(true)
    }

    fn carry_out(&mut self, command: Command) -> Event {
        let result = match command {
            // It would be let go, or held, in the middle of it.
            Command::Pause | Command::Resume if self.snapshots.is_busy() => {
                return Event::Refused {
                    command: Some(command),
                    message: "a snapshot is being taken".to_owned(),
                };
            }
            Command::Pause => self.machine.pause(),
            Command::Resume => self.machine.resume(),
            _ => {
                return Event::Status {
                    paused: self.is_paused(),
                    fs_in_flight: self.machine.fs_in_flight(),
                    faults: self.faults(),
                };
            }
        };
        match result {
            Ok(()) => Event::Done { command },
            Err(error) => Event::Refused {
                command: Some(command),
                message: error.to_string(),
            },
        }
    }

    fn accept(&mut self) {
        let Some(Ok((socket, _))) = self.console.as_ref().map(UnixListener::accept) else {
            return;
        };
        // Not the console's limit over again: who reads no more is no client of the console's, and
        // may still type.
        if self.clients.len() >= CLIENTS_MAX {
            return;
        }
        if let Err(error) = self.add_client(socket) {
            tracing::debug!(%error, "a console client is turned away");
        }
    }

    fn add_client(&mut self, socket: UnixStream) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let token = self.next_token;
        self.next_token += 1;
        watch(&self.epoll, &socket, token)?;
        self.machine.console().lock().attach(socket.try_clone()?)?;
        self.clients.push(Client {
            token,
            socket,
            typed: Vec::new(),
        });
        Ok(())
    }

    fn read_client(&mut self, token: u64) {
        let Some(at) = self.clients.iter().position(|client| client.token == token) else {
            return;
        };
        let client = &mut self.clients[at];
        let mut bytes = [0; 256];
        // What a guest does not read is dropped, so that a client's end is always noticed.
        match client.socket.read(&mut bytes) {
            Ok(len @ 1..) => {
                let room = TYPED_MAX - client.typed.len();
                client.typed.extend(&bytes[..len.min(room)]);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => {
                let client = self.clients.swap_remove(at);
                // The console holds a duplicate, which would keep it watched.
                if let Err(error) = self.epoll.ctl(
                    ControlOperation::Delete,
                    client.socket.as_raw_fd(),
                    EpollEvent::default(),
                ) {
                    tracing::debug!(%error, "a console client was not watched");
                }
            }
        }
    }

    /// Types what clients sent, as far as the port takes it. Not while the machine is paused: its
    /// devices do not change then.
    fn type_on(&mut self) {
        if self.is_paused() {
            return;
        }
        for client in &mut self.clients {
            if !client.typed.is_empty() {
                let taken = self.machine.console_input(&client.typed);
                client.typed.drain(..taken);
            }
        }
    }

    fn is_paused(&self) -> bool {
        self.machine.gate().is_paused()
    }

    fn faults(&self) -> Vec<DeviceFault> {
        let faults = self.machine.faults().into_iter();
        faults
            .map(|(device, fault)| DeviceFault {
                device: device.to_owned(),
                fault,
            })
            .collect()
    }

    fn report(&self, exit: &Exit, how: How) -> Event {
        let console = self.machine.console().lock();
        Event::Ended {
            how,
            message: exit.to_string(),
            panic: console.panic().map(str::to_owned),
            lines: console.last_lines(REPORTED_LINES),
            faults: self.faults(),
            counts: Counts {
                exits: self.machine.exits(),
                fs_requests: self.machine.fs_requests(),
            },
        }
    }
}

/// Confines each thread of the machine by its own filter.
fn filtered() -> Confine {
    Arc::new(|kind| install(Role::Machine(kind)).map_err(io::Error::other))
}

fn watch(epoll: &Epoll, source: &impl AsRawFd, token: u64) -> io::Result<()> {
    epoll.ctl(
        ControlOperation::Add,
        source.as_raw_fd(),
        EpollEvent::new(EventSet::IN, token),
    )
}

fn failed(error: &SetupError) -> Event {
    let mut causes = Vec::new();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        causes.push(cause.to_string());
        source = cause.source();
    }
    Event::Failed {
        message: error.to_string(),
        causes,
        hint: error.hint().map(str::to_owned),
    }
}
