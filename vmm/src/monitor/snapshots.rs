//! The thread that takes snapshots, beside the one that listens to the daemon.
//!
//! It is there from the beginning, since a confined process starts no threads. One snapshot at a time. While
//! the guest is held the daemon is asked to freeze its files; who does not answer in time has not.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::messages::{Command, Event};
use crate::snapshot::{Options, Snapshotter, Stats, Wanted, WorkingSet};

/// How long the guest is held for a daemon that does not answer.
const FREEZE_WAIT: Duration = Duration::from_secs(10);

/// What the thread is to do.
enum Job {
    /// Take a snapshot.
    Take(Taking),
    /// Write down which pages were touched.
    Touched(File),
}

/// A snapshot that is to be taken.
struct Taking {
    id: String,
    over: Option<String>,
    memory: File,
    taken: File,
}

/// The thread, as the other one sees it.
pub(super) struct Snapshots {
    jobs: Sender<Job>,
    frozen: Sender<bool>,
    events: Receiver<Event>,
    wake: Arc<EventFd>,
    cancel: Arc<AtomicBool>,
    // Somebody waits for what was begun for nobody in particular.
    hurry: Arc<AtomicBool>,
    busy: bool,
}

impl Snapshots {
    /// Starts the thread; `confine` is the first thing it calls, and has returned when this does. Then it has the
    /// pages there that `hint` says, the bytes of a working set.
    ///
    /// # Errors
    /// The system's, when it gives no thread or descriptor, or what `confine` fails with.
    pub(super) fn start(
        mut snapshotter: Snapshotter,
        hint: Option<Vec<u8>>,
        confine: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (jobs, todo) = channel::<Job>();
        let (frozen, answers) = channel();
        let (said, events) = channel();
        let (ready, started) = channel();
        let wake = Arc::new(EventFd::new(EFD_NONBLOCK)?);
        let cancel = Arc::new(AtomicBool::new(false));
        let (waker, cancelled) = (Arc::clone(&wake), Arc::clone(&cancel));
        let hurry = Arc::new(AtomicBool::new(false));
        let hurried = Arc::clone(&hurry);
        let work = move || {
            let confined = confine();
            let failed = confined.is_err();
            if ready.send(confined).is_err() || failed {
                return;
            }
            let say = |event| {
                // Without the other thread the process is about to end.
                if said.send(event).is_ok()
                    && let Err(error) = waker.write(1)
                {
                    tracing::debug!(%error, "the main thread is awake already");
                }
            };
            if let Some(hint) = hint {
                populate(&snapshotter, &hint, &|| !hurried.load(Ordering::Relaxed));
            }
            for job in todo {
                let event = match job {
                    Job::Touched(to) => touched(&snapshotter, &to),
                    Job::Take(it) => take(&mut snapshotter, it, &say, &answers, &cancelled),
                };
                say(event);
            }
        };
        std::thread::Builder::new()
            .name("snapshots".to_owned())
            .spawn(work)?;
        let ended = |_| io::Error::other("the thread has ended");
        started.recv().map_err(ended)??;
        Ok(Self {
            jobs,
            frozen,
            events,
            wake,
            cancel,
            hurry,
            busy: false,
        })
    }

    /// Readable when [`Self::said`] has something.
    pub(super) fn wake(&self) -> &impl AsRawFd {
        &*self.wake
    }

    /// Whether a snapshot is being taken.
    pub(super) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Begins a snapshot. `Err` says why not.
    pub(super) fn begin(
        &mut self,
        id: String,
        over: Option<String>,
        files: (Option<File>, Option<File>),
    ) -> Result<(), String> {
        if self.busy {
            return Err("a snapshot is being taken".to_owned());
        }
        let (Some(memory), Some(taken)) = files else {
            return Err("a snapshot takes two descriptors".to_owned());
        };
        self.cancel.store(false, Ordering::Release);
        self.send(Job::Take(Taking {
            id,
            over,
            memory,
            taken,
        }))
    }

    /// Begins to write down which pages were touched. `Err` says why not.
    pub(super) fn touched(&mut self, to: Option<File>) -> Result<(), String> {
        if self.busy {
            return Err("a snapshot is being taken".to_owned());
        }
        let to = to.ok_or_else(|| "this takes a descriptor".to_owned())?;
        self.send(Job::Touched(to))
    }

