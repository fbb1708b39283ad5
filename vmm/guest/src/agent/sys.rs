//! The few things that need `unsafe`. All of it is here.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use floe_guest::message::SEED_MAX;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Gid, Resource, Rlimit, Uid};

/// Lowest descriptor that is nobody's standard stream.
pub const FIRST_FD: RawFd = 3;

/// Last signal number of Linux.
const LAST_SIGNAL: i32 = 64;

/// The kernel's `struct sigaction` for the default action: handler, flags, restorer and mask, all 0.
static DEFAULT_ACTION: [u64; 4] = [0; 4];

/// What a new process does between fork and exec.
pub struct Setup {
    /// Whether its standard input becomes its controlling terminal.
    pub terminal: bool,
    /// Ids to take on; `None` to keep those of the agent.
    pub ids: Option<(Uid, Gid, Vec<Gid>)>,
    /// Directory to go to, with the rights of the new ids.
    pub cwd: CString,
    /// Limit of open files to go back to.
    pub files: Rlimit,
    /// Where it says which step failed: one byte of [`Step`].
    pub report: OwnedFd,
}

/// Steps that are told apart when they fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Session, terminal, limits.
    Session = 1,
    /// Ids and groups.
    Ids = 2,
    /// The directory.
    Cwd = 3,
}

impl Step {
    /// The step that such a byte stands for.
    pub fn parse(byte: u8) -> Option<Self> {
        [Self::Session, Self::Ids, Self::Cwd]
            .into_iter()
            .find(|step| *step as u8 == byte)
    }
}

/// Takes over an inherited descriptor. Commands do not inherit it again: who has it speaks for the agent.
///
/// Called once, at the start of `main`, before this process has opened anything.
pub fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < FIRST_FD {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: F_GETFD takes no pointer and changes nothing; a bad descriptor gives EBADF.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, as was just seen, and was inherited: nothing in this process
    // owns it, since `adopt` is called once and before anything is opened (see above).
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(fd)
}

