//! The workers: threads for what may wait for a disk.
//!
//! They are made at the start and never later: a sandbox may have used up its processes. Jobs are
//! done in any order; whoever needs an order submits the next one when the last is done.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use floe_guest::message::{AgentMetrics, Entry, Failure, WatchEvent};
use rustix::event::EventfdFlags;

use super::poll::{Poller, Source, Token};

/// How many threads.
const WORKERS: usize = 4;

/// What came of a job.
#[derive(Debug)]
pub enum Done {
    /// Nothing more to say.
    Nothing,
    Entry(Entry),
    /// A file, and its absolute path.
    Opened(OwnedFd, PathBuf, Entry),
    /// Bytes of a file; none at its end.
    Chunk(Vec<u8>),
    /// What was given is written.
    Written,
    /// Entries, as events in JSON.
    Listed(Vec<Vec<u8>>),
    Metrics(AgentMetrics),
    /// Directories are watched, or could not be. The relative names of what was found in those that
    /// have come; `None` if all were watched anew.
    Watched(Result<Option<Vec<PathBuf>>, Failure>),
    /// Events with their entries.
    Looked(Vec<WatchEvent>),
}

/// Something to do on a worker's thread.
pub type Job = Box<dyn FnOnce() -> Result<Done, Failure> + Send>;

/// A job that is done, for the channel of that number.
pub type Finished = (u64, Result<Done, Failure>);

#[derive(Default)]
struct Shared {
    jobs: Mutex<VecDeque<(u64, Job)>>,
    more: Condvar,
    finished: Mutex<Vec<Finished>>,
}

/// The workers.
pub struct Pool {
    shared: Arc<Shared>,
    wake: Source,
}

/// A worker that panics ends the agent, so nobody sees a poisoned lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Starts the threads.
    pub fn new(poller: &Rc<Poller>) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        for number in 0..WORKERS {
            let shared = Arc::clone(&shared);
            let wake = wake.try_clone()?;
            std::thread::Builder::new()
                .name(format!("worker-{number}"))
                .spawn(move || work(&shared, &wake))?;
        }
        let mut wake = Source::new(poller, wake, Token::Workers);
        wake.want(true, false)?;
        Ok(Self { shared, wake })
    }

    /// Has something done.
    pub fn submit(&self, number: u64, job: Job) {
        lock(&self.shared.jobs).push_back((number, job));
        self.shared.more.notify_one();
    }

    /// What has been done since.
    pub fn finished(&self) -> Vec<Finished> {
        let mut count = [0; 8];
        match rustix::io::read(&self.wake, &mut count) {
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => super::complain("hear of the workers", &error),
        }
        std::mem::take(&mut *lock(&self.shared.finished))
    }
}

fn work(shared: &Shared, wake: &OwnedFd) {
    loop {
        let (number, job) = {
            let mut jobs = lock(&shared.jobs);
            loop {
                if let Some(job) = jobs.pop_front() {
                    break job;
                }
                jobs = shared
                    .more
                    .wait(jobs)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        };
        let outcome = job();
        lock(&shared.finished).push((number, outcome));
        if let Err(error) = rustix::io::write(wake, &1u64.to_ne_bytes()) {
            super::complain("tell of a finished job", &error);
        }
    }
}