    fn send(&mut self, job: Job) -> Result<(), String> {
        self.hurry.store(true, Ordering::Relaxed);
        self.busy = self.jobs.send(job).is_ok();
        match self.busy {
            true => Ok(()),
            false => Err("the thread that takes snapshots has ended".to_owned()),
        }
    }

    /// The daemon's answer to [`Event::Held`].
    pub(super) fn frozen(&self, ok: bool) {
        // An answer that nobody waits for is dropped before the next question.
        if self.frozen.send(ok).is_err() {
            tracing::debug!("the thread that takes snapshots has ended");
        }
    }

    /// Gives up what is being taken, as long as the guest was not held.
    pub(super) fn cancel(&self) {
        self.cancel.store(true, Ordering::Release);
    }

    /// What the thread has to say to the daemon.
    pub(super) fn said(&mut self) -> Vec<Event> {
        if let Err(error) = self.wake.read() {
            tracing::trace!(%error, "two wakes were one");
        }
        let events: Vec<Event> = self.events.try_iter().collect();
        // But for the question in the middle of a snapshot, each is the end of what was asked for.
        let over = |event: &Event| !matches!(event, Event::Held { .. });
        if events.iter().any(over) {
            self.busy = false;
        }
        events
    }
}

fn take(
    snapshotter: &mut Snapshotter,
    it: Taking,
    say: &impl Fn(Event),
    answers: &Receiver<bool>,
    cancel: &AtomicBool,
) -> Event {
    let Taking {
        id,
        over,
        memory,
        taken: to,
    } = it;
    let mut held = || {
        while answers.try_recv().is_ok() {}
        say(Event::Held { id: id.clone() });
        match answers.recv_timeout(FREEZE_WAIT) {
            Ok(true) => Ok(()),
            Ok(false) => Err("the daemon could not".to_owned()),
            Err(_) => Err("the daemon does not answer".to_owned()),
        }
    };
    let wanted = Wanted {
        id: &id,
        over: over.as_deref(),
        memory: &memory,
        options: Options::default(),
        cancel,
    };
    let taken = snapshotter.take(&wanted, &mut held);
    let written = taken
        .map_err(|error| causes(&error))
        .and_then(|(taken, stats)| {
            let bytes = taken.encode().map_err(|error| causes(&error))?;
            to.write_all_at(&bytes, 0).map_err(|error| causes(&error))?;
            Ok(stats)
        });
    match written {
        Ok(stats) => done(id, stats),
        Err(causes) => {
            // What it was to be the base of is not there.
            if snapshotter.base() == Some(&id) {
                snapshotter.forget_base();
            }
            Event::NotTaken { id, causes }
        }
    }
}

/// Reads what the guest will want; what the hint says besides is nobody's loss.
fn populate(snapshotter: &Snapshotter, hint: &[u8], go_on: &dyn Fn() -> bool) {
    match WorkingSet::decode(hint, snapshotter.pages()) {
        Ok(set) => {
            if let Err(error) = snapshotter.populate(&set, go_on) {
                tracing::warn!(%error, "pages of a working set cannot be read");
            }
        }
        Err(error) => tracing::warn!(%error, "the image's working set is none"),
    }
}

fn touched(snapshotter: &Snapshotter, to: &File) -> Event {
    let set = match snapshotter.working_set() {
        Ok(Some(set)) => set,
        Ok(None) => return refused("there is no image that pages come from"),
        Err(error) => return refused(&causes(&error).join(": ")),
    };
    let written = set
        .encode()
        .map_err(|error| causes(&error))
        .and_then(|bytes| to.write_all_at(&bytes, 0).map_err(|error| causes(&error)));
    match written {
        Ok(()) => Event::Done {
            command: Command::Touched,
        },
        Err(causes) => refused(&causes.join(": ")),
    }
}

fn refused(why: &str) -> Event {
    Event::Refused {
        command: Some(Command::Touched),
        message: why.to_owned(),
    }
}

fn done(id: String, stats: Stats) -> Event {
    Event::Taken { id, stats }
}

fn causes(error: &dyn std::error::Error) -> Vec<String> {
    let mut causes = vec![error.to_string()];
    let mut source = error.source();
    while let Some(cause) = source {
        causes.push(cause.to_string());
        source = cause.source();
    }
    causes
}
