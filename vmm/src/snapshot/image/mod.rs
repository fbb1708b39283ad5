//! Images: a machine's memory and state in a directory (docs/format.md, section "Images").
//!
//! [`ImageWriter`] makes one, in three steps: pages are written into its memory file as a machine gives
//! them; [`ImageWriter::capture`] adds the rest, and from then on machines can start from it;
//! [`Image::seal`] makes it durable and adds what damage is found by. [`Image`] is one that is there.
//!
//! Who makes and reads images trusts the directory they are in, and nothing else: a monitor is handed
//! one descriptor, of the memory file that is its own to fill.
//!
//! Invariant: files of an image never change once it is captured. An image that uses another's file has a
//! hard link to it, so each can be removed without a look at the others, and space comes back with the
//! last.

mod files;
pub mod header;
pub mod layout;
mod lease;
mod manifest;
mod open;
mod sums;
#[cfg(test)]
mod tests;
mod write;

pub use manifest::{FileEntry, Manifest};
pub use open::{Image, OpenError};
pub use sums::{Damage, VerifyError};
pub use write::{ImageWriter, Taken, TakenError, WriteError};

pub(super) use files::{by_zero, offset, parts, punch};

/// An image's file once it is sealed.
const SEALED: &str = "image";
/// The same before that.
const CAPTURED: &str = "image.captured";
/// The image's own memory file; those that it uses of others have a number appended.
const MEMORY: &str = "memory";
