//! What a sandbox, with all that root inside it can do, cannot do: see the host, reach it, or keep
//! others from working.

mod sandbox_isolation {
    pub mod canaries;
}

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Command;
use std::time::Duration;

use floe_harness::process::Handle;
use floe_harness::sandbox::eventually;
use floe_harness::{Output, Server};
use sandbox_isolation::canaries::Canaries;
use serde_json::{Value, json};

/// A time that no test here needs; more is a hang.
const LIMIT: Duration = Duration::from_secs(240);

/// Runs a Python program as root inside, which prints one JSON value.
#[track_caller]
fn python(server: &Server, sandbox: &str, program: &str) -> Value {
    inside(server, "root", sandbox, program)
        .expect_code(0)
        .json()
}

fn inside(server: &Server, user: &str, sandbox: &str, program: &str) -> Output {
    let quoted = program.replace('\'', r"'\''");
    let line = format!("exec python3 -c '{quoted}'");
    server.exec_as(user, sandbox, &line, Duration::from_secs(120))
}

#[test]
fn no_file_of_the_host_outside_the_allow_list_is_read() {
    // Before the first sandbox, so that the template could have taken them in.
    let canaries = Canaries::place();
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    fs::write(
        server.store().store_dir().join(canaries.name()),
        canaries.marker(),
    )
    .expect("a file in the store");
    let sandbox = server.create(&json!({}));
    let mut lines = String::new();
    for path in canaries.paths() {
        for prefix in ["", "/proc/1/root", "/proc/self/root", "/proc/1/cwd"] {
            lines += &format!(
                "cat {prefix}{0} && echo {prefix}{0} is read\n",
                path.display()
            );
        }
    }
    for user in ["root", "user"] {
        let read = server.exec_as(user, &sandbox, &format!("{lines}true"), LIMIT);
        assert_eq!(read.expect_code(0).text(), "", "what {user} reads");
    }
    // Not by that path, nor by any other. /usr is left out for its size: nothing is put there.
    let find = format!(
        "find / -path /usr -prune -o -path /proc -prune -o -name '*{}*' -print",
        canaries.name()
    );
    let found = server.exec(&sandbox, &find).expect_code(0).text();
    assert_eq!(found, "", "canaries inside");
    let base = server.store().base().display().to_string();
    let told = "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'";
    let told = server.exec(&sandbox, told).text();
    assert!(
        !told.contains(&base),
        "the environment of the daemon is told:\n{told}"
    );
}

#[test]
fn no_secret_of_the_host_is_in_etc() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let sandbox = server.create(&json!({}));
    let shadow = server
        .exec(&sandbox, "cat /etc/shadow /etc/gshadow 2>/dev/null")
        .text();
    for line in shadow.lines() {
        let password = line.split(':').nth(1).unwrap_or_default();
        assert!(
            matches!(password, "" | "*" | "!" | "!*" | "!!" | "x"),
            "a password: {line}"
        );
    }
    let list = "ls -A /etc/ssh/*key* /etc/ssl/private /etc/sudoers.d /etc/NetworkManager \
        /etc/wireguard /etc/docker /etc/kubernetes /etc/letsencrypt /etc/krb5.keytab \
        /var/lib/docker /var/log /var/mail /var/spool/cron /root/.ssh /boot 2>/dev/null";
    let found = server.exec(&sandbox, list).text();
    // The directories may be there; what is in those of the host is not.
    let names: Vec<_> = found
        .lines()
        .filter(|line| !line.is_empty() && !line.ends_with(':'))
        .collect();
    assert!(names.is_empty(), "{names:?}");
    let homes = server.exec(&sandbox, "ls -A /home").expect_code(0).text();
    assert_eq!(homes, "user");
    let id = server
        .exec(&sandbox, "cat /etc/machine-id 2>/dev/null")
        .text();
    let host = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    assert!(id.is_empty() || id != host.trim(), "the host's machine id");
}

