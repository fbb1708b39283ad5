//! One test for each row of "Differences, and why" in docs/posix.md: what a program meets there.
//! Should one of them begin to fail because a difference is gone, its row goes, too.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use floe_harness::command::run;
use floe_harness::process::Handle;
use floe_harness::python::{Python, path};
use floe_harness::{Output, TestStore};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, StatxFlags, Timespec, Timestamps, fallocate, statvfs, statx,
    utimensat,
};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

const LARGE: usize = 300_000;

fn mounted() -> (TestStore, PathBuf) {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    fs::write(live.join("file"), vec![b'x'; LARGE]).unwrap();
    (store, live)
}

fn read_write(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

fn program(name: &str, args: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(name);
    command.args(args).current_dir(dir).env("LC_ALL", "C");
    run(&mut command, Duration::from_secs(30))
}

#[test]
fn unnamed_files_are_refused() {
    let (_store, live) = mounted();
    let mut options = OpenOptions::new();
    let unnamed = options
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(&live);
    assert_eq!(unnamed.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
    // What the standard library's users fall back to.
    let mut file = tempfile::tempfile_in(&live).unwrap();
    std::io::Write::write_all(&mut file, b"x").unwrap();
    assert_eq!(fs::read_dir(&live).unwrap().count(), 1);
}

#[test]
fn there_is_no_birth_time() {
    let (_store, live) = mounted();
    let wanted = StatxFlags::BTIME | StatxFlags::BASIC_STATS;
    let stat = statx(CWD, live.join("file"), AtFlags::empty(), wanted).unwrap();
    assert_eq!(stat.stx_mask & StatxFlags::BTIME.bits(), 0);
    assert!(fs::metadata(live.join("file")).unwrap().created().is_err());
}

#[test]
fn reads_leave_the_access_time_and_utimensat_sets_it() {
    let (_store, live) = mounted();
    let file = live.join("file");
    let atime = || {
        let meta = fs::metadata(&file).unwrap();
        (meta.atime(), meta.atime_nsec())
    };
    let made = atime();
    assert!(made.0 > 1_500_000_000, "set when it was made: {made:?}");
    let (last_access, last_modification) = (
        Timespec {
            tv_sec: 10,
            tv_nsec: 20,
        },
        Timespec {
            tv_sec: 30,
            tv_nsec: 40,
        },
    );
    let times = Timestamps {
        last_access,
        last_modification,
    };
    utimensat(CWD, &file, &times, AtFlags::empty()).unwrap();
    assert_eq!(fs::read(&file).unwrap().len(), LARGE);
    // Past the kernel's cache, too.
    let mut direct = OpenOptions::new();
    direct.read(true).custom_flags(libc::O_DIRECT);
    direct
        .open(&file)
        .unwrap()
        .read_exact(&mut [0; 4096])
        .unwrap();
    assert_eq!(atime(), (10, 20));
    assert_eq!(fs::read_dir(&live).unwrap().count(), 1);
}

#[test]
fn ranges_are_neither_collapsed_nor_inserted() {
    let (_store, live) = mounted();
    let file = read_write(&live.join("file"));
    let modes = [
        FallocateFlags::COLLAPSE_RANGE,
        FallocateFlags::INSERT_RANGE,
        FallocateFlags::UNSHARE_RANGE,
        // FALLOC_FL_WRITE_ZEROES
        FallocateFlags::from_bits_retain(0x80),
    ];
    for mode in modes {
        assert_eq!(
            fallocate(&file, mode, 0, 65_536),
            Err(Errno::OPNOTSUPP),
            "{mode:?}"
        );
    }
    assert_eq!(fs::read(live.join("file")).unwrap(), vec![b'x'; LARGE]);
}

#[test]
fn fallocate_reserves_own_blocks_and_only_size_on_inherited_ones() {
    let (store, live) = mounted();
    let old = File::create(live.join("hole")).unwrap();
    old.write_all_at(&[1; 100_000], 0).unwrap();
    old.set_len(1 << 20).unwrap();
    let _ = store.snapshot("w");
    let frozen = read_write(&live.join("hole"));
    fallocate(&frozen, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert!(
        frozen.metadata().unwrap().blocks() * 512 < 1 << 20,
        "nothing was reserved"
    );
    fallocate(&frozen, FallocateFlags::empty(), 0, 2 << 20).unwrap();
    assert_eq!(frozen.metadata().unwrap().len(), 2 << 20);

    let own = File::create(live.join("own")).unwrap();
    own.write_all_at(&[1; 100_000], 0).unwrap();
    fallocate(&own, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert!(
        own.metadata().unwrap().blocks() * 512 >= 1 << 20,
        "the space is there"
    );
    assert_eq!(own.metadata().unwrap().len(), 1 << 20);

    // Also of a file that nothing was written to yet.
    let new = File::create(live.join("new")).unwrap();
    fallocate(&new, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert!(
        new.metadata().unwrap().blocks() * 512 >= 1 << 20,
        "the space is there"
    );
}

/// On a local file system the bit stays, because the caller is in the group.
#[test]
fn an_acl_set_by_a_member_of_the_group_clears_the_set_group_id_bit() {
    let (store, live) = mounted();
    fs::set_permissions(store.base(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&live, fs::Permissions::from_mode(0o755)).unwrap();
    let host = store.base().join("host");
    fs::copy(live.join("file"), &host).unwrap();
    for file in [&live.join("file"), &host] {
        chown(file, Some(65_534), Some(1000)).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o2755)).unwrap();
        let name = file.to_str().unwrap();
        let member = ["--reuid=65534", "--regid=65534", "--groups=1000"];
        let acl = ["setfacl", "-m", "u:1:r", name];
        program("setpriv", &[&member[..], &acl[..]].concat(), store.base()).expect_code(0);
    }
    let mode = |file: &Path| fs::metadata(file).unwrap().mode() & 0o7000;
    assert_eq!((mode(&live.join("file")), mode(&host)), (0, 0o2000));
}

#[test]
fn sizes_of_directories_and_counts_of_blocks_are_nominal() {
    let (store, live) = mounted();
    assert_eq!(fs::metadata(&live).unwrap().len(), 4096);
    for number in 0..1000 {
        File::create(live.join(format!("entry {number}"))).unwrap();
    }
    assert_eq!(fs::metadata(&live).unwrap().len(), 4096);
    let _ = store.snapshot("w");
    let file = read_write(&live.join("file"));
    file.write_all_at(b"y", 100_000).unwrap();
    // Of two layers now. An estimate, but never less than nothing and never far beyond the size.
    let bytes = file.metadata().unwrap().blocks() * 512;
    assert!(
        (65_536..=LARGE as u64 + 2 * 65_536).contains(&bytes),
        "{bytes}"
    );
}

#[test]
fn statfs_shows_the_file_system_of_the_store() {
    let (store, live) = mounted();
    let (here, host) = (statvfs(&live).unwrap(), statvfs(store.store_dir()).unwrap());
    assert_eq!(here.f_blocks * here.f_frsize, host.f_blocks * host.f_frsize);
    assert_eq!(here.f_namemax, 255);
    assert!(here.f_bavail > 0 && here.f_bavail <= here.f_blocks);
}

#[test]
fn extents_flags_and_reflinks_are_refused() {
    let (_store, live) = mounted();
    let file = read_write(&live.join("file"));
    assert_eq!(rustix::fs::ioctl_getflags(&file), Err(Errno::NOTTY));
    let flags = rustix::fs::IFlags::IMMUTABLE;
    assert_eq!(rustix::fs::ioctl_setflags(&file, flags), Err(Errno::NOTTY));
    let target = File::create(live.join("target")).unwrap();
    assert_eq!(
        rustix::fs::ioctl_ficlone(&target, &file),
        Err(Errno::OPNOTSUPP)
    );
    let mut python = Python::start();
    // FS_IOC_FIEMAP with room for no extent: only counts.
    let fiemap = format!(
        "f = os.open({}, os.O_RDONLY)
fcntl.ioctl(f, 0xc020660b, struct.pack('QQIIII', 0, 1 << 40, 0, 0, 0, 0))",
        path(&live.join("file"))
    );
    assert_eq!(python.errno(&fiemap), libc::EOPNOTSUPP);
    program("cp", &["--reflink=auto", "file", "copy"], &live).expect_code(0);
    assert_eq!(fs::read(live.join("copy")).unwrap(), vec![b'x'; LARGE]);
}

fn stop_and_go(daemon: &Handle, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Lets the daemon go on however the test ends, or its end would be waited for in vain.
struct Stopped(Handle);

impl Drop for Stopped {
    fn drop(&mut self) {
        stop_and_go(&self.0, Signal::CONT);
    }
}

#[test]
fn while_the_daemon_is_stopped_operations_wait_and_syncfs_does_not_ask_it() {
    let (store, live) = mounted();
    File::open(live.join("file")).unwrap().sync_all().unwrap();
    let daemon = store.daemon().unwrap();
    stop_and_go(&daemon, Signal::STOP);
    let stopped = Stopped(daemon);
    let synced = program("sync", &["-f", live.to_str().unwrap()], store.base());
    let mut command = Command::new("mkdir");
    let mut waiting = command.arg(live.join("made")).spawn().unwrap();
    let handle = Handle::of_child(&waiting);
    assert!(
        !handle.wait_for_end(Duration::from_millis(300)),
        "it did not wait"
    );
    drop(stopped);
    assert!(handle.wait_for_end(Duration::from_secs(30)));
    assert!(waiting.wait().unwrap().success());
    assert!(live.join("made").is_dir());
    synced.expect_code(0);
}

const HANDLES: &str = "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def name_to_handle(at):
    h = ctypes.create_string_buffer(136); struct.pack_into('I', h, 0, 128)
    mount = ctypes.c_int()
    if libc.name_to_handle_at(-100, at, h, ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), 'name_to_handle_at')
    return h
def open_handle(dir, h):
    d = os.open(dir, os.O_RDONLY)
    try:
        f = libc.open_by_handle_at(d, h, os.O_RDONLY)
        if f < 0: raise OSError(ctypes.get_errno(), 'open_by_handle_at')
        return f
    finally: os.close(d)
";

#[test]
fn file_handles_end_with_the_mount() {
    let (store, live) = mounted();
    let mut python = Python::start();
    python.ok(HANDLES);
    python.ok(&format!("h = name_to_handle({})", path(&live.join("file"))));
    let open = format!("f = open_handle({}, h)", path(&live));
    python.ok(&format!(
        "{open}; assert os.read(f, 3) == b'xxx'; os.close(f)"
    ));
    store.umount(&live);
    store.ok([
        std::ffi::OsStr::new("mount"),
        "w".as_ref(),
        live.as_os_str(),
    ]);
    assert_eq!(python.errno(&open), libc::ESTALE);
    // By name it is the same file.
    assert_eq!(fs::read(live.join("file")).unwrap().len(), LARGE);
}

#[test]
fn a_swap_file_is_refused() {
    let (_store, live) = mounted();
    let swap = live.join("swap");
    fs::write(&swap, vec![0; 1 << 20]).unwrap();
    fs::set_permissions(&swap, fs::Permissions::from_mode(0o600)).unwrap();
    program("mkswap", &["-q", "swap"], &live).expect_code(0);
    let output = program("swapon", &["swap"], &live);
    if output.code == Some(0) {
        program("swapoff", &["swap"], &live).expect_code(0);
    }
    assert!(output.errors().contains("Invalid argument"), "{output}");
}
