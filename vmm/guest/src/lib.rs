//! What daemon and agent say to each other: frames over one stream.
//!
//! `docs/agent.md` is the protocol; this library is the part of it that both sides share, without any
//! I/O: [`frame`] cuts the stream into frames, [`hello`] agrees on a version, [`message`] has what is
//! said in JSON, [`window`] counts how much may be sent, [`vm`] is what holds in virtual machines only.
//! All of it takes any bytes: what is not allowed is an error, found before memory is taken for it.

#![forbid(unsafe_code)]

pub mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod hello;
pub mod message;
pub mod vm;
pub mod window;