#[test]
fn no_process_of_the_host_is_seen_or_signalled() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let mut canary = Command::new("sleep").arg("98765").spawn().expect("sleep");
    let handle = Handle::of_child(&canary);
    let sandbox = server.create(&json!({}));
    let other = server.create(&json!({}));
    let theirs = "setsid sleep 87654 >/dev/null 2>&1 &";
    server.exec(&other, theirs).expect_code(0);
    let seen = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '";
    let seen = server.exec(&sandbox, seen).text();
    for hidden in ["98765", "87654", "floe serve", "bwrap"] {
        assert!(!seen.contains(hidden), "{hidden} is seen: {seen}");
    }
    let count = server.exec(&sandbox, "ls -d /proc/[0-9]* | wc -l").text();
    assert!(
        count.parse::<u32>().expect("a number") <= 8,
        "{count} processes"
    );
    let daemon = server.process().pid();
    let line = format!("kill -9 {} {daemon}; kill -9 -1", canary.id());
    let killed = server.exec(&sandbox, &line);
    assert_ne!(killed.code, Some(0), "{killed}");
    assert!(
        !handle.wait_for_end(Duration::from_millis(200)),
        "a process of the host was killed"
    );
    assert!(
        !server.process().wait_for_end(Duration::ZERO),
        "the daemon was killed"
    );
    // It has ended its own processes; it is there itself.
    server.exec(&sandbox, "true").expect_code(0);
    let alive = server.exec(&other, "grep -sqx sleep /proc/[0-9]*/comm");
    alive.expect_code(0);
    handle.kill();
    canary.wait().expect("its end");
}

#[test]
fn no_network_is_reached() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let tcp = TcpListener::bind("0.0.0.0:0").expect("a port");
    let port = tcp.local_addr().expect("its address").port();
    let name = format!("floe-canary-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let _abstract = UnixListener::bind_addr(&address).expect("an abstract socket");
    let sandbox = server.create(&json!({}));
    let own = local_address();
    let api = server.url().rsplit_once(':').expect("a port").1.to_owned();
    let program = format!(
        r#"
import json, socket
reached = []
def attempt(what, family, kind, address):
    try:
        s = socket.socket(family, kind)
        s.settimeout(2)
        s.connect(address)
        s.send(b"x")
    except OSError:
        return
    reached.append(what)
I, S, D = socket.AF_INET, socket.SOCK_STREAM, socket.SOCK_DGRAM
for host in ("127.0.0.1", "{own}"):
    attempt("the host's port at " + host, I, S, (host, {port}))
    attempt("the interface itself at " + host, I, S, (host, {api}))
for host in ("1.1.1.1", "169.254.169.254", "10.0.0.1"):
    attempt("datagrams to " + host, I, D, (host, 53))
attempt("IPv6", socket.AF_INET6, D, ("2606:4700::1111", 53))
attempt("an abstract socket", socket.AF_UNIX, S, "\0{name}")
interfaces = [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]]
routes = open("/proc/net/route").readlines()[1:]
print(json.dumps([reached, interfaces, routes]))
"#
    );
    let told = python(&server, &sandbox, &program);
    assert_eq!(told, json!([[], ["lo"], []]));
    // Its own is there.
    let own = r#"
import json, socket
s = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(s.getsockname())
c.send(b"x")
print(json.dumps(s.accept()[0].recv(1).decode()))
"#;
    assert_eq!(python(&server, &sandbox, own), json!("x"));
}

/// The address of the host from which it would talk to others, or its loopback.
fn local_address() -> String {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket");
    // Nothing is sent: this only chooses the address.
    match socket
        .connect("192.0.2.1:9")
        .and_then(|()| socket.local_addr())
    {
        Ok(address) => address.ip().to_string(),
        Err(_) => "127.0.0.1".to_owned(),
    }
}

#[test]
fn root_inside_changes_no_mounts_and_makes_no_devices() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let sandbox = server.create(&json!({}));
    for line in [
        "mount -t tmpfs none /mnt",
        "mount --bind / /mnt",
        "mount -o remount,suid,dev /",
        "mount -t proc proc /mnt",
        "umount /proc",
        "umount -l /",
        "unshare --user true",
        "unshare --user --map-root-user --mount true",
        "unshare --mount true",
        "unshare --net true",
        "nsenter --target 1 --mount true",
        "chroot /proc/1/root /bin/sh -c 'mount -t tmpfs none /mnt'",
        "mknod /tmp/disk b 8 0 && head -c 1 /tmp/disk",
        "mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem",
        "mknod /tmp/kvm c 10 232 && : < /tmp/kvm",
        "mknod /tmp/fuse c 10 229 && : < /tmp/fuse",
        // With what is there already, should it work.
        "old=$(cat /proc/sys/kernel/panic) && echo $old > /proc/sys/kernel/panic",
        "old=$(cat /proc/sys/kernel/pid_max) && echo $old > /proc/sys/kernel/pid_max",
        "echo h > /proc/sysrq-trigger",
        "echo 1 > /sys/kernel/mm/ksm/run",
        "swapon /tmp/disk",
        "date -s \"$(date)\"",
        "hwclock --systohc",
        "modprobe loop",
        "dmesg",
        "losetup -f",
        "head -c 1 /proc/kcore",
        "ls /sys/fs/cgroup/floe",
    ] {
        let output = server.exec(&sandbox, line);
        assert_ne!(output.code, Some(0), "{output}");
    }
    let devices = server.exec(&sandbox, "ls /dev").expect_code(0).text();
    let devices: BTreeSet<&str> = devices.lines().collect();
    let allowed = [
        "console", "core", "fd", "floe", "full", "mqueue", "null", "ptmx", "pts", "random", "shm",
        "stderr", "stdin", "stdout", "tty", "urandom", "zero",
    ];
    let allowed = BTreeSet::from(allowed);
    let more: Vec<_> = devices.difference(&allowed).collect();
    assert!(more.is_empty(), "{more:?}");
    // The classic way out of a chroot leads to the sandbox's own root.
    let chroot = r#"
