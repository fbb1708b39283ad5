//! A mount whose ids on the host are others than in the store, as sandboxes have: who makes, owns, may read
//! and is named, seen from the host, from a user namespace, and through a mount without a shift.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use floe_fs::dispatch::fuser::{IdShift, Mount, MountError, MountOptions};
use floe_fs::id::WorkspaceName;
use floe_fs::{Attachment, Store, View};
use floe_harness::command::run;
use floe_harness::mounts::{self, MountPoint};
use floe_harness::{Output, require_root_and_fuse};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat};

/// Where the ids of the mounts begin on the host.
const BASE: u32 = 2_000_000;
const NOBODY: u32 = 65_534;
const LIMIT: Duration = Duration::from_secs(30);

const PLAIN: How = How {
    shift: None,
    trusted: true,
};
const SANDBOX: How = How {
    shift: Some(IdShift { base: BASE }),
    trusted: false,
};

#[derive(Clone, Copy)]
struct How {
    shift: Option<IdShift>,
    trusted: bool,
}

/// A store with the workspace `w`, in a directory that everybody can reach.
struct Fixture {
    base: tempfile::TempDir,
    store: Arc<Store>,
}

/// The workspace, mounted until this is dropped.
struct Mounted<'a> {
    fixture: &'a Fixture,
    view: Arc<View>,
    mount: Mount,
    dir: PathBuf,
    attachment: Option<Attachment>,
}

impl Fixture {
    fn new() -> Self {
        require_root_and_fuse();
        let base = tempfile::tempdir().unwrap();
        set_mode(base.path(), 0o755);
        Store::init(&base.path().join("store")).unwrap();
        // A program that another test is just starting has the lock's descriptor until its exec.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let store = loop {
            match Store::open(&base.path().join("store")) {
                Err(floe_fs::OpenError::Locked { .. }) if std::time::Instant::now() < deadline => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                opened => break opened.unwrap(),
            }
        };
        let name = WorkspaceName::parse("w").unwrap();
        store.create_workspace(&name).unwrap();
        fs::create_dir(base.path().join("mnt")).unwrap();
        Self { base, store }
    }

    fn try_mount(&self, how: How) -> Result<Mounted<'_>, MountError> {
        let dir = self.base.path().join("mnt");
        let view = self.store.open_live("w").unwrap();
        let options = MountOptions {
            read_only: false,
            threads: 2,
            source: format!("floe:{}:w", self.store.id()),
            allow_other: true,
            trusted: how.trusted,
            id_shift: how.shift,
            others_write: false,
        };
        let mount = Mount::new(view.clone(), &dir, &options, &mut |_| ());
        let mount = mount.inspect_err(|_| self.store.close_view(&view))?;
        let attachment = Some(view.attach(mount.kernel_cache()));
        Ok(Mounted {
            fixture: self,
            view,
            mount,
            dir,
            attachment,
        })
    }

    fn mount(&self, how: How) -> Mounted<'_> {
        self.try_mount(how).unwrap()
    }
}

impl Mounted<'_> {
    fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn entry(&self) -> MountPoint {
        let all = mounts::below(&self.dir);
        all.into_iter().next().expect("it is mounted")
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let unmounted = self.mount.unmount(&self.dir, true);
        let ended = self.mount.wait_end(LIMIT);
        self.attachment = None;
        self.fixture.store.close_view(&self.view);
        if !std::thread::panicking() {
            unmounted.expect("unmounting");
            assert!(ended, "the session goes on");
        }
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn owner(path: &Path) -> (u32, u32) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.uid(), meta.gid())
}

/// Runs a script in a directory as this user of the host, who has no privileges.
fn host_user(id: u32, dir: &Path, script: &str) -> Output {
    let mut command = Command::new("setpriv");
    command
        .args([format!("--reuid={id}"), format!("--regid={id}")])
        .args(["--clear-groups", "sh", "-ec", script])
        .current_dir(dir)
        .env("LC_ALL", "C");
    run(&mut command, LIMIT)
}

