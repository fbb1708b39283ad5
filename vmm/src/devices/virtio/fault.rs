//! What a driver can do wrong, or the host, so that a virtio device has to stop.

/// Why a device stopped. It says so to its driver (`DEVICE_NEEDS_RESET`) and does nothing more
/// until it is reset; the machine runs on.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// A queue lies outside of memory, or has an impossible size or alignment.
    #[error("queue {queue} is not where a queue can be")]
    QueuePlace {
        /// Which queue.
        queue: usize,
    },
    /// The available index moved by more than the queue holds.
    #[error("queue {queue} claims more entries than it has: {source}")]
    QueueIndex {
        /// Which queue.
        queue: usize,
        /// What the queue's code says.
        source: virtio_queue::Error,
    },
    /// A chain of descriptors is malformed.
    #[error("a chain of descriptors of queue {queue} {what}")]
    Chain {
        /// Which queue.
        queue: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Guest memory that was checked could not be accessed after all.
    #[error("guest memory of queue {queue} cannot be accessed")]
    Memory {
        /// Which queue.
        queue: usize,
        /// The memory's error.
        source: vm_memory::GuestMemoryError,
    },
    /// The used ring could not be written.
    #[error("the used ring of queue {queue} cannot be written: {source}")]
    Used {
        /// Which queue.
        queue: usize,
        /// What the queue's code says.
        source: virtio_queue::Error,
    },
    /// The host failed.
    #[error("the host failed: {what}")]
    Host {
        /// At what.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}
