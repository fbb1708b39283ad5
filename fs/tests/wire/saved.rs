//! Going on where another connection was saved: as the clones of a machine do, each on a fork of the
//! snapshot that was taken with it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use floe_fs::attr::FileKind;
use floe_fs::dispatch::wire::{
    Caching, RestoreStateError, Server, ServerOptions, ServerState, StateError,
};
use floe_fs::dispatch::{Dispatch, OpenMode};
use floe_fs::id::Ino;
use floe_fs::{ForkSource, SnapshotInfo, SnapshotOptions, Store, View};

use crate::client::Client;
use crate::common::{copy_dir, list, make, name, read, write};
use crate::frame::{Body, getattr, op};
use crate::workspace;

/// More than is kept inline.
pub const LARGE: usize = 300_000;

/// A store with a guest that has files open, some of them without a name.
pub struct Source {
    pub store: Arc<Store>,
    pub view: Arc<View>,
    pub client: Client,
    /// Open for reading and writing, with a name.
    kept: u64,
    /// Open for writing, unlinked, small.
    pub small: u64,
    /// Open for reading and writing, unlinked, an object.
    pub large: u64,
    /// A directory that was removed while the guest works in it.
    removed: u64,
}

impl Source {
    pub fn new(dir: &Path) -> Self {
        let (store, view) = workspace(dir);
        let client = Client::mount(view.clone(), ServerOptions::default());
        let kept = client.create(1, "kept", libc::O_RDWR).unwrap();
        client.write(kept, 0, b"kept").unwrap();
        let small = client.create(1, "small", libc::O_RDWR).unwrap();
        client.write(small, 0, b"small").unwrap();
        let large = client.create(1, "large", libc::O_RDWR).unwrap();
        client.write(large, 0, &[7; LARGE]).unwrap();
        let mkdir = Body::new().u32(0o755).u32(0).string(b"dir");
        client.call(op::MKDIR, 1, mkdir).unwrap();
        let removed = client.lookup(1, "dir").unwrap();
        client.lookup(1, "kept").unwrap();
        client.open(kept, libc::O_RDONLY).unwrap();
        for name in ["small", "large"] {
            let name = Body::new().string(name.as_bytes());
            client.call(op::UNLINK, 1, name).unwrap();
        }
        let name = Body::new().string(b"dir");
        client.call(op::RMDIR, 1, name).unwrap();
        Self {
            store,
            view,
            client,
            kept,
            small,
            large,
            removed,
        }
    }

    /// The two of one moment.
    pub fn snapshot(&self) -> (SnapshotInfo, ServerState) {
        let options = SnapshotOptions::default();
        let snapshot = self.store.snapshot("w", &options).unwrap();
        (snapshot, self.client.server.save())
    }

    /// The unlinked inodes.
    pub fn unlinked(&self) -> [Ino; 3] {
        [self.small, self.large, self.removed].map(Ino)
    }
}

pub fn fork(store: &Store, snapshot: &SnapshotInfo, names: &[&str]) -> Vec<Arc<View>> {
    let source = ForkSource::Snapshot(snapshot.id.clone());
    let parsed: Vec<_> = names.iter().map(|text| name(text)).collect();
    store.fork(&source, &parsed).unwrap();
    let open = |name: &&str| store.open_live(name).unwrap();
    names.iter().map(open).collect()
}

/// A guest that goes on in a view.
pub fn resume(view: &Arc<View>, state: &ServerState) -> Client {
    let options = ServerOptions::default();
    Client::of(Server::restore(view.clone(), options, state).unwrap())
}

pub fn contents(client: &Client, node: u64) -> Vec<u8> {
    client.read(node, 0, 1 << 20).unwrap()
}

pub fn is_there(view: &View, ino: Ino) -> bool {
    view.getattr(ino).is_ok()
}