fn host_root(dir: &Path, script: &str) -> Output {
    let mut command = Command::new("sh");
    command
        .args(["-ec", script])
        .current_dir(dir)
        .env("LC_ALL", "C");
    run(&mut command, LIMIT)
}

/// Runs a script as root of a user namespace whose ids are those of the range: what a sandbox has.
/// Returns what it printed.
#[track_caller]
fn inside(dir: &Path, script: &str) -> String {
    let mut child = Command::new("unshare")
        .args(["--user", "--keep-caps", "sh", "-ec"])
        // Whoever has the namespace's capabilities is nobody in it before it has a map.
        .arg("read ready; exec setpriv --reuid=0 --regid=0 --clear-groups sh -ec \"$1\"")
        .args(["sh", script])
        .current_dir(dir)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let proc = PathBuf::from(format!("/proc/{}", child.id()));
    let own = fs::read_link("/proc/self/ns/user").unwrap();
    while fs::read_link(proc.join("ns/user")).unwrap() == own {
        std::thread::sleep(Duration::from_millis(1));
    }
    for map in ["uid_map", "gid_map"] {
        fs::write(proc.join(map), format!("0 {BASE} 65536")).unwrap();
    }
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.trim_end().to_owned()
}

#[test]
fn files_belong_to_small_ids_in_the_store_and_to_those_of_the_range_on_the_host() {
    let f = Fixture::new();
    let made = [
        ("root", 0),
        ("user", 1000),
        ("dir", 1000),
        ("link", 1000),
        ("fifo", 1000),
        ("last", 65_535),
        ("stranger", NOBODY),
        ("given", 7),
    ];
    {
        let live = f.mount(SANDBOX);
        assert_eq!(owner(&live.dir), (BASE, BASE));
        set_mode(&live.dir, 0o1777);
        fs::write(live.at("root"), "by the host's root").unwrap();
        let script = "echo mine >user; mkdir dir; ln -s user link; mkfifo fifo; chmod 0600 user";
        host_user(BASE + 1000, &live.dir, script).expect_code(0);
        host_user(BASE + 65_535, &live.dir, ": >last").expect_code(0);
        // Somebody of the host who is not known inside.
        host_user(1234, &live.dir, ": >stranger").expect_code(0);
        fs::write(live.at("given"), "").unwrap();
        chown(live.at("given"), Some(BASE + 7), Some(BASE + 7)).unwrap();
        for (name, id) in made {
            assert_eq!(owner(&live.at(name)), (BASE + id, BASE + id), "{name}");
        }
        let read = host_user(BASE + 1000, &live.dir, "cat user").expect_code(0);
        assert_eq!(read.text(), "mine");
        let refused = host_user(BASE + 1001, &live.dir, "cat user").expect_code(1);
        assert!(refused.errors().contains("Permission denied"), "{refused}");
        // Its number inside is the other's on the host.
        host_user(1000, &live.dir, "cat user").expect_code(1);
    }
    {
        let live = f.mount(PLAIN);
        assert_eq!(owner(&live.dir), (0, 0));
        for (name, id) in made {
            assert_eq!(owner(&live.at(name)), (id, id), "{name}");
        }
    }
    let elsewhere = How {
        shift: Some(IdShift { base: 3 * BASE }),
        trusted: false,
    };
    let live = f.mount(elsewhere);
    for (name, id) in made {
        let id = 3 * BASE + id;
        assert_eq!(owner(&live.at(name)), (id, id), "{name}");
        // As readdirplus says it.
        let listed = fs::read_dir(&live.dir).unwrap().map(Result::unwrap);
        let mut of_name = listed.filter(|entry| entry.file_name() == name);
        assert_eq!(of_name.next().unwrap().metadata().unwrap().uid(), id);
    }
}

