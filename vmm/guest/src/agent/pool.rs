//! The workers: threads for what may wait for a disk.
//!
//! They are made at the start and never later: a sandbox may have used up its processes. Jobs are
//! done in any order; whoever needs an order submits the next one when the last is done. One thread is apart,
//! for what may wait for the disk of the host for a long time and must not hold up the others.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use floe_guest::message::{AgentMetrics, Entry, Failure, FailureKind, WatchEvent};
use rustix::event::EventfdFlags;

use super::failure::failure;
use super::poll::{Poller, Source, Token};

/// How many threads.
const WORKERS: usize = 4;
/// Most jobs that wait for the thread apart.
const APART_MAX: usize = 8;

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

/// Jobs that wait for a thread.
#[derive(Default)]
struct Queue {
    jobs: Mutex<VecDeque<(u64, Job)>>,
    more: Condvar,
}

impl Queue {
    /// Waits for a job and takes it.
    fn next(&self) -> (u64, Job) {
        let mut jobs = lock(&self.jobs);
        loop {
            if let Some(job) = jobs.pop_front() {
                return job;
            }
            jobs = self.more.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[derive(Default)]
struct Shared {
    jobs: Queue,
    apart: Queue,
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
    /// Starts the threads, also the one that is apart if there is something for it.
    pub fn new(poller: &Rc<Poller>, apart: bool) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let start = |name: String, queue: fn(&Shared) -> &Queue| {
            let shared = Arc::clone(&shared);
            let wake = wake.try_clone()?;
            let thread = std::thread::Builder::new().name(name);
            thread
                .spawn(move || work(&shared, queue(&shared), &wake))
                .map(drop)
        };
        for number in 0..WORKERS {
            start(format!("worker-{number}"), |shared| &shared.jobs)?;
        }
        if apart {
            start("apart".to_owned(), |shared| &shared.apart)?;
        }
        let mut wake = Source::new(poller, wake, Token::Workers);
        wake.want(true, false)?;
        Ok(Self { shared, wake })
    }

    /// Has something done.
    pub fn submit(&self, number: u64, job: Job) {
        lock(&self.shared.jobs.jobs).push_back((number, job));
        self.shared.jobs.more.notify_one();
    }

    /// Has something done by the thread that is apart.
    pub fn submit_apart(&self, number: u64, job: Job) -> Result<(), Failure> {
        let mut jobs = lock(&self.shared.apart.jobs);
        if jobs.len() >= APART_MAX {
            let what = "too much waits for the disk already".to_owned();
            return Err(failure(FailureKind::Exhausted, what));
        }
        jobs.push_back((number, job));
        self.shared.apart.more.notify_one();
        Ok(())
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

fn work(shared: &Shared, queue: &Queue, wake: &OwnedFd) {
    loop {
        let (number, job) = queue.next();
        let outcome = job();
        lock(&shared.finished).push((number, outcome));
        if let Err(error) = rustix::io::write(wake, &1u64.to_ne_bytes()) {
            super::complain("tell of a finished job", &error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::*;

    fn wait_for(pool: &Pool, number: u64) {
        let give_up = Instant::now() + Duration::from_secs(30);
        loop {
            let done = pool.finished();
            if done.iter().any(|(of, _)| *of == number) {
                return;
            }
            assert!(Instant::now() < give_up, "job {number} is not done");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_waits_apart_holds_up_nobody_else_and_is_not_without_end() {
        let poller = Poller::new().unwrap();
        let pool = Pool::new(&poller, true).unwrap();
        let (begun, has_begun) = channel();
        let (go_on, may_go_on) = channel::<()>();
        let stuck = move || {
            begun.send(()).unwrap();
            may_go_on.recv().unwrap();
            Ok(Done::Nothing)
        };
        pool.submit_apart(1, Box::new(stuck)).unwrap();
        has_begun.recv().unwrap();
        let job = || -> Job { Box::new(|| Ok(Done::Nothing)) };
        for number in 0..APART_MAX as u64 {
            pool.submit_apart(10 + number, job()).unwrap();
        }
        let refused = pool.submit_apart(50, job()).unwrap_err();
        assert_eq!(refused.kind, FailureKind::Exhausted);
        pool.submit(100, job());
        wait_for(&pool, 100);
        go_on.send(()).unwrap();
        wait_for(&pool, 10 + APART_MAX as u64 - 1);
        pool.submit_apart(200, job()).unwrap();
        wait_for(&pool, 200);
    }
}
