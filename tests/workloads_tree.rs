//! A source tree unpacked, compared and removed in a mounted fork, again and again, while snapshots are
//! taken. In the long run it has as many files as the Linux kernel's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use floe_harness::command::{program, run};
use floe_harness::python::{Python, path};
use floe_harness::{Load, ScanOptions, Snapshots, TestStore, Tree, long_run};

/// Directories at the top of the tree.
const TOPS: usize = 64;
/// Of so many snapshots one is looked at whole, the others in part.
const WHOLE: usize = 8;

fn ok(command: &mut Command) {
    run(command, Duration::from_secs(900)).expect_code(0);
}

/// An archive of `files` files in directories three deep, sized as source files are (half of them
/// below 4 KiB, some of 150 KiB), with a symbolic link for each hundred of them.
fn make_archive(archive: &Path, files: usize) {
    Python::start().ok(&format!(
        "import io, random, tarfile
random.seed(20261130)
text = random.randbytes(1 << 20)
with tarfile.open({}.decode(), 'w') as tar:
    seen = set()
    def entry(name, kind=tarfile.REGTYPE, mode=0o644, size=0, target=''):
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.size, info.linkname = kind, mode, size, target
        info.mtime = 1_700_000_000 + len(seen)
        return info
    for n in range({files}):
        parts = ['d%02d' % (n % {TOPS}), 's%02d' % (n // {TOPS} // 120), 't%d' % (n // {TOPS} // 15 % 8)]
        for depth in (1, 2, 3):
            dir = '/'.join(parts[:depth])
            if dir not in seen:
                seen.add(dir)
                tar.addfile(entry(dir, tarfile.DIRTYPE, 0o755))
        size = random.choice([400, 1500, 3000, 5000, 9000, 20000, 40000 if n % 9 else 150000])
        size = random.randrange(size // 2, size + 1)
        start = random.randrange(len(text) - size)
        name = '%s/f%d.c' % (dir, n)
        data = (name.encode() + b'\\n' + text[start:start + size])
        tar.addfile(entry(name, mode=0o755 if n % 50 == 0 else 0o644, size=len(data)), io.BytesIO(data))
        if n % 100 == 0:
            tar.addfile(entry(dir + '/link%d' % n, tarfile.SYMTYPE, 0o777, target='f%d.c' % n))",
        path(archive)
    ));
}

/// The tree is too large to be read for each snapshot: most are known by the names at the top and
/// everything in one of the directories there, each by another one.
fn look(frozen: &Path, number: usize) -> blake3::Hash {
    if number.is_multiple_of(WHOLE) {
        return Tree::scan(frozen, ScanOptions::ALL).digest();
    }
    let mut names: Vec<_> = fs::read_dir(frozen.join("tree"))
        .map(|dir| {
            dir.map(|entry| entry.expect("a name").file_name())
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{names:?}").as_bytes());
    if !names.is_empty() {
        let part = frozen.join("tree").join(&names[number % names.len()]);
        hasher.update(Tree::scan(&part, ScanOptions::ALL).digest().as_bytes());
    }
    hasher.finalize()
}

#[test]
fn a_source_tree_is_unpacked_and_removed_while_snapshots_are_taken() {
    let (files, count) = if long_run() {
        (70_000, 100)
    } else {
        (2_000, 25)
    };
    let store = TestStore::new();
    let archive = store.base().join("tree.tar");
    make_archive(&archive, files);
    store.ok(["ws", "create", "base"]);
    let base = store.mount("base");
    fs::write(base.join("from the base"), "1").unwrap();
    let origin = store.snapshot("base");
    store.ok(["fork", origin.as_str(), "work"]);
    let root: PathBuf = store.mount("work");

    let load = Load::start(1, {
        let root = root.clone();
        move |_| {
            let tree = root.join("tree");
            fs::create_dir(&tree).unwrap();
            ok(program("tar", &tree).arg("-xpf").arg(&archive));
            // Contents, modes, owners, times and targets, byte for byte.
            ok(program("tar", &tree).arg("-df").arg(&archive));
            ok(program("rm", &root).args(["-rf", "tree"]));
            assert_eq!(fs::read_dir(&root).unwrap().count(), 1);
        }
    });
    let mut snapshots = Snapshots::looking(&store, look);
    for _ in 0..count {
        snapshots.take("work");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(load.stop() > 0);
    snapshots.assert_unchanged();
    store.check();
}