#[test]
fn root_of_a_user_namespace_is_root_on_the_mount_and_nowhere_else() {
    let f = Fixture::new();
    let live = f.mount(SANDBOX);
    let outside = f.base.path().join("outside");
    fs::write(&outside, "").unwrap();
    let script = "
        mkdir -m 0700 home; : >home/mine; chown 1000:1001 home/mine home
        : >other; chown 65535 other
        mknod fifo p; chmod 4755 other
        stat -c '%u:%g' . home home/mine other fifo
        setpriv --reuid=1000 --regid=1001 --clear-groups sh -c ': >home/more'
        stat -c '%u:%g' home/more
        if chown 70000 other 2>/dev/null; then echo given away; fi
        if chown 0 ../outside 2>/dev/null; then echo taken; fi";
    let expected = "0:0\n1000:1001\n1000:1001\n65535:0\n0:0\n1000:1001";
    assert_eq!(inside(&live.dir, script), expected);
    assert_eq!(owner(&live.at("home/mine")), (BASE + 1000, BASE + 1001));
    assert_eq!(owner(&live.at("other")), (BASE + 65_535, BASE));
    assert_eq!(owner(&outside), (0, 0));
    drop(live);
    let live = f.mount(PLAIN);
    assert_eq!(owner(&live.at("home/mine")), (1000, 1001));
    assert_eq!(owner(&live.at("home/more")), (1000, 1001));
}

#[test]
fn acls_name_users_by_the_ids_of_whoever_looks() {
    let f = Fixture::new();
    {
        let live = f.mount(SANDBOX);
        inside(
            &live.dir,
            "mkdir d; echo secret >d/f; chmod 0600 d/f
             setfacl -m u:1000:r,g:2000:rw d/f; setfacl -d -m u:1000:rwx d; : >d/inherits",
        );
        let told = inside(&live.dir, "getfacl -nc d/f; getfacl -nc d/inherits");
        for line in ["user:1000:r--", "group:2000:rw-", "user:1000:rwx"] {
            assert!(told.contains(line), "{told}");
        }
        let told = host_root(&live.dir, "getfacl -nc d/f; getfacl -nc d").expect_code(0);
        for line in [
            format!("user:{}:r--", BASE + 1000),
            format!("group:{}:rw-", BASE + 2000),
            format!("default:user:{}:rwx", BASE + 1000),
        ] {
            assert!(told.text().contains(&line), "{told}");
        }
        host_user(BASE + 1000, &live.dir, "cat d/f").expect_code(0);
        host_user(BASE + 1001, &live.dir, "cat d/f").expect_code(1);
        host_user(1000, &live.dir, "cat d/f").expect_code(1);
        // As the host's root says it, by ids of the host.
        let set = format!("setfacl -m u:{}:r d/f", BASE + 1001);
        host_root(&live.dir, &set).expect_code(0);
        host_user(BASE + 1001, &live.dir, "cat d/f").expect_code(0);
        let told = inside(&live.dir, "getfacl -nc d/f");
        assert!(told.contains("user:1001:r--"), "{told}");
    }
    let live = f.mount(PLAIN);
    let told = host_root(&live.dir, "getfacl -nc d/f").expect_code(0);
    for line in ["user:1000:r--", "user:1001:r--", "group:2000:rw-"] {
        assert!(told.text().contains(line), "{told}");
    }
}

#[test]
fn who_is_not_known_inside_owns_nothing_there_and_is_not_named() {
    let f = Fixture::new();
    {
        let live = f.mount(PLAIN);
        fs::write(live.at("far"), "far").unwrap();
        chown(live.at("far"), Some(70_000), Some(u32::MAX - 1)).unwrap();
        symlink("far", live.at("link")).unwrap();
        set_mode(&live.at("far"), 0o600);
        let acl = "setfacl -m u:70001:rwx,u:5:r far";
        host_root(&live.dir, acl).expect_code(0);
    }
    let live = f.mount(SANDBOX);
    assert_eq!(owner(&live.at("far")), (BASE + NOBODY, BASE + NOBODY));
    let told = inside(&live.dir, "stat -c '%u:%g' far; getfacl -nc far");
    assert!(told.starts_with("65534:65534\n"), "{told}");
    assert!(told.contains("user:5:r--"), "{told}");
    assert_eq!(
        told.lines()
            .filter(|line| line.starts_with("user:"))
            .count(),
        2,
        "{told}"
    );
    // Nor can somebody be named who has no id inside.
    let to_stranger = chown(live.at("far"), Some(4242), None).unwrap_err();
    assert_eq!(to_stranger.raw_os_error(), Some(libc::EINVAL));
    let named = host_root(&live.dir, "setfacl -m u:4242:r far").expect_code(1);
    assert!(named.errors().contains("Invalid argument"), "{named}");
    assert_eq!(owner(&live.at("far")), (BASE + NOBODY, BASE + NOBODY));
}

