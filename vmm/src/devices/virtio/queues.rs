//! What a device does with its queues: takes checked chains, gives them back, tells the driver.

use virtio_queue::{Queue, QueueOwnedT, QueueT};

use super::Fault;
use super::chain::Chain;
use super::mmio::Interrupt;
use crate::machine::memory::GuestMemory;

/// The queues of one device, while it is called.
pub struct Queues<'a> {
    memory: &'a GuestMemory,
    queues: &'a mut [Queue],
    interrupt: &'a mut Interrupt,
    again: &'a mut Again,
}

/// Which queues a device left although they were not empty, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Again(u32);

impl Again {
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// One more.
    pub(super) fn add(&mut self, index: usize) {
        if index < 32 {
            self.0 |= 1 << index;
        }
    }

    /// The queues, in order.
    pub(super) fn queues(self) -> impl Iterator<Item = u16> {
        (0..32).filter(move |index| self.0 & 1 << index != 0)
    }
}

/// Most chains that are served in one go. More only come when the guest adds them meanwhile, which
/// it could do for ever; the thread has to pass the gate in between.
const SERVED_AT_ONCE: usize = 1024;

impl<'a> Queues<'a> {
    pub(super) fn new(
        memory: &'a GuestMemory,
        queues: &'a mut [Queue],
        interrupt: &'a mut Interrupt,
        again: &'a mut Again,
    ) -> Self {
        Self {
            memory,
            queues,
            interrupt,
            again,
        }
    }

    /// The guest's RAM.
    #[must_use]
    pub fn memory(&self) -> &'a GuestMemory {
        self.memory
    }

    /// Takes the next chain of the queue `index`, if there is one. A queue that its driver has not
    /// set up is empty.
    ///
    /// # Errors
    /// [`Fault::QueueIndex`] and [`Fault::Chain`]: the driver is at fault, and the device stops.
    pub fn pop(&mut self, index: usize) -> Result<Option<Chain>, Fault> {
        let memory = self.memory;
        let Some(queue) = self.queues.get_mut(index).filter(|queue| queue.ready()) else {
            return Ok(None);
        };
        let chain = queue
            .iter(memory)
            .map_err(|source| Fault::QueueIndex {
                queue: index,
                source,
            })?
            .next();
        chain
            .map(|chain| Chain::parse(index, memory, chain))
            .transpose()
    }

    /// Puts back the chain that was taken last from the queue `index`, to be taken again later.
    pub fn unpop(&mut self, index: usize) {
        if let Some(queue) = self.queues.get_mut(index) {
            queue.go_to_previous_position();
        }
    }

    /// Gives the chain `head` back to the driver, with `len` bytes written into it.
    ///
    /// # Errors
    /// [`Fault::Used`], which does not happen to chains of this queue.
    pub fn put_used(&mut self, index: usize, head: u16, len: u32) -> Result<(), Fault> {
        let Some(queue) = self.queues.get_mut(index).filter(|queue| queue.ready()) else {
            return Ok(());
        };
        queue
            .add_used(self.memory, head, len)
            .map_err(|source| Fault::Used {
                queue: index,
                source,
            })
    }

    /// Interrupts the driver, if it wants to hear of the used chains of queue `index`.
    ///
    /// # Errors
    /// [`Fault::Used`], when the driver's wish cannot be read.
    pub fn tell(&mut self, index: usize) -> Result<(), Fault> {
        let Some(queue) = self.queues.get_mut(index).filter(|queue| queue.ready()) else {
            return Ok(());
        };
        let wanted = queue
            .needs_notification(self.memory)
            .map_err(|source| Fault::Used {
                queue: index,
                source,
            })?;
        if wanted {
            self.interrupt.used();
        }
        Ok(())
    }

    /// The device will be called for queue `index` again soon, by the event loop.
    pub fn again(&mut self, index: usize) {
        self.again.add(index);
    }

    /// Calls `take` with each chain of queue `index` until there is none or `take` wants no more
    /// (`false`: the chain stays in the queue). `take` gives the chain back itself, now or later.
    ///
    /// # Errors
    /// Those of the other functions here, and of `take`.
    pub fn serve_later(
        &mut self,
        index: usize,
        mut take: impl FnMut(&mut Self, Chain) -> Result<bool, Fault>,
    ) -> Result<(), Fault> {
        for _ in 0..SERVED_AT_ONCE {
            let Some(chain) = self.pop(index)? else {
                // True when the driver added something after the last look.
                if self.set_wanted(index, true)? {
                    continue;
                }
                return Ok(());
            };
            if !take(self, chain)? {
                self.unpop(index);
                return Ok(());
            }
        }
        self.again(index);
        Ok(())
    }

    /// Says whether the driver should notify when it adds chains. Returns whether it already has.
    ///
    /// # Errors
    /// [`Fault::Used`], when this cannot be said.
    pub fn set_wanted(&mut self, index: usize, wanted: bool) -> Result<bool, Fault> {
        let Some(queue) = self.queues.get_mut(index).filter(|queue| queue.ready()) else {
            return Ok(false);
        };
        let result = if wanted {
            queue.enable_notification(self.memory)
        } else {
            queue.disable_notification(self.memory).map(|()| false)
        };
        result.map_err(|source| Fault::Used {
            queue: index,
            source,
        })
    }
}
