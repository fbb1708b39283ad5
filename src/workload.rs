//! Work for a file system: random operations from a seed, numbered files whose survival can be
//! checked after a crash, and load in the background.

mod load;
mod numbered;
mod operations;

pub use load::Load;
pub use numbered::Numbered;
pub use operations::{Operations, Step};
