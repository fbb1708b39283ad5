//! What a monitor gives up before its guest runs, so that a guest that takes it over has little.
//!
//! Two layers. [`jail`] takes away what the process can *name*: file system, network, other
//! processes' objects, privileges. [`filters`] takes away the system calls that a thread does not
//! need. Both are for good. What is left: the machine's own memory, the sockets and files that the
//! process has open, and connections to sockets in the machine's own directory.

pub mod filters;
pub mod jail;
