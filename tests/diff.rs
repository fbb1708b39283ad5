//! `floe diff` as a user sees it: every kind of change, quoting, statistics, patches that git and
//! patch(1) apply, filters, JSON, and a workspace in which programs are at work.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use floe_harness::command::{program, run};
use floe_harness::python::path;
use floe_harness::{Python, ScanOptions, TestStore, Tree};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);
const LARGE: usize = 300_000;

/// A fork `f`, mounted, of a workspace `w` with a file of every sort.
fn forked() -> (TestStore, PathBuf) {
    TestStore::fork_of(|root| {
        fs::create_dir_all(root.join("dir/sub")).unwrap();
        fs::create_dir(root.join("empty")).unwrap();
        for name in [
            "deleted",
            "kept",
            "moved",
            "small",
            "dir/a",
            "dir/b",
            "dir/sub/c",
        ] {
            fs::write(root.join(name), format!("this is {name}\nline 2\nline 3\n")).unwrap();
        }
        fs::write(root.join("large"), vec![b'x'; LARGE]).unwrap();
        symlink("kept", root.join("link")).unwrap();
    })
}

#[track_caller]
fn diff(store: &TestStore, words: &[&str]) -> Vec<String> {
    let words = [&["diff"], words].concat();
    store.ok(words).lines().map(str::to_owned).collect()
}

/// Saves a file as editors do: a new file is renamed over the old one.
fn save(path: &Path, contents: &[u8]) {
    let aside = path.with_extension("swp");
    fs::write(&aside, contents).unwrap();
    fs::rename(aside, path).unwrap();
}

#[test]
fn every_kind_of_change_has_its_letter() {
    let (store, live) = forked();
    fs::write(live.join("new"), "n").unwrap();
    fs::create_dir(live.join("made")).unwrap();
    fs::remove_file(live.join("deleted")).unwrap();
    fs::remove_dir(live.join("empty")).unwrap();
    let large = fs::OpenOptions::new().write(true).open(live.join("large"));
    large.unwrap().write_at(b"y", 200_000).unwrap();
    fs::rename(live.join("moved"), live.join("made/moved")).unwrap();
    fs::remove_file(live.join("link")).unwrap();
    fs::write(live.join("link"), "a file now").unwrap();
    fs::set_permissions(live.join("kept"), fs::Permissions::from_mode(0o600)).unwrap();
    save(&live.join("small"), b"saved");
    fs::rename(live.join("dir"), live.join("renamed")).unwrap();
    fs::write(live.join("renamed/a"), "changed").unwrap();
    fs::write(live.join("temporary"), "t").unwrap();
    fs::remove_file(live.join("temporary")).unwrap();
    let expected = [
        "D\tdeleted",
        "D\tempty",
        "m\tkept",
        "M\tlarge",
        "T\tlink",
        "A\tmade",
        "R\tmoved\tmade/moved",
        "A\tnew",
        "R\tdir\trenamed",
        "M\trenamed/a",
        "M\tsmall",
    ];
    assert_eq!(diff(&store, &["f"]), expected);
    assert_eq!(diff(&store, &["f@base", "f", "--name-status"]), expected);
    let snapshot = store.snapshot("f");
    assert_eq!(diff(&store, &["w", &snapshot]), expected);
    assert_eq!(diff(&store, &[&snapshot, "f"]), [""; 0]);
    // The other way round it is undone.
    let back = diff(&store, &[&snapshot, "f@base"]);
    assert!(back.contains(&"A\tdeleted".to_owned()), "{back:?}");
    assert!(back.contains(&"R\trenamed\tdir".to_owned()), "{back:?}");
    assert_eq!(back.len(), expected.len());
}

#[test]
fn what_was_put_back_or_written_again_as_it_was_is_no_change_of_contents() {
    let (store, live) = forked();
    let old = fs::read(live.join("large")).unwrap();
    let times = fs::metadata(live.join("large")).unwrap();
    fs::write(live.join("large"), "other").unwrap();
    fs::write(live.join("large"), &old).unwrap();
    assert_eq!(diff(&store, &["f"]), ["m\tlarge"]);
    let file = fs::OpenOptions::new().write(true).open(live.join("large"));
    let file = file.unwrap();
    file.set_times(fs::FileTimes::new().set_modified(times.modified().unwrap()))
        .unwrap();
    assert_eq!(diff(&store, &["f"]), [""; 0]);
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(live.join("small"), "user.k", b"v", flags).unwrap();
    fs::rename(live.join("moved"), live.join("x")).unwrap();
    fs::rename(live.join("x"), live.join("moved")).unwrap();
    assert_eq!(diff(&store, &["f"]), ["m\tsmall"]);
    rustix::fs::removexattr(live.join("small"), "user.k").unwrap();
    assert_eq!(diff(&store, &["f"]), [""; 0]);
}

