//! `floe land` as a user sees it: what lands, what conflicts, how it is undone, and that programs in the
//! workspace it lands on go on.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use floe_harness::python::path;
use floe_harness::{Python, ScanOptions, TestStore, Tree};
use serde_json::json;

const LARGE: usize = 300_000;

/// A workspace `t`, mounted, and a fork `w` of it, mounted.
fn forked() -> (TestStore, PathBuf, PathBuf) {
    let store = TestStore::new();
    store.ok(["ws", "create", "t"]);
    let theirs = store.mount("t");
    fs::create_dir_all(theirs.join("dir/sub")).unwrap();
    for name in ["kept", "moved", "removed", "small", "dir/a", "dir/sub/b"] {
        fs::write(theirs.join(name), format!("this is {name}\n2\n3\n4\n5\n")).unwrap();
    }
    fs::write(theirs.join("large"), vec![b'x'; LARGE]).unwrap();
    store.ok(["fork", "t", "w"]);
    let ours = store.mount("w");
    (store, theirs, ours)
}

/// Names, kinds, modes, contents: all but times.
fn scan(root: &Path) -> Tree {
    Tree::scan(root, ScanOptions::NO_TIMES)
}

fn save(path: &Path, contents: &str) {
    let aside = path.with_extension("swp");
    fs::write(&aside, contents).unwrap();
    fs::rename(aside, path).unwrap();
}

