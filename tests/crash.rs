//! SIGKILL of the daemon at random moments under mixed load. Each worker keeps in this process what
//! was acknowledged; afterwards all of it is there, by the next command and nothing else.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use floe_harness::command::run;
use floe_harness::process::Handle;
use floe_harness::python::{Python, path};
use floe_harness::random::Random;
use floe_harness::{Numbered, ScanOptions, TestStore, Tree, long_run, mounts};

/// Work below a directory whose acknowledged part can be checked.
trait Work: Send {
    /// The next operation; once it has returned without error it was acknowledged.
    fn step(&mut self) -> io::Result<()>;
    /// Whether the tree below `root` holds what was acknowledged, and at most one step more. The
    /// work goes on from what is there.
    fn check(&mut self, root: &Path) -> Result<(), String>;
}

/// Creates, appends and renames.
struct Files(PathBuf, Numbered);

impl Work for Files {
    fn step(&mut self) -> io::Result<()> {
        self.1.step()
    }

    fn check(&mut self, root: &Path) -> Result<(), String> {
        let root = root.join(&self.0);
        Numbered::check(&root, self.1.acknowledged()).map_err(|wrong| wrong.join("; "))
    }
}

/// Replaces one file by rename, each version whole and of another length.
struct Replace {
    root: PathBuf,
    done: u64,
    sync: bool,
}

impl Replace {
    fn version(number: u64) -> Vec<u8> {
        let len = 100 + usize::try_from(number * 7919 % 200_000).unwrap();
        number.to_le_bytes().into_iter().cycle().take(len).collect()
    }
}

impl Work for Replace {
    fn step(&mut self) -> io::Result<()> {
        let draft = self.root.join("draft");
        let mut file = File::create(&draft)?;
        file.write_all(&Self::version(self.done + 1))?;
        if self.sync {
            file.sync_all()?;
        }
        drop(file);
        fs::rename(draft, self.root.join("target"))?;
        self.done += 1;
        Ok(())
    }

    fn check(&mut self, root: &Path) -> Result<(), String> {
        let name = self.root.file_name().unwrap();
        let target = match fs::read(root.join(name).join("target")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.done == 0 => {
                return Ok(());
            }
            other => other.map_err(|error| format!("target: {error}"))?,
        };
        let old_or_new = [self.done, self.done + 1];
        if old_or_new
            .iter()
            .any(|&number| target == Self::version(number))
        {
            return Ok(());
        }
        Err(format!(
            "target is neither version of {old_or_new:?}: {} bytes",
            target.len()
        ))
    }
}

/// Writes at random places of one file, and cuts and grows it.
struct Blocks {
    file: PathBuf,
    random: Random,
    /// What was acknowledged, and what the last step would have made of it.
    state: Vec<u8>,
    next: Vec<u8>,
}

impl Work for Blocks {
    fn step(&mut self) -> io::Result<()> {
        self.next.clone_from(&self.state);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&self.file)?;
        if self.random.one_in(10) {
            let len = self.random.index(400_000);
            self.next.resize(len, 0);
            file.set_len(len as u64)?;
        } else {
            // Within one page: one request, and so one step for a crash as well.
            let at = self.random.index(90) * 4096 + self.random.index(2000);
            let len = 1 + self.random.index(2000);
            let bytes = self.random.bytes(len);
            self.next.resize(self.next.len().max(at + len), 0);
            self.next[at..at + len].copy_from_slice(&bytes);
            file.write_all_at(&bytes, at as u64)?;
        }
        self.state.clone_from(&self.next);
        Ok(())
    }

    fn check(&mut self, root: &Path) -> Result<(), String> {
        let path = root.join(self.file.file_name().unwrap());
        let found = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.state.is_empty() => {
                return Ok(());
            }
            other => other.map_err(|error| format!("blocks: {error}"))?,
        };
        if found == self.state || found == self.next {
            self.state = found;
            return Ok(());
        }
        let same = found
            .iter()
            .zip(&self.state)
            .take_while(|(a, b)| a == b)
            .count();
        Err(format!(
            "blocks: {} bytes, {} acknowledged, different from byte {same}",
            found.len(),
            self.state.len()
        ))
    }
}

