//! The HTTP API of the daemon: what the published `e2b` and `ucloud_sandbox` packages speak, and a part
//! of Floe's own. docs/api.md is for who uses it.
//!
//! ```text
//! server       accepts connections, speaks HTTP/1.1, ends in an orderly way
//! dispatch     gives a request its id; by its headers and host (`place`) it goes to one of
//!   rest         who has a key: `e2b` (the wire contract), `native` (`/floe/v1`)
//!   envd         who has the sandbox's token: its files and processes, through its agent
//!   forward      anybody: a port in a sandbox
//! ```
//!
//! * Everything that arrives is hostile: bodies, headers and lists have bounds, and what cannot be
//!   understood is an error.
//! * Handlers never block the runtime: what does goes through [`state::Api::work`].
//! * What is told of an error, and whether a client may repeat the request, is decided in `error`
//!   alone (and in `envd::failure` for what a sandbox's side says).

mod backend;
mod daemon;
mod dispatch;
mod e2b;
mod envd;
mod error;
mod forward;
mod input;
pub mod keys;
mod native;
mod paging;
mod place;
mod request_id;
mod rest;
mod server;
mod state;
#[cfg(test)]
mod tests;
mod timed;
mod unread;

pub use keys::{FIRST, KEYS_MAX, Key, Keys, KeysError, NAME_BYTES_MAX};
pub use server::ApiServer;