import json, os
os.makedirs("/tmp/jail", exist_ok=True)
out = os.open("/", os.O_RDONLY)
os.chroot("/tmp/jail")
os.fchdir(out)
for _ in range(64): os.chdir("..")
os.chroot(".")
print(json.dumps([os.path.exists("/workspace"), os.path.exists("/dev/kvm")]))
"#;
    assert_eq!(python(&server, &sandbox, chroot), json!([true, false]));
}

/// System calls that no sandbox needs, with arguments by which one that is let through would fail in
/// another way than one that is refused.
const CALLS: &str = r#"
import ctypes, errno, json
libc = ctypes.CDLL(None, use_errno=True)
calls = {
    "add_key": (248, 0, 0, 0, 0, -1), "request_key": (249, 0, 0, 0, 0), "keyctl": (250, 0, -3, 1),
    "io_uring_setup": (425, 1, 0), "io_uring_enter": (426, -1, 0, 0, 0, 0),
    "io_uring_register": (427, -1, 0, 0, 0), "bpf": (321, 0, 0, 0),
    "perf_event_open": (298, 0, 0, -1, -1, 0), "userfaultfd": (323, 0),
    "kexec_load": (246, 0, 0, 0, 0), "kexec_file_load": (320, -1, -1, 0, 0, 0),
    "init_module": (175, 0, 0, 0), "finit_module": (313, -1, 0, 0), "delete_module": (176, 0, 0),
    "open_by_handle_at": (304, -100, 0, 0), "mount": (165, 0, 0, 0, 0, 0),
    "umount2": (166, 0, 0), "pivot_root": (155, 0, 0), "fsopen": (430, 0, 0),
    "fspick": (433, -100, 0, 0), "move_mount": (429, -1, 0, -1, 0, 0), "open_tree": (428, -100, 0, 1),
    "mount_setattr": (442, -100, 0, 0, 0, 0), "setns": (308, -1, 0),
    "unshare": (272, 0x10000000), "swapon": (167, 0, 0), "swapoff": (168, 0),
    "reboot": (169, 0, 0, 0, 0), "settimeofday": (164, 0, 0), "clock_settime": (227, 0, 0),
    "adjtimex": (159, 0), "clock_adjtime": (305, 0, 0), "acct": (163, 0), "quotactl": (179, 0, 0, 0, 0),
    "syslog": (103, 3, 0, 0), "iopl": (172, 3), "ioperm": (173, 0, 1, 1), "lookup_dcookie": (212, 0, 0, 0),
    "nfsservctl": (180, 0, 0, 0), "vhangup": (153,), "clone3": (435, 0, 0),
    "sethostname": (170, 0, 0), "setdomainname": (171, 0, 0), "fanotify_init": (300, 0, 0),
    "kcmp": (312, 1, 1, 0, 0, 0), "modify_ldt": (154, 0, 0, 0), "a call of the future": (4000,),
}
refused = {errno.EPERM, errno.ENOSYS, errno.EACCES}
allowed = []
for name, (number, *arguments) in calls.items():
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    if result != -1 or ctypes.get_errno() not in refused:
        allowed.append([name, result, errno.errorcode.get(ctypes.get_errno())])
