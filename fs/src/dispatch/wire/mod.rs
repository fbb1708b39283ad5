//! FUSE messages of a guest over a Unix socket, served by a [`Dispatch`](super::Dispatch).
//!
//! A virtio-fs device is a queue of FUSE messages. The monitor of a virtual machine takes them from the
//! guest's memory and passes them on as they are over a Unix socket; here is the other end of it. Four
//! rooms:
//!
//! * [`codec`]: bytes to typed requests, typed answers to bytes. Pure.
//! * [`server`](Server): what a guest may do, and having the [`Dispatch`](super::Dispatch) do it.
//! * `frame`: what the monitor puts messages in. Pure.
//! * `stream`: messages on the socket, and the threads that serve them.
//!
//! **Everything that comes in is hostile.** The guest's kernel is not the one of this machine: whoever is
//! root in the guest writes what he likes into the queue. So every length, offset, name, flag and node
//! number is checked here, an answer is never longer than what was asked for, and what one guest does
//! reaches no other connection. docs/virtiofs.md has the whole picture.

pub mod codec;
mod frame;
mod server;
mod stream;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use server::fuzzing;
pub use server::{
    COUNT_MAX, Caching, Captured, RestoreStateError, Server, ServerOptions, ServerState, StateError,
};
pub use stream::StreamError;
