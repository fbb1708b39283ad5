//! Landings of random changes on random changes, against a plain three-way merge by path.
//!
//! `FLOE_TEST_LONG=1` takes 2,000 sequences; `FLOE_MODEL_CASES` and `FLOE_MODEL_SEED` are as in
//! `model.rs`.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use floe_fs::attr::FileKind;
use floe_fs::dispatch::{Dispatch, NewNode, RenameFlags, SetAttr};
use floe_fs::id::Ino;
use floe_fs::{ForkSource, LandOptions, SnapshotOptions, Store, View};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use common::{ROOT_USER, name, new_store, read, write};

const CASES: u32 = 40;
const CASES_LONG: u32 = 2_000;

/// A file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    directory: bool,
    perm: u16,
    contents: Vec<u8>,
}

type Tree = BTreeMap<String, Node>;

/// What is done at a path, where it can be.
#[derive(Clone, Debug)]
enum Op {
    /// Writes over a file, or makes it.
    Write {
        path: usize,
        contents: u8,
    },
    /// Puts a new file in the place of one.
    Save {
        path: usize,
        contents: u8,
    },
    Mkdir {
        path: usize,
    },
    Remove {
        path: usize,
    },
    Chmod {
        path: usize,
        perm: u8,
    },
    Rename {
        from: usize,
        to: usize,
    },
    Link {
        from: usize,
        to: usize,
    },
}

/// Paths that operations are about, parents before what is in them.
const PATHS: [&str; 16] = [
    "a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "d/e/b", "f", "f/a", "f/g", "f/g/a", "h", "h/a",
    "h/b", "h/i",
];

/// Few, so that both sides do the same now and then. Some are too large for the catalog.
fn contents(number: u8) -> Vec<u8> {
    match number % 6 {
        0 => Vec::new(),
        1 => b"one\n".to_vec(),
        2 => b"two\n".to_vec(),
        3 => vec![b'x'; 9_000],
        4 => [vec![b'x'; 70_000], vec![b'y'; 200_000]].concat(),
        _ => [vec![b'x'; 70_000], vec![b'z'; 200_000]].concat(),
    }
}

struct At {
    parent: Ino,
    name: String,
    ino: Option<Ino>,
}

/// Where a path leads; none if a directory on the way is missing.
fn find(view: &View, path: &str) -> Option<At> {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = match parent {
        "" => Ino::ROOT,
        parent => find(view, parent)?.ino?,
    };
    if view.getattr(parent).unwrap().kind != FileKind::Directory {
        return None;
    }
    let found = view.lookup(parent, name.as_bytes()).unwrap();
    Some(At {
        parent,
        name: name.to_owned(),
        ino: found.map(|entry| entry.ino),
    })
}

fn kind(view: &View, ino: Ino) -> FileKind {
    view.getattr(ino).unwrap().kind
}

fn node(kind: FileKind, perm: u16) -> NewNode<'static> {
    NewNode {
        kind,
        perm,
        umask: 0,
        rdev: 0,
        target: b"",
    }
}

fn make(view: &View, at: &At, name: &str, kind: FileKind, bytes: &[u8]) {
    let perm = if kind == FileKind::Directory {
        0o755
    } else {
        0o644
    };
    let made = view.make(ROOT_USER, at.parent, name.as_bytes(), node(kind, perm));
    if !bytes.is_empty() {
        write(view, made.unwrap().ino, 0, bytes);
    }
}

fn set(view: &View, ino: Ino, size: Option<u64>, perm: Option<u16>) {
    let changes = SetAttr {
        size,
        perm,
        ..SetAttr::default()
    };
    view.setattr(ROOT_USER, ino, changes).unwrap();
}

fn remove(view: &View, at: &At) {
    let Some(ino) = at.ino else { return };
    if kind(view, ino) != FileKind::Directory {
        return view.unlink(at.parent, at.name.as_bytes()).unwrap();
    }
    for name in common::list(view, ino) {
        let found = view.lookup(ino, name.as_bytes()).unwrap();
        let inner = At {
            parent: ino,
            name,
            ino: found.map(|entry| entry.ino),
        };
        remove(view, &inner);
    }
    view.rmdir(at.parent, at.name.as_bytes()).unwrap();
}