# A new user namespace by clone(2): the child would be the one to return 0.
CLONE_NEWUSER, SIGCHLD = 0x10000000, 17
result = libc.syscall(ctypes.c_long(56), *map(ctypes.c_long, (CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0)))
if result == 0:
    libc._exit(0)
if result != -1:
    allowed.append(["clone with CLONE_NEWUSER", result, None])
import fcntl, os, pty, socket, termios
for family in (15, 17, 38, 40, 44):
    try:
        socket.socket(family, socket.SOCK_RAW if family != 38 else 5)
        allowed.append(["socket of family", family, None])
    except OSError:
        pass
# What is typed into a terminal by TIOCSTI comes from whoever owns it.
master, slave = pty.openpty()
try:
    fcntl.ioctl(slave, termios.TIOCSTI, b"x")
    allowed.append(["TIOCSTI", 0, None])
except OSError:
    pass
print(json.dumps(allowed))
"#;

#[test]
fn system_calls_that_lead_out_are_refused() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let sandbox = server.create(&json!({}));
    for user in ["root", "user"] {
        let allowed = inside(&server, user, &sandbox, CALLS).expect_code(0).json();
        assert_eq!(allowed, json!([]), "{user}");
    }
    let status = server.exec(&sandbox, "grep -E 'Seccomp:|NoNewPrivs:' /proc/self/status");
    let status = status.expect_code(0).text();
    assert!(status.contains("Seccomp:\t2"), "{status}");
}

#[test]
fn a_set_id_program_gives_nothing() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let sandbox = server.create(&json!({}));
    let make = "cp /usr/bin/id /workspace/id && chown root:root /workspace/id && \
        chmod 6755 /workspace/id && chmod 755 /workspace";
    server.exec(&sandbox, make).expect_code(0);
    let as_user = |line: &str| server.exec_as("user", &sandbox, line, LIMIT);
    let id = as_user("/workspace/id -u; /workspace/id -g")
        .expect_code(0)
        .text();
    let plain = as_user("id -u; id -g").expect_code(0).text();
    assert_eq!(id, plain);
    assert!(!id.starts_with('0'), "{id}");
    for line in [
        "su -c true",
        "sudo -n true",
        "passwd -d root",
        "chown root /home/user",
        "echo x >> /etc/passwd",
        "cat /proc/1/environ",
        "kill -9 1",
    ] {
        let output = as_user(line);
        assert_ne!(output.code, Some(0), "{output}");
    }
    server.exec(&sandbox, "true").expect_code(0);
    // On the host, whoever is root inside is nobody.
    let traces = server.traces();
    for pid in traces.processes_of(&sandbox) {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let mut lines = status.lines();
        let uids = lines.find_map(|line| line.strip_prefix("Uid:"));
        for uid in uids.unwrap_or_default().split_whitespace() {
            let uid: u32 = uid.parse().expect("a number");
            assert!(uid >= 65_536, "process {pid} runs as {uid} of the host");
        }
    }
}

#[test]
fn one_sandbox_does_not_reach_another() {
    let server = Server::start();
    let _watchdog = server.watch(LIMIT);
    let (one, other) = (server.create(&json!({})), server.create(&json!({})));
    let token = |id: &str| {
        let info = server.api().get(&format!("/sandboxes/{id}")).expect(200);
        info.text("envdAccessToken")
    };
    let (token_one, token_other) = (token(&one), token(&other));
    assert_ne!(token_one, token_other);
    let read = |id: &str, token: &str| {
        let headers = [
            ("E2b-Sandbox-Id", id),
            ("E2b-Sandbox-Port", "49983"),
            ("X-Access-Token", token),
        ];
        let path = "/files?path=/etc/passwd";
        server.api().send_with("GET", path, &headers, None).status
    };
    assert_eq!(read(&one, &token_one), 200);
    assert_eq!(read(&one, &token_other), 401);
    assert_eq!(read(&one, ""), 401);
    let listening = "python3 -c 'import socket, time; s = socket.create_server((\"127.0.0.1\", 7777)); \
        open(\"/tmp/ready\", \"w\"); time.sleep(1000)'";
    let listening = format!("setsid {listening} >/dev/null 2>&1 &");
    server.exec(&one, &listening).expect_code(0);
    eventually("the port to be open", || {
        server.exec(&one, "test -e /tmp/ready").code == Some(0)
    });
    let connect = "exec 3<>/dev/tcp/127.0.0.1/7777";
    server.exec(&one, connect).expect_code(0);
    assert_ne!(server.exec(&other, connect).code, Some(0));
}
