//! Who may do what on a mount: modes, set-id bits and capabilities, sticky directories, ACLs, and
//! special files, as root and as a user without privileges.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use floe_harness::command::run;
use floe_harness::{Output, TestStore};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat};

/// The user and group without privileges.
const NOBODY: u32 = 65_534;

/// A mounted fork of a snapshot that `fill` made, which every user can reach.
fn fork_of(fill: impl FnOnce(&Path)) -> (TestStore, PathBuf) {
    let store = TestStore::new();
    fs::set_permissions(store.base(), fs::Permissions::from_mode(0o755)).unwrap();
    store.ok(["ws", "create", "w"]);
    let origin = store.mount("w");
    fs::set_permissions(&origin, fs::Permissions::from_mode(0o755)).unwrap();
    fill(&origin);
    store.umount(&origin);
    store.ok(["fork", "w", "f"]);
    let live = store.mount("f");
    (store, live)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Runs a script as nobody with these supplementary groups.
fn nobody(dir: &Path, groups: &str, script: &str) -> Output {
    let groups = match groups {
        "" => "--clear-groups".to_owned(),
        some => format!("--groups={some}"),
    };
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", groups.as_str()]);
    command
        .args(["sh", "-ec", script])
        .current_dir(dir)
        .env("LC_ALL", "C");
    run(&mut command, Duration::from_secs(30))
}

#[track_caller]
fn root(dir: &Path, script: &str) -> String {
    let mut command = Command::new("sh");
    command.args(["-ec", script]).current_dir(dir);
    run(&mut command, Duration::from_secs(30))
        .expect_code(0)
        .text()
}

/// A valid `security.capability` value: `cap_net_raw=ep`.
const CAPABILITY: [u8; 20] = [
    1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

#[test]
fn changes_by_others_clear_set_id_bits_and_capabilities() {
    // What is done, and the mode that 6777 then becomes.
    let cases = [
        ("write", "printf x >>write", 0o777),
        ("truncate", ": >truncate", 0o777),
        ("truncate2", "truncate -s 5 truncate2", 0o777),
        ("copy", "cp --no-preserve=all source copy", 0o777),
        ("read", "cat read >/dev/null", 0o6777),
    ];
    let (_store, live) = fork_of(|origin| {
        fs::write(origin.join("source"), "source").unwrap();
        for (name, _, _) in cases {
            fs::write(origin.join(name), vec![b'x'; 20_000]).unwrap();
            set_mode(&origin.join(name), 0o6777);
            let flags = XattrFlags::empty();
            rustix::fs::setxattr(origin.join(name), "security.capability", &CAPABILITY, flags)
                .unwrap();
        }
    });
    for (name, script, expected) in cases {
        let path = live.join(name);
        assert_eq!(mode(&path), 0o6777);
        nobody(&live, "", script).expect_code(0);
        assert_eq!(mode(&path), expected, "{name}");
        let capability = floe_harness::xattrs::read(&path).unwrap();
        let kept = capability.contains_key(&b"security.capability"[..]);
        assert_eq!(kept, expected == 0o6777, "{name}");
    }
}

#[test]
fn changes_of_the_owner_clear_set_id_bits_and_root_keeps_them_when_it_writes() {
    let (_store, live) = fork_of(|origin| {
        for name in ["write", "owner", "same", "dir"] {
            match name {
                "dir" => fs::create_dir(origin.join(name)).unwrap(),
                _ => fs::write(origin.join(name), "x").unwrap(),
            }
            set_mode(&origin.join(name), 0o6755);
        }
    });
    root(&live, "printf x >>write");
    assert_eq!(mode(&live.join("write")), 0o6755);
    chown(live.join("owner"), Some(1), Some(1)).unwrap();
    assert_eq!(mode(&live.join("owner")), 0o755);
    chown(live.join("same"), Some(0), Some(0)).unwrap();
    assert_eq!(mode(&live.join("same")), 0o755);
    chown(live.join("dir"), Some(1), Some(1)).unwrap();
    assert_eq!(mode(&live.join("dir")), 0o6755, "a directory keeps them");
}

#[test]
fn a_set_id_program_runs_as_its_owner() {
    let (_store, live) = fork_of(|origin| {
        let program = origin.join("id");
        fs::copy("/usr/bin/id", &program).unwrap();
        chown(&program, Some(1234), Some(4321)).unwrap();
        set_mode(&program, 0o6755);
    });
    assert_eq!(root(&live, "./id -u; ./id -g"), "1234\n4321");
    nobody(&live, "", "test \"$(./id -u)\" = 1234").expect_code(0);
}

#[test]
fn modes_keep_others_out() {
    let (_store, live) = fork_of(|origin| {
        fs::create_dir(origin.join("closed")).unwrap();
        fs::write(origin.join("closed/file"), "x").unwrap();
        fs::create_dir(origin.join("search")).unwrap();
        fs::write(origin.join("search/file"), "x").unwrap();
        fs::write(origin.join("secret"), "x").unwrap();
        set_mode(&origin.join("closed"), 0o700);
        set_mode(&origin.join("search"), 0o711);
        set_mode(&origin.join("secret"), 0o600);
    });
    let cannot = |script: &str| {
        let output = nobody(&live, "", script);
        assert_ne!(output.code, Some(0), "{output}");
        let why = output.errors();
        let refused = [
            "Permission denied",
            "Operation not permitted",
            "cannot create",
            "can't",
        ];
        assert!(refused.iter().any(|text| why.contains(text)), "{output}");
    };
    for script in [
        "cat secret",
        "cat closed/file",
        "ls search",
        "printf x >search/file",
        "printf x >new",
        "mkdir new",
        "rm -f secret",
        "mv secret other",
        "ln secret other",
        "chmod 777 secret",
        "chown 65534 secret",
        "touch -d 2001-01-01 search/file",
        "mknod device c 1 3",
    ] {
        cannot(script);
    }
    nobody(&live, "", "cat search/file").expect_code(0);
    // What the kernel has cached for root is not for others.
    root(&live, "cat secret closed/file; ls search");
    cannot("cat secret");
    set_mode(&live.join("secret"), 0o644);
    nobody(&live, "", "cat secret").expect_code(0);
}

#[test]
fn in_a_sticky_directory_only_the_owner_removes() {
    let (_store, live) = fork_of(|origin| {
        fs::create_dir(origin.join("tmp")).unwrap();
        set_mode(&origin.join("tmp"), 0o1777);
        fs::write(origin.join("tmp/roots"), "x").unwrap();
        set_mode(&origin.join("tmp/roots"), 0o666);
    });
    nobody(&live, "", "printf y >tmp/roots; printf x >tmp/mine").expect_code(0);
    for script in [
        "rm tmp/roots",
        "mv tmp/roots tmp/other",
        "mv tmp/mine tmp/roots",
    ] {
        let output = nobody(&live, "", script);
        assert!(output.errors().contains("not permitted"), "{output}");
    }
    nobody(&live, "", "mv tmp/mine tmp/renamed; rm tmp/renamed").expect_code(0);
}

#[test]
fn acls_grant_mask_and_are_inherited() {
    let (_store, live) = fork_of(|origin| {
        fs::create_dir(origin.join("dir")).unwrap();
        for name in ["granted", "masked", "denied", "group"] {
            fs::write(origin.join(name), "x").unwrap();
        }
        root(
            origin,
            "chmod 640 granted masked group; chmod 644 denied
             setfacl -m u:65534:rw granted masked; setfacl -m m::r masked
             setfacl -m u:65534:- denied; setfacl -m g:777:rw group
             setfacl -m u:65534:rwx dir; setfacl -d -m u:65534:rwx,g::-,o::- dir",
        );
    });
    nobody(&live, "", "printf y >>granted; cat masked").expect_code(0);
    for script in ["printf y >>masked", "cat denied", "cat group"] {
        let output = nobody(&live, "", script);
        assert_ne!(output.code, Some(0), "{output}");
    }
    nobody(&live, "777", "printf y >>group").expect_code(0);
    nobody(&live, "", "umask 077; : >dir/file; mkdir -p dir/sub/sub").expect_code(0);
    let acl = root(&live, "getfacl -cnp dir/file dir/sub/sub");
    assert_eq!(acl.matches("\nuser:65534:rwx").count(), 2, "{acl}");
    assert_eq!(acl.matches("default:user:65534:rwx").count(), 1, "{acl}");
    assert_eq!(mode(&live.join("dir/file")) & 0o7, 0);
    // The mode's group bits are the mask, and chmod changes it.
    set_mode(&live.join("granted"), 0o600);
    assert_ne!(nobody(&live, "", "cat granted").code, Some(0));
    root(
        &live,
        "setfacl -b granted; test \"$(getfacl -cnp granted | grep -c 65534)\" = 0",
    );
}

#[test]
fn a_set_group_id_directory_hands_its_group_on() {
    let (_store, live) = fork_of(|origin| {
        fs::create_dir(origin.join("dir")).unwrap();
        chown(origin.join("dir"), Some(NOBODY), Some(555)).unwrap();
        set_mode(&origin.join("dir"), 0o2775);
    });
    nobody(&live, "555", ": >dir/file; mkdir dir/sub; ln -s x dir/link").expect_code(0);
    for name in ["file", "sub", "link"] {
        let meta = fs::symlink_metadata(live.join("dir").join(name)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (NOBODY, 555), "{name}");
    }
    assert_eq!(mode(&live.join("dir/sub")) & 0o2000, 0o2000);
    // Who is not in the group cannot make a program of that group.
    nobody(&live, "", ": >dir/other; chmod 2755 dir/other").expect_code(0);
    assert_eq!(mode(&live.join("dir/other")), 0o755);
}

#[test]
fn devices_fifos_and_sockets_work() {
    let node = |dir: &Path, name: &str, kind, device| {
        mknodat(
            CWD,
            dir.join(name),
            kind,
            Mode::from_raw_mode(0o666),
            device,
        )
        .unwrap();
        set_mode(&dir.join(name), 0o666);
    };
    let (_store, live) = fork_of(|origin| {
        node(
            origin,
            "null",
            FileType::CharacterDevice,
            rustix::fs::makedev(1, 3),
        );
        node(
            origin,
            "zero",
            FileType::CharacterDevice,
            rustix::fs::makedev(1, 5),
        );
        node(origin, "fifo", FileType::Fifo, 0);
    });
    fs::write(live.join("null"), "gone").unwrap();
    let mut bytes = [9; 100];
    fs::File::open(live.join("zero"))
        .unwrap()
        .read_exact(&mut bytes)
        .unwrap();
    assert_eq!(bytes, [0; 100]);
    nobody(&live, "", "printf x >null; head -c 3 zero >null").expect_code(0);
    let fifo = live.join("fifo");
    let reader = std::thread::spawn(move || fs::read(fifo).unwrap());
    fs::write(live.join("fifo"), "through the fifo").unwrap();
    assert_eq!(reader.join().unwrap(), b"through the fifo");
    let listener = UnixListener::bind(live.join("socket")).unwrap();
    let mut client = UnixStream::connect(live.join("socket")).unwrap();
    client.write_all(b"hello").unwrap();
    drop(client);
    let mut text = String::new();
    listener
        .accept()
        .unwrap()
        .0
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "hello");
}
