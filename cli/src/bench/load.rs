//! Programs that write while something else is measured.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use super::error::{BenchError, Step};
use super::room::complain;

/// Files that each writer appends to in turn.
const FILES: u64 = 64;
/// Appends to a file before it is removed and made anew.
const APPENDS: u64 = 32;
const APPEND: [u8; 100] = [b'x'; 100];

/// Writers for this machine: as many as it has processors, but no more than four.
pub(super) fn default_writers() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 4))
}

/// Threads that append to files, remove them and make them anew. Dropping it stops them.
pub(super) struct Writers {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Writers {
    /// Starts threads that write below `root`, each in a directory of its own.
    pub(super) fn start(root: &Path, threads: usize) -> Self {
        let (stop, done) = (Arc::default(), Arc::default());
        let threads = (0..threads).map(|number| {
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            let dir = root.join(format!("load{number}"));
            std::thread::spawn(move || write(&dir, &stop, &done))
        });
        let threads = threads.collect();
        Self {
            stop,
            done,
            threads,
        }
    }

    /// Appends and creations so far.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Stops them and tells how much they did; the first error that one of them met.
    pub(super) fn stop(mut self) -> Result<u64, BenchError> {
        for ended in self.join() {
            ended.step("write in the background")?;
        }
        Ok(self.done())
    }

    fn join(&mut self) -> Vec<io::Result<()>> {
        self.stop.store(true, Ordering::Relaxed);
        let panicked = |_| Err(io::Error::other("a writer panicked"));
        let threads = self.threads.drain(..);
        threads
            .map(|thread| thread.join().unwrap_or_else(panicked))
            .collect()
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        for ended in self.join() {
            if let Err(error) = ended {
                complain(&format!("a writer in the background failed: {error}"));
            }
        }
    }
}

fn write(dir: &Path, stop: &AtomicBool, done: &AtomicU64) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut round = 0;
    loop {
        for file in 0..FILES {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let path = dir.join(file.to_string());
            if round % APPENDS == APPENDS - 1 {
                fs::remove_file(&path)?;
            }
            let mut options = OpenOptions::new();
            let mut file = options.append(true).create(true).open(&path)?;
            file.write_all(&APPEND)?;
            done.fetch_add(1, Ordering::Relaxed);
        }
        round += 1;
    }
}

/// Opens files for writing and maps them; a line on stdin with a number has so many pages of each
/// changed.
const MAPPER: &str = "\
import mmap, sys
files = [open(path, 'r+b') for path in sys.argv[1:]]
maps = [mmap.mmap(file.fileno(), 0) for file in files]
print('ready', flush=True)
turn = 0
for line in sys.stdin:
    turn = (turn + 1) % 256
    for map in maps:
        for page in range(int(line)):
            map[page * 4096] = turn
    print('done', flush=True)
";

/// A process that holds files open for writing, with shared mappings of them. It is another process,
/// as the programs of a workspace are: page faults of this one must not wait for itself.
pub(super) struct Mapper {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Mapper {
    /// Opens and maps files that exist and are not empty. Needs python3.
    pub(super) fn start(files: &[PathBuf]) -> Result<Self, BenchError> {
        let mut child = Command::new("python3")
            .args(["-c", MAPPER])
            .args(files)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .step("start python3, which maps files")?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let stdout = stdout.ok_or("it has no output").step("start python3")?;
        let mut mapper = Self {
            child,
            stdin,
            stdout: BufReader::new(stdout),
        };
        mapper.answer("ready")?;
        Ok(mapper)
    }

    /// Changes the first pages of each file and leaves them dirty in memory.
    pub(super) fn change(&mut self, pages: u64) -> Result<(), BenchError> {
        let stdin = self.stdin.as_mut().ok_or("it has ended");
        let stdin = stdin.step("change mapped pages")?;
        writeln!(stdin, "{pages}").step("change mapped pages")?;
        self.answer("done")
    }

    fn answer(&mut self, expected: &str) -> Result<(), BenchError> {
        let mut line = String::new();
        self.stdout
            .read_line(&mut line)
            .step("hear from the program that maps files")?;
        if line.trim_end() == expected {
            return Ok(());
        }
        Err(BenchError::Wrong {
            what: "the program that maps files has ended".into(),
        })
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        // It ends when its input does.
        self.stdin = None;
        if let Err(error) = self.child.wait() {
            complain(&format!("cannot wait for python3: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_write_until_they_are_stopped_and_report_errors() {
        let dir = tempfile::tempdir().unwrap();
        let writers = Writers::start(dir.path(), 2);
        while writers.done() < 5_000 {
            std::thread::yield_now();
        }
        assert!(writers.stop().unwrap() >= 5_000);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        let failed = Writers::start(&dir.path().join("load0/0"), 1);
        while !failed.threads[0].is_finished() {
            std::thread::yield_now();
        }
        assert!(failed.stop().is_err());
    }
}