fn apply(view: &View, op: &Op) {
    let at = |path: usize| find(view, PATHS[path % PATHS.len()]);
    match *op {
        Op::Write { path, contents: c } => {
            let Some(at) = at(path) else { return };
            match at.ino {
                None => make(view, &at, &at.name, FileKind::File, &contents(c)),
                Some(ino) if kind(view, ino) == FileKind::File => {
                    set(view, ino, Some(0), None);
                    write_all(view, ino, &contents(c));
                }
                Some(_) => {}
            }
        }
        Op::Save { path, contents: c } => {
            let Some(at) = at(path) else { return };
            if at
                .ino
                .is_some_and(|ino| kind(view, ino) == FileKind::Directory)
            {
                return;
            }
            make(view, &at, "aside", FileKind::File, &contents(c));
            let (from, to) = ((at.parent, &b"aside"[..]), (at.parent, at.name.as_bytes()));
            view.rename(from, to, RenameFlags::default()).unwrap();
        }
        Op::Mkdir { path } => {
            let Some(at) = at(path) else { return };
            if at.ino.is_none() {
                make(view, &at, &at.name, FileKind::Directory, b"");
            }
        }
        Op::Remove { path } => {
            if let Some(at) = at(path) {
                remove(view, &at);
            }
        }
        Op::Chmod { path, perm } => {
            if let Some(ino) = at(path).and_then(|at| at.ino) {
                let perm = [0o600, 0o640, 0o755][usize::from(perm) % 3];
                set(view, ino, None, Some(perm));
            }
        }
        Op::Rename { from, to } => {
            if let (Some(from), Some(to)) = (at(from), at(to)) {
                let names = (
                    (from.parent, from.name.as_bytes()),
                    (to.parent, to.name.as_bytes()),
                );
                // It may not be possible.
                drop(view.rename(names.0, names.1, RenameFlags::default()));
            }
        }
        Op::Link { from, to } => {
            if let (Some(At { ino: Some(ino), .. }), Some(to)) = (at(from), at(to)) {
                drop(view.link(ino, to.parent, to.name.as_bytes()));
            }
        }
    }
}

fn write_all(view: &View, ino: Ino, bytes: &[u8]) {
    if !bytes.is_empty() {
        write(view, ino, 0, bytes);
    }
}

fn scan(view: &View) -> Tree {
    let mut tree = Tree::new();
    let mut waiting = vec![(Ino::ROOT, String::new())];
    while let Some((directory, path)) = waiting.pop() {
        for name in common::list(view, directory) {
            let found = view.lookup(directory, name.as_bytes()).unwrap().unwrap();
            let path = match path.len() {
                0 => name,
                _ => format!("{path}/{name}"),
            };
            let is_directory = found.attr.kind == FileKind::Directory;
            if is_directory {
                waiting.push((found.ino, path.clone()));
            }
            let node = Node {
                directory: is_directory,
                perm: found.attr.perm,
                contents: match is_directory {
                    true => Vec::new(),
                    false => read(view, found.ino),
                },
            };
            tree.insert(path, node);
        }
    }
    tree
}

struct Conflict;

/// What becomes of a path.
fn merge(b: Option<&Node>, o: Option<&Node>, t: Option<&Node>) -> Result<Option<Node>, Conflict> {
    // What is of another kind went, and something else came.
    let kind = |node: Option<&Node>| node.map(|node| node.directory);
    let (o_here, t_here) = (
        o.filter(|_| kind(o) == kind(b)),
        t.filter(|_| kind(t) == kind(b)),
    );
    let (o_new, t_new) = (
        o.filter(|_| kind(o) != kind(b)),
        t.filter(|_| kind(t) != kind(b)),
    );
    let kept = match (b, o_here, t_here) {
        (None, ..) | (Some(_), None, None) => None,
        (Some(b), None, Some(one)) | (Some(b), Some(one), None) if one == b => None,
        (Some(_), None, Some(_)) | (Some(_), Some(_), None) => return Err(Conflict),
        (Some(b), Some(o), Some(t)) => Some(Node {
            directory: b.directory,
            perm: value(&b.perm, &o.perm, &t.perm)?,
            contents: value(&b.contents, &o.contents, &t.contents)?,
        }),
    };
    let added = match (o_new, t_new) {
        (Some(o), Some(t)) if o.directory != t.directory || o.contents != t.contents => {
            return Err(Conflict);
        }
        (_, Some(t)) => Some(t.clone()),
        (o, None) => o.cloned(),
    };
    match (kept, added) {
        (Some(_), Some(_)) => Err(Conflict),
        (kept, added) => Ok(kept.or(added)),
    }
}

fn value<T: PartialEq + Clone>(b: &T, o: &T, t: &T) -> Result<T, Conflict> {
    if o == b || o == t {
        Ok(t.clone())
    } else if t == b {
        Ok(o.clone())
    } else {
        Err(Conflict)
    }
}

