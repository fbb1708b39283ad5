//! The FUSE wire format (Linux, `include/uapi/linux/fuse.h`, protocol 7.31 to 7.45), little-endian.
//!
//! A request is a header and a body that the opcode says the layout of; an answer is a header and a
//! body. [`Request::parse`] takes the one apart, [`Reply`] builds the other. Nothing here knows what an
//! operation does, allocates by a size that was sent, or panics whatever the bytes are.

mod bodies;
mod dirents;
mod error;
mod fields;
pub mod flags;
mod opcode;
mod operation;
mod reply;
mod request;

pub use dirents::{DirentPlus, Listing};
pub use error::WireError;
pub(super) use fields::Fields;
pub use opcode::Opcode;
pub use operation::{Forgets, InitIn, Operation};
pub use reply::{InitOut, Reply};
pub use request::{Dialect, Header, Request};

/// Length of `struct fuse_in_header` in bytes.
pub const IN_HEADER: usize = 40;
/// Length of `struct fuse_out_header` in bytes.
pub const OUT_HEADER: usize = 16;
/// Longest name of a file in bytes (`FUSE_NAME_MAX` is larger, but no file system of Linux has longer ones).
pub const NAME_MAX: usize = 255;
/// Largest payload of a READ, WRITE or READDIR in bytes.
pub const PAYLOAD_MAX: u32 = 1 << 20;
/// Longest message in bytes: the payload, and room for headers, names and extensions.
pub const MESSAGE_MAX: u32 = PAYLOAD_MAX + 8192;
