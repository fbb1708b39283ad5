//! Frames from the daemon, and the steps of channels.

use floe_guest::frame::{Frame, Kind};
use floe_guest::hello::Hello;
use floe_guest::message::{End, Failure, FailureKind, Outcome, Request, decode_open};
use floe_guest::window::decode_credit;

use super::Agent;
use super::channel::{Channel, MAX_CHANNELS, Work};
use super::failure::failure;
use super::pool::Done;
use super::process::check_env;
use super::wire::Over;
use super::{files, machine, metrics};

impl Agent {
    /// Takes a frame.
    pub(super) fn frame(&mut self, frame: Frame) -> Result<(), Over> {
        let Frame {
            kind,
            channel: id,
            payload,
        } = frame;
        if self.version.is_none() {
            return self.hello(kind, &payload);
        }
        if kind == Kind::Open {
            return self.open(id, &payload);
        }
        if kind == Kind::Hello {
            return Err(Over::Broken("a second hello".to_owned()));
        }
        // It may have ended while this was on its way.
        let Some(number) = self.channels.number(id) else {
            return Ok(());
        };
        match kind {
            Kind::Data => self.data(number, payload)?,
            Kind::Eof => self.eof(number)?,
            Kind::Credit => {
                if let Some(channel) = self.channels.get_mut(number) {
                    let credit = decode_credit(&payload).unwrap_or(0);
                    let added = channel.window.add(credit);
                    added.map_err(|error| Over::Broken(error.to_string()))?;
                }
                self.channels.wake(number);
            }
            Kind::Cancel => {
                self.close(number, &End::Ok(Outcome::Done));
            }
            Kind::Hello | Kind::Open | Kind::Stderr | Kind::Event | Kind::End => {
                return Err(Over::Broken(format!("a frame of kind {kind:?}")));
            }
        }
        Ok(())
    }

