//! Getting a running vCPU out of the guest.
//!
//! The kick is a real-time signal to the vCPU's thread. A signal alone would be lost if it came
//! just before `KVM_RUN`, so its handler sets the vCPU's `immediate_exit`, with which `KVM_RUN`
//! returns at once (`Documentation/virt/kvm/api.rst`, 5, `kvm_run`). The order that makes every
//! kick effective:
//!
//! 1. the kicker stores its wish, then sends the signal;
//! 2. the vCPU clears `immediate_exit`, then reads the wish, then enters `KVM_RUN`.
//!
//! A signal before the clearing is seen as a wish, one after it ends `KVM_RUN`.

#![expect(
    unsafe_code,
    reason = "a signal handler writes to memory shared with the kernel"
)]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;

use kvm_ioctls::VcpuFd;
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

thread_local! {
    // Null in every thread but a vCPU's while it runs. Constant and without a destructor, so a
    // handler may read it at any time of the thread's life.
    static IMMEDIATE_EXIT: Cell<*const AtomicU8> = const { Cell::new(ptr::null()) };
}

extern "C" fn on_kick(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    let flag = IMMEDIATE_EXIT.get();
    if !flag.is_null() {
        // SAFETY: non-null only while this thread's `Armed` lives, which borrows the vCPU and
        // with it the mapping that the pointer is into. An atomic store is allowed in a handler.
        unsafe { &*flag }.store(1, Ordering::Relaxed);
    }
}

/// Installs the handler of kicks, for the whole process, once.
///
/// # Errors
/// The system's.
pub fn install_kick_handler() -> std::io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    INSTALLED
        .get_or_init(|| register_signal_handler(SIGRTMIN(), on_kick).map_err(|e| e.errno()))
        .map_err(std::io::Error::from_raw_os_error)
}

/// Kicks the vCPU that runs in `thread`. A thread that has ended is left alone.
pub(crate) fn kick<T>(thread: &JoinHandle<T>) {
    if thread.is_finished() {
        return;
    }
    // A thread that ends in between is a zombie until it is joined, and takes the signal.
    if let Err(error) = thread.kill(SIGRTMIN()) {
        tracing::debug!(%error, "a vCPU could not be kicked");
    }
}

/// A vCPU in the thread that runs it, open for kicks.
pub(super) struct Armed<'a> {
    pub(super) fd: &'a mut VcpuFd,
    flag: *const AtomicU8,
}

impl<'a> Armed<'a> {
    /// Makes this thread the one that kicks of `fd` go to.
    pub(super) fn new(fd: &'a mut VcpuFd) -> Self {
        let flag: *const AtomicU8 = (&raw mut fd.get_kvm_run().immediate_exit).cast();
        IMMEDIATE_EXIT.set(flag);
        Self { fd, flag }
    }

    /// Step 2 of the module's protocol: forgets kicks that came before.
    pub(super) fn forget_kicks(&mut self) {
        // SAFETY: `flag` points into the mapping of `self.fd`, which lives as long as `self`. The
        // byte is only ever accessed as an atomic here and in the handler, and by the kernel.
        unsafe { &*self.flag }.store(0, Ordering::SeqCst);
    }

    /// The next entry into the guest runs no instruction of it.
    pub(super) fn leave_at_once(&mut self) {
        // SAFETY: as in `forget_kicks`.
        unsafe { &*self.flag }.store(1, Ordering::SeqCst);
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        IMMEDIATE_EXIT.set(ptr::null());
    }
}
