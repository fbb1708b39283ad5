//! The disk is full: of the whole store, of the objects only, of the catalog only. What was
//! acknowledged stays, what does not fit is refused with ENOSPC and leaves nothing half done, and
//! once there is room again everything works.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use floe_harness::random::Random;
use floe_harness::{Disk, ScanOptions, TestStore, Tree};
use rustix::mount::{UnmountFlags, mount_bind, unmount};

/// Refusals after which the disk counts as full.
const REFUSALS: usize = 40;

/// Bytes left free the second time the disk is filled.
const LEFT: u64 = 8 << 20;

/// Writes as long as anything fits, and knows what every file must hold.
struct Writer {
    root: PathBuf,
    files: BTreeMap<String, Vec<u8>>,
    /// Refused writes: the file, where, and what. As on any file system, the bytes that such a
    /// write was to replace are the old ones or the new ones.
    doubtful: Vec<(String, usize, Vec<u8>)>,
    random: Random,
    refused: usize,
}

impl Writer {
    fn new(root: &Path) -> Self {
        let mut writer = Self {
            root: root.to_path_buf(),
            files: BTreeMap::new(),
            doubtful: Vec::new(),
            random: Random::new(3),
            refused: 0,
        };
        for number in 0..40 {
            let len = [90, 7_000, 100_000, 1_000_000][number % 4];
            writer.write(&format!("old{number}"), 0, len);
        }
        assert_eq!(writer.refused, 0);
        writer
    }

    fn refuse(&mut self, error: &io::Error) {
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
        self.refused += 1;
    }

    /// One write to a file that may be new.
    fn write(&mut self, name: &str, offset: usize, len: usize) {
        let path = self.root.join(name);
        let opened = if self.files.contains_key(name) {
            OpenOptions::new().write(true).open(&path)
        } else {
            File::create_new(&path)
        };
        let file = match opened {
            Ok(file) => file,
            Err(error) => return self.refuse(&error),
        };
        self.write_to(&file, name, offset, len);
    }

    /// One write through a descriptor that is open already.
    fn write_to(&mut self, file: &File, name: &str, offset: usize, len: usize) {
        let known = self.files.entry(name.to_owned()).or_default();
        let data = self.random.bytes(len);
        match file.write_at(&data, offset as u64) {
            Ok(written) => {
                assert_eq!(written, len);
                known.resize(known.len().max(offset + len), 0);
                known[offset..offset + len].copy_from_slice(&data);
            }
            Err(error) => {
                self.doubtful.push((name.to_owned(), offset, data));
                self.refuse(&error);
            }
        }
    }

    /// New small and large files, changes of old ones, in turn.
    fn write_until_full(&mut self) {
        let until = self.refused + REFUSALS;
        for number in 0..20_000 {
            if self.refused >= until {
                return;
            }
            let old = format!("old{}", self.random.below(40));
            match number % 4 {
                0 => self.write(&format!("small{}-{number}", self.refused), 0, 900),
                1 => self.write(&format!("large{}-{number}", self.refused), 0, 200_000),
                2 => self.write(&old, 300, 50),
                _ => self.write(&old, 70_000, 3_000),
            }
        }
        panic!("{} refusals: the disk does not get full", self.refused);
    }

    /// Every file has the bytes of the writes that were not refused, and no other size.
    fn check(&mut self) {
        for (name, expected) in &mut self.files {
            let found = fs::read(self.root.join(name)).unwrap();
            assert_eq!(found.len(), expected.len(), "{name}");
            let explained = |at: usize| {
                self.doubtful.iter().any(|(file, offset, data)| {
                    let byte = at.checked_sub(*offset).and_then(|at| data.get(at));
                    file == name && byte == Some(&found[at])
                })
            };
            let wrong = (0..found.len()).find(|&at| found[at] != expected[at] && !explained(at));
            assert_eq!(wrong, None, "{name} differs at this byte");
            *expected = found;
        }
        self.doubtful.clear();
        let listed = fs::read_dir(&self.root).unwrap().count();
        assert_eq!(listed, self.files.len());
    }
}

