//! Workspaces over directories of the host, in place.

mod common;

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use floe_fs::attr::FileKind;
use floe_fs::dispatch::{Caller, Dispatch, Errno, OpError, RenameFlags, SetAttr, Write};
use floe_fs::id::Ino;
use floe_fs::{AdoptError, BaseDir, BaseError, BaseState, SnapshotOptions, Store, View};

use common::{list, make, name, new_store, read};

const CALLER: Caller = Caller { uid: 0, gid: 0 };

struct Scratch {
    _dir: tempfile::TempDir,
    host: PathBuf,
    store: Arc<Store>,
}

impl Scratch {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("host");
        fs::create_dir_all(host.join("a/b")).unwrap();
        fs::write(host.join("small"), "small\n").unwrap();
        fs::write(host.join("a/large"), vec![7; 300_000]).unwrap();
        fs::write(host.join("a/b/deep"), "deep\n").unwrap();
        fs::write(host.join("empty"), "").unwrap();
        fs::hard_link(host.join("small"), host.join("a/again")).unwrap();
        symlink("a/b/deep", host.join("link")).unwrap();
        let store = new_store(&dir.path().join("s"));
        Self {
            _dir: dir,
            host,
            store,
        }
    }

    fn based(&self, workspace: &str, dirs: &[(&Path, &str)], exclude: &str) -> Arc<View> {
        let dirs = dirs.iter().map(|(dir, at)| BaseDir {
            dir: dir.to_path_buf(),
            at: PathBuf::from(at),
        });
        let dirs: Vec<_> = dirs.collect();
        self.store
            .create_workspace_from(&name(workspace), &dirs, exclude)
            .unwrap();
        self.store.open_live(workspace).unwrap()
    }

    fn view(&self) -> Arc<View> {
        self.based("w", &[(&self.host, "/")], "")
    }

    fn is_sound(&self) {
        let report = self.store.check().unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    }
}

fn walk(view: &View, path: &str) -> Ino {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.fold(Ino::ROOT, |at, name| {
        let found = view.lookup(at, name.as_bytes()).unwrap();
        found.unwrap_or_else(|| panic!("{path}: no {name}")).ino
    })
}

fn write(view: &View, ino: Ino, offset: u64, data: &[u8]) -> Result<(), OpError> {
    view.write(
        ino,
        Write {
            offset,
            data,
            append: false,
            kill_set_id: false,
        },
    )
}

fn try_read(view: &View, ino: Ino) -> Result<Vec<u8>, OpError> {
    let mut out = Vec::new();
    view.read(ino, 0, 1 << 20, &mut out).map(|()| out)
}

fn stale<T: std::fmt::Debug>(result: Result<T, OpError>) {
    assert_eq!(Errno::from(&result.unwrap_err()), Errno(libc::ESTALE));
}

/// Everything below a directory of the host but the time of last access.
fn fingerprint(dir: &Path) -> Vec<(PathBuf, u32, u64, i64, i64, Vec<u8>)> {
    let mut found = Vec::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = path.symlink_metadata().unwrap();
        let contents = if meta.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        if meta.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        }
        let (mode, ino) = (meta.mode(), meta.ino());
        found.push((
            path,
            mode,
            ino,
            meta.mtime_nsec(),
            meta.ctime_nsec(),
            contents,
        ));
    }
    found.sort();
    found
}

#[test]
fn a_directory_in_place_shows_what_it_holds() {
    let scratch = Scratch::new();
    let view = scratch.view();
    assert_eq!(list(&view, Ino::ROOT), ["a", "empty", "link", "small"]);
    assert_eq!(list(&view, walk(&view, "a")), ["again", "b", "large"]);
    assert_eq!(read(&view, walk(&view, "small")), b"small\n");
    assert_eq!(read(&view, walk(&view, "a/large")), vec![7; 300_000]);
    assert_eq!(read(&view, walk(&view, "a/b/deep")), b"deep\n");
    assert_eq!(read(&view, walk(&view, "empty")), b"");
    assert_eq!(view.readlink(walk(&view, "link")).unwrap(), b"a/b/deep");
    assert_eq!(walk(&view, "small"), walk(&view, "a/again"));
    let attr = view.getattr(walk(&view, "small")).unwrap();
    let meta = fs::metadata(scratch.host.join("small")).unwrap();
    assert_eq!((attr.nlink, attr.size), (2, 6));
    assert_eq!(attr.mtime.secs, meta.mtime());
    assert_eq!(i64::from(attr.mtime.nanos), meta.mtime_nsec());
    assert_eq!(view.getattr(walk(&view, "a")).unwrap().nlink, 1);
    scratch.is_sound();
}