fn merge_trees(b: &Tree, o: &Tree, t: &Tree) -> Result<Tree, Conflict> {
    let mut merged = Tree::new();
    let paths = b.keys().chain(o.keys()).chain(t.keys());
    for path in paths {
        if let Some(node) = merge(b.get(path), o.get(path), t.get(path))? {
            merged.insert(path.clone(), node);
        }
    }
    for path in merged.keys() {
        if let Some((parent, _)) = path.rsplit_once('/')
            && !merged.get(parent).is_some_and(|node| node.directory)
        {
            return Err(Conflict);
        }
    }
    Ok(merged)
}

/// Three sequences: what both begin with, and what each does.
#[derive(Clone, Debug)]
struct Case {
    base: Vec<Op>,
    ours: Vec<Op>,
    theirs: Vec<Op>,
    /// Whether theirs is open while it is landed on.
    open: bool,
}

fn op(renames: bool) -> BoxedStrategy<Op> {
    let path = || 0..PATHS.len();
    let plain = prop_oneof![
        4 => (path(), any::<u8>()).prop_map(|(path, contents)| Op::Write { path, contents }),
        2 => (path(), any::<u8>()).prop_map(|(path, contents)| Op::Save { path, contents }),
        3 => path().prop_map(|path| Op::Mkdir { path }),
        2 => path().prop_map(|path| Op::Remove { path }),
        1 => (path(), any::<u8>()).prop_map(|(path, perm)| Op::Chmod { path, perm }),
    ];
    if !renames {
        return plain.boxed();
    }
    let rename = (path(), path()).prop_map(|(from, to)| Op::Rename { from, to });
    let link = (path(), path()).prop_map(|(from, to)| Op::Link { from, to });
    prop_oneof![4 => plain, 3 => rename, 1 => link].boxed()
}

fn case(renames: bool) -> impl Strategy<Value = Case> {
    let ops = move |count| prop::collection::vec(op(renames), 0..count);
    (ops(40), ops(6), ops(6), any::<bool>()).prop_map(|(base, ours, theirs, open)| Case {
        base,
        ours,
        theirs,
        open,
    })
}

struct World {
    _dir: tempfile::TempDir,
    store: Arc<Store>,
}

impl World {
    /// A workspace `t` and a fork `w` of it, each with its changes.
    fn new(case: &Case) -> (Self, Tree, Tree, Tree) {
        let dir = tempfile::tempdir().unwrap();
        let store = new_store(&dir.path().join("store"));
        store.create_workspace(&name("t")).unwrap();
        let view = store.open_live("t").unwrap();
        // Directories first, so that there is something to work on.
        for path in [2, 5, 8, 10, 12] {
            apply(&view, &Op::Mkdir { path });
        }
        case.base.iter().for_each(|op| apply(&view, op));
        let base = scan(&view);
        let source = ForkSource::Workspace("t".into());
        store.fork(&source, &[name("w")]).unwrap();
        let fork = store.open_live("w").unwrap();
        case.ours.iter().for_each(|op| apply(&fork, op));
        case.theirs.iter().for_each(|op| apply(&view, op));
        let (ours, theirs) = (scan(&fork), scan(&view));
        if !case.open {
            store.close_view(&view);
        }
        store.close_view(&fork);
        (Self { _dir: dir, store }, base, ours, theirs)
    }

    fn now(&self) -> Tree {
        scan(&self.store.open_live("t").unwrap())
    }

    fn sound(&self) -> Result<(), TestCaseError> {
        let report = self.store.check().unwrap();
        prop_assert!(report.is_clean(), "{:?}", report.problems);
        Ok(())
    }
}

fn options() -> LandOptions {
    LandOptions {
        no_merge: true,
        ..LandOptions::default()
    }
}

/// Without renames, a landing is what a merge by paths makes.
fn by_path(case: &Case) -> Result<bool, TestCaseError> {
    let (world, base, ours, theirs) = World::new(case);
    let expected = merge_trees(&base, &ours, &theirs);
    let dry = LandOptions {
        dry_run: true,
        ..options()
    };
    let planned = world.store.land("w", None, &dry).unwrap();
    prop_assert_eq!(&world.now(), &theirs);
    let report = world.store.land("w", None, &options()).unwrap();
    prop_assert_eq!(&planned.entries, &report.entries);
    prop_assert_eq!(&planned.conflicts, &report.conflicts);
    match expected {
        Err(Conflict) => {
            prop_assert!(!report.conflicts.is_empty(), "no conflict: {:?}", report);
            prop_assert_eq!(&world.now(), &theirs);
        }
        Ok(expected) => {
            prop_assert!(report.conflicts.is_empty(), "{:?}", report.conflicts);
            prop_assert_eq!(&world.now(), &expected);
        }
    }
    after(&world, &report, &theirs)?;
    Ok(report.landed)
}

