//! Files, as the user who asks.

mod entry;
mod list;
pub mod path;
mod remove;
mod serve;
mod stream;

pub use entry::look;
pub use stream::{Reading, Writing};