/// Fills `disk` under a store in use and makes room again.
fn fill_and_make_room(store: &TestStore, disk: &Disk) {
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    let mut writer = Writer::new(&live);
    // Held across the freeze, and written through once the disk is full.
    let held: Vec<(String, File)> = (0..8)
        .map(|number| {
            let name = format!("old{number}");
            let mut options = OpenOptions::new();
            options.read(true).append(number % 2 == 0).write(true);
            let file = options.open(live.join(&name)).unwrap();
            (name, file)
        })
        .collect();
    let frozen = store.mount(&store.snapshot("w"));
    let digest = Tree::scan(&frozen, ScanOptions::ALL).digest();
    let filling = disk.fill();
    writer.write_until_full();
    for (number, (name, file)) in held.iter().enumerate() {
        let end = writer.files[name].len();
        writer.write_to(
            file,
            name,
            if number % 2 == 0 { end } else { end / 2 },
            5_000,
        );
    }
    drop(held);
    writer.check();
    assert_eq!(Tree::scan(&frozen, ScanOptions::ALL).digest(), digest);
    let refused = store.run(["snapshot", "w", "--durable"]);
    assert!(matches!(refused.code, Some(0 | 1)), "{refused}");
    if refused.code == Some(1) {
        assert!(
            refused.errors().contains("full") || refused.errors().contains("No space"),
            "{refused}"
        );
    }

    // Killed on a full disk: the store opens again, now or once there is room.
    store.kill_daemon();
    let opened = store.run(["ws", "list"]);
    assert!(matches!(opened.code, Some(0 | 1 | 5)), "{opened}");
    fs::remove_file(filling).unwrap();
    store.check();
    writer.check();
    assert_eq!(Tree::scan(&frozen, ScanOptions::ALL).digest(), digest);

    // Full again, but of files that can be removed while it is full.
    let filling = disk.fill();
    let file = OpenOptions::new().write(true).open(&filling).unwrap();
    file.set_len(file.metadata().unwrap().len().saturating_sub(LEFT))
        .unwrap();
    writer.write_until_full();
    writer.check();
    let names: Vec<String> = writer.files.keys().cloned().collect();
    for name in names.iter().filter(|name| !name.starts_with("old")) {
        fs::remove_file(live.join(name)).unwrap();
        writer.files.remove(name);
    }
    writer.check();
    // Their space is given back by a thread that nobody waits for.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let before = writer.refused;
        for number in 0..10 {
            writer.write(&format!("again{number}"), 0, 100_000);
        }
        if writer.refused == before {
            break;
        }
        assert!(Instant::now() < deadline, "removing files made no room");
        std::thread::sleep(Duration::from_millis(50));
    }
    writer.check();
    fs::remove_file(filling).unwrap();
    let snapshot = store.snapshot("w");
    store.check();
    store.stop_daemon();
    let frozen = store.mount(&snapshot);
    writer.root = frozen.clone();
    writer.check();
    store.umount(&frozen);
}

fn place() -> tempfile::TempDir {
    let parent = std::env::var_os("FLOE_TEST_DIR").map_or_else(std::env::temp_dir, Into::into);
    tempfile::tempdir_in::<PathBuf>(parent).unwrap()
}

#[test]
fn a_full_disk_loses_nothing_and_works_again_with_room() {
    let place = place();
    let disk = Disk::ext4(place.path(), "small", 96 << 20);
    let store = TestStore::new_in(disk.dir());
    fill_and_make_room(&store, &disk);
}

/// Mounts a directory over another for the time of some work, with no daemon before and after.
fn with_bind(store: &TestStore, from: &Path, to: &Path, work: impl FnOnce()) {
    mount_bind(from, to).unwrap();
    work();
    store.stop_daemon();
    unmount(to, UnmountFlags::empty()).unwrap();
}

#[test]
fn a_full_disk_of_the_objects_loses_nothing_and_works_again_with_room() {
    let place = place();
    let disk = Disk::ext4(place.path(), "small", 96 << 20);
    let store = TestStore::new();
    let small = disk.dir().join("objects");
    fs::create_dir(&small).unwrap();
    with_bind(&store, &small, &store.store_dir().join("objects"), || {
        fill_and_make_room(&store, &disk);
    });
}

#[test]
fn a_full_disk_of_the_catalog_loses_nothing_and_works_again_with_room() {
    let place = place();
    let disk = Disk::ext4(place.path(), "small", 96 << 20);
    let store = TestStore::new_in(disk.dir());
    let large = place.path().join("objects");
    fs::create_dir(&large).unwrap();
    with_bind(&store, &large, &store.store_dir().join("objects"), || {
        fill_and_make_room(&store, &disk);
    });
}

/// What a program of format 1 left behind on a disk that is full by now. It must be possible to open
/// it, or nothing could be removed.
#[test]
fn a_store_of_an_older_format_is_migrated_on_a_full_disk() {
    let place = place();
    let disk = Disk::ext4(place.path(), "small", 64 << 20);
    let store = TestStore::without_init(disk.dir());
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("fs/tests/fixtures/format-1");
    let dir = store.store_dir();
    for part in ["", "objects", "objects/0", "run"] {
        DirBuilder::new()
            .mode(0o700)
            .create(dir.join(part))
            .unwrap();
    }
    for file in ["catalog.db", "objects/0/1", "objects/0/2"] {
        fs::copy(kept.join(file), dir.join(file)).unwrap();
    }
    fs::write(dir.join("reserve"), vec![0; 16 << 20]).unwrap();
    for file in ["catalog.db", "objects/0/1", "objects/0/2", "reserve"] {
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(dir.join(file), private).unwrap();
    }
    let filling = disk.fill();
    let names = store.ok(["ws", "list", "--quiet"]);
    assert_eq!(names.split_whitespace().collect::<Vec<_>>(), ["trial", "w"]);
    store.ok(["ws", "delete", "trial"]);
    fs::remove_file(filling).unwrap();
    store.stop_daemon();
    store.check();
    let live = store.mount("w");
    assert_eq!(fs::read(live.join("dir/small")).unwrap(), b"small\n");
    store.ok(["snapshot", "w"]);
}