#[test]
fn changes_stay_in_the_workspace() {
    let scratch = Scratch::new();
    let before = fingerprint(&scratch.host);
    let view = scratch.view();
    write(&view, walk(&view, "small"), 0, b"S").unwrap();
    write(&view, walk(&view, "a/large"), 100_000, b"X").unwrap();
    let (a, b) = (walk(&view, "a"), walk(&view, "a/b"));
    view.rename((a, b"b"), (Ino::ROOT, b"moved"), RenameFlags::default())
        .unwrap();
    view.unlink(Ino::ROOT, b"link").unwrap();
    let chmod = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    view.setattr(CALLER, walk(&view, "empty"), chmod).unwrap();
    assert_eq!(list(&view, Ino::ROOT), ["a", "empty", "moved", "small"]);
    assert_eq!(read(&view, walk(&view, "a/again")), b"Small\n");
    assert_eq!(read(&view, walk(&view, "moved/deep")), b"deep\n");
    assert_eq!(walk(&view, "moved"), b);
    let large = read(&view, walk(&view, "a/large"));
    assert_eq!(
        (large.len(), large[99_999], large[100_000]),
        (300_000, 7, b'X')
    );
    assert_eq!(fingerprint(&scratch.host), before);
    scratch.is_sound();
}

#[test]
fn forks_and_snapshots_share_what_was_taken_in() {
    let scratch = Scratch::new();
    let view = scratch.view();
    let taken = scratch
        .store
        .snapshot("w", &SnapshotOptions::default())
        .unwrap();
    // Looked at through the snapshot first.
    let frozen = scratch.store.open_frozen(&taken.id).unwrap();
    let deep = walk(&frozen, "a/b/deep");
    assert_eq!(walk(&view, "a/b/deep"), deep);
    write(&view, deep, 0, b"D").unwrap();
    assert_eq!(read(&frozen, deep), b"deep\n");
    assert_eq!(read(&view, deep), b"Deep\n");
    scratch.is_sound();
}

#[test]
fn what_was_removed_here_stays_removed_when_its_other_name_is_met() {
    let scratch = Scratch::new();
    let view = scratch.view();
    let small = walk(&view, "small");
    view.unlink(Ino::ROOT, b"small").unwrap();
    view.forget(small, 1);
    // Its other name is in a directory that nobody has looked into so far.
    let again = walk(&view, "a/again");
    assert_eq!(again, small);
    assert_eq!(view.getattr(again).unwrap().nlink, 1);
    assert_eq!(read(&view, again), b"small\n");
    scratch.is_sound();
}

#[test]
fn a_file_that_was_changed_underneath_is_stale_and_named() {
    let scratch = Scratch::new();
    let view = scratch.view();
    let (small, large) = (walk(&view, "small"), walk(&view, "a/large"));
    assert_eq!(read(&view, large).len(), 300_000);
    fs::write(scratch.host.join("a/large"), vec![8; 300_000]).unwrap();
    fs::remove_file(scratch.host.join("small")).unwrap();
    stale(try_read(&view, large));
    stale(try_read(&view, small));
    stale(write(&view, large, 5, b"x"));
    // What does not need the old contents works.
    let cut = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    view.setattr(CALLER, large, cut).unwrap();
    write(&view, large, 0, b"new").unwrap();
    assert_eq!(read(&view, large), b"new");
    let base = scratch.store.workspace("w").unwrap().base.unwrap();
    let real = scratch.host.canonicalize().unwrap();
    let mut changed = base.changed;
    changed.sort();
    assert_eq!(changed, [real.join("a/large"), real.join("small")]);
    scratch.is_sound();
}

