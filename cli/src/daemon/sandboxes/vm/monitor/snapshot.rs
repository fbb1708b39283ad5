//! The daemon's side of a snapshot of a machine.
//!
//! However the monitor behaves, this ends: a snapshot has a time in all, and whoever wants the machine ended does
//! not wait for it.

use std::fs::File;
use std::time::{Duration, Instant};

use floe_vmm::monitor::{Command, Event};
use floe_vmm::snapshot::Stats;
use tracing::debug;

use super::link::{Link, silent};
use crate::error::{ApiError, ErrorKind};
use crate::output::printable;

/// How long a snapshot may take: for copying all of a large memory.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(600);
/// How long one may take that is not wanted any more.
const CANCEL_WAIT: Duration = Duration::from_secs(5);
/// How often it is looked whether it is wanted.
const LOOK: Duration = Duration::from_millis(20);
/// Causes of a failure that are told.
const CAUSES_TOLD: usize = 8;

/// What a snapshot is to be.
#[derive(Clone, Copy)]
pub(in super::super) struct Wanted<'a> {
    /// Its id.
    pub(in super::super) id: &'a str,
    /// The image that it may be made over.
    pub(in super::super) over: Option<&'a str>,
    /// Where memory goes, and where what is said of it.
    pub(in super::super) files: [&'a File; 2],
    /// Whether nobody wants it any more.
    pub(in super::super) is_unwanted: &'a dyn Fn() -> bool,
}

impl Link {
    /// Has a snapshot taken: `held` is called while the machine stands still.
    ///
    /// # Errors
    /// What `held` says, or why the monitor took none.
    pub(super) fn snapshot(
        &self,
        wanted: Wanted<'_>,
        held: &mut dyn FnMut() -> Result<(), ApiError>,
    ) -> Result<Stats, ApiError> {
        let command = Command::Snapshot {
            id: wanted.id.to_owned(),
            over: wanted.over.map(str::to_owned),
        };
        self.shared.said.lock().snapshot.clear();
        self.say_with(&command, &wanted.files)?;
        self.follow(wanted, held, SNAPSHOT_WAIT)
    }

    fn follow(
        &self,
        wanted: Wanted<'_>,
        held: &mut dyn FnMut() -> Result<(), ApiError>,
        wait: Duration,
    ) -> Result<Stats, ApiError> {
        let mut give_up = Instant::now() + wait;
        let mut cancelled = false;
        let mut failed = None;
        loop {
            if !cancelled && (wanted.is_unwanted)() {
                cancelled = true;
                give_up = give_up.min(Instant::now() + CANCEL_WAIT);
                self.say(&Command::Cancel)?;
            }
            let now = Instant::now();
            if now >= give_up {
                return Err(match cancelled {
                    true => cancelled_error(),
                    false => self.give_up(wait),
                });
            }
            let until = give_up.min(now + LOOK);
            let event = self.wait_until(until, |said| said.snapshot.pop_front())?;
            match event {
                Some(Event::Held { id }) if id == wanted.id => {
                    // It is held only now, after it was told that nobody wants it any more.
                    let ok = !cancelled && {
                        failed = held().err();
                        failed.is_none()
                    };
                    self.say(&Command::Frozen { ok })?;
                }
                Some(Event::Taken { id, stats }) if id == wanted.id => return Ok(stats),
                Some(Event::NotTaken { id, causes }) if id == wanted.id => {
                    let told = || match cancelled {
                        true => cancelled_error(),
                        false => not_taken(&causes),
                    };
                    return Err(failed.unwrap_or_else(told));
                }
                // Of one that was given up, or nothing new.
                _ => {}
            }
        }
    }

    /// It took too long. Perhaps the machine is held just now: what the monitor then asks is not answered, and
    /// the machine goes on.
    fn give_up(&self, wait: Duration) -> ApiError {
        if let Err(error) = self.say(&Command::Cancel) {
            debug!(%error, "a monitor is gone");
        }
        silent(wait).into()
    }
}

fn cancelled_error() -> ApiError {
    let what = "the snapshot was given up, since nobody waits for it or the sandbox is being ended";
    ApiError::new(ErrorKind::Conflict, what)
}