/// Gives a file one name after another, attributes, and a directory that is made and removed.
struct Names {
    root: PathBuf,
    done: u64,
}

impl Work for Names {
    fn step(&mut self) -> io::Result<()> {
        let name = |number: u64| self.root.join(format!("name{number}"));
        let (old, new) = (name(self.done), name(self.done + 1));
        if !new.try_exists()? {
            fs::hard_link(&old, &new)?;
        }
        let value = (self.done + 1).to_string();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&new, "user.number", value.as_bytes(), flags)?;
        if old.try_exists()? {
            fs::remove_file(&old)?;
        }
        self.done += 1;
        Ok(())
    }

    fn check(&mut self, root: &Path) -> Result<(), String> {
        let dir = root.join(self.root.file_name().unwrap());
        let mut names: Vec<_> = fs::read_dir(&dir)
            .and_then(Iterator::collect::<io::Result<Vec<_>>>)
            .map_err(|error| format!("names: {error}"))?
            .into_iter()
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        let mut allowed = vec![
            format!("name{}", self.done),
            format!("name{}", self.done + 1),
        ];
        allowed.sort();
        if names.is_empty() || !names.iter().all(|name| allowed.contains(name)) {
            return Err(format!("{names:?} where {allowed:?} may be"));
        }
        let nlink = fs::metadata(dir.join(&names[0]))
            .map_err(|error| error.to_string())?
            .nlink();
        if nlink != names.len() as u64 {
            return Err(format!("{names:?} but a link count of {nlink}"));
        }
        Ok(())
    }
}

fn workers(live: &Path) -> Vec<Box<dyn Work>> {
    let dir = |name: &str| {
        let dir = live.join(name);
        fs::create_dir(&dir).unwrap();
        dir
    };
    let names = dir("names");
    fs::write(names.join("name0"), "one file").unwrap();
    let files = |name: &str| Box::new(Files(name.into(), Numbered::new(&dir(name), 0)));
    let replace = |name: &str, sync| {
        let root = dir(name);
        Box::new(Replace {
            root,
            done: 0,
            sync,
        })
    };
    vec![
        files("files1"),
        files("files2"),
        replace("replace", false),
        replace("synced", true),
        Box::new(Blocks {
            file: live.join("blocks"),
            random: Random::new(9),
            state: Vec::new(),
            next: Vec::new(),
        }),
        Box::new(Names {
            root: names,
            done: 0,
        }),
    ]
}

/// Work as far as it came, and what stopped it.
type Outcome = (Box<dyn Work>, Option<io::Error>);

/// Runs the work on a thread each until the daemon dies or `stop` is set, and gives it back.
struct Running {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<Outcome>>,
}

impl Running {
    fn start(work: Vec<Box<dyn Work>>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = work.into_iter().map(|mut work| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Err(error) = work.step() {
                        return (work, Some(error));
                    }
                }
                (work, None)
            })
        });
        let threads = threads.collect();
        Self { stop, threads }
    }

    /// The work, each with how it ended: whoever was in a call when the daemon died got an error.
    fn end(self) -> Vec<Box<dyn Work>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for thread in self.threads {
            let (work, error) = thread.join().unwrap();
            if let Some(error) = error {
                let gone = [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO];
                assert!(
                    error
                        .raw_os_error()
                        .is_some_and(|number| gone.contains(&number)),
                    "{error}"
                );
            }
            all.push(work);
        }
        all
    }
}

#[track_caller]
fn check(work: &mut [Box<dyn Work>], root: &Path, round: usize) {
    let wrong: Vec<_> = work
        .iter_mut()
        .filter_map(|work| work.check(root).err())
        .collect();
    assert!(wrong.is_empty(), "after kill {round}: {wrong:#?}");
}