/// `cap_net_raw=ep`, for root outside of every namespace.
const CAPABILITY: [u8; 20] = [
    1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

#[test]
fn capabilities_of_files_are_those_of_root_inside() {
    let f = Fixture::new();
    let name = "security.capability";
    let mut value = [0; 64];
    {
        let live = f.mount(PLAIN);
        fs::write(live.at("image"), "").unwrap();
        let image = live.at("image");
        rustix::fs::setxattr(image, name, &CAPABILITY, XattrFlags::empty()).unwrap();
    }
    {
        let live = f.mount(SANDBOX);
        let script = ": >own; setcap cap_net_raw=ep own; getcap own image";
        let told = inside(&live.dir, script);
        assert_eq!(told, "own cap_net_raw=ep\nimage cap_net_raw=ep");
        let len = rustix::fs::getxattr(live.at("own"), name, &mut value).unwrap();
        assert_eq!(value[20..len], BASE.to_le_bytes());
    }
    let live = f.mount(PLAIN);
    for file in ["own", "image"] {
        let len = rustix::fs::getxattr(live.at(file), name, &mut value).unwrap();
        assert_eq!(value[..len], CAPABILITY, "{file}");
    }
}

#[test]
fn set_id_bits_and_devices_count_on_a_trusted_mount_only() {
    let f = Fixture::new();
    let trusted = How {
        trusted: true,
        ..SANDBOX
    };
    for (how, runs_as) in [(SANDBOX, BASE + 1000), (trusted, BASE)] {
        let live = f.mount(how);
        host_root(&live.dir, "cp \"$(command -v id)\" id; chmod 4755 id").expect_code(0);
        assert_eq!(owner(&live.at("id")), (BASE, BASE));
        let told = host_user(BASE + 1000, &live.dir, "./id -u").expect_code(0);
        assert_eq!(told.text(), runs_as.to_string());
        let null = rustix::fs::makedev(1, 3);
        let mode = Mode::from_raw_mode(0o666);
        if !live.at("null").exists() {
            mknodat(CWD, live.at("null"), FileType::CharacterDevice, mode, null).unwrap();
        }
        let opened = fs::File::open(live.at("null"));
        assert_eq!(opened.is_ok(), how.trusted, "{opened:?}");
        for option in ["nosuid", "nodev"] {
            let entry = live.entry();
            assert_eq!(
                entry.options.iter().any(|is| is == option),
                !how.trusted,
                "{entry:?}"
            );
        }
        // Wherever it is mounted besides.
        let second = f.base.path().join("second");
        if !second.exists() {
            fs::create_dir(&second).unwrap();
        }
        live.mount.bind(&second).unwrap();
        let told = host_user(BASE + 1000, &second, "./id -u").expect_code(0);
        live.mount.unmount(&second, true).unwrap();
        assert_eq!(told.text(), runs_as.to_string());
    }
}

#[test]
fn a_range_that_reaches_beyond_the_last_id_is_refused() {
    let f = Fixture::new();
    let beyond = How {
        shift: Some(IdShift {
            base: IdShift::BASE_MAX + 1,
        }),
        trusted: false,
    };
    assert!(f.try_mount(beyond).is_err());
    assert!(!mounts::is_mounted(&f.base.path().join("mnt")));
    let last = How {
        shift: Some(IdShift {
            base: IdShift::BASE_MAX,
        }),
        trusted: false,
    };
    let live = f.mount(last);
    assert_eq!(owner(&live.dir), (IdShift::BASE_MAX, IdShift::BASE_MAX));
}
