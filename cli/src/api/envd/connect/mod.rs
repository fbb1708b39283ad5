//! The Connect protocol, as far as clients of sandboxes use it: single requests and streams of JSON,
//! without compression.
//!
//! Source: <https://connectrpc.com/docs/protocol/>.

pub(super) mod call;
pub(super) mod envelope;
pub(super) mod error;
pub(super) mod live;
