//! Ports of memory alone, for benches and tests: what comes in was made beforehand, what goes out is added
//! up.

use super::{BURST, Fate, Frame, HEADROOM, Ports};
use std::convert::Infallible;
use weir_lookup::prefetch;

/// Bytes of a buffer. No power of two: the first lines of all buffers would share a few sets of the
/// processor's cache, which DPDK's pools avoid in the same way.
const BUFFER: usize = 2048 + 64;
/// Frames of the stock that are asked for ahead: the next burst's, as a card would have put them near the
/// processor by then.
const AHEAD: usize = BURST;

/// Frames of one length that come in one after the other, and then again from the first on.
#[derive(Clone, Debug)]
pub struct Stock {
    bytes: Vec<u8>,
    length: usize,
}

impl Stock {
    /// Of frames of one length.
    ///
    /// # Panics
    /// Without a frame, or if the lengths differ.
    pub fn new(frames: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut frames = frames.into_iter();
        let mut bytes = frames.next().expect("a frame at least");
        let length = bytes.len();
        for frame in frames {
            assert_eq!(frame.len(), length, "frames of one length");
            bytes.extend(frame);
        }
        Self { bytes, length }
    }

    /// As many frames as `each` is called for with the buffer of one of `length` bytes, which it fills.
    pub fn filled(frames: usize, length: usize, mut each: impl FnMut(usize, &mut [u8])) -> Self {
        let mut bytes = vec![0; frames * length];
        bytes.chunks_exact_mut(length).enumerate().for_each(|(at, frame)| each(at, frame));
        Self { bytes, length }
    }

    /// The number of frames.
    pub fn frames(&self) -> usize {
        self.bytes.len() / self.length
    }

    /// A frame, by its number.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn frame(&self, number: usize) -> &[u8] {
        &self.bytes[number * self.length..][..self.length]
    }

    /// Asks for a frame's memory, which is read soon; the number may be too large.
    #[inline]
    pub fn prefetch(&self, number: usize) {
        prefetch(&self.bytes, number * self.length);
    }

    /// The frames of the stock, one after the other, as they were put in.
    pub fn each(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.bytes.chunks_exact(self.length)
    }
}

/// What has gone out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sent {
    /// Frames that were sent.
    pub frames: u64,
    /// Bytes of these frames, from the Ethernet header on.
    pub bytes: u64,
    /// The sum of their first eight bytes, each as a little-endian number: of where they went.
    pub sum: u64,
    /// Frames with another fate.
    pub others: u64,
}

/// A port whose other end is memory: as a card does, it copies frames of a stock into buffers of a pool, in
/// turn, and takes the buffers of sent frames back.
#[derive(Clone, Debug)]
pub struct Memory<'a> {
    stock: &'a Stock,
    /// Where the next frame begins.
    next: usize,
    pool: Vec<u8>,
    /// Numbers of buffers; those from `taken` on, as many as are not with the plane, are free.
    ring: Vec<u32>,
    taken: usize,
    given: usize,
    /// What has gone out so far.
    pub sent: Sent,
    /// Frames that have come in and may be taken at once: [`BURST`], unless less is offered.
    pub offered: usize,
}

impl<'a> Memory<'a> {
    /// A port with so many buffers, a power of two, that begins with this frame of the stock.
    ///
    /// # Panics
    /// With fewer buffers than a burst takes, or not a power of two of them; or if frames do not fit.
    pub fn new(stock: &'a Stock, first: usize, buffers: usize) -> Self {
        assert!(buffers >= BURST && buffers.is_power_of_two(), "{buffers} buffers");
        assert!(stock.length + 2 * HEADROOM <= BUFFER, "frames of {} bytes", stock.length);
        Self {
            stock,
            next: first % stock.frames() * stock.length,
            pool: vec![0; buffers * BUFFER],
            ring: (0..buffers as u32).collect(),
            taken: 0,
            given: buffers,
            sent: Sent::default(),
            offered: BURST,
        }
    }
}

impl Ports for Memory<'_> {
    type Error = Infallible;

    #[inline]
    fn receive(&mut self, frames: &mut [Frame; BURST]) -> Result<usize, Infallible> {
        let Self { stock, next, pool, ring, taken, given, offered, .. } = self;
        let mask = ring.len() - 1;
        let free = (*given - *taken).min(*offered).min(BURST);
        for frame in &mut frames[..free] {
            let buffer = ring[*taken & mask];
            let at = buffer as usize * BUFFER + HEADROOM;
            let bytes = &stock.bytes[*next..*next + stock.length];
            // Half of the lines now and half in `finish`: so many at once would wait for each other.
            if *taken & 1 == 0 {
                prefetch(&stock.bytes, *next + AHEAD * stock.length);
            }
            // Of the length that nearly all have, without a call.
            match (bytes.first_chunk::<64>(), pool[at..].first_chunk_mut::<64>()) {
                (Some(from), Some(to)) if stock.length == 64 => *to = *from,
                _ => pool[at..at + stock.length].copy_from_slice(bytes),
            }
            *frame = Frame {
                at: at as u32,
                len: stock.length as u32,
                buffer,
                fate: Fate::Drop,
                device: 0,
            };
            *taken += 1;
            *next += stock.length;
            if *next == stock.bytes.len() {
                *next = 0;
            }
        }
        Ok(free)
    }

    #[inline]
    fn memory(&mut self) -> &mut [u8] {
        &mut self.pool
    }

    #[inline]
    fn finish(&mut self, frames: &[Frame]) -> Result<(), Infallible> {
        let Self { stock, next, pool, ring, given, sent, .. } = self;
        let mask = ring.len() - 1;
        for (at, frame) in frames.iter().enumerate() {
            if at & 1 == 1 {
                prefetch(&stock.bytes, *next + at * stock.length);
            }
            if frame.fate == Fate::Send
                && let Some(head) = pool[frame.at as usize..].first_chunk()
            {
                sent.frames += 1;
                sent.bytes += u64::from(frame.len);
                sent.sum = sent.sum.wrapping_add(u64::from_le_bytes(*head));
            } else {
                sent.others += 1;
            }
            ring[*given & mask] = frame.buffer;
            *given += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_in_turn_and_buffers_go_round() {
        let stock = Stock::new((0..100u8).map(|n| vec![n; 60]));
        let mut ports = Memory::new(&stock, 0, 64);
        let mut frames = [Frame::default(); BURST];
        for round in 0..10u64 {
            assert_eq!(ports.receive(&mut frames), Ok(BURST));
            let more = ports.clone().receive(&mut [Frame::default(); BURST]);
            assert_eq!(more, Ok(0), "all buffers are taken");
            for (at, frame) in frames.iter_mut().enumerate() {
                let number = ((round * BURST as u64 + at as u64) % 100) as u8;
                let found = &ports.memory()[frame.at as usize..][..frame.len as usize];
                assert_eq!(found, [number; 60]);
                frame.fate = if at == 0 { Fate::Pass } else { Fate::Send };
            }
            assert_eq!(ports.finish(&frames), Ok(()));
        }
        let wanted = Sent { frames: 630, bytes: 630 * 60, others: 10, ..ports.sent };
        assert_eq!(ports.sent, wanted);
    }
}
