//! What goes to the guest: stray answers first, then each connection in turn.

use super::packet::{DATA_MAX, HEADER_LEN_U32, Header};
use super::{Fault, Queues, RX, Vsock};

/// Most packets in one go: the guest may give buffers back as fast as they are filled.
const PACKETS_AT_ONCE: usize = 512;

impl Vsock {
    /// Fills the guest's buffers with what is due.
    pub(super) fn fill(&mut self, queues: &mut Queues<'_>) -> Result<(), Fault> {
        let mut used = false;
        let mut count = 0;
        let mut data = std::mem::take(&mut self.scratch);
        while !(self.stray.is_empty() && self.ready.is_empty()) {
            if count == PACKETS_AT_ONCE {
                queues.again(RX);
                break;
            }
            let Some(chain) = queues.pop(RX)? else {
                // True when the driver added a buffer after the last look.
                if queues.set_wanted(RX, true)? {
                    continue;
                }
                break;
            };
            count += 1;
            // A buffer without room for a byte of data could not be used up.
            let room = chain.writable_len().saturating_sub(HEADER_LEN_U32);
            if room == 0 {
                return Err(Fault::Chain {
                    queue: RX,
                    what: "is too short for a packet",
                });
            }
            let Some(header) = self.next(room.min(DATA_MAX), &mut data) else {
                queues.unpop(RX);
                continue;
            };
            let write = |offset, bytes: &[u8]| {
                chain
                    .write(queues.memory(), offset, bytes)
                    .map_err(|source| Fault::Memory { queue: RX, source })
            };
            let len = write(0, &header.encode())? + write(HEADER_LEN_U32, &data)?;
            queues.put_used(RX, chain.head(), u32::try_from(len).unwrap_or(0))?;
            used = true;
        }
        self.scratch = data;
        if used { queues.tell(RX) } else { Ok(()) }
    }

    /// The next packet for the guest, or `None` when the connection whose turn it was had nothing.
    fn next(&mut self, room: u32, data: &mut Vec<u8>) -> Option<Header> {
        data.clear();
        if let Some(stray) = self.stray.pop_front() {
            return Some(stray);
        }
        let token = self.ready.pop_front()?;
        let slot = self.connections.get_mut(&token)?;
        slot.queued = false;
        let header = slot.connection.next(room, data, &mut slot.readable);
        self.update(token);
        header
    }
}