#[track_caller]
fn dead_mount_says_so(live: &Path) {
    // The kernel opens a directory by itself; listing it asks the daemon.
    let listed =
        fs::read_dir(live).and_then(|entries| entries.map(|e| e.map(drop)).try_for_each(|e| e));
    let error = io::Result::<()>::unwrap_err(listed);
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "{error}");
    let ls = run(
        Command::new("ls").env("LC_ALL", "C").arg(live),
        Duration::from_secs(10),
    );
    assert!(!ls.timed_out && ls.code != Some(0), "{ls}");
    assert!(ls.errors().contains("not connected"), "{ls}");
}

/// A store of its own for each twenty kills: what is checked after each grows with the kills.
#[test]
fn nothing_acknowledged_is_lost_when_the_daemon_is_killed_under_load() {
    // In the long run 1,000 kills, which is what README.md promises.
    let campaigns = if long_run() { 50 } else { 1 };
    let seed = Random::seed_from_env(1);
    for seed in seed..seed + campaigns {
        eprintln!("FLOE_TEST_SEED={seed}");
        kill_under_load(20, &mut Random::new(seed));
    }
}

fn kill_under_load(kills: usize, random: &mut Random) {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    let mut work = workers(&live);
    let first = store.snapshot("w");
    let frozen = store.mount(&first);
    let mut kept = vec![(first, Tree::scan(&frozen, ScanOptions::ALL).digest())];
    for round in 0..kills {
        let running = Running::start(work);
        // In every other round snapshots and forks are under way when the daemon dies.
        let control = round % 2 == 1;
        let pause = Duration::from_millis(20 + random.below(180));
        if control {
            let mut command = store.command();
            command.args(["fork", "w", &format!("f{round}")]);
            let mut taken = command.spawn().unwrap();
            std::thread::sleep(pause);
            store.kill_daemon();
            taken.wait().unwrap();
        } else {
            std::thread::sleep(pause);
            store.kill_daemon();
        }
        work = running.end();
        if !control {
            dead_mount_says_so(&live);
        }
        // Any command brings everything back.
        store.check();
        assert!(mounts::is_mounted(&live) && mounts::is_mounted(&frozen));
        check(&mut work, &live, round);
        for (id, digest) in kept.iter().rev().take(3) {
            let dir = store.mount(id);
            assert_eq!(
                Tree::scan(&dir, ScanOptions::ALL).digest(),
                *digest,
                "snapshot {id}"
            );
            store.umount(&dir);
        }
        if round % 5 == 0 {
            let id = store.snapshot("w");
            let dir = store.mount(&id);
            check(&mut work, &dir, round);
            kept.push((id, Tree::scan(&dir, ScanOptions::ALL).digest()));
            store.umount(&dir);
        }
        for work in &mut work {
            // A step that failed is done again: it must find its way from what it left.
            work.step().unwrap();
        }
    }
    let before = Tree::scan(&live, ScanOptions::ALL);
    store.stop_daemon();
    let live = store.mount("w");
    Tree::scan(&live, ScanOptions::ALL).assert_same(&before);
    check(&mut work, &live, kills);
    for (id, digest) in &kept {
        let dir = store.mount(id);
        assert_eq!(
            Tree::scan(&dir, ScanOptions::ALL).digest(),
            *digest,
            "snapshot {id}"
        );
        store.umount(&dir);
    }
}

#[test]
fn snapshots_acknowledged_before_a_kill_are_there() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    for round in 0..5 {
        let mut taken = Vec::new();
        for number in 0..5 {
            let text = format!("{round} {number}");
            fs::write(live.join("state"), &text).unwrap();
            taken.push((store.snapshot("w"), text));
        }
        store.ok(["fork", "w", &format!("f{round}")]);
        let kept = store.ok(["rollback", "w", taken[0].0.as_str()]);
        store.kill_daemon();
        store.check();
        taken.push((kept, taken[4].1.clone()));
        for (id, text) in &taken {
            let frozen = store.mount(id);
            assert_eq!(&fs::read_to_string(frozen.join("state")).unwrap(), text);
            store.umount(&frozen);
        }
        assert_eq!(fs::read_to_string(live.join("state")).unwrap(), taken[0].1);
        let fork = store.mount(&format!("f{round}"));
        assert_eq!(fs::read_to_string(fork.join("state")).unwrap(), taken[4].1);
    }
}