#[test]
fn hard_links_come_and_go_by_name() {
    let (store, live) = forked();
    fs::hard_link(live.join("kept"), live.join("second")).unwrap();
    assert_eq!(diff(&store, &["f"]), ["A\tsecond"]);
    let base = store.snapshot("f");
    fs::write(live.join("second"), "both").unwrap();
    assert_eq!(diff(&store, &[&base, "f"]), ["M\tkept", "M\tsecond"]);
    fs::remove_file(live.join("kept")).unwrap();
    assert_eq!(diff(&store, &[&base, "f"]), ["D\tkept", "M\tsecond"]);
}

#[test]
fn odd_names_are_quoted_as_git_quotes_them_and_json_keeps_their_bytes() {
    let (store, live) = forked();
    for name in [
        &b"a b"[..],
        b"new\nline",
        "\u{fc}".as_bytes(),
        b"\xff\\",
        b"\"q\"",
    ] {
        fs::write(live.join(OsStr::from_bytes(name)), "").unwrap();
    }
    let expected = [
        r#"A	"\"q\"""#,
        "A\ta b",
        r#"A	"new\nline""#,
        r#"A	"\303\274""#,
        r#"A	"\377\\""#,
    ];
    assert_eq!(diff(&store, &["f"]), expected);
    let found = store.json(["diff", "f"]);
    let paths: Vec<Value> = found
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["path"].clone())
        .collect();
    let raw = json!({"bytes": [255, 92]});
    let expected = [
        json!("\"q\""),
        json!("a b"),
        json!("new\nline"),
        json!("\u{fc}"),
        raw,
    ];
    assert_eq!(paths, expected);
    // A name that is no text is also a filter.
    let odd = OsString::from_vec(b"\xff\\".to_vec());
    let words = ["diff", "f", "--"].map(OsString::from);
    let one = store.ok(words.into_iter().chain([odd]));
    assert_eq!(one, r#"A	"\377\\""#);
}

#[test]
fn json_has_path_change_and_where_it_came_from() {
    let (store, live) = forked();
    fs::rename(live.join("moved"), live.join("there")).unwrap();
    fs::write(live.join("there"), "and changed").unwrap();
    fs::remove_file(live.join("deleted")).unwrap();
    let expected = json!([
        {"path": "deleted", "change": "deleted"},
        {"path": "there", "change": "renamed", "from": "moved", "modified": true},
    ]);
    assert_eq!(store.json(["diff", "f"]), expected);
    let lines = store.run(["diff", "--json", "f", "--stat", "--", "deleted"]);
    let lines = lines.expect_code(0).json();
    assert_eq!(lines[0]["lines"]["text"], json!({"added": 0, "removed": 3}));
    assert_eq!(store.json(["diff", "w", "f@base"]), json!([]));
    store.fails(2, ["diff", "f", "--patch", "--json"]);
}

#[test]
fn only_what_lies_under_the_paths_is_shown() {
    let (store, live) = forked();
    for name in ["dir/a", "dir/sub/c", "small"] {
        fs::write(live.join(name), "x").unwrap();
    }
    fs::rename(live.join("moved"), live.join("dir/moved")).unwrap();
    assert_eq!(diff(&store, &["f", "--", "dir/sub"]), ["M\tdir/sub/c"]);
    assert_eq!(diff(&store, &["f", "--", "/small", "di"]), ["M\tsmall"]);
    let both = ["R\tmoved\tdir/moved"];
    assert_eq!(diff(&store, &["f", "--", "moved"]), both);
    assert_eq!(diff(&store, &["f", "--", "./dir/moved/"]), both);
    assert_eq!(diff(&store, &["f", "--", "."]).len(), 4);
}

#[test]
fn lines_are_counted_and_summed() {
    let (store, live) = forked();
    fs::write(live.join("kept"), "this is kept\nline 2\nline 4\nline 5\n").unwrap();
    fs::write(live.join("new"), b"\0binary").unwrap();
    fs::remove_file(live.join("deleted")).unwrap();
    let expected = " deleted |   3 ---\n kept    |   3 ++-\n new     | Bin\n \
                    3 files changed, 2 insertions(+), 4 deletions(-)";
    let output = store.run(["diff", "f", "--stat"]).expect_code(0);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.trim_end(), expected);
}

/// Copies a mount to a plain directory.
fn copy(from: &Path, to: &Path) {
    let mut from = from.as_os_str().to_owned();
    from.push("/.");
    fs::create_dir(to).unwrap();
    run(program("cp", to).arg("-a").arg(from).arg("."), LIMIT).expect_code(0);
}

/// What a patch can bring over: names, kinds, contents, and the mode as far as git has one.
fn patched(root: &Path) -> Vec<(String, String, Vec<u8>)> {
    let tree = Tree::scan(root, ScanOptions::NO_TIMES);
    let mut all = Vec::new();
    for (name, node) in &tree.nodes {
        if node.kind == "dir" || name.is_empty() {
            continue;
        }
        let path = root.join(OsStr::from_bytes(name));
        let contents = match node.kind {
            "file" => fs::read(&path).unwrap(),
            _ => node.target.clone(),
        };
        let kind = format!("{} {}", node.kind, node.mode & 0o100);
        all.push((name.escape_ascii().to_string(), kind, contents));
    }
    all.sort();
    all
}

