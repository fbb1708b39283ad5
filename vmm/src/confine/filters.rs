//! System-call filters (seccomp), one for each kind of thread.
//!
//! Allow lists: what is not on one ends the process with SIGSYS. The lists hold what the code here,
//! the standard library and glibc's allocator call once the machine is built; there is nothing to
//! open a file, start a program, or make memory executable. A few calls that libraries make on their
//! own account and do well without fail instead (`REFUSED`).
//!
//! Invariant: a thread's filter is installed before it does anything for the guest. Filters add up,
//! so the main thread's, from which others would inherit, is installed after they have started.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::machine::ThreadKind;

/// `KVM_RUN` (`include/uapi/linux/kvm.h`).
const KVM_RUN: u64 = 0xae80;
/// `KVM_SIGNAL_MSI`.
const KVM_SIGNAL_MSI: u64 = 0x4020_aea5;
/// `FIONBIO`, by which the standard library makes a socket non-blocking.
const FIONBIO: u64 = 0x5421;
const F_GETFD: u64 = 1;
/// A console client is held twice, by the console and by the main thread.
const F_DUPFD_CLOEXEC: u64 = 1030;
const PROT_EXEC: u64 = 4;
/// `FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE` (`include/uapi/linux/falloc.h`).
const PUNCH_HOLE: u64 = 3;
const AF_UNIX: u64 = 1;

/// Why a filter could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The list of rules is not one: a mistake of this program.
    #[error("the list of system calls is malformed")]
    Rules(#[from] seccompiler::BackendError),
    /// The kernel refuses it.
    #[error("the kernel refuses the list of system calls")]
    Install(#[from] seccompiler::Error),
}

/// Whose filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A thread of the machine.
    Machine(ThreadKind),
    /// The thread that takes snapshots.
    Snapshots,
    /// The thread that holds the control socket.
    Main,
}

/// Allows only what `role` needs in this thread, and in threads that it starts.
///
/// # Errors
/// [`FilterError`].
pub fn install(role: Role) -> Result<(), FilterError> {
    seccompiler::apply_filter(&refusals()?)?;
    seccompiler::apply_filter(&program(role)?)?;
    Ok(())
}

/// A filter of its own: of several, the strictest answer counts, and refusing is stricter than
/// allowing.
fn refusals() -> Result<BpfProgram, FilterError> {
    let errno = u32::try_from(libc::EACCES).unwrap_or(0);
    let filter = SeccompFilter::new(
        REFUSED.iter().map(|call| (*call, Vec::new())).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(errno),
        TargetArch::x86_64,
    )?;
    Ok(filter.try_into()?)
}

fn program(role: Role) -> Result<BpfProgram, FilterError> {
    let filter = SeccompFilter::new(
        rules(role)?,
        SeccompAction::KillProcess,
        SeccompAction::Allow,
        TargetArch::x86_64,
    )?;
    Ok(filter.try_into()?)
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// What every thread needs: memory, locks, time, signals, its own end.
const COMMON: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_read,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_write,
];

/// What fails with EACCES. glibc's allocator looks into `/proc/sys/vm/overcommit_memory` before it
/// gives memory of a thread back, and for the number of processors; a panic's backtrace looks for
/// the program's file.
const REFUSED: &[i64] = &[
    libc::SYS_getcwd,
    libc::SYS_newfstatat,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_readlink,
    libc::SYS_sched_getaffinity,
    libc::SYS_statx,
];

/// What serving devices needs: sockets, and the console's log. A vCPU serves the devices that its
/// guest touches, so both kinds of thread need them.
const DEVICES: &[i64] = &[
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_wait,
    libc::SYS_ftruncate,
    libc::SYS_lseek,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_shutdown,
];

/// What the main thread needs for its sockets, and to end the machine.
const MAIN: &[i64] = &[
    libc::SYS_accept4,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_wait,
    libc::SYS_ftruncate,
    libc::SYS_lseek,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_recvfrom,
    // Files for a snapshot come from the daemon, which is trusted, on the one socket that it has.
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_shutdown,
];

/// What taking a snapshot needs: files that are open, and waking the main thread.
const SNAPSHOTS: &[i64] = &[libc::SYS_pread64, libc::SYS_pwrite64];

/// What it asks KVM (`include/uapi/linux/kvm.h`): nothing here changes a machine but that writes are logged.
const SNAPSHOT_IOCTLS: &[u64] = &[
    0x4020_ae46, // KVM_SET_USER_MEMORY_REGION
    0x4010_ae42, // KVM_GET_DIRTY_LOG
    0x8030_ae7c, // KVM_GET_CLOCK
    0x8004_ae98, // KVM_GET_MP_STATE
    0x8090_ae81, // KVM_GET_REGS
    0x8138_ae83, // KVM_GET_SREGS
    0x9000_aea4, // KVM_GET_XSAVE
    0x8188_aea6, // KVM_GET_XCRS
    0x8080_aea1, // KVM_GET_DEBUGREGS
    0x8400_ae8e, // KVM_GET_LAPIC
    0xaea3,      // KVM_GET_TSC_KHZ
    0xc008_ae88, // KVM_GET_MSRS
    0x8040_ae9f, // KVM_GET_VCPU_EVENTS
];

