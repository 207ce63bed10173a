//! Ports whose frames are of a stock: a null port receives buffers with nothing in them.

use weir_plane_burst::ports::{Sent, Stock};
use weir_plane_burst::{BURST, Fate, Frame, Ports};

/// Ports that a stock's frames are written into as they come in, in turn, as a card would have; what is sent
/// is added up.
pub struct Fed<'a, P> {
    ports: P,
    stock: &'a Stock,
    frames: usize,
    next: usize,
    /// What has gone out so far.
    pub sent: Sent,
}

impl<'a, P: Ports> Fed<'a, P> {
    /// These ports, from the first frame of the stock on. They must hand over frames of its length.
    pub fn new(ports: P, stock: &'a Stock) -> Self {
        Self { ports, stock, frames: stock.frames(), next: 0, sent: Sent::default() }
    }

    /// The ports.
    pub fn ports(&self) -> &P {
        &self.ports
    }
}

impl<P: Ports> Ports for Fed<'_, P> {
    type Error = P::Error;

    fn receive(&mut self, frames: &mut [Frame; BURST]) -> Result<usize, P::Error> {
        let count = self.ports.receive(frames)?;
        let memory = self.ports.memory();
        for frame in &frames[..count] {
            // The next burst's, as a card would have put it near the processor by then.
            self.stock.prefetch(self.next + BURST);
            let bytes = self.stock.frame(self.next);
            self.next += 1;
            if self.next == self.frames {
                self.next = 0;
            }
            let to = &mut memory[frame.at as usize..][..frame.len as usize];
            match (bytes.first_chunk::<64>(), to.first_chunk_mut::<64>()) {
                (Some(from), Some(to)) if frame.len == 64 => *to = *from,
                _ => to.copy_from_slice(bytes),
            }
        }
        Ok(count)
    }

    fn memory(&mut self) -> &mut [u8] {
        self.ports.memory()
    }

    fn finish(&mut self, frames: &[Frame]) -> Result<(), P::Error> {
        let Self { ports, sent, .. } = self;
        let memory = ports.memory();
        for frame in frames {
            if frame.fate == Fate::Send
                && let Some(head) = memory[frame.at as usize..].first_chunk()
            {
                sent.frames += 1;
                sent.bytes += u64::from(frame.len);
                sent.sum = sent.sum.wrapping_add(u64::from_le_bytes(*head));
            } else {
                sent.others += 1;
            }
        }
        ports.finish(frames)
    }
}