#[test]
fn clones_go_on_with_what_was_open_and_see_nothing_of_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let source = Source::new(dir.path());
    let (store, kept) = (source.store.clone(), source.kept);
    let (small, large) = (source.small, source.large);
    let (snapshot, state) = source.snapshot();
    let state = ServerState::from_bytes(&state.to_bytes()).unwrap();
    // The source goes on at once.
    source
        .client
        .write(small, 0, b"SMALL of the source")
        .unwrap();
    source.client.write(large, 100, b"source").unwrap();

    let views = fork(&store, &snapshot, &["a", "b"]);
    let clones: Vec<Client> = views.iter().map(|view| resume(view, &state)).collect();
    for (clone, mark) in clones.iter().zip([b"a", b"b"]) {
        // No INIT: the guest has mounted.
        assert_eq!(contents(clone, kept), b"kept");
        assert_eq!(contents(clone, small), b"small");
        assert!(contents(clone, large).iter().all(|&byte| byte == 7));
        assert!(clone.call(op::GETATTR, source.removed, getattr()).is_ok());
        assert_eq!(clone.lookup(source.removed, "x"), Err(libc::ENOENT));
        assert_eq!(clone.lookup(1, "kept"), Ok(kept));
        for (node, at) in [(kept, 4), (small, 5), (large, 200_000)] {
            clone.write(node, at, mark).unwrap();
        }
    }
    let [a, b] = &clones[..] else { unreachable!() };
    assert_eq!(
        (contents(a, kept), contents(b, kept)),
        (b"kepta".to_vec(), b"keptb".to_vec())
    );
    assert_eq!(
        (contents(a, small), contents(b, small)),
        (b"smalla".to_vec(), b"smallb".to_vec())
    );
    assert_eq!(contents(a, large)[200_000], b'a');
    assert_eq!(contents(b, large)[200_000], b'b');
    let of_source = contents(&source.client, large);
    assert_eq!(
        (of_source[200_000], &of_source[100..106]),
        (7, &b"source"[..])
    );
    assert_eq!(contents(&source.client, small), b"SMALL of the source");
    assert_eq!(contents(&source.client, kept), b"kept");

    // Each reclaims its own when it lets go, and nobody else's.
    for node in [small, large] {
        a.release(node, libc::O_RDWR).unwrap();
        a.forget(node, 1);
    }
    a.lookup(1, "kept").unwrap();
    store.settle().unwrap();
    assert!(!is_there(&views[0], Ino(small)) && !is_there(&views[0], Ino(large)));
    assert!(is_there(&views[0], Ino(source.removed)));
    assert!(
        source
            .unlinked()
            .iter()
            .all(|&ino| is_there(&views[1], ino))
    );
    assert!(
        source
            .unlinked()
            .iter()
            .all(|&ino| is_there(&source.view, ino))
    );
    assert_eq!(a.read(small, 0, 10), Err(libc::ESTALE));
    assert_eq!(contents(b, small), b"smallb");

    // The end of a connection returns what it held, once.
    let unlinked = source.unlinked();
    for client in clones.into_iter().chain([source.client]) {
        client.hang_up().unwrap();
    }
    store.settle().unwrap();
    for view in views.iter().chain([&source.view]) {
        assert_eq!(view.known(), [Ino::ROOT]);
        assert!(!unlinked.iter().any(|&ino| is_there(view, ino)));
        assert_eq!(list(view, Ino::ROOT), ["kept"]);
    }
    // The snapshot has them for whoever comes next.
    let frozen = store.open_frozen(&snapshot.id).unwrap();
    assert_eq!(read(&frozen, Ino(small)), b"small");
    for view in &views {
        store.close_view(view);
    }
    store.close_view(&source.view);
    assert!(store.check().unwrap().is_clean());
}

#[test]
fn counts_are_those_that_were_saved() {
    let dir = tempfile::tempdir().unwrap();
    let source = Source::new(dir.path());
    let (snapshot, state) = source.snapshot();
    let nodes = [
        (source.kept, 2),
        (source.small, 1),
        (source.large, 1),
        (source.removed, 2),
    ];
    assert_eq!(state.nodes(), nodes.map(|(ino, count)| (Ino(ino), count)));
    let kept = Ino(source.kept);
    let both = OpenMode::ReadWrite;
    let opens = [
        (kept, OpenMode::Read, 1),
        (kept, both, 1),
        (Ino(source.small), both, 1),
        (Ino(source.large), both, 1),
    ];
    assert_eq!(state.opens(), opens);

    let views = fork(&source.store, &snapshot, &["a"]);
    let clone = resume(&views[0], &state);
    // One more than it holds of what it can name by number alone.
    clone.forget(source.removed, 1);
    assert!(clone.call(op::GETATTR, source.removed, getattr()).is_ok());
    clone.forget(source.removed, 1);
    let gone = clone.call(op::GETATTR, source.removed, getattr());
    assert_eq!(gone, Err(libc::ESTALE));
    assert_eq!(clone.release(source.kept, libc::O_RDONLY), Ok(Vec::new()));
    assert_eq!(clone.release(source.kept, libc::O_RDONLY), Err(libc::EBADF));
    assert!(clone.write(source.kept, 0, b"K").is_ok());
    assert_eq!(clone.release(source.kept, libc::O_RDWR), Ok(Vec::new()));
    assert_eq!(clone.write(source.kept, 0, b"K"), Err(libc::EBADF));
    // A snapshot of the clone is one like any other.
    let again = clone.server.save();
    assert_eq!(again.nodes().len(), 3);
    assert_eq!(again.opens_total(), 2);
    clone.hang_up().unwrap();
    source.client.hang_up().unwrap();
}

