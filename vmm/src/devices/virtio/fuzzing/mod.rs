//! A hostile driver, whose every step is in the input, before a device and its transport; and a hostile
//! server behind a file system.
//!
//! The input is a list of steps: registers written, memory written, chains offered, queues notified. What
//! the device does is judged by [`oracle`], which reads the queues with code of its own.

mod bench;
mod oracle;
mod peer;
mod steps;

use bench::Bench;
use peer::{FsPeer, Nobody, VsockPeer};
pub(crate) use steps::events;

use super::rng::Rng;
use crate::fuzzing::Input;

/// Most steps of one input: what takes longer shows nothing new.
const STEPS_MAX: usize = 300;

/// A driver's steps before an entropy, a socket or a file system device; the first byte says which.
///
/// # Panics
/// If the device wrote outside of what chains let it write, gave back a chain that it does not have or
/// more than it had room for, took more chains than there are, went on after a fault or a reset, holds
/// more than it may, or cannot be restored from what it saved.
pub fn virtqueue(data: &[u8]) {
    let mut input = Input(data);
    match input.below(3) {
        0 => steps(Bench::new(Rng, Nobody), &mut input),
        1 => {
            let (peer, device) = FsPeer::new();
            steps(Bench::new(device, peer), &mut input);
        }
        _ => {
            let (peer, device) = VsockPeer::new();
            steps(Bench::new(device, peer), &mut input);
        }
    }
}

/// A server's bytes to a file system device that has requests under way, of a driver that keeps the
/// rules. The first byte says how many, then come pieces: two bytes with their length, and so many bytes.
///
/// # Panics
/// As [`virtqueue`].
pub fn fs_reply(data: &[u8]) {
    let mut input = Input(data);
    let (peer, device) = FsPeer::new();
    let mut bench = Bench::new(device, peer);
    bench.set_up(0, 4);
    let requests = 1 + input.below(12);
    for number in 0..u8::try_from(requests).unwrap_or(1) {
        bench.request(number);
    }
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let len = usize::from(input.u16());
        bench.served(input.bytes(len));
    }
}

fn steps<D: super::VirtioDevice, P: peer::Peer<D>>(mut bench: Bench<D, P>, input: &mut Input<'_>) {
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        bench.step(input);
    }
}

/// Inputs to begin with.
pub(crate) fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    steps::seeds()
}
