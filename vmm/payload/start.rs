//! The first instructions of the payload guest.
//!
//! Entered as a Linux kernel is (64-bit boot protocol, ring 0, RSI at the boot parameters). A
//! page-table KVM interprets ring 0 at some million instructions a second and lacks many of them,
//! but runs ring 3 natively; so the guest goes to ring 3 at once, with page tables that let it
//! reach everything and a task state that lets it use ports (the I/O privilege level would do on real
//! hardware; a page-table KVM looks at the permission bitmap all the same). There is no IDT: a fault is
//! a triple fault, which the tests see.

use core::arch::global_asm;

const PAGE: u64 = 0x1000;
/// Where `link.ld` puts the tables.
const TABLES: u64 = 0x20_0000;
/// Present, writable, user.
const OPEN: u64 = 7;
const LARGE: u64 = 1 << 7;

#[repr(C, align(4096))]
struct Tables([[u64; 512]; 6]);

#[used]
#[unsafe(link_section = ".tables")]
static TABLES_4_GIB: Tables = Tables(tables());

/// Where the task state lies, after the six tables.
const TASK: u64 = TABLES + 6 * PAGE;
const TASK_LEN: u64 = 104;
const BITMAP_LEN: u64 = 8192;

/// A 64-bit task state whose I/O permission bitmap allows every port (Intel SDM volume 1,
/// "I/O permission bit map"): zeros, then one byte of ones.
#[repr(C, align(4096))]
struct Task([u8; (TASK_LEN + BITMAP_LEN + 1) as usize]);

#[used]
#[unsafe(link_section = ".task")]
static TASK_STATE: Task = Task(task());

const fn task() -> [u8; (TASK_LEN + BITMAP_LEN + 1) as usize] {
    let mut bytes = [0; (TASK_LEN + BITMAP_LEN + 1) as usize];
    bytes[102] = TASK_LEN as u8;
    bytes[(TASK_LEN + BITMAP_LEN) as usize] = 0xff;
    bytes
}

/// The low half of the task state's descriptor: present, 64-bit TSS, available.
const TASK_DESCRIPTOR: u64 = (TASK_LEN + BITMAP_LEN) | (TASK & 0xff_ffff) << 16 | 0x89 << 40;

const fn tables() -> [[u64; 512]; 6] {
    let mut all = [[0; 512]; 6];
    all[0][0] = TABLES + PAGE | OPEN;
    let mut gib = 0;
    while gib < 4 {
        all[1][gib] = TABLES + (2 + gib as u64) * PAGE | OPEN;
        let mut entry = 0;
        while entry < 512 {
            all[2 + gib][entry] = (gib as u64) << 30 | (entry as u64) << 21 | LARGE | OPEN;
            entry += 1;
        }
        gib += 1;
    }
    all
}

global_asm!(
    r#"
    .section .start, "ax"
    .globl _start
_start:
    mov rax, {tables}
    mov cr3, rax
    mov rax, cr4
    or rax, 0x600
    mov cr4, rax
    mov rax, cr0
    and rax, -5
    or rax, 2
    mov cr0, rax
    lgdt [rip + gdt_pointer]
    mov ax, 0x30
    ltr ax
    mov rdi, rsi
    lea rax, [rip + user]
    push 0x23
    lea rcx, [rip + stack_end]
    push rcx
    push 0x3002
    push 0x2b
    push rax
    iretq
user:
    mov ax, 0x23
    mov ds, ax
    mov es, ax
    xor ebp, ebp
    call main
    ud2

    .section .data
    .balign 16
gdt:
    .quad 0, 0
    .quad 0x00af9b000000ffff
    .quad 0x00cf93000000ffff
    .quad 0x00cff3000000ffff
    .quad 0x00affb000000ffff
    .quad {task}, 0
gdt_pointer:
    .word 63
    .quad gdt

    .section .bss
    .balign 16
    .skip 0x8000
stack_end:
    "#,
    tables = const TABLES,
    task = const TASK_DESCRIPTOR,
);