#[test]
fn clones_start_after_the_store_was_opened_anew() {
    let dir = tempfile::tempdir().unwrap();
    let source = Source::new(dir.path());
    let (small, large, kept) = (source.small, source.large, source.kept);
    let (snapshot, state) = source.snapshot();
    let bytes = state.to_bytes();
    // One fork before, one after, and one of each that wrote before the end.
    let before = fork(&source.store, &snapshot, &["before", "worked"]);
    let worked = resume(&before[1], &state);
    worked.write(large, 0, b"lost with the machine").unwrap();
    worked.hang_up().unwrap();
    source.client.write(large, 0, b"lost as well").unwrap();
    source.client.hang_up().unwrap();
    drop((before, source.view));
    let path = dir.path().join("s");
    drop(source.store);
    let store = Store::open(&path).unwrap();
    assert!(store.check().unwrap().is_clean());

    let after = fork(&store, &snapshot, &["after"]);
    let state = ServerState::from_bytes(&bytes).unwrap();
    let views = [store.open_live("before").unwrap(), after[0].clone()];
    for view in &views {
        let clone = resume(view, &state);
        assert_eq!(contents(&clone, small), b"small");
        assert_eq!(contents(&clone, large), [7; LARGE]);
        clone.write(large, 0, b"x").unwrap();
        clone.write(kept, 0, b"K").unwrap();
        // The chain goes on: a snapshot of the clone, and a clone of that.
        let workspace = if Arc::ptr_eq(view, &views[0]) {
            "before"
        } else {
            "after"
        };
        let options = SnapshotOptions::default();
        let second = store.snapshot(workspace, &options).unwrap();
        let again = clone.server.save();
        let next = fork(&store, &second, &[&format!("{workspace}2")]);
        let grandchild = resume(&next[0], &again);
        assert_eq!(contents(&grandchild, large)[..2], [b'x', 7]);
        assert_eq!(contents(&grandchild, kept), b"Kept");
        assert_eq!(contents(&grandchild, small), b"small");
        grandchild.hang_up().unwrap();
        clone.hang_up().unwrap();
    }
    let worked = store.open_live("worked").unwrap();
    let again = Server::restore(worked, ServerOptions::default(), &state).err();
    assert!(
        matches!(again, Some(RestoreStateError::NoInode { .. })),
        "a machine has let go of it there: {again:?}"
    );
    assert!(store.check().unwrap().is_clean());
}

#[test]
fn clones_start_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let source = Source::new(dir.path());
    let (snapshot, state) = source.snapshot();
    let views = fork(&source.store, &snapshot, &["running", "fresh"]);
    let running = resume(&views[0], &state);
    running.write(source.large, 0, b"running").unwrap();
    source.client.write(source.large, 0, b"source").unwrap();
    // What a process that dies now leaves behind.
    let copy = dir.path().join("copy");
    copy_dir(&dir.path().join("s"), &copy);
    running.hang_up().unwrap();
    source.client.hang_up().unwrap();
    let store = Store::open(&copy).unwrap();
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    let fresh = store.open_live("fresh").unwrap();
    for view in [fresh, fork(&store, &snapshot, &["new"])[0].clone()] {
        let clone = resume(&view, &state);
        assert_eq!(contents(&clone, source.large), [7; LARGE]);
        assert_eq!(contents(&clone, source.small), b"small");
        clone.hang_up().unwrap();
    }
    // The machines that died had changed it, and are gone.
    for name in ["w", "running"] {
        let view = store.open_live(name).unwrap();
        assert!(!is_there(&view, Ino(source.large)));
    }
}