/// What holds after every landing: the store is sound, nothing is left to land, and it can be undone.
fn after(world: &World, report: &floe_fs::LandReport, theirs: &Tree) -> Result<(), TestCaseError> {
    world.sound()?;
    if !report.landed {
        return Ok(());
    }
    let again = world.store.land("w", None, &options()).unwrap();
    prop_assert!(!again.landed && again.conflicts.is_empty(), "{:?}", again);
    let kept = report.kept.as_ref().unwrap();
    world.store.rollback("t", kept.as_str()).unwrap();
    prop_assert_eq!(&world.now(), theirs);
    let again = world.store.land("w", None, &options()).unwrap();
    prop_assert!(again.landed, "{:?}", again);
    world.sound()
}

/// With renames and hard links: onto what did not change, a landing makes it what ours is; and
/// whatever theirs did, all of it lands or nothing, and the store is sound.
fn with_renames(case: &Case) -> Result<bool, TestCaseError> {
    let unchanged = Case {
        theirs: Vec::new(),
        ..case.clone()
    };
    let (world, base, ours, _) = World::new(&unchanged);
    let report = world.store.land("w", None, &options()).unwrap();
    prop_assert!(report.conflicts.is_empty(), "{:?}", report.conflicts);
    prop_assert_eq!(&world.now(), &ours);
    after(&world, &report, &base)?;

    let (world, _, ours, theirs) = World::new(case);
    let report = world.store.land("w", None, &options()).unwrap();
    if !report.landed {
        prop_assert_eq!(&world.now(), &theirs);
        return world.sound().map(|()| false);
    }
    after(&world, &report, &theirs)?;
    // What landed is there as ours has it, unless only its attributes or its name landed.
    let now = world.now();
    for entry in &report.entries {
        let path = String::from_utf8(entry.path.clone()).unwrap();
        if entry.change == floe_fs::FileChange::Added {
            let (made, found) = (ours.get(&path), now.get(&path));
            let directory = made.is_some_and(|node| node.directory);
            // A directory on the way may have another name here.
            if let (Some(made), Some(found), false) = (made, found, directory) {
                prop_assert_eq!(made.directory, found.directory);
            }
        }
    }
    Ok(true)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn run(renames: bool, check: fn(&Case) -> Result<bool, TestCaseError>) {
    let seed = number("FLOE_MODEL_SEED").unwrap_or_else(|| getrandom::u64().unwrap());
    let long = std::env::var_os("FLOE_TEST_LONG").is_some_and(|value| value == "1");
    let cases = number("FLOE_MODEL_CASES").and_then(|cases| u32::try_from(cases).ok());
    let cases = cases.unwrap_or(if long { CASES_LONG } else { CASES });
    println!("FLOE_MODEL_SEED={seed} FLOE_MODEL_CASES={cases}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases,
        max_shrink_iters: 4000,
        max_shrink_time: 120_000,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let landed = std::cell::Cell::new(0);
    let result = runner.run(&case(renames), |case| {
        landed.set(landed.get() + u32::from(check(&case)?));
        Ok(())
    });
    println!("{} of {cases} landed", landed.get());
    if let Err(error) = result {
        panic!("FLOE_MODEL_SEED={seed}: {error}");
    }
    assert!(landed.get() > cases / 10);
}

#[test]
fn without_renames_a_landing_is_a_merge_by_paths() {
    run(false, by_path);
}

#[test]
fn renames_land_on_what_is_unchanged_and_never_break_anything() {
    run(true, with_renames);
}

#[test]
fn what_a_snapshot_has_lands_with_it_and_later_changes_land_later() {
    let case = Case {
        base: vec![Op::Write {
            path: 0,
            contents: 1,
        }],
        ours: vec![Op::Write {
            path: 1,
            contents: 1,
        }],
        theirs: Vec::new(),
        open: true,
    };
    let (world, ..) = World::new(&case);
    assert!(world.store.land("w", Some("t"), &options()).unwrap().landed);
    let view = world.store.open_live("w").unwrap();
    // The same line again: against what landed before it is no conflict.
    apply(
        &view,
        &Op::Write {
            path: 1,
            contents: 2,
        },
    );
    let report = world.store.land("w", None, &options()).unwrap();
    assert!(report.landed, "{report:?}");
    assert_eq!(world.now()["b"].contents, b"two\n");
    let options = SnapshotOptions::default();
    world.store.snapshot("w", &options).unwrap();
}