#[test]
fn a_directory_that_is_another_now_is_stale_and_one_that_only_grew_is_not() {
    let scratch = Scratch::new();
    let view = scratch.view();
    let (a, _) = (walk(&view, "a"), list(&view, Ino::ROOT));
    fs::write(scratch.host.join("a/new"), "n").unwrap();
    fs::write(scratch.host.join("late"), "n").unwrap();
    // Not looked into before.
    assert_eq!(list(&view, a), ["again", "b", "large", "new"]);
    // Looked into before.
    assert_eq!(
        view.lookup(Ino::ROOT, b"late").unwrap().map(|e| e.ino),
        None
    );
    fs::rename(scratch.host.join("a/b"), scratch.host.join("a/c")).unwrap();
    fs::create_dir(scratch.host.join("a/b")).unwrap();
    stale(view.lookup(walk(&view, "a/b"), b"deep").map(drop));
    scratch.is_sound();
}

#[test]
fn several_directories_lie_under_one_root_without_what_is_excluded() {
    let scratch = Scratch::new();
    let other = scratch.host.parent().unwrap().join("other");
    fs::create_dir_all(other.join("target")).unwrap();
    fs::write(other.join("target/big"), "b").unwrap();
    fs::write(other.join("x.log"), "l").unwrap();
    fs::write(other.join("main"), "m").unwrap();
    let view = scratch.based(
        "w",
        &[(&scratch.host, "/usr/lib"), (&other, "/usr/src/app")],
        "target/\n/usr/lib/a\n*.log",
    );
    assert_eq!(list(&view, Ino::ROOT), ["usr"]);
    assert_eq!(list(&view, walk(&view, "usr")), ["lib", "src"]);
    assert_eq!(
        list(&view, walk(&view, "usr/lib")),
        ["empty", "link", "small"]
    );
    assert_eq!(list(&view, walk(&view, "usr/src/app")), ["main"]);
    assert_eq!(view.getattr(walk(&view, "usr")).unwrap().nlink, 4);
    scratch.is_sound();
    let base = scratch.store.workspace("w").unwrap().base.unwrap();
    let at: Vec<_> = base
        .dirs
        .iter()
        .map(|dir| dir.at.to_str().unwrap())
        .collect();
    assert_eq!(at, ["/usr/lib", "/usr/src/app"]);
    let new = make(&view, walk(&view, "usr"), "new", FileKind::Directory);
    assert_eq!(view.getattr(new).unwrap().nlink, 2);
    scratch.is_sound();
}