/// One change of every sort.
fn change(root: &Path) {
    fs::write(root.join("new"), "new").unwrap();
    fs::create_dir_all(root.join("made/deep")).unwrap();
    fs::write(root.join("made/deep/large"), vec![b'n'; LARGE]).unwrap();
    fs::rename(root.join("moved"), root.join("dir/moved")).unwrap();
    fs::rename(root.join("dir"), root.join("renamed")).unwrap();
    fs::remove_file(root.join("removed")).unwrap();
    save(&root.join("small"), "saved");
    let large = OpenOptions::new().write(true).open(root.join("large"));
    large.unwrap().write_all_at(b"changed", 200_000).unwrap();
    fs::set_permissions(root.join("kept"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(root.join("kept"), root.join("again")).unwrap();
    std::os::unix::fs::symlink("new", root.join("link")).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(root.join("kept"), "user.k", b"v", flags).unwrap();
}

#[test]
fn everything_lands_at_once_where_it_is_mounted_and_can_be_undone() {
    let (store, theirs, ours) = forked();
    // Everything is cached in the kernel, the absence of names as well.
    let before = scan(&theirs);
    assert!(!theirs.join("new").exists() && !theirs.join("made").exists());
    change(&ours);
    let planned = store.ok(["land", "w", "--dry-run"]);
    scan(&theirs).assert_same(&before);
    for line in [
        "A\tnew",
        "M\tlarge",
        "R\tdir\trenamed",
        "D\tremoved",
        "M\tsmall",
        "A\tagain",
    ] {
        assert!(
            planned.lines().any(|found| found == line),
            "{line}\n{planned}"
        );
    }
    let kept = store.ok(["land", "w"]);
    let after = scan(&theirs);
    after.assert_same(&scan(&ours));
    assert_eq!(fs::metadata(theirs.join("kept")).unwrap().nlink(), 2);
    let log = store.ok(["log", "t"]);
    assert!(log.contains("landed"), "{log}");
    // Nothing is left to do.
    let again = store.json(["land", "w"]);
    assert_eq!(
        (&again["landed"], &again["files"]),
        (&json!(false), &json!([]))
    );
    store.ok(["rollback", "t", &kept]);
    scan(&theirs).assert_same(&before);
    store.ok(["land", "w", "--onto", "t"]);
    scan(&theirs).assert_same(&after);
    store.ok(["check"]);
}

#[test]
fn what_both_sides_did_elsewhere_is_both_there() {
    let (store, theirs, ours) = forked();
    change(&ours);
    fs::write(theirs.join("their new"), "t").unwrap();
    fs::write(theirs.join("dir/sub/b"), "their contents").unwrap();
    fs::write(theirs.join("dir/their own"), "t").unwrap();
    store.umount(&theirs);
    store.ok(["land", "w"]);
    let theirs = store.mount("t");
    let read = |name: &str| fs::read_to_string(theirs.join(name)).unwrap();
    assert_eq!(read("their new"), "t");
    // In the directory that the other side renamed.
    assert_eq!(read("renamed/sub/b"), "their contents");
    assert_eq!(read("renamed/their own"), "t");
    assert_eq!(read("small"), "saved");
    assert!(!theirs.join("dir").exists());
}

#[test]
fn text_is_merged_by_lines_unless_that_is_not_wanted() {
    let (store, theirs, ours) = forked();
    fs::write(ours.join("kept"), "ours\n2\n3\n4\n5\n").unwrap();
    // Written anew here, changed in place there.
    save(&theirs.join("kept"), "this is kept\n2\n3\n4\ntheirs\n");
    let refused = store.fails(4, ["land", "w", "--no-merge"]);
    assert!(refused.text().contains("kept"), "{refused}");
    let done = store.json(["land", "w"]);
    let expected = json!([{"path": "kept", "change": "modified", "merged": true}]);
    assert_eq!(done["files"], expected);
    assert_eq!(
        fs::read_to_string(theirs.join("kept")).unwrap(),
        "ours\n2\n3\n4\ntheirs\n"
    );
}

#[test]
fn conflicts_are_listed_with_both_sides_and_nothing_is_touched() {
    let (store, theirs, ours) = forked();
    fs::write(ours.join("new"), "would land").unwrap();
    fs::write(ours.join("kept"), "ours").unwrap();
    fs::write(theirs.join("kept"), "theirs").unwrap();
    fs::write(ours.join("removed"), "changed").unwrap();
    fs::remove_file(theirs.join("removed")).unwrap();
    fs::remove_file(ours.join("small")).unwrap();
    fs::write(theirs.join("small"), "changed").unwrap();
    fs::remove_dir_all(ours.join("dir/sub")).unwrap();
    fs::write(theirs.join("dir/sub/added"), "there").unwrap();
    fs::write(ours.join("both"), "ours").unwrap();
    fs::write(theirs.join("both"), "theirs").unwrap();
    fs::rename(ours.join("moved"), ours.join("moved here")).unwrap();
    fs::rename(theirs.join("moved"), theirs.join("moved there")).unwrap();
    let before = scan(&theirs);
    let output = store.fails(4, ["land", "w", "--json"]);
    let report = output.json();
    let conflicts = report["conflicts"].as_array().unwrap();
    let paths: Vec<_> = conflicts
        .iter()
        .map(|one| one["path"].as_str().unwrap())
        .collect();
    assert_eq!(
        paths,
        ["both", "dir/sub/added", "kept", "moved", "removed", "small"]
    );
    let small = json!({"path": "small", "ours": "removed it", "theirs": "changed the contents"});
    assert_eq!(conflicts[5], small);
    scan(&theirs).assert_same(&before);
    assert_eq!(report["kept"], json!(null));
    // One at a time.
    store.ok(["land", "w", "--only", "new"]);
    assert_eq!(
        fs::read_to_string(theirs.join("new")).unwrap(),
        "would land"
    );
    store.fails(4, ["land", "w"]);
}

/// Which mode would be right is not for a landing to say.
#[test]
fn the_same_new_file_with_another_mode_is_a_conflict() {
    let (store, theirs, ours) = forked();
    for root in [&theirs, &ours] {
        fs::create_dir(root.join("both")).unwrap();
        fs::write(root.join("both/script"), "same\n").unwrap();
    }
    let mode = fs::Permissions::from_mode;
    fs::set_permissions(ours.join("both/script"), mode(0o755)).unwrap();
    let refused = store.fails(4, ["land", "w", "--json"]).json();
    assert_eq!(refused["conflicts"][0]["path"], "both/script");
    fs::set_permissions(theirs.join("both/script"), mode(0o755)).unwrap();
    fs::set_permissions(theirs.join("both"), mode(0o700)).unwrap();
    store.ok(["land", "w"]);
}

#[test]
fn several_forks_land_one_after_another_and_are_named_where_they_conflict() {
    let (store, theirs, ours) = forked();
    store.ok(["fork", "w", "second"]);
    store.ok(["fork", "w", "third"]);
    let [second, third] = ["second", "third"].map(|name| store.mount(name));
    fs::write(ours.join("kept"), "of w").unwrap();
    fs::write(second.join("kept"), "of second").unwrap();
    fs::write(second.join("dir/second"), "second").unwrap();
    fs::write(third.join("dir/third"), "third").unwrap();
    store.ok(["land", "w"]);
    store.ok(["land", "third", "--onto", "t"]);
    let output = store.fails(4, ["land", "second", "--onto", "t"]);
    assert!(output.text().contains("C\tkept\t"), "{output}");
    assert!(output.text().contains("(landed from w)"), "{output}");
    // Later changes land on top of what landed before.
    fs::write(ours.join("kept"), "of w, later").unwrap();
    store.ok(["land", "w"]);
    assert_eq!(
        fs::read_to_string(theirs.join("kept")).unwrap(),
        "of w, later"
    );
    assert!(theirs.join("dir/third").exists() && !theirs.join("dir/second").exists());
    // So do those of a fork that was made when that had landed, and on a fork of what has it.
    store.ok(["fork", "w", "late"]);
    store.ok(["fork", "t", "copy"]);
    fs::write(store.mount("late").join("kept"), "of late").unwrap();
    for onto in ["copy", "t"] {
        store.ok(["land", "late", "--onto", onto]);
    }
    assert_eq!(fs::read_to_string(theirs.join("kept")).unwrap(), "of late");
    // And what it was landed on lands back.
    fs::write(theirs.join("kept"), "of t").unwrap();
    store.ok(["land", "t", "--onto", "w"]);
    assert_eq!(fs::read_to_string(ours.join("kept")).unwrap(), "of t");
    store.ok(["check"]);
    store.fails(2, ["land", "t"]);
    store.fails(2, ["land", "w", "--onto", "w"]);
    store.ok(["ws", "create", "other"]);
    store.fails(2, ["land", "w", "--onto", "other"]);
    store.fails(3, ["land", "w", "--onto", "nope"]);
}

/// A file that a program has open, and one that it has mapped, in what is landed on.
#[test]
fn programs_go_on_with_other_files_and_see_what_landed() {
    let (store, theirs, ours) = forked();
    let mut open = fs::File::open(theirs.join("kept")).unwrap();
    let mut python = Python::start();
    python.ok(&format!(
        "m = mmap.mmap(os.open({}, os.O_RDWR), {LARGE})\nm[0:4] = b'mine'",
        path(&theirs.join("large"))
    ));
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..2)
        .map(|number| {
            let (stop, file) = (stop.clone(), theirs.join(format!("writer{number}")));
            std::thread::spawn(move || {
                let file = OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(file)
                    .unwrap();
                let mut written = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    file.write_all_at(&written.to_le_bytes(), written * 8)
                        .unwrap();
                    written += 1;
                }
                written
            })
        })
        .collect();
    for round in 0..8 {
        fs::write(ours.join("kept"), format!("round {round}")).unwrap();
        fs::write(ours.join(format!("new{round}")), "n").unwrap();
        store.ok(["land", "w"]);
        assert_eq!(
            fs::read_to_string(theirs.join("kept")).unwrap(),
            format!("round {round}")
        );
        assert!(theirs.join(format!("new{round}")).exists());
        python.ok(&format!(
            "m[{}:{}] = b'mine'",
            round * 8192,
            round * 8192 + 4
        ));
        std::thread::sleep(Duration::from_millis(20));
    }
    stop.store(true, Ordering::Relaxed);
    for (number, writer) in writers.into_iter().enumerate() {
        let written = writer.join().unwrap();
        let bytes = fs::read(theirs.join(format!("writer{number}"))).unwrap();
        assert_eq!(bytes.len() as u64, written * 8);
        for (at, found) in bytes.chunks(8).enumerate() {
            assert_eq!(found, (at as u64).to_le_bytes());
        }
    }
    python.ok("m.flush()");
    let large = fs::read(theirs.join("large")).unwrap();
    for round in 0..8 {
        assert_eq!(
            &large[round * 8192..round * 8192 + 4],
            b"mine",
            "round {round}"
        );
    }
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "round 7");
    store.ok(["check"]);
}

