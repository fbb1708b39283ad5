//! What snapshots of a running virtual machine cost it, and how fast others go on from them.

mod clones;
mod guest;
mod pauses;

use super::error::BenchError;
use super::lab::Lab;
use super::peers::{memory_fork, qemu};
use super::report::Section;
use guest::Guests;

const ABOUT: &str = "\
Snapshots of a running virtual machine with its memory, and machines that go on from them: a guest of Floe's own \
on this host's KVM, without files, that writes to pages in turn. `pause` counts from the first wish to hold the \
guest until it was let go; `captured`, since the request, says when machines can start from it; `sealed`, since \
then, when it is durable and has its sums. A clone counts from the wish to start from an image to the guest's \
next step, in a machine that was built before.";

/// Runs the bench.
pub(super) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    lab.section(Section::new("vm", ABOUT), |section| {
        let room = lab.room("vm")?;
        let guests = lab.attempt(section, "virtual machines", || Guests::new(room.path()))?;
        if let Some(guests) = guests {
            pauses::run(lab, section, &guests)?;
            clones::run(lab, section, &guests)?;
            clones::from_disk(lab, section, &guests)?;
            clones::chain(lab, section, &guests)?;
        }
        memory_fork::run(lab, section)?;
        qemu::run(lab, section, &room)
    })
}
