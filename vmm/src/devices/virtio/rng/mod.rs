//! The entropy device (specification, section 5.4): fills what its driver offers with the host's
//! random numbers. It has no state: between two calls nothing of it is left.

use serde::{Deserialize, Serialize};

use super::chain::Chain;
use super::{Fault, Queues, VirtioDevice};
use crate::machine::memory::GuestMemory;

/// Device type.
const ID: u32 = 4;
const QUEUE: usize = 0;
/// Most bytes for one chain: a driver that offers more is told how many it got, and asks again.
const BYTES_MAX: u32 = 64 * 1024;

/// The device.
#[derive(Debug, Default)]
pub struct Rng;

/// What is saved of it: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RngState;

impl VirtioDevice for Rng {
    type State = RngState;

    fn id(&self) -> u32 {
        ID
    }

    fn queue_sizes(&self) -> &'static [u16] {
        &[64]
    }

    fn activate(&mut self, _: &mut Queues<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn notified(&mut self, _: u16, queues: &mut Queues<'_>) -> Result<(), Fault> {
        let mut used = false;
        let result = queues.serve_later(QUEUE, |queues, chain| {
            let len = fill(&chain, queues.memory())?;
            queues.put_used(QUEUE, chain.head(), len)?;
            used = true;
            Ok(true)
        });
        if used {
            queues.tell(QUEUE)?;
        }
        result
    }

    fn reset(&mut self) {}

    fn save(&self) -> RngState {
        RngState
    }

    fn restore(&mut self, RngState: RngState) {}
}

/// Fills what `chain` offers; returns how many bytes that is.
fn fill(chain: &Chain, memory: &GuestMemory) -> Result<u32, Fault> {
    let len = chain.writable_len().min(BYTES_MAX);
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    getrandom::fill(&mut bytes).map_err(|error| Fault::Host {
        what: "random numbers",
        source: std::io::Error::other(error),
    })?;
    chain
        .write(memory, 0, &bytes)
        .map_err(|source| Fault::Memory {
            queue: QUEUE,
            source,
        })?;
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::virtio::testing::Driver;

    #[test]
    fn offered_memory_is_filled_and_nothing_beyond() {
        let mut driver = Driver::new(Rng);
        driver.start(0);
        let at = driver.buffer(64);
        driver.add(0, &[(at, 20, true), (at + 32, 4, true)]);
        driver.notify(0);
        assert_eq!(driver.used(0), [(0, 24)]);
        let bytes = driver.read(at, 64);
        assert!(bytes[..20].iter().any(|byte| *byte != 0));
        assert!(bytes[20..32].iter().all(|byte| *byte == 0));
        assert!(bytes[36..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_huge_offer_is_answered_in_part() {
        let mut driver = Driver::new(Rng);
        driver.start(0);
        driver.add(0, &[(0x40_0000, 0x40_0000, true)]);
        driver.notify(0);
        assert_eq!(driver.used(0), [(0, BYTES_MAX)]);
    }

    #[test]
    fn a_chain_with_nothing_to_write_gets_nothing() {
        let mut driver = Driver::new(Rng);
        driver.start(0);
        let at = driver.buffer(64);
        driver.add(0, &[(at, 64, false)]);
        driver.notify(0);
        assert_eq!(driver.used(0), [(0, 0)]);
        assert!(driver.fault().is_none());
    }
}