/// Closes every descriptor from [`FIRST_FD`] on but one.
///
/// Called at the start of `main`, when nothing but `keep` is owned by this process.
pub fn close_others(keep: &OwnedFd) -> io::Result<()> {
    let keep = keep.as_raw_fd();
    let mut ranges = [(FIRST_FD, keep - 1), (keep + 1, RawFd::MAX)];
    for (first, last) in ranges.iter_mut().filter(|(first, last)| first <= last) {
        let (first, last) = (first.unsigned_abs(), last.unsigned_abs());
        // SAFETY: the descriptors were inherited and are owned by nothing in this process (see
        // above); `keep` is not among them.
        if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Sends a signal of any number to all processes of a group.
pub fn kill_group(group: i32, signal: i32) -> io::Result<()> {
    // 1 and 0 would mean everybody.
    if group <= 1 || !(0..=LAST_SIGNAL).contains(&signal) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: kill takes no pointer.
    if unsafe { libc::kill(-group, signal) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Bytes of the kernel's `struct sockaddr_vm`.
const SOCKADDR_VM: libc::socklen_t = 16;
const _: () = assert!(size_of::<libc::sockaddr_vm>() == SOCKADDR_VM as usize);

fn vsock_address(cid: u32, port: u32) -> libc::sockaddr_vm {
    libc::sockaddr_vm {
        svm_family: AddressFamily::VSOCK.as_raw(),
        svm_reserved1: 0,
        svm_port: port,
        svm_cid: cid,
        svm_zero: [0; 4],
    }
}

/// Callers that may wait for an answer.
const BACKLOG: i32 = 16;

/// A vsock socket that listens on a port of this machine. It does not block.
pub fn vsock_listen(port: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::VSOCK, SocketType::STREAM, flags, None)?;
    let address = vsock_address(libc::VMADDR_CID_ANY, port);
    // SAFETY: the address is valid for the call, and the length is its own; the kernel only reads it.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), SOCKADDR_VM) };
    if bound < 0 {
        return Err(io::Error::last_os_error());
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Takes the next caller on a vsock socket, and says from which address it calls. The caller's socket does
/// not block.
pub fn vsock_accept(listener: impl AsFd) -> io::Result<(OwnedFd, u32)> {
    loop {
        let mut address = vsock_address(0, 0);
        let mut len = SOCKADDR_VM;
        // SAFETY: the kernel writes at most `len` bytes, which is the size of the address, and both
        // are valid and borrowed by nobody else for the call.
        let fd = unsafe {
            let address = (&raw mut address).cast();
            libc::accept4(
                listener.as_fd().as_raw_fd(),
                address,
                &raw mut len,
                libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            )
        };
        if fd >= 0 {
            // SAFETY: the descriptor is new, and nothing else knows of it.
            return Ok((unsafe { OwnedFd::from_raw_fd(fd) }, address.svm_cid));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The kernel's `struct ifreq`, as far as flags go. Source: netdevice(7).
#[repr(C)]
struct InterfaceFlags {
    name: [u8; 16],
    flags: i16,
    unused: [u8; 22],
}

/// Requests about an interface's flags. Source: the kernel's `include/uapi/linux/sockios.h`.
const SIOCGIFFLAGS: libc::c_ulong = 0x8913;
const SIOCSIFFLAGS: libc::c_ulong = 0x8914;
const IFF_UP: i16 = 1;

/// Brings the loopback interface up.
pub fn loopback_up() -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    let mut interface = InterfaceFlags {
        name: [0; 16],
        flags: 0,
        unused: [0; 22],
    };
    interface.name[..2].copy_from_slice(b"lo");
    for request in [SIOCGIFFLAGS, SIOCSIFFLAGS] {
        // SAFETY: both requests read and write one `struct ifreq`, which is 40 bytes as this one is,
        // valid and borrowed by nobody else for the call. All of its bytes may have any value.
        if unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut interface) } < 0 {
            return Err(io::Error::last_os_error());
        }
        interface.flags |= IFF_UP;
    }
    Ok(())
}

/// The kernel's `struct rand_pool_info` with room for a seed. Source: random(4).
#[repr(C)]
struct PoolInfo {
    entropy_bits: libc::c_int,
    len: libc::c_int,
    bytes: [u8; SEED_MAX],
}

/// Requests to the random device. Source: the kernel's `include/uapi/linux/random.h`.
const RNDADDENTROPY: libc::c_ulong = 0x4008_5203;
const RNDRESEEDCRNG: libc::c_ulong = 0x5207;

/// Mixes a seed of at most [`SEED_MAX`] bytes into the kernel's random numbers, counts all its bits as
/// unknown to others, and has the generator begin anew.
pub fn add_entropy(random: impl AsFd, seed: &[u8]) -> io::Result<()> {
    let mut pool = PoolInfo {
        entropy_bits: 0,
        len: 0,
        bytes: [0; SEED_MAX],
    };
    let fits = pool
        .bytes
        .get_mut(..seed.len())
        .zip(libc::c_int::try_from(seed.len()).ok());
    let Some((bytes, len)) = fits else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    bytes.copy_from_slice(seed);
    pool.len = len;
    pool.entropy_bits = len * 8;
    let random = random.as_fd().as_raw_fd();
    // SAFETY: the kernel reads a `struct rand_pool_info` and the `len` bytes behind its header, all of
    // which lie in `pool`.
    if unsafe { libc::ioctl(random, RNDADDENTROPY, &raw const pool) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the request takes no argument.
    if unsafe { libc::ioctl(random, RNDRESEEDCRNG) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Has the process that `command` becomes do `setup` before it executes its program.
pub fn prepare(command: &mut Command, setup: Setup) {
    let work = move || {
        run(&setup).map_err(|(step, error)| {
            // If this cannot be written, the parent does not learn which step it was.
            match rustix::io::write(&setup.report, &[step as u8]) {
                Ok(_) | Err(_) => error,
            }
        })
    };
    // SAFETY: between fork and exec only what is async-signal-safe may be done, because another
    // thread may have held a lock when this one forked. `run` makes system calls only: it
    // allocates nothing, takes no lock and drops nothing; neither does the closure around it.
    unsafe { command.pre_exec(work) };
}

fn run(setup: &Setup) -> Result<(), (Step, io::Error)> {
    let session = |error: rustix::io::Errno| (Step::Session, error.into());
    rustix::process::setsid().map_err(session)?;
    if setup.terminal {
        rustix::process::ioctl_tiocsctty(rustix::stdio::stdin()).map_err(session)?;
    }
    for signal in 1..=LAST_SIGNAL {
        // What the agent, or who started it, ignores is not to be ignored by the command. Not by the C
        // library: that keeps two signals to itself, of which its posix_spawn leaves one ignored. Fails
        // for SIGKILL and SIGSTOP, which cannot be ignored.
        // SAFETY: the kernel reads a `struct sigaction` of its own, which is no longer than
        // `DEFAULT_ACTION`, and writes nothing as the last pointer is null. All zero is the default
        // disposition, valid for every signal. The last argument is the size of its signal sets.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                DEFAULT_ACTION.as_ptr(),
                std::ptr::null_mut::<u64>(),
                size_of::<u64>(),
            )
        };
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    rustix::process::setrlimit(Resource::Nofile, setup.files).map_err(session)?;
    if let Some((uid, gid, groups)) = &setup.ids {
        let ids = |error: rustix::io::Errno| (Step::Ids, error.into());
        rustix::thread::set_thread_groups(groups).map_err(ids)?;
        rustix::thread::set_thread_res_gid(*gid, *gid, *gid).map_err(ids)?;
        rustix::thread::set_thread_res_uid(*uid, *uid, *uid).map_err(ids)?;
    }
    rustix::process::chdir(setup.cwd.as_c_str()).map_err(|error| (Step::Cwd, error.into()))
}
