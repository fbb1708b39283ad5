//! The filter of system calls of a sandbox.
//!
//! What only makes sense with power over the host, or gives a way into parts of the kernel that
//! programs of a workspace do not need, fails with `EPERM`. Calls that did not exist when this was
//! written, and those of the x32 ABI, whose numbers are above all others, fail with `ENOSYS`: a
//! program then does without, and no new call is let in unseen. Programs for 32 bits are killed.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

use super::StartError;

/// Numbers from here on are unknown: Linux 6.18 ends at 469 on every architecture.
const UNKNOWN: u32 = 470;

/// Namespaces that a sandbox may not make: in a user namespace of its own it would be root over
/// parts of the kernel that it cannot reach otherwise.
const NAMESPACES: u64 = 0x7e02_0080;

/// Families of sockets that lead out of the sandbox's namespaces or to rarely used kernel code.
const FAMILIES: &[u64] = &[
    15, // AF_KEY
    17, // AF_PACKET
    38, // AF_ALG
    40, // AF_VSOCK
    44, // AF_XDP
];

/// Pushing characters into the input of a terminal.
const TIOCSTI: u64 = 0x5412;
/// The same for a selection of the console.
const TIOCLINUX: u64 = 0x541c;

const REFUSED: &[i64] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_nfsservctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    467, // open_tree_attr, which the crate has no name for yet
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// The filter as bubblewrap takes it: the instructions as they lie in memory.
pub(super) fn program() -> Result<Vec<u8>, StartError> {
    let failed = |source: seccompiler::BackendError| StartError::Filter {
        source: source.into(),
    };
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(failed)?;
    let refused = SeccompFilter::new(
        rules().map_err(failed)?,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        arch,
    );
    let refused: BpfProgram = refused.and_then(TryInto::try_into).map_err(failed)?;
    // clone3 has its flags in memory, where a filter cannot look. Without it, libraries use clone.
    let absent = SeccompFilter::new(
        BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS.unsigned_abs()),
        arch,
    );
    let absent: BpfProgram = absent.and_then(TryInto::try_into).map_err(failed)?;
    Ok(bytes(&chained(absent, refused)))
}

fn rules() -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let one = |condition| SeccompRule::new(vec![condition]);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().map(|&number| (number, Vec::new())).collect();
    for number in [libc::SYS_unshare, libc::SYS_clone] {
        let mut any = Vec::new();
        let mut bit = 1;
        while bit <= NAMESPACES {
            if NAMESPACES & bit != 0 {
                let set = SeccompCmpOp::MaskedEq(bit);
                any.push(one(SeccompCondition::new(
                    0,
                    SeccompCmpArgLen::Dword,
                    set,
                    bit,
                )?)?);
            }
            bit <<= 1;
        }
        rules.insert(number, any);
    }
    let equal = |argument, values: &[u64]| {
        let of = |&value: &u64| {
            let width = SeccompCmpArgLen::Dword;
            one(SeccompCondition::new(
                argument,
                width,
                SeccompCmpOp::Eq,
                value,
            )?)
        };
        values.iter().map(of).collect::<Result<Vec<_>, _>>()
    };
    rules.insert(libc::SYS_socket, equal(0, FAMILIES)?);
    rules.insert(libc::SYS_ioctl, equal(1, &[TIOCSTI, TIOCLINUX])?);
    Ok(rules)
}

/// `struct seccomp_data` begins with the number (linux/seccomp.h).
const LOAD_NUMBER: sock_filter = sock_filter {
    code: 0x20, // BPF_LD | BPF_W | BPF_ABS
    jt: 0,
    jf: 0,
    k: 0,
};

/// One program of two filters that allow what they do not refuse, behind the test for what is
/// unknown. Where the first would allow, the second decides.
fn chained(first: BpfProgram, second: BpfProgram) -> BpfProgram {
    const JUMP_IF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
    const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    const RETURN_ALLOW: u32 = 0x7fff_0000; // SECCOMP_RET_ALLOW
    const RETURN_ERRNO: u32 = 0x0005_0000; // SECCOMP_RET_ERRNO
    let of = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let mut all = vec![
        LOAD_NUMBER,
        of(JUMP_IF_AT_LEAST, 0, 1, UNKNOWN),
        of(RETURN, 0, 0, RETURN_ERRNO | libc::ENOSYS.unsigned_abs()),
    ];
    let length = first.len();
    for (at, mut instruction) in first.into_iter().enumerate() {
        if instruction.code == RETURN && instruction.k == RETURN_ALLOW {
            let behind = u32::try_from(length - at - 1).unwrap_or(u32::MAX);
            instruction = of(JUMP, 0, 0, behind);
        }
        all.push(instruction);
    }
    all.extend(second);
    all
}