/// A file without a name is not in the next state, but a landing is not a reason to lose it.
#[test]
fn a_deleted_file_that_is_open_goes_on_and_one_that_a_landing_deletes_is_stale() {
    let (store, theirs, ours) = forked();
    let open = |name: &str| {
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .open(theirs.join(name));
        options.unwrap()
    };
    let (small, large, stale) = (open("small"), open("large"), open("removed"));
    for name in ["small", "large"] {
        fs::remove_file(theirs.join(name)).unwrap();
    }
    fs::remove_file(ours.join("removed")).unwrap();
    fs::write(ours.join("kept"), "ours").unwrap();
    store.ok(["land", "w"]);
    for file in [&small, &large] {
        file.write_all_at(b"still here", 3).unwrap();
        let mut found = [0; 10];
        file.read_exact_at(&mut found, 3).unwrap();
        assert_eq!(&found, b"still here");
    }
    let error = stale.write_all_at(b"x", 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
    drop((small, large, stale));
    store.ok(["check"]);
}

#[test]
fn mappings_that_are_not_written_back_yet_land_too() {
    let (store, theirs, ours) = forked();
    let mut python = Python::start();
    python.ok(&format!(
        "m = mmap.mmap(os.open({}, os.O_RDWR), {LARGE})\nm[250000:250003] = b'new'",
        path(&ours.join("large"))
    ));
    store.ok(["land", "w"]);
    assert_eq!(
        &fs::read(theirs.join("large")).unwrap()[250_000..250_003],
        b"new"
    );
}