#[test]
fn the_snapshot_itself_can_be_gone_on_with_read_only() {
    let dir = tempfile::tempdir().unwrap();
    let (store, view) = workspace(dir.path());
    let file = make(&view, Ino::ROOT, "f", FileKind::File);
    write(&view, file, 0, b"text");
    let options = ServerOptions {
        read_only: true,
        ..ServerOptions::default()
    };
    let client = Client::mount(view.clone(), options);
    client.lookup(1, "f").unwrap();
    client.open(file.0, libc::O_RDONLY).unwrap();
    view.unlink(Ino::ROOT, b"f").unwrap();
    let snapshot = store.snapshot("w", &SnapshotOptions::default()).unwrap();
    let state = client.server.save();
    client.hang_up().unwrap();
    view.forget(file, 1);
    store.settle().unwrap();
    let frozen = store.open_frozen(&snapshot.id).unwrap();
    for _ in 0..2 {
        let server = Server::restore(frozen.clone(), options, &state).unwrap();
        let client = Client::of(server);
        assert_eq!(contents(&client, file.0), b"text");
        assert_eq!(client.write(file.0, 0, b"x"), Err(libc::EROFS));
        client.hang_up().unwrap();
        assert_eq!(frozen.known(), [Ino::ROOT]);
    }
}

#[test]
fn options_that_break_what_the_guest_believes_or_holds_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = Source::new(dir.path());
    let (snapshot, state) = source.snapshot();
    let view = &fork(&source.store, &snapshot, &["a"])[0];
    let good = ServerOptions {
        nodes_max: 4,
        opens_max: 4,
        ..ServerOptions::default()
    };
    let shared = |millis| Caching::Shared {
        ttl: Duration::from_millis(millis),
    };
    let with = |change: fn(&mut ServerOptions)| {
        let mut options = good;
        change(&mut options);
        Server::restore(view.clone(), options, &state).err()
    };
    let refused = with(|options| options.nodes_max = 3);
    assert!(matches!(
        refused,
        Some(RestoreStateError::TooManyNodes { held: 4, max: 3 })
    ));
    let refused = with(|options| options.opens_max = 3);
    assert!(matches!(
        refused,
        Some(RestoreStateError::TooManyOpens { open: 4, max: 3 })
    ));
    let refused = with(|options| options.read_only = true);
    let text = refused.as_ref().map(ToString::to_string);
    assert!(matches!(
        refused,
        Some(RestoreStateError::ReadOnly { saved: false })
    ));
    assert_eq!(
        text.unwrap(),
        "a connection that was saved writable, and would be read-only"
    );
    for caching in [shared(999), Caching::OnlyWriter] {
        let options = ServerOptions { caching, ..good };
        let refused = Server::restore(view.clone(), options, &state).err();
        assert!(matches!(refused, Some(RestoreStateError::Caching { .. })));
    }
    assert_eq!(view.known(), [Ino::ROOT]);
    // None of that has cost anything: and to believe for longer from now on is no harm.
    let caching = shared(5000);
    let options = ServerOptions { caching, ..good };
    let clone = Client::of(Server::restore(view.clone(), options, &state).unwrap());
    assert_eq!(contents(&clone, source.small), b"small");
    assert_eq!(clone.create(1, "more", libc::O_RDWR), Err(libc::ENOMEM));
    clone.hang_up().unwrap();
    assert_eq!(view.known(), [Ino::ROOT]);
    source.client.hang_up().unwrap();
}