#[test]
fn a_public_base_has_nothing_that_not_everybody_may_read() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.host.join("private")).unwrap();
    fs::write(scratch.host.join("private/key"), "secret").unwrap();
    fs::write(scratch.host.join("token"), "secret").unwrap();
    let set = |name: &str, mode| {
        fs::set_permissions(scratch.host.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    set("private", 0o710);
    set("token", 0o640);
    let _socket = std::os::unix::net::UnixListener::bind(scratch.host.join("socket")).unwrap();
    let dirs = [BaseDir {
        dir: scratch.host.clone(),
        at: PathBuf::from("/"),
    }];
    let made = |name_: &str| {
        let store = &scratch.store;
        store
            .create_public_workspace_from(&name(name_), &dirs, "empty")
            .unwrap();
        store.open_live(name_).unwrap()
    };
    let view = made("w");
    assert_eq!(list(&view, Ino::ROOT), ["a", "link", "small"]);
    assert_eq!(
        view.lookup(Ino::ROOT, b"token")
            .unwrap()
            .map(|found| found.ino),
        None
    );
    scratch.is_sound();
    // Also after the store was opened again, in what was not looked at before.
    set("a/b", 0o700);
    scratch.store.close_view(&view);
    drop(view);
    let path = scratch.store.dir().to_owned();
    let Scratch { _dir, store, .. } = scratch;
    drop(store);
    let store = Store::open(&path).unwrap();
    let view = store.open_live("w").unwrap();
    assert_eq!(list(&view, walk(&view, "a")), ["again", "large"]);
}

#[test]
fn the_store_in_the_directory_is_shown_empty_and_one_in_the_store_is_refused() {
    let scratch = Scratch::new();
    let above = scratch.host.parent().unwrap();
    let view = scratch.based("w", &[(above, "/")], "");
    assert_eq!(list(&view, Ino::ROOT), ["host", "s"]);
    assert_eq!(list(&view, walk(&view, "s")), [""; 0]);
    scratch.is_sound();
    for inside in ["s", "s/objects"] {
        let dirs = [BaseDir {
            dir: above.join(inside),
            at: PathBuf::from("/"),
        }];
        let refused = scratch.store.create_workspace_from(&name("x"), &dirs, "");
        assert!(
            matches!(refused, Err(BaseError::InStore { .. })),
            "{inside}"
        );
    }
}

#[test]
fn everything_is_found_again_when_the_store_is_opened_anew() {
    let scratch = Scratch::new();
    let path = scratch.store.dir().to_owned();
    let view = scratch.view();
    let deep = walk(&view, "a/b/deep");
    let Scratch { _dir, host, store } = scratch;
    store.close_view(&view);
    drop((view, store));
    let store = Store::open(&path).unwrap();
    let view = store.open_live("w").unwrap();
    assert_eq!(walk(&view, "a/b/deep"), deep);
    assert_eq!(read(&view, deep), b"deep\n");
    assert_eq!(read(&view, walk(&view, "a/large")).len(), 300_000);
    // Not there at all any more.
    store.close_view(&view);
    drop((view, store));
    fs::rename(&host, host.with_file_name("away")).unwrap();
    let store = Store::open(&path).unwrap();
    let view = store.open_live("w").unwrap();
    assert_eq!(list(&view, Ino::ROOT), ["a", "empty", "link", "small"]);
    stale(try_read(&view, walk(&view, "a/large")));
    assert_eq!(view.readlink(walk(&view, "link")).unwrap(), b"a/b/deep");
}

#[test]
fn a_fifo_in_place_of_a_file_is_not_opened() {
    let scratch = Scratch::new();
    let view = scratch.view();
    let small = walk(&view, "small");
    fs::remove_file(scratch.host.join("small")).unwrap();
    rustix_mkfifo(&scratch.host.join("small"));
    stale(try_read(&view, small));
}

/// The user that owns nothing: root may read everything.
const NOBODY: u32 = 65534;

/// Runs this program again, as a user who may not read everything in a directory.
fn as_nobody(dir: &Path, act: &str) {
    let program = dir.join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = std::process::Command::new(program);
    command.args(["--exact", "what_a_child_does", "--nocapture"]);
    command.env("FLOE_TEST_CHILD", act);
    command.env("FLOE_TEST_CHILD_DIR", dir);
    std::os::unix::process::CommandExt::uid(&mut command, NOBODY);
    std::os::unix::process::CommandExt::gid(&mut command, NOBODY);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Not a test by itself: what the children of another do.
#[test]
fn what_a_child_does() {
    let Some(act) = std::env::var_os("FLOE_TEST_CHILD") else {
        return;
    };
    let dir = PathBuf::from(std::env::var_os("FLOE_TEST_CHILD_DIR").unwrap());
    let store = dir.join("s");
    let view = if act == "first" {
        let store = new_store(&store);
        let base = BaseDir {
            dir: dir.join("host"),
            at: PathBuf::from("/"),
        };
        store
            .create_workspace_from(&name("w"), &[base], "")
            .unwrap();
        store.open_live("w").unwrap()
    } else {
        Store::open(&store).unwrap().open_live("w").unwrap()
    };
    assert_eq!(list(&view, Ino::ROOT), ["closed", "open", "secret"]);
    assert_eq!(read(&view, walk(&view, "open")), b"open\n");
    let (secret, closed) = (walk(&view, "secret"), walk(&view, "closed"));
    for _ in 0..2 {
        let denied = try_read(&view, secret).unwrap_err();
        assert_eq!(Errno::from(&denied), Errno(libc::EACCES));
        if act == "first" {
            let denied = view.lookup(closed, b"in").unwrap_err();
            assert_eq!(Errno::from(&denied), Errno(libc::EACCES));
        } else {
            assert_eq!(list(&view, closed), ["in"]);
        }
    }
}

/// The rest is there, and what may be read later is read then.
#[test]
fn what_the_user_may_not_read_is_an_error_and_is_tried_again() {
    let scratch = tempfile::tempdir().unwrap();
    let (dir, mode) = (scratch.path(), fs::Permissions::from_mode);
    let host = dir.join("host");
    fs::create_dir_all(host.join("closed")).unwrap();
    for file in ["open", "secret", "closed/in"] {
        fs::write(host.join(file), format!("{file}\n")).unwrap();
    }
    fs::set_permissions(dir, mode(0o777)).unwrap();
    fs::set_permissions(host.join("secret"), mode(0o600)).unwrap();
    fs::set_permissions(host.join("closed"), mode(0o700)).unwrap();
    as_nobody(dir, "first");
    fs::set_permissions(host.join("closed"), mode(0o755)).unwrap();
    as_nobody(dir, "first-opened");
}

fn rustix_mkfifo(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
}

fn adopt(store: &Store) -> Result<floe_fs::AdoptReport, floe_fs::AdoptError> {
    let base = store.base_of("w").unwrap();
    store.adopt(base, &mut |_| ControlFlow::Continue(()))
}

#[test]
fn what_was_adopted_does_not_need_the_host() {
    let scratch = Scratch::new();
    let view = scratch.view();
    let large = walk(&view, "a/large");
    assert_eq!(read(&view, large).len(), 300_000);
    write(&view, large, 0, b"X").unwrap();
    let report = adopt(&scratch.store).unwrap();
    // Two directories were looked into before, a file of two names is one file, and an empty one
    // has nothing to take.
    assert_eq!(
        (report.directories, report.files, report.bytes),
        (1, 3, 300_011)
    );
    fs::remove_dir_all(&scratch.host).unwrap();
    assert_eq!(read(&view, walk(&view, "a/b/deep")), b"deep\n");
    assert_eq!(read(&view, walk(&view, "a/again")), b"small\n");
    let contents = read(&view, large);
    assert_eq!(
        (contents.len(), contents[0], contents[1]),
        (300_000, b'X', 7)
    );
    scratch.is_sound();
    let base = scratch.store.workspace("w").unwrap().base.unwrap();
    assert_eq!((base.state, base.changed), (BaseState::Adopted, vec![]));
    assert_eq!(adopt(&scratch.store).unwrap().files, 0);
    let path = scratch.store.dir().to_owned();
    let Scratch { _dir, store, .. } = scratch;
    store.close_view(&view);
    drop((view, store));
    let store = Store::open(&path).unwrap();
    let view = store.open_live("w").unwrap();
    assert_eq!(read(&view, walk(&view, "small")), b"small\n");
}

#[test]
fn an_adoption_goes_on_where_it_stopped_and_names_what_it_could_not_take() {
    let scratch = Scratch::new();
    let view = scratch.view();
    list(&view, walk(&view, "a"));
    fs::write(scratch.host.join("small"), "Small\n").unwrap();
    let mut steps = 0;
    let base = scratch.store.base_of("w").unwrap();
    let stopped = scratch.store.adopt(base, &mut |_| {
        steps += 1;
        if steps < 2 {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    assert!(matches!(stopped, Err(AdoptError::Interrupted)));
    assert_eq!(scratch.store.unfinished_adoptions(), [base]);
    scratch.is_sound();
    let Err(AdoptError::Incomplete { count: 1, path, .. }) = adopt(&scratch.store) else {
        panic!("a changed file was taken in");
    };
    assert_eq!(path.file_name().unwrap(), "small");
    scratch.is_sound();
    assert_eq!(read(&view, walk(&view, "a/b/deep")), b"deep\n");
    let base = scratch.store.workspace("w").unwrap().base.unwrap();
    assert_eq!(base.state, BaseState::InPlace);
    assert_eq!(scratch.store.unfinished_adoptions(), []);
    let other = scratch.store.create_workspace(&name("plain")).unwrap();
    let refused = scratch.store.base_of(&other.name);
    assert!(matches!(refused, Err(AdoptError::NoBase { .. })));
}

#[test]
fn a_store_that_is_dropped_closes_everything() {
    let open = || {
        let own = fs::read_dir("/proc/self/fd").unwrap();
        let links = own.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        links.collect::<Vec<_>>()
    };
    let scratch = Scratch::new();
    let path = scratch.store.dir().to_owned();
    let view = scratch.view();
    assert_eq!(read(&view, walk(&view, "a/large")).len(), 300_000);
    let Scratch { _dir, host, store } = scratch;
    store.close_view(&view);
    drop((view, store));
    let host = host.canonicalize().unwrap();
    let left: Vec<_> = open()
        .into_iter()
        .filter(|at| at.starts_with(&path) || at.starts_with(&host))
        .collect();
    assert_eq!(left, [] as [PathBuf; 0]);
}