fn rules(role: Role) -> Result<Rules, FilterError> {
    let mut rules: Rules = COMMON.iter().map(|call| (*call, Vec::new())).collect();
    let allowed = match role {
        Role::Machine(_) => DEVICES,
        Role::Snapshots => SNAPSHOTS,
        Role::Main => MAIN,
    };
    rules.extend(REFUSED.iter().map(|call| (*call, Vec::new())));
    rules.extend(allowed.iter().map(|call| (*call, Vec::new())));
    // Memory is never made executable.
    let not_executable = || argument(2, SeccompCmpOp::MaskedEq(PROT_EXEC), 0);
    rules.insert(libc::SYS_mmap, vec![not_executable()?]);
    rules.insert(libc::SYS_mprotect, vec![not_executable()?]);
    // The standard library looks at a descriptor before it closes it, when built for debugging.
    let mut fcntls = vec![argument(1, SeccompCmpOp::Eq, F_GETFD)?];
    let mut ioctls = vec![
        argument(1, SeccompCmpOp::Eq, KVM_SIGNAL_MSI)?,
        argument(1, SeccompCmpOp::Eq, FIONBIO)?,
    ];
    match role {
        Role::Machine(kind) => {
            let unix = argument(0, SeccompCmpOp::Eq, AF_UNIX)?;
            rules.insert(libc::SYS_socket, vec![unix]);
            if kind == ThreadKind::Vcpu {
                ioctls.push(argument(1, SeccompCmpOp::Eq, KVM_RUN)?);
            }
        }
        Role::Snapshots => {
            for ioctl in SNAPSHOT_IOCTLS {
                ioctls.push(argument(1, SeccompCmpOp::Eq, *ioctl)?);
            }
            // Space behind a file's end is not counted against the size that a file may have: only holes are made.
            let hole = argument(1, SeccompCmpOp::Eq, PUNCH_HOLE)?;
            rules.insert(libc::SYS_fallocate, vec![hole]);
        }
        Role::Main => fcntls.push(argument(1, SeccompCmpOp::Eq, F_DUPFD_CLOEXEC)?),
    }
    // Kicks go to threads of this process only.
    if matches!(role, Role::Snapshots | Role::Main) {
        let own = u64::from(std::process::id());
        rules.insert(libc::SYS_tgkill, vec![argument(0, SeccompCmpOp::Eq, own)?]);
    }
    rules.insert(libc::SYS_ioctl, ioctls);
    rules.insert(libc::SYS_fcntl, fcntls);
    Ok(rules)
}

/// Argument `index`, of 32 bits, compares so with `value`.
fn argument(index: u8, compare: SeccompCmpOp, value: u64) -> Result<SeccompRule, FilterError> {
    let condition = SeccompCondition::new(index, SeccompCmpArgLen::Dword, compare, value)?;
    Ok(SeccompRule::new(vec![condition])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_compiles_and_none_opens_or_executes() {
        let roles = [
            Role::Machine(ThreadKind::Vcpu),
            Role::Machine(ThreadKind::Devices),
            Role::Snapshots,
            Role::Main,
        ];
        let dangerous = [
            libc::SYS_open,
            libc::SYS_openat,
            libc::SYS_openat2,
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_clone,
            libc::SYS_clone3,
            libc::SYS_fork,
            libc::SYS_ptrace,
            libc::SYS_kill,
            libc::SYS_process_vm_writev,
            libc::SYS_io_uring_setup,
            libc::SYS_userfaultfd,
            libc::SYS_sendmsg,
        ];
        for role in roles {
            program(role).unwrap();
            refusals().unwrap();
            let rules = rules(role).unwrap();
            for call in dangerous {
                let allowed = rules.contains_key(&call) && !REFUSED.contains(&call);
                assert!(!allowed, "{role:?} has {call}");
            }
            let receives = rules.contains_key(&libc::SYS_recvmsg);
            assert_eq!(
                receives,
                role == Role::Main,
                "descriptors come from the daemon only"
            );
        }
    }

    #[test]
    fn nobody_can_take_space_that_is_no_part_of_a_file() {
        for role in [Role::Main, Role::Machine(ThreadKind::Devices)] {
            assert!(!rules(role).unwrap().contains_key(&libc::SYS_fallocate));
        }
        let only_holes = argument(1, SeccompCmpOp::Eq, PUNCH_HOLE).unwrap();
        let rules = rules(Role::Snapshots).unwrap();
        assert_eq!(rules[&libc::SYS_fallocate], [only_holes]);
    }

    #[test]
    fn only_a_vcpu_may_run_the_guest() {
        let ioctls = |role| rules(role).unwrap()[&libc::SYS_ioctl].len();
        assert_eq!(ioctls(Role::Machine(ThreadKind::Vcpu)), 3);
        assert_eq!(ioctls(Role::Machine(ThreadKind::Devices)), 2);
        assert_eq!(ioctls(Role::Main), 2);
        assert_eq!(ioctls(Role::Snapshots), 2 + SNAPSHOT_IOCTLS.len());
    }
}