#[test]
fn a_state_of_another_snapshot_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let source = Source::new(dir.path());
    let (old, old_state) = source.snapshot();
    let new = source.client.create(1, "new", libc::O_RDWR).unwrap();
    let open = source.client.server.save();
    source.client.release(new, libc::O_RDWR).unwrap();
    let held = source.client.server.save();
    source.client.forget(new, 1);
    let view = &fork(&source.store, &old, &["a"])[0];
    for state in [&open, &held] {
        let refused = Server::restore(view.clone(), ServerOptions::default(), state);
        let refused = refused.err().unwrap();
        assert!(
            matches!(refused, RestoreStateError::NoInode { ino } if ino == Ino(new)),
            "{refused}"
        );
        assert!(refused.to_string().contains(&new.to_string()));
        source.store.settle().unwrap();
        assert_eq!(view.known(), [Ino::ROOT], "nothing is held");
        assert!(
            source.unlinked().iter().all(|&ino| is_there(view, ino)),
            "and nothing was reclaimed"
        );
    }
    let clone = resume(view, &old_state);
    assert_eq!(contents(&clone, source.small), b"small");
    clone.hang_up().unwrap();

    // A file that is a directory here cannot be open.
    let (_other, view) = workspace(&dir.path().join("other"));
    for name in ["a", "b", "c", "d", "e", "f"] {
        make(&view, Ino::ROOT, name, FileKind::Directory);
    }
    view.forget_all();
    let refused = Server::restore(view.clone(), ServerOptions::default(), &old_state).err();
    let refused = refused.map(|error| error.to_string()).unwrap();
    assert!(refused.contains("cannot be opened here"), "{refused}");
    assert_eq!(view.known(), [Ino::ROOT]);
    source.client.hang_up().unwrap();
}

#[test]
fn damaged_states_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = Source::new(dir.path());
    let bytes = source.client.server.save().to_bytes();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(ServerState::from_bytes(&damaged).is_err(), "byte {at}");
        assert!(ServerState::from_bytes(&bytes[..at]).is_err(), "up to {at}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(ServerState::from_bytes(&longer), Err(StateError::Checksum));
    source.client.hang_up().unwrap();
}

#[test]
fn what_was_restored_and_never_served_is_returned_too() {
    let dir = tempfile::tempdir().unwrap();
    let source = Source::new(dir.path());
    let (snapshot, state) = source.snapshot();
    let view = &fork(&source.store, &snapshot, &["a"])[0];
    let server = Server::restore(view.clone(), ServerOptions::default(), &state).unwrap();
    let held = 1 + state.nodes().len();
    assert_eq!(view.known().len(), held);
    drop(server);
    assert_eq!(view.known(), [Ino::ROOT]);
    source.client.hang_up().unwrap();
}

#[test]
fn a_guest_that_has_not_mounted_is_saved_too() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, view) = workspace(dir.path());
    let client = Client::connect(view.clone(), ServerOptions::default());
    let state = client.server.save();
    assert_eq!((state.agreed(), state.nodes()), (None, &[][..]));
    client.hang_up().unwrap();
    let client = resume(&view, &ServerState::from_bytes(&state.to_bytes()).unwrap());
    assert_eq!(client.call(op::GETATTR, 1, getattr()), Err(libc::EIO));
    client.init(7, 40, u64::MAX).unwrap();
    assert!(client.call(op::GETATTR, 1, getattr()).is_ok());
    client.hang_up().unwrap();
}

#[test]
fn what_a_rollback_took_away_is_not_saved() {
    let dir = tempfile::tempdir().unwrap();
    let source = Source::new(dir.path());
    let view = source.view.clone();
    let options = ServerOptions {
        caching: Caching::Shared {
            ttl: Duration::ZERO,
        },
        ..ServerOptions::default()
    };
    let client = Client::mount(view.clone(), options);
    let attachment = view.attach(client.server.kernel_cache());
    let kept = client.lookup(1, "kept").unwrap();
    let (snapshot, _) = source.snapshot();
    let new = client.create(1, "new", libc::O_RDWR).unwrap();
    assert_eq!(client.server.save().nodes().len(), 2);
    source.store.rollback("w", snapshot.id.as_str()).unwrap();
    let state = client.server.save();
    assert_eq!(state.nodes(), [(Ino(kept), 1)]);
    assert_eq!(state.opens(), []);
    let view = &fork(&source.store, &snapshot, &["a"])[0];
    let clone = Client::of(Server::restore(view.clone(), options, &state).unwrap());
    assert_eq!(clone.read(new, 0, 10), Err(libc::ESTALE));
    assert_eq!(clone.lookup(1, "kept"), Ok(kept));
    clone.hang_up().unwrap();
    drop(attachment);
    client.hang_up().unwrap();
    source.client.hang_up().unwrap();
}