#[test]
fn a_patch_makes_one_side_the_other() {
    let (store, live) = forked();
    fs::write(live.join("new file"), "first\nsecond").unwrap();
    fs::write(live.join("nothing in it"), "").unwrap();
    fs::remove_file(live.join("deleted")).unwrap();
    fs::write(live.join("kept"), "this is kept\nline 2\nline 4\n").unwrap();
    fs::set_permissions(live.join("small"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(live.join("moved"), live.join("there")).unwrap();
    fs::write(live.join("there"), "this is moved\nline 2\nline 3 too\n").unwrap();
    fs::rename(live.join("dir"), live.join("renamed")).unwrap();
    fs::write(
        live.join("renamed/a"),
        "this is dir/a\nline 2\nline 3\nline 4\n",
    )
    .unwrap();
    fs::remove_file(live.join("link")).unwrap();
    symlink("small", live.join("link")).unwrap();
    fs::write(live.join(OsStr::from_bytes(b"odd \"\xff\"")), b"odd\xfc\n").unwrap();
    let after = patched(&live);
    let patch = store.run(["diff", "f", "--patch"]).expect_code(0).stdout;
    let file = store.base().join("changes.patch");
    fs::write(&file, &patch).unwrap();
    let before = store.mount("w");
    for (name, words) in [("git", &["apply"][..]), ("patch", &["-p1", "-i"])] {
        let dir = store.base().join(name);
        copy(&before, &dir);
        let mut command = program(name, &dir);
        // Or a repository around the test's directory would be looked for.
        command.env("GIT_CEILING_DIRECTORIES", store.base());
        let output = run(command.args(words).arg(&file), LIMIT);
        let patch = String::from_utf8_lossy(&patch);
        assert_eq!(output.code, Some(0), "{output}\n{patch}");
        assert_eq!(patched(&dir), after, "{name}\n{patch}");
    }
}

#[test]
fn a_patch_names_what_it_does_not_hold() {
    let (store, live) = forked();
    fs::write(live.join("kept"), b"now\0binary").unwrap();
    fs::write(live.join("huge"), vec![b'\n'; (8 << 20) + 1]).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        live.join("fifo"),
        rustix::fs::FileType::Fifo,
        mode,
        0,
    )
    .unwrap();
    let output = store.run(["diff", "f", "--patch"]).expect_code(0);
    let text = output.text();
    assert!(
        text.contains("Binary files a/kept and b/kept differ"),
        "{text}"
    );
    assert!(
        text.contains("/dev/null and b/huge differ and are too large to show"),
        "{text}"
    );
    assert!(output.errors().contains("1 left out"), "{output}");
}

#[test]
fn pages_that_a_program_changed_in_a_mapping_are_seen() {
    let (store, live) = forked();
    let mut python = Python::start();
    python.ok(&format!(
        "m = mmap.mmap(os.open({}, os.O_RDWR), {LARGE})\nm[250000:250003] = b'new'",
        path(&live.join("large"))
    ));
    assert_eq!(diff(&store, &["f"]), ["M\tlarge"]);
    let before = store.snapshot("f");
    assert_eq!(diff(&store, &[&before, "f"]), [""; 0]);
    python.ok("m[0:3] = b'new'");
    assert_eq!(diff(&store, &[&before, "f"]), ["M\tlarge"]);
}

#[test]
fn differences_are_told_while_programs_write() {
    let (store, live) = forked();
    let load = floe_harness::Load::writers(&live, 2);
    for _ in 0..8 {
        store.ok(["diff", "f", "--patch"]);
        store.ok(["diff", "f", "--stat"]);
    }
    assert!(load.stop() > 0);
}

#[test]
fn sides_are_named_as_everywhere_and_must_have_something_in_common() {
    let (store, live) = forked();
    fs::write(live.join("new"), "n").unwrap();
    store.ok(["snapshot", "f", "--name", "here"]);
    for words in [&["w", "f/here"], &["f@base", "here"]] {
        assert_eq!(diff(&store, words), ["A\tnew"]);
    }
    store.ok(["ws", "create", "other"]);
    let error = store.fails(2, ["diff", "w", "other"]);
    assert!(error.errors().contains("have nothing in common"), "{error}");
    let error = store.fails(3, ["diff", "other"]);
    assert!(error.errors().contains("was not kept"), "{error}");
    for words in [
        &["diff", "w", "nope"][..],
        &["diff", "nope"],
        &["diff", "nope@base", "w"],
    ] {
        store.fails(3, words);
    }
    store.fails(2, ["diff"]);
    store.fails(2, ["diff", "f", "--stat", "--patch"]);
    // After a rollback the two have only the snapshot's ancestors in common.
    store.ok(["rollback", "f", "here"]);
    fs::remove_file(live.join("new")).unwrap();
    assert_eq!(diff(&store, &["here", "f"]), ["D\tnew"]);
    assert_eq!(diff(&store, &["f"]), [""; 0]);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let (store, live) = forked();
    for number in 0..5_000 {
        fs::write(
            live.join(format!("a name that is rather long {number}")),
            "x\n",
        )
        .unwrap();
    }
    let mut command: Command = store.command();
    command
        .args(["diff", "f", "--patch"])
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
}