#[test]
fn whoever_has_a_file_open_gets_an_error_and_not_a_hang() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    fs::write(live.join("a"), vec![b'a'; 200_000]).unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(live.join("a"))
        .unwrap();
    let mut python = Python::start();
    python.ok(&format!(
        "os.chdir({}); m = mmap.mmap(os.open(b'a', os.O_RDWR), 200000)",
        path(&live)
    ));
    store.kill_daemon();
    let refused = |error: io::Error| {
        let number = error.raw_os_error().unwrap();
        assert!(
            [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO].contains(&number),
            "{error}"
        );
    };
    refused(file.write_at(b"x", 0).unwrap_err());
    refused(file.sync_all().unwrap_err());
    refused(File::open(live.join("a")).unwrap_err());
    assert_eq!(python.errno("os.listdir('.')"), libc::ENOTCONN);
    dead_mount_says_so(&live);
    // Restored while the old descriptors are still held: they stay dead, new ones work.
    store.ok(["daemon", "start"]);
    assert_eq!(fs::read(live.join("a")).unwrap(), vec![b'a'; 200_000]);
    refused(file.write_at(b"x", 0).unwrap_err());
    drop(file);
}

/// The daemon has the pages of mapped files written back before a snapshot, on a mount of its own.
/// Killed while it waits for that, it must not leave others waiting for ever.
#[test]
fn a_kill_in_the_middle_of_a_snapshot_of_mapped_files_hangs_nobody() {
    let mut random = Random::new(Random::seed_from_env(5));
    for _ in 0..8 {
        let store = TestStore::new();
        store.ok(["ws", "create", "w"]);
        let live = store.mount("w");
        let mut writers: Vec<_> = (0..3)
            .map(|number| {
                let mut writer = Command::new("python3");
                let script = "import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 32 << 20)
m = mmap.mmap(f, 32 << 20)
def store():
    for at in range(0, 32 << 20, 4096): m[at] = 1
store()
open(sys.argv[1] + '.ready', 'w').close()
while True: store()";
                writer
                    .args(["-c", script])
                    .arg(live.join(number.to_string()));
                writer.spawn().unwrap()
            })
            .collect();
        while !(0..3).all(|number| live.join(format!("{number}.ready")).exists()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut command = store.command();
        command.args(["snapshot", "w"]);
        let mut snapshot = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(random.below(40)));
        store.kill_daemon();
        dead_mount_says_so(&live);
        snapshot.wait().unwrap();
        for writer in &mut writers {
            // SIGBUS has ended some; the others are not stuck.
            if writer.try_wait().unwrap().is_none() {
                writer.kill().unwrap();
            }
            assert!(Handle::of_child(writer).wait_for_end(Duration::from_secs(10)));
            writer.wait().unwrap();
        }
        store.check();
    }
}

#[test]
fn a_kill_while_a_directory_is_imported_leaves_no_half_workspace() {
    let store = TestStore::new();
    let source = store.base().join("source");
    fs::create_dir(&source).unwrap();
    for number in 0..3000 {
        fs::write(source.join(number.to_string()), vec![b'x'; 9000]).unwrap();
    }
    store.ok(["daemon", "start"]);
    for delay in [30, 80, 150] {
        let mut command = store.command();
        command
            .args(["ws", "create", "half", "--copy", "--from"])
            .arg(&source);
        let mut import = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        store.kill_daemon();
        let ended = import.wait().unwrap();
        let names = store.ok(["ws", "list", "-q"]);
        assert_eq!(names.is_empty(), !ended.success(), "{names:?}");
        if ended.success() {
            store.ok(["ws", "delete", "half"]);
        }
    }
    store.stop_daemon();
    store.ok(["daemon", "start"]);
    // They are removed by a thread that nobody waits for.
    let deadline = Instant::now() + Duration::from_secs(5);
    while store.object_files() > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(store.object_files(), 0, "objects are left of nothing");
}