    fn hello(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Over> {
        let broken = |text: String| Err(Over::Broken(text));
        if kind != Kind::Hello {
            return broken("it does not begin with a hello".to_owned());
        }
        let offer = match Hello::decode(payload) {
            Ok(offer) => offer,
            Err(error) => return broken(error.to_string()),
        };
        let (answer, version) = Hello::ours().answer(offer);
        self.wire.put(Kind::Hello, 0, &answer.encode());
        if version.is_none() {
            self.wire.flush()?;
            return broken(format!(
                "it speaks versions {} to {}, not {} to {}",
                offer.lowest, offer.highest, answer.lowest, answer.highest
            ));
        }
        self.version = version;
        Ok(())
    }

    fn open(&mut self, id: u32, payload: &[u8]) -> Result<(), Over> {
        self.asked = true;
        if self.channels.number(id).is_some() {
            return Err(Over::Broken(format!("channel {id} is opened twice")));
        }
        let Some((window, request)) = decode_open(payload) else {
            return Err(Over::Broken("an open frame without a window".to_owned()));
        };
        if self.channels.len() >= MAX_CHANNELS {
            let failure = failure(
                FailureKind::Exhausted,
                format!("{MAX_CHANNELS} channels are open"),
            );
            self.wire.end(id, &End::Failed(failure));
            return Ok(());
        }
        let number = self.channels.open(id, window);
        let begun = request.and_then(|request| self.begin(number, request));
        if let Err(failure) = begun
            && let Some(channel) = self.channels.get_mut(number)
        {
            channel.fail(failure);
        }
        self.channels.wake(number);
        Ok(())
    }

    /// Begins with a request.
    fn begin(&mut self, number: u64, request: Request) -> Result<(), Failure> {
        machine::allowed(&request, self.version, self.place)?;
        let done = match request {
            Request::Start(start) => return self.start(number, start),
            Request::Attach { process } => return self.attach(number, &process),
            Request::Input { process } => return self.input(number, &process),
            Request::CloseInput { process } => return self.end_input(number, &process),
            Request::Watch { file, recursive } => return self.watch(number, &file, recursive),
            Request::ConnectPort { port } => return self.connect_port(number, port),
            Request::Processes => {
                self.list_processes(number);
                return Ok(());
            }
            Request::ReadFile(file) => {
                self.read_file(number, file);
                return Ok(());
            }
            Request::WriteFile(file) => {
                self.write_file(number, file);
                return Ok(());
            }
            Request::Stat(file) => return self.worker(|agent| agent.stat(number, file)),
            Request::List { file, depth } => {
                return self.worker(|agent| agent.list(number, file, depth));
            }
            Request::MakeDir(file) => return self.worker(|agent| agent.make_dir(number, file)),
            Request::Rename { from, to, user } => {
                return self.worker(|agent| agent.rename(number, from, to, user));
            }
            Request::Remove(file) => return self.worker(|agent| agent.remove(number, file)),
            Request::Metrics => {
                let job = || metrics::measure().map(Done::Metrics);
                self.pool.submit(number, Box::new(job));
                return Ok(());
            }
            Request::Sync => {
                let job = || machine::sync().map(|()| Done::Nothing);
                return self.pool.submit_apart(number, Box::new(job));
            }
            Request::Signal { process, signal } => self.signal(&process, signal),
            Request::Resize { process, size } => self.resize(&process, size),
            Request::SetEnv { env } => check_env(&env).map(|()| self.env = env),
            Request::SetTime { secs, nanos } => machine::set_time(secs, nanos),
            Request::AddEntropy { seed } => machine::add_entropy(&seed.0),
            Request::Shutdown => {
                self.ending = true;
                Ok(())
            }
        };
        done?;
        if let Some(channel) = self.channels.get_mut(number) {
            channel.done(Outcome::Done);
        }
        Ok(())
    }

    #[allow(clippy::unnecessary_wraps)] // so that the table above is one
    fn worker(&self, submit: impl FnOnce(&Self)) -> Result<(), Failure> {
        submit(self);
        Ok(())
    }

    fn data(&mut self, number: u64, payload: Vec<u8>) -> Result<(), Over> {
        let Some(channel) = self.channels.get_mut(number) else {
            return Ok(());
        };
        let taken = channel.input.take(payload.len());
        taken.map_err(|error| Over::Broken(error.to_string()))?;
        if channel.input_over {
            return Err(Over::Broken("data after eof".to_owned()));
        }
        if channel.end.is_some() {
            return Ok(());
        }
        match &mut channel.work {
            Work::Input(input) => {
                input.frames.push_back(payload);
                let process = input.process;
                self.feed(process);
            }
            Work::Writing(files::Writing { frames, .. }) => frames.push_back(payload),
            Work::Port(port) => port.frames.push_back(payload),
            _ => {
                return Err(Over::Broken(
                    "data for a request that takes none".to_owned(),
                ));
            }
        }
        self.channels.wake(number);
        Ok(())
    }

    fn eof(&mut self, number: u64) -> Result<(), Over> {
        let Some(channel) = self.channels.get_mut(number) else {
            return Ok(());
        };
        if channel.input_over {
            return Err(Over::Broken("a second eof".to_owned()));
        }
        channel.input_over = true;
        if let Work::Input(input) = &channel.work {
            let process = input.process;
            self.feed(process);
        }
        self.channels.wake(number);
        Ok(())
    }

    /// Lets a channel do a step.
    pub(super) fn advance(&mut self, number: u64) {
        let Some(channel) = self.channels.get_mut(number) else {
            return;
        };
        while let Some(event) = channel.pending.front() {
            if !self.wire.room() {
                return self.channels.wake(number);
            }
            // It is woken when there is credit.
            if channel.window.take(event.len()).is_err() {
                return;
            }
            self.wire.put(Kind::Event, channel.id, event);
            channel.pending.pop_front();
        }
        if let Some(end) = channel.end.take() {
            return self.close(number, &end);
        }
        match channel.work {
            Work::Answer | Work::Input(_) | Work::CloseInput { .. } => {}
            Work::Attached { .. } => self.advance_attached(number),
            Work::Reading(_) => self.advance_reading(number),
            Work::Writing(_) => self.advance_writing(number),
            Work::Watching(_) => self.advance_watching(number),
            Work::Port(_) => self.advance_port(number),
        }
    }

    /// Ends a channel.
    pub(super) fn close(&mut self, number: u64, end: &End) {
        let Some(Channel { id, work, .. }) = self.channels.close(number) else {
            return;
        };
        self.wire.end(id, end);
        match work {
            Work::Attached { process, .. } => self.detach(number, process),
            Work::Input(input) => self.forget_input(number, input.process),
            Work::CloseInput { process } => self.forget_input(number, process),
            Work::Watching(_) => self.forget_watch(number),
            Work::Answer | Work::Reading(_) | Work::Writing(_) | Work::Port(_) => {}
        }
    }
}
