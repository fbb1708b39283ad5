//! What goes wrong while equal contents are stored once: the catalog is older than `objects/`, names
//! go in an unlucky order, files are missing, the process was killed, settings change.

use std::time::{Duration, Instant};

use super::*;

/// The bytes that all files of a store take on the disk.
fn takes(case: &Case) -> u64 {
    let files: BTreeMap<u64, u64> = case
        .objects()
        .values()
        .map(|&(ino, _, bytes)| (ino, bytes))
        .collect();
    files.values().sum()
}

fn object(case: &Case, id: u64) -> PathBuf {
    case.dir.join(format!("objects/0/{id:x}"))
}

/// As after a power failure that took a freeze back and left the second name that came of it.
#[test]
fn a_live_object_that_is_the_file_of_another_gets_its_own_before_it_is_written_to() {
    for cut in [false, true] {
        let case = Case::new();
        let data = contents(20, 6);
        let (view, a, snapshot) = case.with("a", &data);
        case.store.create_workspace(&name("b")).unwrap();
        let live = case.store.open_live("b").unwrap();
        let b = make(&live, Ino::ROOT, "file", FileKind::File);
        write(&live, b, 0, &data);
        drop((view, live));
        let (first, second) = {
            let objects = case.objects();
            let mut ids = objects.keys();
            (*ids.next().unwrap(), *ids.next().unwrap())
        };
        let (first, second) = (object(&case, first), object(&case, second));
        let Case {
            _scratch,
            dir,
            store,
        } = case;
        drop(store);
        fs::remove_file(&second).unwrap();
        fs::hard_link(&first, &second).unwrap();
        let store = Store::open(&dir).unwrap();
        let case = Case {
            _scratch,
            dir,
            store,
        };
        let live = case.store.open_live("b").unwrap();
        let mut expected = data.clone();
        // A descriptor that reads the file that it was is not read on.
        assert!(read(&live, b) == expected);
        if cut {
            let size = floe_fs::dispatch::SetAttr {
                size: Some(100),
                ..Default::default()
            };
            live.setattr(common::ROOT_USER, b, size).unwrap();
            expected.truncate(100);
        } else {
            write(&live, b, 10, b"something else");
            expected[10..24].copy_from_slice(b"something else");
        }
        assert!(read(&live, b) == expected);
        assert!(case.frozen(&snapshot, a) == data);
        assert!(case.objects().values().all(|file| file.1 == 1));
        drop(live);
        let case = case.reopen();
        assert!(read(&case.store.open_live("b").unwrap(), b) == expected);
        assert!(case.frozen(&snapshot, a) == data);
        case.check();
    }
}

/// The hole cannot be made while the file is that of another object as well. Once it was never made.
#[test]
fn what_was_hidden_while_the_file_had_two_names_comes_back_with_the_other_name() {
    for reopened in [false, true] {
        let case = Case::new();
        let data = contents(21, 10);
        let (view, a, first) = case.with("a", &data);
        let (other_view, b, other) = case.with("b", &data);
        write(&view, a, 0, &[7; 4 * BLOCK]);
        let second = case.snapshot("a");
        case.hash();
        if case.reflink() {
            return;
        }
        case.delete_now(&first);
        other_view.unlink(Ino::ROOT, b"file").unwrap();
        other_view.forget(b, u64::MAX);
        drop((view, other_view));
        // What is unlinked and forgotten goes in the background.
        case.store.settle().unwrap();
        let case = if reopened { case.reopen() } else { case };
        let before = takes(&case);
        let freed = case.delete_now(&other);
        // In the memory of this process it is known; afterwards whoever asks for it has it looked for.
        let freed = freed.bytes + if reopened { case.collect().bytes } else { 0 };
        assert!(freed >= 4 * BLOCK as u64, "{freed}");
        assert_eq!(takes(&case), before - freed);
        assert_eq!(case.collect().bytes, 0);
        let mut expected = data.clone();
        expected[..4 * BLOCK].fill(7);
        assert!(case.frozen(&second, a) == expected);
        case.check();
    }
}

/// Both in one collection: blocks were made holes before the names went.
#[test]
fn what_is_hidden_comes_back_with_the_name_that_goes_in_the_same_collection() {
    let case = Case::new();
    let data = contents(22, 10);
    let (view, a, first) = case.with("a", &data);
    let (other_view, b, other) = case.with("b", &data);
    write(&view, a, 0, &[7; 4 * BLOCK]);
    case.snapshot("a");
    case.hash();
    if case.reflink() {
        return;
    }
    other_view.unlink(Ino::ROOT, b"file").unwrap();
    other_view.forget(b, u64::MAX);
    drop((view, other_view));
    // What is unlinked and forgotten goes in the background.
    case.store.settle().unwrap();
    let before = takes(&case);
    let these = DeleteSelection::These(vec![first.id.to_string(), other.id.to_string()]);
    let go_on = &mut |_: &_| ControlFlow::Continue(());
    let freed = case.store.delete_snapshots_now(&these, go_on).unwrap().1;
    assert!(freed.bytes >= 4 * BLOCK as u64, "{freed:?}");
    assert_eq!(takes(&case), before - freed.bytes);
    case.check();
}

#[test]
fn a_missing_file_does_not_keep_the_space_of_others() {
    let case = Case::new();
    let data = contents(23, 10);
    let (view, a, first) = case.with("a", &data);
    let (other, b, second) = case.with("b", &data);
    let lost = *case.objects().keys().next().unwrap();
    write(&view, a, 0, &[7; 4 * BLOCK]);
    write(&other, b, 0, &[8; 4 * BLOCK]);
    case.snapshot("a");
    case.snapshot("b");
    fs::remove_file(object(&case, lost)).unwrap();
    let before = takes(&case);
    let these = DeleteSelection::These(vec![first.id.to_string(), second.id.to_string()]);
    let go_on = &mut |_: &_| ControlFlow::Continue(());
    let freed = case.store.delete_snapshots_now(&these, go_on).unwrap().1;
    assert!(freed.bytes >= 4 * BLOCK as u64, "{freed:?}");
    assert_eq!(takes(&case), before - freed.bytes);
}

/// It had a checksum by then, and nothing but `floe dedup` looked at it again.
#[test]
fn what_was_hashed_while_dedup_was_off_is_stored_once_when_it_is_switched_on() {
    let case = Case::new();
    let data = contents(24, 2);
    case.store.set("dedup", Some("off")).unwrap();
    case.with("a", &data);
    case.with("b", &data);
    case.store.set("hash-rate", Some("1G")).unwrap();
    let begun = Instant::now();
    let until = |done: &dyn Fn() -> bool| {
        while !done() {
            assert!(begun.elapsed().as_secs() < 60, "{:?}", case.objects());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until(&|| case.store.info().unwrap().hashed == 2);
    assert!(case.objects().values().all(|file| file.1 == 1));
    case.store.set("dedup", Some("on")).unwrap();
    until(&|| case.reflink() || case.objects().values().all(|file| file.1 == 2));
    case.check();
}