fn not_taken(causes: &[String]) -> ApiError {
    let mut causes = causes.iter().map(|cause| printable(cause));
    let what = causes
        .next()
        .unwrap_or_else(|| "no reason was given".to_owned());
    let what = format!("no snapshot of the virtual machine was taken: {what}");
    ApiError {
        causes: causes.take(CAUSES_TOLD).collect(),
        ..ApiError::new(ErrorKind::Failed, what)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    /// The other end: reads commands, and says what it is told to.
    struct Monitor {
        commands: BufReader<UnixStream>,
        socket: UnixStream,
    }

    impl Monitor {
        fn command(&mut self) -> Command {
            let mut line = String::new();
            self.commands.read_line(&mut line).unwrap();
            serde_json::from_str(&line).unwrap()
        }

        fn say(&mut self, event: &Event) {
            let line = serde_json::to_string(event).unwrap() + "\n";
            self.socket.write_all(line.as_bytes()).unwrap();
        }
    }

    fn pair() -> (Link, Monitor) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let monitor = Monitor {
            commands: BufReader::new(theirs.try_clone().unwrap()),
            socket: theirs,
        };
        (Link::new(ours).unwrap(), monitor)
    }

    fn held(id: &str) -> Event {
        Event::Held { id: id.to_owned() }
    }

    fn taken(id: &str) -> Event {
        Event::Taken {
            id: id.to_owned(),
            stats: Stats::default(),
        }
    }

    fn not_taken(id: &str, why: &str) -> Event {
        Event::NotTaken {
            id: id.to_owned(),
            causes: vec![why.to_owned()],
        }
    }

    /// Takes "s" of a monitor that behaves like that.
    fn snapshot(
        wait: Duration,
        is_unwanted: &dyn Fn() -> bool,
        freeze: &mut dyn FnMut() -> Result<(), ApiError>,
        monitor: impl FnOnce(Monitor) + Send,
    ) -> Result<Stats, ApiError> {
        let (link, far) = pair();
        let file = tempfile::tempfile().unwrap();
        let wanted = Wanted {
            id: "s",
            over: None,
            files: [&file, &file],
            is_unwanted,
        };
        std::thread::scope(|scope| {
            scope.spawn(|| monitor(far));
            link.follow(wanted, freeze, wait)
        })
    }

    #[test]
    fn files_are_frozen_once_the_machine_is_held_and_events_of_others_count_for_nothing() {
        let frozen = AtomicU32::new(0);
        let mut freeze = || {
            frozen.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        snapshot(SNAPSHOT_WAIT, &|| false, &mut freeze, |mut monitor| {
            monitor.say(&not_taken("before", "nothing"));
            monitor.say(&held("before"));
            monitor.say(&held("s"));
            assert_eq!(monitor.command(), Command::Frozen { ok: true });
            monitor.say(&taken("s"));
        })
        .unwrap();
        assert_eq!(frozen.into_inner(), 1);
    }

    #[test]
    fn what_the_freeze_fails_with_is_what_is_told() {
        let mut freeze = || Err(ApiError::new(ErrorKind::Failed, "no room"));
        let error = snapshot(SNAPSHOT_WAIT, &|| false, &mut freeze, |mut monitor| {
            monitor.say(&held("s"));
            assert_eq!(monitor.command(), Command::Frozen { ok: false });
            monitor.say(&not_taken("s", "the daemon could not"));
        })
        .unwrap_err();
        assert_eq!(error.error, "no room");
    }

    #[test]
    fn a_monitor_that_only_talks_does_not_make_it_last_for_ever() {
        let done = AtomicBool::new(false);
        let result = snapshot(
            Duration::from_millis(300),
            &|| false,
            &mut || Ok(()),
            |mut monitor| {
                let quiet = monitor
                    .socket
                    .set_write_timeout(Some(Duration::from_millis(10)));
                quiet.unwrap();
                let cancelled = |command: Command| command == Command::Cancel;
                let listening = std::thread::spawn({
                    let mut commands = Monitor {
                        commands: BufReader::new(monitor.socket.try_clone().unwrap()),
                        socket: monitor.socket.try_clone().unwrap(),
                    };
                    move || cancelled(commands.command())
                });
                while !listening.is_finished() {
                    monitor.say(&held("other"));
                    std::thread::sleep(Duration::from_millis(1));
                }
                done.store(listening.join().unwrap(), Ordering::Release);
            },
        );
        let error = result.unwrap_err();
        assert!(error.error.contains("did not answer"), "{error:?}");
        assert!(done.into_inner(), "the monitor is told");
    }

    #[test]
    fn what_nobody_wants_any_more_is_cancelled_and_soon_over() {
        let unwanted = AtomicBool::new(false);
        let asked = || unwanted.load(Ordering::Acquire);
        let error = snapshot(SNAPSHOT_WAIT, &asked, &mut || Ok(()), |mut monitor| {
            monitor.say(&held("other"));
            unwanted.store(true, Ordering::Release);
            assert_eq!(monitor.command(), Command::Cancel);
            monitor.say(&not_taken("s", "the snapshot was cancelled"));
        })
        .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Conflict, "{error:?}");
        // Also of one that does not answer, or took it all the same.
        let error = snapshot(SNAPSHOT_WAIT, &|| true, &mut || Ok(()), |mut monitor| {
            assert_eq!(monitor.command(), Command::Cancel);
            std::thread::sleep(CANCEL_WAIT * 2);
        })
        .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Conflict, "{error:?}");
    }

    #[test]
    fn nothing_is_frozen_for_a_monitor_that_holds_its_machine_after_the_cancel() {
        let mut freeze = || panic!("frozen all the same");
        let error = snapshot(SNAPSHOT_WAIT, &|| true, &mut freeze, |mut monitor| {
            assert_eq!(monitor.command(), Command::Cancel);
            monitor.say(&held("s"));
            assert_eq!(monitor.command(), Command::Frozen { ok: false });
            monitor.say(&not_taken("s", "the daemon could not"));
        })
        .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Conflict, "{error:?}");
    }

    #[test]
    fn a_monitor_that_ends_ends_the_snapshot() {
        let error = snapshot(SNAPSHOT_WAIT, &|| false, &mut || Ok(()), drop).unwrap_err();
        assert_ne!(error.kind, ErrorKind::Conflict, "{error:?}");
    }
}
