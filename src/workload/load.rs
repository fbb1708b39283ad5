//! Load in the background while a test or bench measures something else.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::random::Random;

/// Threads that repeat an operation until [`Load::stop`] or drop.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Repeats `work` on `threads` threads; it is told which thread it runs on.
    ///
    /// # Panics
    /// When a thread cannot be started. A panic of `work` is passed on by [`Load::stop`].
    pub fn start<F>(threads: usize, work: F) -> Self
    where
        F: Fn(usize) + Send + Sync + 'static,
    {
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicU64::new(0));
        let work = Arc::new(work);
        let threads = (0..threads)
            .map(|thread| {
                let (stop, done, work) = (stop.clone(), done.clone(), work.clone());
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        work(thread);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        Self {
            stop,
            done,
            threads,
        }
    }

    /// Writers that keep creating, rewriting, appending to and removing files of up to 64 KiB,
    /// each thread in a directory of its own below `root`.
    ///
    /// # Panics
    /// A thread panics when the file system fails it; [`Load::stop`] passes that on.
    pub fn writers(root: &Path, threads: usize) -> Self {
        let root = root.to_path_buf();
        let counter = AtomicU64::new(0);
        Self::start(threads, move |thread| {
            let mut random = Random::new(counter.fetch_add(1, Ordering::Relaxed));
            let dir = root.join(format!("load{thread}"));
            fs::create_dir_all(&dir).expect("a directory for the load");
            let path = dir.join(random.below(64).to_string());
            let len = 1 + random.index(64 * 1024);
            let data = random.bytes(len);
            match random.below(4) {
                0 | 1 => fs::write(&path, &data).expect("writing a file of the load"),
                2 => OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(&path)
                    .and_then(|mut file| file.write_all(&data[..len.min(100)]))
                    .expect("appending to a file of the load"),
                _ => match fs::remove_file(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        panic!("removing {}: {error}", path.display())
                    }
                    Ok(()) | Err(_) => {}
                },
            }
        })
    }

    /// How many repetitions have ended so far.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Stops, waits for every thread and returns how many repetitions ended.
    ///
    /// # Panics
    /// When a thread has panicked.
    pub fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for thread in std::mem::take(&mut self.threads) {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
        self.done()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                eprintln!("a thread of the background load panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_runs_until_it_is_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let load = Load::writers(dir.path(), 2);
        while load.done() < 100 {
            std::thread::yield_now();
        }
        assert!(load.stop() >= 100);
        assert!(fs::read_dir(dir.path()).unwrap().count() <= 2);
    }
}