fn bytes(program: &BpfProgram) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(program.len() * 8);
    for instruction in program {
        bytes.extend(instruction.code.to_ne_bytes());
        bytes.extend([instruction.jt, instruction.jf]);
        bytes.extend(instruction.k.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a program answers to a call: a small machine for the instructions that are used.
    fn run(program: &[u8], number: u32, arguments: [u64; 2]) -> u32 {
        let mut data = Vec::new();
        data.extend(number.to_ne_bytes());
        data.extend(0xc000_003e_u32.to_ne_bytes());
        data.extend(0_u64.to_ne_bytes());
        for argument in arguments {
            data.extend(argument.to_ne_bytes());
        }
        data.resize(64, 0);
        let (mut at, mut accumulator) = (0, 0_u32);
        loop {
            let one = &program[at * 8..at * 8 + 8];
            let code = u16::from_ne_bytes([one[0], one[1]]);
            let k = u32::from_ne_bytes(one[4..8].try_into().unwrap());
            let jump = |taken: bool| usize::from(if taken { one[2] } else { one[3] });
            at += 1;
            match code {
                0x20 => {
                    let from = k as usize;
                    accumulator = u32::from_ne_bytes(data[from..from + 4].try_into().unwrap());
                }
                0x05 => at += k as usize,
                0x15 => at += jump(accumulator == k),
                0x25 => at += jump(accumulator > k),
                0x35 => at += jump(accumulator >= k),
                0x45 => at += jump(accumulator & k != 0),
                0x54 => accumulator &= k,
                0x06 => return k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn calls_of_everyday_are_allowed_and_those_over_the_host_are_not() {
        const ALLOWED: u32 = 0x7fff_0000;
        const EPERM: u32 = 0x0005_0001;
        const ENOSYS: u32 = 0x0005_0026;
        let program = program().unwrap();
        let call = |number: i64, first: u64, second: u64| {
            run(&program, u32::try_from(number).unwrap(), [first, second])
        };
        for number in [
            libc::SYS_read,
            libc::SYS_execve,
            libc::SYS_openat,
            libc::SYS_futex,
            libc::SYS_ptrace,
        ] {
            assert_eq!(call(number, 0, 0), ALLOWED, "{number}");
        }
        for &number in REFUSED {
            assert_eq!(call(number, 0, 0), EPERM, "{number}");
        }
        assert_eq!(call(libc::SYS_clone3, 0, 0), ENOSYS);
        assert_eq!(call(UNKNOWN.into(), 0, 0), ENOSYS);
        assert_eq!(call(0x4000_0000 | libc::SYS_read, 0, 0), ENOSYS);
        // Threads and processes, but no namespaces.
        let threads = u64::try_from(libc::CLONE_VM | libc::CLONE_THREAD).unwrap();
        assert_eq!(call(libc::SYS_clone, threads, 0), ALLOWED);
        let user = u64::try_from(libc::CLONE_NEWUSER).unwrap();
        assert_eq!(call(libc::SYS_clone, user | threads, 0), EPERM);
        assert_eq!(call(libc::SYS_unshare, user, 0), EPERM);
        let files = u64::try_from(libc::CLONE_FILES).unwrap();
        assert_eq!(call(libc::SYS_unshare, files, 0), ALLOWED);
        assert_eq!(call(libc::SYS_socket, 2, 1), ALLOWED);
        assert_eq!(call(libc::SYS_socket, 40, 1), EPERM);
        assert_eq!(call(libc::SYS_ioctl, 0, TIOCSTI), EPERM);
        assert_eq!(call(libc::SYS_ioctl, 0, 0x5401), ALLOWED);
    }
}
